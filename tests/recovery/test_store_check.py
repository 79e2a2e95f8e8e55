"""``rocketstream store check``: every damage is named, and nothing is changed."""

from __future__ import annotations

import struct
from pathlib import Path
from types import SimpleNamespace

import pytest

from rocketstream.errors import StoreError
from rocketstream.protocol.bodies.files import sealed
from rocketstream.protocol.record import sealable
from rocketstream.server import store_check
from rocketstream.server.store_check import StoreCheck
from tests.kits.stores import make_record, opened, put, put_record, tree
from tests.plugins.commands import Quick

FIRST = "0" * 20


@pytest.fixture
def root(tmp_path: Path) -> Path:
    with opened(tmp_path) as store:
        for number in range(30):
            put(store, b"m%02d" % number, queue_id=number % 2, tags="A")
        for _ in range(30):
            record = make_record(b"sealed", queue_id=2, extra=sealable(b"KEYS\x01k").decode())
            put_record(store, "T1", 2, record, 0)
    return tmp_path


def flip(path: Path, at: int, bit: int = 0) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1 << bit
    path.write_bytes(data)


def test_a_whole_store_has_no_findings_and_is_not_changed(root: Path) -> None:
    before = tree(root)
    check = StoreCheck(root)
    assert list(check.findings()) == []
    assert (check.records, check.is_live) == (60, False)
    assert tree(root) == before


def test_it_checks_beside_the_broker_that_runs(root: Path) -> None:
    with opened(root) as store:
        put(store, b"more")
        check = StoreCheck(root, bytes_a_second=1 << 30)
        assert list(check.findings()) == []
        assert (check.records, check.is_live) == (61, True)


@pytest.mark.parametrize(
    ("file", "at", "said"),
    [
        ("commitlog/" + FIRST, 5 * 104 + 92, "condition=RECORD_DAMAGED"),
        ("consumequeue/T1/0/" + FIRST, 27, "condition=UNIT_DAMAGED message 1 of T1/0"),
        ("consumequeue/T1/1/" + FIRST, 19, "condition=UNIT_DAMAGED the tags of message 0"),
    ],
)
def test_it_names_a_bit_that_flips_under_the_broker_that_runs(
    root: Path, file: str, at: int, said: str
) -> None:
    with opened(root) as store:
        put(store, b"more")
        with (root / file).open("r+b") as opened_file:  # the broker has mapped it
            opened_file.seek(at)
            (byte,) = opened_file.read(1)
            opened_file.seek(at)
            opened_file.write(bytes([byte ^ 4]))
        check = StoreCheck(root, bytes_a_second=1 << 30)
        (finding,) = check.findings()
        assert check.is_live
    assert said in finding


def test_it_reads_no_quicker_than_it_is_told(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A log that is in use is read at a bounded rate: the check waits for the time it is owed."""
    waited: list[float] = []

    class Event:
        def wait(self, timeout_s: float) -> None:
            waited.append(timeout_s)

    monkeypatch.setattr(store_check, "_STEP_BYTES", 1000)
    monkeypatch.setattr(store_check, "threading", SimpleNamespace(Event=Event))
    clock = SimpleNamespace(monotonic=lambda: 5.0 + sum(waited))
    monkeypatch.setattr(store_check, "time", clock)
    assert list(StoreCheck(root, bytes_a_second=100).findings()) == []
    read = 60 * 104  # and more, with the seals
    assert sum(waited) >= (read - 1000) / 100
    assert max(waited) < 12


@pytest.mark.parametrize(
    ("file", "at", "bit", "said"),
    [
        ("commitlog/" + FIRST, 5 * 104 + 92, 0, "condition=RECORD_DAMAGED"),
        ("commitlog/" + FIRST, 2, 7, "condition=RECORD_DAMAGED"),
        ("commitlog/" + FIRST, 35 * 104 + 110, 2, "condition=RECORD_DAMAGED"),
        ("consumequeue/T1/0/" + FIRST, 27, 4, "condition=UNIT_DAMAGED message 1 of T1/0"),
        ("consumequeue/T1/1/" + FIRST, 19, 0, "condition=UNIT_DAMAGED the tags of message 0"),
        ("consumequeue/T1/2/" + FIRST, 2, 0, "condition=UNIT_DAMAGED message 0 of T1/2"),
    ],
)
def test_each_damage_is_named_in_a_line(
    root: Path, file: str, at: int, bit: int, said: str
) -> None:
    flip(root / file, at, bit)
    before = tree(root)
    found = list(StoreCheck(root).findings())
    assert any(line.startswith(said) for line in found), found
    assert all("\n" not in line for line in found)
    assert tree(root) == before


def test_files_that_are_gone_or_broken_are_named(root: Path) -> None:
    path = root / "consumequeue" / "T1" / "1" / FIRST
    path.write_bytes(path.read_bytes()[:180] + struct.pack(">qiq", 1 << 40, 99, 0))
    (root / "config" / "topics.json").write_text("{broken")
    for each in (root / "consumequeue" / "T1" / "0").iterdir():
        each.unlink()
    found = "\n".join(StoreCheck(root).findings())
    assert "condition=FILE_DAMAGED" in found
    assert "topics.json" in found
    assert "condition=QUEUE_MISSING queue T1/0" in found
    assert "condition=UNIT_DAMAGED message 9 of T1/1" in found


@pytest.mark.parametrize("folder", ["config", "namesrv"])
@pytest.mark.parametrize("suffix", ["", ".bak"])
def test_a_table_is_compared_with_its_checksum(root: Path, folder: str, suffix: str) -> None:
    """A flipped digit leaves a table like any other."""
    path = root / folder / f"table.json{suffix}"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(sealed("table.json", b'{"T@G": 3}'))
    assert list(StoreCheck(root).findings()) == []
    path.write_bytes(path.read_bytes().replace(b"3}", b"7}"))
    (found,) = StoreCheck(root).findings()
    assert found.startswith(f"condition=FILE_DAMAGED {path}: rocketstreamChecksum does not fit")


def test_messages_of_a_topic_from_before_it_was_deleted_lack_nothing(root: Path) -> None:
    """Their queues were removed with it: the topic made anew has fewer of them, and fewer units."""
    with opened(root) as store:
        store.delete_topic("T1")
        put(store, b"new", tags="A")
    assert list(StoreCheck(root).findings()) == []


def test_a_message_whose_unit_is_gone_is_named(root: Path) -> None:
    with opened(root) as store:
        store.delete_topic("T1")
        for _ in range(3):
            put(store, b"new", tags="A")
    path = root / "consumequeue" / "T1" / "0" / FIRST
    path.write_bytes(path.read_bytes()[:40].ljust(path.stat().st_size, b"\0"))
    (found,) = StoreCheck(root).findings()
    assert found == "condition=UNIT_MISSING message 2 of T1/0 has no unit"


def test_a_directory_without_a_store_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="has no commitlog/"):
        StoreCheck(tmp_path)


def test_the_command_ends_with_1_where_it_found_something(root: Path) -> None:
    done = Quick()("store", "check", "--store", str(root))
    assert done.worked().out == "60 records checked, 0 findings\n"
    flip(root / "commitlog" / FIRST, 2, 7)
    done = Quick()("store", "check", "--store", str(root), "--rate", "1")
    assert done.code == 1
    assert "condition=RECORD_DAMAGED" in done.out
    assert "condition=UNIT_POINTS_NOWHERE unit 0 of T1/0" in done.out  # the message it was
    assert done.out.splitlines()[-1] == "59 records checked, 2 findings"
