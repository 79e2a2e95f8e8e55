"""The Java peer of the measurements: Apache's broker, and its client driven by our small programs.

Law: measures only Apache; what is compared with it is chosen elsewhere. Every figure is counted
inside the Java process, after a warm-up, so that starting a JVM is in none of them.
"""

from __future__ import annotations

import itertools
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from benchmarks.harness import resident_mib
from tests.interop.cluster import ApacheCluster, JavaPrograms
from tests.interop.jvm import Jvm
from tests.interop.referee import REFEREES, Referee, RefereeUnavailableError

__all__ = ["JavaPeer", "RefereeUnavailableError", "referee"]

_DEFAULT_JVM: tuple[str, ...] = ()
"""Measured JVMs keep the collector and compiler they choose themselves."""


def referee(version: str = "4.9.7") -> Referee:
    """Resolve and compile one version of Apache RocketMQ.

    Raises:
        RefereeUnavailableError: Maven, a JDK or the network is missing; the text says which.
    """
    found = REFEREES[version]
    found.prepare()
    return found


class JavaPeer:
    """Apache's name server and broker, and the Java client sending to any cluster.

    Methods take ``namesrv``, so the Java client can also be measured against the embedded server;
    without it they mean Apache's own.
    """

    def __init__(self, folder: Path, version: str = "4.9.7") -> None:
        self.referee = referee(version)
        folder.mkdir(parents=True, exist_ok=True)
        self.cluster = ApacheCluster(
            self.referee, folder / "cluster", jvm_options=_DEFAULT_JVM, broker_heap="1g"
        )
        self.programs = JavaPrograms(self.referee, folder / "java")
        self.start_seconds = 0.0
        self._serial = itertools.count()

    def __enter__(self) -> Self:
        began = time.perf_counter()
        self.cluster.start()
        self.start_seconds = time.perf_counter() - began
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.cluster.stop(kill=True)

    def topic(self, queues: int = 8) -> str:
        """Create a fresh topic on Apache's broker and return its name."""
        return self.cluster.create_topic(self.cluster.unique("bench"), queues)

    def resident_mib(self) -> float:
        """Memory name server and broker hold now, together, in MiB."""
        return sum(resident_mib(pid) for pid in self.cluster.pids)

    def send_sync(
        self, topic: str, count: int, *, size: int = 1024, threads: int = 1, namesrv: str = ""
    ) -> float:
        """Messages a second of the Java producer, each thread waiting for every answer."""
        return self._send(topic, count, size, namesrv, mode="sync", threads=threads)

    def send_in_flight(
        self, topic: str, count: int, *, size: int = 1024, inflight: int = 64, namesrv: str = ""
    ) -> float:
        """Messages a second of the Java producer with ``inflight`` asynchronous sends under way."""
        return self._send(topic, count, size, namesrv, mode="async", inflight=inflight)

    def _send(self, topic: str, count: int, size: int, namesrv: str, **how: Any) -> float:
        done = self.programs.produce(
            namesrv=namesrv or self.cluster.namesrv_addr,
            topic=topic,
            group=f"bench-producer-{next(self._serial)}",
            count=count,
            size=size,
            warmup=min(count, 20_000),
            jvm_options=_DEFAULT_JVM,
            **how,
        )
        return float(done["rate"])

    def drain(self, topic: str, count: int, *, batch: int = 1, namesrv: str = "") -> float:
        """Messages a second of the Java push consumer on a backlog, listener doing nothing."""
        return self._consume("JavaPushConsumer", topic, count, namesrv, batch=batch)

    def drain_lite_pull(self, topic: str, count: int, *, namesrv: str = "") -> float:
        """Messages a second of the Java lite pull consumer on a backlog, 32 a pull."""
        return self._consume("JavaLitePullConsumer", topic, count, namesrv)

    def drain_orderly(self, topic: str, count: int, *, batch: int = 1) -> float:
        """Messages a second of the Java push consumer with an orderly listener."""
        return self._consume("JavaOrderlyDrain", topic, count, "", batch=batch)

    def latency(self, topic: str, count: int, rate: int, warmup: int) -> dict[str, float]:
        """Microseconds from before a send to the listener (p50_us, p99_us), in one Java process."""
        with self._start("JavaLatency", topic, count, "", rate=rate, warmup=warmup) as process:
            done = process.wait_event("done", timeout_s=120)
            process.wait()
        if not done["whole"]:
            raise RuntimeError(f"not every message came: {done}")
        return {name: float(done[name]) for name in ("p50_us", "p99_us", "max_us")}

    def hold(self, topic: str, count: int) -> dict[str, float]:
        """Memory of a Java push consumer once it has cached ``count`` messages."""
        with self._start("JavaHoldingConsumer", topic, count, "") as process:
            process.wait_event("held", timeout_s=120)
            resident = resident_mib(process.pid)
            heap = process.wait_event("heap", timeout_s=60)["heap_mib"]
            process.end_input()
            process.wait()
        return {"resident_mib": resident, "heap_mib": float(heap)}

    def _start(self, program: str, topic: str, count: int, namesrv: str, **how: object) -> Jvm:
        return self.programs.start(
            program,
            jvm_options=_DEFAULT_JVM,
            namesrv=namesrv or self.cluster.namesrv_addr,
            topic=topic,
            group=f"bench-consumer-{next(self._serial)}",
            count=count,
            **how,
        )

    def _consume(self, program: str, topic: str, count: int, namesrv: str, **how: object) -> float:
        with self._start(program, topic, count, namesrv, track=False, **how) as process:
            done = process.wait_event("done", timeout_s=120)
            process.end_input()
            process.wait()
        return float(done["rate"])
