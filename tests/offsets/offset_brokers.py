"""Brokers as far as the store of offsets knows them; the test says what they answer."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, cast

from rocketstream.client.config import ClientConfig
from rocketstream.client.consumer.offsets.store import RemoteBrokerOffsetStore
from rocketstream.client.instance.groups import Groups
from rocketstream.client.instance.outage_log import OutageLog
from rocketstream.client.instance.routes import BrokerAddress
from rocketstream.model import MessageQueue
from rocketstream.testing import ManualClock

MASTER = "10.0.0.1:10911"
SLAVE = "10.0.0.9:10911"


def mq(queue_id: int = 0, broker: str = "broker-a") -> MessageQueue:
    return MessageQueue("T", broker, queue_id)


class Brokers:
    """As much of a client instance as the store uses; the test says what brokers answer."""

    def __init__(self, config: ClientConfig) -> None:
        self.config = config
        self.api = self.routes = self.links = self.route_updates = self
        self.addresses: dict[str, BrokerAddress] = {"broker-a": BrokerAddress(MASTER, False)}
        self.updates: list[str] = []
        self.sent: list[tuple[str, MessageQueue, int]] = []
        self.stored: dict[MessageQueue, int | Exception | None] = {}
        self.refuse: list[Exception] = []
        self.now = self.most = 0
        self.lost = 0
        self.loses = False
        self.asked: list[MessageQueue] = []
        self.clock = ManualClock()
        self.outages = OutageLog(self.clock, "me", Groups())

    def channel(self, address: str) -> str:
        return address

    def losses(self, address: str) -> int:
        return self.lost

    def find_for_subscribe(self, broker_name: str, broker_id: int) -> BrokerAddress | None:
        # There is a slave too, which is no other server of the broker while its master is there.
        return self.addresses.get(broker_name) if not broker_id else BrokerAddress(SLAVE, True)

    async def update(self, topic: str) -> bool:
        self.updates.append(topic)
        return True

    async def query_consumer_offset(self, address: str, group: str, mq: MessageQueue) -> int | None:
        self.asked.append(mq)
        self.lost += self.loses
        stored = self.stored.get(mq)
        if isinstance(stored, Exception):
            raise stored
        return stored

    async def update_consumer_offset(
        self, address: str, group: str, mq: MessageQueue, offset: int
    ) -> None:
        self.now += 1
        self.most = max(self.most, self.now)
        await asyncio.sleep(0)
        self.now -= 1
        if self.refuse:
            raise self.refuse.pop(0)
        self.sent.append((address, mq, offset))
        self.lost += self.loses

    def offsets(self) -> list[int]:
        return [offset for _, _, offset in self.sent]


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(work)


def made(config: ClientConfig | None = None) -> tuple[Brokers, RemoteBrokerOffsetStore]:
    brokers = Brokers(config or ClientConfig())
    return brokers, RemoteBrokerOffsetStore(cast(Any, brokers), "g")


async def time_passes(brokers: Brokers, store: RemoteBrokerOffsetStore, ms: int) -> None:
    """Have a member live on that tells its offsets every five seconds."""
    for _ in range(ms // 5_000):
        brokers.clock.advance(5_000)
        await store.persist([])
    brokers.clock.advance(ms % 5_000)


async def say(store: RemoteBrokerOffsetStore, *mqs: MessageQueue) -> None:
    """Have offsets said as often as it takes to count as confirmed."""
    await store.persist(mqs)
    await store.persist(mqs)
