"""Where a write may go: names, queues, and brokers that hold messages back until a time."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from contextlib import nullcontext

import pyarrow as pa
import pytest

from rocketstream.client.admin.blocking import BlockingAdminClient
from rocketstream.errors import ConfigurationError, MessageInvalidError, RouteNotFoundError
from rocketstream.model import MessageQueue
from rocketstream.protocol.codes import version_ordinal
from rocketstream.server.embedded import EmbeddedCluster
from rocketstream.spark import worker
from rocketstream.spark.options import WriteOptions, write_options
from rocketstream.spark.sink import routes as routing
from rocketstream.spark.sink.columns import Identity
from rocketstream.spark.sink.routes import Routes
from rocketstream.spark.sink.writer import Sink, write_rows
from tests.kits.spark.broker_contents import waiting

LATER = datetime.datetime(2033, 5, 18, tzinfo=datetime.UTC)


@pytest.fixture
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster() as running:
        running.create_topic("T", queues=2)
        yield running
    worker.close_pools()


def options(name_server: str) -> WriteOptions:
    given = {"nameServer": name_server, "topic": "T", "retryTimeoutMs": "0"}
    return write_options(given, "batch")


def write(cluster: EmbeddedCluster, **columns: pa.Array) -> int:
    rows = pa.record_batch({"body": pa.array([b"x", b"y"])} | columns)
    places = {name: place for place, name in enumerate(rows.schema.names)}
    return write_rows(Sink(options(cluster.namesrv_addr), places, "w"), [rows], Identity("w", 0, 0))


@pytest.mark.parametrize("name", ["or ders", "%RETRY%g", "SCHEDULE_TOPIC_XXXX"])
def test_a_name_that_takes_no_messages_is_refused_before_anybody_is_asked(name: str) -> None:
    """A name server would be asked for ``retryTimeoutMs``."""
    with Routes(options("127.0.0.1:1")) as routes, pytest.raises(ConfigurationError, match=name):
        routes.queues(name)


def test_a_task_keeps_the_queues_of_its_start(cluster: EmbeddedCluster) -> None:
    """Equal sharding keys go to one queue, even if somebody adds queues meanwhile."""
    cluster.create_topic("grows", queues=1)
    with Routes(options(cluster.namesrv_addr)) as routes:
        assert routes.queues("grows") == (MessageQueue("grows", "broker-a", 0),)
        cluster.create_topic("grows", queues=3)
        assert len(routes.queues("grows")) == 1
    with Routes(options(cluster.namesrv_addr)) as routes:
        assert len(routes.queues("grows")) == 3


def test_a_time_of_delivery_needs_brokers_that_keep_it(cluster: EmbeddedCluster) -> None:
    """Nothing else is asked for, not even by a column of nulls; the embedded broker is a 4.x."""
    times = pa.array([LATER, None], pa.timestamp("us", "UTC"))
    with pytest.raises(MessageInvalidError, match=r"'deliverTime': broker broker-a of topic 'T'"):
        write(cluster, deliverTime=times)
    assert write(cluster, delayLevel=pa.array([3, None], pa.int32())) == 2
    assert write(cluster, deliverTime=pa.array([None, None], pa.timestamp("us", "UTC"))) == 2


@pytest.mark.parametrize(("before", "is_fit"), [(0, True), (1, False)])
def test_times_are_kept_from_5_0_0_on(
    before: int, is_fit: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before it is sent: brokers of 4.x that know of no times would deliver at once."""
    monkeypatch.setattr(Routes, "_version", lambda *_: version_ordinal(5, 0, 0) - before)
    refused = nullcontext() if is_fit else pytest.raises(MessageInvalidError, match="older than")
    with Routes(options("127.0.0.1:1")) as routes, refused:
        routes.require_timers("T", [MessageQueue("T", "broker-a", 0)])


def test_messages_that_are_held_back_are_sent_alone(cluster: EmbeddedCluster) -> None:
    """No broker holds a batch back."""
    with BlockingAdminClient(cluster.namesrv_addr) as admin:
        before = waiting(admin, 3)
        assert write(cluster, delayLevel=pa.array([3, 3], pa.int32())) == 2
        assert waiting(admin, 3) == before + 2


def test_a_broker_is_asked_once_whether_it_keeps_times(
    cluster: EmbeddedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its version is in each of its answers."""
    monkeypatch.setattr(routing, "TIMER_VERSION", 0)
    asked: list[str] = []
    real = BlockingAdminClient.request

    def request(client: BlockingAdminClient, address: str, *rest: object) -> object:
        asked.append(address)
        return real(client, address, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(BlockingAdminClient, "request", request)
    with Routes(options(cluster.namesrv_addr)) as routes:
        for _ in range(3):
            routes.require_timers("T", routes.queues("T"))
        assert len(asked) == 1


def test_a_broker_that_is_away_is_no_reason_to_forget_its_address(
    cluster: EmbeddedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody may answer while a cluster is restarted."""
    with Routes(options(cluster.namesrv_addr)) as routes:
        known = routes.address("broker-a")

        asked: list[str] = []

        def away(client: BlockingAdminClient) -> None:
            asked.append("cluster")
            raise RouteNotFoundError("nobody is there")

        monkeypatch.setattr(BlockingAdminClient, "cluster_info", away)
        routes.look_again("broker-a")
        assert asked == ["cluster"]
        assert routes.address("broker-a") == known
