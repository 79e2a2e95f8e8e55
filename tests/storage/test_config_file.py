"""Small text files replaced as a whole (C-310, C-329)."""

from __future__ import annotations

import contextlib
import errno
import json
from pathlib import Path

import pytest

from rocketstream.errors import DiskFullError, StoreDamagedError, StoreError
from rocketstream.protocol.bodies.files import CHECKSUM_NAME, unsealed
from rocketstream.server.store import ConfigFile, Files
from tests.kits.stores import FaultyFiles


def config_file(
    path: Path, files: Files | None = None, *, has_backup: bool = True
) -> ConfigFile[int]:
    return ConfigFile(path, lambda text: int(json.loads(text)["n"]), files, has_backup=has_backup)


def text(number: int) -> str:
    return f'{{"n":{number}}}'


def texts(file: ConfigFile[int]) -> tuple[int, int]:
    """What the file and its backup say, each by its checksum."""
    said = [
        int(json.loads(unsealed(file.path.name, path.read_bytes()))["n"])
        for path in (file.path, file.backup_path)
    ]
    return said[0], said[1]


def test_every_text_has_a_copy_from_the_first_on(tmp_path: Path) -> None:
    """Covers C-310, put right: what the backup brings back is not old."""
    file = config_file(tmp_path / "config" / "topics.json")
    assert file.load() is None
    for number in (1, 2):
        file.save(text(number))
        assert texts(file) == (number, number)
    assert sorted(path.name for path in file.path.parent.iterdir()) == [
        "topics.json",
        "topics.json.bak",
    ]


def test_crash_between_the_two_writes_leaves_a_whole_text(tmp_path: Path) -> None:
    class Crashing(Files):
        left = 99

        def replace(self, source: Path, target: Path) -> None:
            if self.left == 0:
                raise OSError(errno.EIO, "input/output error")
            self.left -= 1
            super().replace(source, target)

    files = Crashing()
    file = config_file(tmp_path / "a.json", files)
    file.save(text(1))
    for left, found in ((0, 1), (1, 1), (2, 2)):
        files.left = left
        with contextlib.suppress(StoreError):
            file.save(text(2))
        assert file.load() == found


@pytest.mark.parametrize("broken", [None, "", "  \n", "{", "\udcff"])
def test_backup_is_used_when_the_file_is_missing_empty_or_broken(
    tmp_path: Path, broken: str | None
) -> None:
    """Covers C-329."""
    file = config_file(tmp_path / "a.json")
    file.save(text(1))
    if broken is None:
        file.path.unlink()
    else:
        file.path.write_bytes(broken.encode("utf-8", "surrogateescape"))
    assert file.load() == 1


def test_both_broken_is_an_error_that_names_them(tmp_path: Path) -> None:
    """Covers C-329: start fails."""
    file = config_file(tmp_path / "a.json")
    file.path.write_text("{")
    file.backup_path.write_text("")
    with pytest.raises(StoreDamagedError, match=r"a\.json.*a\.json\.bak is empty"):
        file.load()


def test_an_unreadable_file_is_an_error_and_not_its_backup(tmp_path: Path) -> None:
    """Covers C-329, put right: a disk that fails for a moment must not bring an old state back."""
    files = FaultyFiles()
    file = config_file(tmp_path / "a.json", files)
    file.save(text(1))
    file.save(text(2))
    files.unreadable.add(file.path)
    with pytest.raises(StoreError, match=r"a\.json cannot be read.*a\.json\.bak") as caught:
        file.load()
    assert not isinstance(caught.value, StoreDamagedError)
    files.unreadable.clear()
    assert file.load() == 2


def test_a_file_that_cannot_be_read_is_replaced(tmp_path: Path) -> None:
    """A bad place on the disk must not keep every later state from being written."""
    files = FaultyFiles()
    file = config_file(tmp_path / "a.json", files)
    file.save(text(2))
    files.unreadable.add(file.path)
    file.save(text(3))
    files.unreadable.clear()
    assert file.load() == 3


def test_crash_at_any_write_leaves_the_old_or_the_new_text(tmp_path: Path) -> None:
    """A failed sync is an error, and the old text stays."""
    files = FaultyFiles()
    file = config_file(tmp_path / "a.json", files)
    file.save(text(1))
    files.fail_sync = True
    with pytest.raises(StoreError, match="input/output error") as caught:
        file.save(text(2))
    assert not isinstance(caught.value, DiskFullError)
    assert file.load() == 1


