"""One plain_acl.yml on Apache's 4.9 and on ours: whom both let in, and their words of refusal."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from rocketstream.admin import Admin
from rocketstream.protocol.bodies import (
    ConsumerData,
    HeartbeatData,
    LockBatchRequestBody,
    SubscriptionData,
)
from rocketstream.protocol.command import RemotingCommand
from rocketstream.protocol.headers import SendMessageRequestHeader
from rocketstream.protocol.signing import sign
from rocketstream.server.embedded import EmbeddedCluster
from rocketstream.testing import make_test_certificates
from tests.kits.apache.cluster import ApacheCluster, run_mqadmin
from tests.kits.peer import BORN_MS, Peer
from tests.plugins.apache import prepared
from tests.plugins.waiting import wait_until

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

ACCOUNTS = """globalWhiteRemoteAddresses:
- 10.0.0.*
accounts:
- accessKey: salesdesk
  secretKey: secret-of-sales
  whiteRemoteAddress:
  admin: false
  defaultTopicPerm: DENY
  defaultGroupPerm: SUB
  topicPerms:
  - orders=PUB|SUB
  - prices=SUB
  - audit=PUB
  groupPerms:
  - shut=DENY
- accessKey: numbered
  secretKey: 12345678
  defaultTopicPerm: PUB|SUB
- accessKey: neighbour
  secretKey: secret-of-neighbour
  whiteRemoteAddress: 127.0.0.{1,9}
- accessKey: operator
  secretKey: secret-of-operator
  admin: true
- accessKey: bounded
  secretKey: secret-of-bounded
  admin: true
  topicPerms:
  - orders=PUB
