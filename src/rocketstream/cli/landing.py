"""The options of the commands that land tables, and their values.

Law: no Spark is started here.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Annotated

from rocketstream.cli.declare import Argument, Option
from rocketstream.cli.failure import say
from rocketstream.errors import ConfigurationError

Topics = Annotated[list[str], Argument(metavar="TOPIC...", help="Names of the topics.")]
Schema = Annotated[
    str | None,
    Option(
        metavar="DDL|JSON|FILE|infer|variant",
        help="Columns of the bodies: 'id INT, name STRING', Spark's schema JSON, a file with one "
        "of these, 'infer' to find them in a sample, 'variant' for one column of any JSON; for "
        "Avro an .avsc file. Without it each body is kept as text.",
    ),
]
Format = Annotated[
    str | None,
    Option(
        "--format",
        metavar="json|variant|csv|avro|protobuf|text",
        help="Format of the bodies. Default: json with a schema, protobuf with a descriptor, "
        "else text.",
    ),
]
FormatOptions = Annotated[
    list[str] | None,
    Option(
        "--format-option", metavar="KEY=VALUE", help="Spark's option of the format; repeatable."
    ),
]
Descriptor = Annotated[
    str | None,
    Option(
        "--descriptor",
        metavar="FILE",
        help="Protobuf descriptor set that has the message the bodies hold, made by `protoc "
        "--include_imports --descriptor_set_out=FILE`.",
    ),
]
MessageName = Annotated[
    str | None,
    Option("--message", metavar="NAME", help="Full name of that message, like shop.Order."),
]
Sql = Annotated[
    str | None,
    Option(metavar="QUERY", help="Land the result of this query over the view `messages` instead."),
]
PartitionBy = Annotated[
    list[str] | None,
    Option(
        "--partition-by",
        metavar="COLUMN",
        help="Write a directory for each value of this column; repeatable.",
    ),
]


def _told_of_tags(tags: str | None) -> str | None:
    """Warn here: the source's own warning of tags goes to Spark's log."""
    if tags is not None:
        from rocketstream.protocol.subscription import tags_hint

        if (hint := tags_hint(tags)) is not None:
            say(f"warning: --tags: {hint}")
    return tags


Tags = Annotated[
    str | None,
    Option("--tags", metavar='"A || B"', help="Only these tags.", callback=_told_of_tags),
]
Table = Annotated[str | None, Option("--table", metavar="NAME", help="Table of a jdbc target.")]
TargetOptions = Annotated[
    list[str] | None,
    Option("--to-option", metavar="KEY=VALUE", help="Spark's option of the target; repeatable."),
]
SourceOptions = Annotated[
    list[str] | None,
    Option("--option", metavar="KEY=VALUE", help="Option of format('rocketmq'); repeatable."),
]
Master = Annotated[str, Option(help="Spark master.")]
Conf = Annotated[
    list[str] | None,
    Option("--conf", metavar="KEY=VALUE", help="Spark setting; repeatable."),
]
Packages = Annotated[
    list[str] | None,
    Option("--package", metavar="GROUP:NAME:VERSION", help="For Spark to fetch; repeatable."),
]

IngestTo = Annotated[
    str,
    Option(
        "--to",
        metavar="KIND:PLACE",
        help="The table: parquet:PATH, orc:PATH, delta:PATH (any path Spark takes), "
        "iceberg:CATALOG.DB.TABLE, jdbc:URL or rocketmq:TOPIC. A directory must be new, or one "
        "ingest made before.",
    ),
]
Group = Annotated[
    str | None,
    Option("--group", "-g", help="Group under which the broker shows the progress."),
]
Watermark = Annotated[
    str | None,
    Option(
        metavar="'COLUMN DELAY'",
        help="Event time and how late rows may come, like '_storeTimestamp 10 minutes'.",
    ),
]
DedupKeys = Annotated[
    str | None,
    Option(
        "--dedup-keys",
        metavar="A,B",
        help="Columns by which a message sent twice is recognized; repeats within the "
        "watermark are left out.",
    ),
]
DeadLetters = Annotated[
    str | None,
    Option(
        "--dead-letters",
        metavar="KIND:PLACE",
        help="Where messages that do not decode go, as they came; without it they are kept in the "
        "table's column `_malformed`.",
    ),
]
Once = Annotated[
    bool,
    Option("--once/--continuous", help="Land what is there and end, or go on with what arrives."),
]
RowsPerBatch = Annotated[
    int | None,
    Option(
        "--rows-per-batch",
        min=1,
        help="Most messages per micro-batch, 200000 unless given; before PySpark 4.2 a "
        "micro-batch takes all that waits.",
    ),
]
Checkpoint = Annotated[
    str | None,
    Option(
        metavar="DIRECTORY",
        help="Where Spark keeps what is landed; for a path it is in the table, as _checkpoint.",
    ),
]
BackfillTo = Annotated[
    str,
    Option(
        "--to",
        metavar="KIND:PLACE",
        help="The table: parquet:PATH, orc:PATH, delta:PATH (any path Spark takes), "
        "iceberg:CATALOG.DB.TABLE, jdbc:URL or rocketmq:TOPIC.",
    ),
]
Store = Annotated[
    str | None,
    Option(
        metavar="DIRECTORY",
        help="Read this broker's store directory (storePathRootDir) instead of asking a broker.",
    ),
]
BrokerName = Annotated[
    str | None, Option(metavar="NAME", help="What the store's broker is called; for --store.")
]
Until = Annotated[
    str,
    Option(
        metavar="latest|TIMESTAMP|OFFSETS",
        help="Where to end, exclusive; as --from, or offsets as JSON "
        '{"topic":{"broker":{"0":123}}}.',
    ),
]
Mode = Annotated[
    str,
    Option(metavar="new|append|overwrite", help="Whether the table may hold something already."),
]
AllowLoss = Annotated[bool, Option("--allow-loss", help="Go on without offsets that are gone.")]
SkipDamaged = Annotated[
    bool, Option("--skip-damaged", help="Leave damaged records out; for --store.")
]


def pairs(option: str, texts: Iterable[str] | None) -> dict[str, str]:
    """Return ``KEY=VALUE`` texts as a table.

    Raises:
        ConfigurationError: one without a key or without ``=``.
    """
    found: dict[str, str] = {}
    for text in texts or ():
        key, separator, value = text.partition("=")
        if not key.strip() or not separator:
            raise ConfigurationError(f"{option} is {text!r}; accepted is KEY=VALUE", value=text)
        found[key.strip()] = value
    return found


def spark_config(conf: Iterable[str] | None, packages: Iterable[str] | None) -> dict[str, str]:
    """Return Spark settings; packages become ``spark.jars.packages``."""
    found = pairs("--conf", conf)
    wanted = list(packages or ())
    for package in wanted:
        if package.count(":") != 2:
            raise ConfigurationError(
                f"--package is {package!r}; accepted is GROUP:NAME:VERSION, like "
                "io.delta:delta-spark_4.2_2.13:4.4.0",
                value=package,
            )
    if wanted:
        already = found.get("spark.jars.packages")
        found["spark.jars.packages"] = ",".join([*([already] if already else []), *wanted])
    return found


def offsets_json(option: str, text: str) -> str | None:
    """Return offsets given as JSON, or as a file with it; None when the text is neither.

    Raises:
        ConfigurationError: JSON that cannot be read.
    """
    word = text.strip()
    if not word.startswith("{"):
        return None
    try:
        json.loads(word)
    except ValueError as error:
        raise ConfigurationError(f"{option} is not JSON: {error}", value=text) from error
    return word
