"""The views of ``top``: groups, topics, brokers, and one of each.

An update of the collector in, rows and sentences out. Colours repeat what words say.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from rocketstream.admin.core.words import NONE, UNKNOWN, number, per_second, percent, span
from rocketstream.admin.state import (
    URGENCY,
    BrokerState,
    ClusterState,
    GroupState,
    GroupVerdict,
    QueueKind,
    TopicState,
    Verdict,
    WhyReport,
    figures,
    longest_of,
    sum_of,
)
from rocketstream.cli.tables import ALWAYS, Column, fitted, fold, shown, width, widths
from rocketstream.protocol.codes import version_name
from rocketstream.watch import Update

NAME_MIN: Final = 12
"""Names are folded over several lines down to this width before a column gives way for them."""
Rank = tuple[int, float, str]
"""The sort key of a cell: unknown last, then the number, then the text."""
STYLES: Final = {
    Verdict.PINNED: "bold red",
    Verdict.STALLED: "bold red",
    Verdict.STOPPED: "bold red",
    Verdict.LOSING: "bold red",
    Verdict.FAILING: "bold red",
    Verdict.FALLING_BEHIND: "yellow",
    Verdict.REWOUND: "yellow",
    Verdict.CATCHING_UP: "cyan",
    Verdict.OK: "green",
    Verdict.UNKNOWN: "magenta",
}


_BARS: Final = "▁▂▃▄▅▆▇█"


def rank(value: float | None) -> Rank:
    """Return the sort key of a figure; an unknown one comes last either way."""
    return (1, 0.0, "") if value is None else (0, float(value), "")


def rank_text(text: str) -> Rank:
    """Return the sort key of a name."""
    return (0, 0.0, text)


@dataclass(frozen=True, slots=True)
class Row:
    """One row.

    Attributes:
        key: the name of its group, topic or broker; enter opens it.
        cells: as many as there are columns.
        ranks: the sort keys of the cells.
        styles: of single cells, by column.
    """

    key: str
    cells: tuple[str, ...]
    ranks: tuple[Rank, ...]
    styles: tuple[tuple[int, str], ...] = ()


Told = tuple[str, Rank]
"""A cell, and its place when rows are sorted by its column."""


def _text(text: str) -> Told:
    return text, rank_text(text)


def _figure(value: float | None, words: Callable[[Any], str] = number) -> Told:
    return words(value), rank(value)


def _rate(value: float | None) -> Told:
    return per_second(value, NONE), rank(value)


def _age(milliseconds: float | None) -> Told:
    """Return a span that there may be none of, where ``span`` says unknown."""
    return NONE if milliseconds is None else span(milliseconds), rank(milliseconds)


def _row(key: str, *told: Told, styles: tuple[tuple[int, str], ...] = ()) -> Row:
    return Row(key, tuple(cell for cell, _ in told), tuple(each for _, each in told), styles)


@dataclass(frozen=True, slots=True)
class Fitted:
    """A table made for a width.

    Attributes:
        chosen: indexes of the columns shown.
        sizes: their widths.
        lines: of each row the texts of the chosen columns, padded, lines separated by a break.
        heights: lines of each row.
    """

    chosen: tuple[int, ...]
    sizes: tuple[int, ...]
    lines: tuple[tuple[str, ...], ...]
    heights: tuple[int, ...]


def fit(heads: Sequence[Column], rows: Sequence[Row], room: int) -> Fitted:
    """Return the table for a terminal of ``room`` cells.

    Where even the columns that never give way do not fit, they are wider than the terminal.
    """
    cells = [[shown(cell) for cell in row.cells] for row in rows]
    natural = widths(heads, cells)
    least = [
        size
        if head.number or head.importance < ALWAYS
        else min(size, max(NAME_MIN, len(head.title)))
        for head, size in zip(heads, natural, strict=True)
    ]
    sizes = fitted(heads, natural, least, room)
    if sizes is None:
        sizes = {i: least[i] for i, head in enumerate(heads) if head.importance >= ALWAYS}
    folded = [[fold(row[i], size, within=True) for i, size in sizes.items()] for row in cells]
    lines = tuple(
        tuple(
            "\n".join(_padded(text, size, heads[i].number) for text in part)
            for (i, size), part in zip(sizes.items(), parts, strict=True)
        )
        for parts in folded
    )
    heights = tuple(max(map(len, parts)) for parts in folded)
    return Fitted(tuple(sizes), tuple(sizes.values()), lines, heights)


def _padded(text: str, size: int, number: bool) -> str:
    blank = " " * (size - width(text))
    return blank + text if number else text + blank


@dataclass(frozen=True, slots=True)
class ViewData:
    """The values all views render.

    Attributes:
        update: of the collector; its state is the last that was found.
        window: the last states of a group.
        now_ms: the time the ages shown are from.
        internal: also show topics of RocketMQ itself, retry and dead-letter topics.
        why: why a group is behind: a report, or an error's text; None until the answer is there.
    """

    update: Update
    window: Callable[[str], list[GroupState]]
    now_ms: int
    internal: bool = False
    why: WhyReport | str | None = None

    @property
    def state(self) -> ClusterState:
        """The newest state that was found; an empty one before the first."""
        return self.update.state or ClusterState(self.now_ms, 0, 0)


class View(Protocol):
    """A table of ``top`` with its title and keys."""

    @property
    def title(self) -> str:
        """Its name, with the group, topic or broker it shows."""
        ...

    @property
    def heads(self) -> tuple[Column, ...]:
        """Its columns; rows are sorted by the first rank of each row unless another is chosen."""
        ...

    def rows(self, seen: ViewData) -> list[Row]:
        """Return its rows in their own order."""
        ...

    def intro(self, seen: ViewData, room: int) -> list[str]:
        """Return sentences above the table."""
        ...

    def opened(self, key: str) -> View | None:
        """Return what enter on a row shows; None where there is nothing more."""
        ...


def severity(verdict: GroupVerdict | None) -> int:
    """Return the place of a verdict in the order; one without comes where UNKNOWN does."""
    return URGENCY.index(Verdict.UNKNOWN if verdict is None else verdict.verdict)


@dataclass(frozen=True, slots=True)
class Groups:
    """All groups, the troubled ones first."""

    title: str = "groups"
    heads: tuple[Column, ...] = (
        Column("GROUP"),
        Column("VERDICT"),
        Column("SINCE", number=True, importance=7),
        Column("LAG", number=True, down=True),
        Column("TIME LAG", number=True, importance=8, down=True),
        Column("OUT/s", number=True, importance=6, down=True),
        Column("IN/s", number=True, importance=5, down=True),
        Column("RETRY", number=True, importance=4, down=True),
        Column("DEAD", number=True, importance=4, down=True),
        Column("MEMBERS", number=True, importance=3, down=True),
        Column("ETA", number=True, importance=2),
        Column("EXPIRED", number=True, importance=1, down=True),
    )

    def rows(self, seen: ViewData) -> list[Row]:
        """Return a row of each group."""
        found = [
            _group_row(group, seen.update.verdicts.get(group.group), seen)
            for group in seen.state.groups.values()
        ]
        return sorted(found, key=lambda row: (row.ranks[1], -row.ranks[3][1], row.key))

    def intro(self, seen: ViewData, room: int) -> list[str]:
        """Return nothing: the table says it."""
        return []

    def opened(self, key: str) -> View | None:
        """Return the queues of the group."""
        return GroupQueues(key)


def _group_row(group: GroupState, verdict: GroupVerdict | None, seen: ViewData) -> Row:
    kind = Verdict.UNKNOWN if verdict is None else verdict.verdict
    since = None if verdict is None or verdict.since_ms is None else seen.now_ms - verdict.since_ms
    lag, waited = number(group.lag), span(group.time_lag_ms)
    if group.queues_unknown and group.lag is not None:
        lag = f">={lag}"
    styles: tuple[tuple[int, str], ...] = ((1, STYLES[kind]),)
    last = seen.update.last_known.get(group.group)
    if last is not None:
        lag = f"{number(last.lag)} ({span(seen.now_ms - last.taken_ms)} ago)"
        waited = span(last.time_lag_ms)
        styles += ((3, "dim"), (4, "dim"))
    return _row(
        group.group,
        _text(group.group),
        (kind.value, rank(severity(verdict))),
        _age(since),
        (lag, rank(group.lag)),
        (waited, rank(group.time_lag_ms)),
        _rate(None if verdict is None else verdict.consume_rate),
        _rate(None if verdict is None else verdict.arrival_rate),
        _figure(group.retrying),
        _figure(group.dead_letters),
        _figure(group.member_count),
        _age(None if verdict is None else verdict.eta_ms),
        _figure(group.expired),
        styles=styles,
    )


@dataclass(frozen=True, slots=True)
class _OfGroup:
    """The common part of the views of one group."""

    group: str

    def intro(self, seen: ViewData, room: int) -> list[str]:
        """Return the verdict, its sentence, and how lag went."""
        state = seen.state.groups.get(self.group)
        verdict = seen.update.verdicts.get(self.group)
        if state is None:
            return [f"no broker knows the group {self.group} (any more)"]
        lines = [UNKNOWN if verdict is None else f"{verdict.verdict.value}: {verdict.sentence}"]
        last = seen.update.last_known.get(self.group)
        now = state if last is None else last
        title = f"lag {number(now.lag)}, time lag {span(now.time_lag_ms)}  "
        if last is not None:
            title = f"{span(seen.now_ms - last.taken_ms)} ago: {title}"
        lags = [each.lag for each in seen.window(self.group)]
        lines.append(title + bars(lags, room - len(title)))
        facts = [
            f"{number(state.retrying)} due for another try",
            f"{number(state.dead_letters)} dead letters",
            f"{number(state.expired)} expired",
        ]
        if state.delayed:
            about = "" if state.delayed_is_exact else "at least "
            facts.insert(1, f"{about}{state.delayed:,} delayed")
        lines.append(", ".join(facts))
        return [*lines, *(f"not known: {error}" for error in state.errors[:3])]

    def opened(self, key: str) -> View | None:
        """Return nothing: this is the last view."""
        return None


@dataclass(frozen=True, slots=True)
class GroupQueues(_OfGroup):
    """The queues of one group."""

    @property
    def title(self) -> str:
        """Whose queues they are."""
        return f"queues of group {self.group}"

    @property
    def heads(self) -> tuple[Column, ...]:
        """The columns."""
        return (
            Column("TOPIC"),
            Column("BROKER"),
            Column("QUEUE", number=True),
            Column("LAG", number=True, down=True),
            Column("TIME LAG", number=True, importance=8, down=True),
            Column("COMMITTED", number=True, importance=7, down=True),
            Column("END", number=True, importance=6, down=True),
            Column("OWNER", importance=5),
            Column("EXPIRED", number=True, importance=3, down=True),
            Column("NOT KNOWN", importance=2),
        )

    def rows(self, seen: ViewData) -> list[Row]:
        """Return a row of each queue, dead letters last."""
        state = seen.state.groups.get(self.group)
        rows: list[Row] = []
        for queue in () if state is None else state.queues:
            dead = queue.kind is QueueKind.DEAD_LETTER
            lag = None if dead else queue.lag
            waited = None if dead else queue.time_lag_ms(seen.state.taken_ms)
            rows.append(
                _row(
                    f"{queue.topic}\0{queue.broker_name}\0{queue.queue_id}",
                    _text(queue.topic),
                    _text(queue.broker_name),
                    _figure(queue.queue_id, str),
                    (NONE if dead else number(lag), rank(lag)),
                    (NONE if dead else span(waited), rank(waited)),
                    (number(queue.committed_offset, NONE), rank(queue.committed_offset)),
                    _figure(queue.max_offset),
                    (queue.client_id or NONE, rank_text(queue.client_id or "")),
                    (NONE if dead else number(queue.expired), rank(queue.expired)),
                    _text(queue.error or ""),
                )
            )
        return rows


@dataclass(frozen=True, slots=True)
class GroupMembers(_OfGroup):
    """The members of one group."""

    @property
    def title(self) -> str:
        """Whose members they are."""
        return f"members of group {self.group}"

    @property
    def heads(self) -> tuple[Column, ...]:
        """The columns."""
        return (
            Column("CLIENT"),
            Column("ADDRESS", importance=8),
            Column("LANGUAGE", importance=6),
            Column("VERSION", importance=5),
            Column("QUEUES", number=True, importance=7, down=True),
            Column("LAG", number=True, importance=7, down=True),
        )

    def rows(self, seen: ViewData) -> list[Row]:
        """Return a row of each member."""
        state = seen.state.groups.get(self.group)
        rows: list[Row] = []
        for member in (state.members or ()) if state is not None else ():
            owned = [q for q in state.queues if q.client_id == member.client_id] if state else []
            told = any(q.client_id is not None for q in state.queues) if state else False
            lags = [queue.lag for queue in owned]
            lag = None if None in lags or not told else sum(each or 0 for each in lags)
            texts = (member.client_id, member.address, member.language)
            rows.append(
                _row(
                    member.client_id,
                    *map(_text, (*texts, version_name(member.version))),
                    _figure(len(owned) if told else None),
                    _figure(lag),
                )
            )
        return rows


@dataclass(frozen=True, slots=True)
class GroupWhy:
    """Why one group is behind, asked of its brokers and members when it is opened."""

    group: str

    @property
    def title(self) -> str:
        """Of which group."""
        return f"why group {self.group} is behind"

    @property
    def heads(self) -> tuple[Column, ...]:
        """The columns."""
        return (Column("CAUSE"), Column("WHAT SHOWS IT, AND WHAT TO DO"))

    def rows(self, seen: ViewData) -> list[Row]:
        """Return a row of each cause, of its evidence, and of its remedy."""
        if not isinstance(seen.why, WhyReport):
            return []
        told: list[tuple[str, str]] = []
        for cause in seen.why.causes:
            told.append((cause.kind.value, cause.sentence))
            told += [("", line) for line in cause.evidence]
            told += [("", f"Do: {cause.remedy}")] if cause.remedy else []
            told += [("", line) for line in (cause.stack or "").splitlines()]
        told += [("not known", line) for line in seen.why.unknown]
        return [
            Row(str(n), cells, (rank(n), rank(n)), styles=((0, "bold"),))
            for n, cells in enumerate(told)
        ]

    def intro(self, seen: ViewData, room: int) -> list[str]:
        """Return the verdict, or the error of asking."""
        if seen.why is None:
            return ["asking brokers and members; this takes up to two seconds"]
        if isinstance(seen.why, str):
            return [f"this could not be asked: {seen.why}"]
        verdict = seen.why.verdict
        lines = [f"{verdict.verdict.value}: {verdict.sentence}"]
        if not seen.why.causes:
            lines.append("no cause was found")
        return lines

    def opened(self, key: str) -> View | None:
        """Return nothing: this is the last view."""
        return None


@dataclass(frozen=True, slots=True)
class Topics:
    """All topics."""

    title: str = "topics"
    heads: tuple[Column, ...] = (
        Column("TOPIC"),
        Column("KIND", importance=4),
        Column("QUEUES", number=True, importance=7, down=True),
        Column("MESSAGES", number=True, down=True),
        Column("IN/s", number=True, importance=8, down=True),
        Column("GROUPS", number=True, importance=8, down=True),
        Column("NEWEST", number=True, importance=6),
        Column("PERM", importance=3),
        Column("NOT KNOWN", importance=2),
    )

    def rows(self, seen: ViewData) -> list[Row]:
        """Return a row of each topic; RocketMQ's own only where wanted."""
        return [
            _topic_row(topic, seen)
            for topic in seen.state.topics.values()
            if seen.internal or topic.kind == "normal"
        ]

    def intro(self, seen: ViewData, room: int) -> list[str]:
        """Return how many are not shown."""
        hidden = sum(topic.kind != "normal" for topic in seen.state.topics.values())
        if seen.internal or not hidden:
            return []
        return [f"{hidden} retry, dead-letter and system topics are hidden; a shows them"]

    def opened(self, key: str) -> View | None:
        """Return who consumes the topic."""
        return TopicGroups(key)


