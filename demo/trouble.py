"""Which messages the listener refuses, and why, so that retry and dead letter really happen.

Law: pure and the same in every run.
"""

from __future__ import annotations

from collections.abc import Mapping

REFUSE_EVERY = 1_000
REFUSE_OFFSET = 7
GIVE_UP_EVERY = 8_000


class RefusedError(Exception):
    """What the listener raises for a chosen flight; the text is the cause."""


def refuses(flight_id: int, reconsume_times: int) -> bool:
    """Tell whether the listener raises: always for some flights, once for others."""
    if flight_id % REFUSE_EVERY != REFUSE_OFFSET:
        return False
    return reconsume_times == 0 or gives_up(flight_id)


def gives_up(flight_id: int) -> bool:
    """Tell whether the flight is refused every time and ends as a dead letter."""
    return flight_id % GIVE_UP_EVERY == REFUSE_OFFSET


def cause_of(flight: Mapping[str, object]) -> str:
    """Return why a chosen flight is refused; RocketMQ keeps no cause, the listener notes it."""
    if flight["dep_delay"] is None:
        return "cancelled: no departure"
    if flight["arr_delay"] is None:
        return "diverted: no arrival"
    return f"no gate free at {flight['origin']}"


def expected(flights: int) -> tuple[int, int]:
    """Return how many of the first ``flights`` are refused at first, and how many for ever."""
    refused = sum(1 for i in range(REFUSE_OFFSET, flights, REFUSE_EVERY))
    given_up = sum(1 for i in range(REFUSE_OFFSET, flights, GIVE_UP_EVERY))
    return refused, given_up
