"""Brokers of lite topics: told which are wanted, asked for messages, told what became of them.

Law: on the loop, but for what says otherwise; one request to a broker at a time tells it of lite
topics, so that the whole set never overtakes a name that was added meanwhile. A message whose
acknowledgement is lost comes again: at least once.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Sequence
from typing import Any

from rocketstream.client.consumer.lite_topics.topics import (
    LiteRun,
    LiteTopics,
    begins_at_oldest,
    parts,
)
from rocketstream.client.consumer.settings import OffsetOption
from rocketstream.client.instance.mq_client import MQClientInstance
from rocketstream.errors import (
    BrokerError,
    LiteTopicSetupError,
    NotSupportedError,
    OffsetNotFoundError,
    RequestNotSupportedError,
    RocketMQError,
    RouteNotFoundError,
    TransportError,
    broker_error,
)
from rocketstream.limits import LITE_NAMES_PER_REQUEST
from rocketstream.model import MessageQueue
from rocketstream.protocol.bodies import LiteSubscriptionCtlRequestBody, LiteSubscriptionData
from rocketstream.protocol.codes import PopAnswer, RequestCode, ResponseCode
from rocketstream.protocol.command import RemotingCommand
from rocketstream.protocol.headers import (
    AckMessageRequestHeader,
    ChangeInvisibleTimeRequestHeader,
    PopLiteMessageRequestHeader,
    PopLiteMessageResponseHeader,
    QueryConsumerOffsetRequestHeader,
)
from rocketstream.protocol.lite import LITE_QUEUE_ID, LITE_SEPARATOR, lite_queue_name, order_counts
from rocketstream.protocol.message_ext import MessageExt, decode_messages
from rocketstream.protocol.properties import (
    PROPERTY_INNER_MULTI_DISPATCH,
    PROPERTY_INNER_MULTI_QUEUE_OFFSET,
    whole_number,
)

logger: logging.Logger = logging.getLogger("rocketstream.client")

TELL_TIMEOUT_MS = 30_000
"""A hundred thousand names take a broker seconds."""
POLL_MARGIN_MS = 10_000
"""How much longer than it may hold a request a broker's answer is waited for."""
ACK_TIMEOUT_MS = 5_000
ACK_AGAIN_MS = 1_000
"""Pause before an acknowledgement that could not be sent is sent again."""
_ASKED_AT_ONCE = 128
_OFFSET_MAX = 2**63 - 1

_UNREACHED = (TransportError, RouteNotFoundError)
_NOTHING = frozenset({PopAnswer.NOT_FOUND, PopAnswer.POLLING_FULL, PopAnswer.POLLING_TIMEOUT})
_SETUP = frozenset(
    {
        ResponseCode.TOPIC_NOT_EXIST,
        ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
        ResponseCode.INVALID_PARAMETER,
        ResponseCode.ILLEGAL_OPERATION,
    }
)


