"""Whether arguments of calls are of the kinds they are declared with.

Law: pure; settings are checked by ``rocketstream.settings``.
"""

from __future__ import annotations

from typing import Any

from rocketstream.errors import ConfigurationError
from rocketstream.settings import is_number, is_whole


def check_whole(name: str, value: object) -> None:
    """Check a number of something.

    Raises:
        ConfigurationError: it is not a whole number.
    """
    if not is_whole(value):
        raise ConfigurationError(f"{name} must be a whole number, not {value!r}")


def check_natural(name: str, value: object) -> None:
    """Check an offset, or a number of something there may be none of.

    Raises:
        ConfigurationError: it is not a whole number, or negative.
    """
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ConfigurationError(f"{name} must be a whole number from 0 on, not {value!r}")


def check_positive(name: str, value: Any) -> None:
    """Check a number of something there must be one of.

    Raises:
        ConfigurationError: it is not a whole number, or less than 1.
    """
    if not is_whole(value) or value < 1:
        raise ConfigurationError(f"{name} must be a whole number from 1 on, not {value!r}")


def check_time(name: str, time_ms: Any) -> None:
    """Check a time in milliseconds, how long to wait for one.

    Raises:
        ConfigurationError: it is not a number, or negative.
    """
    if not is_number(time_ms) or time_ms < 0:
        raise ConfigurationError(
            f"{name} must be a number of milliseconds from 0 on, not {time_ms!r}"
        )


def check_own_group(group: str, default: str, *, java: str) -> None:
    """Check that a group is not the one that every program has by default.

    Args:
        group: its name.
        default: the name that is not accepted.
        java: what Java's clients call the setting.

    Raises:
        ConfigurationError: it is that one.
    """
    if group == default:
        raise ConfigurationError(
            f"group must be a name of your own, not {default!r} (Java: {java})"
        )
