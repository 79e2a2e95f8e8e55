"""Python's garbage scheduler in a process that only serves."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from rocketstream.server.gc_scheduler import LOOK_S, PATIENCE_S, GcScheduler


class Handle:
    """A timer that can be cancelled."""

    is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True


class Looks:
    """A loop whose timers run when told to, a processor, and a count of collections."""

    def __init__(self) -> None:
        self.used_s = 0.0
        self.collections = 0
        self.due: Callable[[], None] | None = None
        self.handle = Handle()

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Handle:
        assert delay_s == LOOK_S
        self.due = callback
        return self.handle

    def collect(self) -> None:
        self.collections += 1

    def look(self, used_s: float) -> None:
        """Let a second pass in which so much of the processor was used."""
        self.used_s += used_s
        assert self.due is not None
        self.due()


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Looks:
    monkeypatch.setattr(gc, "get_count", lambda: (0, 0, 5))
    return Looks()


@pytest.fixture
def scheduler(looks: Looks) -> Iterator[GcScheduler]:
    loop: Any = looks
    one = GcScheduler(loop, used_s=lambda: looks.used_s, collect=looks.collect)
    one.start()
    yield one
    one.close()


def test_old_objects_are_looked_through_in_an_idle_second_only(
    looks: Looks, scheduler: GcScheduler
) -> None:
    looks.look(0.5)
    assert looks.collections == 0
    looks.look(0.001)
    assert looks.collections == 1


def test_nothing_is_looked_through_where_nothing_grew_old(
    looks: Looks, scheduler: GcScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gc, "get_count", lambda: (700, 3, 0))
    looks.look(0.0)
    assert looks.collections == 0


def test_server_that_is_never_idle_looks_through_them_after_its_patience(
    looks: Looks, scheduler: GcScheduler
) -> None:
    """Garbage must not gather for ever."""
    for _ in range(int(PATIENCE_S / LOOK_S) - 1):
        looks.look(0.5)
    assert looks.collections == 0
    looks.look(0.5)
    assert looks.collections == 1
    looks.look(0.5)
    assert looks.collections == 1


@pytest.mark.parametrize(("frozen_before", "thaws"), [(0, 1), (7, 0)])
def test_no_full_collection_comes_of_itself_until_the_end(
    looks: Looks, monkeypatch: pytest.MonkeyPatch, frozen_before: int, thaws: int
) -> None:
    """What the program froze itself stays frozen: nobody can tell its objects from ours."""
    calls: list[str] = []
    for name in ("freeze", "unfreeze"):
        monkeypatch.setattr(gc, name, lambda name=name: calls.append(name))
    monkeypatch.setattr(gc, "get_freeze_count", lambda: frozen_before)
    before = gc.get_threshold()
    loop: Any = looks
    scheduler = GcScheduler(loop, used_s=lambda: looks.used_s, collect=looks.collect)
    scheduler.start()
    try:
        assert gc.get_threshold()[2] >= 1_000_000
        assert calls == ["freeze"]
    finally:
        scheduler.close()
    assert gc.get_threshold() == before
    assert calls == ["freeze"] + ["unfreeze"] * thaws
    assert looks.handle.is_cancelled
