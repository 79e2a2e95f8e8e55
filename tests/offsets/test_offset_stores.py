"""Offset stores: the local file of broadcasting, and stores of the user's own (C-299 to C-312)."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import threading
from collections.abc import Collection, Coroutine, Mapping
from pathlib import Path

import pytest

from rocketstream import (
    LocalFileOffsetStore,
    MessageQueue,
    OffsetStore,
    ReadOffsetType,
    RocketMQError,
)
from rocketstream.client.consumer.offsets import local_store
from rocketstream.client.consumer.offsets.local_store import offsets_directory, offsets_path
from rocketstream.client.consumer.offsets.store import UNREADABLE
from rocketstream.client.consumer.offsets.user_store import UserOffsets, checked_store
from rocketstream.errors import ClientStateError, ConfigurationError
from rocketstream.protocol.bodies.files import unsealed
from tests.kits.client.fake_broker import WAIT_S
from tests.kits.vectors import LOCAL_OFFSETS

CLIENT, GROUP = "192.0.2.2@DEFAULT", "G_BC"
MEMORY = ReadOffsetType.READ_FROM_MEMORY
STORE = ReadOffsetType.READ_FROM_STORE
BOTH = ReadOffsetType.MEMORY_FIRST_THEN_STORE


def mq(queue_id: int, topic: str = "TopicA") -> MessageQueue:
    return MessageQueue(topic, "broker-a", queue_id)


@pytest.fixture
def store(tmp_path: Path) -> LocalFileOffsetStore:
    return LocalFileOffsetStore(CLIENT, GROUP, tmp_path)


def again(tmp_path: Path) -> LocalFileOffsetStore:
    """Return the store another process would have, loaded."""
    fresh = LocalFileOffsetStore(CLIENT, GROUP, tmp_path)
    fresh.load()
    return fresh


# --- where and what ------------------------------------------------------------------------------


def test_the_path_is_upstreams(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Covers C-304."""
    assert offsets_path(tmp_path, CLIENT, GROUP) == tmp_path / CLIENT / GROUP / "offsets.json"
    monkeypatch.delenv("ROCKETMQ_LOCAL_OFFSET_STORE_DIR", raising=False)
    monkeypatch.setenv("HOME", "/home/u")
    monkeypatch.setenv("USERPROFILE", "/home/u")
    assert offsets_directory() == Path("/home/u/.rocketmq_offsets")
    monkeypatch.setenv("ROCKETMQ_LOCAL_OFFSET_STORE_DIR", str(tmp_path))
    assert offsets_directory() == tmp_path


@pytest.mark.parametrize(
    ("client", "group"), [(CLIENT, GROUP.lower()), (CLIENT.lower(), GROUP)], ids=["group", "client"]
)
def test_a_name_that_differs_only_in_case_is_refused_where_names_fold(
    store: LocalFileOffsetStore,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    client: str,
    group: str,
) -> None:
    """Both would keep their offsets in one file, and one would begin where the other is."""
    other = LocalFileOffsetStore(client, group, tmp_path)
    other.load()  # nothing is there yet
    store.update_offset(mq(0), 12)
    store.persist_all([mq(0)])
    # On such a disk each spelling leads there, and a directory shows the first one.
    for theirs, ours in ((other.path.parents[1], tmp_path / CLIENT), (other.path.parent, GROUP)):
        if not theirs.exists():
            theirs.symlink_to(ours)
    monkeypatch.setattr(
        local_store,
        "_names",
        lambda place: [each.name for each in place.iterdir() if not each.is_symlink()],
    )
    with pytest.raises(ConfigurationError, match=r"differs from .* only in case"):
        other.load()
    assert other.read_offset(mq(0), STORE) == UNREADABLE
    other.update_offset(mq(0), 99)
    with caplog.at_level(logging.WARNING, "rocketstream.client"):
        other.persist_all([mq(0)])
    assert "only in case" in caplog.text
    assert again(tmp_path).read_offset(mq(0), MEMORY) == 12


def test_the_text_is_upstreams(store: LocalFileOffsetStore) -> None:
    """Covers C-305: tabs, and queues as keys."""
    store.update_offset(mq(1), 7)
    store.update_offset(mq(0), 12)
    store.persist_all([mq(1), mq(0)])
    assert unsealed("offsets.json", store.path.read_bytes()).decode() == LOCAL_OFFSETS


