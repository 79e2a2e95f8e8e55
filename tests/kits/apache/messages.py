"""Bodies both languages compute, and the record of what the Java programs sent and received.

Law: the Java side of these formulas is ``java/Peer.java``; change both or neither.
"""

from __future__ import annotations

import zlib
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from rocketstream.model import Message
from rocketstream.protocol.message_ext import MessageExt

_FILLER = bytes(ord("a") + place % 26 for place in range(26)) * 200_000


def body_of(prefix: str, index: int, size: int = 1024) -> bytes:
    """The body of message ``index``: its name, then the alphabet up to ``size`` bytes."""
    head = f"{prefix}-{index}|".encode()
    return head + _FILLER[len(head) : size]


def digest(body: bytes) -> str:
    """Length and CRC-32, as the Java programs write it."""
    return f"{len(body)}:{zlib.crc32(body):x}"


def message_of(
    topic: str, prefix: str, index: int, *, size: int = 1024, tags: tuple[str, ...] = ()
) -> Message:
    """The message JavaProducer would send as number ``index``."""
    return Message(
        topic,
        body_of(prefix, index, size),
        tags=tags[index % len(tags)] if tags else None,
        keys=f"{prefix}-{index}",
        properties={"index": str(index)},
    )


@dataclass(frozen=True, slots=True, order=True)
class Sent:
    """An acknowledged message: where the broker put it and what it was."""

    queue_id: int
    queue_offset: int
    msg_id: str
    keys: str
    tags: str
    digest: str


@dataclass(frozen=True, slots=True)
class Received:
    """One delivery of a message to a listener, and what the listener answered."""

    outcome: str
    topic: str
    broker_name: str
    queue_id: int
    queue_offset: int
    msg_id: str
    keys: str
    tags: str
    reconsume_times: int
    digest: str
    index: str

    @property
    def sent(self) -> Sent:
        """What its producer must have recorded."""
        return Sent(
            self.queue_id, self.queue_offset, self.msg_id, self.keys, self.tags, self.digest
        )


def received(message: MessageExt, outcome: str = "OK") -> Received:
    """What our own listener saw, in the form the Java programs write."""
    return Received(
        outcome,
        message.topic,
        message.broker_name,
        message.queue_id,
        message.queue_offset,
        message.msg_id,
        message.keys or "",
        message.tags or "",
        message.reconsume_times,
        digest(message.body),
        message.get_property("index") or "",
    )


def read_sent(file: Path) -> list[Sent]:
    """Read the record of a JavaProducer."""
    rows = (line.split("\t") for line in file.read_text().splitlines())
    return [
        Sent(int(queue), int(offset), msg_id, keys, tags, digest)
        for msg_id, queue, offset, keys, tags, digest in rows
    ]


def read_received(file: Path) -> list[Received]:
    """Read the record of a Java consumer so far (complete once it said ``closed``)."""
    lines = file.read_text().split("\n")[:-1]  # the last one may be half written
    return [_received(line.split("\t")) for line in lines]


def _received(row: list[str]) -> Received:
    outcome, topic, broker_name, queue_id, offset, msg_id, keys, tags, times, crc, index = row
    place = (int(queue_id), int(offset))
    return Received(outcome, topic, broker_name, *place, msg_id, keys, tags, int(times), crc, index)


def per_queue(sent: list[Sent]) -> dict[int, int]:
    """How many messages each queue got, which is where its group's offset must end."""
    return dict(sorted(Counter(each.queue_id for each in sent).items()))
