"""SQL92 subscriptions at the broker: registered, persisted, checked, applied to pulls that wait."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from rocketstream.protocol.bodies import (
    ConsumerData,
    ConsumerFilterData,
    HeartbeatData,
    SubscriptionData,
)
from rocketstream.protocol.codes import RequestCode, ResponseCode
from rocketstream.protocol.command import RemotingCommand
from rocketstream.protocol.headers import UnregisterClientRequestHeader
from rocketstream.protocol.message_ext import decode_messages
from rocketstream.protocol.names import retry_topic
from rocketstream.protocol.record import BatchItem, encode_batch
from rocketstream.protocol.subscription import build_subscription
from rocketstream.server.broker.core.consumer_filters import DEAD_KEPT_MS
from rocketstream.server.embedded import EmbeddedCluster
from rocketstream.testing.clock import ManualClock
from tests.kits.peer import Peer, ext

MakeCluster = Callable[..., EmbeddedCluster]


def fill(broker: Peer, count: int = 40, topic: str = "T1") -> None:
    """Store messages with property ``n`` = 0, 1, … in queue 0."""
    items = [BatchItem(0, b"m%d" % i, b"n\x01%d\x02TAGS\x01x" % i) for i in range(count)]
    assert broker.send(topic, encode_batch(items), batch=True).code == 0


def subscribe(
    broker: Peer, expression: str, version: int = 1, group: str = "cg", topic: str = "T1"
) -> None:
    """Send the heartbeat of a consumer with one SQL92 subscription."""
    data = SubscriptionData(topic, expression, set(), set(), version, "SQL92")
    send_heartbeat(broker, [data], group)


def send_heartbeat(broker: Peer, subscriptions: list[SubscriptionData], group: str = "cg") -> None:
    consumer = ConsumerData(group, subscription_data_set=subscriptions)
    body = HeartbeatData("c1", [], [consumer]).encode()
    assert broker.call(RequestCode.HEART_BEAT, body=body).code == 0


def leave(broker: Peer, group: str = "cg") -> None:
    header = UnregisterClientRequestHeader("c1", None, group)
    assert broker.call(RequestCode.UNREGISTER_CLIENT, header).code == 0


def bodies(answer: RemotingCommand) -> list[bytes]:
    assert answer.code == 0, answer
    return [bytes(message.body) for message in decode_messages(bytes(answer.body))]


# --- the checks of a pull -----------------------------------------------------------------------


def test_condition_that_travels_with_the_pull_selects(broker_peer: Peer) -> None:
    """Covers C-383, C-395: the SUBSCRIPTION flag, as pull consumers set it; TAGS is a property."""
    fill(broker_peer)
    condition = "n BETWEEN 3 AND 5 AND TAGS = 'x'"
    answer = broker_peer.pull("T1", 0, expression=condition, expression_type="SQL92")
    assert bodies(answer) == [b"m3", b"m4", b"m5"]
    assert ext(answer)["nextBeginOffset"] == "40"


def test_bad_condition_that_travels_with_the_pull_is_code_23(broker_peer: Peer) -> None:
    """Covers C-357 row 7, C-386."""
    fill(broker_peer)
    for condition in ("n >", "n = 5 n", "n = NULL"):
        answer = broker_peer.pull("T1", 0, expression=condition, expression_type="SQL92")
        assert answer.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
    answer = broker_peer.pull("T1", 0, expression="x", expression_type="REGEX")
    assert answer.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED


def test_registered_condition_is_looked_up(broker_peer: Peer) -> None:
    """Covers C-357 rows 12 and 13, C-393."""
    fill(broker_peer)
    subscribe(broker_peer, "n = 7")
    answer = broker_peer.pull("T1", 0, expression=None, sub_version=1)
    assert bodies(answer) == [b"m7"]
    assert broker_peer.pull("T1", 0, expression=None, sub_version=2).code == (
        ResponseCode.SUBSCRIPTION_NOT_LATEST
    )


def test_condition_that_does_not_compile_has_no_filter_data(broker_peer: Peer) -> None:
    """Covers C-357 row 12, C-358: the heartbeat is answered, the pull gets code 27."""
    fill(broker_peer)
    subscribe(broker_peer, "n = 7")
    subscribe(broker_peer, "n =", version=2)
    answer = broker_peer.pull("T1", 0, expression=None, sub_version=2)
    assert answer.code == ResponseCode.FILTER_DATA_NOT_EXIST
    subscribe(broker_peer, "n = 8", version=3)
    assert bodies(broker_peer.pull("T1", 0, expression=None, sub_version=3)) == [b"m8"]


def test_last_version_wins_between_tags_and_conditions(broker_peer: Peer) -> None:
    """Covers C-397."""
    fill(broker_peer)
    subscribe(broker_peer, "n = 7", version=2)
    send_heartbeat(broker_peer, [build_subscription("T1", "other", 1)])
    assert bodies(broker_peer.pull("T1", 0, expression=None, sub_version=2)) == [b"m7"]
    send_heartbeat(broker_peer, [build_subscription("T1", "x", 3)])
    assert len(bodies(broker_peer.pull("T1", 0, expression=None, sub_version=3))) == 32
    subscribe(broker_peer, "n = 9", version=4)
    assert bodies(broker_peer.pull("T1", 0, expression=None, sub_version=4)) == [b"m9"]


def test_conditions_can_be_switched_off(rocketmq_cluster_factory: MakeCluster) -> None:
    """Covers C-357 row 14, C-383: upstream's text."""
    cluster = rocketmq_cluster_factory(enable_property_filter=False)
    with Peer(cluster.broker_addr) as broker:
        fill(broker)
        answer = broker.pull("T1", 0, expression="n > 1", expression_type="SQL92")
        text = "The broker does not support consumer to filter message by SQL92"
        assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, text)
        subscribe(broker, "n > 1")
        answer = broker.pull("T1", 0, expression=None, sub_version=1)
        assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, text)


