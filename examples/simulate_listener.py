"""Find a bug in a listener by simulating crashes, and see that the repair holds.

    python examples/simulate_listener.py

The first listener is quick: it keeps rows in memory, returns success, and writes them together a
little later. It passes every test on a quiet day. The second one writes before it answers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from rocketstream import ConsumeConcurrentlyStatus, MessageExt
from rocketstream.testing.sim.simulate import Listener, Process, simulate

SUCCESS = ConsumeConcurrentlyStatus.CONSUME_SUCCESS


def naive(process: Process) -> Listener:
    """One process: collects rows and writes them once a second."""
    rows: list[str] = []  # memory: gone when the process dies
    writing: list[asyncio.Task[None]] = []

    async def write() -> None:
        await asyncio.sleep(1)  # virtual time: it takes none
        process.database.update(dict.fromkeys(rows, process.name))
        rows.clear()
        writing.clear()

    async def listener(messages: list[MessageExt]) -> ConsumeConcurrentlyStatus:
        rows.extend(str(message.keys) for message in messages)
        if not writing:
            writing.append(asyncio.create_task(write()))
        return SUCCESS  # the offset may be committed before the row is written

    return listener


def careful(process: Process) -> Listener:
    """One process: answers when the row is written."""

    async def listener(messages: list[MessageExt]) -> ConsumeConcurrentlyStatus:
        await asyncio.sleep(0.05)
        process.database.update({str(message.keys): process.name for message in messages})
        return SUCCESS

    return listener


def every_order_is_written(database: dict[str, str], acknowledged: Sequence[str]) -> None:
    """What was acknowledged to the producer is in the database in the end."""
    for key in acknowledged:
        assert key in database, f"{key} was never written"


def main() -> None:
    """Simulate both."""
    found = simulate(naive, check=every_order_is_written, seeds=300)
    print("naive:", found)
    again = simulate(careful, check=every_order_is_written, seeds=20)
    print("careful:", again)


if __name__ == "__main__":
    main()
