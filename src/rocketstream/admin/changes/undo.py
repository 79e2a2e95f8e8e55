"""Our own JSON documents on this machine, such as the file that takes a reset back: where every
queue was, written before anything is moved.

Law: a file that is not the expected document is refused by name, with what it lacks.
"""

from __future__ import annotations

import json
import os
import re
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rocketstream._util.home import state_directory
from rocketstream.admin.core.moves import ResetRow
from rocketstream.errors import ClientStateError, ConfigurationError
from rocketstream.model import MessageQueue


@dataclass(frozen=True, slots=True)
class DocumentKind:
    """The expected kind of a document.

    Attributes:
        called: the kind in words, as in "not an undo file".
        format: the value of its field ``format``.
        version: the version that this release reads.
        bytes_max: the largest size accepted.
    """

    called: str
    format: str
    version: int
    bytes_max: int


def read_document(path: str | os.PathLike[str], kind: DocumentKind) -> dict[str, Any]:
    """Return the fields of a document.

    Raises:
        ConfigurationError: the file cannot be read, or is of another kind; the error says why.
    """
    try:
        if os.path.getsize(path) > kind.bytes_max:
            raise ConfigurationError(
                f"{path} has more than {kind.bytes_max} bytes: it is not an {kind.called}"
            )
        value = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ConfigurationError(
            f"{path} is not an {kind.called}: it is not JSON ({error})"
        ) from error
    if not isinstance(value, dict) or value.get("format") != kind.format:
        raise ConfigurationError(
            f'{path} is not an {kind.called}: it has no "format": "{kind.format}"'
        )
    if value.get("version") != kind.version:
        raise ConfigurationError(
            f"{path} is an {kind.called} of version {value.get('version')}; this release reads "
            f"version {kind.version}"
        )
    return value


_UNDO_FILE: Final = DocumentKind("undo file", "rocketstream-undo", version=1, bytes_max=64 << 20)
_NAME_CHARS_MAX: Final = 100
"""Two names and a time fit the 255 bytes a file name may have."""


@dataclass(frozen=True, slots=True)
class Undo:
    """The content of an undo file.

    Attributes:
        group: the group that was moved.
        taken_ms: when the offsets were read, ms since 1970.
        namesrv: the name servers of its cluster.
        cluster: the name of its cluster; empty in files of earlier releases.
        before: the offset of each queue before; None where none was stored.
        after: the offset each queue was sent to.
    """

    group: str
    taken_ms: int
    namesrv: str
    before: dict[MessageQueue, int | None]
    after: dict[MessageQueue, int]
    cluster: str = ""


def default_undo_directory() -> Path:
    """Return ``$XDG_STATE_HOME/rocketstream/undo`` (``~/.local/state`` without it)."""
    return state_directory() / "undo"


def undo_name(name: str) -> str:
    """Return a group's or cluster's name as it stands in the names of undo files."""
    return re.sub(r"[^A-Za-z0-9_-]", "_", name)[:_NAME_CHARS_MAX]


def write_undo(
    directory: Path,
    group: str,
    rows: Iterable[ResetRow],
    taken_ms: int,
    *,
    namesrv: str,
    cluster: str,
) -> Path:
    """Write the queues' present offsets to the disk, and return the file.

    Raises:
        ClientStateError: the file cannot be written; the group must not be moved.
    """
    value = {
        "format": _UNDO_FILE.format,
        "version": _UNDO_FILE.version,
        "group": group,
        "takenMs": taken_ms,
        "namesrv": namesrv,
        "cluster": cluster,
        "queues": [
            {
                "topic": row.topic,
                "brokerName": row.broker_name,
                "queueId": row.queue_id,
                "before": row.from_offset,
                "after": row.to_offset,
            }
            for row in rows
        ],
    }
    name = f"{undo_name(group)}-{undo_name(cluster)}"
    path = directory / f"{name}-{taken_ms}-{secrets.token_hex(4)}.json"
    try:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump(value, file, indent=1)
            file.write("\n")
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise ClientStateError(
            f"the undo file {path} cannot be written ({error.strerror}): nothing was moved",
            path=str(path),
        ) from error
    return path


def read_undo(path: str | os.PathLike[str]) -> Undo:
    """Read an undo file.

    Raises:
        ConfigurationError: the file cannot be read or is not an undo file; the error says why.
    """
    value = read_document(path, _UNDO_FILE)
    try:
        return _read(value)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ConfigurationError(f"{path} is damaged: {type(error).__name__} {error}") from error


def _read(value: dict[str, Any]) -> Undo:
    before: dict[MessageQueue, int | None] = {}
    after: dict[MessageQueue, int] = {}
    for entry in value["queues"]:
        queue = MessageQueue(str(entry["topic"]), str(entry["brokerName"]), int(entry["queueId"]))
        before[queue] = None if entry["before"] is None else int(entry["before"])
        after[queue] = int(entry["after"])
    return Undo(
        group=str(value["group"]),
        taken_ms=int(value["takenMs"]),
        namesrv=str(value["namesrv"]),
        cluster=str(value.get("cluster", "")),
        before=before,
        after=after,
    )
