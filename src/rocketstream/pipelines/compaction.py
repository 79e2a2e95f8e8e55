"""Fewer, greater files for a table that Spark has landed in, beside the landing and its readers.

Law: Spark's log is the truth. Files are replaced in it by one rename, everything before can be
undone, and nothing is removed as long as the log, a landing or a reader may still want it.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote, urlsplit

from rocketstream._util.clock import SYSTEM_CLOCK
from rocketstream.errors import ConfigurationError, SparkQueryError
from rocketstream.pipelines.ingest import spark_errors
from rocketstream.pipelines.places import LocalPlace, Place, alone, place_of
from rocketstream.pipelines.sink_log import (
    LOG,
    Entries,
    Position,
    Rewrite,
    groups,
    list_text,
    merged_entry,
    position,
    read_list,
    replaced,
)
from rocketstream.pipelines.targets import Target

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_STATEMENTS: Final = {
    "delta": "in Spark SQL: OPTIMIZE delta.`PATH`",
    "iceberg": "in Spark SQL: CALL CATALOG.system.rewrite_data_files('DB.TABLE')",
}
"""Tables that are compacted by a statement of their own."""
_REPLACING: Final = ("hdfs", "viewfs", "s3a")
"""Where, besides this machine, a file takes another one's place at once."""
_WORK: Final = "_compaction"
_ROUND: Final = 64
"""Groups that are replaced together: the log is written once for all of them."""


@dataclass(frozen=True, slots=True)
class Compaction:
    """The counts of a run, or of a plan.

    Attributes
    ----------
    files : int
        Files that were replaced.
    bytes : int
        Their size.
    into : int
        Files that stand for them now.
    removed : int
        Files that an earlier run, or this one, had replaced, and which are removed.
    waiting : int
        Replaced files that stay for now.
    """

    files: int
    bytes: int
    into: int
    removed: int = 0
    waiting: int = 0


def check_compactable(target: Target) -> None:
    """Refuse a target whose files are not listed by Spark's log, as far as is known without Spark.

    Raises
    ------
    ConfigurationError
        It is of another kind, has no log on this machine, or is on a file system that cannot
        replace a file at once.
    """
    if target.kind not in ("parquet", "orc"):
        how = _STATEMENTS.get(target.kind, "it has no files of its own")
        raise ConfigurationError(f"{target.kind} is not compacted here; {how}", kind=target.kind)
    scheme = urlsplit(target.place).scheme
    if target.local is None and scheme not in _REPLACING:
        raise ConfigurationError(
            f"{scheme}:// is not known to replace a file at once, which is how a compaction "
            f"becomes visible; accepted are paths of this machine and {', '.join(_REPLACING)}",
            path=target.place,
        )
    if target.local is not None:
        _position(LocalPlace(target.local))


def plan_compaction(
    session: SparkSession | None, target: Target, *, size: int = 128 << 20
) -> Compaction:
    """Return the figures of a run; reads Spark's log alone, on this machine without a session."""
    root = place_of(target.place, session)
    assert root is not None
    at = _position(root)
    found = [] if at is None else groups(read_list(root.under(LOG).read(at.name)), size)
    return Compaction(sum(map(len, found)), _bytes(found), len(found))


