"""Units lost with a process are found in one walk over the log, and are what they were."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from rocketstream.errors import DiskFullError
from rocketstream.limits import TOPIC_QUEUES_MAX
from rocketstream.server.store import MessageStore, RecoveryReport, queues
from rocketstream.server.store.commit_log import CommitLog
from rocketstream.server.store.recovery import Recovery
from rocketstream.testing.clock import ManualClock
from tests.kits.stores import (
    QuickFiles,
    all_bodies,
    make_record,
    opened,
    put,
    put_record,
    small_config,
    tree,
)

PREPARED = 4
COUNT = 95


def killed(root: Path) -> dict[str, bytes]:
    """Leave a store as a kill does; return its queues' files."""
    store = MessageStore(root, small_config(), ManualClock(), QuickFiles())
    store.open()
    put(store, b"first")
    store.flush()
    for number in range(COUNT):
        put(store, b"%d" % number, queue_id=number % 3, tags=f"t{number % 2}")
        put_record(store, "T1", 0, make_record(b"half", sys_flag=PREPARED), 0)
    store.abandon()
    return tree(root / "consumequeue")


def opened_again(root: Path) -> RecoveryReport:
    store = MessageStore(root, small_config(), ManualClock(), QuickFiles())
    report = store.open()
    store.abandon()
    return report


def no_second_walk(self: Recovery, start: int) -> None:
    raise AssertionError(f"the log is walked again from {start}")


def test_units_are_as_they_were_after_one_walk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over many files of each queue (10 units a file here), whether they are there or not."""
    before = killed(tmp_path)
    assert len(before) > 9
    monkeypatch.setattr(Recovery, "_dispatch_from", no_second_walk)
    report = opened_again(tmp_path)
    assert report.records_dispatched >= COUNT
    assert not report.rebuilt
    assert tree(tmp_path / "consumequeue") == before
    for path in sorted((tmp_path / "consumequeue" / "T1" / "1").iterdir())[1:]:
        path.unlink()
    assert opened_again(tmp_path).records_dispatched >= COUNT
    assert tree(tmp_path / "consumequeue") == before


def test_more_than_may_be_remembered_is_walked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = killed(tmp_path)
    walks: list[int] = []
    general = Recovery._dispatch_from

    def walked(self: Recovery, start: int) -> None:
        walks.append(start)
        general(self, start)

    monkeypatch.setattr(Recovery, "_dispatch_from", walked)
    monkeypatch.setattr(queues, "RECORDS_MAX", COUNT // 2)
    opened_again(tmp_path)
    assert len(walks) == 1
    assert tree(tmp_path / "consumequeue") == before


def test_a_topic_made_again_meanwhile_has_the_later_messages(tmp_path: Path) -> None:
    store = MessageStore(tmp_path, small_config(), ManualClock(), QuickFiles())
    store.open()
    put(store, b"other", topic="T2")
    store.flush()
    put(store, b"gone")
    store.delete_topic("T1")
    for text in (b"a", b"b"):
        put(store, text)
    store.abandon()
    with opened(tmp_path) as again:
        assert all_bodies(again) == [b"a", b"b"]
        assert all_bodies(again, "T2") == [b"other"]


def test_a_last_record_that_was_not_written_whole_gets_no_unit(tmp_path: Path) -> None:
    store = MessageStore(tmp_path, small_config(), ManualClock(), QuickFiles())
    store.open()
    put(store, b"flushed")
    store.flush()
    put(store, b"kept", tags="a")
    last = put(store, b"torn", tags="abc")
    store.abandon()
    log = tmp_path / "commitlog" / ("0" * 20)
    with log.open("r+b") as file:
        file.seek(last.end_offset - 2)
        file.write(bytes(2))
    with opened(tmp_path) as again:
        assert all_bodies(again) == [b"flushed", b"kept"]
        assert put(again, b"next").queue_offset == 2
        assert all_bodies(again)[2:] == [b"next"]


# --- deleted topics -------------------------------------------------------------------------------


def with_deleted(root: Path) -> MessageStore:
    """A store with a topic that was deleted since the last unit that is on the disk for sure."""
    store = MessageStore(root, small_config(), ManualClock(), QuickFiles())
    store.open()
    put(store, b"old", topic="gone", queue_id=1)
    put(store, b"kept")
    store.flush()
    for number in range(COUNT):
        put(store, b"%d" % number, topic="gone", queue_id=number % 3)
    store.delete_topic("gone")
    return store


def test_a_crash_brings_no_queue_of_a_deleted_topic_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whose first units the walk does not meet: all queues were built anew for that, before."""
    with_deleted(tmp_path).abandon()
    monkeypatch.setattr(Recovery, "_dispatch_from", no_second_walk)
    with opened(tmp_path) as store:
        assert store.topics() == ["T1"]
        assert not (tmp_path / "consumequeue" / "gone").exists()
        assert put(store, b"new", topic="gone", queue_id=1).queue_offset == 0


