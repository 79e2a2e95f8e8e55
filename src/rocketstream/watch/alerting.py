"""Notices of verdicts that change: the rules of a file, and when each notice is sent, once.

Pure: a parsed TOML document, verdicts and times in; settings and notices out.

Law: an error names the place of a mistake, never a secret.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Any, Final

from rocketstream.admin.state import URGENCY, ClusterState, GroupVerdict, Verdict
from rocketstream.errors import ConfigurationError
from rocketstream.watch.model import BrokerDown, Outage, Update
from rocketstream.watch.windows import Gap

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
        group: the group it is about; None for the cluster or a broker.
        before: the verdict of the last notice; None where there was none.
        verdict: the verdict now; None for the cluster or a broker.
        sentence: explains the verdict.
        since_ms: since when the verdict holds, ms since 1970.
        lag, time_lag_ms: of the group, in messages and in ms; None where not known.
        webhooks: names of the webhooks that get the notices.
        broker: the broker it is about; None for the cluster or a group.
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
    broker: str | None = None


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
        self._silent: dict[str, int] = {}
        """Since when what does not answer was seen not to."""
        self._began_ms: int | None = None
        self._gap: Gap | None = None

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

    def step(self, update: Update, now_ms: int) -> list[Notice]:
        """Take the knowledge of a cluster and return the notices to send now.

        During an outage no notice of a group or broker is sent: the outage already says that
        nothing is known of them.

        Where the clock was set back, whatever it says was later counts as now: a hold begins anew,
        and is not as long as the clock was ahead. Where nobody watched for a while, all holds begin
        anew, as at the start.
        """
        if update.gap != self._gap:
            self._gap, self._began_ms = update.gap, None
            self._seen, self._silent = {}, {}
        self._began_ms = now_ms if self._began_ms is None else min(self._began_ms, now_ms)
        self._seen = {g: (verdict, min(at, now_ms)) for g, (verdict, at) in self._seen.items()}
        self._told = {g: _Told(t.verdict, min(t.at_ms, now_ms)) for g, t in self._told.items()}
        state, verdicts = update.state, update.verdicts
        found = self._of_silence(update, now_ms)
        if update.outage is not None or state is None:
            return found
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

    def _of_silence(self, update: Update, now_ms: int) -> list[Notice]:
        """Return the notices of what does not answer, the cluster or a broker, or answers again."""
        webhooks = self._outage_webhooks
        if not webhooks or (update.state is None and update.outage is None):
            return []
        silent: dict[str, Outage | BrokerDown]
        if update.outage is not None:
            silent = {THE_CLUSTER: update.outage}
        else:
            silent = {A_BROKER + each.broker_name: each for each in update.down}
        found: list[Notice] = []
        self._silent = {name: min(self._silent.get(name, now_ms), now_ms) for name in silent}
        for name, each in silent.items():
            if name in self._told or now_ms - self._silent[name] < self._outage_hold_ms:
                continue
            self._told[name] = _Told(None, now_ms)
            event = Event.BROKER_DOWN if name else Event.OUTAGE
            text = f"{_subject(name)} does not answer: {each.error}"
            broker, since_ms = name.removeprefix(A_BROKER) or None, each.since_ms
            found.append(Notice(event, now_ms, text, webhooks, since_ms=since_ms, broker=broker))
        # In an outage nobody knows which brokers would answer.
        ended = [] if update.outage is not None else [n for n in self._told if n not in silent]
        for name in ended:
            if name == THE_CLUSTER or name.startswith(A_BROKER):
                del self._told[name]
                event = Event.BROKER_BACK if name else Event.OUTAGE_OVER
                text = f"{_subject(name)} answers again."
                broker = name.removeprefix(A_BROKER) or None
                found.append(Notice(event, now_ms, text, webhooks, broker=broker))
        return found


def _subject(name: str) -> str:
    return f"Broker {name.removeprefix(A_BROKER)}" if name else "The cluster"


def _urgency(verdict: Verdict) -> int:
    return URGENCY.index(verdict)


_TOP: Final = ("cluster", "remember", "outages", "outage_hold_s", "webhook", "rule")
_WEBHOOK: Final = (
    "name",
    "kind",
    "url",
    "url_env",
    "secret",
    "secret_env",
    "headers",
    "headers_env",
)
_RULE: Final = (
    "groups", "except", "verdicts", "webhooks", "hold_s", "repeat_s", "recovered",
)  # fmt: skip


class Kind(StrEnum):
    """The service that receives a notice."""

    GENERIC = "generic"
    SLACK = "slack"
    DINGTALK = "dingtalk"
    FEISHU = "feishu"
    WECOM = "wecom"


@dataclass(frozen=True, slots=True)
class Webhook:
    """A receiver of notices; ``repr`` hides address and secret, because they give access."""

    name: str
    kind: Kind
    url: str = field(repr=False)
    secret: str | None = field(default=None, repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class AlertConfig:
    """The settings in a file.

    Attributes:
        cluster: the cluster's name in notices; None takes the addresses of its name servers.
        remember: the file that keeps sent notices over a restart; empty keeps none, None leaves the
            place to the reader of these settings.
        webhooks: the webhooks by name.
        rules: the rules in the file's order.
        outage_webhooks: the webhooks that are told when no broker answers.
        outage_hold_ms: how long an outage must last before they are told.
    """

    webhooks: Mapping[str, Webhook]
    rules: tuple[Rule, ...]
    cluster: str | None = None
    remember: str | None = None
    outage_webhooks: tuple[str, ...] = ()
    outage_hold_ms: int = HOLD_MS


def read_config(document: Mapping[str, Any], environment: Mapping[str, str]) -> AlertConfig:
    """Return the settings of a document.

    Raises:
        ConfigurationError: a setting is not accepted; the error says which, where, and what would
            be accepted.
    """
    _only(document, _TOP, "the file")
    tables = _tables(document, "webhook")
    if not tables:
        raise ConfigurationError("alerts: the file names no [[webhook]]; nobody could be told")
    webhooks: dict[str, Webhook] = {}
    for number, table in enumerate(tables, 1):
        webhook = _webhook(table, f"webhook {number}", environment)
        if webhook.name in webhooks:
            raise ConfigurationError(f"alerts: two webhooks are called {webhook.name!r}")
        webhooks[webhook.name] = webhook
    everyone = tuple(webhooks)
    rules = [
        _rule(table, f"rule {number}", everyone)
        for number, table in enumerate(_tables(document, "rule"), 1)
    ] or [Rule(everyone)]
    outages = document.get("outages", True)
    told = everyone if outages is True else () if outages is False else _names(outages, everyone)
    return AlertConfig(
        webhooks,
        tuple(rules),
        _text(document, "cluster", "the file"),
        _text(document, "remember", "the file"),
        told,
        _milliseconds(document, "outage_hold_s", "the file", HOLD_MS),
    )


def _webhook(table: Mapping[str, Any], place: str, environment: Mapping[str, str]) -> Webhook:
    _only(table, _WEBHOOK, place)
    name = _text(table, "name", place) or ""
    kind = _text(table, "kind", place) or Kind.GENERIC
    if kind not in list(Kind):
        raise ConfigurationError(
            f"alerts: kind of {place} is {kind!r}; accepted are {', '.join(Kind)}"
        )
    url = _secret(table, "url", place, environment)
    if not name or url is None:
        raise ConfigurationError(f"alerts: {place} needs a name, and url or url_env")
    if not url.startswith(("https://", "http://")) or any(c <= " " or c > "~" for c in url):
        # Not shown in the error: the address gives access to the chat.
        raise ConfigurationError(f"alerts: url of {place} is not an http:// or https:// address")
    headers = dict(_mapping(table, "headers", place))
    for header, variable in _mapping(table, "headers_env", place).items():
        headers[header] = _from_environment(variable, f"headers_env of {place}", environment)
    if any(c < " " or c > "~" for each in headers.items() for part in each for c in part):
        raise ConfigurationError(f"alerts: headers of {place} have a character that is not ASCII")
    return Webhook(name, Kind(kind), url, _secret(table, "secret", place, environment), headers)


def _rule(table: Mapping[str, Any], place: str, everyone: tuple[str, ...]) -> Rule:
    _only(table, _RULE, place)
    verdicts = _texts(table, "verdicts", place, tuple(verdict.value for verdict in BAD))
    accepted = {verdict.value for verdict in Verdict if verdict is not Verdict.OK}
    for verdict in verdicts:
        if verdict not in accepted:
            raise ConfigurationError(
                f"alerts: verdicts of {place} has {verdict!r}; accepted are "
                + ", ".join(sorted(accepted))
            )
    recovered = table.get("recovered", True)
    if not isinstance(recovered, bool):
        raise ConfigurationError(
            f"alerts: recovered of {place} is {recovered!r}; give true or false"
        )
    webhooks = table.get("webhooks")
    return Rule(
        everyone if webhooks is None else _names(webhooks, everyone),
        _texts(table, "groups", place, ("*",)),
        _texts(table, "except", place, ()),
        tuple(Verdict(verdict) for verdict in verdicts),
        _milliseconds(table, "hold_s", place, HOLD_MS),
        _milliseconds(table, "repeat_s", place, 0),
        recovered,
    )


def _only(table: Mapping[str, Any], accepted: Sequence[str], place: str) -> None:
    for name in table:
        if name not in accepted:
            raise ConfigurationError(
                f"alerts: {place} has {name!r}; accepted are {', '.join(accepted)}"
            )


def _tables(document: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    found = document.get(name, [])
    if not isinstance(found, list) or not all(isinstance(each, Mapping) for each in found):
        raise ConfigurationError(f"alerts: write each {name} as a table [[{name}]]")
    return found


def _text(table: Mapping[str, Any], name: str, place: str) -> str | None:
    value = table.get(name)
    if value is not None and not isinstance(value, str):
        raise ConfigurationError(f"alerts: {name} of {place} must be a text in quotes")
    return value


def _texts(
    table: Mapping[str, Any], name: str, place: str, default: tuple[str, ...]
) -> tuple[str, ...]:
    value = table.get(name)
    if value is None:
        return default
    if not isinstance(value, list) or not value or not all(isinstance(v, str) for v in value):
        raise ConfigurationError(f'alerts: {name} of {place} must be a list like ["billing-*"]')
    return tuple(value)


def _mapping(table: Mapping[str, Any], name: str, place: str) -> Mapping[str, str]:
    value = table.get(name, {})
    if not isinstance(value, Mapping) or not all(isinstance(v, str) for v in value.values()):
        raise ConfigurationError(f"alerts: {name} of {place} must be a table of texts")
    return value


def _names(value: Any, known: tuple[str, ...]) -> tuple[str, ...]:
    if not isinstance(value, list) or not value or any(name not in known for name in value):
        raise ConfigurationError(
            f"alerts: webhooks {value!r} are not all in the file, which has {', '.join(known)}"
        )
    return tuple(value)


def _milliseconds(table: Mapping[str, Any], name: str, place: str, default: int) -> int:
    value = table.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e9:
        raise ConfigurationError(f"alerts: {name} of {place} is {value!r}; give seconds, 0 or more")
    return round(value * 1000)


def _secret(
    table: Mapping[str, Any], name: str, place: str, environment: Mapping[str, str]
) -> str | None:
    """Return a value that is in the file itself, or in a variable the file names."""
    value, variable = _text(table, name, place), _text(table, f"{name}_env", place)
    if value is not None and variable is not None:
        raise ConfigurationError(f"alerts: {place} has both {name} and {name}_env; give one")
    if variable is None:
        return value
    return _from_environment(variable, f"{name}_env of {place}", environment)


def _from_environment(variable: str, what: str, environment: Mapping[str, str]) -> str:
    if not environment.get(variable):
        raise ConfigurationError(f"alerts: {what} names the variable {variable}, which is not set")
    return environment[variable]
