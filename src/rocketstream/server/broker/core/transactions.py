"""Undecided half messages, and the decision of a check round about each.

Pure: upstream reads the queue of ends again in every round (C-606); here the undecided messages are
always known, so a round examines only those, and an end that comes twice is noticed. Upstream:
TransactionalMessageServiceImpl (C-412 to C-420).
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rocketstream.protocol.properties import (
    PROPERTY_CHECK_IMMUNITY_TIME_IN_SECONDS,
    PROPERTY_TRAN_PREPARED_QUEUE_OFFSET,
    PROPERTY_TRANSACTION_CHECK_TIMES,
)

OP_TAG = "d"
ENDED_KEPT_MAX = 100_000
WAYS_KEPT_MAX = 1_000
"""Messages that were given up whose earlier places are still known, should an end come late."""
BACKLOG_MAX = 10_000
"""An undecided message is put back at the end once this many ends wait behind it."""


class Verdict(enum.Enum):
    """The action of a check round on an undecided message."""

    WAIT = "too young, or its immunity lasts"
    CHECK = "ask a producer of its group"
    DISCARD = "checked too often, or too old"


@dataclass(frozen=True, slots=True)
class CheckRules:
    """When a half message is checked, and when it is given up (C-418)."""

    timeout_ms: int = 6_000
    check_max: int = 15
    reserved_ms: int = 72 * 3_600_000


@dataclass(frozen=True, slots=True)
class HalfFacts:
    """The facts about a half message that decide about it.

    Attributes:
        since_ms: when it began to wait, on a clock that only grows.
    """

    since_ms: float
    check_times: int = 0
    immunity_ms: int | None = None

    @classmethod
    def of(cls, properties: Mapping[str, str], since_ms: float) -> HalfFacts:
        """Read the facts from the properties; what ``_number`` does not take counts as absent."""
        immunity_s = _number(properties.get(PROPERTY_CHECK_IMMUNITY_TIME_IN_SECONDS))
        return cls(
            since_ms,
            _number(properties.get(PROPERTY_TRANSACTION_CHECK_TIMES)) or 0,
            None if immunity_s is None else immunity_s * 1000,
        )


def judge(half: HalfFacts, now_ms: float, rules: CheckRules) -> Verdict:
    """Return the action on a message that was there when the check round began."""
    age_ms = now_ms - half.since_ms
    if half.check_times >= rules.check_max or age_ms > rules.reserved_ms:
        return Verdict.DISCARD
    wait_ms = rules.timeout_ms if half.immunity_ms is None else half.immunity_ms
    return Verdict.WAIT if age_ms < wait_ms else Verdict.CHECK


def op_body(half_offset: int) -> bytes:
    """Return the body of the op message for a decided half message (C-417)."""
    return str(half_offset).encode()


def read_op_body(body: bytes) -> tuple[int, ...]:
    """Return the half offsets an op message names: one (4.9), several (5.x), or none (damage)."""
    found = (_number(part) for part in body.decode("ascii", "replace").split(","))
    return tuple(offset for offset in found if offset is not None)


def origin_of(properties: Mapping[str, str]) -> int | None:
    """Return the offset a message had before it was put back, if its properties name one."""
    return _number(properties.get(PROPERTY_TRAN_PREPARED_QUEUE_OFFSET))


def _number(text: str | None) -> int | None:
    """Return the number a text names; None for other text, and for numbers below 0."""
    try:
        number = int(text or "")
    except ValueError:
        return None
    return number if number >= 0 else None


class HalfQueue:
    """The undecided messages of the half queue, and the progress in both queues.

    A restart begins at ``begin`` and ``op_begin``: every half message below ``begin`` is decided,
    and the ends of all others stand at ``op_begin`` or later.

    Args:
        begin: first half offset that may be undecided.
        op_begin: first op offset that may name one of them.
    """

    begin: int

    def __init__(self, begin: int, op_begin: int) -> None:
        self.begin = self._end = self._loaded = begin
        self.op_begin: int = op_begin
        self._pending: dict[int, float] = {}
        self._ops: deque[Sequence[int]] = deque()
        self._ended: dict[int, None] = {}
        self._moved: dict[int, int] = {}
        self._came_from: dict[int, int] = {}
        self._untold: set[int] = set()
        """Undecided messages that no producer was told stand where they are."""
        self._given_up: deque[int] = deque()

    @property
    def backlog(self) -> int:
        """How many ends a restart would have to read again."""
        return len(self._ops)

    def pending(self) -> list[int]:
        """Return the offsets of the undecided messages, the oldest first."""
        return list(self._pending)

    def is_pending(self, offset: int) -> bool:
        """Whether the message at an offset is undecided."""
        return offset in self._pending

    def is_ended(self, offset: int) -> bool:
        """Whether a decision about the message at an offset is remembered."""
        return offset in self._ended

    def is_before_restart(self, offset: int) -> bool:
        """Whether the message at an offset was decided, or left its place, before the restart.

        Nothing else is known of it: a restart does not read what comes before ``begin``.
        """
        return offset < self._loaded and offset not in self._pending

    def current(self, offset: int) -> int:
        """Return where a message stands now; it may have been put back since ``offset``."""
        while offset in self._moved:
            offset = self._moved[offset]
        return offset

    def since_ms(self, offset: int) -> float:
        """When the undecided message at an offset began to wait."""
        return self._pending[offset]

    def stored(self, offset: int, origin: int | None = None, since_ms: float = 0.0) -> None:
        """Note a stored half message, which waits from ``since_ms`` on.

        ``origin`` is the offset it had before, which no longer counts; a message put back has
        waited since it first was stored.
        """
        self._pending[offset] = since_ms
        self._end = max(self._end, offset + 1)
        if origin is not None and origin < offset:
            self._pending[offset] = self._pending.pop(origin, since_ms)
            self._link(origin, offset)

    def _link(self, origin: int, offset: int) -> None:
        if origin in self._untold:
            # No end names this place, so the way leads past it.
            self._untold.discard(origin)
            origin = self._came_from.pop(origin)
        self._moved[origin] = offset
        self._came_from[offset] = origin

    def missing(self, offset: int) -> None:
        """Note that the message at an offset cannot be read: there is nothing to decide."""
        self._end = max(self._end, offset + 1)
        self._give_up(offset)

    def ended(self, offsets: Sequence[int]) -> None:
        """Note the next op message, an end of the messages at ``offsets``."""
        self._ops.append(offsets)
        for offset in offsets:
            # An end may name the offset a message had before it was put back.
            for known in {offset, self.current(offset)}:
                self._pending.pop(known, None)
                for place in (known, *self._forget_way(known)):
                    self._remember(place)

    def _remember(self, offset: int) -> None:
        self._ended[offset] = None
        if len(self._ended) > ENDED_KEPT_MAX:
            del self._ended[next(iter(self._ended))]

    def _forget_way(self, offset: int) -> list[int]:
        """Forget the earlier places of a message, and return them."""
        self._untold.discard(offset)
        places: list[int] = []
        while (origin := self._came_from.pop(offset, None)) is not None:
            self._moved.pop(origin, None)
            places.append(origin)
            offset = origin
        return places

    def put_back(self, offset: int, copy_offset: int, *, is_told: bool) -> None:
        """Note that a message was stored again at the end; its old offset gets an end.

        ``is_told`` is whether a producer is told the new offset, and may name it in an end.
        """
        self.stored(copy_offset, offset)
        if not is_told:
            self._untold.add(copy_offset)
        self.left((offset,))

    def left(self, offsets: Sequence[int]) -> None:
        """Note the next op message: its messages have left these offsets, but are undecided."""
        for offset in offsets:
            self._pending.pop(offset, None)
        self._ops.append(offsets)

    def discarded(self, offset: int) -> None:
        """Note that a message was given up; its offset gets an end."""
        self._give_up(offset)
        self._ops.append((offset,))

    def _give_up(self, offset: int) -> None:
        """Leave a message that an end may still come for, by an earlier place."""
        self._pending.pop(offset, None)
        self._untold.discard(offset)
        if offset in self._came_from:
            self._given_up.append(offset)
            if len(self._given_up) > WAYS_KEPT_MAX:
                self._forget_way(self._given_up.popleft())

    def advance(self) -> tuple[int, int]:
        """Move both beginnings forward as far as possible and return them."""
        self.begin = next(iter(self._pending), self._end)
        ops = self._ops
        while ops and all(offset < self.begin for offset in ops[0]):
            ops.popleft()
            self.op_begin += 1
        return self.begin, self.op_begin
