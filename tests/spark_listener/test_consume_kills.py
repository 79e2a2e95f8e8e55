"""Many messages, a hundredth failing, drivers killed: nothing is lost, and the same is dead.

``CONSUME_MESSAGES`` says how many (20,000).
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rocketstream import PushConsumer
from rocketstream.admin import Admin
from rocketstream.client.admin.blocking import BlockingAdminClient
from rocketstream.errors import BrokerError
from rocketstream.model import ConsumeFromWhere, MessageQueue
from rocketstream.server.embedded import EmbeddedCluster
from rocketstream.spark.listener.queries import GIVEN_UP
from tests.kits.spark.broker_contents import pulled
from tests.kits.spark.engines import environment
from tests.kits.spark.served import served
from tests.kits.spark.support import HasBroker, numbered, send
from tests.spark_listener.outcomes import (
    RETRIES,
    expected,
    noted,
    outcome_listener,
    poison,
    table_of,
)

ROOT = Path(__file__).resolve().parents[2]
MESSAGES = int(os.environ.get("CONSUME_MESSAGES", "20000"))
FEWER = MESSAGES // 4
"""For executors, which are slow to be replaced, and a broker that syncs what it acknowledges."""
QUEUES = 4
KILLS = 2
DELAY_MS = 1_000
WAIT_S = 540.0

pytestmark = [
    pytest.mark.spark,
    pytest.mark.long,
    pytest.mark.chaos,
    pytest.mark.timeout(900),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


@pytest.fixture
def shared_cluster() -> Iterator[EmbeddedCluster]:
    """A cluster of its own that delays every retry by a second."""
    with EmbeddedCluster(delay_levels=" ".join(["1s"] * 18)) as running:
        running.create_topic("table", queues=QUEUES)
        fill(running, MESSAGES)
        yield running


@pytest.fixture
def admin(shared_cluster: EmbeddedCluster) -> Iterator[BlockingAdminClient]:
    with BlockingAdminClient(shared_cluster.namesrv_addr, timeout_ms=20_000) as client:
        yield client


def wait(until: Callable[[], bool], what: Callable[[], str]) -> None:
    pause = threading.Event()
    for _ in range(int(WAIT_S / 0.2)):
        if until():
            return
        pause.wait(0.2)
    raise AssertionError(what())


class Driver:
    """The consumer in a process group of its own, with its JVM and its executors."""

    def __init__(self, name_server: str, root: Path, master: str = "local[2]") -> None:
        program = [sys.executable, "-m", "tests.spark_listener.listener_program"]
        self._command = [*program, name_server, "table", str(root), master]
        self._root = root
        self._start()

    def _start(self) -> None:
        with (self._root / "driver.log").open("wb") as log:
            self._process = subprocess.Popen(
                self._command, cwd=ROOT, env=environment(), start_new_session=True,
                stdout=subprocess.DEVNULL, stderr=log,
            )  # fmt: skip

    @property
    def log(self) -> str:
        """The end of what it said."""
        return (self._root / "driver.log").read_text(errors="replace")[-4_000:]

    def go_on(self) -> None:
        """Make sure that it runs: one that Spark gave up is started again."""
        if self._process.poll() is not None:
            assert GIVEN_UP in (self._root / "driver.log").read_text(errors="replace"), self.log
            self._start()

    def reach(self, notes: Path, count: int) -> None:
        """Wait for so many calls."""

        def reached() -> bool:
            self.go_on()
            return calls(notes) >= count

        wait(reached, lambda: f"only {calls(notes)} calls of {count}\n{self.log}")

    def finish(self, until: Callable[[], bool], what: Callable[[], str]) -> None:
        """Wait for something, then have it shut down in its own order."""

        def there() -> bool:
            self.go_on()
            return until()

        wait(there, lambda: f"{what()}\n{self.log}")
        (self._root / "stop").touch()
        assert self._process.wait(120) == 0, self.log

    def kill(self) -> None:
        """kill -9 of everything."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(30)

    def kill_executor(self, which: int) -> None:
        """kill -9 of one of the JVMs that run its tasks."""
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                is_executor = b"CoarseGrainedExecutorBackend" in (folder / "cmdline").read_bytes()
                if is_executor and os.getpgid(int(folder.name)) == self._process.pid:
                    found.append(int(folder.name))
        os.kill(sorted(found)[which], signal.SIGKILL)


