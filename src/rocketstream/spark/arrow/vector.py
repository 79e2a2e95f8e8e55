"""Columns of many records at once, built with numpy and Arrow.

Pure: one method per kind of column over one layout; the plain loop of ``decode`` gives the same
rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rocketstream.errors import RemoteProtocolError
from rocketstream.model import MessageQueue
from rocketstream.protocol.record import unpack_host
from rocketstream.spark.arrow.bodies import inflate_body
from rocketstream.spark.arrow.gather import gather
from rocketstream.spark.arrow.layout import Array, Layout, Piece
from rocketstream.spark.arrow.properties import Properties, table_of
from rocketstream.spark.arrow.schema import TIMESTAMP
from rocketstream.spark.columns import ERROR

TIMESTAMP_MS_MAX: Final = (2**63 - 1) // 1000
_COMPRESSED: Final = 1


class VectorColumns:
    """Makes Arrow columns of the records of one layout.

    Args:
        layout: where the records are.
        pieces: the pulls they came from.
        body_bytes_max: after this many inflated bytes a new run of bodies begins.
    """

    def __init__(self, layout: Layout, pieces: Sequence[Piece], body_bytes_max: int) -> None:
        self._layout = layout
        self._pieces = pieces
        self._body_bytes_max = body_bytes_max
        self._properties: Properties | None = None

    def column(self, name: str) -> Any:
        """Return one column by name, except ``body``."""
        maker = _MAKERS.get(name)
        if maker is not None:
            return maker(self)
        return pa.array(self._layout.fields[name])

    def topic(self) -> Any:
        """Topic as stored."""
        layout = self._layout
        size = int(layout.topic_size[0])
        if (layout.topic_size == size).all():
            texts = layout.packed(layout.topic, size) if size else None
            if texts is None or (texts == texts[0]).all():
                return _repeated(b"" if texts is None else texts[0].tobytes(), len(layout))
        binary = gather(layout.bytes, layout.topic, layout.topic_size)
        try:
            return binary.cast(pa.string())
        except pa.ArrowInvalid as error:
            raise RemoteProtocolError(f"topic of a message is not UTF-8: {error}") from None

    def broker_name(self) -> Any:
        """The broker each record was pulled from."""
        names = [piece.queue.broker_name for piece in self._pieces]
        if len(set(names)) == 1:
            return pa.repeat(pa.scalar(names[0], pa.string()), len(self._layout))
        return pa.array(names, pa.string()).take(pa.array(self._layout.piece))

    def timestamp(self, name: str) -> Any:
        """Return a time in Spark's microseconds."""
        millis = np.clip(self._layout.fields[name], -TIMESTAMP_MS_MAX, TIMESTAMP_MS_MAX)
        return pa.Array.from_buffers(TIMESTAMP, len(millis), [None, pa.py_buffer(millis * 1000)])

    def host(self, at: Array, wide: Array) -> Any:
        """Return packed hosts as ``ip:port``; few differ, so each is formatted once."""
        layout = self._layout
        if wide.any():
            raw = layout.bytes
            sizes = np.where(wide, 20, 8)
            packed = [
                raw[start : start + size].tobytes()
                for start, size in zip(at.tolist(), sizes.tolist(), strict=True)
            ]
            texts = {host: _host_text(host) for host in set(packed)}
            return pa.array([texts[host] for host in packed], pa.string())
        numbers = layout.number(at)
        if (numbers == numbers[0]).all():
            return _repeated(_host_text(int(numbers[0]).to_bytes(8, "big")).encode(), len(layout))
        distinct, which = np.unique(numbers, return_inverse=True)
        names = [_host_text(number.to_bytes(8, "big")) for number in distinct.tolist()]
        return pa.array(names, pa.string()).take(pa.array(which))

    def properties(self) -> Properties:
        """All properties, split once."""
        if self._properties is None:
            self._properties = table_of(self._layout)
        return self._properties

    def message_id(self) -> Any:
        """The sender's id, or the broker's where the sender set none."""
        given = self.properties().value_column("UNIQ_KEY")
        if not given.null_count:
            return given
        layout = self._layout
        missing = np.flatnonzero(given.is_null().to_numpy(zero_copy_only=False))
        made: list[str | None] = [None] * len(layout)
        for row in missing.tolist():
            start = int(layout.store_host[row])
            host = layout.bytes[start : start + (20 if layout.wide_store[row] else 8)].tobytes()
            offset = int(layout.fields["commitLogOffset"][row]) & 0xFFFFFFFFFFFFFFFF
            made[row] = f"{host.hex().upper()}{offset:016X}"
        return pc.coalesce(given, pa.array(made, pa.string()))

    def bodies(self) -> Iterator[tuple[slice, Any]]:
        """Yield runs of rows with their bodies, a new run whenever inflating has made enough."""
        layout = self._layout
        packed = (layout.fields["sysFlag"] & _COMPRESSED) != 0
        if not packed.any():
            yield slice(0, len(layout)), gather(layout.bytes, layout.body, layout.body_size)
            return
        first, inflated, total = 0, [], 0
        for row in np.flatnonzero(packed).tolist():
            inflated.append(self._inflate(row))
            total += len(inflated[-1])
            if total >= self._body_bytes_max:
                yield self._run(first, row + 1, packed, inflated)
                first, inflated, total = row + 1, [], 0
        if first < len(layout):
            yield self._run(first, len(layout), packed, inflated)

    def place(self, row: int) -> tuple[MessageQueue, int]:
        """Return the queue and offset of a record."""
        layout = self._layout
        return self._pieces[int(layout.piece[row])].queue, int(layout.fields["queueOffset"][row])

    def _inflate(self, row: int) -> bytes:
        start = int(self._layout.body[row])
        stored = self._layout.bytes[start : start + int(self._layout.body_size[row])].tobytes()
        return inflate_body(stored, int(self._layout.fields["sysFlag"][row]), *self.place(row))

    def _run(
        self, first: int, last: int, packed: Array, inflated: Sequence[bytes]
    ) -> tuple[slice, Any]:
        rows = slice(first, last)
        starts = self._layout.body[rows].copy()
        sizes = self._layout.body_size[rows].copy()
        moved = packed[rows]
        lengths = np.fromiter((len(body) for body in inflated), np.int64, len(inflated))
        sizes[moved] = lengths
        starts[moved] = np.cumsum(lengths) - lengths
        extra = b"".join(inflated)
        return rows, gather(self._layout.bytes, starts, sizes, extra, moved)


def _host_text(packed: bytes) -> str:
    host, port = unpack_host(packed)
    return f"{host}:{port}"


def _repeated(text: bytes, count: int) -> Any:
    try:
        return pa.repeat(pa.scalar(text.decode(), pa.string()), count)
    except UnicodeDecodeError as error:
        raise RemoteProtocolError(f"topic of a message is not UTF-8: {error}") from None


_MAKERS: Final[dict[str, Callable[[VectorColumns], Any]]] = {
    "topic": VectorColumns.topic,
    "brokerName": VectorColumns.broker_name,
    "bornTimestamp": lambda c: c.timestamp("bornTimestamp"),
    "storeTimestamp": lambda c: c.timestamp("storeTimestamp"),
    "bornHost": lambda c: c.host(c._layout.born_host, c._layout.wide_born),
    "storeHost": lambda c: c.host(c._layout.store_host, c._layout.wide_store),
    "properties": lambda c: c.properties().map_column(),
    "tags": lambda c: c.properties().value_column("TAGS"),
    "keys": lambda c: c.properties().value_column("KEYS"),
    "msgId": VectorColumns.message_id,
    ERROR: lambda c: pa.nulls(len(c._layout), pa.string()),
}
