"""100,000 lite topics and one consumer on Apache's 5.5.0: subscribing, sending, consuming.

Not part of the suites: `python -m benchmarks.lite_topics [NUMBER]` starts a broker of its own and
prints one line of JSON. Law: one message to each lite topic, every one acknowledged; what is lost
or given twice is counted.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.harness import resident_mib
from rocketstream import ConsumeConcurrentlyStatus, Message, MessageExt, aio
from tests.kits.apache.cluster import ApacheCluster, ask
from tests.kits.apache.referee import REFEREES

TOPIC, GROUP = "agents", "agents-group"
SENDS_AT_ONCE = 64
SETTINGS = {
    "storeType": "defaultRocksDB",
    "enableLmq": "true",
    "enableMultiDispatch": "true",
    "maxLiteSubscriptionCount": "200000",
    "maxClientEventCount": "200000",
}


def prepare(cluster: ApacheCluster) -> None:
    """Make parent topic and group."""
    cluster.create_topic(TOPIC, queues=4, attributes="+message.type=LITE")
    attributes = {"+lite.bind.topic": TOPIC, "+lite.sub.client.max.event.cnt": "200000"}
    group = {"groupName": GROUP, "consumeEnable": True, "attributes": attributes}
    code, answer = ask(cluster.broker_addr, 200, {}, json.dumps(group).encode())
    if code:
        raise RuntimeError(f"the group was refused: {code} {answer!r}")


async def measure(cluster: ApacheCluster, number: int) -> dict[str, Any]:
    """Return the seconds of each step, and what was lost or given twice."""
    names = [f"agent-{index}" for index in range(number)]
    seen: dict[str, int] = {}
    received = 0
    all_there = asyncio.Event()

    async def listener(messages: list[MessageExt]) -> ConsumeConcurrentlyStatus:
        nonlocal received
        for message in messages:
            name = str(message.lite_topic)
            seen[name] = seen.get(name, 0) + 1
            received += 1
        if len(seen) == number:
            all_there.set()
        return ConsumeConcurrentlyStatus.CONSUME_SUCCESS

    figures: dict[str, Any] = {"lite_topics": number}

    async def send(producer: aio.Producer, some: list[str]) -> None:
        for name in some:
            await producer.send(Message(TOPIC, name, lite_topic=name), timeout_ms=30_000)

    addr = cluster.namesrv_addr
    async with (
        aio.Producer("agents-producer", namesrv_addr=addr) as producer,
        aio.LitePushConsumer(GROUP, TOPIC, namesrv_addr=addr, listener=listener) as consumer,
    ):
        began = time.perf_counter()
        await consumer.subscribe_lite(names)
        figures["subscribing_s"] = round(time.perf_counter() - began, 1)
        began = time.perf_counter()
        parts = [names[at::SENDS_AT_ONCE] for at in range(SENDS_AT_ONCE)]
        await asyncio.gather(*(send(producer, part) for part in parts))
        figures["sending_s"] = round(time.perf_counter() - began, 1)
        async with asyncio.timeout(600):
            await all_there.wait()
        figures["until_all_consumed_s"] = round(time.perf_counter() - began, 1)
        ending = time.perf_counter()
    figures["shutdown_s"] = round(time.perf_counter() - ending, 1)
    figures["lost"], figures["twice"] = number - len(seen), received - len(seen)
    figures["broker_mib"] = round(resident_mib(cluster.pids[1]))
    return figures


def main() -> None:
    """Start a broker, measure, print."""
    number = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    referee = REFEREES["5.5.0"]
    referee.prepare()
    with tempfile.TemporaryDirectory() as folder:
        cluster = ApacheCluster(
            referee, Path(folder), broker_settings=SETTINGS, broker_heap="1024m", jvm_options=()
        ).start()
        try:
            prepare(cluster)
            print(json.dumps(asyncio.run(measure(cluster, number))))
        finally:
            cluster.stop(kill=True)


if __name__ == "__main__":
    main()
