"""The columns a RocketMQ row can have, and the choice of them a user makes with ``.schema()``.

Pure: names and Spark type names only, no Spark and no Arrow.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from rocketstream.errors import ConfigurationError

COLUMNS: Final[dict[str, str]] = {
    "topic": "string",
    "brokerName": "string",
    "queueId": "int",
    "queueOffset": "bigint",
    "msgId": "string",
    "tags": "string",
    "keys": "string",
    "body": "binary",
    "properties": "map<string,string>",
    "flag": "int",
    "bornTimestamp": "timestamp",
    "storeTimestamp": "timestamp",
    "bornHost": "string",
    "storeHost": "string",
    "reconsumeTimes": "int",
    "sysFlag": "int",
    "commitLogOffset": "bigint",
}
"""Name and Spark type of every column, in the order of the default schema."""

ERROR: Final = "error"
"""The column that says why a record could not be decoded; null for all others. It is in the default
schema only with ``mode=permissive``.
"""

KINDS: Final[dict[str, str]] = {**COLUMNS, ERROR: "string"}
"""Name and Spark type of every column."""

FROM_PROPERTIES: Final = frozenset({"properties", "tags", "keys", "msgId"})
"""Columns that need a message's properties to be parsed."""

_BY_LOWER_NAME = {name.lower(): name for name in KINDS}


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a scan: one of ours, under the name the user gave it.

    Attributes:
        name: our name of the column.
        label: the user's spelling.
        nullable: whether the user's schema allows nulls; Spark compares schemas exactly.
        values_nullable: whether the user's schema allows nulls among the values of a map.
    """

    name: str
    label: str
    nullable: bool = True
    values_nullable: bool = True


class RequestedColumn(NamedTuple):
    """A field of the user's schema, with its type by Spark's name."""

    label: str
    kind: str
    nullable: bool = True
    values_nullable: bool = True


ALL_COLUMNS: Final = tuple(Column(name, name) for name in COLUMNS)


def ddl(permissive: bool = False) -> str:
    """Return the full schema as Spark DDL; ``permissive`` adds the column ``error``."""
    kinds = KINDS if permissive else COLUMNS
    return ", ".join(f"{name} {kind}" for name, kind in kinds.items())


def choose(fields: Sequence[tuple[str, str] | RequestedColumn]) -> tuple[Column, ...]:
    """Return the columns asked for, in their order.

    Names match in any case, as Spark resolves them; the user's spelling stays the label.

    Raises:
        ConfigurationError: a name is unknown, a type differs, or a column comes twice; the error
            lists all mistakes and the accepted columns.
    """
    wrong: list[str] = []
    chosen: list[Column] = []
    for field in fields:
        requested = RequestedColumn(*field)
        label, kind = requested.label, requested.kind
        name = _BY_LOWER_NAME.get(label.lower())
        if name is None:
            wrong.append(f"no column {label!r}")
        elif kind != KINDS[name]:
            wrong.append(f"{label!r} is {KINDS[name]}, not {kind}")
        elif name == ERROR and not requested.nullable:
            wrong.append(f"{label!r} is null where a record was decoded, so it cannot be NOT NULL")
        elif any(name == column.name for column in chosen):
            wrong.append(f"{label!r} is given twice")
        else:
            chosen.append(Column(name, label, requested.nullable, requested.values_nullable))
    if wrong or not chosen:
        problem = "; ".join(wrong) or "no column at all"
        raise ConfigurationError(
            f"schema cannot be read from RocketMQ: {problem}. Choose any of, in any order: "
            f"{ddl(permissive=True)}",
            schema=list(fields),
        )
    return tuple(chosen)
