"""Heartbeats, membership, notifications and queue locks over the wire."""

from __future__ import annotations

import asyncio
import gc
import json
import weakref
from typing import cast

from rocketstream.model import MessageQueue
from rocketstream.protocol import fastjson
from rocketstream.protocol.bodies import (
    CheckClientRequestBody,
    ConsumerConnection,
    ConsumerData,
    GetConsumerListByGroupResponseBody,
    HeartbeatData,
    LockBatchRequestBody,
    LockBatchResponseBody,
    ProducerConnection,
    SubscriptionData,
    UnlockBatchRequestBody,
)
from rocketstream.protocol.codes import RequestCode, ResponseCode
from rocketstream.protocol.command import RemotingCommand
from rocketstream.server.broker.handlers.clients import ClientHandlers
from rocketstream.server.embedded import EmbeddedCluster
from rocketstream.testing import ManualClock
from rocketstream.transport.connection import Connection
from tests.kits.peer import Peer, ext
from tests.plugins.peers import MakeCluster

NOTIFY = RequestCode.NOTIFY_CONSUMER_IDS_CHANGED


def members(peer: Peer, group: str = "cg") -> list[str]:
    code = RequestCode.GET_CONSUMER_LIST_BY_GROUP
    answer = peer.call(code, ext={"consumerGroup": group})
    if answer.code != 0:
        return []
    return GetConsumerListByGroupResponseBody.decode(bytes(answer.body)).consumer_id_list


def assert_notified(peer: Peer, group: str = "cg") -> None:
    command = peer.next_asked(NOTIFY)
    assert command.is_oneway
    assert ext(command) == {"consumerGroup": group}


def test_heartbeat_registers_and_tells_everyone(rocketmq_cluster: EmbeddedCluster) -> None:
    """Covers C-337, C-339: a newcomer is announced to all members, itself included."""
    with Peer(rocketmq_cluster.broker_addr) as first, Peer(rocketmq_cluster.broker_addr) as second:
        answer = first.heartbeat("c1", topics={"T1": "*"})
        assert answer.code == 0
        assert ext(answer) == {}
        assert answer.version == 409
        assert_notified(first)
        first.heartbeat("c1", topics={"T1": "*"})
        second.heartbeat("c2", topics={"T1": "*"})
        assert_notified(second)
        assert_notified(first)
        assert members(second) == ["c1", "c2"]
        assert first.asked == []  # the repeated heartbeat announced nothing


def test_a_producer_group_of_endless_name_is_refused(rocketmq_cluster: EmbeddedCluster) -> None:
    """Apache's clients refuse more than 255 letters themselves; such a table would fill memory."""
    with Peer(rocketmq_cluster.broker_addr) as peer:
        known, endless = ({"groupName": "p" * count} for count in (255, 256))
        body = json.dumps({"clientID": "c1", "producerDataSet": [known, endless]}).encode()
        answer = peer.call(RequestCode.HEART_BEAT, body=body)
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "255 characters at most" in str(answer.remark)


def test_a_refused_group_takes_nothing_from_the_others_of_its_heartbeat(
    rocketmq_cluster: EmbeddedCluster,
) -> None:
    """Those behind it were not refreshed: 120 s later a healthy client was out of all of them."""
    controller = rocketmq_cluster.broker.controller
    with Peer(rocketmq_cluster.broker_addr) as first, Peer(rocketmq_cluster.broker_addr) as second:
        first.heartbeat("c1", "known", {"T1": "*"})
        controller.groups._groups_max = len(list(controller.groups))
        consumers = [{"groupName": name} for name in ("one-more", "not a name", "known")]
        producers = [{"groupName": name} for name in ("p" * 256, "pg")]
        body = {"clientID": "c2", "consumerDataSet": consumers, "producerDataSet": producers}
        answer = second.call(RequestCode.HEART_BEAT, body=json.dumps(body).encode())
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert answer.remark == (
            f"group one-more is not created: this broker keeps {controller.groups._groups_max} "
            "groups; delete some first; 2 more of the client's groups are refused"
        )
        assert members(first, "known") == ["c1", "c2"]
        assert [member.client_id for member in controller.producers.members("pg")] == ["c2"]


class WatchedRequest(RemotingCommand):
    """A request whose end can be seen."""

    __slots__ = ("__weakref__",)


