"""What a broker writes down beside its log: when, in which order, what a restart makes of it."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from rocketstream.errors import FlushFailedError, StoreDamagedError
from rocketstream.model import MessageQueue
from rocketstream.protocol.bodies import (
    ConsumerOffsetTable,
    DelayOffsetTable,
    LockBatchRequestBody,
    LockBatchResponseBody,
    TopicConfigSerializeWrapper,
    UnlockBatchRequestBody,
)
from rocketstream.protocol.bodies.files import is_sealed, unsealed
from rocketstream.protocol.codes import RequestCode, ResponseCode
from rocketstream.server.broker import controller
from rocketstream.server.broker.core.topics import TopicTable
from rocketstream.server.broker.handlers import clients
from rocketstream.server.embedded import SMALL_STORE, EmbeddedCluster
from rocketstream.server.store import Files, MessageStore
from rocketstream.testing import ManualClock
from tests.kits.peer import Peer
from tests.plugins.waiting import wait_until

NEVER_MS = 3_600_000
CONFIG = "config"


class BadDisk(Files):
    """A disk that syncs nothing while it is told so."""

    def __init__(self) -> None:
        self.fails = False

    def sync(self, fd: int) -> None:
        if self.fails:
            raise OSError(errno.EIO, "Input/output error")
        super().sync(fd)


class Watch(Files):
    """Notes what a config file held when it got its name, and how far the log was flushed then."""

    def __init__(self) -> None:
        self.store: MessageStore | None = None
        self.seen: list[tuple[str, str, int]] = []
        self._seen_guard = threading.Lock()

    def replace(self, source: Path, target: Path) -> None:
        if target.parent.name == CONFIG and self.store is not None:
            flushed = self.store.flushed_offset
            with self._seen_guard:
                self.seen.append((target.name, self.read_text(source), flushed))
        super().replace(source, target)

    def saved(self, name: str) -> list[tuple[str, int]]:
        """What a file held, and the flushed offset, write by write."""
        with self._seen_guard:
            return [(text, flushed) for found, text, flushed in self.seen if found == name]


@contextmanager
def running(
    store: Path,
    *,
    files: Files | None = None,
    clock: ManualClock | None = None,
    intervals_ms: int | None = None,
    **given: Any,
) -> Iterator[EmbeddedCluster]:
    """A cluster on a store, with the intervals of its files."""
    if clock is not None:
        given["clock"] = clock
    if intervals_ms is not None:
        given |= {
            "offset_persist_interval_ms": intervals_ms,
            "delay_persist_interval_ms": intervals_ms,
        }
    cluster = EmbeddedCluster(store, files=files, **{"store_config": SMALL_STORE, **given})
    with cluster:
        if isinstance(files, Watch):
            files.store = cluster.broker.store
        yield cluster


def kill(cluster: EmbeddedCluster) -> None:
    """Stop the cluster as a kill would: nothing more is written."""

    async def stop() -> None:
        broker = cluster.broker
        persistence = broker._persistence
        for table in persistence._tables:
            table.stop()
            table.loaded()
        broker.store.abandon()

    thread = cluster._thread
    assert thread is not None
    thread.run(stop())


def test_first_commit_is_written_soon(tmp_path: Path) -> None:
    """Covers C-328: a broker that never lives for five seconds keeps its offsets all the same."""
    with running(tmp_path, intervals_ms=NEVER_MS) as cluster, Peer(cluster.broker_addr) as peer:
        file = tmp_path / CONFIG / "consumerOffset.json"
        peer.send("T1")
        assert peer.commit("cg", "T1", 0, 1).code == 0
        wait_until(lambda: file.exists() and '"T1@cg":{0:1' in file.read_text(), "the offsets")


def test_progress_of_a_delay_level_is_written_soon(tmp_path: Path) -> None:
    """Covers C-409: a broker that is killed every few seconds delivers each message once."""
    levels = " ".join(["1ms"] * 18)
    with (
        running(tmp_path, intervals_ms=NEVER_MS, delay_levels=levels) as cluster,
        Peer(cluster.broker_addr) as peer,
    ):
        file = tmp_path / CONFIG / "delayOffset.json"
        for number in range(5):
            peer.send("T1", b"%d" % number, properties={"DELAY": "3"})
            peer.wait_message("T1", number)
        wait_until(lambda: file.exists() and "3:5" in file.read_text(), "the progress")
        kill(cluster)
    with running(tmp_path, delay_levels=levels) as cluster, Peer(cluster.broker_addr) as peer:
        peer.send("T1", b"last", properties={"DELAY": "3"})
        assert peer.wait_message("T1", 5).body == b"last"


def test_offsets_are_saved_after_the_log_they_count(tmp_path: Path) -> None:
    """A power failure after any write leaves no offset beyond the log."""
    watch = Watch()
    with running(tmp_path, files=watch, intervals_ms=20) as cluster:
        store = cluster.broker.store
        ends = {}
        with Peer(cluster.broker_addr) as peer:
            for number in range(1, 30):
                peer.send("T1")
                ends[number] = store.physical_max_offset
                peer.commit("cg", "T1", 0, number)
                if number == 10:
                    wait_until(lambda: watch.saved("consumerOffset.json"), "a write")
    saved = watch.saved("consumerOffset.json")
    for text, flushed in saved:
        offset = ConsumerOffsetTable.decode(text).offset_table["T1@cg"][0]
        assert flushed >= ends[offset]
    assert '"T1@cg":{0:29' in saved[-1][0]


def test_delay_progress_is_saved_after_what_was_delivered(tmp_path: Path) -> None:
    """A power failure after any write skips no acknowledged delayed message."""
    watch = Watch()
    levels = " ".join(["1ms"] * 18)
    with (
        running(tmp_path, files=watch, intervals_ms=20, delay_levels=levels) as cluster,
        Peer(cluster.broker_addr) as peer,
    ):
        for number in range(30):
            peer.send("T1", properties={"DELAY": "1"})
            peer.wait_message("T1", number)
            if number == 10:
                wait_until(lambda: watch.saved("delayOffset.json"), "a write")
        copies = [message.commit_log_offset for message in peer.messages("T1")]
    for text, flushed in watch.saved("delayOffset.json"):
        delivered = DelayOffsetTable.decode(text).offset_table[1]
        assert flushed > copies[delivered - 1]


# --- queue locks ----------------------------------------------------------------------------------


def lock(peer: Peer, client: str, *queue_ids: int) -> list[int]:
    """Ask for queues of T1; return which were granted."""
    wanted = {MessageQueue("T1", "broker-a", number) for number in queue_ids}
    body = LockBatchRequestBody("cg", client, wanted).encode()
    answer = peer.call(RequestCode.LOCK_BATCH_MQ, body=body)
    return sorted(q.queue_id for q in LockBatchResponseBody.decode(answer.body).lock_ok_mq_set)


@pytest.mark.parametrize("is_killed", [True, False])
def test_restarted_broker_keeps_a_queue_for_who_held_it(tmp_path: Path, is_killed: bool) -> None:
    """Covers C-356: the first back does not get what another still consumes in order."""
    clock = ManualClock()
    with running(tmp_path, clock=clock) as cluster, Peer(cluster.broker_addr) as peer:
        assert lock(peer, "c1", 0, 1) == [0, 1]
        assert lock(peer, "c2", 2) == [2]
        if is_killed:
            kill(cluster)
    with running(tmp_path, clock=clock) as cluster, Peer(cluster.broker_addr) as peer:
        assert lock(peer, "c2", 0, 1, 2, 3) == [2, 3]
        assert lock(peer, "c1", 0) == [0]
        clock.advance(30_000)
        assert lock(peer, "c2", 0, 1, 2) == [2]
        clock.advance(1)
        assert lock(peer, "c2", 0, 1, 2) == [1, 2]


def test_queue_that_was_given_up_is_free_after_a_restart(tmp_path: Path) -> None:
    """A group that ended in order, or a new one, waits for nobody."""
    with running(tmp_path) as cluster, Peer(cluster.broker_addr) as peer:
        assert lock(peer, "c1", 0, 1) == [0, 1]
        wanted = {MessageQueue("T1", "broker-a", 0)}
        body = UnlockBatchRequestBody("cg", "c1", wanted).encode()
        assert peer.call(RequestCode.UNLOCK_BATCH_MQ, body=body).code == 0
    with running(tmp_path) as cluster, Peer(cluster.broker_addr) as peer:
        assert lock(peer, "c2", 0, 1) == [0]


class FailingDisk(Files):
    """Writes no small file while told so; while it is dead it removes none either."""

    is_full = is_dead = False

    def write_bytes(self, path: Path, data: bytes) -> None:
        self._may_fail(is_failing=self.is_full or self.is_dead, code=errno.ENOSPC)
        super().write_bytes(path, data)

    def unlink(self, path: Path, *, missing_ok: bool = False) -> None:
        self._may_fail(is_failing=self.is_dead, code=errno.EIO)
        super().unlink(path, missing_ok=missing_ok)

    def _may_fail(self, *, is_failing: bool, code: int) -> None:
        if is_failing:
            raise OSError(code, os.strerror(code))


def test_full_disk_keeps_nobody_from_a_queue_and_a_restart_keeps_it_for_its_holder(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Who got a queue could not be written down: after a restart all wait until leases are over."""
    clock, disk = ManualClock(), FailingDisk()
    file = tmp_path / CONFIG / "queueLocks.json"
    with running(tmp_path, clock=clock, files=disk) as cluster, Peer(cluster.broker_addr) as peer:
        assert lock(peer, "c1", 0) == [0]
        assert file.exists()
        disk.is_full = True
        assert lock(peer, "c2", 1) == [1]
        assert lock(peer, "c3", 2) == [2]
        assert not file.exists()
        kill(cluster)
    disk.is_full = False
    for _ in range(2):
        clock.advance(10_000)
        with (
            running(tmp_path, clock=clock, files=disk) as cluster,
            Peer(cluster.broker_addr) as peer,
        ):
            assert "it is not known who holds which queue" in caplog.text
            assert lock(peer, "c1", 0, 1, 2) == []
            clock.advance(30_000)
            assert lock(peer, "c1", 0, 1, 2) == []
            kill(cluster)
    with running(tmp_path, clock=clock, files=disk) as cluster, Peer(cluster.broker_addr) as peer:
        clock.advance(30_001)
        assert lock(peer, "c1", 0, 1) == [0, 1]
        assert "c1" in file.read_text()
        kill(cluster)
    with running(tmp_path, clock=clock, files=disk) as cluster, Peer(cluster.broker_addr) as peer:
        assert lock(peer, "c2", 0, 1, 2) == [2]


