"""The asyncio face of the admin client: awaited, never blocking the loop, cancellable, closed."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import suppress
from typing import Any

import pytest

from rocketstream import limits
from rocketstream._util.stopping import Stop, call_until, check_stop, wait_unless_stopped
from rocketstream.admin.aio import Admin
from rocketstream.errors import ClientStateError, ConfigurationError, RouteNotFoundError
from rocketstream.protocol.codes import RequestCode
from rocketstream.protocol.command import RemotingCommand
from rocketstream.server.embedded import EmbeddedCluster
from rocketstream.transport.blocking_pool import BlockingPool

WITHIN_S = 10.0


def run(story: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(story(), 30))


class Gate:
    """Holds every request of blocking clients until it is opened, and notes what was sent."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.open = threading.Event()
        self.sent: list[int] = []
        self.waiting = self.most_waiting = 0
        self._held = threading.Semaphore(0)
        self._lock = threading.Lock()
        through = BlockingPool.request

        def request(
            pool: BlockingPool, address: str, command: RemotingCommand, timeout_ms: float
        ) -> RemotingCommand:
            with self._lock:
                self.sent.append(command.code)
                self.waiting += 1
                self.most_waiting = max(self.most_waiting, self.waiting)
            self._held.release()
            assert self.open.wait(WITHIN_S)
            with self._lock:
                self.waiting -= 1
            return through(pool, address, command, timeout_ms)

        monkeypatch.setattr(BlockingPool, "request", request)

    async def until_held(self) -> None:
        """Return when one more request is held."""
        assert await asyncio.to_thread(self._held.acquire, timeout=WITHIN_S)


