"""The columns a RocketMQ row can have, and the choice of them a user makes with ``.schema()``.

Pure: names and Spark type names only, no Spark and no Arrow.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from rocketstream.errors import ConfigurationError
from rocketstream.model import MessageQueue

ERROR: Final = "error"
"""The column that says why a record could not be decoded; null for all others. It is in the default
schema only with ``mode=permissive``.
"""
EVERY_PROPERTY: Final = "*"
"""Stands for the name of a property where a column has all of them."""


class Source(NamedTuple):
    """The Spark type of a column, and the place of its value in a stored record.

    Attributes:
        kind: Spark's name of the type.
        attribute: the attribute of a message with the value.
        field: the fixed field of a record with the value, as ``columns.layout`` names it.
        property: the property of a message with the value.
    """

    kind: str
    attribute: str | None = None
    field: str | None = None
    property: str | None = None


TABLE: Final[dict[str, Source]] = {
    "topic": Source("string", "topic"),
    "brokerName": Source("string", "broker_name"),
    "queueId": Source("int", "queue_id", "queueId"),
    "queueOffset": Source("bigint", "queue_offset", "queueOffset"),
    "msgId": Source("string", property="UNIQ_KEY"),
    "tags": Source("string", property="TAGS"),
    "keys": Source("string", property="KEYS"),
    "body": Source("binary"),
    "properties": Source("map<string,string>", property=EVERY_PROPERTY),
    "flag": Source("int", "flag", "flag"),
    "bornTimestamp": Source("timestamp", "born_timestamp", "bornTimestamp"),
    "storeTimestamp": Source("timestamp", "store_timestamp", "storeTimestamp"),
    "bornHost": Source("string", "born_host"),
    "storeHost": Source("string", "store_host"),
    "reconsumeTimes": Source("int", "reconsume_times", "reconsumeTimes"),
    "sysFlag": Source("int", "sys_flag", "sysFlag"),
    "commitLogOffset": Source("bigint", "commit_log_offset", "commitLogOffset"),
    ERROR: Source("string"),
}
"""Every column, in the order of the default schema. A column that is one property or one fixed
field of a record needs no more than its line here: schema, decoders and readers are derived.
"""

COLUMNS: Final = {name: source.kind for name, source in TABLE.items() if name != ERROR}
"""Name and Spark type of the columns of the default schema."""


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
    named = [name for name in TABLE if permissive or name != ERROR]
    return ", ".join(f"{name} {TABLE[name].kind}" for name in named)


def choose(fields: Sequence[tuple[str, str] | RequestedColumn]) -> tuple[Column, ...]:
    """Return the columns asked for, in their order.

    Names match in any case, as Spark resolves them; the user's spelling stays the label.

    Raises:
        ConfigurationError: a name is unknown, a type differs, or a column comes twice; the error
            lists all mistakes and the accepted columns.
    """
    by_lower_name = {name.lower(): name for name in TABLE}
    wrong: list[str] = []
    chosen: list[Column] = []
    for field in fields:
        requested = RequestedColumn(*field)
        label, kind = requested.label, requested.kind
        name = by_lower_name.get(label.lower())
        if name is None:
            wrong.append(f"no column {label!r}")
        elif kind != TABLE[name].kind:
            wrong.append(f"{label!r} is {TABLE[name].kind}, not {kind}")
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


def named(names: Sequence[str] | None) -> tuple[Column, ...]:
    """Return the columns of these names, in their order; None for all, ``error`` included.

    Raises:
        ConfigurationError: a name is unknown or comes twice, or there is none.
    """
    if names is None:
        return tuple(Column(name, name) for name in TABLE)
    wrong = [f"no column {name!r}" for name in names if name not in TABLE]
    wrong += [f"{name!r} is given twice" for name in sorted(set(names)) if names.count(name) > 1]
    if wrong or not names:
        raise ConfigurationError(
            f"columns of messages: {'; '.join(wrong) or 'none is given'}. Choose any of, in any "
            f"order: {', '.join(TABLE)}",
            columns=list(names),
        )
    return tuple(Column(name, name) for name in names)


def described(queue: MessageQueue) -> str:
    """Return a queue as error texts name it."""
    return f"topic {queue.topic!r}, broker {queue.broker_name!r}, queue {queue.queue_id}"
