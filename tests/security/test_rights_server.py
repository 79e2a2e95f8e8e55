"""An account without a right to a topic gets no byte of it and changes nothing its owners see.

One test a request code: each request is made of every field that can name the topic, its group or
one of its messages, wherever they are stored (delayed, half, retried, given up).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from rocketstream.admin import Admin
from rocketstream.model import MessageQueue
from rocketstream.protocol.bodies import (
    CheckClientRequestBody,
    ConsumerData,
    HeartbeatData,
    LockBatchRequestBody,
    ProducerData,
    SubscriptionData,
    SubscriptionGroupConfig,
    UnlockBatchRequestBody,
)
from rocketstream.protocol.codes import RequestCode
from rocketstream.protocol.command import RemotingCommand
from rocketstream.protocol.message_ext import decode_messages
from rocketstream.protocol.message_id import encode_offset_msg_id
from rocketstream.protocol.properties import encode_properties
from rocketstream.protocol.record import encode_batch
from rocketstream.protocol.signing import sign
from rocketstream.server.broker import broker
from rocketstream.server.broker.core.acl.rights import OPEN_NAME_SERVER_CODES, RULES
from rocketstream.server.embedded import EmbeddedCluster
from rocketstream.testing import ManualClock
from tests.kits.peer import BORN_MS, Peer
from tests.plugins.peers import MakeCluster
from tests.plugins.waiting import wait_until

ACCOUNTS = """accounts:
- accessKey: the-owner
  secretKey: secret-of-owner
  topicPerms: [secret=PUB|SUB]
  groupPerms: [owners=SUB]
- accessKey: operator
  secretKey: secret-of-operator
  admin: true
- accessKey: narrow-one
  secretKey: secret-of-narrow
  topicPerms: [mine=PUB|SUB, OWN_REPLY_TOPIC=PUB]
  groupPerms: [my-group=SUB]
- accessKey: wide-one
  secretKey: secret-of-wide
  defaultTopicPerm: PUB|SUB
  defaultGroupPerm: SUB
  topicPerms: [secret=DENY]
  groupPerms: [owners=DENY]
- accessKey: any-group
  secretKey: secret-of-any-group
  topicPerms: [mine=PUB|SUB]
  defaultGroupPerm: SUB
