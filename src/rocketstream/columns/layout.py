"""The layout of many stored records at once: positions and header fields as arrays.

Pure: numpy over one padded buffer, and slices of it as Arrow arrays, copied in C++.

Law: every length is checked before anything is sliced; the only error for malformed bytes is
RemoteProtocolError.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from rocketstream.columns.table import described
from rocketstream.errors import RemoteProtocolError
from rocketstream.model import MessageQueue
from rocketstream.protocol.codes import MessageSysFlag
from rocketstream.protocol.record import MAGIC_V1, MAGIC_V2, RECORD_BYTES_MIN

PAD: Final = 128
"""Padding after the last record, so that reading a fixed part never leaves the buffer."""

RECORD_START: Final = (
    ("size", ">i4"),
    ("magic", ">u4"),
    ("crc", ">i4"),
    ("queueId", ">i4"),
    ("flag", ">i4"),
    ("queueOffset", ">i8"),
    ("commitLogOffset", ">i8"),
)
"""The fields every record begins with, up to its position in the log."""
_FIRST = np.dtype([*RECORD_START, ("sysFlag", ">i4"), ("bornTimestamp", ">i8")])
_LAST = np.dtype([("reconsumeTimes", ">i4"), ("prepared", ">i8"), ("bodySize", ">i4")])
WRAPPED: Final = MessageSysFlag.INNER_BATCH | MessageSysFlag.NEED_UNWRAP
"""The flags of a record that holds several messages, which its reader has to take apart."""
_RUN_MIN: Final = 64
_BORN_HOST_AT: Final = _FIRST.itemsize
_INLINE_BYTES: Final = 12
_unpack_int = struct.Struct(">i").unpack_from

Array = Any  # numpy and pyarrow arrays: precise types for them are not worth the effort here


class Piece(NamedTuple):
    """The answer of one pull of a queue: consecutive records, wanted from ``begin`` to ``end``."""

    queue: MessageQueue
    begin: int
    end: int
    body: bytes | memoryview


class Layout:
    """Where the wanted records of several pieces are, and their fixed fields.

    Attributes:
        bytes: the pieces joined and padded, as an array of bytes.
        piece: index of the piece each record came from.
        wrapped: whether a record holds several messages; these must be unwrapped first.
        fields: fixed fields by column name, native byte order.
        born_host, store_host: positions of the packed hosts; ``wide_born``, ``wide_store`` tell
            which of them are IPv6.
        body, body_size, topic, topic_size, properties, properties_size: positions and lengths.
    """

    def __init__(self, pieces: Sequence[Piece]) -> None:
        joined = bytearray().join([*(piece.body for piece in pieces), bytes(PAD)])
        self.bytes: Array = np.frombuffer(joined, np.uint8)
        at, piece = _positions(joined, pieces)
        first = self._read(_FIRST, at)
        offsets = first["queueOffset"].astype(np.int64)
        wrapped = (first["sysFlag"] & WRAPPED) == WRAPPED
        self.wrapped: bool = bool(wrapped.any())
        wanted = _wanted(offsets, piece, pieces, wrapped)
        if not wanted.all():
            at, piece, first = at[wanted], piece[wanted], first[wanted]
        self.piece: Array = piece
        self.fields: dict[str, Array] = {
            name: first[name].astype(first[name].dtype.newbyteorder("="))
            for name in _FIRST.names or ()
        }
        self._locate(at)

    def __len__(self) -> int:
        return len(self.piece)

    def _read(self, kind: Array, at: Array) -> Array:
        return spread(self.bytes, kind.itemsize)[at].view(kind)

    def _locate(self, at: Array) -> None:
        fields = self.fields
        end = at + fields["size"]
        self.wide_born: Array = (fields["sysFlag"] & 0x10) != 0
        self.wide_store: Array = (fields["sysFlag"] & 0x20) != 0
        self.born_host: Array = at + _BORN_HOST_AT
        stored = self.born_host + 8 + 12 * self.wide_born
        fields["storeTimestamp"] = self._read(np.dtype(">i8"), stored).astype(np.int64)
        self.store_host: Array = stored + 8
        last_at = self.store_host + 8 + 12 * self.wide_store
        last = self._read(_LAST, last_at)
        fields["reconsumeTimes"] = last["reconsumeTimes"].astype(np.int32)
        self.body: Array = last_at + _LAST.itemsize
        self.body_size: Array = last["bodySize"].astype(np.int64)
        topic_at = self.body + self.body_size
        _refuse((self.body_size < 0) | (topic_at + 3 > end), at, "body passes the record's end")
        narrow = fields["magic"] == MAGIC_V1
        self._locate_topic(at, topic_at, narrow)
        length_at = self.topic + self.topic_size
        _refuse(length_at + 2 > end, at, "topic passes the record's end")
        self.properties: Array = length_at + 2
        self.properties_size: Array = self._read(np.dtype(">u2"), length_at).astype(np.int64)
        _refuse(self.properties + self.properties_size != end, at, "lengths do not sum to its size")

    def _locate_topic(self, at: Array, topic_at: Array, narrow: Array) -> None:
        if narrow.all():
            self.topic: Array = topic_at + 1
            self.topic_size: Array = self.bytes[topic_at].astype(np.int64)
            return
        _refuse(~narrow & (self.fields["magic"] != MAGIC_V2), at, "its magic is unknown")
        wide = self._read(np.dtype(">i2"), topic_at).astype(np.int64)
        self.topic = topic_at + np.where(narrow, 1, 2)
        self.topic_size = np.where(narrow, self.bytes[topic_at], wide)
        _refuse(self.topic_size < 0, at, "its topic length is negative")

    def packed(self, at: Array, size: int) -> Array:
        """Return ``size`` bytes at each position, one row per record."""
        return spread(self.bytes, size)[at].view(np.uint8).reshape(len(at), size)

    def number(self, at: Array) -> Array:
        """Return eight bytes at each position as one number."""
        return self._read(np.dtype(">u8"), at)


def spread(raw: Array, size: int) -> Array:
    """Return ``size`` bytes from each position of ``raw`` on, without copying.

    Indexed with positions it gathers; as plain bytes that is ten times faster than as a structure.
    """
    return np.ndarray((len(raw) - size + 1,), f"V{size}", raw, strides=(1,))


def gather(raw: Array, starts: Array, sizes: Array, extra: bytes = b"", moved: Any = None) -> Any:
    """Return ``raw[start : start + size]`` for every pair, as a binary array.

    pyarrow 19 is needed, whose view types can be built from buffers.

    Args:
        raw: bytes, with at least 12 more after the last slice.
        starts: positions, below 2 GiB.
        sizes: lengths.
        extra: a second buffer, for slices that are not in ``raw``.
        moved: which slices are in ``extra`` (a boolean array); None if none is.
    """
    views = np.zeros((len(starts), 4), np.int32)
    views[:, 0] = sizes
    views[:, 3] = starts
    buffers = [None, pa.py_buffer(views), pa.py_buffer(raw)]
    _inline(views, raw, starts, sizes, slice(None) if moved is None else ~moved)
    if moved is not None:
        views[moved, 2] = 1
        padded = np.frombuffer(extra + bytes(_INLINE_BYTES), np.uint8)
        _inline(views, padded, starts, sizes, moved)
        buffers.append(pa.py_buffer(padded))
    return pa.Array.from_buffers(pa.binary_view(), len(starts), buffers).cast(pa.binary())


def _inline(views: Array, raw: Array, starts: Array, sizes: Array, chosen: Any) -> None:
    """Put slices of up to 12 bytes into their view, where Arrow expects them."""
    small = np.zeros(len(starts), bool)
    small[chosen] = sizes[chosen] <= _INLINE_BYTES
    if not small.any():
        return
    span = np.arange(_INLINE_BYTES)
    data = raw[starts[small][:, None] + span] * (span < sizes[small][:, None])
    views.view(np.uint8).reshape(-1, 16)[small, 4:] = data


def count_records(body: bytes | memoryview, enough: int) -> int:
    """Return how many records a reply holds, counting no further than ``enough``."""
    at, count, size = 0, 0, len(body)
    while count < enough and size - at >= RECORD_BYTES_MIN:
        (step,) = _unpack_int(body, at)
        if step < RECORD_BYTES_MIN:
            break
        at += step
        count += 1
    return count


def _positions(joined: bytearray, pieces: Sequence[Piece]) -> tuple[Array, Array]:
    at: list[int] = []
    counts: list[int] = []
    position, before_size, look_at = 0, 0, 0
    append, unpack = at.append, _unpack_int
    for piece in pieces:
        before, end = len(at), position + len(piece.body)
        while position < end:
            (size,) = unpack(joined, position)
            if size < RECORD_BYTES_MIN or position + size > end:
                raise RemoteProtocolError(
                    f"a record of {size} bytes with {end - position} bytes left, "
                    f"in a reply of queue {piece.queue}"
                )
            if size == before_size and len(at) >= look_at:
                run = _run(joined, position, end, size)
                at.extend(range(position, position + run * size, size))
                position += run * size
                if run < _RUN_MIN:
                    look_at = len(at) + 4 * _RUN_MIN
                continue
            append(position)
            position += size
            before_size = size
        counts.append(len(at) - before)
    index = np.repeat(np.arange(len(pieces), dtype=np.int32), counts)
    return np.array(at, np.int64), index


def _run(joined: bytearray, position: int, end: int, size: int) -> int:
    """Return how many records of one size follow each other from a position on, at least 1.

    Compares all at once, because messages of one program are often of one size. The comparison
    costs as much as forty steps of the loop, so after finding few the caller should not try again
    soon.
    """
    count = (end - position) // size
    if count < _RUN_MIN:
        return 1
    other = np.ndarray((count,), ">i4", joined, position, (size,)) != size
    return int(other.argmax()) if other.any() else count


def _wanted(offsets: Array, piece: Array, pieces: Sequence[Piece], wrapped: Array) -> Array:
    """Return which records lie in their piece's range, refusing offsets not asked for or not
    ascending; a wrapped record may begin before its piece.
    """
    begins = np.array([p.begin for p in pieces], np.int64)[piece]
    ends = np.array([p.end for p in pieces], np.int64)[piece]
    if len(offsets) > 1:
        backwards = (offsets[1:] <= offsets[:-1]) & (piece[1:] == piece[:-1])
        if backwards.any():
            bad = int(np.flatnonzero(backwards)[0]) + 1
            raise disordered(pieces[int(piece[bad])], int(offsets[bad]))
    early = (offsets < begins) & ~wrapped
    if early.any():
        bad = int(np.flatnonzero(early)[0])
        raise too_early(pieces[int(piece[bad])], int(offsets[bad]))
    return offsets < ends


def disordered(piece: Piece, offset: int) -> RemoteProtocolError:
    """Return the error for a reply whose queue offsets do not ascend."""
    return RemoteProtocolError(
        f"offset {offset} of queue {piece.queue} came again or out of order in one reply"
    )


def too_early(piece: Piece, offset: int) -> RemoteProtocolError:
    """Return the error for a reply with an offset before the one asked for."""
    return RemoteProtocolError(
        f"a pull of {described(piece.queue)}, asked from offset {piece.begin}, "
        f"answered offset {offset}",
        queue=tuple(piece.queue),
        offset=offset,
    )


def _refuse(wrong: Array, at: Array, reason: str) -> None:
    if wrong.any():
        raise RemoteProtocolError(
            f"the record at {int(at[int(np.flatnonzero(wrong)[0])])} is malformed: {reason}"
        )
