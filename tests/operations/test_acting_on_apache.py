"""What operators do to Apache's groups and topics while Java consumes: as shown, and taken back."""

from __future__ import annotations

import contextlib
import json
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rocketstream.admin import Admin, ResetDone, ResetPlan, ResetTarget
from rocketstream.admin.safety import ChangingWire
from rocketstream.errors import ClientStateError, RouteNotFoundError
from rocketstream.model import MessageQueue
from rocketstream.protocol.bodies import TopicStatsTable
from rocketstream.protocol.message_ext import decode_messages
from rocketstream.protocol.names import pop_retry_topics
from rocketstream.server.embedded import EmbeddedCluster
from tests.kits.apache.cluster import BROKER_NAME, ApacheCluster, JavaPrograms, ask
from tests.kits.apache.jvm import Jvm
from tests.kits.apache.messages import Received, per_queue, read_received
from tests.kits.apache.ours import Collector, push_consumer, send_many
from tests.kits.peer import Peer
from tests.plugins.waiting import wait_until

pytestmark = [pytest.mark.interop, pytest.mark.timeout(180)]

COUNT = 60
POPS_MAX = 5
QUEUES = 2


@pytest.fixture
def admin(apache_cluster: ApacheCluster, tmp_path: Path) -> Iterator[Admin]:
    with Admin(apache_cluster.namesrv_addr) as admin:
        yield admin


class Given:
    """A topic with messages in both queues, a name for a group, and where Java writes."""

    def __init__(self, cluster: ApacheCluster, tmp_path: Path) -> None:
        self.address = cluster.namesrv_addr
        self.topic = cluster.create_topic(cluster.unique("act"), queues=QUEUES)
        self.group = cluster.unique("act-group")
        self.ends = per_queue(send_many(self.address, self.topic, COUNT))
        self.out = tmp_path / "received.tsv"
        self.directory = tmp_path

    def consumer(self, java: JavaPrograms, program: str = "JavaPushConsumer") -> Jvm:
        return java.start(
            program, namesrv=self.address, topic=self.topic, group=self.group,
            count=COUNT, out=self.out,
        )  # fmt: skip

    def received(self) -> list[Received]:
        return read_received(self.out) if self.out.exists() else []

    def move(self, admin: Admin, plan: ResetPlan, *, force: bool = False) -> ResetDone:
        return admin.changes.reset_apply(plan, force=force, undo_directory=self.directory / "undo")

    def has_pulled_all(self, admin: Admin) -> bool:
        """Whether the member has asked for more in every queue since its newest message came."""
        (info,) = admin.groups.running_info(self.group)
        pulled = {q.queue_id: q.last_pull_ms or 0 for q in info.queues if q.topic == self.topic}
        status = admin.topics.status(self.topic)
        return all(pulled.get(row.queue_id, 0) > (row.last_update_ms or 0) for row in status)

    def committed(self, admin: Admin) -> dict[int, int | None]:
        return {
            row.queue_id: row.committed_offset for row in admin.groups.lag(self.group, self.topic)
        }


@pytest.fixture
def given(apache_cluster: ApacheCluster, tmp_path: Path) -> Given:
    return Given(apache_cluster, tmp_path)


def test_java_members_are_moved_to_any_offset_as_shown_and_back_by_the_undo_file(
    admin: Admin, given: Given, java: JavaPrograms
) -> None:
    """Covers C-531 to C-533: a shift, which no request of 4.x can ask for, and nothing else."""
    with given.consumer(java) as consumer:
        consumer.wait_event("done")
        wait_until(lambda: given.committed(admin) == given.ends, "the offsets of everything")
        plan = admin.changes.reset_plan(given.group, given.topic, ResetTarget.shift(-7))
        assert (plan.repeated, plan.skipped, plan.is_online) == (7 * QUEUES, 0, True)
        assert (plan.problems, plan.warnings) == ((), ())
        done = given.move(admin, plan)
        assert done.differing == ()
        wait_until(
            lambda: len(given.received()) >= COUNT + plan.repeated, "the repeated messages", 60
        )
        wait_until(lambda: given.committed(admin) == given.ends, "the offsets again", 60)
        assert done.undo_path is not None
        back = admin.changes.undo(done.undo_path)
        assert not back.moves
        consumer.end_input()
        consumer.wait_event("closed")
    times = Counter((each.queue_id, each.queue_offset) for each in given.received())
    # Told again, as it committed while it was told, it consumes some of them once more.
    again = {place for place, count in times.items() if count > 1}
    assert again == {
        (row.queue_id, offset)
        for row in plan.rows
        for offset in range(row.to_offset, row.from_offset or 0)
    }
    assert min(times.values()) == 1


