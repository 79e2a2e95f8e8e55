"""Listener calls: the hooks and statistics around them, and the status an answer stands for.

Law: a status comes out whatever a listener or a hook does. A consumer without hooks pays nothing,
and statistics are added per pulled run, not per message (C-257 to C-259, C-261).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from rocketstream._util.clock import Clock
from rocketstream._util.ending import Cancellation
from rocketstream._util.user_code import IS_CALLED_BY_CLIENT
from rocketstream.client.consumer.consume.failure_cause import FailureCause
from rocketstream.client.consumer.consume.workers import TaskPool, WorkerPool
from rocketstream.client.consumer.listener import (
    ConsumeConcurrentlyContext,
    ConsumeOrderlyContext,
    Listener,
)
from rocketstream.client.hooks import (
    CONSUME_CONTEXT_TYPE,
    ConsumeHooks,
    ConsumeMessageContext,
    ConsumeReturnType,
)
from rocketstream.client.stats import ConsumerStats
from rocketstream.model import ConsumeConcurrentlyStatus, ConsumeOrderlyStatus, MessageQueue
from rocketstream.protocol.bodies import ConsumeMessageDirectlyResult
from rocketstream.protocol.message_ext import MessageExt
from rocketstream.protocol.names import RETRY_PREFIX
from rocketstream.protocol.namespace import without_namespace
from rocketstream.protocol.properties import PROPERTY_CONSUME_START_TIME, PROPERTY_RETRY_TOPIC

logger: logging.Logger = logging.getLogger("rocketstream.client")

Status = ConsumeConcurrentlyStatus | ConsumeOrderlyStatus
S = TypeVar("S", ConsumeConcurrentlyStatus, ConsumeOrderlyStatus)

_SUCCEEDED = frozenset(
    {
        ConsumeConcurrentlyStatus.CONSUME_SUCCESS,
        ConsumeOrderlyStatus.SUCCESS,
        ConsumeOrderlyStatus.COMMIT,
    }
)
_FAILED = frozenset(
    {
        ConsumeConcurrentlyStatus.RECONSUME_LATER,
        ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT,
    }
)
_DIRECTLY: dict[Status, str] = {
    ConsumeConcurrentlyStatus.CONSUME_SUCCESS: "CR_SUCCESS",
    ConsumeConcurrentlyStatus.RECONSUME_LATER: "CR_LATER",
    ConsumeOrderlyStatus.SUCCESS: "CR_SUCCESS",
    ConsumeOrderlyStatus.COMMIT: "CR_COMMIT",
    ConsumeOrderlyStatus.ROLLBACK: "CR_ROLLBACK",
    ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT: "CR_LATER",
}


class CallObserver:
    """Calls hooks and adds statistics around the listener calls of one consumer.

    Args:
        group: consumer group as its user names it.
        hooks: consume hooks; looked at before every call.
        stats: where figures go.
        clock: for durations.
        timeout_minutes: calls that take longer are reported as TIME_OUT; nothing is cancelled.
        namespace: of the consumer, taken off before listeners see a topic.
        access_channel: reported to hooks.
        failure_cause: writes into failed messages why; None leaves them alone.
    """

    def __init__(
        self,
        group: str,
        hooks: ConsumeHooks,
        stats: ConsumerStats,
        clock: Clock,
        timeout_minutes: float,
        namespace: str | None = None,
        access_channel: str = "LOCAL",
        failure_cause: FailureCause | None = None,
    ) -> None:
        self.group = group
        self.hooks = hooks
        self.stats = stats
        self.clock = clock
        self.namespace = namespace
        self._timeout_ms = timeout_minutes * 60_000
        self._access_channel = access_channel
        self.failure_cause = failure_cause

    def seen_queue(self, mq: MessageQueue) -> MessageQueue:
        """Return a queue as listeners see it: without namespace."""
        if not self.namespace:
            return mq
        return mq._replace(topic=without_namespace(mq.topic, self.namespace))

    def before(self, batch: Sequence[MessageExt], mq: MessageQueue) -> ConsumeMessageContext:
        """Call the hooks before a listener; only when there are any."""
        context = ConsumeMessageContext(
            self.group,
            list(batch),
            mq,
            namespace=self.namespace,
            access_channel=self._access_channel,
        )
        try:
            self.hooks.before(context)
        except BaseException:  # such as SystemExit: nothing a hook raises may end the worker
            logger.exception("a consume hook of group %s failed; ignored", self.group)
        return context

    def after(
        self,
        context: ConsumeMessageContext,
        answer: object,
        status: Status,
        error: BaseException | None,
        elapsed_ms: float,
    ) -> None:
        """Call the hooks after a listener."""
        context.status = status.name
        context.success = status in _SUCCEEDED
        context.error = error
        kind = self._return_type(answer, status, error, elapsed_ms)
        context.properties[CONSUME_CONTEXT_TYPE] = kind.name
        try:
            self.hooks.after(context)
        except BaseException:
            logger.exception("a consume hook of group %s failed; ignored", self.group)

    def cut_off(self, context: ConsumeMessageContext, status: Status, error: BaseException) -> None:
        """Call the hooks after a listener that was cancelled with its consumer."""
        self.after(context, None, status, error, 0)

    def _return_type(
        self, answer: object, status: Status, error: BaseException | None, elapsed_ms: float
    ) -> ConsumeReturnType:
        if error is not None:
            return ConsumeReturnType.EXCEPTION
        if answer is not status:  # None, or something that is no status
            return ConsumeReturnType.RETURNNULL
        if elapsed_ms >= self._timeout_ms:
            return ConsumeReturnType.TIME_OUT
        return ConsumeReturnType.FAILED if status in _FAILED else ConsumeReturnType.SUCCESS

    def count(self, topic: str, ok: int, failed: int, rt_ms: float, calls: int) -> None:
        """Add the figures of some listener calls."""
        if calls:
            self.stats.inc_consume_rt(self.group, topic, rt_ms, calls)
        if ok:
            self.stats.inc_consume_ok_tps(self.group, topic, ok)
        if failed:
            self.stats.inc_consume_failed_tps(self.group, topic, failed)


def checked_status(
    answer: object, error: BaseException | None, batch: Sequence[MessageExt], instead: S
) -> S:
    """Return the status a listener's answer counts as; log an answer that is not a status (C-261).

    Args:
        answer: what the listener returned.
        error: what it raised, if it did.
        batch: what it was called with.
        instead: the status of its kind that anything else counts as.
    """
    if error is None and isinstance(answer, type(instead)):
        return answer
    first = batch[0]
    where = (
        f"topic={first.topic} broker={first.broker_name} queue={first.queue_id} "
        f"offset={first.queue_offset} msgId={first.msg_id} messages={len(batch)}"
    )
    if error is not None:
        logger.warning(
            "listener raised %s; counts as %s: %s",
            type(error).__name__, instead.name, where, exc_info=error,
        )  # fmt: skip
    else:
        hint = (
            "; register the listener with orderly=True to consume in order"
            if _is_other(answer, instead)
            else ""
        )
        logger.warning(
            "listener returned %r, which is not a %s%s; counts as %s: %s",
            answer, type(instead).__name__, hint, instead.name, where,
        )  # fmt: skip
    return instead


def _is_other(answer: object, instead: Status) -> bool:
    return isinstance(answer, ConsumeOrderlyStatus) and type(instead) is not type(answer)


def mark_started(batch: Sequence[MessageExt], now_ms: int) -> None:
    """Mark messages with the time they went to a listener: CONSUME_START_TIME (C-233)."""
    for message in batch:
        message._consume_start_ms = now_ms
        if message._properties is not None:
            set_start_property(message)


def set_start_property(message: MessageExt) -> None:
    """Add the start to properties that were read already, by a filter or an earlier try."""
    message.properties[PROPERTY_CONSUME_START_TIME] = str(message.consume_start_ms)


# --- a message consumed on request ----------------------------------------------------------------


async def consume_directly(
    listener: Listener, message: MessageExt, broker_name: str | None, observer: CallObserver
) -> ConsumeMessageDirectlyResult:
    """Call a listener with one message: no process queue, offset, send-back, hooks (C-269, C-295).

    A plain function runs on a thread of its own, so that the loop does not wait for it.
    """
    message._broker_name = broker_name or message.broker_name
    if message.topic.startswith(RETRY_PREFIX):
        message._topic = message.properties.get(PROPERTY_RETRY_TOPIC, message.topic)
    message._topic = without_namespace(message.topic, observer.namespace)
    orderly = listener.is_orderly
    context: ConsumeOrderlyContext | ConsumeConcurrentlyContext
    mq = message.message_queue
    context = ConsumeOrderlyContext(mq) if orderly else ConsumeConcurrentlyContext(mq)
    arguments = ([message], context) if listener.takes_context else ([message],)
    result = ConsumeMessageDirectlyResult(order=orderly)
    began_ms = observer.clock.monotonic_ms()
    answer, error = await _called(listener, arguments)
    if error is not None:
        result.consume_result, result.remark = "CR_THROW_EXCEPTION", repr(error)
    elif isinstance(answer, ConsumeOrderlyStatus if orderly else ConsumeConcurrentlyStatus):
        result.consume_result = _DIRECTLY[answer]
    else:
        result.consume_result = "CR_RETURN_NULL"
        if answer is not None:
            result.remark = f"the listener returned {answer!r}, which is not a status"
    if isinstance(context, ConsumeOrderlyContext):
        result.auto_commit = context.auto_commit
    result.spent_time_mills = int(observer.clock.monotonic_ms() - began_ms)
    return result


Outcome = tuple[Any, BaseException | None]


async def _called(listener: Listener, arguments: tuple[object, ...]) -> Outcome:
    if not listener.is_async:
        return await _on_a_thread(listener.call, arguments)
    cancellation = Cancellation()
    IS_CALLED_BY_CLIENT.set(True)  # in a task that ends with this
    try:
        return await listener.call(*arguments), None
    except BaseException as error:  # whatever a listener raises is an answer to the asker
        if isinstance(error, asyncio.CancelledError) and cancellation.has_come:
            raise
        return None, error


async def _on_a_thread(call: Callable[..., object], arguments: tuple[object, ...]) -> Outcome:
    """Run a call on a daemon thread; it is left behind if the caller is cancelled."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Outcome] = loop.create_future()

    def tell(outcome: Outcome) -> None:
        if not done.done():
            done.set_result(outcome)

    def run() -> None:
        IS_CALLED_BY_CLIENT.set(True)
        try:
            outcome: Outcome = call(*arguments), None
        except BaseException as error:  # told to whoever waits
            outcome = None, error
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
            loop.call_soon_threadsafe(tell, outcome)

    threading.Thread(target=run, name="ConsumeMessageDirectly", daemon=True).start()
    return await done