@pytest.mark.parametrize("lost", ["units", "everything"])
def test_queues_built_anew_are_not_those_of_deleted_topics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    """By a second walk, or from the whole log; what the new topic got since is there."""
    store = with_deleted(tmp_path)
    put(store, b"new", topic="gone", queue_id=2)
    store.abandon()
    if lost == "units":
        monkeypatch.setattr(queues, "RECORDS_MAX", 1)
    else:
        shutil.rmtree(tmp_path / "consumequeue")
    with opened(tmp_path) as again:
        assert all_bodies(again) == [b"kept"]
        assert again.queue_ids("gone") == [2]
        assert all_bodies(again, "gone", queue_id=2) == [b"new"]


def test_a_deletion_whose_removals_a_power_loss_took_back_is_done_again(tmp_path: Path) -> None:
    directory, before = tmp_path / "consumequeue" / "gone", tmp_path / "before"
    store = MessageStore(tmp_path, small_config(), ManualClock(), QuickFiles())
    store.open()
    put(store, b"kept")
    store.flush()
    put(store, b"old", topic="gone")
    put(store, b"other", topic="gone", queue_id=1)
    shutil.copytree(directory, before)
    store.delete_topic("gone")
    put(store, b"new", topic="gone")
    store.abandon()
    shutil.copytree(before, directory, dirs_exist_ok=True)
    with opened(tmp_path) as again:
        assert again.queue_ids("gone") == [0]
        assert all_bodies(again, "gone") == [b"new"]


def test_messages_count_on_after_a_deletion_that_another_broker_did_not_see(
    tmp_path: Path,
) -> None:
    """Upstream's brings the queues back, and may store further messages in them."""
    store = MessageStore(tmp_path, small_config(), ManualClock(), QuickFiles())
    store.open()
    put(store, b"kept")
    store.flush()
    put(store, b"old", topic="gone")
    directory, before = tmp_path / "consumequeue" / "gone", tmp_path / "before"
    shutil.copytree(directory, before)
    store.delete_topic("gone")
    shutil.copytree(before, directory)
    store._queues.make("gone", 0).load()
    put(store, b"new", topic="gone")
    store.abandon()
    with opened(tmp_path) as again:
        assert all_bodies(again, "gone")[-1:] == [b"new"]
        assert put(again, b"next", topic="gone").queue_offset == 2


def test_a_message_cannot_pass_for_a_deletion(tmp_path: Path) -> None:
    """Which a client may send as a half message in name, to the last queue of a topic."""
    store = MessageStore(tmp_path, small_config(), ManualClock(), QuickFiles())
    store.open()
    put(store, b"kept")
    last = TOPIC_QUEUES_MAX - 1
    put_record(store, "T1", last, make_record(queue_id=last, sys_flag=PREPARED), 0)
    store.abandon()
    with opened(tmp_path) as again:
        assert all_bodies(again) == [b"kept"]


def test_a_topic_is_deleted_though_the_log_has_no_room_to_say_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(self: CommitLog, size: int) -> int:
        raise DiskFullError("the disk is full", directory=str(tmp_path))

    with opened(tmp_path) as store:
        put(store, b"old")
        with monkeypatch.context() as patch:
            patch.setattr(CommitLog, "room", full)
            store.delete_topic("T1")
        assert store.topics() == []
        assert put(store, b"new").queue_offset == 0
    assert "a crash may bring back the deleted topic T1" in caplog.text


@pytest.mark.parametrize("seed", range(12))
def test_topics_have_after_a_kill_what_they_had_whatever_was_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    chance, clock = random.Random(seed), ManualClock()
    if seed % 3 == 0:
        monkeypatch.setattr(queues, "RECORDS_MAX", 5)
    had: dict[tuple[str, int], list[bytes]] = {}
    store = MessageStore(tmp_path, small_config(), clock, QuickFiles())
    store.open()
    for number in range(150):
        topic, queue_id, what = chance.choice("AB"), chance.randrange(3), chance.random()
        if what < 0.75:
            put(store, b"%d" % number, topic=topic, queue_id=queue_id)
            had.setdefault((topic, queue_id), []).append(b"%d" % number)
            clock.advance(chance.choice((0, 1, 4000)))
        elif what < 0.82:
            store.delete_topic(topic)
            had = {key: bodies for key, bodies in had.items() if key[0] != topic}
        elif what < 0.92:
            store.flush()
        else:
            store.abandon()
            if what > 0.98:
                shutil.rmtree(tmp_path / "consumequeue")
            store = MessageStore(tmp_path, small_config(), clock, QuickFiles())
            store.open()
            keys = [(name, each) for name in store.topics() for each in store.queue_ids(name)]
            assert {key: all_bodies(store, key[0], queue_id=key[1]) for key in keys} == had
    store.abandon()
