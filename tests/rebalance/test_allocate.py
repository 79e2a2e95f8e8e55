"""Which member gets which queue: every vector of the semantics reference (C-165 to C-173)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import pytest

from rocketstream import (
    AllocateMachineRoomNearby,
    AllocateMessageQueueAveragely,
    AllocateMessageQueueAveragelyByCircle,
    AllocateMessageQueueByConfig,
    AllocateMessageQueueByMachineRoom,
    AllocateMessageQueueConsistentHash,
    AllocateMessageQueueStrategy,
)
from rocketstream.client.consumer.allocate import queue_key, ring_hash
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


@pytest.mark.parametrize("given", [-1, "3", 2.0, True])
def test_consistent_hash_refuses_what_is_no_number_of_places(given: Any) -> None:
    """Covers C-172."""
    text = f"virtual_node_cnt must be a whole number from 0 on, not {given!r}"
    with pytest.raises(ConfigurationError, match=re.escape(text)):
        AllocateMessageQueueConsistentHash(given)


def test_consistent_hash_without_positions_gives_nobody_anything() -> None:
    """As upstream's: no member has a place on the ring."""
    assert split(AllocateMessageQueueConsistentHash(0), queues(2), members(2)) == [[], []]


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
        ("", queues(1), ["a"], "current_cid is empty"),
        ("a", [], ["a"], "mq_all is None or empty"),
        ("a", queues(1), [], "cid_all is None or empty"),
    ],
)
def test_impossible_arguments_are_refused(
    cid: str, mqs: list[MessageQueue], cids: list[str], text: str
) -> None:
    """Covers C-165."""
    with pytest.raises(ConfigurationError, match=text):
        AllocateMessageQueueAveragely().allocate("g", cid, mqs, cids)


class Rooms:
    """Rooms stand before the ``@`` of brokers and before the ``-`` of members."""

    def broker_deploy_in(self, message_queue: MessageQueue) -> str:
        return message_queue.broker_name.partition("@")[0]

    def consumer_deploy_in(self, client_id: str) -> str:
        return client_id.partition("@")[0]


@pytest.mark.parametrize(
    "strategy",
    [
        AllocateMessageQueueAveragely(),
        AllocateMessageQueueAveragelyByCircle(),
        AllocateMessageQueueByMachineRoom(["broker-a"]),
        AllocateMachineRoomNearby(AllocateMessageQueueAveragely(), Rooms()),
        AllocateMessageQueueConsistentHash(),
    ],
    ids=lambda strategy: strategy.name,
)
def test_a_member_nobody_knows_gets_nothing(strategy: AllocateMessageQueueStrategy) -> None:
    """Covers C-165."""
    assert strategy.allocate("g", "x", queues(4), members(2)) == []


def test_nearby_members_get_the_queues_of_their_room() -> None:
    """Covers C-171: the reference's own example; a room without members is everybody's."""
    mqs = [mq for room in ("r1", "r2", "r3") for mq in queues(4, f"{room}@b")]
    cids = ["r1@c0", "r1@c1", "r2@c2"]
    strategy = AllocateMachineRoomNearby(AllocateMessageQueueAveragely(), Rooms())
    assert strategy.name == "MACHINE_ROOM_NEARBY-AVG"
    shares = [
        [f"{mq.broker_name[:2]}-{mq.queue_id}" for mq in strategy.allocate("g", cid, mqs, cids)]
        for cid in cids
    ]
    assert shares == [
        ["r1-0", "r1-1", "r3-0", "r3-1"],
        ["r1-2", "r1-3", "r3-2"],
        ["r2-0", "r2-1", "r2-2", "r2-3", "r3-3"],
    ]
    assert strategy.allocate("g", "r9@c9", mqs, cids) == []


def test_nearby_needs_a_room_for_everything() -> None:
    """Covers C-171."""

    class Nowhere(Rooms):
        def broker_deploy_in(self, message_queue: MessageQueue) -> str:
            return ""

    class Homeless(Rooms):
        def consumer_deploy_in(self, client_id: str) -> str:
            return ""

    for rooms in (Nowhere(), Homeless()):
        strategy = AllocateMachineRoomNearby(AllocateMessageQueueAveragely(), rooms)
        with pytest.raises(ConfigurationError, match="Machine room is null for"):
            strategy.allocate("g", "c0", queues(1), ["c0"])
    with pytest.raises(ConfigurationError, match="allocate_message_queue_strategy must not"):
        AllocateMachineRoomNearby(None, Rooms())  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="machine_room_resolver must not"):
        AllocateMachineRoomNearby(AllocateMessageQueueAveragely(), None)  # type: ignore[arg-type]


@pytest.mark.parametrize(("n", "m"), [(n, m) for n in (1, 3, 7, 12) for m in (1, 2, 5)])
def test_nearby_leaves_no_queue_without_owner(n: int, m: int) -> None:
    """Covers C-171: whatever rooms there are, every queue has exactly one owner."""
    mqs = [mq for room in ("r1", "r2", "r3") for mq in queues(n, f"{room}@b")]
    cids = sorted(f"r{1 + k % 2}@c{k}" for k in range(m))
    inner = AllocateMessageQueueAveragelyByCircle()
    strategy = AllocateMachineRoomNearby(inner, Rooms())
    owned = [mq for cid in cids for mq in strategy.allocate("g", cid, mqs, cids)]
    assert sorted(owned) == sorted(mqs)


def test_consistent_hash_moves_only_what_the_departed_had() -> None:
    """Covers C-174: and AVG moves more."""
    mqs, cids = queues(64), members(5)

    def owners(strategy: AllocateMessageQueueStrategy, cids: list[str]) -> dict[MessageQueue, str]:
        return {mq: cid for cid in cids for mq in strategy.allocate("g", cid, mqs, cids)}

    for strategy, moves_more in (
        (AllocateMessageQueueConsistentHash(), False),
        (AllocateMessageQueueAveragely(), True),
    ):
        before, after = owners(strategy, cids), owners(strategy, cids[1:])
        moved = {mq for mq in mqs if before[mq] != after[mq]}
        departed = {mq for mq in mqs if before[mq] == cids[0]}
        assert (moved > departed) is moves_more
        assert moved >= departed
