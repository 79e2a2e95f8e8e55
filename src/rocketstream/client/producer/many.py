"""Many messages at once: cut into batches, several requests on their way, each accounted for.

``columns`` makes the batches, ``AsyncSender`` sends them as any other; here is what goes when.
Messages with a queue of their own (by key, by number) keep their order: a queue has one request
under way, and once one has failed none follows it. Encoding is for the caller's thread; what is
named so runs on the loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from rocketstream import limits
from rocketstream._util.clock import Clock
from rocketstream.client.config import check_columns, unique_ids
from rocketstream.client.producer.async_sender import AsyncSender
from rocketstream.client.producer.message import MessagePreparer, beyond_levels
from rocketstream.client.producer.policy import ANY_QUEUE, SendTarget, queue_of_key
from rocketstream.client.producer.settings import ProducerSettings
from rocketstream.errors import (
    RocketMQError,
    SendError,
    SendManyError,
    SendOutcome,
)
from rocketstream.model import RESERVED_PROPERTIES, Message, MessageQueue, SendResult, SendStatus
from rocketstream.protocol.properties import decode_properties
from rocketstream.protocol.sends import PreparedSend

if TYPE_CHECKING:
    import pyarrow as pa

    from rocketstream.columns.given import Given
    from rocketstream.columns.messages import Block, Run

logger: logging.Logger = logging.getLogger("rocketstream.client")


@dataclass(frozen=True, slots=True)
class StoredPart:
    """Messages that one request stored, one after the other in a queue.

    Attributes:
        rows: their numbers among those given.
        message_queue: the queue.
        queue_offset: the offset of the first.
        send_status: of all.
    """

    rows: Sequence[int]
    message_queue: MessageQueue
    queue_offset: int
    send_status: SendStatus


@dataclass(frozen=True, slots=True)
class FailedPart:
    """Messages that are not known to be stored.

    Attributes:
        rows: their numbers among those given.
        error: why; its ``outcome`` says what is known of them.
    """

    rows: Sequence[int]
    error: SendError


@dataclass(slots=True)
class SendManyResult:
    """The end of each message of one ``send_many``: where it is stored, or why not.

    Attributes:
        count: how many messages there were.
        stored: those that are stored, by request.
        failed: those that are not known to be.
    """

    count: int = 0
    stored: list[StoredPart] = field(default_factory=list)
    failed: list[FailedPart] = field(default_factory=list)
    _rest: list[tuple[int, Any]] = field(default_factory=list)

    def __repr__(self) -> str:
        failed = self.count - self.stored_count
        return f"SendManyResult(count={self.count}, stored={self.stored_count}, failed={failed})"

    def __len__(self) -> int:
        return self.count

    @property
    def stored_count(self) -> int:
        """How many messages are stored."""
        return sum(len(part.rows) for part in self.stored)

    @property
    def rest(self) -> pa.Table:
        """The messages that are not known to be stored, to be given to ``send_many`` again.

        Of the columns they were given with, and ``msgId``: a message that is stored twice then, its
        outcome having been UNKNOWN, has the same id both times. Messages of a key keep their order.
        """
        import pyarrow as pa

        rest = sorted(self._rest, key=lambda each: each[0])
        if not rest:
            return pa.table({"body": pa.array([], pa.binary())})
        # Messages that were never made ready have no id yet: a null, for which one is made.
        parts = [pa.Table.from_batches([part]) for _, part in rest]
        return pa.concat_tables(parts, promote_options="default")

    def table(self) -> pa.Table:
        """Return a row for each message, in the order they were given.

        Columns: ``brokerName``, ``queueId``, ``queueOffset`` and ``status`` of one that is stored;
        ``outcome`` and ``error`` of another.
        """
        import numpy as np
        import pyarrow as pa

        parts: list[StoredPart | FailedPart] = [*self.stored, *self.failed]
        rows = np.concatenate([np.asarray(part.rows) for part in parts] or [np.zeros(0, int)])
        sizes = [len(part.rows) for part in parts]
        codes = np.repeat(np.arange(len(parts)), sizes)
        found = [part if isinstance(part, StoredPart) else None for part in parts]
        starts = [-1 if part is None else part.queue_offset for part in found]
        steps = np.concatenate([np.arange(size) for size in sizes] or [np.zeros(0, int)])
        offsets = np.repeat(np.array(starts, np.int64), sizes) + steps
        failed = np.repeat(np.array([part is None for part in found], bool), sizes)
        errors = [part.error if isinstance(part, FailedPart) else None for part in parts]
        order = pa.array(np.argsort(rows, kind="stable"))

        def each(values: list[Any], kind: pa.DataType) -> pa.Array:
            return pa.array(values, kind).take(pa.array(codes)).take(order)

        return pa.table(
            {
                "brokerName": each([r and r.message_queue.broker_name for r in found], pa.string()),
                "queueId": each([r and r.message_queue.queue_id for r in found], pa.int32()),
                "queueOffset": pa.array(offsets, mask=failed).take(order),
                "status": each([r and r.send_status.name for r in found], pa.string()),
                "outcome": each([e and e.outcome.name for e in errors], pa.string()),
                "error": each([e and str(e) for e in errors], pa.string()),
            }
        )


@dataclass(slots=True)
class _Request:
    """One request: some rows of a block.

    ``doubt`` is why an earlier try may have stored them, whatever became of the later ones.
    """

    prepared: PreparedSend
    queue: MessageQueue | None
    rows: Sequence[int]
    places: Sequence[int]
    ids: pa.Array
    batch: pa.RecordBatch
    tries_left: int
    doubt: SendError | None = None


def given_of(bodies: Any, **more: Any) -> Given:
    """Return what was given as columns; raises as ``Given``.

    Raises:
        NotSupportedError: pyarrow or numpy is missing.
    """
    check_columns("send_many")
    from rocketstream.columns.given import Given

    return Given(bodies, more)


class Encoding:
    """Turns what was given into runs of messages; for the caller's thread.

    Args:
        topic: as servers know it.
        queues: its queues; those that keys and numbers choose from.
        columns: where each column is.
        settings: those of the producer.
        clock: gives ids their time.
    """

    def __init__(
        self,
        topic: str,
        queues: Sequence[MessageQueue],
        columns: dict[str, int],
        settings: ProducerSettings,
        clock: Clock,
    ) -> None:
        from rocketstream.columns.messages import Encoder, Rules, new_ids
        from rocketstream.columns.values import Words

        words = Words("", "setting max_message_size", "rename it")
        rules = Rules(columns, settings.max_message_size, RESERVED_PROPERTIES, words)
        generator = unique_ids()
        self._topic = topic
        self._queues = queues
        self._told = False
        self._encoder = Encoder(
            rules, lambda count: new_ids(generator, count, clock.now_ms), self._beyond
        )

    def skip(self, batch: pa.RecordBatch) -> int:
        """Return the number of a batch's first row, none of which is to be sent."""
        first = self._encoder.rows
        self._encoder.rows += len(batch)
        return first

    def runs(self, batch: pa.RecordBatch) -> tuple[int, list[Run]]:
        """Return the number of a batch's first row, and its messages by destination.

        Raises:
            MessageInvalidError: a row cannot be a message; none of the batch may be sent.
        """
        from rocketstream.columns.messages import runs

        first = self._encoder.rows
        block = self._encoder.block(batch)
        return first, list(runs(block, self._topic, lambda _: self._queues, queue_of_key))

    def _beyond(self, level: int) -> None:
        if not self._told:
            self._told = True
            logger.warning("column delayLevel: %s", beyond_levels(level))


