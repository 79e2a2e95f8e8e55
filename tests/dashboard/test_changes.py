"""Changes made from the dashboard: shown first, made once, written down, taken back."""

from __future__ import annotations

import html
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from rocketstream import (
    ConsumeConcurrentlyStatus,
    Message,
    MessageExt,
    Producer,
    PushConsumer,
)
from rocketstream.admin import Admin, Masking, ResetRow
from rocketstream.admin.changes.undo import write_undo
from rocketstream.client.admin.blocking import BlockingAdminClient
from rocketstream.dashboard import TokenFile
from rocketstream.dashboard.pages.changes import undo_files
from rocketstream.dashboard.users import add_token, read_roles
from rocketstream.model import MessageQueue
from rocketstream.server.embedded import EmbeddedCluster
from tests.dashboard.rig import LiveRig, browsing_live, finished, form_token, hidden
from tests.plugins.waiting import wait_until

_numbers = itertools.count()


@pytest.fixture(scope="module")
def namesrv() -> Iterator[str]:
    with EmbeddedCluster() as cluster:
        yield cluster.namesrv_addr


def moved_group(namesrv: str, sent: int = 10, at: int = 4) -> tuple[str, str]:
    """A group that nobody is connected of, at an offset of a topic's only queue."""
    number = next(_numbers)
    group, topic = f"group-{number}", f"topic-{number}"
    with Admin(namesrv) as admin, Producer("p", namesrv_addr=namesrv) as producer:
        admin.topics.create(topic, 1)
        for index in range(sent):
            producer.send(Message(topic, f'{{"n": {index}, "card": "4111"}}', keys=f"k{index}"))
    commit(namesrv, group, topic, at)
    return group, topic


def commit(namesrv: str, group: str, topic: str, offset: int) -> None:
    with BlockingAdminClient(namesrv) as client:
        client.update_consumer_offset(group, MessageQueue(topic, "broker-a", 0), offset)


def committed(namesrv: str, group: str, topic: str) -> int | None:
    with BlockingAdminClient(namesrv) as client:
        return client.query_consumer_offset(group, MessageQueue(topic, "broker-a", 0))


def dead_letters(namesrv: str, count: int) -> tuple[str, str]:
    """A group with dead letters, and the topic they came from."""
    number = next(_numbers)
    group, origin = f"dead-{number}", f"origin-{number}"
    with Admin(namesrv) as admin, Producer("p", namesrv_addr=namesrv) as producer:
        admin.topics.create(f"%DLQ%{group}", 1)
        admin.topics.create(origin, 1)
        for index in range(count):
            letter = Message(f"%DLQ%{group}", f"letter {index}", tags="eu", keys=f"k{index}")
            letter.properties["RETRY_TOPIC"] = origin
            producer.send(letter)
    commit(namesrv, group, origin, 0)
    return group, origin


def held(namesrv: str, topic: str) -> int:
    with Admin(namesrv) as admin:
        return sum(row.message_count for row in admin.topics.status(topic))


def preview(browser: TestClient, group: str, topic: str, **target: str) -> str:
    params = {"group": group, "topic": topic, **target}
    answer = browser.get("/group/reset", params=params)
    assert answer.status_code == 200, answer.text
    return answer.text


def send(browser: TestClient, path: str, text: str, **fields: str) -> str:
    data = {"form_token": hidden(text, "form_token"), "plan": hidden(text, "plan"), **fields}
    return finished(browser, browser.post(path, data=data))


def test_a_reset_is_shown_made_read_back_written_down_and_taken_back(
    namesrv: str, tmp_path: Path
) -> None:
    group, topic = moved_group(namesrv)
    with browsing_live(namesrv, tmp_path) as (browser, rig):
        rig.sweep()
        text = preview(browser, group, topic, target="latest")
        assert "<dt>Skipped</dt><dd>6</dd>" in text
        assert committed(namesrv, group, topic) == 4
        done = send(browser, "/group/reset", text)
        assert 'data-label="Stored now">10</td><td data-label="Moved">yes' in done
        assert committed(namesrv, group, topic) == 10
        back = browser.get("/group/reset", params={"group": group, "undo": undo_of(rig)}).text
        assert "<dt>Consumed again</dt><dd>6</dd>" in back
        send(browser, "/group/reset", back)
        assert committed(namesrv, group, topic) == 4
        lines = rig.written_down()
    assert [(x["phase"], x["operation"], x["who"], x["face"]) for x in lines] == [
        (phase, "group.reset", "local", "dashboard") for phase in ("begin", "done") * 2
    ]


