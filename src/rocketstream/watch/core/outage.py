"""Outages: since when a cluster, or one of its brokers, does not answer, and why.

Pure: values, and how a sweep changes them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from rocketstream.admin.state import ClusterState

FORGOTTEN_MS: Final = 24 * 3_600_000
"""A broker no name server has known for a day was taken away on purpose."""


@dataclass(frozen=True, slots=True)
class Outage:
    """No broker or name server of the cluster answers.

    Attributes:
        since_ms: when the first failed sweep after the last success was made, ms since 1970.
        error: the error of the last failed sweep.
        sweeps: how many sweeps failed in a row.
    """

    since_ms: int
    error: str
    sweeps: int


@dataclass(frozen=True, slots=True)
class BrokerDown:
    """A broker that does not answer, or that the name servers no longer know.

    Attributes:
        since_ms: when the first sweep was made that it did not answer, ms since 1970.
        error: why it could not be asked in the last sweep.
    """

    broker_name: str
    since_ms: int
    error: str


def brokers_down(
    before: ClusterState | None, down: Sequence[BrokerDown], now: ClusterState
) -> tuple[BrokerDown, ...]:
    """Return the brokers that are down after a sweep, sorted by name.

    Args:
        before: what the sweep before found; None at the first.
        down: the brokers that were down before.
        now: what this sweep found.
    """
    since = {each.broker_name: each.since_ms for each in down}
    errors = {each.broker_name: each.error for each in now.brokers if each.error is not None}
    known = {each.broker_name for each in now.brokers}
    former = {each.broker_name for each in (before.brokers if before is not None else ())}
    for name in (former | set(since)) - known:
        if now.taken_ms - since.get(name, now.taken_ms) < FORGOTTEN_MS:
            errors[name] = "the name servers no longer know it"
    return tuple(
        BrokerDown(name, since.get(name, now.taken_ms), error)
        for name, error in sorted(errors.items())
    )
