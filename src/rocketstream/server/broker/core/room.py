"""Whether there is room for something new that somebody outside asks for.

Law: pure.
"""

from __future__ import annotations

from collections.abc import Collection

from rocketstream.errors import BrokerError
from rocketstream.protocol.codes import ResponseCode


def check_room(kind: str, name: str, known: Collection[str], most: int, note: str = "") -> None:
    """Check that a topic or a group may be made.

    Args:
        kind: what it is, in a word.
        name: what it is called.
        known: the names of those there are.
        most: how many the broker keeps.
        note: what counts besides the obvious.

    Raises:
        BrokerError: it is new, and the broker has as many as it keeps.
    """
    if len(known) >= most and name not in known:
        raise BrokerError(
            ResponseCode.SYSTEM_ERROR,
            f"{kind} {name} is not created: this broker keeps {most} {kind}s{note}; "
            "delete some first",
        )
