"""What positions mean for the queues there are."""

from __future__ import annotations

import logging
from collections.abc import Iterable

import pytest

from rocketstream.errors import ConfigurationError, DataLossError
from rocketstream.model import MessageQueue
from rocketstream.spark.driver.positions import Resolver, batch_ranges
from rocketstream.spark.options import read_options
from rocketstream.spark.scan import QueueRange
from tests.kits.spark.fake_cluster import A, B, C, FakeCluster

NOW_MS = 60_000
AT_9S, AT_20S, AT_60S = (f"1970-01-01T00:{text}Z" for text in ("00:09", "00:20", "01:00"))


def resolver(**given: str) -> Resolver:
    """Over queue A, 0 to 100, and B, 5 to 50; offset n was stored at n seconds."""
    cluster = FakeCluster()
    cluster.group = {A: 30}
    options = {"nameServer": "h:1", "topic": "T", "group": "g"} | given
    return Resolver(cluster, read_options(options, "batch"), NOW_MS)


@pytest.mark.parametrize(
    ("given", "begins"),
    [
        ({}, {A: 0, B: 5}),
        ({"startingOffsets": '{"T":{"broker":{"0":7}}}'}, {A: 7, B: 5}),
        ({"startingOffsets": '{"T":-1}'}, {A: 100, B: 50}),
        ({"startingOffsets": "group"}, {A: 30, B: 5}),
        ({"startingTimestamp": AT_20S}, {A: 20, B: 20}),
        ({"startingTimestamp": "-20s"}, {A: 40, B: 40}),
        ({"startingTimestamp": AT_60S}, {A: 60, B: 50}),
        (
            {"startingOffsetsByTimestamp": f'{{"T":{{"broker":{{"0":"{AT_9S}"}}}}}}'},
            {A: 9, B: 5},
        ),
    ],
)
def test_a_read_begins_where_its_position_says(given: dict[str, str], begins: object) -> None:
    """A queue the user did not name is read whole: nothing is left out unless somebody said so."""
    assert resolver(**given).begins([A, B]) == begins


@pytest.mark.parametrize(
    ("given", "ends"),
    [
        ({}, {A: 100, B: 50}),
        ({"endingOffsets": '{"T":{"broker":{"0":7}}}'}, {A: 7, B: 50}),
        ({"endingOffsets": "group"}, {A: 30, B: 5}),
        ({"endingTimestamp": "-20s"}, {A: 40, B: 40}),
        (
            {"endingOffsetsByTimestamp": f'{{"T":{{"broker":{{"1":"{AT_9S}"}}}}}}'},
            {A: 100, B: 9},
        ),
    ],
)
def test_a_read_ends_where_its_position_says(given: dict[str, str], ends: object) -> None:
    """Exclusive; a queue the user did not name is read whole."""
    assert resolver(**given).ends([A, B]) == ends


def test_a_strategy_makes_a_time_after_everything_an_error() -> None:
    """The queue is named, and what to do."""
    strict = resolver(startingTimestamp=AT_60S, startingOffsetsByTimestampStrategy="error")
    with pytest.raises(ConfigurationError, match="queue 1 holds no message stored at"):
        strict.begins([A, B])


@pytest.mark.parametrize("option", ["startingOffsets", "startingOffsetsByTimestamp"])
def test_queues_that_do_not_exist_are_named_beside_those_that_do(option: str) -> None:
    """A typing error would go unseen."""
    strange = resolver(**{option: '{"T":{"broker":{"9":0},"other":0}}'})
    with pytest.raises(
        ConfigurationError,
        match=f"'{option}'.* do not exist: T/broker/9, T/other; there are T/broker/0, T/broker/1",
    ):
        strange.begins([A, B])


def test_a_queue_the_group_has_no_offset_of_is_told(caplog: pytest.LogCaptureFixture) -> None:
    """It begins at its oldest message, so that none is passed over."""
    with caplog.at_level(logging.WARNING, "rocketstream.spark"):
        resolver(startingOffsets="group").begins([A, B])
    assert "group 'g' has no offset" in caplog.text
    assert "queue 1" in caplog.text
    assert "queue 0" not in caplog.text


def batch(cluster: FakeCluster, **given: str) -> list[QueueRange]:
    options = {"nameServer": "h:1", "topic": "T", "group": "g"} | given
    return batch_ranges(read_options(options, "batch"), cluster, cluster.clock)


@pytest.mark.parametrize("committed", [3, 51])
def test_a_group_that_is_elsewhere_than_the_queue_is_a_loss(committed: int) -> None:
    """Before its oldest message, or beyond its end: it is not the queue the group knew."""
    cluster = FakeCluster()
    cluster.group = {A: 10, B: committed}
    with pytest.raises(DataLossError, match=r"queue 1: offsets .* but the queue holds 5 to 49"):
        batch(cluster, startingOffsets="group")
    cluster.group[B] = 50
    assert batch(cluster, startingOffsets="group") == [QueueRange(A, 10, 100)]


def test_a_stream_from_a_group_before_the_oldest_message_keeps_the_rows_in_its_range() -> None:
    """Whoever reads the range finds them gone and says so; they are not passed over here."""
    cluster = FakeCluster(startingOffsets="group", group="g")
    cluster.group = {A: 90, B: 2}
    begin = cluster.source.initial()
    end = cluster.latest(begin)
    assert cluster.source.ranges(begin, end) == [QueueRange(A, 90, 100), QueueRange(B, 2, 50)]


@pytest.mark.parametrize(
    ("kind", "given"),
    [("offsets", {"startingOffsets": '{"T":{"broker":{"1":90}}}'}),
     ("group", {"startingOffsets": "group", "group": "g"})],
)  # fmt: skip
def test_a_stream_from_beyond_the_end_is_a_mistake_or_begins_at_the_end(
    kind: str, given: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    """Read from the beginning it would give exactly the rows that were to be passed over."""
    strict, easy = FakeCluster(**given), FakeCluster(**given, failOnDataLoss="false")
    strict.group = easy.group = {A: 0, B: 90}
    said = rf"queue 1: option 'startingOffsets' \({kind}\) begins at offset 90.* holds 5 to 49"
    with pytest.raises(DataLossError, match=said):
        strict.source.initial()
    with caplog.at_level(logging.WARNING, "rocketstream.spark"):
        begin = easy.source.initial()
    assert (begin.ends, caplog.text.count("begins at offset 90")) == ({A: 0, B: 50}, 1)
    easy.table[B][1] = 53
    end = easy.latest(begin)
    assert easy.source.ranges(begin, end) == [QueueRange(A, 0, 100), QueueRange(B, 50, 53)]


def test_queues_unnamed_are_read_whole_in_a_stream_too() -> None:
    """What is there already, as what appears under way."""
    cluster = FakeCluster(startingOffsets='{"T":{"broker":{"0":-1}}}')
    assert cluster.source.initial().ends == {A: 100, B: 5}
    assert C not in cluster.source.initial().ends


def test_times_of_no_queue_are_no_offsets() -> None:
    timed = resolver(startingTimestamp=AT_20S, endingTimestamp=AT_60S)
    assert timed.begins([]) == timed.ends([]) == {}


def test_the_offsets_are_those_of_the_group_that_was_given() -> None:
    cluster = FakeCluster()
    asked: list[str] = []

    def committed(group: str, queues: Iterable[MessageQueue]) -> dict[MessageQueue, int]:
        asked.append(group)
        return dict.fromkeys(queues, 7)

    cluster.committed = committed  # type: ignore[method-assign]
    assert batch(cluster, startingOffsets="group", endingOffsets="latest")[0].begin == 7
    assert asked == ["g"]
