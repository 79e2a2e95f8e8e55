"""Pulls asked of brokers, how much of each answer counts, and what brokers leave out for good.

A pull consumer awaits each answer; the puller of the others takes them by
callbacks (C-212 to C-230, C-509, C-511).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any, NamedTuple

from rocketstream.client.consumer.pull_answer import (
    Believed,
    Missing,
    PullResult,
    RecordsResult,
    end_told,
    examined,
    is_plain,
    keep_tagged,
    pull_status,
    records_of,
)
from rocketstream.client.hooks import FilterHooks, FilterMessageContext
from rocketstream.client.instance.mq_client import MQClientInstance
from rocketstream.client.instance.routes import BrokerAddress, unknown_broker
from rocketstream.errors import NotSupportedError, RocketMQError
from rocketstream.model import MessageQueue, PullStatus
from rocketstream.protocol.bodies import SubscriptionData, TopicConfig
from rocketstream.protocol.codes import VERSION_SQL92, PullSysFlag, RequestCode
from rocketstream.protocol.command import RemotingCommand
from rocketstream.protocol.headers import (
    GetTopicConfigRequestHeader,
    PullMessageRequestHeader,
    PullMessageResponseHeader,
)
from rocketstream.protocol.message_ext import MessageExt, before_damage, read_pulled
from rocketstream.protocol.properties import PROPERTY_MAX_OFFSET, PROPERTY_MIN_OFFSET
from rocketstream.protocol.subscription import EXPRESSION_TAG, SUB_ALL

logger: logging.Logger = logging.getLogger("rocketstream.client")

LOSSES_TOLD_EVERY_MS = 10_000
"""After a loss that is told, the further ones of its queue are summed up for so long."""

TakeRecords = Callable[[Any, RecordsResult, int], int]


class PullTerms(NamedTuple):
    """How a consumer asks for a queue, and what it makes of the answer.

    Attributes:
        max_nums: how many messages at most.
        sys_flag: of ``PullSysFlag``.
        version: of the subscription, as the broker is to know it.
        suspend_ms: how long the broker may hold the pull.
        timeout_ms: how long an answer is waited for.
        check_crc: whether records are compared with their CRCs.
        commit: offset to commit, if the flags say so.
        interval_ms: pause after an answer that found messages.
        take_records: takes records that are just as they should be undecoded, for a queue, with
            how many bytes the answer has; None to have messages of all.
    """

    max_nums: int
    sys_flag: int
    version: int
    suspend_ms: int
    timeout_ms: float
    check_crc: bool
    commit: int = 0
    interval_ms: int = 0
    take_records: TakeRecords | None = None


class Pull(NamedTuple):
    """One pull.

    Attributes:
        mq: the queue asked.
        subscription: that was asked with.
        offset: that was asked for; of a batch stored as one record nothing before it is taken.
        address: the broker asked.
        check_crc: whether records are compared with their CRCs.
        undecoded: whether records that are just as they should be are wanted as they are.
    """

    mq: MessageQueue
    subscription: SubscriptionData
    offset: int
    address: str
    check_crc: bool
    undecoded: bool = False


class PullRequests:
    """Asks brokers for the messages of one consumer's queues, and reads their answers.

    Args:
        instance: the client instance.
        group: consumer group, with its namespace.
    """

    def __init__(self, instance: MQClientInstance, group: str) -> None:
        self._instance = instance
        self._group = group
        self._suggested: dict[MessageQueue, int] = {}
        self._looks: dict[MessageQueue, tuple[int, int]] = {}
        """Where answers left messages out, and how many did in a row."""
        self._compacted: dict[str, bool | None] = {}
        """Topics that keep the last message of a key only; None while the broker is asked."""
        self._losses = Losses(group)

    def forget(self, mq: MessageQueue) -> None:
        """Forget which broker the last answer for a queue suggested."""
        self._suggested.pop(mq, None)

    def drop(self, mq: MessageQueue) -> None:
        """Forget all about a queue that is not pulled any more."""
        self.forget(mq)
        self._looks.pop(mq, None)

    def drop_topics(self, topics: Collection[str]) -> None:
        """Forget all about topics that are not pulled any more."""
        for mq in {*self._suggested, *self._looks}:
            if mq.topic in topics:
                self.drop(mq)
        for topic in topics:
            self._compacted.pop(topic, None)

    def is_doubtful(self, mq: MessageQueue, offset: int) -> bool:
        """Whether the last answer for a queue left out what should be at ``offset``."""
        return self._looks_at(mq, offset) > 0

    def stop(self) -> None:
        """Say what was not said yet of lost messages; no answer comes any more."""
        self._losses.close()

    def broker(self, mq: MessageQueue) -> BrokerAddress | None:
        """Return where to pull a queue: what its last answer suggested, else the master."""
        return self._instance.routes.find_for_subscribe(mq.broker_name, self._suggested.get(mq, 0))

    async def known_broker(self, mq: MessageQueue, subscription: SubscriptionData) -> str:
        """Return the address to pull from, asking the name server if need be (C-214, C-216).

        Raises:
            RouteNotFoundError: no name server knows the broker.
            NotSupportedError: the broker cannot filter by such an expression.
        """
        broker = self.broker(mq)
        if broker is None:
            await self._instance.route_updates.update(mq.topic)
            broker = self.broker(mq)
        if broker is None:
            raise unknown_broker(mq.broker_name, mq)
        if self.can_select(broker.address, subscription):
            return broker.address
        if self._instance.heartbeats.broker_version(broker.address) == 0:
            await self._instance.heartbeats.send()  # nobody has told the version yet
        if not self.can_select(broker.address, subscription):
            version = self._instance.heartbeats.broker_version(broker.address)
            raise NotSupportedError(
                f"broker {mq.broker_name} is too old for expressions of type "
                f"{subscription.expression_type}: it must be 4.1 or later (it tells version "
                f"number {version}); subscribe by tags"
            )
        return broker.address

    def can_select(self, address: str, subscription: SubscriptionData) -> bool:
        """Whether a broker is known to be new enough for a subscription's expression (C-216)."""
        return (
            subscription.expression_type == EXPRESSION_TAG
            or self._instance.heartbeats.broker_version(address) >= VERSION_SQL92
        )

    def command(
        self, mq: MessageQueue, subscription: SubscriptionData, offset: int, terms: PullTerms
    ) -> RemotingCommand:
        """Return the request of a pull; the expression travels along if the flags say so."""
        header = PullMessageRequestHeader(
            self._group,
            mq.topic,
            mq.queue_id,
            offset,
            terms.max_nums,
            terms.sys_flag,
            terms.commit,
            terms.suspend_ms,
            terms.version,
            subscription.sub_string if terms.sys_flag & PullSysFlag.SUBSCRIPTION else None,
            subscription.expression_type,
            mq.broker_name,
        )
        return RemotingCommand.request(RequestCode.PULL_MESSAGE, header)

    def result(self, pull: Pull, answer: RemotingCommand, looks: int | None = None) -> PullResult:
        """Return what is believed of an answer, what the subscription wants of it, where to go on.

        The broker the answer suggests is kept for the next pull. A message it leaves out that
        should be there is asked for again: the next pull begins there. Answers that agree on it
        are believed; the messages they left out are lost, and told.

        Args:
            pull: what was asked.
            answer: the broker's.
            looks: how many answers to this very question left messages out; None has it counted
                here, of one question a queue.

        Raises:
            BrokerError: a code that is not a pull status.
            RemoteProtocolError: bytes that make no sense.
            DamagedMessageError: the first message's body is damaged; one behind it ends the result.
        """
        status = pull_status(answer.code, answer.remark, pull.address)
        header = answer.header(PullMessageResponseHeader)
        self._suggested[pull.mq] = header.suggest_which_broker_id
        messages: list[MessageExt] = []
        next_offset = header.next_begin_offset
        if pull.undecoded and status is PullStatus.FOUND:
            found = self._undecoded(pull, header, answer)
            if found is not None:
                return found
        if status is not PullStatus.OFFSET_ILLEGAL:
            messages, next_offset, undamaged = self._believed(pull, status, header, answer, looks)
            messages = keep_tagged(messages, pull.subscription.tags_set)
            if not undamaged:
                messages, next_offset = before_damage(messages, pull.mq, next_offset)
        return PullResult(status, next_offset, header.min_offset, header.max_offset, messages)

    def _undecoded(
        self, pull: Pull, header: PullMessageResponseHeader, answer: RemotingCommand
    ) -> RecordsResult | None:
        """Return the records of an answer as they are; None where they must be looked into."""
        mq, offset, told = pull.mq, pull.offset, header.next_begin_offset
        if header.offset_delta is not None or self.is_doubtful(mq, offset):
            return None
        complete = self._is_complete(pull, header)
        records = records_of(answer.body, mq, offset, told, complete=complete)
        if records is None or end_told(offset, told, header.max_offset, records.last) != told:
            return None
        if pull.subscription.tags_set:
            records = replace(records, tags=frozenset(pull.subscription.tags_set))
        return RecordsResult(
            PullStatus.FOUND, told, header.min_offset, header.max_offset, [], records
        )

    def _is_complete(self, pull: Pull, header: PullMessageResponseHeader) -> bool:
        """Whether an answer may leave no offset out."""
        return (
            pull.subscription.sub_string == SUB_ALL
            and header.offset_delta is None
            and not self._compacted.get(pull.mq.topic)
        )

    def _believed(
        self,
        pull: Pull,
        status: PullStatus,
        header: PullMessageResponseHeader,
        answer: RemotingCommand,
        looks: int | None,
    ) -> tuple[list[MessageExt], int, bool]:
        """Return the messages of an answer, where to pull next, and whether each is undamaged."""
        mq, offset = pull.mq, pull.offset
        messages: list[MessageExt] = []
        undamaged = own = True
        found = status is PullStatus.FOUND
        if found:
            messages, undamaged, own = _read(pull, answer.body, header)
        last = messages[-1]._queue_offset if own and messages else -1
        told = end_told(offset, header.next_begin_offset, header.max_offset, last)
        complete = self._is_complete(pull, header)
        if own and is_plain(messages, offset, told, complete=complete):
            self._looks.pop(mq, None)
            return messages, max(offset, told), undamaged
        if looks is None:
            looks = self._looks_at(mq, offset)
        result = examined(
            # The records of a static topic name the queue and the offset of where they lie.
            mq if header.offset_delta is None or not messages else messages[0].message_queue,
            messages,
            offset,
            told,
            header.max_offset,
            found=found,
            complete=complete,
            looks=looks,
        )
        if result.lost is not None and complete and self._may_be_compacted(mq.topic, pull.address):
            return [], offset, True
        self._remember(pull, result)
        return result.messages, result.next_offset, undamaged

    def _remember(self, pull: Pull, result: Believed) -> None:
        mq, address, missing = pull.mq, pull.address, result.missing
        if missing is None:
            self._looks.pop(mq, None)
        else:
            self._looks[mq] = (missing.start, self._looks_at(mq, missing.start) + 1)
            master = self._instance.routes.find_for_subscribe(mq.broker_name, 0)
            if master is not None and master.address != address:
                self.forget(mq)  # what a slave left out the master may have
        if result.stray:
            self._instance.outages.report(
                ("answers for", mq),
                f"{mq} was pulled from offset {pull.offset} and {address} answers with "
                f"{result.stray}; what was not asked for is left out",
            )
        if result.lost is not None:
            self._losses.passed(mq, result.lost, address)

    def _looks_at(self, mq: MessageQueue, offset: int) -> int:
        """Return how many answers in a row left out what should be at an offset."""
        looks = self._looks.get(mq)
        return looks[1] if looks is not None and looks[0] == offset else 0

    def _may_be_compacted(self, topic: str, address: str) -> bool:
        """Whether offsets may be missing by the topic's policy; its broker is asked once."""
        if topic not in self._compacted:
            self._compacted[topic] = None
            self._instance.background.run_soon(self._learn_policy(topic, address))
        return self._compacted[topic] is None

    async def _learn_policy(self, topic: str, address: str) -> None:
        # Brokers before 5.x compact nothing, and do not know the question.
        command = RemotingCommand.request(
            RequestCode.GET_TOPIC_CONFIG, GetTopicConfigRequestHeader(topic)
        )
        compacted = False
        try:
            answer = await self._instance.api.invoke(
                address, command, self._instance.config.api_timeout_ms
            )
            compacted = TopicConfig.decode(bytes(answer.body)).is_compacted
        except RocketMQError as error:
            logger.debug("whether topic %s is compacted is not known: %s", topic, error)
        finally:
            self._compacted[topic] = compacted


