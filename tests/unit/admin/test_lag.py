"""Lags summed up, and offset tables by group."""

from __future__ import annotations

from rocketstream.admin.core.lag import groups_of_offsets, offsets_of_group, total_lag
from rocketstream.admin.rows import LagRow
from rocketstream.model import MessageQueue

QUEUE = MessageQueue("orders", "broker-a", 0)
OTHER = MessageQueue("orders", "broker-a", 1)


def row(queue_id: int, lag: int | None) -> LagRow:
    return LagRow("g", "orders", "broker-a", queue_id, 10, None, lag, None, None, None)


def test_total_counts_known_lags_and_says_how_many_are_unknown() -> None:
    rows = [row(0, 3), row(1, None)]
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
