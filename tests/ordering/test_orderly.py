"""Consuming in order: one call per queue at a time, blocking on failure, hand-over without loss."""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path

import pytest

from rocketstream import (
    ConsumeOrderlyContext,
    ConsumeOrderlyStatus,
    MessageExt,
    MessageListenerOrderly,
    MessageModel,
)
from rocketstream.client.admin.blocking import BlockingAdminClient
from rocketstream.protocol.bodies import GetConsumerListByGroupResponseBody
from rocketstream.protocol.codes import RequestCode
from rocketstream.protocol.command import RemotingCommand
from rocketstream.protocol.headers import GetConsumerListByGroupRequestHeader
from tests.kits.cluster import Cluster
from tests.kits.faces import PushConsumer
from tests.kits.listeners import WAIT_S, Seen, consumer_of, numbered, own, send_all
from tests.kits.orderly import (
    COMMIT,
    ROLLBACK,
    SUCCESS,
    SUSPEND,
    Ordered,
    orderly_consumer,
)
from tests.plugins.clusters import Names
from tests.plugins.waiting import wait_until

pytestmark = pytest.mark.usefixtures("face")


@pytest.mark.parametrize("batch", [1, 7])
def test_every_queue_is_consumed_in_order_and_committed(
    cluster: Cluster, names: Names, batch: int
) -> None:
    """Covers C-186, C-279 to C-281, C-285, C-297: one call per queue at a time, offsets ascending.

    The retry topic's queue is locked and owned like the others.
    """
    cluster.create_topic(names.topic, 4)
    send_all(cluster.namesrv_addr, numbered(names.topic, range(400)))
    seen = Ordered()
    with orderly_consumer(
        cluster.namesrv_addr, names.group, names.topic, seen, consume_message_batch_max_size=batch
    ) as consumer:
        seen.wait_consumed(400)
        wait_until(lambda: own(consumer, f"%RETRY%{names.group}") == [0], "the retry queue")
    ends = cluster.ends(names.topic, 4)
    assert [seen.offsets(queue) for queue in range(4)] == [list(range(end)) for end in ends]
    assert not seen.overlaps
    assert max(map(len, seen.batches)) <= batch
    assert cluster.committed(names.group, names.topic, 4) == ends
    assert all("CONSUME_START_TIME" not in m.properties for m in seen.consumed)  # C-233


def test_a_suspended_queue_waits_and_the_others_go_on(cluster: Cluster, names: Names) -> None:
    """Covers C-284, C-286 to C-288: the same message again, counted, nothing overtakes it."""
    cluster.create_topic(names.topic, 2)
    released = threading.Event()
    tries: list[int] = []

    def verdict(messages: list[MessageExt], context: ConsumeOrderlyContext) -> object:
        if messages[0].queue_id == 0 and messages[0].queue_offset == 3:
            tries.append(messages[0].reconsume_times)
            context.suspend_current_queue_time_ms = 1  # raised to 10 ms
            if not released.is_set():
                return SUSPEND
        return SUCCESS

    seen = Ordered(verdict)
    send_all(cluster.namesrv_addr, numbered(names.topic, range(40)))
    first, second = cluster.ends(names.topic, 2)
    with orderly_consumer(cluster.namesrv_addr, names.group, names.topic, seen):
        seen.wait(lambda s: len(tries) >= 5 and len(s.consumed) == second + 3)
        assert seen.offsets(0) == [0, 1, 2]
        released.set()
        seen.wait_consumed(40)
    assert tries == list(range(len(tries)))
    assert [seen.offsets(0), seen.offsets(1)] == [list(range(first)), list(range(second))]
    assert cluster.committed(names.group, names.topic, 2) == [first, second]


