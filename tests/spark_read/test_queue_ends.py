"""Queues and their ends are asked for when what is known is too old, and not before."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any, cast

import pytest

from rocketstream.errors import ConnectError, RocketMQError, SystemBusyError
from rocketstream.model import MessageQueue
from rocketstream.spark.driver.continuity import ENDS_LIFETIME_MS, QueueEnds
from rocketstream.testing import ManualClock
from tests.kits.spark.fake_cluster import A, B


class Asked:
    """As much of a cluster as is asked; ``fails`` is raised instead of the list of queues."""

    def __init__(self) -> None:
        self.known = [A]
        self.fails: RocketMQError | None = None
        self.lists = self.ends = 0

    def queues(self, *, refresh: bool, held: Collection[str]) -> list[MessageQueue]:
        assert refresh
        assert held == {"T"}
        self.lists += 1
        if self.fails is not None:
            raise self.fails
        return list(self.known)

    def max_offsets(self, queues: Iterable[MessageQueue]) -> dict[MessageQueue, int]:
        self.ends += 1
        return dict.fromkeys(queues, self.ends)


def made() -> tuple[Asked, ManualClock, QueueEnds]:
    cluster, clock = Asked(), ManualClock()
    return cluster, clock, QueueEnds(cast(Any, cluster), 1_000, clock)


def test_ends_are_asked_for_again_when_they_are_older_than_their_lifetime() -> None:
    cluster, clock, ends = made()
    assert ends.recent({"T"}) == {A: 1}
    clock.advance(ENDS_LIFETIME_MS)
    assert ends.recent({"T"}) == {A: 1}
    clock.advance(1)
    assert ends.recent({"T"}) == {A: 2}
    ends.forget_ends()
    assert ends.recent({"T"}) == {A: 3}
    assert (cluster.lists, cluster.ends) == (1, 3)


def test_queues_are_looked_up_again_when_they_are_older_than_allowed() -> None:
    cluster, clock, ends = made()
    assert ends.queues({"T"}) == [A]
    cluster.known = [A, B]
    clock.advance(1_000)
    assert ends.queues({"T"}) == [A]
    clock.advance(1)
    assert ends.queues({"T"}) == [A, B]
    cluster.known = [B]
    ends.forget_queues()
    assert ends.recent({"T"}) == {B: 1}


def test_ends_are_young_by_their_age_and_only_of_the_queues_there_are() -> None:
    cluster, clock, ends = made()
    assert not ends.are_younger(50, {"T"})
    ends.fresh({"T"})
    clock.advance(50)
    assert ends.are_younger(50, {"T"})
    clock.advance(1)
    assert not ends.are_younger(50, {"T"})
    cluster.known = [A, B]
    clock.advance(1_000)
    assert not ends.are_younger(5_000, {"T"})


def test_ends_are_not_young_where_it_cannot_be_said_which_queues_there_are() -> None:
    cluster, clock, ends = made()
    ends.fresh({"T"})
    clock.advance(1_001)
    cluster.fails = SystemBusyError(2, "busy")
    assert not ends.are_younger(5_000, {"T"})


def test_queues_that_are_known_stay_while_nobody_can_be_reached() -> None:
    cluster, clock, ends = made()
    cluster.fails = ConnectError("refused")
    with pytest.raises(ConnectError):
        ends.queues({"T"})
    cluster.fails = None
    assert ends.queues({"T"}) == [A]
    clock.advance(1_001)
    cluster.fails = ConnectError("refused")
    assert ends.queues({"T"}) == [A]
