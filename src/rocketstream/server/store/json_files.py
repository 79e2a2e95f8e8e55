"""Small text files that are replaced as a whole: upstream's config files, but never missing.

A file has a checksum; only the caller knows what its text means.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

from rocketstream.errors import RocketMQError, StoreDamagedError, StoreError
from rocketstream.protocol.bodies.files import is_sealed, sealed, unsealed
from rocketstream.server.store.files import Files
from rocketstream.server.store.mapped_file import FULL, no_room

_log = logging.getLogger(__name__)
T = TypeVar("T")


class ConfigFile(Generic[T]):
    """A text file ``<name>`` and its copy ``<name>.bak``, used when the file is broken (C-329).

    Upstream deletes the file before it renames the new one into place; here the rename replaces
    it, so there is always a whole file under the name. Upstream's backup is the text that stood
    there before (C-310), read from a file that may be damaged by then, and it brings back an old
    state.

    Args:
        parse: turns the text into a value; any error it raises means that the text is broken.
        has_backup: whether there is a copy.
    """

    def __init__(
        self,
        path: Path,
        parse: Callable[[str], T],
        files: Files | None = None,
        *,
        has_backup: bool = True,
    ) -> None:
        self.path = path
        self.backup_path: Path = path.with_name(path.name + ".bak")
        self.broken_path: Path = path.with_name(path.name + ".broken")
        self._temporary_path = path.with_name(path.name + ".tmp")
        self._parse = parse
        self._files = files or Files()
        self._has_backup = has_backup
        self._lock = threading.Lock()
        self.needs_saving: bool = False
        """The loaded text is not in the file, or stands there without a checksum."""

    def save(self, text: str) -> None:
        """Replace the text and its backup; it is on the disk when this returns.

        Raises:
            DiskFullError: no room; the old text stays.
            StoreError: the file cannot be written; the old text stays.
        """
        data = sealed(self.path.name, text.encode())
        with self._lock:
            try:
                self._files.make_directory(self.path.parent)
                self._files.write_bytes(self._temporary_path, data)
                if self._has_backup:
                    building = self.backup_path.with_name(self.backup_path.name + ".tmp")
                    self._files.write_bytes(building, data)
                    self._files.replace(building, self.backup_path)
                self._files.replace(self._temporary_path, self.path)
                self.needs_saving = False
                self._files.sync_directory(self.path.parent)
            except OSError as error:
                raise no_room(self.path, len(data), error) from error

    def _parsed(self, data: bytes) -> T:
        return self._parse(unsealed(self.path.name, data).decode())

    def remove(self) -> None:
        """Remove the file, which may be missing. The file is gone from the disk when this returns.

        Raises:
            StoreError: it cannot be removed; after a power failure it may still exist.
        """
        with self._lock:
            try:
                self._files.unlink(self.path, missing_ok=True)
                self._files.sync_directory(self.path.parent)
            except OSError as error:
                raise StoreError(f"{self.path} cannot be removed: {error}") from error

    def load(self) -> T | None:
        """Return the parsed text; that of the backup when the file is missing, empty or broken.

        A broken text is kept as ``<name>.broken``: it may have been edited by hand.

        An existing file that cannot be read from the disk does not make the backup be used (a
        correction of C-329): the backup is older, and the newer text would be back at the next
        start.

        Returns:
            None when there is neither a file nor a backup.

        Raises:
            StoreDamagedError: a file or backup exists, but neither can be used.
            StoreError: the file, or the backup if needed, cannot be read from the disk.
        """
        problems: list[str] = []
        broken = b""
        for path in (self.path, self.backup_path) if self._has_backup else (self.path,):
            try:
                data = self._files.read_bytes(path)
            except FileNotFoundError:
                continue
            except OSError as error:
                raise self._unreadable(path, problems, error) from error
            if not data.strip():
                problems.append(f"{path} is empty")
                continue
            try:
                value = self._parsed(data)
            except Exception as error:  # a parser may raise anything on broken text
                why = error.message if isinstance(error, RocketMQError) else error
                problems.append(f"{path} is broken: {why}")
                broken = broken or data
                continue
            self.needs_saving = path != self.path or not is_sealed(data)
            if path == self.backup_path:
                self._instead(problems, broken)
            return value
        if not problems:
            return None
        hint = "restore one of them, or move both away to start empty"
        raise StoreDamagedError(
            f"{'; '.join(problems)}{f': {hint}' if self._has_backup else ''}",
            path=str(self.path),
        )

    def _instead(self, problems: list[str], broken: bytes) -> None:
        """Log that the backup was taken, and keep the broken file."""
        kept = ""
        if broken.strip():
            try:
                self._files.write_bytes(self.broken_path, broken)
                kept = f"; the broken text is kept as {self.broken_path.name}"
            except OSError as error:
                _log.warning("%s cannot be written: %s", self.broken_path, error)
        problem = problems[0] if problems else f"{self.path} is missing"
        _log.warning(
            "%s: its backup %s is taken, which may be older%s", problem, self.backup_path, kept
        )

    def _unreadable(self, path: Path, problems: list[str], error: OSError) -> StoreError:
        if error.errno in FULL:
            return no_room(path, 0, error)
        text = "; ".join([*problems, f"{path} cannot be read: {error}"])
        way_out = f"move it away to go on with {self.backup_path}, which is older"
        if not self._has_backup:
            way_out = "move it away to start without"
        elif path == self.backup_path:
            way_out = "move both away to start empty"
        return StoreError(f"{text}: start again when it can be read, or {way_out}", path=str(path))
