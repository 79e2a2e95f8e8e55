"""What operators see of a push consumer, and make it do, through a broker (C-133, C-532, C-540)."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from rocketstream import (
    ClientConfig,
    ConsumeConcurrentlyStatus,
    ConsumeOrderlyStatus,
    MessageExt,
    PushConsumer,
    aio,
)
from rocketstream.model import MessageQueue
from rocketstream.protocol.bodies import (
    ConsumeMessageDirectlyResult,
    ConsumerRunningInfo,
    GetConsumerStatusBody,
    LockBatchRequestBody,
    LockBatchResponseBody,
    ResetOffsetBody,
)
from rocketstream.protocol.codes import RequestCode
from rocketstream.protocol.command import RemotingCommand
from rocketstream.protocol.headers import (
    ConsumeMessageDirectlyResultRequestHeader,
    GetConsumerRunningInfoRequestHeader,
    GetConsumerStatusRequestHeader,
    ResetOffsetRequestHeader,
    UpdateConsumerOffsetRequestHeader,
)
from tests.kits.client.fake_broker import GROUP, TOPIC, WAIT_S, FakeBroker, found
from tests.kits.listeners import Gate, Seen
from tests.plugins.waiting import wait_until

UPDATE = RequestCode.UPDATE_CONSUMER_OFFSET
PULL = RequestCode.PULL_MESSAGE
TAG_A = "TAGS\x01a\x02UNIQ_KEY\x01"


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    with FakeBroker(queues=2) as running:
        running.offsets.update({0: 0, 1: 0})
        yield running


def push(broker: FakeBroker, listener: Any, *, orderly: bool = False, **more: Any) -> PushConsumer:
    config = ClientConfig(
        namesrv_addr=broker.address, persist_consumer_offset_interval_ms=20, unit_name="u"
    )
    made = PushConsumer(GROUP, config=config, local_retry_delay_ms=20, **more)
    made.register_message_listener(listener, orderly=orderly)
    made.subscribe(TOPIC, "a || b")
    return made


def wait_pull_of(broker: FakeBroker, queue_id: int, offset: int, count: int = 1) -> Any:
    """Return the last of ``count`` pulls of a queue at an offset."""
    return broker.wait_for(
        PULL,
        count,
        lambda a: (
            a.ext["topic"] == TOPIC
            and (int(a.ext["queueId"]), int(a.ext["queueOffset"])) == (queue_id, offset)
        ),
    )[-1]


def running_info(broker: FakeBroker) -> ConsumerRunningInfo:
    header = GetConsumerRunningInfoRequestHeader(GROUP, "id", False)
    (answer,) = broker.ask_clients(RequestCode.GET_CONSUMER_RUNNING_INFO, header)
    assert answer.code == 0, answer.remark
    return ConsumerRunningInfo.decode(answer.body)


# --- running info ---------------------------------------------------------------------------------


def test_running_info_shows_settings_subscriptions_queues_and_rates(broker: FakeBroker) -> None:
    """Covers C-253, C-540."""
    gate = Gate(lambda message: message.queue_offset == 2)
    with push(broker, gate, pull_batch_size=7) as made:
        broker.reply(
            wait_pull_of(broker, 0, 0), found(range(4), properties="TAGS\x01a\x02UNIQ\x01")
        )
        gate.entered.wait(WAIT_S)
        gate.seen.wait_consumed(3)
        wait_until(lambda: broker.asked(UPDATE), "the commit")
        info = running_info(broker)
        gate.opened.set()

    properties = info.properties
    assert properties["consumerGroup"] == GROUP
    assert properties["messageModel"] == "CLUSTERING"
    assert properties["consumeFromWhere"] == "CONSUME_FROM_LAST_OFFSET"
    assert properties["allocateMessageQueueStrategy"] == "AllocateMessageQueueAveragely"
    assert (properties["pullBatchSize"], properties["consumeMessageBatchMaxSize"]) == ("7", "1")
    assert (properties["unitName"], properties["unitMode"]) == ("u", "false")
    assert properties["pollNameServerInterval"] == "30000"
    assert properties["mqClientApiTimeout"] == "3000"
    assert properties["namesrvAddr"] == broker.address
    assert properties["language"] == "PYTHON"
    assert properties["clientIP"] == made.client_id.partition("@")[0]
    assert properties["messageListener"] == "Gate"
    assert properties["offsetStore"] == "RemoteBrokerOffsetStore"
    assert properties["subscription"] == f"{{{TOPIC}=a || b, %RETRY%{GROUP}=*}}"
    assert properties["PROP_NAMESERVER_ADDR"] == f"{broker.address};"
    assert properties["PROP_CONSUMEORDERLY"] == "false"
    assert properties["PROP_CONSUME_TYPE"] == "CONSUME_PASSIVELY"
    assert properties["PROP_CLIENT_VERSION"] == "V4_9_8"
    assert properties["PROP_THREADPOOL_CORE_SIZE"] == "20"
    assert int(properties["PROP_CONSUMER_START_TIMESTAMP"]) > 1_600_000_000_000

    subscriptions = {each.topic: each for each in info.subscription_set}
    assert set(subscriptions) == {TOPIC, f"%RETRY%{GROUP}"}
    assert subscriptions[TOPIC].tags_set == {"a", "b"}

    queue = info.mq_table[MessageQueue(TOPIC, "broker-a", 0)]
    assert (queue.commit_offset, queue.cached_msg_count) == (2, 1)
    assert (queue.cached_msg_min_offset, queue.cached_msg_max_offset) == (2, 2)
    assert (queue.droped, queue.locked) == (False, False)
    assert queue.last_pull_timestamp > 1_600_000_000_000
    assert set(info.status_table) == set(subscriptions)
    assert info.status_table[TOPIC].pull_tps > 0


def test_secrets_stay_here(broker: FakeBroker) -> None:
    """Covers C-540: upstream tells every property; keys are not among ours."""
    with push(broker, Seen(), access_key="the-ak", secret_key="the-sk"):
        text = str(running_info(broker).properties)
    assert "the-ak" not in text
    assert "the-sk" not in text


def test_running_info_of_an_orderly_consumer_shows_the_lock(broker: FakeBroker) -> None:
    """Covers C-253, C-540: what the listener has and has not committed is told apart."""

    def lock(command: RemotingCommand) -> RemotingCommand:
        wanted = LockBatchRequestBody.decode(command.body).mq_set
        return RemotingCommand.response(0, body=LockBatchResponseBody(wanted).encode())

    broker.on[RequestCode.LOCK_BATCH_MQ] = lock
    entered, leave = threading.Event(), threading.Event()

    def listener(messages: list[MessageExt]) -> ConsumeOrderlyStatus:
        entered.set()
        leave.wait(WAIT_S)
        return ConsumeOrderlyStatus.SUCCESS

    with push(broker, listener, orderly=True):
        broker.reply(
            wait_pull_of(broker, 0, 0), found(range(3), properties="TAGS\x01a\x02UNIQ\x01")
        )
        entered.wait(WAIT_S)
        info = running_info(broker)
        leave.set()
    queue = info.mq_table[MessageQueue(TOPIC, "broker-a", 0)]
    assert info.properties["PROP_CONSUMEORDERLY"] == "true"
    assert queue.locked
    assert queue.last_lock_timestamp > 1_600_000_000_000
    assert (queue.cached_msg_min_offset, queue.cached_msg_max_offset) == (0, 2)
    assert queue.transaction_msg_count == 1
    assert (queue.transaction_msg_min_offset, queue.transaction_msg_max_offset) == (0, 0)


# --- consuming on request -------------------------------------------------------------------------


def consume_directly(broker: FakeBroker, **properties: str) -> ConsumeMessageDirectlyResult:
    text = "".join(f"{name}\x01{value}\x02" for name, value in properties.items())
    body = bytes(found([9], properties=f"{text}UNIQ_KEY\x01U").body)
    header = ConsumeMessageDirectlyResultRequestHeader(GROUP, "id", "m", "broker-a")
    (answer,) = broker.ask_clients(RequestCode.CONSUME_MESSAGE_DIRECTLY, header, body)
    assert answer.code == 0, answer.remark
    return ConsumeMessageDirectlyResult.decode(answer.body)


def _raise(error: BaseException) -> Any:
    raise error


CONCURRENT = [
    (lambda: ConsumeConcurrentlyStatus.CONSUME_SUCCESS, "CR_SUCCESS"),
    (lambda: ConsumeConcurrentlyStatus.RECONSUME_LATER, "CR_LATER"),
    (lambda: None, "CR_RETURN_NULL"),
    (lambda: "yes", "CR_RETURN_NULL"),
    (lambda: _raise(ValueError("broken")), "CR_THROW_EXCEPTION"),
    (lambda: _raise(SystemExit(3)), "CR_THROW_EXCEPTION"),
]
ORDERLY = [
    (lambda: ConsumeOrderlyStatus.SUCCESS, "CR_SUCCESS"),
    (lambda: ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT, "CR_LATER"),
    (lambda: ConsumeOrderlyStatus.COMMIT, "CR_COMMIT"),
    (lambda: ConsumeOrderlyStatus.ROLLBACK, "CR_ROLLBACK"),
    (lambda: None, "CR_RETURN_NULL"),
    (lambda: _raise(ValueError("broken")), "CR_THROW_EXCEPTION"),
]
CASES = [(False, *case) for case in CONCURRENT] + [(True, *case) for case in ORDERLY]


@pytest.mark.parametrize(("orderly", "answer", "expected"), CASES)
def test_what_a_listener_answers_is_told(
    broker: FakeBroker, orderly: bool, answer: Any, expected: str
) -> None:
    """Covers C-133, C-269, C-295: nothing is committed or sent back."""
    seen: list[MessageExt] = []

    def listener(messages: list[MessageExt]) -> Any:
        seen.extend(messages)
        return answer()

    with push(broker, listener, orderly=orderly):
        result = consume_directly(broker, TAGS="a")
    assert (result.consume_result, result.order) == (expected, orderly)
    assert result.auto_commit
    assert result.spent_time_mills >= 0
    if expected == "CR_THROW_EXCEPTION":
        assert result.remark
    (message,) = seen
    assert (message.topic, message.body, message.broker_name) == (TOPIC, b"9", "broker-a")
    assert not broker.asked(RequestCode.CONSUMER_SEND_MSG_BACK)


def test_a_coroutine_listener_is_awaited(broker: FakeBroker) -> None:
    """Covers C-133 for ``rocketstream.aio``."""
    seen: list[MessageExt] = []

    async def listener(messages: list[MessageExt]) -> ConsumeConcurrentlyStatus:
        await asyncio.sleep(0)
        seen.extend(messages)
        return ConsumeConcurrentlyStatus.RECONSUME_LATER

    async def run() -> ConsumeMessageDirectlyResult:
        made = aio.PushConsumer(GROUP, namesrv_addr=broker.address, listener=listener)
        await made.subscribe(TOPIC)
        await made.start()
        try:
            return await asyncio.to_thread(consume_directly, broker)
        finally:
            await made.shutdown()

    result = asyncio.run(run())
    assert (result.consume_result, len(seen)) == ("CR_LATER", 1)


def test_the_stack_of_a_coroutine_listener_is_told(broker: FakeBroker) -> None:
    """Covers C-540: down to what it waits for, though no thread runs it."""

    async def run() -> str:
        entered, leave = asyncio.Event(), asyncio.Event()

        async def deep_inside() -> None:
            entered.set()
            await leave.wait()

        async def listener(messages: list[MessageExt]) -> ConsumeConcurrentlyStatus:
            await deep_inside()
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS

        made = aio.PushConsumer(GROUP, namesrv_addr=broker.address, listener=listener)
        await made.subscribe(TOPIC)
        async with made:
            pull = await asyncio.to_thread(wait_pull_of, broker, 0, 0)
            await asyncio.to_thread(broker.reply, pull, found([0]))
            async with asyncio.timeout(WAIT_S):
                await entered.wait()
            header = GetConsumerRunningInfoRequestHeader(GROUP, "id", True)
            (answer,) = await asyncio.to_thread(
                broker.ask_clients, RequestCode.GET_CONSUMER_RUNNING_INFO, header
            )
            leave.set()
        return ConsumerRunningInfo.decode(answer.body).jstack or ""

    stacks = asyncio.run(run())
    assert f"at deep_inside ({__file__}:" in stacks
    assert "await leave.wait()" in stacks


def test_a_message_of_the_retry_topic_comes_under_its_own(broker: FakeBroker) -> None:
    """Covers C-269: as it would when it is consumed again."""
    seen = Seen()
    broker.topics[f"%RETRY%{GROUP}"] = 1
    with push(broker, seen):
        body = bytes(
            found([9], topic=f"%RETRY%{GROUP}", properties=f"RETRY_TOPIC\x01{TOPIC}\x02A\x01").body
        )
        header = ConsumeMessageDirectlyResultRequestHeader(GROUP, "id", "m", "broker-a")
        broker.ask_clients(RequestCode.CONSUME_MESSAGE_DIRECTLY, header, body)
    (message,) = seen.deliveries
    assert message.topic == TOPIC


def test_a_listener_that_takes_long_stops_nobody(broker: FakeBroker) -> None:
    """Covers C-133: other requests are answered meanwhile."""
    gate = Gate(lambda message: True)
    answers: list[ConsumeMessageDirectlyResult] = []
    with push(broker, gate):
        asking = threading.Thread(target=lambda: answers.append(consume_directly(broker)))
        asking.start()
        gate.entered.wait(WAIT_S)
        assert running_info(broker).properties
        gate.opened.set()
        asking.join()
    assert [answer.consume_result for answer in answers] == ["CR_SUCCESS"]


# --- offsets --------------------------------------------------------------------------------------


def reset(broker: FakeBroker, offsets: dict[int, int], topic: str = TOPIC) -> None:
    table = {MessageQueue(topic, "broker-a", q): offset for q, offset in offsets.items()}
    header = ResetOffsetRequestHeader(topic, GROUP, 0, True)
    code = RequestCode.RESET_CONSUMER_CLIENT_OFFSET
    broker.ask_clients(code, header, ResetOffsetBody(table).encode(), oneway=True)


def commits(broker: FakeBroker, queue_id: int) -> list[int]:
    headers = [UpdateConsumerOffsetRequestHeader.from_ext(a.ext) for a in broker.asked(UPDATE)]
    return [h.commit_offset for h in headers if (h.topic, h.queue_id) == (TOPIC, queue_id)]


def test_a_reset_goes_back_at_once_and_leaves_other_queues_alone(broker: FakeBroker) -> None:
    """Covers C-532, C-533, C-572: no pause of ten seconds, no suspended consumer."""
    seen = Seen()
    with push(broker, seen):
        reply = found(range(5), properties=TAG_A)
        broker.reply(wait_pull_of(broker, 0, 0), reply)
        seen.wait_consumed(5)
        wait_until(lambda: commits(broker, 0)[-1:] == [5], "the commit")
        wait_pull_of(broker, 0, 5)
        held = wait_pull_of(broker, 1, 0)
        reset(broker, {0: 2, 7: 1})
        again = wait_pull_of(broker, 0, 2)
        assert commits(broker, 0)[-1] == 2
        broker.reply(again, found([2, 3, 4], properties=TAG_A))
        seen.wait_deliveries(8)
        other = found([0], queue_id=1, properties="TAGS\x01b\x02UNIQ_KEY\x01other")
        broker.reply(held, other)
        seen.wait_deliveries(9)
        wait_until(lambda: commits(broker, 0)[-1:] == [5], "the commit")
    assert [m.queue_offset for m in seen.deliveries] == [0, 1, 2, 3, 4, 2, 3, 4, 0]


def test_what_a_listener_finishes_after_a_reset_does_not_undo_it(broker: FakeBroker) -> None:
    """Covers C-532, C-549, C-572: nor does the answer to a pull sent before."""
    gate = Gate(lambda message: message.queue_offset == 4)
    with push(broker, gate):
        reply = found(range(5), properties=TAG_A)
        broker.reply(wait_pull_of(broker, 0, 0), reply)
        gate.entered.wait(WAIT_S)
        late = wait_pull_of(broker, 0, 5)
        reset(broker, {0: 1})
        wait_pull_of(broker, 0, 1)
        broker.reply(late, found([5, 6], properties="TAGS\x01a\x02UNIQ_KEY\x01late"))
        gate.opened.set()
        gate.seen.wait(lambda seen: any(m.queue_offset == 4 for m in seen.consumed))
    assert commits(broker, 0)[-1] == 1
    assert all(m.queue_offset < 5 for m in gate.seen.deliveries)


def test_a_reset_forwards_passes_over_what_is_cached(broker: FakeBroker) -> None:
    """Covers C-532, C-536: what is cached and not with a listener is not consumed."""
    gate = Gate(lambda message: True)
    with push(broker, gate, consume_thread_max=1, consume_thread_min=1):
        reply = found(range(5), properties=TAG_A)
        broker.reply(wait_pull_of(broker, 0, 0), reply)
        gate.entered.wait(WAIT_S)
        reset(broker, {0: 90})
        wait_pull_of(broker, 0, 90)
        gate.opened.set()
        gate.seen.wait_consumed(1)
    assert len(gate.seen.consumed) == 1
    assert commits(broker, 0)[-1] == 90


def test_noted_offsets_of_a_topic_are_told(broker: FakeBroker) -> None:
    """Covers C-133."""
    seen = Seen()
    with push(broker, seen):
        wait_pull_of(broker, 1, 0)
        reply = found(range(3), properties=TAG_A)
        broker.reply(wait_pull_of(broker, 0, 0), reply)
        wait_until(lambda: commits(broker, 0)[-1:] == [3], "the commit")
        header = GetConsumerStatusRequestHeader(TOPIC, GROUP)
        code = RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT
        (answer,) = broker.ask_clients(code, header)
    table = GetConsumerStatusBody.decode(answer.body).message_queue_table
    assert table == {
        MessageQueue(TOPIC, "broker-a", 0): 3,
        MessageQueue(TOPIC, "broker-a", 1): 0,
    }
    assert seen.consumed[0].topic == TOPIC