class LiteBrokers:
    """The brokers of one parent topic, as one consumer of its lite topics talks to them.

    Args:
        instance: the client instance.
        group: consumer group, with its namespace.
        topic: the parent topic, with its namespace.
        topics: the lite topics wanted, and what each broker was told.
    """

    def __init__(
        self, instance: MQClientInstance, group: str, topic: str, topics: LiteTopics
    ) -> None:
        self._instance = instance
        self._api = instance.api
        self._group = group
        self._topic = topic
        self._topics = topics
        self._locks: dict[str, asyncio.Lock] = {}
        self._changing = asyncio.Lock()

    # --- which lite topics are wanted -------------------------------------------------------------

    async def introduce(self) -> None:
        """Tell every broker all for the first time, and check that each can give messages.

        Raises:
            RocketMQError: a broker refuses, or none of them can be reached.
        """

        async def first(broker: str) -> None:
            await self.tell_all(broker)
            # For no message at all: a broker says now what it would refuse later.
            await self.receive(broker, 0, 10_000, 0, None)

        await self._each(first)

    async def tell_all(self, broker: str) -> None:
        """Tell a broker the whole set; names it may have forgotten are added before.

        Raises:
            RocketMQError: it refuses, or cannot be reached.
        """
        topics = self._topics
        async with self._lock_of(broker):
            # The names of now: one that is added meanwhile is not placed yet, and a broker that has
            # it in the whole set may begin at its end, past messages nobody has consumed.
            mark, names = topics.mark(broker), topics.wanted
            now_ms = self._instance.clock.monotonic_ms()
            await self._place(broker, topics.to_place(broker, now_ms))
            await self._tell(broker, "COMPLETE_ADD", names)
            topics.told_all(broker, mark, self._instance.clock.monotonic_ms())

    async def add(self, names: Iterable[str], option: OffsetOption | None) -> None:
        """Add lite topics, and tell every broker.

        A broker that cannot be reached learns of them later, unless ``option`` moves the group: it
        would not be moved there.

        Raises:
            RocketMQError: a broker refuses, or none of them can be reached; none is subscribed.
        """
        topics = self._topics

        # A name on its way counts as subscribed only when it has arrived: one change at a time.
        async with self._changing:
            new = topics.new(names)
            if not new:
                return
            topics.add(new, option)

            async def tell(broker: str) -> None:
                async with self._lock_of(broker):
                    if option is None:
                        await self._place(broker, new)
                    else:
                        await self._tell_of(broker, "PARTIAL_ADD", new, option)

            try:
                await self._each(tell, strict=not begins_at_oldest(option))
            except BaseException:
                topics.remove(new)
                for broker in topics.brokers:
                    topics.forgot(broker)
                raise

    async def remove(self, names: Iterable[str]) -> None:
        """Remove lite topics, and tell every broker; one out of reach learns of it later.

        Raises:
            RocketMQError: a broker refuses, or none of them can be reached.
        """
        async with self._changing:
            known = self._topics.known(names)
            if not known:
                return
            self._topics.remove(known)

            async def tell(broker: str) -> None:
                async with self._lock_of(broker):
                    await self._tell_of(broker, "PARTIAL_REMOVE", known)

            await self._each(tell)

    async def withdraw(self, brokers: Collection[str]) -> None:
        """Have brokers forget all they were told; what fails is logged."""

        async def tell(broker: str) -> None:
            async with self._lock_of(broker):
                await self._tell(broker, "COMPLETE_REMOVE")

        results = await asyncio.gather(*map(tell, brokers), return_exceptions=True)
        for result in results:
            if isinstance(result, Exception):
                logger.info("COMPLETE_REMOVE: %s", result)

    def _lock_of(self, broker: str) -> asyncio.Lock:
        return self._locks.setdefault(broker, asyncio.Lock())

    async def _place(self, broker: str, names: Sequence[str]) -> None:
        """Add lite topics; where the group has no offset, it begins where it is to begin."""
        placed: list[str] = []
        fresh: list[str] = []
        for some in parts(names, _ASKED_AT_ONCE):
            answers = await asyncio.gather(*(self._has_offset(broker, name) for name in some))
            for name, has_one in zip(some, answers, strict=True):
                (placed if has_one else fresh).append(name)
        for begin, some in self._topics.begins(fresh).items():
            await self._tell_of(broker, "PARTIAL_ADD", some, begin)
        await self._tell_of(broker, "PARTIAL_ADD", placed)
        self._topics.placed(broker, placed, self._instance.clock.monotonic_ms())

    async def _each(self, tell: Callable[[str], Awaitable[None]], *, strict: bool = False) -> None:
        """Tell every broker; one that is out of reach learns of it when it is back.

        Raises:
            RocketMQError: one refuses, or none could be reached; with ``strict`` when one could
                not.
        """
        brokers = self._topics.brokers
        results = await asyncio.gather(*map(tell, brokers), return_exceptions=True)
        unreached: list[BaseException] = []
        for broker, result in zip(brokers, results, strict=True):
            if result is None:
                continue
            if not isinstance(result, _UNREACHED):
                raise result
            unreached.append(result)
            self._topics.forgot(broker)
        if unreached and (strict or len(unreached) == len(brokers)):
            raise unreached[0]
        for error in unreached:
            logger.warning("a broker will be told of lite topics when it is back: %s", error)

    # --- requests ---------------------------------------------------------------------------------

    async def receive(
        self, broker: str, count: int, invisible_ms: int, poll_ms: int, attempt: str | None
    ) -> list[LiteRun]:
        """Ask for messages of any lite topics subscribed (200070).

        Args:
            broker: whom.
            count: how many at most.
            invisible_ms: how long they are hidden from other members.
            poll_ms: how long the broker may hold the request while there are none.
            attempt: names this question; asked again by the same name it brings what an answer
                that was lost has brought.

        Raises:
            NotSupportedError: it has no lite topics.
            LiteTopicSetupError: topic or group are not made for them.
            TransportError: it cannot be reached, or its answer was lost.
            RemoteProtocolError, DamagedMessageError: as ``runs_of``.
        """
        address = self._address(broker)
        instance = self._instance
        header = PopLiteMessageRequestHeader(
            instance.client_id, self._group, self._topic, count, invisible_ms, poll_ms,
            instance.clock.now_ms(), attempt,
        )  # fmt: skip
        command = RemotingCommand.request(RequestCode.POP_LITE_MESSAGE, header)
        answer = await self._api.remoting.request(address, command, poll_ms + POLL_MARGIN_MS)
        if answer.code in _NOTHING:
            return []
        if answer.code != PopAnswer.FOUND:
            error = broker_error(answer.code, answer.remark, address)
            raise self._explained(error) from error
        found = answer.header(PopLiteMessageResponseHeader)
        now_ms = instance.clock.monotonic_ms()
        return runs_of(found, bytes(answer.body), self._topic, broker, now_ms)

    async def _tell(
        self,
        broker: str,
        action: str,
        names: Collection[str] = (),
        option: OffsetOption | None = None,
    ) -> None:
        """Tell a broker which lite topics this client adds, takes away, or has (200071).

        Raises:
            NotSupportedError: it has no lite topics.
            LiteTopicSetupError: topic or group are not made for them.
            LiteSubscriptionQuotaError: its clients have subscribed as many as they may.
            TransportError: it was not told, or may have been.
        """
        data = None if option is None else option.data()
        entry = LiteSubscriptionData(
            action, self._instance.client_id, self._group, set(names), data, self._topic
        )
        body = LiteSubscriptionCtlRequestBody([entry]).encode()
        command = RemotingCommand.request(RequestCode.LITE_SUBSCRIPTION_CTL, body=body)
        try:
            await self._api.invoke(self._address(broker), command, TELL_TIMEOUT_MS)
        except BrokerError as error:
            raise self._explained(error) from error

    async def _tell_of(
        self, broker: str, action: str, names: Sequence[str], option: OffsetOption | None = None
    ) -> None:
        """Tell a broker of many names in as many requests as it takes."""
        for some in parts(names, LITE_NAMES_PER_REQUEST):
            await self._tell(broker, action, some, option)

    async def _has_offset(self, broker: str, name: str) -> bool:
        """Ask whether the group has an offset in a lite topic (14)."""
        header = QueryConsumerOffsetRequestHeader(
            self._group,
            lite_queue_name(self._topic, name),
            LITE_QUEUE_ID,
            broker,
            set_zero_if_not_found=False,
        )
        command = RemotingCommand.request(RequestCode.QUERY_CONSUMER_OFFSET, header)
        channel = self._api.channel(self._address(broker))
        try:
            await self._api.invoke(channel, command, TELL_TIMEOUT_MS)
        except OffsetNotFoundError:
            return False
        return True

    def _address(self, broker: str) -> str:
        return self._instance.routes.known_master(broker)

    def _explained(self, error: BrokerError) -> RocketMQError:
        """Return the error that says what is to be done about a refusal."""
        where = f"the broker at {error.address}"
        if isinstance(error, RequestNotSupportedError):
            return NotSupportedError(
                f"lite topics of {self._topic!r} were asked for, but {where} has none: it takes "
                "Apache RocketMQ 5.5 or later with storeType=defaultRocksDB, enableLmq=true and "
                "enableMultiDispatch=true; on other brokers use PushConsumer, with a topic or a "
                "tag for each",
                address=error.address,
            )
        if error.code not in _SETUP:
            return error
        return LiteTopicSetupError(error, self._topic, self._group)


