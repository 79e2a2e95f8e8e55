"""Notices of verdicts that changed, sent to the webhooks a configuration file names.

``alerting`` decides on a collector's updates. Each webhook has a thread of its own, which sends in
order and tries again for a while.

Law: neither an address nor a secret is ever logged: both give access. Names are shown as text,
never as markup.
"""

from __future__ import annotations

import base64
import datetime
import hashlib
import hmac
import json
import logging
import os
import threading
import tomllib
import urllib.error
import urllib.parse
import urllib.request
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import IO, Any, Final, Self

from rocketstream._util.clock import SYSTEM_CLOCK, Clock
from rocketstream._util.home import state_directory
from rocketstream.errors import ConfigurationError
from rocketstream.watch.alerting import (
    AlertConfig,
    Alerting,
    Event,
    Kind,
    Notice,
    Webhook,
    read_config,
)
from rocketstream.watch.collector import Collector
from rocketstream.watch.model import Update

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

    def __exit__(self, *_: object) -> None:
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
        notices = self._alerting.step(update, self._clock.now_ms())
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


QUEUE_MAX: Final = 200
"""Most notices that wait for one webhook; beyond that only the newest of each group, each broker
and the cluster does."""
SUBJECTS_MAX: Final = 10_000
"""Most notices of those; beyond that the oldest is dropped."""
TRIES_MAX: Final = 8
TIMEOUT_S: Final = 10.0
PAUSE_MAX_S: Final = 120.0
ANSWER_BYTES_MAX: Final = 65_536


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Refuses redirects: one would send names of groups to a place outside the configuration."""

    def redirect_request(
        self, req: Any, fp: IO[bytes], code: int, msg: str, headers: Any, newurl: str
    ) -> None:
        return None


@dataclass(frozen=True, slots=True)
class Sent:
    """The outcome of one try.

    Attributes:
        error: why the try failed; None where the notice was accepted.
        again: whether another try may help.
        pause_s: how many seconds the service asks to wait; None where it did not say.
    """

    error: str | None = None
    again: bool = False
    pause_s: float | None = None


def send(webhook: Webhook, notice: Notice, where: str, clock: Clock = SYSTEM_CLOCK) -> Sent:
    """Send one notice, once; blocks for at most 10 s, and raises nothing."""
    query, more = (
        ({}, {})
        if webhook.secret is None
        else signature(webhook.kind, webhook.secret, clock.now_ms())
    )
    url = webhook.url
    if query:
        url += ("&" if "?" in url else "?") + urllib.parse.urlencode(query)
    data = json.dumps({**more, **body(webhook.kind, notice, where)}, ensure_ascii=False)
    headers = {"Content-Type": "application/json; charset=utf-8", "User-Agent": "rocketstream"}
    request = urllib.request.Request(
        url, data.encode("utf-8", "replace"), {**headers, **webhook.headers}, method="POST"
    )
    try:
        with urllib.request.build_opener(_NoRedirects).open(request, timeout=TIMEOUT_S) as answer:
            refused = refusal(webhook.kind, answer.read(ANSWER_BYTES_MAX))
    except urllib.error.HTTPError as error:
        error.close()
        again = error.code in (408, 425, 429) or error.code >= 500
        return Sent(f"HTTP {error.code}", again, _seconds(error.headers.get("Retry-After")))
    except urllib.error.URLError as error:
        return Sent(f"{error.reason}", again=True)
    except (OSError, HTTPException, ValueError) as error:
        return Sent(f"{type(error).__name__}", again=True)
    return Sent(refused, again=refused is not None)


def _seconds(text: str | None) -> float | None:
    return float(text) if text is not None and text.isdecimal() else None


def backing_off(tries: int) -> float:
    """Return how long to wait after this many failed tries, in seconds: 1, 2, 4 … 120."""
    return min(2.0 ** (tries - 1), PAUSE_MAX_S)


class Sender:
    """Sends to one webhook in the background; to be closed.

    Args:
        webhook: the webhook that gets the notices.
        pause_s: returns how many seconds to wait after a number of failed tries.
    """

    def __init__(
        self,
        webhook: Webhook,
        where: str,
        *,
        clock: Clock = SYSTEM_CLOCK,
        pause_s: Callable[[int], float] = backing_off,
    ) -> None:
        self._webhook = webhook
        self._where = where
        self._clock = clock
        self._pause_s = pause_s
        self._condition = threading.Condition()
        self._waiting: deque[Notice] = deque()
        self._later: dict[tuple[str | None, str | None], Notice] = {}
        """The notices after the waiting ones, by group and broker; empty unless those are many."""
        self._closed = False
        self._sending = False
        self.sent: int = 0
        """How many notices were accepted."""
        self.given_up: int = 0
        """How many notices nobody accepted, or gave way to a newer one."""
        self._thread = threading.Thread(
            target=self._run, name=f"rocketstream-webhook-{webhook.name}", daemon=True
        )
        self._thread.start()

    @property
    def is_busy(self) -> bool:
        """Whether a notice waits or is being sent."""
        with self._condition:
            return self._sending or bool(self._waiting)

    def put(self, notice: Notice) -> None:
        """Queue a notice for sending; returns at once."""
        with self._condition:
            if len(self._waiting) < QUEUE_MAX:
                self._waiting.append(notice)
                self._condition.notify()
                return
            subject = notice.group, notice.broker
            if subject in self._later:
                self._give_up("many wait; a newer notice takes the place of one of them")
            elif len(self._later) >= SUBJECTS_MAX:
                del self._later[next(iter(self._later))]
                self._give_up("too many wait; the oldest of those is forgotten")
            self._later[subject] = notice

    def close(self, wait_s: float = TIMEOUT_S) -> None:
        """Try waiting notices once and end; waits at most ``wait_s`` seconds."""
        with self._condition:
            self._closed = True
            self._condition.notify()
        self._thread.join(wait_s)

    def _run(self) -> None:
        while True:
            with self._condition:
                self._condition.wait_for(lambda: self._waiting or self._closed)
                if not self._waiting:
                    return
                notice = self._waiting.popleft()
                if self._later:
                    self._waiting.append(self._later.pop(next(iter(self._later))))
                self._sending = True
            try:
                self._send(notice)
            finally:
                self._sending = False

    def _send(self, notice: Notice) -> None:
        for tries in range(1, TRIES_MAX + 1):
            done = send(self._webhook, notice, self._where, self._clock)
            if done.error is None:
                self.sent += 1
                return
            if not done.again or tries == TRIES_MAX:
                break
            wanted = self._pause_s(tries) if done.pause_s is None else done.pause_s
            with self._condition:
                self._condition.wait_for(lambda: self._closed, min(wanted, PAUSE_MAX_S))
                if self._closed:
                    break
        with self._condition:
            self._give_up(f"a notice was not taken: {done.error}")

    def _give_up(self, why: str) -> None:
        self.given_up += 1
        _log.warning("ALERT_NOT_SENT webhook %s: %s", self._webhook.name, why)


TEXT_BYTES_MAX: Final = 3_800
"""Most bytes of one message: WeCom refuses more than 4,096."""


def title(notice: Notice) -> str:
    """Return the title of a notice, a few words."""
    group = notice.group
    verdict = "" if notice.verdict is None else notice.verdict.value
    if notice.event is Event.TEST:
        return "Test of a webhook"
    if notice.event is Event.OUTAGE:
        return "The cluster does not answer"
    if notice.event is Event.OUTAGE_OVER:
        return "The cluster answers again"
    if notice.event in (Event.BROKER_DOWN, Event.BROKER_BACK):
        return notice.sentence.split(":")[0].rstrip(".")
    if notice.event is Event.RECOVERED:
        return f"{group}: {verdict} again"
    if notice.event is Event.REPEATED:
        return f"{group}: still {verdict}"
    return f"{group}: {verdict}"


def lines(notice: Notice, where: str) -> list[str]:
    """Return the lines of a notice below its title."""
    found = [notice.sentence]
    figures: list[str] = []
    if notice.group is not None:
        figures.append("lag unknown" if notice.lag is None else f"lag {notice.lag:,}")
        if notice.time_lag_ms is not None:
            figures.append(f"time lag {notice.time_lag_ms / 1000:,.0f} s")
    if notice.since_ms is not None:
        figures.append(f"since {_utc(notice.since_ms)}")
    if notice.before is not None and notice.before is not notice.verdict:
        figures.append(f"before: {notice.before.value}")
    if figures:
        found.append(", ".join(figures))
    found.append(f"cluster of {where}")
    return found


def body(kind: Kind, notice: Notice, where: str) -> dict[str, Any]:
    """Return the JSON body a service expects."""
    if kind is Kind.GENERIC:
        return _generic(notice, where)
    return _chat(kind, "\n".join([title(notice), *lines(notice, where)]))


def signature(kind: Kind, secret: str, now_ms: int) -> tuple[dict[str, str], dict[str, str]]:
    """Return the secret's additions to the query and to the body."""
    if kind is Kind.DINGTALK:
        stamp = str(now_ms)
        digest = hmac.new(secret.encode(), f"{stamp}\n{secret}".encode(), hashlib.sha256).digest()
        return {"timestamp": stamp, "sign": base64.b64encode(digest).decode()}, {}
    if kind is Kind.FEISHU:
        stamp = str(now_ms // 1000)
        digest = hmac.new(f"{stamp}\n{secret}".encode(), b"", hashlib.sha256).digest()
        return {}, {"timestamp": stamp, "sign": base64.b64encode(digest).decode()}
    return {}, {}


def refusal(kind: Kind, answer: bytes) -> str | None:
    """Return why a service that answered 200 refused a message; None where it took it."""
    if kind in (Kind.GENERIC, Kind.SLACK):
        return None
    try:
        told = json.loads(answer)
    except ValueError:
        return None
    if not isinstance(told, Mapping):
        return None
    code = told.get("code", told.get("StatusCode")) if kind is Kind.FEISHU else told.get("errcode")
    if code in (0, None):
        return None
    text = told.get("msg") if kind is Kind.FEISHU else told.get("errmsg")
    return f"code {code}: {text}"


def _generic(notice: Notice, where: str) -> dict[str, Any]:
    return {
        "event": notice.event.value,
        "title": title(notice),
        "sentence": notice.sentence,
        "cluster": where,
        "group": notice.group,
        "verdict": None if notice.verdict is None else notice.verdict.value,
        "before": None if notice.before is None else notice.before.value,
        "at": _utc(notice.at_ms),
        "atMs": notice.at_ms,
        "since": None if notice.since_ms is None else _utc(notice.since_ms),
        "sinceMs": notice.since_ms,
        "lag": notice.lag,
        "timeLagMs": notice.time_lag_ms,
    }


def _chat(kind: Kind, text: str) -> dict[str, Any]:
    """Return the body of a chat service; names in ``text`` stay text."""
    if kind is Kind.SLACK:
        # The three characters Slack escapes; everything else is plain text where mrkdwn is off.
        text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
        return {"text": _short(text), "mrkdwn": False, "unfurl_links": False}
    if kind is Kind.FEISHU:
        # The only tag its texts know is <at …>, which would notify people.
        text = text.replace("<", "＜").replace(">", "＞")
        return {"msg_type": "text", "content": {"text": _short(text)}}
    return {"msgtype": "text", "text": {"content": _short(text)}}


def _short(text: str) -> str:
    """Return a text short enough for every service; a text that was cut says so at its end."""
    data = text.encode("utf-8", "replace")
    if len(data) <= TEXT_BYTES_MAX:
        return data.decode()
    return data[:TEXT_BYTES_MAX].decode(errors="ignore") + " … (cut)"


def _utc(at_ms: int) -> str:
    at = datetime.datetime.fromtimestamp(at_ms / 1000, datetime.UTC)
    return at.strftime("%Y-%m-%d %H:%M:%S UTC")
