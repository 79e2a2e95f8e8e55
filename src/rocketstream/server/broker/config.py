"""The configuration of a broker."""

from __future__ import annotations

import dataclasses
import ipaddress
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rocketstream import limits
from rocketstream.errors import ConfigurationError
from rocketstream.protocol import names
from rocketstream.protocol.names import check_topic
from rocketstream.server.broker.core.schedule import DEFAULT_DELAY_LEVELS, parse_delay_levels
from rocketstream.server.broker.core.transactions import CheckRules
from rocketstream.server.store import RetentionConfig, StoreConfig
from rocketstream.server.tls import ServerTls
from rocketstream.settings import check_values, setting
from rocketstream.transport.tls import TlsMode


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig:
    """Names, addresses and behaviour of one broker; defaults are upstream's.

    Attributes:
        broker_name: its name, by which its queues differ from those of other brokers.
        cluster_name: the cluster it belongs to.
        broker_id: 0 is the master, the only one clients write to.
        host: address to listen on.
        broker_port: port to listen on; 0 takes a free one.
        advertise_host: address given to clients and written into records; None takes ``host``.
        namesrv_addrs: name servers to register with, ``host:port`` each.
        flush: ``sync`` answers a send only when its bytes are on the disk.
        store_config: file sizes and limits of the store, None takes upstream's; flush, delay
            levels, retention and log file size given here override its own.
        commit_log_file_bytes: size of a commit log file; None takes the size in ``store_config``.
        retention: how long messages are kept and when they are removed; None takes the rules in
            ``store_config``.
        auto_create_topics: whether a send creates its topic.
        auto_create_groups: whether a consumer creates its group.
        default_topic_queue_nums: queues a topic made by a send has at most.
        delay_levels: delays of level 1, 2, …, such as ``1s 5s 10m``.
        offset_persist_interval_ms: the longest time changed offsets wait to be written; they are
            written sooner while that costs little.
        delay_persist_interval_ms: the same for the progress of delayed messages.
        filter_persist_interval_ms: the same for the conditions of SQL92 subscribers.
        repair: move damaged parts of the store aside and start, instead of refusing to start.
        region: told to clients, who add it to message trace.
        message_body_bytes_max: most bytes of a body.
        flush_timeout_ms: with ``flush`` sync: how long a send waits for the disk; then its answer
            is FLUSH_DISK_TIMEOUT.
        trace_topic: make the topic of message trace at start (traceTopicEnable).
        trace_topic_name: name of the message trace topic (msgTraceTopicName).
        enable_property_filter: accept SQL92 subscriptions; upstream does so only when configured.
        filter_support_retry: filter retried messages by the condition on their first topic too.
        vip_port: whether to listen two ports below too, for clients with vipChannelEnabled.
        register_interval_ms: how often the broker repeats its registration; within 10 to 60 s.
        store_reply_message: whether replies to requests are stored besides being pushed.
        reject_transaction_message: refuse transactional sends with code 16.
        transaction_timeout_ms: how old a half message is before its producer is asked.
        transaction_check_interval_ms: how often producers are asked.
        transaction_check_max: the message is given up after this many checks.
        ssl_context: context for TLS, served on the same port as plain text.
        tls: the certificate for TLS and whether TLS is required; used instead of ``ssl_context``.
        acl: plain_acl.yml, or the directory it is in; requests then need one of its accounts. None
            lets everybody do everything.
        admin_without_tls: with ``acl``: serve an admin's requests from another machine that come
            without TLS too; a reader of that traffic can send such a request again.
    """

    broker_name: str = "broker-a"
    cluster_name: str = setting(names.DEFAULT_CLUSTER, java="brokerClusterName")
    broker_id: int = setting(0, low=0)
    host: str = setting("127.0.0.1", java="")
    broker_port: int = setting(10911, low=0, high=65_535, java="listenPort")
    advertise_host: str | None = setting(None, java="brokerIP1")
    namesrv_addrs: tuple[str, ...] = setting((), java="namesrvAddr")
    flush: Literal["async", "sync"] = setting("async", java="flushDiskType")
    delay_levels: str = setting(DEFAULT_DELAY_LEVELS, java="messageDelayLevel")
    auto_create_topics: bool = setting(True, java="autoCreateTopicEnable")
    auto_create_groups: bool = setting(True, java="autoCreateSubscriptionGroup")
    default_topic_queue_nums: int = setting(8, low=1, unit="queues")
    trace_topic: bool = setting(False, java="traceTopicEnable")
    trace_topic_name: str = setting(names.TRACE_TOPIC, java="msgTraceTopicName")
    store_config: StoreConfig | None = setting(None, java="")
    commit_log_file_bytes: int | None = setting(None, low=4096, java="mappedFileSizeCommitLog")
    retention: RetentionConfig | None = setting(None, java="")
    region: str = setting("DefaultRegion", java="regionId")
    message_body_bytes_max: int = setting(
        limits.MESSAGE_BODY_BYTES_MAX, low=1, unit="bytes", java="maxMessageSize"
    )
    offset_persist_interval_ms: int = setting(5_000, low=1, java="flushConsumerOffsetInterval")
    delay_persist_interval_ms: int = setting(10_000, low=1, java="flushDelayOffsetInterval")
    filter_persist_interval_ms: int = setting(10_000, low=1, java="")
    register_interval_ms: int = setting(30_000, low=1, java="registerNameServerPeriod")
    flush_timeout_ms: int = setting(limits.SYNC_FLUSH_TIMEOUT_MS, low=1, java="syncFlushTimeout")
    store_reply_message: bool = setting(True, java="storeReplyMessageEnable")
    reject_transaction_message: bool = False
    transaction_timeout_ms: int = setting(6_000, low=0, java="transactionTimeOut")
    transaction_check_interval_ms: int = setting(60_000, low=1)
    transaction_check_max: int = setting(15, low=0, unit="questions")
    enable_property_filter: bool = True
    filter_support_retry: bool = False
    vip_port: bool = setting(False, java="")
    repair: bool = setting(False, java="")
    ssl_context: ssl.SSLContext | None = setting(None, java="")
    tls: ServerTls | None = setting(None, java="")
    acl: Path | str | None = setting(None, java="aclEnable")
    admin_without_tls: bool = setting(False, java="")

    def listening_with(self) -> tuple[ssl.SSLContext | None, TlsMode]:
        """Return the TLS context and mode the broker's ports listen with.

        Raises:
            ConfigurationError: a certificate file cannot be used.
        """
        if self.tls is None:
            return self.ssl_context, "permissive"
        if self.tls.mode == "disabled":
            return None, "disabled"
        return self.tls.context(), self.tls.mode

    @property
    def store(self) -> StoreConfig:
        """The configuration the store is opened with."""
        base = self.store_config or StoreConfig()
        return dataclasses.replace(
            base,
            flush=self.flush,
            delay_levels_ms=parse_delay_levels(self.delay_levels),
            commit_log_file_bytes=self.commit_log_file_bytes or base.commit_log_file_bytes,
            retention=self.retention or base.retention,
        )

    @property
    def check_rules(self) -> CheckRules:
        """The rules by which half messages are checked and given up."""
        return CheckRules(
            self.transaction_timeout_ms,
            self.transaction_check_max,
            self.store.retention.file_reserved_ms,
        )

    def check(self) -> None:
        """Check the values, as far as possible before anything is opened.

        Raises:
            ConfigurationError: the text names the value and what is accepted.
        """
        check_values(self)
        parse_delay_levels(self.delay_levels)
        for what, name in (("broker name", self.broker_name), ("cluster name", self.cluster_name)):
            try:
                # Cluster and broker name become topics, so they obey the rules for topics.
                check_topic(name)
            except ConfigurationError as error:
                raise ConfigurationError(f"the {what} {name!r} is not accepted: {error}") from None
        if self.tls is not None:
            self.tls.check()
            if self.ssl_context is not None:
                raise ConfigurationError("tls and ssl_context are both given: give one of them")
        self.store.retention.check()


def is_wildcard(host: str) -> bool:
    """Whether the address means every interface."""
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return not host
