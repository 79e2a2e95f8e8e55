"""Sends with ``auto_batch``: handed over one by one, sent in batches, ended one by one.

Puts from any thread, all else on the loop; which go together and when is ``gathering``'s.
"""

from __future__ import annotations

import asyncio
import copy
import logging
import math
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import cast

from rocketstream._util.waiting import Locks, interrupting
from rocketstream.client.producer.async_sender import AsyncSender, SendDone
from rocketstream.client.producer.gathering import Batch, Gathering, each_alone, may_be_gathered
from rocketstream.client.producer.message import GatheredSend
from rocketstream.client.producer.policy import ANY_QUEUE, SendTarget
from rocketstream.errors import SendError, SendOutcome
from rocketstream.model import PROPERTY_WAIT, MessageQueue, SendResult
from rocketstream.protocol.record import BATCH_RECORD_BYTES
from rocketstream.protocol.sends import PreparedSend

logger: logging.Logger = logging.getLogger("rocketstream.client")

Held = tuple[PreparedSend, SendDone]
"""A message, and what its sender is told by."""
Ended = Sequence[SendResult | SendError]
_CHARACTER_BYTES_MAX = 3
_PUTS_BEFORE_LOOK = 64
_GIVE_WAY_S = 0.005


def end_each(held: Sequence[Held], ends: Ended, _body_bytes: int) -> None:
    """Tell the senders of messages one by one how each ended."""
    for (_, done), end in zip(held, ends, strict=True):
        if isinstance(end, SendError):
            done(None, end)
        else:
            done(end, None)


def errors_of(error: SendError, count: int) -> list[SendError]:
    """Return an error of its own for each of some messages: whoever raises one writes into it."""
    errors = [error]
    for _ in range(count - 1):
        own = copy.copy(error)
        own.parameters = dict(error.parameters)
        own.__cause__ = error.__cause__
        errors.append(own)
    return errors


