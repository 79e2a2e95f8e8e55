"""Questions to name servers and brokers on plain sockets: routes, offsets, any admin request.

The caller's thread asks and waits; there is no event loop and no other thread, so tasks of Spark
and commands can use it at once and as many times side by side as they like.
"""

from __future__ import annotations

import os
import threading
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Self, TypeVar

from rocketstream import limits
from rocketstream._util.clock import SYSTEM_CLOCK, Clock
from rocketstream._util.stopping import check_stop
from rocketstream.client.credentials import signer
from rocketstream.client.instance import questions
from rocketstream.client.instance.questions import (
    NAMESRV_ADDR_VARIABLE,
    LookUp,
    NameServers,
    Question,
    asking,
)
from rocketstream.client.instance.routes import check_route, subscribe_queues
from rocketstream.errors import (
    BrokerError,
    ConfigurationError,
    ConnectError,
    ConnectionLostError,
    OffsetNotFoundError,
    RemoteProtocolError,
    RocketMQError,
    RouteNotFoundError,
    TopicNotExistError,
    TransportError,
    broker_error,
)
from rocketstream.model import MessageQueue
from rocketstream.protocol.addresses import parse_addresses
from rocketstream.protocol.bodies import BrokerData, ClusterInfo, TopicRouteData
from rocketstream.protocol.codes import MASTER_ID, RequestCode, ResponseCode, request_text
from rocketstream.protocol.command import RemotingCommand
from rocketstream.protocol.headers import GetRouteInfoRequestHeader
from rocketstream.transport.blocking_pool import BlockingPool
from rocketstream.transport.tls import environment_context

if TYPE_CHECKING:
    import ssl

    from rocketstream.client.config import ClientConfig

T = TypeVar("T")

ROUTE_LIFETIME_MS = 30_000
"""Upstream's pollNameServerInterval: how long a cached route is trusted."""


