"""How cost grows with queues, topics, groups, members, sizes of bodies, and what lies in the log.

Law: as benchmarks.suites; our client on the embedded broker and, where it can be had, on Apache's.
Every point is a few rounds of one process, under a rule that is content sooner than the tables'.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from typing import Any

from benchmarks.comparing import told_beside
from benchmarks.harness import Figure, embedded_server, resident_mib, values
from benchmarks.plots import Panel, Point, drawn
from benchmarks.rounds import SHORT, Rounds, Rule, in_turn
from benchmarks.setting import Settings, fill, fresh_group
from benchmarks.sides import Side, Words, Worker, processor_s
from tests.kits.apache.cluster import create_topic

QUEUES = (1, 10, 100, 1_000)
TOPICS = (1, 10, 100, 1_000)
GROUPS = (1, 2, 4, 8)
MEMBERS = (1, 2, 4, 8, 16)
SIZES = (100, 1024, 10 * 1024, 100 * 1024, 1024 * 1024)
BACKLOG = (1_000_000, 2_000_000, 5_000_000, 10_000_000)
BACKLOG_BYTES = 100
ROUND_BYTES_MAX = 256 * 1024 * 1024
"""Bodies a round handles at most, so that rounds of great ones are no longer than others."""


@dataclass(frozen=True)
class Place:
    """A broker to measure on."""

    name: str
    namesrv: str
    broker: str
    pid: int

    def topic(self, name: str, queues: int) -> str:
        """Create a topic."""
        create_topic(self.namesrv, self.broker, name, queues)
        return name


@dataclass(frozen=True)
class Curve:
    """One quantity that is measured at many places of an axis."""

    panel: str
    axis: str
    name: str
    unit: str
    job: str
    bytes_count: bool = False
    """Whether bodies in MiB are told instead of messages."""


def growth(settings: Settings) -> Iterator[Figure]:
    """All axes; the page of plots is drawn anew after each of them."""
    rule = replace(SHORT, most=min(SHORT.most, settings.rule.most))
    points: list[Point] = []
    with ExitStack() as stack:
        places = places_of(settings, stack)
        axes = (by_queues, by_topics, by_groups, by_members, by_sizes)
        for axis in axes:
            for point, figure in axis(settings, places, rule):
                points.append(point)
                yield figure
            draw(points, settings)
    for point, figure in by_backlog(settings, rule):
        points.append(point)
        yield figure
        draw(points, settings)


def places_of(settings: Settings, stack: ExitStack) -> list[Place]:
    """The embedded broker, and Apache's where it can be had."""
    own = stack.enter_context(embedded_server(settings.place("store")))
    places = [Place("embedded broker", own.namesrv_addr, own.broker_addr, own.pid)]
    java = settings.peer()
    if java is not None:
        at = java.cluster
        places.append(Place("Apache broker", at.namesrv_addr, at.broker_addr, java.broker_pid))
    return places


def draw(points: Sequence[Point], settings: Settings) -> None:
    """Write the points, and the page."""
    lines = "".join(json.dumps(asdict(point)) + "\n" for point in points)
    (settings.results / "growth.jsonl").write_text(lines, encoding="utf-8")
    drawn(points, PANELS, settings.pictures / "growth.svg", TITLE)


Measured = Iterator[tuple[Point, Figure]]

_SEND = Curve("queues", "queues of the topic", "sends, 64 in flight", "msg/s", "send-in-flight")
_DRAIN = Curve("queues", "queues of the topic", "push drain, batch 32", "msg/s", "drain")


def by_queues(settings: Settings, places: Sequence[Place], rule: Rule) -> Measured:
    """Sends to, and drains of, a topic of ever more queues."""
    count = settings.count(30_000)
    for queues in QUEUES:
        topics = {each.name: each.topic(f"Queues-{queues}", queues) for each in places}
        words = {name: {"topic": topic, "count": count} for name, topic in topics.items()}
        yield from at(queues, _SEND, places, words, rule)
        for each in places:
            topics[each.name] = each.topic(f"QueuesRead-{queues}", queues)
            fill(each.namesrv, topics[each.name], 3 * count)
            words[each.name] = {"topic": topics[each.name], "count": 3 * count, "batch": 32}
        yield from at(queues, _DRAIN, places, words, rule, fresh=True)


def by_topics(settings: Settings, places: Sequence[Place], rule: Rule) -> Measured:
    """Sends that go to ever more topics in turn."""
    count = settings.count(30_000)
    curve = Curve("topics", "topics sent to in turn", _SEND.name, "msg/s", "send-in-flight")
    for topics in TOPICS:
        for each in places:
            for number in range(topics):
                each.topic(f"Topics{topics}-{number}", 4)
        words = {
            each.name: {"topic": f"Topics{topics}", "topics": topics, "count": count}
            for each in places
        }
        yield from at(topics, curve, places, words, rule)


def by_groups(settings: Settings, places: Sequence[Place], rule: Rule) -> Measured:
    """Ever more groups that read the same messages at once, in one process."""
    curve = Curve("groups", "groups reading at once", "push drain, all groups", "msg/s", "drain")
    # Fewer queues, since what lies in their caches when all begin is counted too.
    count = settings.count(100_000)
    yield from _by_consumers(places, rule, curve, GROUPS, "groups", count=count, queues=4)


