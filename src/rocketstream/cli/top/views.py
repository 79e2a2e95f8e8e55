"""The views of ``top``: groups, topics, brokers, and one of each.

An update of the collector in, rows and sentences out. Colours repeat what words say.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from rocketstream.admin.core.words import NONE, UNKNOWN, number, per_second, percent, span
from rocketstream.admin.rows import MemberRow
from rocketstream.admin.state import (
    URGENCY,
    BrokerFigures,
    BrokerState,
    ClusterState,
    GroupState,
    GroupVerdict,
    QueueKind,
    QueueState,
    TopicState,
    Verdict,
    WhyReport,
    figures,
    longest_of,
    sum_of,
    total,
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


# --- cells ----------------------------------------------------------------------------------------


def rank(value: float | None) -> Rank:
    """Return the sort key of a figure; an unknown one comes last either way."""
    return (1, 0.0, "") if value is None else (0, float(value), "")


def rank_text(text: str) -> Rank:
    """Return the sort key of a name."""
    return (0, 0.0, text)


class Told(NamedTuple):
    """A cell: its text, its place when rows are sorted by its column, its style."""

    text: str
    rank: Rank
    style: str = ""


def _text(text: str | None, none: str = NONE) -> Told:
    return Told(none if text is None else text, rank_text(text or ""))


def _figure(value: float | None, words: Callable[[Any], str] = number) -> Told:
    return Told(words(value), rank(value))


def _or_none(value: float | None, words: Callable[[Any], str] = number) -> Told:
    """Return a figure that there may be none of, where others say unknown."""
    return Told(NONE if value is None else words(value), rank(value))


def _verdict(verdict: GroupVerdict) -> Told:
    kind = verdict.verdict
    return Told(kind.value, rank(URGENCY.index(kind)), STYLES[kind])


@dataclass(frozen=True, slots=True)
class Head(Column):
    """A column of a view.

    Attributes:
        told: makes the cell of an item.
        down: sorts from the greatest on when the column is chosen.
    """

    told: Callable[[Any], Told] = _text
    down: bool = False


def _name(title: str, told: Callable[[Any], Told], importance: int = ALWAYS) -> Head:
    return Head(title, importance=importance, told=told)


def _count(
    title: str, told: Callable[[Any], Told], importance: int = ALWAYS, *, down: bool = True
) -> Head:
    return Head(title, number=True, importance=importance, told=told, down=down)


@dataclass(frozen=True, slots=True)
class Row:
    """One row.

    Attributes:
        key: the name of its group, topic or broker; enter opens it.
        cells: as many as there are columns.
        ranks: the sort keys of the cells.
        styles: the styles of the cells.
    """

    key: str
    cells: tuple[str, ...]
    ranks: tuple[Rank, ...]
    styles: tuple[str, ...] = ()


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


@dataclass(frozen=True, slots=True, eq=False)
class View:
    """A table of ``top``.

    Attributes:
        title: its name, with the group, topic or broker it shows.
        heads: its columns.
        items: returns the key and the value of each row, in the view's own order.
        intro: returns sentences above the table, for a room of so many cells.
        opened: returns what enter on a row shows; None where there is nothing more.
        group: the group it shows; None for the others.
        asks: whether brokers and members are asked when it is opened.
    """

    title: str
    heads: tuple[Head, ...]
    items: Callable[[ViewData], Iterable[tuple[str, Any]]]
    intro: Callable[[ViewData, int], list[str]] = lambda seen, room: []
    opened: Callable[[str], View | None] = lambda key: None
    group: str | None = None
    asks: bool = False

    def rows(self, seen: ViewData) -> list[Row]:
        """Return its rows in their own order."""
        found = []
        for key, item in self.items(seen):
            told = [head.told(item) for head in self.heads]
            found.append(Row(key, *zip(*told, strict=True)))
        return found


# --- groups ---------------------------------------------------------------------------------------


class _Line(NamedTuple):
    """One group: its state, its verdict, the state that had its lag last, and what time it is."""

    state: GroupState
    verdict: GroupVerdict
    last: GroupState | None
    now_ms: int

    def lag(self) -> Told:
        lag = number(self.state.lag)
        if self.last is not None:
            lag = f"{number(self.last.lag)} ({span(self.now_ms - self.last.taken_ms)} ago)"
        elif self.state.queues_unknown and self.state.lag is not None:
            lag = f">={lag}"
        return self._known(lag, self.state.lag)

    def time_lag(self) -> Told:
        state = self.state if self.last is None else self.last
        return self._known(span(state.time_lag_ms), self.state.time_lag_ms)

    def _known(self, text: str, value: int | None) -> Told:
        return Told(text, rank(value), "" if self.last is None else "dim")

    def since(self) -> Told:
        at_ms = self.verdict.since_ms
        return _or_none(None if at_ms is None else self.now_ms - at_ms, span)


def _groups(seen: ViewData) -> list[tuple[str, _Line]]:
    """Return all groups, the troubled ones first."""
    update = seen.update
    lines = [
        _Line(state, update.verdict_of(name), update.last_known.get(name), seen.now_ms)
        for name, state in seen.state.groups.items()
    ]
    lines.sort(key=lambda x: (URGENCY.index(x.verdict.verdict), -(x.state.lag or 0), x.state.group))
    return [(line.state.group, line) for line in lines]


def _per_second(value: float | None) -> Told:
    return _or_none(value, per_second)


GROUPS: Final = View(
    "groups",
    (
        _name("GROUP", lambda line: _text(line.state.group)),
        _name("VERDICT", lambda line: _verdict(line.verdict)),
        _count("SINCE", _Line.since, 7, down=False),
        _count("LAG", _Line.lag),
        _count("TIME LAG", _Line.time_lag, 8),
        _count("OUT/s", lambda line: _per_second(line.verdict.consume_rate), 6),
        _count("IN/s", lambda line: _per_second(line.verdict.arrival_rate), 5),
        _count("RETRY", lambda line: _figure(line.state.retrying), 4),
        _count("DEAD", lambda line: _figure(line.state.dead_letters), 4),
        _count("MEMBERS", lambda line: _figure(line.state.member_count), 3),
        _count("ETA", lambda line: _or_none(line.verdict.eta_ms, span), 2, down=False),
        _count("EXPIRED", lambda line: _figure(line.state.expired), 1),
    ),
    _groups,
    opened=lambda key: queues_of(key),
)


def _about_group(group: str, seen: ViewData, room: int) -> list[str]:
    """Return the verdict of a group, its sentence, and how lag went."""
    state = seen.state.groups.get(group)
    verdict = seen.update.verdicts.get(group)
    if state is None:
        return [f"no broker knows the group {group} (any more)"]
    lines = [UNKNOWN if verdict is None else f"{verdict.verdict.value}: {verdict.sentence}"]
    last = seen.update.last_known.get(group)
    now = state if last is None else last
    title = f"lag {number(now.lag)}, time lag {span(now.time_lag_ms)}  "
    if last is not None:
        title = f"{span(seen.now_ms - last.taken_ms)} ago: {title}"
    lags = [each.lag for each in seen.window(group)]
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


def _of_group(
    title: str,
    group: str,
    heads: tuple[Head, ...],
    items: Callable[[GroupState, ViewData], Iterable[tuple[str, Any]]],
) -> View:
    def there(seen: ViewData) -> Iterable[tuple[str, Any]]:
        state = seen.state.groups.get(group)
        return () if state is None else items(state, seen)

    return View(
        f"{title} of group {group}", heads, there,
        lambda seen, room: _about_group(group, seen, room), group=group,
    )  # fmt: skip


def _of_queue(value: Callable[[QueueState], int | None]) -> Callable[[_Queue], Told]:
    """Return the cell of a figure that dead letters have none of."""
    return lambda row: (
        _or_none(None) if row.state.kind is QueueKind.DEAD_LETTER else _figure(value(row.state))
    )


class _Queue(NamedTuple):
    """A queue, and the moment its age is told for."""

    state: QueueState
    taken_ms: int

    def time_lag(self) -> Told:
        if self.state.kind is QueueKind.DEAD_LETTER:
            return _or_none(None)
        return _figure(self.state.time_lag_ms(self.taken_ms), span)


_QUEUE_HEADS: Final = (
    _name("TOPIC", lambda row: _text(row.state.topic)),
    _name("BROKER", lambda row: _text(row.state.broker_name)),
    _count("QUEUE", lambda row: _figure(row.state.queue_id, str), down=False),
    _count("LAG", _of_queue(lambda queue: queue.lag)),
    _count("TIME LAG", _Queue.time_lag, 8),
    _count("COMMITTED", lambda row: _or_none(row.state.committed_offset), 7),
    _count("END", lambda row: _figure(row.state.max_offset), 6),
    _name("OWNER", lambda row: _text(row.state.client_id), 5),
    _count("EXPIRED", _of_queue(lambda queue: queue.expired), 3),
    _name("NOT KNOWN", lambda row: _text(row.state.error, ""), 2),
)


def queues_of(group: str) -> View:
    """Return the view of a group's queues."""
    return _of_group(
        "queues",
        group,
        _QUEUE_HEADS,
        lambda state, seen: [
            ("\0".join(map(str, queue.key)), _Queue(queue, seen.state.taken_ms))
            for queue in state.queues
        ],
    )


