"""The same requests to Apache's 4.9.7 and to our servers: the same codes, remarks and fields.

What differs on purpose is listed in ``DELIBERATE`` with its reason, and described in
``docs/differences.md``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from rocketstream.protocol import fastjson
from rocketstream.protocol.command import RemotingCommand
from rocketstream.protocol.message_id import decode_offset_msg_id
from rocketstream.server.embedded import EmbeddedCluster
from rocketstream.transport.blocking_connection import BlockingConnection
from tests.kits.apache.cluster import ApacheCluster
from tests.kits.apache.wire import TIMEOUT_MS, max_offset
from tests.plugins.apache import prepared
from tests.plugins.waiting import wait_until

pytestmark = [pytest.mark.interop, pytest.mark.timeout(120)]


@dataclass(frozen=True)
class Step:
    """One request; ``namesrv`` says to whom."""

    name: str
    code: int
    ext: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    namesrv: bool = False


def send(name: str, body: bytes = b"body", **changes: str) -> Step:
    """A V2 send of one message to topic T, changed as said."""
    ext = {"a": "pg", "b": "T", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1700000000000"}
    ext |= {"h": "0", "i": "TAGS\x01A\x02KEYS\x01k1\x02UNIQ_KEY\x01U1", "j": "0", "k": "false"}
    return Step(name, 310, {**ext, "m": "false", **changes}, body)


def pull(name: str, **changes: str) -> Step:
    """A pull of topic T, queue 0, without waiting."""
    ext = {"consumerGroup": "G", "topic": "T", "queueId": "0", "queueOffset": "0"}
    ext |= {"maxMsgNums": "32", "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0"}
    return Step(name, 11, {**ext, "subscription": "*", "subVersion": "0", **changes})


def offsets(name: str, code: int, topic: str = "T", queue_id: int = 0, **more: str) -> Step:
    """A request about one queue."""
    return Step(name, code, {"topic": topic, "queueId": str(queue_id), **more})


def create(name: str, topic: str, **changes: str) -> Step:
    """UPDATE_AND_CREATE_TOPIC."""
    ext = {"topic": topic, "defaultTopic": "TBW102", "readQueueNums": "2", "writeQueueNums": "2"}
    ext |= {"perm": "6", "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false"}
    return Step(name, 17, ext | changes)


def end(
    group: str,
    *,
    outcome: str = "8",
    commit_log: str = "{halfAt}",
    table: str = "{halfOffset}",
    half: str = "U2",
) -> dict[str, str]:
    """The end of the newest transaction."""
    place = {"tranStateTableOffset": table, "commitLogOffset": commit_log}
    ends = {"commitOrRollback": outcome, "msgId": half, "fromTransactionCheck": "false"}
    return {"producerGroup": group, **place, **ends}


def reply(name: str, properties: str, **changes: str) -> Step:
    """A V2 reply to a client."""
    ext = {**send(name).ext, "b": "DefaultCluster_REPLY_TOPIC", "i": properties, **changes}
    return Step(name, 325, ext, b"reply")


def reset(*, group: str = "G", topic: str = "T") -> dict[str, str]:
    """A reset of offsets to the beginning."""
    return {"topic": topic, "group": group, "timestamp": "0", "isForce": "true"}


def commit(group: str, queue_id: int) -> Step:
    """Offset 0 for one queue."""
    more = {"consumerGroup": group, "commitOffset": "0"}
    return offsets(f"commit {group} {queue_id}", 15, queue_id=queue_id, **more)


GROUP = {"consumerGroup": "G"}
NOBODY = {**GROUP, "clientId": "nobody"}
CLONE = {"srcGroup": "G", "destGroup": "C", "topic": "T", "offline": "true"}
INDEX = {"topic": "T", "queueId": "0", "count": "2"}
HEARTBEAT = (
    b'{"clientID":"c1","consumerDataSet":[{"consumeFromWhere":"CONSUME_FROM_LAST_OFFSET",'
    b'"consumeType":"CONSUME_PASSIVELY","groupName":"G","messageModel":"CLUSTERING",'
    b'"subscriptionDataSet":[{"classFilterMode":false,"codeSet":[],"expressionType":"TAG",'
    b'"subString":"*","subVersion":1,"tagsSet":[],"topic":"T"}],"unitMode":false}],'
    b'"producerDataSet":[{"groupName":"pg"}]}'
)
LOCK = (
    b'{"clientId":"c1","consumerGroup":"G","mqSet":'
    b'[{"brokerName":"broker-a","queueId":0,"topic":"T"}]}'
)
SUBSCRIPTION = (
    b'{"clientId":"c1","group":"G",'
    b'"subscriptionData":{"expressionType":"TAG","subString":"*","topic":"T"}}'
)
ANY_TIME = {"maxNum": "32", "beginTimestamp": "0", "endTimestamp": "99999999999999"}

STEPS = [
    create("create", "T"),
    create("create: illegal characters", "a b"),
    create("create: system topic", "TBW102"),
    create("create: too long", "x" * 200),
    create("create: blank", ""),
    create("update", "T", readQueueNums="3", writeQueueNums="3"),
    # sending
    *(send(f"send {n}", b"body %d" % n, i=f"TAGS\x01A\x02KEYS\x01k{n}") for n in range(3)),
    send("send: no such queue", e="9"),
    send("send: any queue", e="-1", b="Any"),
    send("send: created by sending", b="Fresh"),
    send("send: illegal topic", b="a b"),
    send("send: blank topic", b=""),
    send("send: topic too long", b="x" * 200),
    send("send: unknown default topic", b="Nowhere", c="NOTHING"),
    send("send: forbidden system topic", b="SCHEDULE_TOPIC_XXXX"),
    send("send: retry topic of unknown group", b="%RETRY%nobody"),
    send("send: empty body", b""),
    send("send: not a number", e="x"),
    send("send: properties too long", i="a\x01" + "x" * 33_000),
    send("send: body too large", b"x" * (4 * 1024 * 1024 + 1)),
    send("send: transaction half", i="TRAN_MSG\x01true\x02PGROUP\x01pg\x02UNIQ_KEY\x01U2", f="4"),
    # pulling
    pull("pull"),
    pull("pull: at the end", queueOffset="3"),
    pull("pull: beyond", queueOffset="7"),
    pull("pull: negative", queueOffset="-1"),
    pull("pull: empty queue", queueId="2"),
    pull("pull: empty queue beyond", queueId="2", queueOffset="5"),
    pull("pull: no such queue", queueId="9"),
    pull("pull: unknown topic", topic="Unknown"),
    pull("pull: nothing matches", subscription="B"),
    pull("pull: not subscribed", sysFlag="0"),
    pull("pull: SQL", subscription="a > 1", expressionType="SQL92"),
    pull("pull: blank expression", subscription=""),
    # offsets
    offsets("max offset", 30),
    offsets("max offset: unknown topic", 30, "Unknown"),
    offsets("min offset", 31),
    offsets("min offset: unknown queue", 31, queue_id=9),
    offsets("earliest store time: empty", 32, queue_id=2),
    offsets("search: empty", 29, queue_id=2, timestamp="1"),
    offsets("search: long ago", 29, timestamp="1"),
    offsets("search: future", 29, timestamp="99999999999999"),
    offsets("query offset: unknown group", 14, consumerGroup="nobody"),
    offsets("query offset: unknown topic", 14, "Unknown", consumerGroup="G"),
    offsets("commit", 15, consumerGroup="G", commitOffset="2"),
    offsets("query offset", 14, consumerGroup="G"),
    offsets("commit backwards", 15, consumerGroup="G", commitOffset="1"),
    offsets("query offset again", 14, consumerGroup="G"),
    offsets("commit: unknown topic", 15, "Unknown", consumerGroup="G", commitOffset="1"),
    # members
    Step("members: unknown group", 38, {"consumerGroup": "nobody"}),
    Step("heartbeat", 34, {}, HEARTBEAT),
    Step("heartbeat: no body", 34),
    Step("members", 38, GROUP),
    Step("consumer connections", 203, GROUP),
    Step("consumer connections: unknown", 203, {"consumerGroup": "nobody"}),
    Step("producer connections", 204, {"producerGroup": "pg"}),
    Step("producer connections: unknown", 204, {"producerGroup": "nobody"}),
    pull("pull: subscribed", sysFlag="0", subVersion="1"),
    pull("pull: newer subscription", sysFlag="0", subVersion="2"),
    Step("lock", 41, {}, LOCK),
    Step("lock: other client", 41, {}, LOCK.replace(b"c1", b"c2")),
    Step("unlock", 42, {}, LOCK),
    Step("lock: other client after unlock", 41, {}, LOCK.replace(b"c1", b"c2")),
    # sending back
    Step("send back: no such message", 36, {"offset": "99999999", "group": "G", "delayLevel": "0"}),
    Step("send back: unknown group", 36, {"offset": "0", "group": "nobody", "delayLevel": "0"}),
    Step("send back", 36, {"offset": "0", "group": "G", "delayLevel": "0", "originTopic": "T"}),
    Step("send back: dead", 36, {"offset": "0", "group": "G", "delayLevel": "-1"}),
    # administration
    Step("topic stats", 202, {"topic": "T"}),
    Step("topic stats: unknown", 202, {"topic": "Unknown"}),
    Step("consume stats", 208, GROUP),
    Step("consume stats: unknown group", 208, {"consumerGroup": "nobody"}),
    Step("who consumes", 300, {"topic": "T"}),
    Step("who consumes: unknown topic", 300, {"topic": "Unknown"}),
    Step("time span", 303, {"topic": "T", "group": "G"}),
    Step("time span: unknown topic", 303, {"topic": "Unknown", "group": "G"}),
    Step("view: no such message", 33, {"offset": "99999999"}),
    Step("view", 33, {"offset": "0"}),
    Step("query: nothing", 12, {"topic": "T", "key": "none", **ANY_TIME}),
    Step("check client: tag", 46, {}, SUBSCRIPTION),
    # transactions, replies, requests passed on to clients
    Step("end transaction: no such half", 37, end("pg", commit_log="99999999")),
    Step("end transaction: other group", 37, end("other")),
    Step("end transaction: other offset", 37, end("pg", table="7")),
    Step("end transaction: rollback", 37, end("pg", outcome="12")),
    Step("end transaction: again", 37, end("pg", outcome="12")),
    send("send: second half", i="TRAN_MSG\x01true\x02PGROUP\x01pg\x02UNIQ_KEY\x01U3", f="4"),
    Step("end transaction: commit", 37, end("pg", half="U3")),
    offsets("max offset: after the commit", 30),
    reply("reply: nobody waits", "REPLY_TO_CLIENT\x01nobody\x02CORRELATION_ID\x01c"),
    reply("reply: no client named", "CORRELATION_ID\x01c"),
    reply("reply: no such queue", "REPLY_TO_CLIENT\x01nobody", e="9"),
    Step("reset: unknown topic", 222, reset(topic="Unknown")),
    Step("reset: never committed", 222, reset(group="nobody")),
    *(commit("off", queue_id) for queue_id in range(3)),
    Step("reset: nobody online", 222, reset(group="off")),
    *(commit("G", queue_id) for queue_id in (1, 2)),
    Step("reset", 222, reset()),
    Step("status: nobody of that name", 223, {"topic": "T", "group": "G", "clientAddr": "nobody"}),
    Step("status: unknown group", 223, {"topic": "T", "group": "nobody"}),
    Step("running info: not online", 307, NOBODY),
    Step("consume directly: not online", 309, {**NOBODY, "msgId": "{msgId}"}),
    Step("clone offsets", 314, CLONE),
    offsets("query offset: cloned", 14, consumerGroup="C"),
    Step("correction offset", 308, {"compareGroup": "G", "topic": "T"}),
    Step("index", 321, {"topic": "T", "queueId": "0", "index": "0", "count": "2", **GROUP}),
    Step("index: offline", 321, {**INDEX, "index": "0", "consumerGroup": "nobody"}),
    Step("index: beyond", 321, {**INDEX, "index": "99"}),
    Step("index: no such queue", 321, {**INDEX, "queueId": "9", "index": "0"}),
    Step("all producers", 328),
    Step("clean queues", 306),
    Step("clean topics", 316),
    Step("delete expired", 329),
    Step("resume half: no id", 323, {"msgId": "none"}),
    Step("delete group", 207, {"groupName": "G", "removeOffset": "true"}),
    Step("delete group: unknown", 207, {"groupName": "nobody"}),
    Step("system topics", 305),
    Step("unregister", 35, {"clientID": "c1", "producerGroup": "pg", "consumerGroup": "G"}),
    Step("delete topic", 215, {"topic": "Fresh"}),
    Step("delete topic: unknown", 215, {"topic": "Unknown"}),
    Step("unknown code", 9999),
    # name server
    Step("route", 105, {"topic": "T"}, namesrv=True),
    Step("route: unknown", 105, {"topic": "Unknown"}, namesrv=True),
    Step("put config", 100, {"namespace": "n", "key": "k", "value": "v"}, namesrv=True),
    Step("get config", 101, {"namespace": "n", "key": "k"}, namesrv=True),
    Step("get config: unknown", 101, {"namespace": "n", "key": "none"}, namesrv=True),
    Step("list config", 219, {"namespace": "n"}, namesrv=True),
    Step("list config: unknown", 219, {"namespace": "none"}, namesrv=True),
    Step("delete config", 102, {"namespace": "n", "key": "k"}, namesrv=True),
    Step("topics of cluster", 224, {"cluster": "none"}, namesrv=True),
    Step("wipe: unknown broker", 205, {"brokerName": "none"}, namesrv=True),
    Step("add: unknown broker", 327, {"brokerName": "none"}, namesrv=True),
    Step("unit topics", 311, namesrv=True),
    Step("unit subscribers", 312, namesrv=True),
    Step("unit subscribers of others", 313, namesrv=True),
    Step("settings", 319, namesrv=True),
    Step("forget topic: unknown", 216, {"topic": "Unknown"}, namesrv=True),
]  # fmt: skip

_NAMED = "our text also says which value was given, and what is accepted"
DELIBERATE = {
    "create: illegal characters": _NAMED,
    "create: too long": _NAMED,
    "send: illegal topic": _NAMED,
    "send: topic too long": _NAMED,
    "commit: unknown topic": "offsets of unknown topics are refused (C-567)",
    "who consumes: unknown topic": "so nobody has one there",
    "index: no such queue": "asking about a queue does not make it",
    "time span": "the texts computed beside the numbers are left out",
}
"""Steps whose answers differ on purpose, and why."""
JAVA_TEXTS = frozenset(
    {
        "send: not a number",
        "heartbeat: no body",
        "status: unknown group",
        "resume half: no id",
    }
)
"""Steps whose remark is upstream's exception text, which is no part of the protocol."""


