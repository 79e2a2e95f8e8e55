"""The offset file of broadcasting consumers, handed from one language to the other and back."""

from __future__ import annotations

from pathlib import Path

import pytest

from rocketstream import ConsumeFromWhere, LocalFileOffsetStore, MessageModel, PushConsumer
from tests.kits.apache.cluster import ApacheCluster, JavaPrograms
from tests.kits.apache.messages import read_received
from tests.kits.apache.ours import Collector, send_many

pytestmark = [pytest.mark.interop, pytest.mark.timeout(120)]

INSTANCE = "shared"


def consumed_by_java(
    java: JavaPrograms, cluster: ApacheCluster, topic: str, group: str, out: Path, count: int
) -> list[int]:
    """Run a broadcasting Java consumer for ``count`` messages; return all it got, by index."""
    with java.start(
        "JavaPushConsumer",
        namesrv=cluster.namesrv_addr,
        topic=topic,
        group=group,
        count=count,
        out=out,
        instance=INSTANCE,
        broadcast=True,
    ) as consumer:
        consumer.wait_event("done")
        consumer.end_input()
        consumer.wait_event("closed")
        assert consumer.wait() == 0
    return sorted(int(each.index) for each in read_received(out))


def test_a_place_in_a_topic_goes_from_java_to_python_and_back(
    java: JavaPrograms,
    apache_cluster: ApacheCluster,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Covers C-304 to C-306, C-308: each goes on where the other stopped, in one file."""
    cluster = apache_cluster
    topic, group = cluster.create_topic(cluster.unique("local"), queues=4), cluster.unique("local")
    send_many(cluster.namesrv_addr, topic, 60, size=100)
    first = consumed_by_java(java, cluster, topic, group, tmp_path / "first", 60)
    assert first == list(range(60))

    (file,) = (java.root / "user" / ".rocketmq_offsets").glob(f"*@{INSTANCE}/{group}/offsets.json")
    client_id, directory = file.parent.parent.name, file.parent.parent.parent
    store = LocalFileOffsetStore(client_id, group, directory)
    store.load()
    assert sum(store.clone_offset_table(topic).values()) == 60

    monkeypatch.setenv("ROCKETMQ_LOCAL_OFFSET_STORE_DIR", str(directory))
    collector = Collector()
    ours = PushConsumer(
        group,
        namesrv_addr=cluster.namesrv_addr,
        client_ip=client_id.partition("@")[0],
        instance_name=INSTANCE,
        message_model=MessageModel.BROADCASTING,
        consume_from_where=ConsumeFromWhere.FIRST_OFFSET,
        listener=collector,
        subscription={topic: "*"},
    )
    assert ours.client_id == client_id
    with ours:
        send_many(cluster.namesrv_addr, topic, 40, size=100)
        collector.wait(40)
    assert sorted(int(each.index) for each in collector.deliveries) == list(range(40))

    send_many(cluster.namesrv_addr, topic, 30, size=100)
    last = consumed_by_java(java, cluster, topic, group, tmp_path / "last", 30)
    assert last == list(range(30))
