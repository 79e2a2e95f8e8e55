"""The policy of sends: what it wants after what (C-85, C-87, C-457 to C-464, C-466, C-601)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import pytest

from rocketstream.client.instance.routes import RouteTable
from rocketstream.client.producer.policy import (
    ANY_QUEUE,
    End,
    FaultAvoidingRotation,
    FaultTable,
    QueueRotation,
    SendPolicy,
    SendTarget,
    Steps,
    Try,
    Wanted,
)
from rocketstream.client.producer.settings import ProducerSettings
from rocketstream.errors import (
    ConnectError,
    InternalError,
    RequestTimeoutError,
    RouteNotFoundError,
    SendConnectError,
    SendError,
    SendOutcome,
    SendRouteError,
    broker_error,
)
from rocketstream.model import MessageQueue, SendResult, SendStatus
from rocketstream.protocol.bodies import BrokerData, QueueData, TopicRouteData

T = TypeVar("T")
QUEUES = tuple(MessageQueue("T", f"broker-{n}", i) for n in "ab" for i in range(2))


def stored(status: SendStatus = SendStatus.SEND_OK) -> SendResult:
    return SendResult(status, "id", "offset id", QUEUES[0], 7)


def route() -> TopicRouteData:
    return TopicRouteData(
        [QueueData(f"broker-{n}", 2, 2, 6) for n in "ab"],
        [BrokerData("c", f"broker-{n}", {0: f"{n}:10911"}) for n in "ab"],
    )


@dataclass
class Play:
    """A policy over two brokers with two queues each, and a clock that stands until it is set."""

    settings: dict[str, Any] = field(default_factory=dict)
    routed: bool = True
    now_ms: float = 0

    def __post_init__(self) -> None:
        self.routes = RouteTable()
        if self.routed:
            self.routes.apply("T", route())
        self.policy = SendPolicy(
            ProducerSettings("pg", **self.settings),
            QueueRotation(0),
            lambda: self.now_ms,
        )

    def send(
        self, target: SendTarget = ANY_QUEUE, timeout_ms: float = 3000, again: int = 2
    ) -> Steps[SendResult]:
        return self.policy.tries(self.routes, "T", target, timeout_ms, again)


def brokers(wanted: Iterator[Wanted]) -> list[str]:
    return [each[0].broker_name for each in wanted if each is not None]


def last(steps: Steps[T], end: End) -> T:
    """Tell the last end, and return what the whole comes to."""
    with pytest.raises(StopIteration) as done:
        steps.send(end)
    result: T = done.value.value
    return result


def tried(wanted: Wanted) -> Try:
    assert wanted is not None
    return wanted


def refused(steps: Steps[T], end: End = QUEUES) -> Wanted:
    """Tell that a broker could not be reached, then what came of looking; return the next try."""
    assert steps.send(ConnectError("no")) is None
    return steps.send(end)


def test_a_send_that_is_stored_takes_one_try() -> None:
    """Covers C-457, C-460: the next queue, at its master, with all the time there is."""
    steps = Play().send()
    assert next(steps) == (QUEUES[0], "a:10911", 3000)
    result = stored()
    assert last(steps, result) is result


def test_messages_take_the_queues_in_turn() -> None:
    """Covers C-460: each send goes on where the one before stopped."""
    play = Play()
    assert [tried(next(play.send()))[0] for _ in range(5)] == [*QUEUES, QUEUES[0]]


def test_the_fast_port_is_asked_for_where_it_is_wished() -> None:
    """Covers C-13."""
    play = Play()
    play.policy = SendPolicy(
        ProducerSettings("pg"),
        QueueRotation(0),
        lambda: 0,
        lambda address: address + "!",
    )
    assert tried(next(play.send()))[1] == "a:10911!"


def test_an_unknown_route_is_found_first_and_its_time_counts() -> None:
    """Covers C-80."""
    play = Play(routed=False)
    steps = play.send(timeout_ms=100)
    assert next(steps) is None
    play.routes.apply("T", route())
    play.now_ms = 30
    assert steps.send(QUEUES) == (QUEUES[0], "a:10911", 70)


def test_a_route_found_too_late_is_of_no_use() -> None:
    """Covers C-80: nothing is sent once the time is over."""
    play = Play(routed=False)
    steps = play.send(timeout_ms=100)
    next(steps)
    play.now_ms = 100
    with pytest.raises(SendError, match=r"Send \[0\] times, still timed out") as raised:
        steps.send(QUEUES)
    assert raised.value.outcome is SendOutcome.NOT_SENT


def test_a_send_without_time_is_not_tried() -> None:
    """Covers C-80."""
    with pytest.raises(SendError, match="still timed out, cost"):
        next(Play().send(timeout_ms=0))


def test_no_route_ends_the_send_as_it_was_told() -> None:
    steps = Play(routed=False).send()
    next(steps)
    error = SendRouteError("No route info of this topic: T")
    with pytest.raises(SendRouteError) as raised:
        steps.send(error)
    assert raised.value is error
    assert error.outcome is SendOutcome.NOT_SENT


def test_a_route_lost_after_a_doubtful_try_does_not_say_not_sent() -> None:
    """Covers C-464: the try before may have been stored."""
    play = Play()
    steps = play.send()
    next(steps)
    play.routes.publish_table.clear()
    assert steps.send(RequestTimeoutError("no answer")) is None
    with pytest.raises(SendRouteError) as raised:
        steps.send(SendRouteError("No route info of this topic: T"))
    assert raised.value.outcome is SendOutcome.UNKNOWN


def test_tries_share_one_budget() -> None:
    """Covers C-459, C-80."""
    play = Play()
    steps = play.send(timeout_ms=100)
    next(steps)
    assert steps.send(ConnectError("no")) is None
    play.now_ms = 40
    assert tried(steps.send(QUEUES))[2] == 60
    play.now_ms = 100
    with pytest.raises(SendError, match=r"Send \[2\] times, still timed out, cost \[100\]ms") as e:
        steps.send(ConnectError("no"))
    assert e.value.outcome is SendOutcome.NOT_SENT
    assert e.value.retriable


def test_a_retry_goes_to_another_broker() -> None:
    """Covers C-460."""
    steps = Play().send()
    wanted = [next(steps), refused(steps), refused(steps)]
    assert brokers(iter(wanted)) == ["broker-a", "broker-b", "broker-a"]


def test_a_broker_that_cannot_be_reached_makes_the_next_try_look_at_the_route_again() -> None:
    """Brokers restart one after the other: the one left may be the one that is back."""
    play = Play()
    only_a = replace(route(), queue_datas=[QueueData("broker-a", 2, 2, 6)])
    play.routes.apply("T", only_a)
    steps = play.send()
    assert tried(next(steps))[1] == "a:10911"
    assert steps.send(ConnectError("refused")) is None
    play.routes.apply("T", route())
    assert tried(steps.send(QUEUES))[1] == "b:10911"


def test_a_look_at_the_route_that_fails_or_takes_long_is_no_end_and_no_try() -> None:
    play = Play()
    steps = play.send(timeout_ms=100)
    next(steps)
    unknown = SendError("no name server answers", SendOutcome.NOT_SENT)
    assert tried(refused(steps, unknown))[1] == "b:10911"
    assert steps.send(ConnectError("no")) is None
    play.now_ms = 100
    with pytest.raises(SendError, match=r"Send \[2\] times, still timed out") as raised:
        steps.send(unknown)
    assert raised.value.outcome is SendOutcome.NOT_SENT


def test_what_a_broker_answers_or_leaves_open_says_nothing_of_the_route() -> None:
    steps = Play().send()
    next(steps)
    assert steps.send(RequestTimeoutError("no answer")) is not None
    assert steps.send(broker_error(2, "busy")) is not None


def test_a_broker_that_left_the_route_counts_as_a_try() -> None:
    """Covers C-141: nobody is asked there."""
    play = Play()
    del play.routes.masters["broker-a"]
    assert tried(next(play.send()))[1] == "b:10911"
    del play.routes.masters["broker-b"]
    with pytest.raises(SendError, match=r"^The broker\[.*\] not exist.*Send \[3\]") as raised:
        next(play.send())
    assert raised.value.outcome is SendOutcome.NOT_SENT
    assert isinstance(raised.value.__cause__, RouteNotFoundError)


def test_the_last_try_raises_with_all_brokers_named() -> None:
    """Covers C-462."""
    play = Play()
    steps = play.send(again=1)
    next(steps)
    refused(steps)
    play.now_ms = 20
    named = r"^no.*; .*cost \[20\]ms of \[3000\]ms, .*BrokersSent: \['broker-a', 'broker-b'\]$"
    with pytest.raises(SendConnectError, match=named) as raised:
        steps.send(ConnectError("no"))
    assert raised.value.outcome is SendOutcome.NOT_SENT
    assert raised.value.retriable
    assert isinstance(raised.value.__cause__, ConnectError)
    assert raised.value.parameters["brokers"] == ["broker-a", "broker-b"]


def test_the_last_error_is_the_one_that_is_told() -> None:
    """Covers C-462."""
    steps = Play().send(again=1)
    next(steps)
    refused(steps)
    with pytest.raises(SendError, match=r"^second; ") as raised:
        steps.send(RequestTimeoutError("second"))
    assert isinstance(raised.value.__cause__, RequestTimeoutError)
    assert not isinstance(raised.value, SendConnectError), "one of them reached a broker"
    assert raised.value.outcome is SendOutcome.UNKNOWN


@pytest.mark.parametrize(
    "target", [SendTarget(queue=QUEUES[3]), SendTarget(pick=lambda queues: queues[3])]
)
def test_a_chosen_queue_has_one_try(target: SendTarget) -> None:
    """Covers C-469, C-470."""
    steps = Play().send(target)
    assert tried(next(steps))[:2] == (QUEUES[3], "b:10911")
    with pytest.raises(SendError, match=r"Send \[1\] times, still failed"):
        steps.send(RequestTimeoutError("no answer"))


@pytest.mark.parametrize("code", [1, 2, 14, 16, 17, 204, 205, 1500])
def test_retriable_broker_codes_are_tried_again(code: int) -> None:
    """Covers C-87, C-433, C-601."""
    steps = Play().send()
    next(steps)
    assert steps.send(broker_error(code, "busy")) is not None


@pytest.mark.parametrize("code", [13, 26, 9999])
def test_other_broker_codes_are_final(code: int) -> None:
    """Covers C-461."""
    steps = Play().send()
    next(steps)
    with pytest.raises(SendError, match=f"CODE: {code}") as raised:
        steps.send(broker_error(code, "no"))
    assert raised.value.outcome is SendOutcome.REJECTED
    assert not raised.value.retriable


def test_a_code_added_meanwhile_is_tried_again() -> None:
    """Covers C-87."""
    play = Play()
    steps = play.send()
    next(steps)
    play.policy.settings = ProducerSettings("pg", retry_response_codes=frozenset({9999}))
    assert steps.send(broker_error(9999, "no")) is not None


@pytest.mark.parametrize("bug", [KeyError("x"), None])
def test_a_bug_is_not_tried_again(bug: Exception | None) -> None:
    steps = Play().send()
    next(steps)
    with pytest.raises(SendError) as raised:
        steps.send(bug)
    assert raised.value.outcome is SendOutcome.UNKNOWN
    assert isinstance(raised.value.__cause__, KeyError if bug else InternalError)


def test_a_hook_that_refuses_ends_the_send_with_its_own_error() -> None:
    """Covers C-475: no other try follows; an earlier one counts for the outcome."""
    steps = Play().send()
    next(steps)
    steps.send(RequestTimeoutError("no answer"))
    refusal = SendError("forbidden", SendOutcome.NOT_SENT)
    with pytest.raises(SendError, match="forbidden") as raised:
        steps.send(refusal)
    assert raised.value is refusal
    assert refusal.outcome is SendOutcome.UNKNOWN


WISHED = {"retry_another_broker_when_not_store_ok": True}


@pytest.mark.parametrize(
    ("status", "settings", "again", "ends"),
    [
        (SendStatus.SEND_OK, WISHED, 1, True),
        (SendStatus.FLUSH_DISK_TIMEOUT, WISHED, 1, False),
        (SendStatus.SLAVE_NOT_AVAILABLE, WISHED, 1, False),
        (SendStatus.FLUSH_DISK_TIMEOUT, {}, 1, True),  # the default: stored is stored
        (SendStatus.FLUSH_DISK_TIMEOUT, WISHED, 0, True),  # no try is left
    ],
)
def test_what_is_stored_is_repeated_only_on_request(
    status: SendStatus, settings: dict[str, Any], again: int, ends: bool
) -> None:
    """Covers C-85."""
    steps = Play(settings).send(again=again)
    next(steps)
    result = stored(status)
    if ends:
        assert last(steps, result) is result
    else:
        assert tried(steps.send(result))[0].broker_name == "broker-b"
        better = stored()
        assert last(steps, better) is better


@pytest.mark.parametrize(
    "error", [broker_error(13, "illegal"), SendError("forbidden", SendOutcome.NOT_SENT)]
)
def test_what_is_stored_is_the_answer_if_its_repeat_fails(error: Exception) -> None:
    """Covers C-85, C-461, C-463."""
    steps = Play(WISHED).send()
    next(steps)
    result = stored(SendStatus.FLUSH_DISK_TIMEOUT)
    steps.send(result)
    assert last(steps, error) is result


def test_what_is_stored_is_the_answer_when_no_time_is_left() -> None:
    """Covers C-85, C-80."""
    play = Play(WISHED)
    steps = play.send(timeout_ms=100)
    next(steps)
    play.now_ms = 100
    result = stored(SendStatus.FLUSH_SLAVE_TIMEOUT)
    assert last(steps, result) is result


def test_a_selectors_error_is_a_send_error_and_its_own_stays_as_it_is() -> None:
    """Covers C-470."""

    def broken(_: object) -> MessageQueue:
        raise StopIteration

    with pytest.raises(SendError, match="the selector of the queue raised") as raised:
        next(Play().send(SendTarget(pick=broken)))
    assert raised.value.outcome is SendOutcome.NOT_SENT
    own = SendError("mine", SendOutcome.NOT_SENT)

    def refuses(_: object) -> MessageQueue:
        raise own

    with pytest.raises(SendError) as raised:
        next(Play().policy.oneway(Play().routes, "T", SendTarget(pick=refuses)))
    assert raised.value is own


def test_brokers_in_trouble_are_passed_over() -> None:
    """Covers C-466."""
    play = Play()
    table = FaultTable()
    table.update("broker-a", 20, 0, isolate=True)
    play.policy.rotation = FaultAvoidingRotation(0, table, lambda: play.now_ms)
    assert {tried(next(play.send()))[0].broker_name for _ in range(4)} == {"broker-b"}
    play.now_ms = 60_000
    assert {tried(next(play.send()))[0].broker_name for _ in range(4)} == {"broker-a", "broker-b"}


def test_a_oneway_send_has_one_try_and_no_answer() -> None:
    play = Play(routed=False)
    steps = play.policy.oneway(play.routes, "T", ANY_QUEUE)
    assert next(steps) is None
    play.routes.apply("T", route())
    assert steps.send(QUEUES) == (QUEUES[0], "a:10911", 3000)
    last(steps, None)


def test_a_oneway_send_that_is_not_written_is_not_sent() -> None:
    steps = Play().policy.oneway(Play().routes, "T", ANY_QUEUE)
    next(steps)
    with pytest.raises(SendError, match="one-way send failed: no") as raised:
        steps.send(ConnectError("no"))
    assert raised.value.outcome is SendOutcome.NOT_SENT
    assert isinstance(raised.value.__cause__, ConnectError)


def test_a_oneway_send_to_a_broker_that_left_is_not_sent() -> None:
    play = Play()
    play.routes.masters.clear()
    with pytest.raises(SendError, match=r"one-way send failed: The broker\[broker-a\] not exist"):
        next(play.policy.oneway(play.routes, "T", ANY_QUEUE))


def test_a_queue_is_chosen_for_a_message_that_goes_with_others() -> None:
    steps = Play().policy.queue(RouteTable(), "T", SendTarget(pick=lambda queues: queues[2]))
    assert next(steps) is None
    assert last(steps, QUEUES) is QUEUES[2]
