"""A program that Airflow's own Python runs: how it finds the trigger, keeps it, and runs it.

Prints JSON, a line for each thing the test asks about.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import warnings
from typing import Any

from airflow.models.trigger import Trigger
from airflow.providers.common.messaging.triggers.msg_queue import MessageQueueTrigger
from airflow.serialization.decoders import smart_decode_trigger_kwargs
from airflow.serialization.encoders import encode_trigger
from airflow.triggers.base import BaseEventTrigger

from rocketstream import Message, Producer
from rocketstream.server.embedded import EmbeddedCluster


def say(**what: Any) -> None:
    print(json.dumps(what), flush=True)


def class_of(classpath: str) -> Any:
    module, _, name = classpath.rpartition(".")
    return getattr(importlib.import_module(module), name)


def restored(trigger: BaseEventTrigger) -> BaseEventTrigger:
    """Return the trigger a triggerer makes of what the DAG and the database kept."""
    row = Trigger(**json.loads(json.dumps(encode_trigger(trigger))))
    arguments = {name: smart_decode_trigger_kwargs(value) for name, value in row.kwargs.items()}
    made: BaseEventTrigger = class_of(row.classpath)(**arguments)
    return made


async def run(trigger: BaseEventTrigger, cluster: EmbeddedCluster, topic: str) -> None:
    """Run a trigger: some looks at an empty topic, then a message."""
    events = trigger.run()
    first = asyncio.ensure_future(anext(events))
    # As many looks as fit into a second; nothing was sent, so no event may ever come.
    done, _ = await asyncio.wait([first], timeout=1)
    before = len(done)

    def send() -> None:
        with Producer("senders", namesrv_addr=cluster.namesrv_addr) as producer:
            producer.send(Message(topic, b"{}"))

    await asyncio.to_thread(send)
    async with asyncio.timeout(60):
        event = await first
    say(before=before, payload=event.payload)
    await events.aclose()


def main() -> None:
    warnings.simplefilter("ignore")
    with EmbeddedCluster() as cluster:
        for topic in ("orders", "payments"):
            cluster.create_topic(topic, 2)
        settings: dict[str, Any] = {"group": "landing", "poll_interval_s": 0.05}
        by_scheme = MessageQueueTrigger(
            scheme="rocketmq", topics=["orders"], namesrv_addr=cluster.namesrv_addr, **settings
        )
        by_uri = MessageQueueTrigger(
            queue=f"rocketmq://{cluster.namesrv_addr}/payments?group=landing",
            poll_interval_s=0.05,
        )
        for found, topic in ((by_scheme, "orders"), (by_uri, "payments")):
            again = restored(found)
            classpath, arguments = found.serialize()
            same = again.serialize() == (classpath, arguments)
            hashes = {BaseEventTrigger.hash(*each.serialize()) for each in (found, again)}
            say(classpath=classpath, topics=arguments["topics"], same=same, hashes=len(hashes))
            asyncio.run(run(again, cluster, topic))


if __name__ == "__main__":
    main()