class _Member(NamedTuple):
    """A member, with its queues as far as owners are known."""

    row: MemberRow
    queues: Sequence[QueueState] | None

    def lag(self) -> Told:
        lags = [None] if self.queues is None else [queue.lag for queue in self.queues]
        return _figure(total(lags))


_MEMBER_HEADS: Final = (
    _name("CLIENT", lambda member: _text(member.row.client_id)),
    _name("ADDRESS", lambda member: _text(member.row.address), 8),
    _name("LANGUAGE", lambda member: _text(member.row.language), 6),
    _name("VERSION", lambda member: _text(version_name(member.row.version)), 5),
    _count("QUEUES", lambda m: _figure(None if m.queues is None else len(m.queues)), 7),
    _count("LAG", _Member.lag, 7),
)


def _members(state: GroupState, seen: ViewData) -> Iterable[tuple[str, _Member]]:
    told = any(queue.client_id is not None for queue in state.queues)
    for member in state.members or ():
        owned = [queue for queue in state.queues if queue.client_id == member.client_id]
        yield member.client_id, _Member(member, owned if told else None)


def members_of(group: str) -> View:
    """Return the view of a group's members."""
    return _of_group("members", group, _MEMBER_HEADS, _members)


def _why(seen: ViewData) -> list[tuple[str, tuple[int, str, str]]]:
    """Return each cause, its evidence and its remedy."""
    if not isinstance(seen.why, WhyReport):
        return []
    told: list[tuple[str, str]] = []
    for cause in seen.why.causes:
        told.append((cause.kind.value, cause.sentence))
        told += [("", line) for line in cause.evidence]
        told += [("", f"Do: {cause.remedy}")] if cause.remedy else []
        told += [("", line) for line in (cause.stack or "").splitlines()]
    told += [("not known", line) for line in seen.why.unknown]
    return [(str(n), (n, *each)) for n, each in enumerate(told)]


