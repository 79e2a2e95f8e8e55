"""Names and properties users give (C-94 to C-98); more in tests/wire/test_values.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from rocketstream import Message, Producer, PushConsumer
from rocketstream.errors import ConfigurationError, SubscriptionError
from rocketstream.protocol.names import check_group

NAMESRV = "127.0.0.1:9876"


@pytest.mark.parametrize(
    "name", ["TAGS", "KEYS", "UNIQ_KEY", "DELAY", "TRAN_MSG", "CORRELATION_ID"]
)
def test_a_reserved_property_is_refused(name: str) -> None:
    """Covers C-98."""
    with pytest.raises(ConfigurationError, match=rf"property {name} is RocketMQ's own"):
        Message("T", b"x", properties={name: "v"})


@pytest.mark.parametrize(("name", "value"), [("", "v"), (" ", "v"), ("n", ""), ("n", "\t")])
def test_a_blank_property_is_refused(name: str, value: str) -> None:
    """Covers C-98."""
    with pytest.raises(ConfigurationError, match="must be str and not blank"):
        Message("T", b"x").put_user_property(name, value)


@pytest.mark.parametrize(
    "make",
    [
        lambda group: Producer(group, namesrv_addr=NAMESRV),
        lambda group: PushConsumer(group, namesrv_addr=NAMESRV),
    ],
    ids=["producer", "push"],
)
@pytest.mark.parametrize(
    ("group", "text"),
    [
        (" ", "group must not be blank"),
        ("g" * 256, "a group has 255 characters at most; this one has 256"),
        ("a b", "group 'a b' has illegal characters"),
    ],
)
def test_a_client_refuses_a_bad_group_when_it_is_made(
    make: Callable[[str], object], group: str, text: str
) -> None:
    """Covers C-94."""
    with pytest.raises(ConfigurationError, match=text):
        make(group)


def test_a_consumer_refuses_a_bad_topic_when_it_subscribes() -> None:
    """Covers C-95, C-100."""
    consumer = PushConsumer("g", namesrv_addr=NAMESRV)
    with pytest.raises(ConfigurationError, match="topic must not be blank"):
        consumer.subscribe(" ")
    with pytest.raises(ConfigurationError, match="a topic has 127 characters at most"):
        consumer.subscribe("t" * 128)
    with pytest.raises(SubscriptionError, match="subscription exception"):
        consumer.subscribe("T", "||")
    consumer.subscribe("t" * 127, "a || b")


@pytest.mark.parametrize("group", [5, b"g"])
def test_a_group_is_a_text(group: Any) -> None:
    """Covers C-94."""
    with pytest.raises(ConfigurationError, match="group must be a str"):
        check_group(group)
