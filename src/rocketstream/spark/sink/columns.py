"""The columns a row of a DataFrame may have to become a message: names and types.

Pure: names and Spark's types, so that a mistake of a schema is found before anything is sent;
``columns.values`` looks at what is in them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from rocketstream.columns.values import wrong_together
from rocketstream.errors import ConfigurationError
from rocketstream.model import RESERVED_PROPERTIES

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

QUERY_ID: Final = "SPARK_QUERY_ID"
BATCH_ID: Final = "SPARK_BATCH_ID"
PARTITION: Final = "SPARK_PARTITION"
SEQUENCE: Final = "SPARK_SEQUENCE"
IDENTITY_PROPERTIES: Final = (QUERY_ID, BATCH_ID, PARTITION, SEQUENCE)
"""The properties that say which write a message belongs to, and which row of it."""
NOT_FOR_USERS: Final = RESERVED_PROPERTIES | frozenset(IDENTITY_PROPERTIES)
"""Names of properties that column ``properties`` may not set."""


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
    return wrong + wrong_together(found, named)


def _plain(kind: str) -> str:
    """Return a type without its collation, which concerns comparing and not the content."""
    return "string" if kind.startswith("string collate ") else kind


@dataclass(frozen=True, slots=True)
class Identity:
    """Identifies a task of a write.

    The same rows written again by a retried task, or by a replayed micro-batch, get the same
    properties, so that a reader can spot repeats.

    Attributes:
        query_id: the id of the streaming query, or of the batch write.
        batch_id: the number of the micro-batch; 0 in a batch write.
        partition: the number of the DataFrame's partition.
    """

    query_id: str
    batch_id: int
    partition: int

    def text(self) -> str:
        """Return the properties as text up to the row's number, which must follow directly."""
        pairs = ((QUERY_ID, self.query_id), (BATCH_ID, self.batch_id), (PARTITION, self.partition))
        return "".join(f"{name}\x01{value}\x02" for name, value in pairs) + f"{SEQUENCE}\x01"
