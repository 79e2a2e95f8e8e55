"""The store's files alone: ours opened by Apache's broker, Apache's opened by ours."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from rocketstream.protocol.codes import RequestCode
from rocketstream.protocol.command import RemotingCommand
from rocketstream.protocol.headers import QueryMessageRequestHeader
from rocketstream.protocol.message_ext import MessageExt, decode_message, decode_messages
from rocketstream.protocol.properties import encode_properties
from rocketstream.protocol.record import new_draft, pack_host
from rocketstream.protocol.tag_hash import tags_code
from rocketstream.server.store.results import GetMessageStatus, RecoveryReport, StoreConfig
from rocketstream.server.store.store import MessageStore
from rocketstream.transport.blocking_connection import BlockingConnection
from tests.kits.apache.cluster import ApacheCluster, JavaPrograms
from tests.kits.apache.messages import Sent, body_of, digest, per_queue, read_sent, received
from tests.kits.apache.referee import Referee
from tests.kits.apache.wire import TIMEOUT_MS, pull_all
from tests.plugins.apache import prepared
from tests.plugins.waiting import wait_until

pytestmark = [pytest.mark.interop, pytest.mark.timeout(180)]

CONFIG = StoreConfig(commit_log_file_bytes=128 * 1024 * 1024)
COUNT = 3_000
SHAPES = (("async", 300, COUNT), ("batch", 300, COUNT), ("sync", 20_000, 100))
"""Send mode, body size and number of messages of what Apache's store is filled with."""


def read_queue(store: MessageStore, topic: str, queue_id: int) -> list[MessageExt]:
    """Every message of a queue, read as the broker would."""
    found: list[MessageExt] = []
    offset = 0
    while True:
        result = store.get(topic, queue_id, offset, 32, None)
        if result.status is not GetMessageStatus.FOUND:
            return found
        found += decode_messages(b"".join(result.records))
        offset = result.next_begin_offset


def fill(referee: Referee, folder: Path, *, killed: bool) -> tuple[Path, list[Sent]]:
    """Have Apache's broker write a store, end it, and return the store and what it holds."""
    cluster = ApacheCluster(referee, folder / "apache")
    java = JavaPrograms(referee, folder / "java")
    sent: list[Sent] = []
    try:
        cluster.start()
        cluster.create_topic("orders", queues=4)
        for mode, size, count in (
            ("async", 300, COUNT),
            ("batch", 300, COUNT),
            ("sync", 20_000, 100),
        ):
            java.produce(
                namesrv=cluster.namesrv_addr,
                topic="orders",
                group="till",
                prefix=mode,
                mode=mode,
                count=count,
                size=size,
                tags="A,红",
                out=folder / "sent",
            )
            sent += read_sent(folder / "sent")
    finally:
        cluster.stop(kill=killed)
    return cluster.store_dir, sent


def test_our_store_opens_what_a_killed_apache_left(apache: Referee, tmp_path: Path) -> None:
    """Singles, batches, deflated bodies, after kill -9 (W 5)."""
    store_dir, sent = fill(apache, tmp_path, killed=True)
    assert (store_dir / "abort").exists()
    assert not open_and_compare(store_dir, sent).clean_exit


def test_our_store_opens_what_apache_closed(tmp_path: Path) -> None:
    """The same after an orderly end."""
    store_dir, sent = fill(prepared("4.9.7"), tmp_path, killed=False)
    assert not (store_dir / "abort").exists()
    report = open_and_compare(store_dir, sent)
    assert report.clean_exit
    assert report.torn_bytes == 0


def open_and_compare(store_dir: Path, sent: list[Sent]) -> RecoveryReport:
    """Open a store with ours; every message must be where its producer was told it is."""
    store = MessageStore(store_dir, CONFIG)
    report = store.open()
    try:
        queues = {queue: read_queue(store, "orders", queue) for queue in range(4)}
        (found,) = store.query_by_key("orders", "async-7", 10, 0, 2**62).records
    finally:
        store.close()
    assert Counter(received(m).sent for each in queues.values() for m in each) == Counter(sent)
    for messages in queues.values():
        assert [m.queue_offset for m in messages] == list(range(len(messages)))
        for message in messages:
            message.check_crc()
    assert decode_message(found).keys == "async-7"
    return report


