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
        if old is not None and version < old[1]:
            return
        if old is not None and version == old[1]:
            self.known[key] = (old[0], version, True)
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


@given(STEPS)
def test_the_table_is_the_models(steps: list[Heartbeat | Leave]) -> None:
    """Covers C-393: the newest version counts, one that does not compile leaves nothing."""
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
