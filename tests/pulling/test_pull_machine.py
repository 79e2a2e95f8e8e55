"""The pull consumer against a broker that does what the test says."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from rocketstream import (
    ClientConfig,
    MessageModel,
    MessageQueue,
    MessageSelector,
    MQPullConsumerScheduleService,
    PullConsumer,
    PullStatus,
)
from rocketstream.errors import (
    BrokerError,
    ClientStateError,
    NotSupportedError,
    RequestTimeoutError,
    RouteNotFoundError,
    SendError,
)
from rocketstream.protocol.bodies import ConsumerRunningInfo
from rocketstream.protocol.codes import PullSysFlag, RequestCode, ResponseCode
from rocketstream.protocol.command import RemotingCommand
from rocketstream.protocol.headers import (
    ConsumerSendMsgBackRequestHeader,
    GetConsumerRunningInfoRequestHeader,
    PullMessageResponseHeader,
)
from tests.kits.client.consumers import Shelf
from tests.kits.client.fake_broker import (
    GROUP,
    TOPIC,
    WAIT_S,
    FakeBroker,
    answer,
    found,
    ok,
    pull_header,
    refusal,
)
from tests.plugins.waiting import wait_until

PULL = RequestCode.PULL_MESSAGE
UPDATE = RequestCode.UPDATE_CONSUMER_OFFSET
MQ = MessageQueue(TOPIC, "broker-a", 0)


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    with FakeBroker() as running:
        running.on[PULL] = lambda _: found(range(3))
        yield running


def puller(broker: FakeBroker, **settings: Any) -> PullConsumer:
    config = ClientConfig(namesrv_addr=broker.address, persist_consumer_offset_interval_ms=20)
    made = PullConsumer(GROUP, config=config, **settings)
    made.start()
    return made


def test_a_queue_that_comes_back_while_its_task_runs_is_not_pulled_twice_at_once(
    broker: FakeBroker,
) -> None:
    """Covers C-501: its new task is called when the one of the assignment before has ended."""
    calls, opened, marked = threading.Semaphore(0), threading.Event(), threading.Event()
    begun: list[MessageQueue] = []

    def task(mq: MessageQueue, context: Any) -> None:
        begun.append(mq)
        calls.release()
        opened.wait(WAIT_S)

    config = ClientConfig(namesrv_addr=broker.address)
    with MQPullConsumerScheduleService(GROUP, config=config, pull_thread_nums=2) as service:
        broker.members = []  # so that only the test divides queues
        service._callbacks[TOPIC] = task
        service._queues_changed(TOPIC, [MQ], [MQ])
        assert calls.acquire(timeout=WAIT_S)
        service._queues_changed(TOPIC, [MQ], [])
        service._queues_changed(TOPIC, [MQ], [MQ])
        assert service._executor is not None
        service._executor.submit(marked.set)  # by the second thread, after it looked at the task
        assert marked.wait(WAIT_S)
        assert begun == [MQ]
        opened.set()
        assert calls.acquire(timeout=WAIT_S)
        assert begun == [MQ, MQ]


# --- requests -----------------------------------------------------------------------------------


def test_a_plain_and_a_blocking_pull_on_the_wire(broker: FakeBroker) -> None:
    """Covers C-49, C-491, C-493: flags, hold time, expression, version 0, no commit."""
    with puller(broker, broker_suspend_max_time_ms=1_234) as consumer:
        consumer.pull(MQ, None, 5, 7)
        plain = pull_header(broker.asked(PULL)[-1])
        assert plain.sys_flag == PullSysFlag.SUBSCRIPTION
        assert (plain.subscription, plain.expression_type, plain.sub_version) == ("*", "TAG", 0)
        assert (plain.queue_offset, plain.max_msg_nums, plain.commit_offset) == (5, 7, 0)
        assert plain.bname == "broker-a"
        consumer.pull_block_if_not_found(MQ, "A", 0, 32)
        blocking = pull_header(broker.asked(PULL)[-1])
        assert blocking.sys_flag == PullSysFlag.SUBSCRIPTION | PullSysFlag.SUSPEND
        assert (blocking.subscription, blocking.suspend_timeout_millis) == ("A", 1_234)


def test_each_kind_of_pull_has_its_timeout(broker: FakeBroker) -> None:
    """Covers C-50, C-51, C-219, C-491: given, of a plain pull, of a blocking one."""
    broker.on[PULL] = lambda _: None
    with puller(
        broker,
        consumer_pull_timeout_ms=30,
        consumer_timeout_ms_when_suspend=40,
        broker_suspend_max_time_ms=20,
    ) as consumer:
        calls: list[Callable[[], object]] = [
            lambda: consumer.pull(MQ, None, 0, 32),
            lambda: consumer.pull(MQ, None, 0, 32, timeout_ms=20),
            lambda: consumer.pull_block_if_not_found(MQ, None, 0, 32),
        ]
        for call in calls:
            with pytest.raises(RequestTimeoutError):
                call()
        error = consumer.pull_async(MQ, None, 0, 32).exception(WAIT_S)
        assert isinstance(error, RequestTimeoutError)


def test_other_codes_are_errors(broker: FakeBroker) -> None:
    """Covers C-218."""
    broker.on[PULL] = refusal(ResponseCode.NO_PERMISSION, "forbidden")
    with puller(broker) as consumer, pytest.raises(BrokerError, match="forbidden"):
        consumer.pull(MQ, None, 0, 32)


def test_an_unknown_broker_is_looked_up_once_more(broker: FakeBroker) -> None:
    """Covers C-214."""
    with puller(broker) as consumer:
        with pytest.raises(RouteNotFoundError, match=r"The broker\[elsewhere\] not exist"):
            consumer.pull(MQ._replace(broker_name="elsewhere"), None, 0, 32)
        assert broker.asked(RequestCode.GET_ROUTEINFO_BY_TOPIC)


def test_a_suggested_broker_that_does_not_exist_falls_back_to_what_there_is(
    broker: FakeBroker,
) -> None:
    """Covers C-214, C-220."""
    header = PullMessageResponseHeader(7, 0, 0, 0)
    broker.on[PULL] = lambda _: answer(ResponseCode.PULL_NOT_FOUND, header)
    with puller(broker) as consumer:
        for _ in range(2):
            assert consumer.pull(MQ, None, 0, 32).pull_status is PullStatus.NO_NEW_MSG


def test_tags_are_compared_in_full(broker: FakeBroker) -> None:
    """Covers C-220, C-495: a hash collision ends here, by this very call's expression."""
    broker.on[PULL] = lambda _: found([0], properties="TAGS\x01AaAa\x02UNIQ_KEY\x01U")
    with puller(broker) as consumer:
        collided = consumer.pull(MQ, "BBBB", 0, 32)
        assert (collided.pull_status, collided.msg_found_list) == (PullStatus.FOUND, [])
        assert collided.next_begin_offset == 1
        assert len(consumer.pull(MQ, "AaAa", 0, 32).msg_found_list) == 1


