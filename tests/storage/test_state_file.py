"""When a table of the broker is written, and what must be on the disk before."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TypeVar

import pytest

from rocketstream._util.workers import Step, Worker
from rocketstream.errors import StoreError
from rocketstream.server.state_file import PAUSE_PER_COST, SOON_S, StateFile
from rocketstream.server.store import ConfigFile, Files

INTERVAL_MS = 5_000
T = TypeVar("T")
Play = Callable[["Scene"], Coroutine[None, None, None]]


class Table:
    """A number and its generation."""

    def __init__(self) -> None:
        self.generation = 0
        self.value = 0

    def change(self) -> None:
        self.generation += 1
        self.value += 1

    def snapshot(self) -> Text:
        return Text(self.value)


class Text:
    def __init__(self, value: int) -> None:
        self._value = value

    def encode(self, *, pretty: bool = False) -> bytes:
        assert pretty
        return b'{"n":%d}' % self._value


class HandWorkers:
    """Runs what was submitted when told to."""

    def __init__(self) -> None:
        self.waiting: list[Callable[[], None]] = []

    def start(self, name: str, step: Step, *, first_s: float) -> Worker:
        raise NotImplementedError

    def submit(self, function: Callable[[], T]) -> asyncio.Future[T]:
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()

        def run() -> None:
            try:
                future.set_result(function())
            except Exception as error:
                future.set_exception(error)

        self.waiting.append(run)
        return future

    def close(self) -> None:
        self.waiting.clear()


class FullDisk(Files):
    """Has no room while told so; a dead one removes nothing either."""

    is_full = False
    is_dead = False

    def write_bytes(self, path: Path, data: bytes) -> None:
        if self.is_full:
            raise OSError(28, "No space left on device")
        super().write_bytes(path, data)

    def unlink(self, path: Path, *, missing_ok: bool = False) -> None:
        if self.is_dead:
            raise OSError(5, "Input/output error")
        super().unlink(path, missing_ok=missing_ok)


class Scene:
    """A table, its file, and the hands of everything around it."""

    def __init__(self, folder: Path, *, barrier: bool = False, is_exact: bool = False) -> None:
        self.table = Table()
        self.disk = FullDisk()
        self.workers = HandWorkers()
        self.flushes: list[Callable[[Exception | None], None]] = []
        self.path = folder / "table.json"
        self.file = StateFile(
            ConfigFile(self.path, json.loads, self.disk, has_backup=not is_exact),
            lambda: self.table.generation,
            self.table.snapshot,
            self.workers,
            INTERVAL_MS,
            self.flushes.append if barrier else None,
            is_exact=is_exact,
        )
        self.loop = asyncio.get_running_loop()

    @property
    def text(self) -> str:
        if not self.path.exists():
            return ""
        return str(json.loads(self.path.read_bytes())["n"])

    def tick(self, later_s: float = 0.0) -> None:
        self.file.tick(self.loop.time() + later_s)

    async def work(self) -> None:
        """Do what was submitted and let the loop hear of it."""
        for run in self.workers.waiting:
            run()
        self.workers.waiting.clear()
        for _ in range(3):
            await asyncio.sleep(0)


def played(play: Play, folder: Path, **given: bool) -> None:
    async def run() -> None:
        await play(Scene(folder, **given))

    asyncio.run(run())


def test_first_change_is_written_at_once_and_the_next_after_a_pause(tmp_path: Path) -> None:
    """Covers C-328: not only after five seconds, and not without a pause either."""

    async def play(scene: Scene) -> None:
        scene.tick()
        assert scene.workers.waiting == []
        scene.table.change()
        scene.tick()
        await scene.work()
        assert scene.text == "1"
        scene.table.change()
        scene.tick()
        assert scene.workers.waiting == []
        scene.tick(INTERVAL_MS / 1000)
        await scene.work()
        assert scene.text == "2"
        scene.tick(2 * INTERVAL_MS)
        assert scene.workers.waiting == []

    played(play, tmp_path)


def test_slow_writes_are_rare_and_the_interval_is_the_longest_pause(tmp_path: Path) -> None:
    """A table that takes long to write takes a fiftieth of the time; five seconds are the most."""

    async def play(scene: Scene) -> None:
        for took_s, pause_s in ((0.0, SOON_S), (0.02, 0.02 * PAUSE_PER_COST), (60.0, 5.0)):
            scene.table.change()
            scene.file._done(scene.loop, scene.loop.time() - took_s, None)
            scene.tick(pause_s * 0.9)
            assert scene.workers.waiting == []
            scene.tick(pause_s * 1.1 + 0.001)
            assert len(scene.workers.waiting) == 1
            await scene.work()

    played(play, tmp_path)


def test_snapshot_is_written_when_the_log_behind_it_is_flushed(tmp_path: Path) -> None:
    """What is saved is what was there when the flush was asked for, not what came after."""

    async def play(scene: Scene) -> None:
        scene.table.change()
        scene.tick()
        await scene.work()
        assert scene.text == ""
        scene.table.change()
        scene.tick()
        (flushed,) = scene.flushes
        flushed(None)
        await asyncio.sleep(0)
        await scene.work()
        assert scene.text == "1"
        assert not scene.file.is_saved

    played(play, tmp_path, barrier=True)


def test_nothing_is_written_when_the_flush_fails(tmp_path: Path) -> None:
    async def play(scene: Scene) -> None:
        scene.table.change()
        written = scene.file.written()
        scene.flushes[0](StoreError("the disk is broken"))
        await asyncio.sleep(0)
        await scene.work()
        assert scene.text == ""
        assert await written is False

    played(play, tmp_path, barrier=True)


def test_written_waits_for_what_the_table_holds_now(tmp_path: Path) -> None:
    """A write on its way has an older snapshot: another one follows at once."""

    async def play(scene: Scene) -> None:
        scene.table.change()
        scene.tick()
        scene.table.change()
        written = scene.file.written()
        await scene.work()
        assert scene.text == "1"
        assert not written.done()
        await scene.work()
        assert scene.text == "2"
        assert await written is True
        assert scene.file.written().result() is True

    played(play, tmp_path)


def test_older_snapshot_does_not_overwrite_a_newer_one(tmp_path: Path) -> None:
    async def play(scene: Scene) -> None:
        scene.table.change()
        scene.tick()
        scene.table.change()
        scene.file.save()
        await scene.work()
        assert scene.text == "2"
        assert scene.file.is_saved

    played(play, tmp_path)


def test_failed_write_is_tried_again_and_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A full disk is one line when it begins and one when it is over."""

    async def play(scene: Scene) -> None:
        scene.disk.is_full = True
        scene.table.change()
        with pytest.raises(StoreError):
            scene.file.save()
        for later_s in (0, 6, 12):
            scene.tick(later_s)
            await scene.work()
        assert scene.text == ""
        scene.disk.is_full = False
        scene.tick(18)
        await scene.work()
        assert scene.text == "1"

    with caplog.at_level("INFO"):
        played(play, tmp_path)
    assert [record.levelname for record in caplog.records] == ["ERROR", "INFO"]