class ManySends:
    """The requests of one ``send_many``; on the loop, but for ``encode``.

    Args:
        sender: sends each.
        preparer: makes requests of batches.
        topic: as servers know it.
        timeout_ms: of each request, all its tries together.
        clock: gives messages their time.
        require_timers: sees to it that brokers of a topic, or of a queue, hold timed messages back.
    """

    def __init__(
        self,
        sender: AsyncSender,
        preparer: MessagePreparer,
        topic: str,
        timeout_ms: float,
        clock: Clock,
        require_timers: Callable[[str, MessageQueue | None], Awaitable[None]],
    ) -> None:
        self._sender = sender
        self._preparer = preparer
        self._topic = topic
        self._timeout_ms = timeout_ms
        self._clock = clock
        self._require_timers = require_timers
        self._waiting: deque[_Request] = deque()
        self._flying: dict[int, _Request] = {}
        self._busy: set[MessageQueue] = set()
        self._changed: asyncio.Future[None] | None = None
        self._is_stopped = False
        self._unmade: Iterator[_Request] = iter(())
        self._landed: Callable[[], None] | None = None
        self.result: SendManyResult = SendManyResult()

    @property
    def has_failed(self) -> bool:
        """Whether messages failed, so that no more are to be sent."""
        return bool(self.result.failed)

    @property
    def is_over(self) -> bool:
        """Whether no more are to be sent: messages failed, or the producer is shut down."""
        return self._is_stopped or self.has_failed

    def stop(self) -> None:
        """Send no batch more: the producer is shut down."""
        self._is_stopped = True

    def cut_off(self) -> None:
        """Note what the end of the loop left open; by the caller's thread, the loop's has ended."""
        self._is_stopped = True
        while self._flying:
            _, request = self._flying.popitem()
            text = "the producer was shut down before the broker answered"
            error = SendError(text, SendOutcome.UNKNOWN, topic=self._topic)
            self._failed(request, request.doubt or error)
        self._give_up()

    def leave(self, landed: Callable[[], None]) -> None:
        """Send no more, since nobody waits; call ``landed`` once nothing is on its way."""
        self._waiting.clear()
        if self._flying:
            self._landed = landed
        else:
            landed()

    async def put(self, first: int, batch: pa.RecordBatch, runs: Sequence[Run]) -> None:
        """Send a batch's messages; returns when the last of them are on their way, or failed.

        Args:
            first: the number of its first row.
            batch: as it was given.
            runs: its messages.

        Raises:
            MessageInvalidError: brokers would deliver a timed message at once; none of the batch is
                sent, and ``parameters["sent"]`` tells of those before.
        """
        try:
            for run in runs:
                if run.delayed and run.block.timed:
                    await self._require_timers(self._topic, run.queue)
        except RocketMQError as error:
            await self.finish()
            error.parameters["sent"] = self.result
            raise
        self.result.count = first + len(batch)
        requests = (request for run in runs for request in self._requests(first, batch, run))
        try:
            for request in requests:
                self._waiting.append(request)
                self._go()
                while len(self._waiting) >= limits.SEND_MANY_WAITING_MAX:
                    await self._change()
        except asyncio.CancelledError:  # the loop ends, or nobody waits any more
            self._unmade = requests
            raise

    def refuse(self, first: int, batch: pa.RecordBatch) -> None:
        """Note a batch of which nothing is sent, since nothing more is to be."""
        self.result.count = first + len(batch)
        error = self._not_sent()
        self.result.failed.append(FailedPart(range(first, first + len(batch)), error))
        self.result._rest.append((first, batch))

    async def finish(self) -> None:
        """Wait until each message is stored or failed."""
        while self._waiting or self._flying:
            await self._change()

    # --- inside -----------------------------------------------------------------------------------

    def _requests(self, first: int, batch: pa.RecordBatch, run: Run) -> Iterator[_Request]:
        from rocketstream.columns.messages import cut

        block = run.block
        most = 1 if run.delayed else limits.SEND_MANY_MESSAGES
        # A send to a queue of its own has one try (C-469); one to any queue has them by itself.
        settings = self._sender.policy.settings
        again = 0 if run.queue is None else settings.retry_times_when_send_failed
        for begin, end in cut(block.ends, limits.SEND_MANY_BYTES, most):
            places: Sequence[int] = range(begin, end)
            rows: Sequence[int] = range(first + begin, first + end)
            if block.rows is not None:
                places = block.rows[begin:end]
                rows = first + block.rows[begin:end]
            prepared = self._prepared(block, begin, end)
            ids = block.ids.slice(begin, end - begin)
            yield _Request(prepared, run.queue, rows, places, ids, batch, again)

    def _prepared(self, block: Block, begin: int, end: int) -> PreparedSend:
        now = self._clock.now_ms()
        body, properties, flag, code = block.request(begin, end)
        prepared = self._preparer.encoded(self._topic, body, properties, now, flag, code)
        observer = self._sender.observer
        if observer is not None and observer.is_on:
            messages = [_message(self._topic, *block.one(row)) for row in range(begin, end)]
            prepared.message = messages[0] if len(messages) == 1 else messages
            prepared.msg_id = ",".join(map(str, block.ids[begin:end].to_pylist()))
        return prepared

    def _go(self) -> None:
        """Send what may go now."""
        if self.has_failed:
            self._give_up()
        held: deque[_Request] = deque()
        while self._waiting and len(self._flying) < limits.SEND_MANY_REQUESTS:
            request = self._waiting.popleft()
            if request.queue in self._busy:
                held.append(request)
                continue
            if request.queue is not None:
                self._busy.add(request.queue)
            self._flying[id(request)] = request
            self._send(request)
        self._waiting.extendleft(reversed(held))

    def _send(self, request: _Request) -> None:
        target = ANY_QUEUE if request.queue is None else SendTarget(queue=request.queue)
        done = partial(self._done, request)
        self._sender.send(request.prepared, target, self._timeout_ms, done)

    def _done(self, request: _Request, result: SendResult | None, error: SendError | None) -> None:
        if error is not None and error.outcome is SendOutcome.UNKNOWN:
            request.doubt = error
        if error is None or not error.retriable or not request.tries_left or self.has_failed:
            self._ended(request, result, error)
            return
        request.tries_left -= 1
        self._sender.instance.background.run_soon(
            self._again(request), partial(self._ended, request, None, error)
        )

    def _ended(self, request: _Request, result: SendResult | None, error: SendError | None) -> None:
        self._flying.pop(id(request), None)
        if request.queue is not None:
            self._busy.discard(request.queue)
        if result is not None:
            queue, offset = result.message_queue, result.queue_offset
            part = StoredPart(request.rows, queue, offset, result.send_status)
            self.result.stored.append(part)
        else:
            assert error is not None
            self._failed(request, request.doubt or error)
        if self._changed is not None and not self._changed.done():
            self._changed.set_result(None)
        if self._landed is not None and not self._flying:
            self._landed()

    async def _again(self, request: _Request) -> None:
        await self._sender.route(request.prepared.topic)
        self._send(request)

    def _failed(self, request: _Request, error: SendError) -> None:
        import pyarrow as pa

        self.result.failed.append(FailedPart(request.rows, error))
        part = request.batch.take(pa.array(request.places, pa.int64()))
        names = part.schema.names
        if "msgId" in names:
            part = part.set_column(names.index("msgId"), "msgId", request.ids)
        else:
            part = part.append_column("msgId", request.ids)
        self.result._rest.append((int(request.rows[0]), part))

    def _give_up(self) -> None:
        while self._waiting:
            self._failed(self._waiting.popleft(), self._not_sent())
        for request in self._unmade:
            self._failed(request, self._not_sent())

    def _not_sent(self) -> SendError:
        text = f"not sent: {'messages before it failed' if self.has_failed else _SHUT_DOWN}"
        return SendError(text, SendOutcome.NOT_SENT, topic=self._topic)

    async def _change(self) -> None:
        """Wait until a request has ended, and send what may go then."""
        if self._flying:
            self._changed = asyncio.get_running_loop().create_future()
            await self._changed
            self._changed = None
        self._go()


