"""What threads wait by, as the scheduler has it: locks, queues, threads, selectors, clocks.

Law: whatever is made while a scene runs, by one of its threads, is of these; whoever else runs in
this process, pytest's threads say, keeps the real ones.
"""

from __future__ import annotations

import _thread
import contextlib
import queue
import select
import selectors
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from rocketstream.client.instance import engine
from tests.interleaving.scheduler import Scheduler, ThreadState
from tests.interleaving.sockets import local_sockets


class SimLock:
    """``threading.Lock``; ``RLock`` where it is ``again``."""

    def __init__(self, scheduler: Scheduler, *, again: bool = False) -> None:
        self._scheduler = scheduler
        self._again = again
        self._owner: ThreadState | None = None
        self._count = 0

    def _is_free(self) -> bool:
        return self._count == 0

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """As the real one does."""
        scheduler = self._scheduler
        if self._again and self._count and self._owner is scheduler.current:
            self._count += 1
            return True
        if self._count:
            limit = None if timeout < 0 else timeout
            if not blocking or not scheduler.wait(self._is_free, limit):
                return False
        self._owner, self._count = scheduler.current, 1
        return True

    def release(self) -> None:
        """As the real one does."""
        if not self._count or (self._again and self._owner is not self._scheduler.current):
            raise RuntimeError("release unlocked lock")
        self._count -= 1
        if not self._count:
            self._owner = None

    def locked(self) -> bool:
        """As the real one does."""
        return self._count > 0

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()

    # What a condition asks of a lock that may be taken again.

    def _is_owned(self) -> bool:
        return self._count > 0 and self._owner is self._scheduler.current

    def _release_save(self) -> int:
        count, self._count, self._owner = self._count, 0, None
        return count

    def _acquire_restore(self, count: int) -> None:
        self._scheduler.wait(self._is_free)
        self._owner, self._count = self._scheduler.current, count


class SimQueue:
    """``queue.SimpleQueue``."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._items: deque[Any] = deque()

    def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
        """As the real one does."""
        self._items.append(item)

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        """As the real one does."""
        if not self._items and not (
            block and self._scheduler.wait(lambda: bool(self._items), timeout)
        ):
            raise queue.Empty
        return self._items.popleft()

    def empty(self) -> bool:
        """As the real one does."""
        return not self._items

    def qsize(self) -> int:
        """As the real one does."""
        return len(self._items)


class _Threads:
    """The methods of ``threading.Thread`` that begin a thread and wait for its end."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._states: dict[threading.Thread, ThreadState] = {}

    def start(self, thread: threading.Thread) -> None:
        if thread in self._states:
            raise RuntimeError("threads can only be started once")
        state = self._states[thread] = self._scheduler.add(thread.name)
        known: Any = thread
        known._ident = 0  # a thread that has an identity was started
        _thread.start_new_thread(self._main, (thread, state))
        self._scheduler.give_way()

    def _main(self, thread: Any, state: ThreadState) -> None:
        scheduler = self._scheduler
        active: dict[int, threading.Thread] = vars(threading)["_active"]
        thread._set_ident()
        active[thread._ident] = thread
        scheduler.enter(state)
        try:
            thread._started.set()
            thread.run()
        except SystemExit:
            pass
        except BaseException:
            threading.excepthook(threading.ExceptHookArgs((*sys.exc_info(), thread)))
        finally:
            del active[thread._ident]
            scheduler.leave(state)

    def forget(self) -> None:
        """Have those that hang, for ever now, be no threads to anybody else."""
        active: dict[int, threading.Thread] = vars(threading)["_active"]
        for thread, state in self._states.items():
            if not state.is_over and active.get(state.ident) is thread:
                del active[state.ident]

    def join(self, thread: threading.Thread, timeout: float | None = None) -> None:
        state = self._states[thread]
        if state is self._scheduler.current:
            raise RuntimeError("cannot join current thread")
        self._scheduler.wait(lambda: state.is_over, timeout)

    def is_alive(self, thread: threading.Thread) -> bool:
        state = self._states.get(thread)
        return state is not None and not state.is_over


def _selector(scheduler: Scheduler) -> type[selectors.BaseSelector]:
    """Return the class of a selector that lets others run while it waits."""
    kind: Any = selectors.DefaultSelector

    class SimSelector(kind):  # type: ignore[misc]
        def select(self, timeout: float | None = None) -> Any:
            found = super().select(0)
            if found or (timeout is not None and timeout <= 0) or not scheduler.is_mine:
                return found or super().select(timeout)
            look = super().select

            def has_come() -> bool:
                nonlocal found
                found = look(0)
                return bool(found)

            scheduler.wait(has_come, timeout)
            return found

    return SimSelector


