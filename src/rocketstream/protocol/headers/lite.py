"""Headers of lite topics (RIP-83): receiving, acknowledging, hiding for longer.

Pure: fields and their wire names, those of Apache's 5.5.0.
"""

from __future__ import annotations

from rocketstream.protocol.headers.base import Header, Long, header


@header()
class PopLiteMessageRequestHeader(Header):
    """Code 200070; times are in ms, ``born_time`` since 1970."""

    client_id: str
    consumer_group: str
    topic: str
    max_msg_num: int
    invisible_time: Long
    poll_time: Long
    born_time: Long
    attempt_id: str | None = None


@header()
class PopLiteMessageResponseHeader(Header):
    """Answer to code 200070; ``order_count_info`` has one number a message, joined by ``;``."""

    pop_time: Long
    invisible_time: Long
    revive_qid: int
    start_offset_info: str | None = None
    msg_offset_info: str | None = None
    order_count_info: str | None = None


@header()
class AckMessageRequestHeader(Header):
    """Code 200051; ``lite_topic`` is None for messages of other topics."""

    consumer_group: str
    topic: str
    queue_id: int
    extra_info: str
    offset: Long
    lite_topic: str | None = None
    bname: str | None = None


@header()
class ChangeInvisibleTimeRequestHeader(Header):
    """Code 200053; ``invisible_time`` in ms from now."""

    consumer_group: str
    topic: str
    queue_id: int
    extra_info: str
    offset: Long
    invisible_time: Long
    lite_topic: str | None = None
    bname: str | None = None


@header()
class ChangeInvisibleTimeResponseHeader(Header):
    """Answer to code 200053: what the message's next acknowledgement must name."""

    pop_time: Long
    invisible_time: Long
    revive_qid: int


@header()
class NotifyUnsubscribeLiteRequestHeader(Header):
    """Code 200073, of a broker: another member of an exclusive group has the lite topic now."""

    lite_topic: str
    consumer_group: str
    client_id: str
