"""The progress of each consumer group: offsets by topic, group and queue.

Pure: a value that cannot be an offset of an existing queue is refused instead of stored (C-567).
Upstream: ConsumerOffsetManager (C-323 to C-333).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Set

from rocketstream.limits import CONSUMER_OFFSETS_MAX, GROUP_CHARS_MAX
from rocketstream.protocol.bodies import ConsumerOffsetTable
from rocketstream.server.broker.core.room import Room

SEPARATOR = "@"
NO_OFFSET = 0x7FFF_FFFF_FFFF_FFFF


class ConsumerOffsets:
    """``topic@group`` to queue to offset.

    ``generation`` grows with every change, so that a writer knows what it has saved.
    """

    def __init__(self, offsets_max: int = CONSUMER_OFFSETS_MAX) -> None:
        self._offsets_max = offsets_max
        self._table: dict[str, dict[int, int]] = {}
        # The keys of the table, to find those of one group or topic without looking at all.
        self._by_group: dict[str, dict[str, str]] = {}
        self._by_topic: dict[str, dict[str, str]] = {}
        # Keys whose offsets no copy of the table has: others are copied before they change.
        self._own: set[str] = set()
        self._count = 0
        self.generation: int = 0

    def load(self, table: ConsumerOffsetTable) -> None:
        """Take over the content of a file."""
        self._table, self._by_group, self._by_topic, self._count = {}, {}, {}, 0
        for key, queues in table.offset_table.items():
            topic, _, group = key.partition(SEPARATOR)
            self._add(key, topic, group, dict(queues))

    def _add(self, key: str, topic: str, group: str, queues: dict[int, int]) -> dict[int, int]:
        self._table[key] = queues
        self._own.add(key)
        self._count += len(queues)
        self._by_group.setdefault(group, {})[topic] = key
        self._by_topic.setdefault(topic, {})[group] = key
        return queues

    def snapshot(self) -> ConsumerOffsetTable:
        """Return a copy for a file or a reply, which does not change with the table."""
        self._own = set()
        return ConsumerOffsetTable(dict(self._table))

    def _owned(self, key: str) -> dict[int, int]:
        """Return the offsets of a key, to be changed."""
        queues = self._table[key]
        if key not in self._own:
            queues = self._table[key] = dict(queues)
            self._own.add(key)
        return queues

    @property
    def room(self) -> Room:
        """How many offsets there are, and may be."""
        return Room("offsets", self._count, self._offsets_max)

    def no_room(self, group: str, queues: Collection[tuple[str, int]]) -> str | None:
        """Return why there is no room for the offsets of a group in queues, each a topic and an id;
        None when there is."""
        if not group:
            return "the group is blank"
        if len(group) > GROUP_CHARS_MAX:
            return f"the group has {len(group)} characters where {GROUP_CHARS_MAX} are the most"
        more = sum(self.query(group, *queue) is None for queue in queues)
        if not more or self._count + more <= self._offsets_max:
            return None
        return f"this broker keeps {self._offsets_max} offsets; delete groups or topics first"

    def commit(self, group: str, topic: str, queue_id: int, offset: int) -> int | None:
        """Store an offset, even a smaller one (a reset); return the former one (C-324)."""
        key = f"{topic}{SEPARATOR}{group}"
        queues = self._table.get(key)
        if queues is None:
            queues = self._add(key, topic, group, {})
        before = queues.get(queue_id)
        self._count += before is None
        if before != offset:
            self._owned(key)[queue_id] = offset
            self.generation += 1
        return before

    def query(self, group: str, topic: str, queue_id: int) -> int | None:
        """Return the stored offset, or None."""
        queues = self._table.get(f"{topic}{SEPARATOR}{group}")
        return queues.get(queue_id) if queues else None

    def of(self, group: str, topic: str) -> Mapping[int, int]:
        """Return the offsets of one group in one topic."""
        return self._table.get(f"{topic}{SEPARATOR}{group}", {})

    def topics_of(self, group: str) -> set[str]:
        """The topics a group has offsets in."""
        return set(self._by_group.get(group, ()))

    def groups_of(self, topic: str) -> set[str]:
        """The groups with offsets in a topic."""
        return set(self._by_topic.get(topic, ()))

    def clamp(self, max_offset: Callable[[str, int], int]) -> list[str]:
        """Move offsets beyond the end of their queue to the end; return the moved ones.

        The messages in between are gone (the store was repaired, or the disk lost power); with its
        offset unchanged the group would skip as many new messages.

        Args:
            max_offset: returns the offset the next message of a topic's queue gets.
        """
        moved = []
        for key, queues in self._table.items():
            topic = key.partition(SEPARATOR)[0]
            for queue_id, offset in queues.items():
                end = max_offset(topic, queue_id)
                if offset > end:
                    self._owned(key)[queue_id] = end
                    moved.append(f"{key} queue {queue_id}: {offset} to {end}")
        self.generation += len(moved)
        return moved

    def clone(self, source: str, target: str, topic: str) -> None:
        """Copy a group's offsets in a topic to another group; nothing without any (C-330)."""
        queues = self._table.get(f"{topic}{SEPARATOR}{source}")
        if queues is not None:
            self._count -= len(self.of(target, topic))
            self._add(f"{topic}{SEPARATOR}{target}", topic, target, dict(queues))
            self.generation += 1

    def remove_group(self, group: str) -> None:
        """Remove all offsets of a group."""
        for topic, key in self._by_group.pop(group, {}).items():
            self._drop(key)
            _take(self._by_topic, topic, group)

    def remove_topic(self, topic: str) -> None:
        """Remove the offsets of a topic: a new topic of its name begins at 0 again."""
        for group, key in self._by_topic.pop(topic, {}).items():
            self._drop(key)
            _take(self._by_group, group, topic)

    def _drop(self, key: str) -> None:
        self._count -= len(self._table.pop(key))
        self._own.discard(key)
        self.generation += 1


def _take(index: dict[str, dict[str, str]], name: str, other: str) -> None:
    keys = index[name]
    del keys[other]
    if not keys:
        del index[name]


def correction_offsets(
    offsets: ConsumerOffsets,
    topic: str,
    compare_group: str,
    left_out: Set[str],
    min_offset: Callable[[int], int],
) -> dict[int, int]:
    """Return, by queue, the lowest offset of all groups but those left out (C-332).

    Where ``compare_group`` is behind that, the value is the greatest 64-bit number.
    """
    least: dict[int, int] = {}
    for group in offsets.groups_of(topic) - left_out:
        for queue_id, offset in offsets.of(group, topic).items():
            if offset >= min_offset(queue_id):
                least[queue_id] = min(offset, least.get(queue_id, offset))
    for queue_id, offset in offsets.of(compare_group, topic).items():
        if least.get(queue_id, NO_OFFSET) > offset:
            least[queue_id] = NO_OFFSET
    return least


def commit_refusal(
    queue_id: int, offset: int, queue_nums: int | None, max_offset: int
) -> str | None:
    """Return why an offset cannot be valid for a topic's queue; None when it can (C-567).

    Args:
        queue_id: queue as given.
        offset: offset as given.
        queue_nums: the topic's queues, or None when the topic does not exist.
        max_offset: the offset the queue's next message gets.
    """
    if queue_nums is None:
        return "the topic does not exist"
    if not 0 <= queue_id < queue_nums:
        return f"queue {queue_id} is not one of its {queue_nums} queues"
    if offset < 0:
        return f"offset {offset} is negative"
    if offset > max_offset:
        return (
            f"offset {offset} is beyond the end of queue {queue_id}, {max_offset}: the messages "
            "that come next would be skipped"
        )
    return None
