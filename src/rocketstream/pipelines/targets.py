"""Targets of rows: files and tables Spark can append to, a database, a topic.

Law: no row is left out here; a value that brokers refuse is changed into one they accept.

The settings of a target are checked without Spark; after that the module only configures Spark's
own writers. Paths are handed on unchanged.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rocketstream.errors import ConfigurationError
from rocketstream.pipelines.bodies import MALFORMED
from rocketstream.pipelines.databases import TYPES, has_places, insert_missing, without_secrets
from rocketstream.pipelines.installed import check_jar, spark_line, spark_version
from rocketstream.pipelines.places import local_path

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

FILE_KINDS: Final = ("parquet", "orc", "delta")
KINDS: Final = ("parquet", "orc", "delta", "iceberg", "jdbc", "rocketmq")
ACCEPTED: Final = (
    "parquet:PATH, orc:PATH, delta:PATH (PATH as Spark takes it, s3a://… too), "
    "iceberg:CATALOG.DB.TABLE, jdbc:URL (with --table), rocketmq:TOPIC"
)
CHECKPOINT = "_checkpoint"
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
_EXTRAS: Final = {
    "delta": ("delta-", "io.delta:delta-spark_{line}_2.13"),
    "iceberg": ("iceberg", "org.apache.iceberg:iceberg-spark-runtime-{line}_2.13"),
    "avro": ("spark-avro", "org.apache.spark:spark-avro_2.13"),
}
"""Parts of the names of the jars that a target or format needs, and where to get them."""
_MADE_FOR: Final = re.compile(r"((?:delta-spark_|iceberg-spark-runtime-)(\d+\.\d+)_[\d.]+)")
_EXTENSIONS: Final = "spark.sql.extensions"


@dataclass(frozen=True, slots=True)
class Target:
    """A place that rows are appended to.

    Attributes
    ----------
    kind : str
        One of ``KINDS``.
    place : str
        Path, table name, URL or topic, as Spark takes it.
    table : str or None
        Table of a ``jdbc`` target.
    options : mapping
        More options of Spark's writer.
    """

    kind: str
    place: str
    table: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{without_secrets(self.place)} ({self.table})" if self.table else self.place

    @property
    def url(self) -> str | None:
        """The URL of a database; None for any other kind of target."""
        return self.place if self.kind == "jdbc" else None

    @property
    def is_path(self) -> bool:
        """Whether it is a directory of files."""
        return self.kind in FILE_KINDS

    @property
    def local(self) -> Path | None:
        """The directory on this machine; None for any other kind of target."""
        return local_path(self.place) if self.is_path else None

    def checkpoint(self, given: str | None) -> str:
        """Return where a stream into this target keeps its checkpoint.

        Raises
        ------
        ConfigurationError
            No place is given, and the target itself has none.
        """
        if given:
            return given
        if not self.is_path:
            raise ConfigurationError(
                f"a {self.kind} target has no directory for the checkpoint; say where it is to be "
                "kept with --checkpoint DIRECTORY, the same one with every run"
            )
        return f"{self.place.rstrip('/')}/{CHECKPOINT}"

    def batch(self, frame: DataFrame, mode: str, partition_by: Sequence[str] = ()) -> None:
        """Write a batch; blocks.

        Parameters
        ----------
        frame : DataFrame
            The rows.
        mode : str
            ``new`` fails where the target holds something, ``append`` adds to it, ``overwrite``
            replaces it.
        partition_by : sequence of str
            Columns that become directories or partitions.
        """
        if self.kind == "iceberg":
            self._into_iceberg(frame, mode, partition_by)
            return
        if self.kind == "rocketmq":
            frame, mode = as_messages(frame), "append"
        spelled = "errorifexists" if mode == "new" else mode
        options = self._options()
        if self.kind == "jdbc" and has_places(frame.columns):
            options = TYPES | options
        writer = frame.write.format(self.kind).mode(spelled).options(**options)
        (writer.partitionBy(*partition_by) if partition_by else writer).save()

    def _into_iceberg(self, frame: DataFrame, mode: str, partition_by: Sequence[str]) -> None:
        there = frame.sparkSession.catalog.tableExists(self.place)
        writer = frame.writeTo(self.place).using(self.kind).options(**dict(self.options))
        if mode == "append" and there:
            writer.append()
            return
        if partition_by:
            writer = writer.partitionedBy(*partition_by)
        if mode == "overwrite":
            writer.createOrReplace()
        else:
            writer.create()

    def stream(self, frame: DataFrame, begun: int | None = None) -> DataStreamWriter:
        """Return a stream writer into this target: Spark's own exactly-once sink if any.

        JDBC and topics have none. A database is asked which rows it has of a batch that was begun
        before, where rows have their places; into topics they are written again.

        Parameters
        ----------
        frame : DataFrame
            The rows.
        begun : int or None
            The number of the batch that an earlier run began and perhaps wrote, in part.
        """
        if self.kind == "jdbc":

            def write(rows: DataFrame, batch_id: int) -> None:
                if batch_id == begun and has_places(rows.columns):
                    self._insert_missing(rows)
                else:
                    self.batch(rows, "append")

            return frame.writeStream.foreachBatch(write)
        if self.kind == "rocketmq":
            frame = as_messages(frame)
        # Only a landing that has a column more than before comes here with one more.
        more = {"mergeSchema": "true"} if self.kind == "delta" else {}
        writer = frame.writeStream.format(self.kind).options(**more | self._options())
        return writer.option("path", self.place) if self.kind == "iceberg" else writer

    def _insert_missing(self, rows: DataFrame) -> None:
        """Append rows that a database does not have, from a table beside it; blocks."""
        beside = dataclasses.replace(self, table=f"{self.table}_landing")
        self.batch(rows.limit(0), "append")  # makes the table where there is none
        beside.batch(rows, "overwrite")
        insert_missing(rows, self._options(), beside.table or "")

    def _options(self) -> dict[str, str]:
        found = dict(self.options)
        if self.is_path:
            found["path"] = self.place
        elif self.kind == "jdbc":
            found |= {"url": self.place, "dbtable": self.table or ""}
        elif self.kind == "rocketmq":
            found["topic"] = self.place
        return found


def parse_target(
    text: str, table: str | None = None, options: Mapping[str, str] | None = None
) -> Target:
    """Return the target that a text ``KIND:PLACE`` names.

    Raises
    ------
    ConfigurationError
        The text is not of a form in ``ACCEPTED``.
    """
    kind, separator, place = text.partition(":")
    shown = without_secrets(text)
    if kind not in KINDS or not separator or not place:
        raise ConfigurationError(f"target is {shown!r}; accepted are {ACCEPTED}", target=shown)
    if kind == "jdbc":
        place = text
    if (kind == "jdbc") != (table is not None):
        raise ConfigurationError(
            "a jdbc target needs --table NAME, other targets take none", target=shown
        )
    return Target(kind, place, table, dict(options or {}))


def check_extras(kind: str, config: Mapping[str, str]) -> None:
    """Refuse a target or format whose package Spark will not have, before Spark is started.

    Parameters
    ----------
    kind : str
        The kind of the target, or the format of bodies.
    config : mapping
        Spark settings.

    Raises
    ------
    ConfigurationError
        Neither the settings nor Spark's own directory name a jar for it.
    """
    if kind not in _EXTRAS:
        return
    mark, package = _EXTRAS[kind]
    named = " ".join(v for k, v in config.items() if k.startswith("spark.jars"))
    check_jar(kind, mark, package.format(line=spark_line(spark_version()) or "X.Y"), named)


def misfits(config: Mapping[str, str]) -> list[str]:
    """Return a sentence for each package that was built for another Spark than this one.

    Table formats use internals of Spark that change with every minor version.

    Parameters
    ----------
    config : mapping
        Spark settings.
    """
    version = spark_version()
    named = " ".join(v for k, v in config.items() if k.startswith("spark.jars"))
    return [
        f"{package} is made for Spark {line}, and this is {version}: it may fail, at once or "
        "after some micro-batches"
        for package, line in dict.fromkeys(_MADE_FOR.findall(named))
        if version is not None and line != spark_line(version)
    ]


def with_extras(target: Target, config: Mapping[str, str]) -> dict[str, str]:
    """Return Spark settings plus those a target needs besides its package; given settings stay."""
    if target.kind != "delta":
        return dict(config)
    needed = {
        _EXTENSIONS: "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    }
    # Extensions are a list: those of another format do not replace the ones of Delta.
    given = [name.strip() for name in config.get(_EXTENSIONS, "").split(",") if name.strip()]
    extensions = ",".join(dict.fromkeys([*given, needed[_EXTENSIONS]]))
    return needed | dict(config) | {_EXTENSIONS: extensions}


def prepare_stream(
    frame: DataFrame, target: Target, partition_by: Sequence[str] = (), *, grows: bool = False
) -> DataFrame:
    """Create the target's table where Spark's stream writer expects it to exist; return the rows
    as it takes them.

    Parameters
    ----------
    frame : DataFrame
        The rows.
    target : Target
        Where they go.
    partition_by : sequence of str
        Columns that become partitions of a new table.
    grows : bool
        Whether the table is one that is landed into, and is given the columns it lacks.
    """
    if target.kind != "iceberg":
        return frame
    from pyspark.sql.types import StructField, StructType

    session: SparkSession = frame.sparkSession
    if not session.catalog.tableExists(target.place):
        target.batch(session.createDataFrame([], frame.schema), "new", partition_by)
        return frame
    there = [name.lower() for name in session.table(target.place).columns]
    wanted = [field for field in frame.schema if field.name.lower() not in there]
    if wanted and grows:
        # A row from before the column was there has none, so it is one that may be null.
        added = StructType([StructField(field.name, field.dataType) for field in wanted])
        session.sql(f"ALTER TABLE {target.place} ADD COLUMNS ({added.toDDL()})")
    # Iceberg compares the columns of a stream by their places; those that were added stand last.
    order = {name: place for place, name in enumerate(there)}
    return frame.select(
        *sorted(frame.columns, key=lambda name: order.get(name.lower(), len(order)))
    )


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
