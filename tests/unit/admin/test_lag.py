"""How far a group is, computed from what brokers tell; what they do not tell stays unknown."""

from __future__ import annotations

from rocketstream.admin.lag import (
    GroupFacts,
    QueueProgress,
    delay_ms,
    groups_of_offsets,
    lag_row,
    lag_rows,
    offsets_of_group,
    only_owner,
    total_lag,
)
from rocketstream.model import MessageQueue
from rocketstream.protocol.bodies import (
    Connection,
    ConsumerConnection,
    QueueTimeSpan,
    SubscriptionData,
)

QUEUE = MessageQueue("orders", "broker-a", 0)
OTHER = MessageQueue("orders", "broker-a", 1)


def test_lag_is_broker_offset_minus_committed_offset() -> None:
    """Covers C-528."""
    row = lag_row("g", QUEUE, QueueProgress(100, 90, 1_700), GroupFacts())
    assert (row.broker_offset, row.consumer_offset, row.lag) == (100, 90, 10)
    assert row.last_consumed_ms == 1_700


def test_missing_offset_sent_as_zero_is_unknown_not_zero() -> None:
    """Brokers send 0 for "nothing committed" (C-527); the stored offsets tell the difference."""
    row = lag_row("g", QUEUE, QueueProgress(100, 0, 0), GroupFacts(stored={}))
    assert row.consumer_offset is None
    assert row.lag is None
    assert row.time_lag_ms is None
    assert row.last_consumed_ms is None


def test_offset_zero_that_is_stored_counts_everything_as_lag() -> None:
    row = lag_row("g", QUEUE, QueueProgress(100, 0, 0), GroupFacts(stored={QUEUE: 0}))
    assert (row.consumer_offset, row.lag) == (0, 100)


def test_zero_stays_unknown_when_the_broker_does_not_tell_its_offsets() -> None:
    row = lag_row("g", QUEUE, QueueProgress(100, 0, 0), GroupFacts(stored=None))
    assert row.lag is None


def test_empty_queue_without_offset_has_no_lag() -> None:
    row = lag_row("g", QUEUE, QueueProgress(0, 0, 0), GroupFacts(stored={}))
    assert (row.consumer_offset, row.lag, row.time_lag_ms) == (None, 0, 0)


def test_time_lag_is_the_delay_told_and_zero_when_caught_up() -> None:
    """Covers C-538: the age of the oldest message not yet consumed."""
    facts = GroupFacts(delays_ms={QUEUE: 5_000, OTHER: 7_000})
    assert lag_row("g", QUEUE, QueueProgress(10, 9, 1), facts).time_lag_ms == 5_000
    assert lag_row("g", OTHER, QueueProgress(10, 10, 1), facts).time_lag_ms == 0
    assert lag_row("g", QUEUE, QueueProgress(10, 9, 1), GroupFacts()).time_lag_ms is None


def test_owner_is_named_where_a_member_told() -> None:
    facts = GroupFacts(owners={QUEUE: "10.0.0.1@7"})
    rows = lag_rows("g", {OTHER: QueueProgress(1, 1, 1), QUEUE: QueueProgress(1, 1, 1)}, facts)
    assert [(row.queue_id, row.client_id) for row in rows] == [(0, "10.0.0.1@7"), (1, None)]


def test_total_counts_known_lags_and_says_how_many_are_unknown() -> None:
    rows = lag_rows(
        "g", {QUEUE: QueueProgress(10, 7, 1), OTHER: QueueProgress(10, 0, 0)}, GroupFacts(stored={})
    )
    assert total_lag(rows) == (3, 1)
    assert total_lag(rows[1:]) == (None, 1)
    assert total_lag([]) == (None, 0)


def test_offset_tables_are_read_by_their_last_at_sign() -> None:
    """Keys are ``topic@group`` (wire-and-storage 3.4)."""
    tables = {"broker-a": {"orders@g": {0: 5, 1: 6}, "%RETRY%g@g": {0: 1}, "orders@h": {0: 9}}}
    assert offsets_of_group(tables, "g") == {
        QUEUE: 5,
        OTHER: 6,
        MessageQueue("%RETRY%g", "broker-a", 0): 1,
    }
    assert groups_of_offsets(tables) == {"g": {"orders", "%RETRY%g"}, "h": {"orders"}}


def connection(*members: str, model: str = "CLUSTERING") -> ConsumerConnection:
    return ConsumerConnection(
        connection_set=[Connection(client_id=member) for member in members],
        subscription_table={"orders": SubscriptionData(topic="orders")},
        message_model=model,
    )


def test_an_only_member_owns_the_queues_of_what_it_subscribes() -> None:
    other = MessageQueue("left", "broker-a", 0)
    owners = only_owner([QUEUE, OTHER, other], {"broker-a": connection("m1")})
    assert owners == {QUEUE: "m1", OTHER: "m1"}


def test_the_owner_is_not_guessed_among_several_or_in_broadcasting() -> None:
    assert only_owner([QUEUE], {"broker-a": connection("m1", "m2")}) == {}
    assert only_owner([QUEUE], {"broker-a": connection("m1", model="BROADCASTING")}) == {}
    assert only_owner([QUEUE], {}) == {}


def span(delay: int, oldest: int, newest: int) -> QueueTimeSpan:
    return QueueTimeSpan(
        message_queue=QUEUE, min_time_stamp=oldest, max_time_stamp=newest, delay_time=delay
    )


def test_delay_is_what_the_broker_says() -> None:
    assert delay_ms(span(0, 1_000, 2_000)) == 0
    assert delay_ms(span(500, 1_000_000, 2_000_000)) == 500


def test_delay_of_a_deleted_message_is_that_of_the_oldest_kept() -> None:
    """A broker subtracts the store time -1 from its clock: decades."""
    now = 1_700_000_600_000
    assert delay_ms(span(now + 1, 1_700_000_000_000, 1_700_000_500_000)) == 600_000
    assert delay_ms(span(now + 1, -1, 1_700_000_500_000)) is None
