"""Names and properties users give (C-94 to C-98); more in tests/protocol/test_values.py."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rocketstream import Message, Producer, PushConsumer
from rocketstream.errors import ConfigurationError, SubscriptionError

NAMESRV = "127.0.0.1:9876"


@pytest.mark.parametrize(
    "name", ["TAGS", "KEYS", "UNIQ_KEY", "DELAY", "TRAN_MSG", "CORRELATION_ID"]
)
def test_a_reserved_property_is_refused(name: str) -> None:
    """Covers C-98."""
    with pytest.raises(ConfigurationError, match=rf"The Property<{name}> is used by system"):
        Message("T", b"x", properties={name: "v"})


@pytest.mark.parametrize(("name", "value"), [("", "v"), (" ", "v"), ("n", ""), ("n", "\t")])
def test_a_blank_property_is_refused(name: str, value: str) -> None:
    """Covers C-98."""
    with pytest.raises(ConfigurationError, match="can not be null or blank string!"):
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
        (" ", "the specified group is blank"),
        ("g" * 256, "the specified group is longer than group max length 255."),
        ("a b", r"the specified group\[a b\] contains illegal characters"),
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
    with pytest.raises(ConfigurationError, match="The specified topic is blank"):
        consumer.subscribe(" ")
    with pytest.raises(ConfigurationError, match="longer than topic max length 127"):
        consumer.subscribe("t" * 128)
    with pytest.raises(SubscriptionError, match="subscription exception"):
        consumer.subscribe("T", "||")
    consumer.subscribe("t" * 127, "a || b")