def test_a_broker_too_old_for_conditions_is_not_asked(broker: FakeBroker) -> None:
    """Covers C-216: its version is known from heartbeats."""

    def heartbeat(command: RemotingCommand) -> RemotingCommand:
        response = ok()
        response.version = 100
        return response

    broker.on[RequestCode.HEART_BEAT] = heartbeat
    with puller(broker) as consumer:
        with pytest.raises(NotSupportedError, match="is too old for expressions of type"):
            consumer.pull(MQ, MessageSelector.by_sql("a > 5"), 0, 32)
        assert not broker.asked(PULL)


def test_a_condition_carries_its_version(broker: FakeBroker) -> None:
    """Covers C-222, C-493: SQL92 is filtered by the broker alone."""
    with puller(broker) as consumer:
        result = consumer.pull(MQ, MessageSelector.by_sql("a > 5"), 0, 32)
        header = pull_header(broker.asked(PULL)[-1])
        assert (header.expression_type, header.subscription) == ("SQL92", "a > 5")
        assert header.sub_version > 0
        assert len(result.msg_found_list) == 3


# --- heartbeats and life ------------------------------------------------------------------------


def test_heartbeats_report_registered_topics_only(broker: FakeBroker) -> None:
    """Covers C-57, C-123, C-144, C-494: ``*`` with version 0; pulled topics are divided too."""
    broker.topics["Other"] = 1
    with puller(broker, register_topics={TOPIC}, unit_mode=True) as consumer:
        consumer.pull(MQ._replace(topic="Other"), None, 0, 32)
        wait_until(lambda: broker.heartbeats, "a heartbeat")
        (data,) = broker.heartbeats[-1].consumer_data_set
        assert (data.consume_type, data.unit_mode) == ("CONSUME_ACTIVELY", True)
        (subscription,) = data.subscription_data_set
        assert (subscription.topic, subscription.sub_string, subscription.sub_version) == (
            TOPIC,
            "*",
            0,
        )
        broker.notify_members_changed()
        wait_until(lambda: consumer.fetch_message_queues_in_balance("Other"), "the pulled topic")


