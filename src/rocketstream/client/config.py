"""Settings every client kind shares, and who a client is: its address, its id, its message ids.

Law: values and look-ups of this machine; no connections.
"""

from __future__ import annotations

import itertools
import os
import secrets
import socket
import ssl
from dataclasses import dataclass, replace
from datetime import datetime
from functools import lru_cache

from rocketstream._util.clock import SYSTEM_CLOCK, Clock
from rocketstream.errors import ConfigurationError
from rocketstream.protocol.message_id import UniqueIdGenerator
from rocketstream.transport.addresses import parse_addresses

NAMESRV_ADDR_VARIABLE = "NAMESRV_ADDR"
DEFAULT_INSTANCE_NAME = "DEFAULT"

_instance_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True)
class ClientConfig:
    """Settings of a client instance (C-1 to C-20).

    Attributes:
        namesrv_addr: ``host:port``, several joined by ``;``; None takes the environment variable
            NAMESRV_ADDR.
        client_ip: first part of the client id; None takes this machine's address.
        instance_name: second part; DEFAULT becomes one of its own per client (C-114).
        unit_name: third part, usually none.
        poll_name_server_interval_ms: how often routes are refreshed.
        heartbeat_broker_interval_ms: how often brokers hear of this client.
        persist_consumer_offset_interval_ms: how often changed offsets are sent to brokers.
        rebalance_interval_ms: how often queues are divided anew without being told to.
        pull_time_delay_ms_when_exception: pause after a failed pull.
        vip_channel_enabled: use the broker's port - 2 for all but pulls and heartbeats (C-13).
        access_key: ACL user, with ``secret_key``.
        secret_key: ACL secret; never shown.
        security_token: token of a temporary ACL user.
        ssl_context: TLS for every connection; None for plain.
        api_timeout_ms: bound of route look-ups, heartbeats and member lists.
        connect_timeout_ms: bound of one connect.
    """

    namesrv_addr: str | None = None
    client_ip: str | None = None
    instance_name: str = DEFAULT_INSTANCE_NAME
    unit_name: str | None = None
    poll_name_server_interval_ms: int = 30_000
    heartbeat_broker_interval_ms: int = 30_000
    persist_consumer_offset_interval_ms: int = 5_000
    rebalance_interval_ms: int = 20_000
    pull_time_delay_ms_when_exception: int = 1_000
    vip_channel_enabled: bool = False
    access_key: str | None = None
    secret_key: str | None = None
    security_token: str | None = None
    ssl_context: ssl.SSLContext | None = None
    api_timeout_ms: int = 3_000
    connect_timeout_ms: int = 3_000

    def __repr__(self) -> str:
        return (
            f"ClientConfig(namesrv_addr={self.namesrv_addr!r}, client_ip={self.client_ip!r}, "
            f"instance_name={self.instance_name!r})"
        )

    def name_servers(self) -> list[str]:
        """Return the addresses to ask for routes.

        Raises:
            ConfigurationError: none given and none in the environment, or not ``host:port``.
        """
        text = self.namesrv_addr or os.environ.get(NAMESRV_ADDR_VARIABLE, "")
        if not text.strip():
            raise ConfigurationError(
                "No name server address, please set it: "
                f"namesrv_addr='host:9876' or the environment variable {NAMESRV_ADDR_VARIABLE}"
            )
        return parse_addresses(text)

    def checked(self) -> ClientConfig:
        """Return this configuration if its numbers can be used.

        Raises:
            ConfigurationError: an interval or timeout that is not positive.
        """
        for name in _POSITIVE:
            value = getattr(self, name)
            if not isinstance(value, int) or value <= 0:
                raise ConfigurationError(
                    f"{name} must be a positive number of milliseconds, not {value!r}",
                    **{name: value},
                )
        return self

    def with_own_instance(self, clock: Clock = SYSTEM_CLOCK) -> ClientConfig:
        """Return the configuration with DEFAULT replaced by a name of its own (C-114)."""
        if self.instance_name != DEFAULT_INSTANCE_NAME:
            return self
        nanos = int(clock.monotonic_ms() * 1_000_000) + next(_instance_numbers)
        return replace(self, instance_name=f"{os.getpid()}#{nanos}")

    def client_id(self) -> str:
        """Return the id brokers know this client by (C-19)."""
        parts = [self.client_ip or local_address(), self.instance_name]
        if self.unit_name and not self.unit_name.isspace():
            parts.append(self.unit_name)
        return "@".join(parts)


_POSITIVE = (
    "poll_name_server_interval_ms",
    "heartbeat_broker_interval_ms",
    "persist_consumer_offset_interval_ms",
    "rebalance_interval_ms",
    "pull_time_delay_ms_when_exception",
    "api_timeout_ms",
    "connect_timeout_ms",
)


def with_namesrv(config: ClientConfig | None, namesrv_addr: str | None) -> ClientConfig:
    """Return the configuration a client was given by either of two ways.

    Raises:
        ConfigurationError: a number in it cannot be used.
    """
    config = (config or ClientConfig()).checked()
    return config if namesrv_addr is None else replace(config, namesrv_addr=namesrv_addr)


@lru_cache(maxsize=1)
def local_address() -> str:
    """Return this machine's address towards others; the loopback one when it has no other."""
    for family, probe in ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1")):
        # Connecting a datagram socket sends nothing; it only asks the routing table.
        try:
            with socket.socket(family, socket.SOCK_DGRAM) as sock:
                sock.connect((probe, 9))
                return str(sock.getsockname()[0])
        except OSError:
            continue
    return "127.0.0.1"


_generators: dict[int, UniqueIdGenerator] = {}


def unique_ids() -> UniqueIdGenerator:
    """Return this process's generator of UNIQ_KEYs; a forked child gets its own."""
    pid = os.getpid()
    generator = _generators.get(pid)
    if generator is None:
        generator = UniqueIdGenerator(
            _packed(local_address()), pid, secrets.randbits(32), month_start_ms
        )
        generator = _generators.setdefault(pid, generator)
    return generator


def month_start_ms(now_ms: int) -> int:
    """Return when the month of ``now_ms`` began, local time, ms since 1970."""
    start = datetime.fromtimestamp(now_ms / 1000).replace(
        day=1, hour=0, minute=0, second=0, microsecond=0
    )
    return int(start.timestamp() * 1000)


def _packed(address: str) -> bytes:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    return socket.inet_pton(family, address)
