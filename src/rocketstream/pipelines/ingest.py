"""Land a topic as a Parquet table: read stream, parse JSON, append, with a checkpoint.

Law: the pipeline behind ``rocketstream ingest`` and the demo; it prints nothing.
"""

from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rocketstream import errors
from rocketstream.errors import ConfigurationError, RocketMQError, SparkQueryError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery
    from pyspark.sql.types import StructType

MALFORMED = "_malformed"
METADATA = ("_topic", "_brokerName", "_queueId", "_queueOffset", "_msgId", "_tags", "_keys",
            "_storeTimestamp")  # fmt: skip
SOURCE_SCHEMA = (
    "topic string, brokerName string, queueId int, queueOffset bigint, msgId string, "
    "tags string, keys string, body binary, storeTimestamp timestamp"
)
"""The source's columns this pipeline uses: naming them spares decoding the others."""

CHECKPOINT = "_checkpoint"
_MARKER = "_ingest.json"
_POLL_S = 0.2
_OBSERVED = "rocketstream"


@dataclass(frozen=True, slots=True)
class IngestPlan:
    """What to land, and where.

    Attributes
    ----------
    namesrv_addr : str
        Name server, ``host:port``.
    topic : str
        Topic to read.
    path : Path
        Directory of the Parquet table; the checkpoint is kept inside as ``_checkpoint``.
    schema : str or None
        Columns of the JSON bodies, as :func:`parse_schema` takes them; None keeps each body as
        text in the column ``body``.
    group : str or None
        Consumer group the progress is reported to; None reports nothing.
    start : str
        ``earliest``, ``latest`` or milliseconds since 1970; only used before the first checkpoint.
    once : bool
        Land what is there and end; else go on until stopped.
    partition_by : tuple of str
        Columns that become directories of the table.
    rows_per_batch : int or None
        Most messages of one micro-batch; None leaves it to the source.
    tags : str or None
        Only messages with these tags, like ``a || b``.
    """

    namesrv_addr: str
    topic: str
    path: Path
    schema: str | None = None
    group: str | None = None
    start: str = "earliest"
    once: bool = True
    partition_by: tuple[str, ...] = ()
    rows_per_batch: int | None = None
    tags: str | None = None

    @property
    def checkpoint(self) -> Path:
        """Where Spark keeps what is already landed."""
        return self.path / CHECKPOINT

    @property
    def resumes(self) -> bool:
        """Whether there is a checkpoint to continue from (then ``start`` is not used)."""
        # Spark keeps the last hundred: the first one is not there for ever.
        offsets = self.checkpoint / "offsets"
        return offsets.is_dir() and any(entry.name.isdigit() for entry in offsets.iterdir())


@dataclass(slots=True)
class IngestProgress:
    """Counts of this run, after each micro-batch.

    Attributes
    ----------
    rows : int
        Rows landed, malformed ones included.
    malformed : int
        Of these, rows whose body did not parse.
    batches : int
        Micro-batches with rows.
    rows_per_second : float
        Rate of the last micro-batch.
    """

    rows: int = 0
    malformed: int = 0
    batches: int = 0
    rows_per_second: float = 0.0
    _seen: set[int] = field(default_factory=set, repr=False)

    def add(self, progress: dict[str, Any]) -> bool:
        """Take a query's progress (its JSON) over; tell whether it was a new batch with rows."""
        batch = int(progress["batchId"])
        observed = (progress.get("observedMetrics") or {}).get(_OBSERVED)
        if batch in self._seen or not observed or not observed["rows"]:
            return False
        self._seen.add(batch)
        self.rows += int(observed["rows"])
        self.malformed += int(observed["malformed"])
        self.batches += 1
        self.rows_per_second = float(progress.get("processedRowsPerSecond") or 0.0)
        return True


def parse_schema(text: str) -> StructType:
    """Return the schema a text stands for.

    Parameters
    ----------
    text : str
        Spark DDL (``"id INT, name STRING"``), Spark's schema JSON
        (``{"type": "struct", "fields": [...]}``), or the path of a file with one of these.

    Raises
    ------
    ConfigurationError
        None of these, or a column name this pipeline uses itself.
    """
    from pyspark.sql.types import StructType

    source = read_schema(text)
    try:
        if source.startswith("{"):
            schema = StructType.fromJson(json.loads(source))
        else:
            schema = StructType.fromDDL(source)
    except Exception as error:  # pyspark raises ParseException, KeyError, ValueError and more
        raise ConfigurationError(
            f"schema {source[:200]!r} is not understood; accepted are Spark DDL like "
            "'id INT, name STRING', Spark's schema JSON, or a file with one of these",
            schema=source,
        ) from error
    taken = sorted(set(schema.fieldNames()) & {MALFORMED, *METADATA})
    if taken:
        raise ConfigurationError(
            f"schema names {', '.join(taken)}, which ingest adds itself; leave that out",
            schema=source,
        )
    return schema


