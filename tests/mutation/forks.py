"""Work done in forks of this process, a few at a time, each with a deadline.

Law: a fork answers one text and ends; what it started ends with it.
"""

from __future__ import annotations

import math
import os
import resource
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import wait

# A defect may allocate for ever.
DATA_BYTES_MAX = 3 << 30
TIMED_OUT = "time out"
DIED = "died"


@dataclass(frozen=True)
class Job:
    """A function that returns its answer, and how long it may take."""

    work: Callable[[Callable[[str], None]], str]
    seconds: float


@dataclass(frozen=True)
class _Running:
    index: int
    pid: int
    pipe: int
    home: str
    until: float

    def fileno(self) -> int:
        return self.pipe


def run(jobs: Sequence[Job], processes: int, until: float = math.inf) -> Iterator[tuple[int, str]]:
    """Yield (index of a job, its answer) as they end; blocks.

    ``work`` is given a function that answers and ends the process at once. None is started after
    ``until``, a time of the monotonic clock.
    """
    waiting = list(enumerate(jobs))[::-1]
    running: list[_Running] = []
    while waiting or running:
        if time.monotonic() >= until:
            waiting.clear()
        while waiting and len(running) < processes:
            running.append(_start(*waiting.pop()))
        if not running:
            return
        left = max(0.0, min(each.until for each in running) - time.monotonic())
        ended = wait([each.pipe for each in running], left)
        for each in list(running):
            late = time.monotonic() >= each.until
            if each.pipe in ended or late:
                running.remove(each)
                yield each.index, _end(each, each.pipe in ended)


def _start(index: int, job: Job) -> _Running:
    reading, writing = os.pipe()
    home = tempfile.mkdtemp(prefix="mutant-")
    pid = os.fork()
    if not pid:
        os.close(reading)
        _child(job, writing, home)
    os.close(writing)
    return _Running(index, pid, reading, home, time.monotonic() + job.seconds)


def _child(job: Job, writing: int, home: str) -> None:
    def answer(text: str) -> None:
        view = memoryview(text.encode() or b" ")
        while view:
            view = view[os.write(writing, view) :]
        os._exit(0)

    try:
        os.setsid()
        resource.setrlimit(resource.RLIMIT_DATA, (DATA_BYTES_MAX, DATA_BYTES_MAX))
        os.environ["PYTEST_DEBUG_TEMPROOT"] = os.environ["TMPDIR"] = tempfile.tempdir = home
        nothing = os.open(os.devnull, os.O_RDWR)
        for standard in (0, 1, 2):
            os.dup2(nothing, standard)
        answer(job.work(answer))
    finally:
        os._exit(3)


def _end(each: _Running, answered: bool) -> str:
    """Read an answer, and end the process with all that it started."""
    parts = []
    while answered and (part := os.read(each.pipe, 1 << 16)):
        parts.append(part)
    os.close(each.pipe)
    try:
        os.killpg(each.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    os.waitpid(each.pid, 0)
    shutil.rmtree(each.home, ignore_errors=True)
    if not answered:
        return TIMED_OUT
    return b"".join(parts).decode().strip() if parts else DIED
