"""Consumers that are broken off: by a listener that ends its worker, by a shutdown in a batch."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rocketstream import ConsumeConcurrentlyStatus, ConsumeFromWhere, ConsumeOrderlyStatus
from rocketstream.server.embedded import EmbeddedCluster
from rocketstream.spark import SparkPushConsumer
from tests.kits.spark.support import numbered, send

pytestmark = [pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(300)]

LONG_S = 120.0
NewTopic = Callable[..., str]


def consumer(
    spark: Any, cluster: EmbeddedCluster, topic: str, root: Path, listener: Any, **settings: Any
) -> SparkPushConsumer:
    """A consumer of a topic from its beginning; its group is called after topic and folder."""
    root.mkdir(exist_ok=True)
    return SparkPushConsumer(
        f"{topic}-{root.name}", spark, str(root / "checkpoint"), namesrv_addr=cluster.namesrv_addr,
        listener=listener, subscription={topic: "*"},
        consume_from_where=ConsumeFromWhere.FIRST_OFFSET, **settings,
    )  # fmt: skip


def numbers(notes: Path) -> list[int]:
    return [int(line) for line in notes.read_text().split()] if notes.exists() else []


def wait_for(notes: Path, count: int) -> list[int]:
    pause = threading.Event()
    for _ in range(int(LONG_S / 0.05)):
        if len(seen := numbers(notes)) >= count:
            return seen
        pause.wait(0.05)
    raise AssertionError(f"{count} calls never came: {seen}")


def test_a_listener_that_ends_its_worker_loses_nothing(
    spark: Any, shared_cluster: EmbeddedCluster, new_topic: NewTopic, tmp_path: Path
) -> None:
    """As one that runs out of memory: the query fails, the group is left, and it goes on later."""
    topic, notes, died = new_topic(queues=1), tmp_path / "notes", tmp_path / "died"
    send(shared_cluster, topic, 0, numbered(0, 5))

    def listener(messages: list[Any]) -> ConsumeConcurrentlyStatus:
        (message,) = messages
        if int(message.body) == 3 and not died.exists():
            died.touch()
            os._exit(9)
        with notes.open("a") as out:
            out.write(f"{int(message.body)}\n")
        return ConsumeConcurrentlyStatus.CONSUME_SUCCESS

    settings = {"consume_thread_max": 1, "trigger": {"availableNow": True}}
    with (
        consumer(spark, shared_cluster, topic, tmp_path / "w", listener, **settings) as first,
        pytest.raises(Exception, match="Python worker"),
    ):
        first.await_termination()
    assert first.state.name == "SHUTDOWN_ALREADY"
    with consumer(spark, shared_cluster, topic, tmp_path / "w", listener, **settings) as second:
        second.await_termination()
    assert set(numbers(notes)) == set(range(5))
    assert numbers(notes)[-5:] == list(range(5))


def test_a_call_that_hangs_holds_up_nobody_for_long(
    spark: Any, shared_cluster: EmbeddedCluster, new_topic: NewTopic, tmp_path: Path
) -> None:
    """All others are consumed, of its micro-batch and of those after it, while the call hangs."""
    topic, notes, let_go = new_topic(queues=2), tmp_path / "notes", tmp_path / "let-go"
    send(shared_cluster, topic, 0, numbered(0, 10))

    def listener(messages: list[Any]) -> ConsumeConcurrentlyStatus:
        (message,) = messages
        while int(message.body) == 3 and not let_go.exists():
            threading.Event().wait(0.05)
        with notes.open("a") as out:
            out.write(f"{int(message.body)}\n")
        return ConsumeConcurrentlyStatus.CONSUME_SUCCESS

    settings = {"micro_batch_timeout_ms": 500, "consume_thread_max": 2}
    with consumer(spark, shared_cluster, topic, tmp_path / "h", listener, **settings):
        others = {*range(10)} - {3}
        assert set(wait_for(notes, 9)) == others
        send(shared_cluster, topic, 1, numbered(10, 10))
        assert set(wait_for(notes, 19)) == others | {*range(10, 20)}
        let_go.touch()
        # By the call that was left behind, or by the copy that was sent back.
        assert 3 in wait_for(notes, 20)


def test_a_shutdown_in_a_batch_has_it_consumed_again(
    spark: Any, shared_cluster: EmbeddedCluster, new_topic: NewTopic, tmp_path: Path
) -> None:
    """What was under way counts as not consumed; ``suspend`` waits for a batch that ends."""
    topic, notes, go_on = new_topic(queues=1), tmp_path / "notes", tmp_path / "go-on"
    send(shared_cluster, topic, 0, numbered(0, 2))

    def listener(messages: list[Any]) -> ConsumeConcurrentlyStatus:
        (message,) = messages
        with notes.open("a") as out:
            out.write(f"{int(message.body)}\n")
        while int(message.body) == 1 and not go_on.exists():
            threading.Event().wait(0.05)
        return ConsumeConcurrentlyStatus.CONSUME_SUCCESS

    with consumer(spark, shared_cluster, topic, tmp_path / "s", listener) as first:
        wait_for(notes, 2)
        first.shutdown(await_ms=100)
    with consumer(spark, shared_cluster, topic, tmp_path / "s", listener) as second:
        assert sorted(wait_for(notes, 4)) == [0, 0, 1, 1]
        go_on.touch()
        second.suspend()
        assert second.query.lastProgress.numInputRows == 2
        second.resume()
        send(shared_cluster, topic, 0, numbered(2, 1))
        assert wait_for(notes, 5)[4:] == [2]


def test_two_consumers_of_a_session_do_not_mind_each_other(
    spark: Any, shared_cluster: EmbeddedCluster, new_topic: NewTopic, tmp_path: Path
) -> None:
    """Two groups, one of them in order; the end of one is not the other's."""
    topic, notes = new_topic(queues=2), [tmp_path / "notes-a", tmp_path / "notes-b"]
    send(shared_cluster, topic, 0, numbered(0, 10))

    def at_once(messages: list[Any]) -> ConsumeConcurrentlyStatus:
        with notes[0].open("a") as out:
            out.writelines(f"{int(message.body)}\n" for message in messages)
        return ConsumeConcurrentlyStatus.CONSUME_SUCCESS

    async def in_order(messages: list[Any]) -> ConsumeOrderlyStatus:
        with notes[1].open("a") as out:
            out.writelines(f"{int(message.body)}\n" for message in messages)
        return ConsumeOrderlyStatus.SUCCESS

    other = consumer(spark, shared_cluster, topic, tmp_path / "b", None)
    other.register_message_listener(in_order, orderly=True)
    with consumer(spark, shared_cluster, topic, tmp_path / "a", at_once) as one, other:
        assert sorted(wait_for(notes[0], 10)) == list(range(10))
        assert wait_for(notes[1], 10) == list(range(10))
        one.shutdown()
        send(shared_cluster, topic, 0, numbered(10, 5))
        assert wait_for(notes[1], 15)[10:] == list(range(10, 15))
    assert len(numbers(notes[0])) == 10