def test_group_at_rest_consumes_what_the_preview_says(
    admin: Admin, given: Given, java: JavaPrograms
) -> None:
    """Covers C-534: to an offset, then taken back, then on; Java consumes exactly the rest."""
    collector = Collector()
    with push_consumer(given.address, given.group, given.topic, collector):
        collector.wait(COUNT)
    before = given.committed(admin)
    done = given.move(
        admin, admin.changes.reset_plan(given.group, given.topic, ResetTarget.earliest())
    )
    assert set(given.committed(admin).values()) == {0}
    assert done.undo_path is not None
    given.move(admin, admin.changes.undo(done.undo_path))
    assert given.committed(admin) == before == given.ends

    plan = admin.changes.reset_plan(given.group, given.topic, ResetTarget.offset(5))
    assert plan.repeated == COUNT - 5 * QUEUES
    given.move(admin, plan)
    with given.consumer(java) as consumer:
        wait_until(lambda: given.committed(admin) == given.ends, "everything again", 60)
        consumer.end_input()
        consumer.wait_event("closed")
    times = Counter((each.queue_id, each.queue_offset) for each in given.received())
    assert set(times.values()) == {1}
    assert len(times) == plan.repeated


def test_reset_that_waits_for_a_pull_does_not_keep_another_one_off(
    admin: Admin, given: Given, apache_cluster: ApacheCluster
) -> None:
    """5.x ignores what is stored while an earlier reset of a group at rest waits for its pull."""
    collector = Collector()
    with push_consumer(given.address, given.group, given.topic, collector):
        collector.wait(COUNT)
    if not apache_cluster.referee.version.startswith("4."):
        wire = ChangingWire(admin._client, 5_000)
        queue = MessageQueue(given.topic, BROKER_NAME, 0)
        wire.send_to(apache_cluster.broker_addr, given.group, queue, 3)
        wire.store_offset(given.group, queue, 9)
        assert given.committed(admin)[0] == 3
    plan = admin.changes.reset_plan(given.group, given.topic, ResetTarget.offset(2))
    done = given.move(admin, plan)
    assert [each.moved for each in done.rows] == [True] * QUEUES
    again = Collector()
    with push_consumer(given.address, given.group, given.topic, again):
        again.wait(COUNT - 2 * QUEUES)
    assert {each.queue_offset for each in again.consumed()} == set(
        range(2, max(given.ends.values()))
    )


def test_java_members_are_sent_past_what_waits(
    admin: Admin, given: Given, java: JavaPrograms
) -> None:
    """Covers C-536: paused first, so that what waits is known; then nothing of it is consumed."""
    with given.consumer(java) as consumer:
        consumer.wait_event("done")
        wait_until(lambda: given.committed(admin) == given.ends, "the offsets of everything")
        assert admin.changes.apply(admin.changes.group_pause_plan(given.group)).differing == ()
        send_many(given.address, given.topic, COUNT, prefix="later")
        wait_until(lambda: given.has_pulled_all(admin), "pulls of what came", 60)
        assert given.committed(admin) == given.ends
        plan = admin.changes.reset_plan(given.group, given.topic, ResetTarget.latest())
        assert (plan.skipped, plan.repeated) == (COUNT, 0)
        done = given.move(admin, plan)
        assert done.differing == ()
        assert admin.changes.apply(admin.changes.group_resume_plan(given.group)).differing == ()
        send_many(given.address, given.topic, 10, prefix="last")
        wait_until(lambda: len(given.received()) >= COUNT + 10, "what came after", 60)
        consumer.end_input()
        consumer.wait_event("closed")
    keys = Counter(each.keys.rpartition("-")[0] for each in given.received())
    assert keys == {"m": COUNT, "last": 10}


def test_paused_java_members_lose_and_repeat_nothing(
    admin: Admin, given: Given, java: JavaPrograms
) -> None:
    """The brokers give them nothing more; after the pause they go on where they were."""
    with given.consumer(java) as consumer:
        consumer.wait_event("done")
        admin.changes.apply(admin.changes.group_pause_plan(given.group))
        send_many(given.address, given.topic, COUNT, prefix="later")
        wait_until(lambda: given.has_pulled_all(admin), "pulls of what came", 60)
        assert len(given.received()) == COUNT
        admin.changes.apply(admin.changes.group_resume_plan(given.group))
        wait_until(lambda: len(given.received()) == 2 * COUNT, "what came meanwhile", 60)
        consumer.end_input()
        consumer.wait_event("closed")
    assert set(Counter(each.msg_id for each in given.received()).values()) == {1}


