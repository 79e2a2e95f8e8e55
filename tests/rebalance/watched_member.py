"""A member of a group that says what it was asked, and locks as the test says."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from rocketstream.client.consumer.queue import AssignedQueue
from rocketstream.model import MessageQueue
from tests.kits.client.model_cluster import BROKER, QUEUES, TOPIC, Member, World

ALL = [MessageQueue(TOPIC, BROKER, number) for number in range(QUEUES)]


class Watched(Member):
    """A member that says what it was asked, and locks as the test says."""

    sharing = replace(Member.sharing, in_order=True, release_wait_ms=0)

    def __init__(self, world: World, client_id: str) -> None:
        super().__init__(world, client_id)
        self.lockable: set[MessageQueue] = set(ALL)
        self.unlocked: list[MessageQueue] = []
        self.changes: list[tuple[int, int]] = []
        self.given_up: list[int] = []
        self.rounds = 0
        self.queues._instance.rebalance_soon = self.rebalance_soon  # type: ignore[attr-defined]

    def rebalance_soon(self) -> None:
        self.rounds += 1

    async def give_up(self, queues: Sequence[AssignedQueue]) -> None:
        self.given_up += [queue.message_queue.queue_id for queue in queues]

    async def may_take(self, mqs: Sequence[MessageQueue]) -> Collection[MessageQueue]:
        return [mq for mq in mqs if mq in self.lockable]

    async def released(self, mqs: Sequence[MessageQueue]) -> None:
        self.unlocked += mqs

    async def queues_changed(
        self, topic: str, all_queues: Sequence[MessageQueue], mine: Sequence[MessageQueue]
    ) -> None:
        self.changes.append((len(all_queues), len(mine)))


def own(member: Member) -> list[int]:
    return sorted(mq.queue_id for mq in member.queues.table)
