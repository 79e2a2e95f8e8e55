"""The room a broker has for a new topic or group that a client asks for.

Pure: numbers in, yes or a refusal out.
"""

from __future__ import annotations

from collections.abc import Collection

from rocketstream.errors import BrokerError
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
