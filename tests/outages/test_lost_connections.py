"""A connection to a broker is lost: nothing is believed any more that came over it.

The broker here keeps its port and is asked by the real clients; what it remembers is the test's.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from rocketstream import (
    ClientConfig,
    ConsumeOrderlyContext,
    LitePullConsumer,
    Message,
    MessageExt,
    MessageQueue,
    Producer,
    PullConsumer,
    PushConsumer,
)
from rocketstream.errors import ConnectError
from rocketstream.protocol.bodies import BrokerData, QueueData, TopicRouteData
from rocketstream.protocol.codes import RequestCode
from rocketstream.protocol.command import RemotingCommand
from rocketstream.protocol.headers import (
    PullMessageResponseHeader,
    UpdateConsumerOffsetRequestHeader,
)
from tests.kits.client.fake_broker import GROUP, TOPIC, WAIT_S, Asked, FakeBroker, found, refusal
from tests.kits.client.locking_broker import LockingBroker, consumer, locked
from tests.kits.listeners import Seen
from tests.kits.orderly import SUCCESS, Ordered
from tests.plugins.waiting import wait_until

LOCK, UPDATE, BEAT = (
    RequestCode.LOCK_BATCH_MQ,
    RequestCode.UPDATE_CONSUMER_OFFSET,
    RequestCode.HEART_BEAT,
)
PULL = RequestCode.PULL_MESSAGE
QUEUE = MessageQueue(TOPIC, "broker-a", 0)


@pytest.fixture
def broker() -> Iterator[LockingBroker]:
    with LockingBroker() as running:
        running.offsets[0] = 0
        yield running


class Gate:
    """A listener that stays in the message at offset 0 until it is let go."""

    def __init__(self) -> None:
        self.entered, self.opened = threading.Event(), threading.Event()

    def __call__(self, messages: list[MessageExt], context: ConsumeOrderlyContext) -> object:
        if messages[0].queue_offset == 0:
            self.entered.set()
            self.opened.wait(WAIT_S)
        return SUCCESS


def test_a_lost_connection_voids_the_lease_and_the_next_batch_waits_for_the_lock(
    broker: LockingBroker,
) -> None:
    """Covers C-187, C-236, C-281: the batch in the listener ends and counts, nothing new starts."""
    gate = Gate()
    seen = Ordered(gate)
    with consumer(broker, seen) as made:
        lock = broker.on[LOCK]
        broker.reply(broker.wait_pull(0), found(range(3)))
        assert gate.entered.wait(WAIT_S)
        broker.on[LOCK] = refusal(1, "not yet")
        count = len(broker.locks_asked())
        broker.drop_connections()
        impl = made._machine
        request = impl.queues.table[QUEUE]
        broker.wait_for(LOCK, count + 1)
        gate.opened.set()
        broker.wait_for(LOCK, count + 2)
        assert seen.batches == [[0]]
        broker.on[LOCK] = lock
        broker.drop_connections()  # whoever waits for a lock asks as soon as there is a connection
        seen.wait_consumed(3)
        assert impl.queues.table[QUEUE] is request
    assert seen.batches == [[0], [1], [2]]


def test_a_queue_that_somebody_had_while_its_lock_was_in_doubt_is_taken_anew(
    broker: LockingBroker,
) -> None:
    """Covers C-187, C-559: the broker has a commit that is not ours; what is cached is void."""
    gate = Gate()
    seen = Ordered(gate)
    with consumer(broker, seen) as made:
        broker.reply(broker.wait_pull(0), found(range(3)))
        assert gate.entered.wait(WAIT_S)
        queue = made._machine.queues.table[QUEUE].process_queue
        broker.offsets[0] = 5  # by the member that was back first and has left again
        broker.drop_connections()
        wait_until(lambda: queue.dropped, "the queue to be given up")
        gate.opened.set()
        broker.reply(broker.wait_pull(5), found([5, 6]))
        seen.wait(lambda s: s.batches[-1] == [6])
    assert seen.batches == [[0], [5], [6]]


def test_locks_are_asked_for_again_as_soon_as_there_is_a_connection(broker: LockingBroker) -> None:
    """Covers C-187: not at the next renewal, 20 s later; the first to ask is granted the queue."""
    gate = Gate()
    seen = Ordered(gate)
    with consumer(broker, seen) as made:
        broker.reply(broker.wait_pull(0), found(range(3)))
        assert gate.entered.wait(WAIT_S)
        count = len(broker.locks_asked())
        broker.drop_connections()
        broker.wait_for(LOCK, count + 1)
        assert QUEUE in locked(broker.asked(LOCK)[count])
        gate.opened.set()
        seen.wait_consumed(3)
        assert made.assigned_queues() == [QUEUE]


def committed(broker: FakeBroker) -> list[int]:
    """Return the offsets sent for queue 0 of T, in order."""
    headers = [
        UpdateConsumerOffsetRequestHeader.from_ext(each.ext) for each in broker.asked(UPDATE)
    ]
    return [header.commit_offset for header in headers if header.topic == TOPIC]


def test_a_commit_is_said_again_after_the_connection_was_lost() -> None:
    """Covers C-317, C-497: the broker had it and had not written it when it died."""
    with FakeBroker() as broker:
        config = ClientConfig(namesrv_addr=broker.address, persist_consumer_offset_interval_ms=20)
        with PullConsumer(GROUP, config=config) as consumer:
            (mq,) = consumer.fetch_subscribe_message_queues(TOPIC)
            consumer.update_consume_offset(mq, 7)
            wait_until(lambda: committed(broker) == [7, 7], "the commit, said twice")
            broker.drop_connections()
            wait_until(lambda: committed(broker) == [7, 7, 7, 7], "the same once more")


@pytest.mark.parametrize("kind", ["push", "lite"])
def test_who_was_cut_off_goes_on_where_somebody_else_is(kind: str) -> None:
    """Covers C-324: neither committed lower, which the broker would take, nor consumed again."""
    with FakeBroker() as broker:
        broker.offsets[0] = 0
        broker.on[PULL] = lambda command: (
            found(range(3)) if (command.ext_fields or {})["queueOffset"] == "0" else None
        )
        config = ClientConfig(namesrv_addr=broker.address, persist_consumer_offset_interval_ms=20)
        made: PushConsumer | LitePullConsumer
        if kind == "push":
            made = PushConsumer(GROUP, config=config, listener=Seen(), subscription={TOPIC: "*"})
        else:
            made = LitePullConsumer(GROUP, config=config)
            made.subscribe(TOPIC)
        with made:
            if isinstance(made, LitePullConsumer):
                assert len(made.poll(WAIT_S * 1000)) == 3
                made.commit_sync()
            wait_until(lambda: 3 in committed(broker), "the commit")
            broker.offsets[0] = 67
            before = {asked.connection for asked in broker.asked(UPDATE)}
            broker.drop_connections()
            broker.wait_pull(67)
        assert {
            asked.ext["commitOffset"]
            for asked in broker.asked(UPDATE)
            if asked.connection not in before
        } <= {"67"}


def test_a_producer_is_known_to_its_broker_as_soon_as_the_broker_is_back() -> None:
    """Covers C-143, C-348: undecided transactions of its group are asked of somebody connected."""
    with FakeBroker() as broker, Producer("pg", namesrv_addr=broker.address) as producer:
        producer.send(Message(TOPIC, b"x"))
        broker.wait_for(BEAT)
        count = len(broker.asked(BEAT))
        broker.drop_connections()
        broker.wait_for(BEAT, count + 1)


@pytest.fixture
def closed_port() -> Iterator[int]:
    """Return a loopback port that refuses connections: bound, never listening."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        yield holder.getsockname()[1]


