"""Celery over RocketMQ, with kill -9 of the worker and of the broker in the middle of the work.

Run it as it is: it starts a server on a folder of its own and workers beside it. In a program of
yours only the first part is needed, and `celery -A celery_tasks worker`.
"""

from __future__ import annotations

import collections
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

from celery import Celery
from kombu.exceptions import OperationalError

import rocketstream.frameworks.kombu  # noqa: F401 - makes rocketmq:// known

TASKS = 200

app = Celery("example")
app.conf.update(
    broker_url=f"rocketmq://{os.environ.get('NAMESRV_ADDR', '')}",
    broker_transport_options={"client_settings": {"persist_consumer_offset_interval_ms": 500}},
    broker_connection_retry_on_startup=True,
    task_default_queue="example-bills",
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    worker_prefetch_multiplier=1,
)


@app.task(name="bill", ignore_result=True)
def bill(number: int) -> None:
    """Bill an order: here a line in a file, which is there whatever happens next."""
    time.sleep(0.01)
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
    """Start a worker, with two processes of its own."""
    words = ["-A", "celery_tasks", "--quiet", "worker", "--concurrency", "2", "-l", "CRITICAL"]
    return subprocess.Popen(
        [sys.executable, "-m", "celery", *words],
        cwd=Path(__file__).parent,
        stdout=subprocess.DEVNULL,
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


def until(reached: Callable[[], bool]) -> None:
    """Wait, at most a minute."""
    for _ in range(1_200):
        if reached():
            return
        time.sleep(0.05)
    raise TimeoutError(f"{len(set(billed()))} of {TASKS} orders billed")


def send() -> None:
    """Send every task; one the broker did not take is sent again."""
    for number in range(TASKS):
        while True:
            try:
                bill.delay(number)
                break
            except OperationalError:
                time.sleep(0.2)
        time.sleep(0.01)


def survive(folder: Path) -> None:
    """Send tasks while worker and broker are killed; return when all are done."""
    server, address = serve(folder / "store", "0")
    worker = None
    os.environ.update(NAMESRV_ADDR=address, EXAMPLE_DONE=str(folder / "done"))
    app.conf.broker_url = f"rocketmq://{address}"
    sending = threading.Thread(target=send, daemon=True)
    try:
        sending.start()
        time.sleep(0.2)
        worker = work()
        until(lambda: len(billed()) > TASKS // 4)
        kill(worker)
        worker = work()
        until(lambda: len(set(billed())) > TASKS // 2)
        kill(server)
        server, _ = serve(folder / "store", address.rpartition(":")[2])
        until(lambda: len(set(billed())) == TASKS)
        sending.join()
        app.close()
    finally:
        for process in (worker, server):
            if process is not None:
                kill(process)


def main() -> None:
    """Survive, and say what happened."""
    with tempfile.TemporaryDirectory() as folder:
        survive(Path(folder))
        times = collections.Counter(billed())
    again = sum(count > 1 for count in times.values())
    print(f"{len(times)} of {TASKS} orders billed over two kills, {again} of them more than once")


if __name__ == "__main__":
    main()
