"""Bodies that are also, or only, files under ``config/`` of a broker and of a client.

Pure: values and their exact text (C-305, C-327), and the checksum that stands in it; other modules
write the files.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping
from dataclasses import field
from typing import Final

from rocketstream.errors import RemoteProtocolError
from rocketstream.model import MessageQueue
from rocketstream.protocol import fastjson
from rocketstream.protocol.bodies.base import (
    INT,
    STR,
    Body,
    Coder,
    bean,
    body,
    coded,
    list_of,
    map_of,
    queue_map_of,
)

CHECKSUM_NAME: Final = "rocketstreamChecksum"
"""First name of a file's object. Upstream ignores a name it does not know, and drops it when it
writes the file anew: a file without one was written by upstream, or by an earlier version."""
_SEAL = b'{\n\t"rocketstreamChecksum":"'
_DIGITS = 8
_SEALED_BYTES = len(_SEAL) + _DIGITS + 1
EDITED = (
    f"{CHECKSUM_NAME} does not fit: the file was damaged, or edited by hand (if so, take the line "
    f'"{CHECKSUM_NAME}" out of it)'
)


def sealed(name: str, text: bytes) -> bytes:
    """Return the text of a file, which is one object, with its checksum.

    It stands in the text since both must change at once: beside the file, a crash between the two
    writes, or upstream's broker that writes the one only, would look like damage.

    Args:
        name: the file's own, so that one file cannot pass for another.
    """
    comma = b"" if text[1:].lstrip() == b"}" else b","
    return b'%b%08x"%b%b' % (_SEAL, _checksum(name, text), comma, text[1:])


def is_sealed(data: bytes) -> bool:
    """Return whether a file's text begins with a checksum."""
    return data.startswith(_SEAL)


def unsealed(name: str, data: bytes) -> bytes:
    """Return the text of a file without its checksum, which must fit if there is one.

    Raises:
        RemoteProtocolError: it does not, or is not what was written.
    """
    digits = data[len(_SEAL) : _SEALED_BYTES]
    text = b"{" + data[_SEALED_BYTES:].removeprefix(b",")
    if is_sealed(data):
        if digits == b'%08x"' % _checksum(name, text) and sealed(name, text) == data:
            return text
        raise RemoteProtocolError(EDITED)
    # A damaged name must not make it a file that never had a checksum.
    same = sum(map(int.__eq__, data[: len(_SEAL)], _SEAL))
    if same > len(_SEAL) // 2 or b'"%b"' % CHECKSUM_NAME.encode() in data:
        raise RemoteProtocolError(EDITED)
    return data


def _checksum(name: str, text: bytes) -> int:
    return zlib.crc32(text, zlib.crc32(name.encode()))


def _offsets(queues: Mapping[int, int]) -> str:
    if not queues:
        return "{}"
    return "{" + ",".join([f"{queue}:{offset}" for queue, offset in queues.items()]) + "\n\t\t}"


def _negative(offsets: Iterable[tuple[object, int]]) -> str | None:
    """Return which offset cannot be; None when all can."""
    wrong = next((each for each in offsets if each[1] < 0), None)
    return None if wrong is None else f"{wrong[1]} of {wrong[0]} is not an offset"


_INT_ARRAY = Coder(list_of(INT).read, tuple)


@body()
class ConsumerOffsetTable(Body):
    """consumerOffset.json and code 43: offset by queue id under ``topic@group``."""

    offset_table: dict[str, dict[int, int]] = field(default_factory=dict)

    def encode(self, *, pretty: bool = False) -> bytes:
        """Return the text, made many times faster than by the general rules.

        A broker with ten thousand groups repeatedly writes a megabyte of it.
        """
        if not pretty or not self.offset_table:
            return Body.encode(self, pretty=pretty)
        entries = [
            f"\n\t\t{fastjson.dumps(key)}:{_offsets(queues)}"
            for key, queues in self.offset_table.items()
        ]
        return f'{{\n\t"offsetTable":{{{",".join(entries)}\n\t}}\n}}'.encode()

    def file_problem(self) -> str | None:
        """Return a key, queue or offset that none can be; None without."""
        for key, queues in self.offset_table.items():
            if not all(key.partition("@")):
                return f"key {key!r} is not of the form topic@group"
            if min(queues, default=0) < 0:
                return f"{min(queues)} of {key} is not a queue"
            if problem := _negative((key, offset) for offset in queues.values()):
                return problem
        return None


@body()
class DelayOffsetTable(Body):
    """delayOffset.json and code 45: queue offset by delay level."""

    offset_table: dict[int, int] = field(default_factory=dict)

    def file_problem(self) -> str | None:
        """Return a level or offset that none can be; None without."""
        if min(self.offset_table, default=1) < 1:
            return f"{min(self.offset_table)} is not a delay level"
        return _negative((f"level {level}", one) for level, one in self.offset_table.items())


@body()
class OffsetSerializeWrapper(Body):
    """offsets.json of a broadcasting consumer: offset by queue."""

    offset_table: dict[MessageQueue, int] = field(default_factory=dict)

    def file_problem(self) -> str | None:
        """Return a queue or offset that none can be; None without."""
        wrong = next((queue for queue in self.offset_table if queue.queue_id < 0), None)
        return f"{wrong} is not a queue" if wrong else _negative(self.offset_table.items())


@body()
class QueueLockTable(Body):
    """queueLocks.json, which upstream does not have: client id by queue by group."""

    lock_table: dict[str, dict[MessageQueue, str]] = field(
        default_factory=dict, metadata=coded(map_of(STR, queue_map_of(STR)))
    )


@body()
class KVConfigSerializeWrapper(Body):
    """kvConfig.json of a name server: values by key by namespace."""

    config_table: dict[str, dict[str, str]] = field(default_factory=dict)


@body()
class BloomFilterData(Body):
    """The positions of a subscription in the bloom filter of its topic (C-394)."""

    bit_num: int = 0
    bit_pos: list[int] = field(default_factory=list, metadata=coded(_INT_ARRAY))


@body()
class ConsumerFilterData(Body):
    """The condition by which a group filters a topic (C-393); times are ms."""

    consumer_group: str = ""
    topic: str = ""
    expression: str = ""
    expression_type: str = ""
    born_time: int = 0
    dead_time: int = 0
    dead: bool = False
    client_version: int = 0
    bloom_filter_data: BloomFilterData | None = field(
        default=None, metadata=coded(bean(BloomFilterData))
    )


@body()
class FilterDataMapByTopic(Body):
    """The conditions on one topic, by group."""

    topic: str = ""
    group_filter_data: dict[str, ConsumerFilterData] = field(
        default_factory=dict, metadata=coded(map_of(STR, bean(ConsumerFilterData)))
    )


@body()
class ConsumerFilterTable(Body):
    """consumerFilter.json: conditions by topic."""

    filter_data_by_topic: dict[str, FilterDataMapByTopic] = field(
        default_factory=dict, metadata=coded(map_of(STR, bean(FilterDataMapByTopic)))
    )

    def file_problem(self) -> str | None:
        """Return a topic or group that is not under its own name; None without."""
        for topic, by_group in self.filter_data_by_topic.items():
            for group, data in by_group.group_filter_data.items():
                if (topic, topic, group) != (by_group.topic, data.topic, data.consumer_group):
                    return f"under {topic}/{group} is {data.topic}/{data.consumer_group}"
        return None
