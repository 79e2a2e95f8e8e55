"""Pure: what a lite pull consumer lends, as record batches with the columns of a read by Spark.

Records that were kept as the broker sent them are decoded by ``columns`` at once; messages of
answers that had to be looked into, or went through a hook, are laid into columns one by one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING

import pyarrow as pa

from rocketstream.client.consumer.pull_answer import Records
from rocketstream.columns.arrays import arrow_schema, plain_batches
from rocketstream.columns.decode import BATCH_BODY_BYTES_MAX, decode, decode_permissive
from rocketstream.columns.layout import Piece
from rocketstream.columns.records import Checks, inflate_body
from rocketstream.columns.table import ERROR, Column
from rocketstream.columns.undecodable import Undecodable
from rocketstream.errors import NotSupportedError, RemoteProtocolError
from rocketstream.model import MessageQueue
from rocketstream.protocol.message_ext import MessageExt

if TYPE_CHECKING:
    from rocketstream.client.consumer.lite.queues import Lent


class Doubtful(Exception):  # noqa: N818, it is an order to look into it
    """Records of a queue are missing: its answers must be looked into."""

    def __init__(self, queue: MessageQueue) -> None:
        self.queue = queue


class Batches:
    """The record batches of what is lent, in order, made one at a time.

    Usually there is one; more where bodies, inflated, would make it too large; none where only
    tags looked alike.

    Args:
        lent: messages, or records of which the same is to be expected; not empty.
        columns: the columns wanted; with ``error`` a record that cannot be decoded is a row.
        check_crc: whether bodies are compared with their CRCs.

    Attributes:
        lent: as given.
        columns: as given.
        is_done: whether no further batch comes.
    """

    def __init__(self, lent: Sequence[Lent], columns: Sequence[Column], check_crc: bool) -> None:
        self.lent = lent
        self.columns = columns
        self.is_done: bool = False
        self._check_crc = check_crc
        self._made = self._make()
        self._ahead: pa.RecordBatch | None = None
        self._failure: Exception | None = None

    @property
    def counts(self) -> bool:
        """Whether all that is lent is still the caller's to have."""
        return all(part.counts for part in self.lent)

    def read(self) -> pa.RecordBatch | None:
        """Return the next batch; None where there is none.

        Raises:
            Doubtful: records of a queue are missing.
            RemoteProtocolError: a record cannot be decoded, and ``error`` is not wanted.
            NotSupportedError: likewise, of a codec that is not installed.
        """
        if self._failure is not None:
            raise self._failure
        batch = next(self._made, None) if self._ahead is None else self._ahead
        try:
            # Looked for now: once its last batch is handed out, what is lent is the caller's.
            self._ahead = None if batch is None else next(self._made, None)
        except (Doubtful, RemoteProtocolError, NotSupportedError) as failure:
            self._failure = failure
        self.is_done = self._ahead is None and self._failure is None
        return batch

    def _make(self) -> Iterator[pa.RecordBatch]:
        permissive = any(column.name == ERROR for column in self.columns)
        found = [part.found for part in self.lent]
        if isinstance(records := found[0], Records):
            way = decode_permissive if permissive else decode
            gap = _missing if records.complete else None
            pieces = [_piece(part) for part in self.lent]
            return way(pieces, self.columns, records.tags or None, Checks(gap, self._check_crc))
        rows = list(chain.from_iterable(each for each in found if isinstance(each, list)))
        return _of_messages(rows, self.columns, permissive=permissive)


def _piece(part: Lent) -> Piece:
    found = part.found
    assert isinstance(found, Records)
    return Piece(part.queue.message_queue, found.first, found.last + 1, found.body)


def _missing(queue: MessageQueue, begin: int, end: int) -> None:
    raise Doubtful(queue)


def _of_messages(
    messages: Sequence[MessageExt], columns: Sequence[Column], *, permissive: bool
) -> Iterator[pa.RecordBatch]:
    rows: Sequence[MessageExt | Undecodable] = messages
    if permissive and any(column.name == "body" for column in columns):
        rows = [_row(message) for message in messages]
    yield from plain_batches(rows, columns, None, BATCH_BODY_BYTES_MAX)


def _row(message: MessageExt) -> MessageExt | Undecodable:
    """A message, or where its body cannot be inflated the row that says so."""
    mq, offset = message.message_queue, message.queue_offset
    try:
        inflate_body(message.stored_body, message.sys_flag, mq, offset)
    except (RemoteProtocolError, NotSupportedError) as error:
        return Undecodable(mq, offset, error.message, message.stored_record, message)
    return message


def nothing(columns: Sequence[Column]) -> pa.RecordBatch:
    """Return a batch without rows."""
    schema = arrow_schema(columns)
    return pa.RecordBatch.from_arrays([pa.array([], kind) for kind in schema.types], schema=schema)