def test_scan_ends_after_eight_hundred_messages(broker_peer: Peer) -> None:
    """Covers C-368, C-369: nothing selected, but the offset moves on by what was looked at."""
    for _ in range(3):
        fill(broker_peer, 400)
    answer = broker_peer.pull("T1", 0, expression="n = 5000", expression_type="SQL92")
    assert (answer.code, answer.remark) == (
        ResponseCode.PULL_RETRY_IMMEDIATELY,
        "NO_MATCHED_MESSAGE",
    )
    assert ext(answer)["nextBeginOffset"] == "800"


def test_retry_topic_passes_unfiltered(broker_peer: Peer) -> None:
    """Covers C-396 with filterSupportRetry off, its default."""
    subscribe(broker_peer, "n = 7")
    topic = retry_topic("cg")
    broker_peer.send(topic, b"again", properties={"RETRY_TOPIC": "T1", "n": "1"})
    send_heartbeat(broker_peer, [build_subscription(topic, None, 2)])
    answer = broker_peer.pull(topic, 0, expression=None, sub_version=2)
    assert bodies(answer) == [b"again"]


def test_retry_topic_is_filtered_when_asked_for(rocketmq_cluster_factory: MakeCluster) -> None:
    """Covers C-396 with filterSupportRetry on: by the condition on the first topic."""
    cluster = rocketmq_cluster_factory(filter_support_retry=True)
    topic = retry_topic("cg")
    retry = build_subscription(topic, None, 1)
    condition = SubscriptionData("T1", "n = 7", set(), set(), 1, "SQL92")
    with Peer(cluster.broker_addr) as broker:
        send_heartbeat(broker, [condition, retry])
        for number, origin in ((1, "T1"), (7, "T1"), (2, "T2")):
            properties = {"RETRY_TOPIC": origin, "n": str(number)}
            broker.send(topic, b"%d" % number, properties=properties)
        answer = broker.pull(topic, 0, expression=None, sub_version=1)
        assert bodies(answer) == [b"7", b"2"]


# --- waiting -------------------------------------------------------------------------------------


def test_waiting_pull_is_woken_by_what_its_condition_selects(broker_peer: Peer) -> None:
    """Covers C-375, C-376: what is not selected leaves it waiting."""
    fill(broker_peer, 1)
    subscribe(broker_peer, "n = 7")
    waiting = broker_peer.submit_pull("T1", 1, expression=None, sub_version=1, suspend_ms=60_000)
    travelling = broker_peer.submit_pull(
        "T1", 1, expression="n > 6", expression_type="SQL92", suspend_ms=60_000
    )
    broker_peer.send("T1", b"no", properties={"n": "1"})
    broker_peer.send("T1", b"neither")
    assert not broker_peer.has_answer(waiting)
    broker_peer.send("T1", b"yes", properties={"n": "7"})
    assert bodies(broker_peer.answer(waiting)) == [b"yes"]
    assert bodies(broker_peer.answer(travelling)) == [b"yes"]


def test_waiting_pull_past_its_time_moves_on(broker_peer: Peer) -> None:
    """Covers C-375, C-377, C-380: answered once its time is up, with the offset moved on."""
    fill(broker_peer, 1)
    waiting = broker_peer.submit_pull(
        "T1", 1, expression="n = 7", expression_type="SQL92", suspend_ms=300
    )
    broker_peer.send("T1", b"no", properties={"n": "1"})
    answer = broker_peer.answer(waiting)
    assert answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY
    assert ext(answer)["nextBeginOffset"] == "2"


def test_woken_pull_is_checked_anew(broker_peer: Peer) -> None:
    """Covers C-379: the group changed its condition while the pull waited."""
    fill(broker_peer, 1)
    subscribe(broker_peer, "n = 7")
    waiting = broker_peer.submit_pull("T1", 1, expression=None, sub_version=1, suspend_ms=60_000)
    subscribe(broker_peer, "n =", version=2)
    broker_peer.send("T1", b"yes", properties={"n": "7"})
    assert broker_peer.answer(waiting).code == ResponseCode.FILTER_DATA_NOT_EXIST


# --- filter data ---------------------------------------------------------------------------------


