"""The ways to ask servers by the table of requests: one question, or many at a time.

Law: a refusal is raised as the error of its code. Asked many at a time, it takes the answer's
place, and only silence is raised.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextvars import copy_context
from dataclasses import dataclass
from typing import Any, TypeVar

from rocketstream import limits
from rocketstream.admin.wire import questions
from rocketstream.client.admin.blocking import BlockingAdminClient
from rocketstream.client.instance.questions import Question
from rocketstream.errors import (
    BrokerError,
    ConsumerNotOnlineError,
    OffsetNotFoundError,
    RemoteProtocolError,
    RocketMQError,
    RouteNotFoundError,
    TopicNotExistError,
    TransportError,
    broker_error,
)
from rocketstream.model import MessageQueue
from rocketstream.protocol.bodies import ClusterInfo, ConsumerConnection, TopicRouteData
from rocketstream.protocol.codes import PullSysFlag, RequestCode, ResponseCode
from rocketstream.protocol.command import RemotingCommand
from rocketstream.protocol.headers import (
    PullMessageRequestHeader,
    PullMessageResponseHeader,
    QueryMessageRequestHeader,
)
from rocketstream.protocol.message_ext import MessageExt, decode_messages

A = TypeVar("A")
T = TypeVar("T")

_NO_MESSAGE = frozenset(
    {
        ResponseCode.PULL_NOT_FOUND,
        ResponseCode.PULL_RETRY_IMMEDIATELY,
        ResponseCode.PULL_OFFSET_MOVED,
    }
)
UNIQUE_KEY_QUERY = "_UNIQUE_KEY_QUERY"
NO_BROKER = (
    "no broker is registered with the name server; start one (rocketstream serve) or check that "
    "it registers with this name server"
)


class Wire:
    """Asks single servers; blocking, and as thread safe as its client."""

    def __init__(self, client: BlockingAdminClient, timeout_ms: int) -> None:
        self._client = client
        self._timeout_ms = timeout_ms

    def ask(self, address: str, question: Question[T], *, timeout_ms: int | None = None) -> T:
        """Return what one server answers; ``timeout_ms`` takes the place of the usual bound."""
        patience_ms = timeout_ms or self._timeout_ms * question.patience
        return question.read(self._client.request(address, question.command(), patience_ms))

    def ask_namesrv(self, question: Question[T]) -> T:
        """Return what the first name server that answers says."""
        return question.read(self._client.request_namesrv(question.command(), self._timeout_ms))

    def ask_one_namesrv(self, address: str, question: Question[T]) -> T:
        """Return what this name server answers.

        Raises:
            ConfigurationError: it is a broker.
        """
        command = question.command()
        return question.read(self._client.request_one_namesrv(address, command, self._timeout_ms))


@dataclass(slots=True)
class Asking:
    """Asks one address, and counts the requests.

    Attributes:
        requests: how many were sent.
    """

    client: BlockingAdminClient
    address: str
    timeout_ms: int
    requests: int = 0

    def each(self, questions: Sequence[Question[T]]) -> list[T | RocketMQError]:
        """Return an answer for each question, or the error that came in its place.

        Raises:
            TransportError: the address does not answer (any more).
        """
        if not questions:
            return []
        found: list[T | RocketMQError | None] = [None] * len(questions)

        def read(place: int, answer: RemotingCommand) -> None:
            if answer.code != ResponseCode.SUCCESS:
                found[place] = broker_error(answer.code, answer.remark, self.address)
                return
            try:
                found[place] = questions[place].read(answer)
            except (RemoteProtocolError, ValueError) as error:
                text = f"{self.address} answered request {questions[place].code:d} with: {error}"
                found[place] = RemoteProtocolError(text, address=self.address)

        self._ask(questions, read)
        return [BrokerError(1, "no answer") if each is None else each for each in found]

    def as_told(
        self, questions: Sequence[Question[T]], keep: Callable[[int, T], None]
    ) -> dict[int, str]:
        """Hand on each answer with its question's index; return why others did not come.

        For questions a broker passes on to clients: silence is then a client's, not the broker's.
        """
        left = set(range(len(questions)))
        why: dict[int, str] = {}

        def read(place: int, answer: RemotingCommand) -> None:
            left.discard(place)
            if answer.code != ResponseCode.SUCCESS:
                why[place] = str(broker_error(answer.code, answer.remark, self.address))
                return
            try:
                keep(place, questions[place].read(answer))
            except (RemoteProtocolError, ValueError) as error:
                why[place] = f"its answer cannot be read: {error}"

        try:
            self._ask(questions, read)
        except TransportError as error:
            why |= dict.fromkeys(left, str(error))
        return why

    def _ask(
        self, questions: Sequence[Question[Any]], read: Callable[[int, RemotingCommand], None]
    ) -> None:
        self.requests += len(questions)
        commands = [each.command() for each in questions]
        timeout_ms = self.timeout_ms * max((each.patience for each in questions), default=1)
        self.client.request_each(self.address, commands, read, timeout_ms)

    def one(self, question: Question[T]) -> T | RocketMQError:
        """Return the answer to one question, or the error that came in its place.

        Raises:
            TransportError: the address does not answer (any more).
        """
        return self.each([question])[0]


class AdminWire(Wire):
    """Asks one cluster; blocking, and as thread safe as its client."""

    # --- name servers ----------------------------------------------------------------------------

    def cluster_info(self) -> ClusterInfo:
        """GET_BROKER_CLUSTER_INFO (106) of a name server."""
        return self.ask_namesrv(questions.CLUSTER)

    def topic_names(self) -> list[str]:
        """GET_ALL_TOPIC_LIST_FROM_NAMESERVER (206)."""
        return sorted(self.ask_namesrv(questions.TOPIC_NAMES))

    def system_topic_names(self) -> set[str]:
        """GET_SYSTEM_TOPIC_LIST_FROM_NS (304): cluster and broker names, registered as topics."""
        return set(self.ask_namesrv(questions.SYSTEM_TOPIC_NAMES))

    def route_at(self, name_server: str, topic: str) -> bool:
        """GET_ROUTEINFO_BY_TOPIC (105) of one name server: whether it knows the topic."""
        try:
            self.ask(name_server, questions.route_of(topic))
        except TopicNotExistError:
            return False
        return True

    def route(self, topic: str) -> TopicRouteData:
        """Return the topic's route, without a look into the cache.

        Raises:
            RouteNotFoundError: no name server knows the topic.
        """
        return self._client.route(topic, refresh=True)

    def masters(self) -> dict[str, str]:
        """Return the address of each broker's master, by broker name."""
        found: dict[str, str] = {}
        for name, data in self.cluster_info().broker_addr_table.items():
            address = data.broker_addrs.get(0)
            if address:
                found[name] = address
        if not found:
            raise RouteNotFoundError(NO_BROKER)
        return found

    # --- many brokers ----------------------------------------------------------------------------

    def topic_masters(self, topic: str) -> dict[str, str]:
        """Return the address of the master of each broker that has a topic, by broker name.

        Raises:
            RouteNotFoundError: no name server knows the topic.
        """
        masters = {d.broker_name: d.broker_addrs.get(0) for d in self.route(topic).broker_datas}
        return {name: address for name, address in masters.items() if address}

    def connections(self, group: str, masters: Mapping[str, str]) -> dict[str, ConsumerConnection]:
        """Return each broker's connected members; brokers where nobody is connected are absent."""
        found: dict[str, ConsumerConnection] = {}
        for broker_name, address in masters.items():
            try:
                found[broker_name] = self.ask(address, questions.connection_of(group))
            except ConsumerNotOnlineError:
                continue
        return found

    def offset_tables(
        self, masters: Mapping[str, str]
    ) -> dict[str, dict[str, dict[int, int]]] | None:
        """Return every broker's offset table; None when one does not answer code 43."""
        try:
            return {name: self.ask(address, questions.OFFSETS) for name, address in masters.items()}
        except BrokerError:
            return None

    # --- messages --------------------------------------------------------------------------------

    def messages_by_key(
        self,
        address: str,
        topic: str,
        key: str,
        most: int,
        *,
        unique: bool = False,
        until_ms: int = 0x7FFF_FFFF_FFFF_FFFF,
    ) -> list[MessageExt]:
        """QUERY_MESSAGE (12) of one broker, the newest; empty when it has none.

        ``unique`` searches by the id the sender gave; ``until_ms`` is the last store time.
        """
        header = QueryMessageRequestHeader(
            topic=topic,
            key=key,
            max_num=most,
            begin_timestamp=0,
            end_timestamp=until_ms,
        )
        command = RemotingCommand.request(RequestCode.QUERY_MESSAGE, header)
        if unique:
            command.ext_fields = {**(command.ext_fields or {}), UNIQUE_KEY_QUERY: "true"}
        try:
            answer = self._client.request(address, command, self._timeout_ms)
        except OffsetNotFoundError:
            return []
        return list(decode_messages(bytes(answer.body)))

    def pull(
        self,
        address: str,
        group: str,
        queue: MessageQueue,
        offset: int,
        most: int,
        condition: str | None = None,
    ) -> tuple[list[MessageExt], int]:
        """PULL_MESSAGE (11): messages from an offset on, and where to continue after a gap.

        Args:
            condition: an SQL92 condition by which the broker selects; it answers, perhaps without a
                message, after evaluating some hundred.

        Raises:
            RemoteProtocolError: there is no message at the offset or after it.
        """
        header = PullMessageRequestHeader(
            consumer_group=group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            queue_offset=offset,
            max_msg_nums=most,
            sys_flag=PullSysFlag.SUBSCRIPTION,
            commit_offset=0,
            suspend_timeout_millis=0,
            sub_version=0,
            subscription="*" if condition is None else condition,
            expression_type="TAG" if condition is None else "SQL92",
        )
        command = RemotingCommand.request(RequestCode.PULL_MESSAGE, header)
        answer = self._client.request(address, command, self._timeout_ms, also=_NO_MESSAGE)
        at = answer.header(PullMessageResponseHeader).next_begin_offset
        if at <= offset:
            raise RemoteProtocolError(
                f"{address} has no message at offset {offset} of {queue} any more (it says to go "
                f"on at {at}): was the topic deleted meanwhile?"
            )
        found = answer.code == ResponseCode.SUCCESS
        return list(decode_messages(bytes(answer.body))) if found else [], at


def beside(ask: Callable[[A], T], what: Sequence[A]) -> list[T]:
    """Ask several at a time, on a few threads; return the answers in order."""
    if len(what) < 2:
        return [ask(each) for each in what]
    from concurrent.futures import ThreadPoolExecutor  # most clusters asked have one broker

    with ThreadPoolExecutor(min(len(what), limits.ADMIN_BROKERS_AT_ONCE_MAX)) as pool:
        # Each call gets the caller's context, so that its end can be requested
        # (``_util.stopping``).
        asked = [pool.submit(copy_context().run, ask, each) for each in what]
        return [each.result() for each in asked]
