"""Which messages the listener refuses, so that retry and dead letter really happen.

Law: pure and the same in every run.
"""

from __future__ import annotations

REFUSE_EVERY = 1_000
REFUSE_OFFSET = 7
GIVE_UP_EVERY = 8_000


class RefusedError(Exception):
    """What the listener raises for a chosen flight."""


def refuses(flight_id: int, reconsume_times: int) -> bool:
    """Tell whether the listener raises: always for some flights, once for others."""
    if flight_id % REFUSE_EVERY != REFUSE_OFFSET:
        return False
    return reconsume_times == 0 or gives_up(flight_id)


def gives_up(flight_id: int) -> bool:
    """Tell whether the flight is refused every time and ends as a dead letter."""
    return flight_id % GIVE_UP_EVERY == REFUSE_OFFSET


def expected(flights: int) -> tuple[int, int]:
    """Return how many of the first ``flights`` are refused at first, and how many for ever."""
    refused = sum(1 for i in range(REFUSE_OFFSET, flights, REFUSE_EVERY))
    given_up = sum(1 for i in range(REFUSE_OFFSET, flights, GIVE_UP_EVERY))
    return refused, given_up
