"""What users get wrong: each is told what was given and what is accepted, and nothing hangs."""

from __future__ import annotations

import asyncio
import copy
import logging
import pickle
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

import rocketstream
from rocketstream import (
    ClientConfig,
    ConsumeConcurrentlyContext,
    ConsumeConcurrentlyStatus,
    ConsumeOrderlyContext,
    ConsumeOrderlyStatus,
    LitePullConsumer,
    Message,
    MessageExt,
    MessageQueue,
    MessageSelector,
    MQPullConsumerScheduleService,
    Producer,
    PullConsumer,
    PullTaskContext,
    PushConsumer,
    TransactionProducer,
    aio,
)
from rocketstream._util.clock import SYSTEM_CLOCK
from rocketstream.client.consumer.settings import (
    LitePullConsumerSettings,
    PullConsumerSettings,
    PushConsumerSettings,
)
from rocketstream.client.instance.life_cycle import ServiceState
from rocketstream.client.producer.message import MessagePreparer
from rocketstream.client.producer.settings import ProducerSettings
from rocketstream.errors import (
    ClientStateError,
    ConfigurationError,
    MessageInvalidError,
    NotSupportedError,
    SendError,
    SendOutcome,
    SubscriptionError,
)
from rocketstream.protocol.codes import RequestCode
from rocketstream.testing import received_message
from tests.kits.client.fake_broker import GROUP, TOPIC, FakeBroker, found
from tests.kits.client.locking_broker import LockingBroker
from tests.plugins.waiting import wait_until

NAMESRV = "127.0.0.1:9"
_NO_NUMBERS: tuple[Any, ...] = ("x", b"1", None, float("nan"), True, [])
_NO_SEVERAL: tuple[Any, ...] = ("x", b"x", 5, None)
WRONG: dict[str, tuple[Any, ...]] = {
    "int": (*_NO_NUMBERS, 1.5),
    "float": _NO_NUMBERS,
    "bool": ("true", 1, None),
    "str": (5, b"x", None),
    "str | None": (5, b"x", ["127.0.0.1:9876"]),
    "frozenset[int]": _NO_SEVERAL,
    "tuple[int, ...]": _NO_SEVERAL,
    "tuple[str, ...]": _NO_SEVERAL,
    "Collection[str]": _NO_SEVERAL,
}
"""What does not fit a field, by its annotation."""
SETTINGS = [
    (PushConsumer, PushConsumerSettings),
    (aio.PushConsumer, ClientConfig),
    (Producer, ProducerSettings),
    (PullConsumer, PullConsumerSettings),
    (LitePullConsumer, LitePullConsumerSettings),
]
MQ = MessageQueue(TOPIC, "broker-a", 0)
SUCCESS = ConsumeConcurrentlyStatus.CONSUME_SUCCESS


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    with FakeBroker() as running:
        running.offsets[0] = 0
        yield running


@pytest.mark.parametrize(("client", "settings"), SETTINGS)
def test_every_setting_refuses_values_of_another_kind(client: Any, settings: Any) -> None:
    """Whatever its range, which others test: never another error than this one."""
    for field in fields(settings):
        for value in WRONG.get(str(field.type), ()):
            if field.name in {"consumer_group", "producer_group"}:
                continue
            given = {"namesrv_addr": NAMESRV, field.name: value}
            with pytest.raises(ConfigurationError) as raised:
                client("g", **given)
            said = str(raised.value).lower().replace("_", "")
            assert field.name.split("_")[0] in said, (field.name, value, said)


@pytest.mark.parametrize("name", ["offset_store", "allocate_message_queue_strategy"])
@pytest.mark.parametrize("client", [PushConsumer, PullConsumer, LitePullConsumer])
@pytest.mark.parametrize("value", ["x", 5, object()])
def test_what_lacks_the_methods_is_refused(client: Any, name: str, value: Any) -> None:
    """At once, not when the first queue is divided or the first offset kept."""
    with pytest.raises(ConfigurationError, match=r"OffsetStore|with a method allocate"):
        client("g", namesrv_addr=NAMESRV, **{name: value})


@pytest.mark.parametrize(("name", "value"), [("ssl_context", True), ("rpc_hook", print)])
def test_other_shared_settings_are_looked_at_too(name: str, value: Any) -> None:
    """The TLS context and the hooks around requests."""
    with pytest.raises(ConfigurationError, match=f"^{name} must"):
        Producer("g", namesrv_addr=NAMESRV, **{name: value})


