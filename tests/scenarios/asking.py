"""Requests that wait for replies: processes that ask, and a group that answers."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

from rocketstream import aio, create_reply_message
from rocketstream.errors import RocketMQError
from rocketstream.model import ConsumeConcurrentlyStatus, Message
from rocketstream.protocol.message_ext import MessageExt
from rocketstream.testing.history import Recorder, Sending
from rocketstream.testing.sim.consuming import RecordingListener, SimGroup
from rocketstream.testing.sim.producing import SimProducer
from rocketstream.testing.sim.world import Node

REPLY_TIMEOUT_MS = 5_000


class SimAsker(SimProducer):
    """A process that sends requests and waits for their replies; a reply must be its request's."""

    async def _finish(
        self,
        sending: Sending,
        producer: aio.Producer,
        message: Message,
        shard: str | None,
        *,
        has_place: bool,
    ) -> None:
        try:
            reply = await producer.request(message, timeout_ms=REPLY_TIMEOUT_MS)
        except RocketMQError as error:
            sending.failed(error)
            return
        sending.acknowledged()
        self.node.kept["replies"] = self.node.kept.get("replies", 0) + 1
        if reply.body != reply_to(message.keys or ""):
            self._world.fail(f"{message.keys} was answered with {reply.body!r}")


def reply_to(key: str) -> bytes:
    """Return the reply to a request."""
    return b"reply to " + key.encode()


class SimAnsweringGroup(SimGroup):
    """A group whose members answer the requests they consume."""

    def listener(self, node: Node, recorder: Recorder) -> Callable[..., Awaitable[Any]]:
        """Return a listener that records its messages, and sends a reply for each."""
        own = RecordingListener(self, node, recorder)
        producer = aio.Producer("answerers", **node.client())
        starting = asyncio.Lock()
        started = False

        async def answer(messages: list[MessageExt]) -> ConsumeConcurrentlyStatus:
            nonlocal started
            status = await own.at_once(messages)
            for message in messages:
                reply = create_reply_message(message, reply_to(message.keys or ""))
                with contextlib.suppress(RocketMQError):  # who asks gives up, and says so
                    async with starting:
                        if not started:
                            await producer.start()
                            started = True
                    await producer.send(reply)
            return status

        return answer
