"""Sending: queues, tries, outcomes, splitting (C-457 to C-478, C-601, C-602)."""

from __future__ import annotations

import itertools

import pytest

from rocketstream.client.core.send import (
    SendAttempts,
    choose_queue,
    outcome_of,
    queue_of_key,
    split_batches,
)
from rocketstream.errors import (
    ConnectError,
    ConnectionLostError,
    RequestTimeoutError,
    RouteNotFoundError,
    SendConnectError,
    SendError,
    SendOutcome,
    TooManyRequestsError,
    broker_error,
)
from rocketstream.model import MessageQueue, SendResult, SendStatus
from rocketstream.protocol.tag_hash import java_hash

QUEUES = [MessageQueue("T", f"broker-{n}", i) for n in "ab" for i in range(2)]


def attempts(tries: int = 3, timeout_ms: float = 3000, *, elsewhere: bool = False) -> SendAttempts:
    return SendAttempts("T", 0, timeout_ms, tries, elsewhere=elsewhere)


def answer_of(status: SendStatus) -> SendResult:
    return SendResult(status, "id", "offset id", MessageQueue("T", "broker-a", 0), 7)


def test_queues_are_taken_in_turn() -> None:
    """Covers C-460."""
    counter = itertools.count(2)
    taken = [choose_queue(QUEUES, counter.__next__, None) for _ in range(5)]
    assert taken == [QUEUES[i % 4] for i in range(2, 7)]


def test_a_retry_goes_to_another_broker() -> None:
    """Covers C-460."""
    counter = itertools.count(0)
    assert choose_queue(QUEUES, counter.__next__, "broker-a").broker_name == "broker-b"
    assert choose_queue(QUEUES, counter.__next__, "broker-b").broker_name == "broker-a"


def test_a_single_broker_is_tried_again() -> None:
    """Covers C-460."""
    counter = itertools.count(0)
    assert choose_queue(QUEUES[:2], counter.__next__, "broker-a") == QUEUES[0]


@pytest.mark.parametrize("key", ["", "N14228", "polygenelubricants", "标签", "😀"])
def test_a_sharding_key_always_names_the_same_queue(key: str) -> None:
    """Covers C-471; "polygenelubricants" hashes to the most negative number."""
    expected = abs(java_hash(key)) % 4
    assert queue_of_key(QUEUES, key) == QUEUES[expected]


def test_tries_share_one_budget() -> None:
    """Covers C-459, C-80."""
    tries = attempts(timeout_ms=100)
    assert tries.remaining_ms(40) == 60
    tries.failed("broker-a", ConnectError("no"), 50)
    with pytest.raises(SendError, match=r"Send \[1\] times, still timed out, cost \[100\]ms") as e:
        tries.remaining_ms(100)
    assert e.value.outcome is SendOutcome.NOT_SENT


def test_the_last_try_raises_with_all_brokers_named() -> None:
    """Covers C-462."""
    tries = attempts(2)
    tries.failed("broker-a", ConnectError("no"), 10)
    with pytest.raises(SendConnectError, match=r"BrokersSent: \['broker-a', 'broker-b'\]: no") as e:
        tries.failed("broker-b", ConnectError("no"), 20)
    assert e.value.outcome is SendOutcome.NOT_SENT
    assert e.value.retriable
    assert isinstance(e.value.__cause__, ConnectError)


@pytest.mark.parametrize("code", [1, 2, 14, 16, 17, 204, 205])
def test_retriable_broker_codes_are_tried_again(code: int) -> None:
    """Covers C-87, C-433, C-601."""
    attempts().failed("broker-a", broker_error(code, "busy"), 0)


@pytest.mark.parametrize("code", [13, 26, 9999])
def test_other_broker_codes_are_final(code: int) -> None:
    """Covers C-461."""
    with pytest.raises(SendError, match=f"CODE: {code}") as raised:
        attempts().failed("broker-a", broker_error(code, "no"), 0)
    assert raised.value.outcome is SendOutcome.REJECTED
    assert not raised.value.retriable


def test_a_bug_is_not_tried_again() -> None:
    with pytest.raises(SendError) as raised:
        attempts().failed("broker-a", KeyError("x"), 0)
    assert raised.value.outcome is SendOutcome.UNKNOWN


@pytest.mark.parametrize(
    ("errors", "outcome"),
    [
        ([], SendOutcome.NOT_SENT),
        ([ConnectError("")], SendOutcome.NOT_SENT),
        ([TooManyRequestsError("")], SendOutcome.NOT_SENT),
        ([RouteNotFoundError("")], SendOutcome.NOT_SENT),
        ([broker_error(1, "")], SendOutcome.REJECTED),
        ([ConnectError(""), broker_error(1, "")], SendOutcome.REJECTED),
        ([broker_error(14, "")], SendOutcome.UNKNOWN),  # a failed flush: it may be in the log
        ([broker_error(14, ""), broker_error(1, "")], SendOutcome.UNKNOWN),
        ([RequestTimeoutError("")], SendOutcome.UNKNOWN),
        ([ConnectionLostError(""), broker_error(1, "")], SendOutcome.UNKNOWN),
        ([broker_error(1, ""), RequestTimeoutError("")], SendOutcome.UNKNOWN),
    ],
)
def test_the_most_doubtful_try_decides_the_outcome(
    errors: list[Exception], outcome: SendOutcome
) -> None:
    """Covers C-464."""
    assert outcome_of(errors) is outcome


def test_a_repeat_of_a_stored_message_is_in_doubt() -> None:
    """Covers C-85, C-463: it is stored once already."""
    tries = attempts(2, elsewhere=True)
    stored = answer_of(SendStatus.FLUSH_DISK_TIMEOUT)
    assert not tries.answered("broker-a", stored)
    assert tries.stored is stored
    with pytest.raises(SendError) as raised:
        tries.failed("broker-b", broker_error(1, ""), 0)
    assert raised.value.outcome is SendOutcome.UNKNOWN


@pytest.mark.parametrize(
    ("status", "elsewhere", "tries", "ends"),
    [
        (SendStatus.SEND_OK, True, 2, True),
        (SendStatus.FLUSH_DISK_TIMEOUT, True, 2, False),
        (SendStatus.SLAVE_NOT_AVAILABLE, True, 2, False),
        (SendStatus.FLUSH_DISK_TIMEOUT, False, 2, True),  # the default: stored is stored
        (SendStatus.FLUSH_DISK_TIMEOUT, True, 1, True),  # no try is left
    ],
)
def test_what_is_stored_is_repeated_only_on_request(
    status: SendStatus, elsewhere: bool, tries: int, ends: bool
) -> None:
    """Covers C-85."""
    book = attempts(tries, elsewhere=elsewhere)
    assert book.answered("broker-a", answer_of(status)) is ends
    assert (book.stored is None) is ends


@pytest.mark.parametrize(
    ("sizes", "parts"),
    [
        ([], []),
        ([5], [[5]]),
        ([4, 6], [[4, 6]]),
        ([4, 7], [[4], [7]]),
        ([11, 1], [[11], [1]]),
        ([10, 10, 10], [[10], [10], [10]]),
        ([1, 2, 3, 4, 5, 6], [[1, 2, 3, 4], [5], [6]]),
    ],
)
def test_batches_are_cut_at_the_size_limit(sizes: list[int], parts: list[list[int]]) -> None:
    """Covers C-477: nothing reordered, nothing lost."""
    assert [sizes[part] for part in split_batches(sizes, 10)] == parts