def test_lite_pull_members_are_moved_where_the_broker_can(
    admin: Admin, given: Given, java: JavaPrograms, apache_cluster: ApacheCluster
) -> None:
    """Brokers of 4.x tell push consumers only: refused by name there, possible on 5.x."""
    with java.start(
        "JavaLitePullConsumer", namesrv=given.address, topic=given.topic, group=given.group,
        count=2 * COUNT, track="false", out=given.out,
    ) as consumer:  # fmt: skip
        wait_until(lambda: len(given.received()) == COUNT, "everything polled", 60)
        wait_until(lambda: given.committed(admin) == given.ends, "the offsets of everything", 60)
        plan = admin.changes.reset_plan(given.group, given.topic, ResetTarget.earliest())
        if apache_cluster.referee.version.startswith("4."):
            assert "pulls by itself and is not moved by this broker" in plan.problems[0]
            with pytest.raises(ClientStateError, match="pulls by itself"):
                given.move(admin, plan)
            return
        assert plan.problems == ()
        given.move(admin, plan)
        wait_until(lambda: len(given.received()) >= 2 * COUNT, "everything again", 90)
    times = Counter((each.queue_id, each.queue_offset) for each in given.received())
    assert set(times.values()) == {2}
    assert consumer.exit_code is not None


def test_deleted_topic_is_gone_and_another_of_its_name_is_consumed_from_the_first_message(
    admin: Admin, given: Given
) -> None:
    """Brokers of 4.x keep the offsets of a deleted topic, which would skip the next one's first."""
    first = Collector()
    with push_consumer(given.address, given.group, given.topic, first):
        first.wait(COUNT)
        plan = admin.changes.topic_delete_plan(given.topic)
        assert f"member of group {given.group} subscribe it" in plan.problems[0]
    plan = admin.changes.topic_delete_plan(given.topic)
    assert plan.losses[0] == f"{COUNT} messages kept on broker-a"
    assert f"the progress of group {given.group} in {QUEUES} queues, all consumed" in plan.losses
    assert admin.changes.apply(plan).differing == ()
    assert given.topic not in {row.topic for row in admin.topics.all()}
    with pytest.raises(RouteNotFoundError):
        admin.topics.route(given.topic)

    admin.changes.apply(admin.changes.topic_create_plan(given.topic, QUEUES))
    sent = send_many(given.address, given.topic, 20, prefix="anew")
    again = Collector()
    with push_consumer(given.address, given.group, given.topic, again):
        again.wait(20)
    assert {each.msg_id for each in again.consumed()} == {each.msg_id for each in sent}


def test_deleted_group_is_gone_with_its_offsets(admin: Admin, given: Given) -> None:
    collector = Collector()
    with push_consumer(given.address, given.group, given.topic, collector):
        collector.wait(COUNT)
    plan = admin.changes.group_delete_plan(given.group)
    assert f"its progress in topic {given.topic}, {QUEUES} queues" in plan.losses
    assert plan.problems == ()
    assert admin.changes.apply(plan).differing == ()
    assert given.group not in {row.group for row in admin.groups.all()}
    assert f"%RETRY%{given.group}" not in {row.topic for row in admin.topics.all()}


def popped(cluster: ApacheCluster, given: Given) -> int:
    """Pop messages as 5.x's clients do and never finish them; return how many came."""
    ext = {
        "consumerGroup": given.group, "topic": given.topic, "queueId": "-1", "maxMsgNums": "32",
        "invisibleTime": "1000", "pollTime": "0", "bornTime": str(round(time.time() * 1_000)),
        "initMode": "0", "expType": "TAG", "exp": "*", "order": "false",
    }  # fmt: skip
    code, body = ask(cluster.broker_addr, 200050, ext)
    return len(decode_messages(body)) if code == 0 else 0


def kept_in(cluster: ApacheCluster, topic: str) -> int:
    """Return how many messages a topic has had; name servers may not know it yet."""
    _, body = ask(cluster.broker_addr, 202, {"topic": topic})
    return sum(each.max_offset for each in TopicStatsTable.decode(body).offset_table.values())


def pop_until(there: Callable[[], bool], cluster: ApacheCluster, given: Given) -> int:
    """Pop new messages until what was to be popped again is kept where it is waited for.

    One pop in five gets what is popped again, which goes back to where it was, so one may not do.
    Returns how many messages it popped.
    """
    total = 0
    for _ in range(POPS_MAX):
        send_many(given.address, given.topic, COUNT, prefix="to be popped")
        total += wait_until(lambda: popped(cluster, given), "messages to pop", 30)
        with contextlib.suppress(TimeoutError):
            wait_until(there, "the topic", 20)
            return total
    raise TimeoutError(f"{POPS_MAX} pops left nothing to be popped again where it was expected")


