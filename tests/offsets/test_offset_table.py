"""The broker's table of offsets: what it answers about groups and topics, and what that costs."""

from __future__ import annotations

from collections.abc import Iterator

import hypothesis
import hypothesis.strategies as st

from rocketstream.protocol.bodies import ConsumerOffsetTable
from rocketstream.server.broker.core.offsets import ConsumerOffsets

NAMES = st.sampled_from(["a", "b", "c"])
STEPS = st.tuples(
    st.sampled_from(["commit", "clone", "remove_group", "remove_topic", "file"]), NAMES, NAMES
)


def places(offsets: ConsumerOffsets) -> set[tuple[str, str]]:
    """Every topic and group the table has offsets of, by its file."""
    parts = (key.partition("@") for key in offsets.snapshot().offset_table)
    return {(topic, group) for topic, _, group in parts}


@hypothesis.given(st.lists(STEPS, max_size=30))
def test_groups_and_topics_are_those_of_the_table(steps: list[tuple[str, str, str]]) -> None:
    offsets = ConsumerOffsets()
    for what, one, other in steps:
        if what == "commit":
            offsets.commit(one, other, 0, 1)
        elif what == "clone":
            offsets.clone(one, other, "a")
        elif what == "remove_group":
            offsets.remove_group(one)
        elif what == "remove_topic":
            offsets.remove_topic(one)
        else:
            table, offsets = offsets.snapshot(), ConsumerOffsets()
            offsets.load(table)
        found = places(offsets)
        for name in "abc":
            assert offsets.topics_of(name) == {topic for topic, group in found if group == name}
            assert offsets.groups_of(name) == {group for topic, group in found if topic == name}
    for name in "abc":
        offsets.remove_group(name)
    assert places(offsets) == set()
    assert not offsets._by_group
    assert not offsets._by_topic


def test_keys_of_other_forms_stay_as_they_are() -> None:
    """Brokers of 5.x keep one member's progress beside the group's; a key may be damaged."""
    given = {"T@g": {0: 1}, "T@g@broadcast": {0: 2}, "odd": {0: 3}}
    offsets = ConsumerOffsets()
    offsets.load(ConsumerOffsetTable(given))
    assert offsets.groups_of("T") == {"g", "g@broadcast"}
    assert offsets.topics_of("") == {"odd"}
    assert offsets.snapshot().offset_table == given
    offsets.remove_topic("odd")
    offsets.remove_group("g")
    assert offsets.snapshot().offset_table == {"T@g@broadcast": {0: 2}}
    assert offsets.room.used == 1


class Looked(dict[str, dict[int, int]]):
    """A table that counts how often all of it is gone through."""

    looks = 0

    def __iter__(self) -> Iterator[str]:
        self.looks += 1
        return super().__iter__()


def test_a_question_about_one_group_or_topic_looks_at_no_other() -> None:
    """With 180,000 offsets it held everybody up for 20 ms; code 317 asks it for every group."""
    offsets = ConsumerOffsets()
    for group in ("g1", "g2"):
        offsets.commit(group, "T", 0, 1)
    offsets._table = table = Looked(offsets._table)
    assert offsets.topics_of("g1") == {"T"}
    assert offsets.groups_of("T") == {"g1", "g2"}
    offsets.remove_group("g1")
    offsets.remove_topic("T")
    assert table == {}
    assert table.looks == 0


def test_a_copy_of_the_table_stays_as_it_was_and_copies_no_offsets() -> None:
    """With 180,000 offsets each write of the file held everybody up for 50 ms."""
    offsets = ConsumerOffsets()
    for group in ("g1", "g2", "g3"):
        for queue_id in (0, 1):
            offsets.commit(group, "T", queue_id, 5)
    snapshot = offsets.snapshot()
    assert all(
        offsets.of(group, "T") is snapshot.offset_table[f"T@{group}"] for group in ("g1", "g2")
    )
    offsets.commit("g1", "T", 0, 6)
    offsets.commit("g1", "T", 2, 1)
    offsets.clone("g1", "g2", "T")
    offsets.commit("g2", "T", 0, 7)
    assert offsets.clamp(lambda _, queue_id: 4 if queue_id == 1 else 9) == [
        f"T@{group} queue 1: 5 to 4" for group in ("g1", "g2", "g3")
    ]
    second = offsets.snapshot()
    offsets.remove_group("g3")
    offsets.commit("g3", "T", 0, 1)
    offsets.commit("g1", "T", 0, 9)
    assert snapshot.offset_table == {f"T@{group}": {0: 5, 1: 5} for group in ("g1", "g2", "g3")}
    assert second.offset_table == {
        "T@g1": {0: 6, 1: 4, 2: 1}, "T@g2": {0: 7, 1: 4, 2: 1}, "T@g3": {0: 5, 1: 4}
    }  # fmt: skip
    assert (offsets.of("g1", "T")[0], offsets.of("g3", "T")) == (9, {0: 1})
