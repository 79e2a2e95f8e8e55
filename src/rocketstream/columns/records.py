"""Stored records one by one: are they whole and the ones asked for, which messages do they hold.

Pure: records in; out come their bodies, inflated with the codec of their producer, the messages of
the batches a 5.x broker stores as one record, an error or a report. Both ways of ``decode`` use the
checks.

pyarrow knows LZ4 and Zstandard and is always installed, so they need no extra; the codecs of
``protocol.compression`` are used where a pyarrow was built without them.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from rocketstream import limits
from rocketstream.columns.layout import WRAPPED, Array, Layout, Piece, too_early
from rocketstream.columns.table import described
from rocketstream.errors import NotSupportedError, RemoteProtocolError
from rocketstream.model import MessageQueue
from rocketstream.protocol.codes import MessageSysFlag
from rocketstream.protocol.compression import decompress
from rocketstream.protocol.crc import crc32
from rocketstream.protocol.message_ext import MessageExt, decode_messages
from rocketstream.protocol.record import (
    HEADS,
    HOSTS_MASK,
    SYS_FLAG_AT,
    BatchItem,
    body_crc,
    decode_batch,
)

CRC_MASK: Final = 0x7FFFFFFF
BODY_BYTES_MAX: Final = limits.DECOMPRESSED_BODY_BYTES_MAX
_READ_BYTES: Final = 1024 * 1024

_CODECS: Final = {
    MessageSysFlag.COMPRESSION_LZ4: "lz4",
    MessageSysFlag.COMPRESSION_ZSTD: "zstd",
}
INNER_MESSAGES_MAX: Final = 32_767
"""Most messages of one record: a broker's queue counts them in 16 bits."""
INNER_NUM: Final = "INNER_NUM"
"""The property with the number of messages, which is also how many offsets the record takes."""
GROUP_BYTES: Final = 2 * 1024 * 1024
"""Unwrapped records are yielded in groups of this size, because a batch may be compressed."""

_OF_PACKING: Final = WRAPPED | MessageSysFlag.COMPRESSED | MessageSysFlag.COMPRESSION_MASK
_START: Final = struct.Struct(">iIiiiq")
_SYS_FLAG: Final = struct.Struct(">i")
_LENGTH: Final = struct.Struct(">i")
_SHORT: Final = struct.Struct(">H")


class Checks(NamedTuple):
    """The checks of an answer beyond the shape of its records.

    Attributes:
        gap: called with the offsets ``begin`` to ``end`` that a piece does not hold; None where
            gaps are normal, as with a filter.
        body_crc: whether bodies that are read must match their CRC.
    """

    gap: Callable[[MessageQueue, int, int], None] | None = None
    body_crc: bool = False


NO_CHECKS: Final = Checks()


def check_layout(layout: Layout, pieces: Sequence[Piece], checks: Checks, bodies: bool) -> None:
    """Check the records of a layout.

    Raises:
        RemoteProtocolError: a record is of another queue or topic, or a body is damaged.
        NotSupportedError: several messages are stored as one record that cannot be unwrapped.
    """
    _check_queues(layout, pieces)
    _check_topics(layout, pieces)
    batched = (layout.fields["sysFlag"] & WRAPPED) == MessageSysFlag.INNER_BATCH
    if batched.any():
        raise inner_batch(*_place(layout, pieces, batched))
    if bodies and checks.body_crc:
        actual = _crcs(layout)
        wrong = actual != layout.fields["crc"]
        if wrong.any():
            row = int(np.flatnonzero(wrong)[0])
            queue, offset = _place(layout, pieces, wrong)
            raise damaged(queue, offset, int(actual[row]), int(layout.fields["crc"][row]))
    if checks.gap is not None:
        counts = np.bincount(layout.piece, minlength=len(pieces)).tolist()
        for index, (piece, count) in enumerate(zip(pieces, counts, strict=True)):
            if count != piece.end - piece.begin:
                offsets = layout.fields["queueOffset"][layout.piece == index]
                report_gaps(piece, offsets.tolist(), checks.gap)


def check_messages(
    piece: Piece, messages: Sequence[MessageExt], checks: Checks, bodies: bool
) -> None:
    """Check the messages of one piece; raises as ``check_layout`` does."""
    queue = piece.queue
    for message in messages:
        offset = message.queue_offset
        if message.queue_id != queue.queue_id:
            raise _stranger(queue, offset, f"queue {message.queue_id}")
        if message.topic != queue.topic:
            raise _stranger(queue, offset, f"topic {message.topic!r}")
        if message.sys_flag & WRAPPED == MessageSysFlag.INNER_BATCH:
            raise inner_batch(queue, offset)
        if bodies and checks.body_crc:
            actual = body_crc(message.stored_body)
            if actual != message.body_crc:
                raise damaged(queue, offset, actual, message.body_crc)
    if checks.gap is not None and len(messages) != piece.end - piece.begin:
        report_gaps(piece, [message.queue_offset for message in messages], checks.gap)


