"""Pure: questions to brokers and name servers: the requests, and how their answers are read.

A question about a queue names its broker (``bname``), as those of upstream's clients and of its
mqadmin do from 5.0 on (MQClientAPIImpl, DefaultMQAdminExtImpl.updateConsumeOffset): servers of 4.9
ignore it, a proxy of 5.x refuses a request without it ("Request doesn't have field bname").

A look-up at name servers is a generator that yields an address and a request, and is sent the
answer, or thrown the error there was instead. ``api`` and ``admin.blocking`` carry the requests.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from rocketstream.errors import (
    ConfigurationError,
    ConnectError,
    RemoteProtocolError,
    RequestNotSupportedError,
    TopicNotExistError,
    TransportError,
    broker_error,
)
from rocketstream.model import MessageQueue
from rocketstream.protocol.codes import RequestCode, ResponseCode, request_text
from rocketstream.protocol.command import RemotingCommand
from rocketstream.protocol.headers import (
    GetEarliestMsgStoretimeRequestHeader,
    GetEarliestMsgStoretimeResponseHeader,
    GetMaxOffsetRequestHeader,
    GetMaxOffsetResponseHeader,
    GetMinOffsetRequestHeader,
    GetMinOffsetResponseHeader,
    Header,
    QueryConsumerOffsetRequestHeader,
    QueryConsumerOffsetResponseHeader,
    SearchOffsetRequestHeader,
    SearchOffsetResponseHeader,
    UpdateConsumerOffsetRequestHeader,
)

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
LookUp = Generator[tuple[str, RemotingCommand], RemotingCommand, T]
"""Steps of a question: yields whom to ask for what."""

NAMESRV_ADDR_VARIABLE = "NAMESRV_ADDR"
"""The environment variable that names them where nothing else does."""
_TOLD_BYTES_MAX = 1 << 20


@dataclass(frozen=True, slots=True)
class Question(Generic[T_co]):
    """One question to a broker or a name server.

    Attributes:
        code: the code of the request.
        header: its fields; None where it has none.
        read: returns what a successful answer says.
        patience: how many times as long as for other questions an answer is waited for.
        body: what the request carries besides.
    """

    code: RequestCode
    header: Header | None
    read: Callable[[RemotingCommand], T_co]
    patience: int = 1
    body: bytes = b""

    def command(self) -> RemotingCommand:
        """Return the request, made anew each time."""
        return RemotingCommand.request(self.code, self.header, body=self.body)


def max_offset(queue: MessageQueue) -> Question[int]:
    """Ask for the offset the next message of a queue will get (30)."""
    header = GetMaxOffsetRequestHeader(queue.topic, queue.queue_id, bname=queue.broker_name)
    return Question(
        RequestCode.GET_MAX_OFFSET, header, lambda a: a.header(GetMaxOffsetResponseHeader).offset
    )


def min_offset(queue: MessageQueue) -> Question[int]:
    """Ask for the offset of the oldest message still in a queue (31)."""
    header = GetMinOffsetRequestHeader(queue.topic, queue.queue_id, bname=queue.broker_name)
    return Question(
        RequestCode.GET_MIN_OFFSET, header, lambda a: a.header(GetMinOffsetResponseHeader).offset
    )


def oldest_store_time(queue: MessageQueue) -> Question[int]:
    """Ask when the oldest message of a queue was stored, ms since 1970; -1 if it is empty (32)."""
    header = GetEarliestMsgStoretimeRequestHeader(
        queue.topic, queue.queue_id, bname=queue.broker_name
    )
    return Question(
        RequestCode.GET_EARLIEST_MSG_STORETIME,
        header,
        lambda a: a.header(GetEarliestMsgStoretimeResponseHeader).timestamp,
    )


def offset_at(queue: MessageQueue, timestamp_ms: int) -> Question[int]:
    """Ask for the offset stored nearest to a time, by the broker's rule (29; C-372)."""
    header = SearchOffsetRequestHeader(
        queue.topic, queue.queue_id, timestamp_ms, bname=queue.broker_name
    )
    return Question(
        RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
        header,
        lambda a: a.header(SearchOffsetResponseHeader).offset,
    )


def committed_offset(group: str, queue: MessageQueue) -> Question[int | None]:
    """Ask for the offset a group has stored for a queue (14); None when the answer has none.

    A broker that has none answers with an error instead, OffsetNotFoundError; every other error is
    an error (C-316).
    """
    header = QueryConsumerOffsetRequestHeader(
        group, queue.topic, queue.queue_id, bname=queue.broker_name
    )
    return Question(RequestCode.QUERY_CONSUMER_OFFSET, header, _committed)


def _committed(answer: RemotingCommand) -> int | None:
    offset = answer.header(QueryConsumerOffsetResponseHeader).offset
    return offset if offset >= 0 else None


