"""The simulated disk: what survives a loss of power, held against a plain model, and its faults."""

from __future__ import annotations

import random
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketstream.errors import StoreLockedError
from rocketstream.testing.sim.disk import SECTOR_BYTES, Disk, SimFiles, Trouble

ROOT = Path("/data")
A, B = ROOT / "a", ROOT / "b"


def new_disk(seed: int = 1) -> tuple[Disk, SimFiles]:
    disk = Disk(random.Random(seed), lambda: 1_000)
    files = SimFiles(disk)
    files.make_directory(ROOT)
    files.sync_directory(Path("/"))
    return disk, files


def write(files: SimFiles, path: Path, data: bytes, *, sync: bool = False) -> None:
    with files.opened(path, create=True) as handle:
        files.write_all(handle, data, 0)
        if sync:
            files.sync(handle)


def restarted(disk: Disk) -> SimFiles:
    disk.lose_power()
    return SimFiles(disk)


def test_what_was_synced_survives_whole() -> None:
    for seed in range(50):
        disk, files = new_disk(seed)
        write(files, A, b"safe" * 3000, sync=True)
        files.sync_directory(ROOT)
        assert restarted(disk).read_bytes(A) == b"safe" * 3000


def test_unsynced_pages_are_kept_lost_or_torn_by_the_sector() -> None:
    outcomes = set()
    for seed in range(200):
        disk, files = new_disk(seed)
        write(files, A, b"o" * 8192, sync=True)
        files.sync_directory(ROOT)
        write(files, A, b"n" * 8192)
        data = restarted(disk).read_bytes(A)
        assert len(data) == 8192
        for at in range(0, 8192, SECTOR_BYTES):
            assert len(set(data[at : at + SECTOR_BYTES])) == 1, "a sector is old or new"
        new = data.count(b"n")
        outcomes.add("all" if new == 8192 else "none" if not new else "some")
        if new % 4096:
            outcomes.add("torn")
    assert outcomes == {"all", "none", "some", "torn"}


def test_name_is_lost_unless_its_directory_was_synced() -> None:
    found = {True: 0, False: 0}
    for seed in range(50):
        disk, files = new_disk(seed)
        write(files, A, b"x", sync=True)
        found[restarted(disk).exists(A)] += 1
    assert found[True]
    assert found[False]


def test_rename_survives_whole_or_not_at_all() -> None:
    outcomes = set()
    for seed in range(80):
        disk, files = new_disk(seed)
        write(files, A, b"old", sync=True)
        files.sync_directory(ROOT)
        write(files, B, b"new", sync=True)
        files.replace(B, A)
        after = restarted(disk)
        outcomes.add(after.read_bytes(A))
    assert outcomes == {b"old", b"new"}


def test_rename_of_data_that_was_not_synced_may_leave_an_empty_file() -> None:
    outcomes = set()
    for seed in range(200):
        disk, files = new_disk(seed)
        write(files, B, b"new")
        files.replace(B, A)
        files.sync_directory(ROOT)
        outcomes.add(restarted(disk).read_bytes(A))
    assert b"new" in outcomes
    assert any(not data.strip(b"\0") for data in outcomes)


def test_size_that_was_given_survives_with_a_later_name() -> None:
    for seed in range(50):
        disk, files = new_disk(seed)
        with files.opened(B, create=True) as handle:
            files.truncate(handle, 9000)
            files.reserve(handle, 0, 5000)
        files.replace(B, A)
        files.sync_directory(ROOT)
        assert restarted(disk).file_size(A) == 9000


OPERATION = st.one_of(
    st.tuples(st.just("write"), st.sampled_from("ab"), st.integers(0, 6000), st.binary(max_size=9)),
    st.tuples(st.just("sync"), st.sampled_from("ab"), st.just(0), st.just(b"")),
    st.tuples(st.just("power"), st.just("a"), st.just(0), st.just(b"")),
)


@given(st.lists(OPERATION, max_size=30), st.integers(0, 1000))
def test_every_byte_is_the_last_synced_one_or_a_later_one(
    operations: list[tuple[str, str, int, bytes]], seed: int
) -> None:
    disk, files = new_disk(seed)
    for path in (A, B):
        write(files, path, b"", sync=True)
    files.sync_directory(ROOT)
    now: dict[str, bytearray] = {"a": bytearray(), "b": bytearray()}
    may: dict[str, list[set[int]]] = {"a": [], "b": []}  # what each byte may be after a loss
    for kind, name, position, data in operations:
        path = ROOT / name
        if kind == "power":
            files = restarted(disk)
            for each in now:
                survived = files.read_bytes(ROOT / each)
                assert all(byte in may[each][at] for at, byte in enumerate(survived))
                now[each] = bytearray(survived)
                may[each] = [{byte} for byte in survived]
            continue
        with files.opened(path) as handle:
            held = now[name]
            if kind == "sync":
                files.sync(handle)
                may[name] = [{byte} for byte in held]
            elif data:
                assert files.pwrite(handle, data, position) == len(data)
                held.extend(bytes(max(position + len(data) - len(held), 0)))
                held[position : position + len(data)] = data
                may[name].extend({0} for _ in range(len(held) - len(may[name])))
                for at, byte in enumerate(data, position):
                    may[name][at].add(byte)
        assert files.read_bytes(path) == now[name]


