"""What clients and messages say of themselves in logs: one line, no secret, nobody asked."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from rocketstream import (
    ClientConfig,
    ConsumeConcurrentlyStatus,
    LitePullConsumer,
    LocalTransactionState,
    Message,
    MessageQueue,
    MQPullConsumerScheduleService,
    Producer,
    PullConsumer,
    PushConsumer,
    SendResult,
    SendStatus,
    TransactionProducer,
    TransactionSendResult,
    aio,
)
from rocketstream.admin import Admin
from rocketstream.admin import aio as admin_aio
from rocketstream.errors import ConfigurationError
from rocketstream.protocol.message_ext import decode_message
from rocketstream.testing import received_message
from tests.kits.client.fake_broker import GROUP, TOPIC, FakeBroker

NAMESRV = "127.0.0.1:9"
SECRETS: dict[str, Any] = {
    "access_key": "the-key",
    "secret_key": "the-secret",
    "security_token": "the-token",
}
MQ = MessageQueue("orders", "broker-a", 3)
CLIENTS: list[tuple[Callable[..., Any], str]] = [
    (Producer, "Producer"),
    (TransactionProducer, "TransactionProducer"),
    (PushConsumer, "PushConsumer"),
    (PullConsumer, "PullConsumer"),
    (LitePullConsumer, "LitePullConsumer"),
    (aio.Producer, "aio.Producer"),
    (aio.TransactionProducer, "aio.TransactionProducer"),
    (aio.PushConsumer, "aio.PushConsumer"),
    (aio.PullConsumer, "aio.PullConsumer"),
    (aio.LitePullConsumer, "aio.LitePullConsumer"),
]


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    with FakeBroker() as broker:
        yield broker


@pytest.mark.parametrize(("client", "name"), CLIENTS)
def test_a_client_says_its_group_state_and_name_servers(
    client: Callable[..., Any], name: str
) -> None:
    """Before it is started too, in a namespace too, and never its keys."""
    config = ClientConfig(namesrv_addr=NAMESRV, namespace="shop", **SECRETS)
    text = repr(client("billing", config=config))
    assert text == f"{name}(group='billing', state=CREATE_JUST, namesrv_addr='{NAMESRV}')"


def test_a_consumer_says_its_topics_as_the_user_knows_them() -> None:
    config = ClientConfig(namesrv_addr=NAMESRV, namespace="shop")
    push = PushConsumer("g", config=config, subscription={"orders": "A", "bills": "*"})
    pull = PullConsumer("g", config=config, register_topics={"orders"})
    lite, assigned = (LitePullConsumer("g", config=config) for _ in range(2))
    lite.subscribe("orders")
    assigned.assign([MQ, MQ._replace(queue_id=1)])
    assert "topics=[bills, orders])" in repr(push)
    assert "topics=[orders])" in repr(pull)
    assert "topics=[orders])" in repr(lite)
    assert "assigned=[orders@broker-a:1, orders@broker-a:3])" in repr(assigned)


def test_of_many_topics_the_first_are_named() -> None:
    consumer = PushConsumer("g", namesrv_addr=NAMESRV)
    for number in range(1_000):
        consumer.subscribe(f"topic-{number:03}")
    text = repr(consumer)
    assert "topics=[topic-000, topic-001, topic-002, topic-003, topic-004, and 995 more]" in text


def test_a_producer_says_where_it_has_sent(broker: FakeBroker) -> None:
    with Producer("p", namesrv_addr=broker.address) as producer:
        producer.send(Message(TOPIC, "x"))
        assert repr(producer) == (
            f"Producer(group='p', state=RUNNING, namesrv_addr='{broker.address}', topics=[{TOPIC}])"
        )
    assert "state=SHUTDOWN_ALREADY" in repr(producer)


def test_an_asyncio_client_says_it_outside_of_its_loop(broker: FakeBroker) -> None:
    async def scenario() -> aio.Producer:
        async with aio.Producer("p", namesrv_addr=broker.address) as producer:
            await producer.send(Message(TOPIC, "x"))
            assert f"state=RUNNING, namesrv_addr='{broker.address}', topics=[" in repr(producer)
            return producer

    assert "state=SHUTDOWN_ALREADY" in repr(asyncio.run(scenario()))


def test_without_a_name_server_there_is_none_to_show(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its start says what to do; the look at it only looks."""
    monkeypatch.delenv("NAMESRV_ADDR", raising=False)
    assert "namesrv_addr=None" in repr(Producer("p"))
    assert "'as ns.example says'" in repr(Producer("p", namesrv_domain="ns.example"))
    monkeypatch.setenv("NAMESRV_ADDR", "10.0.0.7:9876")
    assert "'10.0.0.7:9876'" in repr(Producer("p"))


@pytest.mark.parametrize("client", [Producer, PushConsumer, PullConsumer, LitePullConsumer])
def test_a_client_that_was_never_made_can_be_shown(client: Any) -> None:
    """A debugger shows it while its constructor raises."""
    assert repr(client.__new__(client)).startswith(client.__name__)
    with pytest.raises(ConfigurationError):
        client("not a group", namesrv_addr=NAMESRV)


