"""``rocketstream ingest TOPIC --to parquet:PATH``: land a topic as a table with Spark.

Law: options in, progress on stderr, counts out; the pipeline is ``rocketstream.pipelines.ingest``.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

from rocketstream.cli.failure import say
from rocketstream.cli.options import DEFAULT_NAMESRV, From, Json, Namesrv, Topic
from rocketstream.cli.output import plural, print_json, print_line
from rocketstream.cli.start import parse_start
from rocketstream.errors import SparkQueryError

if TYPE_CHECKING:
    from rocketstream.pipelines.ingest import IngestPlan, IngestProgress

_ROWS_PER_BATCH = 200_000
_SPARK_LOG = "_spark.log"


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    app.command(
        epilog="Example: `rocketstream ingest orders --to parquet:./orders "
        "--schema 'id BIGINT, amount DOUBLE, city STRING' --from earliest --once`"
    )(ingest)


def ingest(
    topic: Topic,
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="parquet:PATH",
            help="The table; a new directory or one ingest made before.",
        ),
    ],
    group: Annotated[
        str | None,
        typer.Option("--group", "-g", help="Group under which the broker shows the progress."),
    ] = None,
    schema: Annotated[
        str | None,
        typer.Option(
            metavar="DDL|JSON|FILE",
            help="Columns of the JSON bodies: 'id INT, name STRING', Spark's schema JSON, or a "
            "file with one of these. Without it each body is kept as text.",
        ),
    ] = None,
    start: From = "earliest",
    once: Annotated[
        bool,
        typer.Option("--once/--continuous", help="Land what is there and end, or go on."),
    ] = True,
    tags: Annotated[
        str | None, typer.Option("--tags", metavar='"A || B"', help="Only these tags.")
    ] = None,
    partition_by: Annotated[
        list[str] | None,
        typer.Option("--partition-by", metavar="COLUMN", help="Directory per value; repeatable."),
    ] = None,
    rows_per_batch: Annotated[
        int, typer.Option("--rows-per-batch", min=1, help="Most messages per micro-batch.")
    ] = _ROWS_PER_BATCH,
    master: Annotated[str, typer.Option(help="Spark master.")] = "local[*]",
    namesrv: Namesrv = DEFAULT_NAMESRV,
    as_json: Json = False,
) -> None:
    """Land a topic as a Parquet table, each message exactly once, with Spark.

    Run again, it continues where it ended (`PATH/_checkpoint`). Bodies that do not parse are kept
    as they are in the column `_malformed`, counted and reported. `--continuous` goes on until
    Ctrl-C.
    """
    path = _parquet_path(to)
    position = parse_start(start)
    _check_spark()
    from rocketstream.pipelines.ingest import IngestPlan, prepare_target

    plan = IngestPlan(
        namesrv_addr=namesrv,
        topic=topic,
        path=path,
        schema=schema,
        group=group,
        start=position.name if position.timestamp_ms is None else str(position.timestamp_ms),
        once=once,
        partition_by=tuple(partition_by or ()),
        rows_per_batch=rows_per_batch,
        tags=tags,
    )
    waiting = _waiting(namesrv, topic)
    prepare_target(plan)
    if plan.resumes:
        say(f"continuing {path} from its checkpoint (--from is not used)")
    totals = _run(plan, master, waiting)
    _print_result(plan, totals, as_json)


def _parquet_path(to: str) -> Path:
    kind, separator, path = to.partition(":")
    if kind != "parquet" or not separator or not path:
        raise typer.BadParameter(f"--to is {to!r}; accepted is parquet:PATH, like parquet:./table")
    return Path(path)


def _check_spark() -> None:
    from rocketstream.pipelines.local_session import check_environment

    check_environment()


def _waiting(namesrv: str, topic: str) -> int:
    """Return how many messages the topic holds; asking also shows whether there is one."""
    from rocketstream.admin import Admin
    from rocketstream.protocol.names import check_topic

    check_topic(topic)
    with Admin(namesrv) as admin:
        return sum(row.message_count for row in admin.topic_status(topic))


def _run(plan: IngestPlan, master: str, waiting: int) -> IngestProgress:
    from rocketstream.pipelines.ingest import ingest as run_ingest
    from rocketstream.pipelines.local_session import start_session, stop_session

    stop = threading.Event()
    total = waiting if plan.once and plan.start == "earliest" and not plan.resumes else None
    log_file = plan.path / _SPARK_LOG
    log_file.unlink(missing_ok=True)
    with _bar(total) as show:
        session = start_session(
            f"ingest {plan.topic}",
            log_file=log_file,
            master=master,
            on_interrupt=lambda: say("stopping once Spark has started"),
        )
        try:
            with _stop_on_signal(stop):
                totals = run_ingest(session, plan, on_progress=show, stop=stop)
        except SparkQueryError as error:
            raise SparkQueryError(f"{error.message} (details: {log_file})") from error
        finally:
            stop_session(session)
    if stop.is_set() and plan.once:
        raise KeyboardInterrupt
    return totals


class _Show:
    """Feeds the progress bar; the text beside it carries what a bar cannot."""

    def __init__(self, total: int | None) -> None:
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
        self._task = self.bar.add_task("starting Spark", total=total, rate="")

    def __call__(self, progress: IngestProgress) -> None:
        malformed = f", {progress.malformed:,} malformed" if progress.malformed else ""
        self.bar.update(
            self._task,
            description="landing",
            completed=progress.rows,
            rate=f"{progress.rows_per_second:,.0f} rows/s{malformed}",
        )


@contextmanager
def _bar(total: int | None) -> Iterator[_Show]:
    show = _Show(total)
    with show.bar:
        yield show


@contextmanager
def _stop_on_signal(stop: threading.Event) -> Iterator[None]:
    """Turn Ctrl-C and SIGTERM into ``stop``; a second one is not awaited.

    An exception in the middle of a call into Spark would leave its connection half read.
    """

    def ask(number: int, frame: FrameType | None) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _print_result(plan: IngestPlan, totals: IngestProgress, as_json: bool) -> None:
    if as_json:
        print_json(
            {
                "topic": plan.topic,
                "table": str(plan.path),
                "rows": totals.rows,
                "malformed": totals.malformed,
                "batches": totals.batches,
            }
        )
        return
    print_line(
        f"landed {plural(totals.rows, 'row')} of {plan.topic} in {plan.path} "
        f"({plural(totals.batches, 'micro-batch').replace('batchs', 'batches')})"
    )
    if totals.malformed:
        rows = plural(totals.malformed, "row")
        print_line(f"{rows} did not parse: kept as they are in the column _malformed")
