"""The topics a broker has: configuration, system topics, creation by a send.

Pure: configurations by name. Upstream: TopicConfigManager (C-421 to C-424).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from rocketstream.errors import BrokerError, ConfigurationError
from rocketstream.limits import TOPIC_QUEUES_MAX, TOPICS_MAX
from rocketstream.protocol import names
from rocketstream.protocol.bodies import DataVersion, TopicConfig, TopicConfigSerializeWrapper
from rocketstream.protocol.bodies.route import topic_entry, topics_text
from rocketstream.protocol.codes import Perm, ResponseCode, TopicSysFlag
from rocketstream.server.broker.core.room import Room, check_room

READ_WRITE = Perm.READ | Perm.WRITE
SELF_TEST_TOPIC = "SELF_TEST_TOPIC"
AUTO_CREATE_TOPIC = "TBW102"
BENCHMARK_TOPIC = "BenchmarkTest"
OFFSET_MOVED_EVENT = "OFFSET_MOVED_EVENT"
SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC"
SCHEDULE_QUEUES = 18


@dataclass(frozen=True, slots=True)
class SystemTopicSettings:
    """The settings that decide which topics exist from the start."""

    cluster_name: str
    broker_name: str
    auto_create: bool = True
    default_queue_nums: int = 8
    trace: bool = False
    trace_topic: str = TRACE_TOPIC
    schedule_queues: int = SCHEDULE_QUEUES


def check_name(topic: str) -> None:
    """Check the name of a topic that a peer would create or send to (C-95).

    A blank name is refused in the words of upstream's TopicValidator; the other refusals say more
    than its do.

    Raises:
        BrokerError: nobody may use the name.
    """
    if not topic or topic.isspace():
        raise BrokerError(int(ResponseCode.SYSTEM_ERROR), "The specified topic is blank")
    try:
        names.check_topic(topic)
    except ConfigurationError as error:
        raise BrokerError(int(ResponseCode.SYSTEM_ERROR), error.message) from None


def system_topics(settings: SystemTopicSettings) -> list[TopicConfig]:
    """Return the topics every broker creates at start (C-421)."""
    found = [
        _config(SELF_TEST_TOPIC, 1),
        _config(BENCHMARK_TOPIC, 1024),
        _config(settings.cluster_name, 16, READ_WRITE | Perm.INHERIT),
        _config(settings.broker_name, 1, READ_WRITE | Perm.INHERIT),
        _config(OFFSET_MOVED_EVENT, 1),
        _config(SCHEDULE_TOPIC, settings.schedule_queues),
        _config(f"{settings.cluster_name}_REPLY_TOPIC", 1),
    ]
    if settings.auto_create:
        found.append(auto_create_topic(settings.default_queue_nums))
    if settings.trace:
        found.append(_config(settings.trace_topic, 1))
    return found


def auto_create_topic(queues: int) -> TopicConfig:
    """Return the topic whose existence lets clients' sends create other topics."""
    return _config(AUTO_CREATE_TOPIC, queues, READ_WRITE | Perm.INHERIT)


def _config(name: str, queues: int, perm: int = READ_WRITE) -> TopicConfig:
    return TopicConfig(name, read_queue_nums=queues, write_queue_nums=queues, perm=int(perm))


@dataclass(frozen=True, slots=True)
class TopicsText:
    """The text of topics.json, kept entry by entry."""

    entries: Sequence[str]
    version: DataVersion

    def encode(self, *, pretty: bool = False) -> bytes:
        """Return the text; it has only the file's form."""
        return topics_text(self.entries, self.version)


