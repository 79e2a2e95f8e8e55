"""A task's read: ranges pulled from their brokers, and decoded some megabytes at a time.

Each broker is asked over one connection, several pulls under way; ``pulling`` decides which pull
comes next.

Law: every offset is accounted for. Pulling and decoding, which are joined here, know nothing of
each other.
"""

from __future__ import annotations

import logging
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Final

from rocketstream._util.clock import SYSTEM_CLOCK, Clock
from rocketstream.columns.decode import decode, decode_permissive
from rocketstream.columns.layout import Piece
from rocketstream.columns.records import Checks
from rocketstream.columns.table import described
from rocketstream.columns.undecodable import Undecodable
from rocketstream.errors import (
    BrokerError,
    DataLossError,
    RemoteProtocolError,
    RocketMQError,
    TransportError,
    broker_error,
)
from rocketstream.model import MessageQueue
from rocketstream.protocol.codes import PullSysFlag, RequestCode, ResponseCode
from rocketstream.protocol.command import RemotingCommand
from rocketstream.protocol.headers import PullMessageRequestHeader, PullMessageResponseHeader
from rocketstream.protocol.subscription import EXPRESSION_SQL92, EXPRESSION_TAG
from rocketstream.spark.connections import admin_client
from rocketstream.spark.executor.queue_pull import Ask, QueuePull
from rocketstream.spark.losses import KeptAside, Losses
from rocketstream.spark.patience import Patience
from rocketstream.spark.scan import PartitionPlan, QueueRange, Scan
from rocketstream.spark.worker import pool, prepare
from rocketstream.transport.blocking_connection import BlockingConnection
from rocketstream.transport.blocking_pool import BlockingPool

if TYPE_CHECKING:
    import pyarrow as pa


logger: logging.Logger = logging.getLogger("rocketstream.spark")

FILTERED_STRIDE_MAX: Final = 4_096
"""With tags one answer skips 800 and more offsets (C-368), however few messages it contains."""
KEPT_PER_FLIGHT: Final = 2
"""Most answers of later ranges that wait for earlier ones, per pull that may be under way."""

_ANSWERED = frozenset(
    {
        ResponseCode.SUCCESS,
        ResponseCode.PULL_NOT_FOUND,
        ResponseCode.PULL_RETRY_IMMEDIATELY,
        ResponseCode.PULL_OFFSET_MOVED,
    }
)
_MAY_PASS = frozenset(
    {ResponseCode.SYSTEM_BUSY, ResponseCode.SERVICE_NOT_AVAILABLE, ResponseCode.SYSTEM_ERROR}
)
_NO_SQL: Final = "does not support consumer to filter message"
_SYSTEM_ERRORS_MAX: Final = 5


@dataclass(slots=True)
class _Trouble:
    """The failures of one queue; forgotten as soon as the queue makes progress."""

    end_patience: Patience
    system_errors: int = 0


def fetch(
    scan: Scan, plan: PartitionPlan, losses: Losses, clock: Clock = SYSTEM_CLOCK
) -> Generator[Piece, None, None]:
    """Yield all pieces of a partition's ranges, queue after queue, in ascending offsets.

    The order is that of the plan, not that of the answers: a repeated attempt of a task gives every
    row the same place, by which the messages a query sends on are identified. Blocks on the
    network; failures that may pass are retried for ``retryTimeoutMs``.

    Raises:
        DataLossError: offsets no longer exist and ``failOnDataLoss`` is set.
        TransportError, BrokerError: the broker did not answer, or refused.
    """
    by_broker = sorted(plan.spans, key=lambda span: span.queue.broker_name)
    for broker_name, spans in groupby(by_broker, key=lambda span: span.queue.broker_name):
        address = plan.addresses[broker_name]
        source = BrokerFetch(scan, list(spans), address, pool(scan.options), losses, clock)
        yield from source.pieces()


