"""The tables of ``rocketmq-progress``: their columns, and the rows of a cluster or of offset files.

Rows of a cluster are what the admin operations tell of its groups.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from rocketstream._util.clock import SYSTEM_CLOCK
from rocketstream.admin.groups import Groups
from rocketstream.admin.rows import ProgressRow
from rocketstream.admin.service import Reach
from rocketstream.errors import ConfigurationError, RemoteProtocolError
from rocketstream.model import MessageQueue
from rocketstream.protocol import fastjson
from rocketstream.protocol.bodies import ConsumerOffsetTable, OffsetSerializeWrapper
from rocketstream.protocol.bodies.files import unsealed
from rocketstream.protocol.names import offsets_place
from rocketstream.spark.connections import admin_client
from rocketstream.spark.options.formats import FileOptions, ProgressOptions

CLUSTER_COLUMNS: Final[dict[str, str]] = {
    "cluster": "string",
    "brokerName": "string",
    "group": "string",
    "topic": "string",
    "kind": "string",
    "queueId": "int",
    "minOffset": "bigint",
    "maxOffset": "bigint",
    "committedOffset": "bigint",
    "lag": "bigint",
    "timeLagMs": "bigint",
    "lastConsumedTimestamp": "timestamp",
    "clientId": "string",
    "members": "int",
    "consumeTps": "double",
    "observedAt": "timestamp",
    "error": "string",
    "expired": "bigint",
}
"""The columns for a cluster: name and Spark type, in the order of the schema."""

FILE_COLUMNS: Final[dict[str, str]] = {
    "file": "string",
    "clientId": "string",
    "group": "string",
    "topic": "string",
    "brokerName": "string",
    "queueId": "int",
    "committedOffset": "bigint",
    "modifiedAt": "timestamp",
}
"""The columns for offset files: name and Spark type, in the order of the schema."""

Chosen = tuple[tuple[str, str], ...]
"""The user's spelling of each requested column, and our name."""


def ddl(columns: Mapping[str, str]) -> str:
    """Return a schema as Spark DDL."""
    return ", ".join(f"`{name}` {kind}" for name, kind in columns.items())


def choose(columns: Mapping[str, str], fields: Sequence[tuple[str, str, bool]]) -> Chosen:
    """Return the columns a user's schema asks for.

    Args:
        columns: the existing columns.
        fields: the label and Spark type of each field, and whether nulls are allowed.

    Raises:
        ConfigurationError: a name is unknown, a type differs, or a column is NOT NULL.
    """
    ours = {name.lower(): name for name in columns}
    wrong: list[str] = []
    chosen: list[tuple[str, str]] = []
    for label, kind, nullable in fields:
        name = ours.get(label.lower())
        if name is None:
            wrong.append(f"no column {label!r}")
        elif kind != columns[name]:
            wrong.append(f"{label!r} is {columns[name]}, not {kind}")
        elif not nullable:
            wrong.append(f"{label!r} cannot be NOT NULL: it is null where the value is not known")
        else:
            chosen.append((label, name))
    if wrong or not chosen:
        problem = "; ".join(wrong) or "no column at all"
        raise ConfigurationError(
            f"schema cannot be read as progress: {problem}. Choose any of, in any order: "
            f"{ddl(columns)}",
            schema=list(fields),
        )
    return tuple(chosen)


def picked(
    columns: Mapping[str, str], chosen: Chosen, rows: Sequence[Sequence[Any]]
) -> list[tuple[Any, ...]]:
    """Return rows of all columns reduced to the chosen ones."""
    order = list(columns)
    places = [order.index(name) for _, name in chosen]
    return [tuple(row[place] for place in places) for row in rows]


Row = tuple[Any, ...]


def take(options: ProgressOptions, observed_ms: int) -> list[Row]:
    """Return the rows of ``CLUSTER_COLUMNS`` as they are now.

    Args:
        options: select groups and topics, and say how to reach the cluster.
        observed_ms: the time to write into the rows, ms since 1970.

    Raises:
        ConnectError: no name server answered.
    """
    # Not the whole Admin: its other parts have locks, which cannot travel by value.
    with admin_client(options) as client:
        reach = Reach(client, options.request_timeout_ms, SYSTEM_CLOCK)
        found = Groups(reach).progress(
            options.groups,
            group_pattern=options.group_pattern,
            topics=options.topics,
            owners=options.owners,
        )
    return [_row(row, observed_ms) for row in found]


def failed(error: Exception, observed_ms: int) -> list[Row]:
    """Return the one row that says why a snapshot has no others."""
    return [_row(ProgressRow(None, None, None, error=str(error)), observed_ms)]


def _row(row: ProgressRow, observed_ms: int) -> Row:
    return (
        row.cluster,
        row.broker_name,
        row.group,
        row.topic,
        row.kind,
        row.queue_id,
        row.min_offset,
        row.max_offset,
        row.committed_offset,
        row.lag,
        row.time_lag_ms,
        row.last_consumed_ms,
        row.client_id,
        row.members,
        row.consume_tps,
        observed_ms,
        row.error,
        row.expired,
    )


