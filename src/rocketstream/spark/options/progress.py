"""The options of ``rocketmq-progress``: which groups of a cluster, or which offset files.

Pure: text in, a frozen value out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from rocketstream.errors import ConfigurationError
from rocketstream.spark.options.connecting import CONNECT_OPTIONS, ConnectOptions, connect_settings
from rocketstream.spark.options.parsing import bad, flag, known
from rocketstream.spark.options.times import LENGTH_ACCEPTED, length_ms

CLUSTER_ONLY: Final = ("group", "groups", "groupPattern", "topic", "interval", "owners")
PROGRESS_OPTIONS: Final = (*CLUSTER_ONLY, *CONNECT_OPTIONS)
"""Options of reading a cluster, spelled as documented."""
FILE_OPTIONS: Final = ("path", "backup")
"""Options of reading offset files."""

INTERVAL_MS: Final = 10_000


@dataclass(frozen=True, slots=True)
class ProgressOptions(ConnectOptions):
    """The options of reading a cluster's progress.

    Attributes:
        groups: only these groups; None for those of ``group_pattern``, or all.
        group_pattern: groups whose whole name matches this regular expression; None for none.
        topics: only these topics; None for all.
        interval_ms: the least time between two snapshots of a stream.
        owners: whether members are asked which queues they hold.
    """

    groups: tuple[str, ...] | None
    group_pattern: str | None
    topics: tuple[str, ...] | None
    interval_ms: int
    owners: bool

    def __repr__(self) -> str:
        return f"ProgressOptions(groups={self.groups}, name_server={self.name_server!r})"


@dataclass(frozen=True, slots=True)
class FileOptions:
    """The options of reading offset files.

    Attributes:
        paths: files, directories of a store, or patterns of them.
        backup: whether ``.bak`` is read where a file is missing or broken.
    """

    paths: tuple[str, ...]
    backup: bool


def is_of_files(given: Mapping[str, str]) -> bool:
    """Return whether the options name files rather than a cluster."""
    return any(name.lower() in {"path", "paths"} for name in given)


def progress_options(given: Mapping[str, str]) -> ProgressOptions:
    """Parse the options of reading a cluster; names match in any case.

    Raises:
        ConfigurationError: an option is unknown, missing or unusable; the error says what to give.
    """
    if any(name.lower() == "backup" for name in given):
        raise ConfigurationError(
            "option 'backup' is for offset files: give their path too, or leave it out",
            option="backup",
        )
    values = known(given, PROGRESS_OPTIONS)
    if "group" in values and "groups" in values:
        raise ConfigurationError("options 'group' and 'groups' mean the same: give one of them")
    named = "groups" if "groups" in values else "group"
    pattern = values.get("groupPattern")
    if pattern is not None:
        _check_pattern(pattern)
    connect = connect_settings(values)
    return ProgressOptions(
        **connect,
        groups=_names(values, named, "a consumer group"),
        group_pattern=pattern,
        topics=_names(values, "topic", "a topic"),
        interval_ms=_interval(values.get("interval")),
        owners=flag(values, "owners", True),
    )


def file_options(given: Mapping[str, str]) -> FileOptions:
    """Parse the options of reading offset files; names match in any case.

    Raises:
        ConfigurationError: an option does not apply to files, or there is no path.
    """
    lower = {name.lower(): value for name, value in given.items()}
    for name in PROGRESS_OPTIONS:
        if name.lower() in lower:
            raise ConfigurationError(
                f"option {name!r} is for a cluster, but a path names offset files: give one or the "
                f"other. Options of files: {', '.join(FILE_OPTIONS)}",
                option=name,
            )
    # ``load`` with several paths makes a list of them.
    values = known({k: v for k, v in given.items() if k.lower() != "paths"}, FILE_OPTIONS)
    paths = [lower["path"]] if lower.get("path", "").strip() else []
    if "paths" in lower:
        paths += _listed(lower["paths"])
    if not paths:
        raise bad("path", lower.get("path", ""), "the path of consumerOffset.json or offsets.json")
    return FileOptions(tuple(dict.fromkeys(paths)), flag(values, "backup", False))


def _listed(text: str) -> list[str]:
    """Return the paths Spark passes when ``load`` is given several."""
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, list):
        raise bad("paths", text, "the paths to load(), as a list")
    return [str(path) for path in found]


def _names(values: Mapping[str, str], option: str, what: str) -> tuple[str, ...] | None:
    text = values.get(option)
    if text is None:
        return None
    found = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    if not found:
        raise bad(option, text, f"{what}, or several separated by commas")
    return found


def _check_pattern(text: str) -> None:
    try:
        re.compile(text)
    except (re.error, OverflowError) as error:
        raise bad(
            "groupPattern", text, f"a regular expression of whole group names ({error})"
        ) from None


def _interval(text: str | None) -> int:
    if text is None:
        return INTERVAL_MS
    length = length_ms(text)
    if not length:
        raise bad("interval", text, LENGTH_ACCEPTED)
    return length
