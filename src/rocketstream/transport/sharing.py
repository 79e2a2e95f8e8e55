"""The resources connections of one server share: time of its loop, and memory for waiting bytes.

Law: decides who works when and who is closed; knows nothing of frames or requests. Runs on its
loop's thread only. Work is measured by the clock handed in: under a virtual clock, which stands
still during work, no connection is ever postponed.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import logging
from collections import deque
from collections.abc import Callable, Generator
from typing import Any, Protocol, TypeAlias

from rocketstream import limits
from rocketstream._util.clock import SYSTEM_CLOCK, Clock

logger = logging.getLogger("rocketstream.transport")

Steps: TypeAlias = Generator[None, None, Any]
"""Work in steps: at each ``yield`` its caller may do something else."""
AnswerSteps: TypeAlias = Generator[asyncio.Future[Any] | None, None, Any]
"""Steps that answer a request of a server's connection.

When they ``yield`` a future, the next step comes once it is done; later requests of the connection
wait as well."""

_SURVEY_BYTES = 1024 * 1024
_LOOK_S = 0.5


class Sharer(Protocol):
    """A connection as its server's shared object sees it."""

    used_ms: float
    """Time used lately in milliseconds; it decays as time passes."""
    used_at_ms: float
    is_waiting: bool
    """Whether it is in line; set by the shared object."""
    holds_since_s: float
    """Since when it has held memory without a pause; infinite when it holds none."""

    @property
    def bytes_held(self) -> int:
        """Bytes of memory it holds: received bytes that wait, and bytes that wait to be sent."""
        ...

    @property
    def frame_due_s(self) -> float:
        """Loop time by which the frame being received must be complete."""
        ...

    def work(self, until: Callable[[], bool]) -> bool:
        """Work until ``until`` returns true; return whether work is left."""
        ...

    def room_given(self) -> None:
        """Read on in a frame that waited for room."""
        ...

    def drop(self, reason: str) -> None:
        """Close at once, without waiting for the peer."""
        ...


class _Job:
    """Steps that belong to no connection."""

    def __init__(self, steps: Steps) -> None:
        self._steps = steps

    def work(self, until: Callable[[], bool]) -> bool:
        try:
            for _ in self._steps:
                if until():
                    return True
        except Exception:
            logger.exception("INTERNAL work of a server failed")
        return False


