"""The columns of progress, for a cluster and for offset files, and the user's choice of them.

Pure: names and Spark type names, rows of values in their order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from rocketstream.errors import ConfigurationError

CLUSTER_COLUMNS: Final[dict[str, str]] = {
    "cluster": "string",
    "brokerName": "string",
    "group": "string",
    "topic": "string",
    "kind": "string",
    "queueId": "int",
    "minOffset": "bigint",
    "maxOffset": "bigint",
    "committedOffset": "bigint",
    "lag": "bigint",
    "timeLagMs": "bigint",
    "lastConsumedTimestamp": "timestamp",
    "clientId": "string",
    "members": "int",
    "consumeTps": "double",
    "observedAt": "timestamp",
    "error": "string",
    "expired": "bigint",
}
"""The columns for a cluster: name and Spark type, in the order of the schema."""

FILE_COLUMNS: Final[dict[str, str]] = {
    "file": "string",
    "clientId": "string",
    "group": "string",
    "topic": "string",
    "brokerName": "string",
    "queueId": "int",
    "committedOffset": "bigint",
    "modifiedAt": "timestamp",
}
"""The columns for offset files: name and Spark type, in the order of the schema."""

Chosen = tuple[tuple[str, str], ...]
"""The user's spelling of each requested column, and our name."""


def ddl(columns: Mapping[str, str]) -> str:
    """Return a schema as Spark DDL."""
    return ", ".join(f"`{name}` {kind}" for name, kind in columns.items())


def choose(columns: Mapping[str, str], fields: Sequence[tuple[str, str, bool]]) -> Chosen:
    """Return the columns a user's schema asks for.

    Args:
        columns: the existing columns.
        fields: the label and Spark type of each field, and whether nulls are allowed.

    Raises:
        ConfigurationError: a name is unknown, a type differs, or a column is NOT NULL.
    """
    ours = {name.lower(): name for name in columns}
    wrong: list[str] = []
    chosen: list[tuple[str, str]] = []
    for label, kind, nullable in fields:
        name = ours.get(label.lower())
        if name is None:
            wrong.append(f"no column {label!r}")
        elif kind != columns[name]:
            wrong.append(f"{label!r} is {columns[name]}, not {kind}")
        elif not nullable:
            wrong.append(f"{label!r} cannot be NOT NULL: it is null where the value is not known")
        else:
            chosen.append((label, name))
    if wrong or not chosen:
        problem = "; ".join(wrong) or "no column at all"
        raise ConfigurationError(
            f"schema cannot be read as progress: {problem}. Choose any of, in any order: "
            f"{ddl(columns)}",
            schema=list(fields),
        )
    return tuple(chosen)


def picked(
    columns: Mapping[str, str], chosen: Chosen, rows: Sequence[Sequence[Any]]
) -> list[tuple[Any, ...]]:
    """Return rows of all columns reduced to the chosen ones."""
    order = list(columns)
    places = [order.index(name) for _, name in chosen]
    return [tuple(row[place] for place in places) for row in rows]
