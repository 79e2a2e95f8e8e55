"""``rocketstream backfill TOPIC... --to KIND:PLACE``: a closed range as a table, in one batch.

The pipeline is ``rocketstream.pipelines.backfill``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rocketstream.cli.declare import BadParameter, Commands
from rocketstream.cli.failure import say
from rocketstream.cli.ingest import (
    check_spark,
    config_for,
    spark_log,
    target_of,
    warn_of_misfits,
)
from rocketstream.cli.landing import (
    AllowLoss,
    BackfillTo,
    BrokerName,
    Conf,
    Descriptor,
    Format,
    FormatOptions,
    Master,
    MessageName,
    Mode,
    Packages,
    PartitionBy,
    Schema,
    SkipDamaged,
    SourceOptions,
    Sql,
    Store,
    Table,
    Tags,
    TargetOptions,
    Topics,
    Until,
    offsets_json,
    pairs,
    spark_config,
)
from rocketstream.cli.options import DEFAULT_NAMESRV, From, Json, Namesrv
from rocketstream.cli.output import plural, print_json, print_line
from rocketstream.cli.start import parse_start
from rocketstream.errors import ConfigurationError, SparkQueryError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from rocketstream.pipelines.backfill import BackfillPlan, BackfillResult
    from rocketstream.spark.scan import QueueRange


def add_to(app: Commands) -> None:
    """Add the command."""
    app.add(
        backfill,
        epilog="Example: `rocketstream backfill orders --store /data/rocketmq/store "
        "--to parquet:./orders --until 2024-05-01`",
    )


def backfill(
    topics: Topics,
    to: BackfillTo,
    store: Store = None,
    broker_name: BrokerName = None,
    start: From = "earliest",
    until: Until = "latest",
    mode: Mode = "new",
    schema: Schema = None,
    format: Format = None,
    format_option: FormatOptions = None,
    descriptor: Descriptor = None,
    message: MessageName = None,
    sql: Sql = None,
    tags: Tags = None,
    partition_by: PartitionBy = None,
    allow_loss: AllowLoss = False,
    skip_damaged: SkipDamaged = False,
    table: Table = None,
    to_option: TargetOptions = None,
    option: SourceOptions = None,
    master: Master = "local[*]",
    conf: Conf = None,
    package: Packages = None,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    as_json: Json = False,
) -> None:
    """Land a closed range of topics as a table: from brokers, or straight from a store directory.

    The range is resolved to offsets first, shown, and read exactly; the table's `_backfill.json`
    keeps it, so that the same offsets are not appended twice.
    """
    from rocketstream.pipelines.backfill import BackfillPlan
    from rocketstream.pipelines.bodies import bodies_of
    from rocketstream.spark.environment import with_environment

    _check_mode(mode)
    stored = _from_store(store, broker_name, skip_damaged)
    source = {"nameServer": namesrv} if stored is None else stored
    source |= {"failOnDataLoss": "false"} if allow_loss else {}
    source |= {"tags": tags} if tags is not None else {}
    source |= _bound("--from", "starting", start) | _bound("--until", "ending", until)
    source |= pairs("--option", option)
    plan = BackfillPlan(
        topics=tuple(dict.fromkeys(topics)),
        source=with_environment(source) if stored is None else source,
        target=target_of("--to", to, table, pairs("--to-option", to_option), namesrv),
        bodies=bodies_of(
            format, schema, pairs("--format-option", format_option), descriptor, message
        ),
        mode=mode,
        partition_by=tuple(partition_by or ()),
        sql=sql,
    )
    _land(plan, master, spark_config(conf, package), as_json)


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


def _land(plan: BackfillPlan, master: str, config: dict[str, str], as_json: bool) -> None:
    """Check everything that can be wrong, then start Spark."""
    from rocketstream.pipelines.backfill import check_target, resolve_ranges
    from rocketstream.pipelines.ingest import check_columns
    from rocketstream.pipelines.masters import check_master
    from rocketstream.protocol.names import check_topic

    if plan.sql is None:
        check_columns("partition by", plan.partition_by, plan.bodies.columns())
    for topic in plan.topics:
        check_topic(topic)
    check_master(master)
    config = config_for(plan.target, plan.bodies, config)
    check_spark()
    warn_of_misfits(config)
    ranges = resolve_ranges(plan)
    if not ranges:
        raise ConfigurationError(
            f"there is nothing to land: no message of {', '.join(plan.topics)} is in this range"
        )
    check_target(plan, ranges)
    total = sum(span.count for span in ranges)
    say(f"landing {plural(total, 'offset')} of {plural(len(ranges), 'queue')}")
    log_file = spark_log(None)
    result = _run(plan, ranges, master, config, log_file)
    _print_result(plan, ranges, result, as_json)
    if result.rows < result.offsets and "tags" not in plan.source:
        left_out = plural(result.offsets - result.rows, "offset")
        say(f"{left_out} left out; {log_file} says which, where Spark runs on this machine")
    else:
        log_file.unlink()


def _check_mode(mode: str) -> None:
    from rocketstream.pipelines.backfill import MODES

    if mode not in MODES:
        raise BadParameter(f"--mode is {mode!r}; accepted are {', '.join(MODES)}")


def _bound(option: str, name: str, text: str) -> dict[str, str]:
    offsets = offsets_json(option, text)
    if offsets is not None:
        return {f"{name}Offsets": offsets}
    position = parse_start(text, option)
    if position.timestamp_ms is not None:
        return {f"{name}Timestamp": str(position.timestamp_ms)}
    return {f"{name}Offsets": position.name}


def _run(
    plan: BackfillPlan,
    ranges: Sequence[QueueRange],
    master: str,
    config: dict[str, str],
    log_file: Path,
) -> BackfillResult:
    from rocketstream.pipelines.backfill import backfill as run_backfill
    from rocketstream.pipelines.local_session import start_session, stop_session

    session = start_session(
        f"backfill {' '.join(plan.topics)}",
        log_file=log_file,
        master=master,
        config=config,
        on_interrupt=lambda: say("stopping once Spark has started"),
    )
    try:
        result = run_backfill(session, plan, ranges)
    except SparkQueryError as error:
        raise SparkQueryError(f"{error.message} (details: {log_file})") from error
    finally:
        stop_session(session)
    if plan.bodies.inferred:
        say(f"schema found: {result.schema}")
    return result


def _print_result(
    plan: BackfillPlan, ranges: Sequence[QueueRange], result: BackfillResult, as_json: bool
) -> None:
    if as_json:
        print_json(
            {
                "topics": list(plan.topics),
                "table": str(plan.target),
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
        )
        return
    print_line(f"landed {plural(result.rows, 'row')} of {', '.join(plan.topics)} in {plan.target}")
    if result.malformed:
        print_line(
            f"{plural(result.malformed, 'row')} did not parse: kept as they are in the column "
            "_malformed"
        )
