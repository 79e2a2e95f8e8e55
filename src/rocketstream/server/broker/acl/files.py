"""The files of accounts: plain_acl.yml and the files in the directory ``acl`` beside it.

Law: a file that cannot be used changes nothing: its former content counts until the file is mended.
Upstream: PlainPermissionManager.load, AclFileWatchService.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from rocketstream._util.workers import Workers
from rocketstream.errors import ConfigurationError, StoreError
from rocketstream.limits import ACL_FILE_BYTES_MAX
from rocketstream.server.broker.core.acl.accounts import (
    AclDocument,
    AclRules,
    join,
    parse_document,
)
from rocketstream.server.broker.core.acl.edits import Document
from rocketstream.server.store import Files
from rocketstream.transport.sharing import AnswerSteps

logger: logging.Logger = logging.getLogger("rocketstream.server")

DEFAULT_NAME = "plain_acl.yml"
DIRECTORY_NAME = "acl"
_SUFFIXES = (".yml", ".yaml")
_TOOLS_NAME = "tools.yml"
"""mqadmin's own keys, which may stand among those of accounts."""


@dataclass(slots=True)
class _Known:
    """A file as it was last read.

    Attributes:
        data: its bytes, usable or not.
        document: the YAML document of the last usable bytes.
        parsed: the accounts of that document.
        broken: why ``data`` cannot be used.
        missing: why the file cannot be read now.
    """

    data: bytes = b""
    document: object = None
    parsed: AclDocument = field(default_factory=AclDocument)
    broken: str | None = None
    missing: str | None = None

    @property
    def problem(self) -> str | None:
        """The problem of the file now; None when there is none."""
        return self.missing or self.broken