def _topic_row(topic: TopicState, seen: ViewData) -> Row:
    newest = max(
        (q.last_update_ms for q in topic.queues if q.last_update_ms is not None), default=None
    )
    age = None if newest is None else max(seen.now_ms - newest, 0)
    known = not topic.errors
    return _row(
        topic.topic,
        _text(topic.topic),
        _text(topic.kind),
        _figure(len(topic.queues) if known else None),
        _figure(topic.messages if known else None),
        _rate(_arrives(topic, seen)),
        _figure(None if topic.consumers is None else len(topic.consumers)),
        _age(age),
        (topic.permission or UNKNOWN, rank_text(topic.permission or "")),
        _text("; ".join(topic.errors)),
    )


def _arrives(topic: TopicState, seen: ViewData) -> float | None:
    """Return messages a second that arrived between the last two sweeps."""
    former = seen.update.before
    before = None if former is None else former.topics.get(topic.topic)
    if former is None or before is None or topic.errors or before.errors:
        return None
    seconds = (seen.state.taken_ms - former.taken_ms) / 1_000
    grown = sum(q.max_offset for q in topic.queues) - sum(q.max_offset for q in before.queues)
    return None if seconds <= 0 or grown < 0 else grown / seconds


@dataclass(frozen=True, slots=True)
class TopicGroups:
    """The groups that consume one topic."""

    topic: str

    @property
    def title(self) -> str:
        """Of which topic."""
        return f"groups of topic {self.topic}"

    @property
    def heads(self) -> tuple[Column, ...]:
        """The columns."""
        return (
            Column("GROUP"),
            Column("VERDICT"),
            Column("LAG HERE", number=True, down=True),
            Column("TIME LAG HERE", number=True, importance=8, down=True),
            Column("QUEUES", number=True, importance=5, down=True),
        )

    def rows(self, seen: ViewData) -> list[Row]:
        """Return a row of each group."""
        rows: list[Row] = []
        topic = seen.state.topics.get(self.topic)
        for name in (topic.consumers or ()) if topic is not None else ():
            group = seen.state.groups.get(name)
            verdict = seen.update.verdicts.get(name)
            queues = [q for q in group.queues if q.topic == self.topic] if group else []
            kind = Verdict.UNKNOWN if verdict is None else verdict.verdict
            rows.append(
                _row(
                    name,
                    _text(name),
                    (kind.value, rank(severity(verdict))),
                    _figure(sum_of(queues, [queue.lag for queue in queues])),
                    _figure(longest_of(queues, seen.state.taken_ms), span),
                    _figure(len(queues)),
                    styles=((1, STYLES[kind]),),
                )
            )
        return rows

    def intro(self, seen: ViewData, room: int) -> list[str]:
        """Return the content of the topic."""
        topic = seen.state.topics.get(self.topic)
        if topic is None:
            return [f"no broker knows the topic {self.topic} (any more)"]
        if topic.consumers is None:
            return ["who consumes it is not known", *topic.errors[:3]]
        return [
            f"{number(topic.messages)} messages in {len(topic.queues)} queues",
            *topic.errors[:3],
        ]

    def opened(self, key: str) -> View | None:
        """Return the queues of the group."""
        return GroupQueues(key)


