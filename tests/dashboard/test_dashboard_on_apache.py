"""The dashboard over Apache's brokers and Java's consumers: what it shows, and what it changes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from rocketstream.admin import Admin
from rocketstream.admin.state import GroupState, QueueKind, Verdict
from tests.dashboard.rig import LiveRig, browsing_live, finished, hidden
from tests.kits.apache.cluster import BROKER_NAME, CLUSTER_NAME, ApacheCluster, JavaPrograms
from tests.kits.apache.faults import BY_NAME, Ground
from tests.kits.apache.jvm import Jvm
from tests.kits.apache.messages import Received, Sent, body_of, per_queue, read_received
from tests.kits.apache.ours import send_many
from tests.kits.apache.referee import Referee
from tests.plugins.waiting import wait_until, wait_until_equal

pytestmark = [pytest.mark.interop, pytest.mark.timeout(180)]

FAULTY = ("pinned", "starved")
PINNED, STARVED = (BY_NAME[name].named("java") for name in FAULTY)
ORDERS, BILLING = "orders", "billing"
QUEUES, COUNT, BACK = 2, 60, 5
CLIENTS = {"4.9.7": "V4_9_8", "5.5.0": "V5_5_0"}
"""What the referee's Java client calls itself."""
LIVE = {"hx-request": "true", "hx-target": "div#live"}
CELL = re.compile(r'<t[dh][^>]*data-label="([^"]*)"[^>]*>(.*?)</t[dh]>', re.DOTALL)


@dataclass
class Stand:
    """A cluster with faulty Java members and a group of Java's that has consumed everything."""

    cluster: ApacheCluster
    java: JavaPrograms
    admin: Admin
    browser: TestClient
    rig: LiveRig
    sent: list[Sent]
    place: Path

    @property
    def ends(self) -> dict[int, int]:
        """The end of each queue of the orders."""
        return per_queue(self.sent)

    def get(self, path: str, *, live: bool = False, **params: str) -> str:
        answer = self.browser.get(path, params=params, headers=LIVE if live else {})
        assert answer.status_code == 200, answer.text
        return answer.text

    def committed(self) -> dict[int, int]:
        """Where the group is by the broker's own file."""
        return self.cluster.committed(ORDERS, BILLING)

    def settled(self, at: dict[int, int]) -> None:
        """Return once the broker's own file has the group there."""
        wait_until_equal(self.committed, at, "offsets in the broker's file")

    def member(self, name: str) -> Jvm:
        return self.java.start(
            "JavaPushConsumer", namesrv=self.cluster.namesrv_addr, topic=ORDERS, group=BILLING,
            count=COUNT, out=self.place / name,
        )  # fmt: skip

    def received(self, name: str) -> list[Received]:
        path = self.place / name
        return read_received(path) if path.exists() else []

    def preview(self) -> str:
        """The page that shows the group moved back in each queue."""
        return self.get(
            "/group/reset", group=BILLING, topic=ORDERS, target="shift", shift=f"-{BACK}"
        )

    def move(self, text: str) -> str:
        """Carry out what a preview shows; the page of what became of it."""
        fields = {name: hidden(text, name) for name in ("form_token", "plan")}
        return finished(self.browser, self.browser.post("/group/reset", data=fields))


@pytest.fixture(scope="module")
def stand(apache: Referee, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stand]:
    place = tmp_path_factory.mktemp(f"dashboard-{apache.version}-")
    cluster, java = ApacheCluster(apache, place), JavaPrograms(apache, place / "java")
    with ExitStack() as open_:
        open_.callback(partial(cluster.stop, kill=True))
        namesrv = cluster.start().namesrv_addr
        open_.enter_context(Ground(namesrv, "java", cluster.create_topic, FAULTY))
        modes = ",".join(FAULTY)
        faulty = java.start("FaultyConsumer", namesrv=namesrv, prefix="java", modes=modes)
        open_.enter_context(faulty)
        cluster.create_topic(ORDERS, queues=QUEUES)
        sent = send_many(namesrv, ORDERS, COUNT, size=64)
        admin = open_.enter_context(Admin(namesrv))
        browser, rig = open_.enter_context(browsing_live(namesrv, place))
        stand = Stand(cluster, java, admin, browser, rig, sent, place)
        with stand.member("first.tsv") as member:
            member.wait_event("done")
            stand.settled(stand.ends)
            member.end_input()
            member.wait_event("closed")
        faulty.wait_event("ready", 90)
        yield stand