@pytest.mark.parametrize(
    "text",
    [
        LOCAL_OFFSETS,
        '{"offsetTable":{{"brokerName":"broker-a","queueId":1,"topic":"TopicA"}:7,'
        '{"brokerName":"broker-a","queueId":0,"topic":"TopicA"}:12}}',
        '{"offsetTable":{"{\\"brokerName\\":\\"broker-a\\",\\"queueId\\":1,'
        '\\"topic\\":\\"TopicA\\"}":7,"{\\"brokerName\\":\\"broker-a\\",\\"queueId\\":0,'
        '\\"topic\\":\\"TopicA\\"}":12}}',
    ],
)
def test_what_java_wrote_is_read(tmp_path: Path, store: LocalFileOffsetStore, text: str) -> None:
    """Covers C-305: laid out, compact, and the standard JSON of 5.x."""
    store.path.parent.mkdir(parents=True)
    store.path.write_text(text)
    assert dict(again(tmp_path).clone_offset_table()) == {mq(1): 7, mq(0): 12}


def test_an_empty_table_is_read(tmp_path: Path, store: LocalFileOffsetStore) -> None:
    """Covers C-305."""
    store.path.parent.mkdir(parents=True)
    store.path.write_text('{\n\t"offsetTable":{}\n}')
    assert not again(tmp_path).clone_offset_table()


# --- loading -------------------------------------------------------------------------------------


def test_nothing_there_is_an_empty_store(tmp_path: Path) -> None:
    """Covers C-306."""
    fresh = again(tmp_path)
    assert not fresh.clone_offset_table()
    assert fresh.read_offset(mq(0), STORE) == -1
    assert not fresh.path.parent.exists()


@pytest.mark.parametrize("broken", ["", "  \n", "{", '{"offsetTable":[', "\x00\x01"])
def test_a_broken_file_falls_back_to_the_backup(
    tmp_path: Path, store: LocalFileOffsetStore, broken: str
) -> None:
    """Covers C-306, C-310."""
    store.path.parent.mkdir(parents=True)
    store.path.write_text(broken)
    store.backup_path.write_text(LOCAL_OFFSETS)
    assert again(tmp_path).read_offset(mq(0), BOTH) == 12


def test_two_broken_files_fail_the_load_and_are_left_alone(
    tmp_path: Path, store: LocalFileOffsetStore
) -> None:
    """Covers C-306 to C-308: no empty table is written over what a person might still repair."""
    store.path.parent.mkdir(parents=True)
    for path in (store.path, store.backup_path):
        path.write_text("{")
    with pytest.raises(ConfigurationError, match="readLocalOffset Exception"):
        again(tmp_path)
    assert store.read_offset(mq(0), STORE) == -2
    store.update_offset(mq(0), 5)
    store.persist_all([mq(0)])
    assert store.path.read_text() == "{"


def test_an_unreadable_file_is_an_error_and_not_its_backup(
    tmp_path: Path, store: LocalFileOffsetStore
) -> None:
    """Covers C-306, C-307 put right, C-561: neither older offsets nor none, which may be the end
    of the queue."""
    for offset in (1, 2):
        store.update_offset(mq(0), offset)
        store.persist_all([mq(0)])
    kept = store.path.rename(tmp_path / "kept")
    store.path.mkdir()
    with pytest.raises(
        ConfigurationError, match=r"offsets\.json cannot be read.* to go on with .*\.bak"
    ):
        again(tmp_path)
    store.remove_offset(mq(0))
    assert store.read_offset(mq(0), BOTH) == UNREADABLE
    with pytest.raises(ClientStateError, match="-2"):
        asyncio.run(UserOffsets(store).read_store(mq(0)))
    store.update_offset(mq(1), 7)
    store.persist_all([mq(1)])
    store.path.rmdir()
    kept.rename(store.path)
    store.persist_all([mq(1)])
    assert dict(again(tmp_path).clone_offset_table()) == {mq(0): 2, mq(1): 7}


# --- reading and noting --------------------------------------------------------------------------


def test_offsets_go_forward_unless_told_otherwise(store: LocalFileOffsetStore) -> None:
    """Covers C-300."""
    store.update_offset(mq(0), 5)
    store.update_offset(mq(0), 3)
    assert store.read_offset(mq(0), MEMORY) == 5
    store.update_offset(mq(0), 3, increase_only=False)
    assert store.read_offset(mq(0), MEMORY) == 3