class TopicTable:
    """Topic name to configuration, with the data version the name server compares."""

    def __init__(self, *, auto_create: bool, topics_max: int = TOPICS_MAX) -> None:
        self.auto_create = auto_create
        self._topics_max = topics_max
        self._table: dict[str, TopicConfig] = {}
        self._entries: dict[str, str] = {}
        """The content the file must have: the table, and the proposed changes."""
        self._proposals: dict[str, int] = {}
        self._generation = 0
        self._counter = 0
        self._version = DataVersion()
        self._system: frozenset[str] = frozenset()

    def __iter__(self) -> Iterator[str]:
        return iter(self._table)

    def get(self, topic: str) -> TopicConfig | None:
        """Return the configuration of a topic, or None."""
        return self._table.get(topic)

    def load(self, wrapper: TopicConfigSerializeWrapper) -> None:
        """Take over the content of a file."""
        self._table = dict(wrapper.topic_config_table)
        self._entries = {name: topic_entry(name, config) for name, config in self._table.items()}
        self._version = wrapper.data_version
        self._counter = self._version.counter

    def ensure_system_topics(self, topics: Iterable[TopicConfig], now_ms: int) -> bool:
        """Add the topics that must exist; return whether any was missing."""
        wanted = list(topics)
        self._system = frozenset(config.topic_name for config in wanted)
        missing = [c for c in wanted if self._needs(c)]
        for config in missing:
            self.put(config, now_ms)
        return bool(missing)

    def _needs(self, wanted: TopicConfig) -> bool:
        known = self._table.get(wanted.topic_name)
        # There are more delay levels than the stored topic has queues: the topic must grow.
        return known is None or known.write_queue_nums < wanted.write_queue_nums

    def queue_of(self, topic: str, queue_id: int) -> int:
        """Return the queue that a message is delivered to which has waited, as of a delay.

        Its own, or where the topic has lost that one meanwhile, one of those consumers pull:
        upstream's broker stores it where nobody reads.
        """
        config = self._table.get(topic)
        if config is None or queue_id < config.read_queue_nums or config.read_queue_nums < 1:
            return queue_id
        return queue_id % config.read_queue_nums

    def is_system(self, topic: str) -> bool:
        """Whether administration may neither create nor delete the topic."""
        return topic in self._system or names.is_system_topic(topic)

    @property
    def room(self) -> Room:
        """How many topics there are, and may be."""
        return Room("topics", len(self._entries), self._topics_max)

    def check_room(self, topic: str) -> None:
        """Check that there is room for a topic that a client asks for.

        Raises:
            BrokerError: the topic is new, and the broker has as many as it keeps.
        """
        note = ", those of retries and dead letters included"
        check_room("topic", topic, self._entries, self._topics_max, note)

    def put(self, config: TopicConfig, now_ms: int) -> TopicConfig:
        """Create or replace a topic."""
        self._table[config.topic_name] = config
        self._entries[config.topic_name] = topic_entry(config.topic_name, config)
        self._generation += 1
        self._next_version(now_ms)
        return config

    def propose(self, topic: str, config: TopicConfig | None) -> None:
        """Propose to set a topic, or with None to delete it: the file is written before it counts.

        Each proposal ends with :meth:`accept` or :meth:`withdraw`.
        """
        self._proposals[topic] = self._proposals.get(topic, 0) + 1
        self._write_entry(topic, config)

    def accept(self, topic: str, config: TopicConfig | None, now_ms: int) -> None:
        """Make a proposed change count: it has been written."""
        if config is not None:
            self._table[topic] = config
        else:
            self._table.pop(topic, None)
        self._next_version(now_ms)
        self._end_proposal(topic)

    def withdraw(self, topic: str) -> None:
        """Drop a proposed change that could not be written: the topic is unchanged."""
        self._end_proposal(topic)

    def _end_proposal(self, topic: str) -> None:
        """End a proposal; after the last one the file must hold exactly the table."""
        left = self._proposals.pop(topic) - 1
        if left:
            self._proposals[topic] = left
        else:
            self._write_entry(topic, self._table.get(topic))

    def _write_entry(self, topic: str, config: TopicConfig | None) -> None:
        entry = topic_entry(topic, config) if config is not None else None
        if entry == self._entries.get(topic):
            return
        if entry is not None:
            self._entries[topic] = entry
        else:
            del self._entries[topic]
        self._generation += 1

    def delete(self, topic: str, now_ms: int) -> bool:
        """Remove a topic; return whether it was there."""
        found = self._table.pop(topic, None)
        self._entries.pop(topic, None)
        self._generation += 1
        if found is not None:
            self._next_version(now_ms)
        return found is not None

    def _next_version(self, now_ms: int) -> None:
        self._counter += 1
        self._version = DataVersion(counter=self._counter, timestamp=now_ms)

    def wanted_by_send(
        self,
        topic: str,
        default_topic: str,
        queue_nums: int,
        *,
        unit: bool = False,
    ) -> TopicConfig | None:
        """Return the topic for a send, made from its template topic, or None (C-422).

        The caller must propose the topic.

        Raises:
            BrokerError: there is no room for another topic.
        """
        known = self._table.get(topic)
        if known is not None:
            return known
        template = self._table.get(default_topic)
        if template is None or not template.perm & Perm.INHERIT:
            return None
        if default_topic == AUTO_CREATE_TOPIC and not self.auto_create:
            return None
        self.check_room(topic)
        queues = max(1, min(queue_nums, template.write_queue_nums))
        return replace(
            template,
            topic_name=topic,
            read_queue_nums=queues,
            write_queue_nums=queues,
            perm=template.perm & ~Perm.INHERIT,
            topic_sys_flag=TopicSysFlag.UNIT if unit else 0,
        )

    def ensure(
        self, topic: str, queue_nums: int, now_ms: int, *, unit: bool = False
    ) -> tuple[TopicConfig, bool]:
        """Return a topic, created if missing, and whether the table changed.

        A retry topic grows with its group's settings: nobody could pull from queues it lacks.
        ``unit`` marks it as one that belongs to a unit's consumers.

        Raises:
            BrokerError: the topic is that of a group, and there is no room for another.
        """
        known = self._table.get(topic)
        flag = TopicSysFlag.UNIT_SUB if unit else 0
        if known is None:
            if topic.startswith((names.RETRY_PREFIX, names.DLQ_PREFIX)):
                self.check_room(topic)
            queues = max(1, min(queue_nums, TOPIC_QUEUES_MAX))
            return self.put(replace(_config(topic, queues), topic_sys_flag=flag), now_ms), True
        queues = min(queue_nums, TOPIC_QUEUES_MAX) if topic.startswith(names.RETRY_PREFIX) else 0
        read, write = max(known.read_queue_nums, queues), max(known.write_queue_nums, queues)
        flags = known.topic_sys_flag | flag
        had = known.read_queue_nums, known.write_queue_nums, known.topic_sys_flag
        if had != (read, write, flags):
            config = replace(
                known, read_queue_nums=read, write_queue_nums=write, topic_sys_flag=flags
            )
            return self.put(config, now_ms), True
        return known, False

    @property
    def generation(self) -> int:
        """Grows with every change and proposal, so that a writer knows what it has saved."""
        return self._generation

    @property
    def data_version(self) -> DataVersion:
        """The version of the table, which grows with every change."""
        return self._version

    def wrapper(self, only: Iterable[str] | None = None) -> TopicConfigSerializeWrapper:
        """Return the table, or the named part of it, with the full data version."""
        table: Mapping[str, TopicConfig] = self._table
        if only is not None:
            table = {name: self._table[name] for name in only if name in self._table}
        return TopicConfigSerializeWrapper(dict(table), self.data_version)

    def snapshot(self) -> TopicsText:
        """Return the content the file must have; only changed entries are encoded.

        With proposals this is not a table that name servers were told of, and has a version of its
        own: one they know they would never take, should the broker end before it tells them.
        """
        version = self._version
        if self._proposals:
            self._counter += 1
            version = replace(version, counter=self._counter)
        return TopicsText(list(self._entries.values()), version)

    def system_topic_names(self) -> list[str]:
        """The topics that exist from the start."""
        return sorted(self._system)