class AclFiles:
    """Reads the files, notices changes, and writes the changes of requests.

    Belongs to the broker's loop.

    Args:
        path: plain_acl.yml, or the directory it is in.
        files: the disk.
        workers: run the writes in the background.
    """

    def __init__(self, path: Path, files: Files, workers: Workers) -> None:
        _yaml()
        self.path: Path = path / DEFAULT_NAME if files.is_dir(path) else path
        self.rules: AclRules = AclRules()
        self._files = files
        self._workers = workers
        self._known: dict[Path, _Known] = {}
        self._order: list[Path] = []
        self._writing: asyncio.Future[None] | None = None
        self._told: tuple[str, ...] = ()

    # --- reading ----------------------------------------------------------------------------------

    def load(self) -> None:
        """Read all files for the first time; blocks.

        Raises:
            ConfigurationError: plain_acl.yml is missing, or a file cannot be used.
        """
        if not self._files.is_file(self.path):
            raise ConfigurationError(
                f"there is no file of accounts {str(self.path)!r}: give the path of a "
                f"{DEFAULT_NAME}, or of the directory it is in",
                path=str(self.path),
            )
        self.poll()
        for path, known in self._known.items():
            if known.problem is not None:
                raise ConfigurationError(f"{path}: {known.problem}", path=str(path))

    def poll(self) -> None:
        """Take over changes of the files since the last call; blocks while they are read. A file
        that cannot be used is logged once and changes nothing."""
        paths = self._order = self._paths()
        changed = [self._read(path) for path in paths]
        gone = [path for path in self._known if path not in paths and path != self.path]
        for path in gone:
            del self._known[path]
        if any(changed) or gone:
            self._count()

    def _paths(self) -> list[Path]:
        """Return the paths in upstream's order: those in the directory come first."""
        found = self._below(self.path.parent / DIRECTORY_NAME)
        return [*(path for path in found if path != self.path), self.path]

    def _below(self, directory: Path) -> list[Path]:
        found: list[Path] = []
        with contextlib.suppress(NotADirectoryError):
            for path in self._files.list_directory(directory):
                if path.name.endswith(_SUFFIXES):
                    if path.name != _TOOLS_NAME:
                        found.append(path)
                elif self._files.is_dir(path):
                    found += self._below(path)
        return found

    def _read(self, path: Path) -> bool:
        """Read a file; return whether its content has changed."""
        known = self._known.get(path)
        try:
            data = self._data_of(path)
        except OSError as error:
            known = self._known.setdefault(path, _Known())
            if known.missing is None:
                known.missing = f"cannot be read: {error}"
                _tell(path, known.missing)
            return False
        if known is not None:
            known.missing = None
            if known.data == data:
                return False
        try:
            if known is not None and known.document is not None and not data.strip():
                # A program that rewrites a file empties it first: nobody must be shut out
                # meanwhile.
                raise ConfigurationError("it is empty now; `accounts: []` means no accounts")
            document = _load(data)
            parsed = parse_document(document)
        except ConfigurationError as error:
            known = self._known.setdefault(path, _Known())
            known.data, known.broken = data, error.message
            _tell(path, error.message)
            return False
        self._known[path] = _Known(data, document, parsed)
        if known is not None:
            logger.info("broker: %s was read again: %d accounts", path, len(parsed.accounts))
        return True

    def _data_of(self, path: Path) -> bytes:
        if self._files.file_size(path) > ACL_FILE_BYTES_MAX:
            raise OSError(f"it has more than {ACL_FILE_BYTES_MAX} bytes")
        return self._files.read_bytes(path)

    def _count(self) -> None:
        """Make the files, as they are now, the rules that count."""
        order = [path for path in self._order if path in self._known]
        self.rules = join((str(path), self._known[path].parsed) for path in order)
        if self.rules.warnings != self._told:
            for warning in self.rules.warnings:
                logger.warning("broker: accounts: %s", warning)
            self._told = self.rules.warnings

    # --- requests ---------------------------------------------------------------------------------

    @property
    def documents(self) -> list[tuple[str, AclDocument]]:
        """The documents that count by path, in their order."""
        return [
            (str(path), self._known[path].parsed) for path in self._order if path in self._known
        ]

    def home_of(self, access_key: str) -> Path | None:
        """Return the file an account is in; None when there is no such account."""
        home = self.rules.homes.get(access_key)
        return None if home is None else Path(home)

    def editing(self, path: Path, change: Callable[[object], Document]) -> AnswerSteps:
        """Change a file in steps, one change at a time; it is on the disk when the steps end.

        The whole text is rewritten: comments in the file are lost, as with upstream.

        Raises:
            ConfigurationError: the file cannot be used as it is, or could not after the change.
            StoreError: the file cannot be written; nothing has changed.
        """
        while self._writing is not None:
            yield self._writing
        self.poll()
        known = self._known.get(path)
        if known is None or known.problem is not None:
            problem = known.problem if known else "is not there"
            raise ConfigurationError(f"{path}: {problem}; mend the file first")
        document = change(known.document)
        data = _dump(document).encode()
        made = _Known(data, document, parse_document(document))
        writing = self._writing = self._workers.submit(partial(self._save, path, data))
        # Not left to these steps, which are abandoned when the peer is dropped.
        writing.add_done_callback(partial(self._written, path, made))
        yield writing
        try:
            writing.result()
        except OSError as error:
            raise StoreError(f"{path} cannot be written: {error}", path=str(path)) from error

    def _written(self, path: Path, made: _Known, writing: asyncio.Future[None]) -> None:
        """Take over a change as it was written: to read it again may fail, and it is answered."""
        self._writing = None
        if writing.cancelled() or writing.exception() is not None:
            self.poll()
            return
        self._known[path] = made
        self._count()

    def _save(self, path: Path, data: bytes) -> None:
        """Replace a whole file, keeping its access rights."""
        files = self._files
        path = files.resolve(path)
        building = path.with_name(f".{path.name}.tmp")
        try:
            # The rights are set before the secrets are written.
            files.write_bytes(building, b"")
            files.copy_times(path, building)
            files.write_bytes(building, data)
            files.replace(building, path)
        except OSError:
            with contextlib.suppress(OSError):
                files.unlink(building, missing_ok=True)
            raise
        files.sync_directory(path.parent)


def _tell(path: Path, problem: str) -> None:
    logger.error(
        "broker: condition=ACL_FILE_UNUSABLE %s: %s; the accounts read before stay in force",
        path,
        problem,
    )


def _yaml() -> Any:
    """Return PyYAML, which only brokers with accounts need: importing it takes 15 ms."""
    try:
        import yaml  # type: ignore[import-untyped]
    except ImportError:
        raise ConfigurationError(
            "accounts are kept in YAML files: install rocketstream[acl], or PyYAML"
        ) from None
    return yaml


def _load(data: bytes) -> object:
    yaml = _yaml()
    try:
        return yaml.safe_load(data)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" in line {mark.line + 1}" if mark is not None else ""
        # Not the error's own text: it quotes the text it failed on, secrets included.
        raise ConfigurationError(f"it is not YAML{where}") from None
    except (UnicodeDecodeError, RecursionError, ValueError):
        raise ConfigurationError("it is not YAML in UTF-8") from None


def _dump(document: dict[str, Any]) -> str:
    return str(_yaml().safe_dump(document, default_flow_style=False, sort_keys=False, width=4096))
