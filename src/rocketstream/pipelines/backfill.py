"""Land a closed range of topics as a table in one batch: from brokers, or from a store directory.

Law: the range is resolved once, to offsets, before Spark starts; Spark reads exactly those.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from rocketstream.errors import ConfigurationError
from rocketstream.model import MessageQueue
from rocketstream.pipelines.bodies import MALFORMED, SOURCE_SCHEMA, infer_bodies, shape
from rocketstream.pipelines.checkpoints import offsets_json
from rocketstream.pipelines.ingest import Plan, spark_errors
from rocketstream.pipelines.places import Place, place_of
from rocketstream.pipelines.sink_log import LOG
from rocketstream.spark.driver.cluster import Cluster
from rocketstream.spark.driver.positions import batch_ranges
from rocketstream.spark.options import read_options, store_options
from rocketstream.spark.scan import QueueRange
from rocketstream.spark.store.files import queue_ids
from rocketstream.spark.store.snapshot import Snapshot, store_ranges

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_MARKER: Final = "_backfill.json"
_WRITING, _DONE = "writing", "done"


@dataclass(frozen=True, slots=True)
class BackfillPlan(Plan):
    """A plan of a closed range: of brokers, or of a store, whose ``storePath`` is in the source's
    options.

    Attributes
    ----------
    mode : str
        ``new`` refuses a table that holds something, ``append`` adds to it, ``overwrite`` replaces
        it.
    """

    mode: str = "new"


@dataclass(frozen=True, slots=True)
class BackfillResult:
    """The counts of a finished run.

    Attributes
    ----------
    offsets : int
        Offsets of the range.
    rows : int
        Rows read; fewer than offsets where tags filter, or where something was left out.
    malformed : int
        Of these, rows whose body did not decode.
    schema : str or None
        The schema bodies were read with, given or inferred.
    """

    offsets: int
    rows: int
    malformed: int
    schema: str | None


def resolve_ranges(plan: BackfillPlan) -> list[QueueRange]:
    """Return the offsets a plan covers now, one range for every queue that holds something.

    Blocks on the network, or reads the store's index. Needs no Spark.

    Raises
    ------
    ConfigurationError, SubscriptionError
        An option cannot be used.
    DataLossError
        Offsets the plan names no longer exist, and ``failOnDataLoss`` is not ``false``.
    TransportError, BrokerError, RouteNotFoundError
        The cluster does not answer, or does not know a topic.
    StoreDamagedError
        The store's log is torn, and ``skipDamaged`` is not ``true``.
    """
    if "storePath" in plan.source:
        options = store_options(plan.options)
        with contextlib.closing(Snapshot(options)) as snapshot:
            return store_ranges(options, snapshot)
    read = read_options(plan.options, "batch")
    with contextlib.closing(Cluster(read)) as cluster:
        return batch_ranges(read, cluster)


def check_target(
    plan: BackfillPlan, ranges: Sequence[QueueRange], session: SparkSession | None = None
) -> None:
    """Refuse a directory that must not be written to; Spark itself checks targets that are tables.

    Without a session a directory that is not on this machine is left to :func:`backfill`.

    Raises
    ------
    ConfigurationError
        The directory holds something and the mode is ``new``, or it holds some of the ranges
        already, or it cannot be reached.
    """
    place = _place(plan, session)
    if place is None or plan.mode == "overwrite":
        return
    if plan.mode == "new" and place.names():
        raise ConfigurationError(
            f"{place} is not empty; give a new directory, or say --mode append to add to it or "
            "--mode overwrite to replace it",
            path=str(place),
        )
    if LOG in place.names():
        raise ConfigurationError(
            f"{place} is a table of a stream: its readers see the files of its log alone, and none "
            "that are added here; choose another directory",
            path=str(place),
        )
    for entry in _landed(place):
        shared = _shared(entry, ranges)
        if shared is not None:
            what = "holds" if entry.get("state") == _DONE else "was left while landing"
            raise ConfigurationError(
                f"{place} {what} {shared} already, which would then be there twice; choose another "
                "range or directory, or replace all of it with --mode overwrite",
                path=str(place),
            )


def _place(plan: BackfillPlan, session: SparkSession | None) -> Place | None:
    return place_of(plan.target.place, session) if plan.target.is_path else None


def _landed(place: Place) -> list[dict[str, Any]]:
    text = place.read(_MARKER)
    try:
        return [] if text is None else list(json.loads(text))
    except ValueError as error:
        raise ConfigurationError(f"{place}/{_MARKER} is damaged: {error}") from error


def _shared(entry: Mapping[str, Any], ranges: Sequence[QueueRange]) -> str | None:
    for span in ranges:
        queue = span.queue
        by_broker = entry["ranges"].get(queue.topic, {}).get(queue.broker_name, {})
        begin, end = by_broker.get(str(queue.queue_id), (0, 0))
        low, high = max(begin, span.begin), min(end, span.end)
        if low < high:
            return (
                f"offsets {low} to {high - 1} of topic {queue.topic!r}, broker "
                f"{queue.broker_name!r}, queue {queue.queue_id}"
            )
    return None


def backfill(
    session: SparkSession, plan: BackfillPlan, ranges: Sequence[QueueRange]
) -> BackfillResult:
    """Land ranges; blocks until the table is written.

    Parameters
    ----------
    session : SparkSession
        From :func:`rocketstream.pipelines.local_session.start_session` or the caller's own.
    plan : BackfillPlan
        What to do.
    ranges : sequence of QueueRange
        From :func:`resolve_ranges`; not empty.

    Raises
    ------
    ConfigurationError
        The plan cannot be carried out.
    SparkQueryError
        Spark failed; the table is as it was, or its marker says that it is not.
    """
    from pyspark.sql import Observation
    from pyspark.sql import functions as F  # noqa: N812

    if plan.target.local is None:
        check_target(plan, ranges, session)
    with spark_errors():
        messages = _read(session, plan, ranges)
        bodies = infer_bodies(session, messages, plan.bodies)
        seen = Observation("rocketstream")
        copies = plan.target.kind == "rocketmq" and plan.sql is None
        table = shape(messages, bodies.copied() if copies else bodies).observe(
            seen, F.count(F.lit(1)).alias("rows"), F.count(F.col(MALFORMED)).alias("malformed")
        )
        if plan.sql is not None:
            table.createOrReplaceTempView("messages")
            table = session.sql(plan.sql)
        _check_columns(plan, table)
        _mark(plan, ranges, _WRITING, session)
        plan.target.batch(table, _mode_of_writer(plan, session), plan.partition_by)
        _mark(plan, ranges, _DONE, session)
        counts = seen.get
    return BackfillResult(
        sum(span.count for span in ranges),
        int(counts["rows"]),
        int(counts["malformed"]),
        bodies.schema,
    )


def _read(session: SparkSession, plan: BackfillPlan, ranges: Sequence[QueueRange]) -> DataFrame:
    bounds = ("starting", "ending")
    options = {k: v for k, v in plan.options.items() if not k.lower().startswith(bounds)}
    begins = {span.queue: span.begin for span in ranges}
    ends = {span.queue: span.end for span in ranges}
    # Every queue is named: one left out would be read from its beginning.
    others = _other_ends(plan, ends)
    begins, ends = others | begins, others | ends
    options["startingOffsets"] = offsets_json(begins)
    options["endingOffsets"] = offsets_json(ends)
    return session.read.format("rocketmq").schema(SOURCE_SCHEMA).options(**options).load()


def _other_ends(plan: BackfillPlan, named: Mapping[MessageQueue, int]) -> dict[MessageQueue, int]:
    """Return, for every queue that is not read, an end offset at which nothing of it is read."""
    if "storePath" in plan.source:
        options = store_options(plan.options)
        return {
            queue: 0
            for topic in options.topics
            for queue_id in queue_ids(options.store_path, topic)
            if (queue := MessageQueue(topic, options.broker_name, queue_id)) not in named
        }
    read = read_options(plan.options, "batch")
    with contextlib.closing(Cluster(read)) as cluster:
        return cluster.max_offsets([q for q in cluster.queues() if q not in named])


def _check_columns(plan: BackfillPlan, table: DataFrame) -> None:
    missing = [name for name in plan.partition_by if name not in table.columns]
    if missing:
        raise ConfigurationError(
            f"cannot partition by {', '.join(missing)}; the table has {', '.join(table.columns)}",
            partition_by=list(plan.partition_by),
        )


def _mode_of_writer(plan: BackfillPlan, session: SparkSession) -> str:
    """Return the mode in which Spark writes beside the marker, which must outlive the run.

    To ``new`` the directory holds something by now, and ``overwrite`` would begin by removing all
    of it: that is done here, but for the marker. Delta removes nothing.
    """
    place = _place(plan, session)
    if place is None or plan.mode == "append":
        return plan.mode
    if plan.mode == "overwrite":
        if plan.target.kind == "delta":
            return plan.mode
        for name in place.names():
            if name != _MARKER:
                place.remove(name)
    return "append"


def _mark(
    plan: BackfillPlan, ranges: Sequence[QueueRange], state: str, session: SparkSession
) -> None:
    """Record the plan of a landing in a directory; an overwrite, once done, is the only one."""
    place = _place(plan, session)
    if place is None:
        return
    tree: dict[str, Any] = {}
    for span in ranges:
        by_broker = tree.setdefault(span.queue.topic, {}).setdefault(span.queue.broker_name, {})
        by_broker[str(span.queue.queue_id)] = [span.begin, span.end]
    replaces = plan.mode == "overwrite"
    kept = []
    if not (replaces and state == _DONE):
        with contextlib.suppress(*([ConfigurationError] if replaces else [])):  # it goes as well
            kept = [entry for entry in _landed(place) if entry["ranges"] != tree]
    kept.append({"state": state, "ranges": tree, "bodies": plan.bodies.identity()})
    place.write(_MARKER, json.dumps(kept, indent=2) + "\n")
