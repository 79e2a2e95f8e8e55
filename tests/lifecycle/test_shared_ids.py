"""Two processes with one client id: each is told, by Apache's brokers and by ours."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from rocketstream import PushConsumer, aio
from rocketstream.client.consumer.assignment import TWICE_EXPECTED
from rocketstream.protocol.bodies import ConsumerData
from rocketstream.protocol.codes import RequestCode
from rocketstream.server.broker.core.members import ConsumerMembers, Member
from rocketstream.server.embedded import EmbeddedCluster
from tests.kits.client.fake_broker import GROUP, TOPIC, FakeBroker
from tests.kits.listeners import SUCCESS
from tests.plugins.waiting import wait_until

LIST = RequestCode.GET_CONSUMER_LIST_BY_GROUP
TEXT = "has the client id 10.0.0.9@one too"


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    with FakeBroker() as running:
        running.offsets[0] = 0
        yield running


def settings(namesrv_addr: str) -> dict[str, Any]:
    return {
        "namesrv_addr": namesrv_addr,
        "client_ip": "10.0.0.9",
        "instance_name": "one",
        "heartbeat_broker_interval_ms": 20,
        "rebalance_interval_ms": 20,
    }


def test_a_member_that_a_broker_names_twice_is_told_that_it_shares_its_id(
    broker: FakeBroker, caplog: pytest.LogCaptureFixture
) -> None:
    """Apache's brokers name members by connection; a dead one may be named for two minutes."""
    consumer = PushConsumer(GROUP, listener=lambda _: SUCCESS, **settings(broker.address))
    broker.members = [consumer.client_id] * 2
    consumer.subscribe(TOPIC)
    with caplog.at_level(logging.WARNING, "rocketstream.client"), consumer:
        broker.wait_for(LIST, TWICE_EXPECTED + 2)
        wait_until(lambda: TEXT in caplog.text, "the line")
        assert "instance_name" in caplog.text
        broker.members = [consumer.client_id]
        count = len(broker.asked(LIST))
        broker.wait_for(LIST, count + 3)
    assert caplog.text.count(TEXT) == 1


def test_processes_that_share_an_id_are_both_told_by_the_embedded_broker(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """One on threads and one on asyncio have a connection each, as two processes have."""

    async def beside(namesrv_addr: str) -> None:
        async def listen(messages: list[Any]) -> Any:
            return SUCCESS

        other = aio.PushConsumer(GROUP, listener=listen, **settings(namesrv_addr))
        await other.subscribe(TOPIC)
        async with other:
            await asyncio.to_thread(wait_until, lambda: caplog.text.count(TEXT) == 2, "both lines")

    with EmbeddedCluster() as cluster:
        cluster.create_topic(TOPIC, queues=2)
        consumer = PushConsumer(GROUP, listener=lambda _: SUCCESS, **settings(cluster.namesrv_addr))
        consumer.subscribe(TOPIC)
        with caplog.at_level(logging.WARNING), consumer:
            asyncio.run(beside(cluster.namesrv_addr))
    assert "two processes have the client id 10.0.0.9@one" in caplog.text


def heard(members: ConsumerMembers, channel: str, now_ms: float, client_id: str = "c") -> Member:
    """Return the member behind a channel, heard at a time."""
    member = Member(channel, client_id, 0, 0, 0, now_ms)
    members.register(ConsumerData(group_name=GROUP), member)
    return member


def test_a_client_that_connected_anew_is_no_twin_of_its_own_old_connection() -> None:
    members = ConsumerMembers()
    heard(members, "old", 1)
    assert members.twin(GROUP, heard(members, "new", 2)) is None
    assert members.twin(GROUP, heard(members, "new", 3)) is None
    assert members.twin(GROUP, heard(members, "other", 4, "d")) is None
    assert members.twin("nobody", heard(members, "new", 5)) is None
    old = heard(members, "old", 6)
    found = members.twin(GROUP, old)
    assert found is not None
    assert found.channel == "new"
    new = members.twin(GROUP, heard(members, "new", 7))
    assert new is not None
    assert new.channel == "old"