def read_schema(text: str) -> str:
    """Return the schema text, read from a file when ``text`` names one."""
    word = text.strip()
    if word.startswith("{") or (" " in word and not os.path.exists(word)):
        return word
    try:
        return Path(word).read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(
            f"schema {word!r} is neither DDL like 'id INT, name STRING', nor schema JSON, nor a "
            "readable text file",
            schema=word,
        ) from error


def shape(messages: DataFrame, schema: StructType | None) -> DataFrame:
    """Return the table's columns: parsed fields, ``_malformed`` and the message's metadata.

    Parameters
    ----------
    messages : DataFrame
        With the columns of ``SOURCE_SCHEMA``.
    schema : StructType or None
        Fields of the JSON bodies; None keeps the text as ``body``.

    Notes
    -----
    A body that is not a JSON object of that schema keeps its raw text in ``_malformed`` (fields
    that could be read are filled); one that is not UTF-8 is kept there as ``base64:…``.
    """
    from pyspark.sql import functions as F  # noqa: N812 - pyspark's own convention
    from pyspark.sql.types import StringType, StructField, StructType

    text = F.col("body").cast("string")
    valid = F.is_valid_utf8(text)
    raw = F.when(valid, text).otherwise(F.concat(F.lit("base64:"), F.base64("body")))
    if schema is None:
        fields = [F.when(valid, text).alias("body")]
        malformed = F.when(~valid, raw)
        parsed = messages
    else:
        wanted = StructType([*schema.fields, StructField(MALFORMED, StringType())])
        options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": MALFORMED}
        parsed = messages.withColumn("_parsed", F.from_json(text, wanted, options))
        record = F.col("_parsed")
        fields = [record.getField(name).alias(name) for name in schema.fieldNames()]
        bad = ~valid | record.isNull() | record.getField(MALFORMED).isNotNull() | _no_object(text)
        malformed = F.when(bad, raw)
    return parsed.select(
        *fields,
        malformed.alias(MALFORMED),
        F.col("topic").alias("_topic"),
        F.col("brokerName").alias("_brokerName"),
        F.col("queueId").alias("_queueId"),
        F.col("queueOffset").alias("_queueOffset"),
        F.col("msgId").alias("_msgId"),
        F.col("tags").alias("_tags"),
        F.col("keys").alias("_keys"),
        F.col("storeTimestamp").alias("_storeTimestamp"),
    )


def _no_object(text: Any) -> Any:
    """Tell bodies from_json takes for a record although they are not one JSON object.

    It reads ``null`` and blanks as an empty record and stops at the end of the first object,
    whatever follows. What follows shows when the text is put inside an array and inside an
    object: one of the two then ends early or gets a second member. Only texts with a brace
    before the last one can have such a tail, so flat records are not parsed again.
    """
    from pyspark.sql import functions as F  # noqa: N812

    in_array = F.from_json(F.concat(F.lit("["), text, F.lit("]")), "array<string>")
    in_object = F.from_json(F.concat(F.lit('{"":'), text, F.lit("}")), "map<string,string>")
    alone = F.coalesce((F.size(in_array) == 1) & (F.size(in_object) == 1), F.lit(False))
    has_tail = F.when(text.rlike(r"(?s)\}.*\}"), ~alone).otherwise(F.lit(False))
    return ~F.trim(text).rlike(r"(?s)^\{.*\}\s*$") | has_tail


def prepare_target(plan: IngestPlan) -> None:
    """Create the table's directory, or check that it is this topic's.

    Raises
    ------
    ConfigurationError
        The directory holds something else, or was landed with other settings.
    OSError
        It cannot be written.
    """
    marker = plan.path / _MARKER
    wanted = {
        "topic": plan.topic,
        "schema": None if plan.schema is None else read_schema(plan.schema),
        "partitionBy": list(plan.partition_by),
        "tags": plan.tags,
    }
    plan.path.mkdir(parents=True, exist_ok=True)
    if marker.exists() and plan.resumes:
        found = json.loads(marker.read_text("utf-8"))
        different = [name for name in wanted if found.get(name) != wanted[name]]
        if different:
            name = different[0]
            raise ConfigurationError(
                f"{plan.path} was landed with {name}={found.get(name)!r}, now it is "
                f"{wanted[name]!r}; use the same again or another directory",
                path=str(plan.path),
            )
        return
    if not marker.exists() and any(plan.path.iterdir()):
        raise ConfigurationError(
            f"{plan.path} is not empty and was not made by ingest; give a new directory, so that "
            "its files are not hidden by the table's log",
            path=str(plan.path),
        )
    marker.write_text(json.dumps(wanted, indent=2) + "\n", "utf-8")


