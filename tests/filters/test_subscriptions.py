"""Tags joined by commas or one |, conditions as tags: legal, seldom meant, told where given."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from rocketstream import LitePullConsumer, PushConsumer
from rocketstream.errors import SubscriptionError
from rocketstream.protocol.subscription import (
    build_subscription,
    parse_subscription,
    subscription_hint,
)


@pytest.mark.parametrize(
    ("expression", "meant"),
    [
        ("a,b", "a || b"),
        ("a, b ,c", "a || b || c"),
        ("x || a,b", "a || b || x"),
        ("A|B", "A || B"),
        ("A | B|| C", "A || B || C"),
        ("A ||| B", "A || B"),
        ("price > 5", "MessageSelector.by_sql"),
        ("price>5", "MessageSelector.by_sql"),
        ("a IS NOT NULL AND b = 'x'", "MessageSelector.by_sql"),
    ],
)
def test_tags_that_are_hardly_meant_are_told_with_what_was_probably_meant(
    expression: str, meant: str
) -> None:
    """Covers C-101: the expression itself stays what it is, one tag."""
    hint = subscription_hint(build_subscription("T", expression, 0))
    assert hint is not None
    assert repr(expression) in hint
    assert meant in hint


@pytest.mark.parametrize("expression", ["*", None, "", "a", "a || b", "k=", "my tag"])
def test_other_tags_are_not_commented_on(expression: str | None) -> None:
    assert subscription_hint(build_subscription("T", expression, 0)) is None


@pytest.mark.parametrize("expression", ["||", " ", "\t", " || "])
@pytest.mark.parametrize("kind", [PushConsumer, LitePullConsumer])
def test_tags_without_a_name_are_refused(kind: Any, expression: str) -> None:
    """Covers C-100: a broker takes blanks, and the group would get nothing in silence."""
    consumer = kind("g", namesrv_addr="127.0.0.1:1")
    with pytest.raises(SubscriptionError, match="names no tag"):
        consumer.subscribe("T", expression)


def test_a_broker_takes_blanks_of_other_clients_as_apaches_does() -> None:
    """Covers C-100: a subscription that selects nothing, and no error."""
    taken = parse_subscription("T", " ", 0)
    assert taken.sub_string == " "
    assert not taken.tags_set


def test_conditions_may_have_commas() -> None:
    assert subscription_hint(build_subscription("T", "a IN ('x', 'y')", 0, "SQL92")) is None


@pytest.mark.parametrize("kind", [PushConsumer, LitePullConsumer])
def test_subscribing_with_a_comma_warns(caplog: pytest.LogCaptureFixture, kind: Any) -> None:
    kind("g", namesrv_addr="127.0.0.1:1").subscribe("T", "a || b")
    assert not caplog.records
    kind("g", namesrv_addr="127.0.0.1:1").subscribe("T", "a,b")
    (told,) = caplog.records
    assert told.levelno == logging.WARNING
    assert "subscription of topic T: the comma in 'a,b'" in told.getMessage()
