"""Headers of clients and consumer groups: membership, resets, looking into a consumer.

Pure: fields and their wire names.
"""

from __future__ import annotations

from rocketstream.protocol.headers.base import Header, Long, header


@header(client_id="clientID")
class UnregisterClientRequestHeader(Header):
    """Code 35."""

    client_id: str
    producer_group: str | None = None
    consumer_group: str | None = None


@header()
class UnregisterClientResponseHeader(Header):
    """Answer to code 35; empty."""


@header()
class GetConsumerListByGroupRequestHeader(Header):
    """Code 38."""

    consumer_group: str


@header()
class NotifyConsumerIdsChangedRequestHeader(Header):
    """Code 40, broker to client."""

    consumer_group: str


@header()
class GetConsumerConnectionListRequestHeader(Header):
    """Code 203."""

    consumer_group: str


@header()
class GetProducerConnectionListRequestHeader(Header):
    """Code 204."""

    producer_group: str


@header()
class ResetOffsetRequestHeader(Header):
    """Codes 222 and 220; ``queue_id`` and ``offset`` are sent by 5.x only."""

    topic: str
    group: str
    timestamp: Long
    is_force: bool
    queue_id: int | None = None
    offset: Long | None = None


@header()
class GetConsumerStatusRequestHeader(Header):
    """Codes 223 and 221."""

    topic: str
    group: str
    client_addr: str | None = None


@header()
class GetConsumerRunningInfoRequestHeader(Header):
    """Code 307."""

    consumer_group: str
    client_id: str
    jstack_enable: bool | None = False


@header()
class ConsumeMessageDirectlyResultRequestHeader(Header):
    """Code 309."""

    consumer_group: str
    client_id: str | None = None
    msg_id: str | None = None
    broker_name: str | None = None


@header()
class DeleteSubscriptionGroupRequestHeader(Header):
    """Code 207; 5.x calls the switch ``cleanOffset``."""

    group_name: str
    remove_offset: bool | None = False
    clean_offset: bool | None = None