@pytest.mark.parametrize("face", [rocketstream, aio])
@pytest.mark.parametrize("name", ["PushConsumer", "LitePullConsumer"])
@pytest.mark.parametrize("given", ["orders", ["orders"], {"orders"}, 5])
def test_a_subscription_of_topics_alone_is_refused(face: Any, name: str, given: Any) -> None:
    with pytest.raises(ConfigurationError, match="must be a mapping of topics to expressions"):
        getattr(face, name)("g", subscription=given)


@pytest.mark.parametrize("given", [{}, {"secret_key": "hush"}, "127.0.0.1:9876"])
def test_a_configuration_of_another_kind_is_refused_and_not_shown(given: Any) -> None:
    with pytest.raises(ConfigurationError, match="config must be a rocketstream") as e:
        Producer("g", config=given)
    assert "hush" not in str(e.value)


def test_a_text_that_is_half_a_character_is_no_body() -> None:
    """As an argument of a program that is not UTF-8."""
    with pytest.raises(ConfigurationError, match="body must be text that UTF-8 can write"):
        Message("orders", "\udcff")


def test_a_secret_of_a_wrong_kind_is_not_shown() -> None:
    """Only its type is."""
    with pytest.raises(ConfigurationError, match=r"secret_key must be a str or None, not bytes$"):
        Producer("g", namesrv_addr=NAMESRV, access_key="a", secret_key=b"hush")  # type: ignore[arg-type]


@pytest.mark.parametrize("group", [5, b"g", ["g"]])
def test_names_that_are_no_text_are_refused(group: Any) -> None:
    """Groups and topics alike."""
    for client in (PushConsumer, LitePullConsumer, PullConsumer, Producer):
        with pytest.raises(ConfigurationError, match="group must be a str"):
            client(group, namesrv_addr=NAMESRV)
    with pytest.raises(ConfigurationError, match="topic must be a str"):
        PushConsumer("g", namesrv_addr=NAMESRV).subscribe(group)


@pytest.mark.parametrize("expression", [5, b"A", ["A", "B"], {"A"}])
def test_an_expression_that_is_no_text_is_refused(expression: Any) -> None:
    """Covers C-100, C-101: the text says how to write several tags."""
    consumer = PushConsumer("g", namesrv_addr=NAMESRV)
    for given in (expression, MessageSelector.by_sql(expression)):
        with pytest.raises(SubscriptionError, match=r"TagA \|\| TagB"):
            consumer.subscribe(TOPIC, given)


def test_sending_back_what_is_no_received_message_does_not_hang_the_shutdown(
    broker: FakeBroker,
) -> None:
    """Covers C-273: the caller learns it; the shutdown waits for nothing that never ends."""
    consumer = PushConsumer(GROUP, namesrv_addr=broker.address, listener=lambda _: SUCCESS)
    consumer.start()
    wrong: Any = received_message(TOPIC, b"x")
    wrong._broker_name = ["broker-a"]
    with pytest.raises(SendError, match="cannot be sent back") as raised:
        consumer.send_message_back(wrong, 1)
    assert raised.value.outcome is SendOutcome.NOT_SENT
    consumer.shutdown()


def test_a_message_its_listener_spoilt_is_consumed_again_here(
    broker: FakeBroker, caplog: pytest.LogCaptureFixture
) -> None:
    """Covers C-269: what cannot be sent back stays with this member; the shutdown still ends."""
    seen: list[int] = []

    def spoil(messages: list[MessageExt], _: ConsumeConcurrentlyContext) -> Any:
        seen.append(messages[0].reconsume_times)
        if len(seen) > 1:
            return SUCCESS
        vandal: Any = messages[0]
        vandal._broker_name = ["broker-a"]
        return ConsumeConcurrentlyStatus.RECONSUME_LATER

    def first_only(command: Any) -> Any:
        return found([0]) if command.ext_fields["queueOffset"] == "0" else None

    broker.on[RequestCode.PULL_MESSAGE] = first_only
    consumer = PushConsumer(
        GROUP, namesrv_addr=broker.address, listener=spoil, local_retry_delay_ms=1
    )
    consumer.subscribe(TOPIC)
    with caplog.at_level(logging.WARNING, "rocketstream.client"), consumer:
        wait_until(lambda: len(seen) == 2, "the message comes again")
    assert seen == [0, 1]
    assert "cannot be sent back, its contents are not valid" in caplog.text


