"""Size bombs for every request code of a broker and a name server.

Law: bytes on raw sockets, not the client library; measures nothing.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from benchmarks.attacks import (
    EMPTY,
    FRAME_BYTES,
    VICTIM,
    WIDE,
    Attack,
    Target,
    make_topics,
    pull_ext,
    request,
    send_ext,
)
from rocketstream import limits
from rocketstream.protocol import headers
from rocketstream.protocol.codes import RequestCode
from rocketstream.protocol.headers import Header

ROOM = FRAME_BYTES - 4096
"""Bytes of the greatest body; its header needs some too."""
NUMBERS = ("-1", str(2**31 - 1), str(-(2**31)), str(2**63 - 1), "9" * 4000)
LISTS = (
    "mqSet", "consumerDataSet", "producerDataSet", "subscriptionDataSet", "codeSet", "tagsSet",
    "offsetTable", "topicConfigTable", "messageQueueTable",
)  # fmt: skip
DESTRUCTIVE = (RequestCode.DELETE_TOPIC_IN_BROKER, RequestCode.DELETE_TOPIC_IN_NAMESRV)
"""Last, so that the others find something."""


def wire_fields() -> dict[str, bool]:
    """Every header field any request has: its wire name, and whether it is a number."""
    fields: dict[str, bool] = {}
    for cls in vars(headers).values():
        if isinstance(cls, type) and issubclass(cls, Header) and cls is not Header:
            for one in cls.header_fields:
                fields[one.wire] = one.parse.__name__.startswith("parse_") or one.parse is float
    return fields


def great_bodies() -> Iterator[bytes]:
    """Bodies as great as a frame can be: deep, wide, lenient, and no JSON at all."""
    yield b"[" * ROOM
    yield b'{"a":' * (ROOM // 5)
    yield b"[" + b"0," * (ROOM // 2 - 1) + b"0]"
    yield b"[" + b"[]," * (ROOM // 3 - 1) + b"[]]"
    yield b"{" + b"a:1," * (ROOM // 4 - 1) + b"}"
    yield b'{"a":' + b"9" * (ROOM - 8) + b"}"
    yield b'{"clientID":"' + b"\\u0041" * ((ROOM - 32) // 6) + b'"}'
    yield b"\xff" * ROOM


def bodies_within(values: int) -> Iterator[bytes]:
    """Bodies just short of the bounds: of so many commas, colons and brackets."""
    yield b"{" + b"a:1," * ((limits.REQUEST_JSON_LENIENT_CHARS_MAX - 8) // 4) + b"}"
    yield b"[" + b"{}," * (values // 3 - 2) + b"{}]"
    yield b"{" + b",".join(b'"k%d":{}' % n for n in range(values // 4 - 2)) + b"}"
    yield b"{" + b",".join(b'"t%d@g%d":{"0":%d}' % (n, n, n) for n in range(values // 5 - 2)) + b"}"
    small, long = (values - 32) // 12, 1_000
    for name in LISTS:
        head = b'{"clientID":"c","consumerGroup":"cg","%s":' % name.encode()
        yield head + b"[" + b",".join(_element(n, b"") for n in range(small)) + b"]}"
        padding = b"x" * ((ROOM - 200) // long - 120)
        yield head + b"[" + b",".join(_element(n, padding) for n in range(long)) + b"]}"
        entries = (b'"t%d@g%d":%s' % (n, n, _element(n, b"")) for n in range(small - 1_000))
        yield head + b"{" + b",".join(entries) + b"}}"


def _element(number: int, padding: bytes) -> bytes:
    return (
        b'{"groupName":"g%d%s","brokerName":"b","queueId":%d,"topic":"t%d","subscriptionDataSet":[]}'
        % (number, padding, number, number)
    )


def registrations() -> Iterator[bytes]:
    """Bodies of a broker's registration just short of its bounds, and compressed ones beyond."""
    topic = (
        b'"%s%d":{"topicName":"%s%d","perm":6,"readQueueNums":4,"writeQueueNums":4,"order":false,'
        b'"topicFilterType":"SINGLE_TAG","topicSysFlag":0}'
    )
    count = limits.REGISTRATION_JSON_VALUES_MAX // 18
    for word in (b"a", b"b"):
        topics = b",".join(topic % (word, n, word, n) for n in range(count))
        body = (
            b'{"filterServerList":[],"topicConfigSerializeWrapper":{"dataVersion":{"counter":1,'
            b'"timestamp":1},"topicConfigTable":{' + topics + b"}}}"
        )
        yield body
        yield zlib.compress(body)
    yield zlib.compress(b"\0" * (4 * ROOM))
    yield zlib.compress(b"[" * limits.REGISTRATION_BYTES_MAX)


