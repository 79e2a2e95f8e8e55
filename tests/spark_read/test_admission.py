"""How much one micro-batch holds, under every limit, and what a user may say of it."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from rocketstream.errors import ConfigurationError
from rocketstream.model import MessageQueue
from rocketstream.spark.driver.offsets import StreamOffset
from rocketstream.spark.driver.planning import Admission
from rocketstream.spark.options import TriggerLimits, read_options
from rocketstream.testing.clock import ManualClock
from tests.kits.spark.fake_cluster import A, B, FakeCluster


def limits(**given: str) -> TriggerLimits:
    return read_options({"nameServer": "h:1", "topic": "T"} | given, "stream").limits


@pytest.mark.parametrize(
    ("text", "size"), [("1000", 1_000), ("512k", 524_288), ("2 MB", 2_097_152), ("1g", 1 << 30)]
)
def test_bytes_have_units(text: str, size: int) -> None:
    """As Spark writes them."""
    assert limits(maxBytesPerTrigger=text).bytes_max == size


def test_the_longest_delay_is_kafkas_unless_it_is_said() -> None:
    """15 minutes; a bare number is milliseconds."""
    assert limits(minOffsetsPerTrigger="5").delay_max_ms == 900_000
    assert limits(minOffsetsPerTrigger="5", maxTriggerDelay="30s").delay_max_ms == 30_000
    assert limits(minOffsetsPerTrigger="5", maxTriggerDelay="250").delay_max_ms == 250


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"maxBytesPerTrigger": "0"}, "a number of bytes such as 1000000, 512k"),
        ({"maxBytesPerTrigger": "many"}, "a number of bytes such as 1000000, 512k"),
        ({"maxTriggerDelay": "1m"}, "'minOffsetsPerTrigger' .* not given"),
        ({"maxTriggerDelay": "soon", "minOffsetsPerTrigger": "2"}, "a length of time such as 15m"),
        ({"minOffsetsPerTrigger": "3", "maxOffsetsPerTrigger": "2"}, "no more than maxOffsetsPer"),
        ({"minOffsetsPerTrigger": "0"}, "a whole number of at least 1"),
    ],
)
def test_a_limit_that_is_none_is_refused(given: dict[str, str], text: str) -> None:
    """Option, value, remedy."""
    with pytest.raises(ConfigurationError, match=text):
        limits(**given)


@pytest.mark.parametrize(
    "name",
    ["maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay", "maxBytesPerTrigger"],
)
def test_a_batch_has_no_trigger_to_limit(name: str) -> None:
    """Ignored it would be taken for a limit."""
    given = {"nameServer": "h:1", "topic": "T", name: "5"}
    with pytest.raises(ConfigurationError, match=f"'{name}' is for streams; a batch is one piece"):
        read_options(given, "batch")


def test_rows_wait_for_company_but_not_for_ever() -> None:
    """As Spark's Kafka source: the first batch at once, then enough rows or the longest delay."""
    cluster = FakeCluster(minOffsetsPerTrigger="20", maxTriggerDelay="10s")
    end = cluster.latest(cluster.source.initial(), True)
    assert end.ends == {A: 100, B: 50}
    cluster.table[A][1] = 110
    assert cluster.latest(end, True) is end
    cluster.table[B][1] = 60
    enough = [further for _ in range(4) if (further := cluster.latest(end, True)) is not end]
    assert enough[0].ends == {A: 110, B: 60}
    cluster.table[A][1] = 111
    late = enough[0]
    began = cluster.clock.monotonic_ms()
    while late is enough[0]:
        late = cluster.latest(enough[0], True)
    assert late.ends == {A: 111, B: 60}
    assert 9_000 <= cluster.clock.monotonic_ms() - began <= 11_000


def test_rows_that_wait_cost_a_broker_two_questions_a_second() -> None:
    """Each message would be news, so nobody listens for news then."""
    cluster = FakeCluster(minOffsetsPerTrigger="1000")
    end = cluster.latest(cluster.source.initial(), True)
    questions, since = cluster.questions, cluster.clock.monotonic_ms()
    for _ in range(300):
        cluster.table[A][1] += 1
        cluster.clock.advance(50)
        assert cluster.source.latest(end, True) is end
    assert cluster.questions - questions <= (cluster.clock.monotonic_ms() - since) / 500 + 1


def test_available_now_does_not_wait_for_company() -> None:
    """Nothing more will come, so everything up to its target is read."""
    cluster = FakeCluster(minOffsetsPerTrigger="100", maxOffsetsPerTrigger="120")
    cluster.source.prepare_available_now()
    end = cluster.latest(cluster.source.initial(), True)
    assert sum(end.ends.values()) - 5 == 120
    end = cluster.latest(end, True)
    assert end.ends == {A: 100, B: 50}
    assert cluster.latest(end, True) is end


def test_bytes_bound_a_batch_by_what_its_messages_weigh() -> None:
    """100 rows of 1000 bytes and 45 of 100 wait; a tenth of their bytes is a tenth of the rows."""
    cluster = FakeCluster(maxBytesPerTrigger="10450")
    end = cluster.latest(cluster.source.initial(), True)
    assert (end.ends[A], end.ends[B] - 5) == (10, 4)


