"""Pure: the published rules of Jepsen's Kafka workload, reimplemented by us, over its operations.

The rules are those its description (``jepsen.tests.kafka``) names: ``G1a``,
``inconsistent-offsets``,
``duplicate``, ``lost-write``, ``int-poll-skip`` and ``int-nonmonotonic-poll`` within a poll,
``poll-skip`` and ``nonmonotonic-poll`` from poll to poll of a process, ``nonmonotonic-send``, and
``unseen``. No cycles are looked for: an operation here sends or polls, and never both.

As there, a consumer that subscribes, and whose queues the group may give to others at any time, may
skip and go back from poll to poll; one that assigns its queues may not. A value whose producer is
promised no better than once a try may be duplicated.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from tests.outside.edn import Operation


@dataclass(frozen=True)
class Verdict:
    """Cases by the names of their rules."""

    cases: Mapping[str, tuple[str, ...]]

    @property
    def is_valid(self) -> bool:
        """Whether there are none."""
        return not self.cases

    @property
    def texts(self) -> list[str]:
        """Each case as a line."""
        return [f"{name}: {each}" for name, cases in self.cases.items() for each in cases]

    @property
    def summary(self) -> str:
        """The names that are violated, and how often."""
        counts = ", ".join(f"{name} {len(cases)}" for name, cases in self.cases.items())
        return f"Kafka workload: {counts or 'valid'}"


@dataclass(frozen=True)
class _Order:
    """The log of a key: the values seen at each offset, and their ranks without the gaps."""

    log: Mapping[int, frozenset[int]]
    ranks: Mapping[int, int]
    """The first rank of each value."""
    last: Mapping[int, int]
    repeated: Collection[int]
    """Values that stand at several offsets, as they may: it says nothing which of them was read."""

    def step(self, one: int, other: int) -> int:
        """How far it is from one value to another; 1 where it is not known."""
        if {one, other} <= self.ranks.keys() and not {one, other} & set(self.repeated):
            return self.ranks[other] - self.ranks[one]
        return 1


def _reads(operation: Operation) -> dict[int, list[int]]:
    found: dict[int, list[int]] = defaultdict(list)
    for poll in operation.polls:
        for key, pairs in poll.read:
            found[key] += [value for _, value in pairs]
    return found


def judge(operations: Sequence[Operation], may_repeat: Collection[int] = ()) -> Verdict:
    """Hold every rule against the operations of a history."""
    ends = [each for each in operations if each.type != "invoke"]
    read: dict[int, set[int]] = defaultdict(set)
    for each in ends:
        if each.type == "ok":
            for key, values in _reads(each).items():
                read[key].update(values)
    orders = {key: _ordered(log, may_repeat) for key, log in _logs(ends, read).items()}
    cases: dict[str, list[str]] = defaultdict(list)
    for name, text in (
        *_aborted(ends),
        *_offsets(orders, may_repeat),
        *_lost(ends, orders, read),
        *_inside(ends, orders),
        *_between_polls(ends, orders),
        *_between_sends(ends, orders),
        *_unseen(ends, read),
    ):
        cases[name].append(text)
    return Verdict({name: tuple(found) for name, found in cases.items()})


def _logs(
    ends: Sequence[Operation], read: Mapping[int, set[int]]
) -> Mapping[int, Mapping[int, set[int]]]:
    logs: dict[int, dict[int, set[int]]] = defaultdict(lambda: defaultdict(set))
    for each in ends:
        is_visible = each.type == "ok" or (
            each.type == "info" and any(sent.value in read.get(sent.key, ()) for sent in each.sends)
        )
        for sent in each.sends:
            if is_visible and sent.offset is not None:
                logs[sent.key][sent.offset].add(sent.value)
        for poll in each.polls:
            for key, pairs in poll.read:
                for offset, value in pairs:
                    logs[key][offset].add(value)
    return logs


def _ordered(log: Mapping[int, set[int]], may_repeat: Collection[int]) -> _Order:
    by_rank = [frozenset(log[offset]) for offset in sorted(log)]
    ranks: dict[int, int] = {}
    last: dict[int, int] = {}
    for rank, values in enumerate(by_rank):
        for value in values:
            ranks.setdefault(value, rank)
            last[value] = rank
    repeated = {value for value in may_repeat if ranks.get(value) != last.get(value)}
    logged = {offset: frozenset(values) for offset, values in log.items()}
    return _Order(logged, ranks, last, repeated)


Cases = Iterator[tuple[str, str]]


def _aborted(ends: Sequence[Operation]) -> Cases:
    """What a failed operation sent is read by nobody."""
    failed = {(sent.key, sent.value) for each in ends if each.type == "fail" for sent in each.sends}
    for each in ends:
        if each.type == "ok":
            for key, values in _reads(each).items():
                for value in values:
                    if (key, value) in failed:
                        yield (
                            "G1a",
                            f"{value} of {key} was not sent, and process {each.process} read it",
                        )


def _offsets(orders: Mapping[int, _Order], may_repeat: Collection[int]) -> Cases:
    """An offset has one value, and a value one offset."""
    for key, order in orders.items():
        counts: dict[int, list[int]] = defaultdict(list)
        for offset, values in order.log.items():
            if len(values) > 1:
                yield "inconsistent-offsets", f"offset {offset} of {key} has {sorted(values)}"
            for value in values:
                counts[value].append(offset)
        for value, offsets in counts.items():
            if len(offsets) > 1 and value not in may_repeat:
                yield "duplicate", f"{value} is at {sorted(offsets)} of {key}"


def _lost(
    ends: Sequence[Operation], orders: Mapping[int, _Order], read: Mapping[int, set[int]]
) -> Cases:
    """Where a value was read, all that was sent and stands before it was read by somebody."""
    writers = {(sent.key, sent.value): each for each in ends for sent in each.sends}
    for key, values in read.items():
        order = orders[key]
        bound = max((order.ranks[each] for each in values if each in order.ranks), default=-1)
        for value, rank in order.last.items():
            writer = writers.get((key, value))
            if rank > bound or value in values or writer is None:
                continue
            was_seen = any(sent.value in read.get(sent.key, ()) for sent in writer.sends)
            if writer.type == "ok" or (writer.type == "info" and was_seen):
                yield (
                    "lost-write",
                    f"{value} of {key} was sent, what follows it was read, and it never",
                )


def _inside(ends: Sequence[Operation], orders: Mapping[int, _Order]) -> Cases:
    """The values of a key in one poll follow one another."""
    for each in ends:
        for key, values in _reads(each).items():
            for one, other in pairwise(values):
                step = orders[key].step(one, other)
                if step > 1:
                    yield (
                        "int-poll-skip",
                        f"a poll of {each.process} had {one}, then {other} of {key}",
                    )
                elif step < 1:
                    text = f"a poll of {each.process} had {other} after {one} of {key}"
                    yield "int-nonmonotonic-poll", text


def _between_polls(ends: Sequence[Operation], orders: Mapping[int, _Order]) -> Cases:
    """The polls of a process that assigned its queues go on where the last one ended."""
    last: dict[int, dict[int, int]] = defaultdict(dict)
    assigned = {each.process for each in ends if each.f == "assign"}
    for each in ends:
        if each.f in ("assign", "subscribe"):
            held = last[each.process]
            last[each.process] = {key: held[key] for key in each.keys if key in held}
        if each.process not in assigned:
            continue
        for key, values in _reads(each).items():
            if key in last[each.process]:
                before = last[each.process][key]
                step = orders[key].step(before, values[0])
                if step != 1:
                    name = "poll-skip" if step > 1 else "nonmonotonic-poll"
                    yield name, f"process {each.process} polled {before}, then {values[0]} of {key}"
            if each.type == "ok":
                last[each.process][key] = values[-1]


def _between_sends(ends: Sequence[Operation], orders: Mapping[int, _Order]) -> Cases:
    """What a process sends to a key stands in the order it was sent in."""
    last: dict[tuple[int, int], int] = {}
    for each in ends:
        if each.type not in ("ok", "info"):
            continue
        for sent in each.sends:
            before = last.get((each.process, sent.key))
            order = orders.get(sent.key)
            if before is not None and order is not None and order.step(before, sent.value) < 1:
                text = f"process {each.process} sent {before}, then {sent.value} of {sent.key}"
                yield "nonmonotonic-send", text
            last[each.process, sent.key] = sent.value


def _unseen(ends: Sequence[Operation], read: Mapping[int, set[int]]) -> Cases:
    """At the end every acknowledged value was read."""
    for each in ends:
        if each.type == "ok":
            for sent in each.sends:
                if sent.value not in read.get(sent.key, ()):
                    yield "unseen", f"{sent.value} of {sent.key} was sent, and read by nobody"