def written(directory: Path) -> dict[str, dict[str, object]]:
    """Group's data by topic as consumerFilter.json holds it."""
    text = (directory / "config" / "consumerFilter.json").read_text()
    table = json.loads(text)["filterDataByTopic"]
    return {topic: data["groupFilterData"] for topic, data in table.items()}


def test_filter_data_lives_and_dies_with_its_group(
    tmp_path: Path, rocketmq_cluster_factory: MakeCluster
) -> None:
    """Covers C-393: version and birth, death when the group leaves, life on the next heartbeat."""
    clock = ManualClock()
    cluster = rocketmq_cluster_factory(store_dir=tmp_path / "s", clock=clock)
    born_ms = clock.now_ms()
    with Peer(cluster.broker_addr) as broker:
        subscribe(broker, "n = 7")
        clock.advance(1_000)
        subscribe(broker, "n = 7", version=2)
        filters = cluster.broker.controller.filters
        known = filters.get("T1", "cg")
        assert known is not None
        assert (known.born_ms, known.client_version, known.is_dead) == (born_ms, 2, False)
        leave(broker)
        assert known.is_dead
        subscribe(broker, "n = 7", version=2)
        assert not known.is_dead
        send_heartbeat(broker, [build_subscription("T2", None, 3)])
        assert known.is_dead
    cluster.close()
    data = written(tmp_path / "s")["T1"]["cg"]
    assert data["bloomFilterData"] == {"bitNum": 112, "bitPos": [103, 80, 54]}


def test_filter_data_survives_a_restart_as_dead(
    tmp_path: Path, rocketmq_cluster_factory: MakeCluster
) -> None:
    """Covers C-393: the file is read, its groups are dead until they are heard of."""
    clock = ManualClock()
    first = rocketmq_cluster_factory(store_dir=tmp_path / "s", clock=clock)
    with Peer(first.broker_addr) as broker:
        fill(broker)
        subscribe(broker, "n = 7")
    first.close()
    assert list(written(tmp_path / "s")) == ["T1"]
    clock.advance(60_000)
    second = rocketmq_cluster_factory(store_dir=tmp_path / "s", clock=clock)
    known = second.broker.controller.filters.get("T1", "cg")
    assert known is not None
    assert known.is_dead
    with Peer(second.broker_addr) as broker:
        subscribe(broker, "n = 7")
        assert bodies(broker.pull("T1", 0, expression=None, sub_version=1)) == [b"m7"]
        assert not known.is_dead


def test_filter_data_dead_for_a_day_is_dropped(
    tmp_path: Path, rocketmq_cluster_factory: MakeCluster
) -> None:
    """Covers C-393."""
    clock = ManualClock()
    cluster = rocketmq_cluster_factory(store_dir=tmp_path / "s", clock=clock)
    with Peer(cluster.broker_addr) as broker:
        subscribe(broker, "n = 7")
        leave(broker)
        subscribe(broker, "n = 8", group="other")
        # The other group is alive until here: its connection may be seen to end at any time after.
        clock.advance(DEAD_KEPT_MS)
    cluster.close()
    assert list(written(tmp_path / "s")["T1"]) == ["other"]


def test_group_whose_connection_ends_is_dead(rocketmq_cluster: EmbeddedCluster) -> None:
    """Covers C-393: leaving without a word counts as leaving."""
    with Peer(rocketmq_cluster.broker_addr) as broker:
        subscribe(broker, "n = 7")
    filters = rocketmq_cluster.broker.controller.filters
    gone = threading.Event()
    original = filters.unregister

    def noted(group: str, now_ms: int) -> None:
        original(group, now_ms)
        gone.set()

    filters.unregister = noted  # type: ignore[method-assign]
    known = filters.get("T1", "cg")
    assert known is not None
    assert known.is_dead or gone.wait(10)
    assert known.is_dead


@pytest.mark.parametrize("text", ["{", '{"filterDataByTopic":[]}'])
def test_unreadable_file_is_named(
    tmp_path: Path, rocketmq_cluster_factory: MakeCluster, text: str
) -> None:
    """A file nobody can read stops the start; it is not silently replaced."""
    config = tmp_path / "s" / "config"
    config.mkdir(parents=True)
    (config / "consumerFilter.json").write_text(text)
    with pytest.raises(Exception, match=r"consumerFilter\.json"):
        rocketmq_cluster_factory(store_dir=tmp_path / "s")


def test_conditions_of_a_file_that_do_not_compile_are_left_out(
    tmp_path: Path, rocketmq_cluster_factory: MakeCluster
) -> None:
    """A file of the original may hold conditions with trailing text (C-386)."""
    config = tmp_path / "s" / "config"
    config.mkdir(parents=True)
    data = ConsumerFilterData("cg", "T1", "n = 1 x", "SQL92").to_json()
    table = {"T1": {"topic": "T1", "groupFilterData": {"cg": data}}}
    (config / "consumerFilter.json").write_text(json.dumps({"filterDataByTopic": table}))
    cluster = rocketmq_cluster_factory(store_dir=tmp_path / "s")
    assert cluster.broker.controller.filters.get("T1", "cg") is None
