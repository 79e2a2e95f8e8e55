"""Pulls: codes 11 and 361, held while there is no message yet (C-357 to C-382).

Law: a pull is looked up and held within one step, so that no arrival is missed; ``core.long_poll``
holds it.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from functools import partial

from rocketstream.errors import LocalProtocolError, StoreError, SubscriptionError
from rocketstream.limits import FILTER_STEPS_PER_ARRIVAL
from rocketstream.model import MessageQueue
from rocketstream.protocol import names
from rocketstream.protocol.bodies import OffsetMovedEvent, SubscriptionData, TopicConfig
from rocketstream.protocol.codes import Perm, PullSysFlag, RequestCode, ResponseCode
from rocketstream.protocol.command import RemotingCommand
from rocketstream.protocol.headers import PullMessageRequestHeader
from rocketstream.protocol.properties import PROPERTY_KEYS, PROPERTY_TAGS
from rocketstream.protocol.sql92 import Expression
from rocketstream.protocol.subscription import parse_subscription
from rocketstream.server.broker.controller import BrokerController
from rocketstream.server.broker.core.consumer_filters import compiled_of, is_tag_type
from rocketstream.server.broker.core.long_poll import HeldPull, LongPolls, OffsetAccept
from rocketstream.server.broker.filtering import (
    Budget,
    PullFilter,
    condition_filter,
    is_by_tags,
    readable_filter,
    retried_group,
    retry_filter,
    tag_filter,
    unsupported,
)
from rocketstream.server.broker.handlers.offsets import OffsetHandlers, of_this_broker
from rocketstream.server.broker.messages import InnerMessage, MessageWriter
from rocketstream.server.dispatch import Handler, guarded, refusal
from rocketstream.server.store import GetMessageStatus, GetResult
from rocketstream.transport.connection import Connection

logger: logging.Logger = logging.getLogger("rocketstream.server")

SUSPEND_MS_MAX = 10 * 60_000
TAG_BYTES = 120
CONDITION_CHAR_BYTES = 128
"""Memory of the tests of a subscription, measured: for each tag, and each character of SQL92."""
FAQ_SUBSCRIPTION = "\nSee http://rocketmq.apache.org/docs/faq/ for further details."

_CODES = {
    GetMessageStatus.FOUND: ResponseCode.SUCCESS,
    GetMessageStatus.NO_MATCHED_MESSAGE: ResponseCode.PULL_RETRY_IMMEDIATELY,
    GetMessageStatus.MESSAGE_WAS_REMOVING: ResponseCode.PULL_RETRY_IMMEDIATELY,
    GetMessageStatus.OFFSET_FOUND_NULL: ResponseCode.PULL_NOT_FOUND,
    GetMessageStatus.OFFSET_OVERFLOW_ONE: ResponseCode.PULL_NOT_FOUND,
    GetMessageStatus.OFFSET_OVERFLOW_BADLY: ResponseCode.PULL_OFFSET_MOVED,
    GetMessageStatus.OFFSET_TOO_SMALL: ResponseCode.PULL_OFFSET_MOVED,
}


def response_code(status: GetMessageStatus, offset: int) -> ResponseCode:
    """Return the response code for the result of the store's read (C-359)."""
    if status is GetMessageStatus.NO_MESSAGE_IN_QUEUE:
        return ResponseCode.PULL_NOT_FOUND if offset == 0 else ResponseCode.PULL_OFFSET_MOVED
    return _CODES[status]


@dataclass(frozen=True, slots=True)
class WaitingPull:
    """Everything needed to run a held pull again."""

    connection: Connection
    request: RemotingCommand
    header: PullMessageRequestHeader


