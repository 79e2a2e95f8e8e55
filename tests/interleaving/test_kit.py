"""The kit finds races that are planted, and waits that nothing ends, and finds nothing else."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from types import FunctionType
from typing import Any

import pytest

from rocketstream import Producer
from rocketstream.client.instance import life_cycle
from rocketstream.client.instance.life_cycle import Client, LifeLock
from tests.interleaving.primitives import simulated
from tests.interleaving.scenes import SCENES, warm
from tests.interleaving.scheduler import HangError, Scheduler
from tests.interleaving.stage import Call, Stage, run_scene

# --- tiny objects ---------------------------------------------------------------------------------


class Counter:
    """Counts, by a lock or without one."""

    def __init__(self, lock: Any) -> None:
        self.lock = lock
        self.value = 0
        self.seen = dict.fromkeys(range(5))

    def add(self) -> None:
        with self.lock:
            value = self.value
            value += 1
            self.value = value

    def see(self) -> None:
        with self.lock:
            self.seen[len(self.seen)] = None

    def look(self) -> None:
        with self.lock:
            for _ in self.seen:
                self.value += 1


class NoLock:
    """Lets everybody in."""

    def acquire(self, *_: object, **__: object) -> bool:
        return True

    def release(self) -> None:
        """Do nothing."""

    def __enter__(self) -> bool:
        return True

    def __exit__(self, *_: object) -> None:
        """Do nothing."""


def at_once(seed: int, *functions: Callable[[], object]) -> list[BaseException]:
    """Call functions in threads, stopped at the lines of this file; return what they raised."""
    errors: list[BaseException] = []

    def run(function: Callable[[], object]) -> None:
        try:
            function()
        except Exception as error:
            errors.append(error)

    scheduler = Scheduler(seed, stopped=__file__)
    with simulated(scheduler):
        threads = [threading.Thread(target=run, args=(function,)) for function in functions]
        scheduler.explore(20)
        try:
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        finally:
            scheduler.stop_exploring()
    return errors


def counted(seed: int, lock: Any) -> int:
    """Return how far two threads count together."""
    counter = Counter(lock)
    at_once(seed, counter.add, counter.add)
    return counter.value


def test_a_lost_update_is_found() -> None:
    assert 1 in [counted(seed, NoLock()) for seed in range(40)]


def test_a_lock_keeps_updates() -> None:
    """A lock made within the scene; the scheduler sees who waits for it."""

    def both(seed: int) -> int:
        counter = Counter(NoLock())

        def prepared() -> None:
            counter.lock = threading.Lock()
            at = [threading.Thread(target=counter.add) for _ in range(2)]
            for each in at:
                each.start()
            for each in at:
                each.join()

        assert not at_once(seed, prepared)
        return counter.value

    assert {both(seed) for seed in range(40)} == {2}


def test_a_dict_that_changes_while_it_is_looked_at_is_found() -> None:
    def texts(seed: int) -> str:
        counter = Counter(NoLock())
        return "".join(map(str, at_once(seed, counter.look, counter.see)))

    assert any("changed size during iteration" in texts(seed) for seed in range(40))


def test_locks_taken_in_either_order_hang_and_it_is_said_where() -> None:
    def crossing(seed: int) -> str:
        def both() -> None:
            one, other = Counter(threading.Lock()), Counter(threading.Lock())

            def take(first: Counter, second: Counter) -> None:
                with first.lock:
                    second.add()

            pair = [
                threading.Thread(target=take, args=(one, other)),
                threading.Thread(target=take, args=(other, one)),
            ]
            for each in pair:
                each.start()
            for each in pair:
                each.join()

        try:
            at_once(seed, both)
        except HangError as error:
            return str(error)
        return ""

    hung = next(filter(None, map(crossing, range(40))))
    assert hung.count("second.add()") == 2


def test_time_passes_where_nobody_can_run() -> None:
    began, woken = time.monotonic(), list[str]()

    def sleeper(name: str, wait: Callable[[], object]) -> Callable[[], None]:
        def run() -> None:
            wait()
            woken.append(f"{name} after {time.monotonic() - since:.0f} s")

        return run

    scheduler = Scheduler(1, patience_s=90_000.0)
    with simulated(scheduler):
        since = time.monotonic()
        condition, latch = threading.Condition(), threading.Event()
        nothing: queue.SimpleQueue[int] = queue.SimpleQueue()

        def nothing_comes() -> None:
            with pytest.raises(queue.Empty):
                nothing.get(timeout=7_200)
            latch.set()

        def notified() -> None:
            with condition:
                condition.wait(3_600)

        waits = {"a day": lambda: latch.wait(86_400), "none": nothing_comes, "hour": notified}
        threads = [threading.Thread(target=sleeper(*each)) for each in waits.items()]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(woken) == ["a day after 7200 s", "hour after 3600 s", "none after 7200 s"]
    assert time.monotonic() - began < 3_600


# --- the product, with races planted --------------------------------------------------------------


def finds(name: str, play: Callable[[Stage], None], seeds: int) -> str:
    """Return the first finding among the seeds of a scene; empty where there is none."""
    warm()
    results = (run_scene(name, play, seed) for seed in range(seeds))
    return next((result.told() for result in results if result.problems), "")


def without_lock(monkeypatch: pytest.MonkeyPatch, kind: type, method: str, name: str) -> None:
    """Have objects of a class be made with a lock that lets everybody in."""
    made: Callable[..., None] = getattr(kind, method)

    def make(self: Any, *args: Any) -> None:
        made(self, *args)
        object.__setattr__(self, name, NoLock())

    monkeypatch.setattr(kind, method, make)


@pytest.mark.allow_leaks  # of a client that hangs
def test_a_start_and_a_shutdown_without_their_lock_are_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    without_lock(monkeypatch, LifeLock, "__init__", "lock")
    assert finds("beginning", SCENES["beginning"], 60)


def test_settings_changed_without_their_lock_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    without_lock(monkeypatch, Client, "_create", "_changing")
    assert "was set to" in finds("changing", SCENES["changing"], 60)


def test_a_field_that_another_thread_clears_between_two_looks_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def check(self: Any) -> None:
        if self._started is not None:
            self._started.engine.check_process()

    def ending(stage: Stage) -> None:
        producer = Producer("senders", **stage.ours())
        producer.start()
        stage.at_once(*(Call("shutdown", producer.shutdown) for _ in range(3)), within=30)

    code = check.__code__.replace(co_filename=life_cycle.__file__)  # where threads are stopped
    monkeypatch.setattr(Client, "_check_process", FunctionType(code, {}))
    assert "no attribute 'engine'" in finds("ending", ending, 100)