def test_undo_files_of_another_cluster_are_not_offered(tmp_path: Path) -> None:
    """Clusters have groups of one name, and one directory of undo files on a machine."""
    row = ResetRow("orders", "broker-a", 0, 0, 9, 4, 9, 9)
    for cluster in ("east", "west"):
        path = write_undo(tmp_path, "billing", [row], 1, namesrv="n:9876", cluster=cluster)
        assert path.name.startswith(f"billing-{cluster}-1-")
    (mine,) = undo_files(tmp_path, "billing", {"east"})
    assert mine.undo.cluster == "east"


def undo_of(rig: LiveRig) -> str:
    (path,) = rig.undo.glob("*.json")
    return path.name


def test_a_preview_is_carried_out_once_and_only_by_who_saw_it(namesrv: str, tmp_path: Path) -> None:
    group, topic = moved_group(namesrv)
    with browsing_live(namesrv, tmp_path) as (browser, rig):
        rig.sweep()
        text = preview(browser, group, topic, target="latest")
        plan = hidden(text, "plan")
        browser.cookies.clear()  # another browser
        theirs = hidden(preview(browser, group, topic, target="latest"), "form_token")
        other = {"form_token": theirs, "plan": plan}
        assert browser.post("/group/reset", data=other).status_code == 409
        assert committed(namesrv, group, topic) == 4
        text = preview(browser, group, topic, target="latest")
        send(browser, "/group/reset", text)
        again = {"form_token": hidden(text, "form_token"), "plan": hidden(text, "plan")}
        assert browser.post("/group/reset", data=again).status_code == 409


def test_a_group_that_moved_since_the_preview_is_left_alone(namesrv: str, tmp_path: Path) -> None:
    group, topic = moved_group(namesrv)
    with browsing_live(namesrv, tmp_path) as (browser, rig):
        rig.sweep()
        text = preview(browser, group, topic, target="earliest")
        commit(namesrv, group, topic, 7)
        assert "Failed" in send(browser, "/group/reset", text)
        assert committed(namesrv, group, topic) == 7


def test_agreeing_to_what_speaks_against_it_is_no_agreement_to_what_came_since(
    namesrv: str, tmp_path: Path
) -> None:
    group, topic = moved_group(namesrv)
    with browsing_live(namesrv, tmp_path) as (browser, rig):
        rig.sweep()
        text = preview(browser, group, topic, target="offset", offset="6")
        assert "would never be consumed" in text
        commit(namesrv, group, topic, 9)
        assert "no longer as it was shown" in send(browser, "/group/reset", text, force="yes")
        assert committed(namesrv, group, topic) == 9
        text = preview(browser, group, topic, target="offset", offset="10")
        send(browser, "/group/reset", text, force="yes")
        assert committed(namesrv, group, topic) == 10


@pytest.mark.parametrize(
    ("params", "said"),
    [
        ({"target": "nowhere"}, "choose where the group is to go"),
        ({"target": "offset", "offset": "x"}, "it takes a whole number"),
        ({"target": "offset", "offset": ""}, "takes a value"),
        ({"target": "time", "time": "yesterday"}, "it takes a time such as"),
        ({"target": "shift", "shift": "0"}, "a shift by 0 moves nothing"),
        ({"target": "latest", "topic": ""}, "name the topic"),
        ({"target": "copy", "copy": "nobody-here"}, "nobody-here"),
        ({"target": "latest", "queue": "0"}, "BROKER:ID"),
        ({"target": "latest", "queue": "broker-a:9"}, "has no queue"),
        ({"target": "offset", "offset": "1", "topic": "*"}, "name the topic"),
        ({"undo": "../../etc/passwd"}, "no undo file of that name"),
    ],
)
def test_what_cannot_be_meant_is_said_beside_the_form(
    namesrv: str, tmp_path: Path, params: dict[str, str], said: str
) -> None:
    group, topic = moved_group(namesrv)
    with browsing_live(namesrv, tmp_path) as (browser, rig):
        rig.sweep()
        answer = browser.get("/group/reset", params={"group": group, "topic": topic, **params})
        assert answer.status_code in (400, 404)
        assert said in answer.text