def test_the_three_ways_to_read(tmp_path: Path, store: LocalFileOffsetStore) -> None:
    """Covers C-301, C-302, C-307, C-571: what was consumed since is not undone by a read."""
    store.update_offset(mq(0), 5)
    store.persist(mq(0))
    store.update_offset(mq(0), 9)
    assert store.read_offset(mq(0), MEMORY) == 9
    assert store.read_offset(mq(0), BOTH) == 9
    assert store.read_offset(mq(0), STORE) == 5
    assert store.read_offset(mq(0), MEMORY) == 9
    store.remove_offset(mq(0))
    assert store.read_offset(mq(0), MEMORY) == -1
    assert store.read_offset(mq(0), BOTH) == 5
    assert store.read_offset(mq(0), MEMORY) == 5
    assert store.read_offset(mq(7), BOTH) == -1


def test_the_table_of_one_topic(store: LocalFileOffsetStore) -> None:
    """Covers C-309, C-320."""
    store.update_offset(mq(0), 1)
    store.update_offset(mq(0, "B"), 2)
    assert dict(store.clone_offset_table("B")) == {mq(0, "B"): 2}
    assert len(store.clone_offset_table()) == len(store.clone_offset_table(" ")) == 2


# --- writing -------------------------------------------------------------------------------------


def test_queues_that_are_not_named_keep_their_offsets(tmp_path: Path) -> None:
    """Covers C-308, C-309, C-573."""
    first = again(tmp_path)
    first.update_offset(mq(0), 1)
    first.update_offset(mq(1), 2)
    first.persist_all([mq(0), mq(1)])
    second = again(tmp_path)
    second.update_offset(mq(1), 5)
    second.remove_offset(mq(0))
    second.persist_all([mq(1)])
    assert dict(again(tmp_path).clone_offset_table()) == {mq(0): 1, mq(1): 5}
    second.persist_all([])


def test_every_text_has_a_copy_from_the_first_on(store: LocalFileOffsetStore) -> None:
    """Covers C-310, put right: what the backup brings back is not old."""
    for offset in (1, 2, 3):
        store.update_offset(mq(0), offset)
        store.persist_all([mq(0)])
        assert f":{offset}" in store.path.read_text()
        assert store.path.read_bytes() == store.backup_path.read_bytes()
    assert sorted(p.name for p in store.path.parent.iterdir()) == [
        "offsets.json",
        "offsets.json.bak",
    ]


def test_unchanged_offsets_are_not_written_again(store: LocalFileOffsetStore) -> None:
    """Covers C-311, put right: the file rests while nothing moves."""
    store.update_offset(mq(0), 1)
    store.persist_all([mq(0)])
    store.path.write_text("touched")
    store.persist_all([mq(0)])
    assert store.path.read_text() == "touched"
    store.path.unlink()
    store.persist_all([mq(0)])
    assert ":1" in store.path.read_text()


def test_a_crash_between_any_two_steps_leaves_a_whole_file(
    tmp_path: Path, store: LocalFileOffsetStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Covers C-310, C-574: file or backup can be read whichever step was the last."""
    store.update_offset(mq(0), 1)
    store.persist_all([mq(0)])
    import os as module

    real = module.replace
    for steps in range(2):
        left = [steps]

        def replace(source: Path, target: Path, left: list[int] = left) -> None:
            if not left[0]:
                raise OSError("the power is gone")
            left[0] -= 1
            real(source, target)

        monkeypatch.setattr("rocketstream.client.consumer.offsets.local_store.os.replace", replace)
        store.update_offset(mq(0), 10 + steps)
        store.persist_all([mq(0)])
        assert again(tmp_path).read_offset(mq(0), STORE) == 1
        assert not list(store.path.parent.glob("*.tmp")), "what was half-way is cleared away"
        monkeypatch.undo()


def test_what_replaces_a_file_has_reached_the_disk_before(
    store: LocalFileOffsetStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Covers C-574: after a power cut the name must not stand for a text that was never written."""
    on_disk: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda at: on_disk.append(os.fstat(at).st_size))
    store.update_offset(mq(0), 1)
    store.persist_all([mq(0)])
    assert on_disk == [store.path.stat().st_size, store.backup_path.stat().st_size]


