"""Spark's log of the files of a landed table, ``_spark_metadata``, and a compaction in it.

Pure: names, entries and texts in, the same out. Spark writes ``N`` with the files of micro-batch N,
and every tenth time ``N.compact`` with all files up to N: a table is the newest of those and what
follows it. Replacing that one file replaces any of the files it lists, at once for every reader.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from rocketstream.errors import ConfigurationError

LOG: Final = "_spark_metadata"
FILES_MIN: Final = 5
"""Fewer small files of a directory are left as they are: a file that grows is not written anew for
each little one."""
_NAME: Final = re.compile(r"(\d+)(\.compact)?")
_VERSION: Final = "v1"
Entries = dict[str, dict[str, Any]]
"""The files of a log by their paths, each as the log has it."""


@dataclass(frozen=True, slots=True)
class Position:
    """How far the log is: its newest list of all files, its newest micro-batch, and how many
    micro-batches lie between two lists.
    """

    listed: int
    last: int
    every: int

    @property
    def name(self) -> str:
        """The name of the newest list."""
        return f"{self.listed}.compact"

    @property
    def lists_next(self) -> bool:
        """Whether Spark may be at work on the next list, from what it read of this one."""
        return (self.last + 2) % self.every == 0


def position(names: Iterable[str]) -> Position | None:
    """Return how far a log is by the names of its files; None before its first list."""
    found = [match for name in names if (match := _NAME.fullmatch(name))]
    lists = sorted(int(match[1]) for match in found if match[2])
    if not lists:
        return None
    every = lists[-1] - lists[-2] if len(lists) > 1 else lists[-1] + 1
    return Position(lists[-1], max(int(match[1]) for match in found), every)


def read_list(text: str | None) -> Entries:
    """Return the entries of a list.

    Raises
    ------
    ConfigurationError
        It is of a version this module does not know.
    """
    version, *lines = (text or "").splitlines() or [""]
    entries = [json.loads(line) for line in lines]
    if version != _VERSION or any(entry["action"] != "add" for entry in entries):
        raise ConfigurationError(
            f"the table's {LOG} is of a version that is not known here ({version!r}), so nothing "
            "of it is changed"
        )
    return {str(entry["path"]): entry for entry in entries}


def list_text(entries: Entries) -> str:
    """Return a list as Spark writes it."""
    lines = [json.dumps(e, separators=(",", ":"), ensure_ascii=False) for e in entries.values()]
    return "\n".join([_VERSION, *lines])


def groups(entries: Entries, size: int) -> list[list[dict[str, Any]]]:
    """Return the small files of each directory, those together that make one of up to ``size``."""
    found: list[list[dict[str, Any]]] = []
    open_groups: dict[str, list[dict[str, Any]]] = {}
    for path, entry in entries.items():
        if entry["size"] >= size * 3 // 4:
            continue
        group = open_groups.setdefault(path.rpartition("/")[0], [])
        if sum(each["size"] for each in group) + entry["size"] > size:
            found.append(group[:])
            group.clear()
        group.append(entry)
    return [group for group in [*found, *open_groups.values()] if len(group) >= FILES_MIN]


@dataclass(frozen=True, slots=True)
class Rewrite:
    """Files that are, or are to be, replaced by others with the same rows.

    Attributes
    ----------
    sources : tuple of str
        Paths of the files that are replaced.
    merged : tuple of mapping
        Entries of the files in their place.
    over : int or None
        The number of the list in which they were replaced; None as long as they are not.
    at : int or None
        When that was, in ms since 1970.
    """

    sources: tuple[str, ...]
    merged: tuple[Mapping[str, Any], ...]
    over: int | None = None
    at: int | None = None


def merged_entry(group: Sequence[Mapping[str, Any]], name: str, size: int) -> dict[str, Any]:
    """Return the entry of a file for those of a group, as old as the newest of them."""
    path = f"{group[0]['path'].rpartition('/')[0]}/{name}"
    newest = max(entry["modificationTime"] for entry in group)
    return {**group[0], "path": path, "size": size, "modificationTime": newest}


def replaced(entries: Entries, rewrites: Mapping[str, Rewrite]) -> tuple[Entries, list[str]]:
    """Return the entries after those rewrites whose sources are all there, and their names."""
    found, names = dict(entries), []
    for name, rewrite in rewrites.items():
        if all(path in found for path in rewrite.sources):
            for path in rewrite.sources:
                del found[path]
            found |= {str(entry["path"]): dict(entry) for entry in rewrite.merged}
            names.append(name)
    return found, names
