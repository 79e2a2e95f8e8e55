"""The one model of a cluster that every face shows: what was found, judged, and when.

Pure: findings in, frozen values out.

Law: a group's figures and verdict are those of the newest of sweep and look. An unknown figure
stays unknown: the last known one stands beside it with its moment.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Protocol

from rocketstream.admin.state import (
    Cause,
    ClusterState,
    GroupState,
    GroupVerdict,
    PinnedMessage,
    TopicState,
    Verdict,
    WhyReport,
)
from rocketstream.watch.windows import Gap, Past, Windows


@dataclass(frozen=True, slots=True)
class Outage:
    """No broker or name server of the cluster answers.

    Attributes:
        since_ms: when the first failed sweep after the last success was made, ms since 1970.
        error: the error of the last failed sweep.
        sweeps: how many sweeps failed in a row.
    """

    since_ms: int
    error: str
    sweeps: int


@dataclass(frozen=True, slots=True)
class BrokerDown:
    """A broker that does not answer, or that the name servers no longer know.

    Attributes:
        since_ms: when the first sweep was made that it did not answer, ms since 1970.
        error: why it could not be asked in the last sweep.
    """

    broker_name: str
    since_ms: int
    error: str


@dataclass(frozen=True, slots=True)
class VerdictChange:
    """The verdict of a group changed.

    Attributes:
        at_ms: when the change was seen, ms since 1970.
        before: the verdict before; None when the group was seen for the first time.
        after: the verdict now. A group that is gone makes no change.
    """

    group: str
    at_ms: int
    before: Verdict | None
    after: GroupVerdict


@dataclass(frozen=True, slots=True)
class GroupLook:
    """One group, asked anew with its members: state, verdict and causes of one moment.

    Attributes:
        state: the group, with the owners of its queues; ``taken_ms`` is the moment of all three.
        verdict: the verdict, as all faces show it from then on.
        report: its causes, and what could not be asked.
    """

    state: GroupState
    verdict: GroupVerdict
    report: WhyReport


@dataclass(frozen=True, slots=True)
class Update:
    """The knowledge of a cluster at one moment: the value that every face shows.

    Attributes:
        state: the newest state; None as long as no sweep found one. A group that was looked into
            since the last sweep is as the look found it: ``taken_ms`` of a group is its own moment.
        verdicts: the verdict of every group, UNKNOWN while ``outage`` lasts.
        changes: the verdicts that changed since the update before.
        outage: since when nothing answers; None when the last sweep was answered.
        down: brokers that do not answer while others, or a name server, do; as of the last sweep
            that was answered.
        before: the state before the last sweep, for rates; None where it was not answered, or made
            before a ``gap``.
        gap: the last time in which nobody watched, where verdicts could not go on over it: before
            this collection began, or while its process stood still. None where there was none.
        at_ms: the moment it holds for, ms since 1970: that of its newest finding; None before the
            first sweep.
        looks: the newest look into each group, of the last minutes.
        last_topics: as ``last_known``, of each topic that a broker does not tell of now.
        last_known: of each group whose lag is unknown now, or not asked because of an outage, the
            last state that had it, for faces to show with its age. Never counted in a sum.
    """

    state: ClusterState | None
    verdicts: Mapping[str, GroupVerdict]
    changes: tuple[VerdictChange, ...] = ()
    outage: Outage | None = None
    down: tuple[BrokerDown, ...] = ()
    before: ClusterState | None = None
    gap: Gap | None = None
    at_ms: int | None = None
    looks: Mapping[str, GroupLook] = field(default_factory=dict)
    last_known: Mapping[str, GroupState] = field(default_factory=dict)
    last_topics: Mapping[str, TopicState] = field(default_factory=dict)

    @property
    def groups(self) -> Mapping[str, GroupState]:
        """The groups of ``state`` by name; none before the first sweep."""
        return {} if self.state is None else self.state.groups

    @property
    def topics(self) -> Mapping[str, TopicState]:
        """The topics of ``state`` by name; none before the first sweep."""
        return {} if self.state is None else self.state.topics

    def verdict_of(self, group: str) -> GroupVerdict:
        """Return the verdict of a group; UNKNOWN where it has not been judged yet."""
        unjudged = GroupVerdict(group, Verdict.UNKNOWN, "not judged yet")
        return self.verdicts.get(group, unjudged)


class Judge(Protocol):
    """Derives a verdict from a window; see ``rocketstream.admin.core.verdicts.judge``."""

    def __call__(
        self,
        window: Sequence[GroupState],
        pinned: Sequence[PinnedMessage] = (),
        causes: Sequence[Cause] = (),
        *,
        before: GroupVerdict | None = None,
    ) -> GroupVerdict:
        """Return the verdict of the newest state."""
        ...


class Model:
    """Takes what sweeps and looks find and makes the update of it; not thread safe."""

    def __init__(self, judge: Judge, windows: Windows) -> None:
        self._judge = judge
        self._windows = windows
        self._looks: dict[str, GroupLook] = {}
        self._judged: dict[str, GroupVerdict] = {}
        self._unjudged: set[str] = set()
        self._known: dict[str, GroupState] = {}
        self._topics: dict[str, TopicState] = {}
        self._changes: list[VerdictChange] = []
        self.update: Update = Update(None, MappingProxyType({}))
        """The value that readers get."""

    def window(self, group: str) -> list[GroupState]:
        """Return the last minutes of a group, oldest first; empty for an unknown group."""
        return self._windows.window(group)

    def go_on(self, past: Past) -> None:
        """Begin with the windows and verdicts that the previous collection left."""
        for moment in past.moments:
            self._windows.add(moment.groups)
            self._keep_known(moment.groups)
        self._judged = dict(past.verdicts)
        self.update = dataclasses.replace(self.update, verdicts=past.verdicts)

    def begin_anew(self, gap: Gap) -> None:
        """Begin without a past: nothing is known of the time of ``gap``."""
        self._windows.forget()
        self._looks, self._judged = {}, {}
        self.update = dataclasses.replace(
            self.update, verdicts=MappingProxyType({}), outage=None, down=(), gap=gap
        )

    # --- findings ---------------------------------------------------------------------------------

    def swept(self, state: ClusterState, now_ms: int) -> None:
        """Take an answered sweep; a group stays as a look found it after the sweep had begun.

        Args:
            now_ms: a look later than that was made before the clock was set back.
        """
        former = self.update
        is_first = former.gap is not None and former.gap.until_ms == state.taken_ms
        groups = dict(state.groups)
        for name, look in self._looks.items():
            if name in groups and groups[name].taken_ms < look.state.taken_ms <= now_ms:
                groups[name] = look.state
        self._windows.add(groups)
        self._unjudged = {name for name, each in groups.items() if each is state.groups[name]}
        self._looks = {name: look for name, look in self._looks.items() if name in groups}
        self._keep_known(groups)
        self._known = {name: known for name, known in self._known.items() if name in groups}
        self.update = dataclasses.replace(
            former,
            state=dataclasses.replace(state, groups=groups),
            outage=None,
            down=brokers_down(former.down, state),
            before=None if former.outage is not None or is_first else former.state,
            at_ms=state.taken_ms,
        )
        down = {each.broker_name for each in self.update.down}
        self._topics = {
            name: known if known is not None and _is_partial(topic, known, down) else topic
            for name, topic in state.topics.items()
            for known in [self._topics.get(name)]
        }

    def looked(self, report: WhyReport) -> GroupLook:
        """Take what a look into a group found; return it with its verdict."""
        group = report.group
        state = report.state or self._windows.newest(group) or GroupState(group, 0)
        self._windows.add_one(state)
        verdict = self._judged[group] = self._judge(
            self.window(group), report.pinned, report.causes, before=self._judged.get(group)
        )
        found = self.update.state
        # A group no sweep lists, as one of upstream's own, is not listed because somebody asked.
        if found is not None and group in found.groups:
            self._keep_known({group: state})
            self._unjudged.discard(group)
            verdicts = self._with(self.update.verdicts, {group: verdict}, state.taken_ms)
            verdict = verdicts[group]
            self.update = dataclasses.replace(
                self.update,
                state=dataclasses.replace(found, groups={**found.groups, group: state}),
                verdicts=verdicts,
                at_ms=max(self.update.at_ms or 0, state.taken_ms),
            )
        look = GroupLook(state, verdict, dataclasses.replace(report, verdict=verdict))
        self._looks[group] = look
        return look

    def not_looked(self, group: str) -> None:
        """Forget the last look into a group: nobody could be asked again."""
        self._looks.pop(group, None)

    def failed(self, state: ClusterState) -> None:
        """Take a sweep that nothing answered."""
        former = self.update
        error = state.error or "no reason given"
        since_ms = state.taken_ms if former.outage is None else former.outage.since_ms
        sweeps = 1 if former.outage is None else former.outage.sweeps + 1
        text = f"the cluster does not answer: {error}"
        unknown = {
            group: GroupVerdict(group, Verdict.UNKNOWN, text, since_ms=since_ms)
            for group in {*former.verdicts, *former.groups}
        }
        self.update = dataclasses.replace(
            former,
            verdicts=self._with({}, unknown, state.taken_ms),
            outage=Outage(since_ms, error, sweeps),
            before=None,
            at_ms=state.taken_ms,
        )

    def show(self) -> Update:
        """Judge what no look has judged since it was found; return the update for all readers."""
        update = self.update
        if self._unjudged and update.state is not None:
            # An outage in between is not a verdict: the verdicts known before it count.
            judged = {name: self._judged_now(name) for name in sorted(self._unjudged)}
            groups = update.state.groups
            self._unjudged = set()
            self._judged = {n: v for n, v in (self._judged | judged).items() if n in groups}
            known = {n: v for n, v in update.verdicts.items() if n in groups}
            update = dataclasses.replace(
                update, verdicts=self._with(known, judged, update.state.taken_ms)
            )
        changes, self._changes = tuple(self._changes), []
        self.update = dataclasses.replace(
            update,
            verdicts=MappingProxyType(dict(update.verdicts)),
            changes=changes,
            looks=MappingProxyType(dict(self._looks)),
            last_known=MappingProxyType(self._last_known(update)),
            last_topics=MappingProxyType(self._last_topics(update)),
        )
        return self.update

    def _judged_now(self, group: str) -> GroupVerdict:
        look = self._looks.get(group)
        pinned, causes = (look.report.pinned, look.report.causes) if look is not None else ((), ())
        return self._judge(self.window(group), pinned, causes, before=self._judged.get(group))

    def _with(
        self,
        known: Mapping[str, GroupVerdict],
        found: Mapping[str, GroupVerdict],
        at_ms: int,
    ) -> dict[str, GroupVerdict]:
        """Return the known verdicts with those found in their place, and note the changes.

        A verdict that does not say since when it holds is taken to hold since it was first seen.
        """
        now = dict(known)
        for group, verdict in found.items():
            before = self.update.verdicts.get(group)
            stays = before is not None and before.verdict is verdict.verdict
            since = verdict.since_ms
            if since is None:
                since = before.since_ms if stays and before is not None else at_ms
            now[group] = dataclasses.replace(verdict, since_ms=since)
            if not stays:
                was = None if before is None else before.verdict
                self._changes.append(VerdictChange(group, at_ms, was, now[group]))
        return now

    # --- last figures -----------------------------------------------------------------------------

    def _keep_known(self, groups: Mapping[str, GroupState]) -> None:
        self._known.update((name, group) for name, group in groups.items() if group.lag is not None)

    def _last_known(self, update: Update) -> dict[str, GroupState]:
        return {
            name: known
            for name, group in update.groups.items()
            if (update.outage is not None or group.lag is None)
            and (known := self._known.get(name)) is not None
        }

    def _last_topics(self, update: Update) -> dict[str, TopicState]:
        topics = update.topics
        return {
            name: known
            for name, known in self._topics.items()
            if name in topics and (update.outage is not None or known is not topics[name])
        }


def _is_partial(topic: TopicState, known: TopicState, down: Collection[str]) -> bool:
    """Return whether a broker that told of a topic before does not tell of it now."""
    told = {queue.broker_name for queue in topic.queues}
    gone = {queue.broker_name for queue in known.queues} - told
    return bool(gone) and (bool(topic.errors) or not gone.isdisjoint(down))


def brokers_down(down: Sequence[BrokerDown], now: ClusterState) -> tuple[BrokerDown, ...]:
    """Return the brokers that are down after a sweep, sorted by name.

    Args:
        down: the brokers that were down before.
        now: what this sweep found.
    """
    since = {each.broker_name: each.since_ms for each in down}
    errors = {each.broker_name: each.error for each in now.brokers if each.error is not None}
    return tuple(
        BrokerDown(name, since.get(name, now.taken_ms), error)
        for name, error in sorted(errors.items())
    )
