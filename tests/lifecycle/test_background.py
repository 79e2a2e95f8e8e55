"""The tasks of a client instance that nobody waits for."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from rocketstream.client.instance import background as backgrounds
from rocketstream.client.instance.background import Background
from rocketstream.client.instance.groups import Groups
from rocketstream.client.instance.outage_log import OutageLog
from rocketstream.errors import ConnectError
from rocketstream.testing import ManualClock


def run(case: Callable[[Background], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        background = Background("me", OutageLog(ManualClock(), "me", Groups()))
        await case(background)
        await background.close()
        assert not background.tasks
        assert not background.timers

    asyncio.run(main())


async def work(done: list[str], name: str, pause: asyncio.Event | None = None) -> None:
    if pause is not None:
        await pause.wait()
    done.append(name)


def test_work_that_is_not_done_at_the_end_is_said_to_be_dropped() -> None:
    """Whether it runs, has not begun, or comes too late."""
    done: list[str] = []

    async def case(background: Background) -> None:
        background.run_soon(work(done, "quick"), lambda: done.append("quick dropped"))
        background.run_soon(work(done, "waits", asyncio.Event()), lambda: done.append("dropped"))
        await asyncio.sleep(0)
        background.run_soon(work(done, "new"), lambda: done.append("new dropped"))
        await background.close()
        background.run_soon(work(done, "late"), lambda: done.append("late dropped"))
        background.run_soon(work(done, "late"))

    run(case)
    assert sorted(done) == ["dropped", "late dropped", "new dropped", "quick"]


def test_work_that_ends_its_own_instance_goes_on() -> None:
    """Covers C-121: as a coroutine of users that shuts its client down; others are cancelled."""
    done: list[str] = []

    async def case(background: Background) -> None:
        async def end() -> None:
            await background.close()
            done.append("it went on")

        background.run_soon(work(done, "waits", asyncio.Event()), lambda: done.append("dropped"))
        background.run_soon(end(), lambda: done.append("the end was dropped"))
        await asyncio.wait(list(background.tasks))

    run(case)
    assert done == ["dropped", "it went on"]


def test_failures_in_the_background_are_logged_and_those_of_the_network_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def fail(error: Exception) -> None:
        raise error

    async def case(background: Background) -> None:
        for _ in range(2):
            background.run_soon(fail(ConnectError("refused", address="a:1")))
            background.run_soon(fail(ValueError("a mistake")))
        await asyncio.gather(*background.tasks)

    with caplog.at_level(logging.WARNING, "rocketstream.client"):
        run(case)
    assert [each.levelname for each in caplog.records].count("ERROR") == 2
    assert len([each for each in caplog.messages if each.startswith("server a:1 cannot")]) == 1


def test_a_timer_goes_on_when_its_work_fails(caplog: pytest.LogCaptureFixture) -> None:
    done = asyncio.Event()
    calls: list[int] = []

    async def beat() -> None:
        calls.append(1)
        if len(calls) == 2:
            done.set()
        raise ValueError("a mistake")

    async def case(background: Background) -> None:
        background.every("beats", 0, 0, beat)
        (timer,) = background.timers
        assert timer.get_name() == "rocketstream-beats"
        await done.wait()

    run(case)
    assert "timer beats failed" in caplog.messages


def test_timers_that_are_cancelled_from_outside_are_told_of_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(backgrounds, "CUT_OFF_AFTER_MS", 0)
    told: list[str] = []

    async def case(background: Background) -> None:
        cut = asyncio.Event()
        background.when_cut_off(lambda: told.append("client"))
        background.when_cut_off(cut.set)
        for name in ("a", "b"):
            background.every(name, 60_000, 60_000, lambda: asyncio.sleep(0))
        for timer in background.timers:
            timer.cancel()
        await cut.wait()

    run(case)
    assert told == ["client"]
    assert len([each for each in caplog.messages if "was cut off" in each]) == 1


def test_the_own_end_is_no_cut(caplog: pytest.LogCaptureFixture) -> None:
    told: list[str] = []

    async def case(background: Background) -> None:
        background.when_cut_off(lambda: told.append("client"))
        background.every("a", 60_000, 60_000, lambda: asyncio.sleep(0))
        await background.close()

    run(case)
    assert not told
