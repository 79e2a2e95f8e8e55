"""What a broker is configured with.

Law: values and their checks; nothing is opened here.
"""

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
from rocketstream.transport.tls import TlsMode


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig:
    """Names, addresses and behaviour of one broker; defaults are upstream's.

    Attributes:
        broker_id: 0 is the master, the only one clients write to.
        host: address to listen on.
        broker_port: port to listen on; 0 takes a free one.
        advertise_host: address given to clients and written into records; None takes ``host``.
        namesrv_addrs: name servers to register with, ``host:port`` each.
        flush: ``sync`` answers a send only when its bytes are on the disk.
        store_config: file sizes and limits of the store, None takes upstream's; its flush, delay
            levels, retention and log files are those given here.
        commit_log_file_bytes: size of a commit log file; None takes what ``store_config`` says.
        retention: how long messages are kept and when they are removed; None takes what
            ``store_config`` says.
        auto_create_topics: whether a send creates its topic.
        auto_create_groups: whether a consumer creates its group.
        default_topic_queue_nums: queues a topic made by a send has at most.
        delay_levels: delays of level 1, 2, …, such as ``1s 5s 10m``.
        offset_persist_interval_ms: how long changed offsets wait at most to be written; they are
            written sooner as long as that costs little, and so with the two intervals after it.
        delay_persist_interval_ms: the same for the progress of delayed messages.
        filter_persist_interval_ms: the same for the conditions of SQL92 subscribers.
        repair: set damage of the store aside and go on, instead of refusing to start.
        trace_topic: make the topic of message trace at start (traceTopicEnable).
        trace_topic_name: what it is called (msgTraceTopicName).
        enable_property_filter: take SQL92 subscriptions; upstream does not unless told to.
        filter_support_retry: filter retried messages by the condition on their first topic too.
        vip_port: whether to listen two ports below too, for clients with vipChannelEnabled (W 1.7).
        register_interval_ms: how often the broker registers anew; within 10 to 60 s.
        store_reply_message: whether replies to requests are stored besides being pushed.
        reject_transaction_message: refuse transactional sends with code 16.
        transaction_timeout_ms: how old a half message is before its producer is asked.
        transaction_check_interval_ms: how often producers are asked.
        transaction_check_max: so many questions later the message is given up.
        ssl_context: speak TLS as well as plain text with it, on the same port.
        tls: the certificate to speak TLS with, and whether everybody must, instead of
            ``ssl_context``.
        acl: plain_acl.yml, or the directory it is in; requests then need an account of it. None
            lets everybody do everything.
    """

    broker_name: str = "broker-a"
    cluster_name: str = "DefaultCluster"
    broker_id: int = 0
    host: str = "127.0.0.1"
    broker_port: int = 10911
    advertise_host: str | None = None
    namesrv_addrs: tuple[str, ...] = ()
    flush: Literal["async", "sync"] = "async"
    delay_levels: str = DEFAULT_DELAY_LEVELS
    auto_create_topics: bool = True
    auto_create_groups: bool = True
    default_topic_queue_nums: int = 8
    trace_topic: bool = False
    trace_topic_name: str = names.TRACE_TOPIC
    store_config: StoreConfig | None = None
    commit_log_file_bytes: int | None = None
    retention: RetentionConfig | None = None
    region: str = "DefaultRegion"
    message_body_bytes_max: int = limits.MESSAGE_BODY_BYTES_MAX
    offset_persist_interval_ms: int = 5_000
    delay_persist_interval_ms: int = 10_000
    filter_persist_interval_ms: int = 10_000
    register_interval_ms: int = 30_000
    flush_timeout_ms: int = limits.SYNC_FLUSH_TIMEOUT_MS
    store_reply_message: bool = True
    reject_transaction_message: bool = False
    transaction_timeout_ms: int = 6_000
    transaction_check_interval_ms: int = 60_000
    transaction_check_max: int = 15
    enable_property_filter: bool = True
    filter_support_retry: bool = False
    vip_port: bool = False
    repair: bool = False
    ssl_context: ssl.SSLContext | None = None
    tls: ServerTls | None = None
    acl: Path | str | None = None

    def listening_with(self) -> tuple[ssl.SSLContext | None, TlsMode]:
        """Return what servers listen with.

        Raises:
            ConfigurationError: a file of the certificate cannot be used.
        """
        if self.tls is None:
            return self.ssl_context, "permissive"
        if self.tls.mode == "disabled":
            return None, "disabled"
        return self.tls.context(), self.tls.mode

    @property
    def store(self) -> StoreConfig:
        """What the store is opened with."""
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
        """When half messages are checked and given up."""
        return CheckRules(
            self.transaction_timeout_ms,
            self.transaction_check_max,
            self.store.retention.file_reserved_ms,
        )

    def check(self) -> None:
        """Check what can be checked before anything is opened.

        Raises:
            ConfigurationError: the text names the value and what is accepted.
        """
        parse_delay_levels(self.delay_levels)
        for what, name in (("broker name", self.broker_name), ("cluster name", self.cluster_name)):
            try:
                # Both become topics, which is why they obey the rules for topics.
                check_topic(name)
            except ConfigurationError as error:
                raise ConfigurationError(f"the {what} {name!r} is not accepted: {error}") from None
        if self.flush not in ("async", "sync"):
            raise ConfigurationError(
                f"flush {self.flush!r} is not accepted: give 'async' or 'sync'", flush=self.flush
            )
        for name, least in _LEAST.items():
            value = getattr(self, name)
            if value is not None and value < least:
                raise ConfigurationError(
                    f"{name} {value} is not accepted: give {least} or more", **{name: value}
                )
        check_port("broker_port", self.broker_port)
        if self.tls is not None:
            self.tls.check()
            if self.ssl_context is not None:
                raise ConfigurationError("tls and ssl_context are both given: give one of them")
        self.store.retention.check()


_LEAST = {
    "broker_id": 0,
    "commit_log_file_bytes": 4096,
    "default_topic_queue_nums": 1,
    "delay_persist_interval_ms": 1,
    "filter_persist_interval_ms": 1,
    "flush_timeout_ms": 1,
    "message_body_bytes_max": 1,
    "offset_persist_interval_ms": 1,
    "register_interval_ms": 1,
    "transaction_check_interval_ms": 1,
    "transaction_check_max": 0,
    "transaction_timeout_ms": 0,
}


def check_port(name: str, port: int) -> None:
    """Refuse what is no port to listen on.

    Raises:
        ConfigurationError: the text names the setting and the value.
    """
    if not 0 <= port <= 65_535:
        raise ConfigurationError(
            f"{name} {port} is not accepted: give 0 (a free one) to 65535", **{name: port}
        )


def is_loopback(host: str) -> bool:
    """Whether nothing outside this machine can reach the address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def is_wildcard(host: str) -> bool:
    """Whether the address means every interface."""
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return not host