def test_an_admin_says_whom_it_asks() -> None:
    keys = {"access_key": "the-key", "secret_key": "the-secret"}
    with Admin("127.0.0.1:9;127.0.0.1:8", read_only=True, **keys) as admin:  # type: ignore[arg-type]
        assert repr(admin) == "Admin(namesrv_addr='127.0.0.1:9;127.0.0.1:8', read_only=True)"

    async def scenario() -> None:
        async with admin_aio.Admin(NAMESRV) as later:
            shown = f"aio.Admin(namesrv_addr='{NAMESRV}', read_only=False"
            assert repr(later) == f"{shown}, 0 calls under way)"
        assert repr(later) == f"{shown}, closed)"

    asyncio.run(scenario())


def test_a_message_shows_how_its_body_begins() -> None:
    message = Message("orders", "x" * 1_000, tags="A", keys="k1 k2", properties={"city": "Oslo"})
    shown = f"b'{'x' * 32}'... 1000 bytes"
    assert repr(message) == (
        f"Message(topic='orders', body={shown}, tags='A', keys='k1 k2', "
        "properties={'WAIT': 'true', 'city': 'Oslo'})"
    )
    assert "body=b'short'," in repr(Message("orders", b"short"))


def test_a_message_shows_what_is_wrong_with_it() -> None:
    """Its attributes can be assigned anything; the look at it does not fail."""
    message: Any = Message("orders", b"x")
    for wrong in (None, 5, "y" * 10_000, memoryview(b"z" * 10_000)):
        message.body = wrong
        assert len(repr(message)) < 200
    message.body = b"line\nline"
    many = {f"p{number}": "v" * 1_000 for number in range(1_000)}
    message.properties.update(many)
    assert len(repr(message)) < 1_000
    assert "\n" not in repr(message)


def test_a_received_message_shows_its_place_its_id_and_how_its_body_begins() -> None:
    message = received_message(
        "orders", "x" * 1_000, tags="A", keys="k", queue_id=3, queue_offset=517, reconsume_times=2
    )
    assert repr(message) == (
        "MessageExt(topic='orders', broker_name='broker-a', queue_id=3, queue_offset=517, "
        f"reconsume_times=2, msg_id={message.msg_id!r}, tags='A', keys='k', "
        f"body=b'{'x' * 32}'... 1000 bytes)"
    )


def test_a_compressed_body_is_not_inflated_to_be_shown() -> None:
    """It may be damaged, or great; once somebody has read it, it is shown as any other."""
    record = bytearray(received_message("orders", b"no zlib").stored_record)
    record[39] |= 1  # sysFlag: COMPRESSED
    message = decode_message(record)
    assert repr(message).endswith("body=7 bytes, compressed)")


def test_a_result_shows_where_the_message_is() -> None:
    """Not the recall handle: whoever has it can take the message back."""
    result = SendResult(SendStatus.SEND_OK, "AB", "CD", MQ, 7, recall_handle="the-handle")
    assert repr(result) == (
        "SendResult(SEND_OK, orders@broker-a:3, queue_offset=7, msg_id='AB', offset_msg_id='CD')"
    )
    rolled_back = LocalTransactionState.ROLLBACK_MESSAGE
    half = TransactionSendResult(
        SendStatus.SEND_OK, "AB", "CD", MQ, 7, local_transaction_state=rolled_back
    )
    assert repr(half).startswith("TransactionSendResult(SEND_OK, ROLLBACK_MESSAGE, orders@")


def test_a_queue_shows_all_it_is() -> None:
    assert repr(MQ) == "MessageQueue(topic='orders', broker_name='broker-a', queue_id=3)"


@pytest.mark.parametrize(
    ("kind", "shown"),
    [
        (MQPullConsumerScheduleService, "MQPullConsumerScheduleService(PullConsumer("),
        (aio.MQPullConsumerScheduleService, "MQPullConsumerScheduleService(aio.PullConsumer("),
    ],
)
def test_a_schedule_shows_its_consumer_and_no_secret(kind: Any, shown: str) -> None:
    made = kind("g", namesrv_addr="a:1", access_key="who", secret_key="hush")
    assert repr(made) == shown + "group='g', state=CREATE_JUST, namesrv_addr='a:1'))"


def test_a_running_consumer_is_shown_while_another_thread_shuts_it_down(broker: FakeBroker) -> None:
    """No lock is taken: what hangs is what is looked at."""
    consumer = PushConsumer(
        GROUP,
        namesrv_addr=broker.address,
        listener=lambda _: ConsumeConcurrentlyStatus.CONSUME_SUCCESS,
        subscription={TOPIC: "*"},
    )
    consumer.start()
    with consumer._life.lock:
        assert f"state=RUNNING, namesrv_addr='{broker.address}', topics=[{TOPIC}]" in repr(consumer)
    consumer.shutdown()
