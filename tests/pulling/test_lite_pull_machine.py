"""The lite pull consumer against a broker that does what the test says."""

from __future__ import annotations

import asyncio
import itertools
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from rocketstream import ConsumeFromWhere, LitePullConsumer, MessageExt, MessageQueue, aio
from rocketstream.client.consumer.puller import Puller
from rocketstream.errors import ConnectError, RocketMQError
from rocketstream.protocol.bodies import ConsumerRunningInfo, GetConsumerStatusBody, ResetOffsetBody
from rocketstream.protocol.codes import PullSysFlag, RequestCode, ResponseCode
from rocketstream.protocol.command import RemotingCommand
from rocketstream.protocol.headers import (
    GetConsumerRunningInfoRequestHeader,
    GetConsumerStatusRequestHeader,
    GetMinOffsetResponseHeader,
    ResetOffsetRequestHeader,
    SearchOffsetResponseHeader,
    UpdateConsumerOffsetRequestHeader,
)
from tests.kits.client.consumers import Shelf, lite, made
from tests.kits.client.fake_broker import (
    GROUP,
    TOPIC,
    WAIT_S,
    FakeBroker,
    answer,
    found,
    ok,
    pull_answer,
    pull_header,
    refusal,
)
from tests.plugins.waiting import wait_until

PULL = RequestCode.PULL_MESSAGE
UPDATE = RequestCode.UPDATE_CONSUMER_OFFSET
QUERY = RequestCode.QUERY_CONSUMER_OFFSET
WAIT_MS = WAIT_S * 1000
MQ = MessageQueue(TOPIC, "broker-a", 0)


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    with FakeBroker() as running:
        running.offsets[0] = 0
        running.on[RequestCode.GET_MIN_OFFSET] = lambda _: answer(0, GetMinOffsetResponseHeader(0))
        yield running


@pytest.fixture
def closed_port() -> Iterator[int]:
    """Return a loopback port that refuses connections: bound, never listening."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        yield holder.getsockname()[1]


def commits(broker: FakeBroker) -> list[int]:
    headers = [UpdateConsumerOffsetRequestHeader.from_ext(a.ext) for a in broker.asked(UPDATE)]
    return [header.commit_offset for header in headers if header.topic == TOPIC]


def offsets(messages: list[MessageExt]) -> list[int]:
    return [message.queue_offset for message in messages]


# --- what is said -------------------------------------------------------------------------------


def test_the_pull_carries_everything_and_the_heartbeat_says_what_it_is(broker: FakeBroker) -> None:
    """Covers C-59, C-65, C-125, C-144, C-493, C-509: flags, times, expression, version 0."""
    with lite(broker, "A || B"):
        pull = pull_header(broker.wait_pull(0))
        assert pull.sys_flag == (
            PullSysFlag.SUSPEND | PullSysFlag.SUBSCRIPTION | PullSysFlag.LITE_PULL
        )
        assert (pull.subscription, pull.expression_type, pull.sub_version) == ("A || B", "TAG", 0)
        assert (pull.suspend_timeout_millis, pull.max_msg_nums, pull.bname) == (
            20_000,
            256,
            "broker-a",
        )
        (data,) = broker.heartbeats[-1].consumer_data_set
        assert (data.group_name, data.consume_type) == (GROUP, "CONSUME_ACTIVELY")
        assert [each.topic for each in data.subscription_data_set] == [TOPIC]


def test_in_assign_mode_nothing_is_subscribed(broker: FakeBroker) -> None:
    """Covers C-506, C-523: the heartbeat has the group without subscriptions."""
    consumer = made(broker)
    consumer.assign([MQ])
    with consumer:
        broker.wait_pull(0)
        (data,) = broker.heartbeats[-1].consumer_data_set
        assert data.subscription_data_set == []
        assert consumer.assignment() == [MQ]
    assert not broker.asked(RequestCode.GET_CONSUMER_LIST_BY_GROUP)


def test_settings_of_the_whole_consumer_take_effect(broker: FakeBroker) -> None:
    """Covers C-74, C-76: a listener for every topic, a store of one's own, unit mode."""
    heard: list[tuple[str, int, int]] = []
    shelf = Shelf()
    shelf.kept[MQ] = 6
    with lite(
        broker,
        message_queue_listener=lambda topic, every, mine: heard.append(
            (topic, len(every), len(mine))
        ),
        offset_store=shelf,
        unit_mode=True,
    ) as consumer:
        broker.reply(broker.wait_pull(6), found([6]))
        assert offsets(consumer.poll(WAIT_MS)) == [6]
        wait_until(lambda: heard == [(TOPIC, 1, 1)], "the listener's call")
        assert broker.heartbeats[-1].consumer_data_set[0].unit_mode
        consumer.commit_sync()
        assert shelf.kept == {MQ: 7}
    assert not broker.asked(UPDATE)