def test_lock_is_written_down_again_when_there_is_room(tmp_path: Path) -> None:
    disk = FailingDisk()
    file = tmp_path / CONFIG / "queueLocks.json"
    with (
        running(tmp_path, files=disk, intervals_ms=1) as cluster,
        Peer(cluster.broker_addr) as peer,
    ):
        disk.is_full = True
        assert lock(peer, "c1", 0) == [0]
        disk.is_full = False
        wait_until(lambda: file.exists() and "c1" in file.read_text(), "the lock")
        kill(cluster)
    with running(tmp_path, files=disk) as cluster, Peer(cluster.broker_addr) as peer:
        assert lock(peer, "c2", 0, 1) == [1]


def test_queue_is_not_given_when_neither_its_holder_nor_their_loss_can_be_noted(
    tmp_path: Path,
) -> None:
    """On a disk that does nothing any more holders keep what they have, and nobody gets more."""
    disk = FailingDisk()
    with (
        running(tmp_path, files=disk, intervals_ms=1) as cluster,
        Peer(cluster.broker_addr) as peer,
    ):
        assert lock(peer, "c1", 0) == [0]
        disk.is_dead = True
        assert lock(peer, "c1", 0, 1) == [0]
        assert lock(peer, "c1", 0, 1) == [0]
        assert lock(peer, "c2", 1) == []
        disk.is_dead = False
        wait_until(lambda: lock(peer, "c1", 0, 1) == [0, 1], "both queues")


