"""The notices of a group's verdicts, and when each is sent: changes that last, each once.

Pure: verdicts and times in, notices out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Final

from rocketstream.admin.state import URGENCY, ClusterState, GroupVerdict, Verdict
from rocketstream.watch.model import BrokerDown, Outage

BAD: Final = (
    Verdict.PINNED,
    Verdict.STALLED,
    Verdict.STOPPED,
    Verdict.LOSING,
    Verdict.FAILING,
    Verdict.FALLING_BEHIND,
    Verdict.REWOUND,
)
"""The verdicts that lead to notices unless a rule names others."""
HOLD_MS: Final = 60_000
CHANGE_HOLD_MS: Final = 300_000
"""A reported trouble that seems to be a less urgent one must seem so for this long: which of two
bad verdicts a group has may change with every look.
"""
STEADY_MS: Final = 300_000
"""No recovery is reported in the first minutes: a window that has only begun shows no trouble."""
THE_CLUSTER: Final = ""
"""Used in place of a group's name for notices about the cluster itself."""
A_BROKER: Final = "broker "
"""Stands before a broker's name in place of a group's: no group has a blank in its name."""


class Event(StrEnum):
    """The occasion of a notice."""

    RAISED = "raised"
    CHANGED = "changed"
    REPEATED = "repeated"
    CATCHING_UP = "catching up"
    RECOVERED = "recovered"
    OUTAGE = "outage"
    OUTAGE_OVER = "outage over"
    BROKER_DOWN = "broker down"
    BROKER_BACK = "broker back"
    TEST = "test"


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule: which groups lead to notices, and where these go.

    Attributes:
        groups: patterns (``billing-*``) a name must match one of.
        but: patterns the name must not match.
        verdicts: the verdicts that lead to notices.
        webhooks: names of the webhooks that get the notices.
        hold_ms: how long a verdict must hold before it is told.
        repeat_ms: how often the notice is repeated while the verdict holds; 0 never repeats it.
        recovered: also tell when the group catches up, and when the trouble is over: OK.
    """

    webhooks: tuple[str, ...]
    groups: tuple[str, ...] = ("*",)
    but: tuple[str, ...] = ()
    verdicts: tuple[Verdict, ...] = BAD
    hold_ms: int = HOLD_MS
    repeat_ms: int = 0
    recovered: bool = True

    def is_for(self, group: str) -> bool:
        """Return whether the rule applies to a group."""
        return any(fnmatchcase(group, p) for p in self.groups) and not any(
            fnmatchcase(group, p) for p in self.but
        )


@dataclass(frozen=True, slots=True)
class Notice:
    """One notice to send.

    Attributes:
        group: the group it is about; None for the cluster.
        before: the verdict of the last notice; None where there was none.
        verdict: the verdict now; None for the cluster.
        sentence: explains the verdict.
        since_ms: since when the verdict holds, ms since 1970.
        lag, time_lag_ms: of the group, in messages and in ms; None where not known.
        webhooks: names of the webhooks that get the notices.
    """

    event: Event
    at_ms: int
    sentence: str
    webhooks: tuple[str, ...]
    group: str | None = None
    before: Verdict | None = None
    verdict: Verdict | None = None
    since_ms: int | None = None
    lag: int | None = None
    time_lag_ms: int | None = None


@dataclass(slots=True)
class _Told:
    verdict: Verdict | None
    at_ms: int


class Alerting:
    """Decides which notices are sent; not thread safe.

    Args:
        rules: the first rule that applies to a group counts.
        outage_webhooks: the webhooks that get a notice when nothing answers, or one broker does
            not, and when it answers again.
        outage_hold_ms: how long that must last before its notice.
    """

    def __init__(
        self,
        rules: Sequence[Rule],
        outage_webhooks: tuple[str, ...] = (),
        outage_hold_ms: int = HOLD_MS,
    ) -> None:
        self._rules = tuple(rules)
        self._outage_webhooks = outage_webhooks
        self._outage_hold_ms = outage_hold_ms
        self._told: dict[str, _Told] = {}
        self._seen: dict[str, tuple[Verdict, int]] = {}
        self._began_ms: int | None = None

    def remembered(self) -> dict[str, tuple[str | None, int]]:
        """Return the sent notices, to be passed to ``remember`` after a restart."""
        return {
            group: (None if told.verdict is None else told.verdict.value, told.at_ms)
            for group, told in self._told.items()
        }

    def remember(self, told: Mapping[str, tuple[str | None, int]]) -> None:
        """Take over the notices sent before a restart, so that they are not sent again."""
        self._told = {
            group: _Told(None if verdict is None else Verdict(verdict), at_ms)
            for group, (verdict, at_ms) in told.items()
        }

    def step(
        self,
        state: ClusterState | None,
        verdicts: Mapping[str, GroupVerdict],
        outage: Outage | None,
        now_ms: int,
        down: Sequence[BrokerDown] = (),
    ) -> list[Notice]:
        """Take the findings of a sweep and return the notices to send now.

        During an outage no notice of a group is sent: the outage already says that nothing is known
        of them.
        """
        if self._began_ms is None:
            self._began_ms = now_ms
        found = self._of_outage(outage, now_ms)
        if outage is not None or state is None:
            return found
        found += self._of_brokers(down, now_ms)
        for group in [group for group in self._told if group and group not in verdicts]:
            if not group.startswith(A_BROKER):
                del self._told[group]  # The group was deleted: nobody waits for its recovery.
        self._seen = {g: seen for g, seen in self._seen.items() if g in verdicts}
        for group, verdict in verdicts.items():
            rule = next((rule for rule in self._rules if rule.is_for(group)), None)
            if rule is None:
                continue
            notice = self._of_group(rule, group, verdict, state, now_ms)
            if notice is not None:
                found.append(notice)
        return found

    def _of_group(
        self, rule: Rule, group: str, verdict: GroupVerdict, state: ClusterState, now_ms: int
    ) -> Notice | None:
        event = self._event(rule, group, verdict.verdict, now_ms)
        if event is None:
            return None
        told = self._told.get(group)
        if event is Event.RECOVERED:
            del self._told[group]
        else:
            self._told[group] = _Told(verdict.verdict, now_ms)
        if event in (Event.RECOVERED, Event.CATCHING_UP) and not rule.recovered:
            return None
        found = state.groups.get(group)
        return Notice(
            event,
            now_ms,
            verdict.sentence,
            rule.webhooks,
            group,
            None if told is None else told.verdict,
            verdict.verdict,
            verdict.since_ms,
            None if found is None else found.lag,
            None if found is None else found.time_lag_ms,
        )

    def _event(self, rule: Rule, group: str, verdict: Verdict, now_ms: int) -> Event | None:
        seen = self._seen.get(group)
        if seen is None or seen[0] is not verdict:
            seen = self._seen[group] = (verdict, now_ms)
        told = self._told.get(group)
        if told is not None and told.verdict is verdict:
            again = (
                verdict in rule.verdicts
                and rule.repeat_ms
                and now_ms - told.at_ms >= rule.repeat_ms
            )
            return Event.REPEATED if again else None
        lasts_ms = now_ms - seen[1]
        if lasts_ms < rule.hold_ms:
            return None
        if verdict in rule.verdicts:
            if told is None:
                return Event.RAISED
            is_worse = told.verdict is None or _urgency(verdict) < _urgency(told.verdict)
            return Event.CHANGED if is_worse or lasts_ms >= CHANGE_HOLD_MS else None
        if told is None or now_ms - (self._began_ms or 0) < STEADY_MS:
            return None
        if verdict is Verdict.CATCHING_UP:
            return Event.CATCHING_UP
        return Event.RECOVERED if verdict is Verdict.OK else None

    def _of_outage(self, outage: Outage | None, now_ms: int) -> list[Notice]:
        if not self._outage_webhooks:
            return []
        told = self._told.get(THE_CLUSTER)
        if outage is not None:
            if told is not None or now_ms - outage.since_ms < self._outage_hold_ms:
                return []
            self._told[THE_CLUSTER] = _Told(None, now_ms)
            text = f"The cluster does not answer: {outage.error}"
            since = outage.since_ms
            return [Notice(Event.OUTAGE, now_ms, text, self._outage_webhooks, since_ms=since)]
        if told is None:
            return []
        del self._told[THE_CLUSTER]
        text = "The cluster answers again."
        return [Notice(Event.OUTAGE_OVER, now_ms, text, self._outage_webhooks)]

    def _of_brokers(self, down: Sequence[BrokerDown], now_ms: int) -> list[Notice]:
        found: list[Notice] = []
        if not self._outage_webhooks:
            return found
        for each in down:
            name = A_BROKER + each.broker_name
            if name in self._told or now_ms - each.since_ms < self._outage_hold_ms:
                continue
            self._told[name] = _Told(None, now_ms)
            text = f"Broker {each.broker_name} does not answer: {each.error}"
            found.append(
                Notice(
                    Event.BROKER_DOWN, now_ms, text, self._outage_webhooks, since_ms=each.since_ms
                )
            )
        still = {A_BROKER + each.broker_name for each in down}
        for name in [n for n in self._told if n.startswith(A_BROKER) and n not in still]:
            del self._told[name]
            text = f"Broker {name.removeprefix(A_BROKER)} answers again."
            found.append(Notice(Event.BROKER_BACK, now_ms, text, self._outage_webhooks))
        return found


def _urgency(verdict: Verdict) -> int:
    return URGENCY.index(verdict)