def test_a_refused_heartbeat_is_not_held_by_its_refusal(rocketmq_cluster: EmbeddedCluster) -> None:
    """A circle through the error's frame held 300 of 1 MB, until old objects were collected."""
    handlers = ClientHandlers(rocketmq_cluster.broker.controller)
    body = HeartbeatData("c1", [], [ConsumerData("not a name")]).encode()
    request = WatchedRequest(RequestCode.HEART_BEAT, body=body)
    seen = weakref.ref(request)
    gc.disable()
    try:
        steps = handlers.heartbeat(cast("Connection", object()), request)
        assert list(steps) == [None]
        del steps, request
        assert seen() is None
    finally:
        gc.enable()


def test_a_subscription_for_which_there_is_no_room_takes_nothing_from_the_others(
    rocketmq_cluster: EmbeddedCluster,
) -> None:
    with Peer(rocketmq_cluster.broker_addr) as first:
        rocketmq_cluster.broker.controller.consumers._bytes_max = 10_000
        many = "||".join(f"tag{number}" for number in range(1_000))
        answer = first.heartbeat("c1", "greedy", {"T1": "*", "T2": many}, producer="pg")
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert answer.remark == (
            "the subscriptions of all consumers together are over the maximum of 67108864 bytes; "
            "that of group greedy for topic T2 is not taken"
        )
        assert_notified(first, "greedy")
        assert members(first, "greedy") == ["c1"]
        assert rocketmq_cluster.broker.controller.producers.names() == ["pg"]


def test_changed_topics_announce_and_newer_expressions_replace(
    rocketmq_cluster: EmbeddedCluster,
) -> None:
    """Covers C-340."""
    with Peer(rocketmq_cluster.broker_addr) as peer:
        peer.heartbeat("c1", topics={"T1": "A"}, version_ms=1)
        assert_notified(peer)
        peer.heartbeat("c1", topics={"T1": "B"}, version_ms=2)
        peer.heartbeat("c1", topics={"T1": "C"}, version_ms=1)
        assert peer.asked == []
        code = RequestCode.GET_CONSUMER_CONNECTION_LIST
        answer = peer.call(code, ext={"consumerGroup": "cg"})
        body = ConsumerConnection.decode(bytes(answer.body))
        assert body.subscription_table["T1"].sub_string == "B"
        assert (body.consume_type, body.message_model) == ("CONSUME_PASSIVELY", "CLUSTERING")
        [connection] = body.connection_set
        assert (connection.client_id, connection.language) == ("c1", "PYTHON")
        assert connection.version == 409
        peer.heartbeat("c1", topics={"T2": "*"})
        assert_notified(peer)


def test_heartbeat_creates_group_and_retry_topic(broker_peer: Peer, namesrv_peer: Peer) -> None:
    """Covers C-338, C-349, C-350."""
    broker_peer.heartbeat("c1", "cg", {"T1": "*"})
    topics = bytes(broker_peer.call(RequestCode.GET_ALL_TOPIC_CONFIG).body)
    assert b'"topicName":"%RETRY%cg"' in topics
    groups = bytes(broker_peer.call(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG).body)
    assert (
        b'"cg":{"brokerId":0,"consumeBroadcastEnable":true,"consumeEnable":true,'
        b'"consumeFromMinEnable":true,"groupName":"cg","notifyConsumerIdsChangedEnable":true,'
        b'"retryMaxTimes":16,"retryQueueNums":1,"whichBrokerWhenConsumeSlowly":1}' in groups
    )


def test_five_x_heartbeat_fields_are_tolerated(broker_peer: Peer) -> None:
    """Covers W 2.9: unknown fields and CONSUME_POP; the answer offers no V2."""
    body = fastjson.dumps(
        {
            "clientID": "c5",
            "heartbeatFingerprint": 0,
            "withoutSub": False,
            "consumerDataSet": [
                {"groupName": "cg5", "consumeType": "CONSUME_POP", "subscriptionDataSet": []}
            ],
        }
    ).encode()
    answer = broker_peer.call(RequestCode.HEART_BEAT, body=body)
    assert answer.code == 0
    assert ext(answer) == {}
    assert members(broker_peer, "cg5") == ["c5"]