def test_lock_that_a_slow_disk_writes_too_late_is_given_with_the_next_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients wait a second for the answer; what they hold already is in it."""
    monkeypatch.setattr(clients, "LOCK_SAVE_WAIT_MS", 1)
    disk = SlowDisk()
    with running(tmp_path, files=disk) as cluster, Peer(cluster.broker_addr) as peer:
        wait_until(lambda: lock(peer, "c1", 0) == [0], "a queue")
        with disk.turn:
            assert lock(peer, "c1", 0, 1) == [0]
        wait_until(lambda: lock(peer, "c1", 0, 1) == [0, 1], "both queues")


class SlowDisk(Files):
    """Writes small files when it is its turn."""

    def __init__(self) -> None:
        self.turn = threading.Lock()

    def write_bytes(self, path: Path, data: bytes) -> None:
        with self.turn:
            super().write_bytes(path, data)


@pytest.mark.parametrize("text", [None, "", '{"lockTable":{"cg"'])
def test_locks_nobody_knows_are_given_when_all_leases_are_over(
    tmp_path: Path, text: str | None
) -> None:
    """A store of Apache's broker, which keeps no locks, or a file that is damaged."""
    clock = ManualClock()
    file = tmp_path / CONFIG / "queueLocks.json"
    with running(tmp_path, clock=clock) as cluster, Peer(cluster.broker_addr) as peer:
        assert lock(peer, "c1", 0) == [0], "nobody can hold a queue of a new store"
    file.unlink()
    if text is not None:
        file.write_text(text)
    with running(tmp_path, clock=clock) as cluster, Peer(cluster.broker_addr) as peer:
        assert lock(peer, "c1", 0) == []
        clock.advance(30_001)
        assert lock(peer, "c1", 0) == [0]


