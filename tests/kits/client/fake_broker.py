"""A name server and broker in one that does what a test tells it, over the real protocol.

Law: keeps every request; answers by a table that tests change. Thread safe.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from rocketstream._util.loops import LoopThread
from rocketstream.protocol.bodies import (
    BrokerData,
    GetConsumerListByGroupResponseBody,
    HeartbeatData,
    QueueData,
    TopicRouteData,
)
from rocketstream.protocol.codes import RequestCode, ResponseCode
from rocketstream.protocol.command import RemotingCommand
from rocketstream.protocol.headers import (
    GetMaxOffsetResponseHeader,
    Header,
    PullMessageRequestHeader,
    PullMessageResponseHeader,
    QueryConsumerOffsetResponseHeader,
    SendMessageResponseHeader,
)
from rocketstream.protocol.record import RecordFields, encode_record
from rocketstream.transport.connection import Connection
from rocketstream.transport.server import RemotingServer

WAIT_S = 20.0
GROUP = "g"
TOPIC = "T"

Answer = RemotingCommand | None
Handler = Callable[[RemotingCommand], Answer]


@dataclass
class Asked:
    """One request, and the way to answer it later."""

    command: RemotingCommand
    connection: Connection

    @property
    def code(self) -> int:
        return self.command.code

    @property
    def ext(self) -> dict[str, str]:
        return self.command.ext_fields or {}


class FakeBroker:
    """Serves topic T (``queues`` queues) and the group's retry topic; a context manager.

    Attributes:
        on: code -> handler; a handler that returns None leaves the request unanswered.
        members: client ids of the group; None means "whoever sent a heartbeat".
        offsets: queue -> stored offset of the group in T.
    """

    def __init__(self, queues: int = 1, name: str = "broker-a", routes: bool = True) -> None:
        self.queues = queues
        self.name = name
        self.members: list[str] | None = None
        self.offsets: dict[int, int] = {}
        self.topics = {TOPIC: queues, f"%RETRY%{GROUP}": 0, "TBW102": 1} if routes else {}
        self.others: list[FakeBroker] = []
        self.heartbeats: list[HeartbeatData] = []
        self._changed = threading.Condition()
        self._asked: list[Asked] = []
        self.on: dict[int, Handler] = {
            RequestCode.GET_ROUTEINFO_BY_TOPIC: self._route,
            RequestCode.HEART_BEAT: lambda _: ok(),
            RequestCode.UNREGISTER_CLIENT: lambda _: ok(),
            RequestCode.GET_CONSUMER_LIST_BY_GROUP: self._members,
            RequestCode.QUERY_CONSUMER_OFFSET: self._query_offset,
            RequestCode.UPDATE_CONSUMER_OFFSET: lambda _: ok(),
            RequestCode.GET_MAX_OFFSET: lambda _: answer(0, GetMaxOffsetResponseHeader(77)),
            RequestCode.PULL_MESSAGE: lambda _: None,
            RequestCode.CONSUMER_SEND_MSG_BACK: lambda _: ok(),
            RequestCode.SEND_MESSAGE_V2: lambda _: answer(0, SendMessageResponseHeader("ID", 0, 0)),
        }

    def __enter__(self) -> Self:
        self.thread = LoopThread("fake-broker")
        self.server = self.thread.run(self._start())
        self.address = f"127.0.0.1:{self.server.port}"
        return self

    async def _start(self) -> RemotingServer:
        server = RemotingServer(self._serve)
        await server.start()
        return server

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.thread.run(self.server.close())
        self.thread.close()

    # --- serving ----------------------------------------------------------------------------------

    def _serve(self, connection: Connection, command: RemotingCommand) -> None:
        with self._changed:
            # Whoever has waited for a heartbeat finds what it said.
            if command.code == RequestCode.HEART_BEAT:
                self.heartbeats.append(HeartbeatData.decode(bytes(command.body)))
            # Whoever has seen a request may set how the next one is answered.
            handler = self.on.get(command.code)
            self._asked.append(Asked(command, connection))
            self._changed.notify_all()
        response = ok() if handler is None else handler(command)
        if response is not None:
            connection.reply(command, response)

    def _route(self, command: RemotingCommand) -> RemotingCommand:
        topic = (command.ext_fields or {}).get("topic", "")
        if topic not in self.topics:
            return RemotingCommand.response(ResponseCode.TOPIC_NOT_EXIST, "No topic route info")
        brokers = [self, *self.others]
        number = self.topics[topic]
        route = TopicRouteData(
            queue_datas=[QueueData(b.name, number, number, 6, 0) for b in brokers],
            broker_datas=[BrokerData("c", b.name, {0: b.address}) for b in brokers],
        )
        return RemotingCommand.response(0, body=route.encode(standard=True))

    def _members(self, command: RemotingCommand) -> RemotingCommand:
        members = self.members
        if members is None:
            members = sorted({beat.client_id for beat in self.heartbeats})
        body = GetConsumerListByGroupResponseBody(members).encode()
        return RemotingCommand.response(0, body=body)

    def _query_offset(self, command: RemotingCommand) -> RemotingCommand:
        offset = self.offsets.get(int((command.ext_fields or {})["queueId"]))
        if offset is None:
            return RemotingCommand.response(ResponseCode.QUERY_NOT_FOUND, "not found")
        return answer(0, QueryConsumerOffsetResponseHeader(offset))

    # --- for tests --------------------------------------------------------------------------------

    def asked(self, code: int) -> list[Asked]:
        """Return the requests of one code so far."""
        with self._changed:
            return [each for each in self._asked if each.code == code]

    def wait_for(
        self, code: int, count: int = 1, where: Callable[[Asked], bool] = lambda _: True
    ) -> list[Asked]:
        """Return the requests of a code that match, once there are ``count``."""

        def found() -> list[Asked]:
            return [each for each in self._asked if each.code == code and where(each)]

        with self._changed:
            if not self._changed.wait_for(lambda: len(found()) >= count, WAIT_S):
                raise TimeoutError(f"{len(found())} of {count} requests {code}: {self._asked}")
            return found()

    def wait_pull(self, offset: int, count: int = 1) -> Asked:
        """Return the last of ``count`` pulls of topic T at an offset."""
        return self.wait_for(
            RequestCode.PULL_MESSAGE,
            count,
            lambda a: a.ext["topic"] == TOPIC and int(a.ext["queueOffset"]) == offset,
        )[-1]

    def reply(self, asked: Asked, response: RemotingCommand) -> None:
        """Answer a request that was left unanswered."""
        self.thread.run(self._reply(asked, response))

    async def _reply(self, asked: Asked, response: RemotingCommand) -> None:
        asked.connection.reply(asked.command, response)

    def ask_clients(
        self, code: int, header: Header | None = None, body: bytes = b"", *, oneway: bool = False
    ) -> list[RemotingCommand]:
        """Make a request of every connected client; return their answers, none for one-way."""
        return self.thread.run(self._ask_clients(code, header, body, oneway))

    async def _ask_clients(
        self, code: int, header: Header | None, body: bytes, oneway: bool
    ) -> list[RemotingCommand]:
        answers = []
        for connection in self.server.connections:
            command = RemotingCommand.request(code, header, body)
            if oneway:
                connection.oneway(command)
            else:
                answers.append(await connection.request(command, WAIT_S * 1000))
        return answers

    def drop_connections(self) -> None:
        """Lose every connection, as a broker does that is killed."""
        self.thread.run(self._drop())

    async def _drop(self) -> None:
        for connection in self.server.connections:
            connection.close("the broker is gone")

    def notify_members_changed(self) -> None:
        """Tell every client to rebalance (code 40)."""
        self.thread.run(self._notify())

    async def _notify(self) -> None:
        command = RemotingCommand.request(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, oneway=True)
        for connection in self.server.connections:
            connection.oneway(command)


def ok() -> RemotingCommand:
    """Return a plain success."""
    return RemotingCommand.response(0)


def answer(code: int, header: object) -> RemotingCommand:
    """Return a response with a header."""
    return RemotingCommand.response(code, None, header)  # type: ignore[arg-type]


def stored_as(status: int) -> Handler:
    """Answer a send with a status other than SEND_OK: stored, but not as safely as wished."""
    return lambda _: answer(status, SendMessageResponseHeader("ID", 0, 0))


def refusal(code: int, remark: str = "no") -> Handler:
    """Return a handler that refuses everything."""
    return lambda _: RemotingCommand.response(code, remark)


def found(
    offsets: range | list[int],
    *,
    topic: str = TOPIC,
    queue_id: int = 0,
    properties: str = "UNIQ_KEY\x01U",
    next_offset: int | None = None,
    max_offset: int = 1000,
) -> RemotingCommand:
    """Return a pull reply with one message per offset; its body is the offset."""
    records = b"".join(
        bytes(
            encode_record(
                RecordFields(
                    topic=topic,
                    queue_id=queue_id,
                    flag=0,
                    sys_flag=0,
                    born_timestamp=1,
                    born_host=("127.0.0.1", 1),
                    store_timestamp=2,
                    store_host=("127.0.0.1", 2),
                    reconsume_times=0,
                    prepared_transaction_offset=0,
                    body=str(offset).encode(),
                    properties=f"{properties}{offset}",
                    queue_offset=offset,
                    physical_offset=offset * 1000,
                )
            )
        )
        for offset in offsets
    )
    end = max(offsets) + 1 if next_offset is None else next_offset
    header = PullMessageResponseHeader(0, end, 0, max_offset)
    return RemotingCommand.response(0, "FOUND", header, records)


def pull_answer(code: int, next_offset: int, max_offset: int = 0) -> RemotingCommand:
    """Return a pull reply without messages."""
    return answer(code, PullMessageResponseHeader(0, next_offset, 0, max_offset))


def pull_header(asked: Asked) -> PullMessageRequestHeader:
    """Return a pull's header."""
    return PullMessageRequestHeader.from_ext(asked.ext)