@dataclass(frozen=True, slots=True)
class Brokers:
    """All brokers."""

    title: str = "brokers"
    heads: tuple[Column, ...] = (
        Column("BROKER"),
        Column("STATUS"),
        Column("CLUSTER", importance=4),
        Column("VERSION", importance=7),
        Column("ADDRESS", importance=8),
        Column("IN/s", number=True, importance=6, down=True),
        Column("OUT/s", number=True, importance=6, down=True),
        Column("DISK", number=True, importance=5, down=True),
        Column("SLAVES", number=True, importance=3, down=True),
    )

    def rows(self, seen: ViewData) -> list[Row]:
        """Return a row of each broker, those that do not answer first."""
        found = [_broker_row(broker) for broker in seen.state.brokers]
        return sorted(found, key=lambda row: (row.ranks[1], row.key))

    def intro(self, seen: ViewData, room: int) -> list[str]:
        """Return why brokers did not answer."""
        return [broker.error for broker in seen.state.brokers if broker.error is not None][:3]

    def opened(self, key: str) -> View | None:
        """Return the broker's report of itself."""
        return BrokerFacts(key)


def _broker_row(broker: BrokerState) -> Row:
    up = broker.error is None
    told = figures(broker.facts)
    return _row(
        broker.broker_name,
        _text(broker.broker_name),
        ("answers" if up else "NO ANSWER", rank(1 if up else 0)),
        _text(broker.cluster),
        _text(broker.version or UNKNOWN),
        _text(broker.addresses.get(0, NONE)),
        _rate(told.put_tps),
        _rate(told.get_tps),
        (percent(told.disk_used, NONE), rank(told.disk_used)),
        _figure(sum(1 for number in broker.addresses if number != 0)),
        styles=((1, "green" if up else "bold red"),),
    )