def test_broker_without_locks_writes_down_that_it_has_none(tmp_path: Path) -> None:
    """A restart finds that nobody held a queue, and gives it at once."""
    with running(tmp_path) as cluster:
        wait_until(lambda: (tmp_path / CONFIG / "queueLocks.json").exists(), "the file")
        kill(cluster)
    with running(tmp_path) as cluster, Peer(cluster.broker_addr) as peer:
        assert lock(peer, "c1", 0) == [0]


def test_broker_that_stops_after_a_failed_fsync_writes_down_what_needs_no_log(
    tmp_path: Path,
) -> None:
    """ "Check the disk, then restart": who held a queue keeps it; offsets stay as they were."""
    disk = BadDisk()
    cluster = EmbeddedCluster(tmp_path, files=disk, flush="sync", store_config=SMALL_STORE)
    cluster.start()
    with Peer(cluster.broker_addr) as peer:
        peer.send("T1")
        disk.fails = True
        assert peer.send("T1").code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert peer.heartbeat("c1", "fresh", {"T1": "*"}).code == 0
        assert peer.commit("cg", "T1", 0, 1).code == 0
        disk.fails = False
    with pytest.raises(FlushFailedError):
        cluster.close()
    assert not (tmp_path / CONFIG / "consumerOffset.json").exists()
    assert '"fresh"' in (tmp_path / CONFIG / "subscriptionGroup.json").read_text()


def test_offsets_are_written_down_though_the_counts_of_days_cannot_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each step of a broker's end is taken."""

    def fail() -> None:
        raise ZeroDivisionError

    slow: dict[str, Any] = {"offset_persist_interval_ms": NEVER_MS}
    cluster = EmbeddedCluster(tmp_path, store_config=SMALL_STORE, **slow)
    cluster.start()
    with Peer(cluster.broker_addr) as peer:
        peer.send("T1")
        monkeypatch.setattr(cluster.broker.controller.statistics, "keep", fail)
        assert peer.commit("cg", "T1", 0, 1).code == 0
    with pytest.raises(ZeroDivisionError):
        cluster.close()
    assert '"T1@cg":{0:1' in (tmp_path / CONFIG / "consumerOffset.json").read_text()
    with running(tmp_path) as again:
        assert again.broker.store.max_offset("T1", 0) == 1


