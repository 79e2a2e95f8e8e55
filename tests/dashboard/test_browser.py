"""The dashboard in a real browser, against live traffic: what it shows, does, and is for everybody.

Law: waits for what the page shows, never by the clock.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, Playwright, expect, sync_playwright

from rocketstream.admin import Admin, AuditLog
from rocketstream.client.admin.blocking import BlockingAdminClient
from rocketstream.dashboard import Cluster, Settings, TokenFile, create_app
from rocketstream.dashboard.running import DashboardServer
from rocketstream.dashboard.users import add_token, read_roles
from rocketstream.model import MessageQueue
from rocketstream.watch import Collector, History
from rocketstream.watch.windows import Windows
from tests.dashboard.traffic import GIVEN_UP, Shop, trading, watched_before
from tests.plugins.waiting import wait_until

pytestmark = [
    pytest.mark.long,
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.allow_leaks,  # traffic goes on from test to test, and its clients reconnect
]
ROOT = Path(__file__).resolve().parents[2]
AXE = Path(__file__).with_name("vendor") / "axe.min.js"
SWITCHES = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
]  # fmt: skip
DESKTOP, PHONE = (1280, 800), (360, 740)
WAIT_MS = 30_000


def chromium() -> str:
    """Where the browser is; skips the test where there is none, or fails it in CI."""
    for name in ("chromium", "chromium-browser", "google-chrome"):
        if (found := shutil.which(name)) is not None:
            return found
    text = "no Chromium is installed; Debian's package is chromium"
    if os.environ.get("CI", "").lower() in ("1", "true", "yes"):
        pytest.fail(text, pytrace=False)
    pytest.skip(text)


@pytest.fixture(scope="module")
def playwright() -> Iterator[Playwright]:
    with sync_playwright() as found:
        yield found


@pytest.fixture(scope="module")
def browser(playwright: Playwright) -> Iterator[Browser]:
    found = playwright.chromium.launch(executable_path=chromium(), args=SWITCHES)
    yield found
    found.close()


@pytest.fixture(scope="module")
def traffic() -> Iterator[tuple[str, Shop]]:
    with trading() as found:
        yield found


class Dashboard:
    """A running dashboard of the shop."""

    def __init__(
        self,
        namesrv: str,
        place: Path,
        tokens: TokenFile | None = None,
        windows: Windows | None = None,
    ) -> None:
        self.namesrv = namesrv
        self.audit = place / "audit.jsonl"
        self._open = ExitStack()
        history = self._open.enter_context(History(place / "history.db"))
        collector = Collector(
            lambda: Admin(namesrv), interval_s=1, history=history, windows=windows
        )
        settings = Settings(
            may_write=True, tokens=tokens, refresh_s=1,
            undo_directory=place / "undo", user="tester",
        )  # fmt: skip
        cluster = Cluster(
            namesrv,
            collector,
            lambda: Admin(namesrv, read_only=True),
            history,
            lambda who: Admin(namesrv, audit=AuditLog(self.audit, who=who, face="dashboard")),
        )
        app = create_app(cluster, settings=settings)
        server = DashboardServer(app)
        self._open.callback(server.close)
        self._open.enter_context(collector)
        server.start()
        self.url = server.url.rstrip("/")
        self.collector = collector
        wait_until(collector.latest, "first sweep")

    def sweep(self, times: int) -> None:
        """Wait for so many sweeps more."""
        wanted = self.collector.cost().sweeps + times
        wait_until(lambda: self.collector.cost().sweeps >= wanted, f"{times} sweeps more")

    def close(self) -> None:
        self._open.close()


@pytest.fixture(scope="module")
def dashboard(
    traffic: tuple[str, Shop], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Dashboard]:
    found = Dashboard(traffic[0], tmp_path_factory.mktemp("dashboard"))
    yield found
    found.close()


class Visit:
    """One visitor's page, with everything the browser complained of."""

    def __init__(self, page: Page, url: str) -> None:
        self.page = page
        self.url = url
        self.complaints: list[str] = []
        self.asked: list[str] = []
        page.on("console", self._said)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("request", lambda request: self.asked.append(request.url))
        page.set_default_timeout(WAIT_MS)
        expect.set_options(timeout=WAIT_MS)

    def _said(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(message.text)

    def open(self, path: str) -> Page:
        self.page.goto(self.url + path)
        return self.page


@contextmanager
def visiting(
    browser: Browser, url: str, size: tuple[int, int] = DESKTOP, scheme: Any = "light"
) -> Iterator[Visit]:
    context = browser.new_context(
        viewport={"width": size[0], "height": size[1]}, color_scheme=scheme
    )
    try:
        visit = Visit(context.new_page(), url)
        yield visit
        assert visit.complaints == []
        outside = [each for each in visit.asked if not each.startswith(url)]
        assert outside == [], "a page asked somebody else"
    finally:
        context.close()


@pytest.fixture
def visit(browser: Browser, dashboard: Dashboard) -> Iterator[Visit]:
    with visiting(browser, dashboard.url) as found:
        yield found


PAGES = (
    "/", "/producers", "/topic/new?name=new&look=1", "/group/settings?name=billing",
    "/group/pause?name=billing", "/topic/delete?name=clicks", "/messages?topic=orders",
    "/group/reset?group=shipping", "/group?name=billing", "/group?name=audit",
    "/topics", "/topic?name=orders",
    "/messages?topic=orders&newest=1", "/letters", "/letters?group=pricing",
    "/redrive?group=pricing&look=1", "/group/reset?group=shipping&topic=parcels&target=latest",
    "/spark", "/brokers", "/message/trace", "/nothing-there",
)  # fmt: skip


class Tool:
    """`rocketstream dashboard` as a process of its own."""

    def __init__(self, namesrv: str, place: Path) -> None:
        command = [
            sys.executable, "-m", "rocketstream", "dashboard", "-n", namesrv, "--port", "0",
            "--write", "--interval", "1", "--history", str(place / "h.db"),
            "--audit-file", str(place / "audit.jsonl"),
        ]  # fmt: skip
        self.process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.url = self.process.stdout.readline().split()[1].rstrip("/")

    def end(self, number: int) -> int:
        self.process.send_signal(number)
        try:
            return self.process.wait(30)
        finally:
            self.process.kill()
            self.process.communicate()


@pytest.fixture(scope="module")
def killed(browser: Browser, traffic: tuple[str, Shop], tmp_path_factory: Any) -> str:
    """What a page says whose dashboard was killed halfway through a redrive."""
    namesrv, shop = traffic
    shop.is_fixed.set()
    tool = Tool(namesrv, tmp_path_factory.mktemp("killed"))
    with visiting(browser, tool.url) as visit:
        page = visit.open("/letters?group=pricing")
        page.get_by_role("link", name="Send all again…").click()
        page.get_by_label("At most, a second").fill("2")
        page.get_by_role("button", name="Show what it would send").click()
        page.get_by_role("button", name=f"Send {GIVEN_UP} letters again").click()
        expect(page.locator("label.progress")).to_contain_text(re.compile("[3-9] of"))
        tool.end(signal.SIGKILL)
        expect(page.locator("#offline")).to_be_visible()
        visit.complaints.clear()
        return page.locator("#offline").inner_text()


def test_a_page_whose_dashboard_was_killed_says_so(killed: str) -> None:
    assert "does not answer" in killed


ALL_RULES = ("wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice")


@pytest.mark.parametrize(
    ("size", "scheme"),
    [(DESKTOP, "light"), (DESKTOP, "dark"), (PHONE, "light"), (PHONE, "dark")],
    ids=["desktop-light", "desktop-dark", "phone-light", "phone-dark"],
)
def test_every_page_can_be_used_by_everybody(
    browser: Browser, dashboard: Dashboard, size: tuple[int, int], scheme: str
) -> None:
    """No finding of axe but minor ones, nothing wider than the screen, nothing from elsewhere."""
    wrong: list[str] = []
    # Schemes differ in colours alone.
    only = ["color-contrast"] if scheme == "dark" else list(ALL_RULES)
    with visiting(browser, dashboard.url, size, scheme) as visit:
        for path in PAGES:
            page = visit.open(path)
            expect(page.locator(".htmx-request")).to_have_count(0)
            page.evaluate(AXE.read_text())
            found = page.evaluate(
                "only => axe.run({resultTypes: ['violations'], runOnly: only})", only
            )
            wrong += [
                f"{path}: {each['impact']} {each['id']}: {each['nodes'][0]['html'][:160]}"
                for each in found["violations"]
                if each["impact"] != "minor"
            ]
            wider = page.evaluate(
                "document.documentElement.scrollWidth - document.documentElement.clientWidth"
            )
            if wider > 0:
                wrong.append(f"{path}: {wider} pixels wider than the screen")
        visit.complaints = [x for x in visit.complaints if "404" not in x]
    assert not wrong, "\n".join(wrong)


def test_the_overview_follows_the_traffic_without_a_reload(visit: Visit) -> None:
    page = visit.open("/")
    row = page.locator("#row-shipping")
    before = row.locator("[data-label='Lag']").inner_text()
    page.evaluate("window.stayed = true")
    expect(row.locator("[data-label='Lag']")).not_to_have_text(before)
    assert page.evaluate("window.stayed")


def test_a_page_that_is_paused_stays_as_it_is_and_goes_on(
    visit: Visit, dashboard: Dashboard
) -> None:
    page = visit.open("/")
    lag = page.locator("#row-shipping [data-label='Lag']")
    page.get_by_role("button", name="Pause").click()
    before = lag.inner_text()
    dashboard.sweep(3)
    assert lag.inner_text() == before
    page.get_by_role("button", name="Go on").click()
    expect(lag).not_to_have_text(before)


def test_everything_is_reached_with_the_keyboard_and_focus_stays(visit: Visit) -> None:
    page = visit.open("/")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    for _ in range(60):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.id") == "g-shipping":
            break
    assert page.evaluate("document.activeElement.id") == "g-shipping"
    lag = page.locator("#row-shipping [data-label='Lag']")
    before = lag.inner_text()
    expect(lag).not_to_have_text(before)
    assert page.evaluate("document.activeElement.id") == "g-shipping", "an update took the focus"
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text("Group shipping")


def test_an_exact_time_shows_on_focus_and_by_the_switch(visit: Visit) -> None:
    page = visit.open("/")
    when = page.locator(".status .when")
    page.get_by_role("button", name="Pause").click()
    expect(when.locator(".exact")).to_be_hidden()
    when.focus()
    expect(when.locator(".exact")).to_be_visible()
    page.get_by_role("button", name="Exact times").click()
    page.reload()
    expect(page.locator(".status .when .exact")).to_be_visible()


def test_the_scheme_is_switched_and_kept(visit: Visit) -> None:
    page = visit.open("/group?name=shipping")
    colour = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(colour)
    theme = page.get_by_role("button", name="Theme")
    theme.click()
    theme.click()
    expect(theme).to_have_text("Theme: dark")
    dark = page.evaluate(colour)
    assert dark != light
    page.reload()
    assert page.evaluate(colour) == dark


def test_a_group_page_shows_owners_and_draws_its_history(visit: Visit) -> None:
    page = visit.open("/group?name=billing")
    owners = page.locator("tr[id^='q-orders'] [data-label='Owner']")
    expect(owners).to_have_count(2)
    for index in range(2):
        expect(owners.nth(index)).to_have_text(re.compile("@"))
    expect(page.locator(".chart canvas")).to_have_count(3)
    assert page.evaluate(
        "[...document.querySelectorAll('.chart canvas')].every(c => {"
        " const d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data;"
        " return d.some((v, i) => i % 4 === 3 && v > 0) })"
    )


def test_a_reset_is_previewed_carried_out_and_taken_back(
    visit: Visit, dashboard: Dashboard
) -> None:
    group, topic = "idle", "orders"
    with BlockingAdminClient(dashboard.namesrv) as client:
        for queue in range(2):
            client.update_consumer_offset(group, MessageQueue(topic, "broker-a", queue), 5)
        page = visit.open("/")
        expect(page.locator(f"#row-{group}")).to_be_visible()
        page.goto(f"{dashboard.url}/group?name={group}")
        page.get_by_role("link", name="Reset…").click()
        page.get_by_label("To the oldest message kept").check()
        page.get_by_role("button", name="Show what it would do").click()
        expect(page.locator("#plan .tile", has_text="Consumed again").locator("dd")).to_have_text(
            "10"
        )
        page.get_by_role("button", name="Move the group").click()
        expect(page.locator("#job-state")).to_contain_text("Done")
        assert client.query_consumer_offset(group, MessageQueue(topic, "broker-a", 0)) == 0
        page.get_by_role("link", name="Take it back…").click()
        skipped = page.locator("#plan .tile", has_text="Skipped").locator("dd")
        expect(skipped).to_have_text("10")
        # What was skipped by taking it back was consumed before: nothing to be insisted on.
        expect(page.get_by_label("do it all the same")).to_have_count(0)
        page.get_by_role("button", name="Move the group").click()
        expect(page.locator("#job-state")).to_contain_text("Done")
        assert client.query_consumer_offset(group, MessageQueue(topic, "broker-a", 0)) == 5
    assert '"who": "tester"' in dashboard.audit.read_text()


def test_who_may_what_is_seen_and_kept(
    browser: Browser, traffic: tuple[str, Shop], tmp_path: Path
) -> None:
    path = tmp_path / "tokens.json"
    look, act = (add_token(path, name, read_roles(name)) for name in ("look", "act"))
    found = Dashboard(traffic[0], tmp_path, TokenFile(path))
    try:
        with visiting(browser, found.url) as visit:
            page = visit.open("/group?name=billing")
            page.get_by_label("Your token").fill("wrong")
            page.get_by_role("button", name="Log in").click()
            expect(page.get_by_role("alert")).to_have_text("This token is not known.")
            visit.complaints.clear()  # the browser notes each refusal
            page.get_by_label("Your token").fill(look)
            page.get_by_role("button", name="Log in").click()
            page.goto(found.url + "/group/reset?group=billing&topic=orders&target=latest")
            expect(page.locator("#plan")).to_contain_text("may only look")
            page.get_by_role("button", name="Log out").click()
            page.get_by_label("Your token").fill(act)
            page.get_by_role("button", name="Log in").click()
            page.goto(found.url + "/group/reset?group=billing&topic=orders&target=latest")
            expect(page.get_by_role("button", name="Move the group")).to_be_visible()
            expect(page.locator(".user")).to_have_text("act")
            add_token(path, "act", read_roles("look"))  # the token is taken back
            page.goto(found.url + "/topics")
            expect(page.get_by_role("heading", level=1)).to_have_text("Log in")
    finally:
        found.close()


def test_a_message_is_found_by_its_key_and_followed(visit: Visit) -> None:
    page = visit.open("/messages")
    page.get_by_label("Topic").fill("orders")
    page.get_by_label("Key").fill("orders-3")
    page.get_by_role("button", name="Search").click()
    page.locator("tbody a.name").first.click()
    expect(page.locator("pre")).to_contain_text('"id": 3')
    expect(page.locator("#track")).to_contain_text("billing")


def test_an_outage_of_the_dashboard_is_said(
    browser: Browser, traffic: tuple[str, Shop], tmp_path: Path
) -> None:
    found = Dashboard(traffic[0], tmp_path)
    with visiting(browser, found.url) as visit:
        page = visit.open("/")
        expect(page.locator("#row-billing")).to_be_visible()
        found.close()
        expect(page.locator("#offline")).to_contain_text("does not answer")
        expect(page.locator("#row-billing")).to_be_visible()
        visit.complaints.clear()


def test_the_group_that_falls_behind_is_said_to(
    browser: Browser, traffic: tuple[str, Shop], tmp_path: Path
) -> None:
    with Admin(traffic[0]) as admin:
        windows = watched_before(admin)
    found = Dashboard(traffic[0], tmp_path, windows=windows)
    try:
        with visiting(browser, found.url) as visit:
            page = visit.open("/")
            badge = page.locator("#row-shipping .badge")
            expect(badge).to_have_text("FALLING BEHIND", timeout=60_000)
            expect(page.locator("#row-billing .badge")).to_have_text("OK", timeout=60_000)
            order = page.locator("table.groups tbody tr").evaluate_all(
                "rows => rows.map(r => r.id)"
            )
            assert order.index("row-shipping") < order.index("row-billing")
    finally:
        found.close()


def test_why_names_the_message_that_pins_a_queue(visit: Visit, traffic: tuple[str, Shop]) -> None:
    wait_until(traffic[1].pinned.is_set, "the message a listener keeps")
    page = visit.open("/group?name=audit")
    cause = page.locator("#why .causes li", has_text="pinned message")
    expect(cause).to_contain_text("payments", timeout=60_000)
    cause.get_by_text("Where the thread stands").click()
    expect(cause.locator("pre")).to_contain_text("stands")
    expect(page.locator("#live .verdict .badge")).to_have_text("PINNED", timeout=60_000)
    cause.get_by_role("link", name="Message", exact=True).click()
    expect(page.locator("pre")).to_contain_text('"card"')


def test_a_redrive_whose_tool_was_killed_goes_on_without_doubling_or_leaving_any(
    browser: Browser, killed: str, traffic: tuple[str, Shop], tmp_path: Path
) -> None:
    """The last one here: brokers keep a killed tool's hold on the letters for a minute."""
    namesrv = traffic[0]
    tool = Tool(namesrv, tmp_path)
    try:
        with visiting(browser, tool.url) as visit:
            page = visit.page
            state = page.locator("#job-state")

            def goes_on() -> bool:
                visit.open("/redrive?group=pricing&look=1&rate=500")
                page.get_by_role("button", name=re.compile(r"Send \d+ letters? again")).click()
                expect(state).to_contain_text(re.compile("Done|Failed"))
                return "Done" in state.inner_text()

            wait_until(goes_on, "letters that nobody holds", 90, interval_s=2)
            expect(page.locator("#live")).to_contain_text("Nothing that was selected is left")
    finally:
        assert tool.end(signal.SIGINT) == 0
    with Admin(namesrv) as admin:
        found = [len(admin.messages.query("clicks", f"bad-{n}")) for n in range(GIVEN_UP)]
    assert found == [2] * GIVEN_UP, "each stands there as it was sent, and once again"