def calls(folder: Path) -> int:
    """How often a listener was called; quick, unlike reading the notes."""
    return sum(path.read_bytes().count(b"\n") for path in folder.iterdir())


def dead_letters(admin: BlockingAdminClient, group: str) -> set[int]:
    queue = MessageQueue(f"%DLQ%{group}", "broker-a", 0)
    found: set[int] = set()
    try:
        end = admin.max_offset(queue)
    except BrokerError:
        return found
    at = 0
    while at < end:
        messages = pulled(admin, queue, at)
        found.update(int(message.body) for message in messages)
        at += len(messages)
    return found


def fill(cluster: HasBroker, count: int) -> None:
    """Put so many messages into the queues of the topic."""
    each = count // QUEUES
    for queue_id in range(QUEUES):
        send(cluster, "table", queue_id, numbered(queue_id * each, each))


def all_consumed(admin: BlockingAdminClient, group: str) -> bool:
    """Whether the group's offsets stand at the ends of its topic and its retry topic."""
    for topic in ("table", f"%RETRY%{group}"):
        for queue in admin.subscribe_queues(topic):
            if admin.query_consumer_offset(group, queue) != admin.max_offset(queue):
                return False
    return True


def finished(admin: BlockingAdminClient, group: str, folder: Path, count: int = MESSAGES) -> bool:
    return dead_letters(admin, group) == poison(count) and table_of(folder) == expected(count)


def difference(folder: Path, count: int = MESSAGES) -> str:
    got, wanted = table_of(folder), expected(count)
    wrong = {n: (got.get(n), wanted[n]) for n in wanted if got.get(n) != wanted[n]}
    return f"{len(wrong)} messages differ, among them {dict(list(wrong.items())[:5])}"


def test_drivers_killed_lose_nothing_and_the_outcome_is_a_push_consumers(
    shared_cluster: EmbeddedCluster, admin: BlockingAdminClient, tmp_path: Path
) -> None:
    """Each failure is tried again not before its delay, poison is dead after the last try."""
    notes = tmp_path / "notes"
    notes.mkdir()
    for _ in range(KILLS):
        driver = Driver(shared_cluster.namesrv_addr, tmp_path)
        driver.reach(notes, calls(notes) + MESSAGES // (KILLS + 1))
        driver.kill()
    driver = Driver(shared_cluster.namesrv_addr, tmp_path)
    driver.finish(lambda: finished(admin, "killed", notes), lambda: difference(notes))
    assert all_consumed(admin, "killed")
    assert_no_try_is_early(notes)

    push = tmp_path / "push"
    push.mkdir()
    consumer = PushConsumer(
        "push",
        namesrv_addr=shared_cluster.namesrv_addr,
        listener=outcome_listener(str(push)),
        subscription={"table": "*"},
        max_reconsume_times=RETRIES,
        consume_from_where=ConsumeFromWhere.FIRST_OFFSET,
    )
    with consumer:
        wait(lambda: finished(admin, "push", push), lambda: difference(push))
    assert table_of(push) == table_of(notes)
    assert dead_letters(admin, "push") == dead_letters(admin, "killed")


def test_executors_and_a_broker_killed_lose_nothing(tmp_path: Path) -> None:
    """Spark runs their tasks again, and what could not be sent back is, once somebody listens."""
    notes = tmp_path / "notes"
    notes.mkdir()
    delays = ("--delay-levels", " ".join(["1s"] * 18))
    with served(tmp_path / "store", *delays) as server, Admin(server.namesrv_addr) as operator:
        operator.topics.create("table", queues=QUEUES)
        fill(server, FEWER)
        driver = Driver(server.namesrv_addr, tmp_path, "local-cluster[2,1,1024]")
        try:
            driver.reach(notes, FEWER // 8)
            driver.kill_executor(0)
            driver.reach(notes, FEWER * 3 // 8)
            server.kill()
            server.restart()
            driver.reach(notes, FEWER * 5 // 8)
            driver.kill_executor(-1)
            with BlockingAdminClient(server.namesrv_addr, timeout_ms=20_000) as admin:
                driver.finish(
                    lambda: finished(admin, "killed", notes, FEWER),
                    lambda: difference(notes, FEWER),
                )
                assert all_consumed(admin, "killed")
        finally:
            driver.kill()
    assert_no_try_is_early(notes)


def assert_no_try_is_early(notes: Path) -> None:
    for tries in noted(notes).values():
        for number in range(1, len(tries)):
            assert tries[number] - tries[number - 1] >= DELAY_MS