@dataclass(frozen=True)
class Answer:
    """What is compared of an answer: numbers of places and addresses are blanked."""

    code: int
    remark: str
    ext: tuple[tuple[str, str], ...]
    body: Any


class Both:
    """Asks one pair of servers."""

    def __init__(self, namesrv_addr: str, broker_addr: str) -> None:
        self.addresses = (namesrv_addr, broker_addr)
        self.namesrv = BlockingConnection(namesrv_addr)
        self.broker = BlockingConnection(broker_addr)
        self.places: dict[str, str] = {}

    def ask(self, step: Step) -> Answer:
        """Send one request."""
        connection = self.namesrv if step.namesrv else self.broker
        command = RemotingCommand.request(step.code, None, step.body)
        command.ext_fields = {name: self._known(value) for name, value in step.ext.items()}
        answer = connection.request(command, TIMEOUT_MS)
        self._remember(step, answer.ext_fields or {})
        ext = {name: _blank(name, value) for name, value in (answer.ext_fields or {}).items()}
        body = _shape(bytes(answer.body)) if step.code != 11 else len(answer.body) > 0
        remark = "…" if step.name in JAVA_TEXTS else self._plain(answer.code, answer.remark)
        if step.name == "send: any queue":
            ext["queueId"] = "…"
        return Answer(answer.code, remark, tuple(sorted(ext.items())), body)

    def _remember(self, step: Step, ext: dict[str, str]) -> None:
        """Note where the newest message and the newest half message are."""
        if step.code == 310 and "msgId" in ext:
            self.places["{msgId}"] = ext["msgId"]
            if step.ext["f"] == "4":
                self.places["{halfAt}"] = str(decode_offset_msg_id(ext["msgId"])[2])
                self.places["{halfOffset}"] = ext["queueOffset"]

    def _known(self, value: str) -> str:
        return self.places.get(value, value)

    def settle(self, step: Step) -> None:
        """Let the consume queue catch up with a send, so that the next pull sees it."""
        if step.name == "end transaction: commit":
            wait_until(lambda: max_offset(self.broker, "T") == 5, "the committed message")
        if step.name == "send 2":
            wait_until(lambda: max_offset(self.broker, "T") == 3, "three messages")

    def _plain(self, code: int, remark: str | None) -> str:
        text = (remark or "").rstrip(".")
        if code == 0:
            # Upstream leaves its "not set any response code" on some successes.
            return "" if text == "not set any response code" else text
        for address in self.addresses:
            text = text.replace(address, "ADDRESS")
        return re.sub(r"/?127\.0\.0\.1:\d+", "ADDRESS", text)

    def close(self) -> None:
        """Close both connections."""
        self.namesrv.close()
        self.broker.close()


