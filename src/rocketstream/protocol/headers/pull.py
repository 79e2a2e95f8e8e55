"""Headers of pulling, offsets and looking messages up.

Pure: fields and their wire names. Pull requests and replies are read and written by hand: they are
on the hot path of consumer and broker.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self

from rocketstream.protocol.headers.base import Header, Long, header, unreadable


@header()
class PullMessageRequestHeader(Header):
    """Codes 11 and 361."""

    consumer_group: str
    topic: str
    queue_id: int
    queue_offset: Long
    max_msg_nums: int
    sys_flag: int
    commit_offset: Long
    suspend_timeout_millis: Long
    sub_version: Long
    subscription: str | None = None
    expression_type: str | None = None
    bname: str | None = None

    def to_ext(self) -> dict[str, str]:
        """Return the ext map."""
        ext = {
            "consumerGroup": self.consumer_group,
            "topic": self.topic,
            "queueId": str(self.queue_id),
            "queueOffset": str(self.queue_offset),
            "maxMsgNums": str(self.max_msg_nums),
            "sysFlag": str(self.sys_flag),
            "commitOffset": str(self.commit_offset),
            "suspendTimeoutMillis": str(self.suspend_timeout_millis),
            "subVersion": str(self.sub_version),
        }
        if self.subscription is not None:
            ext["subscription"] = self.subscription
        if self.expression_type is not None:
            ext["expressionType"] = self.expression_type
        if self.bname is not None:
            ext["bname"] = self.bname
        return ext

    @classmethod
    def from_ext(cls, ext: Mapping[str, str]) -> Self:
        """Read an ext map.

        Raises:
            RemoteProtocolError: a required field is missing, or a number cannot be read.
        """
        get = ext.get
        try:
            queue_id = int(ext["queueId"])
            queue_offset = int(ext["queueOffset"])
            max_msg_nums = int(ext["maxMsgNums"])
            sys_flag = int(ext["sysFlag"])
            commit_offset = int(ext["commitOffset"])
            suspend = int(ext["suspendTimeoutMillis"])
            sub_version = int(ext["subVersion"])
            made = cls(
                ext["consumerGroup"],
                ext["topic"],
                queue_id,
                queue_offset,
                max_msg_nums,
                sys_flag,
                commit_offset,
                suspend,
                sub_version,
                get("subscription"),
                get("expressionType"),
                get("bname"),
            )
        except (KeyError, ValueError) as error:
            raise unreadable(cls, ext, error) from None
        if (
            -0x8000_0000 <= queue_id <= 0x7FFF_FFFF
            and -0x8000_0000 <= max_msg_nums <= 0x7FFF_FFFF
            and -0x8000_0000 <= sys_flag <= 0x7FFF_FFFF
            and -0x8000_0000_0000_0000 <= queue_offset <= 0x7FFF_FFFF_FFFF_FFFF
            and -0x8000_0000_0000_0000 <= commit_offset <= 0x7FFF_FFFF_FFFF_FFFF
            and -0x8000_0000_0000_0000 <= suspend <= 0x7FFF_FFFF_FFFF_FFFF
            and -0x8000_0000_0000_0000 <= sub_version <= 0x7FFF_FFFF_FFFF_FFFF
        ):
            return made
        raise unreadable(cls, ext, OverflowError("number out of range"))


@header()
class PullMessageResponseHeader(Header):
    """Answer to a pull with codes 0, 19, 20 and 21.

    ``offset_delta`` comes for static topics of 5.x only: what the offset in a record lacks to that
    in the queue asked.
    """

    suggest_which_broker_id: Long
    next_begin_offset: Long
    min_offset: Long
    max_offset: Long
    offset_delta: Long | None = None

    def to_ext(self) -> dict[str, str]:
        """Return the ext map."""
        ext = {
            "suggestWhichBrokerId": str(self.suggest_which_broker_id),
            "nextBeginOffset": str(self.next_begin_offset),
            "minOffset": str(self.min_offset),
            "maxOffset": str(self.max_offset),
        }
        if self.offset_delta is not None:
            ext["offsetDelta"] = str(self.offset_delta)
        return ext

    @classmethod
    def from_ext(cls, ext: Mapping[str, str]) -> Self:
        """Read an ext map.

        Raises:
            RemoteProtocolError: a required field is missing, or a number cannot be read.
        """
        try:
            made = cls(
                int(ext["suggestWhichBrokerId"]),
                int(ext["nextBeginOffset"]),
                int(ext["minOffset"]),
                int(ext["maxOffset"]),
                int(ext["offsetDelta"]) if "offsetDelta" in ext else None,
            )
        except (KeyError, ValueError) as error:
            raise unreadable(cls, ext, error) from None
        if (
            -0x8000_0000_0000_0000 <= made.next_begin_offset <= 0x7FFF_FFFF_FFFF_FFFF
            and -0x8000_0000_0000_0000 <= made.min_offset <= 0x7FFF_FFFF_FFFF_FFFF
            and -0x8000_0000_0000_0000 <= made.max_offset <= 0x7FFF_FFFF_FFFF_FFFF
            and -0x8000_0000_0000_0000 <= made.suggest_which_broker_id <= 0x7FFF_FFFF_FFFF_FFFF
            and -0x8000_0000_0000_0000 <= (made.offset_delta or 0) <= 0x7FFF_FFFF_FFFF_FFFF
        ):
            return made
        raise unreadable(cls, ext, OverflowError("number out of range"))


@header()
class QueryConsumerOffsetRequestHeader(Header):
    """Code 14; ``set_zero_if_not_found`` is sent by 5.x only."""

    consumer_group: str
    topic: str
    queue_id: int
    bname: str | None = None
    set_zero_if_not_found: bool | None = None


@header()
class QueryConsumerOffsetResponseHeader(Header):
    """Answer to code 14."""

    offset: Long


@header()
class UpdateConsumerOffsetRequestHeader(Header):
    """Code 15."""

    consumer_group: str
    topic: str
    queue_id: int
    commit_offset: Long
    bname: str | None = None


@header()
class UpdateConsumerOffsetResponseHeader(Header):
    """Answer to code 15; empty."""


@header()
class SearchOffsetRequestHeader(Header):
    """Code 29; ``boundary_type`` (LOWER, UPPER) is sent by 5.x only."""

    topic: str
    queue_id: int
    timestamp: Long
    bname: str | None = None
    boundary_type: str | None = None


@header()
class SearchOffsetResponseHeader(Header):
    """Answer to code 29."""

    offset: Long


@header()
class GetMaxOffsetRequestHeader(Header):
    """Code 30; ``committed`` is sent by 5.x only."""

    topic: str
    queue_id: int
    bname: str | None = None
    committed: bool | None = None


@header()
class GetMaxOffsetResponseHeader(Header):
    """Answer to code 30."""

    offset: Long


@header()
class GetMinOffsetRequestHeader(Header):
    """Code 31."""

    topic: str
    queue_id: int
    bname: str | None = None


@header()
class GetMinOffsetResponseHeader(Header):
    """Answer to code 31."""

    offset: Long


@header()
class GetEarliestMsgStoretimeRequestHeader(Header):
    """Code 32."""

    topic: str
    queue_id: int
    bname: str | None = None


@header()
class GetEarliestMsgStoretimeResponseHeader(Header):
    """Answer to code 32; -1 for an empty queue."""

    timestamp: Long


@header()
class QueryMessageRequestHeader(Header):
    """Code 12; the ext map also carries ``_UNIQUE_KEY_QUERY``."""

    topic: str
    key: str
    max_num: int
    begin_timestamp: Long
    end_timestamp: Long


@header()
class QueryMessageResponseHeader(Header):
    """Answer to code 12."""

    index_last_update_timestamp: Long
    index_last_update_phyoffset: Long


@header()
class ViewMessageRequestHeader(Header):
    """Code 33."""

    offset: Long


@header()
class ViewMessageResponseHeader(Header):
    """Answer to code 33; empty."""


@header()
class QueryConsumeQueueRequestHeader(Header):
    """Code 321."""

    topic: str
    queue_id: int
    index: Long
    count: int
    consumer_group: str | None = None
