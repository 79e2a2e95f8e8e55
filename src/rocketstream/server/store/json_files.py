"""Small text files that are replaced as a whole: upstream's config files, without its gap.

Law: text by name; what the text means is the caller's business.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from rocketstream.errors import StoreDamagedError, StoreError
from rocketstream.server.store.files import Files
from rocketstream.server.store.mapped_file import no_room

T = TypeVar("T")


class ConfigFile:
    """A text file ``<name>`` with the version before it as ``<name>.bak`` (C-310, C-329).

    Upstream deletes the file before it renames the new one into place; here the rename replaces
    it, so there is always a whole file under the name.

    Args:
        has_backup: whether the version before is kept, and good enough where the file is damaged.
    """

    def __init__(self, path: Path, files: Files | None = None, *, has_backup: bool = True) -> None:
        self.path = path
        self.backup_path = path.with_name(path.name + ".bak")
        self._temporary_path = path.with_name(path.name + ".tmp")
        self._files = files or Files()
        self._has_backup = has_backup
        self._lock = threading.Lock()

    def save(self, text: str) -> None:
        """Replace the text; what was there becomes the backup. On the disk when this returns.

        Raises:
            DiskFullError: no room; the old text stays.
            StoreError: the file cannot be written; the old text stays.
        """
        data = text.encode()
        with self._lock:
            try:
                self._files.make_directory(self.path.parent)
                self._files.write_bytes(self._temporary_path, data)
                if self._has_backup:
                    self._keep_old()
                self._files.replace(self._temporary_path, self.path)
                self._files.sync_directory(self.path.parent)
            except OSError as error:
                raise no_room(self.path, len(data), error) from error

    def _keep_old(self) -> None:
        old = self._files.read_bytes(self.path) if self._files.exists(self.path) else b""
        if old.strip():
            self._replace(self.backup_path, old)

    def _replace(self, path: Path, data: bytes) -> None:
        building = path.with_name(path.name + ".tmp")
        self._files.write_bytes(building, data)
        self._files.replace(building, path)

    def remove(self) -> None:
        """Remove the file, which may be missing. Gone from the disk when this returns.

        Raises:
            StoreError: it cannot be removed; it may be there after a power failure.
        """
        with self._lock:
            try:
                self._files.unlink(self.path, missing_ok=True)
                self._files.sync_directory(self.path.parent)
            except OSError as error:
                raise StoreError(f"{self.path} cannot be removed: {error}") from error

    def load(self, parse: Callable[[str], T]) -> T | None:
        """Return the parsed text, of the backup when the file is missing, empty or unreadable.

        Args:
            parse: turns the text into a value; whatever it raises means: broken.

        Returns:
            None when there is neither a file nor a backup.

        Raises:
            StoreDamagedError: something is there and neither can be used.
        """
        problems = []
        for path in (self.path, self.backup_path) if self._has_backup else (self.path,):
            try:
                text = self._files.read_text(path)
                if text.strip():
                    return parse(text)
                problems.append(f"{path} is empty")
            except FileNotFoundError:
                continue
            except Exception as error:  # a parser may raise anything on broken text
                problems.append(f"{path}: {error}")
        if not problems:
            return None
        hint = "restore one of them, or move both away to start empty"
        raise StoreDamagedError(
            f"{'; '.join(problems)}{f': {hint}' if self._has_backup else ''}",
            path=str(self.path),
        )