def report_gaps(
    piece: Piece, offsets: Sequence[int], gap: Callable[[MessageQueue, int, int], None]
) -> None:
    """Report every run of offsets of a piece that is not among ``offsets``, which ascend."""
    expected = piece.begin
    for offset in (*offsets, piece.end):
        if offset > expected:
            gap(piece.queue, expected, offset)
        expected = offset + 1


def damaged(queue: MessageQueue, offset: int, actual: int, stored: int) -> RemoteProtocolError:
    """Return the error for a body that does not match its CRC."""
    return RemoteProtocolError(
        f"the body at offset {offset} of {described(queue)} is damaged: its CRC is {actual}, "
        f"stored is {stored}. Read it from another copy of the broker's data, or set option "
        "checkBodyCrc=false to take it as it is",
        queue=tuple(queue),
        offset=offset,
    )


def inner_batch(queue: MessageQueue, offset: int) -> NotSupportedError:
    """Return the error for a batch stored as one record without a description of its form."""
    return NotSupportedError(
        f"the record at offset {offset} of {described(queue)} is marked as a batch stored as one "
        "(sysFlag 0x80), but not as one its reader takes apart (0x40), so it cannot be taken "
        "apart",
        queue=tuple(queue),
        offset=offset,
    )


def _check_queues(layout: Layout, pieces: Sequence[Piece]) -> None:
    wanted = np.array([piece.queue.queue_id for piece in pieces], np.int64)[layout.piece]
    strange = layout.fields["queueId"] != wanted
    if strange.any():
        row = int(np.flatnonzero(strange)[0])
        what = f"queue {int(layout.fields['queueId'][row])}"
        raise _stranger(*_place(layout, pieces, strange), what)


def _check_topics(layout: Layout, pieces: Sequence[Piece]) -> None:
    by_topic: dict[str, list[int]] = {}
    for index, piece in enumerate(pieces):
        by_topic.setdefault(piece.queue.topic, []).append(index)
    for topic, indexes in by_topic.items():
        rows = np.arange(len(layout))
        if len(by_topic) > 1:
            rows = np.flatnonzero(np.isin(layout.piece, indexes))
        expected = topic.encode()
        strange = layout.topic_size[rows] != len(expected)
        if not strange.any() and len(rows):
            texts = layout.packed(layout.topic[rows], len(expected))
            strange = (texts != np.frombuffer(expected, np.uint8)).any(axis=1)
        if strange.any():
            row = int(rows[np.flatnonzero(strange)[0]])
            start, size = int(layout.topic[row]), int(layout.topic_size[row])
            found = layout.bytes[start : start + size].tobytes().decode("utf-8", "replace")
            piece = pieces[int(layout.piece[row])]
            offset = int(layout.fields["queueOffset"][row])
            raise _stranger(piece.queue, offset, f"topic {found!r}")


def _crcs(layout: Layout) -> Array:
    raw = memoryview(layout.bytes)
    starts = layout.body.tolist()
    ends = (layout.body + layout.body_size).tolist()
    found = [crc32(raw[start:end]) for start, end in zip(starts, ends, strict=True)]
    return np.array(found, np.int64) & CRC_MASK


def _place(layout: Layout, pieces: Sequence[Piece], which: Array) -> tuple[MessageQueue, int]:
    row = int(np.flatnonzero(which)[0])
    return pieces[int(layout.piece[row])].queue, int(layout.fields["queueOffset"][row])


def _stranger(queue: MessageQueue, offset: int, what: str) -> RemoteProtocolError:
    return RemoteProtocolError(
        f"a pull of {described(queue)} was answered with a message of {what} at offset {offset}; "
        "the broker's queue files are damaged, or the peer is not a RocketMQ broker",
        queue=tuple(queue),
        offset=offset,
    )


# --- bodies ---------------------------------------------------------------------------------------


def inflate_body(stored: bytes, sys_flag: int, queue: MessageQueue, offset: int) -> bytes:
    """Return the body of a message; unchanged if it is not compressed.

    Args:
        stored: the body as the broker keeps it.
        sys_flag: flags of the message, which name the codec.
        queue: where the message stands, for errors.
        offset: likewise.

    Raises:
        RemoteProtocolError: the body is damaged, of an unknown type, or larger than
            ``BODY_BYTES_MAX`` inflated.
        NotSupportedError: no installed package knows the codec.
    """
    if not sys_flag & MessageSysFlag.COMPRESSED:
        return stored
    codec = _CODECS.get(sys_flag & MessageSysFlag.COMPRESSION_MASK, "")
    try:
        if codec and pa.Codec.is_available(codec):
            return _inflate(stored, codec)
        return decompress(stored, sys_flag, bytes_max=BODY_BYTES_MAX)
    except (RemoteProtocolError, NotSupportedError) as error:
        with_codec = f" with {codec}" if codec else ""
        raise type(error)(
            f"the body at offset {offset} of {described(queue)} cannot be inflated{with_codec}: "
            f"{error.message}",
            queue=tuple(queue),
            offset=offset,
        ) from error


