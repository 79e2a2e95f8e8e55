"""Requests a client instance makes, as coroutines: routes, heartbeats, members, offsets.

Law: one request each, typed in and out; retries and meaning are the callers'.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import TypeVar

from rocketstream.client.config import ClientConfig
from rocketstream.client.core import misplaced, offset_questions
from rocketstream.client.core.question import Question
from rocketstream.client.instance.outage_log import NAME_SERVERS, OutageLog
from rocketstream.client.route_check import check_route
from rocketstream.errors import (
    ConfigurationError,
    ConnectError,
    OffsetNotFoundError,
    RemoteProtocolError,
    RequestNotSupportedError,
    TransportError,
    broker_error,
)
from rocketstream.model import MessageQueue
from rocketstream.protocol.addresses import format_address, parse_address
from rocketstream.protocol.bodies import (
    CheckClientRequestBody,
    GetConsumerListByGroupResponseBody,
    HeartbeatData,
    SubscriptionData,
    TopicRouteData,
)
from rocketstream.protocol.codes import RequestCode, ResponseCode
from rocketstream.protocol.command import RemotingCommand
from rocketstream.protocol.headers import (
    ConsumerSendMsgBackRequestHeader,
    GetConsumerListByGroupRequestHeader,
    GetRouteInfoRequestHeader,
    Header,
    UnregisterClientRequestHeader,
)
from rocketstream.transport.aio import Connection, RemotingClient

T = TypeVar("T")

OFFSET_TIMEOUT_MS = 5_000
SEARCH_TIMEOUT_MS = 6_000
SEND_BACK_TIMEOUT_MS = 5_000


def vip_address(address: str) -> str:
    """Return the broker's fast port: two below (C-13)."""
    host, port = parse_address(address)
    return format_address(host, port - 2)


