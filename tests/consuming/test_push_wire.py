"""The pull loop of the push consumer, request by request, against a broker that obeys the test."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from rocketstream import ClientConfig, MessageExt, MessageModel, MessageSelector, PushConsumer
from rocketstream.client.consumer.pull_answer import FLOW_CONTROL_DELAY_MS, SUSPENDED_DELAY_MS
from rocketstream.client.consumer.puller import Puller
from rocketstream.client.consumer.push.impl import BROKER_SUSPEND_MS, PULL_TIMEOUT_MS
from rocketstream.client.consumer.queue import AssignedQueue
from rocketstream.client.consumer.subscription import SubscriptionCheck
from rocketstream.errors import BrokerError
from rocketstream.protocol.bodies import HeartbeatData, SubscriptionData
from rocketstream.protocol.bodies.admin import Connection, ConsumerConnection
from rocketstream.protocol.codes import PullSysFlag, RequestCode
from rocketstream.protocol.command import RemotingCommand
from tests.kits.client.consumers import started
from tests.kits.client.fake_broker import (
    GROUP,
    TOPIC,
    WAIT_S,
    FakeBroker,
    found,
    pull_answer,
    pull_header,
    refusal,
)
from tests.kits.listeners import Gate, Seen
from tests.plugins.waiting import wait_until

PULL = RequestCode.PULL_MESSAGE


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    with FakeBroker() as running:
        running.offsets[0] = 0
        yield running


def test_the_times_are_upstreams() -> None:
    """Covers C-210, C-214 (the look-up comes with the retry): hold, RPC, pauses."""
    assert (BROKER_SUSPEND_MS, PULL_TIMEOUT_MS) == (15_000, 30_000)
    assert (SUSPENDED_DELAY_MS, FLOW_CONTROL_DELAY_MS) == (1_000, 20)
    assert ClientConfig(namesrv_addr="x:1").pull_time_delay_ms_when_exception == 1_000


def test_a_pull_says_everything_upstream_says(broker: FakeBroker) -> None:
    """Covers C-212, C-213, C-217: suspend always, the expression only when asked to."""
    with started(broker, Seen(), "A || B", pull_batch_size=7):
        header = pull_header(broker.wait_pull(0))
    assert (header.consumer_group, header.topic, header.queue_id) == (GROUP, TOPIC, 0)
    assert (header.queue_offset, header.max_msg_nums, header.commit_offset) == (0, 7, 0)
    assert header.sys_flag == PullSysFlag.SUSPEND
    assert header.subscription is None
    assert (header.expression_type, header.bname) == ("TAG", "broker-a")
    assert header.sub_version > 0


def test_the_expression_goes_along_when_asked_to(broker: FakeBroker) -> None:
    """Covers C-39, C-212, C-213."""
    with started(broker, Seen(), "A || B", post_subscription_when_pull=True):
        header = pull_header(broker.wait_pull(0))
    assert header.sys_flag == PullSysFlag.SUSPEND | PullSysFlag.SUBSCRIPTION
    assert header.subscription == "A || B"


def test_an_offset_goes_along_only_when_nothing_can_overtake_it(broker: FakeBroker) -> None:
    """Covers C-211, C-212: when everything before the pull is finished and the broker knows it."""
    seen = Seen()
    with started(broker, seen):
        broker.reply(broker.wait_pull(0), found(range(3)))
        seen.wait_consumed(3)
        broker.wait_for(RequestCode.UPDATE_CONSUMER_OFFSET, 2, lambda a: a.ext["topic"] == TOPIC)
        broker.reply(broker.wait_pull(3), pull_answer(19, 3, 3))
        header = pull_header(broker.wait_pull(3, 2))
    assert header.sys_flag == PullSysFlag.SUSPEND | PullSysFlag.COMMIT_OFFSET
    assert header.commit_offset == 3


def test_broadcasting_pulls_carry_no_offset(
    broker: FakeBroker, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Covers C-112, C-158, C-211: nor is anybody asked for members or offsets."""
    monkeypatch.setenv("ROCKETMQ_LOCAL_OFFSET_STORE_DIR", str(tmp_path))
    seen = Seen()
    with started(broker, seen, message_model=MessageModel.BROADCASTING):
        broker.wait_for(RequestCode.GET_MAX_OFFSET)  # LAST without an offset in the file (C-197)
        first = broker.wait_for(PULL)[0]
        offset = pull_header(first).queue_offset
        broker.reply(first, found([offset]))
        seen.wait_consumed(1)
        header = pull_header(broker.wait_pull(offset + 1))
        assert header.sys_flag == PullSysFlag.SUSPEND
        (data,) = broker.heartbeats[-1].consumer_data_set
        assert data.message_model == "BROADCASTING"
        assert [each.topic for each in data.subscription_data_set] == [TOPIC]
    for code in (
        RequestCode.GET_CONSUMER_LIST_BY_GROUP,
        RequestCode.QUERY_CONSUMER_OFFSET,
        RequestCode.UPDATE_CONSUMER_OFFSET,
    ):
        assert not broker.asked(code)


