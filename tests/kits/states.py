"""States of made-up clusters, and an admin that answers with them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence

from rocketstream._util.workers import Step, Worker
from rocketstream.admin.service import SweepMemory
from rocketstream.admin.state import (
    BrokerState,
    Cause,
    ClusterState,
    GroupState,
    GroupVerdict,
    PinnedMessage,
    QueueKind,
    QueueState,
    Verdict,
    WhyReport,
)
from rocketstream.testing.clock import START_MS
from rocketstream.watch import VerdictChange
from rocketstream.watch.windows import Past


def queue(
    topic: str = "orders",
    queue_id: int = 0,
    *,
    end: int | None = 100,
    committed: int | None = 100,
    kind: QueueKind = QueueKind.TOPIC,
    next_stored_ms: int | None = None,
) -> QueueState:
    return QueueState(
        topic,
        "broker-a",
        queue_id,
        kind,
        min_offset=0,
        max_offset=end,
        committed_offset=committed,
        next_stored_ms=next_stored_ms,
    )


def group(name: str, at_ms: int, *queues: QueueState) -> GroupState:
    return GroupState(name, at_ms, queues=queues)


def cluster(
    at_ms: int,
    *groups: GroupState,
    requests: int = 10,
    error: str | None = None,
    broker_error: str | None = None,
) -> ClusterState:
    return ClusterState(
        at_ms,
        5,
        requests,
        brokers=(BrokerState("c", "broker-a", at_ms, {0: "127.0.0.1:1"}, error=broker_error),),
        groups={state.group: state for state in groups},
        error=error,
    )


def waiting(lag: int, at_ms: int = START_MS, name: str = "billing") -> ClusterState:
    """A cluster of one group that has so many messages to go."""
    return cluster(at_ms, group(name, at_ms, queue(end=1_000, committed=1_000 - lag)))


def by_lag(
    window: Sequence[GroupState],
    pinned: Sequence[PinnedMessage] = (),
    causes: Sequence[Cause] = (),
    *,
    before: GroupVerdict | None = None,
) -> GroupVerdict:
    """A judge that is easily foreseen."""
    behind = bool(window[-1].lag)
    verdict = Verdict.FALLING_BEHIND if behind else Verdict.OK
    return GroupVerdict(window[-1].group, verdict, f"lag {window[-1].lag}")


class Asked:
    """Answers sweeps from a list, its last entry for ever; an exception in it is raised."""

    def __init__(self, *answers: ClusterState | Exception) -> None:
        self.answers = list(answers)
        self.sweeps = 0
        self.closed = 0
        self.memories: list[SweepMemory] = []
        self.looked: list[str] = []
        self.pinned: list[PinnedMessage] = []
        self.causes: list[Cause] = []
        self.found: GroupState | None = None
        self.cluster = self.groups = self  # its services, too
        self.report: WhyReport | Exception | None = None

    def state(self) -> ClusterState:
        self.sweeps += 1
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def why(self, group: str, *, window: Sequence[GroupState] = ()) -> WhyReport:
        self.looked.append(group)
        if isinstance(self.report, Exception):
            raise self.report
        if self.report is not None:
            return self.report
        return WhyReport(
            group,
            GroupVerdict(group, Verdict.UNKNOWN, "asked"),
            tuple(self.causes),
            pinned=tuple(self.pinned),
            state=self.found,
        )

    def _remember_in(self, memory: SweepMemory) -> None:
        self.memories.append(memory)

    def close(self) -> None:
        self.closed += 1


class ByHand:
    """Workers whose steps a test calls."""

    def __init__(self) -> None:
        self.step_of: Step = lambda: None
        self.pauses: list[float | None] = []
        self.woken = 0

    def start(self, name: str, step: Step, *, first_s: float) -> Worker:
        self.step_of = step
        return self

    def step(self) -> float | None:
        self.pauses.append(self.step_of())
        return self.pauses[-1]

    def wake(self) -> None:
        self.woken += 1

    def stop(self) -> None:
        self.step_of = lambda: None

    def submit(self, function: Callable[[], object]) -> object:
        raise NotImplementedError

    def close(self) -> None:
        return


class Kept:
    """A record that keeps what it is given."""

    def __init__(self) -> None:
        self.before: Past | None = None
        self.states: list[ClusterState] = []
        self.changes: list[VerdictChange] = []
        self.arrived = threading.Event()

    def add(
        self,
        state: ClusterState,
        verdicts: Mapping[str, GroupVerdict],
        changes: Sequence[VerdictChange],
    ) -> None:
        self.states.append(state)
        self.changes += changes
        self.arrived.set()

    def past(self) -> Past | None:
        return self.before


BEGIN_MS = START_MS // 600_000 * 600_000


def lagging(at_ms: int, lag: int | None, *, arrived: int = 0) -> ClusterState:
    end = 1_000 + arrived
    return cluster(
        at_ms,
        group(
            "billing",
            at_ms,
            queue(
                end=end,
                committed=None if lag is None else end - lag,
                next_stored_ms=at_ms - 5_000 if lag else None,
            ),
        ),
    )
