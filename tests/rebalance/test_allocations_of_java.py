"""Every strategy divides as Java's does, in the same order."""

from __future__ import annotations

from pathlib import Path

import pytest

from rocketstream import (
    AllocateMachineRoomNearby,
    AllocateMessageQueueAveragely,
    AllocateMessageQueueAveragelyByCircle,
    AllocateMessageQueueByMachineRoom,
    AllocateMessageQueueConsistentHash,
    AllocateMessageQueueStrategy,
    MessageQueue,
)
from tests.kits.apache.cluster import JavaPrograms

pytestmark = [pytest.mark.interop, pytest.mark.timeout(60)]


class Rooms:
    """The room is what stands before the ``@``."""

    def broker_deploy_in(self, message_queue: MessageQueue) -> str:
        return message_queue.broker_name.partition("@")[0]

    def consumer_deploy_in(self, client_id: str) -> str:
        return client_id.partition("@")[0]


STRATEGIES: list[AllocateMessageQueueStrategy] = [
    AllocateMessageQueueAveragely(),
    AllocateMessageQueueAveragelyByCircle(),
    AllocateMessageQueueConsistentHash(),
    AllocateMessageQueueByMachineRoom(["r1", "r3"]),
    AllocateMachineRoomNearby(AllocateMessageQueueAveragely(), Rooms()),
]


def test_shares_are_javas(java: JavaPrograms, tmp_path: Path) -> None:
    """Covers C-165 to C-174: five strategies, 72 sizes each."""
    out = tmp_path / "shares"
    with java.start("JavaAllocate", out=out, queues=12, members=6) as program:
        program.wait_event("done")
        assert program.wait() == 0
    rows = [line.split("\t") for line in out.read_text().splitlines()]
    by_name = {strategy.name: strategy for strategy in STRATEGIES}
    assert {row[0] for row in rows} == set(by_name)
    for name, queues, members, cid, share in rows:
        mqs = sorted(
            MessageQueue("T", f"{room}@b", n)
            for room in ("r1", "r2", "r3")
            for n in range(int(queues))
        )
        cids = sorted(f"r{1 + i % 2}@c{i}" for i in range(int(members)))
        mine = by_name[name].allocate("g", cid, mqs, cids)
        assert ",".join(f"{mq.broker_name}:{mq.queue_id}" for mq in mine) == share, (
            name, queues, members, cid,
        )  # fmt: skip
