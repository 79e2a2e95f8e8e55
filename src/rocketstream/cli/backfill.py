"""``rocketstream backfill TOPIC... --to KIND:PLACE``: a closed range as a table, in one batch.

The pipeline is ``rocketstream.pipelines.backfill``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
from click import BadParameter

from rocketstream.admin.core.words import plural
from rocketstream.cli import landing
from rocketstream.cli.commands import option, words
from rocketstream.cli.failure import say
from rocketstream.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from rocketstream.pipelines.backfill import BackfillPlan, BackfillResult
    from rocketstream.spark.scan import QueueRange


@click.command(
    epilog="Example: `rocketstream backfill orders --store /data/rocketmq/store "
    "--to parquet:./orders --until 2024-05-01`"
)
@landing.topics
@landing.to(landing.TO_HELP)
@option(
    "--store DIRECTORY",
    "Read this broker's store directory (storePathRootDir) instead of asking a broker.",
    click.Path(),
)
@option("--broker-name NAME", "What the store's broker is called; for --store.")
@landing.begin
@option(
    "--until latest|TIMESTAMP|OFFSETS",
    'Where to end, exclusive; as --from, or offsets as JSON {"topic":{"broker":{"0":123}}}.',
    default="latest",
    shell_complete=words("latest"),
)
@option(
    "--mode new|append|overwrite",
    "Whether the table may hold something already.",
    click.Choice,
    default="new",
)
@landing.bodies
@option("--allow-loss", "Go on without offsets that are gone.")
@option("--skip-damaged", "Leave damaged records out; for --store.")
@landing.sparks
def backfill(as_json: bool, **given: Any) -> None:
    """Land a closed range of topics as a table: from brokers, or straight from a store directory.

    The range is resolved to offsets first, shown, and read exactly; the table's `_backfill.json`
    keeps it, so that the same offsets are not appended twice.
    """
    from rocketstream.pipelines.backfill import BackfillPlan
    from rocketstream.spark.connections import with_environment

    stored = _from_store(given["store"], given["broker_name"], given["skip_damaged"])
    source = {"nameServer": given["namesrv"]} if stored is None else stored
    source |= {"failOnDataLoss": "false"} if given["allow_loss"] else {}
    source |= {"tags": given["tags"]} if given["tags"] is not None else {}
    source |= landing.bound("--from", "starting", given["start"])
    source |= landing.bound("--until", "ending", given["until"])
    source |= landing.source_options(given)
    plan = BackfillPlan(
        **landing.chosen(given),
        source=with_environment(source) if stored is None else source,
        mode=given["mode"],
    )
    _land(plan, given, as_json)


def _from_store(
    store: str | None, broker_name: str | None, skip_damaged: bool
) -> dict[str, str] | None:
    if store is None:
        if broker_name is not None or skip_damaged:
            raise BadParameter("--broker-name and --skip-damaged are for --store")
        return None
    found = {"storePath": store}
    found |= {"brokerName": broker_name} if broker_name else {}
    return found | ({"skipDamaged": "true"} if skip_damaged else {})


def _land(plan: BackfillPlan, given: dict[str, Any], as_json: bool) -> None:
    """Check everything that can be wrong, then start Spark."""
    from rocketstream.pipelines.backfill import check_target, resolve_ranges
    from rocketstream.pipelines.databases import check_database
    from rocketstream.pipelines.ingest import check_columns

    if plan.sql is None:
        check_columns("partition by", plan.partition_by, plan.bodies.columns())
    check_database(plan.target.url, plan.bodies.fields(), plan.sql)
    config = landing.ready(plan, [plan.target], given)
    ranges = resolve_ranges(plan)
    if not ranges:
        raise ConfigurationError(
            f"there is nothing to land: no message of {', '.join(plan.topics)} is in this range"
        )
    check_target(plan, ranges)
    total = sum(span.count for span in ranges)
    say(f"landing {plural(total, 'offset')} of {plural(len(ranges), 'queue')}")
    log_file = landing.spark_log(None)
    result = _run(plan, ranges, given["master"], config, log_file)
    landing.print_landed(plan, result.rows, result.malformed, _figures(ranges, result), as_json)
    if result.rows < result.offsets and "tags" not in plan.source:
        left_out = plural(result.offsets - result.rows, "offset")
        say(f"{left_out} left out; {log_file} says which, where Spark runs on this machine")
    else:
        log_file.unlink()


def _run(
    plan: BackfillPlan,
    ranges: Sequence[QueueRange],
    master: str,
    config: dict[str, str],
    log_file: Path,
) -> BackfillResult:
    from rocketstream.pipelines.backfill import backfill as run_backfill

    with landing.session(f"backfill {' '.join(plan.topics)}", log_file, master, config) as spark:
        result = run_backfill(spark, plan, ranges)
    if plan.bodies.inferred:
        say(f"schema found: {result.schema}")
    return result


def _figures(ranges: Sequence[QueueRange], result: BackfillResult) -> dict[str, Any]:
    return {
        "offsets": result.offsets,
        "rows": result.rows,
        "malformed": result.malformed,
        "ranges": [
            {
                "topic": span.queue.topic,
                "broker": span.queue.broker_name,
                "queue": span.queue.queue_id,
                "begin": span.begin,
                "end": span.end,
            }
            for span in ranges
        ],
    }
