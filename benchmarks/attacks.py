"""What a hostile peer may do to a server: great requests, floods, stalls.

Law: bytes on raw sockets, not the client library; measures nothing.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Callable
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field
from typing import Any

import orjson

from rocketstream.protocol.codes import PullSysFlag, RequestCode

MIB = 1024 * 1024
FRAME_BYTES = 16 * MIB
ANSWER_S = 60.0
STALL_S = 3.0
VICTIM, WIDE, EMPTY = "Victim", "Wide", "Empty"
CONDITION_GROUP = "conditions"
UNKNOWN_CODE = 999
LAST = 1 << 30
"""Opaque number of a request whose answer tells that those before it are done with."""


class Wire:
    """One raw connection."""

    def __init__(self, address: str, *, receive_bytes: int = 0) -> None:
        host, port = address.rsplit(":", 1)
        self.socket = socket.socket()
        if receive_bytes:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        self.socket.settimeout(ANSWER_S)
        self.socket.connect((host, int(port)))

    def send(self, *frames: bytes) -> None:
        """Send; a connection the server closed meanwhile is no error."""
        with suppress(OSError):
            self.socket.sendall(b"".join(frames))

    def answers(self, count: int = 1) -> list[dict[str, Any]]:
        """Wait for answers and return their headers; fewer when the server closes."""
        found: list[dict[str, Any]] = []
        with suppress(OSError):
            while len(found) < count:
                head = self._exactly(8)
                if len(head) < 8:
                    break
                length, word = struct.unpack(">iI", head)
                rest = self._exactly(length - 4)
                found.append(orjson.loads(rest[: word & 0xFFFFFF]))
        return found

    def wait(self) -> None:
        """Wait for the answer to the request marked ``LAST``: a held pull may have none."""
        while (found := self.answers()) and found[0]["opaque"] != LAST:
            pass

    def _exactly(self, count: int) -> bytes:
        parts = bytearray()
        while len(parts) < count:
            data = self.socket.recv(min(count - len(parts), MIB))
            if not data:
                break
            parts += data
        return bytes(parts)

    def close(self) -> None:
        """Close."""
        self.socket.close()


@dataclass
class Target:
    """The server under attack."""

    broker: str
    namesrv: str
    codes: list[int]
    namesrv_codes: list[int]
    stack: ExitStack = field(default_factory=ExitStack)

    def wire(self, address: str | None = None, *, receive_bytes: int = 0) -> Wire:
        """Return a new connection, closed with the attack."""
        wire = Wire(address or self.broker, receive_bytes=receive_bytes)
        self.stack.callback(wire.close)
        return wire

    def ask(self, *frames: bytes, address: str | None = None) -> None:
        """Send frames on a new connection and wait until all are done with, or for its end."""
        with closing(Wire(address or self.broker)) as wire:
            wire.send(*frames, request(UNKNOWN_CODE, opaque=LAST))
            wire.wait()


Attack = Callable[[Target], None]


def raw_frame(header: bytes, body: bytes = b"", kind: int = 0) -> bytes:
    """Return a frame around any header bytes."""
    length = 4 + len(header) + len(body)
    return struct.pack(">iI", length, kind << 24 | len(header)) + header + body


def request(
    code: int, ext: dict[str, Any] | None = None, body: bytes = b"", opaque: int = 1, flag: int = 0
) -> bytes:
    """Return a request frame."""
    header = {
        "code": code, "flag": flag, "language": "JAVA", "opaque": opaque, "version": 401,
        "extFields": ext or {},
    }  # fmt: skip
    return raw_frame(orjson.dumps(header), body)


def send_ext(topic: str, queue_id: int = 0, properties: str = "", **more: str) -> dict[str, str]:
    """Return the header fields of a send, code 310."""
    return {
        "a": "pg", "b": topic, "c": "TBW102", "d": "4", "e": str(queue_id), "f": "0",
        "g": "1700000000000", "h": "0", "i": properties, "j": "0", "k": "false", "m": "false",
        **more,
    }  # fmt: skip


def pull_ext(topic: str, offset: int, flags: int, **more: str) -> dict[str, str]:
    """Return the header fields of a pull."""
    return {
        "consumerGroup": "cg", "topic": topic, "queueId": "0", "queueOffset": str(offset),
        "maxMsgNums": "32", "sysFlag": str(flags), "commitOffset": "0",
        "suspendTimeoutMillis": "60000", "subVersion": "0", "subscription": "*", **more,
    }  # fmt: skip


# --- what the issue names -------------------------------------------------------------------------


def batch_of_copies(target: Target) -> None:
    """Thousands of tiny messages under one great set of properties: 98 KB in, 98 MB stored."""
    item = struct.pack(">iiiii", 22, 0, 0, 0, 0) + struct.pack(">h", 0)
    properties = "p\x01" + "x" * 32_000
    ext = send_ext(VICTIM, properties=properties, m="true")
    target.ask(request(320, ext, item * 3_000))


def batch_of_tiny(target: Target) -> None:
    """As many tiny messages as a batch can hold."""
    item = struct.pack(">iiiii", 22, 0, 0, 0, 0) + struct.pack(">h", 0)
    target.ask(request(320, send_ext(VICTIM, m="true"), item * (4 * MIB // 22)))


def batch_of_many(target: Target) -> None:
    """A batch that is taken: 15,000 messages of 22 bytes."""
    item = struct.pack(">iiiii", 22, 0, 0, 0, 0) + struct.pack(">h", 0)
    target.ask(request(320, send_ext(VICTIM, m="true"), item * 15_000))


def header_of_junk(target: Target) -> None:
    """A header of 1 MiB that is no JSON, in several ways."""
    for junk in (
        b"{" + b"a:1," * (MIB // 4) + b"}",
        b"{" + b"'a':'\\x41'," * (MIB // 11) + b"}",
        b"[" * MIB,
        b"{" * MIB,
        b"{a" * (MIB // 2),
        b" " * MIB,
        b"x" * MIB,
        b'{"code":' + b"9" * MIB + b"}",
        b'{"extFields":{' + b",".join(b'"%d":[1,{"a":2}]' % n for n in range(60_000)) + b"}}",
    ):
        target.ask(raw_frame(junk))


def headers_of_lenient_json(target: Target) -> None:
    """Many headers of bare names, as long as the tolerant reader takes them."""
    for size in (4_000, 16_000, 64_000, 250_000):
        inner = b"a:1," * (size // 4)
        frame = raw_frame(b"{code:34,flag:0,opaque:1,version:1,extFields:{" + inner + b"}}")
        target.ask(*[frame] * (MIB // len(frame)))


def flood_of_tiny_requests(target: Target) -> None:
    """100,000 requests in one go."""
    wire = target.wire()
    wire.send(*[request(999, flag=2)] * 100_000, request(999))
    wire.answers()


def heartbeat_of_groups(count: int) -> Attack:
    """Return a heartbeat that brings so many new groups."""

    def attack(target: Target) -> None:
        word = f"{time.monotonic_ns()}"
        groups = [
            {
                "groupName": f"g{word}-{n}", "consumeType": "CONSUME_PASSIVELY",
                "messageModel": "CLUSTERING", "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
                "subscriptionDataSet": [{"topic": VICTIM, "subString": "*", "subVersion": 1}],
            }
            for n in range(count)
        ]  # fmt: skip
        body = orjson.dumps({"clientID": f"c{word}", "consumerDataSet": groups})
        target.ask(request(34, {}, body))

    return attack


def heartbeat_of_conditions(target: Target) -> None:
    """200 subscriptions, each with a condition of 60 KB."""
    condition = " OR ".join(f"a{n} = {n}" for n in range(4_500))
    subscriptions = [
        {"topic": f"t{n}", "subString": f"{condition} OR b = {n}", "expressionType": "SQL92",
         "subVersion": 1}
        for n in range(200)
    ]  # fmt: skip
    group = {"groupName": CONDITION_GROUP, "subscriptionDataSet": subscriptions}
    target.ask(request(34, {}, orjson.dumps({"clientID": "c", "consumerDataSet": [group]})))


def _condition_pull(condition: str) -> bytes:
    flags = PullSysFlag.SUBSCRIPTION
    ext = pull_ext(VICTIM, 0, flags, subscription=condition, expressionType="SQL92")
    return request(11, ext)


def great_conditions(target: Target) -> None:
    """Pulls with conditions of 60 KB over a queue none of whose messages is wanted."""
    size = 60_000
    for part, word in (
        ("a{n} > 1.5", " OR "), ("big > 1.5", " OR "), ("big CONTAINS 'xxy'", " OR "),
        ("big BETWEEN 1 AND 2", " OR "), ("NOT (big = '{n}' AND big = 'x')", " AND "),
    ):  # fmt: skip
        parts = [part.format(n=n) for n in range(size // len(part + word))]
        target.ask(_condition_pull(word.join(parts)))
    target.ask(_condition_pull("a IN (" + ",".join(f"'{n}'" for n in range(7_000)) + ")"))
    target.ask(_condition_pull("(" * 60 + "a = 1" + ")" * 60))
    target.ask(_condition_pull("NOT " * 15_000 + "TRUE"))
    target.ask(_condition_pull("a = " + "- " * 30_000 + "1"))
    target.ask(_condition_pull("'" * 60_000))


def many_conditions(target: Target) -> None:
    """300 pulls at once, each with another condition that costs a scan."""
    frames = [_condition_pull(f"big > {n} AND small = 'x'") for n in range(300)]
    wire = target.wire()
    wire.send(*frames)
    wire.answers(300)


def _fill(wire: Wire, topic: str, count: int, properties: str, body: bytes = b"x") -> None:
    for start in range(0, count, 100):
        part = range(start, min(start + 100, count))
        wire.send(*[request(310, send_ext(topic, properties=properties), body, n) for n in part])
        wire.answers(len(part))


def make_topics(target: Target) -> None:
    """Make the topics attacks use, or give them back their settings."""
    wire = target.wire()
    for topic, queues in ((VICTIM, 8), (WIDE, 65_536), (EMPTY, 4), ("Healthy", 4)):
        ext = {
            "topic": topic, "defaultTopic": "TBW102", "readQueueNums": str(queues), "perm": "6",
            "writeQueueNums": str(queues), "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0",
            "order": "false",
        }  # fmt: skip
        wire.send(request(17, ext))
        wire.answers()
    wire.close()


def prepare(target: Target, count: int = 1_000) -> None:
    """Make the topics attacks use, with so many messages of 24 KB in one queue."""
    make_topics(target)
    wire = target.wire()
    big = "\x02".join(f"p{n}\x01{n}" for n in range(1500))
    properties = f"big\x01{'x' * 12_000}\x02small\x01y\x02{big}"
    _fill(wire, VICTIM, count, properties)
    wire.close()


# --- held pulls -----------------------------------------------------------------------------------


def _held(topic: str, count: int, **more: str) -> list[bytes]:
    flags = PullSysFlag.SUSPEND | PullSysFlag.SUBSCRIPTION
    ext = pull_ext(topic, 0, flags, **more)
    return [request(11, ext, opaque=n) for n in range(count)]


def held_pulls_lost(target: Target) -> None:
    """20,000 held pulls of one connection, which is lost then."""
    wire = target.wire()
    wire.send(*_held(EMPTY, 20_000), request(UNKNOWN_CODE, opaque=LAST))
    wire.wait()
    wire.close()
    time.sleep(0.5)


def held_pulls_woken(target: Target) -> None:
    """20,000 held pulls of one queue, and a message for all of them."""
    wire = target.wire()
    topic = f"Woken{time.monotonic_ns()}"
    wire.send(request(310, send_ext(topic, 1), b"x"))
    wire.answers()
    wire.send(*_held(topic, 20_000), request(UNKNOWN_CODE, opaque=LAST))
    wire.wait()
    target.ask(request(310, send_ext(topic, 0), b"x"))
    wire.answers(100)


# --- peers that stall -----------------------------------------------------------------------------


def readers_that_do_not_read(count: int) -> Attack:
    """Return so many connections that ask for megabytes and read nothing."""

    def attack(target: Target) -> None:
        flags = PullSysFlag.SUBSCRIPTION
        pull = request(11, pull_ext(VICTIM, 0, flags))
        wires = [target.wire(receive_bytes=4096) for _ in range(count)]
        for wire in wires:
            wire.socket.settimeout(0.2)
            wire.send(*[pull] * 400)
        time.sleep(2)

    return attack


def half_sent_frames(count: int, size: int) -> Attack:
    """Return so many connections that send half of a great frame and then nothing."""

    def attack(target: Target) -> None:
        wires = [target.wire() for _ in range(count)]
        data = struct.pack(">iI", FRAME_BYTES - 8, 100) + b"x" * size
        for wire in wires:
            wire.socket.settimeout(0.5)
            wire.send(data)
        time.sleep(1)

    return attack


def many_connections(target: Target) -> None:
    """2,000 connections at once, each with a request, for a while."""
    connect(target)
    time.sleep(STALL_S)


def connect(target: Target) -> None:
    """Connect 2,000 peers with a request each, until the attack ends."""
    wires = [target.wire() for _ in range(2_000)]
    for wire in wires:
        wire.send(request(38, {"consumerGroup": "nobody"}))
    for wire in wires:
        wire.answers()


def malformed_frames(target: Target) -> None:
    """200,000 frames nobody can read, on connections of their own or many on one; great ones."""
    for junk in (b"\x7f\xff\xff\xff", b"\0\0\0\x08\0\0\0\x04oops", b"GET / HTTP/1.1\r\n"):
        for _ in range(1_000):
            wire = Wire(target.broker)
            wire.send(junk)
            wire.close()
    wire = target.wire()
    bad = request(11, {"queueId": "x"}, flag=2)
    for _ in range(197):
        wire.send(*[bad] * 1_000)
    wire.send(request(UNKNOWN_CODE, opaque=LAST))
    wire.wait()


def size_bombs(target: Target) -> None:
    """Requests as great as a frame can be, each alone, and all that the bounds let through."""
    room = FRAME_BYTES - 4096
    for code in (34, 41, 12, 310, 320):
        for body in (
            b"[" * room,
            b"[" + b"0," * (room // 2 - 1) + b"0]",
            b'{"clientID":"' + b"x" * (room - 32) + b'"}',
            b"[" + b"{}," * 21_000 + b"{}]",
        ):
            target.ask(request(code, send_ext(EMPTY), body))
    header_of_junk(target)


def bad_frames(target: Target) -> None:
    """200,000 malformed frames, and size bombs."""
    malformed_frames(target)
    size_bombs(target)


def stalled_peers(target: Target) -> None:
    """200 peers that stall: half in the middle of a frame, half without reading, for a while."""
    stall(target)
    time.sleep(STALL_S)


def stall(target: Target) -> None:
    """Connect 200 peers that stall, until the attack ends."""
    head = struct.pack(">iI", FRAME_BYTES - 8, 100) + b"x" * MIB
    pull = request(11, pull_ext(VICTIM, 0, PullSysFlag.SUBSCRIPTION))
    for number in range(200):
        wire = target.wire(receive_bytes=4096)
        wire.socket.settimeout(0.05)
        wire.send(*([head] if number % 2 else [pull] * 100))


def all_at_once(target: Target) -> None:
    """Bad frames while 200 peers stall and 2,000 more are connected."""
    stall(target)
    connect(target)
    bad_frames(target)


# --- long work that is legitimate -----------------------------------------------------------------


def many_topics(target: Target) -> None:
    """10,000 topics, made by sends."""
    wire = target.wire()
    for start in range(0, 10_000, 50):
        part = range(start, start + 50)
        wire.send(*[request(310, send_ext(f"T{n}"), b"x", n) for n in part])
        wire.answers(50)


def ask_for_tables(target: Target) -> None:
    """What tools ask a broker and a name server with 10,000 topics."""
    for code in (21, 201, 43, 45, 26, 28, 317, 328, 305, 316):
        target.ask(request(code, {"isOrder": "false"}))
    for code in (202, 303, 208, 308):
        target.ask(request(code, {"topic": WIDE, "consumerGroup": "cg", "group": "cg"}))
    for code in (206, 106, 224, 304, 311, 312, 313):
        target.ask(request(code, {"cluster": "DefaultCluster"}), address=target.namesrv)
    target.ask(request(105, {"topic": WIDE}), address=target.namesrv)


def registrations(target: Target) -> None:
    """A broker with 100,000 topics registers with the name server, plainly and compressed."""
    import zlib

    config = {"order": False, "perm": 6, "readQueueNums": 4, "topicFilterType": "SINGLE_TAG",
              "topicSysFlag": 0, "writeQueueNums": 4}  # fmt: skip
    topics = {f"R{n}": {**config, "topicName": f"R{n}"} for n in range(80_000)}
    version = {"counter": 1, "timestamp": 1}
    body = orjson.dumps({
        "filterServerList": [],
        "topicConfigSerializeWrapper": {"dataVersion": version, "topicConfigTable": topics},
    })  # fmt: skip
    ext = {"brokerName": "evil", "brokerAddr": "1.2.3.4:5", "clusterName": "Evil",
           "haServerAddr": "", "brokerId": "0", "compressed": "false"}  # fmt: skip
    target.ask(request(103, ext, body), address=target.namesrv)
    bomb = zlib.compress(b"\0" * (60 * MIB))
    target.ask(request(103, {**ext, "compressed": "true"}, bomb), address=target.namesrv)
    target.ask(request(104, ext), address=target.namesrv)


def keys_without_number(target: Target) -> None:
    """Messages with 16,000 keys each, and a question that needs all of them indexed."""
    wire = target.wire()
    words = " ".join(f"{n:x}" for n in range(6_500))
    _fill(wire, VICTIM, 200, f"KEYS\x01{words}")
    same = " ".join(["same"] * 6_000)
    _fill(wire, VICTIM, 50, f"KEYS\x01{same}")
    ext = {"topic": VICTIM, "key": "same", "maxNum": "64", "beginTimestamp": "0"}
    for end in (str(2**62), "1"):
        target.ask(request(RequestCode.QUERY_MESSAGE, {**ext, "endTimestamp": end}))


NAMED: dict[str, Attack] = {
    "batch of copies": batch_of_copies,
    "batch of tiny messages": batch_of_tiny,
    "batch of 15,000": batch_of_many,
    "header of junk": header_of_junk,
    "headers of lenient JSON": headers_of_lenient_json,
    "100,000 requests at once": flood_of_tiny_requests,
    "heartbeat of 200 groups": heartbeat_of_groups(200),
    "heartbeat of 20,000 groups": heartbeat_of_groups(20_000),
    "heartbeat of conditions": heartbeat_of_conditions,
    "conditions of 60 KB": great_conditions,
    "300 conditions": many_conditions,
    "20,000 held pulls lost": held_pulls_lost,
    "20,000 held pulls woken": held_pulls_woken,
    "10 readers that do not read": readers_that_do_not_read(10),
    "200 readers that do not read": readers_that_do_not_read(200),
    "200 half-sent frames": half_sent_frames(200, 1 * MIB),
    "2,000 connections": many_connections,
    "200,000 malformed frames": malformed_frames,
    "keys without number": keys_without_number,
    "registrations": registrations,
    "10,000 topics": many_topics,
    "tables of 10,000 topics": ask_for_tables,
}

ISSUE: dict[str, Attack] = {
    "200,000 malformed frames and size bombs": bad_frames,
    "2,000 connections": many_connections,
    "200 stalled peers": stalled_peers,
    "all of these at once": all_at_once,
}
"""What must cost less than the limits of memory and of a neighbour's 99th percentile."""