class MQClientAPI:
    """Typed requests over the connections of one instance; belongs to its loop."""

    def __init__(self, remoting: RemotingClient, config: ClientConfig, outages: OutageLog) -> None:
        self.remoting = remoting
        self._outages = outages
        self._timeout_ms = config.api_timeout_ms
        self._vip = config.vip_channel_enabled
        self._name_servers: list[str] = []
        self._preferred = 0
        self.set_name_servers(config.name_servers())

    @property
    def name_servers(self) -> Sequence[str]:
        """The addresses, in the order this client tries them."""
        return self._name_servers

    def set_name_servers(self, addresses: Sequence[str]) -> bool:
        """Use these name servers from now on; return whether they are others than before."""
        if set(addresses) == set(self._name_servers):
            return False
        # Clients spread over the name servers; each stays with one while it answers (C-139).
        self._name_servers = random.sample(list(addresses), len(addresses))
        self._preferred = 0
        return True

    def channel(self, address: str) -> str:
        """Return the address to use for everything but pulls and heartbeats."""
        return vip_address(address) if self._vip else address

    async def invoke(
        self, address: str, command: RemotingCommand, timeout_ms: float
    ) -> RemotingCommand:
        """Send one request and return its successful answer.

        Raises:
            BrokerError: an error code (a subclass where one exists).
            TransportError: no connection, connection lost, or no answer in time.
        """
        return self.successful(address, await self.remoting.request(address, command, timeout_ms))

    def successful(self, address: str, answer: RemotingCommand) -> RemotingCommand:
        """Return an answer that says success.

        Raises:
            BrokerError: it says something else (a subclass where one exists).
        """
        self._outages.answered(address)
        if answer.code != ResponseCode.SUCCESS:
            raise broker_error(answer.code, answer.remark, address)
        return answer

    # --- name servers -----------------------------------------------------------------------------

    async def route(self, topic: str) -> TopicRouteData:
        """Ask for a topic's route (105), each name server once until one answers.

        An answer that cannot be read counts as no answer: the next name server is asked.

        Raises:
            TopicNotExistError: the name server does not know the topic.
            ConnectError: no name server answered; the text names every address tried and why.
            RemoteProtocolError: the only answers there are make no sense; likewise.
            ConfigurationError: what answered is a broker.
        """
        header = GetRouteInfoRequestHeader(topic=topic)
        failures: list[str] = []
        senseless = ""
        servers = self._name_servers
        for _ in servers:
            address = servers[self._preferred % len(servers)]
            command = RemotingCommand.request(RequestCode.GET_ROUTEINFO_BY_TOPIC, header)
            try:
                answer = await self.invoke(address, command, self._timeout_ms)
                route = TopicRouteData.decode(bytes(answer.body))
                check_route(topic, route)
            except (TransportError, RemoteProtocolError) as error:
                if isinstance(error, RemoteProtocolError):
                    senseless = address
                failures.append(f"{address} ({error})")
                self._preferred += 1
                continue
            except RequestNotSupportedError as error:
                raise await self._misplaced(address) or error from None
            self._outages.worked(*NAME_SERVERS)
            return route
        if senseless:
            raise RemoteProtocolError(
                f"the route of topic {topic!r} cannot be used: {'; '.join(failures)}; check that "
                "the address is a name server's, and what it answers",
                topic=topic,
                address=senseless,
            )
        if not servers:
            raise ConnectError(
                f"the route of topic {topic!r} cannot be asked for: the address server has not "
                "named any name server yet",
                topic=topic,
            )
        raise ConnectError(
            f"no name server answered for the route of topic {topic!r}; tried "
            f"{'; '.join(failures)}",
            topic=topic,
            addresses=list(servers),
        )

    async def _misplaced(self, address: str) -> ConfigurationError | None:
        question = misplaced.question()
        try:
            answer = await self.remoting.request(address, question, self._timeout_ms)
        except TransportError:
            return None
        return misplaced.judge(address, answer)

    # --- membership -------------------------------------------------------------------------------

    def heartbeat(
        self, connection: Connection, data: HeartbeatData
    ) -> asyncio.Future[RemotingCommand]:
        """Tell a broker who we are (34), ahead of whatever is sent later; return what it answers.

        Raises:
            TransportError: nothing was sent.
        """
        command = RemotingCommand.request(RequestCode.HEART_BEAT, body=data.encode())
        return connection.request_future(command, self._timeout_ms)

    async def unregister(
        self, address: str, client_id: str, *, producer: str | None, consumer: str | None
    ) -> None:
        """Tell a broker that a group of this client is gone (35)."""
        header = UnregisterClientRequestHeader(client_id, producer, consumer)
        command = RemotingCommand.request(RequestCode.UNREGISTER_CLIENT, header)
        await self.invoke(address, command, self._timeout_ms)

    async def check_client(
        self, address: str, client_id: str, group: str, subscription: SubscriptionData
    ) -> None:
        """Ask a broker whether it can filter by a subscription (46).

        Raises:
            BrokerError: it cannot; code 23 when it cannot read the expression.
        """
        body = CheckClientRequestBody(client_id, group, subscription)
        command = RemotingCommand.request(RequestCode.CHECK_CLIENT_CONFIG, body=body.encode())
        await self.invoke(self.channel(address), command, self._timeout_ms)

    async def consumer_ids(self, address: str, group: str) -> list[str]:
        """Ask a broker for a group's members (38)."""
        header = GetConsumerListByGroupRequestHeader(group)
        answer = await self._ask(
            address, RequestCode.GET_CONSUMER_LIST_BY_GROUP, header, self._timeout_ms
        )
        body = GetConsumerListByGroupResponseBody.decode(bytes(answer.body))
        return list(body.consumer_id_list)

    # --- offsets ----------------------------------------------------------------------------------

    async def query_consumer_offset(self, address: str, group: str, mq: MessageQueue) -> int | None:
        """Ask for a committed offset (14); None when the broker has none.

        Any other error is an error, not "no offset" (C-316).
        """
        question = offset_questions.committed_offset(group, mq)
        try:
            return await self.ask_offset(address, question, OFFSET_TIMEOUT_MS)
        except OffsetNotFoundError:
            return None

    async def update_consumer_offset(
        self, address: str, group: str, mq: MessageQueue, offset: int
    ) -> None:
        """Commit an offset (15) and wait until the broker has it."""
        command = offset_questions.commit(group, mq, offset)
        await self.invoke(self.channel(address), command, OFFSET_TIMEOUT_MS)

    async def max_offset(self, address: str, mq: MessageQueue) -> int:
        """Ask for the end of a queue (30)."""
        return await self.ask_offset(address, offset_questions.max_offset(mq))

    async def search_offset(self, address: str, mq: MessageQueue, timestamp_ms: int) -> int:
        """Ask for the offset nearest to a store time (29, C-372)."""
        return await self.ask_offset(address, offset_questions.offset_at(mq, timestamp_ms))

    async def ask_offset(
        self, address: str, question: Question[T], timeout_ms: float = SEARCH_TIMEOUT_MS
    ) -> T:
        """Ask a broker about a queue's offsets; the errors are those of ``invoke``."""
        return question.read(
            await self.invoke(self.channel(address), question.command(), timeout_ms)
        )

    # --- send-back --------------------------------------------------------------------------------

    async def send_message_back(
        self, address: str, header: ConsumerSendMsgBackRequestHeader
    ) -> None:
        """Have the broker store a message for another try (36)."""
        await self._ask(address, RequestCode.CONSUMER_SEND_MSG_BACK, header, SEND_BACK_TIMEOUT_MS)

    async def _ask(
        self, address: str, code: int, header: Header, timeout_ms: float
    ) -> RemotingCommand:
        command = RemotingCommand.request(code, header)
        return await self.invoke(self.channel(address), command, timeout_ms)
