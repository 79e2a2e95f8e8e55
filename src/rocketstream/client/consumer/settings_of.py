"""A consumer's settings, made of its keyword arguments.

Law: pure but for the clock it is given.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields
from datetime import datetime
from typing import Any, TypeVar

from rocketstream._util.clock import Clock
from rocketstream.client.config import ClientConfig
from rocketstream.client.core.other_clients import clients_with
from rocketstream.client.core.settings import TIMESTAMP_FORMAT
from rocketstream.settings import unknown_setting

_TIMESTAMP_BACK_MS = 30 * 60_000
_TIMESTAMP = "consume_timestamp"

S = TypeVar("S")


def settings_of(
    kind: type[S],
    group: str,
    given: dict[str, Any],
    clock: Clock,
    more: Iterable[str] = ("config", "clock"),
) -> S:
    """Return the settings of a consumer from its keyword arguments, unchecked.

    Args:
        kind: the settings class; the consumer's has its name, without "Settings".
        group: the consumer group.
        given: the keywords that are for it alone.
        clock: ``consume_timestamp`` is half an hour before now unless given (C-24, C-73).
        more: further keywords the consumer takes.

    Raises:
        ConfigurationError: a name that is not a setting; the text says what may have been meant.
    """
    known = {each.name for each in fields(kind)} - {"consumer_group"}  # type: ignore[arg-type]
    wrong = sorted(set(given) - known)
    if wrong:
        whose, name = kind.__name__.removesuffix("Settings"), wrong[0]
        others = clients_with(name)
        raise unknown_setting(whose, name, (kind, ClientConfig), more, elsewhere=others)
    if _TIMESTAMP in known and _TIMESTAMP not in given:
        half_an_hour_ago = datetime.fromtimestamp((clock.now_ms() - _TIMESTAMP_BACK_MS) / 1000)
        given = {**given, _TIMESTAMP: half_an_hour_ago.strftime(TIMESTAMP_FORMAT)}
    return kind(group, **given)  # type: ignore[call-arg]
