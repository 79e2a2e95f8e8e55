"""Counting what a Spark session holds: processes, threads, sockets and memory of a tree of them.

Law: reads ``/proc`` alone; knows a JVM and its children, nothing of streams.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PROC = Path("/proc")


@dataclass(frozen=True)
class Process:
    """One process as it was counted."""

    pid: int
    module: str
    threads: int
    sockets: int
    memory_kb: int


@dataclass(frozen=True)
class Census:
    """This process, Spark's JVM and all of the Python processes below that."""

    driver: Process
    jvm: Process
    pythons: tuple[Process, ...]

    def totals(self) -> dict[str, int]:
        """Return how many there are of each kind, by its name; memory of Python in MiB, each."""
        return {
            "processes": len(self.pythons),
            "threads of Python": sum(each.threads for each in self.pythons),
            "sockets of Python": sum(each.sockets for each in self.pythons),
            "threads of the driver": self.driver.threads,
            "sockets of the driver": self.driver.sockets,
            "threads of the JVM": self.jvm.threads,
            "sockets of the JVM": self.jvm.sockets,
            "MiB of the driver": self.driver.memory_kb // 1024,
            "MiB of the largest Python": max((p.memory_kb for p in self.pythons), default=0)
            // 1024,
        }


def take_census(spark: Any) -> Census:
    """Count, after both sides have collected what is garbage."""
    gc.collect()
    spark._jvm.java.lang.System.gc()
    pid = int(spark._jvm.java.lang.ProcessHandle.current().pid())
    below = [found for each in _below(pid) if (found := _process(each)) is not None]
    driver, jvm = _process(os.getpid()), _process(pid)
    assert driver is not None
    assert jvm is not None
    return Census(driver, jvm, tuple(below))


def _below(pid: int) -> Iterator[int]:
    for task in PROC.glob(f"{pid}/task/*/children"):
        try:
            children = task.read_text("ascii").split()
        except OSError:
            continue
        for child in map(int, children):
            yield child
            yield from _below(child)


def _process(pid: int) -> Process | None:
    """Return a process; None where it has ended by now."""
    place = PROC / str(pid)
    try:
        words = (place / "cmdline").read_bytes().decode().split("\0")
        status = (place / "status").read_text("ascii", "replace").splitlines()
        handles = list((place / "fd").iterdir())
    except OSError:
        return None
    fields = dict(line.split(":", 1) for line in status if ":" in line)
    if "VmRSS" not in fields:  # it has ended and waits to be asked how
        return None
    return Process(
        pid,
        next((word for word in reversed(words) if word), ""),
        int(fields["Threads"]),
        sum(_is_socket(handle) for handle in handles),
        int(fields["VmRSS"].split()[0]),
    )


def _is_socket(handle: Path) -> bool:
    try:
        return os.readlink(handle).startswith("socket:")
    except OSError:
        return False
