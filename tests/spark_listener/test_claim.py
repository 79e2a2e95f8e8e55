"""A query's claim on its group: a live member for every tool, refused beside others."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Iterator

import pytest

from rocketstream import PushConsumer
from rocketstream.admin import Admin
from rocketstream.client.admin.blocking import BlockingAdminClient
from rocketstream.client.instance.mq_client import MQClientInstance
from rocketstream.errors import (
    BrokerError,
    ClientStateError,
    ConfigurationError,
    RouteNotFoundError,
)
from rocketstream.model import ConsumeConcurrentlyStatus, MessageQueue
from rocketstream.server.embedded import EmbeddedCluster
from rocketstream.spark.listener import claim as claiming
from rocketstream.spark.listener.claim import GroupClaim, live_members
from tests.kits.spark.broker_contents import pulled
from tests.kits.spark.support import numbered, send

LONG_S = 20.0
QUEUE = MessageQueue("orders", "broker-a", 0)


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster() as running:
        running.create_topic("orders", queues=2)
        yield running


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claiming, "LEAVING_MS", 0)


def claim(cluster: EmbeddedCluster, group: str, **kinds: object) -> GroupClaim:
    return GroupClaim(group, {"orders": "*"}, nameServer=cluster.namesrv_addr, **kinds)  # type: ignore[arg-type]


def push_consumer(cluster: EmbeddedCluster, group: str) -> PushConsumer:
    return PushConsumer(
        group,
        namesrv_addr=cluster.namesrv_addr,
        listener=lambda _: ConsumeConcurrentlyStatus.CONSUME_SUCCESS,
        subscription={"orders": "*"},
    )


def test_a_claim_is_a_live_member_with_a_retry_topic_until_it_ends(
    cluster: EmbeddedCluster, admin: BlockingAdminClient
) -> None:
    """Covers C-111 and C-338."""
    with claim(cluster, "alive") as mine:
        assert live_members(admin, "alive") == {mine.client_id}
        assert admin.subscribe_queues("%RETRY%alive")
    assert live_members(admin, "alive") == frozenset()


def test_tools_see_what_the_member_subscribes_and_how_far_it_is(cluster: EmbeddedCluster) -> None:
    """Running info (307) is answered from this process, with the offsets of the query."""
    facts = {"sparkQuery": "billing", "sparkBatch": "7"}
    mine = claim(cluster, "seen", progress=lambda: {QUEUE: 41}, orderly=True, facts=lambda: facts)
    with mine, Admin(cluster.namesrv_addr) as admin:
        connection = admin.groups.connections("seen")
        assert [member.client_id for member in connection.members] == [mine.client_id]
        assert {each.topic for each in connection.subscriptions} == {"orders", "%RETRY%seen"}
        (info,) = admin.groups.running_info("seen")
        assert [(each.topic, each.queue_id, each.commit_offset) for each in info.queues] == [
            ("orders", 0, 41)
        ]
        assert [each.locked for each in info.queues] == [True]
        assert facts.items() <= info.properties.items()


def test_brokers_are_told_of_a_member_like_a_push_consumer(cluster: EmbeddedCluster) -> None:
    """Covers C-143: what Java's members say, so that tools and brokers take it for one."""
    with claim(cluster, "told") as mine:
        assert mine._member is not None
        said = mine._member.heartbeat_data()
    assert (said.group_name, said.consume_type, said.message_model) == (
        "told", "CONSUME_PASSIVELY", "CLUSTERING",
    )  # fmt: skip
    assert said.consume_from_where == "CONSUME_FROM_LAST_OFFSET"
    assert not said.unit_mode


def test_topics_a_query_reads_are_seen_although_nobody_named_them(
    cluster: EmbeddedCluster, caplog: pytest.LogCaptureFixture
) -> None:
    """And that nobody would consume again what the listener fails is said, once."""
    mine = GroupClaim("learned", {}, nameServer=cluster.namesrv_addr, progress=lambda: {QUEUE: 41})
    with mine, Admin(cluster.namesrv_addr) as admin:
        assert mine._engine is not None
        assert mine._member is not None
        for _ in range(2):
            mine._engine.run(mine._member.persist_offsets())
        seen = {each.topic for each in admin.groups.connections("learned").subscriptions}
    assert seen == {"orders", "%RETRY%learned"}
    assert caplog.text.count("does not read topic %RETRY%learned") == 1


def test_what_a_query_reports_at_its_end_puts_nothing_back(
    cluster: EmbeddedCluster, admin: BlockingAdminClient
) -> None:
    """Its process stood still for an hour, while others claimed the group, went on and ended."""
    cluster.create_topic("ended", queues=2)
    here, there = (MessageQueue("ended", "broker-a", queue_id) for queue_id in range(2))
    for queue_id in range(2):
        send(cluster, "ended", queue_id, numbered(0, 10))
    with claim(cluster, "frozen") as mine:
        admin.update_consumer_offsets("frozen", {here: 9})
        mine.report({here: 4, there: 0})
        assert admin.query_consumer_offset("frozen", here) == 9
        assert admin.query_consumer_offset("frozen", there) == 0
        mine.report({here: 10, there: 7})
    assert admin.query_consumer_offset("frozen", here) == 10
    assert admin.query_consumer_offset("frozen", there) == 7


