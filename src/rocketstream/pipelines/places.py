"""Directories Spark can reach, for the small files of their own that pipelines keep in them.

A directory of this machine is reached without Spark; any other one by Hadoop's file systems, in the
JVM of a session.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol
from urllib.parse import unquote, urlsplit

from rocketstream.errors import ConfigurationError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

if sys.platform != "win32":
    import fcntl

_OBJECTS: Final = ("s3", "s3a")
"""Stores in which a file is there at once, and whole, when its writer closes it."""


class Place(Protocol):
    """A directory, which need not exist."""

    def names(self) -> list[str]:
        """Return the names of its entries; none where the directory does not exist."""

    def read(self, name: str) -> str | None:
        """Return the text of a file; None where it does not exist."""

    def write(self, name: str, text: str) -> None:
        """Write a file, and make the directory where it is missing."""

    def size(self, name: str) -> int | None:
        """Return the bytes of a file; None where it does not exist."""

    def move(self, name: str, to: Place) -> None:
        """Move a file into another directory of the same file system."""

    def remove(self, name: str) -> None:
        """Remove a file, or a directory with all that is in it, where it exists."""

    def under(self, name: str) -> Place:
        """Return a directory inside this one."""


def local_path(path: str) -> Path | None:
    """Return a path as one of this machine; None where it is elsewhere.

    To Hadoop all before a colon is a scheme, as in ``hdfs:/tables`` and ``dbfs:/tables``, unless a
    slash comes first; one letter is a drive of Windows.
    """
    parts = urlsplit(path)
    if parts.scheme == "file":
        return Path(unquote(parts.path))
    return None if len(path.partition("/")[0].rpartition(":")[0]) > 1 else Path(path)


def place_of(path: str, session: SparkSession | None) -> Place | None:
    """Return the directory a path names as Spark reads it; None where a session is needed for it.

    Raises
    ------
    ConfigurationError
        The directory is not on this machine, and the session is one of Spark Connect; or it has no
        scheme, and Spark looks elsewhere for those.
    """
    local, connected = local_path(path), False
    if session is not None:
        connected = type(session).__module__.startswith("pyspark.sql.connect")
    if local is not None:
        if session is not None and not connected and not path.startswith("file:"):
            _check_default(session, path, local)
        return LocalPlace(local)
    if session is None:
        return None
    if connected:
        raise ConfigurationError(
            f"what was landed in {path} cannot be looked up over Spark Connect, so it could be "
            "landed twice; use a session of your own (a master instead of a remote), or a "
            "directory of this machine",
            path=path,
        )
    return HadoopPlace(session, path)


@contextmanager
def alone(path: Path | None, otherwise: str) -> Iterator[None]:
    """Hold a directory of this machine for the block, where the system can tell who does.

    Raises
    ------
    ConfigurationError
        Another run holds it; the error's text is ``otherwise``.
    """
    if path is None or sys.platform == "win32":
        yield
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigurationError(otherwise, path=str(path)) from None
        except OSError:
            pass  # a file system that has no locks, as some in a network
        yield
    finally:
        os.close(handle)


def _check_default(session: SparkSession, path: str, local: Path) -> None:
    """Refuse a path that is one of this machine here, and another one to Spark."""
    default = str(_hadoop_settings(session).get("fs.defaultFS"))
    if urlsplit(default).scheme != "file":
        raise ConfigurationError(
            f"{path} has no scheme, and this Spark looks for such paths in {default}; write "
            f"{default.rstrip('/')}/… for a directory there, or {local.absolute().as_uri()} for "
            "the one of this machine",
            path=path,
        )


def _hadoop_settings(session: SparkSession) -> Any:
    return session._jsparkSession.sessionState().newHadoopConf()


class LocalPlace:
    """A directory of this machine."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __str__(self) -> str:
        return str(self._path)

    def names(self) -> list[str]:
        """Return the names of its entries."""
        return [entry.name for entry in self._path.iterdir()] if self._path.is_dir() else []

    def read(self, name: str) -> str | None:
        """Return the text of a file."""
        try:
            return (self._path / name).read_text("utf-8")
        except FileNotFoundError:
            return None

    def write(self, name: str, text: str) -> None:
        """Write a file, completely or not at all."""
        self._path.mkdir(parents=True, exist_ok=True)
        partial = self._path / f".{name}.new"
        with partial.open("w", encoding="utf-8", newline="") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        # Hadoop keeps a checksum beside its files, and does without one.
        (self._path / f".{name}.crc").unlink(missing_ok=True)
        partial.replace(self._path / name)

    def size(self, name: str) -> int | None:
        """Return the bytes of a file."""
        try:
            return (self._path / name).stat().st_size
        except FileNotFoundError:
            return None

    def move(self, name: str, to: Place) -> None:
        """Move a file into another directory, with its bytes on the disk."""
        with (self._path / name).open("rb+") as file:
            os.fsync(file.fileno())
        (self._path / name).replace(Path(str(to), name))

    def remove(self, name: str) -> None:
        """Remove a file, or a directory with all that is in it, where it exists."""
        if (self._path / name).is_dir():
            shutil.rmtree(self._path / name)
            return
        for each in (f".{name}.crc", name):
            (self._path / each).unlink(missing_ok=True)

    def under(self, name: str) -> Place:
        """Return a directory inside this one."""
        return LocalPlace(self._path / name)


