"""Bodies of the name server: versions, routes, clusters, registration of brokers.

Pure: values and their JSON; which broker is alive is the name server's business.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Generator
from dataclasses import dataclass, field
from typing import Final, Self

from rocketstream import limits
from rocketstream.errors import RemoteProtocolError
from rocketstream.protocol import fastjson
from rocketstream.protocol.bodies.base import STR as _STR
from rocketstream.protocol.bodies.base import (
    Body,
    bean,
    body,
    coded,
    enumeration,
    list_of,
    map_of,
    request_json,
)
from rocketstream.protocol.compression import inflate

_LENGTH: Final = struct.Struct(">i")
_TOPIC_PARTS_MIN: Final = 5
_PERM_MAX: Final = 7

SINGLE_TAG: Final = "SINGLE_TAG"
MULTI_TAG: Final = "MULTI_TAG"


@body()
class DataVersion(Body):
    """Version of a table; two versions are equal when both fields are equal."""

    counter: int = 0
    timestamp: int = 0


@body()
class QueueData(Body):
    """Queues of a topic on one broker."""

    broker_name: str = ""
    read_queue_nums: int = 0
    write_queue_nums: int = 0
    perm: int = 0
    topic_sys_flag: int = 0


@body()
class BrokerData(Body):
    """Addresses of one broker by id; 0 is the master."""

    cluster: str = ""
    broker_name: str = ""
    broker_addrs: dict[int, str] = field(default_factory=dict)

    @property
    def master_addr(self) -> str | None:
        """Address of the master, or None."""
        return self.broker_addrs.get(0)


@body()
class TopicRouteData(Body):
    """Where a topic lives (code 105)."""

    queue_datas: list[QueueData] = field(
        default_factory=list, metadata=coded(list_of(bean(QueueData)))
    )
    broker_datas: list[BrokerData] = field(
        default_factory=list, metadata=coded(list_of(bean(BrokerData)))
    )
    order_topic_conf: str | None = None
    filter_server_table: dict[str, list[str]] = field(default_factory=dict)

    def encode(self, *, standard: bool = True, pretty: bool = False) -> bytes:
        """Return standard JSON, or with ``standard=False`` the form with bare integer keys."""
        return fastjson.dumps(self.to_json(), pretty=pretty, standard=standard).encode()


@body()
class ClusterInfo(Body):
    """All brokers by name and by cluster (code 106); always in the form with bare integer keys."""

    broker_addr_table: dict[str, BrokerData] = field(
        default_factory=dict, metadata=coded(map_of(_STR, bean(BrokerData)))
    )
    cluster_addr_table: dict[str, list[str]] = field(default_factory=dict)


@body()
class TopicConfig(Body):
    """A topic as a broker keeps it.

    Attributes:
        attributes: attributes of 5.x beyond the other fields, by name (``queue.type``); None where
            the peer sent none, as 4.x brokers do.
    """

    topic_name: str = ""
    read_queue_nums: int = 4
    write_queue_nums: int = 4
    perm: int = 6
    topic_filter_type: str = field(
        default=SINGLE_TAG, metadata=coded(enumeration(SINGLE_TAG, SINGLE_TAG, MULTI_TAG))
    )
    topic_sys_flag: int = 0
    order: bool = False
    attributes: dict[str, str] | None = field(default=None, metadata=coded(map_of(_STR, _STR)))

    @property
    def has_batch_queues(self) -> bool:
        """Whether one entry of its queues' index may stand for several messages."""
        return (self.attributes or {}).get("queue.type") == "BatchCQ"

    @property
    def is_compacted(self) -> bool:
        """Whether consumers get only the last message of each key."""
        return (self.attributes or {}).get("cleanup.policy") == "COMPACTION"

    def encode_pretty(self) -> str:
        """Return the text of an entry of topics.json."""
        attributes = ""
        if self.attributes is not None:
            inner = fastjson.dumps(self.attributes, pretty=True).replace("\n", "\n\t\t\t")
            attributes = f'\n\t\t\t"attributes":{inner},'
        return (
            f'{{{attributes}\n\t\t\t"order":{str(self.order).lower()},\n\t\t\t"perm":{self.perm},'
            f'\n\t\t\t"readQueueNums":{self.read_queue_nums},'
            f'\n\t\t\t"topicFilterType":{fastjson.dumps(self.topic_filter_type)},'
            f'\n\t\t\t"topicName":{fastjson.dumps(self.topic_name)},'
            f'\n\t\t\t"topicSysFlag":{self.topic_sys_flag},'
            f'\n\t\t\t"writeQueueNums":{self.write_queue_nums}\n\t\t}}'
        )

    @classmethod
    def decode_line(cls, line: str) -> Self:
        """Read a line of the compressed registration; parts after the fifth are ignored (5.x).

        Raises:
            RemoteProtocolError: there are fewer parts, or a part is not a number.
        """
        parts = line.split(" ")
        if len(parts) < _TOPIC_PARTS_MIN:
            raise RemoteProtocolError(f"topic line {line!r:.200} has fewer than 5 parts")
        names = ("topicName", "readQueueNums", "writeQueueNums", "perm", "topicFilterType")
        return cls.from_json(dict(zip(names, parts, strict=False)))