def test_unregister_removes_and_tells_the_rest(rocketmq_cluster: EmbeddedCluster) -> None:
    """Covers C-343 a, C-344."""
    with Peer(rocketmq_cluster.broker_addr) as first, Peer(rocketmq_cluster.broker_addr) as second:
        first.heartbeat("c1", topics={"T1": "*"})
        second.heartbeat("c2", topics={"T1": "*"})
        for peer in (first, first, second):
            assert_notified(peer)
        fields = {"clientID": "c2", "consumerGroup": "cg"}
        assert second.call(RequestCode.UNREGISTER_CLIENT, ext=fields).code == 0
        assert_notified(first)
        assert members(first) == ["c1"]
        assert second.asked == []


def test_closed_connection_removes_and_tells_the_rest(rocketmq_cluster: EmbeddedCluster) -> None:
    """Covers C-343 b, C-344."""
    with Peer(rocketmq_cluster.broker_addr) as first:
        with Peer(rocketmq_cluster.broker_addr) as second:
            first.heartbeat("c1", topics={"T1": "*"})
            second.heartbeat("c2", topics={"T1": "*"})
            for peer in (first, first, second):
                assert_notified(peer)
        assert_notified(first)
        assert members(first) == ["c1"]


def test_silent_member_expires_and_the_rest_is_told(rocketmq_cluster_factory: MakeCluster) -> None:
    """Covers C-343 c and the fix of C-551: its connection is closed too."""
    clock = ManualClock()
    cluster = rocketmq_cluster_factory(clock=clock)
    with Peer(cluster.broker_addr) as first, Peer(cluster.broker_addr) as second:
        first.heartbeat("c1", topics={"T1": "*"})
        second.heartbeat("c2", topics={"T1": "*"}, producer="pg")
        for peer in (first, first, second):
            assert_notified(peer)
        clock.advance(120_000)
        first.heartbeat("c1", topics={"T1": "*"})
        on_loop(cluster, cluster.broker.controller.expire_members)
        assert members(first) == ["c1", "c2"]  # not older than 120 s yet
        clock.advance(1)
        on_loop(cluster, cluster.broker.controller.expire_members)
        assert_notified(first)
        assert members(first) == ["c1"]
        second.wait_end()


def test_a_broker_that_stood_still_takes_nobody_for_silent(
    rocketmq_cluster_factory: MakeCluster,
) -> None:
    """Covers C-343: where the machine slept, its clients slept as well, and are heard later."""
    clock = ManualClock()
    cluster = rocketmq_cluster_factory(clock=clock)
    look = cluster.broker._expire_members
    with Peer(cluster.broker_addr) as first, Peer(cluster.broker_addr) as second:
        first.heartbeat("c1", topics={"T1": "*"})
        second.heartbeat("c2", topics={"T1": "*"}, producer="pg")
        on_loop(cluster, look)
        clock.advance(3_600_000)
        on_loop(cluster, look)
        assert members(first) == ["c1", "c2"]
        for _ in range(12):
            clock.advance(10_000)
            on_loop(cluster, look)
        first.heartbeat("c1", topics={"T1": "*"})
        assert members(first) == ["c1", "c2"]
        clock.advance(10_000)
        on_loop(cluster, look)
        assert members(first) == ["c1"]
        second.wait_end()


def test_wall_clock_that_jumps_ends_neither_membership_nor_lock(
    rocketmq_cluster_factory: MakeCluster,
) -> None:
    """Silence and leases are durations: 73 hours more or less on the wall are not one of them."""
    clock = ManualClock()
    cluster = rocketmq_cluster_factory(clock=clock)
    one = {MessageQueue("T1", "broker-a", 0)}
    with Peer(cluster.broker_addr) as first, Peer(cluster.broker_addr) as second:
        first.heartbeat("c1", topics={"T1": "*"}, producer="pg")
        assert locked(first, "c1", one) == one
        for hours in (73, -146):
            clock.jump(hours * 3_600_000)
            on_loop(cluster, cluster.broker.controller.expire_members)
            assert members(first) == ["c1"]
            assert locked(second, "c2", one) == set()
        clock.advance(60_001)
        assert locked(second, "c2", one) == one