"""
KEYS = {
    "owner": ("the-owner", "secret-of-owner"),
    "operator": ("operator", "secret-of-operator"),
    "narrow": ("narrow-one", "secret-of-narrow"),
    "wide": ("wide-one", "secret-of-wide"),
    "any group": ("any-group", "secret-of-any-group"),
    "nobody": None,
}
HOSTILE = ("nobody", "narrow", "wide")
MARK = b"MARK-OF-SECRET"
SCHEDULE, HALF = "SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC"
RETRY, DLQ = "%RETRY%owners", "%DLQ%owners"
PLACES = (("secret", 0), (SCHEDULE, 17), (SCHEDULE, 2), (HALF, 0), (RETRY, 0), (DLQ, 0))
TOPICS = ("secret", RETRY, DLQ, SCHEDULE, HALF, "RMQ_SYS_TRANS_OP_HALF_TOPIC")
CLOSED_NAME_SERVER_CODES = {100, 102, 103, 104, 205, 216, 318, 322, 327}
READERS = {RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE, RequestCode.QUERY_MESSAGE,
           RequestCode.VIEW_MESSAGE_BY_ID}  # fmt: skip
OWN_ID = "hostile"


class Signing(Peer):
    """A peer that signs what it asks."""

    def __init__(self, address: str, keys: tuple[str, str] | None) -> None:
        super().__init__(address)
        self._keys = keys

    def submit(self, command: RemotingCommand) -> int:
        if self._keys is not None:
            fields = dict(command.ext_fields or {})
            command.ext_fields = fields | sign(fields, command.body, *self._keys)
        return super().submit(command)


@dataclass
class World:
    """A cluster with accounts, and the messages of a topic that is not everybody's."""

    cluster: EmbeddedCluster
    clock: ManualClock
    accounts: Path
    owner: Peer
    offsets: list[tuple[int, str, int]]
    """Log offset, topic and queue of each message."""

    def peer(self, who: str, *, name_server: bool = False) -> Signing:
        cluster = self.cluster
        address = cluster.namesrv_addr if name_server else cluster.broker_addr
        return Signing(address, KEYS[who])

    def state(self) -> dict[str, Any]:
        """What the topic's owners see, and what is everybody's."""
        routes = self.cluster.nameserver.routes
        controller, store = self.cluster.broker.controller, self.cluster.broker.store
        group = controller.consumers.group("owners")
        queue = MessageQueue("secret", "broker-a", 0)
        locks, now_ms = controller.locks, controller.monotonic_ms()
        assert group is not None
        return {
            "ends": {(t, q): store.max_offset(t, q) for t in TOPICS for q in store.queue_ids(t)},
            "topics": {topic: controller.topics.get(topic) for topic in TOPICS},
            "all topics": sorted(store.topics()),
            "group": controller.groups.get("owners"),
            "offsets": {topic: dict(controller.offsets.of("owners", topic)) for topic in TOPICS},
            "delays": [controller.schedule.offset(level) for level in controller.schedule.levels],
            "members": group.client_ids(),
            "subscribed": {name: data.encode() for name, data in group.subscriptions.items()},
            "lock": locks.holder("owners", queue, now_ms),
            "undecided": self.cluster.broker.undecided_transactions,
            "settings": (controller.edits.values, controller.config),
            "accounts": self.accounts.read_bytes(),
            "route": (route := routes.route("secret")) and route.encode(standard=True),
            "brokers": routes.cluster_info().encode(),
            "name server": self.cluster.nameserver.settings.snapshot(),
        }


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    accounts = tmp_path_factory.mktemp("accounts") / "plain_acl.yml"
    accounts.write_text(ACCOUNTS)
    clock = ManualClock()
    never_ms = 3_600_000
    with EmbeddedCluster(
        acl=accounts, clock=clock, transaction_check_interval_ms=never_ms
    ) as cluster:
        for topic in ("secret", "mine"):
            cluster.create_topic(topic, queues=1)
        with Signing(cluster.broker_addr, KEYS["owner"]) as owner:
            _fill(owner)
            yield World(cluster, clock, accounts, owner, _stored(cluster))


def _fill(owner: Peer) -> None:
    """Send what an owner sends, and be its consumer."""
    beat = owner.heartbeat("owner-1", "owners", {"secret": "*", RETRY: "*"}, producer="vtx")
    sent = [
        beat,
        owner.send("secret", MARK + b"-plain", properties={"KEYS": "key"}),
        owner.send("secret", MARK + b"-delayed", properties={"KEYS": "key", "DELAY": "18"}),
        owner.send("secret", MARK + b"-half", sys_flag=4,
                   properties={"KEYS": "key", "TRAN_MSG": "true", "PGROUP": "vtx"}),
        owner.send(RETRY, MARK + b"-retried",
                   properties={"KEYS": "key", "RETRY_TOPIC": "secret"}),
        owner.commit("owners", "secret", 0, 0),
    ]  # fmt: skip
    (message,) = decode_messages(bytes(owner.pull("secret", 0, group="owners").body))
    sent += [owner.send_back("owners", message, level=level) for level in (-1, 0)]
    lock = LockBatchRequestBody("owners", "owner-1", {MessageQueue("secret", "broker-a", 0)})
    sent.append(owner.call(RequestCode.LOCK_BATCH_MQ, body=lock.encode()))
    assert [answer.code for answer in sent] == [0] * len(sent), sent


def _stored(cluster: EmbeddedCluster) -> list[tuple[int, str, int]]:
    store = cluster.broker.store
    return [
        (store.consume_queue_entries(topic, queue, 0, 1)[0][0], topic, queue)
        for topic, queue in PLACES
    ]


# --- hostile requests --------------------------------------------------------------------------