@dataclass
class Bombs:
    """The bombs, made once and thrown at one code after another."""

    fields: dict[str, bool]
    bodies: list[bytes]
    for_registration: list[bytes]

    @classmethod
    def make(cls) -> Bombs:
        """Make them all."""
        bodies = [*great_bodies(), *bodies_within(limits.REQUEST_JSON_VALUES_MAX)]
        return cls(wire_fields(), bodies, list(registrations()))

    def frames(self, code: int) -> Iterator[tuple[str, Iterator[bytes]]]:
        """The frames for one code, of three sorts."""
        yield "long fields", self._long_fields(code)
        yield "numbers", self._numbers(code)
        yield "bodies", self._bodies(code)

    def _long_fields(self, code: int) -> Iterator[bytes]:
        sizes = [size // len(self.fields) for size in (4_000_000, 240_000)]
        for size in (*sizes, 5_000, limits.GROUP_CHARS_MAX, limits.TOPIC_CHARS_MAX):
            yield request(
                code, {name: "0" if number else "x" * size for name, number in self.fields.items()}
            )
        for count in (20_000, limits.HEADER_FIELDS_MAX - 1):
            yield request(code, {f"f{n}": n for n in range(count)})

    def _numbers(self, code: int) -> Iterator[bytes]:
        for topic in (VICTIM, WIDE, EMPTY):
            base = {name: topic for name, number in self.fields.items() if not number}
            base |= {"consumerGroup": "cg", "group": "cg", "defaultTopic": "TBW102", "key": "k"}
            base |= {"b": topic, "c": "TBW102"}
            for number in NUMBERS:
                ext = base | {name: number for name, is_one in self.fields.items() if is_one}
                yield request(code, ext)
                sane = {"queueId": "0", "sysFlag": "6", "offset": "0", "queueOffset": "0"}
                yield request(code, ext | sane)

    def _bodies(self, code: int) -> Iterator[bytes]:
        known: dict[str, Any] = {**send_ext(VICTIM), **pull_ext(VICTIM, 0, 4), "group": "cg"}
        for body in self.bodies:
            yield request(code, known, body)
        if code == RequestCode.REGISTER_BROKER:
            ext = {
                "brokerName": "evil", "brokerAddr": "1.2.3.4:5", "clusterName": "Evil",
                "haServerAddr": "", "brokerId": "0",
            }  # fmt: skip
            for body in self.for_registration:
                compressed = "false" if body.startswith(b"{") else "true"
                yield request(code, {**ext, "compressed": compressed}, body)


def every_code(target: Target) -> Iterator[tuple[str, Attack]]:
    """For each code of both dispatch tables: long fields, hostile numbers, great bodies."""
    bombs = Bombs.make()
    for server, codes in (("broker", target.codes), ("namesrv", target.namesrv_codes)):
        for code in sorted(codes, key=lambda one: (one in DESTRUCTIVE, one)):
            make_topics(target)
            for sort, frames in bombs.frames(code):
                yield f"{server} {code}: {sort}", thrown(server, frames)


def thrown(server: str, frames: Iterator[bytes]) -> Attack:
    """Return an attack that sends each frame on a connection of its own, one after another."""

    def attack(target: Target) -> None:
        address = target.broker if server == "broker" else target.namesrv
        for frame in frames:
            target.ask(frame, address=address)

    return attack
