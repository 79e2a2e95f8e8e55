"""What a broker is configured with.

Law: values and their checks; nothing is opened here.
"""

from __future__ import annotations

import ipaddress
import ssl
from dataclasses import dataclass
from typing import Literal

from rocketstream import limits
from rocketstream.errors import ConfigurationError
from rocketstream.protocol import names
from rocketstream.protocol.names import check_topic
from rocketstream.server.broker.core.schedule import DEFAULT_DELAY_LEVELS, parse_delay_levels
from rocketstream.server.broker.core.transactions import CheckRules
from rocketstream.server.store import StoreConfig


@dataclass(frozen=True, slots=True)
class BrokerConfig:
    """Names, addresses and behaviour of one broker; defaults are upstream's.

    Attributes:
        advertise_host: address given to clients and written into records; None takes ``host``.
        namesrv_addrs: name servers to register with, ``host:port`` each.
        flush: ``sync`` answers a send only when its bytes are on the disk.
        store: file sizes and limits of the store; its flush and delay levels are taken from here.
        delay_levels: delays of level 1, 2, …, such as ``1s 5s 10m``.
        offset_persist_interval_ms: how long changed offsets wait at most to be written; they are
            written sooner as long as that costs little, and so with the two intervals after it.
        repair_store: set damage of the store aside and go on, instead of refusing to start.
        trace_topic: make the topic of message trace at start (traceTopicEnable).
        trace_topic_name: what it is called (msgTraceTopicName).
        enable_property_filter: take SQL92 subscriptions; upstream does not unless told to.
        filter_support_retry: filter retried messages by the condition on their first topic too.
        vip_port: whether to listen on ``port`` - 2 too, for clients with vipChannelEnabled (W 1.7).
        register_interval_ms: how often the broker registers anew; within 10 to 60 s.
        store_reply_message: whether replies to requests are stored besides being pushed.
        reject_transaction_message: refuse transactional sends with code 16.
        transaction_timeout_ms: how old a half message is before its producer is asked.
        transaction_check_interval_ms: how often producers are asked.
        transaction_check_max: so many questions later the message is given up.
    """

    broker_name: str = "broker-a"
    cluster_name: str = "DefaultCluster"
    broker_id: int = 0
    host: str = "127.0.0.1"
    port: int = 10911
    advertise_host: str | None = None
    namesrv_addrs: tuple[str, ...] = ()
    flush: Literal["async", "sync"] = "async"
    delay_levels: str = DEFAULT_DELAY_LEVELS
    auto_create_topics: bool = True
    auto_create_groups: bool = True
    default_topic_queue_nums: int = 8
    trace_topic: bool = False
    trace_topic_name: str = names.TRACE_TOPIC
    store: StoreConfig = StoreConfig()  # noqa: RUF009 (frozen)
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
    repair_store: bool = False
    ssl_context: ssl.SSLContext | None = None

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
        if self.transaction_check_interval_ms < 1:
            raise ConfigurationError(
                f"transaction_check_interval_ms {self.transaction_check_interval_ms} is not "
                "accepted: give 1 or more",
                transaction_check_interval_ms=self.transaction_check_interval_ms,
            )
        if not 0 <= self.port <= 65_535:
            raise ConfigurationError(
                f"port {self.port} is not accepted: give 0 (a free one) to 65535", port=self.port
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