def test_close_writes_the_rest(tmp_path: Path) -> None:
    async def play(scene: Scene) -> None:
        scene.table.change()
        written = scene.file.written()
        scene.file.stop()
        scene.workers.close()
        scene.file.close()
        assert scene.text == "1"
        assert await written is False

    played(play, tmp_path, barrier=True)


def test_exact_table_that_cannot_be_written_is_removed(tmp_path: Path) -> None:
    """A restart that finds none knows that it does not know; an older one would mislead it."""

    async def play(scene: Scene) -> None:
        scene.table.change()
        scene.tick()
        await scene.work()
        assert scene.text == "1"
        scene.disk.is_full = True
        scene.table.change()
        assert not scene.file.is_known(2)
        written = scene.file.written()
        await scene.work()
        assert not scene.path.exists()
        assert await written is True
        scene.table.change()
        assert scene.file.is_known(3)
        assert scene.file.written().result() is True

    played(play, tmp_path, is_exact=True)


def test_exact_table_may_get_there_again_without_what_changed_meanwhile(tmp_path: Path) -> None:
    async def play(scene: Scene) -> None:
        scene.disk.is_full = True
        scene.table.change()
        scene.tick()
        await scene.work()
        assert scene.file.is_known(1)
        scene.disk.is_full = False
        scene.tick(2 * INTERVAL_MS)
        scene.table.change()
        assert not scene.file.is_known(2)
        written = scene.file.written()
        await scene.work()
        assert scene.text == "1"
        assert not written.done()
        await scene.work()
        assert scene.text == "2"
        assert await written is True

    played(play, tmp_path, is_exact=True)


def test_exact_table_that_cannot_be_removed_either_is_not_known(tmp_path: Path) -> None:
    async def play(scene: Scene) -> None:
        scene.table.change()
        scene.tick()
        await scene.work()
        scene.disk.is_full = scene.disk.is_dead = True
        scene.table.change()
        written = scene.file.written()
        await scene.work()
        assert await written is False
        assert scene.file.is_known(1)
        assert not scene.file.is_known(2)

    played(play, tmp_path, is_exact=True)
