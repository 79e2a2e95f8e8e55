"""Brokers that do not answer, or that no name server knows any more."""

from __future__ import annotations

from dataclasses import replace

from rocketstream.admin.state import BrokerState, ClusterState
from rocketstream.watch import BrokerDown
from rocketstream.watch.model import FORGOTTEN_MS, brokers_down


def seen(at_ms: int, **brokers: str | None) -> ClusterState:
    return ClusterState(
        at_ms,
        5,
        10,
        tuple(BrokerState("c", name, at_ms, error=error) for name, error in brokers.items()),
    )


def test_a_broker_is_down_since_the_first_sweep_it_did_not_answer() -> None:
    first = seen(1_000, a=None, b=None)
    assert brokers_down(None, (), first) == ()
    down = brokers_down(first, (), seen(2_000, a=None, b="silent"))
    assert down == (BrokerDown("b", 2_000, "silent"),)
    down = brokers_down(seen(2_000, a=None, b="silent"), down, seen(3_000, a=None, b="refused"))
    assert down == (BrokerDown("b", 2_000, "refused"),)
    assert brokers_down(first, down, seen(4_000, a=None, b=None)) == ()


def test_a_broker_that_the_name_servers_forgot_is_down_for_a_day_at_most() -> None:
    before = seen(1_000, a=None, b=None)
    down = brokers_down(before, (), seen(2_000, a=None))
    assert down == (BrokerDown("b", 2_000, "the name servers no longer know it"),)
    now = seen(3_000, a=None)
    assert brokers_down(now, down, now) == down
    later = replace(now, taken_ms=2_000 + FORGOTTEN_MS)
    assert brokers_down(now, down, later) == ()