class Gatherer:
    """Messages on their way from ``put`` to ``end``.

    Args:
        sender: sends batches, and messages that go alone.
        loop: where it runs.
        wake: has a function called on the loop, from wherever ``put`` is called.
        end: told on the loop of messages, how each ended, and what their bodies take together.
        loop_thread_id: the loop's thread, where ``put`` is called on others.
        locks: those the loop's thread takes, where ``put`` is called on others.
    """

    def __init__(
        self,
        sender: AsyncSender,
        loop: asyncio.AbstractEventLoop,
        wake: Callable[[Callable[[], None]], object],
        end: Callable[[Sequence[Held], Ended, int], None],
        loop_thread_id: int | None = None,
        locks: Locks | None = None,
    ) -> None:
        settings = sender.policy.settings
        self._sender = sender
        self._loop = loop
        self._wake = wake
        self._end = end
        self._requests = settings.requests()
        self._now = sender.now
        self._bytes_max = settings.batch_max_bytes
        self._delay_ms = float(settings.batch_max_delay_ms)
        self._lock = (locks or Locks()).make()
        self._adding = False
        self._gathering: Gathering[Held] = Gathering(
            settings.batch_max_bytes, settings.max_message_size, self._delay_ms
        )
        self._looks = 0
        self._woken_for = -1
        """The look that the loop was last woken for, noted after that; see ``Outbox``."""
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = math.inf
        self._everything = False
        self._hurried = False
        self._closed = False
        self._loop_thread_id = loop_thread_id
        self._looked = threading.Lock()
        """Let go with each look, for a thread that gives way; an event has a lock of its own,
        which a signal handler may find held."""
        self._put_since = 0
        self.cut_off: SendDone | None = None
        """Of the last message that was taken although its put raised: a signal handler can have
        that. One at most is looked at, since handlers run on one thread only."""

    def put(
        self,
        prepared: PreparedSend,
        properties: dict[str, str],
        queue: MessageQueue | None,
        timeout_ms: float,
        sink: SendDone,
    ) -> None:
        """Have a message sent, with others if it can go with others; from any thread.

        Args:
            prepared: the message made ready.
            properties: its properties.
            queue: the one it must go to; None for any of its topic.
            timeout_ms: for waiting and all tries together.
            sink: told of the end, by ``end``.
        """
        size = len(prepared.body)
        alone = (
            not prepared.is_plain
            or prepared.sys_flag != 0
            or size >= self._bytes_max
            or timeout_ms <= self._delay_ms
            or not may_be_gathered(properties, prepared.flag)
        )
        self._add(prepared, properties.get(PROPERTY_WAIT), queue, timeout_ms, sink, alone=alone)

    def put_alone(
        self, prepared: PreparedSend, queue: MessageQueue | None, timeout_ms: float, sink: SendDone
    ) -> None:
        """Have something sent by itself, after what was put for its queue before."""
        self._add(prepared, None, queue, timeout_ms, sink, alone=True)

    def _add(
        self,
        prepared: PreparedSend,
        wait: str | None,
        queue: MessageQueue | None,
        timeout_ms: float,
        sink: SendDone,
        *,
        alone: bool,
    ) -> None:
        now = self._now()
        text = prepared.properties
        text_bytes = len(text) if text.isascii() else len(text) * _CHARACTER_BYTES_MAX
        size = len(prepared.body)
        held = (prepared, sink)
        lane = prepared.topic if queue is None else (prepared.topic, queue)
        may_leave = None
        try:
            with self._lock:
                if self._adding:  # by this thread: a signal handler came in between
                    raise interrupting()
                if not self._closed:
                    self._adding = True
                    try:
                        may_leave = self._gathering.add(
                            held,
                            lane,
                            (wait, timeout_ms),
                            size,
                            BATCH_RECORD_BYTES + size + text_bytes,
                            now,
                            timeout_ms,
                            keeps_order=queue is not None,
                            alone=alone,
                        )
                    except BaseException:
                        may_leave = self._gathering.took(held, lane) or None
                        raise
                    finally:
                        self._adding = False
            if may_leave is not None:
                self._added(may_leave, now + (self._delay_ms if queue is None else timeout_ms))
        except BaseException:
            if may_leave is not None:
                self.cut_off = sink
                self._look_soon()
            raise
        if may_leave is None:
            self._give_up([held])

    def _added(self, may_leave: bool, due_ms: float) -> None:
        """Wake the loop for a message that was taken, or let it go on where it is woken already."""
        if self._woken_for == self._looks:
            self._put_since += 1
            if self._put_since >= _PUTS_BEFORE_LOOK and self._loop_thread_id is not None:
                self._give_way()
        elif may_leave or self._everything or due_ms < self._timer_ms:
            self._look_soon()

    def _look_soon(self) -> None:
        """Have the loop look at what may leave: once for all that is put until it gets to it."""
        look = self._looks
        self._put_since = 0
        try:
            self._wake(self._look)
        except RuntimeError:  # shut down by another thread meanwhile: the loop is closed
            self.close()
        self._woken_for = look

    def _give_way(self) -> None:
        """Let the loop have the interpreter, since something may leave.

        It would wait 5 ms for a thread that keeps putting, and brokers would have nothing to do.
        """
        self._put_since = 0
        if threading.get_ident() == self._loop_thread_id:
            return
        self._looked.acquire(blocking=False)
        if self._woken_for == self._looks:
            self._looked.acquire(timeout=_GIVE_WAY_S)

    # --- on the loop ------------------------------------------------------------------------------

    def _look(self) -> None:
        self._looks += 1
        if self._looked.locked():
            self._looked.release()
        everything = self._everything or self._hurried
        self._hurried = False
        with self._lock:
            leaving = self._gathering.take(self._now(), everything=everything)
            next_ms = self._gathering.next_ms()
        for batch in leaving:
            try:
                self._send(batch)
            except Exception as error:  # whoever waits for the messages must still be told
                logger.exception("a batch of topic %s could not be sent", batch.items[0][0].topic)
                text = f"the batch could not be sent: {error!r}"
                self._ended(batch, None, SendError(text, SendOutcome.NOT_SENT))
        self._look_at(next_ms)

    def _look_at(self, at_ms: float) -> None:
        """Look again at a time, unless that is done earlier already."""
        if self._timer is not None:
            if self._timer_ms <= at_ms and self._timer_ms > self._now():
                return
            self._timer.cancel()
            self._timer = None
        self._timer_ms = at_ms
        if at_ms != math.inf:
            pause_s = max(0.0, at_ms - self._now()) / 1000
            self._timer = self._loop.call_later(pause_s, self._time_is_up)

    def _time_is_up(self) -> None:
        self._timer, self._timer_ms = None, math.inf
        self._look()

    def _send(self, batch: Batch[Held]) -> None:
        (prepared, _), *others = batch.items
        if others:
            (wait, _) = cast("tuple[str | None, float]", batch.terms)
            members = [each for each, _ in batch.items]
            prepared = GatheredSend(self._requests, members, wait or "true")
        left_ms = max(0.0, batch.expires_ms - self._now())

        def done(result: SendResult | None, error: SendError | None) -> None:
            if error is not None and others and each_alone(error):
                self._send_each(batch, error)
            elif isinstance(prepared, GatheredSend) and result is not None:
                self._end(batch.items, prepared.results(result), batch.body_bytes)
                self._done(batch)
            else:
                self._ended(batch, result, error)

        self._sender.send(prepared, _target(batch), left_ms, done)

    def _send_each(self, batch: Batch[Held], error: SendError) -> None:
        """Send the messages of a batch that failed one by one, so that each fails for itself."""
        left_ms = batch.expires_ms - self._now()
        if left_ms <= 0:
            self._ended(batch, None, error)
            return
        target = _target(batch)
        under_way = len(batch.items)

        def ended(item: Held, result: SendResult | None, failure: SendError | None) -> None:
            nonlocal under_way
            self._end([item], [_outcome(result, failure)], len(item[0].body))
            under_way -= 1
            if not under_way:
                self._done(batch)

        for item in batch.items:
            self._sender.send(item[0], target, left_ms, partial(ended, item))

    def _ended(
        self, batch: Batch[Held], result: SendResult | None, error: SendError | None
    ) -> None:
        """End all of a batch alike."""
        outcome = _outcome(result, error)
        count = len(batch.items)
        self._end(
            batch.items,
            errors_of(outcome, count) if isinstance(outcome, SendError) else [outcome] * count,
            batch.body_bytes,
        )
        self._done(batch)

    def _done(self, batch: Batch[Held]) -> None:
        with self._lock:
            may_leave = self._gathering.done(batch)
        if may_leave and self._woken_for != self._looks:
            self._woken_for = self._looks
            # Not now: other answers in this pass of the loop may let more go, and sends that fail
            # at once would pile up on the stack.
            self._loop.call_soon(self._look)

    def hurry(self) -> None:
        """Have what was put so far sent without delay; from wherever ``put`` is called."""
        self._hurried = True
        if not self._closed:
            self._look_soon()

    # --- the end ----------------------------------------------------------------------------------

    def flush(self) -> None:
        """Have all that was put sent without delay, and whatever is put from now on; any thread."""
        self._everything = True
        if not self._closed:
            self._look_soon()

    def close(self) -> None:
        """Fail what was not sent; once the loop takes no more."""
        with self._lock:
            self._closed = True
            left = self._gathering.give_up()
        if self._timer is not None and not self._loop.is_closed():
            self._timer.cancel()
        self._give_up(left)

    def _give_up(self, left: Sequence[Held]) -> None:
        if left:
            text = "the producer was shut down before the message was sent"
            self._end(
                left,
                [SendError(text, SendOutcome.NOT_SENT, topic=each.topic) for each, _ in left],
                sum(len(each.body) for each, _ in left),
            )


def _target(batch: Batch[Held]) -> SendTarget:
    lane = batch.lane
    return SendTarget(queue=lane[1]) if isinstance(lane, tuple) else ANY_QUEUE


def _outcome(result: SendResult | None, error: SendError | None) -> SendResult | SendError:
    if result is not None:
        return result
    return error or SendError(
        "a send ended with neither a result nor an error", SendOutcome.UNKNOWN
    )
