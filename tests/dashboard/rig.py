"""Dashboards under test: over a made-up cluster, and over a running one; both swept by hand.

Law: no browser here; nothing waits by the clock.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

from starlette.testclient import TestClient

from rocketstream._util.workers import Workers
from rocketstream.admin import Admin, AuditLog
from rocketstream.admin.state import BrokerState, ClusterState, GroupState, TopicQueue, TopicState
from rocketstream.dashboard import Cluster, Settings, create_app
from rocketstream.testing.clock import START_MS, ManualClock
from rocketstream.watch import Collector, History
from tests.kits.states import Asked, ByHand, by_lag, group, queue
from tests.plugins.waiting import wait_until

TOKEN = re.compile(r'name="form_token" value="([0-9a-f]{64})"')
HOST = "http://127.0.0.1:8976"


def shop(at_ms: int = START_MS, lag: int = 7, *more: GroupState) -> ClusterState:
    """A cluster of one broker, one topic and a group that is behind."""
    billing = group(
        "billing", at_ms, queue(end=1_000, committed=1_000 - lag, next_stored_ms=at_ms - 5_000)
    )
    topic = TopicState(
        "orders",
        "normal",
        at_ms,
        "RW",
        (TopicQueue("orders", "broker-a", 0, 0, 1_000, at_ms - 100),),
        ("billing",),
    )
    facts = {"putTps": "12.5 1 1"}
    broker = BrokerState("c", "broker-a", at_ms, {0: "127.0.0.1:10911"}, "V4_9_8", facts)
    groups = {each.group: each for each in (billing, *more)}
    return ClusterState(at_ms, 5, 10, brokers=(broker,), topics={"orders": topic}, groups=groups)


class Rig:
    """The application and what it stands on."""

    def __init__(self, state: ClusterState | Exception, admin: object = None) -> None:
        self.asked = Asked(state)
        self.clock = ManualClock()
        self.hand = ByHand()
        self.admin = admin or object()
        self.collector = Collector(
            lambda: cast(Any, self.asked),
            judge=by_lag,
            clock=self.clock,
            workers=cast(Workers, self.hand),
        )
        self.collector.start()
        self.hand.step()

    def sweep(self, state: ClusterState) -> None:
        """Have another state found."""
        self.asked.answers = [state]
        self.clock.advance(10_000)
        self.hand.step()


@contextmanager
def browsing(
    state: ClusterState | Exception | None = None,
    *,
    name: str = "",
    admin: object = None,
    history: History | None = None,
    base: str = HOST,
    client: tuple[str, int] = ("127.0.0.1", 50_000),
    **settings: Any,
) -> Iterator[tuple[TestClient, Rig]]:
    """A browser of a dashboard, and what is behind it."""
    rig = Rig(shop() if state is None else state, admin)
    admin_of = cast(Callable[..., Admin], lambda *_: rig.admin)
    cluster = Cluster(name, rig.collector, admin_of, history, admin_of)
    app = create_app(cluster, settings=Settings(clock=rig.clock, **settings))
    headers = {"accept": "text/html"}
    with TestClient(app, base, client=client, headers=headers, follow_redirects=False) as browser:
        yield browser, rig


def form_token(browser: TestClient, path: str = "/") -> str:
    """The token of a page's forms."""
    found = TOKEN.search(browser.get(path).text)
    assert found is not None
    return found[1]


class LiveRig:
    """The application over a running cluster, reached with keys or without, swept when told."""

    def __init__(
        self, namesrv: str, place: Path, reached: Mapping[str, Any] | None = None, **settings: Any
    ) -> None:
        self.namesrv = namesrv
        self.reached = dict(reached or {})
        self.audit = place / "audit.jsonl"
        self.undo = place / "undo"
        self.hand = ByHand()
        self.collector = Collector(
            lambda: Admin(namesrv, **self.reached), workers=cast(Workers, self.hand), interval_s=1
        )
        self.collector.start()
        settings.setdefault("may_write", True)
        masking = settings.pop("masking", None)
        cluster = Cluster(
            namesrv,
            self.collector,
            lambda: Admin(namesrv, read_only=True, masking=masking, **self.reached),
            change_factory=self._changing,
        )
        self.app = create_app(cluster, settings=Settings(undo_directory=self.undo, **settings))

    def _changing(self, who: str) -> Admin:
        audit = AuditLog(self.audit, who=who, face="dashboard")
        return Admin(self.namesrv, audit=audit, **self.reached)

    def sweep(self) -> None:
        """Have what changed be found."""
        self.collector.refresh()
        self.hand.step()

    def written_down(self) -> list[dict[str, Any]]:
        """What the audit file holds."""
        return [json.loads(line) for line in self.audit.read_text().splitlines()]


@contextmanager
def browsing_live(
    namesrv: str, place: Path, **settings: Any
) -> Iterator[tuple[TestClient, LiveRig]]:
    """A browser of a dashboard over a running cluster."""
    rig = LiveRig(namesrv, place, **settings)
    headers = {"accept": "text/html"}
    try:
        with TestClient(rig.app, HOST, headers=headers, follow_redirects=False) as browser:
            yield browser, rig
    finally:
        rig.collector.close()


def hidden(text: str, name: str) -> str:
    """The value of a form's hidden field."""
    found = re.search(rf'name="{name}" value="([^"]*)"', text)
    assert found is not None, f"no field {name} in {text}"
    return html.unescape(found[1])


def finished(browser: TestClient, answer: Any) -> str:
    """Follow a change to its end; the text of its page."""
    assert answer.status_code == 303, answer.text
    place = answer.headers["location"]
    wait_until(lambda: 'id="poll"' not in browser.get(place).text, f"end of {place}")
    text: str = browser.get(place).text
    return text