class PullHandlers:
    """Answers pulls, now or later."""

    def __init__(
        self, controller: BrokerController, offsets: OffsetHandlers, writer: MessageWriter
    ) -> None:
        self._controller = controller
        self._store = controller.store
        self._clock = controller.clock
        self._statistics = controller.statistics
        self._offsets = offsets
        self._writer = writer
        self._loop = asyncio.get_running_loop()
        self.polls: LongPolls[WaitingPull] = LongPolls()
        self._woken: dict[HeldPull[WaitingPull], None] = {}
        self._arrival = Budget(0)
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._closed = False
        controller.on_closed.append(self._forget)
        controller.on_deleted.append(self._deleted)

    def table(self) -> dict[int, Handler]:
        """The codes of this module."""
        pull = of_this_broker(self._controller.config.broker_name, self.pull)
        return {RequestCode.PULL_MESSAGE: pull, RequestCode.LITE_PULL_MESSAGE: pull}

    def pull(self, connection: Connection, request: RemotingCommand) -> RemotingCommand | None:
        """Codes 11 and 361."""
        header = request.header(PullMessageRequestHeader)
        return self._pull(WaitingPull(connection, request, header), first=True)

    def _pull(self, pull: WaitingPull, *, first: bool) -> RemotingCommand | None:
        header = pull.header
        wanted = self._check(pull)
        # Upstream always gives at least one message, for any number asked for (C-370).
        count_max = max(header.max_msg_nums, 1)
        began_ms = self._clock.monotonic_ms()
        result = self._store.get(
            header.topic,
            header.queue_id,
            header.queue_offset,
            count_max,
            wanted.match,
            wanted.accept,
            wanted.is_enough,
        )
        spent_ms = self._clock.monotonic_ms() - began_ms
        self._statistics.looked(spent_ms, found=result.count > 0)
        code = response_code(result.status, header.queue_offset)
        if first and header.sys_flag & PullSysFlag.COMMIT_OFFSET:
            self._offsets.commit(
                header.consumer_group,
                header.topic,
                header.queue_id,
                header.commit_offset,
                pull.connection.peer,
            )
        if code == ResponseCode.PULL_NOT_FOUND and first and self._hold(pull, wanted):
            return None
        if code == ResponseCode.PULL_OFFSET_MOVED:
            self._store_offset_moved(header, result)
        return self._reply(pull, code, result, spent_ms)

    def _reply(
        self, pull: WaitingPull, code: ResponseCode, result: GetResult, spent_ms: float
    ) -> RemotingCommand | None:
        response = RemotingCommand.response(int(code), result.status.value)
        response.ext_fields = {
            "suggestWhichBrokerId": "0",
            "nextBeginOffset": str(result.next_begin_offset),
            "minOffset": str(result.min_offset),
            "maxOffset": str(result.max_offset),
        }
        if code != ResponseCode.SUCCESS:
            return response
        header = pull.header
        self._statistics.pulled(
            header.topic,
            header.queue_id,
            header.consumer_group,
            result.count,
            result.total_bytes,
            spent_ms,
        )
        pull.connection.reply(pull.request, response, result.records)
        return None

    # --- checks (C-357) ------------------------------------------------------------------------

    def _check(self, pull: WaitingPull) -> PullFilter:
        """Run upstream's checks in upstream's order; return the filter."""
        header = pull.header
        group = self._controller.find_group(header.consumer_group)
        if group is None:
            text = f"subscription group [{header.consumer_group}] does not exist, "
            raise refusal(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, text + FAQ_SUBSCRIPTION)
        if not group.consume_enable:
            text = f"subscription group no permission, {header.consumer_group}"
            raise refusal(ResponseCode.NO_PERMISSION, text)
        topic = self._controller.topics.get(header.topic)
        if topic is None:
            text = f"topic[{header.topic}] not exist, apply first please! {FAQ_SUBSCRIPTION}"
            raise refusal(ResponseCode.TOPIC_NOT_EXIST, text)
        self._check_queue(pull, topic)
        subscription = self._subscription(header, group.consume_broadcast_enable)
        wanted, access = self._filter(header, subscription), self._controller.access
        if access is not None:
            may_read = access.reader(pull.connection, pull.request, header.topic)
            wanted = wanted if may_read is None else readable_filter(wanted, may_read)
        return wanted

    def _filter(
        self, header: PullMessageRequestHeader, subscription: SubscriptionData
    ) -> PullFilter:
        if is_by_tags(subscription):
            retried = retried_group(header.topic)
            if retried is not None and self._controller.config.filter_support_retry:
                return retry_filter(self._controller.filters, retried)
            return tag_filter(subscription)
        if header.sys_flag & PullSysFlag.SUBSCRIPTION:
            expression = compiled_of(subscription.sub_string, subscription.expression_type)
        else:
            expression = self._registered_condition(header)
        if not self._controller.config.enable_property_filter:
            raise refusal(ResponseCode.SYSTEM_ERROR, unsupported(subscription.expression_type))
        return condition_filter(expression)

    def _registered_condition(self, header: PullMessageRequestHeader) -> Expression:
        """Return the condition of the group's last heartbeat, numbers 12 and 13 of C-357."""
        known = self._controller.filters.get(header.topic, header.consumer_group)
        if known is None:
            raise refusal(
                ResponseCode.FILTER_DATA_NOT_EXIST,
                "The broker's consumer filter data is not exist!Your expression may be wrong!",
            )
        if known.client_version < header.sub_version:
            text = "the consumer's consumer filter data not latest"
            raise refusal(ResponseCode.FILTER_DATA_NOT_LATEST, text)
        return known.compiled

    def _check_queue(self, pull: WaitingPull, topic: TopicConfig) -> None:
        header = pull.header
        if not topic.perm & Perm.READ:
            text = f"the topic[{header.topic}] pulling message is forbidden"
            raise refusal(ResponseCode.NO_PERMISSION, text)
        if not 0 <= header.queue_id < topic.read_queue_nums:
            raise refusal(
                ResponseCode.SYSTEM_ERROR,
                f"queueId[{header.queue_id}] is illegal, topic:[{header.topic}] "
                f"topicConfig.readQueueNums:[{topic.read_queue_nums}] "
                f"consumer:[{pull.connection.peer}]",
            )

    def _subscription(
        self, header: PullMessageRequestHeader, broadcast_enabled: bool
    ) -> SubscriptionData:
        if header.sys_flag & PullSysFlag.SUBSCRIPTION:
            return _given_subscription(header)
        group = self._controller.consumers.group(header.consumer_group)
        if group is None:
            text = "the consumer's group info not exist" + FAQ_SUBSCRIPTION
            raise refusal(ResponseCode.SUBSCRIPTION_NOT_EXIST, text)
        if group.message_model == "BROADCASTING" and not broadcast_enabled:
            text = f"the consumer group[{header.consumer_group}] can not consume by broadcast way"
            raise refusal(ResponseCode.NO_PERMISSION, text)
        subscription = group.subscriptions.get(header.topic)
        if subscription is None:
            text = "the consumer's subscription not exist" + FAQ_SUBSCRIPTION
            raise refusal(ResponseCode.SUBSCRIPTION_NOT_EXIST, text)
        if subscription.sub_version < header.sub_version:
            text = "the consumer's subscription not latest"
            raise refusal(ResponseCode.SUBSCRIPTION_NOT_LATEST, text)
        return subscription

    # --- waiting ---------------------------------------------------------------------------------

    def _hold(self, pull: WaitingPull, wanted: PullFilter) -> bool:
        header = pull.header
        wait_ms = min(header.suspend_timeout_millis, SUSPEND_MS_MAX)
        if not header.sys_flag & PullSysFlag.SUSPEND or wait_ms <= 0 or self._closed:
            return False
        deadline_ms = self._loop.time() * 1000 + wait_ms
        held = HeldPull(
            header.topic,
            header.queue_id,
            wanted.match,
            deadline_ms,
            pull.connection,
            pull,
            self._offset_accept(header, wanted),
            _size(pull),
        )
        if not self.polls.hold(held):
            return False
        self._set_timer(deadline_ms)
        return True

    def _offset_accept(
        self, header: PullMessageRequestHeader, wanted: PullFilter
    ) -> OffsetAccept | None:
        accept, budget = wanted.accept, wanted.budget
        if accept is None or budget is None:
            return None

        def is_wanted(offset: int) -> bool:
            if self._arrival.is_spent():
                return True  # a waiting pull is answered alone, in its turn
            records = self._store.get(header.topic, header.queue_id, offset, 1).records
            before = budget.left
            wants = not records or accept(bytes(records[0]))
            self._arrival.left -= before - budget.left
            return wants

        return is_wanted

    def _set_timer(self, deadline_ms: float) -> None:
        if self._timer is not None:
            if self._timer_at <= deadline_ms:
                return
            self._timer.cancel()
        self._timer_at = deadline_ms
        self._timer = self._loop.call_at(deadline_ms / 1000, self._expire)

    def _expire(self) -> None:
        self._timer = None
        # Half a millisecond of grace: timers may fire a hair early on a coarse clock.
        self._answer_soon(self.polls.expired(self._loop.time() * 1000 + 0.5))
        deadline_ms = self.polls.next_deadline_ms()
        if deadline_ms is not None:
            self._set_timer(deadline_ms)

    def arrived(self, topic: str, queue_id: int, max_offset: int, tags_code: int) -> None:
        """Wake the pulls that wait for a stored message, after this pass of the loop."""
        self._arrival.left = FILTER_STEPS_PER_ARRIVAL
        woken = self.polls.arrived(topic, queue_id, tags_code, max_offset - 1)
        if woken:
            self._answer_soon(woken)

    def _deleted(self, topic: str) -> None:
        """Tell those that wait for a topic that it is gone, before it may be made anew."""
        for held in self.polls.of_topic(topic):
            self._again(held)

    def _answer_soon(self, woken: list[HeldPull[WaitingPull]]) -> None:
        """Answer each woken pull in its connection's turn.

        Not at once, so that all messages that came together go in one answer; and not as separate
        work behind all senders, since messages would then come faster than they go.
        """
        for held in woken:
            self._woken[held] = None
            held.pull.connection.owe(partial(self._give, held))

    def _give(self, held: HeldPull[WaitingPull]) -> None:
        if held in self._woken:
            del self._woken[held]
            self._again(held)

    def _again(self, held: HeldPull[WaitingPull]) -> None:
        """Answer a held pull: repeat all checks, but neither commit nor wait again (C-380)."""
        pull = held.pull
        if pull.connection.is_closed:
            return
        if pull.connection.is_congested and not self._closed:
            # More than the peer takes would only fill memory; the pull goes on where it stopped.
            pull.connection.when_drained(lambda: self._again(held))
            return
        access = self._controller.access
        # An account may have lost its right while it waited.
        refused = access and access(pull.connection, pull.request, is_answered=True)
        answer = refused or guarded(
            "broker", lambda _c, _r: self._pull(pull, first=False), pull.connection, pull.request
        )
        if isinstance(answer, RemotingCommand):
            pull.connection.reply(pull.request, answer)

    def _forget(self, connection: Connection) -> None:
        sharing = self._controller.sharing
        assert sharing is not None
        sharing.start(self.polls.forgetting(connection))

    def close(self) -> None:
        """Answer every waiting pull; no pull is held any more."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        woken, self._woken = self._woken, {}
        for held in [*woken, *self.polls.take_all()]:
            self._again(held)

    # --- side effects ----------------------------------------------------------------------------

    def _store_offset_moved(self, header: PullMessageRequestHeader, result: GetResult) -> None:
        """Store a message about a pull outside its queue's bounds (C-364)."""
        queue = MessageQueue(header.topic, self._controller.config.broker_name, header.queue_id)
        event = OffsetMovedEvent(
            consumer_group=header.consumer_group,
            message_queue=queue,
            offset_request=header.queue_offset,
            offset_new=result.next_begin_offset,
        )
        group = header.consumer_group
        host = self._controller.store_host_bytes
        message = InnerMessage(
            topic=names.OFFSET_MOVED_EVENT,
            queue_id=0,
            body=event.encode(),
            properties={PROPERTY_TAGS: group, PROPERTY_KEYS: group},
            flag=0,
            sys_flag=0,
            born_timestamp=self._controller.now_ms(),
            born_host=host,
            store_host=host,
        )
        logger.info(
            "offset moved group=%s topic=%s queue=%d asked=%d next=%d",
            group,
            header.topic,
            header.queue_id,
            header.queue_offset,
            result.next_begin_offset,
        )
        try:
            self._writer.put(message)
        except (StoreError, LocalProtocolError) as error:
            # The pull is answered nevertheless: the event is for observers, the answer for a
            # consumer that would otherwise ask in vain for ever.
            logger.warning("no event about an offset that moved: %s", error)


def _given_subscription(header: PullMessageRequestHeader) -> SubscriptionData:
    """Return the subscription in the pull itself."""
    expression_type = header.expression_type or "TAG"
    try:
        return parse_subscription(
            header.topic, header.subscription, header.sub_version, expression_type
        )
    except SubscriptionError as error:
        text = f"parse the consumer's subscription failed: {error.message}"
        raise refusal(ResponseCode.SUBSCRIPTION_PARSE_FAILED, text) from None


def _size(pull: WaitingPull) -> int:
    """Return the bytes a held pull takes that its client chose: its texts, and its own tests."""
    request, header = pull.request, pull.header
    texts = [request.remark or ""]
    for name, value in (request.ext_fields or {}).items():
        texts += (name, value)
    size = len(request.body) + sum(len(t) if t.isascii() else 4 * len(t) for t in texts)
    if header.sys_flag & PullSysFlag.SUBSCRIPTION and header.subscription:
        if is_tag_type(header.expression_type):
            size += TAG_BYTES * (header.subscription.count("||") + 1)
        else:
            size += CONDITION_CHAR_BYTES * len(header.subscription)
    return size
