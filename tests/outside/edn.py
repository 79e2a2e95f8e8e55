"""Pure: a history in the form that Jepsen's Kafka workload reads: operations, and their EDN.

A key is a queue, by number; a value is a message, by number. Sends are ``:send``, each call of a
listener and each poll is a ``:poll``. Calls of a process that overlap are processes of their own,
and so is whatever follows an operation nobody knows the end of, as Jepsen has it. Left out is what
that workload has no word for: groups with tags or conditions, and what is tried again. A
send without an answer has the key under which its message was seen, and -1 where it never was. A
message of a transaction, or with a delay, gets its place after its send: its offset is nil.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from tests.outside.history import COMMIT, ROLLBACK, Delivery, History, Send

UNSEEN = -1
Pairs = tuple[tuple[int, int], ...]
"""Offsets and values."""


@dataclass(frozen=True)
class Sent:
    """``[:send key value]``, and its offset where it is known."""

    key: int
    value: int
    offset: int | None = None


@dataclass(frozen=True)
class Polled:
    """``[:poll {key [[offset value] …]}]``."""

    read: tuple[tuple[int, Pairs], ...] = ()


@dataclass(frozen=True)
class Operation:
    """A line of the history; ``type`` is ``invoke``, ``ok``, ``fail`` or ``info``."""

    type: str
    f: str
    process: int
    time: int
    sends: tuple[Sent, ...] = ()
    polls: tuple[Polled, ...] = ()
    keys: tuple[int, ...] = ()


@dataclass(frozen=True)
class _Span:
    """An operation from its invocation to its end."""

    owner: str
    began: int
    ended: int | None
    type: str
    f: str
    sends: tuple[Sent, ...] = ()
    polls: tuple[Polled, ...] = ()
    keys: tuple[int, ...] = ()


@dataclass
class Numbers:
    """Numbers of what has names."""

    given: dict[object, int] = field(default_factory=dict)

    def of(self, name: object) -> int:
        """Return the number of a name."""
        return self.given.setdefault(name, len(self.given))


def operations(history: History) -> list[Operation]:
    """Return the operations of a history, in the order of time."""
    keys, values = Numbers(), Numbers()
    spans = [*_sends(history, keys, values), *_polls(history, keys, values)]
    spans.sort(key=lambda span: span.began)
    made: list[Operation] = []
    for process, span in _processes(spans):
        asked = tuple(Sent(each.key, each.value) for each in span.sends)
        polls = tuple(Polled() for _ in span.polls)
        made.append(Operation("invoke", span.f, process, span.began, asked, polls, span.keys))
        ended = span.began + 1 if span.ended is None else span.ended
        made.append(Operation(span.type, span.f, process, ended, span.sends, span.polls, span.keys))
    made.sort(key=lambda each: each.time)
    return made


def may_repeat(history: History) -> set[int]:
    """Return the values that may stand at two places: sent by tries, or when a crash came."""
    values = Numbers()
    crashed = bool(history.deaths("broker"))
    found = set()
    for send in history.sends:
        value = values.of(send.ident)
        if send.retries or (crashed and send.how in ("delayed", "transaction")):
            found.add(value)
    return found


def _outcome(history: History, send: Send) -> tuple[str, int | None]:
    if send.how == "transaction":
        said = history.decided.get(send.ident, [])
        states = {each.state: each.at for each in said}
        if ROLLBACK in states:
            return "fail", states[ROLLBACK]
        if COMMIT in states and send.is_stored:
            return "ok", max(states[COMMIT], send.ended or 0)
        return "info", None
    if send.is_stored:
        return "ok", send.ended
    return ("fail", send.ended) if send.outcome in ("NOT_SENT", "REJECTED") else ("info", None)


def _sends(history: History, keys: Numbers, values: Numbers) -> Iterator[_Span]:
    for send in history.sends:
        kind, ended = _outcome(history, send)
        place = send.place if send.place and send.place.topic == send.content.topic else None
        if place is None or not send.is_stored or send.delay_s:
            seen = [each for each in history.by_ident.get(send.ident, ()) if _is_plain(each)]
            key = keys.of(seen[0].place[:2]) if seen else UNSEEN
            sent = Sent(key, values.of(send.ident))
        else:
            sent = Sent(keys.of(place[:2]), values.of(send.ident), place.offset)
        # When a delay or a transaction is over says nothing of the order of sends.
        is_later = send.delay_s or send.how == "transaction"
        owner = f"send {send.ident if is_later else send.by}"
        yield _Span(owner, send.began, ended, kind, "send", (sent,))


def _is_plain(delivery: Delivery) -> bool:
    return delivery.place.topic == delivery.content.topic and not delivery.tries


def _polls(history: History, keys: Numbers, values: Numbers) -> Iterator[_Span]:
    found: dict[tuple[str, int], list[Delivery]] = defaultdict(list)
    for delivery in history.deliveries:
        group = history.groups_by_name.get(delivery.group)
        is_partial = group is not None and (group.tags or group.shades)
        if _is_plain(delivery) and not is_partial and delivery.ident in values.given:
            found[delivery.by, delivery.call].append(delivery)
    owners: dict[str, tuple[int, str, set[int]]] = {}
    for (by, _), call in found.items():
        read: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for each in call:
            read[keys.of(each.place[:2])].append((each.place.offset, values.of(each.ident)))
        f = "assign" if call[0].group == "reader" else "subscribe"
        began, _, used = owners.setdefault(by, (call[0].began, f, set()))
        owners[by] = min(began, call[0].began), f, used | read.keys()
        ends = {each.ended for each in call}
        ended = call[0].ended if len(ends) == 1 else None
        polled = Polled(tuple((key, tuple(pairs)) for key, pairs in read.items()))
        kind = "info" if ended is None else "ok"
        yield _Span(f"poll {by}", call[0].began, ended, kind, "poll", (), (polled,))
    for by, (began, f, used) in owners.items():
        yield _Span(f"poll {by}", began - 2, began - 1, "ok", f, keys=tuple(sorted(used)))


def _processes(spans: list[_Span]) -> Iterator[tuple[int, _Span]]:
    """Give each operation a process that is in no other meanwhile."""
    free: dict[str, list[tuple[int, int]]] = defaultdict(list)
    count = 0
    for span in spans:
        idle = [each for each in free[span.owner] if each[0] < span.began]
        if idle:
            chosen = min(idle, key=lambda each: each[1])
            free[span.owner].remove(chosen)
            process = chosen[1]
        else:
            process, count = count, count + 1
        if span.ended is not None:
            free[span.owner].append((span.ended, process))
        yield process, span


def text(history: History) -> str:
    """Return the operations as EDN, one a line, with their indices."""
    made = operations(history)
    start = made[0].time if made else 0
    return "".join(f"{line(index, each, start)}\n" for index, each in enumerate(made))


def line(index: int, operation: Operation, start: int = 0) -> str:
    """Return an operation as EDN."""
    if operation.f in ("assign", "subscribe"):
        value = " ".join(map(str, operation.keys))
    else:
        is_asked = operation.type == "invoke"
        parts = [_sent(each, is_asked) for each in operation.sends]
        value = " ".join(parts + [_polled(each, is_asked) for each in operation.polls])
    return (
        f"{{:index {index}, :time {operation.time - start}, :type :{operation.type}, "
        f":process {operation.process}, :f :{operation.f}, :value [{value}]}}"
    )


def _sent(sent: Sent, is_asked: bool) -> str:
    if is_asked:
        return f"[:send {sent.key} {sent.value}]"
    offset = "nil" if sent.offset is None else sent.offset
    return f"[:send {sent.key} [{offset} {sent.value}]]"


def _polled(polled: Polled, is_asked: bool) -> str:
    if is_asked:
        return "[:poll]"
    read: Mapping[int, Pairs] = dict(polled.read)
    parts = [
        f"{key} [{' '.join(f'[{offset} {value}]' for offset, value in pairs)}]"
        for key, pairs in read.items()
    ]
    return f"[:poll {{{', '.join(parts)}}}]"