def test_shutdown_commits_before_it_says_goodbye(broker: FakeBroker) -> None:
    """Covers C-126, C-517, C-600: and drops what still comes."""
    with lite(broker) as consumer:
        broker.reply(broker.wait_pull(0), found(range(3)))
        assert offsets(consumer.poll(WAIT_MS)) == [0, 1, 2]
        held = broker.wait_pull(3)
        consumer.shutdown()
    assert commits(broker)[-1] == 3
    (goodbye,) = broker.asked(RequestCode.UNREGISTER_CLIENT)
    order = [a.code for a in broker._asked]
    assert order.index(goodbye.code) > max(i for i, code in enumerate(order) if code == UPDATE)
    broker.reply(held, found([3]))


def test_a_lite_group_has_no_retry_topic(broker: FakeBroker) -> None:
    """Covers C-524: neither a retry topic is subscribed nor anything sent back."""
    with lite(broker) as consumer:
        broker.reply(broker.wait_pull(0), found([0]))
        consumer.poll(WAIT_MS)
    topics = {a.ext["topic"] for a in broker.asked(RequestCode.GET_ROUTEINFO_BY_TOPIC)}
    assert topics == {TOPIC}
    assert not broker.asked(RequestCode.CONSUMER_SEND_MSG_BACK)


def test_a_queue_held_for_what_another_cached_is_pulled_again_when_that_one_is_given_up() -> None:
    """Covers C-510: nobody consumes what is dropped, so no poll would find the room there is."""
    other = MessageQueue(TOPIC, "broker-a", 1)
    with FakeBroker(queues=2) as broker:
        broker.offsets.update({0: 0, 1: 100})
        consumer = made(broker, pull_threshold_for_all=2)
        consumer.assign([MQ, other])
        with consumer:
            held = broker.wait_pull(100)
            broker.reply(broker.wait_pull(0), found(range(3)))
            wait_until(lambda: consumer._machine.cache.cached, "3")
            broker.reply(held, pull_answer(ResponseCode.PULL_RETRY_IMMEDIATELY, 100))
            cache = consumer._machine.cache
            wait_until(lambda: cache.queues[other] in cache.held, "hold")
            consumer.assign([other])
            broker.wait_pull(100, 2)


# --- where it begins ----------------------------------------------------------------------------


def test_a_start_that_cannot_be_found_is_never_pulled_from(broker: FakeBroker) -> None:
    """Covers C-189, apache/rocketmq 10176: no pull at -1, and no jump, until it is known."""
    broker.on[QUERY] = refusal(1, "busy")
    with lite(broker, consume_from_where=ConsumeFromWhere.FIRST_OFFSET):
        broker.wait_for(QUERY, 2)
        assert not broker.asked(PULL)
        broker.offsets[0] = 5
        broker.on[QUERY] = broker._query_offset
        assert pull_header(broker.wait_pull(5)).queue_offset == 5
    assert {pull_header(a).queue_offset for a in broker.asked(PULL)} == {5}


