"""The pull loop of a push consumer: one request per queue always on its way, by callbacks.

Law: runs on the loop; no task per pull. Each request is at any time exactly one of: in flight,
waiting for a timer, held by flow control, or discarded (C-199 to C-231).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Protocol

from rocketstream.client.consumer.consume.runs import ConsumeService, PullRequest
from rocketstream.client.consumer.offsets.store import Offsets
from rocketstream.client.consumer.pulling.kernel import PullKernel
from rocketstream.client.consumer.pulling.stalled_queues import QUICK_ANSWER_MS, StalledQueues
from rocketstream.client.consumer.push.subscription_check import SubscriptionCheck
from rocketstream.client.core.flow_control import FlowControl, Thresholds, flow_control
from rocketstream.client.core.process_queue import ProcessQueue
from rocketstream.client.core.pull_decision import (
    SUSPENDED_DELAY_MS,
    AfterFailure,
    after_failure,
    not_before,
    offset_after,
)
from rocketstream.client.core.routes import unknown_broker
from rocketstream.client.core.settings import PushConsumerSettings
from rocketstream.client.hooks import FilterHooks
from rocketstream.client.instance.mq_client import MQClientInstance
from rocketstream.errors import BrokerError, InternalError, RocketMQError
from rocketstream.model import MessageQueue, PullStatus
from rocketstream.protocol.bodies import SubscriptionData
from rocketstream.protocol.codes import PullSysFlag
from rocketstream.protocol.command import RemotingCommand
from rocketstream.protocol.headers import PullMessageResponseHeader
from rocketstream.protocol.message_ext import MessageExt
from rocketstream.protocol.names import retry_topic
from rocketstream.protocol.namespace import without_namespace
from rocketstream.protocol.properties import PROPERTY_RETRY_TOPIC

logger = logging.getLogger("rocketstream.client")

BROKER_SUSPEND_MS = 15_000
PULL_TIMEOUT_MS = 30_000
_FLOW_LOG_EVERY = 1_000


class PullOwner(Protocol):
    """The consumer a pull loop works for."""

    group: str
    settings: PushConsumerSettings
    thresholds: Thresholds
    subscriptions: dict[str, SubscriptionData]
    filter_hooks: FilterHooks

    def repair_soon(self, request: PullRequest, offset: int) -> None:
        """Start the queue anew at an offset, at once."""
        ...


class PullService:
    """Pulls every assigned queue of one consumer."""

    def __init__(
        self,
        owner: PullOwner,
        instance: MQClientInstance,
        store: Offsets,
        consume: Callable[[], ConsumeService],
    ) -> None:
        self._owner = owner
        self._instance = instance
        self._group = owner.group
        self._retry_topic = retry_topic(owner.group)
        self._namespace = instance.config.effective_namespace()
        self._store = store
        self._consume = consume
        self._exception_delay_ms = instance.config.pull_time_delay_ms_when_exception
        self._loop = asyncio.get_running_loop()
        self._now = instance.clock.monotonic_ms
        self._subscription_check = SubscriptionCheck(instance, owner.group)
        self._kernel = PullKernel(
            instance, owner.group, owner.filter_hooks, unit_mode=instance.config.unit_mode
        )
        self._stalls = StalledQueues(instance)
        self._timers: set[asyncio.TimerHandle] = set()
        # Count and size share one counter, as upstream has it (C-205).
        self._flow_hits = {True: 0, False: 0}
        self.paused = False
        self._stopped = False
        self._refreshing: set[str] = set()

    def stop(self) -> None:
        """Pull nothing more; replies still to come are discarded."""
        self._stopped = True
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()

    def resume_threadsafe(self, request: PullRequest) -> None:
        """Pull a queue again that flow control held; from any thread."""
        with contextlib.suppress(RuntimeError):  # the loop is closed: shut down meanwhile
            self._loop.call_soon_threadsafe(self.pull, request)

    def forget(self, mq: MessageQueue) -> None:
        """Forget which broker a queue's last reply suggested, and what went wrong with it."""
        self._kernel.forget(mq)
        self._stalls.forget(mq)

    def pull(self, request: PullRequest) -> None:
        """Send the next pull of a queue, or see to it that it is sent later (C-203)."""
        queue = request.process_queue
        if queue.dropped or queue.leaving or self._stopped:
            return
        queue.last_pull_ms = self._now()
        if self.paused:
            self._later(request, SUSPENDED_DELAY_MS)
            return
        if queue.message_count:
            with request.lock:
                held = flow_control(queue, self._owner.thresholds)
                if held is not None:
                    queue.hold_pull()
                elif queue.flow_controlled:
                    queue.release_pull()
            if held is not None:
                self._log_flow_control(held, queue.message_queue)
                return
        subscription = self._owner.subscriptions.get(queue.message_queue.topic)
        if subscription is None:
            self._later(request, self._exception_delay_ms)
            return
        try:
            self._send(request, subscription)
        except RocketMQError as error:
            self._failed(request, error)

    def _send(self, request: PullRequest, subscription: SubscriptionData) -> None:
        mq = request.process_queue.message_queue
        broker = self._kernel.broker(mq)
        if broker is None:
            raise unknown_broker(mq.broker_name, mq)
        connection = self._instance.remoting.connected(broker.address)
        if connection is None:
            self._instance.run_soon(self._connect(request, broker.address))
            return
        self._kernel.check_version(mq, broker.address, subscription)
        command = self._command(request, subscription, to_slave=broker.is_slave)
        offset = request.next_offset
        sent_ms = self._now()

        def answered(answer: RemotingCommand | None, error: Exception | None) -> None:
            queue = request.process_queue
            if queue.dropped or queue.leaving or self._stopped:
                return  # a late answer: its process queue was dropped
            try:
                if answer is None:
                    raise error or InternalError("a pull ended with neither an answer nor an error")
                self._answered(request, subscription, answer, offset, sent_ms, broker.address)
            except RocketMQError as failure:
                self._failed(request, failure)
            except Exception as bug:
                logger.exception("handling a pull reply failed")
                self._failed(request, bug)

        connection.request_callback(command, PULL_TIMEOUT_MS, answered)

    async def _connect(self, request: PullRequest, address: str) -> None:
        try:
            await self._instance.remoting.connection(address)
        except RocketMQError as error:
            self._failed(request, error)
        else:
            self.pull(request)

    def _command(
        self, request: PullRequest, subscription: SubscriptionData, *, to_slave: bool
    ) -> RemotingCommand:
        mq = request.process_queue.message_queue
        sys_flag = PullSysFlag.SUSPEND
        # A slave never takes offsets (C-215); 0 is never piggybacked (C-211). A broker may handle
        # a pull after a later commit sent on its own, and overwrites whatever it has: so only the
        # offset of this very pull goes along. Nothing beyond it can be committed before the answer.
        commit = 0 if to_slave else self._store.committable(mq)
        if commit != request.next_offset:
            commit = 0
        if commit > 0:
            sys_flag |= PullSysFlag.COMMIT_OFFSET
            self._store.carried(mq)
        settings = self._owner.settings
        if settings.post_subscription_when_pull:
            sys_flag |= PullSysFlag.SUBSCRIPTION
        return self._kernel.command(
            mq,
            subscription,
            request.next_offset,
            settings.pull_batch_size,
            sys_flag=sys_flag,
            suspend_ms=BROKER_SUSPEND_MS,
            version=subscription.sub_version,
            commit=commit,
        )

    def _answered(
        self,
        request: PullRequest,
        subscription: SubscriptionData,
        answer: RemotingCommand,
        offset: int,
        sent_ms: float,
        address: str,
    ) -> None:
        outages = self._instance.outages
        if outages:
            outages.answered(address)
        mq = request.process_queue.message_queue
        status, header = self._kernel.answered(mq, answer, address)
        if self._is_resubscribed(subscription):
            # The broker may have selected by either subscription; the tags of one must not be
            # tested on what the other selected.
            self.pull(request)
            return
        if status is PullStatus.OFFSET_ILLEGAL:
            self._offset_moved(request, offset, header, address)
            return
        if status is PullStatus.FOUND:
            self._instance.stats.inc_pull_rt(self._group, mq.topic, self._now() - sent_ms)
            self._found(request, subscription, answer, header)
            delay_ms = self._owner.settings.pull_interval_ms
        else:
            self._no_message(request, max(offset, header.next_begin_offset))
            delay_ms = 0
        if outages:
            outages.worked("pull of", mq)
        if request.next_offset > offset:
            if self._stalls:
                self._stalls.moved(mq, request.next_offset)
        elif status is PullStatus.NO_NEW_MSG and self._now() - sent_ms >= QUICK_ANSWER_MS:
            self._stalls.moved(mq)
        else:
            # The broker holds the request while there is nothing; one that does not must not be
            # asked in a tight loop.
            delay_ms = max(delay_ms, self._stalls.stood(mq, offset, status, address))
        if delay_ms:
            self._later(request, delay_ms)
        else:
            self.pull(request)

    def _is_resubscribed(self, asked: SubscriptionData) -> bool:
        now = self._owner.subscriptions.get(asked.topic)
        return now is not asked and (
            now is None
            or now.sub_string != asked.sub_string
            or now.expression_type != asked.expression_type
        )

    def _found(
        self,
        request: PullRequest,
        subscription: SubscriptionData,
        answer: RemotingCommand,
        header: PullMessageResponseHeader,
    ) -> None:
        queue = request.process_queue
        mq = queue.message_queue
        asked = request.next_offset
        messages, undamaged = self._kernel.read(
            mq, answer, header, asked, check_crc=self._owner.settings.check_crc
        )
        kept = not_before(messages, asked)
        if kept is not messages:
            self._tell_earlier(mq, asked, messages[0].queue_offset)
            messages = kept
        next_offset = offset_after(messages, asked, header.next_begin_offset)
        messages, next_offset = self._kernel.selected(
            mq, subscription, messages, next_offset, undamaged=undamaged
        )
        messages = self._wanted(messages, mq)
        if messages:
            self._instance.stats.inc_pull_tps(self._group, mq.topic, len(messages))
        with request.lock:
            if queue.dropped or queue.leaving:
                return
            request.next_offset = next_offset
            added = queue.put(messages, header.max_offset)
            self._note_passed(queue, next_offset)
        if added:
            self._submit(request, added)

    def _tell_earlier(self, mq: MessageQueue, asked: int, first: int) -> None:
        self._instance.outages.began(
            ("answers for", mq),
            f"{mq} was pulled from offset {asked} and answers from offset {first}; messages "
            f"before {asked} are left out, they were consumed here already",
        )

    def _wanted(self, messages: list[MessageExt], mq: MessageQueue) -> list[MessageExt]:
        """Return the messages listeners are to see, as they are to see them (C-220)."""
        if mq.topic == self._retry_topic:
            for message in messages:
                # Listeners see the topic a retried message was first sent to (C-256).
                message.topic = message.properties.get(PROPERTY_RETRY_TOPIC, message.topic)
        if self._namespace:
            for message in messages:
                message.topic = without_namespace(message.topic, self._namespace)
        if messages and self._owner.filter_hooks:
            return self._kernel.filtered(mq, messages)
        return messages

    def _submit(self, request: PullRequest, added: list[MessageExt]) -> None:
        try:
            self._consume().submit(request, added)
        except Exception:
            # Cached and handed to nobody they would hold the offset back for ever (C-231).
            logger.exception(
                "the messages from %s on could not be handed to listeners; they are pulled again",
                added[0],
            )
            self._owner.repair_soon(request, request.process_queue.min_offset)

    def _note_passed(self, queue: ProcessQueue, next_offset: int) -> None:
        """Note how far the queue was looked through; with nothing cached that is the offset.

        Filtered messages at the end of a pull need no answer of their own to count (C-227, C-569).
        """
        queue.passed_to = next_offset
        if not queue.message_count:
            self._store.update_offset(queue.message_queue, next_offset)

    def _no_message(self, request: PullRequest, next_offset: int) -> None:
        """Move on past messages that were filtered out (C-225, C-226)."""
        queue = request.process_queue
        with request.lock:
            request.next_offset = next_offset
            if not queue.dropped:
                self._note_passed(queue, next_offset)

    def _offset_moved(
        self,
        request: PullRequest,
        offset: int,
        header: PullMessageResponseHeader,
        address: str,
    ) -> None:
        """Repair an offset outside the queue, at once unless that has just led nowhere (C-228)."""
        mq = request.process_queue.message_queue
        corrected = header.next_begin_offset
        if offset > header.max_offset > corrected:
            corrected = header.max_offset  # old brokers would replay everything (C-564)
        is_new = mq not in self._stalls
        pause_ms = self._stalls.stood(mq, offset, PullStatus.OFFSET_ILLEGAL, address)
        if is_new:
            logger.warning(
                "offset %d of %s is not in the queue (%d to %d); continuing at %d",
                offset, mq, header.min_offset, header.max_offset, corrected,
            )  # fmt: skip
        if corrected >= offset:
            # The queue's beginning was deleted: what is cached stays valid, only the next pull
            # moves.
            self._no_message(request, corrected)
            self._later(request, 0 if is_new and corrected > offset else pause_ms)
        elif is_new:
            self._owner.repair_soon(request, corrected)
        else:
            self._after(pause_ms, lambda: self._repair_late(request, corrected))

    def _repair_late(self, request: PullRequest, offset: int) -> None:
        if not request.process_queue.dropped:
            self._owner.repair_soon(request, offset)

    def _failed(self, request: PullRequest, error: Exception) -> None:
        queue = request.process_queue
        if queue.dropped or queue.leaving or self._stopped:
            return
        mq = request.process_queue.message_queue
        retry = after_failure(error, self._exception_delay_ms)
        if mq.topic != self._retry_topic or not isinstance(error, BrokerError):
            self._instance.outages.failed(("pull of", mq), error, expected=retry.expected)
        if retry.after is AfterFailure.HEARTBEAT:
            self._instance.heartbeat_soon()
            self._check_subscription(mq, error)
        elif retry.after is AfterFailure.ROUTE:
            self._kernel.forget(mq)  # a slave that is gone: the master may be there
            self._refresh_route_soon(mq.topic)
        self._later(request, retry.delay_ms)

    def _check_subscription(self, mq: MessageQueue, error: Exception) -> None:
        subscription = self._owner.subscriptions.get(mq.topic)
        address = getattr(error, "address", None)
        if subscription is not None and address:
            self._subscription_check.compare_soon(subscription, address)

    def _refresh_route_soon(self, topic: str) -> None:
        # A broker that is gone fails the pulls of all its queues; one look-up does for them.
        if topic not in self._refreshing:
            self._refreshing.add(topic)
            self._instance.run_soon(self._refresh_route(topic))

    async def _refresh_route(self, topic: str) -> None:
        try:
            await self._instance.update_route(topic)
        finally:
            self._refreshing.discard(topic)

    def _later(self, request: PullRequest, delay_ms: float) -> None:
        self._after(delay_ms, lambda: self.pull(request))

    def _after(self, delay_ms: float, work: Callable[[], None]) -> None:
        def due() -> None:
            self._timers.discard(timer)
            work()

        timer = self._loop.call_later(delay_ms / 1000, due)
        self._timers.add(timer)

    def _log_flow_control(self, held: FlowControl, mq: MessageQueue) -> None:
        is_span = held is FlowControl.SPAN
        hits = self._flow_hits[is_span]
        self._flow_hits[is_span] = hits + 1
        if hits % _FLOW_LOG_EVERY == 0:
            logger.info("pull of %s pauses until its %s falls (pause %d)", mq, held.value, hits + 1)
