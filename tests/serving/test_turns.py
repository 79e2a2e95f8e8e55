"""While a broker does long work for one peer the others are answered: counted in turns of its loop.

Time passes with every look at the clock, and work in steps looks at it after each: who works in
which turn is the same on every machine.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rocketstream import limits
from rocketstream.protocol.codes import PullSysFlag, RequestCode
from rocketstream.protocol.command import RemotingCommand
from rocketstream.protocol.framing import FrameDecoder
from rocketstream.server.broker import Broker
from rocketstream.server.embedded import SMALL_STORE, EmbeddedCluster
from tests.plugins.pipes import Pipe, TickingClock, turn

STEPS_OF_SLICE = 10
STEPS_OF_TURN = STEPS_OF_SLICE + int(STEPS_OF_SLICE * limits.WORK_PASS_MS / limits.WORK_SLICE_MS)
"""What may be done in one turn of the loop, at most."""
QUEUES = 10_000
UNKNOWN_CODE = 999


class PipedPeer:
    """A peer of a broker that runs on the same loop."""

    def __init__(self, broker: Broker) -> None:
        assert broker._server is not None
        self.connection = broker._server._new_connection()
        self._pipe = Pipe(self.connection)
        self._decoder = FrameDecoder()
        self._opaque = 0
        self._answers: dict[int, RemotingCommand] = {}

    def submit(self, code: int, fields: dict[str, str]) -> int:
        """Send a request; return what its answer is known by."""
        self._opaque += 1
        command = RemotingCommand(code, self._opaque, ext_fields=fields)
        self.connection.data_received(command.frame())
        return command.opaque

    async def is_read(self) -> None:
        """Wait until the broker has done what was sent, and reads on."""
        while not self._pipe.reading:
            await turn()

    def answer(self, opaque: int) -> RemotingCommand | None:
        """Return the answer if it has come."""
        for command in self._decoder.feed(bytes(self._pipe.kept)):
            self._answers[command.opaque] = command
        self._pipe.kept.clear()
        return self._answers.pop(opaque, None)

    async def ask(self) -> RemotingCommand:
        """Ask something that is answered at once, in this turn of the loop or the next."""
        opaque = self.submit(UNKNOWN_CODE, {})
        answer = self.answer(opaque)
        if answer is None:
            await turn()
            answer = self.answer(opaque)
        assert answer is not None, "it has to wait"
        return answer

    def leave(self) -> None:
        if not self.connection.is_closed:
            self.connection.connection_lost(None)


@contextmanager
def peers_of(broker: Broker) -> Iterator[tuple[PipedPeer, PipedPeer]]:
    """Two peers of a broker; both leave at the end."""
    peers = PipedPeer(broker), PipedPeer(broker)
    try:
        yield peers
    finally:
        for peer in peers:
            peer.leave()


def run(folder: Path, play: Callable[[EmbeddedCluster], Awaitable[None]]) -> None:
    """Play with a cluster on the loop of the test."""

    async def whole() -> None:
        clock = TickingClock(limits.WORK_SLICE_MS / STEPS_OF_SLICE)
        async with EmbeddedCluster(folder, store_config=SMALL_STORE, clock=clock) as cluster:
            await asyncio.wait_for(play(cluster), 60)

    asyncio.run(whole())


async def meanwhile(neighbour: PipedPeer, work_left: Callable[[], int]) -> int:
    """Have a neighbour ask in every turn of the loop until the work is done; return how often.

    In no turn more than its share of the work is done.
    """
    asked, left = 0, work_left()
    while left:
        await neighbour.ask()
        await turn()
        before, left = left, work_left()
        assert before - left <= 2 * STEPS_OF_TURN, "two turns at most"
        asked += 1
    return asked


@pytest.mark.parametrize("code", [202, 208, 303])
def test_figures_of_very_many_queues_are_computed_and_written_in_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """A topic of 65,536 queues kept everybody waiting for a second, with each question."""

    async def play(cluster: EmbeddedCluster) -> None:
        await cluster.create_topic_async("Wide", QUEUES)
        store, uncounted = cluster.broker.store, QUEUES
        max_offset = store.max_offset

        def counting(topic: str, queue_id: int) -> int:
            nonlocal uncounted
            uncounted -= 1
            return max_offset(topic, queue_id)

        monkeypatch.setattr(store, "max_offset", counting)
        with peers_of(cluster.broker) as (peer, neighbour):
            names = {"topic": "Wide", "consumerGroup": "cg", "group": "cg"}
            opaque = peer.submit(code, names)
            asked = await meanwhile(neighbour, lambda: uncounted)
            assert asked >= QUEUES / (2 * STEPS_OF_TURN)
            answers: list[RemotingCommand] = []

            def unwritten() -> int:
                answer = peer.answer(opaque)
                answers.extend([answer] if answer else [])
                return 0 if answer else 1

            asked = await meanwhile(neighbour, unwritten)
            assert asked >= QUEUES / (2 * STEPS_OF_TURN)
            assert answers[0].code == 0
            assert bytes(answers[0].body).count(b'"Wide"') == QUEUES

    run(tmp_path, play)


def test_held_pulls_of_a_lost_connection_are_forgotten_in_turns(tmp_path: Path) -> None:
    """20,000 of them, as many as one connection may hold, a step for each."""
    count = limits.HELD_PULLS_OF_CONNECTION_MAX
    queues = count // limits.HELD_PULLS_OF_QUEUE_MAX + 1

    async def play(cluster: EmbeddedCluster) -> None:
        await cluster.create_topic_async("T1", queues)
        broker = cluster.broker
        with peers_of(broker) as (peer, neighbour):
            fields = {
                "consumerGroup": "cg", "topic": "T1", "queueOffset": "0", "maxMsgNums": "1",
                "sysFlag": str(PullSysFlag.SUSPEND | PullSysFlag.SUBSCRIPTION),
                "commitOffset": "0", "suspendTimeoutMillis": "600000", "subVersion": "0",
                "subscription": "*",
            }  # fmt: skip
            for number in range(count):
                fields["queueId"] = str(number % queues)
                peer.submit(RequestCode.PULL_MESSAGE, fields)
                await peer.is_read()
            while broker.held_pulls < count:
                await turn()
            peer.leave()
            asked = await meanwhile(neighbour, lambda: broker.held_pulls)
            assert asked >= count / (2 * STEPS_OF_TURN)

    run(tmp_path, play)
