"""Edits of settings while a server runs: tools send them, and those not allowed are refused.

Pure: properties in, changes or a refusal out; each server says which settings are allowed.
"""

from __future__ import annotations

from collections.abc import Mapping

from rocketstream.errors import BrokerError
from rocketstream.protocol.codes import ResponseCode


def parse_properties(text: str) -> dict[str, str]:
    """Read ``key=value`` lines as tools send them; lines of ``#`` or ``!`` are comments.

    Raises:
        BrokerError: a line is neither a pair nor a comment.
    """
    found = {}
    for line in text.splitlines():
        stripped = line.strip()
        if not stripped or stripped[0] in "#!":
            continue
        name, separator, value = stripped.partition("=")
        if not separator:
            raise BrokerError(
                ResponseCode.SYSTEM_ERROR, f"{stripped!r} is not a setting: give name=value"
            )
        found[name.strip()] = value.strip()
    return found


def refuse_others(given: Mapping[str, str], allowed: Mapping[str, object], of: str) -> None:
    """Refuse settings that may not be changed from outside.

    Raises:
        BrokerError: code 16; the text names these settings and the allowed ones.
    """
    others = sorted(set(given) - set(allowed))
    if others:
        raise BrokerError(
            ResponseCode.NO_PERMISSION,
            f"{', '.join(others)} cannot be changed while {of} runs, so nothing was changed: "
            f"restart it with other values, or change only {', '.join(sorted(allowed))}",
        )
