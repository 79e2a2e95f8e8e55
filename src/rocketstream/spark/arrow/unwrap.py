"""The records in which a 5.x broker stores several messages of one batch, taken apart.

Pure: records in, records out, each as if its message had been sent alone. Topics with
``queue.type=BatchCQ`` have such records; clients take them apart, as
``MessageDecoder.decodeMessage`` does.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Final

from rocketstream.errors import RemoteProtocolError
from rocketstream.protocol.codes import MessageSysFlag
from rocketstream.protocol.message_ext import MessageExt, decode_messages
from rocketstream.protocol.record import (
    HEADS,
    HOSTS_MASK,
    SYS_FLAG_AT,
    BatchItem,
    body_crc,
    decode_batch,
)
from rocketstream.spark.arrow.bodies import inflate_body
from rocketstream.spark.arrow.layout import WRAPPED, Piece, too_early
from rocketstream.spark.arrow.whole import NO_CHECKS, check_messages, damaged
from rocketstream.spark.losses import described

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