@pytest.fixture(autouse=True)
def watched(stand: Stand) -> None:
    """Let the dashboard watch the group that stands while the tests go on."""
    stand.rig.sweep()


def row(text: str, row_id: str) -> dict[str, str]:
    """The cells of a table's row, by the names of their columns."""
    found = re.search(rf'<tr id="{re.escape(row_id)}"[^>]*>(.*?)</tr>', text, re.DOTALL)
    assert found is not None, f"no row {row_id} in {text}"
    cells = CELL.findall(found[1])
    return {name: " ".join(re.sub("<[^>]*>", " ", cell).split()) for name, cell in cells}


def starved(stand: Stand) -> GroupState | None:
    """The starved group as Admin tells it, once its member has stored where it is."""
    state = stand.admin.groups.state(STARVED)
    owned = state.of_kind(QueueKind.TOPIC)
    is_whole = state.lag == BY_NAME["starved"].messages and all(q.client_id for q in owned)
    return state if is_whole else None


def test_a_group_page_shows_the_java_member_its_queues_and_the_lag_admin_tells(
    stand: Stand,
) -> None:
    state = wait_until(lambda: starved(stand), "offsets of the starved group", 60)
    text = stand.get("/group", live=True, name=STARVED)
    assert state.members is not None
    (member,) = state.members
    for queue in state.of_kind(QueueKind.TOPIC):
        shown = row(text, f"q-{STARVED}-{BROKER_NAME}-{queue.queue_id}")
        told = (str(queue.lag), str(queue.committed_offset), str(queue.max_offset))
        assert (shown["Lag"], shown["Committed"], shown["End"]) == told
        assert shown["Owner"] == queue.client_id == member.client_id
    shown = row(text, f"m-{member.client_id}")
    assert (shown["Language"], shown["Version"]) == ("JAVA", CLIENTS[stand.cluster.referee.version])
    assert f"{STARVED} 0–1" in shown["Owns"]


def test_messages_are_found_by_key_and_shown_by_either_id(stand: Stand) -> None:
    wanted = stand.sent[7]
    assert wanted.keys == "m-7"

    def found() -> str | None:
        text = stand.get("/messages", topic=ORDERS, key=wanted.keys)
        return text if 'data-label="Message"' in text else None

    text = wait_until(found, "the index of keys")
    assert text.count('data-label="Message"') == 1
    assert wanted.msg_id in text
    assert f"{BROKER_NAME} {wanted.queue_id} : {wanted.queue_offset}" in text
    offset_id = re.search(r'href="/message\?[^"]*id=([0-9A-F]+)', text)
    assert offset_id is not None
    assert offset_id[1] != wanted.msg_id
    for msg_id in (wanted.msg_id, offset_id[1]):
        text = stand.get("/message", topic=ORDERS, id=msg_id)
        assert body_of("m", 7, 64).decode() in text
        assert wanted.msg_id in text
    track = stand.get("/message/track", topic=ORDERS, id=wanted.msg_id)
    assert BILLING in track


def test_the_brokers_page_tells_the_figures_of_the_broker(stand: Stand) -> None:
    shown = row(stand.get("/brokers"), f"b-{BROKER_NAME}")
    assert shown["Cluster"] == CLUSTER_NAME
    assert shown["Addresses"] == f"{stand.cluster.broker_addr} master"
    assert stand.cluster.referee.version.replace(".", "_") in shown["Version"]
    assert "unknown" not in " ".join(shown.values())
    assert re.fullmatch(r"\d+ % full", shown["Disk"])


