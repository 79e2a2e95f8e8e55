"""What a producer can be set to, and what it refuses (C-77 to C-90)."""

from __future__ import annotations

import asyncio
import pickle
import sys
from typing import Any

import pytest

from rocketstream import (
    ClientConfig,
    Message,
    MessageQueue,
    Producer,
    SelectMessageQueueByHash,
    SelectMessageQueueByRandom,
    SendOutcome,
    aio,
    limits,
)
from rocketstream.client.producer.message import decode_recall_handle
from rocketstream.client.producer.policy import hash_of
from rocketstream.client.producer.settings import ProducerSettings
from rocketstream.errors import (
    ClientStateError,
    ConfigurationError,
    MessageInvalidError,
    NotSupportedError,
    SendConnectError,
    SendError,
    SendRouteError,
)
from rocketstream.protocol.codes import RequestCode
from tests.kits.client.fake_broker import TOPIC, FakeBroker, refusal

SEND = RequestCode.SEND_MESSAGE_V2
QUEUES = [MessageQueue("T", "b", i) for i in range(4)]
ANY_MESSAGE = Message("T", b"x")


def test_defaults_are_upstreams() -> None:
    """Covers C-77 to C-90; the latency table alone is 5.x's (C-603)."""
    settings = ProducerSettings("g")
    assert (settings.create_topic_key, settings.default_topic_queue_nums) == ("TBW102", 4)
    assert settings.send_msg_timeout_ms == 3_000
    assert settings.compress_msg_body_over_howmuch == 4_096
    assert (settings.compress_type, settings.compress_level) == ("ZLIB", 5)
    assert settings.retry_times_when_send_failed == 2
    assert settings.retry_times_when_send_async_failed == 2
    assert not settings.retry_another_broker_when_not_store_ok
    assert settings.max_message_size == 4_194_304
    assert settings.retry_response_codes >= {17, 14, 1, 16, 204, 205}
    assert not settings.send_latency_fault_enable
    assert (limits.ASYNC_SENDS_IN_FLIGHT_MAX, limits.ASYNC_SEND_BYTES_IN_FLIGHT_MAX) == (
        10_000,
        32 * 1024 * 1024,
    )


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        (
            {"default_topic_queue_nums": 0},
            "default_topic_queue_nums must be a whole number from 1 on",
        ),
        ({"send_msg_timeout_ms": True}, "send_msg_timeout_ms must be a whole number from 1 on"),
        ({"compress_msg_body_over_howmuch": -1}, "must be a whole number from 0 on"),
        ({"compress_level": 10}, "compress_level must be a whole number from 0 to 9"),
        ({"compress_type": None}, "compress_type must be a str, not None"),
        ({"retry_times_when_send_async_failed": "2"}, "must be a whole number from 0 on"),
        ({"retry_another_broker_when_not_store_ok": "yes"}, "must be True or False"),
        ({"max_message_size": 0}, "max_message_size must be a whole number from 1 to 67108864"),
        (
            {"max_message_size": limits.DECOMPRESSED_BODY_BYTES_MAX + 1},
            "max_message_size must be a whole number from 1 to 67108864, not 67108865",
        ),
        (
            {"retry_response_codes": frozenset({"x"})},
            "retry_response_codes must be a list, tuple or set of whole numbers",
        ),
        ({"topics": ("a b",)}, "illegal characters"),
        ({"no_such": 1}, r"Producer has no setting 'no_such'; settings are .*send_msg_timeout_ms"),
        ({"check_request_hold_max": 1}, "which TransactionProducer has"),
    ],
)
def test_what_cannot_be_used_is_named(settings: dict[str, Any], text: str) -> None:
    """Covers C-79 to C-87."""
    for kind in (Producer, aio.Producer):
        with pytest.raises(ConfigurationError, match=text):
            kind("g", **settings)


