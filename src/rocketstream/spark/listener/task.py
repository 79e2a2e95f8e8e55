"""A task's work: rows to messages, messages to the listener, failed ones back to the broker.

Law: the task returns only when every message was consumed or its copy is stored.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

from rocketstream._util.clock import SYSTEM_CLOCK, Clock
from rocketstream.client.consumer.consume.failure_cause import FailureCause
from rocketstream.client.consumer.consume.listener_calls import checked_status
from rocketstream.client.consumer.listener import (
    ConsumeConcurrentlyContext,
    ConsumeOrderlyContext,
    Listener,
    Step,
    acknowledged,
    step_of,
    suspend_ms,
)
from rocketstream.client.consumer.retry import EXPIRED_DELAY_LEVEL
from rocketstream.errors import NotSupportedError
from rocketstream.model import ConsumeConcurrentlyStatus, ConsumeOrderlyStatus, MessageQueue
from rocketstream.protocol.message_ext import MessageExt
from rocketstream.spark.listener.batches import Rows, Turn, Turns, batches_of
from rocketstream.spark.listener.calls import Call, Calls, LeftBehind, new_calls, too_long
from rocketstream.spark.listener.messages import Messages
from rocketstream.spark.listener.send_back import Failed, SendBack
from rocketstream.spark.options import ConsumeOptions
from rocketstream.spark.worker import kept

logger: logging.Logger = logging.getLogger("rocketstream.spark")

_LATER: Final = ConsumeConcurrentlyStatus.RECONSUME_LATER
_SUSPEND: Final = ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT
CALLS_AHEAD: Final = 64
"""Calls submitted and not settled, for each call that may run at once."""
SUBMITTED_AT_ONCE: Final = 256
"""Calls submitted between two looks at those that are finished."""
_WAIT_MS: Final = 1_000.0


@dataclass(slots=True)
class Counts:
    """Counts of a task's messages by their end.

    Attributes:
        consumed: messages acknowledged by the listener.
        sent_back: messages that failed and of which a copy is stored for another try (or in the
            dead letters after the last one).
        given_up: messages moved to the dead letters after an orderly listener's last try.
        left_behind: messages sent back because their listener call took too long.
    """

    consumed: int = 0
    sent_back: int = 0
    given_up: int = 0
    left_behind: int = 0

    def add(self, other: Counts) -> None:
        """Add the counts of another task."""
        self.consumed += other.consumed
        self.sent_back += other.sent_back
        self.given_up += other.given_up
        self.left_behind += other.left_behind


def consume_rows(
    options: ConsumeOptions,
    columns: Mapping[str, str],
    listener: Listener,
    rows: Iterable[Any],
    clock: Clock = SYSTEM_CLOCK,
) -> Counts:
    """Consume the rows of one partition, record batches or single rows.

    Raises:
        SendError: a failed message could not be sent back; the task must be run again.
        NotSupportedError: an orderly listener switched ``auto_commit`` off.
        ClientStateError: too many listener calls hang.
    """
    messages = Messages(columns, options.group)
    pairs = (pair for part in rows for pair in messages.of(part))
    left_behind = kept("left behind", "", LeftBehind, 1)
    calls = new_calls(listener, options.threads_max, options.call_timeout_ms, clock, left_behind)
    send_back = SendBack(options, clock)
    try:
        task = _Orderly if options.orderly else _Concurrently
        return task(options, messages, calls, send_back, clock, listener).consume(pairs)
    finally:
        calls.close()
        send_back.close()


class _Task:
    """The common part of both ways to consume."""

    def __init__(
        self,
        options: ConsumeOptions,
        messages: Messages,
        calls: Calls,
        send_back: SendBack,
        clock: Clock,
        listener: Listener,
    ) -> None:
        self._options = options
        self._messages = messages
        self._calls = calls
        self._send_back = send_back
        self._clock = clock
        self._counts = Counts()
        self._failure_cause = FailureCause(listener.call) if options.send_back_cause else None

    def _expired(self, call: Call, queue: MessageQueue) -> None:
        """Send back the messages of a call that hangs (C-248)."""
        took = too_long(self._options.call_timeout_ms)
        logger.warning(
            "a listener call of group %s takes %s: its %d messages from offset %d of %s are sent "
            "back, the call is left behind and may still act on them",
            self._options.group, took, len(call.messages), call.messages[0].queue_offset, queue,
        )  # fmt: skip
        failed = self._failed(queue, call.messages, EXPIRED_DELAY_LEVEL)
        if self._failure_cause is not None:
            told = (message for message, _ in failed)
            self._failure_cause.tell_time_out(told, f"the listener takes {took}")
        self._give_back(failed)
        self._counts.left_behind += len(call.messages)

    def _failed(
        self, queue: MessageQueue, messages: Iterable[MessageExt], level: int
    ) -> list[Failed]:
        return [(self._messages.untouched(queue, message), level) for message in messages]

    def _give_back(self, failed: list[Failed]) -> None:
        self._send_back.give_back(failed)
        self._counts.sent_back += len(failed)


class _Concurrently(_Task):
    """Gives batches to the listener, as many at once as allowed; failed messages are sent back."""

    def consume(self, pairs: Rows) -> Counts:
        """Consume all rows."""
        ahead = CALLS_AHEAD * self._options.threads_max
        out = 0
        batches = batches_of(pairs, self._options.batch_size)
        while some := list(itertools.islice(batches, SUBMITTED_AT_ONCE)):
            self._calls.submit(
                [Call(batch, ConsumeConcurrentlyContext(queue), queue) for queue, batch in some]
            )
            out += len(some)
            while out >= ahead:
                out -= self._settle()
        while out:
            out -= self._settle()
        return self._counts

    def _settle(self) -> int:
        """Take finished calls back; return how many."""
        finished = self._calls.finished(_WAIT_MS)
        failed: list[Failed] = []
        for call in finished:
            queue = cast("MessageQueue", call.key)
            if call.left:
                self._expired(call, queue)
                continue
            # C-261 to C-264
            context = cast("ConsumeConcurrentlyContext", call.context)
            size = len(call.messages)
            status = checked_status(call.answer, call.error, call.messages, _LATER)
            good = acknowledged(status, context.ack_index, size)
            self._counts.consumed += good
            if good == size:
                continue
            level = context.delay_level_when_next_consume
            back = self._failed(queue, call.messages[good:], level)
            if self._failure_cause is not None:
                self._failure_cause.tell((m for m, _ in back), call.error, call.answer, _LATER.name)
            failed += back
        if failed:
            self._give_back(failed)
        return len(finished)


class _Orderly(_Task):
    """One batch of a queue at a time; a queue that failed waits while the others continue."""

    def consume(self, pairs: Rows) -> Counts:
        """Consume all rows; they are held in memory until then."""
        options = self._options
        turns = Turns(pairs, options.batch_size, options.max_reconsume_times)
        while not turns.done:
            begun: list[Call] = []
            while turn := turns.take(self._clock.monotonic_ms()):
                begun.append(Call(turn.batch, ConsumeOrderlyContext(turn.queue), turn))
            if begun:
                self._calls.submit(begun)
            wait_ms = turns.wait_ms(self._clock.monotonic_ms())
            for call in self._calls.finished(_WAIT_MS if wait_ms is None else wait_ms):
                self._settle(turns, call)
        return self._counts

    def _settle(self, turns: Turns, call: Call) -> None:
        turn = cast("Turn", call.key)
        if call.left:
            self._expired(call, turn.queue)
            turns.finished(turn)
            return
        context = cast("ConsumeOrderlyContext", call.context)
        status = checked_status(call.answer, call.error, call.messages, _SUSPEND)
        if not context.auto_commit:
            raise NotSupportedError(
                "an orderly listener on Spark cannot switch auto_commit off: a micro-batch ends "
                "when its messages are finished, so there is no later COMMIT; return SUCCESS or "
                "SUSPEND_CURRENT_QUEUE_A_MOMENT",
                queue=tuple(turn.queue),
            )
        if step_of(status, auto_commit=True) is Step.COMMIT:
            self._counts.consumed += len(turn.batch)
            turns.finished(turn)
            return
        asked = context.suspend_current_queue_time_ms
        pause_ms = suspend_ms(asked, self._options.suspend_ms)
        spent = turns.failed(turn, pause_ms, self._clock.monotonic_ms())
        if spent:
            gone = [self._messages.untouched(turn.queue, message) for message in spent]
            for message, times in zip(gone, spent, strict=True):
                message._reconsume_times = times.reconsume_times
            if self._failure_cause is not None:
                self._failure_cause.tell(gone, call.error, call.answer, _SUSPEND.name)
            self._send_back.give_up(gone)
            self._counts.given_up += len(spent)
