"""What a lite pull consumer was told to consume, without a consumer."""

from __future__ import annotations

import pytest

from rocketstream.client.consumer.lite.queues import LitePullPlan
from rocketstream.errors import ClientStateError, ConfigurationError
from rocketstream.model import MessageQueue
from rocketstream.protocol.subscription import build_subscription

QUEUE = MessageQueue("T", "b", 0)
EXCLUSIVE = "Subscribe and assign are mutually exclusive"


def test_who_subscribed_may_not_assign_even_after_leaving_every_topic() -> None:
    """Covers C-504, C-505: the first call decides."""
    plan = LitePullPlan()
    plan.subscribe(build_subscription("T", "*", 1), None)
    assert plan.unsubscribe("T")
    assert not plan.unsubscribe("T")
    assert plan.topics == {}
    with pytest.raises(ClientStateError, match=EXCLUSIVE):
        plan.assign([QUEUE])
    with pytest.raises(ClientStateError, match=EXCLUSIVE):
        plan.set_expression(build_subscription("T", "A", 1))
    assert plan.assigned is None


@pytest.mark.parametrize("begun_by", ["assign", "expression"])
def test_who_assigned_may_not_subscribe(begun_by: str) -> None:
    """Covers C-504: an expression for assigned queues decides too."""
    plan = LitePullPlan()
    if begun_by == "assign":
        plan.assign([QUEUE])
    else:
        plan.set_expression(build_subscription("T", "A", 1))
    with pytest.raises(ClientStateError, match=f"subscribe exception: {EXCLUSIVE}"):
        plan.subscribe(build_subscription("T", "*", 1), None)
    assert plan.topics == {}


def test_a_refused_assignment_decides_nothing() -> None:
    plan = LitePullPlan()
    with pytest.raises(ConfigurationError, match="must be one queue at least"):
        plan.assign([])
    plan.subscribe(build_subscription("T", "*", 1), None)
    assert list(plan.topics) == ["T"]


def test_assigned_topics_want_everything_unless_told_otherwise() -> None:
    """Covers C-505: what is not said is said once, so that its version stays."""
    plan = LitePullPlan()
    plan.set_expression(build_subscription("T", "A", 7))
    plan.assign([QUEUE, MessageQueue("U", "b", 0)])
    told, usual = plan.subscription("T"), plan.subscription("U")
    assert told is not None
    assert usual is not None
    assert (told.sub_string, told.sub_version) == ("A", 7)
    assert (usual.sub_string, usual.sub_version) == ("*", 0)
    assert plan.subscription("U") is usual


def test_subscribed_topics_want_what_was_said_last_and_others_nothing() -> None:
    plan = LitePullPlan()
    before = plan.topics
    plan.subscribe(build_subscription("T", "A", 1), "one")
    plan.subscribe(build_subscription("T", "B", 2), "two")
    told = plan.subscription("T")
    assert told is not None
    assert told.sub_string == "B"
    assert plan.topics == {"T": (told, "two")}
    assert plan.subscription("U") is None
    assert before == {}, "it can be gone back to"
