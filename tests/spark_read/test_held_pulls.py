"""News from the ends of queues, of a real broker."""

from __future__ import annotations

import dataclasses
import socket
from collections.abc import Iterator

import pytest

from rocketstream.model import MessageQueue
from rocketstream.protocol.command import RemotingCommand
from rocketstream.server.embedded import EmbeddedCluster
from rocketstream.spark.driver.cluster import Cluster
from rocketstream.spark.driver.held_pulls import REST_MS, HeldPulls
from rocketstream.spark.driver.streaming import StreamSource
from rocketstream.spark.options import ReadOptions, read_options
from rocketstream.testing.clock import ManualClock
from rocketstream.transport.blocking_connection import BlockingConnection
from tests.kits.spark.support import numbered, send
from tests.plugins.waiting import wait_until

A, B, C = (MessageQueue("T", "broker-a", queue_id) for queue_id in range(3))
LONG_MS = 60_000


@pytest.fixture
def embedded() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster() as running:
        running.create_topic("T", queues=2)
        yield running


@pytest.fixture
def options(embedded: EmbeddedCluster) -> ReadOptions:
    given = {"nameServer": embedded.namesrv_addr, "topic": "T", "startingOffsets": "earliest"}
    return read_options(given | {"retryTimeoutMs": "0"}, "stream")


@pytest.fixture
def cluster(options: ReadOptions) -> Iterator[Cluster]:
    driver = Cluster(options)
    yield driver
    driver.close()


@pytest.fixture
def held_pulls(options: ReadOptions, cluster: Cluster) -> Iterator[HeldPulls]:
    pulls = HeldPulls(options, cluster)
    yield pulls
    pulls.close()


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The codes of all requests sent on plain connections."""
    sent: list[int] = []
    original = BlockingConnection._send

    def send(
        self: BlockingConnection, command: RemotingCommand, deadline_ms: float | None = None
    ) -> None:
        sent.append(command.code)
        original(self, command, deadline_ms)

    monkeypatch.setattr(BlockingConnection, "_send", send)
    return sent


def test_a_message_is_heard_and_silence_is_not(
    embedded: EmbeddedCluster, held_pulls: HeldPulls, requests: list[int]
) -> None:
    """One pull a queue is held, however often one listens; a message that came before counts."""
    ends = {A: 0, B: 0}
    assert [held_pulls.news(ends, 1) for _ in range(20)] == [False] * 20
    assert len(requests) == 3  # where the broker is, and a pull each
    send(embedded, "T", 1, numbered(0, 1))
    assert held_pulls.news(ends, LONG_MS)
    assert not held_pulls.news({A: 0, B: 1}, 1)
    send(embedded, "T", 0, numbered(0, 1))
    send(embedded, "T", 1, numbered(0, 1))
    assert held_pulls.news({A: 0, B: 1}, LONG_MS)


def test_news_that_was_read_already_is_none(
    embedded: EmbeddedCluster, held_pulls: HeldPulls
) -> None:
    """The pull was held before the batch that read the message."""
    assert not held_pulls.news({A: 0}, 1)
    send(embedded, "T", 0, numbered(0, 3))
    assert not held_pulls.news({A: 3}, 50)
    send(embedded, "T", 0, numbered(0, 1))
    assert held_pulls.news({A: 3}, LONG_MS)


def test_the_same_news_is_not_told_again_and_again(
    embedded: EmbeddedCluster, held_pulls: HeldPulls, requests: list[int]
) -> None:
    """Where the end does not follow the pulls, as at a slave that lags, the queue rests."""
    send(embedded, "T", 0, numbered(0, 1))
    assert held_pulls.news({A: 0}, LONG_MS)
    heard = len(requests)
    assert [held_pulls.news({A: 0}, 1) for _ in range(20)] == [False] * 20
    assert len(requests) == heard


def test_a_broker_that_is_away_is_asked_rather_than_believed(
    embedded: EmbeddedCluster, held_pulls: HeldPulls
) -> None:
    """Whoever asks for the ends then knows what to do; and it is found again."""
    assert not held_pulls.news({A: 0}, 1)
    embedded.close()
    assert held_pulls.news({A: 0}, LONG_MS)
    assert held_pulls.news({A: 0}, LONG_MS), "nobody listens there now"
    assert all(held_pulls.news({A: 0}, 1) for _ in range(20))


def test_a_broker_that_restarts_is_listened_to_at_once(
    embedded: EmbeddedCluster, options: ReadOptions, cluster: Cluster
) -> None:
    """Or a message of the first second after it would be seen late, and taken for none."""
    clock = ManualClock()
    held_pulls = HeldPulls(options, cluster, clock)
    try:
        assert not held_pulls.news({A: 0}, 0)
        (line,) = held_pulls._lines.values()
        line.connection._sock.shutdown(socket.SHUT_RDWR)  # type: ignore[union-attr]
        assert held_pulls.news({A: 0}, 0)
        assert not held_pulls.news({A: 0}, 0)
        assert held_pulls._held == {A}
    finally:
        held_pulls.close()


def test_a_queue_that_rests_is_asked_about_once_a_second(
    embedded: EmbeddedCluster, options: ReadOptions, cluster: Cluster
) -> None:
    """Nobody would tell of a message there."""
    clock = ManualClock()
    held_pulls = HeldPulls(options, cluster, clock)
    send(embedded, "T", 0, numbered(0, 1))
    try:
        assert not held_pulls.news({A: 1}, 0)
        held_pulls._rests_until[B] = clock.monotonic_ms() + 10 * REST_MS
        heard = []
        for _ in range(30):
            clock.advance(REST_MS / 10)
            heard.append(held_pulls.news({A: 1, B: 0}, 0))
        assert sum(heard) == 3
    finally:
        held_pulls.close()


def test_an_idle_stream_hardly_asks_a_real_broker(
    embedded: EmbeddedCluster, options: ReadOptions, cluster: Cluster, requests: list[int]
) -> None:
    """As Spark asks in its idle loop: held pulls, and nothing else; then a message at once."""
    send(embedded, "T", 0, numbered(0, 3))
    source = StreamSource(options, cluster)
    end = source.latest(source.initial(), False)
    for _ in range(3):
        assert source.latest(end, False) is end
    begun = len(requests)
    for _ in range(10):
        assert source.latest(end, False) is end
    assert len(requests) == begun
    send(embedded, "T", 1, numbered(3, 1))
    assert source.latest(end, False).ends == {A: 3, B: 1}
    source.stop()


def test_a_queue_that_appears_is_seen_while_pulls_are_held(
    embedded: EmbeddedCluster, options: ReadOptions
) -> None:
    """Nobody tells of it: the list of queues is looked up as often as said, held pulls or not."""
    options = dataclasses.replace(options, queue_refresh_ms=100)
    source = StreamSource(options, Cluster(options))
    end = source.latest(source.initial(), False)
    for _ in range(3):
        assert source.latest(end, False) is end
    embedded.create_topic("T", queues=3)
    send(embedded, "T", 2, numbered(0, 2))
    wait_until(lambda: source.latest(end, False).ends.get(C) == 2, "the new queue's messages")
    source.stop()