def test_a_reset_is_shown_made_on_the_broker_and_taken_back(stand: Stand) -> None:
    moved = {queue_id: end - BACK for queue_id, end in stand.ends.items()}
    text = stand.preview()
    assert f"<dt>Consumed again</dt><dd>{BACK * QUEUES}</dd>" in text
    assert "<dt>Skipped</dt><dd>0</dd>" in text
    assert stand.committed() == stand.ends
    done = stand.move(text)
    assert done.count('data-label="Moved">yes') == QUEUES
    stand.settled(moved)
    undo = re.search(r'href="/group/reset\?[^"]*undo=([^"&]+)"', done)
    assert undo is not None
    text = stand.get("/group/reset", group=BILLING, undo=undo[1])
    assert f"<dt>Skipped</dt><dd>{BACK * QUEUES}</dd>" in text
    stand.move(text)
    stand.settled(stand.ends)
    lines = stand.rig.written_down()[-4:]
    assert [(x["phase"], x["operation"], x["face"]) for x in lines] == [
        (phase, "group.reset", "dashboard") for phase in ("begin", "done") * 2
    ]


def test_a_java_member_consumes_again_what_the_preview_shows(stand: Stand) -> None:
    with stand.member("again.tsv") as member:
        member.wait_event("ready")

        def is_owner() -> bool:
            state = stand.admin.groups.state(BILLING)
            return all(queue.client_id for queue in state.of_kind(QueueKind.TOPIC))

        wait_until(is_owner, "queues of the Java member", 60)
        stand.rig.sweep()
        text = stand.preview()
        assert "<dt>Members connected</dt><dd>1</dd>" in text
        done = stand.move(text)
        # What the member has consumed again already is stored as if it had never moved.
        assert "<strong>Done.</strong>" in done
        assert 'data-label="Moved">no<' not in done
        assert 'data-label="Moved">no:' not in done
        wait_until(
            lambda: (len(stand.received("again.tsv")), stand.committed()),
            "repeats",
            60,
            fits=lambda seen: seen[0] >= BACK * QUEUES,
        )
        stand.settled(stand.ends)
        member.end_input()
        member.wait_event("closed")
    # Told again, as it committed while it was told, it consumes some of it once more.
    assert {(each.queue_id, each.queue_offset) for each in stand.received("again.tsv")} == {
        (queue_id, offset)
        for queue_id, end in stand.ends.items()
        for offset in range(end - BACK, end)
    }


@pytest.mark.parametrize(
    ("group", "cause", "stands"),
    [(PINNED, "pinned message", "waitForAFriend"), (STARVED, "starved pool", "waitForAll")],
)
def test_why_names_the_cause_and_the_line_java_stands_at(
    stand: Stand, group: str, cause: str, stands: str
) -> None:
    def named() -> str | None:
        text = stand.get("/group", name=group, live=True)
        return text if f"<h3>{cause}</h3>" in text else None

    text = wait_until(named, f"{cause} on the page", 60, interval_s=1)
    assert f"FaultyConsumer.{stands}" in text
    assert "What to do:" in text


def test_the_overview_begins_with_the_pinned_group_of_java(stand: Stand) -> None:
    def judged() -> str | None:
        stand.rig.sweep()
        verdict = stand.rig.collector.update().verdicts[PINNED].verdict
        return stand.get("/") if verdict is Verdict.PINNED else None

    text = wait_until(judged, "verdict of the pinned group", 120, interval_s=1)
    pinned, billing = row(text, f"row-{PINNED}"), row(text, f"row-{BILLING}")
    assert (pinned["Verdict"], pinned["Members"]) == ("PINNED", "1")
    assert "pin-me" in pinned["In words"]
    assert (billing["Verdict"], billing["Lag"], billing["Members"]) == ("OK", "0", "0")
    order = re.findall(r'<tr id="row-([^"]*)"', text)
    assert order.index(PINNED) < order.index(BILLING)
