"""The records of an answer that cannot be decoded, separated one by one from those that can.

Pure, and slow, because it runs only over answers with an error.

Law: no record is left out or taken for another one; every offset of the answer keeps its row.
"""

from __future__ import annotations

import bisect
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Final

from rocketstream.columns.layout import Piece
from rocketstream.columns.records import (
    INNER_MESSAGES_MAX,
    INNER_NUM,
    NO_CHECKS,
    Checks,
    check_messages,
    inflate_body,
    is_wrapped,
    report_gaps,
    unwrap_record,
)
from rocketstream.columns.table import TABLE
from rocketstream.errors import NotSupportedError, RemoteProtocolError
from rocketstream.model import MessageQueue
from rocketstream.protocol.message_ext import MessageExt, decode_messages
from rocketstream.protocol.record import (
    HEADS,
    HOSTS_MASK,
    MAGIC_V1,
    MAGIC_V2,
    RECORD_BYTES_MIN,
    SYS_FLAG_AT,
)

_HEAD: Final = struct.Struct(">iIiiiq")
_INT: Final = struct.Struct(">i")
_TAIL_BYTES_MIN: Final = 3
"""After a body: the lengths of topic and properties."""
_MAGIC_BYTES: Final = tuple(magic.to_bytes(4, "big") for magic in (MAGIC_V1, MAGIC_V2))
_ERRORS: Final = (RemoteProtocolError, NotSupportedError)


class Undecodable:
    """A record that cannot be decoded, in place of its message.

    It has the attributes of a ``MessageExt`` that columns are made of; unknown values are None.

    Attributes:
        error: why, in words.
        stored_body: the whole record as the broker sent it; for a batch that cannot be taken apart
            the first message has the record and the others have None.
    """

    offset_msg_id: str | None
    properties_bytes: bytes | None

    def __init__(
        self,
        queue: MessageQueue,
        offset: int | None,
        error: str,
        record: bytes | None,
        head: MessageExt | None = None,
    ) -> None:
        for source in TABLE.values():
            if source.attribute is not None:
                setattr(self, source.attribute, getattr(head, source.attribute, None))
        self.offset_msg_id = getattr(head, "offset_msg_id", None)
        self.properties_bytes = getattr(head, "properties_bytes", None)
        self.message_queue = queue
        self.topic: str = queue.topic
        self.broker_name: str = queue.broker_name
        self.queue_id: int = queue.queue_id
        self.queue_offset = offset
        self.error = error
        self.stored_body = record


def sifted(piece: Piece, checks: Checks, bodies: bool) -> list[MessageExt | Undecodable]:
    """Return the messages of a piece, with ``Undecodable`` for those that cannot be decoded.

    Args:
        piece: an answer; only offsets in its range are returned.
        checks: what to check of the records; gaps are reported as by ``check_messages``.
        bodies: whether bodies are wanted; a message whose body cannot be inflated is then
            undecodable.

    Raises:
        DataLossError: offsets are missing, and ``checks.gap`` raises it.
    """
    found = [find for span in _spans(piece) for find in _finds(piece, span, checks)]
    finds = _in_order(found, piece.begin)
    rows: list[MessageExt | Undecodable] = []
    for find in _placed(finds, piece, checks.gap is not None):
        rows += _rows(find, piece, checks, bodies)
    if checks.gap is not None:
        offsets = [row.queue_offset for row in rows if row.queue_offset is not None]
        if len(offsets) != piece.end - piece.begin:
            report_gaps(piece, offsets, checks.gap)
    return rows


# --- where records begin and end ------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Span:
    """Bytes of one record; perhaps of several where lengths contradict each other."""

    raw: bytes
    adds_up: bool = True
    searched: bool = False


def _spans(piece: Piece) -> Iterator[_Span]:
    """Cut an answer into records, searching for the next one where a length makes no sense."""
    raw = bytes(piece.body)
    at = 0
    while at < len(raw):
        size = _size(raw, at)
        end = at + size
        adds_up = size > 0 and _adds_up(raw, at, size)
        searched = not (size and (adds_up or end == len(raw) or _may_begin(raw, end, piece)))
        if searched:
            end = _next_record(raw, at + 1, piece)
        yield _Span(raw[at:end], adds_up, searched)
        at = end


