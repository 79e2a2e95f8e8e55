"""The schedule service of the pull consumer: one task per allotted queue, again and again."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from rocketstream import MessageQueue, PullTaskContext
from rocketstream.errors import ConfigurationError
from tests.kits.cluster import Cluster
from tests.kits.faces import MQPullConsumerScheduleService, PullConsumer
from tests.kits.listeners import WAIT_S, numbered, send_all
from tests.plugins.clusters import Names
from tests.plugins.waiting import wait_until

pytestmark = pytest.mark.usefixtures("face")


class Draining:
    """Pulls its queue on from the noted offset; remembers bodies and calls."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.bodies: list[int] = []
        self.calls: dict[MessageQueue, int] = {}
        self.running: dict[MessageQueue, int] = {}
        self.overlapped = False
        self.delays: list[float] = []

    def do_pull_task(self, mq: MessageQueue, context: PullTaskContext) -> None:
        with self.changed:
            self.calls[mq] = self.calls.get(mq, 0) + 1
            self.running[mq] = self.running.get(mq, 0) + 1
            self.overlapped |= self.running[mq] > 1
            self.delays.append(context.pull_next_delay_ms)
        context.pull_next_delay_ms = 5
        consumer: PullConsumer = context.pull_consumer
        offset = max(consumer.fetch_consume_offset(mq), 0)
        result = consumer.pull(mq, "*", offset, 32)
        consumer.update_consume_offset(mq, result.next_begin_offset)
        with self.changed:
            self.bodies += [int(message.body) for message in result.msg_found_list]
            self.running[mq] -= 1
            self.changed.notify_all()

    def wait(self, count: int) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.bodies) >= count, WAIT_S), self.calls


def service_of(cluster: Cluster, names: Names, **more: Any) -> MQPullConsumerScheduleService:
    return MQPullConsumerScheduleService(names.group, namesrv_addr=cluster.namesrv_addr, **more)


def test_a_task_per_queue_is_called_again_and_again(cluster: Cluster, names: Names) -> None:
    """Covers C-500, C-502: at most one call per queue at once, 200 ms apart unless it says."""
    cluster.create_topic(names.topic, 3)
    send_all(cluster.namesrv_addr, numbered(names.topic, range(60)))
    task = Draining()
    with service_of(cluster, names) as service:
        service.register_pull_task_callback(names.topic, task)
        task.wait(60)
        assert len(task.calls) == 3
    assert sorted(task.bodies) == list(range(60))
    assert set(task.delays) == {200}
    assert not task.overlapped
    assert cluster.committed(names.group, names.topic, 3) == cluster.ends(names.topic, 3)


def test_queues_that_leave_lose_their_tasks(cluster: Cluster, names: Names) -> None:
    """Covers C-501: and queues that come get one at once; shutdown ends all (C-503)."""
    cluster.create_topic(names.topic, 4)
    one, two = Draining(), Draining()
    with service_of(cluster, names) as first:
        first.register_pull_task_callback(names.topic, one)
        wait_until(lambda: len(one.calls) == 4, "a task per queue")
        with service_of(cluster, names) as second:
            second.register_pull_task_callback(names.topic, two)
            wait_until(lambda: len(two.calls) == 2, "the second member's tasks")
            wait_until(lambda: len(first._cancelled) == 2, "the first member's fewer tasks")
            gone = [mq for mq in one.calls if mq not in first._cancelled]
            before = [one.calls[mq] for mq in gone]
            kept = next(iter(first._cancelled))
            goal = one.calls[kept] + 3
            wait_until(lambda: one.calls[kept] >= goal, "more calls of a kept queue")
            # A call that was already waiting for its turn may still have gone through.
            assert all(one.calls[mq] <= n + 1 for mq, n in zip(gone, before, strict=True))
        wait_until(lambda: len(first._cancelled) == 4, "all tasks again")
    calls = dict(one.calls)
    assert calls == one.calls


def test_a_task_that_raises_is_called_again_later(
    cluster: Cluster, names: Names, caplog: pytest.LogCaptureFixture
) -> None:
    """Covers C-502: logged, again after a second."""
    cluster.create_topic(names.topic, 1)
    called = threading.Semaphore(0)

    def task(mq: MessageQueue, context: PullTaskContext) -> None:
        called.release()
        raise LookupError("no")

    with service_of(cluster, names) as service:
        service.register_pull_task_callback(names.topic, task)
        assert called.acquire(timeout=WAIT_S)
        assert called.acquire(timeout=WAIT_S)
    assert "failed, again in 1000 ms" in caplog.text


def test_what_cannot_be_a_task_is_refused(cluster: Cluster, names: Names) -> None:
    """Covers C-500."""
    service = service_of(cluster, names)
    with pytest.raises(ConfigurationError, match="is not a pull task"):
        service.register_pull_task_callback(names.topic, 7)  # type: ignore[arg-type]


def test_tasks_run_on_as_many_threads_as_are_asked_for(cluster: Cluster, names: Names) -> None:
    """Covers C-500."""
    assert service_of(cluster, names).pull_thread_nums == 20
    assert service_of(cluster, names, pull_thread_nums=1).pull_thread_nums == 1
    with pytest.raises(ConfigurationError, match="pull_thread_nums must be a whole number"):
        service_of(cluster, names, pull_thread_nums=0)
