"""What a broker may ask of a client (C-133), asked over a real connection."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from rocketstream import ClientConfig
from rocketstream.client.instance.groups import ConsumerInner
from rocketstream.client.instance.mq_client import MQClientInstance
from rocketstream.client.instance.remote_control import REMOTE_HANDLERS
from rocketstream.model import MessageModel, MessageQueue
from rocketstream.protocol.bodies import (
    ConsumeMessageDirectlyResult,
    ConsumerData,
    ConsumerRunningInfo,
    GetConsumerStatusBody,
    ResetOffsetBody,
)
from rocketstream.protocol.codes import RequestCode, ResponseCode
from rocketstream.protocol.headers import (
    CheckTransactionStateRequestHeader,
    ConsumeMessageDirectlyResultRequestHeader,
    GetConsumerRunningInfoRequestHeader,
    GetConsumerStatusRequestHeader,
    NotifyConsumerIdsChangedRequestHeader,
    ResetOffsetRequestHeader,
)
from rocketstream.protocol.message_ext import MessageExt
from rocketstream.testing import ManualClock
from tests.kits.client.fake_broker import WAIT_S, FakeBroker, found
from tests.plugins.waiting import wait_until

MQ = MessageQueue("ns%T", "broker-a", 0)


class Consumer(ConsumerInner):
    """A consumer that notes what it is asked."""

    group = "ns%g"
    consume_type = "CONSUME_PASSIVELY"
    message_model = MessageModel.CLUSTERING

    def __init__(self) -> None:
        self.rebalanced = threading.Event()
        self.resets: list[tuple[str, Mapping[MessageQueue, int]]] = []
        self.messages: list[tuple[MessageExt, str]] = []
        self.result: ConsumeMessageDirectlyResult | None = ConsumeMessageDirectlyResult()
        self.error: Exception | None = None

    def subscribed_topics(self) -> list[str]:
        return ["ns%T"]

    def heartbeat_data(self) -> ConsumerData:
        return ConsumerData(self.group)

    async def rebalance(self) -> bool:
        self.rebalanced.set()
        return True

    async def persist_offsets(self) -> None:
        """Nothing to store."""

    def connection_lost(self, address: str) -> None:
        """Nothing to forget."""

    async def running_info(self) -> ConsumerRunningInfo:
        if self.error is not None:
            raise self.error
        return ConsumerRunningInfo(properties={"own": "1"})

    async def consume_directly(
        self, message: MessageExt, broker_name: str
    ) -> ConsumeMessageDirectlyResult | None:
        self.messages.append((message, broker_name))
        return self.result

    async def reset_offsets(self, topic: str, offsets: Mapping[MessageQueue, int]) -> None:
        self.resets.append((topic, offsets))

    def consumer_status(self, topic: str) -> dict[MessageQueue, int]:
        return {MQ: 7} if topic == "ns%T" else {}


class Producer:
    """A producer that notes what it is asked."""

    group = "ns%pg"

    def __init__(self) -> None:
        self.asked: list[tuple[str, MessageExt, CheckTransactionStateRequestHeader]] = []

    async def check(
        self, address: str, message: MessageExt, header: CheckTransactionStateRequestHeader
    ) -> None:
        self.asked.append((address, message, header))


class Setting:
    """A client instance with one consumer and one producer, connected to the broker."""

    def __init__(self, broker: FakeBroker) -> None:
        self.broker = broker
        self.consumer = Consumer()
        self.producer = Producer()

    async def start(self) -> None:
        config = ClientConfig(namesrv_addr=self.broker.address, namespace="ns")
        self.instance = MQClientInstance(config, "id", ManualClock())
        await self.instance.start()
        self.instance.groups.add_consumer(self.consumer)
        self.instance.groups.add_producer(self.producer.group, check=self.producer.check)
        await self.instance.remoting.connection(self.broker.address)
        wait = asyncio.Event()
        asyncio.get_running_loop().call_soon(wait.set)
        await wait.wait()


@pytest.fixture
def setting() -> Iterator[Setting]:
    with FakeBroker() as broker:
        made = Setting(broker)
        broker.thread.run(made.start())
        wait_until(lambda: broker.server.connections, "the connection")
        yield made
        broker.thread.run(made.instance.close())


def record(**more: Any) -> bytes:
    """Return one stored message of topic ns%T, as it is sent along."""
    return bytes(found([5], topic="ns%T", **more).body)


# --- 40 -------------------------------------------------------------------------------------------


def test_changed_members_wake_the_rebalance(setting: Setting) -> None:
    """Covers C-133, C-150: of all groups, whichever is named; there is no answer."""
    assert not setting.consumer.rebalanced.is_set()
    header = NotifyConsumerIdsChangedRequestHeader("some other group")
    code = RequestCode.NOTIFY_CONSUMER_IDS_CHANGED
    setting.broker.ask_clients(code, header, oneway=True)
    assert setting.consumer.rebalanced.wait(WAIT_S)


# --- 307 ------------------------------------------------------------------------------------------


def ask_running_info(setting: Setting, group: str, *, jstack: bool) -> Any:
    header = GetConsumerRunningInfoRequestHeader(group, "id", jstack)
    (answer,) = setting.broker.ask_clients(RequestCode.GET_CONSUMER_RUNNING_INFO, header)
    return answer


def test_running_info_has_the_consumers_and_the_instances_part(setting: Setting) -> None:
    """Covers C-133, C-540."""
    answer = ask_running_info(setting, "ns%g", jstack=False)
    assert answer.code == ResponseCode.SUCCESS
    info = ConsumerRunningInfo.decode(answer.body)
    assert info.properties == {
        "own": "1",
        "PROP_NAMESERVER_ADDR": f"{setting.broker.address};",
        "PROP_CONSUME_TYPE": "CONSUME_PASSIVELY",
        "PROP_CLIENT_VERSION": "V4_9_8",
    }
    assert info.jstack is None


def test_the_stacks_of_all_threads_come_when_asked_for(setting: Setting) -> None:
    """Covers C-133, C-540: readable, by thread name, with file and line."""
    entered, leave = threading.Event(), threading.Event()

    def a_function_that_hangs() -> None:
        entered.set()
        leave.wait(WAIT_S)

    thread = threading.Thread(target=a_function_that_hangs, name="the hanging one")
    thread.start()
    entered.wait(WAIT_S)
    info = ConsumerRunningInfo.decode(ask_running_info(setting, "ns%g", jstack=True).body)
    leave.set()
    thread.join()
    assert info.jstack is not None
    _, found_name, rest = info.jstack.partition('"the hanging one" TID: ')
    assert found_name
    stack = rest.partition("\n\n")[0]
    assert f"at a_function_that_hangs ({__file__}:" in stack
    assert "leave.wait(WAIT_S)" in stack
    assert '"rocketstream-heartbeat" asyncio task' in info.jstack


@pytest.mark.parametrize(
    ("code", "header", "body"),
    [
        (
            RequestCode.GET_CONSUMER_RUNNING_INFO,
            GetConsumerRunningInfoRequestHeader("nobody", "id"),
            b"",
        ),
        (
            RequestCode.CONSUME_MESSAGE_DIRECTLY,
            ConsumeMessageDirectlyResultRequestHeader("nobody", "id", "m", "broker-a"),
            record(),
        ),
    ],
)
def test_an_unknown_group_is_refused(setting: Setting, code: int, header: Any, body: bytes) -> None:
    """Covers C-133."""
    (answer,) = setting.broker.ask_clients(code, header, body)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert answer.remark == "The Consumer Group <nobody> not exist in this consumer"


def test_a_consumer_that_fails_to_answer_is_an_error_with_its_text(setting: Setting) -> None:
    setting.consumer.error = ValueError("broken")
    answer = ask_running_info(setting, "ns%g", jstack=False)
    assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, "ValueError: broken")


# --- 309 ------------------------------------------------------------------------------------------


def test_a_message_is_handed_to_the_groups_consumer(setting: Setting) -> None:
    """Covers C-133: under the name the servers know; the consumer takes the namespace off."""
    setting.consumer.result = ConsumeMessageDirectlyResult(
        order=True, consume_result="CR_LATER", remark="r", spent_time_mills=3
    )
    header = ConsumeMessageDirectlyResultRequestHeader("ns%g", "id", "m", "broker-a")
    (answer,) = setting.broker.ask_clients(RequestCode.CONSUME_MESSAGE_DIRECTLY, header, record())
    assert ConsumeMessageDirectlyResult.decode(answer.body) == setting.consumer.result
    ((message, broker_name),) = setting.consumer.messages
    assert (message.topic, message.body, broker_name) == ("ns%T", b"5", "broker-a")
    assert message.broker_name == "broker-a"


def test_a_consumer_kind_that_cannot_consume_on_request_says_so(setting: Setting) -> None:
    """Covers C-133: direct consumption is for push consumers."""
    setting.consumer.result = None
    header = ConsumeMessageDirectlyResultRequestHeader("ns%g", "id", "m", "broker-a")
    (answer,) = setting.broker.ask_clients(RequestCode.CONSUME_MESSAGE_DIRECTLY, header, record())
    assert answer.code == ResponseCode.SYSTEM_ERROR


@pytest.mark.parametrize("body", [b"", b"junk", record() + b"x"])
def test_an_unreadable_message_is_refused(setting: Setting, body: bytes) -> None:
    header = ConsumeMessageDirectlyResultRequestHeader("ns%g", "id", "m", "broker-a")
    (answer,) = setting.broker.ask_clients(RequestCode.CONSUME_MESSAGE_DIRECTLY, header, body)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "a message that cannot be read" in (answer.remark or "")


def test_a_request_without_its_header_is_refused(setting: Setting) -> None:
    (answer,) = setting.broker.ask_clients(RequestCode.GET_CONSUMER_RUNNING_INFO)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "consumerGroup is missing" in (answer.remark or "")


# --- 221, 220 -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("group", "topic", "table"),
    [("ns%g", "ns%T", {MQ: 7}), ("ns%g", "other", {}), ("nobody", "ns%T", {})],
)
def test_noted_offsets_are_told(
    setting: Setting, group: str, topic: str, table: dict[MessageQueue, int]
) -> None:
    """Covers C-133: an unknown group has none."""
    header = GetConsumerStatusRequestHeader(topic, group)
    (answer,) = setting.broker.ask_clients(RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, header)
    assert answer.code == ResponseCode.SUCCESS
    assert GetConsumerStatusBody.decode(answer.body).message_queue_table == table


@pytest.mark.parametrize("for_c", [False, True])
def test_a_reset_reaches_the_consumer_in_both_body_forms(setting: Setting, for_c: bool) -> None:
    """Covers C-133, C-532: queues of other topics in the table are left out."""
    body = ResetOffsetBody({MQ: 3, MessageQueue("other", "broker-a", 1): 4})
    header = ResetOffsetRequestHeader("ns%T", "ns%g", 0, True)
    setting.broker.ask_clients(
        RequestCode.RESET_CONSUMER_CLIENT_OFFSET,
        header,
        body.encode_for_c() if for_c else body.encode(),
        oneway=True,
    )
    wait_until(lambda: setting.consumer.resets, "the reset")
    assert setting.consumer.resets == [("ns%T", {MQ: 3})]


def test_a_reset_of_an_unknown_group_is_passed_over(
    setting: Setting, caplog: pytest.LogCaptureFixture
) -> None:
    """Covers C-533."""
    header = ResetOffsetRequestHeader("ns%T", "nobody", 0, True)
    code = RequestCode.RESET_CONSUMER_CLIENT_OFFSET
    setting.broker.ask_clients(code, header, ResetOffsetBody({MQ: 3}).encode(), oneway=True)
    ask_running_info(setting, "ns%g", jstack=False)  # comes after it
    assert not setting.consumer.resets
    assert "group nobody cannot be reset: it has no consumer in this client" in caplog.text


# --- 39, and what nobody serves -------------------------------------------------------------------


def check(setting: Setting, properties: str) -> None:
    header = CheckTransactionStateRequestHeader(1, 2, "msg", "tx", "offset")
    body = record(properties=f"{properties}UNIQ_KEY\x01U")
    setting.broker.ask_clients(RequestCode.CHECK_TRANSACTION_STATE, header, body, oneway=True)


def test_the_state_of_a_transaction_is_asked_of_its_producer(setting: Setting) -> None:
    """Covers C-133: without namespace in the topic; a group that is not here is passed over."""
    check(setting, "PGROUP\x01nobody\x02")
    check(setting, "")
    check(setting, "PGROUP\x01ns%pg\x02")
    wait_until(lambda: setting.producer.asked, "the question")
    ((address, message, header),) = setting.producer.asked
    assert address == setting.broker.address
    assert (message.topic, message.body) == ("T", b"5")
    assert header.transaction_id == "tx"


def test_an_unknown_code_is_refused(setting: Setting) -> None:
    """Covers C-133."""
    (answer,) = setting.broker.ask_clients(999)
    assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    assert 999 not in REMOTE_HANDLERS
