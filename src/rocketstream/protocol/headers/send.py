"""Headers of sending, sending back, replies and transactions.

Pure: fields and their wire names. The one-letter names of a V2 send are read and written by hand:
they are on the broker's and the producer's hot path.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Self

from rocketstream.errors import RemoteProtocolError
from rocketstream.protocol.headers.base import Header, Long, bad_field, header, unreadable

_V2_NAMES: Final = {
    "a": "producerGroup", "b": "topic", "c": "defaultTopic", "d": "defaultTopicQueueNums",
    "e": "queueId", "f": "sysFlag", "g": "bornTimestamp", "h": "flag", "i": "properties",
    "j": "reconsumeTimes", "k": "unitMode", "l": "maxReconsumeTimes", "m": "batch", "n": "bname",
}  # fmt: skip


@header()
class SendMessageRequestHeader(Header):
    """Codes 10 and 324; with ``to_ext_v2`` and ``from_ext_v2`` codes 310, 320 and 325."""

    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: int
    queue_id: int
    sys_flag: int
    born_timestamp: Long
    flag: int
    properties: str | None = None
    reconsume_times: int | None = 0
    unit_mode: bool | None = False
    max_reconsume_times: int | None = None
    batch: bool | None = False
    bname: str | None = None

    def to_ext_v2(self) -> dict[str, str]:
        """Return the ext map with one-letter names."""
        ext = {
            "a": self.producer_group,
            "b": self.topic,
            "c": self.default_topic,
            "d": str(self.default_topic_queue_nums),
            "e": str(self.queue_id),
            "f": str(self.sys_flag),
            "g": str(self.born_timestamp),
            "h": str(self.flag),
        }
        if self.properties is not None:
            ext["i"] = self.properties
        if self.reconsume_times is not None:
            ext["j"] = str(self.reconsume_times)
        if self.unit_mode is not None:
            ext["k"] = "true" if self.unit_mode else "false"
        if self.max_reconsume_times is not None:
            ext["l"] = str(self.max_reconsume_times)
        if self.batch is not None:
            ext["m"] = "true" if self.batch else "false"
        if self.bname is not None:
            ext["n"] = self.bname
        return ext

    @classmethod
    def from_ext_v2(cls, ext: Mapping[str, str]) -> Self:
        """Read an ext map with one-letter names.

        Raises:
            RemoteProtocolError: a required field is missing, or a number cannot be read.
        """
        get = ext.get
        try:
            queue_nums = int(ext["d"])
            queue_id = int(ext["e"])
            sys_flag = int(ext["f"])
            born_timestamp = int(ext["g"])
            flag = int(ext["h"])
            reconsume = get("j")
            reconsume_times = 0 if reconsume is None or reconsume == "0" else int(reconsume)
            most = get("l")
            max_reconsume_times = None if most is None else int(most)
            made = cls(
                ext["a"],
                ext["b"],
                ext["c"],
                queue_nums,
                queue_id,
                sys_flag,
                born_timestamp,
                flag,
                get("i"),
                reconsume_times,
                get("k", "false") != "false" and ext["k"].lower() == "true",
                max_reconsume_times,
                get("m", "false") != "false" and ext["m"].lower() == "true",
                get("n"),
            )
        except (KeyError, ValueError) as error:
            raise _unreadable_v2(cls, ext, error) from None
        # In line: a call per number would double the cost of a send's header.
        if (
            -0x8000_0000 <= queue_nums <= 0x7FFF_FFFF
            and -0x8000_0000 <= queue_id <= 0x7FFF_FFFF
            and -0x8000_0000 <= sys_flag <= 0x7FFF_FFFF
            and -0x8000_0000 <= flag <= 0x7FFF_FFFF
            and -0x8000_0000 <= reconsume_times <= 0x7FFF_FFFF
            and -0x8000_0000_0000_0000 <= born_timestamp <= 0x7FFF_FFFF_FFFF_FFFF
            and (max_reconsume_times is None or -0x8000_0000 <= max_reconsume_times <= 0x7FFF_FFFF)
        ):
            return made
        raise _unreadable_v2(cls, ext, OverflowError("number out of range"))


def _unreadable_v2(
    cls: type[Header], ext: Mapping[str, str], error: Exception
) -> RemoteProtocolError:
    return unreadable(cls, {_V2_NAMES.get(name, name): text for name, text in ext.items()}, error)


@header()
class SendMessageResponseHeader(Header):
    """Answer to every send whose message was stored."""

    msg_id: str
    queue_id: int
    queue_offset: Long
    transaction_id: str | None = None

    def to_ext(self) -> dict[str, str]:
        """Return the ext map."""
        ext = {
            "msgId": self.msg_id,
            "queueId": str(self.queue_id),
            "queueOffset": str(self.queue_offset),
        }
        if self.transaction_id is not None:
            ext["transactionId"] = self.transaction_id
        return ext

    @classmethod
    def from_ext(cls, ext: Mapping[str, str]) -> Self:
        """Read an ext map.

        Raises:
            RemoteProtocolError: a required field is missing, or a number cannot be read.
        """
        try:
            queue_id = int(ext["queueId"])
            queue_offset = int(ext["queueOffset"])
            made = cls(ext["msgId"], queue_id, queue_offset, ext.get("transactionId"))
        except (KeyError, ValueError) as error:
            raise unreadable(cls, ext, error) from None
        if not -0x8000_0000 <= queue_id <= 0x7FFF_FFFF:
            raise bad_field(cls, "queueId", ext["queueId"])
        if not -0x8000_0000_0000_0000 <= queue_offset <= 0x7FFF_FFFF_FFFF_FFFF:
            raise bad_field(cls, "queueOffset", ext["queueOffset"])
        return made


@header()
class ConsumerSendMsgBackRequestHeader(Header):
    """Code 36."""

    offset: Long
    group: str
    delay_level: int
    origin_msg_id: str | None = None
    origin_topic: str | None = None
    unit_mode: bool | None = False
    max_reconsume_times: int | None = None
    bname: str | None = None


@header()
class EndTransactionRequestHeader(Header):
    """Code 37."""

    producer_group: str
    tran_state_table_offset: Long
    commit_log_offset: Long
    commit_or_rollback: int
    msg_id: str
    from_transaction_check: bool | None = False
    transaction_id: str | None = None
    bname: str | None = None


@header()
class CheckTransactionStateRequestHeader(Header):
    """Code 39, broker to client."""

    tran_state_table_offset: Long
    commit_log_offset: Long
    msg_id: str | None = None
    transaction_id: str | None = None
    offset_msg_id: str | None = None
    bname: str | None = None


@header()
class ReplyMessageRequestHeader(Header):
    """Code 326, broker to client."""

    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: int
    queue_id: int
    sys_flag: int
    born_timestamp: Long
    flag: int
    born_host: str
    store_host: str
    store_timestamp: Long
    properties: str | None = None
    reconsume_times: int | None = None
    unit_mode: bool | None = False


@header()
class RecallMessageRequestHeader(Header):
    """Code 370, from 5.3.1 on."""

    topic: str
    recall_handle: str
    producer_group: str | None = None
    bname: str | None = None


@header()
class RecallMessageResponseHeader(Header):
    """Answer to code 370: the id of the message taken back."""

    msg_id: str
