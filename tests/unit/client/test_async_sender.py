"""What the sender on the loop adds to the policy of sends: connecting within the time of a send."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from rocketstream.client.instance.mq_client import MQClientInstance
from rocketstream.client.instance.routes import RouteTable
from rocketstream.client.producer.async_sender import plain_sender
from rocketstream.client.producer.settings import ProducerSettings
from rocketstream.errors import ConnectError, SendError, SendOutcome


class Unreachable:
    """Connections that never come, which is told nobody."""

    async def connection(self, address: str) -> Any:
        await asyncio.get_running_loop().create_future()


def test_a_connection_that_takes_longer_than_the_send_is_given_up() -> None:
    """Covers C-80: nothing was sent, and the caller is not kept waiting."""
    instance = SimpleNamespace(
        remoting=Unreachable(),
        routes=RouteTable(),
        clock=SimpleNamespace(monotonic_ms=lambda: 0.0),
        config=SimpleNamespace(vip_channel_enabled=False),
    )
    sender = plain_sender(cast(MQClientInstance, instance), ProducerSettings("pg"))
    with pytest.raises(ConnectError, match=r"cannot connect to 192\.0\.2\.1:10911 within 5 ms"):
        asyncio.run(sender.connection("192.0.2.1:10911", 5))


class Spoilt:
    """Look-ups of routes that fail, for a reason nobody thought of."""

    async def publish(self, topic: str, key: str, queues: int) -> None:
        raise ValueError("spoilt")


def test_a_route_that_cannot_be_used_is_the_end_of_its_send() -> None:
    """Covers C-464: whoever waits is told that nothing was sent, whatever was raised."""
    instance = SimpleNamespace(
        routes=RouteTable(),
        route_updates=Spoilt(),
        clock=SimpleNamespace(monotonic_ms=lambda: 0.0),
        config=SimpleNamespace(vip_channel_enabled=False),
    )
    sender = plain_sender(cast(MQClientInstance, instance), ProducerSettings("pg"))
    end = asyncio.run(sender.route("T"))
    assert isinstance(end, SendError)
    assert (end.outcome, end.parameters["topic"]) == (SendOutcome.NOT_SENT, "T")
    assert "the route of topic 'T' cannot be used: ValueError('spoilt')" in str(end)
