"""The settings of an embedded cluster, for `EmbeddedCluster`, `serve` and the fixture.

Settings of a broker are in `BrokerConfig`; here are only those of the cluster around it.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Self, Unpack

from rocketstream._util.clock import SYSTEM_CLOCK, Clock
from rocketstream._util.machine import is_loopback
from rocketstream._util.workers import Workers
from rocketstream.errors import ConfigurationError
from rocketstream.protocol.addresses import parse_address
from rocketstream.server.broker.config import BrokerConfig
from rocketstream.server.keywords import EmbeddedKeywords
from rocketstream.server.store import Files, StoreConfig
from rocketstream.settings import setting, unknown_setting

BROKERS_MAX = 26
PORTS_APART = 10
"""A broker has three ports: its own, two below it for VIP channels, one above for replication."""
SMALL_STORE = StoreConfig(
    commit_log_file_bytes=64 * 1024 * 1024,
    consume_queue_file_bytes=30_000 * 20,
    index_slots=100_000,
    index_entries=400_000,
)
"""File sizes for temporary stores: disk space is reserved in small steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddedSettings(BrokerConfig):
    """All settings of an embedded cluster; times are milliseconds.

    The settings of a broker have the names they have in `BrokerConfig`: ``flush``,
    ``delay_levels``, ``auto_create_topics``, ``retention`` and so on. One value may serve any
    number of clusters: the store directory is not a setting, and ports are free ones unless given.

    Attributes:
        broker_port: port of the broker; 0 takes a free one.
        namesrv_port: port of the name server; 0 takes a free one.
        namesrv_addrs: name servers to join, ``host:port`` each; then no name server is started.
        brokers: how many brokers there are; 0 starts the name server alone. The first is called
            ``broker_name``, the others have similar names. Several brokers each have a directory of
            their name, and of a given port each next broker takes the tenth after.
        store_config: sizes of the store's files; None takes upstream's, and small ones
            (`SMALL_STORE`) for a temporary directory.
        insecure: allow an address that others can reach without access control and TLS.
        clock: the source of all times.
        files: the disk of the servers; None takes the machine's.
        workers: what runs background work; None takes threads.
    """

    broker_port: int = setting(0, low=0, high=65_535, java="listenPort")
    namesrv_port: int = setting(0, low=0, high=65_535, java="")
    brokers: int = setting(1, low=0, high=BROKERS_MAX, java="")
    insecure: bool = setting(False, java="")
    clock: Clock = setting(SYSTEM_CLOCK, java="", shown="the machine's")
    files: Files | None = setting(None, java="")
    workers: Workers | None = setting(None, java="")

    def check(self) -> None:
        """Check the values, as far as possible before anything is opened.

        Raises:
            ConfigurationError: the text names the value and what is accepted.
        """
        BrokerConfig.check(self)
        if self.namesrv_addrs and not self.brokers:
            raise ConfigurationError(
                "with namesrv_addrs and brokers=0 there is nothing to start: namesrv_addrs names "
                "a name server that runs already",
                namesrv_addrs=self.namesrv_addrs,
            )
        for address in self.namesrv_addrs:
            parse_address(address)
        check_exposure(
            self.host,
            self.insecure,
            has_acl=self.acl is not None,
            enforces_tls=self.tls is not None and self.tls.mode == "enforcing",
        )

    def of_broker(self, number: int, namesrv_addrs: tuple[str, ...]) -> Self:
        """Return the settings of one of the brokers.

        Args:
            number: 0 is the first.
            namesrv_addrs: the name servers it registers with.
        """
        return dataclasses.replace(
            self,
            broker_name=_name(self.broker_name, number),
            broker_port=self.broker_port and self.broker_port + PORTS_APART * number,
            namesrv_addrs=namesrv_addrs,
        )

    def changed(self, **changes: Unpack[EmbeddedKeywords]) -> Self:
        """Return settings like these with some changed.

        Raises:
            ConfigurationError: a name is not that of a setting; the text names similar ones.
        """
        known = {field.name for field in dataclasses.fields(self)}
        for name in changes:
            if name not in known:
                raise unknown_setting(
                    "EmbeddedCluster", name, (type(self),), ("store_dir", "settings")
                )
        return dataclasses.replace(self, **changes)


def _name(first: str, number: int) -> str:
    """Return a broker's name: broker-a, broker-b, …; for another first name name-2, name-3, …"""
    if not number:
        return first
    if first.endswith("-a"):
        return first[:-1] + chr(ord("a") + number)
    return f"{first}-{number + 1}"


def check_exposure(
    host: str, insecure: bool, *, has_acl: bool = False, enforces_tls: bool = False
) -> None:
    """Refuse an address that others can reach, unless it is protected or allowed.

    Args:
        host: address to listen on.
        insecure: allow others to reach it without any protection.
        has_acl: whether the broker has accounts.
        enforces_tls: whether plain connections are refused.

    Raises:
        ConfigurationError: ``host`` is not loopback, ``insecure`` is false, and accounts or TLS are
            missing.
    """
    lacking = []
    if not has_acl:
        lacking.append("access control (acl, --acl)")
    if not enforces_tls:
        lacking.append("TLS for everybody (tls with mode='enforcing', --tls-mode enforcing)")
    if lacking and not insecure and not is_loopback(host):
        raise ConfigurationError(
            f"host {host!r} can be reached from other machines and there is no "
            f"{' and no '.join(lacking)}: give it, use 127.0.0.1, or allow it with --insecure "
            "(insecure=True)",
            host=host,
        )