CLIENTS: list[Any] = [Producer, PushConsumer, PullConsumer, LitePullConsumer]


@pytest.mark.parametrize("client", [*CLIENTS, TransactionProducer])
def test_a_client_that_is_pickled_says_what_to_do(client: Any) -> None:
    """Spark and multiprocessing pickle whatever a function refers to."""
    made = client("g", namesrv_addr=NAMESRV)
    for attempt in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(NotSupportedError, match="create one where it is used"):
            attempt(made)


@pytest.mark.parametrize("given", ["text", b"bytes", None, 5, {"topic": "T"}, ["text"]])
def test_what_is_no_message_is_not_sent(broker: FakeBroker, given: Any) -> None:
    """Covers C-453: alone or in a list."""
    with Producer("p", namesrv_addr=broker.address) as producer:
        for send in (producer.send, producer.send_async, lambda one: producer.send([one])):
            with pytest.raises(MessageInvalidError, match=r"must be a rocketstream\.Message, not"):
                send(given)
    assert not broker.asked(RequestCode.SEND_MESSAGE_V2)


def test_a_property_that_is_no_text_is_named() -> None:
    """Covers C-98."""
    wrong: Any = {"price": 5}
    with pytest.raises(ConfigurationError, match="given is 'price': 5"):
        Message(TOPIC, "x", properties=wrong)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"topic": 5}, "topic must be a str; given is 5"),
        ({"topic": b"T"}, "topic must be a str; given is b'T'"),
        ({"topic": None}, "topic must be a str; given is None"),
        ({"body": 5}, "body must be bytes, or a str, sent as UTF-8; encode it.*; given is 5"),
        ({"body": None}, "body must be bytes.*; given is None"),
        ({"body": {"id": 7}}, "body must be bytes.* json.dumps .*; given is {'id': 7}"),
        ({"tags": 5}, r"tags must be one str \(only keys may be several\); given is 5"),
        ({"tags": 0}, "tags must be one str.*; given is 0"),
        ({"tags": ["A", "B"]}, r"tags must be one str.*; given is \['A', 'B'\]"),
        ({"keys": 5}, "keys must be a str, or several of them.*; given is 5"),
        ({"keys": 0}, "keys must be a str.*; given is 0"),
        ({"keys": [7, 8]}, r"keys must be a str.*; given is \[7, 8\]"),
        ({"keys": b"k"}, "keys must be a str.*; given is b'k'"),
        ({"flag": "1"}, "flag must be a whole number; given is '1'"),
        ({"flag": 2**31}, "flag must be a whole number of 32 bits; given is 2147483648"),
        ({"flag": -(2**31) - 1}, "flag must be a whole number of 32 bits; given is -2147483649"),
        ({"delay_time_ms": -5}, "delay_time_ms must be a whole number from 0 on; given is -5"),
        ({"delay_time_sec": 1.5}, "delay_time_sec must be a whole number from 0 on; given is 1.5"),
        ({"deliver_time_ms": "5"}, "deliver_time_ms must be a whole number from 0 on; given is '5"),
        ({"delay_level": "3"}, "delay_level must be a whole number; given is '3'"),
        ({"delay_level": -1}, "delay_level must be a whole number from 0 on, .*; given is -1"),
        ({"delay_level": 2**31}, "delay_level must be a whole number from 0 on, .*is 2147483648"),
        ({"wait_store_msg_ok": "false"}, "wait_store_msg_ok must be True or False; given is 'f"),
        ({"wait_store_msg_ok": 0}, "wait_store_msg_ok must be True or False; given is 0"),
        ({"properties": "a=b"}, "properties must be a dict of str to str; given is 'a=b'"),
    ],
)
def test_an_argument_of_a_message_is_refused_where_it_is_made(
    arguments: dict[str, Any], text: str
) -> None:
    """Not by the send, or worse by the consumer: the text names it, what was given, what may be."""
    given: dict[str, Any] = {"topic": TOPIC, "body": b"x", **arguments}
    with pytest.raises(ConfigurationError, match=text) as raised:
        Message(given.pop("topic"), given.pop("body"), **given)
    assert raised.value.parameters["argument"] in arguments