def by_members(settings: Settings, places: Sequence[Place], rule: Rule) -> Measured:
    """Ever more members that share the queues of one group, in one process."""
    curve = Curve("members", "members of the group", "push drain, all members", "msg/s", "drain")
    count = settings.count(300_000)
    yield from _by_consumers(places, rule, curve, MEMBERS, "members", count=count, queues=16)


def _by_consumers(
    places: Sequence[Place],
    rule: Rule,
    curve: Curve,
    numbers: Sequence[int],
    word: str,
    *,
    count: int,
    queues: int,
) -> Measured:
    for each in places:
        fill(each.namesrv, each.topic(f"Consumers-{word}", queues), count)
    for number in numbers:
        told = {"topic": f"Consumers-{word}", "count": count, "batch": 32, word: number}
        words: dict[str, Words] = {each.name: dict(told) for each in places}
        yield from at(number, curve, places, words, rule, fresh=True)


def by_sizes(settings: Settings, places: Sequence[Place], rule: Rule) -> Measured:
    """Bodies of ever more bytes, sent and read."""
    axis = "bytes of a body"
    send = Curve("sizes", axis, "sends, 64 in flight", "MiB/s", "send-in-flight", True)
    read = Curve("sizes", axis, "lite-pull drain", "MiB/s", "drain-lite", True)
    for size in SIZES:
        count = max(64, min(settings.count(30_000), int(ROUND_BYTES_MAX * settings.scale) // size))
        words: dict[str, Words] = {}
        for each in places:
            topic = each.topic(f"Sizes-{size}", 8)
            words[each.name] = {"topic": topic, "count": count, "size": size}
        yield from at(size, send, places, words, rule)
        yield from at(size, read, places, words, rule, fresh=True)


def by_backlog(settings: Settings, rule: Rule) -> Measured:
    """A log of ever more messages: reading it, starting on it, and what the broker holds then."""
    store = settings.place("backlog")
    stored = 0
    axis = "messages in the log"
    count = settings.count(300_000)
    for wanted in (max(1_000, int(each * settings.scale)) for each in BACKLOG):
        with embedded_server(store) as own:
            place = Place("embedded broker", own.namesrv_addr, own.broker_addr, own.pid)
            if not stored:
                place.topic("Backlog", 8)
            fill(own.namesrv_addr, "Backlog", wanted - stored, BACKLOG_BYTES)
            stored = wanted
        with embedded_server(store) as own:
            ready = processor_s([own.pid])
            place = Place("embedded broker", own.namesrv_addr, own.broker_addr, own.pid)
            read = Curve("backlog", axis, "lite-pull drain of the oldest", "msg/s", "drain-lite")
            told = {place.name: {"topic": "Backlog", "count": min(count, wanted)}}
            yield from at(wanted, read, [place], told, rule, fresh=True)
            held = resident_mib(own.pid, "RssAnon")
        for name, unit, value in (
            ("start until ready, of a processor", "s", ready),
            ("memory of the broker, without the log's pages", "MiB", held),
        ):
            curve = Curve("held", axis, f"{name}, {unit}", unit, "")
            yield point_of(wanted, curve, place.name, [value], {})


def at(
    x: int,
    curve: Curve,
    places: Sequence[Place],
    words: Mapping[str, Words],
    rule: Rule,
    *,
    fresh: bool = False,
) -> Measured:
    """Measure one point of a curve on all brokers in turn."""
    with ExitStack() as stack:
        sides = {
            each.name: Side(
                stack.enter_context(Worker(curve.job, namesrv=each.namesrv, **words[each.name])),
                servers=[each.pid],
                words=(lambda: {"group": fresh_group("growth")}) if fresh else dict,
            )
            for each in places
        }
        done = in_turn(sides, rule)
    for name, rounds in done.items():
        share = 1.0
        if curve.bytes_count:
            share = float(words[name]["size"]) / 1024 / 1024
        notes = told_beside("ours", sides[name], rounds)
        yield point_of(x, curve, name, rounds.times(share), notes)


def point_of(
    x: int, curve: Curve, place: str, rounds: Rounds | list[float], notes: dict[str, Any]
) -> tuple[Point, Figure]:
    """A point for the page, and the same as a figure."""
    median = statistics.median(values(rounds))
    costs = notes.get("ours_cpu_us"), notes.get("ours_server_us")
    point = Point(curve.panel, f"{curve.name}, {place}", x, median, *costs)
    title = f"growth: {curve.axis} {x:,}, {curve.name}, {place}"
    return point, Figure(title, curve.unit, rounds, notes=notes)


TITLE = "How cost grows: processor µs a message of the client (solid) and of the broker (dotted)"
COST = "µs a message"
PANELS = (
    Panel("queues", "queues of the topic", COST),
    Panel("topics", "topics sent to in turn", COST),
    Panel("groups", "groups reading at once, in one process", COST),
    Panel("members", "members of the group, in one process", COST),
    Panel("sizes", "bytes of a body", COST, log=True),
    Panel("backlog", "messages in the log, 100 B bodies", COST),
    Panel("held", "messages in the log, 100 B bodies", "s, MiB", log=True),
)
