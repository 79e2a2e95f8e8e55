"""Our producer and push consumer against Apache's broker."""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack
from functools import partial

import pytest

from rocketstream import LitePullConsumer, Message, Producer, PullConsumer
from rocketstream.model import MessageQueue
from rocketstream.protocol.message_ext import MessageExt
from rocketstream.transport.blocking_connection import BlockingConnection
from tests.kits.apache.batches import send_as_one_record
from tests.kits.apache.cluster import BROKER_NAME, ApacheCluster
from tests.kits.apache.messages import body_of, message_of, per_queue
from tests.kits.apache.ours import Collector, push_consumer, send_many, sent
from tests.kits.apache.wire import members
from tests.plugins.waiting import wait_until, wait_until_equal

pytestmark = [pytest.mark.interop, pytest.mark.timeout(180)]

MANY = 100_000
SOME = 300
TAGS = ("A", "B", "C")


@pytest.fixture
def topic(apache_cluster: ApacheCluster) -> str:
    return apache_cluster.create_topic(apache_cluster.unique("ours"), queues=8)


@pytest.fixture
def group(apache_cluster: ApacheCluster) -> str:
    return apache_cluster.unique("group")


def test_a_hundred_thousand_messages_are_sent_and_consumed(
    apache_cluster: ApacheCluster, topic: str, group: str
) -> None:
    """Every message once, as it was sent, and the offsets in their consumerOffset.json."""
    collector = Collector()
    with push_consumer(apache_cluster.namesrv_addr, group, topic, collector):
        stored = send_many(apache_cluster.namesrv_addr, topic, MANY, tags=TAGS)
        collector.wait(MANY)
        # A pull that carries an older offset may be stored after the last commit of a member that
        # ends; a running one puts it right.
        wait_until_equal(
            lambda: apache_cluster.committed(topic, group), per_queue(stored), "committed offsets"
        )
    assert Counter(each.sent for each in collector.consumed()) == Counter(stored)
    assert len({each.msg_id for each in stored}) == MANY


def test_consumer_started_later_reads_the_backlog(
    apache_cluster: ApacheCluster, topic: str, group: str
) -> None:
    """CONSUME_FROM_FIRST_OFFSET, in batches of 32; a second start continues where it ended."""
    stored = send_many(apache_cluster.namesrv_addr, topic, 5_000)
    first = Collector()
    with push_consumer(
        apache_cluster.namesrv_addr, group, topic, first, consume_message_batch_max_size=32
    ):
        first.wait(5_000)
    more = send_many(apache_cluster.namesrv_addr, topic, SOME, prefix="more")
    second = Collector()
    with push_consumer(apache_cluster.namesrv_addr, group, topic, second):
        second.wait(SOME)

    assert Counter(each.sent for each in first.consumed()) == Counter(stored)
    assert Counter(each.sent for each in second.consumed()) == Counter(more)


def test_tags_are_filtered(apache_cluster: ApacheCluster, topic: str, group: str) -> None:
    """The broker filters by hash, the client by text (C-99 to C-101)."""
    stored = send_many(apache_cluster.namesrv_addr, topic, 999, tags=TAGS)
    wanted = [each for each in stored if each.tags != "B"]
    collector = Collector()
    with push_consumer(apache_cluster.namesrv_addr, group, topic, collector, "A || C"):
        collector.wait(len(wanted))

    assert Counter(each.sent for each in collector.consumed()) == Counter(wanted)


def test_batch_and_large_bodies_come_back_whole(
    apache_cluster: ApacheCluster, topic: str, group: str
) -> None:
    """A batch of 32 (code 320), and single bodies over 4 KiB, which are deflated (W 4.2, 4.5)."""
    with Producer(f"{group}-p", namesrv_addr=apache_cluster.namesrv_addr) as producer:
        batch = [message_of(topic, "batch", index, tags=TAGS) for index in range(32)]
        result = producer.send(batch)
        large = [message_of(topic, "large", index, size=100_000) for index in range(20)]
        stored = [sent(message, producer.send(message)) for message in large]
    collector = Collector()
    with push_consumer(apache_cluster.namesrv_addr, group, topic, collector):
        collector.wait(52)

    found = collector.consumed()
    assert len(result.msg_id.split(",")) == 32
    assert {e.keys: e.tags for e in found if e.keys.startswith("batch")} == {
        message.keys: message.tags for message in batch
    }
    assert Counter(e.sent for e in found if e.keys.startswith("large")) == Counter(stored)


def test_failed_messages_are_retried(apache_cluster: ApacheCluster, topic: str, group: str) -> None:
    """Every tenth message is refused twice and comes back with its topic and count (C-332 ff.)."""
    collector = Collector(
        fails=lambda m: int(m.get_property("index") or 0) % 10 == 0 and m.reconsume_times < 2
    )
    with push_consumer(apache_cluster.namesrv_addr, group, topic, collector):
        send_many(apache_cluster.namesrv_addr, topic, SOME)
        collector.wait(SOME)

    tries = Counter(int(each.index) for each in collector.deliveries)
    assert tries == {n: 3 if n % 10 == 0 else 1 for n in range(SOME)}
    assert {each.topic for each in collector.deliveries} == {topic}