def test_dead_letters_are_found_after_a_kill(tmp_path: Path) -> None:
    """Their topic is made on the way, and written down a moment later."""
    with running(tmp_path) as cluster, Peer(cluster.broker_addr) as peer:
        peer.send("T1", b"bad")
        assert peer.send_back("cg", peer.messages("T1")[0], level=-1).code == 0
        kill(cluster)
    lose_topic(tmp_path, "%DLQ%cg")
    with running(tmp_path) as cluster, Peer(cluster.broker_addr) as peer:
        assert [message.body for message in peer.messages("%DLQ%cg")] == [b"bad"]


def lose_topic(folder: Path, topic: str) -> None:
    """Leave a topic's queues without its configuration."""
    file = folder / CONFIG / "topics.json"
    table = TopicConfigSerializeWrapper.decode(file.read_text())
    table.topic_config_table.pop(topic, None)
    file.write_text(table.encode(pretty=True).decode())


def test_dead_letters_are_found_by_a_broker_that_takes_no_more_topics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It did not start."""
    with running(tmp_path) as cluster, Peer(cluster.broker_addr) as peer:
        peer.send("T1", b"bad")
        assert peer.send_back("cg", peer.messages("T1")[0], level=-1).code == 0
    lose_topic(tmp_path, "%DLQ%cg")
    monkeypatch.setattr(controller, "TopicTable", partial(TopicTable, topics_max=1))
    with running(tmp_path) as cluster, Peer(cluster.broker_addr) as peer:
        assert [message.body for message in peer.messages("%DLQ%cg")] == [b"bad"]


def test_messages_of_a_topic_whose_configuration_is_lost_are_there_once_it_is_made(
    tmp_path: Path,
) -> None:
    """Whether it was deleted nobody can tell."""
    with running(tmp_path) as cluster, Peer(cluster.broker_addr) as peer:
        peer.send("T1", b"kept")
    lose_topic(tmp_path, "T1")
    with running(tmp_path) as cluster, Peer(cluster.broker_addr) as peer:
        assert peer.pull("T1", 0).code == ResponseCode.TOPIC_NOT_EXIST
        cluster.create_topic("T1", queues=1)
        assert [message.body for message in peer.messages("T1")] == [b"kept"]


@pytest.mark.parametrize(
    ("code", "ext"),
    [
        (RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T1"}),
        (RequestCode.CLEAN_UNUSED_TOPIC, {}),
    ],
)
def test_queues_without_a_configuration_go_with_the_offsets_in_them_when_told(
    tmp_path: Path, code: int, ext: dict[str, str]
) -> None:
    """A crash can have come in the middle of the deletion: it was no use to ask for it again."""
    with running(tmp_path) as cluster, Peer(cluster.broker_addr) as peer:
        for number in range(3):
            peer.send("T1")
            peer.commit("cg", "T1", 0, number)
    lose_topic(tmp_path, "T1")
    with running(tmp_path) as cluster, Peer(cluster.broker_addr) as peer:
        assert peer.call(code, ext=ext).code == 0
        assert not (tmp_path / "consumequeue" / "T1").exists()
        assert "T1@cg" not in (tmp_path / CONFIG / "consumerOffset.json").read_text()
        peer.send("T1", b"first")
        assert [message.body for message in peer.messages("T1")] == [b"first"]
        assert peer.offset("cg", "T1", set_zero_if_not_found=False) is None


def test_topics_of_a_deleted_group_do_not_come_back_after_a_kill(tmp_path: Path) -> None:
    """Nor count as topics again: their queues were built anew from the log."""
    with running(tmp_path) as cluster, Peer(cluster.broker_addr) as peer:
        peer.send("T1", b"bad")
        assert peer.send_back("cg", peer.messages("T1")[0], level=-1).code == 0
        deleted = peer.call(RequestCode.DELETE_TOPIC_IN_BROKER, ext={"topic": "%DLQ%cg"})
        assert deleted.code == 0
        kill(cluster)
    with running(tmp_path) as cluster, Peer(cluster.broker_addr) as peer:
        assert peer.pull("%DLQ%cg", 0).code == ResponseCode.TOPIC_NOT_EXIST
        assert not (tmp_path / "consumequeue" / "%DLQ%cg").exists()


# --- offsets and their queues ---------------------------------------------------------------------


def test_deleted_topic_leaves_no_offsets_to_a_new_one(tmp_path: Path) -> None:
    """Deleted, made and sent to anew, and killed: the first messages are not skipped."""
    with running(tmp_path) as cluster, Peer(cluster.broker_addr) as peer:
        for number in range(1, 6):
            peer.send("T1")
            peer.commit("cg", "T1", 0, number)
        file = tmp_path / CONFIG / "consumerOffset.json"
        wait_until(lambda: file.exists() and "T1@cg" in file.read_text(), "the offsets")
        deleted = peer.call(RequestCode.DELETE_TOPIC_IN_BROKER, ext={"topic": "T1"})
        assert deleted.code == 0
        for _ in range(3):
            peer.send("T1")
        kill(cluster)
    with running(tmp_path) as cluster, Peer(cluster.broker_addr) as peer:
        assert peer.offset("cg", "T1", set_zero_if_not_found=False) is None


def test_deleted_group_leaves_no_offsets_to_a_new_one(tmp_path: Path) -> None:
    """Deleted with its offsets, and killed: a group of its name begins as a new one does."""
    with running(tmp_path) as cluster, Peer(cluster.broker_addr) as peer:
        peer.send("T1")
        peer.commit("cg", "T1", 0, 1)
        file = tmp_path / CONFIG / "consumerOffset.json"
        wait_until(lambda: file.exists() and "T1@cg" in file.read_text(), "the offsets")
        told = {"groupName": "cg", "removeOffset": "true"}
        assert peer.call(RequestCode.DELETE_SUBSCRIPTIONGROUP, ext=told).code == 0
        kill(cluster)
    with running(tmp_path) as cluster, Peer(cluster.broker_addr) as peer:
        assert peer.offset("cg", "T1", set_zero_if_not_found=False) is None


def test_offset_beyond_its_queue_is_moved_to_the_end_at_the_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As after a repair: the next message is not skipped, and the log says what was done."""
    with running(tmp_path) as cluster, Peer(cluster.broker_addr) as peer:
        peer.send("T1")
        peer.commit("cg", "T1", 0, 1)
    file = tmp_path / CONFIG / "consumerOffset.json"
    file.write_text(ConsumerOffsetTable({"T1@cg": {0: 7}}).encode(pretty=True).decode())
    with running(tmp_path) as cluster, Peer(cluster.broker_addr) as peer:
        assert peer.offset("cg", "T1") == 1
    assert "condition=OFFSET_BEYOND_QUEUE" in caplog.text
    assert "T1@cg queue 0: 7 to 1" in caplog.text


