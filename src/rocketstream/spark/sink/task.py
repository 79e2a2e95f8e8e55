"""A task of a write: record batches in, acknowledged messages out.

``messages``, ``lanes`` and ``sending`` are joined here.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from rocketstream._util.clock import SYSTEM_CLOCK, Clock
from rocketstream.client.config import unique_ids
from rocketstream.client.producer.settings import ProducerSettings
from rocketstream.model import PROPERTY_WAIT
from rocketstream.protocol.codes import RequestCode
from rocketstream.protocol.sends import PreparedSend
from rocketstream.spark.options import WriteOptions
from rocketstream.spark.sink.identity import Identity, new_ids
from rocketstream.spark.sink.lanes import Run, cut, runs
from rocketstream.spark.sink.messages import Encoder, Rules, load
from rocketstream.spark.sink.routes import Routes
from rocketstream.spark.sink.sending import Sender
from rocketstream.spark.worker import pool, prepare

if TYPE_CHECKING:
    import pyarrow as pa

_BATCH_PROPERTIES: Final = f"{PROPERTY_WAIT}\x01true"


@dataclass(frozen=True, slots=True)
class Sink:
    """A write as it travels to the executors.

    Attributes:
        options: the user's options.
        columns: where each of our columns is in a row.
        write_id: the id of a batch write; a streaming query has its own id.
    """

    options: WriteOptions
    columns: dict[str, int]
    write_id: str


def write_partition(sink: Sink, batches: Iterable[pa.RecordBatch], identity: Identity) -> int:
    """Send the rows of one partition; return how many, all of them acknowledged.

    Blocks on the network; failures that may pass are retried for ``retryTimeoutMs``.

    Raises:
        MessageInvalidError: a row cannot become a message; nothing of its record batch was sent.
        SendError: messages are not acknowledged.
        RouteNotFoundError, ConfigurationError: a topic cannot be written to.
    """
    load()  # done before the heap is frozen: later garbage is collected after every task
    prepare()
    return write_rows(sink, batches, identity)


def write_rows(
    sink: Sink,
    batches: Iterable[pa.RecordBatch],
    identity: Identity,
    clock: Clock = SYSTEM_CLOCK,
) -> int:
    """Send rows and wait for the acknowledgements; raises as ``write_partition`` does."""
    options = sink.options
    generator = unique_ids()
    rules = Rules(sink.columns, options.max_message_size, options.drop_reserved)
    encoder = Encoder(rules, identity, lambda count: new_ids(generator, count, clock.now_ms))
    first_queue = identity.partition + identity.batch_id
    with (
        Routes(options, clock) as routes,
        Sender(options, pool(options), routes, first_queue, clock) as sender,
    ):
        outgoing = _OutgoingBatch(options, sender, routes, clock)
        for batch in batches:
            block = encoder.block(batch)
            # All runs first: a row with a queue that does not exist must stop the other rows too.
            for run in list(runs(block, options.topic, routes.queues)):
                outgoing.send(run, timed=block.timed and run.delayed)
        sender.finish()
        return sender.acknowledged


class _OutgoingBatch:
    """Puts messages into requests."""

    def __init__(self, options: WriteOptions, sender: Sender, routes: Routes, clock: Clock) -> None:
        self._options = options
        self._sender = sender
        self._routes = routes
        self._clock = clock
        self._requests = ProducerSettings(
            options.producer_group,
            default_topic_queue_nums=options.default_topic_queue_nums,
            max_message_size=options.max_message_size,
        ).requests()

    def send(self, run: Run, *, timed: bool) -> None:
        """Send messages with the same destination."""
        if timed:
            queues = [run.queue] if run.queue else self._routes.queues(run.topic)
            self._routes.require_timers(run.topic, queues)
        count_max = 1 if run.delayed else self._options.send_batch_size
        for begin, end in cut(run.block.ends, self._options.send_batch_bytes, count_max):
            request = self._one(run, begin) if end - begin == 1 else self._batch(run, begin, end)
            self._sender.send(request, run.queue, end - begin)

    def _one(self, run: Run, row: int) -> PreparedSend:
        body, properties, flag = run.block.one(row)
        properties = f"{_BATCH_PROPERTIES}\x02{properties}"
        return self._request(run, body, properties, flag, RequestCode.SEND_MESSAGE_V2)

    def _batch(self, run: Run, begin: int, end: int) -> PreparedSend:
        body = run.block.batch(begin, end)
        return self._request(run, body, _BATCH_PROPERTIES, 0, RequestCode.SEND_BATCH_MESSAGE)

    def _request(
        self, run: Run, body: bytes | memoryview, properties: str, flag: int, code: RequestCode
    ) -> PreparedSend:
        now = self._clock.now_ms()
        return PreparedSend(self._requests, run.topic, body, properties, "", now, flag, code=code)