BROKER_FILE: Final = "consumerOffset.json"
CLIENT_FILE: Final = "offsets.json"
BACKUP_SUFFIX: Final = ".bak"
_SCHEME: Final = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]+:/")
_IN_STORE: Final = (f"config/{BROKER_FILE}", BROKER_FILE, CLIENT_FILE)


def read_files(options: FileOptions) -> list[Row]:
    """Return the rows of ``FILE_COLUMNS`` of all files.

    Raises:
        ConfigurationError: a file does not exist, cannot be read, or holds no offsets; the error
            names it and says what to do.
    """
    rows: list[Row] = []
    for given in options.paths:
        for path in _files_of(given, options.backup):
            rows += _rows_of(path, options.backup)
    return rows


def _files_of(given: str, backup: bool) -> Iterator[Path]:
    text = given
    if _SCHEME.match(given):
        parts = urlsplit(given)
        if parts.scheme.lower() != "file":
            raise ConfigurationError(
                f"path is {given!r}; offset files are read from the driver's own disk: copy the "
                "file there and give its path",
                path=given,
            )
        text = unquote(parts.path)
    found = sorted(glob.glob(text)) if glob.has_magic(text) else [text]
    if not found:
        raise ConfigurationError(f"path is {given!r}; no file matches it", path=given)
    for name in found:
        path = Path(name)
        yield _inside(path, backup) if path.is_dir() else path


def _inside(directory: Path, backup: bool) -> Path:
    """Return the offset file in a store's or a client's directory."""
    for name in _IN_STORE:
        path = directory / name
        if path.exists() or (backup and _backup_of(path).exists()):
            return path
    raise ConfigurationError(
        f"directory {str(directory)!r} has none of {', '.join(_IN_STORE)}", path=str(directory)
    )


def _rows_of(path: Path, backup: bool) -> list[Row]:
    try:
        return _parsed(path)
    except ConfigurationError as error:
        spare = _backup_of(path)
        if backup:
            return _parsed(spare)
        if not spare.exists():
            raise
        raise ConfigurationError(
            f"{error.message}. Option backup=true reads {spare} instead, as a broker that starts "
            "does; it is older",
            path=str(path),
        ) from None


def _parsed(path: Path) -> list[Row]:
    try:
        data = path.read_bytes()
        modified_ms = os.stat(path).st_mtime_ns // 1_000_000
    except OSError as error:
        raise ConfigurationError(
            f"offset file {path} cannot be read on the driver: {error.strerror or error}",
            path=str(path),
        ) from error
    if not data.strip():
        raise ConfigurationError(f"offset file {path} is empty", path=str(path))
    try:
        if _is_of_client(data):
            return _client_rows(path, unsealed(CLIENT_FILE, data), modified_ms)
        return _broker_rows(path, unsealed(BROKER_FILE, data), modified_ms)
    except RemoteProtocolError as error:
        raise ConfigurationError(
            f"{path} holds no offsets: it is neither a broker's {BROKER_FILE} nor a client's "
            f"{CLIENT_FILE} ({error.message})",
            path=str(path),
        ) from None


def _is_of_client(data: bytes) -> bool:
    """Return whether a table is a client's, not a broker's: its keys are queues.

    Raises:
        RemoteProtocolError: the data is not a table.
    """
    value = fastjson.loads(data)
    table = value.get("offsetTable") if isinstance(value, Mapping) else None
    if not isinstance(table, Mapping):
        raise RemoteProtocolError("it has no offsetTable")
    return any(isinstance(key, MessageQueue) for key in table)


def _broker_rows(path: Path, data: bytes, modified_ms: int) -> list[Row]:
    rows: list[Row] = []
    for key, offsets in ConsumerOffsetTable.decode_file(data).offset_table.items():
        topic, group = offsets_place(key) or ("", key)
        for queue_id, offset in sorted(offsets.items()):
            rows.append((str(path), None, group, topic, None, queue_id, offset, modified_ms))
    return rows


def _client_rows(path: Path, data: bytes, modified_ms: int) -> list[Row]:
    """Return a client's offsets; its file is in ``<client id>/<group>/`` (C-304)."""
    is_ours = path.name.removesuffix(BACKUP_SUFFIX) == CLIENT_FILE
    group = path.parent.name if is_ours else None
    client_id = path.parent.parent.name if is_ours else None
    table = OffsetSerializeWrapper.decode_file(data).offset_table
    return [
        (
            str(path),
            client_id or None,
            group or None,
            queue.topic,
            queue.broker_name,
            queue.queue_id,
            table[queue],
            modified_ms,
        )
        for queue in sorted(table)
    ]


def _backup_of(path: Path) -> Path:
    return path.with_name(path.name + BACKUP_SUFFIX)
