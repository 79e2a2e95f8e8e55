"""Rows of a DataFrame as the messages a listener gets.

A message equals the one the source read, whatever else was done to the row, because only the
columns named here count.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

from rocketstream.errors import ConfigurationError, LocalProtocolError
from rocketstream.model import MessageQueue
from rocketstream.protocol.message_ext import MessageExt, assemble_message, reassembled
from rocketstream.protocol.names import retry_topic
from rocketstream.protocol.properties import PROPERTY_RETRY_TOPIC
from rocketstream.protocol.record import pack_host
from rocketstream.spark.columns import COLUMNS

NEEDED: Final = (
    "topic", "brokerName", "queueId", "queueOffset", "commitLogOffset", "reconsumeTimes",
    "properties", "body",
)  # fmt: skip
"""Columns without which a message cannot be given to a listener, or sent back."""
ALSO_READ: Final = (
    "flag", "sysFlag", "bornTimestamp", "storeTimestamp", "bornHost", "storeHost",
)  # fmt: skip
"""Columns a listener sees if the rows have them."""
_READ: Final = (*NEEDED, *ALSO_READ)
READ_COLUMNS: Final = ", ".join(f"{name} {COLUMNS[name]}" for name in _READ)
"""All of these columns as Spark DDL: what to read when nothing else is done with the rows."""
_OR_TEXT: Final = {"body": "string"}
_EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_MS: Final = datetime.timedelta(milliseconds=1)
_NO_HOST: Final = bytes(8)


def check_columns(fields: Sequence[tuple[str, str]]) -> dict[str, str]:
    """Return the column for each value of a message, by our name of the value.

    Args:
        fields: name and Spark type of the existing columns.

    Raises:
        ConfigurationError: a column is missing or of another type; the error names all of them.
    """
    there = {label.lower(): (label, kind) for label, kind in fields}
    found: dict[str, str] = {}
    wrong: list[str] = []
    for name in _READ:
        label, kind = there.get(name.lower(), (None, ""))
        if label is None:
            if name in NEEDED:
                wrong.append(f"{name} ({COLUMNS[name]}) is missing")
        elif kind not in (COLUMNS[name], _OR_TEXT.get(name)):
            wrong.append(f"{label} is {kind}, not {COLUMNS[name]}")
        else:
            found[name] = label
    if wrong:
        raise ConfigurationError(
            f"the rows cannot be consumed: {'; '.join(wrong)}. A listener needs the columns "
            f"{', '.join(NEEDED)} as format('rocketmq') gives them; do not drop or retype them",
            columns=[label for label, _ in fields],
        )
    return found


class Messages:
    """Makes messages of rows, for one group.

    Args:
        columns: as ``check_columns`` returns them.
        group: the consumer group; messages of its retry topic get their original topic back.
    """

    def __init__(self, columns: Mapping[str, str], group: str) -> None:
        self._labels = [columns.get(name) for name in _READ]
        self._retry_topic = retry_topic(group)

    def of(self, rows: Any) -> Iterator[tuple[MessageQueue, MessageExt]]:
        """Yield the messages of a record batch, or of one row, with the queues they are from.

        Raises:
            LocalProtocolError: a row has a null where a message needs a value.
        """
        if hasattr(rows, "num_rows"):
            count = rows.num_rows
            columns = [
                [None] * count if label is None else _values(rows.column(label), name)
                for name, label in zip(_READ, self._labels, strict=True)
            ]
            for values in zip(*columns, strict=True):
                yield self._message(values)
        else:
            yield self._message([None if label is None else rows[label] for label in self._labels])

    def _message(self, values: Sequence[Any]) -> tuple[MessageQueue, MessageExt]:
        if None in values[: len(NEEDED)]:
            raise _null(values)
        (
            topic, broker_name, queue_id, queue_offset, commit_log_offset, reconsume_times,
            properties, body, flag, sys_flag, born, stored, born_host, store_host,
        ) = values  # fmt: skip
        queue = MessageQueue(topic, broker_name, queue_id)
        message = assemble_message(
            queue,
            queue_offset,
            body.encode() if isinstance(body, str) else bytes(body),
            properties if isinstance(properties, dict) else dict(properties),
            commit_log_offset=commit_log_offset,
            reconsume_times=reconsume_times,
            flag=flag or 0,
            sys_flag=sys_flag or 0,
            born_timestamp=_ms(born),
            born_host=_packed(born_host),
            store_timestamp=_ms(stored),
            store_host=_packed(store_host),
        )
        return queue, self._under_first_topic(message)

    def untouched(self, queue: MessageQueue, message: MessageExt) -> MessageExt:
        """Return a message as it was before the listener had it; its changes are not sent back."""
        return self._under_first_topic(reassembled(message, queue))

    def _under_first_topic(self, message: MessageExt) -> MessageExt:
        if message.topic == self._retry_topic:
            # C-261: a listener never sees the retry topic.
            message._topic = message.properties.get(PROPERTY_RETRY_TOPIC, message.topic)
        return message


def _values(column: Any, name: str) -> list[Any]:
    if COLUMNS[name] == "timestamp":
        column = column.cast("int64")  # microseconds: Spark's only unit
    values: list[Any] = column.to_pylist()
    return values


def _null(values: Sequence[Any]) -> LocalProtocolError:
    row = dict(zip(NEEDED, values, strict=False))
    names = [name for name, value in row.items() if value is None]
    return LocalProtocolError(
        f"column {names[0]} is null in a row to be consumed: offset {row['queueOffset']} of topic "
        f"{row['topic']!r}, broker {row['brokerName']!r}, queue {row['queueId']}"
    )


def _ms(moment: datetime.datetime | int | None) -> int:
    if moment is None:
        return 0
    if isinstance(moment, int):
        return moment // 1_000
    if moment.tzinfo is None:  # unlike Arrow, rows have times in the machine's zone
        moment = moment.astimezone(datetime.UTC)
    return (moment - _EPOCH) // _MS


@lru_cache(maxsize=1024)
def _packed(host: str | None) -> bytes:
    address, _, port = (host or "").rpartition(":")
    try:
        return pack_host(address.strip("[]"), int(port))
    except (ValueError, LocalProtocolError):
        return _NO_HOST
