"""What tells rows from others, asked of a real broker."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rocketstream.model import MessageQueue
from rocketstream.protocol.command import RemotingCommand
from rocketstream.server.embedded import EmbeddedCluster
from rocketstream.spark.driver import continuity
from rocketstream.spark.driver.cluster import Cluster
from rocketstream.spark.driver.offsets import Mark
from rocketstream.spark.driver.pulls import QueueEntry, ask_entry, entry_at
from rocketstream.spark.driver.streaming import StreamSource
from rocketstream.spark.options import read_options
from rocketstream.transport.blocking_connection import BlockingConnection
from tests.kits.spark.support import Sent, numbered, send

QUEUES = 40


@pytest.fixture(scope="module")
def embedded() -> Iterator[EmbeddedCluster]:
    """A topic of more queues than are asked at once."""
    with EmbeddedCluster() as running:
        running.create_topic("T", queues=QUEUES)
        for queue_id in range(QUEUES):
            send(running, "T", queue_id, numbered(queue_id, 3))
        yield running


@pytest.fixture
def cluster(embedded: EmbeddedCluster) -> Iterator[Cluster]:
    """The driver's side of a read of it."""
    options = {"nameServer": embedded.namesrv_addr, "topic": "T", "tags": "none"}
    driver = Cluster(read_options(options, "stream"))
    yield driver
    driver.close()


def test_every_row_has_a_mark_of_its_own(cluster: Cluster) -> None:
    """Whatever the stream's tags; the same one each time, later rows after earlier ones."""
    queues = cluster.queues()
    assert len(queues) == QUEUES
    first, last = (cluster.marks(dict.fromkeys(queues, at)) for at in (0, 2))
    assert first.keys() == last.keys() == set(queues)
    assert len({*first.values(), *last.values()}) == 2 * QUEUES
    assert cluster.marks(dict.fromkeys(queues, 2)) == last
    assert all(last[q].covers(first[q]) and not first[q].covers(last[q]) for q in queues)


def test_rows_that_are_not_there_have_none(cluster: Cluster) -> None:
    """Beyond the end, or of a queue the broker does not know the like of."""
    here, there = cluster.queues()[:2]
    assert cluster.marks({here: 3, there: 1}).keys() == {there}
    assert cluster.marks({here: 10**9}) == {}
    assert cluster.marks({}) == {}


def test_the_end_of_a_queue_outside_the_route_is_asked_for_anyway(cluster: Cluster) -> None:
    """None where nobody can say."""
    here = cluster.queues()[0]
    assert cluster.end_anyway(here) == 3
    assert cluster.end_anyway(MessageQueue("T", "no-such-broker", 0)) is None


@pytest.mark.parametrize(
    ("store_ms", "place", "is_covered"),
    [(5, 9, True), (4, 8, True), (4, 9, True), (5, 8, True), (6, 9, False), (5, 10, False)],
)
def test_a_row_covers_itself_and_what_was_stored_before(
    store_ms: int, place: int, is_covered: bool
) -> None:
    assert Mark(5, 9).covers(Mark(store_ms, place)) is is_covered


BODY_BYTES = 100_000


class Answers:
    """Counts the bytes of all that brokers answer to requests under way together."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.size = 0
        receive = BlockingConnection.receive

        def counted(connection: BlockingConnection, timeout_ms: float) -> RemotingCommand:
            answer = receive(connection, timeout_ms)
            self.size += len(answer.body or b"")
            return answer

        monkeypatch.setattr(BlockingConnection, "receive", counted)


@pytest.fixture
def great(embedded: EmbeddedCluster, request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """A topic with a great message in each of eight queues."""
    topic = request.node.name
    embedded.create_topic(topic, queues=8)
    for queue_id in range(8):
        send(embedded, topic, queue_id, [Sent(b"x" * BODY_BYTES, {})])
    options = {"nameServer": embedded.namesrv_addr, "topic": topic}
    given = {"startingOffsets": "earliest", "maxBytesPerTrigger": "1g"}
    driver = Cluster(read_options(options | given, "stream"))
    yield driver
    driver.close()


def test_a_micro_batch_is_planned_without_the_bodies_of_every_queue(
    embedded: EmbeddedCluster, great: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One message of each broker tells when it was stored; the index tells place and size."""
    monkeypatch.setattr(continuity, "ENDS_LIFETIME_MS", -1)
    source = StreamSource(great._options, great)
    answers = Answers(monkeypatch)
    first = source.latest(source.initial(), True)
    assert set(first.ends.values()) == {1}
    for queue_id in range(8):
        send(embedded, source.cluster.queues()[0].topic, queue_id, [Sent(b"y" * BODY_BYTES, {})])
    assert answers.size < 2.5 * BODY_BYTES, "to mark the batch; and a process that is new doubts"
    second = source.latest(first, True)
    assert set(second.ends.values()) == {2}
    assert answers.size < 4 * BODY_BYTES, "of two batches of sixteen messages"
    source.stop()


def test_a_broker_that_shows_no_index_is_asked_for_the_messages(
    great: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Proxy knows no request for it, and an account may be refused it."""
    queues = dict.fromkeys(great.queues(), 0)
    by_index, sizes = great.marks(queues), great.row_bytes(queues)
    monkeypatch.setattr(
        "rocketstream.spark.driver.cluster.ask_entry", lambda queue, at: RemotingCommand.request(1)
    )
    pulled = great.marks(queues)
    assert {q: mark.place for q, mark in pulled.items()} == {
        q: mark.place for q, mark in by_index.items()
    }
    assert all(by_index[q].is_of(mark) for q, mark in pulled.items())
    assert great.row_bytes(queues) == sizes
    answers = Answers(monkeypatch)
    assert great.marks(queues) == pulled
    assert answers.size < 8.5 * BODY_BYTES


def test_a_log_begun_anew_is_told_by_its_times(
    great: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Equal messages are at equal places again: all marks of the broker are doubted then."""
    queues = dict.fromkeys(great.queues(), 0)
    marks = great.marks(queues)
    assert great.marks_again(queues, marks, queues) == marks
    before = {q: mark._replace(store_ms=mark.store_ms - 60_000) for q, mark in marks.items()}
    again = great.marks_again(queues, before, queues)
    assert again.keys() == before.keys()
    assert all(again[q] != mark for q, mark in before.items())
    assert great.marks_again(queues, before, ()) == before, "a process that saw it all knows it"


def test_the_size_of_a_row_that_shares_a_record_is_its_share() -> None:
    """An entry of a batch queue is one of several rows; the next one then is not its neighbour."""
    alone = b'{"queueData":[{"physicOffset":7,"physicSize":90},{"physicOffset":97,"physicSize":9}],'
    assert entry_at(alone + b'"maxQueueIndex":100}', 50) == QueueEntry(7, 90, True)
    shared = b'{"queueData":[{"physicOffset":7,"physicSize":90}],'
    assert entry_at(shared + b'"maxQueueIndex":100}', 50) == QueueEntry(7, 90, False)
    assert entry_at(shared + b'"maxQueueIndex":52}', 50) == QueueEntry(7, 90, False)
    assert entry_at(shared + b'"maxQueueIndex":51}', 50) == QueueEntry(7, 90, True)
    assert entry_at(b"", 50) is entry_at(b'{"queueData":[]}', 50) is None


def test_the_index_is_asked_for_a_row_and_the_next_one() -> None:
    """No more, and for no group: the answer would be about its filters."""
    asked = ask_entry(MessageQueue("T", "b", 3), 7).ext_fields
    assert asked == {"topic": "T", "queueId": "3", "index": "7", "count": "2"}