"""
SALES, OPERATOR = ("salesdesk", "secret-of-sales"), ("operator", "secret-of-operator")
BOUNDED = ("bounded", "secret-of-bounded")
TOPICS = ("orders", "prices", "audit", "salaries")
_REFUSED = re.compile(r"AclException: (.*?)(?:, org\.apache\.rocketmq\..*)?$", re.DOTALL)


@dataclass(frozen=True)
class Asked:
    """One operation."""

    name: str
    code: int
    ext: dict[str, str]
    body: bytes = b""
    keys: tuple[str, str] | None = SALES


def send(code: int, topic: str, *, keys: tuple[str, str] | None = SALES) -> Asked:
    header = SendMessageRequestHeader(
        "pg", topic, "TBW102", 4, 0, 0, BORN_MS, 0, "", 0, False, None, code == 320
    )
    ext = header.to_ext() if code == 10 else header.to_ext_v2()
    return Asked(f"{code} to {topic}", code, ext, b"body", keys)


def pull(topic: str, group: str, *, keys: tuple[str, str] | None = SALES) -> Asked:
    ext = {
        "consumerGroup": group, "topic": topic, "queueId": "0", "queueOffset": "0",
        "maxMsgNums": "1", "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0",
        "subscription": "*", "subVersion": "0", "expressionType": "TAG",
    }  # fmt: skip
    return Asked(f"11 of {topic} in {group}", 11, ext, keys=keys)


def beat(group: str, *topics: str) -> Asked:
    subscriptions = [SubscriptionData(topic=topic, sub_string="*") for topic in topics]
    consumer = ConsumerData(group_name=group, subscription_data_set=subscriptions)
    body = HeartbeatData(client_id="c", consumer_data_set=[consumer]).encode()
    return Asked(f"34 of {group} on {' '.join(topics)}", 34, {}, body)


def topic_ext(topic: str) -> dict[str, str]:
    return {
        "topic": topic, "defaultTopic": "TBW102", "readQueueNums": "1", "writeQueueNums": "1",
        "perm": "6", "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false",
    }  # fmt: skip


def commit(topic: str, group: str) -> Asked:
    ext = {"consumerGroup": group, "topic": topic, "queueId": "0", "commitOffset": "0"}
    return Asked(f"15 of {topic} in {group}", 15, ext)


def query(topic: str) -> Asked:
    ext = {"topic": topic, "key": "k", "maxNum": "1", "beginTimestamp": "0", "endTimestamp": "9"}
    return Asked(f"12 in {topic}", 12, ext)


SAME = [
    *(send(code, topic) for code in (10, 310) for topic in TOPICS),
    *(pull(topic, "shop") for topic in TOPICS),
    pull("orders", "shut"),
    pull("%RETRY%shop", "shop"),
    beat("shop", "orders", "%RETRY%shop"),
    beat("shop", "orders", "salaries"),
    beat("shut", "orders"),
    *(query(topic) for topic in TOPICS),
    *(commit(topic, group) for topic, group in (("orders", "shop"), ("salaries", "shop"))),
    commit("orders", "shut"),
    Asked("38 of shop", 38, {"consumerGroup": "shop"}),
    Asked("38 of shut", 38, {"consumerGroup": "shut"}),
    Asked("35 of shut", 35, {"clientID": "c", "consumerGroup": "shut"}),
    Asked("36 of shut", 36, {"group": "shut", "offset": "0", "delayLevel": "0"}),
    Asked("30 of salaries", 30, {"topic": "salaries", "queueId": "0"}),
    Asked("52", 52, {}),
    Asked("28", 28, {}),
    Asked("9999", 9999, {}),
    *(Asked(f"{code} as no admin", code, topic_ext("new")) for code in (17, 25, 200, 207, 215)),
    send(310, "salaries", keys=OPERATOR),
    Asked("17 as admin", 17, topic_ext("made"), keys=OPERATOR),
    send(310, "orders", keys=BOUNDED),
    send(310, "salaries", keys=BOUNDED),
    Asked("17 as bounded admin", 17, topic_ext("made-too"), keys=BOUNDED),
    send(310, "salaries", keys=("numbered", "12345678")),
    pull("salaries", "any", keys=("numbered", "12345678")),
    Asked("17 from a white address", 17, topic_ext("white"), keys=("neighbour", "wrong")),
    send(310, "orders", keys=None),
    send(310, "orders", keys=("salesdesk", "wrong-secret")),
    send(310, "orders", keys=("nobody-known", "wrong-secret")),
    Asked("28 unsigned", 28, {}, keys=None),
    Asked("9999 unsigned", 9999, {}, keys=None),
]
LOCK = LockBatchRequestBody(consumer_group="shut", client_id="c").encode()
STRICTER = [
    send(320, "salaries"),
    send(10, "%RETRY%shut"),
    Asked("41 of shut", 41, {}, LOCK),
    Asked("42 of shut", 42, {}, LOCK),
    Asked("222 of shut", 222, {"topic": "orders", "group": "shut", "timestamp": "-1",
                              "isForce": "true"}),
    Asked("54", 54, {}),
    Asked("306", 306, {}),
]  # fmt: skip


def refusal(address: str, asked: Asked) -> str | None:
    """Ask a broker; return in which words its access control refused, None when it did not."""
    command = RemotingCommand(asked.code, ext_fields=dict(asked.ext), body=asked.body)
    assert command.ext_fields is not None
    if asked.keys is not None:
        command.ext_fields |= sign(command.ext_fields, asked.body, *asked.keys)
    with Peer(address) as peer:
        answer = peer.answer(peer.submit(command))
    found = _REFUSED.search(answer.remark or "")
    if found is None:
        return None
    assert answer.code == 1
    return found[1]


@dataclass
class Side:
    """A broker with its accounts."""

    namesrv_addr: str
    broker_addr: str
    accounts: Path
    tools: Path


@pytest.fixture(scope="module")
def sides(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Side, Side]]:
    """Apache's and ours."""
    referee = prepared("4.9.7")
    root = tmp_path_factory.mktemp("apache")
    apache = ApacheCluster(referee, root / "cluster", broker_settings={"aclEnable": "true"})
    conf = root / "cluster" / "home" / "conf"
    conf.mkdir(parents=True)
    theirs, mine = conf / "plain_acl.yml", root / "plain_acl.yml"
    for file in (theirs, mine):
        file.write_text(ACCOUNTS)
    for tools in (root / "cluster", root / "tools"):
        home = tools / "home" / "conf"
        home.mkdir(parents=True, exist_ok=True)
        (home / "tools.yml").write_text("accessKey: operator\nsecretKey: secret-of-operator\n")
    try:
        apache.start()
        with EmbeddedCluster(root / "store", acl=mine) as ours:
            found = (
                Side(apache.namesrv_addr, apache.broker_addr, theirs, root / "cluster"),
                Side(ours.namesrv_addr, ours.broker_addr, mine, root / "tools"),
            )
            for side in found:
                access, secret = OPERATOR
                with Admin(side.namesrv_addr, access_key=access, secret_key=secret) as admin:
                    for topic in TOPICS:
                        admin.topics.create(topic, queues=1)
            yield found
    finally:
        apache.stop(kill=True)


def test_the_same_requests_are_let_in_and_refused_in_the_same_words(
    sides: tuple[Side, Side],
) -> None:
    theirs, ours = sides
    different = {
        asked.name: answers
        for asked in SAME
        if len(set(answers := (refusal(theirs.broker_addr, asked),
                               refusal(ours.broker_addr, asked)))) > 1
    }  # fmt: skip
    assert different == {}
    let_in = [asked for asked in SAME if refusal(ours.broker_addr, asked) is None]
    assert 10 < len(let_in) < len(SAME) - 10, "the list holds both"


