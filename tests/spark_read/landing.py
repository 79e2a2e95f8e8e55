"""Landing a topic in Parquet while driver, executors and broker are killed, and what shows it.

Law: processes, notes and checkpoint files; which broker it is comes from outside.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import MappingProxyType
from typing import Final, Protocol

from rocketstream.spark.listener.queries import GIVEN_UP
from tests.kits.spark.engines import ROOT, environment
from tests.kits.spark.support import numbered, send

TOPIC: Final = "landed"
QUEUES: Final = 4
ROWS: Final = 150
"""What each queue gets at a time: six micro-batches for all four."""
BODIES: Final = 1_000_000
"""Bodies of queue N are numbers from N times this on."""
DRIVER_AND_TASKS: Final = "local[2]"
EXECUTORS: Final = "local-cluster[2,1,1024]"
STANDS_STILL_S: Final = 240
JVM_WORDS: Final = (b"SparkSubmit", b"CoarseGrainedExecutorBackend")


class Broker(Protocol):
    """A broker with its name server, to be killed."""

    @property
    def namesrv_addr(self) -> str:
        """The name server."""
        ...

    @property
    def broker_addr(self) -> str:
        """The broker."""
        ...

    def kill(self) -> None:
        """kill -9."""

    def restart(self) -> None:
        """Start it again where it was, with what it has on disk; ready when this returns."""


class Topic:
    """What is in the topic: each queue as many messages, numbered."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.rows_each = 0

    def grow(self) -> None:
        """Send more; acknowledged when this returns."""
        for queue_id in range(QUEUES):
            first = queue_id * BODIES + self.rows_each
            send(self._broker, TOPIC, queue_id, numbered(first, ROWS))
        self.rows_each += ROWS

    def numbers(self) -> list[int]:
        """All of it, sorted."""
        queues = range(0, QUEUES * BODIES, BODIES)
        return [number for first in queues for number in range(first, first + self.rows_each)]


class Landing:
    """The job, started as often as it is killed."""

    def __init__(self, broker: Broker, root: Path, settings: Mapping[str, str]) -> None:
        self._broker = broker
        self._root = root
        words = [f"--conf {name}={value}" for name, value in settings.items()]
        self._arguments = " ".join([*words, "pyspark-shell"])
        self._process: subprocess.Popen[bytes] | None = None
        self._pause = threading.Event()
        self._command = ("", "")
        (root / "notes").mkdir()

    def start(self, master: str, when: str = "killed") -> None:
        """Start it in a process group of its own, with its JVM and its executors."""
        self._command = (master, when)
        (self._root / "hold").unlink(missing_ok=True)
        program = [sys.executable, "-m", "tests.spark_read.landing_program"]
        with (self._root / "log").open("wb") as log:
            self._process = subprocess.Popen(
                [*program, master, self._broker.namesrv_addr, TOPIC, str(self._root), when],
                cwd=ROOT,
                env=environment() | {"PYSPARK_SUBMIT_ARGS": self._arguments},
                start_new_session=True,
                stdout=subprocess.DEVNULL,
                stderr=log,
            )

    def notes(self) -> dict[tuple[int, int], list[str]]:
        """What each attempt read, by micro-batch and partition."""
        found = defaultdict(list)
        for note in (self._root / "notes").iterdir():
            batch, partition, _ = note.name.split("-")
            found[int(batch), int(partition)].append(note.read_text())
        return found

    def go_on(self, hold: bool = False) -> None:
        """Wait until one more task has read its rows; with ``hold`` it stands still then."""
        wanted = self._noted() + 1
        if hold:
            (self._root / "hold").touch()
        self._wait(lambda: self._noted() >= wanted)

    def _noted(self) -> int:
        return len(list((self._root / "notes").iterdir()))

    def _wait(self, until: Callable[[], bool]) -> None:
        for _ in range(STANDS_STILL_S * 50):
            if until():
                return
            self._start_again_if_given_up()
            self._pause.wait(0.02)
        for pid in self._jvms(JVM_WORDS):
            os.kill(pid, signal.SIGQUIT)  # prints what its threads do
        self._pause.wait(5)
        raise AssertionError(f"it stands still:\n{self._log()}")

    def _start_again_if_given_up(self) -> None:
        if self._exit_code() not in (None, 0):
            assert GIVEN_UP in self._log(), f"it ended:\n{self._log()}"
            self.start(*self._command)

    def _exit_code(self) -> int | None:
        assert self._process is not None
        return self._process.poll()

    def _log(self) -> str:
        return (self._root / "log").read_text(errors="replace")[-20_000:]

    def _jvms(self, words: tuple[bytes, ...]) -> list[int]:
        """Which of its processes have one of these words in their command."""
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                command = (folder / "cmdline").read_bytes()
                if any(word in command for word in words) and self._is_ours(int(folder.name)):
                    found.append(int(folder.name))
        return found

    def _is_ours(self, pid: int) -> bool:
        assert self._process is not None
        return os.getpgid(pid) == self._process.pid

    def kill_executor(self, chance: random.Random) -> None:
        """kill -9 of one executor, and of its Python with it."""
        os.kill(chance.choice(self._jvms((b"CoarseGrainedExecutorBackend",))), signal.SIGKILL)
        (self._root / "hold").unlink(missing_ok=True)

    def kill(self, after_s: float = 0) -> tuple[int, int]:
        """kill -9 of everything, a moment later; return how many micro-batches began and ended."""
        if self._process is not None:
            self._pause.wait(after_s)
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(30)
        return self._logged("offsets"), self._logged("commits")

    def _logged(self, folder: str) -> int:
        return len(list((self._root / "checkpoint" / folder).glob("[0-9]*")))

    def finish(self) -> None:
        """Run to the end of the topic."""
        self.start(DRIVER_AND_TASKS, "end")
        self._wait(lambda: self._exit_code() == 0)

    def named(self) -> dict[int, dict[str, list[int]]]:
        """What the checkpoint says each micro-batch is: by queue, from where to where."""
        found, before = {}, dict.fromkeys(map(str, range(QUEUES)), 0)
        for batch in range(self._logged("offsets")):
            text = (self._root / "checkpoint" / "offsets" / str(batch)).read_text()
            (ends,) = json.loads(text.splitlines()[-1])["q"][TOPIC].values()
            spans = {queue: [before[queue], end] for queue, end in ends.items()}
            found[batch] = {queue: span for queue, span in spans.items() if span[0] < span[1]}
            before = ends
        return found