def commit(group: str, queue: MessageQueue, offset: int) -> Question[None]:
    """Ask a broker to store a group's offset for a queue (15)."""
    header = UpdateConsumerOffsetRequestHeader(
        group, queue.topic, queue.queue_id, offset, bname=queue.broker_name
    )
    return Question(RequestCode.UPDATE_CONSUMER_OFFSET, header, lambda _: None)


# --- which name server is asked -------------------------------------------------------------------


class NameServers:
    """The name servers of one client, the one first that answered last (C-139).

    Attributes:
        addresses: in the order they are tried.
    """

    def __init__(self, addresses: Sequence[str]) -> None:
        self.addresses: list[str] = list(addresses)
        self._preferred = 0
        self._silent: set[str] = set()
        """Name servers that did not answer when they were asked last."""

    def replace(self, addresses: Sequence[str]) -> None:
        """Use other ones from now on."""
        self.addresses = list(addresses)
        self._preferred = 0
        self._silent.clear()

    def look_up(
        self,
        request: Callable[[], RemotingCommand],
        read: Callable[[RemotingCommand], T],
        what: str = "",
        **about: object,
    ) -> LookUp[T]:
        """Ask each name server once until one answers; return what its answer says.

        An answer that cannot be read counts as no answer: the next name server is asked. So does
        that it knows no such topic, unless all say so: one that was just started knows none. About
        that, one that did not answer the last time is asked at every second look-up only.

        Args:
            request: makes the request, anew for each name server.
            read: reads a successful answer.
            what: what is asked for, as an error names it.
            about: parameters of the errors below.

        Raises:
            BrokerError: an error code is the answer.
            ConnectError: no name server answered; the text names every address tried and why.
            RemoteProtocolError: the only answers there are make no sense; likewise.
            ConfigurationError: a broker has answered.
        """
        failures: list[str] = []
        senseless = ""
        unknown: TopicNotExistError | None = None
        servers = self.addresses
        # Look-ups are under way at the same time: each goes round by itself, so that two which fail
        # together at a dead name server do not send each other past the living one.
        first = self._preferred
        for step in range(len(servers)):
            address = servers[index := (first + step) % len(servers)]
            was_silent = address in self._silent
            self._silent.discard(address)
            if was_silent and unknown is not None:
                continue
            try:
                found = read((yield from asking(address, request())))
            except TopicNotExistError as error:
                unknown = error
                continue
            except (TransportError, RemoteProtocolError) as error:
                self._silent.add(address)
                if isinstance(error, RemoteProtocolError):
                    senseless = address
                failures.append(f"{address}: {error.message}")
                continue
            if servers is self.addresses:
                self._preferred = index
            return found
        if unknown is not None:
            raise unknown
        if senseless:
            raise RemoteProtocolError(
                f"{what or 'the answer'} cannot be used ({'; '.join(failures)}); check that the "
                "address is a name server's, and what it answers",
                address=senseless,
                **about,
            )
        if not servers:
            raise ConnectError(
                f"{what} cannot be asked for: the address server has not named any name server yet",
                **about,
            )
        raise ConnectError(
            f"no name server answered{what and f' for {what}'} ({'; '.join(failures)}); is one "
            "running there? (rocketstream serve starts one)",
            addresses=list(servers),
            **about,
        )


def asking(address: str, request: RemotingCommand) -> LookUp[RemotingCommand]:
    """Ask one name server; return its successful answer.

    Raises:
        ConfigurationError: it is a broker.
        BrokerError: it answered with an error code.
        TransportError: as it is thrown in.
    """
    answer = yield address, request
    if answer.code == ResponseCode.SUCCESS:
        return answer
    error = broker_error(answer.code, answer.remark, address, request_text(request.code))
    if isinstance(error, RequestNotSupportedError):
        try:
            told = yield address, is_broker_question()
        except (TransportError, RemoteProtocolError):
            raise error from None
        raise not_name_server(address, told) or error
    raise error


def is_broker_question() -> RemotingCommand:
    """Return what to ask a peer that refused a name server's request as one it does not know.

    GET_BROKER_CONFIG (26): a broker answers it, or asks for permission; a name server refuses it.
    """
    return RemotingCommand.request(RequestCode.GET_BROKER_CONFIG)


def not_name_server(address: str, answer: RemotingCommand) -> ConfigurationError | None:
    """Return the error that says the peer is a broker, None if its answer does not show that."""
    if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
        return None
    told: dict[str, str] = {}
    if answer.code == ResponseCode.SUCCESS:
        text = bytes(answer.body)[:_TOLD_BYTES_MAX].decode("utf-8", "replace")
        told = {k.strip(): v.strip() for k, _, v in (x.partition("=") for x in text.splitlines())}
    name, servers = told.get("brokerName"), told.get("namesrvAddr")
    who = f"broker {name!r}" if name else "a broker"
    instead = f"its name server is {servers}" if servers else "give its name server's address"
    return ConfigurationError(f"{address} is {who}, not a name server; {instead}", address=address)
