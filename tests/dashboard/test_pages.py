"""What pages show of a sweep, and that hostile names stay text."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from rocketstream import limits
from rocketstream.admin.rows import MemberRow
from rocketstream.admin.state import (
    Cause,
    CauseKind,
    ClusterState,
    GroupState,
    GroupVerdict,
    QueueKind,
    Verdict,
    WhyReport,
)
from rocketstream.dashboard.pages.overview import view
from rocketstream.errors import ConnectError, RequestTimeoutError
from rocketstream.testing.clock import START_MS
from rocketstream.watch import History
from tests.dashboard.rig import Rig, browsing, shop
from tests.kits.states import group, queue

BEGIN_MS = (START_MS // 600_000 + 1) * 600_000
"""Where a stretch of every resolution of the history begins."""
SCRIPT = '<script>alert("x")</script>'
HOSTILE = [SCRIPT, '" onmouseover="x', "a\u202egpj.exe", "{{ 7*7 }}", "a/../b", "%00\x00", "'`${x}"]


def behind(name: str, lag: int) -> GroupState:
    return group(name, START_MS, queue(end=1_000, committed=1_000 - lag))


def test_the_overview_begins_with_the_group_to_look_at_first() -> None:
    rig = Rig(shop(START_MS, 0, behind("late", 5), behind("later", 500), behind("fine", 0)))
    found = view(rig.collector.update())
    assert [row.state.group for row in found.rows] == ["later", "late", "billing", "fine"]
    assert found.counts == {Verdict.FALLING_BEHIND: 2, Verdict.OK: 2}


def test_the_overview_is_filtered_and_sorted_as_asked() -> None:
    rig = Rig(shop(START_MS, 0, behind("late", 5), behind("later", 500)))
    update = rig.collector.update()
    assert [row.state.group for row in view(update, query="LATE").rows] == ["later", "late"]
    assert [row.state.group for row in view(update, verdict="OK").rows] == ["billing"]
    names = [row.state.group for row in view(update, order="group").rows]
    assert names == ["billing", "late", "later"]
    assert view(update, order="nonsense").order == "verdict"


def test_a_long_overview_has_pages() -> None:
    most = limits.DASHBOARD_PAGE_ROWS
    many = [behind(f"g{n:04}", 1) for n in range(2 * most + 3)]
    with browsing(shop(START_MS, 0, *many)) as (browser, _):
        text = browser.get("/").text
        assert "1–50 of 104 groups" in text
        assert text.count('<tr id="row-') == most
        assert 'href="/?page=2&amp;q=g&amp;order=lag"' in browser.get("/?q=g&order=lag").text
        last = browser.get("/?page=3").text
        assert last.count('<tr id="row-') == 4
        assert "101–104 of 104 groups" in last
        assert browser.get("/?page=99").text.count('<tr id="row-') == 4
        assert browser.get("/?page=no").text.count('<tr id="row-') == most


def test_a_group_page_shows_each_queue_and_the_verdict() -> None:
    with browsing() as (browser, _):
        text = browser.get("/group?name=billing").text
        assert "FALLING BEHIND" in text
        assert '<td class="num" data-label="Committed">993</td>' in text
        assert '<td class="num" data-label="Lag">7</td>' in text


def test_what_is_not_known_is_not_shown_as_zero() -> None:
    why = "broker-a timed out"
    dark = dataclasses.replace(queue(), max_offset=None, committed_offset=None, error=why)
    unknown = dataclasses.replace(group("dark", START_MS, dark), errors=(why,))
    with browsing(shop(START_MS, 0, unknown)) as (browser, _):
        text = browser.get("/group?name=dark").text
        assert (
            '<td class="num" data-label="Lag"><span class="unknown" title="broker-a timed out">'
            in text
        )
        assert "<li>broker-a timed out</li>" in text
        assert "Who is connected is not known" in text


def test_an_outage_is_said_on_every_page_and_the_last_sweep_stays() -> None:
    with browsing() as (browser, rig):
        rig.asked.answers = [ConnectError("127.0.0.1:9876 refuses connections")]
        rig.clock.advance(10_000)
        rig.hand.step()
        for path in ("/", "/topics", "/group?name=billing", "/brokers", "/letters"):
            text = browser.get(path).text
            assert "Nothing answers since" in text, path
            assert "127.0.0.1:9876 refuses connections" in text
        assert "billing" in browser.get("/").text
        assert browser.get("/healthz").status_code == 503


def test_a_broker_that_is_down_is_said_on_every_page() -> None:
    """Others answer: the name server does, at least."""
    with browsing() as (browser, rig):
        (state,) = rig.asked.answers
        assert isinstance(state, ClusterState)
        silent = dataclasses.replace(state.brokers[0], error="no answer within 5000 ms")
        rig.asked.answers = [dataclasses.replace(state, brokers=(silent,))]
        rig.clock.advance(10_000)
        rig.hand.step()
        for path in ("/", "/topics", "/group?name=billing", "/brokers"):
            text = browser.get(path).text
            assert "Broker broker-a does not answer since" in text, path
            assert "no answer within 5000 ms" in text
        assert browser.get("/healthz").status_code == 200


def test_before_the_first_answer_pages_say_so() -> None:
    with browsing(ConnectError("nobody")) as (browser, _):
        assert "Nothing answers" in browser.get("/").text
        for path in ("/group?name=x", "/topic?name=x"):
            answer = browser.get(path)
            assert (answer.status_code, "nobody" in answer.text) == (503, True), path
        letters = browser.get("/letters").text
        assert "Nothing answers" in letters
        assert "What is shown is older" not in letters


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_name_is_shown_as_text(name: str) -> None:
    evil = dataclasses.replace(
        group(name, START_MS, queue(name, kind=QueueKind.TOPIC)),
        members=(MemberRow(name, name, name, 409),),
        errors=(name,),
    )
    state = shop(START_MS, 0, evil)
    topic = dataclasses.replace(state.topics["orders"], topic=name, consumers=(name,))
    state = dataclasses.replace(
        state,
        topics={name: topic},
        brokers=(dataclasses.replace(state.brokers[0], broker_name=name, facts={name: name}),),
    )
    with browsing(state) as (browser, _):
        for path, params in (
            ("/", {}), ("/", {"q": name}), ("/topics", {}), ("/brokers", {}),
            ("/group", {"name": name}), ("/topic", {"name": name}),
        ):  # fmt: skip
            text = browser.get(path, params=params).text
            assert "<script>alert" not in text
            assert 'onmouseover="x"' not in text
            assert "\u202e" not in text
            assert "\x00" not in text
            assert "7*7" in text or "{{" not in name
        assert browser.get("/group", params={"name": name}).status_code == 200


def test_a_name_nobody_has_is_not_found_and_said_back_as_text() -> None:
    with browsing() as (browser, _):
        answer = browser.get("/group", params={"name": SCRIPT})
        assert answer.status_code == 404
        assert "&lt;script&gt;" in answer.text
        assert browser.get("/group").status_code == 400
        assert browser.get("/group", params={"name": "x" * 5_000}).status_code == 400
        assert browser.get("/nothing").status_code == 404


LIVE = {"hx-request": "true", "hx-target": "div#live"}


def test_banner_figures_and_causes_of_a_group_are_of_one_look_made_for_all_who_look() -> None:
    with browsing() as (browser, rig):
        cause = Cause(CauseKind.PINNED_MESSAGE, SCRIPT, (SCRIPT,), SCRIPT, "at shop.py:31")
        now = group("billing", START_MS + 3_000, queue(end=1_000, committed=999))
        verdict = GroupVerdict("billing", Verdict.UNKNOWN, "asked")
        rig.asked.report = WhyReport(
            "billing", verdict, (cause,), ("broker-b was not asked",), 812, state=now
        )
        rig.asked.looked.clear()
        for _ in range(5):
            text = browser.get("/group?name=billing", headers=LIVE).text
            assert "<html" not in text
            for said in ("lag 1<", 'data-label="Committed">999<', "pinned message", "shop.py:31"):
                assert said in text
            assert "broker-b was not asked" in text
            assert "<script>alert" not in text
        assert rig.asked.looked == ["billing"]
        assert "lag 1" in browser.get("/").text, "the list shows another moment"
        assert "pinned message" in browser.get("/group?name=billing").text
        rig.clock.advance(5_000)
        browser.get("/group?name=billing", headers=LIVE)
        assert rig.asked.looked == ["billing"] * 2


def test_a_group_that_cannot_be_asked_shows_what_was_found_before_and_says_so() -> None:
    with browsing() as (browser, rig):
        rig.asked.report = RequestTimeoutError("broker-a did not answer")
        text = browser.get("/group?name=billing", headers=LIVE).text
        assert "broker-a did not answer" in text
        assert 'data-label="Committed">993</td>' in text


def test_figures_of_a_broker_that_is_down_stay_with_their_age() -> None:
    with browsing() as (browser, rig):
        dark = dataclasses.replace(queue(), max_offset=None, committed_offset=None, error="gone")
        state = shop(START_MS + 10_000)
        groups = {"billing": group("billing", START_MS + 10_000, dark)}
        rig.sweep(dataclasses.replace(state, groups=groups))
        for path in ("/", "/group?name=billing"):
            text = browser.get(path).text
            assert '>7</span><small class="old">10 s ago</small>' in text, path


def test_figures_of_a_topic_whose_broker_is_silent_stay_dim_with_their_age() -> None:
    with browsing() as (browser, rig):
        state = shop(START_MS + 10_000)
        topic = dataclasses.replace(state.topics["orders"], queues=(), errors=("silent",))
        rig.sweep(dataclasses.replace(state, topics={"orders": topic}))
        for path in ("/topics", "/topic?name=orders"):
            text = browser.get(path).text
            assert '>1,000</span><small class="old">10 s ago</small>' in text, path
        assert '<tr class="old" id="tq-broker-a-0">' in text


def test_a_remedy_leads_to_the_page_that_does_it_with_its_fields_filled_in() -> None:
    with browsing() as (browser, rig):
        commands = (
            "mend it, then `rocketstream group reset billing orders --queue broker-a:0 --to-offset "
            "8` or `rocketstream dlq redrive billing --cause 3f <x>`; `rocketstream broker list`"
        )
        cause = Cause(CauseKind.POISON_MESSAGE, "stands", remedy=commands)
        verdict = GroupVerdict("billing", Verdict.UNKNOWN, "asked")
        rig.asked.report = WhyReport("billing", verdict, (cause,))
        text = browser.get("/group?name=billing", headers=LIVE).text
        assert "`" not in text
        reset = (
            "group=billing&amp;topic=orders&amp;queue=broker-a%3A0&amp;target=offset&amp;offset=8"
        )
        assert text.count(f'href="/group/reset?{reset}"') == 2, "a link and a button"
        assert 'href="/redrive?group=billing&amp;cause=3f"' in text
        assert "<code>rocketstream broker list</code>" in text


def test_charts_are_fed_from_the_history_and_break_where_nothing_was_known(tmp_path: Path) -> None:
    with History(tmp_path / "h.db") as history:
        for n in range(5):
            at = BEGIN_MS + n * 10_000
            history.add(shop(at, n) if n != 2 else ClusterState(at, 0, 0, error="gone"))
        with browsing(history=history) as (browser, rig):
            rig.clock.advance(BEGIN_MS - START_MS + 50_000)
            found = browser.get("/group/history?name=billing&range=15m").json()
            assert found["lag"] == [0, 1, None, 3, 4]
            assert [b - a for a, b in zip(found["at"], found["at"][1:], strict=False)] == [10.0] * 4
            assert "The figures as a table" in browser.get("/group?name=billing").text


def test_health_is_told_without_a_login() -> None:
    with browsing() as (browser, rig):
        rig.clock.advance(250)
        assert browser.get("/healthz").json() == {"status": "ok", "ageMs": 250}


def test_collection_that_sweeps_no_more_is_not_healthy() -> None:
    with browsing() as (browser, rig):
        rig.clock.advance(60_000)
        assert browser.get("/healthz").status_code == 200
        rig.clock.advance(1)
        answer = browser.get("/healthz")
        assert (answer.status_code, answer.json()["status"]) == (503, "stale")