@pytest.mark.parametrize(("kind", "package"), [("lz4", "lz4"), ("ZSTD", "zstandard")])
def test_a_producer_without_its_codec_is_refused(
    kind: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When it is made, not at its first large body."""
    for module in ("lz4", "lz4.frame", "zstandard"):
        monkeypatch.setitem(sys.modules, module, None)
    for face in (Producer, aio.Producer):
        text = rf"compress_type '{kind}' needs the package {package}: .*\[compression\]"
        with pytest.raises(NotSupportedError, match=text):
            face("g", compress_type=kind)
        face("g", compress_type="zlib")


def test_another_code_can_be_made_worth_a_retry() -> None:
    """Covers C-87: addRetryResponseCode, before and after the start."""
    with FakeBroker() as broker:
        broker.on[SEND] = refusal(13)
        producer = Producer("g", namesrv_addr=broker.address)
        producer.add_retry_response_code(99)
        with producer:
            with pytest.raises(SendError):
                producer.send(Message(TOPIC, b"x"))
            assert len(broker.asked(SEND)) == 1
            producer.add_retry_response_code(13)
            with pytest.raises(SendError):
                producer.send(Message(TOPIC, b"x"))
            assert len(broker.asked(SEND)) == 4
            with pytest.raises(SendError):
                producer.send_async(Message(TOPIC, b"x")).result(20)
            assert len(broker.asked(SEND)) == 7
        with pytest.raises(ConfigurationError):
            producer.add_retry_response_code("13")  # type: ignore[arg-type]


def test_the_four_states(monkeypatch: pytest.MonkeyPatch) -> None:
    """Covers C-444, C-445, C-446, C-448."""
    with FakeBroker() as broker:
        producer = Producer("g", namesrv_addr=broker.address)
        states = [producer.state.value]
        with pytest.raises(ClientStateError, match="CREATE_JUST"):
            producer.send(Message(TOPIC, b"x"))
        producer.start()
        states.append(producer.state.value)
        with pytest.raises(ClientStateError, match=r"was started before \(RUNNING"):
            producer.start()
        producer.send(Message(TOPIC, b"x"))
        producer.shutdown()
        producer.shutdown()
        states.append(producer.state.value)
        assert states == ["CREATE_JUST", "RUNNING", "SHUTDOWN_ALREADY"]
        for call in (lambda: producer.send(Message(TOPIC, b"x")), producer.start):
            with pytest.raises(ClientStateError, match="SHUTDOWN_ALREADY"):
                call()
    monkeypatch.setenv("NAMESRV_ADDR", "not an address")
    nowhere = Producer("g")
    with pytest.raises(ConfigurationError):
        nowhere.start()


def test_the_same_group_twice_in_one_instance_is_refused() -> None:
    """Covers C-446, C-447: with instances of their own it is fine."""
    with FakeBroker() as broker:
        shared = ClientConfig(namesrv_addr=broker.address, instance_name="one")
        with Producer("g", config=shared):
            second = Producer("g", config=shared)
            with pytest.raises(ClientStateError, match=r"a producer of group 'g' already"):
                second.start()
            assert second.state.value == "CREATE_JUST"
            with Producer("g", namesrv_addr=broker.address), Producer("h", config=shared):
                pass


def test_brokers_of_given_topics_know_the_producer_from_the_start() -> None:
    """Covers C-446, C-448: a heartbeat once the routes are there, a good-bye at the end."""
    with FakeBroker() as broker:
        with Producer("g", namesrv_addr=broker.address, topics=(TOPIC,)) as producer:
            broker.wait_for(RequestCode.HEART_BEAT)
            (data,) = broker.heartbeats[0].producer_data_set[:1]
            assert data.group_name == "g"
            assert broker.heartbeats[0].client_id == producer.client_id
        (left,) = broker.wait_for(RequestCode.UNREGISTER_CLIENT)
        assert left.ext["producerGroup"] == "g"


# --- selectors ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "code"),
    [
        ("TagA", 2598919),
        ("", 0),
        (7, 7),
        (-7, -7),
        (2**31, -(2**31)),
        (2**32, 1),
        (-(2**32) - 1, 1),
        (True, 1231),
        (False, 1237),
    ],
)
def test_hashes_are_javas(value: Any, code: int) -> None:
    """Covers C-471: String, Integer, Long and Boolean."""
    assert hash_of(value) == code
    chosen = SelectMessageQueueByHash()(QUEUES, ANY_MESSAGE, value)
    assert chosen == QUEUES[abs(code) % 4]


def test_what_java_cannot_hash_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="hashed as in Java"):
        SelectMessageQueueByHash()(QUEUES, ANY_MESSAGE, object())
    with pytest.raises(ConfigurationError, match="int of 64 bits"):
        hash_of(2**64)


def test_the_random_selector_takes_any_queue() -> None:
    """Covers C-471."""
    select = SelectMessageQueueByRandom()
    assert {select(QUEUES, ANY_MESSAGE, None) for _ in range(500)} == set(QUEUES)


# --- timed messages and recall --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "properties"),
    [
        ({"delay_time_sec": 5}, {"TIMER_DELAY_SEC": "5"}),
        ({"delay_time_ms": 5}, {"TIMER_DELAY_MS": "5"}),
        ({"deliver_time_ms": 1_900_000_000_000}, {"TIMER_DELIVER_MS": "1900000000000"}),
    ],
)
def test_timers_are_properties(given: dict[str, Any], properties: dict[str, str]) -> None:
    message = Message("T", b"x", **given)
    assert message.properties == {"WAIT": "true", **properties}
    assert message.is_timed
    assert not ANY_MESSAGE.is_timed


@pytest.mark.parametrize(
    "given",
    [
        {"delay_time_sec": 1, "delay_time_ms": 1},
        {"delay_time_sec": 1, "delay_level": 1},
        {"delay_time_ms": -1},
        {"deliver_time_ms": 1.5},
    ],
)
def test_timers_that_make_no_sense_are_refused(given: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        Message("T", b"x", **given)


@pytest.mark.parametrize("handle", [None, "", "x", "djE=", "djIgYSBiIGMgZA==", "\u00e9"])
def test_a_handle_that_is_none_is_refused(handle: Any) -> None:
    with pytest.raises(ConfigurationError, match="recall handle is invalid"):
        decode_recall_handle(handle)


def test_a_handle_says_where_the_message_is() -> None:
    handle = decode_recall_handle("djEgVG9waWMgYnJva2VyLWEgMTcwMDAwMDAwMDAwMCBVS0VZ")
    assert (handle.topic, handle.broker_name) == ("Topic", "broker-a")
    assert (handle.timestamp, handle.message_id) == ("1700000000000", "UKEY")


# --- errors ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error",
    [
        SendError("text", SendOutcome.UNKNOWN, topic="T").with_retriable(True),
        SendRouteError("text", topic="T"),
        SendConnectError("text", SendOutcome.NOT_SENT),
        MessageInvalidError("text", size=5),
    ],
)
def test_send_errors_pickle_with_their_outcome(error: SendError) -> None:
    """Covers C-488: of one tree, each with what is known of the message."""
    copy = pickle.loads(pickle.dumps(error))  # noqa: S301
    assert (type(copy), copy.outcome, str(copy)) == (type(error), error.outcome, str(error))
    assert (copy.parameters, copy.retriable) == (error.parameters, error.retriable)


def test_without_a_name_server_the_error_names_what_was_tried() -> None:
    """Covers C-457, C-458, C-489: never an IllegalStateException; NOT_SENT."""

    async def scenario(address: str) -> SendError:
        async with aio.Producer("g", namesrv_addr=address) as producer:
            with pytest.raises(SendError) as raised:
                await producer.send(Message(TOPIC, b"x"))
            return raised.value

    with FakeBroker() as broker:
        address = broker.address
    error = asyncio.run(scenario(address))
    assert isinstance(error, SendConnectError)
    assert error.outcome is SendOutcome.NOT_SENT
    assert address in str(error)