def test_what_is_long_is_not_shown_whole() -> None:
    """A body that is no bytes may be anything."""
    wrong: Any = [["x" * 100_000] * 1_000]
    with pytest.raises(ConfigurationError) as raised:
        Message(TOPIC, wrong)
    assert len(str(raised.value)) < 500


class Text(str):
    """A str of a user's own, as an enumeration of topics is."""

    __slots__ = ()


@pytest.mark.parametrize("keys", [["a", "b"], ("a", "b"), iter(["a", "b"]), "a b", Text("a b")])
def test_keys_may_be_several(keys: Any) -> None:
    """And text of a class of the user's own is text."""
    message = Message(Text(TOPIC), Text("x"), keys=keys, tags=Text("A"))
    assert (message.keys, message.tags, message.body) == ("a b", "A", b"x")


@pytest.mark.parametrize("nothing", [{}, {"tags": None, "keys": None}, {"tags": "", "keys": []}])
def test_a_message_has_no_empty_tag_and_no_empty_keys(nothing: dict[str, Any]) -> None:
    """A property must not be empty."""
    message = Message(TOPIC, b"x", **nothing)
    assert message.properties == {"WAIT": "true"}


def test_whether_to_wait_for_flush_and_replication_is_an_argument() -> None:
    """Covers C-476: upstream's setWaitStoreMsgOK."""
    assert Message(TOPIC, b"x").wait_store_msg_ok
    message = Message(TOPIC, b"x", wait_store_msg_ok=False)
    assert (message.wait_store_msg_ok, message.properties) == (False, {"WAIT": "false"})


@pytest.mark.parametrize("timeout_ms", ["1", b"1", [], float("nan"), True])
def test_a_timeout_that_is_no_number_is_refused(broker: FakeBroker, timeout_ms: Any) -> None:
    """By none of the three ways to wait."""
    refused = pytest.raises(ConfigurationError, match="number of milliseconds")
    with Producer("p", namesrv_addr=broker.address) as producer, refused:
        producer.send(Message(TOPIC, "x"), timeout_ms=timeout_ms)
    with LitePullConsumer("g", namesrv_addr=broker.address) as lite, refused:
        lite.poll(timeout_ms)
    with PullConsumer("g", namesrv_addr=broker.address) as pull, refused:
        pull.pull(MQ, "*", 0, 32, timeout_ms=timeout_ms)


@pytest.mark.parametrize("queue", ["T", 0, (TOPIC, "broker-a", 0)])
def test_a_message_is_not_sent_to_what_is_no_queue(broker: FakeBroker, queue: Any) -> None:
    """By any of the ways to send."""
    with Producer("p", namesrv_addr=broker.address) as producer:
        for send in (producer.send, producer.send_async, producer.send_oneway):
            with pytest.raises(ConfigurationError, match="queue must be a MessageQueue, not"):
                send(Message(TOPIC, "x"), message_queue=queue)
    assert not broker.asked(RequestCode.SEND_MESSAGE_V2)


@pytest.mark.parametrize("offset", ["5", None, 1.5, -1])
def test_an_offset_that_is_none_is_not_noted(broker: FakeBroker, offset: Any) -> None:
    """It would fail every later commit."""
    with PullConsumer("g", namesrv_addr=broker.address) as consumer:
        with pytest.raises(ConfigurationError, match="offset must be a whole number"):
            consumer.update_consume_offset(MQ, offset)
        with pytest.raises(ConfigurationError, match="offset must be a whole number"):
            consumer.pull(MQ, "*", offset, 32)
    assert not broker.asked(RequestCode.UPDATE_CONSUMER_OFFSET)


@pytest.mark.parametrize("queue", ["T", None, 0, ("T", "broker-a", 0)])
def test_what_is_no_queue_is_refused(broker: FakeBroker, queue: Any) -> None:
    """By every method that takes one."""
    with LitePullConsumer("g", namesrv_addr=broker.address) as lite:
        lite.subscribe(TOPIC)
        calls: list[Any] = [
            lite.committed,
            lite.seek_to_begin,
            lambda mq: lite.pause([mq]),
            lite.resume,
        ]
        for call in calls:
            with pytest.raises(ConfigurationError, match=r"MessageQueue, not|queues are expected"):
                call(queue)