# --- damage ---------------------------------------------------------------------------------------


def used_store(folder: Path) -> None:
    """Leave a store with a topic of four queues, a commit and no process on it."""
    with running(folder) as cluster, Peer(cluster.broker_addr) as peer:
        cluster.create_topic("T1", queues=4)
        for _ in range(20):
            peer.send("T1", queue_id=0)
        assert peer.commit("cg", "T1", 0, 20).code == 0


DAMAGE = [
    ("consumerOffset.json", "0:20", "0:22"),
    ("consumerOffset.json", "0:20", "0:10"),
    ("consumerOffset.json", "offsetTable", "offsetTabme"),
    ("consumerOffset.json", "T1@cg", "T1@ch"),
    ("consumerOffset.json", "rocketstreamChecksum", "rocketstreamChecksuM"),
    ("topics.json", "topicConfigTable", "topicConfigTabme"),
    ("topics.json", '"readQueueNums":4', '"readQueueNums":0'),
    ("topics.json", '"topicName":"T1"', '"topicName":"T3"'),
    ("subscriptionGroup.json", "subscriptionGroupTable", "subscriptionGroupTabme"),
]


@pytest.mark.parametrize(("name", "was", "becomes"), DAMAGE)
def test_one_flipped_bit_of_a_table_is_seen_and_its_backup_taken(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str, was: str, becomes: str
) -> None:
    """A table is never another one in silence, and loses nothing."""
    used_store(tmp_path)
    file = tmp_path / CONFIG / name
    text = file.read_text()
    assert was in text
    file.write_text(text.replace(was, becomes, 1))
    with running(tmp_path) as cluster, Peer(cluster.broker_addr) as peer:
        assert f"{file} is broken" in caplog.text
        assert f"its backup {file}.bak is taken, which may be older" in caplog.text
        assert peer.offset("cg", "T1") == 20
        topic = cluster.broker.controller.topics.get("T1")
        assert topic is not None
        assert topic.read_queue_nums == 4
    with running(tmp_path) as cluster, Peer(cluster.broker_addr) as peer:
        assert caplog.text.count(f"{file} is broken") == 1, "it was mended"
        assert peer.offset("cg", "T1") == 20


