"""The way from a group in virtual time to its verdict, its causes and its notices, as it runs live.

A real collector sweeps a made-up cluster every 10 s, looks into its groups, judges, and real rules
of notices decide what webhooks are sent; Burrow's rules see the same commits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

from rocketstream._util.workers import Step, Worker, Workers
from rocketstream.admin.core.causes import explain
from rocketstream.admin.core.evidence import arrival_tps
from rocketstream.admin.state import (
    BrokerState,
    CauseKind,
    ClusterState,
    GroupState,
    Verdict,
    WhyReport,
)
from rocketstream.testing.clock import START_MS, ManualClock
from rocketstream.watch import Collector, Update
from rocketstream.watch.alerting import Alerting, Event, Notice, Rule
from tests.progress.burrow import AS_THEY_COME_MS, Burrow
from tests.progress.virtual_group import MINUTE, Group

APART_MS = 500
WEBHOOKS = ("ops",)
GOOD = {Event.RECOVERED, Event.CATCHING_UP, Event.BROKER_BACK, Event.OUTAGE_OVER}


@dataclass
class Course:
    """How a group was judged over time; minutes since the beginning.

    Attributes:
        verdicts: each change, with its sentence.
        causes: the kinds of the causes of each look; the last is of somebody who asks at the end.
        notices: each notice of the group, or of the cluster.
        burrow: each change of Burrow's status, with commits a minute apart.
        quick: the same, with commits as they come, five seconds apart.
    """

    verdicts: list[tuple[float, Verdict, str]] = field(default_factory=list)
    causes: list[tuple[float, tuple[CauseKind, ...]]] = field(default_factory=list)
    notices: list[tuple[float, Notice]] = field(default_factory=list)
    burrow: list[tuple[float, str]] = field(default_factory=list)
    quick: list[tuple[float, str]] = field(default_factory=list)

    def told(self) -> str:
        """Return all of it in lines, for a test that fails."""
        lines = [f"{at:6.1f} {verdict}: {text}" for at, verdict, text in self.verdicts]
        lines += [f"{at:6.1f} causes {', '.join(kinds)}" for at, kinds in self.causes]
        lines += [f"{at:6.1f} notice {each.event} {each.verdict}" for at, each in self.notices]
        return "\n".join([*lines, *(f"{at:6.1f} Burrow {status}" for at, status in self.burrow)])


class Cluster:
    """Answers a collector as ``Admin`` does, of groups in virtual time."""

    def __init__(self, groups: Sequence[Group]) -> None:
        self.own = {group.name: group for group in groups}
        self.cluster = self.groups = self  # the services of an Admin
        self.clock = ManualClock(START_MS)
        self.reports: dict[str, list[tuple[float, WhyReport]]] = {}

    @property
    def at_ms(self) -> int:
        return self.clock.now_ms() - START_MS

    def state(self) -> ClusterState:
        for group in self.own.values():
            group.run_to(self.at_ms)
        error = "no answer within 3000 ms" if any(g.hangs for g in self.own.values()) else None
        broker = BrokerState(
            "east", "broker-a", self.clock.now_ms(), {0: "10.0.0.9:1"}, error=error
        )
        states = {name: group.state(self.at_ms) for name, group in self.own.items()}
        return ClusterState(self.clock.now_ms(), 5, 10, brokers=(broker,), groups=states)

    def why(self, group: str, *, window: Sequence[GroupState] = ()) -> WhyReport:
        own = self.own[group]
        first = own.state(self.at_ms)
        looks = {c: own.look(client, self.at_ms) for c, client in own.members.items()}
        if first.lag or first.queues_unknown:
            self.clock.advance(APART_MS)
            own.run_to(self.at_ms)
        evidence = own.evidence(first, looks, self.at_ms)
        seen = [*window, first, evidence.state]
        arrivals = arrival_tps(seen[max(len(seen) - 8, 0)], evidence.state)
        evidence = replace(evidence, arrival_tps=arrivals)
        report = explain(evidence, seen)
        self.reports.setdefault(group, []).append((self.at_ms / MINUTE, report))
        return report

    def _remember_in(self, memory: object) -> None:
        return

    def close(self) -> None:
        return


class _Steps:
    """Workers whose steps the bench calls."""

    def start(self, name: str, step: Step, *, first_s: float) -> Worker:
        self.step = step
        return cast(Worker, self)

    def wake(self) -> None:
        return

    def stop(self) -> None:
        return


def watched(groups: Sequence[Group], minutes: float) -> dict[str, Course]:
    """Watch groups of one cluster for so long; return how each was judged."""
    cluster = Cluster(groups)
    steps = _Steps()
    collector = Collector(
        lambda: cast(Any, cluster), clock=cluster.clock, workers=cast(Workers, steps)
    )
    courses = {group.name: Course() for group in groups}
    burrows = {group.name: (Burrow(), Burrow(AS_THEY_COME_MS)) for group in groups}
    alerting = Alerting([Rule(WEBHOOKS)], WEBHOOKS)

    def see(update: Update) -> None:
        assert update.state is not None
        at = (update.state.taken_ms - START_MS) / MINUTE
        told = alerting.step(update, update.state.taken_ms)
        for name, course in courses.items():
            verdict = update.verdicts[name]
            if not course.verdicts or course.verdicts[-1][1] is not verdict.verdict:
                course.verdicts.append((at, verdict.verdict, verdict.sentence))
            course.notices += [(at, each) for each in told if each.group in (name, None)]
            found = _burrow(cluster.own[name], burrows[name], cluster.at_ms)
            for seen, status in zip((course.burrow, course.quick), found, strict=True):
                if not seen or seen[-1][1] != status:
                    seen.append((at, status))

    collector.subscribe(see)
    collector.start()
    while cluster.at_ms <= minutes * MINUTE:
        cluster.clock.advance((steps.step() or 0) * 1_000)
    for name in courses:
        cluster.why(name, window=collector.window(name))
    collector.close()
    for name, course in courses.items():
        course.causes = [
            (at, tuple(cause.kind for cause in report.causes))
            for at, report in cluster.reports.get(name, ())
        ]
    return courses


def _burrow(group: Group, burrows: Sequence[Burrow], at_ms: int) -> list[str]:
    for when, queue, offset, lag in group.commits:
        for burrow in burrows:
            burrow.commit(queue, when, offset, lag)
    group.commits.clear()
    queues = () if group.hangs else (*group.queues, group.retry)
    ends = [(queue, queue.end, queue.end - (queue.committed or 0)) for queue in queues]
    return [burrow.status(ends, at_ms) for burrow in burrows]