class BrokerFetch:
    """Pulls ranges of one broker's queues.

    Args:
        scan: the read to ask for.
        spans: the ranges, all of one broker.
        address: the broker's address when the partition was planned.
        connections: the pool to borrow a connection from.
        losses: gets the offsets that cannot be read.
        clock: bounds retries.
    """

    def __init__(
        self,
        scan: Scan,
        spans: Sequence[QueueRange],
        address: str,
        connections: BlockingPool,
        losses: Losses,
        clock: Clock,
    ) -> None:
        self._scan = scan
        options = scan.options
        self._filtered = scan.filtered
        stride_max = FILTERED_STRIDE_MAX if self._filtered else options.pull_batch_size
        self._pulls = [QueuePull(span, stride_max) for span in spans]
        self._address = address
        self._is_master = False
        self._connections = connections
        self._losses = losses
        self._waiting: dict[int, tuple[QueuePull, Ask]] = {}
        self._patience = Patience(options.retry_timeout_ms, clock)
        self._clock = clock
        self._troubles: dict[QueuePull, _Trouble] = {}

    def pieces(self) -> Iterator[Piece]:
        """Yield the results of the pulls, in the order of the ranges."""
        while self._pulls:
            try:
                with self._connections.connection(self._address) as connection:
                    yield from self._pull_all(connection)
            except TransportError as error:
                self._give_back_all()
                self._retry(error)
                self._find_broker()

    def _pull_all(self, connection: BlockingConnection) -> Iterator[Piece]:
        timeout_ms = self._scan.options.request_timeout_ms
        address = self._address
        while address == self._address:
            self._ask(connection)
            if not self._waiting:
                return
            answer = connection.receive(timeout_ms)
            pull, ask = self._waiting.pop(answer.opaque)
            self._take(pull, ask, answer)
            yield from self._next_in_order()
        self._give_back_all()

    def _next_in_order(self) -> Iterator[Piece]:
        while self._pulls:
            first = self._pulls[0]
            for part in first.take():
                if part.body:
                    yield Piece(first.span.queue, part.begin, part.end, part.body)
            if not first.done:
                return
            del self._pulls[0]

    def _ask(self, connection: BlockingConnection) -> None:
        """Fill the pipeline, earlier ranges first; the answers that wait are bounded."""
        in_flight = self._scan.options.pulls_in_flight
        room = in_flight - len(self._waiting)
        kept = sum(pull.parts_waiting for pull in self._pulls[1:])
        for number, pull in enumerate(self._pulls):
            if number == 1:
                room = min(room, KEPT_PER_FLIGHT * in_flight - kept)
            while room > 0 and (ask := pull.next_ask()) is not None:
                try:
                    opaque = connection.submit(self._request(pull.span.queue, ask))
                except TransportError:
                    pull.failed(ask)
                    raise
                self._waiting[opaque] = (pull, ask)
                room -= 1

    def _request(self, queue: MessageQueue, ask: Ask) -> RemotingCommand:
        scan = self._scan
        header = PullMessageRequestHeader(
            consumer_group=scan.group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            queue_offset=ask.begin,
            max_msg_nums=min(ask.end - ask.begin, scan.options.pull_batch_size),
            sys_flag=PullSysFlag.SUBSCRIPTION,
            commit_offset=0,
            suspend_timeout_millis=0,
            sub_version=0,
            subscription=scan.options.tags if scan.options.sql is None else scan.options.sql,
            expression_type=EXPRESSION_TAG if scan.options.sql is None else EXPRESSION_SQL92,
            bname=queue.broker_name,
        )
        return RemotingCommand.request(RequestCode.PULL_MESSAGE, header)

    def _take(self, pull: QueuePull, ask: Ask, answer: RemotingCommand) -> None:
        code = answer.code
        if code not in _ANSWERED:
            pull.failed(ask)
            self._refused(pull, broker_error(code, answer.remark, self._address))
            return
        header = answer.header(PullMessageResponseHeader)
        next_offset = header.next_begin_offset
        self._patience.succeeded()
        if code == ResponseCode.SUCCESS:
            if next_offset <= ask.begin:
                raise RemoteProtocolError(
                    f"{self._address} answered a pull of {pull.span.queue} from {ask.begin} "
                    f"with next offset {next_offset}"
                )
            end = pull.answered(ask, next_offset, answer.body)
            if not answer.body and not self._filtered:
                self._losses.missing(pull.span.queue, ask.begin, end)
        elif next_offset > ask.begin:
            end = pull.answered(ask, next_offset)
            if not (self._filtered and answer.remark == "NO_MATCHED_MESSAGE"):
                self._gone(pull, ask.begin, end, header)
        else:
            self._not_there(pull, ask, header)
            return
        self._troubles.pop(pull, None)

    def _trouble(self, pull: QueuePull) -> _Trouble:
        """Return the failures of a queue since it last made progress."""
        fresh = _Trouble(Patience(self._scan.options.retry_timeout_ms, self._clock))
        return self._troubles.setdefault(pull, fresh)

    def _not_there(self, pull: QueuePull, ask: Ask, header: PullMessageResponseHeader) -> None:
        """Wait for offsets the driver saw: a slave is behind its master, a broker just coming back.

        Raises:
            DataLossError: they did not come, and ``failOnDataLoss`` is set; or whoever was asked is
                not known to be the master, or says that it has them.
        """
        patience = self._trouble(pull).end_patience
        is_over, asked = patience.exhausted(), self._address
        if not is_over:
            patience.pause()
        self._find_broker()
        if not is_over or asked != self._address:
            pull.failed(ask)
        elif self._is_master and header.max_offset <= ask.begin:
            self._gone(pull, ask.begin, pull.answered(ask, ask.end), header)
        else:
            queue = pull.span.queue
            whom = "the master" if self._is_master else "which may be a slave behind its master"
            raise DataLossError(
                f"{described(queue)}: offsets {ask.begin} to {pull.span.end - 1} were planned, but "
                f"did not come within {self._scan.options.retry_timeout_ms} ms from {asked}, "
                f"{whom}; it holds {header.min_offset} to {header.max_offset - 1}. Start the query "
                f"again when the master of broker {queue.broker_name!r} gives them: "
                "failOnDataLoss=false leaves out only what a master does not hold",
                queue=tuple(queue),
            )

    def _gone(
        self, pull: QueuePull, begin: int, end: int, header: PullMessageResponseHeader
    ) -> None:
        self._losses.gone(pull.span.queue, begin, end, (header.min_offset, header.max_offset))

    def _refused(self, pull: QueuePull, error: BrokerError) -> None:
        if error.code not in _MAY_PASS:
            raise error
        if self._scan.options.sql is not None and _NO_SQL in error.remark:
            hint = "option 'sql' needs enablePropertyFilter=true in its configuration"
            raise BrokerError(error.code, f"{error.remark}; {hint}", error.address)
        if error.code == ResponseCode.SYSTEM_ERROR:
            # This is also the code of requests that can never succeed, such as a queue id out of
            # range.
            trouble = self._trouble(pull)
            trouble.system_errors += 1
            if trouble.system_errors > _SYSTEM_ERRORS_MAX:
                raise error
        self._retry(error)

    def _retry(self, error: RocketMQError) -> None:
        if self._patience.exhausted():
            raise error
        logger.info("retrying address=%s error=%s", self._address, error)
        self._patience.pause()

    def _give_back_all(self) -> None:
        for pull, ask in self._waiting.values():
            pull.failed(ask)
        self._waiting.clear()

    def _find_broker(self) -> None:
        """Ask the name server for the broker's address now; keep the old one if it cannot say."""
        options = self._scan.options
        broker_name = self._pulls[0].span.queue.broker_name
        self._is_master = False
        try:
            with admin_client(options) as client:
                self._address = client.address(broker_name, refresh=True)
                self._is_master = self._address == client.master(broker_name)
        except RocketMQError as error:
            logger.info("broker=%s cannot be looked up: %s", broker_name, error)