@pytest.fixture
def gate(rocketmq_cluster: EmbeddedCluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    gate = Gate(monkeypatch)
    yield gate
    gate.open.set()


def test_operations_are_awaited(rocketmq_cluster: EmbeddedCluster) -> None:
    async def story() -> None:
        async with Admin(rocketmq_cluster.namesrv_addr) as admin:
            await admin.topics.create("orders", 3)
            rows, topics = await asyncio.gather(admin.topics.status("orders"), admin.topics.all())
            assert len(rows) == 3
            assert "orders" in {row.topic for row in topics}
            with pytest.raises(RouteNotFoundError, match="nowhere"):
                await admin.topics.status("nowhere")

    run(story)


def test_wrong_settings_are_refused_as_by_the_sync_one() -> None:
    with pytest.raises(ConfigurationError, match="secret_key is missing"):
        Admin("127.0.0.1:1", access_key="me")


def test_the_loop_runs_and_few_threads_wait_while_brokers_are_silent(
    rocketmq_cluster: EmbeddedCluster, gate: Gate
) -> None:
    most = limits.ADMIN_CALLS_AT_ONCE_MAX

    async def story() -> None:
        async with Admin(rocketmq_cluster.namesrv_addr) as admin:
            asked = [asyncio.create_task(admin.brokers.all()) for _ in range(most + 5)]
            for _ in range(most):
                await gate.until_held()  # which takes a loop that runs
            assert not any(task.done() for task in asked)
            gate.open.set()
            assert len(await asyncio.gather(*asked)) == most + 5
            assert gate.most_waiting == most

    run(story)


def test_a_cancelled_question_asks_nothing_more_and_its_connection_stays_good(
    rocketmq_cluster: EmbeddedCluster, gate: Gate
) -> None:
    async def story() -> None:
        async with Admin(rocketmq_cluster.namesrv_addr) as admin:
            asked = asyncio.create_task(admin.topics.all())  # a chain of several requests
            await gate.until_held()
            asked.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asked
            gate.open.set()
            (row,) = await admin.brokers.all()
            assert row.broker_name == "broker-a"
        assert gate.sent.count(RequestCode.GET_BROKER_CLUSTER_INFO) == 1
        assert len(gate.sent) == 2, "the cancelled call went on asking"

    run(story)


def test_a_cancelled_change_is_carried_out_whole_before_the_end(
    rocketmq_cluster: EmbeddedCluster, gate: Gate
) -> None:
    async def story() -> None:
        async with Admin(rocketmq_cluster.namesrv_addr) as admin:
            change = asyncio.create_task(admin.topics.create("orders", 3))
            await gate.until_held()
            change.cancel()
            with pytest.raises(asyncio.CancelledError):
                await change
            gate.open.set()
        async with Admin(rocketmq_cluster.namesrv_addr) as admin:
            assert len(await admin.topics.status("orders")) == 3

    run(story)


def test_a_change_cancelled_before_its_turn_never_happens(
    rocketmq_cluster: EmbeddedCluster, gate: Gate
) -> None:
    async def story() -> None:
        async with Admin(rocketmq_cluster.namesrv_addr) as admin:
            busy = [
                asyncio.create_task(admin.brokers.all())
                for _ in range(limits.ADMIN_CALLS_AT_ONCE_MAX)
            ]
            for _ in busy:
                await gate.until_held()
            change = asyncio.create_task(admin.topics.create("orders", 3))
            await asyncio.sleep(0)
            change.cancel()
            with suppress(asyncio.CancelledError):
                await change
            gate.open.set()
            await asyncio.gather(*busy)
        assert RequestCode.UPDATE_AND_CREATE_TOPIC not in gate.sent

    run(story)


def test_closing_ends_questions_and_refuses_new_ones(
    rocketmq_cluster: EmbeddedCluster, gate: Gate
) -> None:
    async def story() -> None:
        admin = Admin(rocketmq_cluster.namesrv_addr)
        asked = asyncio.create_task(admin.topics.all())
        await gate.until_held()
        closing = asyncio.create_task(admin.close())
        await asyncio.sleep(0)
        with pytest.raises(ClientStateError, match="closed"):
            await admin.topics.all()
        gate.open.set()
        await closing
        with pytest.raises(ClientStateError, match="closed before it had an answer"):
            await asked  # a cancellation would end its task as if somebody had asked for that
        assert len(gate.sent) == 1
        await admin.close()

    run(story)


def test_a_cancelled_close_closes_once_the_change_under_way_is_carried_out(
    rocketmq_cluster: EmbeddedCluster, gate: Gate
) -> None:
    async def story() -> None:
        admin = Admin(rocketmq_cluster.namesrv_addr)
        closed, close = asyncio.Event(), admin._admin.close

        def close_connections() -> None:
            close()
            closed.set()

        admin._admin.close = close_connections  # type: ignore[method-assign]
        change = asyncio.create_task(admin.topics.create("orders", 3))
        await gate.until_held()
        closing = asyncio.create_task(admin.close())
        await asyncio.sleep(0)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        assert not closed.is_set(), "the change would end half way"
        gate.open.set()
        await change
        await closed.wait()

    run(story)


def test_a_stop_ends_a_call_once_so_that_cleaning_up_may_ask_peers() -> None:
    stop, cleaned = Stop(), []

    def call() -> None:
        try:
            stop.ask()
            check_stop()
        finally:
            check_stop()
            cleaned.append(True)

    with pytest.raises(asyncio.CancelledError):
        call_until(stop, call)
    assert cleaned
    check_stop()  # outside of the call nothing is stopped


def test_a_stop_ends_a_wait() -> None:
    stop, ended = Stop(), []

    def wait() -> None:
        with pytest.raises(asyncio.CancelledError):
            call_until(stop, lambda: wait_unless_stopped(3600))
        ended.append(True)

    waits = threading.Thread(target=wait)
    waits.start()
    stop.ask()
    waits.join(WITHIN_S)
    assert ended


def test_a_call_stopped_before_its_turn_does_not_begin() -> None:
    stop, ran = Stop(), []
    stop.ask()
    with pytest.raises(asyncio.CancelledError):
        call_until(stop, lambda: ran.append(True))
    assert not ran