@pytest.mark.parametrize("client", CLIENTS)
def test_a_call_at_the_wrong_time_says_what_to_do(broker: FakeBroker, client: Any) -> None:
    """Covers C-106: before the start and after the end."""
    made = client("g", namesrv_addr=broker.address)
    if client is PushConsumer:
        made.register_message_listener(lambda _: SUCCESS)
    for advice in ("call start", "create a new one"):
        with pytest.raises(ClientStateError, match=advice):
            made.max_offset(MQ) if client is not LitePullConsumer else made.poll()
        if made.state is ServiceState.CREATE_JUST:
            made.start()
            made.shutdown()


@pytest.mark.parametrize("client", [aio.Producer, aio.PushConsumer, aio.PullConsumer])
def test_an_asyncio_client_stays_on_its_loop(broker: FakeBroker, client: Any) -> None:
    """Called on another loop, while its own runs and when that is closed, it says so."""
    made = client("g", namesrv_addr=broker.address)
    if client is aio.PushConsumer:
        made.register_message_listener(lambda _: SUCCESS)

    async def on_its_own() -> None:
        await made.start()
        assert await made.max_offset(MQ) == 77
        with pytest.raises(ClientStateError, match="started on another event loop; an asyncio"):
            await asyncio.to_thread(asyncio.run, made.max_offset(MQ))
        await made.shutdown()

    asyncio.run(on_its_own())


def test_an_asyncio_client_left_behind_by_its_loop_says_so(broker: FakeBroker) -> None:
    """A second asyncio.run() cannot go on with it."""
    loop = asyncio.new_event_loop()
    producer = aio.Producer("g", namesrv_addr=broker.address)
    loop.run_until_complete(producer.start())
    engine = producer._running().engine
    loop.run_until_complete(producer.shutdown())
    loop.close()
    with pytest.raises(ClientStateError, match="which is closed"):
        engine.check_process()
    with pytest.raises(ClientStateError, match="which is closed"):
        engine.call_soon(print)


@pytest.mark.parametrize("face", [rocketstream, aio], ids=["threads", "asyncio"])
def test_an_attribute_that_no_client_has_cannot_be_assigned(face: Any) -> None:
    """A setting that was misspelt, or given too late, did nothing and said nothing."""
    consumer = face.PushConsumer(GROUP, namesrv_addr="127.0.0.1:1")
    with pytest.raises(ConfigurationError, match=r"did you mean .*'consume_thread_max'\?"):
        consumer.consume_threads = 3
    with pytest.raises(ConfigurationError, match="'instance_name' is one of them"):
        consumer.instance_name = "b"
    with pytest.raises(ConfigurationError, match=r"arguments of Producer\(\.\.\.\)"):
        face.Producer(GROUP, namesrv_addr="127.0.0.1:1").retries = 3
    with mock.patch.object(consumer, "shutdown"):  # what there is may be replaced
        consumer._mark = 1


def test_a_class_of_the_user_s_own_may_have_further_attributes() -> None:
    class Shop(rocketstream.Producer):
        """Knows its city."""

        def __init__(self, city: str) -> None:
            super().__init__(GROUP, namesrv_addr="127.0.0.1:1")
            self.city = city

    assert Shop("Nice").city == "Nice"


def test_what_a_listener_writes_into_its_context_is_checked_there() -> None:
    """Covers C-261, C-262: it raises in the listener, so the batch comes again, as if it failed."""
    concurrent: Any = ConsumeConcurrentlyContext(MQ)
    orderly: Any = ConsumeOrderlyContext(MQ)
    for wrong in ("1", None, 1.5, True):
        with pytest.raises(ConfigurationError, match="ack_index must be a whole number"):
            concurrent.ack_index = wrong
        with pytest.raises(ConfigurationError, match="delay_level_when_next_consume must be"):
            concurrent.delay_level_when_next_consume = wrong
        with pytest.raises(ConfigurationError, match="suspend_current_queue_time_ms must be"):
            orderly.suspend_current_queue_time_ms = wrong
    with pytest.raises(AttributeError):
        orderly.suspend_current_queue_time_millis = 5
    concurrent.ack_index, orderly.auto_commit = -1, False
    assert (concurrent.ack_index, orderly.auto_commit) == (-1, False)


