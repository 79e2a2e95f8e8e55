"""What a user prints in a notebook or a log tells what it is, without an address in memory."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

import rocketstream
from rocketstream import LiteTopicContext, LocalFileOffsetStore, aio, testing
from rocketstream.admin import Admin
from rocketstream.server.embedded import EmbeddedCluster
from rocketstream.testing import FaultProxy, ManualClock

MQ = rocketstream.MessageQueue("T", "broker-a", 1)


@pytest.mark.parametrize("module", [rocketstream, aio, testing])
def test_every_class_that_is_made_is_shown_with_what_it_is(module: Any) -> None:
    """Protocols and bases that users fill, and functions in the form of a class, aside."""
    bare = set()
    for name in module.__all__:
        kind = getattr(module, name)
        if not inspect.isclass(kind) or issubclass(kind, Exception):
            continue
        is_filled = getattr(kind, "_is_protocol", False) or inspect.isabstract(kind)
        if kind.__repr__ is object.__repr__ and not is_filled:
            bare.add(name)
    assert bare <= {"SelectMessageQueueByHash", "SelectMessageQueueByRandom", "LeakCheck"}


def test_contexts_show_what_the_listener_said() -> None:
    context = rocketstream.ConsumeConcurrentlyContext(MQ)
    context.ack_index = 3
    assert repr(context) == (
        f"ConsumeConcurrentlyContext({MQ!r}, ack_index=3, delay_level_when_next_consume=0)"
    )
    orderly = rocketstream.ConsumeOrderlyContext(MQ)
    assert repr(orderly) == (
        f"ConsumeOrderlyContext({MQ!r}, auto_commit=True, suspend_current_queue_time_ms=-1)"
    )
    lite = LiteTopicContext("agent-7", MQ, 500)
    assert repr(lite) == f"LiteTopicContext('agent-7', {MQ!r}, suspend_ms=500)"


def test_strategies_show_what_they_were_made_of() -> None:
    averagely = rocketstream.AllocateMessageQueueAveragely()
    assert repr(averagely) == "AllocateMessageQueueAveragely()"
    hashed = rocketstream.AllocateMessageQueueConsistentHash(5)
    assert repr(hashed) == "AllocateMessageQueueConsistentHash(virtual_node_cnt=5)"
    listed = rocketstream.AllocateMessageQueueByConfig([MQ])
    assert repr(listed) == f"AllocateMessageQueueByConfig(message_queues=[{MQ!r}])"
    nearby: Any = rocketstream.AllocateMachineRoomNearby(averagely, len)  # type: ignore[arg-type]
    assert "allocate_message_queue_strategy=AllocateMessageQueueAveragely()" in repr(nearby)


def test_a_store_is_shown_with_its_file(tmp_path: Any) -> None:
    store = LocalFileOffsetStore("client-1", "g", tmp_path)
    assert repr(store) == f"LocalFileOffsetStore(group='g', path={str(store.path)!r})"


def test_a_send_is_shown_with_its_outcome() -> None:
    with EmbeddedCluster() as cluster:
        assert repr(cluster) == (
            f"EmbeddedCluster(namesrv_addr={cluster.namesrv_addr!r}, brokers=['broker-a'])"
        )
        with Admin(cluster.namesrv_addr) as admin:
            admin.topics.create("T")
        with rocketstream.Producer("g", namesrv_addr=cluster.namesrv_addr) as producer:
            future = producer.send_async(rocketstream.Message("T", b"x"))
            result = future.result(10)
            assert repr(future) == f"SendFuture(finished, {result!r})"
    assert repr(cluster) == "EmbeddedCluster(not running)"


def test_helpers_of_tests_are_shown() -> None:
    clock = ManualClock(5_000)
    clock.advance(7)
    assert repr(clock) == "ManualClock(now_ms=5007, monotonic_ms=7)"
    with FaultProxy("127.0.0.1:9") as proxy:
        assert repr(proxy) == f"FaultProxy({proxy.address}, target='127.0.0.1:9')"
