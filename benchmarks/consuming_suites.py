"""What consuming costs, next to the Java client on the same Apache broker.

Law: as benchmarks.suites.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from benchmarks.harness import Figure, embedded_server, in_turn, run_worker
from benchmarks.setting import Settings, fill, fresh_group

if TYPE_CHECKING:
    from benchmarks.java import JavaPeer

LATENCY_RATE = 500
LATENCY_WARM_UP = 1_000


@dataclass(frozen=True)
class Backlog:
    """A topic that holds ``count`` messages."""

    namesrv: str
    topic: str
    count: int

    def run(self, job: str, **more: object) -> dict[str, Any]:
        """Run a job of ours on it, in a group of its own."""
        words = ["--namesrv", self.namesrv, "--topic", self.topic, "--count", str(self.count)]
        words += ["--group", fresh_group(job)]
        for name, value in more.items():
            words += [f"--{name.replace('_', '-')}", str(value)]
        return run_worker(job, *words)


def backlog_on(java: JavaPeer, count: int) -> Backlog:
    """Fill a fresh topic of Apache's broker."""
    made = Backlog(java.cluster.namesrv_addr, java.topic(), count)
    fill(made.namesrv, made.topic, count)
    return made


def drain(settings: Settings) -> Iterator[Figure]:
    """A push consumer on a backlog, listener doing nothing, batch 1 and 32."""
    count = settings.count(200_000)
    java = settings.peer()
    if java is not None:
        held = backlog_on(java, count)
        for batch in (1, 32):
            yield drain_figure(settings, f"push drain batch {batch}, Apache broker", held, java,
                               batch=batch)  # fmt: skip
    with embedded_server(settings.place("store")) as embedded:
        own = Backlog(embedded.namesrv_addr, "Bench", count)
        fill(own.namesrv, own.topic, count)
        for batch in (1, 32):
            yield drain_figure(settings, f"push drain batch {batch}, embedded broker", own, None,
                               batch=batch)  # fmt: skip


def drain_figure(
    settings: Settings, name: str, held: Backlog, java: JavaPeer | None, *, batch: int
) -> Figure:
    """Our push consumer, each run a new group, and the Java push consumer in turn."""

    def theirs() -> float:
        assert java is not None
        return java.drain(held.topic, held.count, batch=batch)

    ours: Callable[[], float] = lambda: float(held.run("drain", batch=batch)["per_s"])  # noqa: E731
    mine, other = in_turn(settings.runs, ours, theirs if java else None)
    return Figure(name, "msg/s", mine, "Java push consumer", other)


def orderly(settings: Settings) -> Iterator[Figure]:
    """The same with orderly listeners."""
    java = settings.peer()
    if java is None:
        return
    held = backlog_on(java, settings.count(60_000))
    for batch in (1, 32):
        mine, other = in_turn(
            settings.runs,
            lambda batch=batch: float(held.run("drain-orderly", batch=batch)["per_s"]),  # type: ignore[misc]
            lambda batch=batch: java.drain_orderly(held.topic, held.count, batch=batch),  # type: ignore[misc]
        )
        name = f"orderly drain batch {batch}, Apache broker"
        yield Figure(name, "msg/s", mine, "Java push consumer, orderly", other)


def lite(settings: Settings) -> Iterator[Figure]:
    """A lite pull consumer on a backlog, polled by one thread."""
    java = settings.peer()
    if java is None:
        return
    held = backlog_on(java, settings.count(300_000))
    mine, other = in_turn(
        settings.runs,
        lambda: float(held.run("drain-lite")["per_s"]),
        lambda: java.drain_lite_pull(held.topic, held.count),
    )
    yield Figure("lite-pull drain, Apache broker", "msg/s", mine, "Java lite pull consumer", other)


def latency(settings: Settings) -> Iterator[Figure]:
    """From before a send to the listener, at a steady 500 messages a second."""
    java = settings.peer()
    if java is None:
        return
    count = settings.count(4_000)
    topic = Backlog(java.cluster.namesrv_addr, java.topic(4), count)
    mine: list[dict[str, Any]] = []
    other: list[dict[str, Any]] = []
    for _ in range(settings.runs):
        other.append(java.latency(topic.topic, count, LATENCY_RATE, LATENCY_WARM_UP))
        mine.append(topic.run("latency", rate=LATENCY_RATE, warm_up=LATENCY_WARM_UP))
    for share in ("p50", "p99"):
        yield Figure(
            f"end-to-end latency {share} at {LATENCY_RATE} msg/s, Apache broker",
            "us",
            [each[f"{share}_us"] for each in mine],
            "Java producer and push consumer",
            [each[f"{share}_us"] for each in other],
        )


def memory(settings: Settings) -> Iterator[Figure]:
    """What a push consumer takes that holds 10,000 cached messages."""
    java = settings.peer()
    if java is None:
        return
    held = backlog_on(java, 10_000)
    mine: list[dict[str, Any]] = []
    other: list[dict[str, float]] = []
    for _ in range(settings.runs):
        other.append(java.hold(held.topic, held.count))
        mine.append(held.run("hold"))
    notes = {
        "ours_before_mib": round(min(each["before_mib"] for each in mine), 1),
        "java_heap_in_use_mib": round(min(each["heap_mib"] for each in other), 1),
    }
    yield Figure(
        "memory of a push consumer holding 10,000 messages",
        "MiB",
        [each["resident_mib"] for each in mine],
        "Java push consumer, whole process",
        [each["resident_mib"] for each in other],
        notes,
    )