def _read(
    pull: Pull, body: bytes | memoryview, header: PullMessageResponseHeader
) -> tuple[list[MessageExt], bool, bool]:
    extra = {
        PROPERTY_MIN_OFFSET: str(header.min_offset),
        PROPERTY_MAX_OFFSET: str(header.max_offset),
    }
    delta = header.offset_delta or 0
    messages, undamaged, own = read_pulled(
        body, pull.mq, pull.offset - delta, check_crc=pull.check_crc, extra_properties=extra
    )
    if delta:
        for message in messages:
            message._queue_offset += delta
    return messages, undamaged, own


def filtered(
    hooks: FilterHooks,
    group: str,
    mq: MessageQueue,
    messages: list[MessageExt],
    *,
    unit_mode: bool,
) -> list[MessageExt]:
    """Return the messages that a consumer's filter hooks leave (C-220)."""
    if not hooks:
        return messages
    return hooks.filter(FilterMessageContext(group, list(messages), mq, unit_mode=unit_mode))


def active_version(subscription: SubscriptionData) -> int:
    """Return the version of a subscription in pulls that bring their expression along (C-493).

    Of one by tags there is none: the broker need not know it before.
    """
    return 0 if subscription.expression_type == EXPRESSION_TAG else subscription.sub_version


# --- what brokers leave out for good --------------------------------------------------------------