def _inflate(stored: bytes, codec: str) -> bytes:
    # Frames of streaming producers do not state their size, so it is not asked for.
    parts: list[bytes] = []
    size = 0
    try:
        with pa.CompressedInputStream(pa.BufferReader(stored), codec) as stream:
            while part := stream.read(_READ_BYTES):
                parts.append(part)
                size += len(part)
                if size > BODY_BYTES_MAX:
                    raise RemoteProtocolError(f"it makes more than {BODY_BYTES_MAX} bytes")
    except OSError as error:
        raise RemoteProtocolError(f"{codec} data is damaged: {error}") from None
    if not stored:
        raise RemoteProtocolError(f"{codec} data is cut short")
    return parts[0] if len(parts) == 1 else b"".join(parts)


# --- batches stored as one record -----------------------------------------------------------------


def is_wrapped(sys_flag: int) -> bool:
    """Return whether a record holds several messages that its reader has to take apart."""
    return sys_flag & WRAPPED == WRAPPED


def unwrapped(pieces: Sequence[Piece], body_crc_checked: bool) -> Iterator[list[Piece]]:
    """Yield the pieces again, in groups of some megabytes, without wrapped records.

    Message i of a record has the record's offset plus i; properties, flag and body are the
    message's own and the rest is the record's; flags for the packing are removed. Offsets outside a
    piece are left out: an answer begins with the record that holds the offset asked for.

    Raises:
        RemoteProtocolError: a record is damaged, or does not hold the declared messages.
        NotSupportedError: a record is compressed by a codec that is not installed.
    """
    group: list[Piece] = []
    size = 0
    for piece in pieces:
        parts: list[bytes] = []
        begin = piece.begin
        for message in decode_messages(piece.body, piece.queue.broker_name):
            for record in unwrap_record(message, piece, body_crc_checked):
                parts.append(record)
                size += len(record)
                if size >= GROUP_BYTES:
                    end = _START.unpack_from(record)[5] + 1
                    group.append(Piece(piece.queue, begin, end, b"".join(parts)))
                    yield group
                    group, parts, size, begin = [], [], 0, end
        if parts or begin < piece.end:
            group.append(Piece(piece.queue, begin, piece.end, b"".join(parts)))
    if group:
        yield group


def unwrap_record(message: MessageExt, piece: Piece, body_crc_checked: bool) -> Iterator[bytes]:
    """Yield the records of one message's batch that lie in ``piece``; the message's own record if
    it is not a batch. Raises as ``unwrapped`` does.
    """
    if not is_wrapped(message.sys_flag):
        yield message.stored_record
        return
    queue = piece.queue
    check_messages(piece, [message], NO_CHECKS, False)
    base, stored = message.queue_offset, message.stored_body
    if body_crc_checked and (actual := body_crc(stored)) != message.body_crc:
        raise damaged(queue, base, actual, message.body_crc)
    items = _items(message, piece, inflate_body(stored, message.sys_flag, queue, base))
    if base + len(items) <= piece.begin:
        raise too_early(piece, base)
    whole = message.stored_record
    head_bytes = HEADS[message.sys_flag & HOSTS_MASK].size
    head = bytearray(whole[: head_bytes - _LENGTH.size])
    _SYS_FLAG.pack_into(head, SYS_FLAG_AT, message.sys_flag & ~_OF_PACKING)
    properties_at = len(whole) - len(message.properties_bytes)
    topic = whole[head_bytes + len(stored) : properties_at - _SHORT.size]
    _, magic, _, queue_id, _, _ = _START.unpack_from(whole)
    for place, item in enumerate(items):
        if not piece.begin <= base + place < piece.end:
            continue
        size = head_bytes + len(item.body) + len(topic) + _SHORT.size + len(item.properties)
        crc = body_crc(item.body)
        _START.pack_into(head, 0, size, magic, crc, queue_id, item.flag, base + place)
        text = item.properties
        tail = (_LENGTH.pack(len(item.body)), item.body, topic, _SHORT.pack(len(text)), text)
        yield b"".join((head, *tail))


def _items(message: MessageExt, piece: Piece, body: bytes) -> list[BatchItem]:
    offset = message.queue_offset
    try:
        items = decode_batch(body, messages_max=INNER_MESSAGES_MAX)
    except RemoteProtocolError as error:
        raise _unusable(piece, offset, error.message) from None
    if not items:
        raise _unusable(piece, offset, "it holds no message")
    told = message.properties.get(INNER_NUM)
    if told is not None and told != str(len(items)):
        raise _unusable(piece, offset, f"it holds {len(items)} messages and says {told:.20}")
    return items


def _unusable(piece: Piece, offset: int, why: str) -> RemoteProtocolError:
    return RemoteProtocolError(
        f"the batch stored as one record at offset {offset} of {described(piece.queue)} cannot be "
        f"taken apart: {why}",
        queue=tuple(piece.queue),
        offset=offset,
    )