class Many:
    """One ``send_many``, step by step; both faces do the same steps.

    Args:
        topic: as the user knows it.
        given: the messages.
        encoding: makes them what is sent.
        sends: sends them.
    """

    def __init__(self, topic: str, given: Given, encoding: Encoding, sends: ManySends) -> None:
        self._topic = topic
        self._given = given
        self._encoding = encoding
        self._sends = sends

    def steps(self) -> Iterator[Coroutine[Any, Any, None]]:
        """Yield what is to be awaited on the loop, one after the other; iterated by the caller.

        Raises:
            MessageInvalidError: a row cannot be a message; ``parameters["sent"]`` tells of those
                before it, all of them stored or failed by then.
            Exception: of the reader that was given, as it is, once those before are stored.
        """
        sends, encoding = self._sends, self._encoding
        try:
            for batch in self._given.batches():
                if not sends.is_over:
                    first, runs = encoding.runs(batch)
                    yield sends.put(first, batch, runs)
                    if sends.result.count == first and len(batch):
                        sends.refuse(first, batch)  # the loop had ended before
                    continue
                sends.refuse(encoding.skip(batch), batch)
                if self._given.streams and self._given.is_between:
                    break
        except Exception as error:
            yield sends.finish()
            if isinstance(error, RocketMQError):
                error.parameters["sent"] = sends.result
            else:
                error.add_note(f"of the messages read before: {sends.result!r}")
            raise
        yield sends.finish()

    def stop(self) -> None:
        """Begin no batch more: the producer is shut down."""
        self._sends.stop()

    def leave(self, landed: Callable[[], None]) -> None:
        """Send no more, since nobody waits; call ``landed`` once nothing is on its way."""
        self._sends.leave(landed)

    def cut_off(self) -> None:
        """Account for what the end of the loop, which is over, left open."""
        self._sends.cut_off()

    def result(self) -> SendManyResult:
        """Return what became of the messages.

        Raises:
            SendManyError: some are not known to be stored.
        """
        result = self._sends.result
        if result.failed:
            raise _unsent(result, self._topic)
        return result


def _message(topic: str, body: bytes, properties: str, flag: int) -> Message:
    """Return a message as observers of sends are shown it."""
    found = Message(topic, body, flag=flag)
    found.properties.update(decode_properties(properties))
    return found


def _unsent(result: SendManyResult, topic: str) -> SendManyError:
    """Return the error of a ``send_many`` that did not store every message."""
    outcomes = [part.error.outcome for part in result.failed]
    worst = max(outcomes, key=_DOUBT.index)
    failed = result.count - result.stored_count
    first = result.failed[0].error
    return SendManyError(
        f"{failed} of {result.count} messages for topic {topic!r} are not known to be stored: "
        f"{first}. The error's result tells of each, and result.rest are those to send again",
        worst,
        result=result,
        topic=topic,
    )


_SHUT_DOWN: Final = "the producer was shut down"
_DOUBT = [SendOutcome.NOT_SENT, SendOutcome.REJECTED, SendOutcome.UNKNOWN]