class _Tally:
    """The losses of a queue since the last line about it."""

    __slots__ = ("count", "end", "start", "timer", "total")

    def __init__(self, timer: asyncio.TimerHandle, total: int) -> None:
        self.timer = timer
        self.total = total
        self.count = self.start = self.end = 0

    def add(self, lost: Missing) -> None:
        """Count a loss."""
        if not self.count:
            self.start = lost.start
        self.start, self.end = min(self.start, lost.start), max(self.end, lost.end)
        self.count += lost.end - lost.start
        self.total += lost.end - lost.start


class Losses:
    """The messages brokers left out of the queues of one consumer."""

    def __init__(self, group: str) -> None:
        self._group = group
        self._tallies: dict[MessageQueue, _Tally] = {}

    def passed(self, mq: MessageQueue, lost: Missing, address: str) -> None:
        """Name a loss that is passed over."""
        tally = self._tallies.get(mq)
        if tally is not None:
            tally.add(lost)
            return
        logger.warning(
            "group %s lost offsets %d to %d of %s (%d in all): the answers of %s do not have "
            "them%s, however often it is asked; consumption goes on at %d. They were removed "
            "there before they were consumed, or are damaged, or other members of the group "
            "subscribe tags: look at the broker's log and at the members (rocketstream group why)",
            self._group, lost.start, lost.end - 1, mq, lost.end - lost.start, address,
            f" but {lost.instead}" if lost.instead else "", lost.end,
        )  # fmt: skip
        self._begin(mq, lost.end - lost.start)

    def close(self) -> None:
        """Say what was not said yet."""
        for mq, tally in self._tallies.items():
            tally.timer.cancel()
            self._say(mq, tally)
        self._tallies.clear()

    def _begin(self, mq: MessageQueue, total: int) -> None:
        timer = asyncio.get_running_loop().call_later(LOSSES_TOLD_EVERY_MS / 1000, self._due, mq)
        self._tallies[mq] = _Tally(timer, total)

    def _due(self, mq: MessageQueue) -> None:
        tally = self._tallies.pop(mq)
        if tally.count:
            self._say(mq, tally)
            self._begin(mq, tally.total)

    def _say(self, mq: MessageQueue, tally: _Tally) -> None:
        if tally.count:
            logger.warning(
                "group %s lost %d more offsets of %s, between %d and %d (%d since the first)",
                self._group, tally.count, mq, tally.start, tally.end - 1, tally.total,
            )  # fmt: skip