@dataclass(frozen=True, slots=True)
class BrokerFacts:
    """The figures one broker reports of itself."""

    broker: str

    @property
    def title(self) -> str:
        """Of which broker."""
        return f"broker {self.broker}"

    @property
    def heads(self) -> tuple[Column, ...]:
        """The columns."""
        return (Column("FACT"), Column("VALUE"))

    def rows(self, seen: ViewData) -> list[Row]:
        """Return a row of each fact."""
        return [
            _row(name, _text(name), _text(value))
            for broker in seen.state.brokers
            if broker.broker_name == self.broker
            for name, value in sorted(broker.facts.items())
        ]

    def intro(self, seen: ViewData, room: int) -> list[str]:
        """Return why it does not answer, where it does not."""
        found = [each for each in seen.state.brokers if each.broker_name == self.broker]
        if not found:
            return [f"the name server knows no broker {self.broker} (any more)"]
        return [each.error for each in found if each.error is not None]

    def opened(self, key: str) -> View | None:
        """Return nothing: this is the last view."""
        return None


def arranged(
    view: View, rows: Sequence[Row], wanted: str, column: int | None, backwards: bool
) -> list[Row]:
    """Return the rows with the wanted text, sorted by a column where one is chosen.

    Unknown values come last in either direction.
    """
    text = wanted.casefold()
    kept = [row for row in rows if not text or any(text in c.casefold() for c in row.cells)]
    if column is None:
        return kept[::-1] if backwards else kept
    down = view.heads[column].down is not backwards
    known = [row for row in kept if row.ranks[column][0] == 0]
    unknown = [row for row in kept if row.ranks[column][0] != 0]
    known.sort(key=lambda row: row.ranks[column], reverse=down)
    return [*known, *unknown]


def bars(values: Sequence[int | None], room: int) -> str:
    """Return a line of bars, the newest values that fit; a blank where one is not known."""
    shown = list(values[-room:]) if room > 0 else []
    most = max((value for value in shown if value is not None), default=0)
    return "".join(
        " "
        if value is None
        else _BARS[0 if most <= 0 else min(max(value, 0) * len(_BARS) // (most + 1), 7)]
        for value in shown
    )