@pytest.mark.parametrize("client", [Producer, aio.Producer, TransactionProducer])
def test_a_producer_that_could_not_start_may_be_started_again(
    broker: FakeBroker, client: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its certificates were missing: nothing is left behind, and it is as new."""
    monkeypatch.setenv("ROCKETMQ_TLS_CA_FILE", str(tmp_path / "none.pem"))
    producer = client("g", namesrv_addr=broker.address, use_tls=True)

    async def start() -> None:
        starting = producer.start()
        if client is aio.Producer:
            await starting

    for _ in range(2):
        with pytest.raises(ConfigurationError, match=r"none\.pem"):
            asyncio.run(start())
    assert producer.state is ServiceState.CREATE_JUST


def test_a_coroutine_function_is_no_task_of_threads(broker: FakeBroker) -> None:
    """It would never be awaited, and its queue never be pulled."""

    async def task(_queue: MessageQueue, _context: PullTaskContext) -> None: ...

    service = MQPullConsumerScheduleService("g", namesrv_addr=broker.address)
    with pytest.raises(ConfigurationError, match=r"aio\.MQPullConsumerScheduleService"):
        service.register_pull_task_callback(TOPIC, task)


@pytest.mark.parametrize("orderly", [False, True])
@pytest.mark.parametrize("name", ["queue_offset", "reconsume_times", "topic", "broker_name"])
def test_a_listener_that_assigns_what_a_message_is_found_by_fails_and_the_queue_goes_on(
    name: str, orderly: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Covers C-264, C-285: it wedged its queue for good, and nothing was logged."""
    seen: list[int] = []
    done = ConsumeOrderlyStatus.SUCCESS if orderly else SUCCESS

    def assign(messages: list[MessageExt]) -> Any:
        seen.append(messages[0].queue_offset)
        if messages[0].queue_offset == 0 and seen.count(0) == 1:
            setattr(messages[0], name, 99)
        return done

    def two(command: Any) -> Any:
        ext = command.ext_fields
        return found([0, 1]) if (ext["topic"], ext["queueOffset"]) == (TOPIC, "0") else None

    with LockingBroker() as broker:
        broker.offsets[0] = 0
        broker.on[RequestCode.PULL_MESSAGE] = two
        consumer: Any = PushConsumer(
            GROUP,
            namesrv_addr=broker.address,
            suspend_current_queue_time_ms=10,
            persist_consumer_offset_interval_ms=20,
        )
        consumer.register_message_listener(assign, orderly=orderly)
        consumer.subscribe(TOPIC)
        with caplog.at_level(logging.WARNING, "rocketstream.client"), consumer:
            broker.wait_for(
                RequestCode.UPDATE_CONSUMER_OFFSET,
                where=lambda asked: (asked.ext["topic"], asked.ext["commitOffset"]) == (TOPIC, "2"),
            )
            if not orderly:
                (back,) = broker.wait_for(RequestCode.CONSUMER_SEND_MSG_BACK)
                assert back.ext["offset"] == "0"
    assert sorted(seen) == ([0, 0, 1] if orderly else [0, 1])
    assert name in caplog.text


# --- legal, and hardly meant ----------------------------------------------------------------------


@pytest.mark.parametrize("text", ["1.5", "-1", "", " 1", "²", "9" * 5_000])
def test_a_delay_put_into_the_properties_is_a_level_or_refused(text: str) -> None:
    """Python's ValueError came out of the send."""
    message = Message("T", b"x")
    message.properties["DELAY"] = text
    with pytest.raises(ConfigurationError, match="property DELAY must be a whole number from 0 on"):
        MessagePreparer(ProducerSettings("g"), SYSTEM_CLOCK).one(message)


def test_a_delay_level_beyond_the_usual_ones_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    """Covers C-403: brokers take their longest, which whoever means seconds does not expect."""
    makes = MessagePreparer(ProducerSettings("g"), SYSTEM_CLOCK)
    for level in (1, 18, 60, 61):
        makes.one(Message("T", b"x", delay_level=level))
    (told,) = caplog.records
    assert told.getMessage().startswith("delay_level=60 is beyond the 18 levels")


def test_a_blank_in_one_of_several_keys_is_refused() -> None:
    """They are joined by blanks: it would be found under each of its words alone."""
    for keys in (["order-7", "book"], "two words", [], ("a", "")):
        Message("T", b"x", keys=keys)
    with pytest.raises(ConfigurationError, match="so 'order 7 a' would be 3 keys"):
        Message("T", b"x", keys=["order 7 a", "book"])
