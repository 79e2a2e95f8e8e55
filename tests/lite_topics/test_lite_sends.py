"""Messages to lite topics: what they carry, where they go, what they cannot be."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rocketstream import ClientConfig, Message, MessageQueue
from rocketstream._util.clock import SYSTEM_CLOCK
from rocketstream.client.producer.gathering import may_be_gathered
from rocketstream.client.producer.message import MessagePreparer, target_of
from rocketstream.client.producer.policy import QueueRotation
from rocketstream.client.producer.settings import ProducerSettings
from rocketstream.client.producer.transaction import mark_half
from rocketstream.errors import ConfigurationError, MessageInvalidError
from rocketstream.protocol.properties import decode_properties

QUEUES = tuple(MessageQueue("agents", f"broker-{at // 8}", at % 8) for at in range(16))


def lite(name: str = "a0") -> Message:
    return Message("agents", b"x", lite_topic=name)


def test_a_send_names_the_lite_topic_and_its_queue() -> None:
    """Brokers go by INNER_MULTI_DISPATCH, consumers by __LITE_TOPIC."""
    prepared = MessagePreparer(ProducerSettings("pg"), SYSTEM_CLOCK).one(lite())
    properties = decode_properties(prepared.properties)
    assert properties["__LITE_TOPIC"] == "a0"
    assert properties["INNER_MULTI_DISPATCH"] == "%LMQ%$agents$a0"


def test_the_queue_is_named_after_the_parent_as_servers_know_it() -> None:
    config = ClientConfig(namespace="ns")
    prepared = MessagePreparer(ProducerSettings("pg"), SYSTEM_CLOCK, config).one(lite())
    assert decode_properties(prepared.properties)["INNER_MULTI_DISPATCH"] == "%LMQ%$ns%agents$a0"


def test_a_lite_topic_goes_to_the_queue_its_name_belongs_to() -> None:
    """Elsewhere its broker would not take it for its own, and no consumer be told of it."""
    target = target_of(lite(), None, None, None, None)
    chosen = {QueueRotation(start).choose(QUEUES, target, None) for start in range(3)}
    assert chosen == {QUEUES[7]}


@pytest.mark.parametrize("name", ["", "a b", "a$b", "a,b", "ä", "x" * 65, 5])
def test_a_name_that_is_none_is_refused_where_the_message_is_made(name: str) -> None:
    with pytest.raises(ConfigurationError, match="lite_topic must be a str of 1 to 64 characters"):
        lite(name)


def test_the_longest_name_can_be_sent_to() -> None:
    assert lite("x" * 64).lite_topic == "x" * 64
    assert Message("agents", b"x").lite_topic is None


@pytest.mark.parametrize(
    "delayed",
    [
        lambda: Message("agents", b"x", lite_topic="a", delay_level=1),
        lambda: Message("agents", b"x", lite_topic="a", delay_time_ms=1),
    ],
)
def test_a_message_of_a_lite_topic_cannot_be_delayed(delayed: Callable[[], Message]) -> None:
    with pytest.raises(ConfigurationError, match="cannot be delayed"):
        delayed()


def test_a_property_cannot_stand_for_the_argument() -> None:
    with pytest.raises(ConfigurationError, match="RocketMQ's own"):
        Message("agents", b"x", properties={"__LITE_TOPIC": "a"})


def test_no_other_way_can_be_named_for_it() -> None:
    with pytest.raises(ConfigurationError, match="goes to the queue its name belongs to"):
        target_of(lite(), QUEUES[0], None, None, None)
    with pytest.raises(ConfigurationError, match="goes to the queue its name belongs to"):
        target_of(lite(), None, None, None, "key")


def test_it_is_neither_in_a_batch_nor_in_a_transaction() -> None:
    """Brokers dispatch no batch to lite topics, and halves at once."""
    preparer = MessagePreparer(ProducerSettings("pg"), SYSTEM_CLOCK)
    message = lite()
    with pytest.raises(MessageInvalidError, match="lite topics are not supported in a batch"):
        preparer.batches([message])
    preparer.one(message)
    assert not may_be_gathered(message.properties, 0)
    with pytest.raises(MessageInvalidError, match="cannot be in a transaction"):
        mark_half(message, "pg")