def locked(peer: Peer, client: str, wanted: set[MessageQueue]) -> set[MessageQueue]:
    """Ask for queues; return what was granted."""
    body = LockBatchRequestBody("cg", client, wanted).encode()
    answer = peer.call(RequestCode.LOCK_BATCH_MQ, body=body)
    return LockBatchResponseBody.decode(bytes(answer.body)).lock_ok_mq_set


def on_loop(cluster: EmbeddedCluster, work: object) -> None:
    async def call() -> None:
        work()  # type: ignore[operator]

    thread = cluster._thread
    assert thread is not None
    asyncio.run_coroutine_threadsafe(call(), thread.loop).result(10)


def test_unknown_group_has_no_members(broker_peer: Peer) -> None:
    """Covers C-345, C-346: upstream's codes and texts."""
    code = RequestCode.GET_CONSUMER_LIST_BY_GROUP
    answer = broker_peer.call(code, ext={"consumerGroup": "none"})
    assert (answer.code, answer.remark) == (1, "no consumer for this group, none")
    code = RequestCode.GET_CONSUMER_CONNECTION_LIST
    answer = broker_peer.call(code, ext={"consumerGroup": "none"})
    assert answer.code == ResponseCode.CONSUMER_NOT_ONLINE


def test_producers_are_listed_until_they_leave(broker_peer: Peer) -> None:
    """Covers C-348 and code 204."""
    code = RequestCode.GET_PRODUCER_CONNECTION_LIST
    broker_peer.heartbeat("p1", producer="pg")
    answer = broker_peer.call(code, ext={"producerGroup": "pg"})
    [connection] = ProducerConnection.decode(bytes(answer.body)).connection_set
    assert connection.client_id == "p1"
    fields = {"clientID": "p1", "producerGroup": "pg"}
    broker_peer.call(RequestCode.UNREGISTER_CLIENT, ext=fields)
    assert broker_peer.call(code, ext={"producerGroup": "pg"}).code == ResponseCode.SYSTEM_ERROR


def test_check_client_compiles_conditions(broker_peer: Peer) -> None:
    """Covers C-347, C-388, C-389."""

    def check(expression_type: str, text: str = "a > 1") -> RemotingCommand:
        data = SubscriptionData("T1", text, set(), set(), 1, expression_type)
        body = CheckClientRequestBody("c1", "cg", data).encode()
        return broker_peer.call(RequestCode.CHECK_CLIENT_CONFIG, body=body)

    assert check("TAG").code == 0
    assert check("SQL92").code == 0
    for wrong in ("a >", "a > 'b'", "a = NULL", "a BETWEEN 6 AND 2", "a = 9223372036854775808"):
        assert check("SQL92", wrong).code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
    assert check("LIKE").code == ResponseCode.SUBSCRIPTION_PARSE_FAILED


def test_locks_are_leases(rocketmq_cluster_factory: MakeCluster) -> None:
    """Covers C-353 to C-355: refused while held, renewed by the holder, taken over after 60 s."""
    clock = ManualClock()
    cluster = rocketmq_cluster_factory(clock=clock)
    queues = {MessageQueue("T1", "broker-a", number) for number in range(2)}
    one = {MessageQueue("T1", "broker-a", 0)}

    with Peer(cluster.broker_addr) as broker:

        def lock(client: str, wanted: set[MessageQueue]) -> set[MessageQueue]:
            body = LockBatchRequestBody("cg", client, wanted).encode()
            answer = broker.call(RequestCode.LOCK_BATCH_MQ, body=body)
            return LockBatchResponseBody.decode(bytes(answer.body)).lock_ok_mq_set

        assert lock("c1", one) == one
        assert lock("c2", queues) == queues - one
        clock.advance(40_000)
        assert lock("c1", one) == one
        clock.advance(60_000)
        assert lock("c2", queues) == queues - one
        clock.advance(1)
        assert lock("c2", queues) == queues
        body = UnlockBatchRequestBody("cg", "c1", queues).encode()
        assert broker.call(RequestCode.UNLOCK_BATCH_MQ, body=body).code == 0
        assert lock("c1", queues) == set()
        body = UnlockBatchRequestBody("cg", "c2", queues).encode()
        broker.call(RequestCode.UNLOCK_BATCH_MQ, body=body)
        assert lock("c1", queues) == queues
