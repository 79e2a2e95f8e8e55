"""Rules of sending: queues, outcomes, splitting (C-460, C-464, C-471, C-477)."""

from __future__ import annotations

import itertools

import pytest

from rocketstream.client.producer.message import split_batches
from rocketstream.client.producer.policy import choose_queue, outcome_of, queue_of_key
from rocketstream.errors import (
    ClientStateError,
    ConfigurationError,
    ConnectError,
    ConnectionLostError,
    ForkedClientError,
    RequestTimeoutError,
    RouteNotFoundError,
    SendError,
    SendOutcome,
    TooManyRequestsError,
    broker_error,
)
from rocketstream.model import MessageQueue
from rocketstream.protocol.tag_hash import java_hash

QUEUES = [MessageQueue("T", f"broker-{n}", i) for n in "ab" for i in range(2)]


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


@pytest.mark.parametrize(
    ("errors", "outcome"),
    [
        ([], SendOutcome.NOT_SENT),
        ([ConnectError("")], SendOutcome.NOT_SENT),
        ([TooManyRequestsError("")], SendOutcome.NOT_SENT),
        ([RouteNotFoundError("")], SendOutcome.NOT_SENT),
        ([ClientStateError("")], SendOutcome.NOT_SENT),  # shut down between two tries
        ([ForkedClientError("")], SendOutcome.NOT_SENT),
        ([ConfigurationError("")], SendOutcome.NOT_SENT),  # a route with an address that is none
        ([ClientStateError(""), RequestTimeoutError("")], SendOutcome.UNKNOWN),
        ([broker_error(1, "")], SendOutcome.REJECTED),
        ([ConnectError(""), broker_error(1, "")], SendOutcome.REJECTED),
        ([broker_error(14, "")], SendOutcome.UNKNOWN),  # a failed flush: it may be in the log
        ([broker_error(14, ""), broker_error(1, "")], SendOutcome.UNKNOWN),
        ([RequestTimeoutError("")], SendOutcome.UNKNOWN),
        ([ConnectionLostError(""), broker_error(1, "")], SendOutcome.UNKNOWN),
        ([broker_error(1, ""), RequestTimeoutError("")], SendOutcome.UNKNOWN),
        # Stored, and not as safe as asked for; then refused elsewhere.
        ([SendError("", SendOutcome.UNKNOWN), broker_error(1, "")], SendOutcome.UNKNOWN),
    ],
)
def test_the_most_doubtful_try_decides_the_outcome(
    errors: list[Exception], outcome: SendOutcome
) -> None:
    """Covers C-464."""
    assert outcome_of(errors) is outcome


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
