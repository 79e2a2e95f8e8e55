"""A side of a benchmark: a process that does a round each time it is told to, and waits otherwise.

Law: starts processes and reads their lines; what they measure is theirs. Both sides speak the same:
a line of ``name=value`` words on standard input is one round, with these over the program's own
arguments; it answers with a JSON object whose ``event`` is ``round``. The end of input ends it.
While it waits it reads, which costs nothing.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self, TypeAlias

from benchmarks.harness import ROOT
from benchmarks.rounds import Rounds

ROUND_TIMEOUT_S = 180
Words: TypeAlias = dict[str, Any]
"""Arguments of a program, or of one round over them."""


class Told(Protocol):
    """What does a round when told."""

    def round(self, **words: object) -> dict[str, Any]:
        """Do one round with these arguments over its own and return what it says of it."""


class Worker:
    """``python -m benchmarks.work JOB … --told``: our side, in a process of its own."""

    def __init__(
        self,
        job: str,
        *,
        module: str = "benchmarks.work",
        round_timeout_s: float = ROUND_TIMEOUT_S,
        **arguments: object,
    ) -> None:
        self._round_timeout_s = round_timeout_s
        self._command = [sys.executable, "-m", module, job, "--told"]
        for name, value in arguments.items():
            self._command += [f"--{name.replace('_', '-')}", str(value)]

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
        )
        return self

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    def round(self, **words: object) -> dict[str, Any]:
        """Do one round; raises RuntimeError when the process ends or takes too long."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        late = threading.Timer(self._round_timeout_s, self._process.kill)
        late.start()
        try:
            self._process.stdin.write(as_line(words))
            self._process.stdin.flush()
            for line in self._process.stdout:
                if line.startswith("{"):
                    found: dict[str, Any] = json.loads(line)
                    return found
        except BrokenPipeError:
            pass
        finally:
            late.cancel()
        code = self._process.wait(10)
        raise RuntimeError(f"{' '.join(self._command[2:])} ended with {code} instead of a round")

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.close()
        except BrokenPipeError:
            pass
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(10)
        self._process.stdout.close()


def as_line(words: Words) -> str:
    """The line that tells a program to do a round."""
    for name, value in words.items():
        if any(letter.isspace() for letter in str(value)):
            raise ValueError(f"{name}={value!r}: a word of a round holds no white space")
    return " ".join(f"{name}={value}" for name, value in words.items()) + "\n"


class Side:
    """One side of a figure: a told process, the arguments of its rounds, and its servers' work.

    Calling it does a round and returns the quantity ``key`` of what the process said; everything it
    said is kept, with ``server_us``: the microseconds of processor time of ``servers`` a message,
    and ``others``: the share of the machine's processors that neither they nor the process had.

    Args:
        asleep: processes that are stopped meanwhile. A client that waits costs nothing, but an idle
            broker of Apache's takes 2 to 5 % of a core.
    """

    def __init__(
        self,
        told: Told,
        key: str = "rate",
        *,
        servers: Iterable[int] = (),
        asleep: Iterable[int] = (),
        words: Callable[[], Words] = dict,
    ) -> None:
        self._told = told
        self._key = key
        self._servers = tuple(servers)
        self._asleep = tuple(asleep)
        self._words = words
        self.said: list[dict[str, Any]] = []

    def __call__(self) -> float:
        """Do one round."""
        with stopped(self._asleep):
            began, busy = time.monotonic(), machine_s()
            before = processor_s(self._servers)
            told = self._told.round(**self._words())
            spent = processor_s(self._servers) - before
            busy, seconds = machine_s() - busy, time.monotonic() - began
        count = float(told.get("count", 0))
        if self._servers and count:
            told["server_us"] = spent / count * 1e6
        if "cpu_us" in told:
            own = spent + float(told["cpu_us"]) * count / 1e6
            told["others"] = others_share(busy, own, seconds, os.cpu_count() or 1)
        self.said.append(told)
        return float(told[self._key])

    def median(self, key: str, rounds: Rounds) -> float | None:
        """Median of another quantity over the rounds that are reported, None if never said."""
        values = [float(each[key]) for each in self.said[-len(rounds.kept) :] if key in each]
        return statistics.median(values) if values else None

    def of(self, key: str, rounds: Rounds) -> Rounds:
        """Another quantity of the same rounds."""
        return Rounds(tuple(float(each[key]) for each in self.said), rounds.rule)


@contextmanager
def stopped(pids: Sequence[int]) -> Iterator[None]:
    """Let processes stand still; for seconds, since others take them for lost after a while."""
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


def processor_s(pids: Sequence[int]) -> float:
    """Processor seconds these processes have used so far, all their threads together (Linux)."""
    ticks = 0
    for pid in pids:
        words = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
        ticks += int(words[11]) + int(words[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def machine_s() -> float:
    """Processor seconds all processes of the machine have used so far (Linux)."""
    words = Path("/proc/stat").read_text(encoding="ascii").split(maxsplit=9)[1:9]
    user, nice, system, _idle, _waiting, *rest = map(int, words)
    return (user + nice + system + sum(rest)) / os.sysconf("SC_CLK_TCK")


def others_share(busy_s: float, own_s: float, seconds: float, cores: int) -> float:
    """Share of the machine's processors that went to others than those who used ``own_s``."""
    return max(0.0, busy_s - own_s) / (seconds * cores)
