"""Records of message trace: the events of a message, as text (C-545).

Pure: values in, text out, and back; ``client.trace`` decides when a record is made (upstream's
TraceDataEncoder).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from rocketstream.errors import RemoteProtocolError
from rocketstream.protocol.properties import split_keys

FIELD_SEPARATOR = "\x01"
RECORD_SEPARATOR = "\x02"
NULL = "null"
CLOUD_TOPIC_PREFIX = "rmq_sys_TRACE_DATA_"
DEFAULT_REGION = "DefaultRegion"
LOCAL, CLOUD = "LOCAL", "CLOUD"
"""Channels of access, which say how and where a client's trace goes (C-544)."""

_CLEAN = str.maketrans({FIELD_SEPARATOR: " ", RECORD_SEPARATOR: " "})


@dataclass(frozen=True, slots=True)
class TracePub:
    """A message was sent; for a batch one record with all ids joined by commas.

    ``timestamp`` is when the send began; ``msg_type`` is 0 normal, 1 half, 2 commit, 3 delayed.
    """

    NAME: ClassVar = "Pub"
    timestamp: int
    region_id: str | None
    group_name: str | None
    topic: str | None
    msg_id: str | None
    tags: str | None
    keys: str | None
    store_host: str | None
    body_length: int
    cost_time: int
    msg_type: int
    offset_msg_id: str | None
    success: bool
    client_host: str | None = None

    def text(self) -> str:
        """The record."""
        return _record(
            self.NAME, self.timestamp, self.region_id, self.group_name, self.topic, self.msg_id,
            self.tags, self.keys, self.store_host, self.body_length, self.cost_time, self.msg_type,
            self.offset_msg_id, self.success,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class TraceSubBefore:
    """A listener is about to get a message."""

    NAME: ClassVar = "SubBefore"
    timestamp: int
    region_id: str | None
    group_name: str | None
    request_id: str | None
    msg_id: str | None
    retry_times: int
    keys: str | None

    def text(self) -> str:
        """The record."""
        return _record(
            self.NAME, self.timestamp, self.region_id, self.group_name, self.request_id,
            self.msg_id, self.retry_times, self.keys,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class TraceSubAfter:
    """A listener is done with a message; ``request_id`` is that of its ``TraceSubBefore``.

    ``context_code``: 0 success, 1 time-out, 2 exception, 3 returned nothing, 4 failed.
    """

    NAME: ClassVar = "SubAfter"
    request_id: str | None
    msg_id: str | None
    cost_time: int
    success: bool
    keys: str | None
    context_code: int
    timestamp: int = 0
    group_name: str | None = None

    def text(self, *, cloud: bool = False) -> str:
        """The record; in the cloud's form it lacks time and group (C-544)."""
        short = (
            self.NAME, self.request_id, self.msg_id, self.cost_time, self.success, self.keys,
            self.context_code,
        )  # fmt: skip
        return _record(*short) if cloud else _record(*short, self.timestamp, self.group_name)


@dataclass(frozen=True, slots=True)
class TraceEndTransaction:
    """A producer told the broker how a transaction ends."""

    NAME: ClassVar = "EndTransaction"
    timestamp: int
    region_id: str | None
    group_name: str | None
    topic: str | None
    msg_id: str | None
    tags: str | None
    keys: str | None
    store_host: str | None
    msg_type: int
    transaction_id: str | None
    transaction_state: str | None
    from_transaction_check: bool

    def text(self) -> str:
        """The record."""
        return _record(
            self.NAME, self.timestamp, self.region_id, self.group_name, self.topic, self.msg_id,
            self.tags, self.keys, self.store_host, self.msg_type, self.transaction_id,
            self.transaction_state, self.from_transaction_check,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class TraceRecall:
    """A delayed message was called back (5.x)."""

    NAME: ClassVar = "Recall"
    timestamp: int
    region_id: str | None
    group_name: str | None
    topic: str | None
    msg_id: str | None
    success: bool

    def text(self) -> str:
        """The record."""
        return _record(
            self.NAME, self.timestamp, self.region_id, self.group_name, self.topic, self.msg_id,
            self.success,
        )  # fmt: skip


TraceRecord = TracePub | TraceSubBefore | TraceSubAfter | TraceEndTransaction | TraceRecall


def encode_record(record: TraceRecord, *, cloud: bool = False) -> str:
    """Return a record's text."""
    return record.text(cloud=cloud) if isinstance(record, TraceSubAfter) else record.text()


def record_keys(record: TraceRecord) -> list[str]:
    """Return the words by which a record can be found: the message's id and its keys (C-543)."""
    keys = None if isinstance(record, TraceRecall) else record.keys
    return split_keys(record.msg_id or "") + split_keys(keys or "")


def _record(*fields: object) -> str:
    texts = [field if type(field) is str else _field(field) for field in fields]
    text = FIELD_SEPARATOR.join(texts)
    if text.count(FIELD_SEPARATOR) != len(texts) - 1 or RECORD_SEPARATOR in text:
        text = FIELD_SEPARATOR.join([each.translate(_CLEAN) for each in texts])
    return text + RECORD_SEPARATOR


def _field(value: object) -> str:
    if value is None:
        return NULL
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


# --- reading --------------------------------------------------------------------------------------


def decode_trace(text: str) -> list[TraceRecord]:
    """Read the body of a trace message; records of an unknown kind are left out.

    Raises:
        RemoteProtocolError: a record lacks fields, or a field that must be a number is not.
    """
    records: list[TraceRecord] = []
    for line in text.split(RECORD_SEPARATOR):
        fields = _Fields(line.split(FIELD_SEPARATOR))
        reader = _READERS.get(fields.values[0])
        if reader is not None:
            records.append(reader(fields))
    return records


class _Fields:
    """The fields of one record, by position."""

    __slots__ = ("values",)

    def __init__(self, values: list[str]) -> None:
        self.values = values

    def __len__(self) -> int:
        return len(self.values)

    def raw(self, index: int) -> str:
        if index >= len(self.values):
            raise RemoteProtocolError(
                f"a {self.values[0]} trace record has {len(self.values)} fields, "
                f"at least {index + 1} are needed"
            )
        return self.values[index]

    def text(self, index: int) -> str | None:
        value = self.raw(index)
        return None if value == NULL else value

    def number(self, index: int) -> int:
        value = self.raw(index)
        if not (value.isascii() and value.removeprefix("-").isdigit() and len(value) <= 20):
            raise RemoteProtocolError(
                f"field {index} of a {self.values[0]} trace record must be a number, not "
                f"{value[:20]!r}"
            )
        return int(value)

    def flag(self, index: int) -> bool:
        return self.raw(index).lower() == "true"


def _read_pub(f: _Fields) -> TracePub:
    # A record with 13 fields has no offset id, one with 15 also the client's address.
    full = len(f) != 13
    return TracePub(
        f.number(1), f.text(2), f.text(3), f.text(4), f.text(5), f.text(6), f.text(7), f.text(8),
        f.number(9), f.number(10), f.number(11), f.text(12) if full else None,
        f.flag(13 if full else 12), f.text(14) if len(f) >= 15 else None,
    )  # fmt: skip


def _read_before(f: _Fields) -> TraceSubBefore:
    return TraceSubBefore(
        f.number(1), f.text(2), f.text(3), f.text(4), f.text(5), f.number(6), f.text(7)
    )


def _read_after(f: _Fields) -> TraceSubAfter:
    # Old clients write neither code nor time and group; the cloud's clients write no time and
    # group.
    code = f.number(6) if len(f) >= 7 else 0
    full = len(f) >= 9
    return TraceSubAfter(
        f.text(1), f.text(2), f.number(3), f.flag(4), f.text(5), code,
        f.number(7) if full else 0, f.text(8) if full else None,
    )  # fmt: skip


def _read_end(f: _Fields) -> TraceEndTransaction:
    return TraceEndTransaction(
        f.number(1), f.text(2), f.text(3), f.text(4), f.text(5), f.text(6), f.text(7), f.text(8),
        f.number(9), f.text(10), f.text(11), f.flag(12),
    )  # fmt: skip


def _read_recall(f: _Fields) -> TraceRecall:
    return TraceRecall(f.number(1), f.text(2), f.text(3), f.text(4), f.text(5), f.flag(6))


_READERS: dict[str, Callable[[_Fields], TraceRecord]] = {
    TracePub.NAME: _read_pub,
    TraceSubBefore.NAME: _read_before,
    TraceSubAfter.NAME: _read_after,
    TraceEndTransaction.NAME: _read_end,
    TraceRecall.NAME: _read_recall,
}
