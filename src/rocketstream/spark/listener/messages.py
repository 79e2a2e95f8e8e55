"""Rows of a DataFrame as the messages a listener gets, and the requests for those that failed.

Pure: a message equals the one the source read, whatever else was done to the row, because only the
columns named here count. A failed one goes back to its broker, or is sent as a new one, by the
push consumer's rules (``client.consumer.retry``).
"""

from __future__ import annotations

import datetime
import itertools
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from rocketstream.client.consumer.retry import RetryMessage, dead_letter_message, fallback_message
from rocketstream.columns.table import COLUMNS
from rocketstream.errors import ConfigurationError, LocalProtocolError
from rocketstream.model import MessageQueue
from rocketstream.protocol.codes import RequestCode
from rocketstream.protocol.command import RemotingCommand
from rocketstream.protocol.compression import compress
from rocketstream.protocol.headers import (
    ConsumerSendMsgBackRequestHeader,
    SendMessageRequestHeader,
)
from rocketstream.protocol.message_ext import MessageExt, assemble_message, reassembled
from rocketstream.protocol.names import (
    AUTO_CREATE_TOPIC,
    CLIENT_INNER_PRODUCER_GROUP,
    retry_topic,
)
from rocketstream.protocol.properties import (
    PROPERTIES_CRC,
    PROPERTY_CRC32,
    PROPERTY_RETRY_TOPIC,
    encode_properties,
)
from rocketstream.protocol.record import pack_host

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
_BETWEEN: Final = "\x01"
_PAIR_END: Final = "\x02"
_SEALS: Final = pa.array([PROPERTY_CRC32, PROPERTIES_CRC])
"""Properties of a stored record that reading a text leaves out."""
COMPRESS_BODY_OVER: Final = 4096
"""Java's inner producer compresses from this size on; the row's body is already inflated."""
_DEFAULT_QUEUES: Final = 4


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
        self._needed = [columns[name] for name in NEEDED]
        self._retry_topic = retry_topic(group)
        self._queues: dict[tuple[str, str, int], MessageQueue] = {}

    def of(self, rows: Any) -> Iterator[tuple[MessageQueue, MessageExt]]:
        """Yield the messages of a record batch, or of one row, with the queues they are from.

        Raises:
            LocalProtocolError: a row has a null where a message needs a value.
        """
        if hasattr(rows, "num_rows"):
            values = [
                itertools.repeat(None, rows.num_rows)
                if label is None
                else _values(rows.column(label), name)
                for name, label in zip(_READ, self._labels, strict=True)
            ]
            has_nulls = any(rows.column(label).null_count for label in self._needed)
            for each in zip(*values, strict=True):
                if has_nulls and None in each[: len(NEEDED)]:
                    raise _null(each)
                yield self._message(each)
        else:
            row = [None if label is None else rows[label] for label in self._labels]
            if None in row[: len(NEEDED)]:
                raise _null(row)
            *others, born, stored, born_host, store_host = row
            yield self._message([*others, _ms(born), _ms(stored), born_host, store_host])

    def _message(self, values: Sequence[Any]) -> tuple[MessageQueue, MessageExt]:
        (
            topic, broker_name, queue_id, queue_offset, commit_log_offset, reconsume_times,
            properties, body, flag, sys_flag, born, stored, born_host, store_host,
        ) = values  # fmt: skip
        place = topic, broker_name, queue_id
        queue = self._queues.get(place)
        if queue is None:
            queue = self._queues[place] = MessageQueue(topic, broker_name, queue_id)
        if type(body) is not bytes:
            body = body.encode() if isinstance(body, str) else bytes(body)
        message = assemble_message(
            queue,
            queue_offset,
            body,
            properties if isinstance(properties, bytes | dict) else dict(properties),
            commit_log_offset=commit_log_offset,
            reconsume_times=reconsume_times,
            flag=flag or 0,
            sys_flag=sys_flag or 0,
            born_timestamp=born or 0,
            born_host=_packed(born_host),
            store_timestamp=stored or 0,
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
    kind = COLUMNS[name]
    if kind == "timestamp":
        column = column.cast("int64")  # microseconds: Spark's only unit
        return [None if us is None else us // 1_000 for us in column.to_pylist()]
    if name == "properties" and _as_stored(column):
        texts = pc.binary_join_element_wise(column.keys, column.items, _BETWEEN)
        column = pc.binary_join(pa.ListArray.from_arrays(column.offsets, texts), _PAIR_END)
        column = column.cast(pa.binary())
    values: list[Any] = column.to_pylist()
    return values


def _as_stored(column: Any) -> bool:
    """Whether the text of every row's properties, read again, gives the same properties."""
    if column.null_count or not pa.types.is_string(column.type.item_type):
        return False
    names, values = column.keys, column.items
    marks = f"[{_BETWEEN}{_PAIR_END}]"
    for texts in (names, values):
        shortest = pc.min(pc.binary_length(texts)).as_py()
        if texts.null_count or shortest == 0:
            return False
        if pc.any(pc.match_substring_regex(texts, marks)).as_py():
            return False
    return not pc.any(pc.is_in(names, _SEALS)).as_py()


def _null(values: Sequence[Any]) -> LocalProtocolError:
    row = dict(zip(NEEDED, values, strict=False))
    names = [name for name, value in row.items() if value is None]
    return LocalProtocolError(
        f"column {names[0]} is null in a row to be consumed: offset {row['queueOffset']} of topic "
        f"{row['topic']!r}, broker {row['brokerName']!r}, queue {row['queueId']}"
    )


def _ms(moment: datetime.datetime | None) -> int | None:
    if moment is None:
        return None
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


# --- the way back ---------------------------------------------------------------------------------


def send_back_command(
    message: MessageExt, group: str, level: int, max_times: int
) -> RemotingCommand:
    """Return the request by which a broker stores a message for another try (36, C-270).

    Args:
        message: the message under its original topic; the broker finds it by its place in the log.
        group: the group that tries again.
        level: -1 sends it to the dead letters, 0 lets the broker decide, another number is the
            delay level.
        max_times: after how many tries the broker puts it into the dead letters.
    """
    header = ConsumerSendMsgBackRequestHeader(
        message.commit_log_offset,
        group,
        level,
        message.msg_id,
        message.topic,
        False,
        max_times,
        message.broker_name,
    )
    return RemotingCommand.request(RequestCode.CONSUMER_SEND_MSG_BACK, header)


class Replacement:
    """A message that is sent to the retry topic in place of another one.

    Attributes:
        topic: the retry topic.
    """

    __slots__ = ("_body", "_message", "_retry", "_sys_flag", "topic")

    def __init__(self, message: MessageExt, retry: RetryMessage) -> None:
        self.topic: str = retry.topic
        self._retry = retry
        self._message = message
        self._body, self._sys_flag = message.body, 0
        if len(self._body) >= COMPRESS_BODY_OVER:
            self._body, self._sys_flag = compress(self._body)

    @property
    def properties_bytes(self) -> int:
        """The size of the properties as text in bytes; a broker adds its own properties."""
        return len(encode_properties(self._retry.properties).encode())

    def command(self, queue: MessageQueue) -> RemotingCommand:
        """Return the request that stores the message in a queue of the retry topic."""
        retry, message = self._retry, self._message
        header = SendMessageRequestHeader(
            CLIENT_INNER_PRODUCER_GROUP,
            retry.topic,
            AUTO_CREATE_TOPIC,
            _DEFAULT_QUEUES,
            queue.queue_id,
            self._sys_flag,
            message.born_timestamp,
            message.flag,
            encode_properties(retry.properties),
            retry.reconsume_times,
            False,
            retry.max_reconsume_times,
            False,
            queue.broker_name,
        )
        command = RemotingCommand(RequestCode.SEND_MESSAGE_V2)
        command.ext_fields = header.to_ext_v2()
        command.body = self._body
        return command


def anew(message: MessageExt, group: str, level: int, max_times: int) -> Replacement:
    """Return the message to send where a send-back is refused as its place is gone (C-271)."""
    retry = fallback_message(
        group,
        message.topic,
        message.properties,
        origin_message_id=message.offset_msg_id,
        reconsume_times=message.reconsume_times,
        delay_level=level,
        max_times=max_times,
    )
    return Replacement(message, retry)


def dead(message: MessageExt, group: str, max_times: int) -> Replacement:
    """Return the dead letter for a message after an orderly listener's last try (C-289)."""
    retry = dead_letter_message(
        group,
        message.topic,
        message.properties,
        origin_message_id=message.msg_id,
        reconsume_times=message.reconsume_times,
        max_times=max_times,
    )
    return Replacement(message, retry)