def test_an_assigned_queue_whose_start_is_unknown_is_asked_for_again(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Covers C-509, apache/rocketmq 10176: the same in assign mode."""
    monkeypatch.setattr("rocketstream.client.instance.groups.UNBALANCED_RETRY_MS", 20)
    broker.on[QUERY] = refusal(1, "busy")
    consumer = made(broker)
    consumer.assign([MQ])
    with consumer:
        broker.wait_for(QUERY, 3)
        assert not broker.asked(PULL)
        assert consumer.assignment() == []
        broker.offsets[0] = 7
        broker.on[QUERY] = broker._query_offset
        broker.wait_pull(7)


def test_an_assignment_that_nobody_waits_for_any_more_is_still_made(broker: FakeBroker) -> None:
    """The queues are the consumer's from then on: nothing else would ever begin them."""

    async def main() -> None:
        consumer = aio.LitePullConsumer(GROUP, namesrv_addr=broker.address)
        async with consumer:
            broker.on[QUERY] = lambda _: None
            assigning = asyncio.ensure_future(consumer.assign([MQ]))
            (question,) = await asyncio.to_thread(broker.wait_for, QUERY)
            assigning.cancel()
            with pytest.raises(asyncio.CancelledError):
                await assigning
            broker.offsets[0] = 7
            broker.reply(question, broker._query_offset(question.command))
            await asyncio.to_thread(broker.wait_pull, 7)
            assert consumer.assignment() == [MQ]

    asyncio.run(main())


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        (ConsumeFromWhere.LAST_OFFSET, 77),
        (ConsumeFromWhere.FIRST_OFFSET, 0),
        (ConsumeFromWhere.TIMESTAMP, 33),
    ],
)
def test_where_a_group_without_offset_begins(
    broker: FakeBroker, where: ConsumeFromWhere, expected: int
) -> None:
    """Covers C-72, C-189."""
    broker.offsets.clear()
    broker.on[RequestCode.SEARCH_OFFSET_BY_TIMESTAMP] = lambda _: answer(
        0, SearchOffsetResponseHeader(33)
    )
    with lite(broker, consume_from_where=where) as consumer:
        broker.wait_pull(expected)
        assert consumer.committed(MQ) == expected


# --- rebalance ----------------------------------------------------------------------------------


def test_a_late_answer_of_an_earlier_ownership_neither_comes_out_nor_skips(
    broker: FakeBroker,
) -> None:
    """Covers C-507, C-508, apache/rocketmq 2732: lost, regained, then the old pull is answered."""
    with lite(broker) as consumer:
        me = consumer.client_id
        late = broker.wait_pull(0)
        broker.members = ["0-another"]
        broker.notify_members_changed()
        wait_until(lambda: not consumer.assignment(), "the queue to be lost")
        broker.members = [me]
        broker.notify_members_changed()
        again = broker.wait_pull(0, 2)
        broker.reply(late, found([0]))
        assert consumer.poll(50) == []
        broker.reply(again, found([0]))
        assert offsets(consumer.poll(WAIT_MS)) == [0]
        broker.wait_pull(1)


def test_messages_cached_of_a_lost_queue_are_not_handed_out(broker: FakeBroker) -> None:
    """Covers C-507, apache/rocketmq 2732: they are the next owner's; what was done is committed."""
    with lite(broker) as consumer:
        broker.reply(broker.wait_pull(0), found(range(25)))
        assert offsets(consumer.poll(WAIT_MS)) == list(range(10))
        assert offsets(consumer.poll(WAIT_MS)) == list(range(10, 20))
        broker.members = ["0-another"]
        broker.notify_members_changed()
        wait_until(lambda: not consumer.assignment(), "the queue to be lost")
        assert consumer.poll(0) == []
        # 10 to 19 were in the caller's hands: not done, so the next owner gets them again.
        wait_until(lambda: commits(broker)[-1:] == [10], "the commit")
        consumer.commit_sync()
    assert commits(broker)[-1] == 10


def test_without_auto_commit_a_lost_queue_is_committed_as_told(broker: FakeBroker) -> None:
    """Covers C-62, C-507."""
    with lite(broker, auto_commit=False) as consumer:
        broker.reply(broker.wait_pull(0), found(range(25)))
        consumer.poll(WAIT_MS)
        consumer.commit({MQ: 4})
        consumer.poll(WAIT_MS)
        broker.members = ["0-another"]
        broker.notify_members_changed()
        wait_until(lambda: not consumer.assignment(), "the queue to be lost")
    assert commits(broker)[-1] == 4


# --- pulling ------------------------------------------------------------------------------------


