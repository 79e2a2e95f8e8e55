"""Simulated servers that answer nonsense now and then: pulls at brokers, routes at name servers.

Law: a client that asks again is answered rightly; nothing is nonsense once faults are over.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from rocketstream import limits
from rocketstream.protocol.bodies import BrokerData, QueueData, TopicRouteData
from rocketstream.protocol.codes import Perm, RequestCode, ResponseCode
from rocketstream.protocol.command import RemotingCommand
from rocketstream.protocol.headers import (
    GetRouteInfoRequestHeader,
    PullMessageRequestHeader,
    PullMessageResponseHeader,
)
from rocketstream.server.broker.broker import Broker
from rocketstream.server.nameserver.core.routes import RouteTable
from rocketstream.transport.connection import Connection
from rocketstream.transport.sharing import AnswerSteps

SHARE: Final = 0.4
"""The share of pulls and of questions for routes that is answered by nonsense."""
PICKY: Final = "tagged"
"""How names of groups begin that select: they cannot know that a record is left out."""
_ADDRESS: Final = "10.9.9.9:10911"
_WAYS: Final = (
    "stray first", "stray between", "stray last", "gap", "first left out", "twice", "nothing",
    "all strays", "beyond", "torn", "damaged", "flow control",
)  # fmt: skip
_LEAVES_OUT: Final = ("gap", "first left out", "beyond")
_RECORDS: Final = 6
_BODY_AT: Final = 84
"""Where the length of a record's body stands."""


class StrangeBroker(Broker):
    """A broker that answers some pulls by records nobody asked for, or by fewer than it says.

    Args:
        chance: where its chance comes from.
        is_over: whether it is to be a broker like any other from now on.
        given, more: see ``Broker``.
    """

    def __init__(
        self, chance: random.Random, is_over: Callable[[], bool], *given: Any, **more: Any
    ) -> None:
        super().__init__(*given, **more)
        self._chance, self._is_over = chance, is_over
        self._ways: list[str] = []
        self._misled: set[tuple[str, str, int]] = set()
        """Groups and queues whose last pull was answered by nonsense."""

    def _dispatch(self, connection: Connection, request: RemotingCommand) -> AnswerSteps | None:
        if request.code == RequestCode.PULL_MESSAGE and self.codes and not self._is_over():
            answer = self._nonsense(request.header(PullMessageRequestHeader))
            if answer is not None:
                connection.reply(request, answer)
                return None
        return super()._dispatch(connection, request)

    def _nonsense(self, asked: PullMessageRequestHeader) -> RemotingCommand | None:
        """Return an answer that makes no sense; None for a right one."""
        place = asked.consumer_group, asked.topic, asked.queue_id
        records = self._records(asked.topic, asked.queue_id, asked.queue_offset)
        is_right = self._chance.random() >= SHARE or place in self._misled
        self._misled.discard(place)
        if is_right or not records:
            return None
        self._misled.add(place)
        end = asked.queue_offset + len(records)
        if not self._ways:
            self._ways = self._chance.sample(_WAYS, len(_WAYS))
        way = self._ways.pop()
        if way == "flow control":
            return RemotingCommand.response(ResponseCode.FLOW_CONTROL, "too many pulls")
        if way in _LEAVES_OUT and asked.consumer_group.startswith(PICKY):
            way = "twice"
        if way == "beyond":
            end += 1_000
        header = PullMessageResponseHeader(
            0, end, self.store.min_offset(asked.topic, asked.queue_id),
            self.store.max_offset(asked.topic, asked.queue_id),
        )  # fmt: skip
        body = self._altered(way, records, asked)
        return RemotingCommand.response(ResponseCode.SUCCESS, "FOUND", header, body)

    def _altered(self, way: str, records: list[bytes], asked: PullMessageRequestHeader) -> bytes:
        strays = self._strays(asked.topic, asked.queue_id)
        half = len(records) // 2
        match way:
            case "stray first":
                records = [*strays, *records]
            case "stray between":
                records = [*records[:half], *strays, *records[half:]]
            case "stray last":
                records = [*records, *strays]
            case "gap":
                records = records[:half] + records[half + 1 :]
            case "first left out":
                records = records[1:]
            case "twice":
                records = [*records[: half + 1], *records[half:]]
            case "nothing":
                records = []
            case "all strays":
                records = strays
            case "torn":
                return b"".join(records)[:-7]
            case "damaged":
                records[half] = _damaged(records[half])
            case _:
                pass
        return b"".join(records)

    def _strays(self, topic: str, queue_id: int) -> list[bytes]:
        """Return a record of another queue, or of another topic; none where there is none."""
        for name in (topic, *self.store.topics()):
            for other in self.store.queue_ids(name):
                if (name, other) != (topic, queue_id):
                    found = self._records(name, other, self.store.min_offset(name, other))
                    if found:
                        return found[:1]
        return []

    def _records(self, topic: str, queue_id: int, offset: int) -> list[bytes]:
        """Return a few records of a queue, as they are stored."""
        if not 0 <= offset < self.store.max_offset(topic, queue_id):
            return []
        result = self.store.get(topic, queue_id, offset, _RECORDS)
        data, found = b"".join(map(bytes, result.records)), []
        while data:
            (size,) = struct.unpack_from(">i", data)
            found.append(data[:size])
            data = data[size:]
        return found