def compact(
    session: SparkSession,
    target: Target,
    *,
    size: int = 128 << 20,
    keep_ms: int = 3_600_000,
    place: Place | None = None,
    now_ms: Callable[[], int] = SYSTEM_CLOCK.now_ms,
) -> Compaction:
    """Compact a table; a run that was killed is finished, or undone, first.

    Parameters
    ----------
    session : SparkSession
        From :func:`rocketstream.pipelines.local_session.start_session` or the caller's own.
    target : Target
        A table of Parquet or ORC that Spark's file sink has written.
    size : int
        How large, in bytes, the new files are at most.
    keep_ms : int
        How long replaced files stay for readers that have begun.
    place : Place, optional
        The table's directory.
    now_ms : callable, optional
        The clock.

    Raises
    ------
    ConfigurationError
        The table cannot be compacted, or is being compacted.
    SparkQueryError
        Spark could not read or write the files; the table is as it was.
    """
    check_compactable(target)
    root = place or place_of(target.place, session)
    assert root is not None
    if _position(root) is None:
        return Compaction(0, 0, 0)
    into = 0
    with alone(target.local, f"{target} is being compacted by another run"):
        table = _Table(session, target, root, now_ms)
        table.finish()
        found = groups(table.entries(), size)
        for first in range(0, len(found), _ROUND):
            into += table.rewrite(found[first : first + _ROUND])
        removed = table.remove_replaced(keep_ms)
        waiting = sum(len(rewrite.sources) for rewrite in table.pending.values())
    return Compaction(sum(map(len, found)), _bytes(found), into, removed, waiting)


def _bytes(found: Sequence[Sequence[Mapping[str, Any]]]) -> int:
    return sum(entry["size"] for group in found for entry in group)


def _position(place: Place) -> Position | None:
    names = place.under(LOG).names()
    if not names:
        raise ConfigurationError(
            f"{place} has no {LOG}, so it was not written by ingest; a table without it cannot be "
            "compacted while it is read",
            path=str(place),
        )
    return position(names)