@pytest.mark.parametrize(("name", "was", "becomes"), DAMAGE)
def test_table_without_a_whole_version_stops_the_start(
    tmp_path: Path, name: str, was: str, becomes: str
) -> None:
    """Nothing is changed then: what is left is for the operator to look at."""
    used_store(tmp_path)
    file = tmp_path / CONFIG / name
    text = file.read_text().replace(was, becomes, 1)
    for path in (file, file.with_name(f"{name}.bak")):
        path.write_text(text)
    with (
        pytest.raises(StoreDamagedError, match="restore one of them, or move both away"),
        running(tmp_path),
    ):
        pass
    assert file.read_text() == text


def test_store_of_apaches_broker_gets_checksums_at_its_first_start(tmp_path: Path) -> None:
    used_store(tmp_path)
    files = sorted((tmp_path / CONFIG).glob("*.json"))
    for path in files:
        data = path.read_bytes()
        assert is_sealed(data), path
        path.write_bytes(unsealed(path.name, data))
    with running(tmp_path):
        pass
    with running(tmp_path) as cluster, Peer(cluster.broker_addr) as peer:
        assert peer.offset("cg", "T1") == 20
        for path in files:
            assert is_sealed(path.read_bytes()), path


def test_static_topic_without_a_queue_here_is_no_damage(tmp_path: Path) -> None:
    """Each broker of a cluster of 5.x has the cluster's static topics, those with no queue too."""
    used_store(tmp_path)
    for path in (tmp_path / CONFIG).glob("topics.json*"):
        text = unsealed("topics.json", path.read_bytes()).decode()
        for kind in ("read", "write"):
            assert f'"{kind}QueueNums":4' in text
            text = text.replace(f'"{kind}QueueNums":4', f'"{kind}QueueNums":0')
        path.write_text(text)
    with running(tmp_path) as cluster:
        topic = cluster.broker.controller.topics.get("T1")
        assert topic is not None
        assert (topic.read_queue_nums, topic.write_queue_nums) == (0, 0)


def test_no_request_makes_a_topic_that_a_restart_refuses(tmp_path: Path) -> None:
    """Covers C-422: a client that asks for no queues gets one."""
    with running(tmp_path) as cluster:
        topics = cluster.broker.controller.topics
        wanted = topics.wanted_by_send("T9", "TBW102", 0)
        assert wanted is not None
        assert wanted.write_queue_nums == 1
        assert topics.ensure("%RETRY%cg", 0, 0)[0].read_queue_nums == 1
        assert topics.ensure("%RETRY%ch", 1 << 30, 0)[0].read_queue_nums == 65_536