def runs_of(
    header: PopLiteMessageResponseHeader,
    records: bytes,
    topic: str,
    broker_name: str,
    now_ms: float,
) -> list[LiteRun]:
    """Read an answer; a message of no lite topic of ``topic`` is left out and logged.

    Raises:
        RemoteProtocolError: bytes that make no sense.
        DamagedMessageError: a body that does not match its CRC; all of the answer comes again.
    """
    placed: list[tuple[str, int, MessageExt]] = []
    for message in decode_messages(records, broker_name, check_crc=True):
        place = _place(message, topic)
        if place is None:
            logger.warning("an answer has a message of no lite topic of %s: %r", topic, message)
        else:
            placed.append((*place, message))
    counts = order_counts(header.order_count_info, [offset for _, offset, _ in placed])
    found: dict[str, tuple[list[MessageExt], list[int]]] = {}
    for (name, offset, message), count in zip(placed, counts, strict=True):
        message._reconsume_times = count
        run_messages, offsets = found.setdefault(name, ([], []))
        run_messages.append(message)
        offsets.append(offset)
    queue = MessageQueue(topic, broker_name, LITE_QUEUE_ID)
    return [
        LiteRun(name, queue, run_messages, offsets, header.pop_time, header.invisible_time, now_ms)
        for name, (run_messages, offsets) in found.items()
    ]


