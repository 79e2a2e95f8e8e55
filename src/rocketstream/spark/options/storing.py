"""The options of a read of a store directory (option ``storePath``).

Pure: text in, a frozen value out. Begin and end are given as for a read through brokers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote, urlsplit

from rocketstream.errors import ConfigurationError
from rocketstream.spark.options.connecting import CONNECT_OPTIONS
from rocketstream.spark.options.parsing import bad, flag, known, number, required
from rocketstream.spark.options.positions import Position, bounds
from rocketstream.spark.options.reading import READ_OPTIONS
from rocketstream.spark.options.topics import TopicChoice

STORE_OPTIONS: Final = (
    "storePath",
    "commitLogPath",
    "brokerName",
    "topic",
    "startingOffsets",
    "endingOffsets",
    "startingTimestamp",
    "endingTimestamp",
    "tags",
    "minPartitions",
    "failOnDataLoss",
    "checkBodyCrc",
    "skipDamaged",
)
"""Every option of a read of a store directory, spelled as documented."""
DEFAULT_BROKER_NAME: Final = "store"


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """The options of a read of a store directory.

    Attributes:
        store_path: the directory a broker calls ``storePathRootDir``.
        commit_log_paths: directories of the commit log's files, usually one.
        broker_name: the ``brokerName`` of rows; a store does not name its broker.
        topics: topics to read, in the order given, without repeats.
        start: where queues begin.
        end: where they end.
        tags: subscription expression, ``*`` for all.
        min_partitions: the least number of Spark partitions, None to leave it to the planner.
        fail_on_data_loss: whether missing offsets are an error.
        check_body_crc: whether bodies that are read must match the CRC stored with them.
        skip_damaged: whether damaged records are named in a warning and left out.
    """

    store_path: str
    commit_log_paths: tuple[str, ...]
    broker_name: str
    topics: tuple[str, ...]
    start: Position
    end: Position
    tags: str
    min_partitions: int | None
    fail_on_data_loss: bool
    check_body_crc: bool
    skip_damaged: bool


def is_store_read(given: Mapping[str, str]) -> bool:
    """Return whether options ask for a store directory; names match in any case."""
    return any(name.lower() == "storepath" for name in given)


def store_options(given: Mapping[str, str]) -> StoreOptions:
    """Parse the options of a read of a store directory; names match in any case.

    Raises:
        ConfigurationError: an option is unknown, missing or unusable; the error says what to give.
    """
    _refuse_those_of_brokers(given)
    values = known(given, STORE_OPTIONS)
    text = required(values, "topic", "a topic, or several separated by commas")
    topics = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    if not topics:
        raise bad("topic", text, "a topic, or several separated by commas")
    start, end = bounds(values, TopicChoice(topics), "batch")
    root = _local("storePath", required(values, "storePath", "the broker's storePathRootDir"))
    logs = values.get("commitLogPath", f"{root.rstrip('/')}/commitlog").split(",")
    return StoreOptions(
        store_path=root,
        commit_log_paths=tuple(_local("commitLogPath", log.strip()) for log in logs),
        broker_name=values.get("brokerName", "").strip() or DEFAULT_BROKER_NAME,
        topics=topics,
        start=start,
        end=end,
        tags=values.get("tags", "").strip() or "*",
        min_partitions=number(values, "minPartitions", None, 1),
        fail_on_data_loss=flag(values, "failOnDataLoss", True),
        check_body_crc=flag(values, "checkBodyCrc", True),
        skip_damaged=flag(values, "skipDamaged", False),
    )


def _refuse_those_of_brokers(given: Mapping[str, str]) -> None:
    """Refuse an option that exists for other reads, and say why it has no use here."""
    ours = {name.lower() for name in STORE_OPTIONS}
    theirs = {name.lower(): name for name in (*READ_OPTIONS, *CONNECT_OPTIONS)}
    for name in given:
        if name.lower() in theirs.keys() - ours:
            raise ConfigurationError(
                f"option {theirs[name.lower()]!r} is for reading through brokers; with option "
                "'storePath' files are read and no broker is asked: leave one of the two out",
                option=name,
            )


def _local(name: str, path: str) -> str:
    """Return the path of a directory given as a path or as a ``file:`` URI."""
    parts = urlsplit(path)
    if parts.scheme == "file":
        path = unquote(parts.path)
    elif "://" in path:
        path = ""
    if not path:
        raise bad(name, parts.geturl(), "the path of a directory that every executor can open")
    return path