def test_a_broker_that_is_gone_at_the_end_leaves_the_others_their_report(
    cluster: EmbeddedCluster, admin: BlockingAdminClient, caplog: pytest.LogCaptureFixture
) -> None:
    gone = [MessageQueue("orders", "broker-x", queue_id) for queue_id in range(2)]
    with claim(cluster, "halved") as mine:
        mine.report({gone[0]: 4, QUEUE: 0, gone[1]: 4})
    assert admin.query_consumer_offset("halved", QUEUE) == 0
    assert caplog.text.count("were not reported, the checkpoint has them: broker 'broker-x'") == 1


def test_the_offsets_of_whoever_took_the_group_over_are_left_alone(
    cluster: EmbeddedCluster, admin: BlockingAdminClient, caplog: pytest.LogCaptureFixture
) -> None:
    with claim(cluster, "taken") as mine, push_consumer(cluster, "taken") as owner:
        mine.report({QUEUE: 0})
        assert f"they are those of {owner.client_id} now" in caplog.text


def test_a_claim_that_knows_no_listener_refuses_to_consume_a_message(
    cluster: EmbeddedCluster, admin: BlockingAdminClient
) -> None:
    """Covers C-269: with the reason, not with an answer that looks like a listener's."""
    send(cluster, "orders", 0, numbered(0, 1))
    (message,) = pulled(admin, QUEUE, 0)
    with (
        claim(cluster, "deaf") as mine,
        Admin(cluster.namesrv_addr) as operator,
        pytest.raises(BrokerError, match="nobody told the claim which one"),
    ):
        operator.messages.consume("deaf", mine.client_id, "orders", message.offset_msg_id)


def test_progress_that_cannot_be_asked_for_is_told_as_none(cluster: EmbeddedCluster) -> None:
    def broken() -> dict[MessageQueue, int]:
        raise OSError("the session is gone")

    with claim(cluster, "broken", progress=broken), Admin(cluster.namesrv_addr) as admin:
        (info,) = admin.groups.running_info("broken")
        assert list(info.queues) == []


def test_brokers_are_told_of_the_end(
    cluster: EmbeddedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Covers C-119: not left to see a closed connection, which may take Apache's two minutes."""
    told: list[str] = []
    real = MQClientInstance.unregister_consumer

    async def unregister(instance: MQClientInstance, group: str) -> None:
        told.append(group)
        await real(instance, group)

    monkeypatch.setattr(MQClientInstance, "unregister_consumer", unregister)
    with claim(cluster, "ends"):
        assert told == []
    assert told == ["ends"]


def test_a_group_with_live_members_is_refused_and_they_are_named(
    cluster: EmbeddedCluster, admin: BlockingAdminClient
) -> None:
    with push_consumer(cluster, "taken") as other:
        with pytest.raises(ClientStateError, match="live members") as caught:
            claim(cluster, "taken").begin()
        assert other.client_id in str(caught.value)
        assert live_members(admin, "taken") == {other.client_id}


def test_a_group_that_no_broker_makes_by_itself_has_to_be_made_first() -> None:
    """Without its retry topic no failed message could go back."""
    with (
        EmbeddedCluster(auto_create_groups=False) as strict,
        BlockingAdminClient(strict.namesrv_addr) as admin,
    ):
        mine = GroupClaim("strange", {}, nameServer=strict.namesrv_addr, retryTimeoutMs="0")
        with pytest.raises(RouteNotFoundError, match="create group 'strange' first"):
            mine.begin()
        assert live_members(admin, "strange") == frozenset()


def test_a_group_is_claimed_once(cluster: EmbeddedCluster) -> None:
    with claim(cluster, "once") as mine:
        with pytest.raises(ClientStateError, match="claimed already"):
            mine.begin()
        with pytest.raises(ClientStateError, match=mine.client_id):
            claim(cluster, "once").begin()


def test_a_member_that_is_just_leaving_is_waited_for(
    cluster: EmbeddedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A driver that was killed a moment ago is a member until its connection is seen closed."""
    monkeypatch.setattr(claiming, "LEAVING_MS", 20_000)
    first = claim(cluster, "leaving")
    first.begin()
    asked = threading.Event()
    real = claiming.live_members

    def seen(admin: BlockingAdminClient, group: str) -> frozenset[str]:
        found = real(admin, group)
        if not asked.is_set():
            asked.set()
            first.end()
        return found

    monkeypatch.setattr(claiming, "live_members", seen)
    with claim(cluster, "leaving"):
        assert asked.is_set()


class Told(logging.Handler):
    """Waits for a warning."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._texts: queue.SimpleQueue[str] = queue.SimpleQueue()

    def emit(self, record: logging.LogRecord) -> None:
        self._texts.put(record.getMessage())

    def text(self, part: str) -> str:
        while part not in (text := self._texts.get(timeout=LONG_S)):
            pass
        return text


def test_a_member_that_comes_later_is_warned_of(cluster: EmbeddedCluster) -> None:
    logger, told = logging.getLogger("rocketstream.spark"), Told()
    logger.addHandler(told)
    try:
        with claim(cluster, "later"), push_consumer(cluster, "later") as other:
            assert other.client_id in told.text("consumed twice")
    finally:
        logger.removeHandler(told)


@pytest.mark.parametrize(
    ("options", "said"),
    [({"nameSever": "h:1"}, "did you mean 'nameServer'"), ({}, "'nameServer' is missing")],
)
def test_options_of_a_claim_are_those_of_a_connection(options: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        GroupClaim("g", {"orders": "*"}, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("group", ["", "bil ling", "g" * 256])
def test_a_claim_is_of_a_group_name(group: str) -> None:
    with pytest.raises(ConfigurationError):
        GroupClaim(group, {"orders": "*"}, nameServer="127.0.0.1:1")