def requests(code: int, world: World) -> Iterator[RemotingCommand]:
    """Requests of a code: every topic and group in every field, then every message."""
    first = world.offsets[0]
    named = [(topic, group, first) for topic in TOPICS for group in ("owners", "my-group")]
    placed = [(at[1], "my-group", at) for at in world.offsets]
    for (topic, group, place), number in zip([*named, *placed], itertools.count()):
        fields = {**_fields(topic, group, place), "commitOrRollback": ("8", "12")[number % 2]}
        if code == RequestCode.CONSUME_MESSAGE_DIRECTLY:
            fields["clientId"] = OWN_ID
        yield RemotingCommand(code, ext_fields=fields, body=_body(code, topic, group))


def _fields(topic: str, group: str, place: tuple[int, str, int]) -> dict[str, str]:
    offset, _, queue = place
    msg_id = encode_offset_msg_id("127.0.0.1", 1, offset)
    texts = [
        (topic, ("topic", "b", "originTopic", "statsKey", "key_")),
        (group, ("group", "consumerGroup", "srcGroup", "destGroup", "groupName", "compareGroup")),
        ("vtx", ("producerGroup", "a")),
        (str(offset), ("offset", "commitLogOffset")),
        (str(queue), ("queueId", "e")),
        (msg_id, ("msgId", "offsetMsgId", "transactionId")),
        (str(BORN_MS), ("g", "bornTimestamp", "endTimestamp")),
        ("0", ("queueOffset", "tranStateTableOffset", "commitOffset", "suspendTimeoutMillis", "h",
          "subVersion", "beginTimestamp", "delayLevel", "f", "j", "flag", "reconsumeTimes",
          "topicSysFlag", "index", "brokerId", "bodyCrc32", "perm", "timestamp")),
        ("1", ("readQueueNums", "writeQueueNums", "d", "defaultTopicQueueNums")),
        ("4", ("sysFlag",)),
        ("16", ("l", "maxReconsumeTimes")),
        ("32", ("maxMsgNums", "maxNum", "count")),
        ("false", ("fromTransactionCheck", "k", "m", "unitMode", "batch", "order", "compressed")),
        ("true", ("isForce", "force", "offline", "isOrder", "admin", "jstackEnable")),
        ("TBW102", ("c", "defaultTopic")),
        ("DefaultCluster", ("clusterName", "cluster")),
        ("broker-a", ("brokerName",)),
        ("10.9.9.9:1", ("brokerAddr", "haServerAddr")),
        (encode_properties({"REPLY_TO_CLIENT": "gone", "KEYS": "key"}), ("i", "properties")),
    ]  # fmt: skip
    return {name: text for text, names in texts for name in names} | {
        "clientID": OWN_ID, "clientId": "owner-1", "clientAddr": "nobody", "subscription": "*",
        "expressionType": "TAG", "key": "key", "topicFilterType": "SINGLE_TAG",
        "statsName": "TOPIC_PUT_NUMS", "accessKey": "newcomer", "secretKey": "secret-of-newcomer",
        "globalWhiteAddrs": "*", "namespace": "ORDER_TOPIC_CONFIG", "value": "broker-a:9",
        "filterGroups": "",
    }  # fmt: skip


def _body(code: int, topic: str, group: str) -> bytes:
    queues = {MessageQueue("secret", "broker-a", 0), MessageQueue(topic, "broker-a", 0)}
    subscription = SubscriptionData(topic=topic, sub_string="*")
    consumer = ConsumerData(group_name=group, subscription_data_set=[subscription])
    bodies: dict[int, bytes] = {
        34: HeartbeatData(OWN_ID, [ProducerData("vtx")], [consumer]).encode(),
        41: LockBatchRequestBody(group, OWN_ID, queues).encode(),
        42: UnlockBatchRequestBody(group, "owner-1", queues).encode(),
        46: CheckClientRequestBody(OWN_ID, group, subscription_data=subscription).encode(),
        25: b"autoCreateTopicEnable=false",
        200: SubscriptionGroupConfig(group, consume_enable=False).encode(),
        318: b"orderMessageEnable=true",
        320: encode_batch([(0, b"hostile", b"")]),
        322: b"{}",
        103: b"",
    }
    return bodies.get(code, b"hostile")


def answers(peer: Peer, commands: Iterator[RemotingCommand]) -> list[RemotingCommand]:
    return [peer.answer(opaque) for opaque in [peer.submit(command) for command in commands]]