class HadoopPlace:
    """A directory of a file system Hadoop knows: HDFS, ``s3a://`` and others."""

    def __init__(self, session: SparkSession, path: str) -> None:
        self._session = session
        self._path = path.rstrip("/")

    def __str__(self) -> str:
        return self._path

    def names(self) -> list[str]:
        """Return the names of its entries.

        Raises
        ------
        ConfigurationError
            Hadoop cannot reach the directory; the error says why.
        """

        def listed(system: Any, path: Any) -> list[str]:
            if not system.exists(path):
                return []
            return [str(status.getPath().getName()) for status in system.listStatus(path)]

        found: list[str] = self._reached(listed)
        return found

    def read(self, name: str) -> str | None:
        """Return the text of a file; raises as :meth:`names` does."""
        utils = self._jvm.org.apache.commons.io.IOUtils

        def text(system: Any, path: Any) -> str | None:
            if not system.exists(path):
                return None
            stream = system.open(path)
            try:
                return str(utils.toString(stream, "UTF-8"))
            finally:
                stream.close()

        found: str | None = self._reached(text, name)
        return found

    def write(self, name: str, text: str) -> None:
        """Write a file, completely or not at all; raises as :meth:`names` does."""

        def written(system: Any, path: Any) -> None:
            partial = path
            if urlsplit(self._path).scheme not in _OBJECTS:
                partial = self._jvm.org.apache.hadoop.fs.Path(f"{self._path}/.{name}.new")
            stream = system.create(partial, True)
            stream.write(bytearray(text.encode()))
            stream.close()
            if partial is not path:
                self._replace(system, partial, path)

        self._reached(written, name)

    def _replace(self, system: Any, partial: Any, path: Any) -> None:
        files = self._jvm.org.apache.hadoop.fs
        rename = getattr(files, "Options$Rename")
        overwriting = self._session.sparkContext._gateway.new_array(rename, 1)
        overwriting[0] = rename.OVERWRITE
        context = files.FileContext.getFileContext(system.getUri(), system.getConf())
        context.rename(partial, path, overwriting)

    def size(self, name: str) -> int | None:
        """Return the bytes of a file; raises as :meth:`names` does."""

        def length(system: Any, path: Any) -> int | None:
            return int(system.getFileStatus(path).getLen()) if system.exists(path) else None

        found: int | None = self._reached(length, name)
        return found

    def move(self, name: str, to: Place) -> None:
        """Move a file into another directory; raises as :meth:`names` does."""
        after = self._jvm.org.apache.hadoop.fs.Path(f"{to}/{name}")
        if not self._reached(lambda system, path: system.rename(path, after), name):
            raise ConfigurationError(f"{self}/{name} cannot be moved to {to}", path=self._path)

    def remove(self, name: str) -> None:
        """Remove a file, or a directory with all that is in it; raises as :meth:`names` does."""
        self._reached(lambda system, path: system.delete(path, True), name)

    def under(self, name: str) -> Place:
        """Return a directory inside this one."""
        return HadoopPlace(self._session, f"{self._path}/{name}")

    @property
    def _jvm(self) -> Any:
        return self._session.sparkContext._jvm

    def _reached(self, ask: Any, name: str = "") -> Any:
        from py4j.protocol import Py4JJavaError

        hadoop = self._jvm.org.apache.hadoop
        try:
            path = hadoop.fs.Path(f"{self._path}/{name}" if name else self._path)
            return ask(path.getFileSystem(_hadoop_settings(self._session)), path)
        except Py4JJavaError as error:
            cause = str(error.java_exception.toString())
            raise ConfigurationError(
                f"{self._path} cannot be reached: {cause}{self._hint(cause)}", path=self._path
            ) from error

    def _hint(self, cause: str) -> str:
        scheme = urlsplit(self._path).scheme
        if "ClassNotFound" not in cause and "No FileSystem for scheme" not in cause:
            return ""
        if scheme not in ("s3a", "s3"):
            return f"; this Spark has no file system for {scheme}://"
        version = self._jvm.org.apache.hadoop.util.VersionInfo.getVersion()
        return f"; add --package org.apache.hadoop:hadoop-aws:{version}, and write s3a://"