def test_what_a_group_was_to_pop_again_is_deleted_with_it(
    admin: Admin, given: Given, apache_cluster: ApacheCluster
) -> None:
    """By either name 5.x has for the topic it is kept in."""
    if apache_cluster.referee.version.startswith("4."):
        pytest.skip("4.x knows no popping")
    older, newer = pop_retry_topics(given.group, given.topic)

    def there() -> set[str]:
        return {row.topic for row in admin.topics.all()} & {older, newer}

    def kept() -> int:
        return sum(kept_in(apache_cluster, name) for name in there())

    total = 0
    try:
        for setting, name in (("false", older), ("true", newer)):
            ask(apache_cluster.broker_addr, 25, {}, f"enableRetryTopicV2={setting}\n".encode())
            total += pop_until(lambda name=name: name in there(), apache_cluster, given)  # type: ignore[misc]
        # What came back later would make its topic anew.
        wait_until(lambda: kept() >= total, "everything that was popped", 60)
    finally:
        ask(apache_cluster.broker_addr, 25, {}, b"enableRetryTopicV2=false\n")
    plan = admin.changes.group_delete_plan(given.group)
    assert {older, newer} <= {step.name for step in plan.steps}
    assert [loss for loss in plan.losses if f"waiting to be popped again, in {older}" in loss]
    assert admin.changes.apply(plan, force=True).differing == ()
    assert not there()


def test_settings_are_changed_and_the_others_kept(
    admin: Admin, given: Given, apache_cluster: ApacheCluster
) -> None:
    """What a release of the broker has beside the settings known here stays as it is."""
    admin.changes.apply(admin.changes.group_create_plan(given.group, {"retryMaxTimes": 3}))
    (before,) = admin.groups.settings(given.group).values()
    admin.changes.apply(admin.changes.group_update_plan(given.group, {"retryQueueNums": 2}))
    (after,) = admin.groups.settings(given.group).values()
    assert after == {**before, "retryQueueNums": 2}
    is_4 = apache_cluster.referee.version.startswith("4.")
    assert ("groupRetryPolicy" in after) == (not is_4)
    plan = admin.changes.topic_update_plan(given.topic, write_queues=1, perm=4)
    assert admin.changes.apply(plan).differing == ()
    (route,) = admin.topics.route(given.topic)
    assert (route.read_queues, route.write_queues, route.permission) == (QUEUES, 1, "R")


def test_topics_groups_and_offsets_go_to_the_embedded_broker_and_back(
    admin: Admin, given: Given, tmp_path: Path
) -> None:
    """The file of one kind of broker is put into the other, and its file into the first."""
    collector = Collector()
    with push_consumer(given.address, given.group, given.topic, collector):
        collector.wait(COUNT)
        wait_until(lambda: given.committed(admin) == given.ends, "the offsets of everything")
    admin.changes.apply(admin.changes.group_update_plan(given.group, {"retryMaxTimes": 7}))
    theirs, ours = tmp_path / "theirs.json", tmp_path / "ours.json"
    before = admin.changes.export([given.topic], [given.group])
    theirs.write_text(json.dumps(before.to_json()))
    with EmbeddedCluster() as embedded, Admin(embedded.namesrv_addr) as there:
        embedded.create_topic(given.topic, QUEUES)
        with Peer(embedded.broker_addr) as peer:
            for queue_id, count in given.ends.items():
                for number in range(count):
                    peer.send(given.topic, b"%d" % number, queue_id=queue_id)
        done = there.changes.apply(there.changes.import_plan(theirs), force=True)
        assert done.differing == ()
        ours.write_text(json.dumps(there.changes.export().to_json()))
    admin.changes.reset_apply(
        admin.changes.reset_plan(given.group, given.topic, ResetTarget.earliest()),
        undo_directory=tmp_path,
    )
    admin.changes.apply(admin.changes.group_update_plan(given.group, {"retryMaxTimes": 3}))
    admin.changes.apply(admin.changes.topic_update_plan(given.topic, perm=4))
    assert admin.changes.apply(admin.changes.import_plan(ours), force=True).differing == ()
    after = admin.changes.export([given.topic], [given.group])
    assert (after.topics, after.groups, after.offsets) == (
        before.topics, before.groups, before.offsets,
    )  # fmt: skip
