"""Requests a client instance makes, as coroutines: routes, heartbeats, members, offsets.

Each call is one request, typed in and out; only look-ups at name servers try another address.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Sequence
from typing import TypeVar

from rocketstream.client.config import ClientConfig
from rocketstream.client.instance import questions
from rocketstream.client.instance.outage_log import NAME_SERVERS, OutageLog
from rocketstream.client.instance.questions import LookUp, NameServers, Question
from rocketstream.client.instance.routes import check_route
from rocketstream.errors import (
    ConfigurationError,
    OffsetNotFoundError,
    RemoteProtocolError,
    TransportError,
    broker_error,
)
from rocketstream.model import MessageQueue
from rocketstream.protocol.addresses import format_address, parse_address, parse_addresses
from rocketstream.protocol.bodies import (
    CheckClientRequestBody,
    GetConsumerListByGroupResponseBody,
    HeartbeatData,
    SubscriptionData,
    TopicRouteData,
)
from rocketstream.protocol.codes import RequestCode, ResponseCode, request_text
from rocketstream.protocol.command import RemotingCommand
from rocketstream.protocol.headers import (
    GetConsumerListByGroupRequestHeader,
    GetRouteInfoRequestHeader,
    Header,
    UnregisterClientRequestHeader,
)
from rocketstream.transport.client import RemotingClient
from rocketstream.transport.connection import Connection

T = TypeVar("T")

logger: logging.Logger = logging.getLogger("rocketstream.client")

FETCH_TIMEOUT_MS = 3_000
_ANSWER_BYTES_MAX = 64 * 1024
OFFSET_TIMEOUT_MS = 5_000
SEARCH_TIMEOUT_MS = 6_000


def vip_address(address: str) -> str:
    """Return the broker's fast port: two below (C-13)."""
    host, port = parse_address(address)
    return format_address(host, port - 2)


class MQClientAPI:
    """Typed requests over the connections of one instance; belongs to its loop.

    Attributes:
        remoting: the connections.
        name_servers: those asked for routes.
    """

    def __init__(self, remoting: RemotingClient, config: ClientConfig, outages: OutageLog) -> None:
        self.remoting = remoting
        self._outages = outages
        self._timeout_ms = config.api_timeout_ms
        self._vip = config.vip_channel_enabled
        self.name_servers: NameServers = NameServers(())
        self.set_name_servers(config.name_servers())

    def set_name_servers(self, addresses: Sequence[str]) -> bool:
        """Use these name servers from now on; return whether they are others than before."""
        if set(addresses) == set(self.name_servers.addresses):
            return False
        # Clients spread over the name servers; each stays with one while it answers (C-139).
        self.name_servers.replace(random.sample(list(addresses), len(addresses)))
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
        answer = await self.remoting.request(address, command, timeout_ms)
        return self.successful(address, answer, command.code)

    def successful(
        self, address: str, answer: RemotingCommand, asked: int | None = None
    ) -> RemotingCommand:
        """Return an answer that says success.

        Raises:
            BrokerError: it says something else (a subclass where one exists).
        """
        self._outages.answered(address)
        if answer.code != ResponseCode.SUCCESS:
            what = "" if asked is None else request_text(asked)
            raise broker_error(answer.code, answer.remark, address, what)
        return answer

    # --- name servers -----------------------------------------------------------------------------

    async def route(self, topic: str) -> TopicRouteData:
        """Ask for a topic's route (105), each name server once until one answers.

        Raises:
            TopicNotExistError: the name server does not know the topic.
            ConnectError: no name server answered; the text names every address tried and why.
            RemoteProtocolError: the only answers there are make no sense; likewise.
            ConfigurationError: a broker has answered.
        """
        header = GetRouteInfoRequestHeader(topic=topic)

        def read(answer: RemotingCommand) -> TopicRouteData:
            route = TopicRouteData.decode(bytes(answer.body))
            check_route(topic, route)
            return route

        def request() -> RemotingCommand:
            return RemotingCommand.request(RequestCode.GET_ROUTEINFO_BY_TOPIC, header)

        what = f"the route of topic {topic!r}"
        return await self._carry(self.name_servers.look_up(request, read, what, topic=topic))

    async def _carry(self, look_up: LookUp[T]) -> T:
        """Carry the requests of a look-up; return what it finds."""
        try:
            address, request = next(look_up)
            while True:
                try:
                    answer = await self.remoting.request(address, request, self._timeout_ms)
                except (TransportError, RemoteProtocolError) as error:
                    address, request = look_up.throw(error)
                else:
                    self._outages.answered(address)
                    address, request = look_up.send(answer)
        except StopIteration as end:
            self._outages.worked(*NAME_SERVERS)
            found: T = end.value
            return found

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
        question = questions.committed_offset(group, mq)
        try:
            return await self.ask_offset(address, question, OFFSET_TIMEOUT_MS)
        except OffsetNotFoundError:
            return None

    async def update_consumer_offset(
        self, address: str, group: str, mq: MessageQueue, offset: int
    ) -> None:
        """Commit an offset (15) and wait until the broker has it."""
        command = questions.commit(group, mq, offset).command()
        await self.invoke(self.channel(address), command, OFFSET_TIMEOUT_MS)

    async def max_offset(self, address: str, mq: MessageQueue) -> int:
        """Ask for the end of a queue (30)."""
        return await self.ask_offset(address, questions.max_offset(mq))

    async def search_offset(self, address: str, mq: MessageQueue, timestamp_ms: int) -> int:
        """Ask for the offset nearest to a store time (29, C-372)."""
        return await self.ask_offset(address, questions.offset_at(mq, timestamp_ms))

    async def ask_offset(
        self, address: str, question: Question[T], timeout_ms: float = SEARCH_TIMEOUT_MS
    ) -> T:
        """Ask a broker about a queue's offsets; the errors are those of ``invoke``."""
        return question.read(
            await self.invoke(self.channel(address), question.command(), timeout_ms)
        )

    async def _ask(
        self, address: str, code: int, header: Header, timeout_ms: float
    ) -> RemotingCommand:
        command = RemotingCommand.request(code, header)
        return await self.invoke(self.channel(address), command, timeout_ms)


# --- the address server ---------------------------------------------------------------------------


def fetch_name_servers(url: str, timeout_ms: int = FETCH_TIMEOUT_MS) -> list[str]:
    """Ask an address server by HTTP; return the addresses in the first line it answers (C-130).

    Blocks. Returns none when that fails, and logs why: the caller keeps what it knows and asks
    again later.
    """
    # Imported here, since few clients ask an address server and all would wait for the import.
    import urllib.error
    import urllib.request
    from http.client import HTTPException

    try:
        # No proxy: the address server stands in the clients' own network.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(url, timeout=timeout_ms / 1000) as answer:
            text = answer.read(_ANSWER_BYTES_MAX).decode("utf-8", "replace").strip()
    except urllib.error.HTTPError as error:
        error.close()  # it is the answer, with its socket
        logger.warning("address server %s answered with status %d", url, error.code)
        return []
    except (OSError, HTTPException, ValueError) as error:  # URLError is an OSError
        logger.warning("address server %s could not be asked: %s", url, error)
        return []
    lines = text.splitlines()
    try:
        return parse_addresses(lines[0]) if lines else []
    except ConfigurationError as error:
        logger.warning("address server %s named no addresses: %s", url, error)
        return []
