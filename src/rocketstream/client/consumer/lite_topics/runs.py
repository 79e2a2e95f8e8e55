"""What an answer brings, as runs: the messages of each lite topic in their order.

Law: bytes to values; asks nobody.
"""

from __future__ import annotations

import logging

from rocketstream.client.core.lite_runs import LiteRun
from rocketstream.model import MessageQueue
from rocketstream.protocol.headers import PopLiteMessageResponseHeader
from rocketstream.protocol.lite import LITE_QUEUE_ID, LITE_SEPARATOR, lite_queue_name, order_counts
from rocketstream.protocol.message_ext import MessageExt, decode_messages
from rocketstream.protocol.properties import (
    PROPERTY_INNER_MULTI_DISPATCH,
    PROPERTY_INNER_MULTI_QUEUE_OFFSET,
)

logger = logging.getLogger("rocketstream.client")


def runs_of(
    header: PopLiteMessageResponseHeader,
    records: bytes,
    topic: str,
    broker_name: str,
    now_ms: float,
) -> list[LiteRun]:
    """Read an answer; a message of no lite topic of ``topic`` is left out and logged.

    Raises:
        RemoteProtocolError: bytes that make no sense.
        DamagedMessageError: a body that does not match its CRC; all of the answer comes again.
    """
    placed: list[tuple[str, int, MessageExt]] = []
    for message in decode_messages(records, broker_name, check_crc=True):
        place = _place(message, topic)
        if place is None:
            logger.warning("an answer has a message of no lite topic of %s: %r", topic, message)
        else:
            placed.append((*place, message))
    counts = order_counts(header.order_count_info, [offset for _, offset, _ in placed])
    found: dict[str, tuple[list[MessageExt], list[int]]] = {}
    for (name, offset, message), count in zip(placed, counts, strict=True):
        message.reconsume_times = count
        run_messages, offsets = found.setdefault(name, ([], []))
        run_messages.append(message)
        offsets.append(offset)
    queue = MessageQueue(topic, broker_name, LITE_QUEUE_ID)
    return [
        LiteRun(name, queue, run_messages, offsets, header.pop_time, header.invisible_time, now_ms)
        for name, (run_messages, offsets) in found.items()
    ]


def _place(message: MessageExt, topic: str) -> tuple[str, int] | None:
    """Return a message's lite topic and its offset there, None if it is in none of the parent's.

    The broker notes the offset beside the name of the queue, in case there are several.
    """
    properties = message.properties
    queues = properties.get(PROPERTY_INNER_MULTI_DISPATCH, "").split(",")
    offsets = properties.get(PROPERTY_INNER_MULTI_QUEUE_OFFSET, "").split(",")
    start = lite_queue_name(topic, "")
    for queue, offset in zip(queues, offsets, strict=False):
        name = queue.removeprefix(start)
        if name != queue and LITE_SEPARATOR not in name and offset.isdecimal():
            return name, int(offset)
    return None