def _blank(name: str, value: str) -> str:
    return "…" if name in ("msgId", "timestamp", "indexLastUpdateTimestamp") else value


def _shape(body: bytes) -> Any:
    """The JSON of a body with its keys only, or whether there is one."""
    if body[:1] != b"{":
        return len(body) > 0
    return _keys(fastjson.loads(body))


def _keys(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _keys(each) for key, each in sorted(value.items(), key=str)}
    if isinstance(value, list):
        return [_keys(each) for each in value[:1]]
    return type(value).__name__


@pytest.fixture
def theirs(tmp_path: Path) -> Iterator[Both]:
    """A fresh cluster of the version we announce; 5.5 answers with codes and fields of its own."""
    cluster = ApacheCluster(prepared("4.9.7"), tmp_path / "apache")
    try:
        cluster.start()
        both = Both(cluster.namesrv_addr, cluster.broker_addr)
        yield both
        both.close()
    finally:
        cluster.stop(kill=True)


@pytest.fixture
def ours() -> Iterator[Both]:
    with EmbeddedCluster(enable_property_filter=False) as cluster:
        both = Both(cluster.namesrv_addr, cluster.broker_addr)
        yield both
        both.close()


def test_answers_are_the_same(theirs: Both, ours: Both) -> None:
    """Codes, remarks, ext fields and the keys of JSON bodies, step by step."""
    different: dict[str, tuple[Answer, Answer]] = {}
    for step in STEPS:
        answers = (theirs.ask(step), ours.ask(step))
        theirs.settle(step)
        ours.settle(step)
        if answers[0] != answers[1]:
            different[step.name] = answers

    unexpected = {name: pair for name, pair in different.items() if name not in DELIBERATE}
    text = "\n".join(f"{name}:\n  Apache {a}\n  ours   {b}" for name, (a, b) in unexpected.items())
    assert not unexpected, f"{len(unexpected)} answers differ:\n{text}"
    assert set(DELIBERATE) == set(different), "a listed difference is gone"
