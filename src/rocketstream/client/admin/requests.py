"""Questions of every client about topics, queues and stored messages (upstream's MQAdminImpl).

Each is a coroutine on the instance's loop that asks the queue's master. Callers name topics as
users do, requests as the servers do (C-148).
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Concatenate, Final, ParamSpec, TypeVar

from rocketstream.checks import check_range, checks_calls
from rocketstream.client.instance import questions
from rocketstream.client.instance.api import SEARCH_TIMEOUT_MS
from rocketstream.client.instance.life_cycle import blocking
from rocketstream.client.instance.routes import unknown_broker
from rocketstream.errors import (
    ConfigurationError,
    OffsetNotFoundError,
    RemoteProtocolError,
    RocketMQError,
    RouteNotFoundError,
    TopicNotExistError,
)
from rocketstream.model import MessageQueue
from rocketstream.protocol.addresses import format_address
from rocketstream.protocol.bodies import BrokerData
from rocketstream.protocol.codes import MASTER_ID, Perm, RequestCode
from rocketstream.protocol.command import RemotingCommand
from rocketstream.protocol.headers import (
    CreateTopicRequestHeader,
    Header,
    QueryMessageRequestHeader,
    ViewMessageRequestHeader,
)
from rocketstream.protocol.message_ext import MessageExt, decode_message, decode_messages
from rocketstream.protocol.message_id import decode_offset_msg_id
from rocketstream.protocol.names import is_system_topic

if TYPE_CHECKING:
    from rocketstream.client.config import ClientConfig
    from rocketstream.client.instance.mq_client import MQClientInstance

P = ParamSpec("P")
T = TypeVar("T")

logger: logging.Logger = logging.getLogger("rocketstream.client")

CREATE_TOPIC_TRIES = 5
UNIT_FLAG = 1
"""Marks topics of clients in unit mode (TopicSysFlag)."""
QUERY_TIMEOUT_MS = 24_000
_UNIQUE_KEY_QUERY = "_UNIQUE_KEY_QUERY"


class MQAdmin:
    """Questions of one client; belongs to the loop of its instance.

    Each takes a request or two and raises BrokerError when a broker refuses, TransportError when
    none answers, RouteNotFoundError where topic or broker is unknown.
    """

    def __init__(self, instance: MQClientInstance, config: ClientConfig) -> None:
        self._instance = instance
        self._config = config

    # --- topics -----------------------------------------------------------------------------------

    async def create_topic(
        self, key: str, new_topic: str, queue_num: int, topic_sys_flag: int = 0
    ) -> None:
        """Create a topic with ``queue_num`` queues on every broker that has the topic ``key``.

        Args:
            key: a topic the brokers have, ``TBW102`` for one.
            new_topic: the topic to create.
            queue_num: how many read queues, and write queues, it gets on each broker.
            topic_sys_flag: flags of the topic, as Java's ``TopicSysFlag`` has them.

        Raises:
            ConfigurationError: a name or number that cannot be used.
            RouteNotFoundError: ``key`` has no route.
            RocketMQError: no broker created it; the last one's error.
        """
        key, new_topic = map(self._config.topic_with_namespace, (key, new_topic))
        if is_system_topic(new_topic):
            raise ConfigurationError(
                f"topic {new_topic!r} belongs to the brokers themselves; choose another name"
            )
        check_range("queue_num", queue_num, 1)
        brokers = await self._masters_of(key)
        header = CreateTopicRequestHeader(
            new_topic, key, queue_num, queue_num, Perm.READ | Perm.WRITE, "SINGLE_TAG",
            topic_sys_flag | (UNIT_FLAG if self._config.unit_mode else 0), False,
        )  # fmt: skip
        results = await asyncio.gather(
            *(self._create_at(address, header) for address in brokers), return_exceptions=True
        )
        errors = [result for result in results if isinstance(result, BaseException)]
        for error in errors:
            logger.warning("topic %s could not be created on a broker: %s", new_topic, error)
        if len(errors) == len(brokers):
            raise errors[-1]

    async def _create_at(self, address: str, header: CreateTopicRequestHeader) -> None:
        for left in reversed(range(CREATE_TOPIC_TRIES)):
            try:
                await self._ask(address, RequestCode.UPDATE_AND_CREATE_TOPIC, header)
                return
            except RocketMQError as error:
                if not left or not error.retriable:
                    raise

    async def _masters_of(self, topic: str) -> list[str]:
        brokers = await self._brokers_of(topic)
        masters = [
            data.broker_addrs[MASTER_ID]
            for data in sorted(brokers, key=lambda data: data.broker_name)
            if MASTER_ID in data.broker_addrs
        ]
        if not masters:
            raise RouteNotFoundError(
                f"no broker of topic {topic!r} has a master; key must be a topic that brokers "
                "have, TBW102 for one",
                topic=topic,
            )
        return masters

    async def _brokers_of(self, topic: str) -> list[BrokerData]:
        try:
            return (await self._instance.api.route(topic)).broker_datas
        except TopicNotExistError as error:
            raise RouteNotFoundError(
                f"topic {topic!r} is unknown to the name server", topic=topic
            ) from error

    # --- offsets ----------------------------------------------------------------------------------

    async def search_offset(self, message_queue: MessageQueue, timestamp_ms: int) -> int:
        """Return the offset stored nearest to a time, ms since 1970 (C-372)."""
        address, queue = await self._found(message_queue)
        return await self._instance.api.search_offset(address, queue, timestamp_ms)

    async def max_offset(self, message_queue: MessageQueue) -> int:
        """Return the offset the next message of ``message_queue`` will get."""
        return await self._instance.api.max_offset(*await self._found(message_queue))

    async def min_offset(self, message_queue: MessageQueue) -> int:
        """Return the offset of the oldest message still in ``message_queue``."""
        address, queue = await self._found(message_queue)
        return await self._instance.api.ask_offset(address, questions.min_offset(queue))

    async def earliest_msg_store_time(self, message_queue: MessageQueue) -> int:
        """Return when the oldest message of a queue was stored, ms since 1970; -1 without any."""
        address, queue = await self._found(message_queue)
        question = questions.oldest_store_time(queue)
        return await self._instance.api.ask_offset(address, question)

    # --- messages ---------------------------------------------------------------------------------

    async def view_message(self, topic: str, msg_id: str) -> MessageExt:
        """Return the message with an id: the broker's offset id, or the sender's.

        Raises:
            OffsetNotFoundError: there is none.
        """
        topic = self._config.topic_with_namespace(topic)
        return self._seen([await self._view(topic, msg_id)])[0]

    async def _view(self, topic: str, msg_id: str) -> MessageExt:
        brokers = await self._brokers_of(topic)
        addresses = {a for data in brokers for a in data.broker_addrs.values()}
        try:
            host, port, offset = decode_offset_msg_id(msg_id)
        except RemoteProtocolError:
            return await self._by_unique_key(topic, msg_id)
        address = format_address(host, port)
        # A sender's id has as many digits: only one that names a broker of the topic is a place.
        if address not in addresses:
            return await self._by_unique_key(topic, msg_id)
        return await self._by_offset(address, offset)

    async def _by_offset(self, address: str, offset: int) -> MessageExt:
        header = ViewMessageRequestHeader(offset)
        answer = await self._ask(address, RequestCode.VIEW_MESSAGE_BY_ID, header)
        return decode_message(bytes(answer.body))

    async def _by_unique_key(self, topic: str, msg_id: str) -> MessageExt:
        found = await self._query(topic, msg_id, 32, 0, 2**63 - 1, unique=True)
        if not found:
            raise OffsetNotFoundError(
                22, f"no message of topic {topic} has the id {msg_id} in the brokers' index"
            )
        return min(found, key=lambda message: message.store_timestamp)

    async def query_message(
        self, topic: str, key: str, max_nums: int, since_ms: int, until_ms: int
    ) -> list[MessageExt]:
        """Return up to ``max_nums`` messages that have ``key``, stored between two times.

        Times are ms since 1970.

        Raises:
            RouteNotFoundError: the topic has no route.
            RocketMQError: no broker answered; the last one's error.
        """
        check_range("max_nums", max_nums, 1)
        topic = self._config.topic_with_namespace(topic)
        found = await self._query(topic, key, max_nums, since_ms, until_ms, unique=False)
        having = [message for message in found if key in (message.keys or "").split(" ")]
        return self._seen(having[:max_nums])

    def _seen(self, messages: list[MessageExt]) -> list[MessageExt]:
        for message in messages:
            message._topic = self._config.without_namespace(message.topic)
        return messages

    async def _query(
        self, topic: str, key: str, max_nums: int, since_ms: int, until_ms: int, *, unique: bool
    ) -> list[MessageExt]:
        header = QueryMessageRequestHeader(topic, key, max_nums, since_ms, until_ms)
        results = await asyncio.gather(
            *(self._query_at(address, header, unique) for address in await self._masters_of(topic)),
            return_exceptions=True,
        )
        errors = [result for result in results if isinstance(result, BaseException)]
        if len(errors) == len(results):
            raise errors[-1]
        for error in errors:
            logger.warning("a broker could not be asked for key %s: %s", key, error)
        found = [m for result in results if isinstance(result, list) for m in result]
        return [m for m in found if m.msg_id == key] if unique else found

    async def _query_at(
        self, address: str, header: QueryMessageRequestHeader, unique: bool
    ) -> list[MessageExt]:
        command = RemotingCommand.request(RequestCode.QUERY_MESSAGE, header)
        ext = command.ext_fields if command.ext_fields is not None else {}
        command.ext_fields = {**ext, _UNIQUE_KEY_QUERY: "true" if unique else "false"}
        api = self._instance.api
        try:
            answer = await api.invoke(api.channel(address), command, QUERY_TIMEOUT_MS)
        except OffsetNotFoundError:
            return []
        return decode_messages(bytes(answer.body))

    # --- asking -----------------------------------------------------------------------------------

    async def _found(self, mq: MessageQueue) -> tuple[str, MessageQueue]:
        mq = self._config.queue_with_namespace(mq)
        routes = self._instance.routes
        address = routes.masters.get(mq.broker_name)
        if address is None:
            await self._instance.route_updates.update(mq.topic)
            address = routes.masters.get(mq.broker_name)
        if address is None:
            raise unknown_broker(mq.broker_name)
        return address, mq

    async def _ask(self, address: str, code: int, header: Header) -> RemotingCommand:
        api = self._instance.api
        command = RemotingCommand.request(code, header)
        return await api.invoke(api.channel(address), command, SEARCH_TIMEOUT_MS)


# --- the questions as calls of clients ------------------------------------------------------------


def asked(
    question: Callable[Concatenate[MQAdmin, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]:
    """Return the call of an asyncio client that asks a question."""

    @functools.wraps(question)
    async def ask(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        admin: MQAdmin = self._admin()
        return await question(admin, *args, **kwargs)

    return ask


@checks_calls()
class AsyncAdmin:
    """Calls of producers and consumers beside sending and consuming; see ``MQAdmin``.

    All raise ClientStateError unless running.
    """

    create_topic: Final = asked(MQAdmin.create_topic)
    search_offset: Final = asked(MQAdmin.search_offset)
    max_offset: Final = asked(MQAdmin.max_offset)
    min_offset: Final = asked(MQAdmin.min_offset)
    earliest_msg_store_time: Final = asked(MQAdmin.earliest_msg_store_time)
    view_message: Final = asked(MQAdmin.view_message)
    query_message: Final = asked(MQAdmin.query_message)


@checks_calls()
class SyncAdmin:
    """The same, blocking."""

    create_topic: Final = blocking(AsyncAdmin.create_topic)
    search_offset: Final = blocking(AsyncAdmin.search_offset)
    max_offset: Final = blocking(AsyncAdmin.max_offset)
    min_offset: Final = blocking(AsyncAdmin.min_offset)
    earliest_msg_store_time: Final = blocking(AsyncAdmin.earliest_msg_store_time)
    view_message: Final = blocking(AsyncAdmin.view_message)
    query_message: Final = blocking(AsyncAdmin.query_message)
