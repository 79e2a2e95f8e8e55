"""The room a broker has for what clients ask it to keep, such as a new topic or group.

Pure: numbers in, yes or a refusal out, or lines that say how full a table is.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple

from rocketstream.errors import BrokerError
from rocketstream.limits import KEPT_NAME_CHARS_MAX
from rocketstream.protocol.codes import ResponseCode


def check_room(
    kind: str,
    name: str,
    known: Collection[str],
    most: int,
    note: str = "",
    remedy: str = "delete some first",
) -> None:
    """Check that a topic or a group may be made.

    Args:
        kind: "topic", "group" and the like, for the error text.
        name: its name.
        known: the existing names.
        most: how many the broker keeps.
        note: a remark on what else counts.
        remedy: what makes room.

    Raises:
        BrokerError: the name is new, and the broker has as many as it keeps.
    """
    if len(known) >= most and name not in known:
        raise BrokerError(
            ResponseCode.SYSTEM_ERROR,
            f"{kind} {name} is not created: this broker keeps {most} {kind}s{note}; {remedy}",
        )


def check_kept(kind: str, name: str) -> None:
    """Check a name that is kept as a peer gave it.

    Args:
        kind: what it names, with its article, for the error text.
        name: the name.

    Raises:
        BrokerError: it is longer than any that is needed.
    """
    if len(name) > KEPT_NAME_CHARS_MAX:
        raise BrokerError(
            ResponseCode.SYSTEM_ERROR,
            f"{kind} has {KEPT_NAME_CHARS_MAX} characters at most; this one has {len(name)}",
        )


class Room(NamedTuple):
    """How much of a table is taken: so many of these things, where at most so many are kept."""

    things: str
    used: int
    most: int


class Fullness:
    """Notices when tables fill up: once at four fifths, and once when there is no room left.

    What was noticed is noticed again only after a table has been less than seven tenths full.
    """

    def __init__(self) -> None:
        self._noticed: dict[str, int] = {}

    def look(self, rooms: Iterable[Room]) -> list[str]:
        """Return a line for each table that has become nearly full, or full."""
        lines = []
        for room in rooms:
            things, used, most = room
            before = self._noticed.get(things, 0)
            stage = (used * 5 >= most * 4) + (used >= most)
            if stage > before:
                lines.append(_FULLNESS[stage].format(used=used, most=most, things=things))
                self._noticed[things] = stage
            elif used * 10 < most * 7:
                self._noticed.pop(things, None)
        return lines


_FULLNESS = (
    "",
    "condition=TABLE_NEARLY_FULL this broker has {used} of at most {most} {things}",
    "condition=TABLE_FULL this broker keeps {most} {things} at most: further ones are refused",
)