@pytest.mark.parametrize("broken", ["", "{"])
def test_a_broken_file_never_becomes_the_backup(
    tmp_path: Path, store: LocalFileOffsetStore, broken: str
) -> None:
    """Covers C-310: a crash in the middle of the next write leaves one that can be used."""
    store.update_offset(mq(0), 2)
    store.persist_all([mq(0)])
    store.path.write_text(broken)
    late = again(tmp_path)
    assert late.read_offset(mq(0), BOTH) == 2
    late.update_offset(mq(0), 2)
    late.persist_all([mq(0)])
    assert ":2" in store.path.read_text(), "mended, although nothing moved"
    late.update_offset(mq(0), 4)
    late.persist_all([mq(0)])
    assert store.path.read_bytes() == store.backup_path.read_bytes()
    assert again(tmp_path).read_offset(mq(0), BOTH) == 4


# --- damage --------------------------------------------------------------------------------------


def test_no_damage_of_the_file_moves_an_offset(
    tmp_path: Path, store: LocalFileOffsetStore, caplog: pytest.LogCaptureFixture
) -> None:
    """Every flipped bit and every cut: the copy is taken, and told; without it nothing starts."""
    store.update_offset(mq(0), 20)
    store.persist_all([mq(0)])
    whole = store.path.read_bytes()
    damaged = [whole[:end] for end in range(len(whole))]
    for place, byte in enumerate(whole):
        bit = 1 << place % 8
        damaged.append(whole[:place] + bytes([byte ^ bit]) + whole[place + 1 :])
    for text in damaged:
        store.path.write_bytes(text)
        caplog.clear()
        assert dict(again(tmp_path).clone_offset_table()) == {mq(0): 20}
        assert "may be older" in caplog.text
    store.backup_path.unlink()
    for text in damaged:
        store.path.write_bytes(text)
        with pytest.raises(ConfigurationError, match=r"remove both to begin where consume_from"):
            again(tmp_path)


@pytest.mark.parametrize(
    ("was", "becomes"),
    [(":12", ":-5"), (":12", ":1.5"), ("offsetTable", "offsetTabme"), ('"queueId":0', '"queueId"')],
)
def test_what_is_no_offset_in_javas_file_is_refused(
    store: LocalFileOffsetStore, tmp_path: Path, was: str, becomes: str
) -> None:
    """Java's file has no checksum, but an offset is a whole number from 0 on."""
    store.path.parent.mkdir(parents=True)
    store.path.write_text(LOCAL_OFFSETS.replace(was, becomes))
    with pytest.raises(ConfigurationError, match="is broken"):
        again(tmp_path)


def test_file_deleted_or_damaged_while_the_consumer_runs_is_written_again(
    tmp_path: Path, store: LocalFileOffsetStore, caplog: pytest.LogCaptureFixture
) -> None:
    """What it knows of all queues, not only of those it has now."""
    store.update_offset(mq(0), 3)
    store.update_offset(mq(1), 4)
    store.persist_all([mq(0), mq(1)])
    late = again(tmp_path)
    late.remove_offset(mq(1))
    for offset, text in ((8, None), (9, "{")):
        late.update_offset(mq(0), offset)
        for path in (late.path, late.backup_path):
            path.unlink() if text is None else path.write_text(text)
        late.persist_all([mq(0)])
        assert "is written again" in caplog.text
        assert dict(again(tmp_path).clone_offset_table()) == {mq(0): offset, mq(1): 4}


def test_damage_that_a_read_has_met_is_put_right_though_nothing_changed(
    tmp_path: Path, store: LocalFileOffsetStore
) -> None:
    store.update_offset(mq(0), 5)
    store.persist_all([mq(0)])
    for path in (store.path, store.backup_path):
        path.write_bytes(b"broken")
    assert store.read_offset(mq(0), STORE) == 5
    store.persist_all([mq(0)])
    assert dict(again(tmp_path).clone_offset_table()) == {mq(0): 5}


def test_offset_below_zero_is_never_written(tmp_path: Path, store: LocalFileOffsetStore) -> None:
    """It would be refused at the next start."""
    store.update_offset(mq(0), -1)
    store.update_offset(mq(1), 7)
    store.update_offset(mq(2), 0)
    store.persist_all([mq(0), mq(1), mq(2)])
    assert dict(again(tmp_path).clone_offset_table()) == {mq(1): 7, mq(2): 0}