@body()
class TopicConfigSerializeWrapper(Body):
    """All topics of a broker (code 21, topics.json)."""

    topic_config_table: dict[str, TopicConfig] = field(
        default_factory=dict, metadata=coded(map_of(_STR, bean(TopicConfig)))
    )
    data_version: DataVersion = field(
        default_factory=DataVersion, metadata=coded(bean(DataVersion))
    )

    def encode(self, *, pretty: bool = False) -> bytes:
        """Return the text, made many times faster than by the general rules.

        It is written whenever a topic is made.
        """
        if not pretty or not self.topic_config_table or self.data_version is None:
            return Body.encode(self, pretty=pretty)
        entries = [topic_entry(*item) for item in self.topic_config_table.items()]
        return topics_text(entries, self.data_version)

    def file_problem(self) -> str | None:
        """Return a topic no broker can have; None without."""
        for name, one in self.topic_config_table.items():
            if name != one.topic_name:
                return f"under {name} is topic {one.topic_name}"
            read, write = one.read_queue_nums, one.write_queue_nums
            # Brokers of 5.x without a queue of their cluster's static topic have it with none.
            fewest = 0 if read == write else 1
            most = limits.TOPIC_QUEUES_MAX
            is_one = fewest <= min(read, write) and max(read, write) <= most
            if not (is_one and 0 <= one.perm <= _PERM_MAX):
                return (
                    f"topic {name} has readQueueNums {read}, writeQueueNums {write}, perm "
                    f"{one.perm}, where 1 to {most} queues, or none of either, and 0 to "
                    f"{_PERM_MAX} are"
                )
        return None


def topic_entry(name: str, config: TopicConfig) -> str:
    """Return the text of one topic of topics.json."""
    return f"\n\t\t{fastjson.dumps(name)}:{config.encode_pretty()}"


def topics_text(entries: Collection[str], version: DataVersion) -> bytes:
    """Return the text of topics.json, made of at least one entry."""
    head = fastjson.dumps({"dataVersion": version.to_json()}, pretty=True)
    return f'{head[:-2]},\n\t"topicConfigTable":{{{",".join(entries)}\n\t}}\n}}'.encode()


@body()
class RegisterBrokerBody(Body):
    """The body of a broker's registration (code 103), plain or compressed."""

    topic_config_serialize_wrapper: TopicConfigSerializeWrapper = field(
        default_factory=TopicConfigSerializeWrapper,
        metadata=coded(bean(TopicConfigSerializeWrapper)),
    )
    filter_server_list: list[str] = field(default_factory=list)

    @classmethod
    def decoding(cls, data: bytes | memoryview) -> Generator[None, None, Self]:
        """Do what ``decode_request`` does in steps of one topic each."""
        values = request_json(
            data,
            values_max=limits.REGISTRATION_JSON_VALUES_MAX,
            bytes_max=limits.REGISTRATION_BYTES_MAX,
        )
        table = values.get("topicConfigSerializeWrapper") if isinstance(values, dict) else None
        topics = table.get("topicConfigTable") if isinstance(table, dict) else None
        if not isinstance(table, dict) or not isinstance(topics, dict):
            return cls.from_json(values)  # names written in another order or way, or names missing
        found: dict[str, TopicConfig] = {}
        for name, one in topics.items():
            if one is not None:
                found[_STR.read(name)] = TopicConfig.from_json(one)
            yield
        table["topicConfigTable"] = {}
        read = cls.from_json(values)
        read.topic_config_serialize_wrapper.topic_config_table = found
        return read

    @classmethod
    def decode_compressed(
        cls, data: bytes | memoryview, *, bytes_max: int = limits.REGISTRATION_BYTES_MAX
    ) -> Self:
        """Read the zlib form.

        Raises:
            RemoteProtocolError: the data is damaged, cut short, inflates to more than
                ``bytes_max``, or has too many topics.
        """
        steps = cls.decoding_compressed(data, bytes_max=bytes_max)
        while True:
            try:
                next(steps)
            except StopIteration as done:
                read: Self = done.value
                return read

    @classmethod
    def decoding_compressed(
        cls, data: bytes | memoryview, *, bytes_max: int = limits.REGISTRATION_BYTES_MAX
    ) -> Generator[None, None, Self]:
        """Do what ``decode_compressed`` does in steps of one topic each."""
        reader = _Parts(inflate(bytes(data), bytes_max))
        version = DataVersion.decode_request(reader.part())
        wrapper = TopicConfigSerializeWrapper({}, version)
        count = reader.number()
        if count > limits.REGISTRATION_TOPICS_MAX:
            raise RemoteProtocolError(
                f"registration of {count} topics: at most {limits.REGISTRATION_TOPICS_MAX} are "
                "taken at once; spread them over more brokers"
            )
        for _ in range(count):
            topic = TopicConfig.decode_line(reader.text())
            wrapper.topic_config_table[topic.topic_name] = topic
            yield
        servers = cls.from_json({"filterServerList": request_json(reader.part())})
        return cls(wrapper, servers.filter_server_list)


@dataclass(slots=True)
class _Parts:
    data: bytes
    position: int = 0

    def number(self) -> int:
        if self.position + 4 > len(self.data):
            raise RemoteProtocolError("registration body is cut short")
        (value,) = _LENGTH.unpack_from(self.data, self.position)
        self.position += 4
        if not 0 <= value <= len(self.data) - self.position:
            raise RemoteProtocolError(f"registration body: a length of {value} cannot be")
        return int(value)

    def part(self) -> bytes:
        size = self.number()
        self.position += size
        return self.data[self.position - size : self.position]

    def text(self) -> str:
        try:
            return self.part().decode()
        except UnicodeDecodeError as error:
            raise RemoteProtocolError(f"registration body is not UTF-8: {error}") from None
