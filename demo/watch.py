"""The groups seen from Spark: what they gave up and why, and how far they are.

Law: tables and SQL; prints nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from demo.flights import SCHEMA
from demo.totals import Totals, from_rows
from rocketstream.spark import dead_letters

_LETTERS_SQL = f"""
SELECT group, inline(array(from_json(CAST(body AS STRING), '{SCHEMA}')))
FROM dead
"""
_CAUSES_SQL = """
SELECT group, coalesce(cause, 'not noted by the listener') AS cause,
       count(DISTINCT id) AS flights
FROM letters LEFT JOIN causes USING (group, id)
GROUP BY ALL ORDER BY flights DESC, cause
"""
_DEAD_TOTALS_SQL = """
SELECT group, carrier, count(*) AS flights,
       sum(dep_delay) AS dep_delay, count(dep_delay) AS dep_known,
       sum(arr_delay) AS arr_delay, count(arr_delay) AS arr_known
FROM (SELECT DISTINCT group, id, carrier, dep_delay, arr_delay FROM letters)
GROUP BY group, carrier
"""
_PROGRESS_SQL = """
SELECT group,
       sum(committedOffset) FILTER (WHERE kind = 'topic') AS consumed,
       sum(lag) FILTER (WHERE kind <> 'dead letter') AS lag,
       max(timeLagMs) FILTER (WHERE kind <> 'dead letter') / 1000 AS seconds,
       coalesce(sum(maxOffset - minOffset) FILTER (WHERE kind = 'dead letter'), 0) AS dead,
       max(error) AS error
FROM progress GROUP BY group ORDER BY group
"""


@dataclass(frozen=True, slots=True)
class Letters:
    """Dead letters of some groups.

    Attributes:
        totals: by group, each flight once.
        causes: flights by group and cause.
    """

    totals: dict[str, Totals]
    causes: dict[str, dict[str, int]]


@dataclass(frozen=True, slots=True)
class GroupProgress:
    """How far a group is; None where nobody knows.

    Attributes:
        consumed: messages of the topic before its committed offsets.
        lag: messages it has not consumed, retries included.
        seconds: how long the oldest of those has been waiting.
        dead: its dead letters.
        error: why a figure is missing.
    """

    group: str
    consumed: int | None
    lag: int | None
    seconds: float | None
    dead: int
    error: str | None

    def differences(self, messages: int, dead: Mapping[str, int]) -> list[str]:
        """Return every figure that is not as after everything was consumed, one line each.

        Args:
            messages: how many there are.
            dead: how many dead letters each group must have; none where it is not named.
        """
        wanted = {"consumed": messages, "lag": 0, "dead": dead.get(self.group, 0), "error": None}
        return [
            f"{self.group}, {name}: {getattr(self, name)} instead of {want}"
            for name, want in wanted.items()
            if getattr(self, name) != want
        ]


def read_letters(spark: Any, namesrv: str, causes: Mapping[str, Mapping[int, str]]) -> Letters:
    """Read the dead letters of groups.

    Args:
        spark: the session.
        namesrv: name server address.
        causes: by group and flight, what its listener noted; brokers keep no cause.
    """
    known = [(group, id, why) for group, noted in causes.items() for id, why in noted.items()]
    spark.createDataFrame(known, "group STRING, id INT, cause STRING").createOrReplaceTempView(
        "causes"
    )
    dead_letters(spark, *causes, nameServer=namesrv).createOrReplaceTempView("dead")
    spark.sql(_LETTERS_SQL).createOrReplaceTempView("letters")
    found = Letters({group: Totals() for group in causes}, {group: {} for group in causes})
    for row in spark.sql(_CAUSES_SQL).collect():
        found.causes[row["group"]][row["cause"]] = row["flights"]
    for group, rows in _by_group(spark.sql(_DEAD_TOTALS_SQL).collect()).items():
        found.totals[group] = from_rows(rows)
    return found


def progress(spark: Any, namesrv: str, groups: Iterable[str]) -> list[GroupProgress]:
    """Return how far some groups are, sorted by name."""
    reader = spark.read.format("rocketmq-progress").option("nameServer", namesrv)
    reader.option("groups", ",".join(groups)).load().createOrReplaceTempView("progress")
    return [GroupProgress(**row.asDict()) for row in spark.sql(_PROGRESS_SQL).collect()]


def _by_group(rows: Iterable[Any]) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        found.setdefault(row["group"], []).append(row.asDict())
    return found