def test_a_group_nobody_knows_is_not_made_by_a_reset(namesrv: str, tmp_path: Path) -> None:
    _, topic = moved_group(namesrv)
    with browsing_live(namesrv, tmp_path) as (browser, rig):
        rig.sweep()
        params = {"group": "typo", "topic": topic, "target": "latest"}
        answer = browser.get("/group/reset", params=params)
        assert answer.status_code == 400
        assert "typo" in answer.text


def test_who_may_only_look_sees_the_preview_and_cannot_carry_it_out(
    namesrv: str, tmp_path: Path
) -> None:
    group, topic = moved_group(namesrv)
    path = tmp_path / "tokens.json"
    tokens = {name: add_token(path, name, read_roles(name)) for name in ("look", "act")}
    with browsing_live(namesrv, tmp_path, tokens=TokenFile(path)) as (browser, rig):
        rig.sweep()
        browser.post("/login", data={"token": tokens["look"]})
        text = preview(browser, group, topic, target="latest")
        assert "may only look" in text
        data = {"form_token": form_token(browser), "plan": "x"}
        assert browser.post("/group/reset", data=data).status_code == 403
        assert browser.get("/group/export", params={"name": group}).status_code == 403
        assert browser.post("/change", data=data).status_code == 403
        for place in ("/", "/topics", "/group", "/group/settings", "/topic/settings", "/topic/new"):
            text = browser.get(place, params={"name": group if "group" in place else topic}).text
            for word in ("New group…", "New topic…", "Pause…", "Delete…", "Show what it would do"):
                assert word not in text, place
        for place in ("/group/pause", "/group/delete", "/topic/delete"):
            text = browser.get(place, params={"name": group if "group" in place else topic}).text
            assert "may only look" in text, place
            assert 'method="post" action="/change"' not in text
        browser.cookies.clear()
        browser.post("/login", data={"token": tokens["act"]})
        send(browser, "/group/reset", preview(browser, group, topic, target="latest"))
        assert {line["who"] for line in rig.written_down()} == {"act"}


def test_without_write_nothing_can_be_changed(namesrv: str, tmp_path: Path) -> None:
    group, topic = moved_group(namesrv)
    with browsing_live(namesrv, tmp_path, may_write=False) as (browser, rig):
        rig.sweep()
        assert "may only look" in preview(browser, group, topic, target="latest")
        data = {"form_token": "x" * 64}
        for route in rig.app.routes:
            path = getattr(route, "path", "")
            if "POST" in (getattr(route, "methods", None) or ()) and path != "/login":
                assert browser.post(path, data=data).status_code == 403, path


def test_no_get_changes_anything(namesrv: str, tmp_path: Path) -> None:
    group, topic = moved_group(namesrv)
    dead, origin = dead_letters(namesrv, 2)
    with browsing_live(namesrv, tmp_path) as (browser, rig):
        rig.sweep()
        params = {
            "group": group, "name": group, "topic": topic, "id": "x", "target": "latest",
            "look": "1", "key": "k1", "force": "yes",
        }  # fmt: skip
        for route in rig.app.routes:
            if "GET" in (getattr(route, "methods", None) or ()):
                browser.get(getattr(route, "path", ""), params=params)
                browser.get(getattr(route, "path", ""), params={**params, "group": dead})
        assert committed(namesrv, group, topic) == 4
        assert held(namesrv, origin) == 0
        assert not rig.audit.exists()