def test_an_empty_queue_starves_no_other(broker: FakeBroker) -> None:
    """Covers C-64, C-511: every queue is pulled at once, though none of the others is answered."""
    with FakeBroker(queues=60) as many:
        many.offsets.update(dict.fromkeys(range(60), 0))
        with lite(many, pull_thread_nums=1) as consumer:
            pulls = many.wait_for(PULL, 60)
            last = next(a for a in pulls if a.ext["queueId"] == "59")
            many.reply(last, found([0], queue_id=59))
            assert offsets(consumer.poll(WAIT_MS)) == [0]


def test_pulling_stops_at_the_bound_and_goes_on_below_it(broker: FakeBroker) -> None:
    """Covers C-67, C-579: nobody asks meanwhile."""
    with lite(broker, pull_threshold_for_queue=20, pull_batch_size=20) as consumer:
        broker.reply(broker.wait_pull(0), found(range(20)))
        broker.reply(broker.wait_pull(20), found(range(20, 40)))
        wait_until(lambda: consumer._machine.cache.cached == 40, "both answers")
        assert len(broker.asked(PULL)) == 2
        consumer.poll(WAIT_MS)
        consumer.poll(WAIT_MS)
        broker.wait_pull(40)


def test_the_bound_of_all_queues_counts_messages(broker: FakeBroker) -> None:
    """Covers C-66, C-510."""
    with lite(broker, pull_threshold_for_all=30, pull_batch_size=32) as consumer:
        broker.reply(broker.wait_pull(0), found(range(32)))
        wait_until(lambda: consumer._machine.cache.cached == 32, "the answer")
        assert len(broker.asked(PULL)) == 1
        consumer.poll(WAIT_MS)
        broker.wait_pull(32)


def test_an_offset_outside_the_queue_is_corrected_at_once(broker: FakeBroker) -> None:
    """Covers C-512, C-564: forwards to what is left, and never back to the beginning."""
    broker.offsets[0] = 100
    with lite(broker) as consumer:
        broker.reply(broker.wait_pull(100), pull_answer(ResponseCode.PULL_OFFSET_MOVED, 0, 50))
        broker.reply(broker.wait_pull(50), found([50]))
        assert offsets(consumer.poll(WAIT_MS)) == [50]


def test_what_came_since_a_broker_lost_messages_is_not_passed(broker: FakeBroker) -> None:
    """Covers C-564: it had put the group back to where the queue ended, and ten came before us."""
    broker.offsets[0] = 100
    with lite(broker) as consumer:
        pull = broker.wait_pull(100)
        broker.offsets[0] = 40
        broker.reply(pull, pull_answer(ResponseCode.PULL_OFFSET_MOVED, 50, 50))
        broker.reply(broker.wait_pull(40), found([40]))
        assert offsets(consumer.poll(WAIT_MS)) == [40]


def test_failed_pulls_are_repeated(broker: FakeBroker) -> None:
    """Covers C-230, C-509: broker busy, unknown broker code; the route is asked for again."""
    codes = iter([ResponseCode.FLOW_CONTROL, ResponseCode.SYSTEM_ERROR])

    def pull(command: RemotingCommand) -> RemotingCommand | None:
        code = next(codes, None)
        return None if code is None else RemotingCommand.response(int(code), "not now")

    broker.on[PULL] = pull
    with lite(broker) as consumer:
        broker.reply(broker.wait_pull(0, 3), found([0]))
        assert offsets(consumer.poll(WAIT_MS)) == [0]


def test_a_broker_that_does_not_hold_is_not_asked_in_a_tight_loop(broker: FakeBroker) -> None:
    """Covers C-509: an empty answer at once is followed by a short pause."""
    broker.on[PULL] = lambda _: pull_answer(ResponseCode.PULL_NOT_FOUND, 0)
    with lite(broker):
        broker.wait_for(PULL, 3)
        first, *_, last = broker.asked(PULL)
        assert pull_header(first).queue_offset == pull_header(last).queue_offset == 0


