"""Small text files that are replaced as a whole: upstream's config files, but never missing.

Law: text by name; only the caller knows what the text means.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from rocketstream.errors import StoreDamagedError, StoreError
from rocketstream.server.store.files import Files
from rocketstream.server.store.mapped_file import FULL, no_room

_log = logging.getLogger(__name__)
T = TypeVar("T")


class ConfigFile:
    """A text file ``<name>`` with its former version as ``<name>.bak`` (C-310, C-329).

    Upstream deletes the file before it renames the new one into place; here the rename replaces
    it, so there is always a whole file under the name.

    Args:
        has_backup: whether the former version is kept, and used when the file is damaged.
    """

    def __init__(self, path: Path, files: Files | None = None, *, has_backup: bool = True) -> None:
        self.path = path
        self.backup_path = path.with_name(path.name + ".bak")
        self._temporary_path = path.with_name(path.name + ".tmp")
        self._files = files or Files()
        self._has_backup = has_backup
        self._lock = threading.Lock()
        self._is_broken = False

    def save(self, text: str) -> None:
        """Replace the text; the former one becomes the backup.

        The text is on the disk when this returns.

        A text that :meth:`load` found broken does not become the backup: a crash here would leave
        two useless files.

        Raises:
            DiskFullError: no room; the old text stays.
            StoreError: the file cannot be written; the old text stays.
        """
        data = text.encode()
        with self._lock:
            try:
                self._files.make_directory(self.path.parent)
                self._files.write_bytes(self._temporary_path, data)
                old = self._worth_keeping() if self._has_backup else b""
                if old.strip():
                    self._replace(self.backup_path, old)
                self._files.replace(self._temporary_path, self.path)
                self._is_broken = False
                self._files.sync_directory(self.path.parent)
            except OSError as error:
                raise no_room(self.path, len(data), error) from error

    def _worth_keeping(self) -> bytes:
        if self._is_broken:
            return b""
        try:
            return self._files.read_bytes(self.path)
        except FileNotFoundError:
            return b""
        except OSError as error:
            # The new text is worth more than a backup of the former one.
            _log.warning("%s cannot be read, and is not kept as backup: %s", self.path, error)
            return b""

    def _replace(self, path: Path, data: bytes) -> None:
        building = path.with_name(path.name + ".tmp")
        self._files.write_bytes(building, data)
        self._files.replace(building, path)

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

    def load(self, parse: Callable[[str], T]) -> T | None:
        """Return the parsed text; that of the backup when the file is missing, empty or broken.

        An existing file that cannot be read from the disk does not make the backup be used (a
        correction of C-329): the backup is older, and the newer text would be back at the next
        start.

        Args:
            parse: turns the text into a value; any error it raises means that the text is broken.

        Returns:
            None when there is neither a file nor a backup.

        Raises:
            StoreDamagedError: a file or backup exists, but neither can be used.
            StoreError: the file, or the backup if needed, cannot be read from the disk.
        """
        problems: list[str] = []
        for path in (self.path, self.backup_path) if self._has_backup else (self.path,):
            try:
                data = self._files.read_bytes(path)
            except FileNotFoundError:
                continue
            except OSError as error:
                raise self._unreadable(path, problems, error) from error
            try:
                text = data.decode()
                if text.strip():
                    value = parse(text)
                    self._taken(path, problems)
                    return value
                problems.append(f"{path} is empty")
            except Exception as error:  # a parser may raise anything on broken text
                problems.append(f"{path}: {error}")
        if not problems:
            return None
        hint = "restore one of them, or move both away to start empty"
        raise StoreDamagedError(
            f"{'; '.join(problems)}{f': {hint}' if self._has_backup else ''}",
            path=str(self.path),
        )

    def _taken(self, path: Path, problems: list[str]) -> None:
        """Note which of the two was used; a broken file must not replace the backup."""
        self._is_broken = bool(problems)
        if path == self.backup_path:
            problem = problems[0] if problems else f"{self.path} is missing"
            _log.warning("%s: its backup %s is taken, which is older", problem, path)

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