def write(store: MessageStore, topic: str, count: int) -> list[Sent]:
    """Put messages into four queues, every third time three at once."""
    host = pack_host("127.0.0.1", 10911)
    stored: list[Sent] = []
    number = 0
    while number < count:
        group = range(number, number + (3 if number % 9 == 0 else 1))
        drafts, expected = [], []
        queue_id = number % 4
        for index in group:
            tag, key, body = "A红"[index % 2], f"ours-{index}", body_of("ours", index, 300)
            text = encode_properties({"TAGS": tag, "KEYS": key, "UNIQ_KEY": f"ID{index}"})
            origin = (index, 0, 1_700_000_000_000, host, host, body, text.encode())
            keys = (key, f"ID{index}")
            drafts.append(new_draft(topic, queue_id, *origin, tags_code(tag), keys))
            expected.append((f"ID{index}", key, tag, digest(body)))
        places = store.append(drafts, whole=True)
        stored += [Sent(queue_id, at, *e) for (_, at), e in zip(places, expected, strict=True)]
        number = group.stop
    return stored


@pytest.mark.parametrize("killed", [False, True], ids=["closed", "killed"])
def test_apache_opens_what_our_store_wrote(apache: Referee, tmp_path: Path, killed: bool) -> None:
    """Read back over the wire and found by key; it then appends to our log (W 5).

    It walks over the record by which ours notes that a topic was deleted.
    """
    store = MessageStore(tmp_path / "store", CONFIG)
    store.open()
    write(store, "gone", 20)
    store.delete_topic("gone")
    stored = write(store, "orders", COUNT)
    if killed:
        store.flush()
        store.abandon()
    else:
        store.close()
    assert (tmp_path / "store" / "abort").exists() == killed

    cluster = ApacheCluster(apache, tmp_path / "apache", store_dir=tmp_path / "store")
    try:
        cluster.start()
        cluster.create_topic("orders", queues=4)
        with BlockingConnection(cluster.broker_addr) as broker:
            found = [
                received(message).sent
                for queue_id, count in per_queue(stored).items()
                for message in pull_all(broker, "orders", count, queue_id=queue_id)
            ]
            by_key = wait_until(lambda: query(broker, "ours-7"), "an index entry")
        assert Counter(found) == Counter(stored)
        assert [message.keys for message in by_key] == ["ours-7"]
    finally:
        cluster.stop(kill=True)


def query(broker: BlockingConnection, key: str) -> list[MessageExt]:
    """Messages of a key (12), none while the index does not have it."""
    header = QueryMessageRequestHeader("orders", key, 10, 0, 2**62)
    command = RemotingCommand.request(RequestCode.QUERY_MESSAGE, header)
    answer = broker.request(command, TIMEOUT_MS)
    return decode_messages(bytes(answer.body)) if answer.code == 0 else []


def test_apache_walks_over_what_was_repaired(apache: Referee, tmp_path: Path) -> None:
    """One damaged record: Apache opens the log, and gives every other message at its place."""
    root = tmp_path / "store"
    store = MessageStore(root, CONFIG)
    store.open()
    stored = write(store, "orders", 200)
    lost = next(sent for sent in stored if (sent.queue_id, sent.queue_offset) == (2, 20))
    ((place, size, _),) = store.consume_queue_entries("orders", 2, 20, 1)
    store.close()
    with (root / "commitlog" / ("0" * 20)).open("r+b") as log:
        log.seek(place + size // 2)
        log.write(b"\xff" * 8)
    store.open(repair=True)
    store.flush()
    store.abandon()

    cluster = ApacheCluster(apache, tmp_path / "apache", store_dir=root)
    try:
        cluster.start()
        cluster.create_topic("orders", queues=4)
        with BlockingConnection(cluster.broker_addr) as broker:
            found = [
                received(message).sent
                for queue_id, count in per_queue(stored).items()
                for message in pull_all(broker, "orders", count, queue_id=queue_id)
            ]
        assert set(found) == set(stored) - {lost}
        assert len(found) == len(stored)  # the lost one's place shows the next one
    finally:
        cluster.stop(kill=True)