BATCH_BYTES: int = 4 * 1024 * 1024
"""How many pulled bytes are decoded into one record batch. Spark is fastest between 1 and 4 MB; a
task takes 8% less processor time with 4 than with 2, because each batch costs half a
millisecond.
"""


def read_partition(scan: Scan, planned: PartitionPlan | None) -> Iterator[pa.RecordBatch]:
    """Yield the rows of one partition as record batches."""
    if planned is None:  # Spark passes this where there is no partition
        return
    prepare()
    yield from read_rows(scan, planned)


def read_rows(
    scan: Scan, planned: PartitionPlan, clock: Clock = SYSTEM_CLOCK
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a plan as record batches, every offset accounted for."""
    losses = Losses(scan.options.fail_on_data_loss)
    checks = Checks(None if scan.filtered else losses.missing, body_crc=scan.options.check_body_crc)
    made = partial(_decode, scan, checks, KeptAside())
    pieces, size = [], 0
    for piece in fetch(scan, planned, losses, clock):
        pieces.append(piece)
        size += len(piece.body)
        if size >= BATCH_BYTES:
            yield from made(pieces)
            pieces, size = [], 0
    if pieces:
        yield from made(pieces)


def _decode(
    scan: Scan, checks: Checks, aside: KeptAside, pieces: Sequence[Piece]
) -> Iterator[pa.RecordBatch]:
    if not scan.options.permissive:
        return decode(pieces, scan.columns, scan.tags, checks)

    def tell(row: Undecodable) -> None:
        aside.add(row.message_queue, row.queue_offset, row.error)

    return decode_permissive(pieces, scan.columns, scan.tags, checks, tell)