class _Table:
    """The directory of a table, its log, and ``_compaction`` with what is not finished.

    There ``NAME`` has files that are not in their place yet, and ``NAME.json`` tells what they are
    to replace; it stays until the files they replaced are removed.

    Attributes:
        pending: the rewrites that are not finished, by their names, oldest first; as they are noted
            there, so that each is read once.
    """

    def __init__(
        self, session: SparkSession, target: Target, root: Place, now_ms: Callable[[], int]
    ) -> None:
        self.root = root
        self._session = session
        self._target = target
        self._log = root.under(LOG)
        self._work = root.under(_WORK)
        self._now_ms = now_ms
        names = sorted(n.removesuffix(".json") for n in self._work.names() if n.endswith(".json"))
        self.pending = {name: self._noted(name) for name in names}

    def entries(self, at: Position | None = None) -> Entries:
        """Return the files of a list; of the newest one where none is given."""
        return read_list(self._log.read((at or self._newest()).name))

    def _noted(self, name: str) -> Rewrite:
        made = json.loads(self._work.read(f"{name}.json") or "")
        return Rewrite(tuple(made["sources"]), tuple(made["merged"]), made["over"], made["at"])

    def _note(self, name: str, rewrite: Rewrite) -> None:
        self._work.write(f"{name}.json", json.dumps(dataclasses.asdict(rewrite)))
        self.pending[name] = rewrite

    def _forget(self, name: str) -> None:
        self._work.remove(f"{name}.json")
        del self.pending[name]

    def finish(self) -> None:
        """Go on with what a killed run has left, or undo it.

        What has all its files in place can be in the log, or was in it until a landing that had
        read the log before wrote the next list. Nothing else can, so it is undone.
        """
        for name, rewrite in list(self.pending.items()):
            there = [self._size(str(entry["path"])) == entry["size"] for entry in rewrite.merged]
            if rewrite.at is None and not all(there):
                self._undo(name, rewrite)
        for name in self._work.names():
            if not name.endswith(".json") and not name.startswith("."):
                self._work.remove(name)
        self._commit()

    def _undo(self, name: str, rewrite: Rewrite) -> None:
        for entry in rewrite.merged:
            self._remove(str(entry["path"]))
        self._forget(name)

    def rewrite(self, found: Sequence[Sequence[Mapping[str, Any]]]) -> int:
        """Replace groups of files; return how many files stand for them."""
        made = {}
        first = int(max(self.pending, default="0")) + 1
        for number, group in enumerate(found, first):
            name = f"{number:012}"
            made[name] = self._merged(name, group)
            self._note(name, made[name])
        for name, rewrite in made.items():
            for entry in rewrite.merged:
                place, file = self._of(str(entry["path"]))
                self._work.under(name).move(file, place)
        self._commit()
        for name in made:
            self._work.remove(name)
        return sum(len(rewrite.merged) for rewrite in made.values())

    def _merged(self, name: str, group: Sequence[Mapping[str, Any]]) -> Rewrite:
        """Write the rows of files of one directory to files that nobody sees yet."""
        kind, staged = self._target.kind, f"{self._target.place.rstrip('/')}/{_WORK}/{name}"
        sources = [str(entry["path"]) for entry in group]
        # Only what the files hold: values of partitions are in the names of directories, and a
        # session may have been told to pass over files it cannot read.
        reader = self._session.read.format(kind).options(
            mergeSchema=True, recursiveFileLookup=True, ignoreCorruptFiles=False,
            ignoreMissingFiles=False,
        )  # fmt: skip
        with spark_errors():
            rows = reader.load([unquote(path) for path in sources])
            writer = rows.coalesce(1).write.format(kind).options(**self._target.options)
            writer.mode("overwrite").save(staged)
            counts = reader.load(staged).count(), rows.count()
        if counts[0] != counts[1]:
            raise SparkQueryError(
                f"{counts[0]} of {counts[1]} rows came out of {len(sources)} files of "
                f"{self._target}; they stay as they are"
            )
        place = self._work.under(name)
        files = [file for file in place.names() if not file.startswith(("_", "."))]
        merged = [merged_entry(group, file, place.size(file) or 0) for file in files]
        return Rewrite(tuple(sources), tuple(merged))

    def _commit(self) -> None:
        """Replace in the log what is ready; again where a landing has written a new list since."""
        at = None
        while at != (newest := self._newest()):
            at = newest
            found, names = replaced(self.entries(at), self.pending)
            if names:
                self._log.write(at.name, list_text(found))
            for name, rewrite in list(self.pending.items()):
                listed = all(entry["path"] in found for entry in rewrite.merged)
                if name in names or (rewrite.at is None and listed):
                    done = dataclasses.replace(rewrite, over=at.listed, at=self._now_ms())
                    self._note(name, done)
                elif rewrite.at is None:  # a file it was to replace is not in the log any more
                    self._undo(name, rewrite)

    def remove_replaced(self, keep_ms: int) -> int:
        """Remove files that were replaced so long ago; return how many.

        A landing that read the list before they were replaced may be writing the next one, in
        which they are again. Once there is a next list, or none is being written, it is too late.
        """
        at = self._newest()
        entries, removed = self.entries(at), 0
        for name, rewrite in list(self.pending.items()):
            assert rewrite.at is not None
            assert rewrite.over is not None
            certain = at.listed > rewrite.over or not at.lists_next
            listed = any(path in entries for path in rewrite.sources)
            if certain and not listed and rewrite.at + keep_ms <= self._now_ms():
                for path in rewrite.sources:
                    self._remove(path)
                self._forget(name)
                removed += len(rewrite.sources)
        return removed

    def _newest(self) -> Position:
        found = _position(self.root)
        assert found is not None
        return found

    def _of(self, path: str) -> tuple[Place, str]:
        """Return the directory of a file of the log, and its name there."""
        local = self._target.local
        top = urlsplit(self._target.place).path if local is None else os.path.abspath(local)
        inner, found = unquote(urlsplit(path).path), f"{top.rstrip('/')}/"
        if not inner.startswith(found):
            raise ConfigurationError(
                f"the log of {self._target} names {unquote(path)}, which is not in it: a table "
                "that was moved is not found by Spark either",
                path=path,
            )
        folder, _, name = inner[len(found) :].rpartition("/")
        return self.root.under(folder) if folder else self.root, name

    def _size(self, path: str) -> int | None:
        place, name = self._of(path)
        return place.size(name)

    def _remove(self, path: str) -> None:
        place, name = self._of(path)
        place.remove(name)
