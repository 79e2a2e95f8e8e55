"""Which member gets which queue: every vector of the semantics reference (C-165 to C-173)."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from rocketstream.client.core.allocate import (
    AllocateMessageQueueAveragely,
    AllocateMessageQueueAveragelyByCircle,
    AllocateMessageQueueByConfig,
    AllocateMessageQueueByMachineRoom,
    AllocateMessageQueueConsistentHash,
    AllocateMessageQueueStrategy,
    queue_key,
    ring_hash,
)
from rocketstream.errors import ConfigurationError
from rocketstream.model import MessageQueue


def queues(count: int, broker: str = "broker-a") -> list[MessageQueue]:
    return [MessageQueue("TopicTest", broker, i) for i in range(count)]


def members(count: int) -> list[str]:
    return [f"192.168.0.{i}@{i}" for i in range(1, count + 1)]


def split(
    strategy: AllocateMessageQueueStrategy, mqs: Sequence[MessageQueue], cids: Sequence[str]
) -> list[list[int]]:
    return [[mq.queue_id for mq in strategy.allocate("g", cid, mqs, cids)] for cid in cids]


VECTORS = [
    (8, 3, [[0, 1, 2], [3, 4, 5], [6, 7]], [[0, 3, 6], [1, 4, 7], [2, 5]]),
    (10, 4, [[0, 1, 2], [3, 4, 5], [6, 7], [8, 9]], [[0, 4, 8], [1, 5, 9], [2, 6], [3, 7]]),
    (
        16,
        5,
        [[0, 1, 2, 3], [4, 5, 6], [7, 8, 9], [10, 11, 12], [13, 14, 15]],
        [[0, 5, 10, 15], [1, 6, 11], [2, 7, 12], [3, 8, 13], [4, 9, 14]],
    ),
    (4, 3, [[0, 1], [2], [3]], [[0, 3], [1], [2]]),
    (7, 2, [[0, 1, 2, 3], [4, 5, 6]], [[0, 2, 4, 6], [1, 3, 5]]),
    (4, 4, [[0], [1], [2], [3]], [[0], [1], [2], [3]]),
    (3, 5, [[0], [1], [2], [], []], [[0], [1], [2], [], []]),
    (1, 2, [[0], []], [[0], []]),
]


@pytest.mark.parametrize(("n", "m", "blocks", "circle"), VECTORS)
def test_averages_divide_as_upstream_does(
    n: int, m: int, blocks: list[list[int]], circle: list[list[int]]
) -> None:
    """Covers C-166, C-167, C-168."""
    assert split(AllocateMessageQueueAveragely(), queues(n), members(m)) == blocks
    assert split(AllocateMessageQueueAveragelyByCircle(), queues(n), members(m)) == circle


@pytest.mark.parametrize("m", range(1, 9))
@pytest.mark.parametrize("n", range(1, 20))
def test_every_queue_has_exactly_one_owner(n: int, m: int) -> None:
    """Covers C-155: members that see the same lists divide without gap or overlap."""
    for strategy in (
        AllocateMessageQueueAveragely(),
        AllocateMessageQueueAveragelyByCircle(),
        AllocateMessageQueueConsistentHash(),
    ):
        owned = [i for ids in split(strategy, queues(n), members(m)) for i in ids]
        assert sorted(owned) == list(range(n)), strategy.name


def test_consistent_hash_matches_the_vectors() -> None:
    """Covers C-172, C-173."""
    ring = AllocateMessageQueueConsistentHash()
    three = members(3)
    assert split(ring, queues(8), three) == [[0, 2, 5], [6], [1, 3, 4, 7]]
    assert split(ring, queues(8), three[:2]) == [[0, 2, 5], [1, 3, 4, 6, 7]]
    small = AllocateMessageQueueConsistentHash(3)
    assert split(small, queues(8), three) == [[0, 1, 2, 7], [6], [3, 4, 5]]
    assert ring_hash("192.168.0.1@1-0") == 2325484510
    assert ring_hash(queue_key(queues(1)[0])) == 1987926524


def test_consistent_hash_refuses_a_negative_count() -> None:
    """Covers C-172."""
    with pytest.raises(ConfigurationError, match="illegal virtualNodeCnt :-1"):
        AllocateMessageQueueConsistentHash(-1)


def test_machine_room_takes_only_queues_of_its_rooms() -> None:
    """Covers C-170: 8 queues in room r1, 4 in r2 that nobody takes."""
    strategy = AllocateMessageQueueByMachineRoom(["r1"])
    mqs = [*queues(8, "r1@broker-a"), *queues(4, "r2@broker-b")]
    assert split(strategy, mqs, members(3)) == [[0, 1, 6], [2, 3, 7], [4, 5]]


def test_config_gives_everybody_the_same() -> None:
    """Covers C-169."""
    given = queues(3)[1:]
    strategy = AllocateMessageQueueByConfig(given)
    assert strategy.allocate("g", "", [], []) == given


@pytest.mark.parametrize(
    ("cid", "mqs", "cids", "text"),
    [
        ("", queues(1), ["a"], "currentCID is empty"),
        ("a", [], ["a"], "mqAll is null or mqAll empty"),
        ("a", queues(1), [], "cidAll is null or cidAll empty"),
    ],
)
def test_impossible_arguments_are_refused(
    cid: str, mqs: list[MessageQueue], cids: list[str], text: str
) -> None:
    """Covers C-165."""
    with pytest.raises(ConfigurationError, match=text):
        AllocateMessageQueueAveragely().allocate("g", cid, mqs, cids)


def test_a_member_nobody_knows_gets_nothing() -> None:
    """Covers C-165."""
    assert AllocateMessageQueueAveragely().allocate("g", "x", queues(4), members(2)) == []