def test_answers_that_lead_nowhere_are_asked_for_less_and_less(
    broker: FakeBroker, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Covers C-512, C-514: told once; messages before the offset asked for are left out."""
    pauses: list[float] = []

    def later(self: Puller[Any], delay_ms: float, work: Callable[[], None]) -> None:
        pauses.append(delay_ms)
        self._loop.call_soon(work)

    monkeypatch.setattr(Puller, "later", later)
    broker.offsets[0] = 5
    answers = itertools.cycle(
        [found([3, 4], next_offset=4), pull_answer(20, 5), pull_answer(21, 5, 9)]
    )
    with lite(broker) as consumer:
        for count in range(1, 11):
            broker.reply(broker.wait_pull(5, count), next(answers))
        broker.reply(broker.wait_pull(5, 11), found([4, 5]))
        assert offsets(consumer.poll(20_000)) == [5]
        broker.wait_pull(6)
    assert pauses == [20, 40, 80, 160, 320, 640, 1280, 2560, 3000, 3000]
    assert caplog.text.count("names no other offset") == 1


def test_a_filtered_tail_is_committed_by_the_timer(broker: FakeBroker) -> None:
    """Covers C-513, C-569: without a poll and without a message."""
    with lite(broker, "A", auto_commit_interval_ms=1_000):
        broker.reply(broker.wait_pull(0), pull_answer(ResponseCode.PULL_RETRY_IMMEDIATELY, 40))
        broker.wait_pull(40)
        wait_until(lambda: commits(broker)[-1:] == [40], "the commit")


def test_an_answer_to_an_old_expression_is_pulled_again_with_the_new_one(
    broker: FakeBroker,
) -> None:
    """Covers C-103, C-221: what the old one left out is not passed over."""
    with lite(broker, "A") as consumer:
        old = broker.wait_pull(0)
        consumer.subscribe(TOPIC, "B")
        broker.reply(old, pull_answer(ResponseCode.PULL_RETRY_IMMEDIATELY, 40))
        assert pull_header(broker.wait_pull(0, 2)).subscription == "B"


def test_a_seek_drops_what_is_on_its_way(broker: FakeBroker) -> None:
    """Covers C-519: the old pull's answer is discarded, the new one is sent at once."""
    with lite(broker) as consumer:
        old = broker.wait_pull(0)
        consumer.seek(MQ, 50)
        new = broker.wait_pull(50)
        broker.reply(old, found([0]))
        broker.reply(new, found([50]))
        assert offsets(consumer.poll(WAIT_MS)) == [50]
        assert consumer.poll(0) == []
    assert commits(broker)[-1] == 51


def test_a_commit_the_broker_refuses_is_an_error_to_who_waits(broker: FakeBroker) -> None:
    """Covers C-516, C-518: commit_sync says so; committed() raises when nobody can be asked."""
    with lite(broker, auto_commit=False) as consumer:
        broker.reply(broker.wait_pull(0), found([0]))
        consumer.poll(WAIT_MS)
        broker.on[UPDATE] = refusal(1, "disk full")
        with pytest.raises(RocketMQError, match="disk full"):
            consumer.commit_sync()
        broker.on[QUERY] = refusal(1, "busy")
        with pytest.raises(RocketMQError, match="busy"):
            consumer.committed(MQ._replace(queue_id=5))


def test_a_commit_that_waits_tells_only_what_changed(broker: FakeBroker) -> None:
    """Covers C-516, C-568: and again what was taken back in between."""
    with lite(broker, auto_commit=False) as consumer:
        broker.reply(broker.wait_pull(0), found(range(20)))
        consumer.poll(WAIT_MS)
        consumer.commit_sync()
        assert commits(broker)[-1] == 10
        # The timer says a first commit once more; more than that nobody needs.
        for _ in range(20):
            consumer.commit_sync()
        told = len(commits(broker))
        assert told <= 4
        consumer.commit({MQ: 4})
        consumer.commit({MQ: 10}, persist=True)
        assert commits(broker)[-1] == 10
        assert len(commits(broker)) > told


# --- asked by brokers ---------------------------------------------------------------------------


def ask(broker: FakeBroker, command: RemotingCommand) -> RemotingCommand:
    """Send a request to the only client and return its answer."""

    async def asking() -> RemotingCommand:
        (connection, *_) = broker.server.connections
        return await connection.request(command, WAIT_MS)

    return broker.thread.run(asking())


def test_running_info_tells_settings_queues_and_offsets(broker: FakeBroker) -> None:
    """Covers C-540 for lite pull: settings by upstream's names, what is cached, what is noted."""
    with lite(broker, pull_batch_size=5) as consumer:
        broker.reply(broker.wait_pull(0), found(range(8)))
        consumer.poll(WAIT_MS)
        header = GetConsumerRunningInfoRequestHeader(GROUP, consumer.client_id, True)
        answered = ask(
            broker, RemotingCommand.request(RequestCode.GET_CONSUMER_RUNNING_INFO, header)
        )
        info = ConsumerRunningInfo.decode(answered.body)
        assert info.properties["pullBatchSize"] == "5"
        assert info.properties["autoCommitIntervalMillis"] == "5000"
        assert info.properties["PROP_CONSUME_TYPE"] == "CONSUME_ACTIVELY"
        assert info.mq_table[MQ].cached_msg_min_offset == 5
        assert [each.topic for each in info.subscription_set] == [TOPIC]
        assert info.jstack


def reset(broker: FakeBroker, offset: int) -> None:
    body = ResetOffsetBody(offset_table={MQ: offset}).encode()
    header = ResetOffsetRequestHeader(TOPIC, GROUP, 0, True)
    command = RemotingCommand.request(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, header, body)

    async def tell() -> None:
        for connection in broker.server.connections:
            connection.oneway(command)

    broker.thread.run(tell())


def test_a_seek_while_a_reset_is_stored_is_pulled_once(broker: FakeBroker) -> None:
    """Two pulls on their way would bring everything twice from then on."""
    broker.on[UPDATE] = lambda _: None
    with lite(broker) as consumer:
        broker.wait_pull(0)
        storing = broker.wait_for(UPDATE)[0]
        reset(broker, 30)
        consumer.seek(MQ, 10)
        broker.wait_pull(10)
        broker.on[UPDATE] = lambda _: ok()
        broker.reply(storing, ok())
        consumer.commit_sync()  # behind it
        consumer.fetch_message_queues(TOPIC)
        assert [pull_header(each).queue_offset for each in broker.asked(PULL)] == [0, 10]


def test_a_reset_seeks_and_is_stored(broker: FakeBroker) -> None:
    """Covers C-572 for lite pull: at once, in both directions, without waiting ten seconds."""
    with lite(broker) as consumer:
        broker.wait_pull(0)
        reset(broker, 30)
        broker.reply(broker.wait_pull(30), found([30]))
        assert offsets(consumer.poll(WAIT_MS)) == [30]
        wait_until(lambda: 30 in commits(broker), "the stored offset")
        status = ask(
            broker,
            RemotingCommand.request(
                RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT,
                GetConsumerStatusRequestHeader(TOPIC, GROUP),
            ),
        )
        assert GetConsumerStatusBody.decode(status.body).message_queue_table == {MQ: 30}


# --- threads ------------------------------------------------------------------------------------


def test_many_threads_poll_each_message_once(broker: FakeBroker) -> None:
    """Covers C-514: the consumer may be shared."""
    got: list[int] = []
    lock = threading.Lock()
    with lite(broker, pull_batch_size=3) as consumer:

        def work() -> None:
            while messages := consumer.poll(WAIT_MS):
                with lock:
                    got.extend(offsets(messages))

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for start in range(0, 300, 30):
            broker.reply(broker.wait_pull(start), found(range(start, start + 30)))
        wait_until(lambda: len(got) == 300, "all messages")
        consumer.shutdown()
        for thread in threads:
            thread.join(WAIT_S)
    assert sorted(got) == list(range(300))


def test_a_start_without_name_server_leaves_nothing_and_may_be_repeated(closed_port: int) -> None:
    """Covers C-117, C-125, C-595, C-596."""
    consumer = LitePullConsumer(GROUP, namesrv_addr=f"127.0.0.1:{closed_port}")
    consumer.subscribe(TOPIC)
    for _ in range(2):
        with pytest.raises(ConnectError, match=str(closed_port)):
            consumer.start()
