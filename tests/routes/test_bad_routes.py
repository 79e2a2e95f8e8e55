"""Name servers that answer nonsense: an error with address and topic, and nothing else happens."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest

from rocketstream import ClientConfig, Message, Producer, PushConsumer, limits
from rocketstream.client.admin.blocking import BlockingAdminClient
from rocketstream.errors import RemoteProtocolError, SendError, SendOutcome, broker_error
from rocketstream.protocol.codes import RequestCode
from rocketstream.protocol.command import RemotingCommand
from tests.kits.client.fake_broker import GROUP, TOPIC, FakeBroker
from tests.kits.listeners import Seen

ROUTE = RequestCode.GET_ROUTEINFO_BY_TOPIC


def route(queues: Any = 1, address: Any = "127.0.0.1:1", order: Any = None) -> bytes:
    """Return a route as a name server writes it."""
    data = {"brokerName": "b", "readQueueNums": queues, "writeQueueNums": queues, "perm": 6}
    broker = {"cluster": "c", "brokerName": "b", "brokerAddrs": {"0": address}}
    body = {"queueDatas": [data], "brokerDatas": [broker], "orderTopicConf": order}
    return json.dumps(body).encode()


BAD = {
    "garbage": b"\x00\xff{{{",
    "no object": b"[1, 2]",
    "wrong types": b'{"queueDatas": 7, "brokerDatas": "x"}',
    "too many queues": route(limits.TOPIC_QUEUES_MAX + 1),
    "negative queues": route(-1),
    "no address": route(address="nonsense"),
    "no port": route(address="127.0.0.1:99999"),
    "a bad order": route(order="b:many"),
    "an order of too many digits": route(order="b:" + "9" * 5_000),
}


@pytest.mark.parametrize("body", BAD.values(), ids=BAD.keys())
def test_a_route_that_makes_no_sense_is_a_send_error_with_address_and_topic(body: bytes) -> None:
    """Covers C-457, C-458: nothing was sent, by none of the ways to send."""
    with FakeBroker() as broker:
        broker.on[ROUTE] = lambda _: RemotingCommand.response(0, body=body)
        with Producer("pg", namesrv_addr=broker.address) as producer:
            with pytest.raises(SendError, match=broker.address) as caught:
                producer.send(Message(TOPIC, b"x"))
            future = producer.send_async(Message(TOPIC, b"x"))
            late = future.exception(timeout=20)
        for error in (caught.value, late):
            assert isinstance(error, SendError)
            assert error.outcome is SendOutcome.NOT_SENT
            assert repr(TOPIC) in error.message
            assert error.parameters["topic"] == TOPIC
            assert error.parameters["address"] == broker.address
        with (
            BlockingAdminClient(broker.address) as client,
            pytest.raises(RemoteProtocolError, match=broker.address),
        ):
            client.route(TOPIC)


def test_a_name_server_that_answers_nonsense_is_passed_over() -> None:
    """Covers C-139: the next one is asked, as if it had not answered."""
    with FakeBroker() as bad, FakeBroker() as good:
        bad.on[ROUTE] = lambda _: RemotingCommand.response(0, body=b"{{")
        with Producer("pg", namesrv_addr=f"{bad.address};{good.address}") as producer:
            assert producer.send(Message(TOPIC, b"x")).queue_offset == 0
        with BlockingAdminClient(f"{bad.address};{good.address}") as client:
            assert client.subscribe_queues(TOPIC)


def test_a_refusal_of_the_name_server_is_a_send_error() -> None:
    """Covers C-458: any code but "unknown topic"."""
    with FakeBroker() as broker:
        broker.on[ROUTE] = lambda _: RemotingCommand.response(1, "out of order")
        with (
            Producer("pg", namesrv_addr=broker.address) as producer,
            pytest.raises(SendError, match="out of order") as caught,
        ):
            producer.send(Message(TOPIC, b"x"))
        assert caught.value.parameters["topic"] == TOPIC


def test_a_consumer_says_once_that_a_route_makes_no_sense(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Covers C-111, C-134: it starts, and goes on asking."""
    with FakeBroker() as broker:
        broker.on[ROUTE] = lambda _: RemotingCommand.response(0, body=b"{{")
        config = ClientConfig(namesrv_addr=broker.address, poll_name_server_interval_ms=10)
        consumer = PushConsumer(GROUP, config=config, listener=Seen(), subscription={TOPIC: "*"})
        with caplog.at_level(logging.WARNING, "rocketstream.client"), consumer:
            broker.wait_for(ROUTE, 12)
        told = [each for each in caplog.messages if each.startswith(f"route of topic {TOPIC} ")]
        assert len(told) == 1
        assert broker.address in told[0]


def test_a_consumer_without_subscription_and_one_of_an_unknown_topic_say_so_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Covers C-134: a misspelled topic looks like an empty one otherwise."""
    with FakeBroker() as broker:
        config = ClientConfig(namesrv_addr=broker.address, rebalance_interval_ms=10)
        consumer = PushConsumer(GROUP, config=config, subscription={}, listener=Seen())
        with caplog.at_level(logging.WARNING, "rocketstream.client"), consumer:
            assert f"group {GROUP} subscribes no topic" in caplog.text
            consumer.subscribe("Mispelled")
            broker.wait_for(ROUTE, 10, lambda a: a.ext["topic"] == "Mispelled")
        text = f"topic Mispelled is unknown to name server {broker.address}"
        assert caplog.text.count(text) == 1


def test_a_long_remark_is_cut_in_the_text_of_an_error() -> None:
    """A peer may send a megabyte; logs and tracebacks get both its ends."""
    remark = "begin" + "x" * 1_000_000 + "end"
    error = broker_error(1, remark, "a:1")
    assert len(error.message) < 2 * limits.REMARK_CHARS_MAX
    assert "begin" in error.message
    assert "end" in error.message
    assert error.remark == remark
    assert len(repr(error)) < 2 * limits.REMARK_CHARS_MAX
    assert len(RemoteProtocolError(remark).message) < 2 * limits.ERROR_TEXT_CHARS_MAX
