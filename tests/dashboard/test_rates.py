"""How many messages a second arrive, from the ends that sweeps found."""

from __future__ import annotations

from rocketstream.admin.state import ClusterState, TopicQueue, TopicState
from rocketstream.model import MessageQueue
from rocketstream.watch.series import TopicRates


def sweep(at_ms: int, **ends: tuple[int, ...]) -> ClusterState:
    topics = {
        name: TopicState(
            name,
            "normal",
            at_ms,
            queues=tuple(TopicQueue(name, "b", n, 0, high, None) for n, high in enumerate(highs)),
        )
        for name, highs in ends.items()
    }
    return ClusterState(at_ms, 1, 1, topics=topics)


def test_one_sweep_tells_no_rate() -> None:
    rates = TopicRates()
    rates.add(sweep(0, orders=(10,)))
    assert rates.rate("orders") is None
    assert rates.total() is None


def test_a_rate_is_what_arrived_over_the_time_between() -> None:
    rates = TopicRates()
    rates.add(sweep(0, orders=(10, 0), clicks=(5,)))
    rates.add(sweep(10_000, orders=(30, 10), clicks=(5,)))
    assert rates.rate("orders") == 3.0
    assert rates.queue_rate(MessageQueue("orders", "b", 0)) == 2.0
    assert rates.rate("clicks") == 0.0
    assert rates.total() == 3.0


def test_only_the_last_minute_counts() -> None:
    rates = TopicRates()
    rates.add(sweep(0, orders=(0,)))
    for second in range(10, 200, 10):
        rates.add(sweep(second * 1_000, orders=(6_000,)))
    assert rates.rate("orders") == 0.0


def test_a_topic_made_anew_has_no_negative_rate_and_a_new_one_none() -> None:
    rates = TopicRates()
    rates.add(sweep(0, orders=(100,)))
    rates.add(sweep(10_000, orders=(3,), fresh=(7,)))
    assert rates.rate("orders") == 0.0
    assert rates.rate("fresh") is None


def test_a_clock_that_went_back_begins_anew() -> None:
    rates = TopicRates()
    rates.add(sweep(100_000, orders=(100,)))
    rates.add(sweep(50_000, orders=(200,)))
    assert rates.rate("orders") is None


def test_the_same_sweep_once_more_changes_nothing() -> None:
    """As after a look into a group, which is told with the sweep before it."""
    rates = TopicRates()
    rates.add(sweep(0, orders=(10,)))
    rates.add(sweep(10_000, orders=(30,)))
    rates.add(sweep(10_000, orders=(30,)))
    assert rates.rate("orders") == 2.0


def test_there_is_no_rate_over_a_time_in_which_nobody_swept() -> None:
    """For a minute it would be that of the last hour."""
    rates = TopicRates()
    rates.add(sweep(0, orders=(0,)), is_first=True)
    rates.add(sweep(10_000, orders=(10,)))
    rates.add(sweep(3_610_000, orders=(36_000,)), is_first=True)
    assert rates.rate("orders") is None
    rates.add(sweep(3_620_000, orders=(36_010,)))
    assert rates.rate("orders") == 1.0