def test_dead_letters_are_shown_by_cause_and_sent_again(namesrv: str, tmp_path: Path) -> None:
    group, origin = dead_letters(namesrv, 3)
    with browsing_live(namesrv, tmp_path) as (browser, rig):
        rig.sweep()
        assert (
            f'name={group}"' in browser.get("/letters").text
            or group in browser.get("/letters").text
        )
        text = browser.get("/letters", params={"group": group}).text
        assert '<td class="num" data-label="Letters">3</td>' in text
        assert "letter 2" in text
        shown = browser.get("/redrive", params={"group": group, "look": "1", "limit": "2"}).text
        assert "Send 2 letters again" in shown
        assert held(namesrv, origin) == 0
        send(browser, "/redrive", shown)
        assert held(namesrv, origin) == 2
        rest = browser.get("/redrive", params={"group": group, "look": "1"}).text
        assert "Send 1 letter again" in rest
        assert "Nothing that was selected is left" in send(browser, "/redrive", rest)
        assert held(namesrv, origin) == 3


def test_letters_that_come_after_the_preview_are_not_sent(namesrv: str, tmp_path: Path) -> None:
    group, origin = dead_letters(namesrv, 2)
    with browsing_live(namesrv, tmp_path) as (browser, rig):
        rig.sweep()
        shown = browser.get("/redrive", params={"group": group, "look": "1"}).text
        with Producer("p", namesrv_addr=namesrv) as producer:
            letter = Message(f"%DLQ%{group}", "late", keys="late")
            letter.properties["RETRY_TOPIC"] = origin
            producer.send(letter)
        send(browser, "/redrive", shown)
        assert held(namesrv, origin) == 2


@pytest.mark.parametrize(
    ("path", "params"),
    [
        ("/redrive", {"look": "1", "limit": "0"}),
        ("/redrive", {"look": "1", "rate": "fast"}),
        ("/redrive", {"look": "1", "to": "no topic!"}),
        ("/messages", {"sql": "a ="}),
        ("/topic/new", {"name": "no topic!", "look": "1"}),
        ("/topic/new", {"name": "", "look": "1"}),
        ("/topic/new", {"name": "t", "queues": "0", "look": "1"}),
        ("/topic/new", {"name": "t", "attributes": "what", "look": "1"}),
    ],
)
def test_a_form_that_cannot_be_meant_stays_with_its_fault_beside_it(
    namesrv: str, tmp_path: Path, path: str, params: dict[str, str]
) -> None:
    group, topic = dead_letters(namesrv, 1)
    with browsing_live(namesrv, tmp_path) as (browser, rig):
        rig.sweep()
        answer = browser.get(path, params={"group": group, "topic": topic, **params})
        assert answer.status_code == 400
        assert 'class="banner bad"' in answer.text
        assert "<form" in answer.text


def test_all_topics_of_a_group_are_reset_at_once(namesrv: str, tmp_path: Path) -> None:
    group, topic = moved_group(namesrv)
    _, other = moved_group(namesrv)
    commit(namesrv, group, other, 3)
    with browsing_live(namesrv, tmp_path) as (browser, rig):
        rig.sweep()
        form = browser.get("/group/reset", params={"group": group}).text
        assert "all 2 topics of the group" in form
        assert "checked" not in form, "nobody is led to a target"
        send(browser, "/group/reset", preview(browser, group, "*", target="earliest"))
        assert (committed(namesrv, group, topic), committed(namesrv, group, other)) == (0, 0)
        assert len(rig.written_down()) == 2


def test_one_queue_is_reset_alone(namesrv: str, tmp_path: Path) -> None:
    group, topic = moved_group(namesrv)
    with browsing_live(namesrv, tmp_path) as (browser, rig):
        rig.sweep()
        one = {"queue": "broker-a:0", "target": "offset", "offset": "2"}
        send(browser, "/group/reset", preview(browser, group, topic, **one))
        assert committed(namesrv, group, topic) == 2


