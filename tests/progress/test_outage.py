"""Brokers that do not answer, or that no name server knows any more."""

from __future__ import annotations

from rocketstream.admin.state import BrokerState, ClusterState
from rocketstream.watch import BrokerDown
from rocketstream.watch.model import brokers_down


def seen(at_ms: int, **brokers: str | None) -> ClusterState:
    return ClusterState(
        at_ms,
        5,
        10,
        tuple(BrokerState("c", name, at_ms, error=error) for name, error in brokers.items()),
    )


def test_a_broker_is_down_since_the_first_sweep_it_did_not_answer() -> None:
    first = seen(1_000, a=None, b=None)
    assert brokers_down((), first) == ()
    down = brokers_down((), seen(2_000, a=None, b="silent"))
    assert down == (BrokerDown("b", 2_000, "silent"),)
    down = brokers_down(down, seen(3_000, a=None, b="refused"))
    assert down == (BrokerDown("b", 2_000, "refused"),)
    assert brokers_down(down, seen(4_000, a=None, b=None)) == ()