def test_a_message_that_fails_too_often_becomes_a_dead_letter(
    cluster: Cluster, names: Names, caplog: pytest.LogCaptureFixture
) -> None:
    """Covers C-287, C-289 to C-291, C-587, C-590, C-592: N = 2 gives deliveries 0, 1, 2.

    The dead letter has count 2 and is there at once; the rest of its batch is consumed in order,
    and what is dead is not consumed again with it.
    """
    cluster.create_topic(names.topic, 1)
    tries: list[int] = []

    def verdict(messages: list[MessageExt], context: ConsumeOrderlyContext) -> object:
        poison = [m for m in messages if m.body == b"1"]
        tries.extend(m.reconsume_times for m in poison)
        return SUSPEND if poison else SUCCESS

    seen, dead = Ordered(verdict), Seen()
    consumer = orderly_consumer(
        cluster.namesrv_addr,
        names.group,
        names.topic,
        seen,
        max_reconsume_times=2,
    )
    undertaker = consumer_of(
        cluster.namesrv_addr, f"{names.group}-dead", f"%DLQ%{names.group}", dead
    )
    send_all(cluster.namesrv_addr, numbered(names.topic, range(4)))
    with consumer:
        seen.wait_consumed(3)
        with undertaker:
            dead.wait_consumed(1)
    assert tries == [0, 1, 2]
    assert seen.offsets(0) == [m.queue_offset for m in seen.consumed]
    assert sorted(seen.bodies) == ["0", "2", "3"]
    (letter,) = dead.consumed
    assert (letter.body, letter.properties["RETRY_TOPIC"]) == (b"1", names.topic)
    assert (letter.reconsume_times, letter.properties["MAX_RECONSUME_TIMES"]) == (2, "2")
    assert "ORIGIN_MESSAGE_ID" in letter.properties
    assert cluster.committed(names.group, names.topic, 1) == [4]
    (told,) = [each for each in caplog.messages if "is given up" in each]
    assert f"of topic {names.topic} is given up by group {names.group} after 3 tries" in told


def test_manual_commit_keeps_and_rolls_back_everything_since_the_last(
    cluster: Cluster, names: Names
) -> None:
    """Covers C-244, C-245, C-285, C-293: SUCCESS keeps, COMMIT ends all, ROLLBACK repeats all."""
    cluster.create_topic(names.topic, 1)
    rolled_back = threading.Event()

    def verdict(messages: list[MessageExt], context: ConsumeOrderlyContext) -> object:
        context.auto_commit = False
        last = messages[-1].queue_offset
        if last == 5 and not rolled_back.is_set():
            rolled_back.set()
            return ROLLBACK
        return COMMIT if last in (2, 7) else SUCCESS

    seen = Ordered(verdict)
    send_all(cluster.namesrv_addr, numbered(names.topic, range(10)))
    with orderly_consumer(cluster.namesrv_addr, names.group, names.topic, seen):
        seen.wait(lambda s: s.batches[-1:] == [[9]])
    delivered = [offset for batch in seen.batches for offset in batch]
    assert delivered == [0, 1, 2, 3, 4, 5, 3, 4, 5, 6, 7, 8, 9]
    assert cluster.committed(names.group, names.topic, 1) == [8], "8 and 9 were never committed"


def test_rollback_under_auto_commit_loses_nothing(cluster: Cluster, names: Names) -> None:
    """Covers C-591, put right: the batch comes again instead of counting as consumed."""
    cluster.create_topic(names.topic, 1)
    refused = threading.Event()

    def verdict(messages: list[MessageExt], context: ConsumeOrderlyContext) -> object:
        if messages[0].queue_offset == 1 and not refused.is_set():
            refused.set()
            return ROLLBACK
        return COMMIT  # the same as SUCCESS here

    seen = Ordered(verdict)
    send_all(cluster.namesrv_addr, numbered(names.topic, range(3)))
    with orderly_consumer(cluster.namesrv_addr, names.group, names.topic, seen):
        seen.wait_consumed(3)
    assert seen.batches == [[0], [1], [1], [2]]
    assert cluster.committed(names.group, names.topic, 1) == [3]


def test_a_new_member_gets_its_share_in_order_and_nothing_twice(
    cluster: Cluster, names: Names
) -> None:
    """Covers C-556, C-557, C-560: the batch in the listener counts before the queue changes hands.

    The first member is inside its listener with every queue when the second one comes.
    """
    cluster.create_topic(names.topic, 4)
    gate, entered = threading.Event(), threading.Semaphore(0)

    def verdict(messages: list[MessageExt], context: ConsumeOrderlyContext) -> object:
        if messages[0].queue_offset == 5:
            entered.release()
            gate.wait(WAIT_S)
        return SUCCESS

    ones, twos = Ordered(verdict), Ordered()
    send_all(cluster.namesrv_addr, numbered(names.topic, range(200)))
    with contextlib.ExitStack() as stack:
        one = orderly_consumer(cluster.namesrv_addr, names.group, names.topic, ones)
        stack.enter_context(one)
        for _ in range(4):
            assert entered.acquire(timeout=WAIT_S)
        two = orderly_consumer(cluster.namesrv_addr, names.group, names.topic, twos)
        stack.enter_context(two)
        wait_until(lambda: len(members(cluster, names)) == 2, "two members")
        assert not twos.deliveries, "its queues are still in the first one's listener"
        gate.set()
        wait_until(lambda: len(own(two, names.topic)) == len(own(one, names.topic)) == 2, "shares")
        wait_until(lambda: len(ones.bodies) + len(twos.bodies) >= 200, "everything consumed")
    assert sorted(map(int, ones.bodies + twos.bodies)) == list(range(200)), "each exactly once"
    for queue, end in enumerate(cluster.ends(names.topic, 4)):
        before, after = ones.offsets(queue), twos.offsets(queue)
        assert before + after == list(range(end)), "one hands over to the other in order"
    assert cluster.committed(names.group, names.topic, 4) == cluster.ends(names.topic, 4)