def test_a_topic_is_made_changed_and_deleted_as_shown(namesrv: str, tmp_path: Path) -> None:
    topic = f"made-{next(_numbers)}"
    with browsing_live(namesrv, tmp_path) as (browser, rig), Admin(namesrv) as admin:
        rig.sweep()
        assert "New topic…" in browser.get("/topics").text
        asked = {"name": topic, "queues": "3", "perm": "RW", "look": "1"}
        text = browser.get("/topic/new", params=asked).text
        assert topic not in {row.topic for row in admin.topics.all()}
        assert "yes, read back" in send(browser, "/change", text)
        (row,) = admin.topics.route(topic)
        assert (row.read_queues, row.write_queues, row.permission) == (3, 3, "RW")
        again = browser.get("/topic/new", params={**asked, "queues": "5"}).text
        assert "has topic" in again
        assert "do it all the same" in again
        form = browser.get("/topic/settings", params={"name": topic}).text
        assert 'name="read" value="3"' in form
        wanted = {"name": topic, "read": "4", "write": "4", "perm": "R", "look": "1"}
        send(browser, "/change", browser.get("/topic/settings", params=wanted).text)
        (row,) = admin.topics.route(topic)
        assert (row.read_queues, row.write_queues, row.permission) == (4, 4, "R")
        text = browser.get("/topic/delete", params={"name": topic}).text
        assert "Lost for good" in text
        send(browser, "/change", text)
        assert topic not in {row.topic for row in admin.topics.all()}
        done = [x["operation"] for x in rig.written_down() if x["phase"] == "done"]
        assert done == ["topic.create", "topic.update", "topic.delete"]


def test_a_group_gets_settings_is_paused_and_goes_on_as_shown(namesrv: str, tmp_path: Path) -> None:
    group = f"made-{next(_numbers)}"
    with browsing_live(namesrv, tmp_path) as (browser, rig), Admin(namesrv) as admin:

        def now(name: str) -> object:
            (settings,) = admin.groups.settings(group).values()
            return settings[name]

        rig.sweep()
        send(
            browser, "/change", browser.get("/group/new", params={"name": group, "look": "1"}).text
        )
        wanted = {"name": group, "retryMaxTimes": "5", "consumeEnable": "true", "look": "1"}
        text = browser.get("/group/settings", params=wanted).text
        assert text.count('data-label="Before"') == 1, "what stays as it is is shown as a change"
        assert now("retryMaxTimes") == 16
        send(browser, "/change", text)
        assert now("retryMaxTimes") == 5
        send(browser, "/change", browser.get("/group/pause", params={"name": group}).text)
        assert now("consumeEnable") is False
        assert "Resume…" in browser.get("/group/settings", params={"name": group}).text
        send(browser, "/change", browser.get("/group/resume", params={"name": group}).text)
        assert now("consumeEnable") is True


def test_a_change_agreed_to_is_no_agreement_to_what_came_since(
    namesrv: str, tmp_path: Path
) -> None:
    topic = f"made-{next(_numbers)}"
    with browsing_live(namesrv, tmp_path) as (browser, rig), Admin(namesrv) as admin:
        rig.sweep()
        admin.topics.create(topic, 4)
        asked = {"name": topic, "read": "2", "write": "4", "look": "1"}
        text = browser.get("/topic/settings", params=asked).text
        assert "is never read" in text
        admin.topics.create(topic, 6)
        assert "Failed" in send(browser, "/change", text, force="yes")
        (row,) = admin.topics.route(topic)
        assert row.read_queues == 6


def test_connected_producers_are_listed(namesrv: str, tmp_path: Path) -> None:
    group = f"makers-{next(_numbers)}"
    _, topic = moved_group(namesrv)
    with (
        browsing_live(namesrv, tmp_path) as (browser, rig),
        Producer(group, namesrv_addr=namesrv) as producer,
    ):
        producer.send(Message(topic, "x"))
        rig.sweep()

        def is_listed() -> bool:
            return f">{group}</th>" in browser.get("/producers", params={"group": group}).text

        wait_until(is_listed, "the producer's heartbeat")
        asked = {"group": group, "topic": topic}
        assert f">{group}</th>" in browser.get("/producers", params=asked).text
        asked = {"group": group, "topic": "nothing-there"}
        assert browser.get("/producers", params=asked).status_code == 404