@pytest.mark.parametrize(
    ("client", "group"),
    [
        ("192.0.2.2@../../../evil", GROUP),
        ("..", GROUP),
        (CLIENT, "../x"),
        (CLIENT, ""),
        ("a\0b", GROUP),
        ("x" * 256, GROUP),
    ],
)
def test_name_that_is_no_directory_is_refused(tmp_path: Path, client: str, group: str) -> None:
    """Offsets would be written outside of the directory that is theirs."""
    with pytest.raises(ConfigurationError, match="cannot be the name of a directory"):
        LocalFileOffsetStore(client, group, tmp_path)


def test_the_longest_name_of_a_directory_is_taken(tmp_path: Path) -> None:
    """File systems take 255 bytes."""
    longest = "x" * 255
    assert offsets_path(tmp_path, longest, GROUP).parent.parent == tmp_path / longest


def test_threads_of_one_file_take_turns(tmp_path: Path) -> None:
    """Covers C-574: stores that share a file merge, none undoes the other."""
    stores = [LocalFileOffsetStore(CLIENT, GROUP, tmp_path) for _ in range(4)]

    def write(number: int) -> None:
        for offset in range(10):
            stores[number].update_offset(mq(number), offset)
            stores[number].persist_all([mq(number)])

    threads = [threading.Thread(target=write, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert dict(again(tmp_path).clone_offset_table()) == {mq(n): 9 for n in range(4)}


def test_lock_of_a_file_goes_with_its_last_store(tmp_path: Path) -> None:
    """Every client has a directory of its own, by default."""
    one, two = (LocalFileOffsetStore(CLIENT, GROUP, tmp_path) for _ in range(2))
    path = one.path
    assert one._file_lock is two._file_lock
    del one
    assert path in local_store._locks
    del two
    gc.collect()
    assert path not in local_store._locks


def test_two_processes_with_one_client_id_are_told(
    tmp_path: Path, store: LocalFileOffsetStore, caplog: pytest.LogCaptureFixture
) -> None:
    """Covers C-312, C-574: give them instance names of their own."""
    other = again(tmp_path)
    store.update_offset(mq(0), 5)
    store.persist_all([mq(0)])
    other.update_offset(mq(0), 3)
    other.persist_all([mq(0)])
    store.update_offset(mq(0), 6)
    with caplog.at_level(logging.WARNING):
        store.persist_all([mq(0)])
    assert "give each process an instance_name of its own" in caplog.text


def test_a_process_alone_is_told_nothing(
    tmp_path: Path, store: LocalFileOffsetStore, caplog: pytest.LogCaptureFixture
) -> None:
    """Covers C-312: neither of its own offsets nor of another's queues."""
    other = again(tmp_path)
    with caplog.at_level(logging.WARNING):
        for offset in (5, 6, 7):
            store.update_offset(mq(0), offset)
            store.persist_all([mq(0)])
            other.update_offset(mq(1), offset)
            other.persist_all([mq(1)])
    assert not caplog.records
    assert dict(again(tmp_path).clone_offset_table()) == {mq(0): 7, mq(1): 7}


def test_a_directory_that_cannot_be_written_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / CLIENT).write_text("a file in the way")
    store = LocalFileOffsetStore(CLIENT, GROUP, tmp_path)
    store.update_offset(mq(0), 1)
    store.persist_all([mq(0)])
    assert "were not stored" in caplog.text


# --- stores of the user's own --------------------------------------------------------------------


class Dict(OffsetStore):
    """A store that keeps offsets in two dicts."""

    def __init__(self) -> None:
        self.noted: dict[MessageQueue, int] = {}
        self.kept: dict[MessageQueue, int] = {}
        self.threads: set[int] = set()

    def update_offset(self, mq: MessageQueue, offset: int, increase_only: bool = True) -> None:
        known = self.noted.get(mq)
        if known is None or offset > known or not increase_only:
            self.noted[mq] = offset

    def read_offset(self, mq: MessageQueue, read_type: ReadOffsetType) -> int:
        if read_type is MEMORY:
            return self.noted.get(mq, -1)
        self.threads.add(threading.get_ident())
        return self.kept.get(mq, -1)

    def persist_all(self, mqs: Collection[MessageQueue]) -> None:
        self.kept.update({mq: self.noted[mq] for mq in mqs if mq in self.noted})

    def remove_offset(self, mq: MessageQueue) -> None:
        self.noted.pop(mq, None)

    def clone_offset_table(self, topic: str | None = None) -> Mapping[MessageQueue, int]:
        return dict(self.noted)


def test_a_store_of_the_users_own_is_asked_off_the_loop() -> None:
    """Covers C-44, C-299, C-301."""

    async def use() -> None:
        store = Dict()
        offsets = UserOffsets(store)
        await offsets.load()
        assert offsets.read_memory(mq(0)) is None
        assert await offsets.read_store(mq(0)) is None
        offsets.update_offset(mq(0), 4)
        offsets.update_offset(mq(0), 2)
        await offsets.persist([mq(0), mq(1)])
        await offsets.persist([])
        assert await offsets.read_store(mq(0)) == 4
        assert offsets.read_memory(mq(0)) == 4
        assert offsets.piggyback_offset(mq(0)) == 0
        await offsets.update_consume_offset_to_broker(mq(0), 5)
        assert offsets.clone_offset_table() == {mq(0): 4}
        offsets.remove_offset(mq(0))
        assert store.kept == {mq(0): 4}
        assert threading.get_ident() not in store.threads

    asyncio.run(use())


@pytest.mark.parametrize("answer", [-2, -7, None, "5"])
def test_unreadable_is_an_error_not_an_offset(answer: object) -> None:
    """Covers C-302, C-189, C-561: neither the end nor the beginning follows from it."""

    class Silent(Dict):
        def read_offset(self, mq: MessageQueue, read_type: ReadOffsetType) -> int:
            return answer  # type: ignore[return-value]

    with pytest.raises(ClientStateError, match="of the offset store returned"):
        asyncio.run(UserOffsets(Silent()).read_store(mq(0)))


def test_what_a_store_raises_is_one_kind_of_error(caplog: pytest.LogCaptureFixture) -> None:
    """Covers C-44: a failed read is an error, a failed write is logged and tried again."""

    class Broken(Dict):
        def read_offset(self, mq: MessageQueue, read_type: ReadOffsetType) -> int:
            raise ZeroDivisionError("broken")

        def persist_all(self, mqs: Collection[MessageQueue]) -> None:
            raise ZeroDivisionError("broken")

        def update_offset(self, mq: MessageQueue, offset: int, increase_only: bool = True) -> None:
            raise ZeroDivisionError("broken")

        def remove_offset(self, mq: MessageQueue) -> None:
            raise ZeroDivisionError("broken")

    async def use() -> None:
        offsets = UserOffsets(Broken())
        offsets.update_offset(mq(0), 1)
        assert offsets.read_memory(mq(0)) is None
        offsets.remove_offset(mq(0))
        with pytest.raises(RocketMQError, match="ZeroDivisionError"):
            await offsets.read_store(mq(0))
        await offsets.persist_for_good([mq(0)])

    asyncio.run(use())
    assert "failed to persist the offsets" in caplog.text


def test_a_store_that_exits_ends_nothing_of_the_consumers(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Told on another thread, it would end the loop that waits for that."""

    class Exiting(Dict):
        def update_offset(self, mq: MessageQueue, offset: int, increase_only: bool = True) -> None:
            raise SystemExit

        def remove_offset(self, mq: MessageQueue) -> None:
            raise SystemExit

        def persist_all(self, mqs: Collection[MessageQueue]) -> None:
            raise SystemExit

    async def use() -> None:
        offsets = UserOffsets(Exiting())
        offsets.update_offset(mq(0), 1)
        offsets.remove_offset(mq(0))
        await offsets.persist([mq(0)])

    asyncio.run(use())
    for what in ("take offset 1", "remove the offset", "persist the offsets"):
        assert f"the offset store failed to {what}" in caplog.text


def test_a_store_may_be_written_with_coroutines() -> None:
    """Covers C-44: a database client of the asyncio kind."""

    class Awaited(Dict):
        async def load(self) -> None:  # type: ignore[override]
            self.kept[mq(0)] = 3

        async def persist_all(  # type: ignore[override]
            self, mqs: Collection[MessageQueue]
        ) -> None:
            super().persist_all(mqs)

    async def use() -> None:
        store = Awaited()
        offsets = UserOffsets(store)
        await offsets.load()
        assert await offsets.read_store(mq(0)) == 3
        offsets.update_offset(mq(0), 8)
        await offsets.persist([mq(0)])
        assert store.kept == {mq(0): 8}

    asyncio.run(use())


def test_what_a_consumer_is_given_as_store_is_what_it_uses() -> None:
    store = Dict()
    assert checked_store(store) is store
    assert checked_store(None) is None
    with pytest.raises(ConfigurationError, match="an instance of a subclass"):
        checked_store({})


def test_a_store_of_the_users_own_has_zero_noted_and_is_behind_nobody() -> None:
    """Covers C-302: 0 is an offset."""
    offsets = UserOffsets(Dict())
    offsets.update_offset(mq(0), 0)
    assert offsets.read_memory(mq(0)) == 0
    assert offsets.overtaken([mq(0)]) == {}
    asyncio.run(offsets.persist([mq(0)]))
    assert asyncio.run(offsets.read_store(mq(0))) == 0


def test_a_store_of_the_users_own_is_told_soon_in_order_and_off_the_loop() -> None:
    """Covers C-299, C-300: nothing of ours waits for it, or is locked while it is told."""
    told: list[tuple[str, int]] = []
    came, opened = threading.Event(), threading.Event()

    class Slow(Dict):
        def update_offset(self, mq: MessageQueue, offset: int, increase_only: bool = True) -> None:
            self.threads.add(threading.get_ident())
            super().update_offset(mq, offset, increase_only)
            told.append(("update" if increase_only else "put back", offset))
            came.set()
            assert opened.wait(WAIT_S)

        def remove_offset(self, mq: MessageQueue) -> None:
            super().remove_offset(mq)
            told.append(("remove", 0))

    async def use() -> None:
        store, tasks = Slow(), []

        def run_soon(work: Coroutine[None, None, None]) -> None:
            tasks.append(asyncio.get_running_loop().create_task(work))

        offsets = UserOffsets(store, run_soon)
        offsets.update_offset(mq(0), 4)
        assert await asyncio.to_thread(came.wait, WAIT_S)
        for offset in (5, 3, 7):
            offsets.update_offset(mq(0), offset)
        offsets.update_offset(mq(0), 6, increase_only=False)
        offsets.update_offset(mq(0), 8)
        assert (offsets.read_memory(mq(0)), store.noted) == (8, {mq(0): 4})
        assert offsets.clone_offset_table() == {mq(0): 8}
        opened.set()
        await offsets.persist([mq(0)])
        assert told == [("update", 4), ("update", 7), ("put back", 8)]
        assert store.kept == {mq(0): 8}
        offsets.update_offset(mq(0), 9)
        offsets.remove_offset(mq(0))
        assert offsets.read_memory(mq(0)) is None
        assert await offsets.read_store(mq(0)) == 8
        assert (told[3:], store.noted) == ([("remove", 0)], {})
        assert threading.get_ident() not in store.threads
        await asyncio.gather(*tasks)

    asyncio.run(use())


def test_a_store_is_told_whether_an_answer_is_wanted() -> None:
    """Covers C-319."""
    told = []

    class Told(Dict):
        def update_consume_offset_to_broker(
            self, message_queue: MessageQueue, offset: int, is_oneway: bool = False
        ) -> None:
            told.append((message_queue, offset, is_oneway))

    async def use() -> None:
        offsets = UserOffsets(Told())
        await offsets.update_consume_offset_to_broker(mq(0), 5)
        await offsets.update_consume_offset_to_broker(mq(0), 6, True)

    asyncio.run(use())
    assert told == [(mq(0), 5, False), (mq(0), 6, True)]


def test_an_unreadable_backup_of_a_missing_file_is_an_error_that_says_the_way_on(
    tmp_path: Path, store: LocalFileOffsetStore
) -> None:
    store.backup_path.mkdir(parents=True)
    with pytest.raises(
        ConfigurationError, match=r"\.bak cannot be read.* remove both to begin where"
    ):
        again(tmp_path)


def test_offsets_are_read_where_their_directory_shows_no_names(
    tmp_path: Path, store: LocalFileOffsetStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.update_offset(mq(0), 4)
    store.persist_all([mq(0)])

    def unlisted(directory: object) -> list[str]:
        raise PermissionError(f"{directory}")

    monkeypatch.setattr(os, "listdir", unlisted)
    assert dict(again(tmp_path).clone_offset_table()) == {mq(0): 4}


def test_a_forgotten_queue_is_in_no_copy_of_the_table_before_the_store_was_told(
    store: LocalFileOffsetStore,
) -> None:
    async def use() -> None:
        offsets = UserOffsets(store, Coroutine.close)
        store.update_offset(mq(0), 3)
        store.update_offset(mq(1), 4)
        offsets.remove_offset(mq(0))
        assert offsets.clone_offset_table() == {mq(1): 4}

    asyncio.run(use())