def members(cluster: Cluster, names: Names) -> list[str]:
    """Return the client ids of the group."""
    header = GetConsumerListByGroupRequestHeader(names.group)
    with BlockingAdminClient(cluster.namesrv_addr) as client:
        broker = client.route(names.topic).broker_datas[0].broker_addrs[0]
        command = RemotingCommand.request(RequestCode.GET_CONSUMER_LIST_BY_GROUP, header)
        answer = client.request(broker, command)
    return GetConsumerListByGroupResponseBody.decode(bytes(answer.body)).consumer_id_list


def test_after_a_shutdown_the_next_owner_begins_at_once(cluster: Cluster, names: Names) -> None:
    """Covers C-122, C-188, C-296: offsets are stored, then locks are given back."""
    cluster.create_topic(names.topic, 2)
    ones, twos = Ordered(), Ordered()
    send_all(cluster.namesrv_addr, numbered(names.topic, range(50)))
    with orderly_consumer(cluster.namesrv_addr, names.group, names.topic, ones):
        ones.wait_consumed(50)
    send_all(cluster.namesrv_addr, numbered(names.topic, range(50, 80)))
    with orderly_consumer(cluster.namesrv_addr, names.group, names.topic, twos):
        twos.wait_consumed(30)
    assert sorted(map(int, ones.bodies + twos.bodies)) == list(range(80))


def test_broadcasting_members_all_get_everything_in_order(
    cluster: Cluster, names: Names, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Covers C-178, C-294, C-555: no broker lock, so nobody waits for the other."""
    monkeypatch.setenv("ROCKETMQ_LOCAL_OFFSET_STORE_DIR", str(tmp_path))
    cluster.create_topic(names.topic, 2)
    send_all(cluster.namesrv_addr, numbered(names.topic, range(60)))
    seens = [Ordered(), Ordered()]
    consumers: list[PushConsumer] = []
    try:
        for number, seen in enumerate(seens):
            consumer = orderly_consumer(
                cluster.namesrv_addr,
                names.group,
                names.topic,
                seen,
                message_model=MessageModel.BROADCASTING,
                instance_name=f"{names.group}-{number}",
            )
            consumers.append(consumer)
            consumer.start()
        for seen in seens:
            seen.wait_consumed(60)
    finally:
        for consumer in consumers:
            consumer.shutdown()
    ends = cluster.ends(names.topic, 2)
    for seen in seens:
        assert [seen.offsets(0), seen.offsets(1)] == [list(range(end)) for end in ends]


class Listener(MessageListenerOrderly):
    """The class form."""

    def __init__(self) -> None:
        self.seen = Ordered()

    def consume_message(
        self, messages: list[MessageExt], context: ConsumeOrderlyContext
    ) -> ConsumeOrderlyStatus:
        assert self.seen(messages, context) is SUCCESS
        return SUCCESS


def test_a_listener_object_says_by_its_class_that_it_is_orderly(
    cluster: Cluster, names: Names
) -> None:
    """Covers C-27: no ``orderly=True`` is needed."""
    cluster.create_topic(names.topic, 1)
    send_all(cluster.namesrv_addr, numbered(names.topic, range(20)))
    listener = Listener()
    with consumer_of(cluster.namesrv_addr, names.group, names.topic, listener):  # type: ignore[arg-type]
        listener.seen.wait_consumed(20)
    assert listener.seen.offsets(0) == list(range(20))
    assert not listener.seen.overlaps
