"""Land topics as a table: read stream, decode bodies, append, with a checkpoint.

Law: mistakes that can be found without Spark are found before Spark starts (``prepare_target``).
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import re
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import reduce
from operator import and_
from typing import TYPE_CHECKING, Any, Final

from rocketstream import errors
from rocketstream._util.clock import SYSTEM_CLOCK
from rocketstream.errors import ConfigurationError, RocketMQError, SparkQueryError
from rocketstream.pipelines.bodies import (
    MALFORMED,
    METADATA,
    SOURCE_SCHEMA,
    Bodies,
    infer_bodies,
    shape,
)
from rocketstream.pipelines.checkpoints import begun, offsets_json, planned, reached
from rocketstream.pipelines.databases import check_database, without_secrets
from rocketstream.pipelines.places import Place, alone, local_path, place_of
from rocketstream.pipelines.progress import LANDED, READ, IngestProgress
from rocketstream.pipelines.sink_log import LOG
from rocketstream.pipelines.targets import CHECKPOINT, Target, as_dead_letters, prepare_stream
from rocketstream.spark.driver.cluster import Cluster
from rocketstream.spark.driver.positions import Resolver
from rocketstream.spark.listener.queries import STARTS_MAX, is_given_up
from rocketstream.spark.options import read_options
from rocketstream.spark.options.reading import AT_EARLIEST, STREAM_OPTIONS, named_as_documented

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

logger: logging.Logger = logging.getLogger("rocketstream.spark")

_MARKER = "_ingest.json"
_POLL_S = 0.2
_DELTA_LOG: Final = "_delta_log"
_DEAD_LETTERS = "_dead_letters"
_LETTERS_MARKER: Final = "_dead_letters.json"
_LANDING: Final = "landing"
"""The key, in the markers of a table and its dead letters, of the name both have in common."""
_LETTERS: Final = "lettersFrom"
"""The key, in the marker of a table, of the offsets from which each target has dead letters."""
_OWN_KEY = "_ownKey"
VIEW: Final = "messages"
"""The name of the view that a query given as ``sql`` selects from."""
_CALLING: Final = "An error occurred while calling"
_BLANKS: Final = re.compile(r"""('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|`[^`]*`|--[^\n]*\n)|\s+""")
GROWING: Final = ("parquet", "delta", "iceberg")
"""Kinds of tables that a landing goes on with when it has a topic or a column more."""
_TRACEBACK: Final = "Traceback (most recent call last)"
_CAUSE: Final = re.compile(r"^[ \t]*Caused by: (?:[\w.$]+\.)?(\w+(?:: [^\n]+)?)", re.MULTILINE)
_RAISED: Final = re.compile(r"^(?:\w+\.)*(\w*(?:Error|Exception)\b: [^\n]+)", re.MULTILINE)
_LET_IT_END: Final = "let it end, or end it, then run again"
_BESIDE: Final = re.compile(r"another writer already committed|CONCURRENT_STREAM_LOG_UPDATE")
"""The words of Spark for two runs with one checkpoint: of a table's log, and of a query's."""
_LATE: Final = (
    "%d rows were older than the watermark and are not in the table; progress counts such rows as "
    "late. Give the watermark a delay longer than the messages of different queues are apart in "
    "age when they are read together, and than the landing ever stands still"
)
_JAVA: Final = re.compile(r"(?:\w+\.)+\w*(?:Error|Exception)\b")
_DELAY: Final = re.compile(
    r"\s*(\d+(\.\d+)?\s+(millisecond|second|minute|hour|day|week|month|year)s?\s*)+", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class Plan:
    """Topics, and the table in which they land.

    Attributes
    ----------
    topics : tuple of str
        Topics to read.
    source : mapping
        Options of ``format("rocketmq")`` that say where from and how: ``nameServer``,
        ``startingOffsets`` or ``startingTimestamp``, ``tags``, …
    target : Target
        The table.
    bodies : Bodies
        How to read bodies.
    partition_by : tuple of str
        Columns that become directories of the table.
    sql : str or None
        A query over the view ``messages`` whose result is landed instead.
    """

    topics: tuple[str, ...]
    source: Mapping[str, str]
    target: Target
    bodies: Bodies = field(default_factory=Bodies)
    partition_by: tuple[str, ...] = ()
    sql: str | None = None

    @property
    def options(self) -> dict[str, str]:
        """The options of the source, topics included."""
        return {**self.source, "topic": ",".join(self.topics)}


@dataclass(frozen=True, slots=True)
class IngestPlan(Plan):
    """A plan of a stream, whose start counts only before the first checkpoint.

    Attributes
    ----------
    once : bool
        Land what is there now and end; False goes on until stopped.
    every_ms : int
        How long after the last one a micro-batch of a continuous landing begins: each writes a file
        or more. 0 begins it as soon as there is a message.
    checkpoint_at : str or None
        Where Spark keeps how far it has landed; None keeps that in the table, as ``_checkpoint``.
    watermark : tuple of str or None
        The column of event time, and how late rows may arrive, such as ``10 minutes``.
    dedup_keys : tuple of str
        Columns that identify a message: rows that repeat them within the watermark are left out.
    dead_letters : Target or None
        Where messages that do not decode go, as they came; None keeps them in the table.
    letters_from : str or None
        The offsets from which they are looked for, from :func:`begin_letters`; None for those of
        the source.
    """

    once: bool = True
    every_ms: int = 60_000
    checkpoint_at: str | None = None
    watermark: tuple[str, str] | None = None
    dedup_keys: tuple[str, ...] = ()
    dead_letters: Target | None = None
    letters_from: str | None = None

    @property
    def checkpoint(self) -> str:
        """Where Spark keeps how far it has landed."""
        return self.target.checkpoint(self.checkpoint_at)

    def identity(self) -> dict[str, Any]:
        """Return, as JSON values, the settings that must stay the same as long as the checkpoint is
        used."""
        given = named_as_documented(self.source)
        return {
            "topics": list(self.topics),
            "bodies": self.bodies.identity(),
            "partitionBy": list(self.partition_by),
            "tags": given.get("tags"),
            "condition": given.get("sql"),
            "sql": self.sql,
            "watermark": list(self.watermark) if self.watermark else None,
            "dedupKeys": list(self.dedup_keys),
        }


def resumes(plan: IngestPlan, session: SparkSession | None = None) -> bool:
    """Whether a checkpoint exists to continue from, so that where to start is ignored; one that is
    not on this machine is seen only with a session.

    Raises
    ------
    ConfigurationError
        Its directory cannot be reached.
    """
    return planned(place_of(plan.checkpoint, session)) >= 0


def _marked(plan: IngestPlan, session: SparkSession | None) -> Place | None:
    """Return where the marker is: in a table that is a directory, otherwise in the checkpoint."""
    return place_of(plan.target.place if plan.target.is_path else plan.checkpoint, session)


def check_plan(plan: IngestPlan) -> None:
    """Refuse a plan that Spark would refuse only after it has started.

    Raises
    ------
    ConfigurationError
        A column, a delay or a combination cannot be used.
    """
    if plan.watermark is not None and not _DELAY.fullmatch(plan.watermark[1]):
        raise ConfigurationError(
            f"watermark delay is {plan.watermark[1]!r}; give one like '10 minutes' or '1 hour'",
            watermark=list(plan.watermark),
        )
    if plan.dedup_keys and plan.watermark is None:
        raise ConfigurationError(
            "without a watermark Spark would keep every key for ever; give one, like "
            "--watermark '_storeTimestamp 10 minutes'",
            dedup_keys=list(plan.dedup_keys),
        )
    _check_places(plan)
    check_database(plan.target.url, plan.bodies.fields(), plan.sql)
    columns = plan.bodies.columns()
    wanted = {"remove repeats by": plan.dedup_keys}
    if plan.watermark is not None:
        wanted["put a watermark on"] = (plan.watermark[0],)
    if plan.sql is None:
        wanted["partition by"] = plan.partition_by
    for what, names in wanted.items():
        check_columns(what, names, columns)


def _check_places(plan: IngestPlan) -> None:
    """Refuse places that two queries would write to, and topics that would feed themselves."""
    given = [each for each in (plan.target, plan.dead_letters) if each is not None]
    fed = [each.place for each in given if each.kind == "rocketmq" and each.place in plan.topics]
    if fed:
        raise ConfigurationError(
            f"topic {fed[0]!r} is read, so what is landed in it would be read again, for ever; "
            "give another topic",
            topic=fed[0],
        )
    places = {str(each.local or each.place).rstrip("/") for each in given if each.is_path}
    if len(places) < sum(each.is_path for each in given):
        raise ConfigurationError(
            f"the table and its dead letters cannot both be in {plan.target}: each is a query of "
            "its own, and they would take each other's micro-batches for landed; give a directory "
            "of its own for the dead letters",
            path=str(plan.target),
        )


def check_columns(what: str, names: tuple[str, ...], columns: list[str] | None) -> None:
    """Refuse names that are not columns; ``columns`` is None where only Spark can tell."""
    if columns is None:
        return
    known = {column.lower() for column in columns}
    missing = [name for name in names if name.lower() not in known]
    if missing:
        raise ConfigurationError(
            f"cannot {what} {', '.join(missing)}; the table has {', '.join(columns)}",
            missing=missing,
        )


def prepare_target(plan: IngestPlan, session: SparkSession | None = None) -> IngestPlan:
    """Create the table's directory, or check that it is of these topics; return the plan to run.

    A schema that was inferred when the table was begun is kept. Without a session a directory that
    is not on this machine is left to a later call with one.

    Raises
    ------
    ConfigurationError
        The directory holds something else, was landed with other settings or cannot be reached, or
        the plan cannot be carried out.
    OSError
        The directory cannot be written.
    """
    check_plan(plan)
    place = _marked(plan, session)
    if place is None or place_of(plan.checkpoint, session) is None:
        return plan
    text = place.read(_MARKER)
    if text is not None and resumes(plan, session):
        begun = _as_begun(plan, _read_marker(text, place))
        _mark(begun, text, place, session)  # topics or columns may have become more
        return begun
    if text is not None:
        _refuse_landed(plan, place)
    if plan.target.is_path and text is None and place.names():
        raise ConfigurationError(
            f"{place} is not empty and was not made by ingest; give a new directory, so that "
            "its files are not hidden by the table's log",
            path=str(place),
        )
    _mark(plan, text, place, session)
    return plan


def _refuse_landed(plan: IngestPlan, place: Place) -> None:
    """Refuse a table that has what a checkpoint does not know of."""
    then = {LOG: "leave out as many new ones", _DELTA_LOG: "land their messages once more"}
    for log, harm in then.items():
        if any(name[:1].isdigit() for name in place.under(log).names()):
            raise ConfigurationError(
                f"{place} has micro-batches, and {plan.checkpoint} has none of them: Spark would "
                f"{harm}; give the checkpoint that the table was landed with, or a new directory",
                path=str(place),
            )


def _as_begun(plan: IngestPlan, found: dict[str, Any]) -> IngestPlan:
    """Return a plan with the schema its table was begun with; refuse a different one."""
    if plan.bodies.inferred and found["bodies"]["format"] == plan.bodies.format:
        bodies = dataclasses.replace(plan.bodies, schema=found["bodies"]["schema"])
        plan = dataclasses.replace(plan, bodies=bodies)
    wanted = plan.identity()
    found = {"condition": wanted["condition"], **found}  # earlier markers do not tell it
    then, now = _meaning(found), _meaning(wanted)
    grows = plan.target.kind in GROWING
    for name in wanted:
        if then[name] == now[name] or (grows and _is_more(then[name], now[name])):
            continue
        may = " (a topic or a column more is taken)" if grows else ""
        raise ConfigurationError(
            f"{plan.target} was landed with {name}={found.get(name)!r}, now it is "
            f"{wanted[name]!r}; use the same again{may} or another directory",
            path=str(plan.target),
        )
    return plan


def _meaning(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a landing so that those are equal which land the same rows."""
    bodies = dict(settings["bodies"])
    made = Bodies(bodies["format"], bodies["schema"])
    if (fields := made.fields()) is not None:
        bodies["schema"] = fields
    elif bodies["format"] == "avro":
        bodies["schema"] = json.loads(bodies["schema"])
    tags = settings.get("tags")
    return {
        **{name: settings.get(name) for name in ("partitionBy", "watermark", "dedupKeys")},
        "topics": dict.fromkeys(settings["topics"]),
        "bodies": bodies,
        "tags": tags and {tag.strip() for tag in tags.split("||")},
        "condition": _one_blanks(settings.get("condition")),
        "sql": _one_blanks(settings.get("sql")),
    }


def _one_blanks(sql: str | None) -> str | None:
    return sql and _BLANKS.sub(_one_blank, sql).strip()


def _one_blank(found: re.Match[str]) -> str:
    return found[1] or " "


def _is_more(then: Any, now: Any) -> bool:
    """Whether settings are the earlier ones and more topics or columns, all else the same."""
    if not (isinstance(then, dict) and isinstance(now, dict)):
        return bool(then == now)
    if "format" in then:
        others = [{k: v for k, v in each.items() if k != "schema"} for each in (then, now)]
        return others[0] == others[1] and _is_more(then["schema"], now["schema"])
    return then.items() <= now.items()


def _mark(plan: IngestPlan, text: str | None, place: Place, session: SparkSession | None) -> None:
    """Write down what is landed where, unless ``text``, the marker there, tells it already.

    Dead letters beside those of another landing are refused: their query goes on at the checkpoint
    in their directory. Of another landing that is behind messages which this one leaves out of its
    table, and they would be nowhere.
    """
    landing = _landing_in(text)
    target = plan.dead_letters
    letters = None if target is None or not target.is_path else place_of(target.place, session)
    told = None if letters is None else letters.read(_LETTERS_MARKER)
    if letters is not None and told is None:
        found = letters.names()
        if found and (CHECKPOINT not in found or _MARKER in found):
            raise ConfigurationError(
                f"{letters} is not empty and holds no dead letters of ingest; give a new directory",
                path=str(letters),
            )
    if told is not None and _landing_in(told) != landing:
        raise ConfigurationError(
            f"{letters} has the dead letters of another landing than {plan.target}: what that one "
            "has read is not looked at again, and could be in neither table; give a new directory",
            path=str(letters),
        )
    _write_marker(plan, landing, text, place, _letters_in(text))
    if letters is not None and told is None:
        letters.write(_LETTERS_MARKER, json.dumps({_LANDING: landing}) + "\n")


def _landing_in(text: str | None) -> str:
    """Return the name of the landing in a marker, a new one where there is none."""
    try:
        found = None if text is None else json.loads(text).get(_LANDING)
    except (ValueError, AttributeError):  # damaged; whoever needs more of it says so
        found = None
    return found if isinstance(found, str) else uuid.uuid4().hex


def _read_marker(text: str, place: Place) -> dict[str, Any]:
    try:
        found: dict[str, Any] = dict(json.loads(text))
    except (ValueError, TypeError) as error:
        raise ConfigurationError(f"{place}/{_MARKER} is damaged: {error}") from error
    if "topic" in found:  # as written when only one topic and JSON were possible
        schema = found.pop("schema")
        found["topics"] = [found.pop("topic")]
        found["bodies"] = {"format": "text" if schema is None else "json", "schema": schema}
        found |= {"sql": None, "watermark": None, "dedupKeys": []}
    return found


def _letters_in(text: str | None) -> dict[str, str | None]:
    """Return where the dead letters of a table begin, by their targets, as its marker tells."""
    try:
        return {} if text is None else dict(json.loads(text).get(_LETTERS, {}))
    except (ValueError, TypeError, AttributeError):  # damaged; whoever needs more of it says so
        return {}


def _write_marker(
    plan: IngestPlan,
    landing: str,
    there: str | None,
    place: Place,
    letters: Mapping[str, str | None],
) -> None:
    told = {**plan.identity(), _LANDING: landing} | ({_LETTERS: letters} if letters else {})
    text = json.dumps(told, indent=2) + "\n"
    if text != there:
        place.write(_MARKER, text)


def resolve_bodies(session: SparkSession, plan: IngestPlan) -> IngestPlan:
    """Return the plan with its schema inferred where it asks for that; reads up to 1,000 messages.

    Raises
    ------
    ConfigurationError
        There is nothing to infer the schema from.
    SparkQueryError
        The messages cannot be read.
    """
    if not plan.bodies.inferred:
        return plan
    given = named_as_documented(plan.source)
    options = {name: value for name, value in given.items() if name not in STREAM_OPTIONS}
    reader = session.read.format("rocketmq").schema("body binary").options(**options)
    sample = reader.option("topic", ",".join(plan.topics)).load()
    with spark_errors():
        found = dataclasses.replace(plan, bodies=infer_bodies(session, sample, plan.bodies))
    check_plan(found)
    place = _marked(found, session)
    if place is not None:
        text = place.read(_MARKER)
        _write_marker(found, _landing_in(text), text, place, _letters_in(text))
    return found


def begin_letters(plan: IngestPlan, session: SparkSession | None) -> IngestPlan:
    """Return the plan with the offsets from which dead letters are looked for; blocks.

    They are found once, and written down before a query runs: those at which the table goes on, or
    begins. Their query would look for ``latest`` after the table's, and what does not decode is
    left out by that one, so it could be in neither.

    Raises
    ------
    RocketMQError
        The brokers do not tell the offsets.
    """
    target, place = plan.dead_letters, _marked(plan, session)
    if target is None or place is None:
        return plan
    name, text = f"{target.kind}:{target.place}", place.read(_MARKER)
    told = _letters_in(text)
    if name not in told:
        kept = place_of(_kept_letters(plan, target), session)
        told[name] = None if planned(kept) >= 0 else _beginning(plan, session)
        _write_marker(plan, _landing_in(text), text, place, told)
    return dataclasses.replace(plan, letters_from=told[name])


def _beginning(plan: IngestPlan, session: SparkSession | None) -> str:
    """Return the offsets at which the table's query goes on, or begins."""
    if (at := reached(place_of(plan.checkpoint, session))) is not None:
        return offsets_json(at)
    options = read_options(plan.options, "stream")
    if options.start == AT_EARLIEST:  # which is the same at any time
        return "earliest"
    with contextlib.closing(Cluster(options)) as cluster:
        resolver = Resolver(cluster, options, SYSTEM_CLOCK.now_ms())
        return offsets_json(cluster.patiently(lambda: resolver.begins(cluster.queues())))


def _kept_letters(plan: IngestPlan, target: Target) -> str:
    """Return the checkpoint of the query for dead letters."""
    return target.checkpoint(None) if target.is_path else plan.checkpoint + _DEAD_LETTERS


def start_query(session: SparkSession, plan: IngestPlan) -> StreamingQuery:
    """Start the streaming query of a plan; returns at once.

    Raises
    ------
    ConfigurationError
        A partition column does not exist.
    """
    from pyspark.sql import functions as F  # noqa: N812

    copies = plan.target.kind == "rocketmq" and plan.sql is None and plan.dead_letters is None
    bodies = plan.bodies.copied() if copies else plan.bodies
    table = shape(_read_stream(session, plan), bodies).observe(
        READ, F.count(F.lit(1)).alias("rows"), F.count(F.col(MALFORMED)).alias("malformed")
    )
    if plan.dead_letters is not None:
        table = table.where(F.col(MALFORMED).isNull()).drop(MALFORMED)
    if plan.watermark is not None:
        table = table.withWatermark(*plan.watermark)
    if plan.dedup_keys:
        table = _without_repeats(table, plan.dedup_keys)
    if plan.sql is not None:
        table.createOrReplaceTempView(VIEW)
        table = session.sql(plan.sql)
    check_columns("partition by", plan.partition_by, table.columns)
    # Looked up in the checkpoint, which may be far away, only where it matters.
    grows = plan.target.kind == "iceberg" and resumes(plan, session)
    table = prepare_stream(table, plan.target, plan.partition_by, grows=grows)
    table = table.observe(LANDED, F.count(F.lit(1)).alias("rows"))
    name = f"ingest {' '.join(plan.topics)}"
    return _start(table, plan, plan.target, plan.checkpoint, name, plan.partition_by)


def _without_repeats(table: DataFrame, keys: tuple[str, ...]) -> DataFrame:
    """Return the rows without repeats by key; rows in which every key is null are all kept.

    To Spark two nulls are the same key: of all bodies that do not decode it would keep only one.
    """
    from pyspark.sql import functions as F  # noqa: N812

    place = F.concat_ws("/", "_topic", "_brokerName", "_queueId", "_queueOffset")
    has_none = reduce(and_, (F.col(key).isNull() for key in keys))
    marked = table.withColumn(_OWN_KEY, F.when(has_none, place))
    return marked.dropDuplicatesWithinWatermark([*keys, _OWN_KEY]).drop(_OWN_KEY)


def start_dead_letters(session: SparkSession, plan: IngestPlan) -> StreamingQuery | None:
    """Start the query that keeps bodies that do not decode; None where the table keeps them.

    It reads the topics a second time, so that each of the two tables is exact by its own
    checkpoint.
    """
    from pyspark.sql import functions as F  # noqa: N812

    target = plan.dead_letters
    if target is None:
        return None
    # The table's query reports the group; this one may begin where the group is.
    source = {**named_as_documented(plan.source), "commitOffsets": "false"}
    source.pop("groupMember", None)
    if plan.letters_from is not None:
        source = {name: v for name, v in source.items() if not name.startswith("starting")}
        source["startingOffsets"] = plan.letters_from
    messages = _read_stream(session, dataclasses.replace(plan, source=source))
    shaped = shape(messages, plan.bodies, with_body=True)
    dead = shaped.where(F.col(MALFORMED).isNotNull()).select("body", *METADATA)
    if target.kind == "rocketmq":
        dead = as_dead_letters(dead)
    dead = prepare_stream(dead, target)
    kept_in = _kept_letters(plan, target)
    return _start(dead, plan, target, kept_in, f"dead letters {' '.join(plan.topics)}", ())


def _start(
    table: DataFrame,
    plan: IngestPlan,
    target: Target,
    checkpoint: str,
    name: str,
    partition_by: tuple[str, ...],
) -> StreamingQuery:
    at = place_of(checkpoint, table.sparkSession) if target.kind == "jdbc" else None
    writer = target.stream(table, begun(at)).queryName(name).outputMode("append")
    writer = writer.option("checkpointLocation", checkpoint)
    if partition_by and target.is_path:
        writer = writer.partitionBy(*partition_by)
    if plan.once:
        writer = writer.trigger(availableNow=True)
    elif plan.every_ms:
        writer = writer.trigger(processingTime=f"{plan.every_ms} milliseconds")
    return writer.start()


def _read_stream(session: SparkSession, plan: IngestPlan) -> DataFrame:
    reader = session.readStream.format("rocketmq").schema(SOURCE_SCHEMA)
    return reader.options(**plan.options).load()


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
        What to do, from :func:`resolve_bodies` where its schema is to be inferred.
    on_progress : callable, optional
        Called after each micro-batch, on the calling thread.
    stop : threading.Event, optional
        Ends the query when set, after the micro-batch that is under way.

    Raises
    ------
    ConfigurationError
        The plan cannot be carried out.
    SparkQueryError
        The query ended with an error, or could not be started.
    """
    found = prepare_target(plan, session)
    kept = local_path(found.checkpoint)
    if kept is not None:
        kept.mkdir(parents=True, exist_ok=True)
    with alone(kept, f"another run lands into {found.target}; {_LET_IT_END}"):
        found = begin_letters(resolve_bodies(session, found), session)
        return _to_the_end(session, found, on_progress, stop or threading.Event())


def _to_the_end(
    session: SparkSession,
    plan: IngestPlan,
    on_progress: Callable[[IngestProgress], None] | None,
    stopping: threading.Event,
) -> IngestProgress:
    """Run the queries of a plan, again where Spark did not wait for one to start."""
    totals = IngestProgress()
    for starts_left in reversed(range(STARTS_MAX)):
        failed = _run(session, plan, totals, on_progress, stopping)
        if failed is None:
            break
        if not (starts_left and is_given_up(failed)):
            raise query_error(str(failed.exception()))
        logger.warning(
            "Spark did not wait for the Python of the query %r to start, which took over ten "
            "seconds; the query is started again where it was",
            failed.name,
        )
    return totals


def _run(
    session: SparkSession,
    plan: IngestPlan,
    totals: IngestProgress,
    on_progress: Callable[[IngestProgress], None] | None,
    stopping: threading.Event,
) -> StreamingQuery | None:
    """Run the queries of a plan to their end; return one that failed."""
    queries: list[StreamingQuery] = []
    try:
        with spark_errors():
            queries.append(start_query(session, plan))
            dead = start_dead_letters(session, plan)
            queries += [] if dead is None else [dead]
            _follow(queries, totals, on_progress, stopping)
            return next((query for query in queries if query.exception()), None)
    finally:
        for query in queries:
            if query.isActive:
                query.stop()


def _follow(
    queries: list[StreamingQuery],
    totals: IngestProgress,
    on_progress: Callable[[IngestProgress], None] | None,
    stopping: threading.Event,
) -> None:
    """Wait for the queries to end, or stop them between two micro-batches if asked to."""
    reports = Reports(queries[0], totals, on_progress)
    while not stopping.wait(_POLL_S) and any(query.isActive for query in queries):
        reports.collect()
        if any(query.exception() for query in queries):
            return
    if stopping.is_set():
        for query in queries:
            _finish_batch(query)
            query.stop()
    reports.collect()


def _finish_batch(query: StreamingQuery) -> None:
    """Wait until the micro-batch under way is done; return at once where there is none."""
    last = query.lastProgress
    before = -1 if last is None else last.batchId
    pause = threading.Event()
    while query.isActive and query.status["isTriggerActive"]:
        last = query.lastProgress
        if last is not None and last.batchId > before:
            return
        pause.wait(_POLL_S / 4)


class Reports:
    """The progress reports of a query, each asked for once."""

    def __init__(
        self,
        query: StreamingQuery,
        totals: IngestProgress,
        on_progress: Callable[[IngestProgress], None] | None,
    ) -> None:
        self._query = query
        self._totals = totals
        self._on_progress = on_progress
        self._last: tuple[int, str] | None = None
        self._counted = False

    def collect(self) -> None:
        """Count what the query has reported since the last call.

        Spark keeps a hundred reports, and each costs a millisecond of both sides to look at: they
        are asked for only where more than the last one can be new. A query that waits reports the
        number of its next micro-batch, without rows.
        """
        last = self._query.lastProgress
        if last is None or (last.batchId, last.timestamp) == self._last:
            return
        before, self._last = self._last, (last.batchId, last.timestamp)
        follows = before is not None and 0 <= last.batchId - before[0] <= self._counted
        for progress in [last] if follows else self._query.recentProgress:
            known = self._totals.late
            self._counted = self._totals.add(json.loads(progress.json))
            if self._totals.late and not known:
                logger.warning(_LATE, self._totals.late)
            if self._counted and self._on_progress is not None:
                self._on_progress(self._totals)


@contextmanager
def spark_errors() -> Iterator[None]:
    """Turn Spark's error inside the block into the error behind it, see ``query_error``."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        yield
    except (PySparkException, Py4JError) as error:
        raise query_error(str(error)) from None  # its text may have passwords


def query_error(text: str) -> RocketMQError:
    """Return the error behind a failed query: one of ours when its text names one."""
    text = without_secrets(text)
    found = re.findall(r"rocketstream\.errors\.(\w+): ([^\n]+)", text)
    if found:
        name, message = found[-1]
        kind = getattr(errors, name, None)
        if isinstance(kind, type) and issubclass(kind, RocketMQError):
            return SparkQueryError(f"{message} ({name})", spark_text=text)
    reason = _reason(text)
    if _BESIDE.search(text):
        reason += f"; another run lands into the same table: {_LET_IT_END}"
    return SparkQueryError(f"the Spark query failed: {reason}", spark_text=text)


def _reason(text: str) -> str:
    """Return the sentence that says why: the innermost cause in Java, else the error in Python.

    Otherwise the first line: Py4J first names the call that failed, the cause comes after a colon.
    """
    causes = _CAUSE.findall(text)
    raised = _RAISED.findall(text) if _TRACEBACK in text else []
    for found in (causes, [each for each in raised if _CALLING not in each]):
        if found:
            return str(found[-1]).strip()
    after = text.rpartition(_TRACEBACK)[2] if _CALLING in text else text
    lines = [line.strip(" \t:") for line in after.splitlines()]
    lines = [line for line in lines if line and _CALLING not in line and line[:5] != "File "]
    found = [line for line in lines if _JAVA.match(line)] if _TRACEBACK in text else lines
    return next(iter(found or lines), "no reason given")
