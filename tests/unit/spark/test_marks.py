"""What tells rows from others, asked of a real broker."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rocketstream.model import MessageQueue
from rocketstream.server.embedded import EmbeddedCluster
from rocketstream.spark.driver.cluster import Cluster
from rocketstream.spark.driver.offsets import Mark
from rocketstream.spark.options import read_options
from tests.spark.support import numbered, send

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