@pytest.mark.parametrize("code", sorted(RULES))
def test_no_byte_of_a_topic_and_no_change_without_a_right_to_it(world: World, code: int) -> None:
    before = world.state()
    for who in ("narrow", "wide", "any group"):
        if who == "any group" and code == RequestCode.GET_CONSUMER_RUNNING_INFO:
            continue  # it may ask the group's members, of whom none answers here
        with world.peer(who) as peer:
            assert peer.heartbeat(OWN_ID, "my-group", {"mine": "*"}, producer="vtx").code == 0
            got = answers(peer, requests(code, world))
            assert [answer for answer in got if MARK in bytes(answer.body)] == []
            assert [asked for asked in peer.asked if MARK in bytes(asked.body)] == []
        if who in HOSTILE:  # who may consume as any group may change its members and offsets
            assert world.state() == before, who
    with world.peer("nobody") as peer:
        (answer,) = answers(peer, itertools.islice(requests(code, world), 1))
        assert (answer.remark or "").endswith("AclException: No accessKey is configured")
    if code in READERS:
        with world.peer("operator") as peer:
            got = answers(peer, requests(code, world))
            assert any(MARK in bytes(answer.body) for answer in got), "the requests can read"


@pytest.mark.parametrize("code", sorted(OPEN_NAME_SERVER_CODES | CLOSED_NAME_SERVER_CODES))
def test_a_name_server_beside_accounts_is_changed_by_none_but_admins(
    world: World, code: int
) -> None:
    before = world.state()
    for who in HOSTILE:
        with world.peer(who, name_server=True) as peer:
            got = answers(peer, itertools.islice(requests(code, world), 2))
        assert world.state() == before
        refused = {"AclException" in (answer.remark or "") for answer in got}
        assert refused == {code in CLOSED_NAME_SERVER_CODES}


def test_every_code_has_a_rule(world: World) -> None:
    """Who adds a handler decides who may ask for it; until then an admin may."""
    assert set(world.cluster.broker.codes) == set(RULES)
    answered = set(world.cluster.nameserver.dispatcher.codes)
    assert answered == OPEN_NAME_SERVER_CODES | CLOSED_NAME_SERVER_CODES
    assert not OPEN_NAME_SERVER_CODES & CLOSED_NAME_SERVER_CODES


# --- what the broker does by itself ------------------------------------------------------------


@pytest.fixture
def accounts(tmp_path: Path) -> Path:
    file = tmp_path / "plain_acl.yml"
    file.write_text(ACCOUNTS)
    return file


def test_a_half_message_is_brought_to_producers_with_a_right_to_its_topic(
    rocketmq_cluster_factory: MakeCluster, accounts: Path
) -> None:
    """A producer says itself of which group it is; without one that may be asked nobody is."""
    clock = ManualClock()
    cluster = rocketmq_cluster_factory(acl=accounts, clock=clock)
    cluster.create_topic("secret", queues=1)
    half = {"TRAN_MSG": "true", "PGROUP": "vtx"}
    with (
        Signing(cluster.broker_addr, KEYS["narrow"]) as narrow,
        Signing(cluster.broker_addr, KEYS["wide"]) as wide,
        Signing(cluster.broker_addr, KEYS["owner"]) as owner,
    ):
        assert owner.send("secret", MARK, sys_flag=4, properties=half).code == 0
        for peer in (narrow, wide):
            peer.heartbeat(f"hostile-{peer}", producer="vtx")
        clock.advance(6_000)
        cluster.check_transactions()
        owner.heartbeat("owner-1", producer="vtx")
        for _ in range(3):
            cluster.check_transactions()
            asked = owner.next_asked(RequestCode.CHECK_TRANSACTION_STATE)
            assert MARK in bytes(asked.body)
        for peer in (narrow, wide):
            peer.heartbeat(f"hostile-{peer}", producer="vtx")  # whatever was sent has come
            assert peer.asked == []


