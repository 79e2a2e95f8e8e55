"""The file that records every change: by whom, when, of what, and how it ended; JSON lines.

Law: a change that cannot be recorded is not made. The file never holds secrets or message bodies,
only what an operation names as its arguments.
"""

from __future__ import annotations

import errno
import json
import os
import socket
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from rocketstream._util.clock import SYSTEM_CLOCK, Clock
from rocketstream._util.home import user_name
from rocketstream.admin.safety.state_dir import state_directory
from rocketstream.client.config import new_uuid
from rocketstream.errors import ClientStateError

if sys.platform != "win32":
    import fcntl

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
        clock: gives the times written.
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