# --- services ------------------------------------------------------------------------------------


class ListenerService(ABC):
    """A consume service as operators see it: a listener, and a pool that calls it.

    Args:
        listener: what is called.
        observer: calls hooks and counts around listener calls.
        calls_max: most calls at once.
    """

    _pool: WorkerPool[Any] | TaskPool

    def __init__(self, listener: Listener, observer: CallObserver, calls_max: int) -> None:
        self.listener = listener
        self.observer = observer
        self._calls_max = calls_max
        self._pool = self._make_pool(calls_max)

    @abstractmethod
    def _make_pool(self, size: int) -> WorkerPool[Any] | TaskPool:
        """Return the threads or tasks that call the listener."""

    @property
    def core_pool_size(self) -> int:
        """Most listener calls at once."""
        return self._pool.size

    def update_core_pool_size(self, size: int) -> bool:
        """Have at most ``size`` calls; return whether that is between 1 and the setting (C-255)."""
        if not 0 < size <= self._calls_max:
            return False
        self._pool.resize(size)
        return True

    async def consume_directly(
        self, message: MessageExt, broker_name: str | None
    ) -> ConsumeMessageDirectlyResult:
        """Call the listener with a message an operator chose; nothing is committed.

        Covers C-269, and C-295 for one in order.
        """
        return await consume_directly(self.listener, message, broker_name, self.observer)
