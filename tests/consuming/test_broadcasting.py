"""Broadcasting: every member gets everything, and keeps its own place in a file."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from rocketstream import (
    ConsumeFromWhere,
    ConsumeOrderlyStatus,
    LocalFileOffsetStore,
    Message,
    MessageExt,
    MessageModel,
    MessageQueue,
)
from rocketstream.errors import ClientStateError
from rocketstream.protocol.bodies import OffsetSerializeWrapper
from rocketstream.protocol.names import retry_topic
from tests.kits.cluster import Cluster
from tests.kits.faces import PushConsumer
from tests.kits.listeners import (
    LATER,
    SUCCESS,
    Seen,
    broker_name,
    consumer_of,
    numbered,
    send_all,
)
from tests.plugins.clusters import Names
from tests.plugins.waiting import wait_until

pytestmark = pytest.mark.usefixtures("face")


@pytest.fixture(autouse=True)
def offsets_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keep offset files out of the home directory."""
    monkeypatch.setenv("ROCKETMQ_LOCAL_OFFSET_STORE_DIR", str(tmp_path / "offsets"))
    return tmp_path / "offsets"


def member(cluster: Cluster, names: Names, seen: Seen, name: str, **settings: Any) -> PushConsumer:
    """Return a broadcasting consumer with an instance name of its own, not started."""
    return consumer_of(
        cluster.namesrv_addr,
        names.group,
        names.topic,
        seen,
        message_model=MessageModel.BROADCASTING,
        instance_name=name,
        **settings,
    )


def stored(consumer: PushConsumer, offsets_dir: Path) -> dict[MessageQueue, int]:
    """Return what a consumer's file says."""
    path = LocalFileOffsetStore(consumer.client_id, consumer.group, offsets_dir).path
    return dict(OffsetSerializeWrapper.decode(path.read_bytes()).offset_table)


def test_every_member_gets_every_message(cluster: Cluster, names: Names, offsets_dir: Path) -> None:
    """Covers C-22, C-158, C-197, C-304: all queues each, offsets in files, none at the broker."""
    cluster.create_topic(names.topic, 4)
    first, second = Seen(), Seen()
    with member(cluster, names, first, "one") as one, member(cluster, names, second, "two") as two:
        send_all(cluster.namesrv_addr, numbered(names.topic, range(40)))
        first.wait_consumed(40)
        second.wait_consumed(40)
        assert len(one.assigned_queues()) == len(two.assigned_queues()) == 4
    assert sorted(map(int, first.bodies)) == sorted(map(int, second.bodies)) == list(range(40))
    for consumer in (one, two):
        kept = stored(consumer, offsets_dir)
        assert [kept[mq] for mq in sorted(kept)] == cluster.ends(names.topic, 4)


def test_no_retry_topic_is_subscribed(cluster: Cluster, names: Names) -> None:
    """Covers C-112, C-113: only what was subscribed."""
    cluster.create_topic(names.topic, 1)
    seen = Seen()
    with member(cluster, names, seen, "one") as one:
        wait_until(lambda: len(one.assigned_queues()) == 1, "the queue")
        assert {mq.topic for mq in one.assigned_queues()} == {names.topic}
        assert retry_topic(names.group) not in {mq.topic for mq in one.assigned_queues()}