class Sharing:
    """Gives each connection its turn and takes memory back from those that hold most for longest.

    A connection works at once while it and the others have used little time. Work left after a
    slice, and all work of connections that use much, waits in a line that gets one slice in each
    pass of the loop. Used time decays at a fifth of the rate at which time passes. Connections that
    used little go first, but one slice of each pass is left to the others, so that they go on
    however many go first.
    """

    def __init__(
        self, clock: Clock = SYSTEM_CLOCK, *, bytes_max: int = limits.SERVER_BUFFER_BYTES_MAX
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._now_ms = clock.monotonic_ms
        self._bytes_max = bytes_max
        self._fresh: deque[Sharer | _Job] = deque()
        self._used: deque[Sharer | _Job] = deque()
        self._is_due = False
        self._spent_ms = 0.0
        self._is_reset_due = False
        self._slice_end_ms = 0.0
        self._read_buffer = memoryview(bytearray(limits.SERVER_READ_BYTES))
        self._small_buffer = self._read_buffer[: limits.SERVER_READ_BYTES_CROWDED]
        self._rooms: dict[Sharer, tuple[int, float]] = {}
        self._room_bytes = 0
        self._wanted: dict[Sharer, int] = {}
        self._wanting: list[tuple[int, int, Sharer]] = []
        self._wanting_serial = itertools.count()
        self._holders: dict[Sharer, None] = {}
        self._unseen_bytes = 0
        self._look_timer: asyncio.TimerHandle | None = None
        self.bytes_held = 0
        """Bytes all connections held at the last survey."""

    # --- time -------------------------------------------------------------------------------------

    def go(self, sharer: Sharer) -> bool:
        """Let a connection work now if it may; return whether it is in line for the rest."""
        now_ms = self._now_ms()
        if sharer.used_ms:
            idle_ms = now_ms - sharer.used_at_ms
            sharer.used_ms = max(0.0, sharer.used_ms - idle_ms * limits.WORK_FORGIVEN)
        sharer.used_at_ms = now_ms
        if sharer.used_ms >= limits.WORK_CREDIT_MS or self._spent_ms >= limits.WORK_PASS_MS:
            self.again(sharer)
            return True
        more, used_ms = self._slice(sharer, now_ms)
        sharer.used_ms += used_ms
        sharer.used_at_ms += used_ms
        self._spent_ms += used_ms
        if self._spent_ms * 4 >= limits.WORK_PASS_MS and not self._is_reset_due:
            # The next pass of the loop starts its count from zero.
            self._is_reset_due = True
            self._loop.call_soon(self._new_pass)
        if more:
            self.again(sharer)
        return more

    def again(self, sharer: Sharer) -> None:
        """Put a connection in line behind its equals; those that used little go first."""
        if not sharer.is_waiting:
            sharer.is_waiting = True
            has_used = sharer.used_ms >= limits.WORK_CREDIT_MS
            self._wait(sharer, self._used if has_used else self._fresh)

    def start(self, steps: Steps) -> None:
        """Do work in steps: the first ones at once, longer work in line."""
        job = _Job(steps)
        if self._slice(job, self._now_ms())[0]:
            self._wait(job, self._used)

    def _new_pass(self) -> None:
        self._spent_ms = 0.0
        self._is_reset_due = False

    def _wait(self, worker: Sharer | _Job, line: deque[Sharer | _Job]) -> None:
        line.append(worker)
        if not self._is_due:
            self._is_due = True
            self._loop.call_soon(self._pass)

    def _next(self, line: deque[Sharer | _Job]) -> Sharer | _Job:
        worker = line.popleft()
        if not isinstance(worker, _Job):
            worker.is_waiting = False
        return worker

    def _slice(self, worker: Sharer | _Job, began_ms: float) -> tuple[bool, float]:
        self._slice_end_ms = began_ms + limits.WORK_SLICE_MS
        more = worker.work(self._is_slice_over)
        return more, self._now_ms() - began_ms

    def _is_slice_over(self) -> bool:
        return self._now_ms() >= self._slice_end_ms

    def _pass(self) -> None:
        """Let those in line work, one after another, until the time of this pass is used."""
        self._is_due = False
        began_ms = now_ms = self._now_ms()
        for number in range(len(self._fresh) + len(self._used)):
            first, second = (self._fresh, self._used) if number else (self._used, self._fresh)
            worker = self._next(first or second)
            more, used_ms = self._slice(worker, now_ms)
            now_ms += used_ms
            if isinstance(worker, _Job):
                if more:
                    self._used.append(worker)
            else:
                worker.used_ms += used_ms
                worker.used_at_ms = now_ms
                if more:
                    self.again(worker)
            if now_ms - began_ms >= limits.WORK_PASS_MS:
                break
        if (self._fresh or self._used) and not self._is_due:
            self._is_due = True
            self._loop.call_soon(self._pass)

    # --- memory -----------------------------------------------------------------------------------

    def holds(self, sharer: Sharer, size: int) -> None:
        """Count bytes that a connection may hold from now on."""
        self._holders[sharer] = None
        self._unseen_bytes += size
        if self._unseen_bytes >= _SURVEY_BYTES:
            self._survey()
        if self._look_timer is None:
            self._look_timer = self._loop.call_later(_LOOK_S, self._look)

    def read_buffer(self, sharer: Sharer) -> memoryview:
        """Return the read buffer; a connection takes its bytes out before another one reads."""
        if self._wanted and sharer not in self._rooms:
            return self._small_buffer
        return self._read_buffer

    def ask_room(self, sharer: Sharer, frame_bytes: int) -> bool:
        """Return whether there is room for a large frame; if not, ``room_given`` is called later.

        The smallest frame goes first. A frame larger than all the room gets it alone.
        """
        if self._wanted or not self._has_room(frame_bytes):
            self._wanted[sharer] = frame_bytes
            heapq.heappush(self._wanting, (frame_bytes, next(self._wanting_serial), sharer))
            self._give_room()
            return False
        self._take_room(sharer, frame_bytes)
        return True

    def leave_room(self, sharer: Sharer) -> None:
        """Take note that a connection needs no room any more, or does not wait for it."""
        self._wanted.pop(sharer, None)
        room = self._rooms.pop(sharer, None)
        if room is not None:
            self._room_bytes -= room[0]
            self._give_room()

    def _has_room(self, frame_bytes: int) -> bool:
        return not self._rooms or self._room_bytes + frame_bytes <= limits.FRAME_ROOM_BYTES_MAX

    def _take_room(self, sharer: Sharer, frame_bytes: int) -> None:
        self._rooms[sharer] = (frame_bytes, self._loop.time())
        self._room_bytes += frame_bytes

    def _give_room(self) -> None:
        while self._wanting:
            size, _, sharer = self._wanting[0]
            if self._wanted.get(sharer) == size:
                if not self._has_room(size):
                    return
                del self._wanted[sharer]
                self._take_room(sharer, size)
                self._loop.call_soon(self._tell, sharer)
            heapq.heappop(self._wanting)

    def _tell(self, sharer: Sharer) -> None:
        if sharer in self._rooms:
            sharer.room_given()

    def _clear_rooms(self, now_s: float) -> None:
        """While others wait for room, close connections that fill theirs too slowly."""
        if not self._wanted:
            return
        for sharer, (size, since_s) in list(self._rooms.items()):
            patience_ms = limits.ROOM_GRACE_MS + size / limits.ROOM_BYTES_PER_MS_MIN
            if now_s > since_s + patience_ms / 1000:
                sharer.drop(f"its frame of {size} bytes took too long while others waited")

    def _look(self) -> None:
        self._look_timer = None
        self._survey()
        now_s = self._loop.time()
        self._clear_rooms(now_s)
        for sharer in list(self._holders):
            if sharer.frame_due_s <= now_s:
                sharer.drop("its frame was not complete in time")
        if self._holders:
            self._look_timer = self._loop.call_later(_LOOK_S, self._look)

    def _survey(self) -> None:
        """Count the bytes held; beyond the bound, close those that hold most for longest."""
        self._unseen_bytes = 0
        now_s = self._loop.time()
        held: dict[Sharer, int] = {}
        for sharer in self._holders:
            size = sharer.bytes_held
            if size:
                held[sharer] = size
                sharer.holds_since_s = min(sharer.holds_since_s, now_s)
            else:
                sharer.holds_since_s = float("inf")
        self._holders = dict.fromkeys(held)
        total = sum(held.values())
        while total > self._bytes_max and held:
            # One second is added, so that bytes that came this instant count by their size.
            worst = max(held, key=lambda one: held[one] * (now_s - one.holds_since_s + 1))
            size = held.pop(worst)
            total -= size
            del self._holders[worst]
            worst.drop(
                f"{size} bytes wait for it, and all connections hold more than the maximum of"
                f" {self._bytes_max}"
            )
        self.bytes_held = total

    # --- the end ----------------------------------------------------------------------------------

    def close(self) -> None:
        """Do all waiting work at once."""
        while self._fresh or self._used:
            worker = self._next(self._fresh or self._used)
            while worker.work(lambda: False):
                pass
        if self._look_timer is not None:
            self._look_timer.cancel()