def test_a_message_greater_than_the_limit_is_read_nevertheless() -> None:
    """One of each queue at least, or the stream would stand still."""
    cluster = FakeCluster(maxBytesPerTrigger="1")
    end = cluster.latest(cluster.source.initial(), True)
    assert end.ends == {A: 1, B: 6}


def test_the_stricter_limit_counts_and_none_above_what_there_is() -> None:
    """Rows or bytes, whichever is reached first."""
    both = FakeCluster(maxBytesPerTrigger="10450", maxOffsetsPerTrigger="5")
    end = both.latest(both.source.initial(), True)
    assert sum(end.ends.values()) - 5 == 5
    wide = FakeCluster(maxBytesPerTrigger="1g")
    assert wide.latest(wide.source.initial(), True).ends == {A: 100, B: 50}


def test_least_and_most_of_a_batch_go_together() -> None:
    """The first batch at once, no batch above the most, none below the least before its time."""
    cluster = FakeCluster(
        minOffsetsPerTrigger="15", maxOffsetsPerTrigger="20", maxTriggerDelay="5s"
    )
    cluster.table = {A: [0, 21], B: [0, 12]}

    def rows(offset: StreamOffset) -> int:
        return sum(offset.ends.values())

    def wait(offset: StreamOffset) -> tuple[StreamOffset, float]:
        began = cluster.clock.monotonic_ms()
        while (further := cluster.latest(offset, True)) is offset:
            assert cluster.clock.monotonic_ms() - began < 10_000
        return further, cluster.clock.monotonic_ms() - began

    first = cluster.latest(cluster.source.initial(), True)
    assert rows(first) == 20
    assert cluster.latest(first, True) is first, "13 rows are too few"
    cluster.table[A][1] += 19
    second, waited = wait(first)
    assert (rows(second), waited < 4_000) == (40, True)
    third, waited = wait(second)
    assert (rows(third), waited >= 4_000) == (52, True)


def test_only_rows_that_are_there_are_counted_and_held_back() -> None:
    """Neither a queue without news nor one that ends before it was read makes a row."""
    admission = Admission(TriggerLimits(rows_min=5), lambda rows: {}, ManualClock())
    admission.triggered()
    begins = {A: 100, B: 50}
    assert admission.admitted(begins, {A: 104, B: 50}, final=False) == begins
    assert admission.holds_back
    assert admission.admitted(begins, {A: 104, B: 40}, final=False) == begins
    assert admission.admitted(begins, {A: 101, B: 50}, final=False) == begins
    assert admission.admitted(begins, {A: 105, B: 50}, final=False) == {A: 105, B: 50}
    assert admission.admitted(begins, {A: 105, B: 40}, final=False)[A] == 105
    assert admission.admitted(begins, dict(begins), final=False) == begins
    assert not admission.holds_back


def test_rows_are_weighed_at_places_where_some_wait() -> None:
    """From the first to the last of each queue, and of no queue without any."""
    asked: list[tuple[MessageQueue, int]] = []

    def sample(rows: Mapping[MessageQueue, int]) -> dict[MessageQueue, int]:
        asked.extend(rows.items())
        return dict.fromkeys(rows, 10)

    admission = Admission(TriggerLimits(bytes_max=500), sample, ManualClock())
    admitted = admission.admitted({A: 100, B: 50}, {A: 201, B: 50}, final=False)
    assert admitted == {A: 150, B: 50}
    assert {queue for queue, _ in asked} == {A}
    assert [at for _, at in asked] == [100, 150, 199]


def test_rows_whose_sizes_nobody_knows_are_not_held_back() -> None:
    """All that were sampled have been deleted meanwhile."""
    admission = Admission(TriggerLimits(bytes_max=5), lambda rows: {}, ManualClock())
    assert admission.admitted({A: 0}, {A: 100}, final=False) == {A: 100}


def test_a_great_message_is_read_by_itself() -> None:
    """The only queue gives one row where not even that is within the limit."""
    admission = Admission(
        TriggerLimits(bytes_max=5), lambda rows: dict.fromkeys(rows, 10), ManualClock()
    )
    assert admission.admitted({A: 3}, {A: 100}, final=False) == {A: 4}


def test_rows_wait_for_just_the_longest_delay_since_the_last_batch() -> None:
    clock = ManualClock()
    clock.advance(700)
    admission = Admission(TriggerLimits(rows_min=5, delay_max_ms=1_000), lambda rows: {}, clock)
    admission.triggered()
    clock.advance(999)
    assert admission.admitted({A: 0}, {A: 1}, final=False) == {A: 0}
    clock.advance(1)
    assert admission.admitted({A: 0}, {A: 1}, final=False) == {A: 1}


def test_spark_is_answered_no_sooner_while_rows_are_held_back() -> None:
    """It would ask a hundred times a second."""
    cluster = FakeCluster(minOffsetsPerTrigger="1000")
    end = cluster.latest(cluster.source.initial(), True)
    cluster.table[A][1] += 1
    assert cluster.source.latest(end, True) is end
    began = cluster.clock.monotonic_ms()
    assert cluster.source.latest(end, True) is end
    assert cluster.clock.monotonic_ms() - began == 100
