"""FastStream over RocketMQ, with kill -9 of service and broker in the middle of the work.

Run it as it is: it starts a server on a folder of its own and the service beside it. In a program
of yours only the first part is needed, and `faststream run faststream_orders:app` (it comes with
faststream[cli]), or `asyncio.run(app.run())` as here.
"""

from __future__ import annotations

import asyncio
import collections
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from faststream import FastStream
from pydantic import BaseModel

from rocketstream import ClientConfig, SendError
from rocketstream.frameworks.faststream import RocketMQBroker, RocketMQMessage

ORDERS, AT_ONCE = 200, 4


class Order(BaseModel):
    """What customers send."""

    number: int


class Invoice(BaseModel):
    """What they get."""

    number: int
    sum: int


broker = RocketMQBroker(
    os.environ.get("NAMESRV_ADDR"),
    config=ClientConfig(persist_consumer_offset_interval_ms=500),
    logger=None,
)
app = FastStream(broker, logger=None)


@broker.subscriber("example-orders", group="billing", max_workers=AT_ONCE)
@broker.publisher("example-invoices")
async def bill(order: Order, message: RocketMQMessage) -> Invoice:
    """Bill an order; every tenth fails at first, and comes again."""
    await asyncio.sleep(0.03)
    if order.number % 10 == 0 and message.raw_message.reconsume_times == 0:
        raise LookupError("the price list is out of reach")
    return Invoice(number=order.number, sum=3 * order.number)


@broker.subscriber("example-invoices", group="accounting")
async def book(invoice: Invoice) -> None:
    """Book an invoice: here a line in a file, which is there whatever happens next."""
    done = os.open(os.environ["EXAMPLE_DONE"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.write(done, b"%d\n" % invoice.number)
    os.close(done)


# --- the rest starts processes, kills them, and counts --------------------------------------------


def serve(store: Path, *ports: str) -> tuple[subprocess.Popen[str], list[str]]:
    """Start a server; return it and the addresses of name server and broker."""
    namesrv_port, broker_port = ports or ("0", "0")
    words = ["serve", "--store", str(store), "--flush", "sync"]
    words += ["--namesrv-port", namesrv_port, "--broker-port", broker_port]
    process = subprocess.Popen(
        [sys.executable, "-m", "rocketstream", *words],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    ready = dict(word.split("=", 1) for word in process.stdout.readline().split()[1:])
    return process, [ready["namesrv"], ready["broker"]]


def work() -> subprocess.Popen[str]:
    """Start the service."""
    return subprocess.Popen(
        [sys.executable, __file__, "work"],
        text=True,
        start_new_session=True,
        stderr=subprocess.DEVNULL,  # what it says of connections that were killed
    )


def kill(process: subprocess.Popen[str]) -> None:
    """Kill -9 a process."""
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


def booked() -> list[str]:
    """Return the invoices booked so far, one as often as it was."""
    done = Path(os.environ["EXAMPLE_DONE"])
    return done.read_text().split() if done.exists() else []


async def until(reached: Callable[[], bool]) -> None:
    """Wait, at most a minute."""
    for _ in range(1_200):
        if reached():
            return
        await asyncio.sleep(0.05)
    raise TimeoutError


async def order(customers: RocketMQBroker) -> None:
    """Send every order; one the broker did not take is sent again."""
    for number in range(ORDERS):
        while True:
            try:
                await customers.publish(Order(number=number), "example-orders", keys=str(number))
                break
            except SendError:
                await asyncio.sleep(0.2)
        await asyncio.sleep(0.01)


async def survive(folder: Path) -> None:
    """Order while service and broker are killed; return when all is booked."""
    server, addresses = serve(folder / "store")
    service = None
    os.environ.update(NAMESRV_ADDR=addresses[0], EXAMPLE_DONE=str(folder / "done"))
    try:
        async with RocketMQBroker(addresses[0], logger=None) as customers:
            ordering = asyncio.create_task(order(customers))
            await asyncio.sleep(0.2)
            service = work()
            await until(lambda: len(booked()) > ORDERS // 4)
            kill(service)
            service = work()
            await until(lambda: len(set(booked())) > ORDERS // 2)
            kill(server)
            server, _ = serve(folder / "store", *(each.rpartition(":")[2] for each in addresses))
            await ordering
            await until(lambda: len(set(booked())) == ORDERS)
    finally:
        for process in (service, server):
            if process is not None:
                kill(process)


def main() -> None:
    """Survive, and say what happened."""
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(survive(Path(folder)))
        times = collections.Counter(booked())
    again = sum(count > 1 for count in times.values())
    print(f"{len(times)} of {ORDERS} orders billed over two kills, {again} of them more than once")


if __name__ == "__main__":
    if sys.argv[1:] == ["work"]:
        asyncio.run(app.run())
    else:
        main()
