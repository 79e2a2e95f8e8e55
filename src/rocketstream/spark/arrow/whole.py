"""Checks of answers against their requests: rows of the right queue, none missing, none damaged.

Pure: records in, an error or a report out. Both ways of ``decode`` use these checks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import numpy as np

from rocketstream.errors import NotSupportedError, RemoteProtocolError
from rocketstream.model import MessageQueue
from rocketstream.protocol.codes import MessageSysFlag
from rocketstream.protocol.crc import crc32
from rocketstream.protocol.message_ext import MessageExt
from rocketstream.protocol.record import body_crc
from rocketstream.spark.arrow.layout import WRAPPED, Array, Layout, Piece
from rocketstream.spark.losses import described

CRC_MASK: Final = 0x7FFFFFFF


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
