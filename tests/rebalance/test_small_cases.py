"""Every small case of dividing queues: members come, go and look, eight times in any order.

A state that came about twice is looked at once, so that all orders are, in a few seconds.
"""

from __future__ import annotations

from typing import Final

import pytest

from rocketstream.client.consumer.allocate import (
    AllocateMachineRoomNearby,
    AllocateMessageQueueAveragely,
    AllocateMessageQueueAveragelyByCircle,
    AllocateMessageQueueByMachineRoom,
    AllocateMessageQueueConsistentHash,
    AllocateMessageQueueStrategy,
    Assign,
    OwnQueue,
    plan,
    sorted_members,
)
from rocketstream.model import MessageQueue

DEPTH: Final = 8
MEMBERS_MAX, QUEUES_MAX = 4, 6

Table = frozenset[MessageQueue]
Tables = tuple[tuple[str, Table], ...]
"""The members that are there, each with its queues."""


class Rooms:
    """Two rooms: every other broker and every other member is in the second."""

    def broker_deploy_in(self, message_queue: MessageQueue) -> str:
        return message_queue.broker_name.split("@")[0]

    def consumer_deploy_in(self, client_id: str) -> str:
        return "east" if client_id in NAMES[::2] else "west"


NAMES: Final = [f"member-{number}" for number in range(MEMBERS_MAX)]
QUEUES: Final = [
    MessageQueue("T", f"{room}@broker", number) for number in range(3) for room in ("east", "west")
]
STRATEGIES: Final[tuple[AllocateMessageQueueStrategy, ...]] = (
    AllocateMessageQueueAveragely(),
    AllocateMessageQueueAveragelyByCircle(),
    AllocateMessageQueueConsistentHash(),
    AllocateMessageQueueByMachineRoom(["east", "west"]),
    AllocateMachineRoomNearby(AllocateMessageQueueAveragely(), Rooms()),
)
"""All but CONFIG, by which each member takes what it was told, whoever else is there."""


class Group:
    """Members of a topic whose queues a strategy divides."""

    def __init__(self, strategy: AllocateMessageQueueStrategy, queues: list[MessageQueue]) -> None:
        self._strategy = strategy
        self._queues = queues
        self._after: dict[tuple[Table, str, tuple[str, ...]], Table] = {}

    def rebalanced(self, tables: Tables, who: str) -> Tables:
        """Return the tables after one member has looked who is there, and followed its plan."""
        there = tuple(member for member, _ in tables)
        held = dict(tables)[who]
        key = held, who, there
        if key not in self._after:
            self._after[key] = self._followed(held, who, there)
        after = self._after[key]
        return tuple((member, after if member == who else table) for member, table in tables)

    def _followed(self, held: Table, who: str, there: tuple[str, ...]) -> Table:
        share = self._strategy.allocate("g", who, self._queues, sorted_members(there))
        changed = set(held)
        for effect in plan({queue: OwnQueue(queue) for queue in held}, "T", share, 0.0):
            if isinstance(effect, Assign):
                changed.add(effect.message_queue)
            else:
                changed.discard(effect.message_queue)
        assert changed == set(share)
        return frozenset(changed)


@pytest.mark.timeout(600)  # it computes, and other processes may hold it up
@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda strategy: strategy.name)
@pytest.mark.parametrize("members", range(1, MEMBERS_MAX + 1))
@pytest.mark.parametrize("count", range(1, QUEUES_MAX + 1))
def test_no_order_of_coming_and_going_leaves_a_queue_to_nobody_or_to_two(
    strategy: AllocateMessageQueueStrategy, members: int, count: int
) -> None:
    """Covers C-161, C-175: whatever they saw before, one look of each member divides all queues."""
    queues = sorted(QUEUES[:count])
    group = Group(strategy, queues)
    seen: set[Tables] = set()
    states: set[Tables] = {()}
    for _ in range(DEPTH):
        longer: set[Tables] = set()
        for tables in states:
            there = dict(tables)
            for name in NAMES[:members]:
                if name not in there:
                    longer.add(tuple(sorted([*tables, (name, frozenset())])))
                else:
                    longer.add(tuple(each for each in tables if each[0] != name))
                    longer.add(group.rebalanced(tables, name))
        states = longer - seen
        seen |= states
    for tables in seen:
        settled = tables
        for member, _ in tables:
            settled = group.rebalanced(settled, member)
        held = [queue for _, table in settled for queue in table]
        assert sorted(held) == (queues if settled else [])
    assert len(seen) >= 3**members
