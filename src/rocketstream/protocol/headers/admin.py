"""Headers of topics, statistics and broker configuration.

Pure: fields and their wire names.
"""

from __future__ import annotations

from rocketstream.protocol.headers.base import Header, header


@header()
class CreateTopicRequestHeader(Header):
    """Code 17; ``attributes``, read by 5.x only, is a change: ``+name=value,-name``."""

    topic: str
    default_topic: str
    read_queue_nums: int
    write_queue_nums: int
    perm: int
    topic_filter_type: str = "SINGLE_TAG"
    topic_sys_flag: int | None = 0
    order: bool = False
    attributes: str | None = None


@header()
class DeleteTopicRequestHeader(Header):
    """Code 215."""

    topic: str


@header()
class GetTopicConfigRequestHeader(Header):
    """Code 351 of 5.x."""

    topic: str


@header()
class GetAllTopicConfigResponseHeader(Header):
    """Answer to code 21; empty."""


@header()
class GetTopicStatsInfoRequestHeader(Header):
    """Code 202."""

    topic: str


@header()
class GetConsumeStatsRequestHeader(Header):
    """Code 208."""

    consumer_group: str
    topic: str | None = None


@header()
class GetBrokerConsumeStatsRequestHeader(Header):
    """Code 317."""

    is_order: bool = False


@header()
class QueryTopicConsumeByWhoRequestHeader(Header):
    """Code 300."""

    topic: str


@header()
class QueryConsumeTimeSpanRequestHeader(Header):
    """Code 303."""

    topic: str
    group: str


@header()
class QueryCorrectionOffsetRequestHeader(Header):
    """Code 308."""

    compare_group: str
    topic: str
    filter_groups: str | None = None


@header()
class CloneGroupOffsetRequestHeader(Header):
    """Code 314."""

    src_group: str
    dest_group: str
    topic: str | None = None
    offline: bool = False


@header()
class ViewBrokerStatsDataRequestHeader(Header):
    """Code 315."""

    stats_name: str
    stats_key: str


@header()
class ResumeCheckHalfMessageRequestHeader(Header):
    """Code 323."""

    msg_id: str | None = None


@header()
class GetBrokerConfigResponseHeader(Header):
    """Answer to code 26: the DataVersion as JSON text."""

    version: str


@header()
class CreateAccessConfigRequestHeader(Header):
    """Code 50; the rights are ``NAME=PUB|SUB``, joined by commas."""

    access_key: str
    secret_key: str | None = None
    white_remote_address: str | None = None
    admin: bool = False
    default_topic_perm: str | None = None
    default_group_perm: str | None = None
    topic_perms: str | None = None
    group_perms: str | None = None


@header()
class DeleteAccessConfigRequestHeader(Header):
    """Code 51."""

    access_key: str


@header()
class UpdateGlobalWhiteAddrsConfigRequestHeader(Header):
    """Code 53; unless told, upstream's own tool names no file, and its broker then refuses."""

    global_white_addrs: str
    acl_file_full_path: str | None = None


@header()
class GetBrokerAclConfigResponseHeader(Header):
    """Answer to code 52."""

    version: str
    broker_name: str
    broker_addr: str
    cluster_name: str
    all_acl_file_version: str | None = None


@header()
class QueryTopicsByConsumerRequestHeader(Header):
    """Code 343 of 5.x."""

    group: str


@header()
class AddWritePermOfBrokerResponseHeader(Header):
    """Answer to code 327."""

    add_topic_count: int


@header()
class WipeWritePermOfBrokerResponseHeader(Header):
    """Answer to code 205."""

    wipe_topic_count: int


@header()
class WipeWritePermOfBrokerRequestHeader(Header):
    """Code 205."""

    broker_name: str


@header()
class AddWritePermOfBrokerRequestHeader(Header):
    """Code 327."""

    broker_name: str
