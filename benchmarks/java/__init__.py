"""The Java peer of the measurements: Apache's broker, and its client driven by our small programs.

Law: measures only Apache; what is compared with it is chosen elsewhere. Every figure is counted
inside the Java process, round after round, so that starting a JVM is in none of them.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from benchmarks.harness import resident_mib
from benchmarks.sides import ROUND_TIMEOUT_S, as_line
from tests.kits.apache.cluster import ApacheCluster, JavaPrograms
from tests.kits.apache.jvm import Jvm
from tests.kits.apache.referee import REFEREES, Referee, RefereeUnavailableError

__all__ = ["JavaPeer", "JavaTold", "RefereeUnavailableError", "referee"]

_DEFAULT_JVM: tuple[str, ...] = ()
"""Measured JVMs keep the collector and compiler they choose themselves."""
_AS_SHIPPED = {"mappedFileSizeCommitLog": str(1024 * 1024 * 1024)}
"""Tests make Apache's log files small; measured ones are as great as it makes them itself."""


def referee(version: str = "4.9.7") -> Referee:
    """Resolve and compile one version of Apache RocketMQ, whose JVMs start as its users' do.

    Raises:
        RefereeUnavailableError: Maven, a JDK or the network is missing; the text says which.
    """
    found = REFEREES[version]
    found.prepare()
    return replace(found, is_as_shipped=True)


class JavaTold:
    """A Java program that does a round each time it is told to; the JVM stays."""

    def __init__(self, jvm: Jvm) -> None:
        self._jvm = jvm

    def round(self, **words: object) -> dict[str, Any]:
        """Do one round with these arguments over the program's own."""
        self._jvm.tell(as_line(words).rstrip("\n"))
        return self._jvm.wait_event("round", timeout_s=ROUND_TIMEOUT_S)


class JavaPeer:
    """Apache's name server and broker, and Java clients for any cluster.

    Args:
        flush: ``SYNC_FLUSH`` acknowledges when on disk.
    """

    def __init__(self, folder: Path, version: str = "4.9.7", *, flush: str = "ASYNC_FLUSH") -> None:
        self.referee = referee(version)
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self.cluster = ApacheCluster(
            self.referee,
            folder / "cluster",
            flush=flush,
            broker_settings=_AS_SHIPPED,
            jvm_options=_DEFAULT_JVM,
            broker_heap="1g",
            tls=True,
        )
        self.start_seconds = 0.0

    def __enter__(self) -> Self:
        began = time.perf_counter()
        try:
            self.cluster.start()
        except BaseException:
            self.cluster.stop(kill=True)
            raise
        self.start_seconds = time.perf_counter() - began
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.cluster.stop(kill=True)

    @property
    def broker_pid(self) -> int:
        """Process id of the broker."""
        return self.cluster.pids[-1]

    def topic(self, queues: int = 8) -> str:
        """Create a fresh topic on Apache's broker and return its name."""
        return self.cluster.create_topic(self.cluster.unique("bench"), queues)

    def resident_mib(self) -> float:
        """Memory name server and broker hold now, together, in MiB."""
        return sum(resident_mib(pid) for pid in self.cluster.pids)

    @contextmanager
    def told(self, program: str, *, version: str = "", **arguments: object) -> Iterator[JavaTold]:
        """Start a program of ``tests/kits/apache/java`` that does rounds when told.

        ``version``: of the Java client, the broker's if not given.
        """
        given = referee(version) if version else self.referee
        programs = JavaPrograms(given, self._folder / f"java-{next(_serial)}")
        words = {"group": f"bench-java-{next(_serial)}", **arguments}
        with programs.start(program, jvm_options=_DEFAULT_JVM, rounds=True, **words) as jvm:
            yield JavaTold(jvm)
            jvm.end_input()
            jvm.wait()


_serial = itertools.count()