def test_a_redrive_is_stopped_and_goes_on_without_doubling_or_leaving_any(
    namesrv: str, tmp_path: Path
) -> None:
    group, origin = dead_letters(namesrv, 40)
    with browsing_live(namesrv, tmp_path) as (browser, rig):
        rig.sweep()
        shown = browser.get("/redrive", params={"group": group, "look": "1", "rate": "20"}).text
        data = {"form_token": hidden(shown, "form_token"), "plan": hidden(shown, "plan")}
        answer = browser.post("/redrive", data=data)
        place = answer.headers["location"]
        wait_until(lambda: held(namesrv, origin) >= 2, "the first letters")
        job = {"form_token": data["form_token"], "job": place.partition("id=")[2]}
        browser.post("/job/stop", data=job)
        text = finished(browser, answer)
        assert "Stopped" in text
        sent = held(namesrv, origin)
        assert 2 <= sent < 40
    # The tool ends; another one goes on.
    with browsing_live(namesrv, tmp_path) as (browser, rig):
        rig.sweep()
        shown = browser.get("/redrive", params={"group": group, "look": "1", "rate": "5000"}).text
        assert f"Send {40 - sent} letters again" in shown
        send(browser, "/redrive", shown)
    assert held(namesrv, origin) == 40


def test_ending_the_dashboard_ends_what_is_under_way(namesrv: str, tmp_path: Path) -> None:
    group, origin = dead_letters(namesrv, 40)
    with browsing_live(namesrv, tmp_path) as (browser, rig):
        rig.sweep()
        shown = browser.get("/redrive", params={"group": group, "look": "1", "rate": "1"}).text
        data = {"form_token": hidden(shown, "form_token"), "plan": hidden(shown, "plan")}
        browser.post("/redrive", data=data)
        wait_until(lambda: held(namesrv, origin) >= 1, "the first letter")
    assert held(namesrv, origin) < 40


def test_search_of_a_topic_of_many_queues_goes_on(namesrv: str, tmp_path: Path) -> None:
    topic = "wide"
    with Admin(namesrv) as admin, Producer("p", namesrv_addr=namesrv) as producer:
        admin.topics.create(topic, 64)
        for number in range(300):
            queue = MessageQueue(topic, "broker-a", number % 64)
            producer.send(Message(topic, "x"), message_queue=queue)
    with browsing_live(namesrv, tmp_path) as (browser, _):
        text = browser.get("/messages", params={"topic": topic, "newest": "1"}).text
        begin = text.rindex('href="', 0, text.index("resume=")) + len('href="')
        answer = browser.get(html.unescape(text[begin : text.index('"', begin)]))
        assert answer.status_code == 200, answer.text


def test_messages_are_found_shown_and_followed(namesrv: str, tmp_path: Path) -> None:
    group, topic = moved_group(namesrv)
    with browsing_live(namesrv, tmp_path) as (browser, rig):
        rig.sweep()
        text = browser.get("/messages", params={"topic": topic, "key": "k3"}).text
        assert text.count('data-label="Message"') == 1
        text = browser.get("/messages", params={"topic": topic, "newest": "0"}).text
        assert text.count('data-label="Message"') == 10
        place = hidden_link(text, "/message?")
        text = browser.get(place).text
        assert "4111" in text
        assert "&#34;n&#34;: 0" in text
        track = browser.get(place.replace("/message?", "/message/track?")).text
        assert group in track
        assert "NOT_ONLINE" in track or "CONSUMED" in track
        answer = browser.get("/messages", params={"topic": topic, "queue": "99"})
        assert answer.status_code == 400
        assert browser.get("/message", params={"topic": topic, "id": "none"}).status_code == 404