@contextmanager
def landing_from(
    broker: Broker, root: Path, settings: Mapping[str, str] = MappingProxyType({})
) -> Iterator[Landing]:
    """Lend a job, with these settings of Spark; whatever of it still runs is killed at the end."""
    landing = Landing(broker, root, settings)
    try:
        yield landing
    finally:
        landing.kill()


def land_through_kills(landing: Landing, broker: Broker, topic: Topic, kills: int) -> int:
    """Kill the driver so many times, and executor or broker before that; return the replays.

    Every second job runs on executors, one of which is killed; under the others it is the broker.
    Of three drivers one is killed at any moment of a micro-batch, two when a task has read its
    rows and nothing is committed. Every fifth time one more is killed before it has read anything.
    """
    chance = random.Random(kills)
    replays = 0
    for number in range(kills):
        topic.grow()
        if number % 5 == 3:
            landing.start(DRIVER_AND_TASKS)
            landing.kill(chance.random() * 6)
        on_executors = number % 2 == 0
        landing.start(EXECUTORS if on_executors else DRIVER_AND_TASKS)
        landing.go_on(hold=on_executors and chance.random() < 0.5)
        if on_executors:
            landing.kill_executor(chance)
        else:
            broker.kill()
            broker.restart()
        topic.grow()
        any_moment = number % 3 == 2
        landing.go_on(hold=not any_moment)
        begun, ended = landing.kill(chance.random() if any_moment else 0)
        replays += begun > ended
    landing.finish()
    return replays


def check(landing: Landing, topic: Topic, numbers: list[int], replays: int) -> None:
    """Each message once; each attempt at a task the same rows, those the checkpoint names.

    An attempt whose JVM was killed may have seen the first of them only.
    """
    got, sent = Counter(numbers), Counter(topic.numbers())
    assert got == sent, f"lost {sorted(sent - got)[:20]}, repeated {sorted(got - sent)[:20]}"
    read: dict[int, dict[str, list[int]]] = defaultdict(dict)
    read_again = 0
    for (batch, partition), attempts in sorted(landing.notes().items()):
        whole = max(attempts, key=len)
        others = [rows for rows in attempts if not whole.startswith(rows)]
        assert not others, f"batch {batch}, partition {partition}: {whole!r}, but also {others}"
        read_again += attempts.count(whole) > 1
        for queue, offset, _ in map(str.split, whole.splitlines()):
            span = read[batch].setdefault(queue, [int(offset), int(offset)])
            assert int(offset) == span[1], "a gap, or out of order"
            span[1] = int(offset) + 1
    named = landing.named()
    assert read == named, [(n, read.get(n), named.get(n)) for n in named if read[n] != named[n]]
    assert read_again, f"{replays} replays, and no task among them that had read its rows before"