def test_a_start_with_nothing_registered_asks_nobody(broker: FakeBroker) -> None:
    """Covers C-107, C-123, C-596: it starts though no name server answers."""
    consumer = PullConsumer(GROUP, namesrv_addr="127.0.0.1:1")
    consumer.start()
    with (
        consumer,
        pytest.raises(ClientStateError, match="this PullConsumer was started before"),
    ):
        consumer.start()
    with pytest.raises(ClientStateError, match="SHUTDOWN_ALREADY"):
        consumer.start()


def test_shutdown_stores_offsets_before_it_says_goodbye(broker: FakeBroker) -> None:
    """Covers C-124."""
    with puller(broker) as consumer:
        consumer.fetch_subscribe_message_queues(TOPIC)
        consumer.update_consume_offset(MQ, 3)
    order = [a.code for a in broker._asked]
    assert order.index(RequestCode.UNREGISTER_CLIENT) > order.index(UPDATE)


def test_running_info_of_a_pull_consumer(broker: FakeBroker) -> None:
    """Covers C-540 for pull: settings by upstream's names, queues with what is noted."""
    with puller(broker, register_topics=[TOPIC]) as consumer:
        wait_until(lambda: consumer.fetch_message_queues_in_balance(TOPIC), "the queue")
        consumer.update_consume_offset(MQ, 9)
        header = GetConsumerRunningInfoRequestHeader(GROUP, consumer.client_id, False)
        command = RemotingCommand.request(RequestCode.GET_CONSUMER_RUNNING_INFO, header)

        async def asking() -> RemotingCommand:
            (connection, *_) = broker.server.connections
            return await connection.request(command, WAIT_S * 1000)

        info = ConsumerRunningInfo.decode(broker.thread.run(asking()).body)
        assert info.properties["consumerPullTimeoutMillis"] == "10000"
        assert info.properties["registerTopics"] == f"[{TOPIC}]"
        assert info.mq_table[MQ].commit_offset == 9


# --- offsets ------------------------------------------------------------------------------------


def test_a_store_of_ones_own_is_used(broker: FakeBroker) -> None:
    """Covers C-58, C-497."""
    shelf = Shelf()
    with puller(broker, offset_store=shelf) as consumer:
        assert consumer.fetch_consume_offset(MQ, from_store=True) == -1
        consumer.update_consume_offset(MQ, 6)
        consumer.update_consume_offset_to_broker(MQ, 8)
        assert consumer.fetch_consume_offset(MQ, from_store=True) == 8
        consumer.update_consume_offset(MQ, 5)
    assert shelf.kept == {MQ: 5}
    assert not broker.asked(UPDATE)