@pytest.fixture
def with_dead_slave(broker: LockingBroker, closed_port: int) -> LockingBroker:
    """Return a broker whose route has a slave that is gone, and which sends everybody there."""
    addresses = {0: broker.address, 1: f"127.0.0.1:{closed_port}"}
    route = TopicRouteData(
        [QueueData(broker.name, 1, 1, 6, 0)], [BrokerData("c", broker.name, addresses)]
    )
    broker.on[RequestCode.GET_ROUTEINFO_BY_TOPIC] = lambda _: RemotingCommand.response(
        0, body=route.encode()
    )
    suggestion = PullMessageResponseHeader(1, 5, 0, 5)
    broker.on[PULL] = lambda command: (
        RemotingCommand.response(20, None, suggestion)
        if (command.ext_fields or {})["queueOffset"] == "0"
        else None
    )
    return broker


@pytest.fixture
def slave() -> Iterator[FakeBroker]:
    with FakeBroker(routes=False) as running:
        yield running


@pytest.fixture
def with_slave(broker: LockingBroker, slave: FakeBroker) -> LockingBroker:
    """Return a master whose answers send everybody to its slave, which is there."""
    addresses = {0: broker.address, 1: slave.address}
    route = TopicRouteData(
        [QueueData(broker.name, 1, 1, 6, 0)], [BrokerData("c", broker.name, addresses)]
    )
    broker.on[RequestCode.GET_ROUTEINFO_BY_TOPIC] = lambda _: RemotingCommand.response(
        0, body=route.encode()
    )
    suggestion = PullMessageResponseHeader(1, 5, 0, 5)
    broker.on[PULL] = lambda _: RemotingCommand.response(20, None, suggestion)
    return broker


