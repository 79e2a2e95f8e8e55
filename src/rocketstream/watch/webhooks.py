"""Notices sent to webhooks: each on a thread of its own, in order, tried again for a while.

Law: neither an address nor a secret is ever logged: both give access.
"""

from __future__ import annotations

import json
import logging
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from http.client import HTTPException
from typing import IO, Any, Final

from rocketstream._util.clock import SYSTEM_CLOCK, Clock
from rocketstream.watch.core.alert_config import Webhook
from rocketstream.watch.core.alerting import Notice
from rocketstream.watch.core.formats import body, refusal, signature

_log = logging.getLogger(__name__)

QUEUE_MAX: Final = 200
"""Most notices that wait for one webhook; beyond that the oldest is dropped."""
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
        where: the cluster's name.
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
        self._closed = False
        self._sending = False
        self.sent = 0
        """How many notices were accepted."""
        self.given_up = 0
        """How many notices nobody accepted, or did not fit the queue."""
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
            if len(self._waiting) >= QUEUE_MAX:
                self._waiting.popleft()
                self._give_up("the queue is full; the oldest notice is forgotten")
            self._waiting.append(notice)
            self._condition.notify()

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