@pytest.mark.parametrize("asked", STRICTER, ids=[asked.name for asked in STRICTER])
def test_a_signature_alone_opens_less_than_there(sides: tuple[Side, Side], asked: Asked) -> None:
    theirs, ours = sides
    assert refusal(theirs.broker_addr, asked) is None
    assert refusal(ours.broker_addr, asked) is not None


def test_both_take_over_a_changed_file(sides: tuple[Side, Side]) -> None:
    asked = send(310, "returns")
    for side in sides:
        assert refusal(side.broker_addr, asked) == "No default permission for topic:returns"
        text = side.accounts.read_text()
        side.accounts.write_text(text.replace("- audit=PUB", "- audit=PUB\n  - returns=PUB"))

        def is_let_in(address: str = side.broker_addr) -> bool:
            return refusal(address, asked) is None

        wait_until(is_let_in, "the file to be read again", timeout_s=30)


def test_mqadmin_changes_accounts_of_both_and_prints_the_same(sides: tuple[Side, Side]) -> None:
    """Signed with the keys of tools.yml; then Java's own producer and consumer use the account."""
    theirs, ours = (_told(side) for side in sides)
    for one, other in itertools.zip_longest(theirs, ours):
        assert other == one


def _told(side: Side) -> list[str]:
    """What mqadmin prints of changes at one broker."""
    referee = prepared("4.9.7")
    broker = ("-b", side.broker_addr)
    stock = send(310, "stock", keys=("warehouse", "secret-of-stock"))

    def mqadmin(*words: str) -> str:
        return run_mqadmin(referee, side.tools, side.namesrv_addr, *words)

    told = [
        mqadmin("updateAclConfig", *broker, "-a", "warehouse", "-s", "secret-of-warehouse",
                "-t", "stock=PUB,returns=SUB", "-g", "stores=SUB", "-i", "DENY"),
        mqadmin("updateAclConfig", *broker, "-a", "warehouse", "-s", "secret-of-stock"),
        mqadmin("getAclConfig", *broker),
        mqadmin("updateGlobalWhiteAddr", *broker, "-g", "10.0.0.*,10.1.1.1",
                "-p", str(side.accounts)),
        mqadmin("clusterAclConfigVersion", *broker),
    ]  # fmt: skip
    wait_until(
        lambda: refusal(side.broker_addr, stock) is None, "the account to count", timeout_s=30
    )
    told += [
        mqadmin("sendMessage", "-t", "orders", "-p", "by-java"),
        mqadmin("deleteAclConfig", *broker, "-a", "warehouse"),
    ]
    assert refusal(side.broker_addr, stock) == "No acl config for warehouse"
    told.append(mqadmin("deleteAclConfig", *broker, "-a", "warehouse"))
    hidden = ((side.broker_addr, "BROKER"), (str(side.accounts), "FILE"))
    return [_plain(text, hidden) for text in told]


def _plain(text: str, hidden: tuple[tuple[str, str], ...]) -> str:
    """What is printed, without addresses, times, ids and the trace of an exception."""
    for part, name in hidden:
        text = text.replace(part, name)
    text = re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", "TIME", text)
    text = re.sub(r"\b[0-9A-F]{24,}\b", "ID", text)
    text = re.sub(r"(?m)^\s+at .*\n", "", text)
    text = re.sub(r"@[0-9a-f]{5,8}\b", "@", text)
    return re.sub(r"[ \t]+", " ", text)


def test_javas_tools_reach_servers_that_enforce_tls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Name server and broker; without TLS the tools are not served."""
    referee = prepared("4.9.7")
    accounts = tmp_path / "plain_acl.yml"
    accounts.write_text(ACCOUNTS)
    home = tmp_path / "tools" / "home" / "conf"
    home.mkdir(parents=True)
    (home / "tools.yml").write_text("accessKey: operator\nsecretKey: secret-of-operator\n")
    files = make_test_certificates(tmp_path / "certificates")
    with EmbeddedCluster(acl=accounts, tls=files.server_tls(mode="enforcing")) as cluster:
        cluster.create_topic("orders", queues=1)
        words = ("sendMessage", "-t", "orders", "-p", "by-java")
        plain = run_mqadmin(referee, tmp_path / "tools", cluster.namesrv_addr, *words)
        monkeypatch.setenv("JAVA_TOOL_OPTIONS", "-Dtls.enable=true")
        told = run_mqadmin(referee, tmp_path / "tools", cluster.namesrv_addr, *words)
    assert "SEND_OK" not in plain
    assert "SEND_OK" in told