def test_hopeless_messages_become_dead_letters(
    apache_cluster: ApacheCluster, topic: str, group: str
) -> None:
    """After max_reconsume_times the broker moves them to %DLQ%, readable like any topic."""
    hopeless = len(range(0, SOME, 10))
    collector = Collector(fails=lambda m: int(m.get_property("index") or 0) % 10 == 0)
    buried = Collector()
    address = apache_cluster.namesrv_addr
    with push_consumer(address, group, topic, collector, max_reconsume_times=2):
        send_many(address, topic, SOME)
        collector.wait_deliveries(SOME - hopeless + 3 * hopeless)
        wait_until(
            lambda: f"%DLQ%{group}" in apache_cluster.topics(), "dead letter topic", timeout_s=60
        )
        with push_consumer(address, f"{group}-undertaker", f"%DLQ%{group}", buried):
            buried.wait(hopeless)

    assert sorted(int(each.index) for each in buried.consumed()) == list(range(0, SOME, 10))
    assert len(collector.consumed()) == SOME - hopeless


def test_two_members_share_the_queues(
    apache_cluster: ApacheCluster, topic: str, group: str
) -> None:
    """Their broker tells us of members; each takes half; when one leaves the other has all."""
    address = apache_cluster.namesrv_addr
    first, second = Collector(), Collector()
    with ExitStack() as both:
        both.enter_context(push_consumer(address, group, topic, first))
        with push_consumer(address, group, topic, second):
            with BlockingConnection(apache_cluster.broker_addr) as broker:
                wait_until(lambda: len(members(broker, group)) == 2, "two members")
            for round_ in range(20):
                send_many(address, topic, 80, prefix=f"round{round_}")
                total = 80 * (round_ + 1)
                wait_until(partial(_have_consumed, (first, second), total), "all of a round")
                if first.deliveries and second.deliveries:
                    break
        before = len(first.consumed())
        send_many(address, topic, 80, prefix="alone")
        wait_until(lambda: _alone(first) == 80, "the remaining member takes all")

    assert second.deliveries
    assert before > 0


def _have_consumed(collectors: tuple[Collector, ...], count: int) -> bool:
    return len({each.msg_id for one in collectors for each in one.consumed()}) >= count


def _alone(collector: Collector) -> int:
    return len({e.msg_id for e in collector.consumed() if e.keys.startswith("alone")})


def test_chosen_queue_and_delay_are_honoured(
    apache_cluster: ApacheCluster, topic: str, group: str
) -> None:
    """A queue the caller names, and a delay level (one second here) kept by their broker."""
    collector = Collector()
    with push_consumer(apache_cluster.namesrv_addr, group, topic, collector):
        with Producer(f"{group}-p", namesrv_addr=apache_cluster.namesrv_addr) as producer:
            queues = sorted(producer.fetch_publish_message_queues(topic))
            chosen = producer.send(
                Message(topic, body_of("q", 0), keys="q"), message_queue=queues[5]
            )
            producer.send(Message(topic, body_of("d", 0), keys="d", delay_level=1))
        collector.wait(2)

    by_key = {each.keys: each for each in collector.consumed()}
    assert chosen.message_queue == queues[5]
    assert by_key["q"].queue_id == 5
    assert by_key["d"].topic == topic


def test_batches_stored_as_one_record_are_consumed_message_by_message(
    apache_cluster: ApacheCluster, group: str
) -> None:
    """Covers W 7.2: a BatchCQ topic of 5.x; also from within a batch, where somebody ended."""
    if apache_cluster.referee.version.startswith("4."):
        pytest.skip("4.x stores every message of a batch by itself")
    topic = apache_cluster.unique("batchcq")
    apache_cluster.create_topic(topic, queues=1, attributes="+queue.type=BatchCQ")
    queue = MessageQueue(topic, BROKER_NAME, 0)
    for batch in range(3):
        bodies = [b"%d" % (batch * 5 + n) for n in range(5)]
        send_as_one_record(apache_cluster.broker_addr, queue, bodies)
    address = apache_cluster.namesrv_addr
    collector = Collector()
    with push_consumer(address, group, topic, collector):
        collector.wait(15)
    assert sorted(each.queue_offset for each in collector.consumed()) == list(range(15))
    with PullConsumer("looks", namesrv_addr=address) as pull:
        result = pull.pull(queue, "*", 7, 32)
        found = [(each.queue_offset, bytes(each.body)) for each in result.msg_found_list]
        assert found == [(n, b"%d" % n) for n in range(7, 7 + len(found))]
        assert result.next_begin_offset == 7 + len(found)
    lite = LitePullConsumer(group, namesrv_addr=address)
    lite.assign([queue])
    got: list[MessageExt] = []
    with lite:
        lite.seek(queue, 4)
        wait_until(lambda: got.extend(lite.poll(500)) or len(got) >= 11, "the rest", 30)  # type: ignore[func-returns-value]
    assert [int(each.body) for each in got][:11] == list(range(4, 15))
