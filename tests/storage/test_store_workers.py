"""Background work that is handed in: threads, and steps called by hand on the caller's thread."""

from __future__ import annotations

import asyncio
import logging
import threading
from pathlib import Path

import pytest

from rocketstream._util.workers import ThreadWorkers
from rocketstream.server.store import MessageStore
from rocketstream.testing.clock import ManualClock
from tests.kits.stores import FOREVER_MS, HandWorkers, QuickFiles, all_bodies, put, small_config

FOREVER_S = FOREVER_MS / 1000


def test_step_pauses_as_it_says_and_ends_with_none() -> None:
    """The pause a step returns is the time to its next call."""
    calls: list[int] = []
    ended = threading.Event()

    def step() -> float | None:
        calls.append(len(calls))
        if len(calls) < 3:
            return 0.0
        ended.set()
        return None

    worker = ThreadWorkers().start("steps", step, first_s=0.0)
    assert ended.wait(10)
    worker.stop()
    assert calls == [0, 1, 2]


def test_wake_calls_the_step_in_its_pause_and_again_after_a_running_one() -> None:
    """No wake is lost: neither in the pause nor while the step runs."""
    running, go_on, twice = threading.Event(), threading.Event(), threading.Event()
    calls: list[int] = []

    def step() -> float | None:
        calls.append(len(calls))
        running.set()
        assert go_on.wait(10)
        if len(calls) == 2:
            twice.set()
        return FOREVER_S

    worker = ThreadWorkers().start("steps", step, first_s=FOREVER_S)
    worker.wake()
    assert running.wait(10)
    worker.wake()
    go_on.set()
    assert twice.wait(10)
    worker.stop()
    assert calls == [0, 1]


def test_stop_waits_for_the_running_step() -> None:
    """When stop returns, no step runs and none will."""
    running, go_on = threading.Event(), threading.Event()
    done: list[bool] = []

    def step() -> float | None:
        running.set()
        assert go_on.wait(10)
        done.append(True)
        return 0.0

    worker = ThreadWorkers().start("steps", step, first_s=0.0)
    assert running.wait(10)
    threading.Timer(0.01, go_on.set).start()
    worker.stop()
    worker.stop()
    assert done


def test_a_step_that_raises_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    """A thread does not die in silence."""
    failed = threading.Event()

    def step() -> float | None:
        failed.set()
        raise ValueError("broken")

    with caplog.at_level(logging.ERROR):
        worker = ThreadWorkers().start("steps", step, first_s=0.0)
        assert failed.wait(10)
        worker.stop()
    assert "INTERNAL steps failed" in caplog.text


def test_submitted_functions_run_in_order_and_close_waits_for_them() -> None:
    """One at a time; what is submitted after close runs too."""

    async def main() -> list[int]:
        workers = ThreadWorkers()
        done: list[int] = []
        futures = [workers.submit(lambda n=n: done.append(n)) for n in range(5)]  # type: ignore[misc]
        workers.close()
        assert done == [0, 1, 2, 3, 4]
        await asyncio.gather(*futures)
        assert await workers.submit(lambda: len(done)) == 5
        workers.close()
        return done

    asyncio.run(main())


def test_store_runs_on_one_thread_with_workers_called_by_hand(tmp_path: Path) -> None:
    """Nothing in the store waits for a worker: a sync flush, the keeper and close, all by hand."""
    threads = threading.active_count()
    workers = HandWorkers()
    config = small_config(flush="sync", poll_interval_ms=100, keep_interval_ms=1000)
    store = MessageStore(tmp_path, config, ManualClock(), QuickFiles(), workers)  # type: ignore[arg-type]
    store.open()
    told: list[Exception | None] = []
    store.when_flushed(put(store, keys="k").end_offset, told.append)
    assert (told, workers.woken) == ([], ["store-flusher"])
    assert workers.steps["store-flusher"]() == 0.001 * config.flush_interval_ms
    assert told == [None]
    for _ in range(10):
        assert workers.steps["store-keeper"]() == 0.1
    assert (tmp_path / "checkpoint").exists()
    assert store.query_by_key("T1", "k", 10, 0, 1 << 60).records
    store.when_flushed(put(store).end_offset, told.append)
    store.close()
    assert (told, workers.steps) == ([None, None], {})
    assert threading.active_count() == threads
    store.open()
    assert len(all_bodies(store)) == 2
    store.close()
