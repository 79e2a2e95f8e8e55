"""Every small case of retention with recovery: two messages, then four events in any order.

A store of two queues and small files, on a disk in memory: messages come, age and expire, the
process is closed or killed, the machine loses its power.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from rocketstream.server.store import MessageStore, StoreConfig
from rocketstream.server.store.retention import RetentionConfig
from rocketstream.testing.clock import ManualClock
from rocketstream.testing.sim.disk import Disk, SimFiles
from rocketstream.testing.sim.loop import Scheduler, SimLoop
from rocketstream.testing.sim.workers import SimWorkers
from tests.kits.stores import TOPIC, all_bodies, put, small_config

ROOT: Final = Path("/data/store")
HOUR_MS: Final = 3_600_000
KEPT_MS: Final = 72 * HOUR_MS
BODY: Final = b"x" * 1_200
"""Three messages of it are a file of the log."""
CONFIG: Final[StoreConfig] = small_config(retention=RetentionConfig(file_reserved_ms=KEPT_MS))


class Killed(BaseException):
    """The process ended in the middle of a change of its disk; nothing of it catches this."""


class Mortal(SimFiles):
    """Files of a process that ends just before its ``last``-th change of the disk."""

    def __init__(self, disk: Disk) -> None:
        super().__init__(disk)
        self.changes = 0
        self.last: int | None = None

    def _changed(self, change: Callable[..., Any], *words: Any, **more: Any) -> Any:
        self.changes += 1
        if self.changes == self.last:
            raise Killed
        return change(*words, **more)

    def pwrite(self, handle: int, data: bytes | bytearray, position: int) -> int:
        count: int = self._changed(super().pwrite, handle, data, position)
        return count

    def truncate(self, handle: int, size: int) -> None:
        self._changed(super().truncate, handle, size)

    def sync(self, handle: int) -> None:
        self._changed(super().sync, handle)

    def unlink(self, path: Path, *, missing_ok: bool = False) -> None:
        self._changed(super().unlink, path, missing_ok=missing_ok)

    def replace(self, source: Path, target: Path) -> None:
        self._changed(super().replace, source, target)

    def sync_directory(self, path: Path) -> None:
        self._changed(super().sync_directory, path)


class World:
    """A store, and what it must have: of each queue the messages, when they came, what is safe."""

    def __init__(self, seed: int) -> None:
        self.clock = ManualClock()
        self.disk = Disk(random.Random(seed), self.clock.now_ms)
        self.sent: list[list[tuple[bytes, float]]] = [[], []]
        self.safe = [0, 0]
        self.least = [0, 0]
        self._coming: tuple[int, bytes] | None = None
        self._open()

    def _open(self) -> None:
        self.files = Mortal(self.disk)
        workers = SimWorkers(SimLoop(Scheduler()), lambda: 0.0)
        self.store = MessageStore(ROOT, CONFIG, self.clock, files=self.files, workers=workers)
        self.store.open()

    # --- events -----------------------------------------------------------------------------------

    def put_two(self) -> None:
        """Two messages come to a queue."""
        for _ in range(2):
            self._put(0)

    def put_one(self) -> None:
        """One comes to the other queue."""
        self._put(1)

    def _put(self, queue: int) -> None:
        sent = self.sent[queue]
        body = b"%d-%d " % (queue, len(sent)) + BODY
        self._coming = queue, body
        assert put(self.store, body, queue_id=queue).queue_offset == len(sent)
        sent.append((body, self.clock.now_ms()))
        self._coming = None

    def age(self) -> None:
        """Time passes, more than half of what messages are kept."""
        self.clock.advance(40 * HOUR_MS)

    def expire(self) -> None:
        """What is too old is deleted."""
        self.store.delete_expired(manual=True)

    def flush(self) -> None:
        """What was written is on the disk."""
        self.store.flush()
        self.safe = [len(sent) for sent in self.sent]

    def flush_log(self) -> None:
        """The log is on the disk, its queues are not yet."""
        self.store._flusher.flush()
        self.safe = [len(sent) for sent in self.sent]

    def sync_queues(self) -> None:
        """The system writes the units of the queues to the disk by itself."""
        for queue in self.store._queues.values():
            queue.sync()

    def close(self) -> None:
        """The broker is stopped and begins again."""
        self.store.close()
        self.safe = [len(sent) for sent in self.sent]
        self._open()

    def lose_queue(self) -> None:
        """The broker is stopped, somebody deletes the files of a queue, and it begins again."""
        self.store.close()
        directory = ROOT / "consumequeue" / TOPIC / "0"
        for name, _, _ in self.files.entries(directory):
            self.files.unlink(directory / name)
        self._open()

    def kill(self) -> None:
        """Its process is killed: what it wrote is the system's to keep."""
        self.files.die()
        self._open()

    def lose_power(self) -> None:
        """The machine loses what was not synced; the names of deleted files may be back."""
        self.files.die()
        self.disk.lose_power()
        self.least = [0, 0]
        self._open()
        for queue, sent in enumerate(self.sent):
            end = self.store.max_offset(TOPIC, queue)
            assert self.safe[queue] <= end <= len(sent)
            del sent[end:]

    def cut(self, event: Callable[[World], None], change: int, *, power: bool) -> bool:
        """Let the process end before a change of the disk an event makes; say whether it came."""
        self.files.last = self.files.changes + change
        try:
            event(self)
        except Killed:
            if self._coming is not None:  # it may be there, though nobody was told
                queue, body = self._coming
                self.sent[queue].append((body, self.clock.now_ms()))
                self._coming = None
                if not power:
                    self.files.die()
                    self._open()
                    del self.sent[queue][self.store.max_offset(TOPIC, queue) :]
                    return True
            self.lose_power() if power else self.kill()
            return True
        self.files.last = None
        return False

    # --- what must hold ---------------------------------------------------------------------------

    def check(self) -> None:
        """No message younger than it is kept is missing, and none is another's."""
        young_ms = self.clock.now_ms() - KEPT_MS
        for queue, sent in enumerate(self.sent):
            begin = self.store.min_offset(TOPIC, queue)
            assert self.store.max_offset(TOPIC, queue) == len(sent)
            assert all(at_ms < young_ms for _, at_ms in sent[:begin])
            assert begin >= self.least[queue]
            self.least[queue] = begin
            found = all_bodies(self.store, TOPIC, queue)
            assert found == [body for body, _ in sent[begin:]]


