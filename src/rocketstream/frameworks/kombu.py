"""A kombu transport, with which Celery works over RocketMQ; needs the extra ``celery``.

``import rocketstream.frameworks.kombu`` makes URLs ``rocketmq://host:9876`` known.

A queue of kombu's is a topic and the group of its workers; exchanges and bindings are each
process's own, as kombu's other virtual transports have them. The intake consumes on a loop of its
own; its messages cross threads here.
"""

from __future__ import annotations

import logging
import selectors
import socket
import threading
from collections import deque
from dataclasses import fields
from queue import Empty
from typing import Any, ClassVar
from urllib.parse import quote

from rocketstream._util.loops import LoopThread
from rocketstream.client.admin.blocking import BlockingAdminClient
from rocketstream.client.config import ClientConfig
from rocketstream.client.producer.policy import unsafe
from rocketstream.client.producer.producer import Producer
from rocketstream.errors import (
    ClientStateError,
    ConfigurationError,
    ForkedClientError,
    RouteNotFoundError,
    SendError,
    TransportError,
)
from rocketstream.frameworks.intake import UNACKED_MAX, Delivery, Intake, check_unacked, place_of
from rocketstream.model import Message
from rocketstream.protocol.message_ext import MessageExt
from rocketstream.settings import unknown_setting

try:
    from kombu.exceptions import ChannelError
    from kombu.transport import TRANSPORT_ALIASES, virtual
    from kombu.utils.json import dumps, loads
    from kombu.utils.uuid import uuid
except ImportError as _error:
    raise ImportError(
        f"a kombu transport needs the package kombu ({_error}): pip install 'rocketstream[celery]'"
    ) from _error

__all__ = ["TopicChannel", "Transport", "group_of", "topic_of"]

logger: logging.Logger = logging.getLogger("rocketstream.frameworks")

NAMESRV_PORT = 9876
VISIBILITY_TIMEOUT_S = 3_600.0
"""Of kombu's transports for Redis and Amazon's queues, too."""
EVENT_EXCHANGE = "celeryev"
"""Celery's workers send events there; nobody can listen, so nothing is lost."""


def topic_of(queue: str) -> str:
    """Return the topic of a queue: its name, with characters a topic may not have as ``%XX``."""
    return quote(queue, safe="").replace(".", "%2E").replace("~", "%7E")


def group_of(queue: str) -> str:
    """Return the consumer group that works on a queue."""
    return f"{topic_of(queue)}-workers"


class SettlingQoS(virtual.QoS):  # type: ignore[misc]
    """Settles messages: acknowledged, rejected, or to come again."""

    def ack(self, delivery_tag: str) -> None:
        """Count a message as consumed."""
        self.channel.settle(delivery_tag, Delivery.done)
        super().ack(delivery_tag)

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        """Let a message come again in a second, or put it with the dead letters of its group."""
        self.channel.settle(delivery_tag, Delivery.soon if requeue else Delivery.dead)
        super().ack(delivery_tag)

    def restore_unacked(self) -> list[Any]:
        """Let all messages that are not acknowledged come again in a second."""
        self._flush()
        for delivery_tag in tuple(self._delivered):
            self.channel.settle(delivery_tag, Delivery.soon)
        self._delivered.clear()
        return []


class _Inbox:
    """The messages that came for one queue of one channel, and their intake."""

    def __init__(self, channel: TopicChannel, queue: str) -> None:
        self._arrived: deque[Delivery] = deque()
        self._transport: Transport = channel.connection
        options = channel.connection.client.transport_options
        self._intake = self._transport.loop.run(self._opened(queue, options))

    async def _opened(self, queue: str, options: dict[str, Any]) -> Intake:
        most = options.get("max_unacked", UNACKED_MAX)
        limit_s = options.get("visibility_timeout", VISIBILITY_TIMEOUT_S)
        check_unacked(("max_unacked", most), ("visibility_timeout", limit_s))
        intake = Intake(
            group_of(queue),
            topic_of(queue),
            self._transport.config,
            self._take,
            unacked_max=most,
            unacked_limit_s=limit_s,
            settings=options.get("consumer_settings"),
        )
        await intake.start()
        return intake

    def _take(self, delivery: Delivery) -> None:
        self._arrived.append(delivery)
        self._transport.ring()

    @property
    def is_filled(self) -> bool:
        """Whether something has come."""
        return bool(self._arrived)

    def pop(self) -> Delivery:
        """Return the message that came first.

        Raises:
            Empty: nothing is here.
        """
        while True:
            try:
                delivery = self._arrived.popleft()
            except IndexError:
                raise Empty from None
            if not delivery.has_moved:
                self.call(delivery.begin)
                return delivery
            self.call(delivery.leave)

    def call(self, function: Any) -> None:
        """Call a function on the intake's loop; after the loop's end there is nothing to call."""
        try:
            self._transport.loop.call_soon(function)
        except ClientStateError:
            return

    def pause(self) -> None:
        """Take nothing more in."""
        self.call(self._intake.pause)

    def resume(self) -> None:
        """Take messages in again."""
        self.call(self._intake.resume)

    def close(self) -> None:
        """Leave the group; messages not settled come again."""
        self._transport.loop.run(self._intake.close())