class BlockingAdminClient:
    """Asks one RocketMQ cluster, blocking; thread safe; close it when done.

    Every call blocks for at most ``timeout_ms`` per address tried, plus the connect timeout.
    An answer with an error code is raised as its error (``errors.broker_error``).

    Args:
        namesrv_addr: ``host:port``, several separated by ``;``; None takes NAMESRV_ADDR.
        timeout_ms: bound of one request.
        connect_timeout_ms: bound of one connect.
        access_key: ACL user, with ``secret_key``; None takes those of the environment
            (ROCKETMQ_ACCESS_KEY, ROCKETMQ_SECRET_KEY, or the file ROCKETMQ_KEY_FILE).
        secret_key: ACL secret.
        security_token: token of a temporary ACL user.
        ssl_context: TLS for every connection; None takes what the environment says, which is plain
            unless ROCKETMQ_TLS_ENABLE is true.
        clock: where the age of routes comes from.

    Raises:
        ConfigurationError: no usable name server address, or half a pair of keys.
    """

    def __init__(
        self,
        namesrv_addr: str | None = None,
        *,
        timeout_ms: int = 3_000,
        connect_timeout_ms: int = limits.CONNECT_TIMEOUT_MS,
        access_key: str | None = None,
        secret_key: str | None = None,
        security_token: str | None = None,
        ssl_context: ssl.SSLContext | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.name_servers: list[str] = _name_servers(namesrv_addr)
        self.timeout_ms = timeout_ms
        self._servers = NameServers(self.name_servers)
        self._clock = clock
        self._lock = threading.Lock()  # guards the two tables below, never held while waiting
        self._routes: dict[str, tuple[float, TopicRouteData]] = {}
        self._brokers: dict[str, dict[int, str]] = {}
        self._pool = BlockingPool(
            connect_timeout_ms=connect_timeout_ms,
            ssl_context=ssl_context or environment_context(),
            before_request=signer(access_key, secret_key, security_token),
        )

    @classmethod
    def of(cls, config: ClientConfig) -> Self:
        """Return a client with the name servers, the account and the TLS of other clients.

        Raises:
            ConfigurationError: no usable name server address, or half a pair of keys.
        """
        return cls(
            ";".join(config.name_servers()),
            timeout_ms=config.api_timeout_ms,
            connect_timeout_ms=config.connect_timeout_ms,
            access_key=config.access_key,
            secret_key=config.secret_key,
            security_token=config.security_token,
            ssl_context=config.tls_context(),
        )

    # --- requests -------------------------------------------------------------------------------

    def request(
        self,
        address: str,
        command: RemotingCommand,
        timeout_ms: int | None = None,
        *,
        also: Collection[int] = (),
    ) -> RemotingCommand:
        """Send one request to ``address`` and return its successful answer.

        Args:
            address: whom to ask.
            command: the request.
            timeout_ms: bound of this request; None for that of the client.
            also: codes besides SUCCESS that are answers.

        Raises:
            BrokerError: the peer answered with an error code (a subclass where one exists).
            TransportError: no connection, connection lost, or no answer in time.
        """
        check_stop()
        answer = self._pool.request(address, command, timeout_ms or self.timeout_ms)
        if answer.code != ResponseCode.SUCCESS and answer.code not in also:
            asked = request_text(command.code)
            raise broker_error(answer.code, answer.remark, address, asked)
        return answer

    def request_namesrv(
        self, command: RemotingCommand, timeout_ms: int | None = None
    ) -> RemotingCommand:
        """Send one request to the first name server that answers, the last good one first.

        Raises:
            ConnectError: none answered; the text lists what each one said.
            ConfigurationError: what answered is a broker.
            BrokerError: one answered with an error code.
        """
        look_up = self._servers.look_up(lambda: command, lambda answer: answer)
        return self._carry(look_up, timeout_ms)

    def request_one_namesrv(
        self, address: str, command: RemotingCommand, timeout_ms: int | None = None
    ) -> RemotingCommand:
        """Send one request to this name server.

        Raises:
            ConfigurationError: it is a broker.
            BrokerError: it answered with an error code.
            TransportError: no connection, connection lost, or no answer in time.
        """
        return self._carry(asking(address, command), timeout_ms)

    def _carry(self, look_up: LookUp[T], timeout_ms: int | None = None) -> T:
        """Carry the requests of a look-up; return what it finds."""
        try:
            address, command = next(look_up)
            while True:
                check_stop()
                try:
                    answer = self._pool.request(address, command, timeout_ms or self.timeout_ms)
                except (TransportError, RemoteProtocolError) as error:
                    address, command = look_up.throw(error)
                else:
                    address, command = look_up.send(answer)
        except StopIteration as end:
            found: T = end.value
            return found

    def request_each(
        self,
        address: str,
        commands: Sequence[RemotingCommand],
        read: Callable[[int, RemotingCommand], None],
        timeout_ms: int | None = None,
    ) -> None:
        """Send many requests to one address, some of them under way at a time.

        ``read`` is called for each answer with the request's place, in the order they come; the
        answer may be an error code, and its body is good until ``read`` returns.

        Raises:
            TransportError: no connection, connection lost, or none of the answers that are still
                missing came in time. Answers read before stay read.
        """
        wait_ms = timeout_ms or self.timeout_ms
        places: dict[int, int] = {}
        with self._pool.connection(address) as connection:
            for place, command in enumerate(commands):
                check_stop()
                if len(places) == limits.ADMIN_REQUESTS_IN_FLIGHT_MAX:
                    answer = connection.receive(wait_ms)
                    read(places.pop(answer.opaque), answer)
                places[connection.submit(command)] = place
            while places:
                answer = connection.receive(wait_ms)
                read(places.pop(answer.opaque), answer)

    # --- routes ---------------------------------------------------------------------------------

    def route(self, topic: str, *, refresh: bool = False) -> TopicRouteData:
        """Return the topic's route, at most 30 s old (asked again with ``refresh``).

        Raises:
            RouteNotFoundError: no name server knows the topic.
            RemoteProtocolError: the answer of the name server, which is named, makes no sense.
        """
        now = self._clock.monotonic_ms()
        with self._lock:
            cached = self._routes.get(topic)
        if cached and not refresh and now - cached[0] < ROUTE_LIFETIME_MS:
            return cached[1]
        header = GetRouteInfoRequestHeader(topic=topic, accept_standard_json_only=True)

        def read(answer: RemotingCommand) -> TopicRouteData:
            data = TopicRouteData.decode(answer.body)
            check_route(topic, data)
            return data

        def request() -> RemotingCommand:
            return RemotingCommand.request(RequestCode.GET_ROUTEINFO_BY_TOPIC, header)

        what = f"the route of topic {topic!r}"
        try:
            data = self._carry(self._servers.look_up(request, read, what, topic=topic))
        except TopicNotExistError as error:
            raise RouteNotFoundError(
                f"topic {topic!r} is unknown to name server {';'.join(self.name_servers)}; "
                "check its spelling or create it (rocketstream topic create)",
                topic=topic,
            ) from error
        with self._lock:
            self._routes.pop(topic, None)
            self._routes[topic] = (now, data)  # behind those that were asked for before
            while now - self._routes[oldest := next(iter(self._routes))][0] >= ROUTE_LIFETIME_MS:
                del self._routes[oldest]
            self._remember(data.broker_datas)
        return data

    def cluster_info(self) -> ClusterInfo:
        """Return every broker the name server knows."""
        answer = self.request_namesrv(RemotingCommand.request(RequestCode.GET_BROKER_CLUSTER_INFO))
        info = ClusterInfo.decode(answer.body)
        with self._lock:
            self._remember(info.broker_addr_table.values())
        return info

    def subscribe_queues(self, topic: str, *, refresh: bool = False) -> list[MessageQueue]:
        """Return the topic's readable queues, sorted: read queues of readable brokers."""
        return sorted(subscribe_queues(topic, self.route(topic, refresh=refresh)))

    def address(self, broker_name: str, *, refresh: bool = False) -> str:
        """Return where to read from a broker: its master, else its lowest slave.

        Raises:
            RouteNotFoundError: the name server does not know the broker.
        """
        table = self._table_of(broker_name, refresh)
        return table[min(table)]

    def master(self, broker_name: str, *, refresh: bool = False) -> str:
        """Return the address of a broker's master.

        Raises:
            RouteNotFoundError: the broker is unknown or has no master now.
        """
        table = self._table_of(broker_name, refresh)
        if MASTER_ID not in table:
            raise RouteNotFoundError(
                f"broker {broker_name!r} has no master at the moment; it is registered with "
                f"{table} alone: try again when its master is back",
                broker_name=broker_name,
            )
        return table[MASTER_ID]

    def _table_of(self, broker_name: str, refresh: bool) -> dict[int, str]:
        with self._lock:
            table = self._brokers.get(broker_name)
        if refresh or not table:
            self.cluster_info()
            with self._lock:
                table = self._brokers.get(broker_name)
        if not table:
            raise RouteNotFoundError(
                f"broker {broker_name!r} is not registered with name server "
                f"{';'.join(self.name_servers)}",
                broker_name=broker_name,
            )
        return table

    def _remember(self, brokers: Iterable[BrokerData]) -> None:
        for data in brokers:
            if data.broker_addrs:
                self._brokers[data.broker_name] = dict(data.broker_addrs)

    # --- offsets --------------------------------------------------------------------------------

    def max_offset(self, queue: MessageQueue) -> int:
        """Return the offset the next message of ``queue`` will get."""
        return self.max_offsets([queue])[queue]

    def min_offset(self, queue: MessageQueue) -> int:
        """Return the offset of the oldest message still in ``queue``."""
        return self.min_offsets([queue])[queue]

    def max_offsets(self, queues: Iterable[MessageQueue]) -> dict[MessageQueue, int]:
        """Return max offsets; one round trip per broker, however many queues."""
        return self._ask_all(queues, questions.max_offset)

    def min_offsets(self, queues: Iterable[MessageQueue]) -> dict[MessageQueue, int]:
        """Return min offsets; one round trip per broker, however many queues."""
        return self._ask_all(queues, questions.min_offset)

    def search_offset(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """Return the offset stored nearest to a time, by the broker's rule (C-372: never max)."""
        return self._ask(queue, questions.offset_at(queue, timestamp_ms))

    def query_consumer_offset(self, group: str, queue: MessageQueue) -> int | None:
        """Return the offset a group has stored for ``queue``, None when it has none."""
        try:
            return self._ask(queue, questions.committed_offset(group, queue))
        except OffsetNotFoundError:
            return None

    def update_consumer_offset(self, group: str, queue: MessageQueue, offset: int) -> None:
        """Store a group's offset; it may move backwards (code 15)."""
        self.update_consumer_offsets(group, {queue: offset})

    def update_consumer_offsets(self, group: str, offsets: Mapping[MessageQueue, int]) -> None:
        """Store a group's offsets, which may move backwards, two round trips per broker (code 15).

        One queue of each topic goes before the others: a broker that gets the first two commits of
        a topic and group at once may keep one only (commitOffset makes the table of the pair
        unguarded).

        Raises:
            TransportError, BrokerError, RouteNotFoundError: a broker has no master, was not
                reached, or refused one; whatever else could be stored is.
        """
        failure: RocketMQError | None = None
        for broker_name, queues in _by_broker(offsets).items():
            firsts = list({queue.topic: queue for queue in queues}.values())
            rest = [queue for queue in queues if queue not in firsts]
            for some in filter(None, (firsts, rest)):
                commits = [questions.commit(group, queue, offsets[queue]) for queue in some]
                try:
                    self._ask_together(self.master, broker_name, commits)
                except BrokerError as error:
                    failure = error
                except (TransportError, RouteNotFoundError) as error:
                    failure = error
                    break
        if failure is not None:
            raise failure

    def _ask(self, queue: MessageQueue, question: Question[T]) -> T:
        def attempt(refresh: bool) -> T:
            address = self.address(queue.broker_name, refresh=refresh)
            return question.read(self.request(address, question.command()))

        return _with_moved_broker(attempt)

    def _ask_all(
        self,
        queues: Iterable[MessageQueue],
        ask: Callable[[MessageQueue], Question[int]],
    ) -> dict[MessageQueue, int]:
        found: dict[MessageQueue, int] = {}
        for broker_name, wanted in _by_broker(queues).items():
            questions = [ask(queue) for queue in wanted]
            answers = self._ask_together(self.address, broker_name, questions)
            found.update(zip(wanted, answers, strict=True))
        return found

    def _ask_together(
        self, find: Callable[..., str], broker_name: str, questions: Sequence[Question[T]]
    ) -> list[T]:
        def attempt(refresh: bool) -> list[T]:
            address = find(broker_name, refresh=refresh)
            answers: dict[int, T] = {}
            errors: list[BrokerError] = []

            def read(place: int, answer: RemotingCommand) -> None:
                if answer.code == ResponseCode.SUCCESS:
                    answers[place] = questions[place].read(answer)
                else:
                    asked = request_text(questions[place].code)
                    errors.append(broker_error(answer.code, answer.remark, address, asked))

            self.request_each(address, [each.command() for each in questions], read)
            if errors:
                raise errors[0]
            return [answers[place] for place in range(len(questions))]

        return _with_moved_broker(attempt)

    # --- life cycle -----------------------------------------------------------------------------

    def close(self) -> None:
        """Close every connection; calling it again does nothing."""
        self._pool.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _name_servers(namesrv_addr: str | None) -> list[str]:
    text = namesrv_addr or os.environ.get(NAMESRV_ADDR_VARIABLE, "")
    if not text.strip():
        raise ConfigurationError(
            "no name server address: give namesrv_addr as host:port (several separated by ';') "
            f"or set the environment variable {NAMESRV_ADDR_VARIABLE}"
        )
    return parse_addresses(text)


def _by_broker(queues: Iterable[MessageQueue]) -> dict[str, list[MessageQueue]]:
    by_broker: dict[str, list[MessageQueue]] = defaultdict(list)
    for queue in queues:
        by_broker[queue.broker_name].append(queue)
    return by_broker


def _with_moved_broker(attempt: Callable[[bool], T]) -> T:
    """Try once more with fresh addresses when the cached one is dead; questions may repeat."""
    try:
        return attempt(False)
    except (ConnectError, ConnectionLostError):
        return attempt(True)