def start_query(session: SparkSession, plan: IngestPlan) -> StreamingQuery:
    """Start the streaming query of a plan; returns at once.

    Raises
    ------
    ConfigurationError
        The schema or a partition column is not usable.
    """
    from pyspark.sql import functions as F  # noqa: N812

    schema = None if plan.schema is None else parse_schema(plan.schema)
    table = shape(_read_stream(session, plan), schema)
    missing = [name for name in plan.partition_by if name not in table.columns]
    if missing:
        raise ConfigurationError(
            f"cannot partition by {', '.join(missing)}; the table has {', '.join(table.columns)}",
            partition_by=list(plan.partition_by),
        )
    table = table.observe(
        _OBSERVED,
        F.count(F.lit(1)).alias("rows"),
        F.count(F.col(MALFORMED)).alias("malformed"),
    )
    writer = (
        table.writeStream.format("parquet")
        .queryName(f"ingest {plan.topic}")
        .outputMode("append")
        .option("path", str(plan.path))
        .option("checkpointLocation", str(plan.checkpoint))
    )
    if plan.partition_by:
        writer = writer.partitionBy(*plan.partition_by)
    writer = writer.trigger(availableNow=True) if plan.once else writer
    return writer.start()


def _read_stream(session: SparkSession, plan: IngestPlan) -> DataFrame:
    reader = (
        session.readStream.format("rocketmq")
        .schema(SOURCE_SCHEMA)
        .option("nameServer", plan.namesrv_addr)
        .option("topic", plan.topic)
    )
    if plan.start in ("earliest", "latest"):
        reader = reader.option("startingOffsets", plan.start)
    else:
        reader = reader.option("startingTimestamp", plan.start)
    optional = {"group": plan.group, "tags": plan.tags, "maxOffsetsPerTrigger": plan.rows_per_batch}
    for name, value in optional.items():
        if value is not None:
            reader = reader.option(name, str(value))
    return reader.load()


def ingest(
    session: SparkSession,
    plan: IngestPlan,
    *,
    on_progress: Callable[[IngestProgress], None] | None = None,
    stop: threading.Event | None = None,
) -> IngestProgress:
    """Run a plan: until everything is landed, or until ``stop`` is set when it is continuous.

    Parameters
    ----------
    session : SparkSession
        From :func:`rocketstream.pipelines.local_session.start_session` or the caller's own.
    plan : IngestPlan
        What to do.
    on_progress : callable, optional
        Called after each micro-batch, on the calling thread.
    stop : threading.Event, optional
        Ends the query when set; the micro-batch it interrupts is landed by the next run.

    Raises
    ------
    ConfigurationError
        The plan cannot be carried out.
    SparkQueryError
        The query ended with an error.
    """
    prepare_target(plan)
    query = start_query(session, plan)
    stopping = stop or threading.Event()
    totals = IngestProgress()
    try:
        while not stopping.wait(_POLL_S) and query.isActive:
            _collect(query, totals, on_progress)
        if stopping.is_set():
            query.stop()
        _collect(query, totals, on_progress)
        failure = query.exception()
    finally:
        if query.isActive:
            query.stop()
    if failure is not None and not stopping.is_set():
        raise query_error(str(failure))
    return totals


def _collect(
    query: StreamingQuery,
    totals: IngestProgress,
    on_progress: Callable[[IngestProgress], None] | None,
) -> None:
    for progress in query.recentProgress:
        if totals.add(json.loads(progress.json)) and on_progress is not None:
            on_progress(totals)


def query_error(text: str) -> RocketMQError:
    """Return the error behind a failed query: one of ours when its text names one."""
    found = re.findall(r"rocketstream\.errors\.(\w+): ([^\n]+)", text)
    if found:
        name, message = found[-1]
        kind = getattr(errors, name, None)
        if isinstance(kind, type) and issubclass(kind, RocketMQError):
            return SparkQueryError(f"{message} ({name})", spark_text=text)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return SparkQueryError(
        f"the Spark query failed: {lines[0] if lines else 'no reason given'}", spark_text=text
    )
