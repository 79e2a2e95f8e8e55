"""Notices of verdicts that changed, sent to the webhooks a configuration file names.

``core.alerting`` decides on a collector's updates, ``webhooks`` sends.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import tomllib
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from rocketstream._util.clock import SYSTEM_CLOCK, Clock
from rocketstream.admin.safety.state_dir import state_directory
from rocketstream.errors import ConfigurationError
from rocketstream.watch.collector import Collector
from rocketstream.watch.core.alert_config import AlertConfig, Webhook, read_config
from rocketstream.watch.core.alerting import Alerting, Event, Notice
from rocketstream.watch.model import Update
from rocketstream.watch.webhooks import Sender, Sent, send

__all__ = ["AlertConfig", "Alerts", "Webhook", "default_memory", "load_config", "send_test"]

_log = logging.getLogger(__name__)


def load_config(path: str | Path) -> AlertConfig:
    """Return the settings of a TOML file; variables it names are taken from the environment.

    Raises:
        ConfigurationError: the file cannot be read, or a setting in it is not accepted.
    """
    try:
        document = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigurationError(f"alerts: {path}: {error.strerror or error}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"alerts: {path} is not TOML: {error}") from error
    return read_config(document, os.environ)


def send_test(config: AlertConfig, where: str, clock: Clock = SYSTEM_CLOCK) -> dict[str, Sent]:
    """Send a test notice to every webhook, once, and return how each attempt went; blocks."""
    text = "This is a test: notices of groups whose verdict changes arrive here."
    notice = Notice(Event.TEST, clock.now_ms(), text, tuple(config.webhooks))
    return {
        name: send(webhook, notice, config.cluster or where, clock)
        for name, webhook in config.webhooks.items()
    }


def default_memory(config: str | Path, namesrv: str) -> Path:
    """Return the file that keeps sent notices over a restart, unless the configuration names one.

    Below ``$XDG_STATE_HOME/rocketstream`` (``~/.local/state`` without it), one for each file and
    cluster.
    """
    told = f"{Path(config).absolute()} {namesrv}".encode()
    return state_directory() / "alerts" / f"{hashlib.sha256(told).hexdigest()[:16]}.json"


class Alerts:
    """Tells webhooks of the changes a collector finds; to be closed.

    Args:
        config: which webhooks get notices of which changes.
        where: the cluster's name, used where the file gives none.
        clock: measures how long a verdict holds and when a notice is repeated.
        memory: the file that keeps sent notices over a restart, where ``config`` names none; with
            None a restart forgets them. A notice no webhook has accepted yet is not kept: it is
            sent again.
    """

    def __init__(
        self,
        config: AlertConfig,
        where: str,
        *,
        clock: Clock = SYSTEM_CLOCK,
        memory: Path | None = None,
    ) -> None:
        self._clock = clock
        self._alerting = Alerting(config.rules, config.outage_webhooks, config.outage_hold_ms)
        named = config.remember
        self._memory = memory if named is None else Path(named) if named else None
        self._is_new = False
        if self._memory is not None:
            self._alerting.remember(_remembered(self._memory))
        self._senders = {
            name: Sender(webhook, config.cluster or where, clock=clock)
            for name, webhook in config.webhooks.items()
        }
        self._leave: list[Callable[[], None]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def senders(self) -> dict[str, Sender]:
        """The senders by webhook; each counts the notices it sent and gave up."""
        return dict(self._senders)

    def follow(self, collector: Collector) -> None:
        """Send notices for every sweep of a collector from now on."""
        self._leave.append(collector.subscribe(self.tell))

    def tell(self, update: Update) -> None:
        """Send the notices of one sweep; returns at once."""
        notices = self._alerting.step(
            update.state, update.verdicts, update.outage, self._clock.now_ms(), update.down
        )
        for notice in notices:
            for webhook in notice.webhooks:
                self._senders[webhook].put(notice)
        self._is_new = self._is_new or bool(notices)
        self._keep()

    def close(self) -> None:
        """Stop following collectors; notices that still wait are tried once more."""
        for leave in self._leave:
            leave()
        self._leave = []
        lost = self._given_up
        for sender in self._senders.values():
            sender.close()
        if self._given_up == lost:
            self._keep()

    @property
    def _given_up(self) -> int:
        return sum(sender.given_up for sender in self._senders.values())

    def _keep(self) -> None:
        """Write down the sent notices once webhooks have taken them, or eight tries have failed."""
        path = self._memory
        if path is None or not self._is_new:
            return
        if any(sender.is_busy for sender in self._senders.values()):
            return  # written with the next sweep, or at the end
        self._is_new = False
        temporary = path.with_name(path.name + ".tmp")
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            temporary.write_text(json.dumps(self._alerting.remembered()), encoding="utf-8")
            temporary.replace(path)
        except OSError as error:
            _log.warning("ALERTS_NOT_REMEMBERED %s: %s; a restart tells them again", path, error)


def _remembered(path: Path) -> dict[str, tuple[str | None, int]]:
    """Return the notices sent before a restart; nothing where the file does not hold them."""
    try:
        told = json.loads(path.read_text(encoding="utf-8"))
        found = {str(group): (verdict, int(at)) for group, (verdict, at) in told.items()}
        Alerting([]).remember(found)  # raises for a text that is not a verdict
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError, AttributeError) as error:
        _log.warning("ALERTS_NOT_REMEMBERED %s: %s; what stands is told again", path, error)
        return {}
    return found