def _size(raw: bytes, at: int) -> int:
    """Return the size a record states for itself, 0 if it cannot be right."""
    if len(raw) - at < RECORD_BYTES_MIN:
        return 0
    (size,) = _INT.unpack_from(raw, at)
    return size if RECORD_BYTES_MIN <= size <= len(raw) - at else 0


def _adds_up(raw: bytes, at: int, size: int) -> bool:
    """Return whether the lengths in a record add up to its size; reads only the lengths, however
    long it claims to be.
    """
    (sys_flag,) = _INT.unpack_from(raw, at + SYS_FLAG_AT)
    head_bytes: int = HEADS[sys_flag & HOSTS_MASK].size
    end = at + size
    if at + head_bytes + _TAIL_BYTES_MIN > end:
        return False
    (body_bytes,) = _INT.unpack_from(raw, at + head_bytes - _INT.size)
    topic_at: int = at + head_bytes + body_bytes
    if body_bytes < 0 or topic_at + _TAIL_BYTES_MIN > end:
        return False
    _, magic, _, _, _, _ = _HEAD.unpack_from(raw, at)
    wide = magic == MAGIC_V2
    topic_bytes = 2 + int.from_bytes(raw[topic_at : topic_at + 2]) if wide else 1 + raw[topic_at]
    properties_at = topic_at + topic_bytes + 2
    if properties_at > end:
        return False
    return properties_at + int.from_bytes(raw[properties_at - 2 : properties_at]) == end


def _may_begin(raw: bytes, at: int, piece: Piece) -> bool:
    """Return whether a record, perhaps a damaged one, seems to begin here."""
    if not _size(raw, at):
        return False
    _, magic, _, queue_id, _, _ = _HEAD.unpack_from(raw, at)
    return magic in (MAGIC_V1, MAGIC_V2) or queue_id == piece.queue.queue_id


def _begins(raw: bytes, at: int, piece: Piece) -> bool:
    """Return whether a record of the piece's queue begins here, in the middle of other bytes."""
    if not _size(raw, at):
        return False
    _, magic, _, queue_id, _, _ = _HEAD.unpack_from(raw, at)
    return magic in (MAGIC_V1, MAGIC_V2) and queue_id == piece.queue.queue_id


def _next_record(raw: bytes, at: int, piece: Piece) -> int:
    nearest = len(raw)
    for magic in _MAGIC_BYTES:
        found = raw.find(magic, at + 4, nearest + 4)
        while found >= 0:
            if _begins(raw, found - 4, piece):
                nearest = found - 4
                break
            found = raw.find(magic, found + 1, nearest + 4)
    return nearest


# --- contents -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Find:
    """The content of one span: a message with its offset, or bytes that still need an offset.

    Attributes:
        raw: the bytes.
        message: the message, None if its shape is wrong.
        error: the damage, empty without one.
        offset: its queue offset; None if that is not known.
        count: how many offsets it takes.
        vague: whether there may be more records in it than one.
    """

    raw: bytes
    message: MessageExt | None
    error: str = ""
    offset: int | None = None
    count: int = 1
    vague: bool = False


def _finds(piece: Piece, span: _Span, checks: Checks) -> Iterator[_Find]:
    try:
        if span.searched:
            raise RemoteProtocolError("its length makes no sense")
        (message,) = decode_messages(span.raw, piece.queue.broker_name)
        check_messages(piece, [message], NO_CHECKS, False)
    except _ERRORS as error:
        text = f"record that cannot be decoded: {error.message}"
        yield _Find(span.raw, None, text, vague=not span.adds_up)
        return
    base = message.queue_offset
    if not is_wrapped(message.sys_flag):
        yield _Find(span.raw, message, "", base)
        return
    try:
        inner = list(unwrap_record(message, piece, checks.body_crc))
    except _ERRORS as error:
        told = message.properties.get(INNER_NUM, "")
        count = int(told) if told.isdecimal() and len(told) < 6 else 1
        yield _Find(span.raw, message, error.message, base, max(1, min(count, INNER_MESSAGES_MAX)))
        return
    for raw in inner:
        (each,) = decode_messages(raw, piece.queue.broker_name)
        yield _Find(raw, each, "", each.queue_offset)


def _in_order(finds: Sequence[_Find], begin: int) -> list[_Find]:
    """Remove the offsets that break the order: all others ascend from ``begin`` on."""
    kept = _ascending(finds, begin)
    return [
        find
        if find.offset is None or at in kept
        else replace(
            find,
            message=None,
            offset=None,
            count=1,
            error=f"record whose offset, {find.offset}, is out of order",
        )
        for at, find in enumerate(finds)
    ]


