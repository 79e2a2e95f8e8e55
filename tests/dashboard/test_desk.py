"""However many ask, brokers see no more than the limits say, and nobody waits for ever."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any, cast

import pytest

from rocketstream import limits
from rocketstream._util.stopping import wait_unless_stopped
from rocketstream.admin import Admin
from rocketstream.dashboard.desk import Desk, DeskBusyError, DeskLateError
from rocketstream.errors import ConnectError
from rocketstream.testing.clock import ManualClock


class Fake:
    closed = 0

    def close(self) -> None:
        self.closed += 1


def with_desk(story: Callable[[Desk, ManualClock, Fake], Any]) -> None:
    clock, admin = ManualClock(), Fake()
    desk = Desk(lambda: cast(Admin, admin), clock)

    async def run() -> None:
        await story(desk, clock, admin)

    try:
        asyncio.run(run())
    finally:
        desk.close()
    assert admin.closed <= 1


def test_only_a_few_ask_at_once_and_a_few_wait() -> None:
    async def story(desk: Desk, clock: ManualClock, admin: Fake) -> None:
        gate, begun = threading.Event(), threading.Semaphore(0)
        at_once: list[int] = [0, 0]
        lock = threading.Lock()

        def question(admin: Admin) -> int:
            with lock:
                at_once[0] += 1
                at_once[1] = max(at_once)
            begun.release()
            gate.wait(10)
            with lock:
                at_once[0] -= 1
            return 1

        most = limits.DASHBOARD_ASKING_MAX + limits.DASHBOARD_WAITING_MAX
        asked = [asyncio.ensure_future(desk.ask(question)) for _ in range(most)]
        await asyncio.to_thread(
            lambda: [begun.acquire(timeout=10) for _ in range(limits.DASHBOARD_ASKING_MAX)]
        )
        with pytest.raises(DeskBusyError, match=str(most)):
            await desk.ask(question)
        gate.set()
        assert sum(await asyncio.gather(*asked)) == most
        assert at_once[1] == limits.DASHBOARD_ASKING_MAX
        assert await desk.ask(lambda admin: 2) == 2

    with_desk(story)


def test_who_asks_the_same_gets_the_same_answer_for_a_while() -> None:
    async def story(desk: Desk, clock: ManualClock, admin: Fake) -> None:
        count = 0

        def question(admin: Admin) -> int:
            nonlocal count
            count += 1
            return count

        async def ask() -> int:
            return await desk.ask(question, key="k", keep_ms=1_000)

        assert list(await asyncio.gather(ask(), ask(), ask())) == [1, 1, 1]
        clock.advance(999)
        assert await ask() == 1
        clock.advance(1)
        assert await ask() == 2
        desk.forget("k")
        assert await ask() == 3

    with_desk(story)


def test_a_failure_is_not_kept() -> None:
    async def story(desk: Desk, clock: ManualClock, admin: Fake) -> None:
        def fails(admin: Admin) -> int:
            raise ConnectError("nobody there")

        with pytest.raises(ConnectError):
            await desk.ask(fails, key="k", keep_ms=1_000)
        assert await desk.ask(lambda admin: 5, key="k", keep_ms=1_000) == 5

    with_desk(story)


def test_a_failure_that_is_there_at_once_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Since Python 3.14 what a thread answered may be done before the future is returned."""

    async def story(desk: Desk, clock: ManualClock, admin: Fake) -> None:
        loop = asyncio.get_running_loop()

        def at_once(pool: object, work: Callable[[], int]) -> asyncio.Future[int]:
            answer = loop.create_future()
            try:
                answer.set_result(work())
            except ConnectError as error:
                answer.set_exception(error)
            return answer

        def fails(admin: Admin) -> int:
            raise ConnectError("nobody there")

        monkeypatch.setattr(loop, "run_in_executor", at_once)
        with pytest.raises(ConnectError):
            await desk.ask(fails, key="k", keep_ms=1_000)
        assert await desk.ask(lambda admin: 5, key="k", keep_ms=1_000) == 5
        monkeypatch.undo()

    with_desk(story)


def test_an_answer_that_does_not_come_in_time_is_given_up_and_its_question_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "DASHBOARD_ANSWER_MS", 50)
    ended = threading.Event()

    async def story(desk: Desk, clock: ManualClock, admin: Fake) -> None:
        def question(admin: Admin) -> None:
            try:
                wait_unless_stopped(10)
            finally:
                ended.set()

        with pytest.raises(DeskLateError, match="no answer within"):
            await desk.ask(question)
        assert await asyncio.to_thread(ended.wait, 5)

    with_desk(story)


def test_kept_answers_are_bounded() -> None:
    async def story(desk: Desk, clock: ManualClock, admin: Fake) -> None:
        for number in range(limits.DASHBOARD_KEPT_MAX + 10):
            await desk.ask(lambda admin: 1, key=number, keep_ms=1e9)
        assert len(desk._kept) == limits.DASHBOARD_KEPT_MAX

    with_desk(story)
