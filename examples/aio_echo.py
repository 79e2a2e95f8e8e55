"""The asyncio face: many sends under way at once, and a listener that awaits.

Run it against any cluster (NAMESRV_ADDR=host:9876 python examples/aio_echo.py) or without one.
"""

from __future__ import annotations

import asyncio
import os
from contextlib import AsyncExitStack

from rocketstream import ConsumeConcurrentlyStatus, ConsumeFromWhere, Message, MessageExt, aio

TOPIC, COUNT = "example-echo", 500


async def main() -> None:
    """Send, consume, and say how many came back."""
    async with AsyncExitStack() as stack:
        namesrv_addr = os.environ.get("NAMESRV_ADDR", "")
        if not namesrv_addr:
            from rocketstream.server.embedded import EmbeddedCluster

            cluster = await stack.enter_async_context(EmbeddedCluster())
            namesrv_addr = cluster.namesrv_addr
        producer = await stack.enter_async_context(
            aio.Producer("example-echo-producer", namesrv_addr=namesrv_addr)
        )
        await asyncio.gather(*(producer.send(Message(TOPIC, f"{n}")) for n in range(COUNT)))

        seen: set[str] = set()
        done = asyncio.Event()

        async def listener(messages: list[MessageExt]) -> ConsumeConcurrentlyStatus:
            seen.update(message.msg_id for message in messages)
            if len(seen) == COUNT:
                done.set()
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS

        consumer = aio.PushConsumer(
            "example-echo-consumer",
            namesrv_addr=namesrv_addr,
            consume_from_where=ConsumeFromWhere.FIRST_OFFSET,
            subscription={TOPIC: "*"},
            listener=listener,
        )
        await stack.enter_async_context(consumer)
        await asyncio.wait_for(done.wait(), 60)
    print(f"{len(seen)} of {COUNT} messages came back")


if __name__ == "__main__":
    asyncio.run(main())