class TopicChannel(virtual.Channel):  # type: ignore[misc]
    """A channel whose queues are topics."""

    QoS = SettlingQoS
    supports_fanout = False

    def __init__(self, connection: Transport, **kwargs: Any) -> None:
        super().__init__(connection, **kwargs)
        self._inboxes: dict[str, _Inbox] = {}
        self._unsettled: dict[str, tuple[_Inbox, Delivery]] = {}
        self._no_ack: set[str] = set()

    # --- sending ----------------------------------------------------------------------------------

    def _put(self, queue: str, message: dict[str, Any], **_: Any) -> None:
        """Send a message; returns once the broker has stored it, as safely as it is set up to.

        Raises:
            SendError: no broker took it, or one did that does not call it safe.
        """
        key = message.get("headers", {}).get("id") or message["properties"].get("correlation_id")
        body = dumps(message).encode()
        sent = Message(topic_of(queue), body, keys=None if key is None else str(key))
        stored = self.connection.producer.send(sent)
        # Nobody sees the status; a task that is retried counts as done once its copy is sent.
        if (doubt := unsafe(stored)) is not None:
            raise doubt

    def _lookup(self, exchange: str, routing_key: str, default: str | None = None) -> list[str]:
        """Return the queues a message goes to; one that would go nowhere is refused.

        Raises:
            ChannelError: no queue is bound here.
        """
        queues: list[str] = super()._lookup(exchange, routing_key, default)
        if not queues and exchange != EVENT_EXCHANGE:
            raise ChannelError(
                f"no queue is bound to exchange {exchange!r} with routing key {routing_key!r} in "
                "this process: declare it before publishing, or the message would be lost"
            )
        return queues

    # --- receiving --------------------------------------------------------------------------------

    def basic_consume(
        self, queue: str, no_ack: bool, callback: Any, consumer_tag: str, **kwargs: Any
    ) -> None:
        """Consume from a queue; joins its group.

        Raises:
            ConnectError: no name server answered.
        """
        (self._no_ack.add if no_ack else self._no_ack.discard)(queue)
        self._inbox(queue).resume()
        super().basic_consume(queue, no_ack, callback, consumer_tag, **kwargs)

    def basic_cancel(self, consumer_tag: str) -> None:
        """Hand out no more messages; those handed out can still be acknowledged."""
        queue = self._tag_to_queue.get(consumer_tag)
        super().basic_cancel(consumer_tag)
        if queue in self._inboxes and queue not in self._active_queues:
            self._inboxes[queue].pause()

    def basic_get(self, queue: str, no_ack: bool = False, **kwargs: Any) -> Any:
        """Return a message that has come in, None without one; the first call begins to take in."""
        (self._no_ack.add if no_ack else self._no_ack.discard)(queue)
        return super().basic_get(queue, no_ack=no_ack, **kwargs)

    def _get(self, queue: str, timeout: float | None = None) -> dict[str, Any]:
        """Return the next message of kombu's; what cannot be one becomes a dead letter.

        Raised from here it would end the worker, then the next one it comes to.
        """
        inbox = self._inbox(queue)
        while True:
            delivery = inbox.pop()
            try:
                payload = self._payload(delivery.message)
            except Exception as error:  # anybody may send anything to a topic
                inbox.call(delivery.dead)
                logger.warning(
                    "%s is not a message of kombu's (%s), and becomes a dead letter of %s",
                    place_of(delivery.message), type(error).__name__, group_of(queue),
                )  # fmt: skip
                continue
            if queue in self._no_ack:
                inbox.call(delivery.done)
            else:
                self._unsettled[payload["properties"]["delivery_tag"]] = inbox, delivery
            return payload

    def _payload(self, message: MessageExt) -> dict[str, Any]:
        """Return a message as kombu writes it down; raises anything if it cannot be one."""
        payload: dict[str, Any] = loads(message.body)
        # Its own for each time it comes: an earlier delivery of it may not be settled yet.
        payload["properties"]["delivery_tag"] = uuid()
        info = payload["properties"].setdefault("delivery_info", {})
        if message.reconsume_times:
            info["redelivered"] = True
        payload["properties"].items(), payload.get("headers", {}).items(), info.items()
        self.Message(payload, channel=self)  # made once more, from the same, for its consumer
        return payload

    @property
    def is_ready(self) -> bool:
        """Whether something is here that a consumer has room for."""
        here = any(self._inboxes[queue].is_filled for queue in self._active_queues)
        return here and bool(self.qos.can_consume())

    def settle(self, delivery_tag: str, answer: Any) -> None:
        """Give the answer for a message; from any thread, once."""
        inbox, delivery = self._unsettled.pop(delivery_tag, (None, None))
        if inbox is not None:
            inbox.call(lambda: answer(delivery))

    def _inbox(self, queue: str) -> _Inbox:
        if queue not in self._inboxes:
            self._inboxes[queue] = _Inbox(self, queue)
        return self._inboxes[queue]

    def close(self) -> None:
        """Close; messages not acknowledged come again in a second, to any worker."""
        inboxes, self._inboxes = self._inboxes, {}
        try:
            super().close()
        finally:
            for inbox in inboxes.values():
                inbox.close()

    # --- queues -----------------------------------------------------------------------------------

    def exchange_declare(
        self, exchange: str | None = None, type: str | None = "direct", **kwargs: Any
    ) -> None:
        """Declare an exchange, direct or topic.

        Raises:
            ChannelError: of another type.
        """
        if type == "fanout":
            raise ChannelError(
                f"exchange {exchange!r} is a fanout exchange: queues of RocketMQ's topics are "
                "shared by the members of a group, none of which gets everything"
            )
        super().exchange_declare(exchange, type, **kwargs)

    def prepare_queue_arguments(self, arguments: Any, **kwargs: Any) -> Any:
        """Take a queue's arguments; it cannot end by itself.

        Raises:
            ChannelError: the queue has an expiry, as queues of replies and of remote control have.
        """
        if kwargs.get("expires") is not None:
            raise ChannelError("a queue cannot expire: topics stay until they are deleted")
        return super().prepare_queue_arguments(arguments, **kwargs)

    def _new_queue(self, queue: str, **kwargs: Any) -> None:
        if kwargs.get("exclusive"):
            raise ChannelError(f"queue {queue!r} cannot be exclusive: every client can use a topic")

    def queue_declare(self, queue: str | None = None, passive: bool = False, **kwargs: Any) -> Any:
        """Declare a queue; its size is looked up if it is declared ``passive``, else it is 0."""
        if passive:
            return super().queue_declare(queue, passive, **kwargs)
        self._new_queue(queue or "", **kwargs)
        return virtual.base.queue_declare_ok_t(queue, 0, 0)

    def _has_queue(self, queue: str, **_: Any) -> bool:
        config = self.connection.config
        with BlockingAdminClient.of(config) as client:
            try:
                return bool(client.subscribe_queues(config.with_namespace(topic_of(queue))))
            except RouteNotFoundError:
                return False

    def _size(self, queue: str) -> int:
        """Return how many messages nobody has acknowledged, retries left out."""
        config = self.connection.config
        with BlockingAdminClient.of(config) as client:
            queues = client.subscribe_queues(config.with_namespace(topic_of(queue)))
            ends, begins = client.max_offsets(queues), client.min_offsets(queues)
            group = config.with_namespace(group_of(queue))
            return sum(
                ends[mq] - max(client.query_consumer_offset(group, mq) or 0, begins[mq])
                for mq in queues
            )

    def _purge(self, queue: str) -> int:
        raise ChannelError(
            f"queue {queue!r} cannot be purged: have its workers stopped and move its group, "
            f"rocketstream group reset {group_of(queue)} {topic_of(queue)}"
        )

    def _delete(self, queue: str, *_: Any, **__: Any) -> None:
        """Leave the topic: others may use it."""


