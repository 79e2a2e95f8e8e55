"""Where servers speak TLS: a process that speaks none, and one that trusts nobody it meets.

Law: each of their calls ends with an error, and nothing was sent; no connection stays half made.
"""

from __future__ import annotations

import asyncio
from typing import Any

from rocketstream import aio
from rocketstream.errors import RocketMQError, SendError, SendOutcome
from rocketstream.model import Message
from rocketstream.testing.sim.network import Host
from rocketstream.testing.sim.producing import Sender
from rocketstream.testing.sim.tls import stuck
from rocketstream.testing.sim.world import Node, World
from rocketstream.transport.tls import client_context


class Mistrusting(Sender):
    """A process with a plain producer, and one that trusts the system's certificates alone.

    A message of its that is stored was never sent for the history.
    """

    def __init__(self, world: World, topic: str) -> None:
        self._topic = topic
        super().__init__(world, "mistrusting")

    async def _main(self, node: Node) -> None:
        contexts = {"plain": None, "mistrusting": client_context()}
        producers: dict[str, aio.Producer] = {}
        for name, context in contexts.items():
            settings: dict[str, Any] = {"ssl_context": context, "instance_name": name}
            producers[name] = aio.Producer("producers", **node.client(**settings))
            await producers[name].start()
        while not self._world.healed:
            await asyncio.sleep(1)
            for name, producer in producers.items():
                await self._send(name, producer)
        await asyncio.gather(*(producer.shutdown() for producer in producers.values()))
        node.kept["busy"] = False

    async def _send(self, name: str, producer: aio.Producer) -> None:
        try:
            await producer.send(Message(self._topic, b"x", keys="mistrusted"))
        except SendError as error:
            if error.outcome is not SendOutcome.NOT_SENT:
                self._world.fail(f"a {name} producer is told {error.outcome}: {error}", error)
        except RocketMQError as error:
            self._world.fail(f"a {name} producer is told something else: {error}", error)
        else:
            self._world.fail(f"a message of a {name} producer was taken")


def half_made(world: World) -> list[str]:
    """Return the connections of servers that shake hands, or end, for too long."""
    now_s = world.scheduler.now
    hosts: list[Host] = [
        world.network.hosts[node.host] for node in world.nodes.values() if not node.loop.is_paused
    ]
    return [
        f"{endpoint.local} < {endpoint.remote}"
        for host in hosts
        for endpoint in host.endpoints.values()
        if stuck(endpoint.transport, now_s)
    ]