def test_unit_mode_is_told(broker: FakeBroker) -> None:
    """Covers C-11, C-143."""
    with started(broker, Seen(), unit_mode=True):
        broker.wait_pull(0)
        assert broker.heartbeats[-1].consumer_data_set[0].unit_mode


def test_a_condition_needs_a_broker_that_can_filter(
    broker: FakeBroker, caplog: pytest.LogCaptureFixture
) -> None:
    """Covers C-216, C-222: an old broker is never asked, the loop goes on."""

    def old(command: RemotingCommand) -> RemotingCommand:
        broker.heartbeats.append(HeartbeatData.decode(bytes(command.body)))
        answer = RemotingCommand.response(0)
        answer.version = 100
        return answer

    broker.on[RequestCode.HEART_BEAT] = old
    broker.on[RequestCode.CHECK_CLIENT_CONFIG] = lambda _: RemotingCommand.response(0)
    with caplog.at_level(logging.WARNING), started(broker, Seen(), MessageSelector.by_sql("a > 1")):
        wait_until(lambda: "is too old for expressions of type" in caplog.text, "the warning")
        assert not [each for each in broker.asked(PULL) if each.ext["topic"] == TOPIC]


def test_a_refused_condition_fails_the_start(broker: FakeBroker) -> None:
    """Covers C-118: the broker's code comes through, and nothing is left behind."""
    broker.on[RequestCode.CHECK_CLIENT_CONFIG] = refusal(23, "no such grammar")
    with pytest.raises(BrokerError, match="no such grammar") as raised:
        started(broker, Seen(), MessageSelector.by_sql("a > 1"))
    assert raised.value.code == 23
    assert not broker.asked(PULL)


def test_a_condition_refused_while_running_leaves_the_one_before(broker: FakeBroker) -> None:
    """Covers C-103, C-118."""
    broker.on[RequestCode.CHECK_CLIENT_CONFIG] = refusal(23, "no such grammar")
    with started(broker, Seen(), "A") as consumer:
        broker.wait_pull(0)
        with pytest.raises(BrokerError):
            consumer.subscribe(TOPIC, MessageSelector.by_sql("a > 1"))
        topics = {d.topic: d.sub_string for d in consumer._machine.subscriptions.values()}
    assert topics == {TOPIC: "A", f"%RETRY%{GROUP}": "*"}


def test_a_stalled_question_stalls_one_queue_only() -> None:
    """Covers C-200: the other is pulled while where this one begins is still unknown."""
    with FakeBroker(queues=2) as broker:
        broker.offsets[0] = 0
        seen = Seen()
        broker.on[RequestCode.QUERY_CONSUMER_OFFSET] = lambda command: (
            RemotingCommand.response(1, "busy")
            if (command.ext_fields or {})["queueId"] == "1"
            else broker._query_offset(command)
        )
        with started(broker, seen):
            broker.reply(broker.wait_pull(0), found([0]))
            seen.wait_consumed(1)
            pulled = [each for each in broker.asked(PULL) if each.ext["queueId"] == "1"]
            assert not [each for each in pulled if each.ext["topic"] == TOPIC]


def test_answers_after_the_shutdown_are_discarded(broker: FakeBroker) -> None:
    """Covers C-201, C-549."""
    seen = Seen()
    with started(broker, seen):
        held = broker.wait_pull(0)
    broker.reply(held, found([0]))
    assert not seen.deliveries


def test_messages_before_the_asked_offset_are_left_out_and_told_once(
    broker: FakeBroker, caplog: pytest.LogCaptureFixture
) -> None:
    """Covers C-224: they were consumed before; upstream logs "[BUG]" and consumes them again."""
    broker.offsets[0] = 10
    seen = Seen()
    with caplog.at_level(logging.WARNING), started(broker, seen):
        broker.reply(broker.wait_pull(10), found([8, 9, 10]))
        broker.reply(broker.wait_pull(11), found([9, 10, 11], next_offset=9))
        broker.wait_pull(12)
        seen.wait_consumed(2)
    assert seen.bodies == ["10", "11"]
    assert caplog.text.count("answers with a record of topic T, queue 0, offset 8;") == 1


