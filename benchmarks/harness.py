"""What every measurement shares: figures, machine facts, child processes, one JSON line each.

Law: nothing here knows what is being measured.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from benchmarks.rounds import Rounds

ROOT = Path(__file__).resolve().parents[1]


@dataclass
class Figure:
    """One measured quantity: our rounds, and the peer's taken in turn with them.

    A list instead of `Rounds` holds launches: each value is of a process of its own.
    """

    benchmark: str
    unit: str
    ours: Rounds | list[float]
    peer_name: str = ""
    peer: Rounds | list[float] = field(default_factory=list)
    notes: dict[str, Any] = field(default_factory=dict)

    @property
    def ratio(self) -> float | None:
        """Median of ours over median of the peer's, None without a peer."""
        mine, other = values(self.ours), values(self.peer)
        if not mine or not other:
            return None
        return statistics.median(mine) / statistics.median(other)

    def line(self) -> dict[str, Any]:
        """The figure as one JSON object."""
        found: dict[str, Any] = {"benchmark": self.benchmark, "unit": self.unit}
        found["ours"] = spread(self.ours)
        if values(self.peer):
            found["peer"] = {"name": self.peer_name, **spread(self.peer)}
            found["ratio"] = round(self.ratio or 0, 3)
        return {**found, **self.notes, "machine": machine_facts()}


def values(runs: Rounds | Sequence[float]) -> Sequence[float]:
    """What is reported: the last rounds, or all launches."""
    return runs.kept if isinstance(runs, Rounds) else runs


def spread(runs: Rounds | Sequence[float]) -> dict[str, float | int | bool]:
    """Lowest, median and highest; of rounds also the cold one, how many, and whether steady."""
    kept = values(runs)
    if not kept:
        return {"runs": 0}
    found: dict[str, float | int | bool] = {
        "min": round(min(kept), 3),
        "median": round(statistics.median(kept), 3),
        "max": round(max(kept), 3),
    }
    if not isinstance(runs, Rounds):
        return {**found, "runs": len(kept)}
    return {**found, "cold": round(runs.cold, 3), "rounds": len(runs.all), "steady": runs.steady}


def machine_facts() -> dict[str, Any]:
    """Versions and machine, without which a figure says nothing."""
    packages = {}
    for name in (
        "rocketstream",
        "orjson",
        "uvloop",
        "pyspark",
        "pyarrow",
        "numpy",
        "confluent-kafka",
        "aiokafka",
    ):
        try:
            packages[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cores": os.cpu_count(),
        "packages": packages,
    }


def squares_s() -> float:
    """How quick the machine is for Python: five million squares, the best of three."""
    return round(min(_squares() for _ in range(3)), 2)


def _squares() -> float:
    began = time.perf_counter()
    for number in range(5_000_000):
        number * number
    return time.perf_counter() - began


def launched_in_turn(
    runs: int, ours: Callable[[], float], peer: Callable[[], float] | None
) -> tuple[list[float], list[float]]:
    """Launch ours and the peer alternately, where starting is part of what is measured."""
    mine: list[float] = []
    theirs: list[float] = []
    for _ in range(runs):
        if peer is not None:
            theirs.append(peer())
        mine.append(ours())
    return mine, theirs


def run_worker(*words: str, timeout_s: int = 300) -> dict[str, Any]:
    """Run ``python -m benchmarks.work …`` in a process of its own; return its last JSON line."""
    command = [sys.executable, "-m", "benchmarks.work", *words]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=timeout_s, check=False
    )
    return last_json(command, done)


def last_json(command: Sequence[str], done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """Return the last JSON line a program printed, or say what it said instead."""
    if done.returncode == 0:
        for line in reversed(done.stdout.splitlines()):
            if line.startswith("{"):
                found: dict[str, Any] = json.loads(line)
                return found
    tail = "\n".join((done.stdout + done.stderr).splitlines()[-15:])
    raise RuntimeError(f"{' '.join(command[:6])} … exited {done.returncode}:\n{tail}")


@contextmanager
def embedded_server(store: Path, *options: str) -> Iterator[EmbeddedServer]:
    """Start the embedded server in a process of its own and stop it afterwards."""
    command = [sys.executable, "-m", "rocketstream", "serve", "--namesrv-port", "0"]
    command += ["--broker-port", "0", "--store", str(store), *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            if not line.startswith("ready "):
                raise RuntimeError(f"the server did not start: {line!r}")
            words = dict(word.split("=", 1) for word in line.split()[1:])
            yield EmbeddedServer(process.pid, words["namesrv"], words["broker"])
        finally:
            process.terminate()
            process.wait(30)


@dataclass(frozen=True)
class EmbeddedServer:
    """A running embedded server: where it listens and which process it is."""

    pid: int
    namesrv_addr: str
    broker_addr: str

    def resident_mib(self) -> float:
        """Memory the process holds now, in MiB (Linux)."""
        return resident_mib(self.pid)


def resident_mib(pid: int | str, word: str = "VmRSS") -> float:
    """Memory a process holds now, in MiB (Linux); ``RssAnon``: without pages of mapped files."""
    for line in Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines():
        if line.startswith(f"{word}:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError(f"no memory figure for process {pid}")
