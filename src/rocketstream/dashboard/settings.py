"""The settings of one dashboard: its users' rights and its address."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from pathlib import Path

from rocketstream._util.clock import SYSTEM_CLOCK, Clock
from rocketstream._util.machine import is_loopback
from rocketstream.admin.safety.undo import default_undo_directory
from rocketstream.dashboard.users import TokenFile
from rocketstream.errors import ConfigurationError

LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings a dashboard was started with.

    Attributes:
        may_write: whether anything can be changed from it.
        tokens: who may log in; None needs no login.
        is_tls: whether browsers reach the dashboard by https.
        host: the address it listens on.
        names: further names browsers may know it by (``Host`` header), in lower case.
        undo_directory: where the undo files of resets go; None takes the command line's directory.
        refresh_s: how often a page refreshes, in seconds.
        user: the name under which changes are recorded where no login is needed.
        clock: the clock for sessions and ages.
    """

    may_write: bool = False
    tokens: TokenFile | None = None
    is_tls: bool = False
    host: str = "127.0.0.1"
    names: frozenset[str] = frozenset()
    undo_directory: Path | None = None
    refresh_s: float = 5.0
    user: str = "local"
    clock: Clock = SYSTEM_CLOCK

    @property
    def undo_files(self) -> Path:
        """The directory of the undo files of resets."""
        return self.undo_directory or default_undo_directory()

    @property
    def is_loopback(self) -> bool:
        """Whether nothing outside this machine can reach it."""
        return is_loopback(self.host)

    def knows_host(self, name: str) -> bool:
        """Return whether a browser may address this dashboard by a name.

        A page of another site can make its own name resolve to this address (DNS rebinding) and
        read the answers, unless names that are not known are refused. With an address it cannot do
        so.
        """
        if name in LOOPBACK_NAMES or name in self.names or name == self.host.lower():
            return True
        if self.is_loopback:
            return False
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True


def check_exposure(
    host: str, *, has_tokens: bool, is_tls: bool, insecure: bool, may_write: bool
) -> None:
    """Refuse an address others can reach without TLS and login, unless ``insecure`` is set.

    Raises:
        ConfigurationError: others could reach the dashboard.
    """
    if is_loopback(host):
        return
    lacking = [
        text
        for has, text in (
            (is_tls, "TLS (--tls-cert and --tls-key)"),
            (has_tokens, "login (--tokens FILE)"),
        )
        if not has
    ]
    if lacking and not insecure:
        raise ConfigurationError(
            f"host {host!r} can be reached from other machines and there is no "
            f"{' and no '.join(lacking)}: give them, use 127.0.0.1, or allow it with --insecure",
            host=host,
        )
    if may_write and not has_tokens:
        raise ConfigurationError(
            f"host {host!r} can be reached from other machines, and with --write anybody there "
            "could change groups: name who may with --tokens FILE",
            host=host,
        )
