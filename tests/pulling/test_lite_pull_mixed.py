"""Lite pull members of both languages in one group share queues and take each other's over."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from rocketstream import ConsumeFromWhere, LitePullConsumer, MessageExt
from rocketstream.client.admin.blocking import BlockingAdminClient
from rocketstream.server.embedded import EmbeddedCluster
from tests.kits.apache.cluster import ApacheCluster, JavaPrograms
from tests.kits.apache.messages import read_received
from tests.kits.apache.ours import send_many
from tests.plugins.waiting import wait_until

pytestmark = [pytest.mark.interop, pytest.mark.timeout(180)]

QUEUES = 4
FOREVER = 1_000_000
ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Place:
    """A cluster, whoever wrote it, with a fresh topic and group."""

    namesrv_addr: str
    topic: str
    group: str

    @property
    def arguments(self) -> dict[str, Any]:
        """What the Java programs are told."""
        return {"namesrv": self.namesrv_addr, "topic": self.topic, "group": self.group}

    def at_end(self) -> bool:
        """Whether the group's offsets are at the ends of all queues."""
        with BlockingAdminClient(self.namesrv_addr) as client:
            queues = client.subscribe_queues(self.topic)
            ends = client.max_offsets(queues)
            return all(client.query_consumer_offset(self.group, mq) == ends[mq] for mq in queues)

    def consumer(self) -> LitePullConsumer:
        """Return a member of ours, not started."""
        made = LitePullConsumer(
            self.group,
            namesrv_addr=self.namesrv_addr,
            consume_from_where=ConsumeFromWhere.FIRST_OFFSET,
        )
        made.subscribe(self.topic)
        return made


@pytest.fixture(params=["apache", "embedded"])
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    if request.param == "apache":
        cluster: ApacheCluster = request.getfixturevalue("apache_cluster")
        topic = cluster.create_topic(cluster.unique("lite"), queues=QUEUES)
        yield Place(cluster.namesrv_addr, topic, cluster.unique("lite-group"))
        return
    with EmbeddedCluster() as ours:
        ours.create_topic("lite", queues=QUEUES)
        yield Place(ours.namesrv_addr, "lite", "lite-group")


def poll_until(consumer: LitePullConsumer, wanted: set[str]) -> list[MessageExt]:
    """Poll until every wanted message id was seen."""
    got: list[MessageExt] = []

    def look() -> bool:
        got.extend(consumer.poll(1_000))
        return wanted <= {message.msg_id for message in got}

    wait_until(look, "all messages", timeout_s=90)
    return got


def test_queues_are_shared_and_taken_over_from_a_killed_java_member(
    java: JavaPrograms, place: Place, tmp_path: Path
) -> None:
    """Covers C-507, C-523: two queues each; after kill -9 of the other, ours gets all of them."""
    with contextlib.ExitStack() as stack:
        with java.start("JavaLitePullConsumer", count=FOREVER, **place.arguments) as other:
            other.wait_event("ready")
            consumer = stack.enter_context(place.consumer())
            wait_until(lambda: len(consumer.assignment()) == 2, "half of the queues")
            mine = {mq.queue_id for mq in consumer.assignment()}
            first = send_many(place.namesrv_addr, place.topic, 200)
            ours = {each.msg_id for each in first if each.queue_id in mine}
            got = poll_until(consumer, ours)
            assert {message.queue_id for message in got} == mine
            other.stop(kill=True)
        wait_until(lambda: len(consumer.assignment()) == QUEUES, "all queues", timeout_s=90)
        second = send_many(place.namesrv_addr, place.topic, 100)
        poll_until(consumer, {each.msg_id for each in second})
        assert {each.queue_id for each in second} == set(range(QUEUES))
    wait_until(place.at_end, "the committed ends")


def test_a_java_member_takes_over_from_a_killed_one_of_ours(
    java: JavaPrograms, place: Place, tmp_path: Path
) -> None:
    """Covers C-515: what ours had in hand when it was killed was not committed and comes again."""
    send_many(place.namesrv_addr, place.topic, 200)
    command = [sys.executable, "-m", "tests.pulling.lite_member", *place.arguments.values()]
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        in_hand = json.loads(process.stdout.readline())
        process.kill()
    assert in_hand
    out = tmp_path / "received"
    with java.start("JavaLitePullConsumer", count=200, out=out, **place.arguments) as other:
        other.wait_event("done", 120)
        assert other.wait() == 0
    seen = Counter(each.index for each in read_received(out))
    assert set(map(int, seen)) == set(range(200))
    assert set(in_hand) <= set(seen)


def test_a_member_that_leaves_hands_on_exactly_what_it_did_not_do(
    java: JavaPrograms, place: Place, tmp_path: Path
) -> None:
    """Covers C-126, C-517, C-600: closed in order, nothing is lost and nothing repeated."""
    send_many(place.namesrv_addr, place.topic, 400)
    got: list[MessageExt] = []
    with place.consumer() as consumer:
        while len(got) < 150:
            got += consumer.poll(10_000)
    ours = [int(message.get_property("index") or -1) for message in got]
    out = tmp_path / "received"
    rest = 400 - len(ours)
    with java.start("JavaLitePullConsumer", count=rest, out=out, **place.arguments) as other:
        other.wait_event("done", 120)
        assert other.wait() == 0
    theirs = [int(each.index) for each in read_received(out)]
    assert Counter(ours + theirs) == Counter(range(400))
