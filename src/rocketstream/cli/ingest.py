"""``rocketstream ingest TOPIC... --to KIND:PLACE``: land topics as a table with Spark.

Progress goes to stderr, counts to stdout; the pipeline is ``rocketstream.pipelines.ingest``.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from rocketstream.cli.declare import BadParameter, Commands
from rocketstream.cli.failure import end_by, say
from rocketstream.cli.landing import (
    Checkpoint,
    Conf,
    DeadLetters,
    DedupKeys,
    Descriptor,
    Format,
    FormatOptions,
    Group,
    IngestTo,
    Master,
    MessageName,
    Once,
    Packages,
    PartitionBy,
    RowsPerBatch,
    Schema,
    SourceOptions,
    Sql,
    Table,
    Tags,
    TargetOptions,
    Topics,
    Watermark,
    offsets_json,
    pairs,
    spark_config,
)
from rocketstream.cli.options import DEFAULT_NAMESRV, From, Json, Namesrv
from rocketstream.cli.output import plural, print_json, print_line
from rocketstream.cli.start import parse_start
from rocketstream.cli.stopping import Stop
from rocketstream.errors import ConfigurationError, SparkQueryError

if TYPE_CHECKING:
    from rocketstream.pipelines.bodies import Bodies
    from rocketstream.pipelines.ingest import IngestPlan
    from rocketstream.pipelines.progress import BatchMetrics, IngestProgress
    from rocketstream.pipelines.targets import Target

_ROWS_PER_BATCH = 200_000
_SPARK_LOG = "_spark.log"


def add_to(app: Commands) -> None:
    """Add the command."""
    app.add(
        ingest,
        epilog="Example: `rocketstream ingest orders --to parquet:./orders "
        "--schema 'id BIGINT, amount DOUBLE, city STRING' --from earliest --once`",
    )


def ingest(
    topics: Topics,
    to: IngestTo,
    group: Group = None,
    schema: Schema = None,
    format: Format = None,
    format_option: FormatOptions = None,
    descriptor: Descriptor = None,
    message: MessageName = None,
    sql: Sql = None,
    watermark: Watermark = None,
    dedup_keys: DedupKeys = None,
    dead_letters: DeadLetters = None,
    start: From = "earliest",
    once: Once = True,
    tags: Tags = None,
    partition_by: PartitionBy = None,
    rows_per_batch: RowsPerBatch = None,
    checkpoint: Checkpoint = None,
    table: Table = None,
    to_option: TargetOptions = None,
    option: SourceOptions = None,
    master: Master = "local[*]",
    conf: Conf = None,
    package: Packages = None,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    as_json: Json = False,
) -> None:
    """Land topics as a table with Spark, each message exactly once in tables of files.

    Run again, it continues where it ended (its checkpoint). Bodies that do not decode are kept as
    they are in the column `_malformed`, or go where `--dead-letters` says; they are counted and
    reported. `--continuous` goes on until Ctrl-C or SIGTERM, which ends it after the micro-batch
    under way; a second one ends it at once, and the next run repeats that micro-batch.
    """
    from rocketstream.pipelines.bodies import bodies_of
    from rocketstream.pipelines.ingest import IngestPlan
    from rocketstream.spark.environment import with_environment

    dead = dead_letters and target_of("--dead-letters", dead_letters, None, {}, namesrv)
    plan = IngestPlan(
        topics=tuple(dict.fromkeys(topics)),
        source=with_environment(
            _source(namesrv, start, group, tags, rows_per_batch) | pairs("--option", option)
        ),
        target=target_of("--to", to, table, pairs("--to-option", to_option), namesrv),
        bodies=bodies_of(
            format, schema, pairs("--format-option", format_option), descriptor, message
        ),
        once=once,
        partition_by=tuple(partition_by or ()),
        checkpoint_at=checkpoint,
        sql=sql,
        watermark=_watermark(watermark),
        dedup_keys=tuple(filter(None, (key.strip() for key in (dedup_keys or "").split(",")))),
        dead_letters=dead or None,
    )
    _land(plan, master, spark_config(conf, package), as_json)


def _land(plan: IngestPlan, master: str, config: dict[str, str], as_json: bool) -> None:
    """Check everything that can be wrong, then start Spark."""
    from rocketstream.pipelines.ingest import prepare_target
    from rocketstream.pipelines.masters import check_master

    check_master(master)
    for target in filter(None, (plan.target, plan.dead_letters)):
        config = config_for(target, plan.bodies, config)
    check_spark()
    warn_of_misfits(config)
    waiting = _waiting(plan)
    plan = prepare_target(plan)
    if plan.resumes:
        _say_continuing(plan)
    totals = _run(plan, master, config, waiting, as_json)
    _print_result(plan, totals, as_json)


def _say_continuing(plan: IngestPlan) -> None:
    """Tell the user that the table is continued from its checkpoint."""
    say(f"continuing {plan.target} from its checkpoint (--from is not used)")


def config_for(target: Target, bodies: Bodies, config: dict[str, str]) -> dict[str, str]:
    """Return Spark settings with those a target needs.

    Raises:
        ConfigurationError: Spark will not have the package of the target or of the format.
    """
    from rocketstream.pipelines.targets import check_extras, with_extras

    check_extras(target.kind, config)
    check_extras(bodies.format, config)
    return with_extras(target, config)


def warn_of_misfits(config: Mapping[str, str]) -> None:
    """Warn of packages that are made for another Spark; some of their functions work all the
    same."""
    from rocketstream.pipelines.targets import misfits

    for sentence in misfits(config):
        say(f"warning: {sentence}")


def target_of(
    option: str, text: str, table: str | None, options: Mapping[str, str], namesrv: str
) -> Target:
    """Return the target of an option.

    Raises:
        BadParameter: not one that is accepted.
    """
    from rocketstream.pipelines.targets import parse_target
    from rocketstream.spark.environment import with_environment

    if text.startswith("rocketmq:"):
        options = with_environment({"nameServer": namesrv, **options})
    try:
        return parse_target(text, table, options)
    except ConfigurationError as error:
        raise BadParameter(f"{option}: {error.message}") from error


def _source(
    namesrv: str, start: str, group: str | None, tags: str | None, rows_per_batch: int | None
) -> dict[str, str]:
    found = {"nameServer": namesrv, **_limit(rows_per_batch)}
    offsets = offsets_json("--from", start)
    position = None if offsets else parse_start(start)
    if position is not None and position.timestamp_ms is not None:
        found["startingTimestamp"] = str(position.timestamp_ms)
    else:
        found["startingOffsets"] = offsets or start.strip()
    optional = {"group": group, "tags": tags}
    return found | {name: value for name, value in optional.items() if value is not None}


def _limit(rows_per_batch: int | None) -> dict[str, str]:
    """Return the option that bounds a micro-batch; empty where this Spark has no such option."""
    from rocketstream.pipelines.installed import limits_batches, spark_version

    version = spark_version()
    if limits_batches(version):
        return {"maxOffsetsPerTrigger": str(rows_per_batch or _ROWS_PER_BATCH)}
    if rows_per_batch is None:
        return {}
    raise ConfigurationError(
        f"--rows-per-batch needs PySpark 4.2, and this is {version}: before it Spark asks for "
        "everything there is. Use PySpark 4.2, or leave the option out",
        version=version,
    )


def _watermark(text: str | None) -> tuple[str, str] | None:
    if text is None:
        return None
    column, _, delay = text.strip().partition(" ")
    return column, delay.strip()


def check_spark() -> None:
    """Refuse where Spark or its Java is missing."""
    from rocketstream.pipelines.local_session import check_environment

    check_environment()


def _waiting(plan: IngestPlan) -> int:
    """Return how many messages the topics hold; asking also shows whether they are there."""
    from rocketstream.admin import Admin
    from rocketstream.protocol.names import check_topic

    for topic in plan.topics:
        check_topic(topic)
    with Admin(plan.source["nameServer"]) as admin:
        return sum(row.message_count for topic in plan.topics for row in admin.topics.status(topic))


def _run(
    plan: IngestPlan, master: str, config: dict[str, str], waiting: int, as_json: bool
) -> IngestProgress:
    from rocketstream.pipelines.ingest import ingest as run_ingest
    from rocketstream.pipelines.ingest import prepare_target, resolve_bodies, resumes
    from rocketstream.pipelines.local_session import (
        AtOnceError,
        abandon_session,
        start_session,
        stop_session,
    )

    stop = Stop()
    end = stop_session
    from_all = plan.source.get("startingOffsets") == "earliest" and "tags" not in plan.source
    total = waiting if plan.once and from_all and not plan.resumes else None
    log_file = spark_log(plan.target.local)
    with _bar(total, as_json) as show:
        session = start_session(
            f"ingest {' '.join(plan.topics)}",
            log_file=log_file,
            master=master,
            config=config,
            on_interrupt=lambda: say("stopping once Spark has started"),
        )
        try:
            with stop.on_signals():
                found = prepare_target(plan, session)
                if not plan.resumes and resumes(found, session):
                    _say_continuing(found)
                found = resolve_bodies(session, found)
                if plan.bodies.inferred:
                    say(f"schema found: {found.bodies.schema}")
                totals = run_ingest(session, found, on_progress=show, stop=stop.asked)
        except SparkQueryError as error:
            raise SparkQueryError(f"{error.message} (details: {log_file})") from error
        except AtOnceError as signalled:
            end = abandon_session
            end_by(signalled.number)
        finally:
            end(session)
    if stop.asked.is_set() and plan.once:
        end_by(stop.number)
    return totals


def spark_log(directory: Path | None) -> Path:
    """Return an empty place for what Spark writes to the console: in a table, or a scratch file."""
    if directory is None:
        handle, name = tempfile.mkstemp(prefix="rocketstream-", suffix=".log")
        os.close(handle)
        return Path(name)
    place = directory / _SPARK_LOG
    place.parent.mkdir(parents=True, exist_ok=True)
    place.unlink(missing_ok=True)
    return place


class _Show:
    """Feeds the progress bar; the text beside it has the other figures."""

    def __init__(self, total: int | None, as_json: bool) -> None:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            SpinnerColumn,
            TextColumn,
            TimeElapsedColumn,
        )

        self.bar = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"),
            TimeElapsedColumn(),
            console=Console(file=sys.stderr),
            transient=True,
            disable=not sys.stderr.isatty(),
        )
        self._as_json = as_json
        self._task = self.bar.add_task("starting Spark", total=total, rate="")

    def __call__(self, progress: IngestProgress) -> None:
        malformed = f", {progress.malformed:,} malformed" if progress.malformed else ""
        self.bar.update(
            self._task,
            description="landing",
            completed=progress.rows,
            rate=f"{progress.rows_per_second:,.0f} rows/s{malformed}",
        )
        if progress.last is not None:
            self.bar.console.print(
                _line(progress.last, self._as_json), highlight=False, soft_wrap=True
            )


def _line(batch: BatchMetrics, as_json: bool) -> str:
    """Return a micro-batch in one line."""
    if as_json:
        return json.dumps(dataclasses.asdict(batch))
    parts = [f"batch {batch.batch}: {plural(batch.rows, 'row')}"]
    parts += [f"{batch.landed:,} landed"] if batch.landed != batch.rows else []
    parts += [f"{batch.malformed:,} malformed"] if batch.malformed else []
    parts += [f"{batch.seconds:.1f} s", f"{batch.rows_per_second:,.0f} rows/s"]
    parts += [f"{batch.behind:,} behind"] if batch.behind is not None else []
    return ", ".join(parts)


@contextmanager
def _bar(total: int | None, as_json: bool) -> Iterator[_Show]:
    show = _Show(total, as_json)
    with show.bar:
        yield show


def _print_result(plan: IngestPlan, totals: IngestProgress, as_json: bool) -> None:
    if as_json:
        print_json(
            {
                "topics": list(plan.topics),
                "table": str(plan.target),
                "rows": totals.rows,
                "landed": totals.landed,
                "malformed": totals.malformed,
                "batches": totals.batches,
            }
        )
        return
    batches = plural(totals.batches, "micro-batch", "micro-batches")
    print_line(
        f"landed {plural(totals.landed, 'row')} of {', '.join(plan.topics)} in {plan.target} "
        f"({batches})"
    )
    if totals.malformed:
        rows = plural(totals.malformed, "row")
        kept = "kept as they are in the column _malformed"
        if plan.dead_letters is not None:
            kept = f"kept as they came in {plan.dead_letters}"
        print_line(f"{rows} did not parse: {kept}")