def test_a_broker_that_leads_nowhere_is_asked_less_and_less_and_told_once(
    broker: FakeBroker, caplog: pytest.LogCaptureFixture
) -> None:
    """Covers C-225, C-226, C-228: found, filtered or moved to the offset that was asked for."""
    broker.offsets[0] = 5
    pauses: list[float] = []

    def measure(monkeypatch: pytest.MonkeyPatch) -> None:
        real = Puller.later

        def after(self: Puller[Any], delay_ms: float, work: Callable[[], None]) -> None:
            pauses.append(delay_ms)
            real(self, 0, work)

        monkeypatch.setattr(Puller, "later", after)

    answers = itertools.cycle(
        [found([3, 4], next_offset=5), pull_answer(20, 5), pull_answer(21, 5, 9)]
    )
    with pytest.MonkeyPatch.context() as monkeypatch:
        measure(monkeypatch)
        with caplog.at_level(logging.WARNING), started(broker, Seen(), pull_interval_ms=0):
            for count in range(1, 13):
                broker.reply(broker.wait_pull(5, count), next(answers))
            last = broker.wait_pull(5, 13)
            told = caplog.text.count("names no other offset")
            broker.reply(last, found([5]))
            broker.wait_pull(6)
            wait_until(lambda: "progress of" in caplog.text, "the end to be told")
    assert pauses == [20, 40, 80, 160, 320, 640, 1280, 2560, *[3000] * 4]
    assert told == 1
    assert caplog.text.count("names no other offset") == 1


def test_flow_control_says_so_now_and_then(
    broker: FakeBroker, caplog: pytest.LogCaptureFixture
) -> None:
    """Covers C-203 to C-206, C-577, C-579: held once, logged once, pulled once when it may go."""
    gate = Gate(lambda message: True)
    with caplog.at_level(logging.INFO), started(broker, gate, pull_threshold_for_queue=1):
        broker.reply(broker.wait_pull(0), found(range(3)))
        assert gate.entered.wait(WAIT_S)
        wait_until(lambda: "pauses until its COUNT falls" in caplog.text, "the log line")
        assert len([a for a in broker.asked(PULL) if a.ext["queueOffset"] == "3"]) == 0
        gate.opened.set()
        gate.seen.wait_consumed(3)
        broker.wait_pull(3)
        assert len([a for a in broker.asked(PULL) if a.ext["queueOffset"] == "3"]) == 1
    assert caplog.text.count("pauses until its COUNT falls") == 1


