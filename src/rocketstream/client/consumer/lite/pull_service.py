"""The pulls of a lite pull consumer: one request per queue always on its way, by callbacks.

Law: runs on the loop; no task and no thread per queue, so an empty queue starves none (C-511). Each
queue is at any time exactly one of: in flight, waiting for a timer, held, paused, or gone (C-509).
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from rocketstream.client.consumer.pulling.kernel import PullKernel, active_version
from rocketstream.client.consumer.pulling.stalled_queues import QUICK_ANSWER_MS, StalledQueues
from rocketstream.client.core.lite_pull import LiteCache, LiteQueue
from rocketstream.client.core.pull_decision import (
    AfterFailure,
    after_failure,
    not_before,
    offset_after,
)
from rocketstream.client.core.pull_result import PullResult
from rocketstream.client.core.pull_settings import LitePullConsumerSettings
from rocketstream.client.core.routes import BrokerAddress
from rocketstream.client.instance.mq_client import MQClientInstance
from rocketstream.errors import InternalError, RocketMQError
from rocketstream.model import MessageQueue, PullStatus
from rocketstream.protocol.bodies import SubscriptionData
from rocketstream.protocol.codes import PullSysFlag
from rocketstream.protocol.command import RemotingCommand
from rocketstream.protocol.message_ext import MessageExt
from rocketstream.protocol.subscription import EXPRESSION_TAG

logger = logging.getLogger("rocketstream.client")

_SYS_FLAG = PullSysFlag.SUSPEND | PullSysFlag.SUBSCRIPTION | PullSysFlag.LITE_PULL


class LitePullOwner(Protocol):
    """The consumer the pulls are for."""

    group: str
    lock: threading.Lock
    cache: LiteCache

    def subscription(self, topic: str) -> SubscriptionData | None:
        """What is wanted of a topic; None when it is not wanted any more."""
        ...

    has_arrived: Callable[[], None]
    """Messages are ready: wakes whoever waits for some."""


class LitePullService:
    """Pulls the queues of one consumer into its cache."""

    def __init__(
        self,
        owner: LitePullOwner,
        instance: MQClientInstance,
        settings: LitePullConsumerSettings,
        kernel: PullKernel,
    ) -> None:
        self._owner = owner
        self._instance = instance
        self._settings = settings
        self._kernel = kernel
        self._batch = settings.wire_batch_size
        self._exception_delay_ms = instance.config.pull_time_delay_ms_when_exception
        self._namespace = instance.config.effective_namespace()
        self._loop = asyncio.get_running_loop()
        self._now = instance.clock.monotonic_ms
        self._stalls = StalledQueues(instance)
        self._timers: set[asyncio.TimerHandle] = set()
        self._stopped = False
        self._refreshing: set[str] = set()

    def stop(self) -> None:
        """Pull nothing more; answers still to come are discarded."""
        self._stopped = True
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()

    def pull_all(self, queues: Iterable[LiteQueue]) -> None:
        """Pull queues nothing is on its way for."""
        for queue in queues:
            self.pull(queue, queue.epoch)

    def pull(self, queue: LiteQueue, epoch: int) -> None:
        """Send the next pull of a queue, or see to it that it is sent later."""
        if self._stopped:
            return
        with self._owner.lock:
            if queue.epoch != epoch or not self._owner.cache.may_pull(queue):
                return
            offset = queue.pull_offset
        try:
            self._send(queue, epoch, offset)
        except RocketMQError as error:
            self._failed(queue, epoch, error)

    def _send(self, queue: LiteQueue, epoch: int, offset: int) -> None:
        mq = queue.message_queue
        subscription = self._owner.subscription(mq.topic)
        if subscription is None:
            self._later(queue, epoch, self._exception_delay_ms)
            return
        broker = self._kernel.broker(mq)
        connection = None if broker is None else self._instance.remoting.connected(broker.address)
        if broker is None or connection is None or self._is_unchecked(subscription, broker):
            self._instance.run_soon(self._connect(queue, epoch, subscription))
            return
        address = broker.address
        command = self._kernel.command(
            mq,
            subscription,
            offset,
            self._batch,
            sys_flag=_SYS_FLAG,
            suspend_ms=self._settings.broker_suspend_max_time_ms,
            version=active_version(subscription),
        )
        queue.last_pull_ms = sent_ms = self._now()

        def answered(answer: RemotingCommand | None, error: Exception | None) -> None:
            if queue.epoch != epoch or self._stopped:
                return  # of before a seek, or of a queue given up: discarded
            if self._owner.subscription(mq.topic) is not subscription:
                # What the old expression left out may be wanted now: pull the same again.
                self.pull(queue, epoch)
                return
            try:
                if answer is None:
                    raise error or InternalError("a pull ended with neither an answer nor an error")
                if self._instance.outages:
                    self._instance.outages.answered(address)
                result = self._kernel.result(
                    mq, subscription, answer, address, offset, check_crc=self._settings.check_crc
                )
                if self._instance.outages:
                    self._instance.outages.worked("pull of", mq)
                self._answered(queue, epoch, offset, sent_ms, result, len(answer.body), address)
            except RocketMQError as failure:
                self._failed(queue, epoch, failure)
            except Exception as bug:
                logger.exception("handling a pull reply failed")
                self._failed(queue, epoch, bug)

        connection.request_callback(
            command, self._settings.consumer_timeout_ms_when_suspend, answered
        )

    def _is_unchecked(self, subscription: SubscriptionData, broker: BrokerAddress) -> bool:
        """Whether the broker's version must be known before it is asked to filter (C-216)."""
        return (
            subscription.expression_type != EXPRESSION_TAG
            and self._instance.broker_version(broker.address) == 0
        )

    async def _connect(self, queue: LiteQueue, epoch: int, subscription: SubscriptionData) -> None:
        try:
            address = await self._kernel.known_broker(queue.message_queue, subscription)
            await self._instance.remoting.connection(address)
        except RocketMQError as error:
            self._failed(queue, epoch, error)
        else:
            self.pull(queue, epoch)

    def _answered(
        self,
        queue: LiteQueue,
        epoch: int,
        offset: int,
        sent_ms: float,
        result: PullResult,
        body_bytes: int,
        address: str,
    ) -> None:
        mq, status = queue.message_queue, result.pull_status
        messages = not_before(result.msg_found_list, offset)
        if status is PullStatus.OFFSET_ILLEGAL:
            next_offset = self._corrected(queue, offset, result)
            stands = mq in self._stalls or next_offset == offset
        else:
            next_offset = offset_after(messages, offset, result.next_begin_offset)
            stands = next_offset == offset
        if self._namespace:
            self._unwrap(messages)
        with self._owner.lock:
            arrived = self._owner.cache.arrived(queue, epoch, messages, next_offset, body_bytes)
        if not arrived:
            return
        if messages:
            self._owner.has_arrived()
            self._count(mq, len(messages), sent_ms)
        held = status is PullStatus.NO_NEW_MSG and self._now() - sent_ms >= QUICK_ANSWER_MS
        if (stands and not held) or status is PullStatus.OFFSET_ILLEGAL:
            # The broker holds the request while there is nothing; one that does not must not be
            # asked in a tight loop.
            pause_ms = self._stalls.stood(mq, offset, status, address)
            self._later(queue, epoch, pause_ms if stands else 0)
            return
        if self._stalls:
            self._stalls.moved(mq, None if held else next_offset)
        self.pull(queue, epoch)

    def forget(self, mq: MessageQueue) -> None:
        """Forget what went wrong with a queue that was given up."""
        self._stalls.forget(mq)

    def _unwrap(self, messages: Sequence[MessageExt]) -> None:
        outside = self._instance.config.without_namespace
        for message in messages:
            message.topic = outside(message.topic)

    def _corrected(self, queue: LiteQueue, offset: int, result: PullResult) -> int:
        """Return where to go on from an offset outside the queue (C-512)."""
        corrected = result.next_begin_offset
        if offset > result.max_offset > corrected:
            corrected = result.max_offset  # old brokers would replay everything (C-564)
        if queue.message_queue not in self._stalls:
            logger.warning(
            "offset %d of %s is not in the queue (%d to %d); continuing at %d",
            offset, queue.message_queue, result.min_offset, result.max_offset, corrected,
        )  # fmt: skip
        return corrected

    def _count(self, mq: MessageQueue, messages: int, sent_ms: float) -> None:
        stats, group = self._instance.stats, self._owner.group
        stats.inc_pull_rt(group, mq.topic, int(self._now() - sent_ms))
        stats.inc_pull_tps(group, mq.topic, messages)

    def _failed(self, queue: LiteQueue, epoch: int, error: Exception) -> None:
        if queue.epoch != epoch or self._stopped:
            return
        mq = queue.message_queue
        retry = after_failure(error, self._exception_delay_ms)
        self._instance.outages.failed(("pull of", mq), error, expected=retry.expected)
        if retry.after is AfterFailure.HEARTBEAT:
            self._instance.heartbeat_soon()
        elif retry.after is AfterFailure.ROUTE:
            self._kernel.forget(mq)  # a slave that is gone: the master may be there
            self._refresh_route_soon(mq.topic)
        self._later(queue, epoch, retry.delay_ms)

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

    def _later(self, queue: LiteQueue, epoch: int, delay_ms: float) -> None:
        self.later(delay_ms, lambda: self.pull(queue, epoch))

    def later(self, delay_ms: float, work: Callable[[], None]) -> None:
        """Have something done unless stopped meanwhile."""
        if self._stopped:
            return

        def due() -> None:
            self._timers.discard(timer)
            work()

        timer = self._loop.call_later(delay_ms / 1000, due)
        self._timers.add(timer)