@pytest.mark.parametrize("code", [307, 309])
def test_a_member_does_not_get_the_signature_of_who_asks_it(
    rocketmq_cluster_factory: MakeCluster, accounts: Path, code: int
) -> None:
    """A signature says neither code nor time: with an admin's, a member made itself an admin."""
    cluster = rocketmq_cluster_factory(acl=accounts)
    cluster.create_topic("mine", queues=1)
    with (
        Signing(cluster.broker_addr, KEYS["narrow"]) as member,
        Signing(cluster.broker_addr, KEYS["operator"]) as operator,
    ):
        assert member.heartbeat("member-1", "my-group", {"mine": "*"}).code == 0
        sent = member.send("mine", b"hello")
        (offset, _, _) = cluster.broker.store.consume_queue_entries("mine", 0, 0, 1)[0]
        assert sent.code == 0
        ext = {
            "consumerGroup": "my-group",
            "clientId": "member-1",
            "msgId": encode_offset_msg_id("127.0.0.1", 1, offset),
        }
        opaque = operator.submit(RemotingCommand(code, ext_fields=ext))
        asked = member.next_asked(code)
        assert set(asked.ext_fields or {}) <= {*ext, "brokerName"}
        member.reply(asked, body=b"{}")
        assert operator.answer(opaque).code == 0


def test_a_reply_needs_no_right_to_the_clusters_own_topic_of_replies_alone(world: World) -> None:
    def reply(topic: str) -> RemotingCommand:
        fields = _fields(topic, "my-group", world.offsets[0])
        with world.peer("narrow") as peer:
            command = RemotingCommand(RequestCode.SEND_REPLY_MESSAGE_V2, ext_fields=fields)
            return peer.answer(peer.submit(command))

    assert "channel" in (reply("DefaultCluster_REPLY_TOPIC").remark or "")
    assert "channel" in (reply("OWN_REPLY_TOPIC").remark or "")
    assert (reply("ORDERS_REPLY_TOPIC").remark or "").endswith("for topic:ORDERS_REPLY_TOPIC")
    assert world.cluster.broker.controller.topics.get("ORDERS_REPLY_TOPIC") is None


def test_a_waiting_pull_is_refused_once_its_right_is_gone(
    rocketmq_cluster_factory: MakeCluster, accounts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker, "ACL_INTERVAL_S", 0.02)
    cluster = rocketmq_cluster_factory(acl=accounts)
    cluster.create_topic("secret", queues=1)
    with Signing(cluster.broker_addr, KEYS["owner"]) as owner:
        waiting = owner.submit_pull("secret", 0, group="owners", suspend_ms=60_000)
        text = ACCOUNTS.replace("secret=PUB|SUB", "secret=PUB")
        changed = accounts.with_suffix(".new")
        changed.write_text(text)
        changed.replace(accounts)
        wait_until(lambda: "topic:secret" in _pull_of(owner), "the file to be read again")
        assert owner.send("secret", MARK).code == 0
        assert (owner.answer(waiting).remark or "").endswith("for topic:secret")


def _pull_of(owner: Peer) -> str:
    return owner.pull("secret", 0, group="owners").remark or ""


def test_an_admins_tools_change_brokers_and_name_server(
    rocketmq_cluster_factory: MakeCluster, accounts: Path
) -> None:
    cluster = rocketmq_cluster_factory(acl=accounts, brokers=2)
    routes = cluster.nameserver.routes
    access, secret = KEYS["operator"] or ("", "")
    with Admin(cluster.namesrv_addr, access_key=access, secret_key=secret) as admin:
        admin.topics.create("orders")
        assert routes.route("orders") is not None
        admin.changes.apply(admin.changes.topic_delete_plan("orders"))
    assert routes.route("orders") is None


def test_a_broker_that_joins_signs_with_an_admin_of_its_accounts(
    rocketmq_cluster_factory: MakeCluster, accounts: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The name server knows brokers of its own process by an account nobody else has."""
    names = rocketmq_cluster_factory(acl=accounts, brokers=0)
    routes = names.nameserver.routes
    with EmbeddedCluster(namesrv_addrs=(names.namesrv_addr,), acl=accounts):
        assert set(routes.cluster_info().broker_addr_table) == {"broker-a"}
    assert routes.cluster_info().broker_addr_table == {}
    with EmbeddedCluster(namesrv_addrs=(names.namesrv_addr,)):
        assert routes.cluster_info().broker_addr_table == {}
    assert "No accessKey is configured" in caplog.text
