"""Offsets in a file of this machine, for broadcasting: upstream's path and upstream's text.

Law: one file and its copy; replaced as a whole, so a reader never finds half of one, and with a
checksum, so damage is found (C-304 to C-312, with C-306, C-310 and C-574 put right).
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Collection, Mapping
from pathlib import Path
from weakref import WeakValueDictionary

from rocketstream._util.home import home_directory
from rocketstream.client.consumer.offsets.store import (
    NO_OFFSET,
    UNREADABLE,
    OffsetStore,
    ReadOffsetType,
    of_topic,
)
from rocketstream.errors import ConfigurationError, RemoteProtocolError
from rocketstream.limits import FILE_NAME_BYTES_MAX
from rocketstream.model import MessageQueue
from rocketstream.protocol.bodies import OffsetSerializeWrapper
from rocketstream.protocol.bodies.files import is_sealed, sealed, unsealed

logger: logging.Logger = logging.getLogger("rocketstream.client")

DIRECTORY_VARIABLE = "ROCKETMQ_LOCAL_OFFSET_STORE_DIR"
DIRECTORY_NAME = ".rocketmq_offsets"
FILE_NAME = "offsets.json"
_NOT_IN_WINDOWS_NAMES = str.maketrans(dict.fromkeys('<>:"/\\|?*', "_"))

_NOT_IN_NAMES = frozenset("/\0")

_locks_guard = threading.Lock()
_locks: WeakValueDictionary[Path, threading.Lock] = WeakValueDictionary()


def _begin_anew_in_child() -> None:
    """Forget the parent's locks: its threads, one of which may hold one, are not here."""
    global _locks_guard, _locks
    _locks_guard = threading.Lock()
    _locks = WeakValueDictionary()


if hasattr(os, "register_at_fork"):  # not on Windows, where nothing forks
    os.register_at_fork(after_in_child=_begin_anew_in_child)


def offsets_directory() -> Path:
    """Return where offset files go: ROCKETMQ_LOCAL_OFFSET_STORE_DIR, or below the home."""
    given = os.environ.get(DIRECTORY_VARIABLE, "").strip()
    return Path(given) if given else home_directory() / DIRECTORY_NAME


def offsets_path(directory: Path, client_id: str, group: str) -> Path:
    """Return ``<directory>/<client id>/<group>/offsets.json`` (C-304).

    Raises:
        ConfigurationError: id or group cannot be the name of a directory, and might lead elsewhere.
    """
    if os.name == "nt":
        client_id = client_id.translate(_NOT_IN_WINDOWS_NAMES)
        group = group.translate(_NOT_IN_WINDOWS_NAMES)
    for what, name in (("client id", client_id), ("group", group)):
        length = len(os.fsencode(name))
        if (
            not name.strip(" .")
            or not _NOT_IN_NAMES.isdisjoint(name)
            or length > FILE_NAME_BYTES_MAX
        ):
            raise ConfigurationError(
                f"{what} {name!r:.300} cannot be the name of a directory, which local offsets are "
                "kept in: give a client_ip, instance_name, unit_name and group of at most "
                f"{FILE_NAME_BYTES_MAX} bytes together, without '/'",
                name=name,
            )
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
        self.path: Path = offsets_path(directory or offsets_directory(), client_id, group)
        self.backup_path: Path = self.path.with_name(FILE_NAME + ".bak")
        self._group = group
        self._offsets: dict[MessageQueue, int] = {}
        self._written: dict[MessageQueue, int] = {}
        self._needs_writing = False
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
        noted = {mq: self._offsets.get(mq, NO_OFFSET) for mq in message_queues}
        mine = {mq: offset for mq, offset in noted.items() if offset >= 0}
        changed = any(self._written.get(mq) != offset for mq, offset in mine.items())
        if not mine or (not changed and not self._needs_writing and self.path.exists()):
            return
        with self._file_lock:
            try:
                table = self._read()
                self._warn_of_others(table, mine)
                table.update(mine)
                self._write(sealed(FILE_NAME, OffsetSerializeWrapper(table).encode(pretty=True)))
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
        """Return the file's offsets, the backup's when it is missing or broken.

        With neither, those this store knows were in it: an empty table at the start.

        Raises:
            ConfigurationError: the disk does not give the file, nothing of what is there can be
                used, or it is that of another group or client.
        """
        self._check_spelling()
        problems: list[str] = []
        for path in (self.path, self.backup_path):
            try:
                data = path.read_bytes()
            except FileNotFoundError:
                continue
            except OSError as error:
                raise self._unreadable(path, problems, error) from error
            try:
                found = _parsed(data)
            except RemoteProtocolError as error:
                problems.append(f"{path} is broken: {error.message}")
                continue
            self._needs_writing = path != self.path or not is_sealed(data)
            if path == self.backup_path:
                why = problems[0] if problems else f"{self.path} is missing"
                logger.warning("%s: taking %s, which may be older", why, path)
            return found
        self._needs_writing = True
        if problems and not self._written:
            raise ConfigurationError(
                f"readLocalOffset Exception: {'; '.join(problems)}: restore one of {self.path} and "
                f"{self.backup_path}, or remove both to begin where consume_from_where says",
                path=str(self.path),
            )
        if problems or self._written:
            why = "; ".join(problems) or f"{self.path} and its backup are missing"
            logger.warning("%s: what was in it before is written again", why)
        return dict(self._written)

    def _unreadable(self, path: Path, problems: list[str], error: OSError) -> ConfigurationError:
        # The file's offsets are newer than the backup's, and may be there again in a moment.
        text = "; ".join([*problems, f"{path} cannot be read ({error})"])
        way_out = f"move it away to go on with {self.backup_path}, which may be older"
        if path == self.backup_path:
            way_out = "remove both to begin where consume_from_where says"
        return ConfigurationError(
            f"readLocalOffset Exception: {text}; start again when it can be read, or {way_out}",
            path=str(path),
        )

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
        self.path.parent.mkdir(parents=True, exist_ok=True)
        fresh = self.path.with_name(f"{FILE_NAME}.{os.getpid()}.tmp")
        copy = self.path.with_name(f"{FILE_NAME}.{os.getpid()}.bak.tmp")
        try:
            _write_through(fresh, data)
            _write_through(copy, data)
            os.replace(copy, self.backup_path)
            os.replace(fresh, self.path)
            self._needs_writing = False
        finally:
            fresh.unlink(missing_ok=True)
            copy.unlink(missing_ok=True)


def _names(directory: Path) -> list[str]:
    """Return the names in a directory as they were written; none where they are not shown."""
    try:
        return os.listdir(directory)
    except OSError:
        return []


def _parsed(data: bytes) -> dict[MessageQueue, int]:
    if not data.strip():
        raise RemoteProtocolError("it is empty")
    text = unsealed(FILE_NAME, data)
    return dict(OffsetSerializeWrapper.decode_file(text).offset_table)


def _write_through(path: Path, data: bytes) -> None:
    with path.open("wb") as target:
        target.write(data)
        target.flush()
        os.fsync(target.fileno())
