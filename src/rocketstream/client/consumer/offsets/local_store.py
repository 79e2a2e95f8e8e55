"""Offsets in a file of this machine, for broadcasting: upstream's path and upstream's text.

Law: one file and its backup; replaced as a whole, so a reader never finds half of one (C-304 to
C-312, with C-310 and C-574 put right).
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Collection, Mapping
from pathlib import Path

from rocketstream._util.home import home_directory
from rocketstream.client.consumer.offsets.store import (
    NO_OFFSET,
    UNREADABLE,
    OffsetStore,
    ReadOffsetType,
    of_topic,
)
from rocketstream.errors import ConfigurationError, RemoteProtocolError
from rocketstream.model import MessageQueue
from rocketstream.protocol.bodies import OffsetSerializeWrapper

logger = logging.getLogger("rocketstream.client")

DIRECTORY_VARIABLE = "ROCKETMQ_LOCAL_OFFSET_STORE_DIR"
DIRECTORY_NAME = ".rocketmq_offsets"
FILE_NAME = "offsets.json"
_NOT_IN_WINDOWS_NAMES = str.maketrans(dict.fromkeys('<>:"/\\|?*', "_"))

_locks_guard = threading.Lock()
_locks: dict[Path, threading.Lock] = {}


def offsets_directory() -> Path:
    """Return where offset files go: ROCKETMQ_LOCAL_OFFSET_STORE_DIR, or below the home."""
    given = os.environ.get(DIRECTORY_VARIABLE, "").strip()
    return Path(given) if given else home_directory() / DIRECTORY_NAME


def offsets_path(directory: Path, client_id: str, group: str) -> Path:
    """Return ``<directory>/<client id>/<group>/offsets.json`` (C-304)."""
    if os.name == "nt":
        client_id = client_id.translate(_NOT_IN_WINDOWS_NAMES)
        group = group.translate(_NOT_IN_WINDOWS_NAMES)
    return directory / client_id / group / FILE_NAME


class LocalFileOffsetStore(OffsetStore):
    """The store of broadcasting consumers; files of the Java client are read and written.

    Args:
        client_id: of the consumer; another process with the same one shares the file, which ends
            in each undoing the other: give such processes instance names of their own.
        group: the consumer group.
        directory: where all clients' files are; None takes ROCKETMQ_LOCAL_OFFSET_STORE_DIR or
            ``.rocketmq_offsets`` in the home directory.
    """

    def __init__(self, client_id: str, group: str, directory: Path | None = None) -> None:
        self.path = offsets_path(directory or offsets_directory(), client_id, group)
        self.backup_path = self.path.with_name(FILE_NAME + ".bak")
        self._group = group
        self._offsets: dict[MessageQueue, int] = {}
        self._written: dict[MessageQueue, int] = {}
        self._is_whole = False
        # Stores of one file in one process take turns between reading, merging and writing (C-574).
        with _locks_guard:
            self._file_lock = _locks.setdefault(self.path, threading.Lock())

    def __repr__(self) -> str:
        return f"LocalFileOffsetStore(group={self._group!r}, path={str(self.path)!r})"

    def load(self) -> None:
        """Note every offset of the file, or of its backup when it is missing or broken (C-306).

        Raises:
            ConfigurationError: something is there and cannot be read, or belongs to a group whose
                name differs only in case, on a disk that does not tell them apart.
        """
        with self._file_lock:
            offsets = self._read()
        self._offsets.update(offsets)
        self._written = dict(offsets)
        for mq, offset in offsets.items():
            logger.info("group %s: local offset of %s is %d", self._group, mq, offset)

    def update_offset(
        self, message_queue: MessageQueue, offset: int, increase_only: bool = True
    ) -> None:
        """Note an offset (C-300)."""
        known = self._offsets.get(message_queue)
        if known is None or offset > known or not increase_only:
            self._offsets[message_queue] = offset

    def read_offset(self, message_queue: MessageQueue, read_type: ReadOffsetType) -> int:
        """Return an offset, -1 when there is none, -2 when what is there cannot be read.

        Upstream says -1 of both (C-307), and a queue may then begin at its end (C-561).
        """
        if read_type is not ReadOffsetType.READ_FROM_STORE:
            noted = self._offsets.get(message_queue)
            if noted is not None or read_type is ReadOffsetType.READ_FROM_MEMORY:
                return NO_OFFSET if noted is None else noted
        try:
            with self._file_lock:
                stored = self._read().get(message_queue)
        except ConfigurationError as error:
            logger.warning("%s", error)
            return UNREADABLE
        if stored is None:
            return NO_OFFSET
        self.update_offset(message_queue, stored)  # never below what was consumed since (C-571)
        return stored

    def persist_all(self, message_queues: Collection[MessageQueue]) -> None:
        """Write what changed of these queues; the file keeps what it has of others (C-308)."""
        mine = {
            mq: offset for mq in message_queues if (offset := self._offsets.get(mq)) is not None
        }
        changed = any(self._written.get(mq) != offset for mq, offset in mine.items())
        if not changed and self.path.exists():
            return
        if not mine:
            return
        with self._file_lock:
            try:
                table = self._read()
                self._warn_of_others(table, mine)
                table.update(mine)
                self._write(OffsetSerializeWrapper(table).encode(pretty=True))
            except (OSError, ConfigurationError) as error:
                logger.warning("offsets of group %s were not stored: %s", self._group, error)
            else:
                self._written = table

    def remove_offset(self, message_queue: MessageQueue) -> None:
        """Forget what is noted of a queue; the file keeps it (C-309)."""
        self._offsets.pop(message_queue, None)

    def clone_offset_table(self, topic: str | None = None) -> Mapping[MessageQueue, int]:
        """Return what is noted of a topic, of all when it is None or blank (C-309)."""
        return of_topic(dict(self._offsets), topic)

    # --- the file ---------------------------------------------------------------------------------

    def _read(self) -> dict[MessageQueue, int]:
        """Return the file's offsets, the backup's when it is missing or broken, else none.

        Raises:
            ConfigurationError: the disk does not give the file, the backup is needed and cannot be
                read, or the file is that of another group or client.
        """
        self._check_spelling()
        try:
            found = _parsed(self.path)
        except RemoteProtocolError as error:
            logger.warning("%s is broken, taking the backup, which is older: %s", self.path, error)
            found = None
        except OSError as error:
            # Its offsets are newer than the backup's, and may be there again in a moment.
            raise ConfigurationError(
                f"readLocalOffset Exception: {self.path} cannot be read ({error}); start again "
                f"when it can be read, or move it away to go on with {self.backup_path}, which "
                "is older",
                path=str(self.path),
            ) from error
        self._is_whole = found is not None
        if found is not None:
            return found
        try:
            return _parsed(self.backup_path) or {}
        except (OSError, RemoteProtocolError) as error:
            raise ConfigurationError(
                f"readLocalOffset Exception: neither {self.path} nor {self.backup_path} can be "
                f"read ({error}); repair or remove both, the offsets are then lost",
                path=str(self.path),
            ) from error

    def _check_spelling(self) -> None:
        """Refuse the file of a group or client whose name differs only in case.

        A disk that does not tell them apart, as most of macOS and Windows, has one file for both,
        and one would begin where the other is.
        """
        for place in (self.path.parent, self.path.parent.parent):
            if not place.exists():
                continue
            names = _names(place.parent)
            alike = [name for name in names if name.casefold() == place.name.casefold()]
            if alike and place.name not in alike:
                raise ConfigurationError(
                    f"{place} is that of {alike[0]!r}, which differs from {place.name!r} only in "
                    "case, and the disk does not tell them apart: choose another name, or set "
                    f"{DIRECTORY_VARIABLE} to a directory for each",
                    path=str(place),
                )

    def _warn_of_others(
        self, table: Mapping[MessageQueue, int], mine: Mapping[MessageQueue, int]
    ) -> None:
        foreign = [mq for mq in mine if mq in self._written and table.get(mq) != self._written[mq]]
        if foreign:
            logger.warning(
                "%s was changed by another process (%s); consumers with one client id overwrite "
                "each other's offsets, give each process an instance_name of its own",
                self.path, foreign[0],
            )  # fmt: skip

    def _write(self, data: bytes) -> None:
        # A broken file is not worth the backup: after a crash half-way neither could be used.
        self.path.parent.mkdir(parents=True, exist_ok=True)
        fresh = self.path.with_name(f"{FILE_NAME}.{os.getpid()}.tmp")
        saved = self.path.with_name(f"{FILE_NAME}.{os.getpid()}.bak.tmp")
        try:
            _write_through(fresh, data)
            if self._is_whole:
                _write_through(saved, self.path.read_bytes())
                os.replace(saved, self.backup_path)
            os.replace(fresh, self.path)
        finally:
            fresh.unlink(missing_ok=True)
            saved.unlink(missing_ok=True)


def _names(directory: Path) -> list[str]:
    """Return the names in a directory as they were written; none where they are not shown."""
    try:
        return os.listdir(directory)
    except OSError:
        return []


def _parsed(path: Path) -> dict[MessageQueue, int] | None:
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    if not data.strip():
        return None
    return dict(OffsetSerializeWrapper.decode(data).offset_table)


def _write_through(path: Path, data: bytes) -> None:
    with path.open("wb") as target:
        target.write(data)
        target.flush()
        os.fsync(target.fileno())
