"""The gate every change passes: refused when read-only, written down before and after.

Law: requests that change a cluster are made through ``Change`` only, and a change that cannot be
recorded is not made. The audit file never holds secrets or message bodies, only what an operation
names as its arguments.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import socket
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from rocketstream._util.clock import SYSTEM_CLOCK, Clock
from rocketstream._util.home import state_directory, user_name
from rocketstream.admin.wire.changes import ChangingWire
from rocketstream.client.admin.blocking import BlockingAdminClient
from rocketstream.client.config import new_uuid
from rocketstream.errors import ClientStateError

if sys.platform != "win32":
    import fcntl

logger = logging.getLogger("rocketstream.admin")

FILE_NAME: Final = "audit.jsonl"
OWNER_ONLY: Final = 0o600
_UNWRITTEN: Final = {
    "begin": "no change is made that cannot be recorded there; give another file, or free space",
    "done": "the change was made; the file has its beginning alone",
    "failed": "the change failed, and some of it may have been made; the file has its beginning "
    "alone",
}
"""Told where a line cannot be written, by its phase."""


def default_audit_path() -> Path:
    """Return ``$XDG_STATE_HOME/rocketstream/audit.jsonl`` (below ``~/.local/state`` if not set)."""
    return state_directory() / FILE_NAME


class AuditLog:
    """Appends one line before each change and one after it; thread safe.

    Lines are JSON objects: ``id`` (the same before and after), ``at`` (ms since 1970), ``phase``
    (``begin``, ``done`` or ``failed``), ``operation``, ``who``, ``host``, ``face``, ``cluster``,
    ``arguments``, ``approved`` where a face has a change approved, and ``before``, ``after`` or
    ``error``. A ``begin`` without an end is a change whose outcome is not known: the process was
    killed.

    Args:
        path: the file; made with its directories, readable by its owner alone. None is
            ``default_audit_path()``.
        who: the name of the person who makes the change; None is the user of this process.
        face: the face it is made through: ``command line``, ``dashboard``, ``agents``, ``library``.
        approved: by whom the change was approved; None where ``who`` alone decides.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        who: str | None = None,
        face: str = "library",
        approved: str | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.path = Path(path) if path is not None else default_audit_path()
        self.who = who or user_name()
        self.face = face
        self.approved = approved
        self._clock = clock
        self._lock = threading.Lock()

    def begin(
        self, operation: str, cluster: str, arguments: Mapping[str, Any], before: Any
    ) -> dict[str, Any]:
        """Write down a change before it is made; return the entry to pass to ``end``.

        Raises:
            ClientStateError: the file cannot be written; the change must not be made.
        """
        entry = {
            "id": new_uuid(),
            "operation": operation,
            "who": self.who,
            "host": socket.gethostname(),
            "face": self.face,
            "cluster": cluster,
            "arguments": dict(arguments),
        }
        if self.approved is not None:
            entry["approved"] = self.approved
        self._write({"phase": "begin", **entry, "before": before})
        return entry

    def end(self, entry: Mapping[str, Any], *, after: Any = None, error: str | None = None) -> None:
        """Write down how the change ended.

        Raises:
            ClientStateError: the file cannot be written, although the change, or a part of it, was
                made.
        """
        phase = "done" if error is None else "failed"
        outcome = {} if error is None else {"error": error}
        self._write({"phase": phase, **entry, "after": after, **outcome})

    def _write(self, line: Mapping[str, Any]) -> None:
        text = json.dumps({"at": self._clock.now_ms(), **line}, ensure_ascii=False, default=str)
        data = text.encode("utf-8", "backslashreplace") + b"\n"
        try:
            with self._lock:
                self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
                _append(self.path, data)
        except OSError as error:
            raise ClientStateError(
                f"the audit file {self.path} cannot be written ({error.strerror}): "
                f"{_UNWRITTEN[line['phase']]}",
                path=str(self.path),
            ) from error


class ReadOnlyError(ClientStateError):
    """This ``Admin`` is read-only."""


class Change:
    """One change under way.

    Attributes:
        wire: the requests that change something.
        after: the state afterwards, for the audit file; the code that makes the change sets it.
    """

    def __init__(self, wire: ChangingWire) -> None:
        self.wire = wire
        self.after: Any = None


class ChangeGate:
    """Admits changes, or refuses them.

    Args:
        timeout_ms: bound of one request.
        audit: where changes are written down; None writes nothing.
        read_only: whether every change is refused.
    """

    def __init__(
        self,
        client: BlockingAdminClient,
        timeout_ms: int,
        audit: AuditLog | None = None,
        *,
        read_only: bool = False,
    ) -> None:
        self._wire = ChangingWire(client, timeout_ms)
        self._cluster = ";".join(client.name_servers)
        self.audit = audit
        self.read_only = read_only

    def check(self, operation: str) -> None:
        """Raise if changes are refused; for operations that do a lot before they change anything.

        Raises:
            ReadOnlyError: this Admin is read-only.
        """
        if self.read_only:
            raise ReadOnlyError(
                f"{operation} would change the cluster, and this Admin is read-only: make it "
                "without read_only=True (the dashboard and the agents' server: start with --write)",
                operation=operation,
            )

    @contextmanager
    def open(
        self, operation: str, arguments: Mapping[str, Any], before: Any = None
    ) -> Iterator[Change]:
        """Make one change: written down before it begins and after it ends, also when it fails.

        Args:
            operation: the operation's name, such as ``topic.delete``.
            arguments: the arguments of the operation, never secrets or bodies.
            before: the state before, as far as it is known.

        Raises:
            ReadOnlyError: this Admin is read-only.
            ClientStateError: the audit file cannot be written: before the change, which is then not
                made, or after it. Where the change failed too, its own error is raised.
        """
        self.check(operation)
        entry = None
        if self.audit is not None:
            entry = self.audit.begin(operation, self._cluster, arguments, before)
        change = Change(self._wire)
        try:
            yield change
        except BaseException as error:
            if self.audit is not None and entry is not None:
                self._record_failure(self.audit, entry, error, change.after)
            raise
        if self.audit is not None and entry is not None:
            self.audit.end(entry, after=change.after)

    @staticmethod
    def _record_failure(
        audit: AuditLog, entry: Mapping[str, Any], error: BaseException, after: Any
    ) -> None:
        try:
            audit.end(entry, error=f"{type(error).__name__}: {error}", after=after)
        except ClientStateError as unwritten:
            # The change's own error is the one to act on; neither may hide the other.
            logger.warning("%s", unwritten.message)
            error.add_note(unwritten.message)


def _append(path: Path, data: bytes) -> None:
    handle = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, OWNER_ONLY)
    try:
        _alone(handle)
        size = os.lseek(handle, 0, os.SEEK_END)
        if size:
            os.lseek(handle, size - 1, os.SEEK_SET)
            if os.read(handle, 1) != b"\n":  # a line cut off by a full disk or a power failure
                data = b"\n" + data
        if os.write(handle, data) != len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.fsync(handle)
    finally:
        os.close(handle)


def _alone(handle: int) -> None:
    """Keep other processes from writing until the file is closed, if the system supports it."""
    if sys.platform != "win32":
        fcntl.flock(handle, fcntl.LOCK_EX)
