"""Background work on virtual time."""

from __future__ import annotations

from rocketstream.testing.sim.loop import Scheduler, SimLoop
from rocketstream.testing.sim.workers import SimWorkers


class Bench:
    """Workers of one process."""

    def __init__(self) -> None:
        self.scheduler = Scheduler()
        self.loop = SimLoop(self.scheduler, "one")
        self.workers = SimWorkers(self.loop, lambda: 0.25)
        self.times: list[int] = []

    def step(self) -> float | None:
        self.times.append(round(self.loop.time()))
        return 10.0 if len(self.times) < 3 else None


def test_step_is_called_as_it_says_until_it_says_no_more() -> None:
    bench = Bench()
    bench.workers.start("work", bench.step, first_s=5)
    bench.scheduler.run(1_000)
    assert bench.times == [5, 15, 26]


def test_woken_step_is_called_soon_and_again_if_woken_meanwhile() -> None:
    bench = Bench()
    worker = bench.workers.start("work", lambda: bench.step() and 100.0, first_s=100)
    worker.wake()
    worker.wake()
    bench.scheduler.run(50)
    assert bench.times == [0]
    bench.loop.call_later(1, worker.wake)
    bench.scheduler.run(60)
    assert bench.times == [0, 51]


def test_stopped_step_is_not_called() -> None:
    bench = Bench()
    worker = bench.workers.start("work", bench.step, first_s=5)
    worker.wake()
    worker.stop()
    bench.scheduler.run(100)
    assert bench.times == []


def test_functions_run_one_by_one_in_order_and_give_results_and_errors() -> None:
    bench = Bench()
    seen: list[object] = []

    def fail() -> None:
        raise KeyError("no")

    async def main() -> None:
        first = bench.workers.submit(lambda: seen.append("first"))
        second = bench.workers.submit(fail)
        third = bench.workers.submit(lambda: 3)
        await first
        assert await third == 3
        seen.append(type(second.exception()))

    bench.loop.create_task(main())
    bench.scheduler.run(0.2)
    assert seen == []
    bench.scheduler.run(10)
    assert seen == ["first", KeyError]


def test_close_runs_what_was_submitted() -> None:
    bench = Bench()
    seen: list[str] = []
    bench.workers.submit(lambda: seen.append("written"))
    bench.workers.close()
    assert seen == ["written"]
    bench.scheduler.run(10)
    assert seen == ["written"]


def test_work_of_a_dead_process_never_runs() -> None:
    bench = Bench()
    bench.workers.start("work", bench.step, first_s=5)
    bench.workers.submit(lambda: bench.times.append(-1))
    bench.loop.die()
    bench.scheduler.run(100)
    assert bench.times == []
