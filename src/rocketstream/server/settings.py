"""What an embedded cluster is set up with, for `EmbeddedCluster`, `serve` and the fixture.

Law: values and their checks; nothing is opened here. What a broker is set up with is
`BrokerConfig`'s; only what the cluster around it needs stands here.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Self, Unpack

from rocketstream._util.clock import SYSTEM_CLOCK, Clock
from rocketstream._util.workers import Workers
from rocketstream.errors import ConfigurationError
from rocketstream.server.broker.config import BrokerConfig, is_loopback
from rocketstream.server.keywords import EmbeddedKeywords
from rocketstream.server.store import Files, StoreConfig
from rocketstream.settings import setting, unknown_setting
from rocketstream.transport.addresses import parse_address

BROKERS_MAX = 26
PORTS_APART = 10
"""A broker has three ports: its own, two below it for VIP channels, one above for replication."""
SMALL_STORE = StoreConfig(
    commit_log_file_bytes=64 * 1024 * 1024,
    consume_queue_file_bytes=30_000 * 20,
    index_slots=100_000,
    index_entries=400_000,
)
"""File sizes for stores that are thrown away: disk space is reserved in small steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddedSettings(BrokerConfig):
    """All settings of an embedded cluster; times are milliseconds.

    Those of a broker are `BrokerConfig`'s, under the same names: ``flush``, ``delay_levels``,
    ``auto_create_topics``, ``retention`` and so on. A value may serve any number of clusters: where
    the messages lie is no setting, and ports are free ones unless given.

    Attributes:
        broker_port: port of the broker; 0 takes a free one.
        namesrv_port: port of the name server; 0 takes a free one.
        namesrv_addrs: name servers to join, ``host:port`` each: no name server is started then.
        brokers: how many brokers there are; 0 starts the name server alone. The first is called
            ``broker_name``, the others alike; each has a directory of that name where there are
            several, and of given ports every tenth.
        store_config: sizes of the store's files; None takes upstream's, and small ones
            (`SMALL_STORE`) for a temporary directory.
        insecure: allow an address that others can reach without access control and TLS.
        clock: where all times come from.
        files: the disk of the servers; None takes the machine's.
        workers: who works in the background; None takes threads.
    """

    broker_port: int = setting(0, low=0, high=65_535, java="listenPort")
    namesrv_port: int = setting(0, low=0, high=65_535, java="")
    brokers: int = setting(1, low=0, high=BROKERS_MAX, java="")
    insecure: bool = setting(False, java="")
    clock: Clock = setting(SYSTEM_CLOCK, java="", shown="the machine's")
    files: Files | None = setting(None, java="")
    workers: Workers | None = setting(None, java="")

    def check(self) -> None:
        """Check what can be checked before anything is opened.

        Raises:
            ConfigurationError: the text names the value and what is accepted.
        """
        BrokerConfig.check(self)
        if self.namesrv_addrs and not self.brokers:
            raise ConfigurationError(
                "namesrv_addrs and brokers=0 leave nothing to start: a name server that is joined "
                "is somebody else's",
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
            ConfigurationError: a name that is no setting; the text names those like it.
        """
        known = {field.name for field in dataclasses.fields(self)}
        for name in changes:
            if name not in known:
                raise unknown_setting(
                    "EmbeddedCluster", name, (type(self),), ("store_dir", "settings")
                )
        return dataclasses.replace(self, **changes)


def _name(first: str, number: int) -> str:
    """Return what a broker is called: broker-a, broker-b, …; of another name name-2, name-3, …"""
    if not number:
        return first
    if first.endswith("-a"):
        return first[:-1] + chr(ord("a") + number)
    return f"{first}-{number + 1}"


def check_exposure(
    host: str, insecure: bool, *, has_acl: bool = False, enforces_tls: bool = False
) -> None:
    """Refuse to be reachable by others without having been told so.

    Args:
        host: address to listen on.
        insecure: others may reach it, whatever is lacking.
        has_acl: whether the broker has accounts.
        enforces_tls: whether plain connections are refused.

    Raises:
        ConfigurationError: ``host`` is not loopback, ``insecure`` is false, and either is lacking.
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
