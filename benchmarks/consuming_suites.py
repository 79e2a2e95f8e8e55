"""What consuming costs, next to the Java client on the same Apache broker, in rounds.

Law: as benchmarks.suites. A round that drains is a consumer of its own in a group of its own, in
the process that did the rounds before.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from benchmarks.comparing import compared, told_beside
from benchmarks.harness import Figure, embedded_server
from benchmarks.rounds import in_turn
from benchmarks.setting import Settings, fill, fresh_group
from benchmarks.sides import Side, Words, Worker

if TYPE_CHECKING:
    from benchmarks.java import JavaPeer

LATENCY_RATE = 500
HELD = 10_000


@dataclass(frozen=True)
class Backlog:
    """A topic that holds ``count`` messages, and the process that serves it."""

    namesrv: str
    topic: str
    count: int
    server: int
    asleep: tuple[int, ...] = ()
    """Servers that are not asked while this one is."""

    @property
    def words(self) -> Words:
        """What a program that drains it is told."""
        return {"namesrv": self.namesrv, "topic": self.topic, "count": self.count}

    def ours(self, stack: ExitStack, job: str, key: str = "rate", **more: Any) -> Side:
        """A job of ours that drains it, in a fresh group each round."""
        worker = stack.enter_context(Worker(job, **self.words, **more))
        return Side(worker, key, servers=[self.server], asleep=self.asleep, words=in_fresh_group)

    def theirs(
        self, stack: ExitStack, java: JavaPeer, program: str, key: str = "rate", **more: Any
    ) -> Side:
        """A Java program that drains it, in a fresh group each round."""
        told = stack.enter_context(java.told(program, **self.words, track=False, **more))
        return Side(told, key, servers=[self.server], asleep=self.asleep, words=in_fresh_group)


def in_fresh_group() -> Words:
    """What a round is told that begins at the first message."""
    return {"group": fresh_group("round")}


def backlog_on(java: JavaPeer, count: int, size: int = 1024) -> Backlog:
    """Fill a fresh topic of Apache's broker."""
    made = Backlog(java.cluster.namesrv_addr, java.topic(), count, java.broker_pid)
    fill(made.namesrv, made.topic, count, size)
    return made


def drain(settings: Settings) -> Iterator[Figure]:
    """A push consumer on a backlog, listener doing nothing, batch 1 and 32."""
    count = settings.count(300_000)
    java = settings.peer()
    if java is not None:
        yield from pushed(settings, "Apache broker", backlog_on(java, count), java)
    with embedded_server(settings.place("store")) as embedded:
        own = Backlog(embedded.namesrv_addr, "Bench", count, embedded.pid)
        fill(own.namesrv, own.topic, count)
        yield from pushed(settings, "embedded broker", own, None)


def pushed(
    settings: Settings, where: str, held: Backlog, java: JavaPeer | None
) -> Iterator[Figure]:
    """Our push consumer, and the Java push consumer in turn."""
    for batch in (1, 32):
        with ExitStack() as stack:
            name = f"push drain batch {batch}"
            ours = {f"{name}, {where}": held.ours(stack, "drain", batch=batch)}
            if batch == 1:
                ours[f"{name}, asyncio, {where}"] = held.ours(stack, "drain-aio", batch=batch)
            peers = {}
            if java is not None:
                program = held.theirs(stack, java, "JavaPushConsumer", batch=batch)
                peers["Java push consumer"] = program
            yield from compared("msg/s", ours, settings.rule, peers)


def orderly(settings: Settings) -> Iterator[Figure]:
    """The same with orderly listeners."""
    java = settings.peer()
    if java is None:
        return
    held = backlog_on(java, settings.count(100_000))
    for batch in (1, 32):
        with ExitStack() as stack:
            name = f"orderly drain batch {batch}, Apache broker"
            ours = {name: held.ours(stack, "drain-orderly", batch=batch)}
            peer = held.theirs(stack, java, "JavaOrderlyDrain", batch=batch)
            peers = {"Java push consumer, orderly": peer}
            yield from compared("msg/s", ours, settings.rule, peers)


def lite(settings: Settings) -> Iterator[Figure]:
    """A lite pull consumer on a backlog, polled by one thread; bodies of 100 B and 1 KiB."""
    java = settings.peer()
    if java is None:
        return
    for size in (100, 1024):
        held = backlog_on(java, settings.count(300_000), size)
        with ExitStack() as stack:
            jobs = {
                "lite-pull drain": "drain-lite",
                "lite-pull drain, asyncio": "drain-lite-aio",
                "lite-pull drain in columns": "drain-arrow",
            }
            ours = {
                f"{name}, {size} B, Apache broker": held.ours(stack, job)
                for name, job in jobs.items()
            }
            peer = held.theirs(stack, java, "JavaLitePullConsumer")
            yield from compared("msg/s", ours, settings.rule, {"Java lite pull consumer": peer})
        with ExitStack() as stack:
            name = f"lite-pull drain, asyncio, 1 a poll, {size} B, Apache broker"
            ours = {name: held.ours(stack, "drain-lite-aio", polled=1)}
            sync = held.ours(stack, "drain-lite", polled=1)
            yield from compared("msg/s", ours, settings.rule, {"the same, sync": sync})


def latency(settings: Settings) -> Iterator[Figure]:
    """From before a send to the listener, at a steady 500 messages a second."""
    java = settings.peer()
    if java is None:
        return
    count = settings.count(2_000)
    with ExitStack() as stack:
        at, server = java.cluster.namesrv_addr, java.broker_pid
        places = [Backlog(at, java.topic(4), count, server) for _ in range(2)]
        how: Words = {"rate": LATENCY_RATE, "group": fresh_group("latency")}
        worker = stack.enter_context(Worker("latency", **places[0].words, **how))
        how["group"] = fresh_group("latency")
        program = stack.enter_context(java.told("JavaLatency", **places[1].words, **how))
        mine, other = (Side(each, "p50_us", servers=[server]) for each in (worker, program))
        done = in_turn({"ours": mine, "theirs": other}, settings.rule)
    notes = told_beside("ours", mine, done["ours"]) | told_beside("peer", other, done["theirs"])
    for share in ("p50", "p99"):
        yield Figure(
            f"end-to-end latency {share} at {LATENCY_RATE} msg/s, Apache broker",
            "ms",
            mine.of(f"{share}_us", done["ours"]).times(0.001),
            "Java producer and push consumer",
            other.of(f"{share}_us", done["theirs"]).times(0.001),
            notes,
        )


def memory(settings: Settings) -> Iterator[Figure]:
    """What the process of a push consumer takes that holds 10,000 cached messages."""
    java = settings.peer()
    if java is None:
        return
    held = backlog_on(java, HELD)
    with ExitStack() as stack:
        mine = held.ours(stack, "hold", "resident_mib")
        other = held.theirs(stack, java, "JavaHoldingConsumer", "resident_mib")
        done = in_turn({"ours": mine, "theirs": other}, settings.rule)
    name, peer = f"memory of a push consumer holding {HELD:,} messages", "Java push consumer"
    notes = {"java_heap_in_use_mib": other.median("heap_mib", done["theirs"])}
    notes |= told_beside("ours", mine, done["ours"]) | told_beside("peer", other, done["theirs"])
    yield Figure(name, "MiB", done["ours"], peer, done["theirs"], notes)
