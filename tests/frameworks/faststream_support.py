"""What the tests of the FastStream broker share.

Law: waits on what happens, with a deadline; one broker for each test.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from rocketstream import ClientConfig, Producer, PullConsumer
from rocketstream.errors import RouteNotFoundError
from rocketstream.frameworks.faststream import RocketMQBroker
from rocketstream.model import Message
from rocketstream.protocol.message_ext import MessageExt
from tests.frameworks.seen import until
from tests.kits.cluster import Cluster


def made(cluster: Cluster, **settings: Any) -> RocketMQBroker:
    """Return a broker of a cluster that commits often and logs nothing."""
    config = ClientConfig(namesrv_addr=cluster.namesrv_addr, persist_consumer_offset_interval_ms=50)
    settings.setdefault("logger", None)
    return RocketMQBroker(config=config, **settings)


@asynccontextmanager
async def running(broker: RocketMQBroker) -> AsyncIterator[RocketMQBroker]:
    """Start a broker and stop it."""
    try:
        await broker.start()
        yield broker
    finally:
        await broker.stop()


def stored(cluster: Cluster, topic: str) -> list[MessageExt]:
    """Return the messages a topic holds; none if there is no such topic."""
    with PullConsumer("looks", namesrv_addr=cluster.namesrv_addr) as consumer:
        try:
            queues = consumer.fetch_subscribe_message_queues(topic)
        except RouteNotFoundError:
            return []
        found = []
        for queue in queues:
            start, end = consumer.min_offset(queue), consumer.max_offset(queue)
            while start < end:
                result = consumer.pull(queue, "*", start, 32)
                found += result.msg_found_list
                start = result.next_begin_offset
        return found


async def dead(cluster: Cluster, group: str, count: int = 1) -> list[MessageExt]:
    """Wait for the dead letters of a group."""
    await until(lambda: len(stored(cluster, f"%DLQ%{group}")) >= count)
    return await asyncio.to_thread(stored, cluster, f"%DLQ%{group}")


def sent_by_hand(cluster: Cluster, *messages: Message) -> None:
    """Send messages as a program without FastStream does."""
    with Producer("by-hand", namesrv_addr=cluster.namesrv_addr) as producer:
        for message in messages:
            producer.send(message)