def test_file_without_a_backup_is_itself_or_nothing(tmp_path: Path) -> None:
    file = config_file(tmp_path / "a.json", has_backup=False)
    file.backup_path.write_text(text(0))
    assert file.load() is None
    file.save(text(1))
    file.save(text(2))
    assert file.load() == 2
    assert file.backup_path.read_text() == text(0)
    file.path.write_text("[")
    with pytest.raises(StoreDamagedError, match=r"a\.json"):
        file.load()
    for _ in range(2):
        file.remove()
        assert file.load() is None


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
    file = config_file(tmp_path / "a.json", files)
    file.save(text(1))
    file.remove()
    assert files.is_synced
    files.is_broken = True
    with pytest.raises(StoreError, match=r"a\.json cannot be removed: .*input/output error"):
        file.remove()


# --- the checksum ---------------------------------------------------------------------------------


def test_damaged_text_that_parses_is_broken_and_kept_aside(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One bit of an offset is another offset: the copy is taken, and what was there kept."""
    file = config_file(tmp_path / "a.json")
    file.save(text(160))
    damaged = file.path.read_bytes().replace(b"160", b"360")
    file.path.write_bytes(damaged)
    assert file.load() == 160
    assert file.needs_saving
    assert f"{CHECKSUM_NAME} does not fit" in caplog.text
    assert "a.json.bak is taken, which may be older" in caplog.text
    assert file.broken_path.read_bytes() == damaged
    file.save(text(170))
    assert texts(file) == (170, 170)
    assert not file.needs_saving


def test_text_damaged_while_the_server_runs_never_becomes_the_backup(tmp_path: Path) -> None:
    """Nor does the only whole text go: a failed write leaves it where it was."""
    files = FaultyFiles()
    file = config_file(tmp_path / "a.json", files)
    file.save(text(2))
    file.path.write_bytes(file.path.read_bytes().replace(b":2", b":3"))
    files.fail_sync = True
    with pytest.raises(StoreError):
        file.save(text(4))
    assert file.load() == 2
    files.fail_sync = False
    file.save(text(4))
    assert texts(file) == (4, 4)


def test_backup_is_checked_before_it_is_taken(tmp_path: Path) -> None:
    file = config_file(tmp_path / "a.json")
    file.save(text(1))
    file.save(text(2))
    for path in (file.path, file.backup_path):
        path.write_bytes(path.read_bytes().replace(b'"n":', b'"n":7'))
    with pytest.raises(StoreDamagedError, match=rf"(?s){CHECKSUM_NAME}.*\.bak is broken") as caught:
        file.load()
    assert "move both away to start empty" in str(caught.value)


def test_text_of_another_writer_has_no_checksum_and_gets_one(tmp_path: Path) -> None:
    """Upstream's broker ignores the name and drops it when it writes; so does who edits by hand."""
    file = config_file(tmp_path / "a.json")
    file.save(text(1))
    file.path.write_text(text(5))
    assert file.load() == 5
    assert file.needs_saving
    file.save(text(5))
    assert texts(file) == (5, 5)
    assert file.load() == 5
    assert not file.needs_saving


def test_text_edited_by_hand_is_told_how_to_count(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = config_file(tmp_path / "a.json")
    file.save(text(1))
    file.save(text(2))
    edited = json.dumps(json.loads(file.path.read_bytes()) | {"n": 9}, indent=2)
    file.path.write_text(edited)
    assert file.load() == 2
    assert f'take the line "{CHECKSUM_NAME}" out of it' in caplog.text
    assert "kept as a.json.broken" in caplog.text
    lines = file.broken_path.read_text().splitlines()
    file.path.write_text("\n".join(line for line in lines if CHECKSUM_NAME not in line))
    assert file.load() == 9


def test_file_under_another_name_is_broken(tmp_path: Path) -> None:
    """Two files of one form, exchanged."""
    one, other = config_file(tmp_path / "a.json"), config_file(tmp_path / "b.json")
    one.save(text(1))
    other.path.write_bytes(one.path.read_bytes())
    with pytest.raises(StoreDamagedError, match=CHECKSUM_NAME):
        other.load()