def test_map_is_the_file_itself() -> None:
    _, files = new_disk()
    with files.opened(A, create=True) as handle:
        files.truncate(handle, 100)
        mapped = files.map(handle, 100)
    struct.pack_into(">q", mapped, 8, 77)
    assert struct.unpack_from(">q", files.read_bytes(A), 8) == (77,)
    assert mapped[8:16] == struct.pack(">q", 77)
    assert isinstance(mapped[8:16], bytes)


def test_killed_process_loses_nothing_but_its_handles_and_locks() -> None:
    disk, files = new_disk()
    write(files, A, b"written")
    files.lock(ROOT / "lock")
    with pytest.raises(StoreLockedError):
        files.lock(ROOT / "lock")
    files.die()
    with pytest.raises(OSError, match="ended"):
        files.read_bytes(A)
    after = SimFiles(disk)
    assert after.read_bytes(A) == b"written"
    after.unlock(after.lock(ROOT / "lock"))


@pytest.mark.parametrize(
    ("trouble", "kind"),
    [
        (Trouble(eio_write=1.0), "EIO on write"),
        (Trouble(eio_sync=1.0), "EIO on sync"),
        (Trouble(full=True), "ENOSPC"),
    ],
)
def test_faults_are_raised_and_counted(trouble: Trouble, kind: str) -> None:
    disk, files = new_disk()
    disk.trouble = trouble
    with pytest.raises(OSError, match=r"error|space"):
        write(files, A, b"x", sync=True)
    assert disk.counts == {kind: 1}


def test_what_a_sync_failed_to_write_is_not_written_until_it_is_written_to() -> None:
    """Linux takes such pages for clean: the next sync succeeds, and writes nothing."""
    for again in (False, True):
        disk, files = new_disk()
        write(files, A, b"old" * 3000, sync=True)
        files.sync_directory(ROOT)
        with files.opened(A) as handle:
            files.pwrite(handle, b"new", 0)
            files.pwrite(handle, b"new", 6000)
            disk.trouble = Trouble(eio_sync=1.0)
            with pytest.raises(OSError, match="error"):
                files.sync(handle)
            disk.trouble = Trouble()
            if again:
                files.pwrite(handle, b"new", 6000)
            files.sync(handle)
        assert files.read_bytes(A)[:3] == files.read_bytes(A)[6000:6003] == b"new"
        data = restarted(disk).read_bytes(A)
        assert data[:3] == b"old"
        assert data[6000:6003] == (b"new" if again else b"old")


def test_full_disk_takes_what_has_its_space_already() -> None:
    disk, files = new_disk()
    with files.opened(A, create=True) as handle:
        files.reserve(handle, 0, 10)
        disk.trouble = Trouble(full=True)
        assert files.pwrite(handle, b"0123456789", 0) == 10
        assert files.pwrite(handle, b"0123456789", 5) == 5
        with pytest.raises(OSError, match="space"):
            files.pwrite(handle, b"0", 10)


def test_short_calls_do_a_part_and_loops_do_all() -> None:
    disk, files = new_disk()
    disk.trouble = Trouble(short_write=0.9, short_read=0.9)
    write(files, A, b"0123456789" * 10)
    assert files.read_bytes(A) == b"0123456789" * 10
    assert disk.counts["short write"]
    assert disk.counts["short read"]


def test_a_bit_flips_for_whoever_has_mapped_the_file() -> None:
    disk, files = new_disk()
    write(files, A, b"abc", sync=True)
    with files.opened(A) as handle:
        mapped = files.map(handle, 3)
        flip = disk.flip_bit(str(A), 1, 0)
        assert mapped[:] == b"acc"
        assert flip is not None
        disk.put_right(flip)
        assert mapped[:] == b"abc"
    assert restarted(disk).exists(A) is False


def test_what_was_written_over_a_flipped_bit_stays_and_the_platter_is_put_right() -> None:
    disk, files = new_disk()
    write(files, A, b"abc", sync=True)
    files.sync_directory(ROOT)
    flip = disk.flip_bit(str(A), 1, 0)
    assert flip is not None
    write(files, A, b"axc")
    disk.put_right(flip)
    assert files.read_bytes(A) == b"axc"
    assert {restarted(disk).read_bytes(A)} <= {b"abc", b"axc"}


def test_no_page_is_read_again_that_was_not_synced() -> None:
    disk, files = new_disk()
    write(files, A, b"o" * 8192, sync=True)
    with files.opened(A) as handle:
        files.write_all(handle, b"n", 5000)
    again = [disk.may_be_read_again(str(A), position) for position in (0, 4095, 4096, 8191, 8192)]
    assert again == [True, True, False, False, False]


def test_bit_flips_are_at_rest_and_can_be_put_right() -> None:
    disk, files = new_disk()
    write(files, A, b"\0", sync=True)
    files.sync_directory(ROOT)
    disk.flip_bit(str(A), 0, 3)
    assert files.read_bytes(A) == b"\x08"
    disk.flip_bit(str(A), 0, 3)
    assert restarted(disk).read_bytes(A) == b"\0"
