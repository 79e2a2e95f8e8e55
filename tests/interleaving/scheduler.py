"""Threads of which one runs at a time, chosen from a seed; time passes when none can run.

Law: nothing here waits for the machine's clock. A thread is blocked when what it waits for is not
there, and hangs when nothing that could happen ends its wait.
"""

from __future__ import annotations

import _thread
import random
import re
import sys
import traceback
from collections.abc import Callable
from types import FrameType
from typing import Any, Final

START_S: Final = 1_700_000_000.0
_SWITCH_S: Final = 0.000_01
_LOOK_S: Final = 0.000_001
"""How long a look at a clock takes: whoever does nothing but look gets to the end, too."""
_PRODUCT: Final = "/rocketstream/"
_NEVER_STOPPED: Final = ("/rocketstream/server/", "/rocketstream/testing/")

Ready = Callable[[], bool]


class HangError(Exception):
    """A wait that nothing ends; the text shows where each thread is."""


class ThreadState:
    """One thread, as the scheduler knows it.

    Attributes:
        name: its name.
        ready: what it waits for; None when it could run.
        deadline_s: when it stops waiting; None for never.
        is_over: whether it has ended.
    """

    def __init__(self, name: str, priority: float) -> None:
        self.name = re.sub(r"@.*|(?<=^Thread-)\d+", "", name)  # numbers of the process itself
        self.priority = priority
        self.gate: Any = _thread.allocate_lock()
        self.gate.acquire()
        self.ready: Ready | None = None
        self.deadline_s: float | None = None
        self.is_over = False
        self.ident = 0
        self.steps = 0
        self.stops: list[int] = []
        self.imports = 0
        self.traces = False
        self.is_servers = False

    def can_run(self, now_s: float) -> bool:
        """Whether it could go on now."""
        if self.ready is None or self.ready():
            return True
        return self.deadline_s is not None and self.deadline_s <= now_s


