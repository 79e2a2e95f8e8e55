"""The turns of the connections of one server, and the memory their waiting bytes have together.

Law: runs on its loop's thread only. Work is measured by the clock handed in: under a virtual clock,
which stands still during work, no connection is ever postponed.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Generator
from itertools import cycle
from typing import Any, Protocol, TypeAlias

from rocketstream import limits
from rocketstream._util.clock import SYSTEM_CLOCK, Clock

logger: logging.Logger = logging.getLogger("rocketstream.transport")

Steps: TypeAlias = Generator[None, None, Any]
"""Work in steps: at each ``yield`` its caller may do something else."""
AnswerSteps: TypeAlias = Generator[asyncio.Future[Any] | None, None, Any]
"""Steps that answer a request of a server's connection.

When they ``yield`` a future, the next step comes once it is done; later requests of the connection
wait as well."""

_SURVEY_BYTES = 1024 * 1024
_LOOK_S = 0.5


class Worker(Protocol):
    """Something that takes turns."""

    is_waiting: bool
    """Whether it is in line; set by the shared object."""

    def work(self, until: Callable[[], bool]) -> bool:
        """Work until ``until`` returns true; return whether work is left."""
        ...


class Sharer(Worker, Protocol):
    """A connection as its server's shared object sees it."""

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

    def room_given(self) -> None:
        """Read on in a frame that waited for room."""
        ...

    def drop(self, reason: str) -> None:
        """Close at once, without waiting for the peer."""
        ...


class _Job:
    """Steps that belong to no connection."""

    is_waiting = False

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

    A turn is one slice of time. A connection whose bytes arrive has it at once while nobody waits
    for a first turn and this pass of the loop has time; else it waits in line. Work that is left
    after a turn waits in a second line, and what a connection waits for and has come, such as the
    message for its held pull, in a third: behind the requests of all others a message would come
    a round later than its sender is answered. Each pass of the loop goes on with the lines in
    turn, three of the first and the third for each of the second, until its time is used: nobody
    waits longer than some rounds of his own line, and much work does not hold up little.
    """

    def __init__(
        self, clock: Clock = SYSTEM_CLOCK, *, bytes_max: int = limits.SERVER_BUFFER_BYTES_MAX
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._now_ms = clock.monotonic_ms
        self._bytes_max = bytes_max
        self._new: deque[Worker] = deque()
        self._begun: deque[Worker] = deque()
        self._owing: deque[Worker] = deque()
        self._rota = cycle((self._begun, *(self._owing, self._new) * 3))
        self._is_pass_due = False
        self._spent_ms = 0.0
        """Time that was worked in this pass of the loop."""
        self._slice_end_ms = 0.0
        self._read_buffer = memoryview(bytearray(limits.SERVER_READ_BYTES))
        self._small_buffer = self._read_buffer[: limits.SERVER_READ_BYTES_CROWDED]
        self._rooms: dict[Sharer, tuple[int, float]] = {}
        self._room_bytes = 0
        self._wanted: dict[Sharer, int] = {}
        self._holders: dict[Sharer, None] = {}
        self._unseen_bytes = 0
        self._look_timer: asyncio.TimerHandle | None = None
        self.bytes_held: int = 0
        """Bytes all connections held at the last survey."""

    # --- time -------------------------------------------------------------------------------------

    def go(self, worker: Worker) -> bool:
        """Let a connection work now if it may; return whether it is in line for the rest."""
        if self._new or self._spent_ms >= limits.WORK_PASS_MS:
            self.again(worker)
            return True
        if self._slice(worker):
            self._wait(worker, self._begun)
            return True
        if self._spent_ms * 4 >= limits.WORK_PASS_MS:
            self._want_pass()  # which counts from zero
        return False

    def again(self, worker: Worker) -> None:
        """Put a connection in line for a turn, behind those that wait for one."""
        self._wait(worker, self._new)

    def owe(self, worker: Worker) -> None:
        """Put in line what gives a connection that for which it has waited."""
        self._wait(worker, self._owing)

    def start(self, steps: Steps) -> None:
        """Do work in steps: the first ones at once, longer work in line."""
        job = _Job(steps)
        if self._slice(job):
            self._wait(job, self._begun)

    def _wait(self, worker: Worker, line: deque[Worker]) -> None:
        if not worker.is_waiting:
            worker.is_waiting = True
            line.append(worker)
            self._want_pass()

    def _want_pass(self) -> None:
        if not self._is_pass_due:
            self._is_pass_due = True
            self._loop.call_soon(self._pass)

    def _pass(self) -> None:
        """Let those in line work until the time of this pass is used."""
        self._is_pass_due = False
        self._spent_ms = 0.0
        for _ in range(len(self._new) + len(self._begun) + len(self._owing)):
            line = next(line for line in self._rota if line)
            worker = line.popleft()
            worker.is_waiting = False
            if self._slice(worker):
                self._wait(worker, self._owing if line is self._owing else self._begun)
            if self._spent_ms >= limits.WORK_PASS_MS:
                break
        self._spent_ms = 0.0
        if self._new or self._begun or self._owing:
            self._want_pass()

    def _slice(self, worker: Worker) -> bool:
        began_ms = self._now_ms()
        self._slice_end_ms = began_ms + limits.WORK_SLICE_MS
        more = worker.work(self._is_slice_over)
        self._spent_ms += self._now_ms() - began_ms
        return more

    def _is_slice_over(self) -> bool:
        return self._now_ms() >= self._slice_end_ms

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
        if self._rooms and self._room_bytes + frame_bytes > limits.FRAME_ROOM_BYTES_MAX:
            self._wanted[sharer] = frame_bytes
            return False
        self._rooms[sharer] = (frame_bytes, self._loop.time())
        self._room_bytes += frame_bytes
        return True

    def leave_room(self, sharer: Sharer) -> None:
        """Take note that a connection needs no room any more, or does not wait for it."""
        self._wanted.pop(sharer, None)
        room = self._rooms.pop(sharer, None)
        if room is None:
            return
        self._room_bytes -= room[0]
        while self._wanted:
            smallest = min(self._wanted, key=self._wanted.__getitem__)
            if not self.ask_room(smallest, self._wanted.pop(smallest)):
                return
            self._loop.call_soon(self._tell, smallest)

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
        while line := self._owing or self._new or self._begun:
            worker = line.popleft()
            worker.is_waiting = False
            while worker.work(lambda: False):
                pass
        if self._look_timer is not None:
            self._look_timer.cancel()
