"""The columns a row may have to become a message, and the check of a DataFrame's schema.

Pure: names and Spark type names only. Every mistake is found before anything is sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rocketstream.errors import ConfigurationError

_WHOLE: Final = ("int", "bigint", "smallint", "tinyint")
COLUMNS: Final[dict[str, tuple[str, ...]]] = {
    "body": ("binary", "string"),
    "topic": ("string",),
    "tags": ("string",),
    "keys": ("string", "array<string>"),
    "properties": ("map<string,string>",),
    "queueId": _WHOLE,
    "brokerName": ("string",),
    "shardingKey": ("string",),
    "delayLevel": _WHOLE,
    "deliverTime": ("timestamp",),
    "flag": _WHOLE,
}
"""The name of every column and the Spark types it may have."""

_BY_LOWER_NAME: Final = {name.lower(): name for name in COLUMNS}
_EITHER: Final = (
    ("queueId", "shardingKey", "both say which queue"),
    ("delayLevel", "deliverTime", "both say how long to wait"),
)


def choose(fields: Sequence[tuple[str, str]], topic: str | None) -> dict[str, int]:
    """Return where each of our columns is in a DataFrame's rows; names match in any case.

    Args:
        fields: name and Spark type name of each column of the DataFrame.
        topic: option ``topic``, which overrides the column.

    Raises:
        ConfigurationError: a column is unknown or missing, has a wrong type, comes twice, or
            excludes another; the error lists all mistakes and the accepted columns.
    """
    wrong: list[str] = []
    found: dict[str, int] = {}
    for place, (label, kind) in enumerate(fields):
        name = _BY_LOWER_NAME.get(label.lower())
        if name is None:
            wrong.append(f"no column {label!r}")
        elif _plain(kind) not in COLUMNS[name]:
            wrong.append(f"{label!r} is {' or '.join(COLUMNS[name])}, not {kind}")
        elif name in found:
            wrong.append(f"{label!r} is given twice")
        else:
            found[name] = place
    wrong += _missing(found, {_BY_LOWER_NAME.get(label.lower()) for label, _ in fields}, topic)
    if wrong:
        raise ConfigurationError(
            f"rows cannot be written to RocketMQ: {'; '.join(wrong)}. "
            f"Select, rename and cast to: {accepted()}",
            schema=list(fields),
        )
    if topic is not None:
        found.pop("topic", None)
    return found


def accepted() -> str:
    """Return the columns and types as text for people."""
    return ", ".join(f"{name} {' or '.join(kinds)}" for name, kinds in COLUMNS.items())


def _missing(found: dict[str, int], named: set[str | None], topic: str | None) -> list[str]:
    wrong = []
    if "body" not in named:
        wrong.append("column 'body' is missing")
    if "topic" not in named and topic is None:
        wrong.append("there is neither option 'topic' nor a column 'topic'")
    if "brokerName" in found and "queueId" not in named:
        wrong.append("'brokerName' needs 'queueId' beside it")
    wrong += [
        f"{one!r} and {other!r} exclude each other: {why}"
        for one, other, why in _EITHER
        if one in found and other in found
    ]
    return wrong


def _plain(kind: str) -> str:
    """Return a type without its collation, which concerns comparing and not the content."""
    return "string" if kind.startswith("string collate ") else kind