def test_a_member_is_given_the_message_of_the_page_and_no_other(
    namesrv: str, tmp_path: Path
) -> None:
    group, topic = moved_group(namesrv, at=10)
    got: list[str | None] = []

    def notes(messages: Sequence[MessageExt]) -> ConsumeConcurrentlyStatus:
        got.extend(message.keys for message in messages)
        return ConsumeConcurrentlyStatus.CONSUME_SUCCESS

    with (
        PushConsumer(
            group, namesrv_addr=namesrv, subscription={topic: "*"}, listener=notes
        ) as consumer,
        Admin(namesrv) as admin,
        browsing_live(namesrv, tmp_path) as (browser, rig),
    ):
        wait_until(lambda: admin.groups.members(group), "a member")
        rig.sweep()
        found = browser.get("/messages", params={"topic": topic, "key": "k3"}).text
        page = browser.get(hidden_link(found, "/message?")).text
        form = {name: hidden(page, name) for name in ("form_token", "topic", "id", "stored")}
        form["member"] = f"{group}\t{consumer.client_id}"
        earlier = {**form, "stored": str(int(form["stored"]) - 1)}
        said = finished(browser, browser.post("/message/consume", data=earlier))
        assert "names another" in said
        assert not got
        said = finished(browser, browser.post("/message/consume", data=form))
        assert "CR_SUCCESS" in said
    assert got == ["k3"]


def hidden_link(text: str, start: str) -> str:
    begin = text.index(f'href="{start}') + len('href="')
    return text[begin : text.index('"', begin)].replace("&amp;", "&")


def test_what_is_masked_reaches_no_page(namesrv: str, tmp_path: Path) -> None:
    _, topic = moved_group(namesrv)
    masking = Masking.from_mapping({"rule": [{"json": "card"}]})
    with browsing_live(namesrv, tmp_path, masking=masking) as (browser, rig):
        rig.sweep()
        text = browser.get("/messages", params={"topic": topic, "newest": "1"}).text
        assert "4111" not in text
        assert "masked" in text
        place = hidden_link(text, "/message?")
        for how in ("auto", "text", "json", "hex"):
            shown = browser.get(f"{place}&how={how}").text
            assert "4111" not in shown, how
            assert "34 31 31 31" not in shown, how
        saved = browser.get(place.replace("/message?", "/message/export?")).text
        assert "4111" not in saved
        found = browser.get("/messages", params={"topic": topic, "text": "4111"}).text
        assert "No message is like that" in found


def test_hostile_and_huge_bodies_are_shown_as_text_and_cut(namesrv: str, tmp_path: Path) -> None:
    topic = f"hostile-{next(_numbers)}"
    script = "<script>alert(1)</script><img src=x onerror=alert(2)>\u202eevil"
    with Admin(namesrv) as admin, Producer("p", namesrv_addr=namesrv) as producer:
        admin.topics.create(topic, 1)
        producer.send(Message(topic, script, tags="<b>", keys='"><script>'))
        producer.send(Message(topic, "x" * (4 * 1024 * 1024 - 2_000)))
        producer.send(Message(topic, b"\xff\xfe\x00\x1b[2J no text"))
    with browsing_live(namesrv, tmp_path) as (browser, rig):
        rig.sweep()
        text = browser.get("/messages", params={"topic": topic, "newest": "0"}).text
        assert "<script>alert" not in text
        assert "<img" not in text
        assert "\u202e" not in text
        assert "\x1b" not in text
        assert len(text) < 100_000
        for place in [part.split('"')[0] for part in text.split('href="/message?')[1:]]:
            for how in ("auto", "text", "json", "hex"):
                page = browser.get(f"/message?{html.unescape(place)}&how={how}").text
                assert "<script>alert" not in page
                assert "<img" not in page
                assert "\u202e" not in page
                assert "\x1b" not in page
                assert len(page) < 200_000


def test_metrics_are_those_of_the_last_sweep(namesrv: str, tmp_path: Path) -> None:
    group, topic = moved_group(namesrv)
    with browsing_live(namesrv, tmp_path) as (browser, rig):
        rig.sweep()
        text = browser.get("/metrics").text
        mine = (f'group="{group}"', f'topic="{topic}"', "rocketmq_group_diff{")
        (line,) = [x for x in text.splitlines() if all(each in x for each in mine)]
        assert float(line.rsplit(" ", 1)[1]) == 6
        page = browser.get("/group", params={"name": group}).text
        assert '<td class="num" data-label="Lag">6</td>' in page