def test_a_failed_message_is_dropped_with_a_log_line(
    cluster: Cluster, names: Names, offsets_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Covers C-249, C-263: no retry ever, the offset moves on."""
    cluster.create_topic(names.topic, 1)

    def verdict(message: MessageExt) -> object:
        return LATER if message.body == b"3" else SUCCESS

    seen = Seen(verdict)  # type: ignore[arg-type]
    with (
        caplog.at_level(logging.WARNING),
        member(cluster, names, seen, "one") as one,
    ):
        send_all(cluster.namesrv_addr, numbered(names.topic, range(6)))
        seen.wait_consumed(5)
    assert sorted(seen.delivered) == ["0", "1", "2", "3", "4", "5"]
    assert "BROADCASTING, the message consume failed, drop it" in caplog.text
    assert f"topic={names.topic}" in caplog.text
    assert list(stored(one, offsets_dir).values()) == [6]


def test_a_restarted_member_goes_on_where_it_stopped(cluster: Cluster, names: Names) -> None:
    """Covers C-114, C-306, C-308: the same instance name finds the same file."""
    cluster.create_topic(names.topic, 2)
    before, after = Seen(), Seen()
    with member(cluster, names, before, "one"):
        send_all(cluster.namesrv_addr, numbered(names.topic, range(10)))
        before.wait_consumed(10)
    send_all(cluster.namesrv_addr, numbered(names.topic, range(10, 15)))
    with member(cluster, names, after, "one"):
        after.wait_consumed(5)
    assert sorted(map(int, after.delivered)) == list(range(10, 15))


def test_last_offset_really_is_the_end(cluster: Cluster, names: Names) -> None:
    """Covers C-197: unlike clustering on a young topic (C-195)."""
    cluster.create_topic(names.topic, 1)
    send_all(cluster.namesrv_addr, numbered(names.topic, range(5)))
    seen = Seen()
    where = ConsumeFromWhere.LAST_OFFSET
    with member(cluster, names, seen, "one", consume_from_where=where) as one:
        wait_until(lambda: len(one.assigned_queues()) == 1, "the queue")
        send_all(cluster.namesrv_addr, numbered(names.topic, [5, 6]))
        seen.wait_consumed(2)
    assert sorted(seen.delivered) == ["5", "6"]


def test_offsets_that_java_wrote_are_taken_over(
    cluster: Cluster, names: Names, offsets_dir: Path
) -> None:
    """Covers C-305, C-306: the text of fastjson, queues as keys."""
    cluster.create_topic(names.topic, 1)
    send_all(cluster.namesrv_addr, numbered(names.topic, range(5)))
    seen = Seen()
    one = member(cluster, names, seen, "one")
    broker = broker_name(cluster)
    path = LocalFileOffsetStore(one.client_id, one.group, offsets_dir).path
    path.parent.mkdir(parents=True)
    lines = [f'"brokerName":"{broker}"', '"queueId":0', f'"topic":"{names.topic}"']
    queue = "{\n\t\t\t" + ",\n\t\t\t".join(lines) + "\n\t\t}"
    path.write_text('{\n\t"offsetTable":{' + queue + ":3\n\t}\n}")
    with one:
        seen.wait_consumed(2)
    assert seen.delivered == ["3", "4"]


def test_members_of_one_process_share_an_instance_by_default(
    cluster: Cluster, names: Names
) -> None:
    """Covers C-115, C-116, C-127: two groups in one instance; one group twice is refused."""
    cluster.create_topic(names.topic, 1)
    seen, other = Seen(), Seen()
    config: dict[str, Any] = {"message_model": MessageModel.BROADCASTING}
    with (
        consumer_of(cluster.namesrv_addr, names.group, names.topic, seen, **config) as one,
        consumer_of(cluster.namesrv_addr, names.group + "b", names.topic, other, **config) as two,
    ):
        assert one.client_id == two.client_id
        assert one.client_id.endswith("@DEFAULT")
        third = consumer_of(cluster.namesrv_addr, names.group, names.topic, seen, **config)
        with pytest.raises(ClientStateError, match="already; give this one another group"):
            third.start()
        send_all(cluster.namesrv_addr, [Message(names.topic, "x")])
        seen.wait_consumed(1)
        other.wait_consumed(1)


def test_orderly_members_do_not_wait_for_each_other(cluster: Cluster, names: Names) -> None:
    """Covers C-178, C-294, C-555: no broker lock; each gets everything in order, at once."""
    cluster.create_topic(names.topic, 1)
    got: dict[str, list[int]] = {"one": [], "two": []}

    def started(name: str) -> PushConsumer:
        def listener(messages: list[MessageExt]) -> ConsumeOrderlyStatus:
            got[name] += [message.queue_offset for message in messages]
            return ConsumeOrderlyStatus.SUCCESS

        made = PushConsumer(
            names.group,
            namesrv_addr=cluster.namesrv_addr,
            message_model=MessageModel.BROADCASTING,
            instance_name=name,
            consume_from_where=ConsumeFromWhere.FIRST_OFFSET,
            subscription={names.topic: "*"},
        )
        made.register_message_listener(listener, orderly=True)
        made.start()
        return made

    with started("one"), started("two"):
        send_all(cluster.namesrv_addr, numbered(names.topic, range(30)))
        wait_until(lambda: [len(g) for g in got.values()] == [30, 30], "30 messages each")
    assert got["one"] == got["two"] == list(range(30))