def test_a_store_that_cannot_be_asked_is_an_error(broker: FakeBroker) -> None:
    """Covers C-497, C-561: never an offset."""
    broker.on[RequestCode.QUERY_CONSUMER_OFFSET] = refusal(1, "busy")
    broker.on[UPDATE] = refusal(1, "disk full")
    with puller(broker) as consumer:
        consumer.fetch_subscribe_message_queues(TOPIC)
        with pytest.raises(BrokerError, match="busy"):
            consumer.fetch_consume_offset(MQ)
        with pytest.raises(BrokerError, match="disk full"):
            consumer.update_consume_offset_to_broker(MQ, 3)


def test_broadcasting_keeps_offsets_here(
    broker: FakeBroker, tmp_path: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Covers C-52, C-123, C-497: in a file, no broker is told."""
    monkeypatch.setenv("ROCKETMQ_LOCAL_OFFSET_STORE_DIR", str(tmp_path))
    with puller(broker, message_model=MessageModel.BROADCASTING) as consumer:
        consumer.update_consume_offset_to_broker(MQ, 4)
    with puller(broker, message_model=MessageModel.BROADCASTING) as consumer:
        assert consumer.fetch_consume_offset(MQ, from_store=True) == 4
    assert not broker.asked(UPDATE)


# --- send-back ----------------------------------------------------------------------------------


def test_a_send_back_names_group_level_and_limit(broker: FakeBroker) -> None:
    """Covers C-56, C-498: of another group too."""
    with puller(broker, max_reconsume_times=5) as consumer:
        (message, *_) = consumer.pull(MQ, None, 0, 32).msg_found_list
        consumer.send_message_back(message, 3, "broker-a", "others")
        asked = broker.asked(RequestCode.CONSUMER_SEND_MSG_BACK)[-1]
        header = ConsumerSendMsgBackRequestHeader.from_ext(asked.ext)
        assert (header.group, header.delay_level, header.max_reconsume_times) == ("others", 3, 5)
        assert (header.offset, header.origin_topic) == (0, TOPIC)


@pytest.mark.parametrize("unit_mode", [False, True])
def test_a_send_back_says_whether_it_comes_from_a_unit(broker: FakeBroker, unit_mode: bool) -> None:
    """Covers C-11, C-498: as a push consumer's does."""
    with puller(broker, unit_mode=unit_mode) as consumer:
        (message, *_) = consumer.pull(MQ, None, 0, 32).msg_found_list
        consumer.send_message_back(message, 3)
    asked = broker.asked(RequestCode.CONSUMER_SEND_MSG_BACK)[-1]
    assert ConsumerSendMsgBackRequestHeader.from_ext(asked.ext).unit_mode is unit_mode


def test_a_send_back_uses_the_vip_channel(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Covers C-13: port - 2, but for this broker, which has one port."""
    fast: list[str] = []

    def vip_address(address: str) -> str:
        fast.append(address)
        return address

    monkeypatch.setattr("rocketstream.client.instance.api.vip_address", vip_address)
    with puller(broker, vip_channel_enabled=True) as consumer:
        (message, *_) = consumer.pull(MQ, None, 0, 32).msg_found_list
        fast.clear()
        consumer.send_message_back(message, 3)
        assert broker.address in fast


def test_a_refused_send_back_is_sent_anew(broker: FakeBroker) -> None:
    """Covers C-498: to the retry topic; if that fails too, the caller is told."""
    broker.topics[f"%RETRY%{GROUP}"] = 1
    broker.on[RequestCode.CONSUMER_SEND_MSG_BACK] = refusal(1)
    with puller(broker) as consumer:
        (message, *_) = consumer.pull(MQ, None, 0, 32).msg_found_list
        consumer.send_message_back(message, 2)
        sent = broker.asked(RequestCode.SEND_MESSAGE_V2)[-1]
        assert f"%RETRY%{GROUP}" in sent.ext.values()
        broker.on[RequestCode.SEND_MESSAGE_V2] = refusal(1)
        with pytest.raises(SendError):
            consumer.send_message_back(message, 2)
