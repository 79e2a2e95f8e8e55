"""``rocketstream ingest TOPIC... --to KIND:PLACE``: land topics as a table with Spark.

Progress goes to stderr, counts to stdout; the pipeline is ``rocketstream.pipelines.ingest``.
"""

from __future__ import annotations

import dataclasses
import json
import signal
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from rocketstream.admin.core.words import plural
from rocketstream.cli import landing
from rocketstream.cli.commands import SPAN, Whole, looking, names, option
from rocketstream.cli.failure import end_by, say
from rocketstream.errors import ConfigurationError

if TYPE_CHECKING:
    from rocketstream.pipelines.ingest import IngestPlan
    from rocketstream.pipelines.progress import BatchMetrics, IngestProgress

_ROWS_PER_BATCH = 200_000


@click.command(
    epilog="Example: `rocketstream ingest orders --to parquet:./orders "
    "--schema 'id BIGINT, amount DOUBLE, city STRING' --from earliest --once`"
)
@landing.topics
@landing.to(f"{landing.TO_HELP} A directory must be new, or one ingest made before.")
@option(
    "--group, -g TEXT",
    "Group under which the broker shows the progress.",
    shell_complete=names("groups"),
)
@landing.bodies
@option(
    "--watermark 'COLUMN DELAY'",
    "Event time and how late rows may come, like '_storeTimestamp 10 minutes'.",
)
@option(
    "--dedup-keys A,B",
    "Columns by which a message sent twice is recognized; repeats within the "
    "watermark are left out, and so is every row that is older than it.",
)
@option(
    "--dead-letters KIND:PLACE",
    "Where messages that do not decode go, as they came; without it they are kept in the "
    "table's column `_malformed`.",
)
@landing.begin
@option(
    "--once/--continuous", "Land what is there and end, or go on with what arrives.", default=True
)
@option(
    "--every SPAN",
    "How long after the last one a micro-batch of `--continuous` begins; each writes a file "
    "or more. 0s: as soon as there is a message.",
    SPAN,
    default="1m",
    show_default=True,
)
@option(
    "--rows-per-batch N",
    "Most messages per micro-batch, 200000 unless given; before PySpark 4.2 a "
    "micro-batch takes all that waits.",
    Whole(1),
)
@option(
    "--checkpoint DIRECTORY",
    "Where Spark keeps what is landed; for a path it is in the table, as _checkpoint.",
)
@landing.sparks
def ingest(as_json: bool, **given: Any) -> None:
    """Land topics as a table with Spark, each message exactly once in tables of files.

    Run again, it continues where it ended (its checkpoint). Bodies that do not decode are kept as
    they are in the column `_malformed`, or go where `--dead-letters` says; they are counted and
    reported. `--continuous` goes on until Ctrl-C or SIGTERM, which ends it after the micro-batch
    under way; Ctrl-C after that ends it at once, and the next run repeats that micro-batch.
    """
    from rocketstream.pipelines.ingest import IngestPlan, prepare_target, resumes
    from rocketstream.spark.connections import with_environment

    dead = given["dead_letters"] and landing.target_of(
        "--dead-letters", given["dead_letters"], None, {}, given["namesrv"]
    )
    plan = IngestPlan(
        **landing.chosen(given),
        source=with_environment(_source(given) | landing.source_options(given)),
        once=given["once"],
        every_ms=given["every"],
        checkpoint_at=given["checkpoint"],
        watermark=_watermark(given["watermark"]),
        dedup_keys=tuple(filter(None, map(str.strip, (given["dedup_keys"] or "").split(",")))),
        dead_letters=dead or None,
    )
    targets = [target for target in (plan.target, plan.dead_letters) if target is not None]
    config = landing.ready(plan, targets, given)
    waiting = _waiting(plan)
    plan = prepare_target(plan)
    if resumes(plan):
        _say_continuing(plan)
    totals = _run(plan, given["master"], config, waiting, as_json)
    kept = (
        {} if plan.dead_letters is None else {"kept": f"kept as they came in {plan.dead_letters}"}
    )
    landing.print_landed(
        plan,
        totals.landed,
        totals.malformed,
        {
            "rows": totals.rows,
            "landed": totals.landed,
            "malformed": totals.malformed,
            "late": totals.late,
            "batches": totals.batches,
        },
        as_json,
        after=f" ({plural(totals.batches, 'micro-batch', 'micro-batches')})",
        **kept,
    )


def _say_continuing(plan: IngestPlan) -> None:
    """Tell the user that the table is continued from its checkpoint."""
    say(f"continuing {plan.target} from its checkpoint (--from is not used)")


def _source(given: Mapping[str, Any]) -> dict[str, str]:
    found = {"nameServer": given["namesrv"], **_limit(given["rows_per_batch"])}
    found |= landing.bound("--from", "starting", given["start"])
    optional = {name: given[name] for name in ("group", "tags")}
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


def _waiting(plan: IngestPlan) -> int:
    """Return how many messages the topics hold; asking also shows whether they are there."""
    with looking(plan.source["nameServer"]) as admin:
        return sum(row.message_count for topic in plan.topics for row in admin.topics.status(topic))


def _run(
    plan: IngestPlan, master: str, config: dict[str, str], waiting: int, as_json: bool
) -> IngestProgress:
    from rocketstream.pipelines.ingest import ingest as run_ingest
    from rocketstream.pipelines.ingest import prepare_target, resolve_bodies, resumes

    stop = _Stop()
    from_all = plan.source.get("startingOffsets") == "earliest" and "tags" not in plan.source
    resumed = resumes(plan)
    total = waiting if plan.once and from_all and not resumed else None
    name, log_file = f"ingest {' '.join(plan.topics)}", landing.spark_log(plan.target.local)
    with (
        _bar(total, as_json) as show,
        landing.session(name, log_file, master, config, stop.is_insisted_on) as session,
    ):
        found = prepare_target(plan, session)
        if not resumed and resumes(found, session):
            _say_continuing(found)
        found = resolve_bodies(session, found)
        if plan.bodies.inferred:
            say(f"schema found: {found.bodies.schema}")
        totals = run_ingest(session, found, on_progress=show, stop=stop.asked)
    if stop.asked.is_set() and plan.once:
        end_by(stop.number)
    return totals


class _Stop:
    """A user's request to stop; Spark takes the time it needs.

    Attributes:
        asked: set by the first signal.
        number: which signal that was.
    """

    def __init__(self) -> None:
        self.asked = threading.Event()
        self.number: int = signal.SIGINT

    def is_insisted_on(self, number: int) -> bool:
        """Take a signal; the first one asks, Ctrl-C after it will not wait.

        SIGTERM again is the same wish: see ``signals.sigterm_raises``.
        """
        if self.asked.is_set():
            return number == signal.SIGINT
        self.number = number
        self.asked.set()
        say("stopping after the micro-batch under way; Ctrl-C now stops at once")
        return False


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
        late = f", {progress.late:,} late" if progress.late else ""
        self.bar.update(
            self._task,
            description="landing",
            completed=progress.rows,
            rate=f"{progress.rows_per_second:,.0f} rows/s{malformed}{late}",
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
    parts += [f"{batch.late:,} late"] if batch.late else []
    parts += [f"{batch.seconds:.1f} s", f"{batch.rows_per_second:,.0f} rows/s"]
    parts += [f"{batch.behind:,} behind"] if batch.behind is not None else []
    return ", ".join(parts)


@contextmanager
def _bar(total: int | None, as_json: bool) -> Iterator[_Show]:
    show = _Show(total, as_json)
    with show.bar:
        yield show
