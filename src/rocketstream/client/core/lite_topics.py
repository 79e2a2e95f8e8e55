"""Which lite topics a consumer wants, and what each broker was told of them.

Law: pure; the shell tells brokers and says how it went. Brokers keep this in memory: they forget it
when they restart, and 180 s after they last heard of it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

from rocketstream import limits
from rocketstream.client.core.lite_settings import OffsetOption
from rocketstream.late import dataclass

TELL_ALL_AGAIN_MS = 60_000
"""Every broker is told the whole set this often: three times before it would forget."""


@dataclass(slots=True)
class _Told:
    """One broker: when it was told everything, None if it must be told now."""

    all_at_ms: float | None
    change: int = 0
    """Counts what made it untrue; an answer to an earlier question says nothing."""


class LiteTopics:
    """The lite topics of one consumer. Belongs to its loop."""

    def __init__(self) -> None:
        self._wanted: dict[str, None] = {}
        self._told: dict[str, _Told] = {}
        self._unplaced: dict[str, set[str]] = {}

    @property
    def wanted(self) -> frozenset[str]:
        """The lite topics subscribed."""
        return frozenset(self._wanted)

    def is_wanted(self, name: str) -> bool:
        """Whether a lite topic is subscribed."""
        return name in self._wanted

    def new(self, names: Iterable[str]) -> list[str]:
        """Return those of ``names`` that are not subscribed, each once."""
        return [name for name in dict.fromkeys(names) if name not in self._wanted]

    def known(self, names: Iterable[str]) -> list[str]:
        """Return those of ``names`` that are subscribed, each once."""
        return [name for name in dict.fromkeys(names) if name in self._wanted]

    def add(self, names: Collection[str], option: OffsetOption | None) -> None:
        """Want these lite topics too.

        Where the group begins at the oldest message it has no offset at a broker before it has
        finished one; a broker that restarts meanwhile must be told again where to begin.
        """
        self._wanted.update(dict.fromkeys(names))
        if begins_at_oldest(option):
            for unplaced in self._unplaced.values():
                unplaced.update(names)

    def remove(self, names: Collection[str]) -> None:
        """Want these no more."""
        for name in names:
            self._wanted.pop(name, None)
        for unplaced in self._unplaced.values():
            unplaced.difference_update(names)

    # --- brokers ----------------------------------------------------------------------------------

    def serve(self, brokers: Collection[str]) -> tuple[list[str], list[str]]:
        """Take in which brokers carry the parent topic; return those that came and went."""
        came = [name for name in brokers if name not in self._told]
        gone = [name for name in self._told if name not in brokers]
        for name in gone:
            del self._told[name], self._unplaced[name]
        for name in came:
            self._told[name] = _Told(None)
            self._unplaced[name] = set(self._wanted)
        return came, gone

    @property
    def brokers(self) -> list[str]:
        """The brokers that carry the parent topic."""
        return list(self._told)

    def due(self, now_ms: float) -> list[str]:
        """Return the brokers that must be told the whole set now."""
        return [
            name
            for name, told in self._told.items()
            if told.all_at_ms is None or now_ms - told.all_at_ms >= TELL_ALL_AGAIN_MS
        ]

    def forgot(self, broker: str) -> None:
        """A broker may have forgotten everything, or what it has is not what is wanted."""
        told = self._told.get(broker)
        if told is not None:
            told.all_at_ms = None
            told.change += 1

    def mark(self, broker: str) -> int:
        """Return what ``told_all`` needs to be sure that nothing changed meanwhile."""
        told = self._told.get(broker)
        return -1 if told is None else told.change

    def told_all(self, broker: str, mark: int, now_ms: float) -> None:
        """A broker has confirmed the whole set it was sent after ``mark``."""
        told = self._told.get(broker)
        if told is not None and told.change == mark:
            told.all_at_ms = now_ms

    def is_told(self, broker: str) -> bool:
        """Whether a broker has confirmed the whole set and not been lost since."""
        told = self._told.get(broker)
        return told is not None and told.all_at_ms is not None

    # --- where the group begins -------------------------------------------------------------------

    def to_place(self, broker: str) -> list[str]:
        """Return the lite topics where the group may have no offset at a broker.

        While it is to be told the whole set anew: these are to be placed before.
        """
        if self.is_told(broker):
            return []
        return sorted(name for name in self._unplaced.get(broker, ()) if name in self._wanted)

    def placed(self, broker: str, names: Iterable[str]) -> None:
        """The group has an offset in these: it was there before, or has finished a message."""
        unplaced = self._unplaced.get(broker)
        if unplaced:
            unplaced.difference_update(names)


def begins_at_oldest(option: OffsetOption | None) -> bool:
    """Whether a group without an offset is to begin at the oldest message."""
    return option is None or option == OffsetOption.MIN_OFFSET


def in_requests(names: Sequence[str]) -> Iterator[Sequence[str]]:
    """Cut many names into as many requests as it takes."""
    for start in range(0, len(names), limits.LITE_NAMES_PER_REQUEST):
        yield names[start : start + limits.LITE_NAMES_PER_REQUEST]
