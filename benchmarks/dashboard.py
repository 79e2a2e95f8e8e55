"""The dashboard on a large cluster: how long pages take, what it holds, what it asks of brokers.

Law: the embedded cluster in one process, filled over the wire, the dashboard in another; it is
looked at as a browser looks at it.
"""

from __future__ import annotations

import http.client
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from benchmarks.harness import ROOT, Figure, embedded_server
from benchmarks.setting import Settings
from rocketstream import Message, Producer
from rocketstream.admin import Admin
from rocketstream.client.admin.blocking import BlockingAdminClient
from rocketstream.model import MessageQueue

TOPICS: Final = 1_000
GROUPS: Final = 200
QUEUES: Final = 4
TOPICS_OF_A_GROUP: Final = 5
SWEEPS: Final = 4
INTERVAL_S: Final = 10
_ASKS: Final = re.compile(r"asks the brokers ([\d.,]+) times a second")
_SWEEP: Final = re.compile(r"takes ([^<]+?) and asks")


def dashboard(settings: Settings) -> Iterator[Figure]:
    """Pages over 1,000 topics and 200 groups; started, warm, and while others look too."""
    with embedded_server(settings.place("store")) as cluster:
        fill(cluster.namesrv_addr)
        command = [
            sys.executable, "-m", "rocketstream", "dashboard", "-n", cluster.namesrv_addr,
            "--port", "0", "--interval", str(INTERVAL_S),
            "--history", str(settings.place("history") / "history.db"),
        ]  # fmt: skip
        began = time.perf_counter()
        process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        try:
            assert process.stdout is not None
            port = int(process.stdout.readline().split(":")[-1].strip("/\n"))
            yield from looked_at(port, process.pid, began, settings.runs)
        finally:
            process.terminate()
            process.communicate()


def fill(namesrv: str) -> None:
    """Make the topics and groups, with a message in each queue and an offset for each group."""
    with (
        Admin(namesrv) as admin,
        Producer("fill", namesrv_addr=namesrv) as producer,
        BlockingAdminClient(namesrv) as client,
    ):
        for number in range(TOPICS):
            admin.topics.create(f"topic-{number:04}", QUEUES)
            for _ in range(QUEUES):
                producer.send(Message(f"topic-{number:04}", b"x" * 100))
        for number in range(GROUPS):
            for step in range(TOPICS_OF_A_GROUP):
                topic = f"topic-{(number * TOPICS_OF_A_GROUP + step) % TOPICS:04}"
                for queue in range(QUEUES):
                    at = MessageQueue(topic, "broker-a", queue)
                    client.update_consumer_offset(f"group-{number:03}", at, number % 2)


def looked_at(port: int, pid: int, began: float, runs: int) -> Iterator[Figure]:
    """The figures."""
    while get(port, "/healthz")[0] != 200:
        time.sleep(0.05)
    first_s, text = page(port, "/")
    notes = {
        "topics": TOPICS, "groups": GROUPS, "queues": TOPICS * QUEUES,
        "from_start_s": round(time.perf_counter() - began, 2), "kib": len(text) // 1024,
    }  # fmt: skip
    yield Figure("dashboard, first page", "ms", [first_s * 1_000], notes=notes)
    for path in ("/", "/topics", "/group?name=group-007", "/topic?name=topic-0007", "/metrics"):
        spent = [page(port, path)[0] * 1_000 for _ in range(max(runs, 5))]
        yield Figure(f"dashboard {path}", "ms", spent)
    found = None
    while found is None:
        time.sleep(1)
        text = get(port, "/")[1]
        found = _ASKS.search(text)
    time.sleep(INTERVAL_S * (SWEEPS - 1))
    text = get(port, "/")[1]
    asked, sweep = _ASKS.search(text), _SWEEP.search(text)
    assert asked is not None
    assert sweep is not None
    rate = float(asked[1].replace(",", ""))
    yield Figure(
        "dashboard, requests to brokers", "a second", [rate],
        notes={"interval_s": INTERVAL_S, "sweep": sweep[1]},
    )  # fmt: skip
    yield Figure("dashboard, resident memory", "MiB", [resident_mib(pid)])


def page(port: int, path: str) -> tuple[float, str]:
    """Seconds until a page was read, and its text."""
    began = time.perf_counter()
    status, text = get(port, path)
    assert status == 200, (path, status)
    return time.perf_counter() - began, text


def get(port: int, path: str) -> tuple[int, str]:
    """One request on a connection of its own."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request("GET", path, headers={"Accept": "text/html"})
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def resident_mib(pid: int) -> float:
    """Resident memory of a process."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) / 1_024
