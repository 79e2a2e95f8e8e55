"""The broker's table of conditions against a small model, and through its file."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketstream.errors import SubscriptionError
from rocketstream.protocol.bodies import ConsumerFilterTable, SubscriptionData
from rocketstream.server.broker.core import consumer_filters
from rocketstream.server.broker.core.consumer_filters import DEAD_KEPT_MS, ConsumerFilters
from tests.plugins.steps import drained

CONDITIONS = ["n = 1", "n = 2", "n ="]
TOPICS = ["T1", "T2"]
GROUPS = ["a", "b"]
START_MS = 1_700_000_000_000


@dataclass(frozen=True)
class Heartbeat:
    """A group's subscriptions: by topic a condition, or None for tags, and a version."""

    group: str
    wanted: dict[str, tuple[str | None, int]]


@dataclass(frozen=True)
class Leave:
    """A group's last member has left."""

    group: str


WANTED = st.dictionaries(
    st.sampled_from(TOPICS),
    st.tuples(st.sampled_from([*CONDITIONS, None]), st.integers(1, 6)),
)
STEPS = st.lists(
    st.one_of(
        st.builds(Heartbeat, st.sampled_from(GROUPS), WANTED),
        st.builds(Leave, st.sampled_from(GROUPS)),
    ),
    max_size=25,
)


def subscriptions(heartbeat: Heartbeat) -> list[SubscriptionData]:
    return [
        SubscriptionData(topic, text or "*", set(), set(), version, "SQL92" if text else "TAG")
        for topic, (text, version) in heartbeat.wanted.items()
    ]


def register(
    filters: ConsumerFilters, group: str, wanted: list[SubscriptionData], now_ms: int
) -> list[SubscriptionError]:
    return drained(filters.registering(group, wanted, now_ms))[0]


class Model:
    """By topic and group: condition, version, whether alive."""

    def __init__(self) -> None:
        self.known: dict[tuple[str, str], tuple[str, int, bool]] = {}

    def take(self, step: Heartbeat | Leave) -> None:
        if isinstance(step, Leave):
            for (topic, group), (text, version, _) in list(self.known.items()):
                if group == step.group:
                    self.known[topic, group] = (text, version, False)
            return
        for topic, (wanted, newest) in step.wanted.items():
            if wanted is not None:
                self._condition((topic, step.group), wanted, newest)
        for (topic, group), (text, version, _) in list(self.known.items()):
            if group == step.group and topic not in step.wanted:
                self.known[topic, group] = (text, version, False)

    def _condition(self, key: tuple[str, str], text: str, version: int) -> None:
        old = self.known.get(key)
        if old is not None and old[2] and version <= old[1]:
            return
        if old is not None and text == old[0]:
            self.known[key] = (text, version, True)
        elif text == "n =":
            self.known.pop(key, None)
        else:
            self.known[key] = (text, version, True)


def state(filters: ConsumerFilters) -> dict[tuple[str, str], tuple[str, int, bool]]:
    found = {}
    for topic in TOPICS:
        for group in GROUPS:
            known = filters.get(topic, group)
            if known is not None:
                alive = not known.is_dead
                found[topic, group] = (known.expression, known.client_version, alive)
    return found


def test_a_condition_of_members_that_are_gone_is_not_the_groups_any_more() -> None:
    """Theirs had been stamped by a clock that was ahead: what only the new one wants was passed."""
    filters = ConsumerFilters()
    for text, version in (("n = 1", 2), ("n = 2", 1)):
        wanted = [SubscriptionData("T1", text, set(), set(), version, "SQL92")]
        assert register(filters, "a", wanted, START_MS) == []
        known = filters.get("T1", "a")
        assert known is not None
        assert (known.expression, known.client_version) == (text, version)
        filters.unregister("a", START_MS)


@given(STEPS)
def test_the_table_is_the_models(steps: list[Heartbeat | Leave]) -> None:
    """Covers C-393: the newest version of who is there counts; a broken one leaves nothing."""
    filters, model = ConsumerFilters(), Model()
    for number, step in enumerate(steps):
        before, generation = state(filters), filters.generation
        if isinstance(step, Leave):
            filters.unregister(step.group, START_MS + number)
        else:
            errors = register(filters, step.group, subscriptions(step), START_MS + number)
            assert len(errors) <= len(step.wanted)
        model.take(step)
        assert state(filters) == model.known
        if state(filters) != before:
            assert filters.generation > generation, "the file would not be written"