EVENTS: Final[tuple[Callable[[World], None], ...]] = (
    World.put_two,
    World.put_one,
    World.age,
    World.expire,
    World.flush,
    World.close,
    World.kill,
    World.lose_power,
)


def run(events: tuple[Callable[[World], None], ...], seed: int) -> World:
    """Let events happen one after the other, and look after each."""
    world = World(seed)
    for event in events:
        event(world)
        world.check()
    return world


@pytest.mark.parametrize("first", EVENTS, ids=lambda event: event.__name__)
def test_messages_that_are_kept_are_there_whatever_comes_in_which_order(
    first: Callable[[World], None],
) -> None:
    for number, others in enumerate(itertools.product(EVENTS, repeat=3)):
        events = (World.put_two, World.put_one, first, *others)
        try:
            run(events, number)
        except Exception as failure:
            failure.add_note(f"{number}: {', '.join(event.__name__ for event in events)}")
            raise


def test_old_messages_do_go_and_the_places_of_later_ones_stay() -> None:
    """Without which the other cases would be none of retention."""
    events = (World.put_two, World.put_two, World.age, World.age, World.put_two, World.flush)
    world = run((*events, World.expire, World.lose_power, World.expire, World.close), 0)
    assert world.store.min_offset(TOPIC, 0) == 3  # of the file that was written last
    assert world.store.max_offset(TOPIC, 0) == 6


IN_TWO_FILES: Final = (*[World.put_one] * 10, World.put_two, World.put_two)
"""Ten units of one queue, a file of it, whose messages are not in the newest file of the log."""
OLD: Final = (World.put_one, World.put_two, World.put_two, World.age, World.age)


@pytest.mark.parametrize(
    "events",
    [
        (*OLD, World.flush_log, World.expire, World.lose_power),
        (*OLD, World.flush, World.expire, World.flush, World.lose_queue, World.close),
        (*IN_TWO_FILES, World.age, World.age, World.flush, World.put_one, World.sync_queues,
         World.expire, World.lose_power, World.close),
    ],
    ids=["units not synced", "queues rebuilt", "the new file's record lost"],
)  # fmt: skip
def test_a_queue_whose_messages_have_gone_goes_on_where_it_was(
    events: tuple[Callable[[World], None], ...],
) -> None:
    """Given a second time, an offset is another message to all who have passed it."""
    for seed in range(64):
        run((*events, World.put_one, World.flush, World.close), seed)


CUT: Final = (World.expire, World.put_two, World.flush, World.close)


@pytest.mark.parametrize("power", [False, True], ids=["process", "power"])
@pytest.mark.parametrize("event", CUT, ids=lambda event: event.__name__)
def test_an_end_at_any_change_of_the_disk_takes_nothing_that_is_kept(
    event: Callable[[World], None], power: bool
) -> None:
    cuts = 0
    for number, others in enumerate(itertools.product(EVENTS, repeat=1)):
        before = (World.put_two, World.put_one, *others, World.age, World.age, World.put_two)
        for change in itertools.count(1):
            world = run(before, number)
            try:
                if not world.cut(event, change, power=power):
                    break
                world.check()
                for later in (World.put_two, World.expire, World.close):
                    later(world)
                    world.check()
            except Exception as failure:
                names = [each.__name__ for each in before]
                failure.add_note(f"{number}, change {change}: {', '.join(names)}")
                raise
            cuts += 1
    assert cuts > len(EVENTS)
