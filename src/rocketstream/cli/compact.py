"""``rocketstream compact KIND:PLACE``: what ``ingest`` has landed, in fewer files.

The work is that of ``rocketstream.pipelines.compaction``.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import click

from rocketstream.admin.core.words import plural, size, span
from rocketstream.cli import landing
from rocketstream.cli.changing import DRY_RUN
from rocketstream.cli.commands import SPAN, Whole, argument, option, shows
from rocketstream.cli.output import print_json, print_line

if TYPE_CHECKING:
    from rocketstream.pipelines.compaction import Compaction

_SIZE_MIB = 128


@click.command(epilog="Example: `rocketstream compact parquet:./orders --dry-run`")
@argument(
    "KIND:PLACE", "The table: parquet:PATH or orc:PATH, as ingest has it in --to.", to="target"
)
@option("--file-size MIB", "How large a file is made, at most.", Whole(1), default=_SIZE_MIB)
@option(
    "--keep SPAN",
    "How long replaced files stay for readers that have begun; the next run after that removes "
    "them. 0s: this one.",
    SPAN,
    default="1h",
)
@option("--dry-run", DRY_RUN)
@landing.to_options
@landing.engine
@shows(asking=False)
def compact(as_json: bool, dry_run: bool, target: str, **given: Any) -> None:
    """Put what `ingest` has landed into fewer, greater files, beside the landing and its readers.

    Small files of a directory are written anew as one, and take their place in Spark's log of the
    table by one rename: a reader of Spark sees the one or the other, each row once. A run that was
    killed is finished, or undone, by the next one. The files of the last micro-batches, up to nine,
    are left for a later run.
    """
    from rocketstream.pipelines.compaction import check_compactable, plan_compaction
    from rocketstream.pipelines.compaction import compact as run
    from rocketstream.pipelines.local_session import check_environment, check_master

    table = landing.target_of("KIND:PLACE", target, None, landing.to_option(given), "")
    check_compactable(table)
    most, keep_ms = given["file_size"] << 20, given["keep"]
    if dry_run and table.local is not None:
        found = plan_compaction(None, table, size=most)
    else:
        check_master(given["master"])
        check_environment()
        config = landing.spark_config(given["conf"], given["package"])
        log_file = landing.spark_log(None)
        with landing.session("compact", log_file, given["master"], config) as spark:
            if dry_run:
                found = plan_compaction(spark, table, size=most)
            else:
                found = run(spark, table, size=most, keep_ms=keep_ms)
        log_file.unlink()
    _tell(found, str(table), keep_ms, dry_run, as_json)


def _tell(found: Compaction, table: str, keep_ms: int, dry_run: bool, as_json: bool) -> None:
    if as_json:
        print_json({"table": table, **dataclasses.asdict(found)})
        return
    if found.files:
        what = f"{plural(found.files, 'file')} ({size(found.bytes)}) of {table} into {found.into:,}"
        print_line(f"{'would compact' if dry_run else 'compacted'} {what}")
    else:
        print_line(f"nothing to compact in {table}")
    if found.removed:
        print_line(f"removed {plural(found.removed, 'file')} that had been replaced")
    if found.waiting:
        kept = f"for {span(keep_ms)}" if keep_ms else "until the landing has gone on"
        print_line(
            f"{plural(found.waiting, 'replaced file')} stay {kept}; a later run removes them"
        )
    if dry_run:
        print_line("dry run: nothing was changed")