@given(STEPS)
def test_the_file_brings_everything_back_as_dead(steps: list[Heartbeat | Leave]) -> None:
    """Covers C-393: nobody is known to be there until its next heartbeat."""
    filters = ConsumerFilters()
    for step in steps:
        if isinstance(step, Heartbeat):
            register(filters, step.group, subscriptions(step), START_MS)
        else:
            filters.unregister(step.group, START_MS)
    text = filters.snapshot(START_MS).encode(pretty=True)
    loaded = ConsumerFilters()
    assert loaded.load(ConsumerFilterTable.decode(text), START_MS + 60_000) == []
    assert state(loaded) == {
        key: (text, version, False) for key, (text, version, _) in state(filters).items()
    }
    assert loaded.snapshot(START_MS + 60_000 + DEAD_KEPT_MS) == ConsumerFilterTable()


def test_all_conditions_together_have_one_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled they take fifty times their size; what a group gives up is free for others."""
    monkeypatch.setattr(consumer_filters, "CONDITION_CHARS_MAX", 30)
    filters = ConsumerFilters()

    def refused_of(group: str, condition: str, version: int = 1) -> list[str]:
        data = SubscriptionData("T1", condition, set(), set(), version, "SQL92")
        return [error.message for error in register(filters, group, [data], START_MS)]

    assert refused_of("a", "n = 1 AND m = 2 AND k = 3") == []
    (refused,) = refused_of("b", "n = 123456")
    assert "all consumers together are over the maximum of 30 characters" in refused
    assert filters.get("T1", "b") is None
    assert refused_of("a", "n = 1", 2) == []
    assert refused_of("b", "n = 123456", 2) == []


def test_a_dead_condition_is_kept_for_a_day_and_a_loaded_one_half_a_minute_less() -> None:
    """Covers C-393: a file does not say when the broker that wrote it ended."""
    data = SubscriptionData("T1", "n = 1", set(), set(), 1, "SQL92")
    day_ms = 86_400_000
    filters = ConsumerFilters()
    register(filters, "a", [data], START_MS)
    alive = filters.snapshot(START_MS)
    filters.unregister("a", START_MS + 5)
    assert filters.snapshot(START_MS + 5 + day_ms - 1).filter_data_by_topic
    assert not filters.snapshot(START_MS + 5 + day_ms).filter_data_by_topic
    loaded = ConsumerFilters()
    loaded.load(alive, START_MS + 30_001)
    assert loaded.snapshot(START_MS + 1 + day_ms - 1).filter_data_by_topic
    assert not loaded.snapshot(START_MS + 1 + day_ms).filter_data_by_topic


def condition(text: str = "n = 1", version: int = 1, topic: str = "T1") -> SubscriptionData:
    return SubscriptionData(topic, text, set(), set(), version, "SQL92")


def test_a_subscription_by_tags_has_no_condition() -> None:
    """Covers C-393: by tags are TAG, nothing, and what a 4.x client leaves out."""
    assert [consumer_filters.is_tag_type(each) for each in ("TAG", "", None, "SQL92")] == [
        True,
        True,
        True,
        False,
    ]
    filters = ConsumerFilters()
    data = SubscriptionData("T1", "a || b", set(), set(), 1, "TAG")
    assert register(filters, "a", [data], START_MS) == []
    assert register(filters, "a", [condition("", topic="T2")], START_MS) == []
    assert (filters.get("T1", "a"), filters.get("T2", "a")) == (None, None)
    assert filters.generation == 0


def test_an_unknown_type_of_condition_is_refused_with_what_is_accepted() -> None:
    """Covers C-393."""
    filters = ConsumerFilters()
    data = SubscriptionData("T1", "n = 1", set(), set(), 1, "GROOVY")
    (error,) = register(filters, "a", [data], START_MS)
    assert "'GROOVY' is unknown; accepted are TAG and SQL92" in error.message
    assert filters.get("T1", "a") is None


def test_each_condition_of_a_heartbeat_is_a_step() -> None:
    """Between steps the broker serves others; tags cost none."""
    wanted = [condition(topic=f"T{number}") for number in range(3)]
    wanted.append(SubscriptionData("T9", "*", set(), set(), 1, "TAG"))
    assert len(list(ConsumerFilters().registering("a", wanted, START_MS))) == 3


def test_every_change_counts_once_and_what_changes_nothing_does_not() -> None:
    """The writer of the file compares the number with that of what it has saved."""
    filters = ConsumerFilters()
    seen = []
    for wanted in (
        [condition()],
        [condition()],
        [condition("n = 2", 2)],
        [condition("n = 2", 3)],
        [condition("n = 1", 2)],
        [],
        [],
        [condition("n = 2", 3)],
    ):
        register(filters, "a", wanted, START_MS)
        seen.append(filters.generation)
    filters.unregister("a", START_MS)
    filters.unregister("a", START_MS)
    filters.unregister("nobody", START_MS)
    assert seen == [1, 1, 2, 3, 3, 4, 4, 5]
    assert filters.generation == 6


def test_a_condition_sent_again_keeps_its_compiled_form_and_its_birth() -> None:
    """Covers C-393: a client that restarts sends it with a newer version."""
    filters = ConsumerFilters()
    register(filters, "a", [condition()], START_MS)
    first = filters.get("T1", "a")
    assert first is not None
    compiled = first.compiled
    filters.unregister("a", START_MS + 1)
    assert first.is_dead
    register(filters, "a", [condition(version=2)], START_MS + 5)
    known = filters.get("T1", "a")
    assert known is first
    assert (known.compiled, known.born_ms, known.client_version) == (compiled, START_MS, 2)
    assert not known.is_dead
    register(filters, "a", [condition("n = 2", 3)], START_MS + 7)
    changed = filters.get("T1", "a")
    assert changed is not None
    assert (changed.born_ms, changed.is_dead) == (START_MS + 7, False)


def test_a_condition_that_dies_when_it_is_born_or_by_a_clock_set_back_is_dead() -> None:
    filters = ConsumerFilters()
    register(filters, "a", [condition()], START_MS)
    filters.unregister("a", START_MS - 60_000)
    known = filters.get("T1", "a")
    assert known is not None
    assert (known.is_dead, known.dead_ms) == (True, START_MS)


def test_the_file_holds_what_apaches_broker_reads() -> None:
    """Covers C-394."""
    filters = ConsumerFilters()
    register(filters, "a", [condition("n = 1", 4), condition("n = 2", 5, "T2")], START_MS)
    register(filters, "b", [condition("n = 3", 6)], START_MS + 1)
    filters.unregister("b", START_MS + 9)
    tables = filters.snapshot(START_MS + 9).filter_data_by_topic
    assert {topic: set(table.group_filter_data) for topic, table in tables.items()} == {
        "T1": {"a", "b"},
        "T2": {"a"},
    }
    alive, dead = (tables["T1"].group_filter_data[group] for group in "ab")
    assert (alive.consumer_group, alive.topic, alive.expression) == ("a", "T1", "n = 1")
    assert (alive.expression_type, alive.client_version) == ("SQL92", 4)
    assert (alive.born_time, alive.dead_time, alive.dead) == (START_MS, 0, False)
    assert (dead.born_time, dead.dead_time, dead.dead) == (START_MS + 1, START_MS + 9, True)
    assert alive.bloom_filter_data is not None
    assert len(alive.bloom_filter_data.bit_pos) == 3


def test_conditions_of_a_file_count_for_the_bound_and_bad_ones_are_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Even one that names the same group and topic twice takes its place once."""
    filters = ConsumerFilters()
    register(filters, "a", [condition("n = 12345"), condition("n = 2", 1, "T2")], START_MS)
    table = filters.snapshot(START_MS)
    table.filter_data_by_topic["again"] = table.filter_data_by_topic["T1"]
    table.filter_data_by_topic["T2"].group_filter_data["a"].expression = "n ="
    loaded = ConsumerFilters()
    (error,) = loaded.load(table, START_MS)
    assert "wrong at its end" in error.message
    assert loaded.get("T2", "a") is None
    monkeypatch.setattr(consumer_filters, "CONDITION_CHARS_MAX", 14)
    assert register(loaded, "b", [condition("n = 3")], START_MS) == []
    (error,) = register(loaded, "b", [condition("n = 4", 1, "T3")], START_MS)
    assert "over the maximum of 14 characters" in error.message
    known = loaded.get("T1", "a")
    assert known is not None
    loaded.snapshot(START_MS + 2 * DEAD_KEPT_MS)
    assert register(loaded, "b", [condition("n = 45678", 1, "T3")], START_MS) == []


@pytest.mark.parametrize(
    ("born_ms", "dead_ms", "loaded_ms"),
    [
        (START_MS - 100_000, 0, START_MS - 30_000),
        (START_MS - 10_000, 0, START_MS - 10_000),
        (START_MS - 100_000, START_MS - 7, START_MS - 7),
    ],
)
def test_a_condition_of_a_file_died_half_a_minute_ago_if_nothing_says_when(
    born_ms: int, dead_ms: int, loaded_ms: int
) -> None:
    """Covers C-393: not before it was born."""
    filters = ConsumerFilters()
    register(filters, "a", [condition()], born_ms)
    if dead_ms:
        filters.unregister("a", dead_ms)
    loaded = ConsumerFilters()
    loaded.load(filters.snapshot(born_ms), START_MS)
    known = loaded.get("T1", "a")
    assert known is not None
    assert (known.dead_ms, known.is_dead) == (loaded_ms, True)
