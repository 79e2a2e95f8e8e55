"""Requests that a broker must refuse: fields are missing, wrong, out of range or hostile.

Law: a topic and chance in, requests out, each for a reason of its own.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from rocketstream.protocol.codes import RequestCode
from rocketstream.protocol.record import encode_batch

CLUMSY = "clumsy"
"""How names begin that nothing may be stored under."""
INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1
BAD_NAMES = ("", "clumsy name", "clumsy/../etc", "clumsy" * 60, "clumsy\n", "clumsy\u00e4", "..")
BAD_JSON = (b"", b"{", b"[]", b'"x"', b"\xff\xfe", b"[" * 5_000, b'{"clumsy":1e999', b"null")
BAD_CONDITIONS = ("a =", "((a > 1)", "a BETWEEN 1", "'", "a > 1 OR", "a IN ()", "1 = = 2", "\x00")


class Blunder(NamedTuple):
    """One such request."""

    code: int
    ext: Mapping[str, str]
    body: bytes = b""

    def __repr__(self) -> str:
        return f"request {self.code} {self.ext!r:.300} with {len(self.body)} bytes"


def blunders(topic: str, chance: random.Random) -> list[Blunder]:
    """Return mistakes of every kind about a topic that is there, in any order."""
    found = [
        *_sends(topic), *_pulls(topic), *_offsets(topic), *_topics(), *_bodies(topic),
        *_others(topic),
    ]  # fmt: skip
    chance.shuffle(found)
    return found


def name_server_blunders(chance: random.Random) -> list[Blunder]:
    """Return mistakes that a name server must refuse, in any order."""
    found = list(_registrations())
    chance.shuffle(found)
    return found


def _registrations() -> Iterator[Blunder]:
    right = {
        "brokerName": CLUMSY, "brokerAddr": "10.9.9.9:1", "clusterName": CLUMSY, "brokerId": "0",
        "haServerAddr": "10.9.9.9:2", "compressed": "false", "bodyCrc32": "0",
    }  # fmt: skip
    register = RequestCode.REGISTER_BROKER
    for body in BAD_JSON[1:-1]:
        yield Blunder(register, right, body)
    yield Blunder(register, right | {"bodyCrc32": "7"}, b"{}")
    yield Blunder(register, right | {"compressed": "true"}, b"x" * 30)
    for name in ("brokerName", "brokerAddr", "clusterName", "brokerId"):
        yield Blunder(register, {key: text for key, text in right.items() if key != name})
    for text in ("one", str(2**70)):
        yield Blunder(register, right | {"brokerId": text})
    yield Blunder(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": CLUMSY})
    yield Blunder(RequestCode.GET_ROUTEINFO_BY_TOPIC, {})
    yield Blunder(RequestCode.GET_KV_CONFIG, {"namespace": CLUMSY, "key": CLUMSY})
    yield Blunder(RequestCode.PUT_KV_CONFIG, {"namespace": CLUMSY, "key": CLUMSY})
    yield Blunder(RequestCode.GET_KVLIST_BY_NAMESPACE, {"namespace": CLUMSY})
    for body in (b"listenPort=1\n", b"orderMessageEnable=clumsy\n", b"clumsy\n"):
        yield Blunder(RequestCode.UPDATE_NAMESRV_CONFIG, {}, body)
    for code in (0, -1, 7_777, RequestCode.SEND_MESSAGE, RequestCode.PULL_MESSAGE):
        yield Blunder(code, {"topic": CLUMSY})
    for body in (b"{", b"[]", b"\xff"):
        yield Blunder(RequestCode.QUERY_DATA_VERSION, right, body)


def _sends(topic: str) -> Iterator[Blunder]:
    right = {
        "producerGroup": CLUMSY, "topic": topic, "defaultTopic": "TBW102",
        "defaultTopicQueueNums": "1", "queueId": "0", "sysFlag": "0", "bornTimestamp": "1",
        "flag": "0", "properties": "KEYS\u0001clumsy\u0002", "reconsumeTimes": "0",
        "unitMode": "false", "batch": "false",
    }  # fmt: skip
    send = RequestCode.SEND_MESSAGE
    for name in ("producerGroup", "topic", "queueId", "sysFlag", "bornTimestamp"):
        yield Blunder(send, {key: text for key, text in right.items() if key != name}, b"x")
    for name in BAD_NAMES:
        yield Blunder(send, right | {"topic": name}, b"x")
    for text in ("99", str(INT_MAX), str(2**40), "", "one", "0x1", "1e3"):
        yield Blunder(send, right | {"queueId": text}, b"x")
    yield Blunder(send, right | {"bornTimestamp": str(2**70)}, b"x")
    yield Blunder(send, right | {"properties": "k\u0001" + "v" * 40_000}, b"x")
    yield Blunder(send, right | {"topic": "SCHEDULE_TOPIC_XXXX"}, b"x")
    yield Blunder(send, right, b"x" * 300_000)
    yield Blunder(send, right, b"x" * (5 << 20))
    for text in _TIMES:
        yield Blunder(send, right | {"properties": f"KEYS\u0001clumsy\u0002{text}\u0002"}, b"x")
    yield Blunder(send, right | {"topic": "clumsy-unknown", "defaultTopic": "clumsy-none"}, b"x")
    yield Blunder(send, right | {"topic": "clumsy-unknown", "defaultTopic": topic}, b"x")
    yield Blunder(send, right | {"topic": "%RETRY%clumsy group"}, b"x")
    many = right | {"batch": "true"}
    batch = RequestCode.SEND_BATCH_MESSAGE
    for body in (b"", b"\x00", b"\x7f\xff\xff\xff" + b"x" * 40, b"\x00" * 40, b"\xff" * 40):
        yield Blunder(batch, _short(many), body)
    for text in (
        "DELAY\u00011",
        "TRAN_MSG\u0001true",
        "TRAN_MSG\u0001false",
        "k\u0001" + "\u00e4" * 16_380,
    ):
        yield Blunder(batch, _short(many), _batch("KEYS\u0001clumsy", text))
        shared = many | {"properties": many["properties"] + text[:2_000]}
        if len(text) < 100:
            yield Blunder(batch, _short(shared), _batch("KEYS\u0001clumsy"))
    yield Blunder(batch, _short(many), _batch("KEYS\u0001clumsy", "k\u0001" + "v" * 32_760))
    yield Blunder(batch, _short(many | {"topic": "%RETRY%crowd"}), _batch("KEYS\u0001clumsy"))
    long = many | {"properties": "KEYS\u0001clumsy\u0002k\u0001" + "v" * 32_000}
    yield Blunder(batch, _short(long), _batch(*[""] * 300))


_TIMES = (
    "TIMER_DELAY_SEC\u00015", "TIMER_DELAY_MS\u0001500", f"TIMER_DELIVER_MS\u0001{LONG_MAX}",
    "TIMER_DELAY_SEC\u0001soon", "TIMER_DELIVER_MS\u0001then",
)  # fmt: skip
"""Texts of times that brokers of 4.x would deliver at once."""


def _batch(*properties: str) -> bytes:
    """Return a batch of messages with these properties."""
    return encode_batch((0, b"x", text.encode()) for text in properties)


def _short(ext: Mapping[str, str]) -> dict[str, str]:
    letters = zip("abcdefghijkm", ext.values(), strict=True)
    return dict(letters)


def _pulls(topic: str) -> Iterator[Blunder]:
    right = {
        "consumerGroup": CLUMSY, "topic": topic, "queueId": "0", "queueOffset": "0",
        "maxMsgNums": "1", "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0",
        "subscription": "*", "subVersion": "0", "expressionType": "TAG",
    }  # fmt: skip
    pull = RequestCode.PULL_MESSAGE
    for name in ("consumerGroup", "topic", "queueId", "queueOffset", "sysFlag"):
        yield Blunder(pull, {key: text for key, text in right.items() if key != name})
    for text in ("-1", "99", str(INT_MAX), "x"):
        yield Blunder(pull, right | {"queueId": text})
    for text in BAD_CONDITIONS:
        yield Blunder(pull, right | {"expressionType": "SQL92", "subscription": text})
    yield Blunder(pull, right | {"topic": "clumsy-unknown"})
    yield Blunder(pull, right | {"queueOffset": str(2**64)})
    yield Blunder(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": "-1"})
    yield Blunder(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": str(LONG_MAX)})
    yield Blunder(RequestCode.VIEW_MESSAGE_BY_ID, {})


def _offsets(topic: str) -> Iterator[Blunder]:
    right = {"consumerGroup": CLUMSY, "topic": topic, "queueId": "0", "commitOffset": "0"}
    commit = RequestCode.UPDATE_CONSUMER_OFFSET
    for text in ("-1", str(LONG_MAX), str(2**64), "", "ten"):
        yield Blunder(commit, right | {"commitOffset": text})
    for text in ("-1", "99", str(INT_MAX)):
        yield Blunder(commit, right | {"queueId": text})
    yield Blunder(commit, right | {"topic": "clumsy-unknown"})
    yield Blunder(commit, right | {"consumerGroup": CLUMSY * 60})
    place = {"topic": topic, "queueId": "0"}
    yield Blunder(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, place)
    yield Blunder(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, place | {"timestamp": "now"})
    yield Blunder(RequestCode.GET_MAX_OFFSET, {"topic": topic})
    entries = {"topic": topic, "queueId": "99", "index": "0", "count": "1"}
    yield Blunder(RequestCode.QUERY_CONSUME_QUEUE, entries)
    yield Blunder(RequestCode.CLONE_GROUP_OFFSET, {"destGroup": CLUMSY})


def _topics() -> Iterator[Blunder]:
    right = {
        "topic": "clumsy-topic", "defaultTopic": "TBW102", "readQueueNums": "1",
        "writeQueueNums": "1", "perm": "6", "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0",
        "order": "false",
    }  # fmt: skip
    make = RequestCode.UPDATE_AND_CREATE_TOPIC
    for name in (*BAD_NAMES, "TBW102", "SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC"):
        yield Blunder(make, right | {"topic": name})
    for text in ("0", "-1", str(INT_MAX), str(2**40), "few"):
        yield Blunder(make, right | {"readQueueNums": text})
        yield Blunder(make, right | {"writeQueueNums": text})
    for text in ("-1", "8", str(INT_MAX), "rw"):
        yield Blunder(make, right | {"perm": text})
    for name in (*BAD_NAMES[:3], "SCHEDULE_TOPIC_XXXX"):
        yield Blunder(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": name})
    for code in (
        RequestCode.GET_TOPIC_CONFIG, RequestCode.GET_TOPIC_STATS_INFO,
        RequestCode.QUERY_CONSUME_TIME_SPAN,
    ):  # fmt: skip
        yield Blunder(code, {"topic": "clumsy-unknown", "group": CLUMSY})
        yield Blunder(code, {})


def _bodies(topic: str) -> Iterator[Blunder]:
    for code in (
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, RequestCode.HEART_BEAT,
        RequestCode.LOCK_BATCH_MQ, RequestCode.UNLOCK_BATCH_MQ, RequestCode.CHECK_CLIENT_CONFIG,
    ):  # fmt: skip
        for body in BAD_JSON:
            yield Blunder(code, {}, body)
    for name in BAD_NAMES[:4]:
        body = b'{"groupName":"%s"}' % name.encode()
        yield Blunder(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, body)
    for text in BAD_CONDITIONS[:-2]:
        data = {"topic": topic, "subString": text, "expressionType": "SQL92", "subVersion": 1}
        asked = {"clientId": "c", "group": CLUMSY, "subscriptionData": data}
        body = json.dumps(asked).encode()
        yield Blunder(RequestCode.CHECK_CLIENT_CONFIG, {}, body)


def _others(topic: str) -> Iterator[Blunder]:
    for code in (0, -1, 7_777, INT_MAX, -(2**31)):
        yield Blunder(code, {"topic": topic})
    end = {
        "producerGroup": CLUMSY, "tranStateTableOffset": "0", "commitLogOffset": "0",
        "commitOrRollback": "8", "msgId": "x",
    }  # fmt: skip
    for text in ("-1", str(LONG_MAX), "first"):
        yield Blunder(RequestCode.END_TRANSACTION, end | {"commitLogOffset": text})
    back = {"offset": "0", "group": CLUMSY, "delayLevel": "0", "originTopic": topic}
    for text in ("-1", str(LONG_MAX), "first"):
        yield Blunder(RequestCode.CONSUMER_SEND_MSG_BACK, back | {"offset": text})
    for body in (b"brokerName=clumsy\n", b"clumsy\n", b"transactionCheckMax=many\n", b"=1\n"):
        yield Blunder(RequestCode.UPDATE_BROKER_CONFIG, {}, body)
    yield Blunder(RequestCode.VIEW_BROKER_STATS_DATA, {"statsName": "CLUMSY", "statsKey": topic})
    yield Blunder(RequestCode.VIEW_BROKER_STATS_DATA, {"statsName": "TOPIC_PUT_NUMS"})
    for text in ("", "x", "7F" * 16, "0" * 32):
        yield Blunder(RequestCode.RESUME_CHECK_HALF_MESSAGE, {"msgId": text})
    reset = {"topic": "clumsy-unknown", "group": CLUMSY, "timestamp": "0", "isForce": "true"}
    yield Blunder(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, reset)
    yield Blunder(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, reset | {"timestamp": "then"})
    asked = {"topic": topic, "key": "clumsy", "maxNum": "1", "beginTimestamp": "0"}
    yield Blunder(RequestCode.QUERY_MESSAGE, asked)
    yield Blunder(RequestCode.QUERY_MESSAGE, asked | {"endTimestamp": "x"})
    yield Blunder(RequestCode.QUERY_MESSAGE, asked | {"endTimestamp": str(LONG_MAX)})
    yield Blunder(RequestCode.GET_CONSUMER_RUNNING_INFO, {"consumerGroup": CLUMSY, "clientId": "c"})
