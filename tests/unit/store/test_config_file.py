"""Small text files replaced as a whole (C-310, C-329)."""

from __future__ import annotations

import errno
import json
from pathlib import Path

import pytest

from rocketstream.errors import DiskFullError, StoreDamagedError, StoreError
from rocketstream.server.store import ConfigFile, Files
from tests.unit.store.kit import FaultyFiles


def test_the_text_before_is_kept_as_backup(tmp_path: Path) -> None:
    """Covers C-310."""
    file = ConfigFile(tmp_path / "config" / "topics.json")
    assert file.load(json.loads) is None
    file.save("[1]")
    assert not file.backup_path.exists()
    file.save("[2]")
    assert (file.path.read_text(), file.backup_path.read_text()) == ("[2]", "[1]")
    assert sorted(path.name for path in file.path.parent.iterdir()) == [
        "topics.json",
        "topics.json.bak",
    ]


@pytest.mark.parametrize("broken", [None, "", "  \n", "{", "\udcff"])
def test_backup_is_used_when_the_file_is_missing_empty_or_broken(
    tmp_path: Path, broken: str | None
) -> None:
    """Covers C-329."""
    file = ConfigFile(tmp_path / "a.json")
    file.save("[1]")
    file.save("[2]")
    if broken is None:
        file.path.unlink()
    else:
        file.path.write_bytes(broken.encode("utf-8", "surrogateescape"))
    assert file.load(json.loads) == [1]


def test_both_broken_is_an_error_that_names_them(tmp_path: Path) -> None:
    """Covers C-329: start fails."""
    file = ConfigFile(tmp_path / "a.json")
    file.path.write_text("{")
    file.backup_path.write_text("")
    with pytest.raises(StoreDamagedError, match=r"a\.json.*a\.json\.bak is empty"):
        file.load(json.loads)


def test_empty_text_does_not_replace_the_backup(tmp_path: Path) -> None:
    """Covers C-310: only readable old text becomes the backup."""
    file = ConfigFile(tmp_path / "a.json")
    file.save("[1]")
    file.save("[2]")
    file.path.write_text("")
    file.save("[3]")
    assert file.backup_path.read_text() == "[1]"


def test_an_unreadable_file_is_an_error_and_not_its_backup(tmp_path: Path) -> None:
    """Covers C-329, put right: a disk that fails for a moment must not bring an old state back."""
    files = FaultyFiles()
    file = ConfigFile(tmp_path / "a.json", files)
    file.save("[1]")
    file.save("[2]")
    files.unreadable.add(file.path)
    with pytest.raises(StoreError, match=r"a\.json cannot be read.*a\.json\.bak") as caught:
        file.load(json.loads)
    assert not isinstance(caught.value, StoreDamagedError)
    files.unreadable.clear()
    assert file.load(json.loads) == [2]


def test_what_could_not_be_parsed_never_becomes_the_backup(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Covers C-310, C-329: a crash in the middle of the next save leaves one that can be used."""
    files = FaultyFiles()
    file = ConfigFile(tmp_path / "a.json", files)
    file.save("[1]")
    file.save("[2]")
    file.path.write_text("{")
    assert file.load(json.loads) == [1]
    assert "a.json.bak" in caplog.text
    file.save("[3]")
    assert (file.path.read_text(), file.backup_path.read_text()) == ("[3]", "[1]")
    file.save("[4]")
    assert (file.path.read_text(), file.backup_path.read_text()) == ("[4]", "[3]")


def test_a_file_that_cannot_be_read_is_replaced_and_is_no_backup(tmp_path: Path) -> None:
    """A bad place on the disk must not keep every later state from being written."""
    files = FaultyFiles()
    file = ConfigFile(tmp_path / "a.json", files)
    file.save("[1]")
    file.save("[2]")
    files.unreadable.add(file.path)
    file.save("[3]")
    files.unreadable.clear()
    assert file.load(json.loads) == [3]
    assert file.backup_path.read_text() == "[1]"


def test_crash_at_any_write_leaves_the_old_or_the_new_text(tmp_path: Path) -> None:
    """A failed sync is an error, and the old text stays."""
    files = FaultyFiles()
    file = ConfigFile(tmp_path / "a.json", files)
    file.save("[1]")
    files.fail_sync = True
    with pytest.raises(StoreError, match="input/output error") as caught:
        file.save("[2]")
    assert not isinstance(caught.value, DiskFullError)
    assert file.load(json.loads) == [1]


def test_file_without_a_backup_is_itself_or_nothing(tmp_path: Path) -> None:
    file = ConfigFile(tmp_path / "a.json", has_backup=False)
    file.backup_path.write_text("[0]")
    assert file.load(json.loads) is None
    file.save("[1]")
    file.save("[2]")
    assert file.load(json.loads) == [2]
    assert file.backup_path.read_text() == "[0]"
    file.path.write_text("[")
    with pytest.raises(StoreDamagedError, match=r"a\.json"):
        file.load(json.loads)
    for _ in range(2):
        file.remove()
        assert file.load(json.loads) is None


def test_file_is_removed_from_the_disk_when_remove_returns(tmp_path: Path) -> None:
    """Before that the name may come back in a power failure."""

    class Directories(Files):
        is_synced = False
        is_broken = False

        def sync_directory(self, path: Path) -> None:
            if self.is_broken:
                raise OSError(errno.EIO, "input/output error")
            self.is_synced = not (path / "a.json").exists()

    files = Directories()
    file = ConfigFile(tmp_path / "a.json", files)
    file.save("[1]")
    file.remove()
    assert files.is_synced
    files.is_broken = True
    with pytest.raises(StoreError, match=r"a\.json cannot be removed: .*input/output error"):
        file.remove()