def _ascending(finds: Sequence[_Find], begin: int) -> set[int]:
    """Return the places of the most finds that ascend; a find counts more if its neighbour fits, or
    if it is as far from the first as it should be.

    An offset that is damaged may be anything: 0, 1, 90, 3 is right but for its third.
    """
    lasts = [-1 if f.offset is None else f.offset + f.count - 1 for f in finds]
    ranks = sorted(set(lasts))
    # A Fenwick tree over the ranks: weight and place of the best sequence that ends up to there.
    tree: list[tuple[int, int]] = [(0, -1)] * (len(ranks) + 1)
    before: list[int] = []
    counted = begin
    for at, find in enumerate(finds):
        before.append(-1)
        counted += find.count
        if find.offset is None or lasts[at] < begin:
            continue
        weight, rank = (0, -1), bisect.bisect_left(ranks, find.offset)
        while rank:
            weight = max(weight, tree[rank], key=itemgetter(0))
            rank &= rank - 1
        after = finds[at + 1].offset if at + 1 < len(finds) else None
        known = lasts[at - 1] + 1 if at else begin
        near = (find.offset == known) + (after == lasts[at] + 1) + (counted == lasts[at] + 1)
        before[at] = weight[1]
        run = (weight[0] + 1 + near, at)
        rank = bisect.bisect_left(ranks, lasts[at]) + 1
        while rank < len(tree):
            tree[rank] = max(tree[rank], run, key=itemgetter(0))
            rank += rank & -rank
    kept: set[int] = set()
    _, at = max(tree, key=itemgetter(0))
    while at >= 0:
        kept.add(at)
        at = before[at]
    return kept


def _following(offsets: Sequence[int | None]) -> list[tuple[int | None, int]]:
    """Return for each place the next known offset, and how many unknown ones come before it."""
    after: list[tuple[int | None, int]] = []
    known: int | None = None
    unknown = 0
    for offset in reversed(offsets):
        after.append((known, unknown))
        known, unknown = (known, unknown + 1) if offset is None else (offset, 0)
    return after[::-1]


def _placed(finds: Sequence[_Find], piece: Piece, whole: bool) -> Iterator[_Find]:
    """Give finds without an offset the free offsets between their neighbours.

    Args:
        finds: the finds, in order.
        piece: bounds the first and the last offset.
        whole: whether the piece should hold every offset, so that all free ones can be given.
    """
    free = piece.begin
    following = _following([find.offset for find in finds])
    for find, (after, unplaced) in zip(finds, following, strict=True):
        if find.offset is not None:
            yield find
            free = find.offset + find.count
            continue
        if free >= piece.end:
            continue  # of offsets after the piece, which another task reads
        bound = piece.end if after is None else min(after, piece.end)
        own = _own_offset(find.raw)
        offset = own if own is not None and free <= own < bound - unplaced else free
        if offset >= bound:
            yield find
            continue
        count = 1
        if whole and find.vague:
            most = max(1, len(find.raw) // RECORD_BYTES_MIN)
            count = max(1, min(bound - unplaced - offset, most))
        yield replace(find, offset=offset, count=count)
        free = offset + count


def _own_offset(raw: bytes) -> int | None:
    if len(raw) < _HEAD.size:
        return None
    offset: int = _HEAD.unpack_from(raw)[5]
    return offset


def _rows(
    find: _Find, piece: Piece, checks: Checks, bodies: bool
) -> Iterator[MessageExt | Undecodable]:
    message, error = find.message, find.error
    if message is not None and not error:
        try:
            check_messages(piece, [message], Checks(body_crc=checks.body_crc), bodies)
            if bodies:
                inflate_body(
                    message.stored_body, message.sys_flag, piece.queue, message.queue_offset
                )
        except _ERRORS as failure:
            error = failure.message
    if find.offset is None:
        yield Undecodable(piece.queue, None, error, find.raw)
        return
    record: bytes | None = find.raw
    for offset in range(max(find.offset, piece.begin), min(find.offset + find.count, piece.end)):
        if error or message is None:
            yield Undecodable(piece.queue, offset, error, record, message)
            record = None
        else:
            yield message
