"""A disk that answers one request with an error while a store is opened: any one of them."""

from __future__ import annotations

import errno
import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from shutil import copytree, rmtree
from typing import Any

import pytest

from rocketstream.errors import DiskFullError, StoreError, StoreLockedError
from rocketstream.server.store import MessageStore
from rocketstream.testing.clock import ManualClock
from tests.kits.stores import QuickFiles, all_bodies, opened, put, small_config


class FailingOnce(QuickFiles):
    """Answers the request of a number with an error; knows which files are open."""

    def __init__(self, number: int, code: int = errno.EIO) -> None:
        self._number = number
        self._code = code
        self.asked = 0
        self.failed: Path | None = None
        self.open_files: dict[int, Path] = {}

    def may_fail(self, asked_for: Path | int) -> None:
        self.asked += 1
        if self.asked != self._number:
            return
        if isinstance(asked_for, Path):
            self.failed = asked_for
            raise OSError(self._code, os.strerror(self._code), str(asked_for))
        # As the system does: who asks by a handle is not told the name.
        self.failed = self.open_files[asked_for]
        raise OSError(self._code, os.strerror(self._code))

    def open(self, path: Path, **how: bool) -> int:
        self.may_fail(path)
        handle = super().open(path, **how)
        self.open_files[handle] = path
        return handle

    def close(self, handle: int) -> None:
        super().close(handle)
        del self.open_files[handle]


def _failing(name: str) -> Callable[..., Any]:
    real = getattr(QuickFiles, name)

    def ask(files: FailingOnce, first: Path | int, *rest: Any, **named: Any) -> Any:
        files.may_fail(first)
        return real(files, first, *rest, **named)

    return ask


for _name in (
    "exists", "is_file", "is_dir", "list_directory", "entries", "make_directory", "unlink",
    "replace", "sync_directory", "file_size", "modified_ms", "remove_directory",
    "size", "truncate", "pwrite", "pread", "reserve", "sync", "map", "extents",
):  # fmt: skip
    setattr(FailingOnce, _name, _failing(_name))


def filled(root: Path, *, is_killed: bool) -> list[bytes]:
    """Make a store of several files, and return what is in its first queue."""
    store = MessageStore(root, small_config(), ManualClock(), QuickFiles())
    store.open()
    for number in range(20):
        put(store, b"%040d" % number, queue_id=number % 2, keys=f"k{number}")
    store.flush()
    put(store, b"not flushed")
    found = all_bodies(store)
    if is_killed:
        store.abandon()
    else:
        store.close()
    return found


def opened_by_failing_disks(
    template: Path, folder: Path, *, code: int = errno.EIO, repair: bool = False
) -> Iterator[tuple[Path, FailingOnce, BaseException | None]]:
    """Open a copy of a store on a disk that fails once, then at its next request, to the last."""
    for number in itertools.count(1):
        root, files = folder / f"store{number}", FailingOnce(number, code)
        copytree(template, root)
        store = MessageStore(root, small_config(), ManualClock(), files)
        try:
            store.open(repair=repair)
        except Exception as error:
            yield root, files, error
        else:
            store.abandon()
            yield root, files, None
        rmtree(root)
        if files.asked < number:
            return


@pytest.mark.parametrize(
    ("is_killed", "repair"), [(False, False), (True, False), (False, True)], ids=str
)
def test_store_says_which_file_it_could_not_be_opened_for(
    tmp_path: Path, is_killed: bool, repair: bool
) -> None:
    """Input/output errors came out as they were: a traceback, and the store stayed locked."""
    whole = filled(tmp_path / "template", is_killed=is_killed)
    refused = 0
    for root, files, error in opened_by_failing_disks(
        tmp_path / "template", tmp_path, repair=repair
    ):
        if error is not None:
            assert isinstance(error, StoreError), error
            assert not isinstance(error, StoreLockedError)
            # What is being made is named as it will be called, not as it is built.
            assert str(files.failed) in error.message or "cannot make" in error.message
            assert "Input/output error" in error.message
            refused += 1
        assert files.open_files == {}
        with opened(root) as store:
            assert all_bodies(store) == whole
    assert refused > 40


def test_store_that_cannot_be_opened_for_want_of_room_says_so(tmp_path: Path) -> None:
    filled(tmp_path / "template", is_killed=True)
    errors = [
        error
        for _, _, error in opened_by_failing_disks(
            tmp_path / "template", tmp_path, code=errno.ENOSPC
        )
        if error is not None
    ]
    assert len(errors) > 40
    for error in errors:
        assert isinstance(error, DiskFullError), error
        assert "free space" in error.message