def test_messages_that_cannot_be_handed_out_are_pulled_again(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Covers C-231, C-581: cached and given to nobody they would hold the offset for ever."""
    seen = Seen()
    with started(broker, seen):
        held = broker.wait_pull(0)
        real = AssignedQueue.consume

        def once(queue: AssignedQueue, messages: list[MessageExt]) -> None:
            monkeypatch.setattr(AssignedQueue, "consume", real)
            raise ZeroDivisionError("consume")

        monkeypatch.setattr(AssignedQueue, "consume", once)
        broker.reply(held, found(range(2)))
        broker.reply(broker.wait_pull(0, 2), found(range(2)))
        seen.wait_consumed(2)


def test_a_reset_offset_cannot_be_undone_by_a_late_listener(broker: FakeBroker) -> None:
    """Covers C-322, C-572: what a listener of before still finishes counts no more."""
    broker.offsets[0] = 50
    gate = Gate(lambda message: message.queue_offset == 50)
    with started(broker, gate) as consumer:
        broker.reply(broker.wait_pull(50), found([50]))
        assert gate.entered.wait(WAIT_S)
        engine, impl = consumer._running()
        (mq,) = [mq for mq in impl.queues.table if mq.topic == TOPIC]
        assert engine.run(impl.queues.restart(mq, 7))
        pull = broker.wait_pull(7)
        gate.opened.set()
        gate.seen.wait_consumed(1)
        broker.reply(pull, found([7]))
        gate.seen.wait_consumed(2)
    offsets = [
        int(each.ext["commitOffset"])
        for each in broker.asked(RequestCode.UPDATE_CONSUMER_OFFSET)
        if each.ext["topic"] == TOPIC
    ]
    assert 7 in offsets
    assert max(offsets[offsets.index(7) :]) == 8


def test_members_that_subscribe_differently_are_told(
    broker: FakeBroker, caplog: pytest.LogCaptureFixture
) -> None:
    """Covers C-340, C-552, C-580: named once, with both expressions; each pull is tried again."""
    theirs = ConsumerConnection(
        connection_set=[Connection(), Connection()],
        subscription_table={TOPIC: SubscriptionData(TOPIC, "B", {"B"}, {66}, 9)},
    )
    broker.on[RequestCode.GET_CONSUMER_CONNECTION_LIST] = lambda _: RemotingCommand.response(
        0, body=theirs.encode()
    )
    with caplog.at_level(logging.ERROR), started(broker, Seen(), "A"):
        for count in (1, 2, 3):
            broker.reply(broker.wait_pull(0, count), RemotingCommand.response(25, "not latest"))
        broker.wait_pull(0, 4)
        wait_until(lambda: "do not subscribe alike" in caplog.text, "the error")
    assert f"topic {TOPIC} is TAG 'A' here and TAG 'B' at {broker.address}" in caplog.text
    assert "all 2 members" in caplog.text
    assert len(broker.asked(RequestCode.GET_CONSUMER_CONNECTION_LIST)) == 1


def test_a_broker_that_only_forgot_us_is_no_mistake_of_the_group(
    broker: FakeBroker, caplog: pytest.LogCaptureFixture
) -> None:
    """Covers C-552, C-580: told once more, it knows the subscription again."""
    ours = ConsumerConnection(
        connection_set=[Connection()],
        subscription_table={TOPIC: SubscriptionData(TOPIC, "A", {"A"}, {65}, 9)},
    )
    broker.on[RequestCode.GET_CONSUMER_CONNECTION_LIST] = lambda _: RemotingCommand.response(
        0, body=ours.encode()
    )
    with caplog.at_level(logging.ERROR), started(broker, Seen(), "A"):
        beats = len(broker.heartbeats)
        broker.reply(broker.wait_pull(0), RemotingCommand.response(24, "not exist"))
        broker.wait_for(RequestCode.GET_CONSUMER_CONNECTION_LIST)
        broker.wait_pull(0, 2)
        assert len(broker.heartbeats) > beats
    assert "do not subscribe alike" not in caplog.text


def test_a_broker_that_refuses_a_subscription_is_not_compared_with(broker: FakeBroker) -> None:
    """Covers C-552: it has no room for it, and no member subscribes differently."""
    ours = SubscriptionData(TOPIC, "A", {"A"}, {65}, 9)
    broker.on[RequestCode.GET_CONSUMER_CONNECTION_LIST] = refusal(1, "not to be asked")
    with started(broker, Seen(), "A") as consumer:
        check = SubscriptionCheck(consumer._machine.instance, GROUP)
        with pytest.raises(BrokerError, match="not to be asked"):
            consumer._wait(check._compare(ours, broker.address))
        broker.on[RequestCode.HEART_BEAT] = refusal(1, "the subscriptions are over the maximum")
        consumer._wait(check._compare(ours, broker.address))


def test_a_name_server_that_is_gone_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    """Covers C-214: many failing pulls share the look-up, and the outage is one line."""
    with FakeBroker(queues=8) as broker:
        broker.offsets = dict.fromkeys(range(8), 0)
        config = ClientConfig(
            namesrv_addr=broker.address, api_timeout_ms=20, pull_time_delay_ms_when_exception=1
        )
        consumer = PushConsumer(GROUP, config=config, listener=Seen(), subscription={TOPIC: "*"})
        with caplog.at_level(logging.WARNING, "rocketstream.client"), consumer:
            broker.wait_for(PULL, 8)
            known = len(broker.asked(RequestCode.GET_ROUTEINFO_BY_TOPIC))
            broker.on[RequestCode.GET_ROUTEINFO_BY_TOPIC] = lambda _: None
            broker.on[PULL] = lambda _: RemotingCommand.response(0)  # no header: not understood
            for asked in broker.asked(PULL):
                broker.reply(asked, RemotingCommand.response(0))
            broker.wait_for(RequestCode.GET_ROUTEINFO_BY_TOPIC, known + 4)
        assert caplog.text.count("the name servers cannot be reached") == 1
        assert caplog.text.count("pull of MessageQueue") <= 8