class Transport(virtual.Transport):  # type: ignore[misc]
    """Connects to RocketMQ; ``transport_options`` are documented in docs/frameworks.md."""

    Channel = TopicChannel
    # Bindings are known to all connections of a process: a publisher need not declare them again.
    global_state: ClassVar[Any] = virtual.BrokerState()
    default_port = NAMESRV_PORT
    driver_type = "rocketmq"
    driver_name = "rocketstream"
    implements: ClassVar[Any] = virtual.Transport.implements.extend(
        asynchronous=True, exchange_type=frozenset(["direct", "topic"])
    )
    connection_errors: ClassVar[tuple[type[Exception], ...]] = (
        *virtual.Transport.connection_errors,
        ForkedClientError,  # a child that inherited the connection then makes one of its own
        TransportError,
        SendError,
    )

    def __init__(self, client: Any, **kwargs: Any) -> None:
        super().__init__(client, **kwargs)
        self.state: Any = self.global_state
        self._lock = threading.Lock()
        self._producer: Producer | None = None
        self._loop: LoopThread | None = None
        self._bell: tuple[socket.socket, socket.socket] | None = None
        self._hub: Any = None

    def driver_version(self) -> str:
        """Return this package's version."""
        from rocketstream import __version__

        return __version__

    @property
    def namesrv_addr(self) -> str | None:
        """The name servers: an option, else the URL's; None if it has none: the environment's."""
        told = self.client.transport_options.get("namesrv_addr")
        if told or not self.client.hostname:
            return told or None
        return f"{self.client.hostname}:{self.client.port or NAMESRV_PORT}"

    @property
    def config(self) -> ClientConfig:
        """Settings of all clients; the URL's user and password are an account's keys.

        Raises:
            ConfigurationError: kombu's ``ssl`` (Celery's ``broker_use_ssl``) is more than true, or
                ``client_settings`` has a name that is not a setting's.
        """
        settings: dict[str, Any] = dict(self.client.transport_options.get("client_settings") or {})
        known = {field.name for field in fields(ClientConfig)}
        for name in settings:
            if name not in known:
                whose = "client_settings of transport_options"
                raise unknown_setting(whose, str(name), [ClientConfig])
        if self.client.userid:
            settings.update(access_key=self.client.userid, secret_key=self.client.password)
        if self.client.ssl is True:
            settings.setdefault("use_tls", True)
        elif self.client.ssl:
            raise ConfigurationError(
                "ssl (broker_use_ssl) must be True or False here; certificates are given as "
                "transport_options={'client_settings': {'ssl_context': ...}}"
            )
        return ClientConfig(namesrv_addr=self.namesrv_addr, **settings)

    @property
    def producer(self) -> Producer:
        """The producer of this connection, made when it is first asked for."""
        with self._lock:
            if self._producer is None:
                settings = self.client.transport_options.get("producer_settings") or {}
                producer = Producer("kombu-producer", config=self.config, **settings)
                producer.start()
                self._producer = producer
            return self._producer

    @property
    def loop(self) -> LoopThread:
        """The loop of this connection's consumers, on a thread of its own."""
        with self._lock:
            if self._loop is None:
                self._bell = socket.socketpair()
                for end in self._bell:
                    end.setblocking(False)
                self._loop = LoopThread("rocketstream-kombu")
            return self._loop

    def ring(self) -> None:
        """Wake the thread that waits for messages; from any thread."""
        if self._bell is not None:
            try:
                self._bell[1].send(b"\0")
            except OSError:
                return  # it rings already, or is gone

    def close_connection(self, connection: Any) -> None:
        """Close channels, leave all groups, end producer and threads."""
        if self._hub is not None and self._bell is not None:
            self._hub.remove_reader(self._bell[0])
            self._hub.on_tick.discard(self._look_around)
            self._hub = None
        try:
            super().close_connection(connection)
        finally:
            with self._lock:
                producer, self._producer = self._producer, None
                loop, self._loop = self._loop, None
                bell, self._bell = self._bell, None
            if producer is not None:
                producer.shutdown()
            if loop is not None:
                loop.close()
            for end in bell or ():
                end.close()

    def drain_events(self, connection: Any, timeout: float | None = None) -> None:
        """Deliver one message; waits for it, at most ``timeout`` seconds, None without end.

        Raises:
            TimeoutError: none came.
        """
        waited = False
        while True:
            try:
                self.cycle.get(self._deliver, timeout=timeout)
                return
            except Empty:
                if waited:
                    raise TimeoutError("no message came in time") from None
                waited = self._wait(timeout)

    def _wait(self, timeout: float | None) -> bool:
        """Wait for the bell; return whether the time is up instead."""
        bell = self._bell
        if bell is None:  # nothing is consumed
            threading.Event().wait(timeout)
            return True
        with selectors.DefaultSelector() as selector:  # select() knows no descriptor above 1,023
            selector.register(bell[0], selectors.EVENT_READ)
            came = selector.select(timeout)
        self._quieten()
        return not came

    def _quieten(self) -> None:
        try:
            while self._bell is not None and self._bell[0].recv(4096):
                pass
        except BlockingIOError:
            return

    # --- in the event loop of Celery's worker -----------------------------------------------------

    def register_with_event_loop(self, connection: Any, loop: Any) -> None:
        """Deliver when something comes, and when an acknowledgement has made room for more."""
        assert self.loop is not None
        assert self._bell is not None
        self._hub = loop
        loop.add_reader(self._bell[0], self._bell_rang)
        loop.on_tick.add(self._look_around)

    def _bell_rang(self) -> None:
        """Deliver the messages at hand for which consumers have room."""
        self._quieten()
        try:
            while True:
                self.cycle.get(self._deliver)
        except Empty:
            return

    def _look_around(self) -> None:
        """Ring where an acknowledgement has made room for messages at hand.

        Nothing is delivered within a tick: what Celery's pool has to write by then it may have
        looked for already, and would write a second later.
        """
        if any(channel.is_ready for channel in self.channels):
            self.ring()


TRANSPORT_ALIASES["rocketmq"] = f"{__name__}:Transport"