def _about_why(seen: ViewData, room: int) -> list[str]:
    """Return the verdict, or the error of asking."""
    if seen.why is None:
        return ["asking brokers and members; this takes up to two seconds"]
    if isinstance(seen.why, str):
        return [f"this could not be asked: {seen.why}"]
    verdict = seen.why.verdict
    lines = [f"{verdict.verdict.value}: {verdict.sentence}"]
    return lines if seen.why.causes else [*lines, "no cause was found"]


_WHY_HEADS: Final = (
    _name("CAUSE", lambda line: Told(line[1], rank(line[0]), "bold")),
    _name("WHAT SHOWS IT, AND WHAT TO DO", lambda line: Told(line[2], rank(line[0]))),
)


def why_of(group: str) -> View:
    """Return the view of why a group is behind, asked of its brokers and members."""
    title = f"why group {group} is behind"
    return View(title, _WHY_HEADS, _why, _about_why, group=group, asks=True)


# --- topics ---------------------------------------------------------------------------------------


class _Topic(NamedTuple):
    """A topic, and what it was found in."""

    state: TopicState
    seen: ViewData

    def known(self, value: int | None) -> Told:
        return _figure(None if self.state.errors else value)

    def arrives(self) -> Told:
        """Messages a second that arrived between the last two sweeps."""
        topic, former = self.state, self.seen.update.before
        before = None if former is None else former.topics.get(topic.topic)
        if former is None or before is None or topic.errors or before.errors:
            return _per_second(None)
        seconds = (self.seen.state.taken_ms - former.taken_ms) / 1_000
        grown = sum(q.max_offset for q in topic.queues) - sum(q.max_offset for q in before.queues)
        return _per_second(None if seconds <= 0 or grown < 0 else grown / seconds)

    def newest(self) -> Told:
        times = [q.last_update_ms for q in self.state.queues if q.last_update_ms is not None]
        return _or_none(max(self.seen.now_ms - max(times), 0) if times else None, span)

    def groups(self) -> Told:
        consumers = self.state.consumers
        return _figure(None if consumers is None else len(consumers))


def _hidden_topics(seen: ViewData, room: int) -> list[str]:
    hidden = sum(topic.kind != "normal" for topic in seen.state.topics.values())
    if seen.internal or not hidden:
        return []
    return [f"{hidden} retry, dead-letter and system topics are hidden; a shows them"]