def _poll(scheduler: Scheduler) -> Callable[[], Any]:
    """Return what makes a ``select.poll()`` that lets others run while it waits."""
    make = select.poll

    class SimPoll:
        def __init__(self) -> None:
            self._real = make()
            self.register = self._real.register
            self.unregister = self._real.unregister

        def poll(self, timeout: float | None = None) -> list[tuple[int, int]]:
            found = self._real.poll(0)
            if found or not scheduler.is_mine:
                return found or self._real.poll(timeout)

            def has_come() -> bool:
                nonlocal found
                found = self._real.poll(0)
                return bool(found)

            scheduler.wait(has_come, None if timeout is None else timeout / 1000)
            return found

    return SimPoll


class _Patches:
    """Attributes that have other values for a while."""

    def __init__(self) -> None:
        self._before: list[tuple[Any, str, Any]] = []

    def set(self, owner: Any, name: str, value: Any) -> None:
        self._before.append((owner, name, vars(owner)[name]))
        setattr(owner, name, value)

    def undo(self) -> None:
        while self._before:
            setattr(*self._before.pop())


def _for_mine(scheduler: Scheduler, mine: Callable[..., Any], real: Any) -> Callable[..., Any]:
    """Return a function that is ``mine`` to the scheduler's threads, ``real`` to all others."""

    def choose(*args: Any, **kwargs: Any) -> Any:
        return (mine if scheduler.is_mine else real)(*args, **kwargs)

    return choose


@contextlib.contextmanager
def simulated(scheduler: Scheduler) -> Iterator[None]:
    """Have the scheduler's threads wait by it, and read its time, while the context lasts."""
    patches = _Patches()

    def replace(owner: Any, name: str, mine: Callable[..., Any]) -> None:
        patches.set(owner, name, _for_mine(scheduler, mine, vars(owner)[name]))

    lock = lambda: SimLock(scheduler)  # noqa: E731
    again = lambda: SimLock(scheduler, again=True)  # noqa: E731
    threads = _Threads(scheduler)
    try:
        _replace_held(patches, scheduler, _replace_clocks(patches, scheduler))
        replace(threading, "Lock", lock)
        replace(threading, "_allocate_lock", lock)
        replace(threading, "RLock", again)
        replace(queue, "SimpleQueue", lambda: SimQueue(scheduler))
        for name in ("start", "join", "is_alive"):
            replace(threading.Thread, name, getattr(threads, name))
        patches.set(selectors, "DefaultSelector", _selector(scheduler))
        patches.set(select, "poll", _poll(scheduler))
        patches.set(socket, "socket", local_sockets())
        patches.set(engine, "_engines", {})  # those of a scene that hangs are dead
        uvloop = sys.modules.get("uvloop")
        sys.modules["uvloop"] = None  # type: ignore[assignment]
        try:
            yield
        finally:
            threads.forget()
            del sys.modules["uvloop"]
            if uvloop is not None:
                sys.modules["uvloop"] = uvloop
    finally:
        patches.undo()


_LOCK, _RLOCK = type(_thread.allocate_lock()), type(threading.RLock())
_CLOCKS = ("time", "monotonic", "perf_counter", "time_ns", "monotonic_ns", "clock_gettime_ns")
_Held = list[tuple[Any, str, Any]]


def _held_by_modules(_kept: dict[int, _Held] = {}) -> _Held:  # noqa: B006
    """Return the locks and clocks that modules of the product took as they were imported."""
    known = len(sys.modules)
    if known not in _kept:
        clocks = [vars(time)[name] for name in _CLOCKS]
        ours = [m for name, m in list(sys.modules.items()) if m and name.startswith("rocketstream")]
        _kept.clear()
        _kept[known] = [
            (module, name, value)
            for module in [threading, *ours]
            for name, value in vars(module).items()
            if any(value is clock for clock in clocks)
            or (module is not threading and isinstance(value, (_LOCK, _RLOCK)))
        ]
    return _kept[known]


def _replace_held(
    patches: _Patches, scheduler: Scheduler, clocks: dict[int, Callable[..., Any]]
) -> None:
    for module, name, value in _held_by_modules():
        if id(value) in clocks:
            patches.set(module, name, clocks[id(value)])
        else:
            patches.set(module, name, SimLock(scheduler, again=isinstance(value, _RLOCK)))


def _replace_clocks(patches: _Patches, scheduler: Scheduler) -> dict[int, Callable[..., Any]]:
    """Replace the clocks of ``time``; return those that stand for each, by the real one's id."""
    seconds = scheduler.look_s

    def nanoseconds(*_: object) -> int:
        return int(seconds() * 1_000_000_000)

    chosen: dict[int, Callable[..., Any]] = {}
    for name in _CLOCKS:
        real = vars(time)[name]
        fake = nanoseconds if name.endswith("_ns") else seconds
        chosen[id(real)] = _for_mine(scheduler, fake, real)
        patches.set(time, name, chosen[id(real)])
    sleep = _for_mine(scheduler, lambda s: scheduler.wait(lambda: False, s), time.sleep)
    patches.set(time, "sleep", sleep)
    return chosen
