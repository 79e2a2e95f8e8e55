"""Strategies by which simulated groups divide their queues: each there is, drawn for a group.

Law: all members of a group divide by the same one; together they have every queue.
"""

from __future__ import annotations

from rocketstream.client.consumer.allocate import (
    AllocateMachineRoomNearby,
    AllocateMessageQueueAveragely,
    AllocateMessageQueueAveragelyByCircle,
    AllocateMessageQueueByConfig,
    AllocateMessageQueueByMachineRoom,
    AllocateMessageQueueConsistentHash,
    AllocateMessageQueueStrategy,
)
from rocketstream.model import MessageQueue
from rocketstream.testing.sim.cluster import QUEUES_MAX
from rocketstream.testing.sim.world import World

ROOMS = ("north", "south")
GROUPS = ("crowd", "planners", "readers", "columns", "tagged_columns")
"""The groups that divide by strategies: each of a run by another one."""
WAYS = ("averagely", "circle", "hash", "configuration", "rooms", "nearby")


class _RoomOfBroker(AllocateMessageQueueByMachineRoom):
    """Each broker stands in the room of its name: ours take no name with an ``@``."""

    @staticmethod
    def _room(mq: MessageQueue) -> str:
        return mq.broker_name


class _Rooms:
    """The first broker stands in the one room, others in the other, and so do members."""

    def broker_deploy_in(self, message_queue: MessageQueue) -> str:
        """Return the room of the queue's broker."""
        return ROOMS[message_queue.broker_name != "broker-a"]

    def consumer_deploy_in(self, client_id: str) -> str:
        """Return the room of a member: its id ends with its number, and that of its start."""
        return ROOMS[int(client_id.split("@")[1].split("-")[1]) % 2]


def strategy(world: World, group: str, topic: str, member: int) -> AllocateMessageQueueStrategy:
    """Return the strategy of a member of a group; only by configuration it depends on which."""
    chance = world.random(f"strategy of {group}")
    ways = world.random("strategies").sample(WAYS, len(WAYS))
    way = ways[GROUPS.index(group)]
    if way == "circle":
        return AllocateMessageQueueAveragelyByCircle()
    if way == "hash":
        return AllocateMessageQueueConsistentHash(chance.choice((1, 10)))
    if way == "configuration":
        retries = [MessageQueue(f"%RETRY%{group}", each.name, 0) for each in world.cluster.brokers]
        queues = [
            MessageQueue(topic, each.name, number)
            for each in world.cluster.brokers
            for number in range(QUEUES_MAX)
        ]
        members = world.options.members
        own = [queue for queue in queues if queue.queue_id % members == member]
        return AllocateMessageQueueByConfig(own + (retries if member == 0 else []))
    if way == "rooms":
        return _RoomOfBroker([each.name for each in world.cluster.brokers])
    if way == "nearby":
        return AllocateMachineRoomNearby(AllocateMessageQueueAveragely(), _Rooms())
    return AllocateMessageQueueAveragely()
