"""Taskiq over RocketMQ, with kill -9 of the worker and of the broker in the middle of the work.

Run it as it is: it starts a server on a folder of its own and workers beside it. In a program of
yours only the first part is needed, and `taskiq worker taskiq_tasks:broker`.
"""

from __future__ import annotations

import asyncio
import collections
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path

from taskiq.exceptions import SendTaskError

from rocketstream import ClientConfig
from rocketstream.frameworks.taskiq import RocketMQBroker

TASKS, AT_ONCE = 200, 4

broker = RocketMQBroker(
    "example-bills",
    namesrv_addr=os.environ.get("NAMESRV_ADDR"),
    config=ClientConfig(persist_consumer_offset_interval_ms=500),
)


@broker.task(task_name="bill")
async def bill(number: int) -> None:
    """Bill an order: here a line in a file, which is there whatever happens next."""
    await asyncio.sleep(0.03)
    done = os.open(os.environ["EXAMPLE_DONE"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.write(done, b"%d\n" % number)
    os.close(done)


# --- the rest starts processes, kills them, and counts --------------------------------------------


def serve(store: Path, port: str) -> tuple[subprocess.Popen[str], str]:
    """Start a server; return it and its name server's address."""
    words = ["serve", "--store", str(store), "--flush", "sync", "--broker-port", "0"]
    process = subprocess.Popen(
        [sys.executable, "-m", "rocketstream", *words, "--namesrv-port", port],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    ready = dict(word.split("=", 1) for word in process.stdout.readline().split()[1:])
    return process, ready["namesrv"]


def work() -> subprocess.Popen[str]:
    """Start a worker."""
    words = ["worker", "taskiq_tasks:broker", "--workers", "1", "--max-async-tasks", str(AT_ONCE)]
    return subprocess.Popen(
        [sys.executable, "-m", "taskiq", *words, "--log-level", "ERROR"],
        cwd=Path(__file__).parent,
        text=True,
        start_new_session=True,
    )


def kill(process: subprocess.Popen[str]) -> None:
    """Kill -9 a process and those it started."""
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


def billed() -> list[str]:
    """Return the orders billed so far, one as often as it was."""
    done = Path(os.environ["EXAMPLE_DONE"])
    return done.read_text().split() if done.exists() else []


async def until(reached: Callable[[], bool]) -> None:
    """Wait, at most a minute."""
    for _ in range(1_200):
        if reached():
            return
        await asyncio.sleep(0.05)
    raise TimeoutError


async def kick(send: Callable[[int], Awaitable[object]]) -> None:
    """Kick every task; one the broker did not take is kicked again."""
    for number in range(TASKS):
        while True:
            try:
                await send(number)
                break
            except SendTaskError:
                await asyncio.sleep(0.2)
        await asyncio.sleep(0.01)


async def survive(folder: Path) -> None:
    """Kick tasks while worker and broker are killed; return when all are done."""
    server, address = serve(folder / "store", "0")
    worker = None
    os.environ.update(NAMESRV_ADDR=address, EXAMPLE_DONE=str(folder / "done"))
    await broker.startup()
    try:
        kicking = asyncio.create_task(kick(bill.kiq))
        await asyncio.sleep(0.2)
        worker = work()
        await until(lambda: len(billed()) > TASKS // 4)
        kill(worker)
        worker = work()
        await until(lambda: len(set(billed())) > TASKS // 2)
        kill(server)
        server, _ = serve(folder / "store", address.rpartition(":")[2])
        await kicking
        await until(lambda: len(set(billed())) == TASKS)
    finally:
        await broker.shutdown()
        for process in (worker, server):
            if process is not None:
                kill(process)


def main() -> None:
    """Survive, and say what happened."""
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(survive(Path(folder)))
        times = collections.Counter(billed())
    again = sum(count > 1 for count in times.values())
    print(f"{len(times)} of {TASKS} orders billed over two kills, {again} of them more than once")


if __name__ == "__main__":
    main()