class Scheduler:
    """Runs the threads of one scene.

    While it explores, threads are stopped between two lines of the client too, at steps that are
    drawn; else only where they wait.

    Args:
        seed: where its choices come from.
        stopped: what the paths of files have in them whose lines threads are stopped at.
        patience_s: virtual seconds after which the scene hangs.

    Attributes:
        now_s: virtual time.
        switches: where each thread was when another went on, for comparing two runs.
    """

    def __init__(self, seed: object, stopped: str = _PRODUCT, patience_s: float = 300.0) -> None:
        self.now_s: float = START_S
        self.switches: list[str] = []
        self.threads: list[ThreadState] = []
        self._chance = random.Random(f"{seed} threads")
        self._stopped = stopped
        self._is_stopped: dict[str, bool] = {}
        self._end_s = START_S + patience_s
        self._by_ident: dict[int, ThreadState] = {}
        self._explores = False
        self._within = 0
        self._is_fair = self._chance.random() < 0.3
        self._hang: str | None = None
        self._lowest = 0.0
        self.main: ThreadState = self.add("main")
        self.current: ThreadState = self.main
        self.enter(self.main)

    # --- threads ----------------------------------------------------------------------------------

    @property
    def is_mine(self) -> bool:
        """Whether the caller is one of its threads; those of pytest are not."""
        return _thread.get_ident() in self._by_ident

    def add(self, name: str) -> ThreadState:
        """Have a thread; it calls ``enter`` first, and runs when its turn comes."""
        thread = ThreadState(name, self._chance.random())
        thread.is_servers = bool(self.threads) and self.current.is_servers
        if self._within:
            self._draw_stops(thread)
        self.threads.append(thread)
        return thread

    def enter(self, thread: ThreadState) -> None:
        """Begin a thread: called by itself. All but the first wait for their turn."""
        if thread is not self.main:
            thread.gate.acquire()
        thread.ident = _thread.get_ident()
        self._by_ident[thread.ident] = thread
        self._trace_here(thread)

    def leave(self, thread: ThreadState) -> None:
        """End a thread: called by itself, as the last thing it does."""
        sys.settrace(None)
        thread.is_over = True
        self.threads.remove(thread)
        del self._by_ident[thread.ident]
        self.current = self._choose()
        self.current.gate.release()

    def leave_alone(self) -> None:
        """Never stop a thread that is here now, but the main one, nor those it starts."""
        for thread in self.threads:
            thread.is_servers = thread is not self.main

    def left(self) -> list[str]:
        """Return the names of the threads that have not ended, but the main one."""
        return [thread.name for thread in self.threads if thread is not self.main]

    # --- waiting ----------------------------------------------------------------------------------

    def wait(self, ready: Ready, timeout_s: float | None = None) -> bool:
        """Let others run until ``ready`` or the time is over; return whether it is.

        Raises:
            HangError: in the main thread: nothing can happen any more.
        """
        if ready():
            return True
        thread = self.current
        thread.ready = ready
        thread.deadline_s = None if timeout_s is None else self.now_s + max(timeout_s, 0.0)
        self._hand_on(thread, thread.name)
        return ready()

    def give_way(self) -> None:
        """Let somebody else run who can."""
        self._hand_on(self.current, self.current.name)

    def look_s(self) -> float:
        """Return the time, for a clock."""
        self.now_s += _LOOK_S
        return self.now_s

    def _hand_on(self, thread: ThreadState, where: str) -> None:
        following = self._choose()
        if following is not thread:
            if self._explores:
                self.switches.append(f"{where} > {following.name}")
            self.current = following
            following.gate.release()
            thread.gate.acquire()
        thread.ready = thread.deadline_s = None
        self._trace_here(thread)
        if self._hang is not None and thread is self.main:
            raise HangError(self._hang)

    def _choose(self) -> ThreadState:
        """Return who runs next; time passes where nobody can."""
        self.now_s += _SWITCH_S
        able = [thread for thread in self.threads if thread.can_run(self.now_s)]
        if not able:
            due = [thread for thread in self.threads if thread.deadline_s is not None]
            earliest = min(due, key=lambda thread: thread.deadline_s or 0.0, default=None)
            if earliest is None or (earliest.deadline_s or 0.0) > self._end_s:
                return self._hangs()
            self.now_s = max(self.now_s, earliest.deadline_s or 0.0)
            able = [thread for thread in self.threads if thread.can_run(self.now_s)]
        if self.now_s > self._end_s:
            return self._hangs()
        if self._is_fair:
            return self._chance.choice(able)
        return max(able, key=lambda thread: thread.priority)

    def _hangs(self) -> ThreadState:
        frames = sys._current_frames()
        self._hang = "nothing ends these waits:\n" + "\n".join(
            f"--- {each.name}\n" + "".join(traceback.format_stack(frames[each.ident])[-8:])
            for each in self.threads
            if each.ident in frames
        )
        self.stop_exploring()
        return self.main

    # --- exploring --------------------------------------------------------------------------------

    def explore(self, within: int) -> None:
        """Stop each thread from now on some times, so many of its steps apart as is drawn for it.

        Args:
            within: the most; any power of ten below is as likely.
        """
        self._within = within
        self._explores = True
        for thread in self.threads:
            self._draw_stops(thread)
        self._trace_here(self.current)

    def _draw_stops(self, thread: ThreadState) -> None:
        chance, within = self._chance, self._within
        pace = within ** chance.random()
        at, stops = float(thread.steps), []
        for _ in range(chance.choice((0, 1, 1, 2, 4, 16))):
            at += 1 + chance.expovariate(1 / pace)
            stops.append(int(at))
        thread.stops = stops[::-1]

    def stop_exploring(self) -> None:
        """Let threads run until they wait."""
        self._explores = False
        self._within = 0
        sys.settrace(None)

    def _trace_here(self, thread: ThreadState) -> None:
        wanted = self._explores and not thread.is_servers
        if wanted is thread.traces:
            return
        thread.traces = wanted
        if not wanted:
            sys.settrace(None)
            return
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            if self._traces(frame):
                frame.f_trace = self._line
            frame = frame.f_back
        sys.settrace(self._call)

    def _call(self, frame: FrameType, event: str, argument: object) -> Any:
        if not self._explores:
            return None
        if frame.f_code.co_name == "<module>":  # imports hold locks of the interpreter
            self._by_ident[_thread.get_ident()].imports += 1
            return self._import
        return self._line if self._traces(frame) else None

    def _import(self, frame: FrameType, event: str, argument: object) -> Any:
        if event == "return":
            self._by_ident[_thread.get_ident()].imports -= 1
        return self._import

    def _line(self, frame: FrameType, event: str, argument: object) -> Any:
        if event != "line" or not self._explores:
            return self._line
        thread = self.current
        thread.steps += 1
        if thread.stops and thread.steps >= thread.stops[-1] and not thread.imports:
            thread.stops.pop()
            self._lowest -= 1.0
            thread.priority = self._lowest  # till all others wait
            file = frame.f_code.co_filename.rpartition(_PRODUCT)[2]
            self._stop(thread, f"{thread.name} at {file}:{frame.f_lineno}")
        return self._line

    def _stop(self, thread: ThreadState, where: str) -> None:
        """Let another run, were it the only choice not to."""
        others = [t for t in self.threads if t is not thread and t.can_run(self.now_s)]
        if not others:
            return
        if self._is_fair:
            following = self._chance.choice(others)
        else:
            following = max(others, key=lambda each: each.priority)
        self.switches.append(f"{where} > {following.name}")
        self.current = following
        following.gate.release()
        thread.gate.acquire()
        if self._hang is not None and thread is self.main:
            raise HangError(self._hang)

    def _traces(self, frame: FrameType) -> bool:
        file = frame.f_code.co_filename
        found = self._is_stopped.get(file)
        if found is None:
            others = any(each in file for each in _NEVER_STOPPED)
            found = self._is_stopped[file] = self._stopped in file and not others
        return found