def of_the_topic(asked: Asked) -> bool:
    return asked.ext["topic"] == TOPIC


@pytest.mark.parametrize("kind", ["push", "pull", "lite"])
def test_the_next_pull_goes_to_the_broker_the_last_answer_suggested(
    with_slave: LockingBroker, slave: FakeBroker, kind: str
) -> None:
    """Covers C-214, C-220: from the master once, then from its slave, whoever pulls."""
    master = with_slave
    config = ClientConfig(namesrv_addr=master.address)
    made: PushConsumer | LitePullConsumer | PullConsumer
    if kind == "push":
        made = PushConsumer(GROUP, config=config, listener=Seen(), subscription={TOPIC: "A"})
    elif kind == "lite":
        made = LitePullConsumer(GROUP, config=config)
        made.subscribe(TOPIC, "A")
    else:
        made = PullConsumer(GROUP, config=config)
    with made:
        if isinstance(made, PullConsumer):
            (mq,) = made.fetch_subscribe_message_queues(TOPIC)
            assert made.pull(mq, "A", 0, 32).next_begin_offset == 5
            slave.on[PULL] = master.on[PULL]
            assert made.pull(mq, "A", 5, 32).next_begin_offset == 5
        slave.wait_for(PULL, where=of_the_topic)
    # The route is that of the retry topic too, whose queue a push consumer pulls beside.
    pulls = filter(of_the_topic, master.asked(PULL))
    assert [int(asked.ext["queueOffset"]) for asked in pulls] == [0]
    (first, *_) = filter(of_the_topic, slave.asked(PULL))
    assert int(first.ext["queueOffset"]) == 5


def test_a_slave_that_is_gone_is_not_pulled_for_ever(with_dead_slave: LockingBroker) -> None:
    """Covers C-214: what was suggested holds until it fails; then the master is asked again."""
    broker = with_dead_slave
    with PullConsumer(GROUP, namesrv_addr=broker.address) as pulling:
        (mq,) = pulling.fetch_subscribe_message_queues(TOPIC)
        assert pulling.pull(mq, "A", 0, 32).next_begin_offset == 5
        with pytest.raises(ConnectError):
            pulling.pull(mq, "A", 0, 32)
        assert pulling.pull(mq, "A", 0, 32).next_begin_offset == 5


@pytest.mark.parametrize("kind", ["push", "lite"])
def test_a_pull_loop_goes_back_to_the_master(with_dead_slave: LockingBroker, kind: str) -> None:
    """Covers C-214, C-230."""
    broker = with_dead_slave
    config = ClientConfig(namesrv_addr=broker.address, pull_time_delay_ms_when_exception=10)
    made: PushConsumer | LitePullConsumer
    if kind == "push":
        made = PushConsumer(GROUP, config=config, listener=Seen(), subscription={TOPIC: "A"})
    else:
        made = LitePullConsumer(GROUP, config=config)
        made.subscribe(TOPIC, "A")
    with made:
        broker.wait_pull(5)
