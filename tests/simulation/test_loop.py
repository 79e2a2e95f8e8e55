"""Virtual time: the order of callbacks, timers, tasks, pauses and ends of simulated processes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rocketstream.errors import SimulationError
from rocketstream.testing.sim.loop import SPIN_STEPS, STEP_S, Scheduler, SimLoop


def new_loop() -> tuple[Scheduler, SimLoop]:
    scheduler = Scheduler()
    return scheduler, SimLoop(scheduler, "one")


def test_callbacks_run_in_the_order_of_time_and_then_of_scheduling() -> None:
    scheduler, loop = new_loop()
    seen: list[str] = []
    loop.call_later(2, seen.append, "later")
    loop.call_later(1, seen.append, "first of its time")
    loop.call_later(1, seen.append, "second of its time")
    loop.call_soon(seen.append, "at once")
    loop.call_soon_threadsafe(seen.append, "and this")
    scheduler.run(10)
    assert seen == ["at once", "and this", "first of its time", "second of its time", "later"]
    assert scheduler.now == 10


def test_cancelled_callbacks_do_not_run() -> None:
    scheduler, loop = new_loop()
    seen: list[str] = []
    timer = loop.call_later(1, seen.append, "timer")
    handle = loop.call_soon(seen.append, "handle")
    timer.cancel()
    handle.cancel()
    scheduler.run(10)
    assert seen == []


def test_time_passes_only_while_nothing_is_ready() -> None:
    scheduler, loop = new_loop()
    times: list[float] = []

    async def main() -> None:
        await asyncio.sleep(3_600)
        times.append(loop.time())
        await asyncio.wait_for(asyncio.sleep(5), 10)
        times.append(loop.time())

    loop.create_task(main())
    scheduler.run(10_000)
    assert times == [pytest.approx(3_600, abs=1e-3), pytest.approx(3_605, abs=1e-3)]


def test_spinning_process_makes_time_pass_and_ends_the_run() -> None:
    scheduler = Scheduler()
    loop = SimLoop(scheduler, "one")

    async def spin() -> None:
        while True:  # noqa: ASYNC110 (spinning is the point)
            await asyncio.sleep(0)

    loop.create_task(spin())
    with pytest.raises(SimulationError, match="spins"):
        scheduler.run(1_000)
    assert scheduler.now == pytest.approx(SPIN_STEPS * STEP_S)
    loop.die()
    loop.bury()


def test_run_in_executor_runs_later_and_gives_the_result_or_the_error() -> None:
    scheduler, loop = new_loop()
    loop.executor_delay = lambda: 2.0
    outcome: list[Any] = []

    def fail() -> None:
        raise KeyError("no")

    async def main() -> None:
        outcome.append(await loop.run_in_executor(None, lambda: 7))
        outcome.append(loop.time())
        with pytest.raises(KeyError):
            await asyncio.to_thread(fail)

    loop.create_task(main())
    scheduler.run(10)
    assert outcome == [7, pytest.approx(2, abs=1e-3)]


def test_paused_process_catches_up_in_order_and_others_go_on() -> None:
    scheduler, loop = new_loop()
    other = SimLoop(scheduler, "other")
    seen: list[tuple[str, int]] = []

    def note(text: str) -> None:
        seen.append((text, int(scheduler.now)))

    for second in range(1, 5):
        loop.call_later(second, note, f"paused {second}")
        other.call_later(second, note, f"other {second}")
    loop.pause()
    scheduler.call_later(2.5, loop.resume)
    scheduler.run(10)
    assert seen == [
        ("other 1", 1), ("other 2", 2), ("paused 1", 2), ("paused 2", 2),
        ("paused 3", 3), ("other 3", 3), ("paused 4", 4), ("other 4", 4),
    ]  # fmt: skip


def test_dead_process_runs_nothing_not_even_finally() -> None:
    scheduler, loop = new_loop()
    seen: list[str] = []

    async def main() -> None:
        try:
            await asyncio.sleep(5)
        finally:
            seen.append("finally")
            await asyncio.sleep(1)

    loop.create_task(main())
    loop.call_later(2, seen.append, "timer")
    scheduler.run(1)
    loop.die()
    scheduler.run(10)
    assert seen == []
    assert loop.is_closed()
    loop.call_soon(seen.append, "after the end")
    scheduler.run(20)
    assert seen == []
    loop.bury()
    assert seen == ["finally"], "when the simulation is over, frames are closed"


def test_task_that_never_began_is_buried_without_a_word() -> None:
    scheduler, loop = new_loop()

    async def main() -> None:
        await asyncio.sleep(1)

    loop.create_task(main())
    loop.die()
    scheduler.run(1)
    loop.bury()


def test_each_callback_sees_the_loop_of_its_own_process() -> None:
    scheduler, loop = new_loop()
    other = SimLoop(scheduler, "other")
    seen: list[asyncio.AbstractEventLoop] = []

    async def main() -> None:
        seen.append(asyncio.get_running_loop())
        await asyncio.sleep(0)
        seen.append(asyncio.get_running_loop())

    loop.create_task(main())
    other.create_task(main())
    scheduler.run(1)
    assert seen == [loop, other, loop, other]


def test_error_of_a_callback_is_reported_and_the_rest_goes_on() -> None:
    scheduler, loop = new_loop()
    reported: list[str] = []
    loop.on_error = lambda message, error: reported.append(f"{type(error).__name__}")
    seen: list[str] = []

    def fail() -> None:
        raise KeyError("no")

    loop.call_soon(fail)
    loop.call_soon(seen.append, "next")
    scheduler.run(1)
    assert reported == ["KeyError"]
    assert seen == ["next"]
