"""Topics, groups and offsets go from a cluster of 4.9.7 into one of 5.5.0, which goes on there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from rocketstream import Message, Producer
from rocketstream.admin import Admin
from rocketstream.model import MessageQueue
from tests.kits.apache.cluster import BROKER_NAME, ApacheCluster, JavaPrograms
from tests.kits.apache.messages import read_received
from tests.kits.apache.ours import Collector, push_consumer
from tests.plugins.apache import prepared
from tests.plugins.commands import Quick
from tests.plugins.waiting import wait_until, wait_until_equal

pytestmark = [pytest.mark.interop, pytest.mark.timeout(180)]

TOPIC, OTHER = "orders", "clicks"
GROUP, JAVAS = "billing", "audit"
QUEUES, EACH = 3, 10
AT = {0: 3, 1: 7, 2: EACH}
LEFT = {(queue_id, at) for queue_id, first in AT.items() for at in range(first, EACH)}


@pytest.fixture(scope="module")
def clusters(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[ApacheCluster, ApacheCluster]]:
    """The old cluster and the new one."""
    with ExitStack() as open_:
        pair = []
        for version in ("4.9.7", "5.5.0"):
            root = tmp_path_factory.mktemp(f"transfer-{version}-")
            cluster = ApacheCluster(prepared(version), root)
            open_.callback(partial(cluster.stop, kill=True))
            pair.append(cluster.start())
        old, new = pair
        yield old, new


def fill(cluster: ApacheCluster) -> None:
    """Send the messages whose offsets both clusters agree on; brokers know them when it returns.

    A broker acknowledges a message before its queue has it.
    """
    queues = [MessageQueue(TOPIC, BROKER_NAME, queue_id) for queue_id in range(QUEUES)]
    with Producer("till", namesrv_addr=cluster.namesrv_addr) as producer:
        for queue in queues:
            for number in range(EACH):
                key = f"{queue.queue_id}-{number}"
                message = Message(TOPIC, f"{queue.queue_id}/{number}", keys=f"k{key}")
                producer.send(message, message_queue=queue)
        ends = partial(map, producer.max_offset, queues)
        wait_until_equal(lambda: list(ends()), [EACH] * QUEUES, "the ends of the queues")


def furnish(admin: Admin) -> None:
    """Make what the old cluster is to have: a group and a topic with settings of their own."""
    admin.topics.create(TOPIC, QUEUES)
    admin.topics.create(OTHER, 2)
    admin.changes.apply(admin.changes.topic_update_plan(OTHER, write_queues=1, perm=4))
    admin.changes.apply(
        admin.changes.group_create_plan(GROUP, {"retryMaxTimes": 7, "retryQueueNums": 2})
    )
    admin.changes.apply(admin.changes.group_create_plan(JAVAS, {}))


def stored(cluster: ApacheCluster, group: str) -> dict[int, int]:
    """Where a group is by the broker's own file."""
    return cluster.committed(TOPIC, group)


def settled(cluster: ApacheCluster, group: str, at: dict[int, int]) -> None:
    """Return once the broker's own file has the group there."""
    wait_until_equal(lambda: stored(cluster, group), at, f"offsets of {group}")


def test_a_group_goes_on_in_5_5_where_it_was_in_4_9(
    clusters: tuple[ApacheCluster, ApacheCluster], tmp_path: Path
) -> None:
    old, new = clusters
    path = str(tmp_path / "cluster.json")
    with Admin(old.namesrv_addr) as admin:
        furnish(admin)
        fill(old)
        for group in (GROUP, JAVAS):
            for queue_id, offset in AT.items():
                queue = MessageQueue(TOPIC, BROKER_NAME, queue_id)
                admin._client.update_consumer_offset(group, queue, offset)
            settled(old, group, AT)
    there, here = Quick(old.namesrv_addr), Quick(new.namesrv_addr)
    words = [part for group in (GROUP, JAVAS) for part in ("--group", group)]
    words += [part for topic in (TOPIC, OTHER) for part in ("--topic", topic)]
    said = there("export", path, *words).worked().out
    assert said.endswith(f"2 topics, 2 groups, {2 * QUEUES} offsets\n")

    early = here("import", path, "--yes")
    assert early.code == 1, (early.out, early.err)
    assert f"{2 * QUEUES} offsets lie beyond the end of their queues" in early.err
    assert TOPIC not in new.topics()

    dry = here("import", path, "--no-offsets", "--dry-run", "--json").worked().json
    assert {(step["step"], step["name"]) for step in dry["steps"]} == {
        ("put topic", TOPIC), ("put topic", OTHER), ("put group", GROUP), ("put group", JAVAS),
    }  # fmt: skip
    here("import", path, "--no-offsets", "--yes").worked()
    check_settings(old, new)
    assert stored(new, GROUP) == {}
    wait_until(lambda: TOPIC in new.topics(), "the route")
    fill(new)

    refused = here("import", path, "--yes")
    assert refused.code == 1
    assert f"group {GROUP} never consumes {sum(AT.values())} messages" in refused.err
    done = here("import", path, "--yes", "--force").worked()
    assert re.search(rf"{2 * QUEUES} of {2 * QUEUES} steps read back", done.out)
    for group in (GROUP, JAVAS):
        settled(new, group, AT)
    again = here("import", path, "--yes").worked().out
    assert "is so already: nothing was changed" in again
    check_consumers(new, tmp_path)
    assert stored(old, GROUP) == AT


def check_settings(old: ApacheCluster, new: ApacheCluster) -> None:
    """Settings the old broker has are the new one's, which keeps what only it has."""
    with Admin(old.namesrv_addr) as before, Admin(new.namesrv_addr) as after:
        (was,), (became,) = (admin.groups.settings(GROUP).values() for admin in (before, after))
        assert {name: became[name] for name in was} == was
        assert (became["retryMaxTimes"], became["retryQueueNums"]) == (7, 2)
        assert "groupRetryPolicy" in became
        topics = before.changes.export([TOPIC, OTHER], []).topics
        assert after.changes.export([TOPIC, OTHER], []).topics == topics


def check_consumers(new: ApacheCluster, place: Path) -> None:
    """Our member and Java's consume what was left, in the new cluster, and nothing else.

    The offsets are looked at while the members run. The broker takes pulls, which carry an
    offset, on several threads: an earlier one may be stored after the last that a member commits,
    and the next pull of a running member puts it right.
    """
    ends = dict.fromkeys(AT, EACH)
    collector = Collector()
    with push_consumer(new.namesrv_addr, GROUP, TOPIC, collector):
        collector.wait(len(LEFT))
        settled(new, GROUP, ends)
    ours = sorted((each.queue_id, each.queue_offset) for each in collector.consumed())
    assert ours == sorted(LEFT)
    java = JavaPrograms(new.referee, place / "java")
    with java.start(
        "JavaPushConsumer", namesrv=new.namesrv_addr, topic=TOPIC, group=JAVAS,
        count=len(LEFT), out=place / "java.tsv",
    ) as consumer:  # fmt: skip
        consumer.wait_event("done")
        settled(new, JAVAS, ends)
        consumer.end_input()
        consumer.wait_event("closed")
    javas = sorted((x.queue_id, x.queue_offset) for x in read_received(place / "java.tsv"))
    assert javas == sorted(LEFT)
