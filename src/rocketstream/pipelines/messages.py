"""Rows as messages: the columns written where the target is a topic.

Law: no row is left out here; a value that brokers refuse is changed into one they accept.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rocketstream.pipelines.bodies import MALFORMED

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

EMPTY_BODY: Final = "_emptyBody"
"""Property of a message whose body was empty where it came from: its body here is one blank,
because brokers accept bodies from 1 byte on.
"""
_COLUMNS: Final = frozenset(
    {
        "body", "tags", "keys", "properties", "shardingKey", "queueId", "brokerName", "delayLevel",
        "deliverTime", "flag",
    }
)  # fmt: skip
_ORIGIN: Final = ("_topic", "_brokerName", "_queueId", "_queueOffset", "_msgId")


def as_messages(frame: DataFrame) -> DataFrame:
    """Return rows as messages: rows with a ``body`` by their columns, other rows as one JSON each.

    Parameters
    ----------
    frame : DataFrame
        A table, or a selection of the columns a write to a topic takes.
    """
    from pyspark.sql import functions as F  # noqa: N812 - pyspark's own convention

    if "body" not in frame.columns:
        return frame.select(F.to_json(F.struct("*")).alias("body"))
    body = F.col("body").cast("binary")
    if MALFORMED in frame.columns:
        # Bodies that do not decode may have a field of that name: the body is then sent on as it
        # came.
        body = F.coalesce(body, F.col(MALFORMED).cast("binary"))
    named = [name for name in frame.columns if name in _COLUMNS and name != "body"]
    given = F.col("properties") if "properties" in named else None
    others = [F.col(name) for name in named if name != "properties"]
    return frame.select(*others, *_never_empty(body, given))


def as_dead_letters(dead: DataFrame) -> DataFrame:
    """Return dead letters as messages that say where they came from.

    Parameters
    ----------
    dead : DataFrame
        Bodies as they came, with the columns of ``METADATA``.
    """
    from pyspark.sql import functions as F  # noqa: N812 - pyspark's own convention

    named = [part for name in _ORIGIN for part in (F.lit(name), F.col(name).cast("string"))]
    return dead.select(
        F.col("_tags").alias("tags"),
        F.col("_keys").alias("keys"),
        # A blank is not JSON either: a second landing of the dead letters finds the body malformed
        # again.
        *_never_empty(F.col("body"), F.create_map(*named)),
    )


def _never_empty(body: Column, properties: Column | None) -> tuple[Column, Column]:
    """Return columns ``body`` and ``properties`` in which a body without bytes is a blank."""
    from pyspark.sql import functions as F  # noqa: N812 - pyspark's own convention

    is_empty = F.length(body) == 0
    marked = F.create_map(F.lit(EMPTY_BODY), F.lit("true"))
    none = F.lit(None).cast("map<string,string>")
    # A message that is copied twice already has the mark, and a map takes each key only once.
    others = none if properties is None else F.map_filter(properties, lambda k, _: k != EMPTY_BODY)
    told = marked if properties is None else F.coalesce(F.map_concat(others, marked), marked)
    return (
        F.when(is_empty, F.lit(b" ")).otherwise(body).alias("body"),
        F.when(is_empty, told)
        .otherwise(none if properties is None else properties)
        .alias("properties"),
    )