def _damaged(record: bytes) -> bytes:
    """Return a record with one bit of its body changed."""
    (size,) = struct.unpack_from(">i", record, _BODY_AT)
    at = _BODY_AT + 4 + size // 2
    return record[:at] + bytes([record[at] ^ 1]) + record[at + 1 :]


class StrangeRoutes:
    """A guard of a name server that answers some questions for routes itself, by nonsense.

    Args:
        chance: where its chance comes from.
        is_over: whether it is to do so no more.
    """

    routes: RouteTable
    """The routes of the name server, once it is made."""

    def __init__(self, chance: random.Random, is_over: Callable[[], bool]) -> None:
        self._chance, self._is_over = chance, is_over

    def __call__(
        self, connection: Connection, request: RemotingCommand, known: bool
    ) -> RemotingCommand | None:
        """Return an answer that makes no sense; None to have the name server answer."""
        if request.code != RequestCode.GET_ROUTEINFO_BY_TOPIC or self._is_over():
            return None
        if self._chance.random() >= SHARE:
            return None
        route = self._chance.choice([*senseless_routes(), None, None, None])
        if route is None:
            header = request.header(GetRouteInfoRequestHeader)
            route = without_masters(self.routes.route(header.topic))
        if route is None:
            return None
        return RemotingCommand.response(ResponseCode.SUCCESS, body=route.encode())


def without_masters(route: TopicRouteData | None) -> TopicRouteData | None:
    """Return a route whose brokers have slaves alone, as when their masters are away."""
    if route is None:
        return None
    slaves = [
        replace(each, broker_addrs={1: address})
        for each in route.broker_datas
        for address in each.broker_addrs.values()
    ]
    return replace(route, broker_datas=slaves)


def senseless_routes() -> list[TopicRouteData]:
    """Return routes that no client can use, each for a reason of its own."""
    both, most = Perm.READ | Perm.WRITE, limits.TOPIC_QUEUES_MAX
    broker = BrokerData("DefaultCluster", "broker-z", {0: _ADDRESS})
    elsewhere = BrokerData("DefaultCluster", "broker-z", {0: "nowhere"})
    many = [
        QueueData(f"broker-{number}", most, most, both)
        for number in range(limits.ROUTE_QUEUES_MAX // most + 1)
    ]
    one = [QueueData("broker-z", 1, 1, both)]
    less, more = QueueData("broker-z", -1, 1, both), QueueData("broker-z", 1, most + 1, both)
    routes = [
        TopicRouteData(queue_datas=[less], broker_datas=[broker]),
        TopicRouteData(queue_datas=[more], broker_datas=[broker]),
        TopicRouteData(queue_datas=many, broker_datas=[broker]),
        TopicRouteData(queue_datas=one, broker_datas=[elsewhere]),
    ]
    orders = ("broker-z", "broker-z:x", ":3", "broker-z:-1", f"broker-z:{most};" * 2_000)
    routes += [
        TopicRouteData(order_topic_conf=conf, queue_datas=one, broker_datas=[broker])
        for conf in orders
    ]
    return routes
