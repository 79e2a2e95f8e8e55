"""Bodies that are also, or only, files under ``config/`` of a broker and of a client.

Law: values and their exact text (wire-and-storage 3.4, C-305, C-327); other modules write the
files.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

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


def _offsets(queues: Mapping[int, int]) -> str:
    if not queues:
        return "{}"
    return "{" + ",".join([f"{queue}:{offset}" for queue, offset in queues.items()]) + "\n\t\t}"


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


@body()
class DelayOffsetTable(Body):
    """delayOffset.json and code 45: queue offset by delay level."""

    offset_table: dict[int, int] = field(default_factory=dict)


@body()
class OffsetSerializeWrapper(Body):
    """offsets.json of a broadcasting consumer: offset by queue."""

    offset_table: dict[MessageQueue, int] = field(default_factory=dict)


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