def _place(message: MessageExt, topic: str) -> tuple[str, int] | None:
    """Return a message's lite topic and its offset there, None if it is in none of the parent's.

    The broker notes the offset beside the name of the queue, in case there are several.
    """
    properties = message.properties
    queues = properties.get(PROPERTY_INNER_MULTI_DISPATCH, "").split(",")
    offsets = properties.get(PROPERTY_INNER_MULTI_QUEUE_OFFSET, "").split(",")
    start = lite_queue_name(topic, "")
    for queue, offset in zip(queues, offsets, strict=False):
        name = queue.removeprefix(start)
        place = whole_number(offset, _OFFSET_MAX)
        if name != queue and LITE_SEPARATOR not in name and place is not None:
            return name, place
    return None


# --- what became of messages ----------------------------------------------------------------------


class Acknowledger:
    """Acknowledges messages of one consumer at its brokers, or changes how long they are hidden.

    Args:
        instance: the client instance.
        group: consumer group, with its namespace.
        topics: learns in which lite topics the group has an offset.

    Attributes:
        count: messages whose acknowledgement or change a broker has not confirmed.
        news: set when ``count`` has become less, and when a run has ended.
    """

    def __init__(self, instance: MQClientInstance, group: str, topics: LiteTopics) -> None:
        self._instance = instance
        self._group = group
        self._topics = topics
        self._loop = asyncio.get_running_loop()
        self._tasks: dict[asyncio.Task[None], int] = {}
        self.count: int = 0
        self.news: asyncio.Event = asyncio.Event()

    # --- from any thread --------------------------------------------------------------------------

    def succeeded(self, run: LiteRun, offsets: Sequence[int]) -> None:
        """Acknowledge messages that are consumed: the broker gives them to nobody any more."""
        self._on_loop(self._start, len(offsets), self._acknowledge, run, offsets)

    def given_back(self, run: LiteRun, offsets: Sequence[int], hidden_ms: int) -> None:
        """Have messages come again once they were hidden for ``hidden_ms`` from now."""
        self._on_loop(self._start, len(offsets), self._give_back, run, offsets, hidden_ms)

    def ended(self) -> None:
        """Report that a run has ended, so that there is room for another."""
        self._on_loop(self.news.set)

    def _on_loop(self, function: Callable[..., object], *arguments: object) -> None:
        # The loop is gone when a listener outlived the shutdown: its messages come again.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(function, *arguments)

    # --- on the loop ------------------------------------------------------------------------------

    def renew(self, run: LiteRun) -> None:
        """Hide what is left of a run anew, for as long as it was hidden at first."""
        if run.left:
            self._start(0, self._renew, run, run.left)

    async def drain(self) -> None:
        """Wait until brokers have confirmed every request, or the request has failed."""
        await asyncio.sleep(0)  # requests that threads asked for are begun now
        while self._tasks:
            await asyncio.wait(list(self._tasks))

    def _start(
        self, messages: int, work: Callable[..., Coroutine[Any, Any, None]], *arguments: object
    ) -> None:
        task = self._loop.create_task(work(*arguments))
        self._tasks[task] = messages
        self.count += messages
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self.count -= self._tasks.pop(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("an acknowledgement failed", exc_info=error)
        self.news.set()

    async def _acknowledge(self, run: LiteRun, offsets: Sequence[int]) -> None:
        await asyncio.gather(*(self._acknowledge_one(run, offset) for offset in offsets))

    async def _give_back(self, run: LiteRun, offsets: Sequence[int], hidden_ms: int) -> None:
        for offset in offsets:
            # In order: the first one that is visible again opens the lite topic.
            await self._hide(run, offset, hidden_ms)

    async def _renew(self, run: LiteRun, offsets: Sequence[int]) -> None:
        began_ms = self._instance.clock.monotonic_ms()
        done = await asyncio.gather(
            *(self._hide(run, offset, run.invisible_ms) for offset in offsets)
        )
        if all(done):
            run.hidden(began_ms)

    async def _acknowledge_one(self, run: LiteRun, offset: int) -> None:
        """Acknowledge one message, and try again while it stays hidden."""
        clock, outages = self._instance.clock, self._instance.outages
        broker = run.queue.broker_name
        header = AckMessageRequestHeader(
            self._group, run.queue.topic, LITE_QUEUE_ID, run.receipt(offset), offset,
            run.lite_topic, broker,
        )  # fmt: skip
        while True:
            try:
                # Brokers take them one by one only.
                await self._invoke(broker, RequestCode.ACK_MESSAGE, header)
            except (TransportError, RouteNotFoundError) as error:
                outages.failed(("an acknowledgement",), error)
                if clock.monotonic_ms() + ACK_AGAIN_MS >= run.hidden_until_ms:
                    return
                await asyncio.sleep(ACK_AGAIN_MS / 1000)
            except RocketMQError as error:
                outages.failed(("an acknowledgement", "in lite topic", run.lite_topic), error)
                return
            else:
                self._topics.placed(broker, [run.lite_topic], clock.monotonic_ms())
                return

    async def _hide(self, run: LiteRun, offset: int, hidden_ms: int) -> bool:
        broker = run.queue.broker_name
        header = ChangeInvisibleTimeRequestHeader(
            self._group, run.queue.topic, LITE_QUEUE_ID, run.receipt(offset), offset, hidden_ms,
            run.lite_topic, broker,
        )  # fmt: skip
        try:
            await self._invoke(broker, RequestCode.CHANGE_MESSAGE_INVISIBLETIME, header)
        except RocketMQError as error:
            # It comes again all the same, when the time is over for which it was hidden before.
            logger.info("lite topic %s: offset %d stays hidden: %s", run.lite_topic, offset, error)
            return False
        return True

    async def _invoke(
        self,
        broker: str,
        code: RequestCode,
        header: AckMessageRequestHeader | ChangeInvisibleTimeRequestHeader,
    ) -> None:
        api = self._instance.api
        channel = api.channel(self._instance.routes.known_master(broker))
        await api.invoke(channel, RemotingCommand.request(code, header), ACK_TIMEOUT_MS)