TOPICS: Final = View(
    "topics",
    (
        _name("TOPIC", lambda topic: _text(topic.state.topic)),
        _name("KIND", lambda topic: _text(topic.state.kind), 4),
        _count("QUEUES", lambda topic: topic.known(len(topic.state.queues)), 7),
        _count("MESSAGES", lambda topic: topic.known(topic.state.messages)),
        _count("IN/s", _Topic.arrives, 8),
        _count("GROUPS", _Topic.groups, 8),
        _count("NEWEST", _Topic.newest, 6, down=False),
        _name("PERM", lambda topic: _text(topic.state.permission, UNKNOWN), 3),
        _name("NOT KNOWN", lambda topic: _text("; ".join(topic.state.errors)), 2),
    ),
    lambda seen: [
        (topic.topic, _Topic(topic, seen))
        for topic in seen.state.topics.values()
        if seen.internal or topic.kind == "normal"
    ],
    _hidden_topics,
    lambda key: groups_of(key),
)


class _Consumer(NamedTuple):
    """A group that consumes a topic: its queues there, and the moment their ages are told for."""

    group: str
    verdict: GroupVerdict
    queues: Sequence[QueueState]
    taken_ms: int


_CONSUMER_HEADS: Final = (
    _name("GROUP", lambda each: _text(each.group)),
    _name("VERDICT", lambda each: _verdict(each.verdict)),
    _count("LAG HERE", lambda each: _figure(sum_of(each.queues, [q.lag for q in each.queues]))),
    _count("TIME LAG HERE", lambda each: _figure(longest_of(each.queues, each.taken_ms), span), 8),
    _count("QUEUES", lambda each: _figure(len(each.queues)), 5),
)


def groups_of(topic: str) -> View:
    """Return the view of the groups that consume a topic."""

    def items(seen: ViewData) -> Iterable[tuple[str, _Consumer]]:
        state = seen.state.topics.get(topic)
        for name in (state.consumers or ()) if state is not None else ():
            group = seen.state.groups.get(name)
            queues = [q for q in group.queues if q.topic == topic] if group else []
            yield name, _Consumer(name, seen.update.verdict_of(name), queues, seen.state.taken_ms)

    def intro(seen: ViewData, room: int) -> list[str]:
        state = seen.state.topics.get(topic)
        if state is None:
            return [f"no broker knows the topic {topic} (any more)"]
        about = f"{number(state.messages)} messages in {len(state.queues)} queues"
        if state.consumers is None:
            about = "who consumes it is not known"
        return [about, *state.errors[:3]]

    return View(f"groups of topic {topic}", _CONSUMER_HEADS, items, intro, queues_of)


# --- brokers --------------------------------------------------------------------------------------


class _Broker(NamedTuple):
    """A broker, and the figures in its report."""

    state: BrokerState
    told: BrokerFigures

    def status(self) -> Told:
        if self.state.error is None:
            return Told("answers", rank(1), "green")
        return Told("NO ANSWER", rank(0), "bold red")


BROKERS: Final = View(
    "brokers",
    (
        _name("BROKER", lambda broker: _text(broker.state.broker_name)),
        _name("STATUS", _Broker.status),
        _name("CLUSTER", lambda broker: _text(broker.state.cluster), 4),
        _name("VERSION", lambda broker: _text(broker.state.version or UNKNOWN), 7),
        _name("ADDRESS", lambda broker: _text(broker.state.addresses.get(0, NONE)), 8),
        _count("IN/s", lambda broker: _per_second(broker.told.put_tps), 6),
        _count("OUT/s", lambda broker: _per_second(broker.told.get_tps), 6),
        _count("DISK", lambda broker: _or_none(broker.told.disk_used, percent), 5),
        _count("SLAVES", lambda broker: _figure(len({*broker.state.addresses} - {0})), 3),
    ),
    # Brokers that do not answer come first.
    lambda seen: [
        (broker.broker_name, _Broker(broker, figures(broker.facts)))
        for broker in sorted(seen.state.brokers, key=lambda x: (x.error is None, x.broker_name))
    ],
    lambda seen, room: [b.error for b in seen.state.brokers if b.error is not None][:3],
    lambda key: facts_of(key),
)


def facts_of(broker: str) -> View:
    """Return the view of the figures a broker reports of itself."""

    def found(seen: ViewData) -> list[BrokerState]:
        return [each for each in seen.state.brokers if each.broker_name == broker]

    def intro(seen: ViewData, room: int) -> list[str]:
        if not found(seen):
            return [f"the name server knows no broker {broker} (any more)"]
        return [each.error for each in found(seen) if each.error is not None]

    return View(
        f"broker {broker}",
        (
            _name("FACT", lambda fact: _text(fact[0])),
            _name("VALUE", lambda fact: _text(fact[1])),
        ),
        lambda seen: [(f[0], f) for each in found(seen) for f in sorted(each.facts.items())],
        intro,
    )


# --- arranging ------------------------------------------------------------------------------------


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
