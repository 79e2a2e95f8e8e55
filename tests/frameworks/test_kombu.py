"""The kombu transport: what kombu's own cases for a transport ask, and what Celery builds on."""

from __future__ import annotations

import os
import select
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any
from uuid import UUID

import kombu
import pytest
from kombu.exceptions import ChannelError, OperationalError

from rocketstream import Message, Producer
from rocketstream.errors import ConfigurationError, ConnectError, SendError, SendOutcome
from rocketstream.frameworks.kombu import Transport, group_of, topic_of
from rocketstream.model import MessageQueue
from rocketstream.protocol.codes import RequestCode
from rocketstream.server.embedded import EmbeddedCluster
from rocketstream.testing import make_test_certificates
from tests.frameworks.faststream_support import stored
from tests.kits.client.fake_broker import TOPIC, FakeBroker, stored_as
from tests.kits.cluster import Cluster
from tests.plugins.waiting import wait_until

QUEUES = 2
WAIT_S = 30.0
QUICK = {"persist_consumer_offset_interval_ms": 50}


@pytest.fixture(autouse=True)
def _fresh_bindings() -> Iterator[None]:
    """Bindings are a process's: none of another test's."""
    yield
    Transport.global_state.clear()


def connect(cluster: Cluster, **options: Any) -> kombu.Connection:
    return kombu.Connection(
        f"rocketmq://{cluster.namesrv_addr}",
        transport_options={"client_settings": QUICK, **options},
    )


def publish(connection: kombu.Connection, name: str, *bodies: Any, **settings: Any) -> None:
    with connection.Producer() as producer:
        for body in bodies:
            producer.publish(
                body, routing_key=name, declare=[kombu.Queue(name, routing_key=name)], **settings
            )


class Taken:
    """Messages as a consumer gets them, not acknowledged."""

    def __init__(self, connection: kombu.Connection, name: str, **settings: Any) -> None:
        self.messages: list[Any] = []
        self._connection = connection
        self.channel = connection.default_channel
        self._consumer = kombu.Consumer(
            self.channel, [kombu.Queue(name, routing_key=name)], auto_declare=True, **settings
        )
        self._consumer.register_callback(lambda body, message: self.messages.append(message))
        if "prefetch_count" not in settings:
            self._consumer.qos(prefetch_count=100)
        self._consumer.consume()

    def wait(self, count: int) -> list[Any]:
        while len(self.messages) < count:
            self._connection.drain_events(timeout=WAIT_S)
        return self.messages

    def take_one(self, timeout: float) -> None:
        self._consumer.qos(prefetch_count=len(self.messages) + 1)
        self._connection.drain_events(timeout=timeout)

    def cancel(self) -> None:
        self._consumer.cancel()


def committed(cluster: Cluster, name: str, count: int) -> None:
    wait_until(
        lambda: sum(max(n, 0) for n in cluster.committed(group_of(name), name, QUEUES)) == count,
        f"{count} messages of {name} committed",
        WAIT_S,
    )


# --- kombu's own cases for a transport ------------------------------------------------------------


def test_it_connects_and_closes(cluster: Cluster) -> None:
    with connect(cluster) as connection:
        connection.connect()
        assert connection.connected


def test_what_is_published_is_consumed_as_it_was(cluster: Cluster, topic: str) -> None:
    with connect(cluster) as connection:
        publish(connection, topic, {"hello": "world"}, headers={"k": "v"}, retry=True)
        (message,) = Taken(connection, topic).wait(1)
        assert message.payload == {"hello": "world"}
        assert message.content_type == "application/json"
        assert message.headers == {"k": "v"}
        assert message.delivery_info["routing_key"] == topic
        message.ack()
        committed(cluster, topic, 1)


def test_a_simple_queue_works(cluster: Cluster, topic: str) -> None:
    with connect(cluster) as connection, closing(connection.SimpleQueue(topic)) as queue:
        queue.put({"hello": "world"}, headers={"k1": "v1"})
        message = queue.get(timeout=WAIT_S)
        assert message.payload == {"hello": "world"}
        assert message.content_encoding == "utf-8"
        assert message.headers == {"k1": "v1"}
        message.ack()
        committed(cluster, topic, 1)


def test_a_simple_buffer_is_refused(cluster: Cluster, topic: str) -> None:
    """It is to last as long as its client, and to be nobody else's."""
    with connect(cluster) as connection, pytest.raises(ChannelError, match="cannot be exclusive"):
        connection.SimpleBuffer(topic)


def test_a_direct_and_a_topic_exchange_route(cluster: Cluster, topic: str) -> None:
    cluster.create_topic(f"{topic}b", QUEUES)
    exchange = kombu.Exchange("events", type="topic")
    queues = [
        kombu.Queue(topic, exchange, routing_key="order.*"),
        kombu.Queue(f"{topic}b", exchange, routing_key="order.paid"),
    ]
    with connect(cluster) as connection, connection.Producer() as producer:
        for key in ("order.paid", "order.new"):
            producer.publish(key, exchange=exchange, routing_key=key, declare=queues)
        first = Taken(connection, topic)
        assert sorted(message.payload for message in first.wait(2)) == ["order.new", "order.paid"]
        second = Taken(connection, f"{topic}b")
        assert [message.payload for message in second.wait(1)] == ["order.paid"]


# --- acknowledgements -----------------------------------------------------------------------------


def test_what_is_requeued_comes_again_and_says_so(cluster: Cluster, topic: str) -> None:
    with connect(cluster) as connection:
        publish(connection, topic, "again")
        taken = Taken(connection, topic)
        taken.wait(1)[0].requeue()
        first, second = taken.wait(2)
        assert not first.delivery_info.get("redelivered")
        assert second.delivery_info["redelivered"]
        assert second.payload == "again"
        assert first.delivery_tag != second.delivery_tag
        second.ack()


def test_what_is_rejected_becomes_a_dead_letter(cluster: Cluster, topic: str) -> None:
    with connect(cluster) as connection:
        publish(connection, topic, "bad")
        Taken(connection, topic).wait(1)[0].reject()
        committed(cluster, topic, 1)
        dead = f"%DLQ%{group_of(topic)}"
        wait_until(lambda: cluster.ends(dead, 1) == [1], "a dead letter", WAIT_S)


ODD = [
    b"\xff\x00",
    b"hello",
    b"[1]",
    b"{}",
    b'{"properties": null}',
    b'{"properties": {"delivery_info": 1}}',
    b'{"properties": {}, "headers": [1]}',
    b'{"properties": {"body_encoding": "rot13"}, "body": "x"}',
    b'{"properties": {"body_encoding": "base64"}, "body": "x"}',
    b'{"properties": {}, "__type__": 1, "headers": {"__type__": "datetime", "__value__": "soon"}}',
]


@pytest.mark.parametrize("no_ack", [False, True])
def test_what_is_none_of_kombus_messages_becomes_a_dead_letter(
    cluster: Cluster, topic: str, no_ack: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Anybody may send to a topic: no consumer ends of it, and those behind it are consumed."""
    with Producer("others", namesrv_addr=cluster.namesrv_addr) as producer:
        for body in ODD:
            producer.send(Message(topic, body))
    with connect(cluster) as connection:
        publish(connection, topic, "fine")
        (message,) = Taken(connection, topic, no_ack=no_ack).wait(1)
        assert message.payload == "fine"
        message.acknowledged or no_ack or message.ack()

        def all_settled() -> bool:
            with suppress(TimeoutError):  # what is behind it in the other queue is taken here
                connection.drain_events(timeout=0.02)
            offsets = cluster.committed(group_of(topic), topic, QUEUES)
            return sum(max(n, 0) for n in offsets) == len(ODD) + 1

        wait_until(all_settled, "all messages committed", WAIT_S)
    wait_until(lambda: len(dead(cluster, topic)) == len(ODD), "the dead letters")
    assert sorted(dead(cluster, topic)) == sorted(ODD)
    told = [r.getMessage() for r in caplog.records if r.name == "rocketstream.frameworks"]
    assert len(told) == len(ODD)
    assert all("not a message of kombu's" in text and f"{topic}-workers" in text for text in told)


def dead(cluster: Cluster, topic: str) -> list[bytes]:
    return [message.body for message in stored(cluster, f"%DLQ%{group_of(topic)}")]


def test_a_message_that_is_stored_but_not_safe_is_not_published() -> None:
    """Covers C-473: nobody sees the status, and Celery's retry gives its original up for it."""
    for code in (10, 11, 12):
        with FakeBroker() as broker:
            broker.on[RequestCode.SEND_MESSAGE_V2] = stored_as(code)
            with (
                kombu.Connection(f"rocketmq://{broker.address}") as connection,
                pytest.raises(SendError, match="it is stored, but") as raised,
            ):
                publish(connection, TOPIC, 1)
            assert raised.value.outcome is SendOutcome.UNKNOWN


def test_no_offset_passes_a_message_that_is_not_acknowledged(cluster: Cluster, topic: str) -> None:
    with connect(cluster) as connection:
        publish(connection, topic, *range(20))
        taken = Taken(connection, topic)
        messages = {message.payload: message for message in taken.wait(20)}
        kept = messages.pop(0)
        for message in messages.values():
            message.ack()
        committed(cluster, topic, 10)
        publish(connection, topic, 20, 21)
        for message in taken.wait(22)[20:]:
            message.ack()
        committed(cluster, topic, 11)
        kept.ack()
        committed(cluster, topic, 22)


def test_a_connection_that_closes_gives_back_what_is_not_acknowledged(
    cluster: Cluster, topic: str
) -> None:
    with connect(cluster) as connection:
        publish(connection, topic, *range(20))
        for message in Taken(connection, topic).wait(20):
            if message.payload not in (0, 7):
                message.ack()
    with connect(cluster) as connection:
        assert sorted(m.payload for m in Taken(connection, topic).wait(2)) == [0, 7]
        with pytest.raises(TimeoutError):
            connection.drain_events(timeout=0.3)


def test_messages_that_wait_in_a_queue_that_moves_are_its_new_consumers_alone(
    cluster: Cluster, topic: str
) -> None:
    with connect(cluster) as connection, connect(cluster) as other:
        publish(connection, topic, *range(20))
        first = Taken(connection, topic, prefetch_count=1)
        begun = first.wait(1)[0].payload
        second = Taken(other, topic)
        second.wait(9)
        wait_until(lambda: len(_queues(first, topic)) == 1, "a queue moved", WAIT_S)
        for taken in (first, second):
            with suppress(TimeoutError):
                while True:
                    taken.take_one(0.3)
        kept = [message.payload for message in first.messages[1:]]
        moved = [message.payload for message in second.messages]
        assert not set(kept) & set(moved)
        assert {*kept, *moved, begun} == set(range(20))


def _queues(taken: Taken, name: str) -> list[MessageQueue]:
    """Return the queues of a topic a consumer has now."""
    queues = taken.channel._inboxes[name]._intake._consumer.assigned_queues()
    return [mq for mq in queues if mq.topic == topic_of(name)]


def test_messages_of_a_cancelled_consumer_can_still_be_acknowledged(
    cluster: Cluster, topic: str
) -> None:
    """As Celery's worker does at its warm end."""
    with connect(cluster) as connection:
        publish(connection, topic, 1)
        taken = Taken(connection, topic)
        (message,) = taken.wait(1)
        taken.cancel()
        message.ack()
        committed(cluster, topic, 1)


def test_a_consumer_gets_no_more_than_its_prefetch_count(cluster: Cluster, topic: str) -> None:
    with connect(cluster) as connection:
        publish(connection, topic, *range(10))
        taken = Taken(connection, topic, prefetch_count=3)
        held = list(taken.wait(3))
        with pytest.raises(TimeoutError):
            connection.drain_events(timeout=0.3)
        held[0].ack()
        assert len(taken.wait(4)) == 4


def test_what_is_not_acknowledged_within_the_visibility_timeout_comes_again(
    cluster: Cluster, topic: str
) -> None:
    with connect(cluster, visibility_timeout=0.2) as connection:
        publish(connection, topic, "slow")
        taken = Taken(connection, topic)
        late, again = taken.wait(2)
        late.ack()  # too late: it changes nothing
        assert again.payload == "slow"
        again.ack()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_unacked", 0),
        ("max_unacked", "many"),
        ("visibility_timeout", 0),
        ("visibility_timeout", "x"),
    ],
)
def test_a_transport_option_that_cannot_be_used_is_named(
    cluster: Cluster, topic: str, name: str, value: Any
) -> None:
    with (
        connect(cluster, **{name: value}) as connection,
        pytest.raises(ConfigurationError, match=f"^{name} must be "),
    ):
        Taken(connection, topic)


def test_a_consumer_that_acknowledges_nothing_consumes(cluster: Cluster, topic: str) -> None:
    with connect(cluster) as connection:
        publish(connection, topic, 1, 2)
        Taken(connection, topic, no_ack=True).wait(2)
        committed(cluster, topic, 2)


# --- what an event loop sees ----------------------------------------------------------------------


class Hub:
    """What kombu's event loop offers a transport, turned by hand."""

    def __init__(self) -> None:
        self.readers: dict[Any, Any] = {}
        self.on_tick: set[Any] = set()

    def add_reader(self, fd: Any, callback: Any) -> None:
        self.readers[fd] = callback

    def remove_reader(self, fd: Any) -> None:
        del self.readers[fd]

    def turn(self) -> bool:
        """Call what is called each turn, then what has something to read, if anything has."""
        for callback in tuple(self.on_tick):
            callback()
        rang, _, _ = select.select(list(self.readers), [], [], 0)
        for fd in rang:
            self.readers[fd]()
        return bool(rang)


def test_an_event_loop_delivers_when_an_acknowledgement_makes_room(
    cluster: Cluster, topic: str
) -> None:
    hub = Hub()
    with connect(cluster) as connection:
        publish(connection, topic, *range(5))
        taken = Taken(connection, topic, prefetch_count=2)
        connection.register_with_event_loop(hub)

        (inbox,) = taken.channel._inboxes.values()
        wait_until(lambda: len(inbox._arrived) == 5, "five messages here", WAIT_S)
        while hub.turn():
            pass  # until it would wait: a full consumer must not keep it awake
        assert len(taken.messages) == 2
        taken.messages[0].ack()
        assert hub.turn()  # though nothing new came
        assert len(taken.messages) == 3
    assert not hub.readers
    assert not hub.on_tick


def test_messages_may_be_acknowledged_by_other_threads(cluster: Cluster, topic: str) -> None:
    with connect(cluster) as connection:
        publish(connection, topic, *range(8))
        messages = Taken(connection, topic).wait(8)
        threads = [threading.Thread(target=message.ack) for message in messages]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        committed(cluster, topic, 8)


# --- what it cannot hold is refused ---------------------------------------------------------------


def test_a_message_that_would_go_nowhere_is_refused(cluster: Cluster, topic: str) -> None:
    with connect(cluster) as connection, connection.Producer() as producer:
        with pytest.raises(ChannelError, match="no queue is bound to exchange 'nobody'"):
            producer.publish(1, exchange=kombu.Exchange("nobody"), routing_key="x", retry=False)
        producer.publish(1, exchange=kombu.Exchange("celeryev", "topic"), routing_key="worker.x")


@pytest.mark.parametrize(
    ("declared", "reason"),
    [
        (kombu.Exchange("all", type="fanout"), "is a fanout exchange"),
        (kombu.Queue("replies", expires=10), "a queue cannot expire"),
        (kombu.Queue("mine", exclusive=True), "cannot be exclusive"),
    ],
)
def test_what_a_topic_cannot_be_is_refused(cluster: Cluster, declared: Any, reason: str) -> None:
    with connect(cluster) as connection, pytest.raises(ChannelError, match=reason):
        declared.bind(connection.default_channel).declare()


def test_a_purge_says_what_to_do_instead(cluster: Cluster, topic: str) -> None:
    with connect(cluster) as connection, pytest.raises(ChannelError, match="group reset"):
        connection.default_channel.queue_purge(topic)


def test_celery_is_told_that_there_is_no_fanout() -> None:
    """It then leaves out remote control, gossip and mingling by itself."""
    connection = kombu.Connection("rocketmq://127.0.0.1:1")
    assert not connection.supports_exchange_type("fanout")
    assert connection.supports_exchange_type("direct")


# --- names, sizes, errors -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("queue", "topic_name"),
    [
        ("celery", "celery"),
        ("high-priority_2", "high-priority_2"),
        ("my.queue", "my%2Equeue"),
        ("my%2Equeue", "my%252Equeue"),
        ("celery@host~1", "celery%40host%7E1"),
    ],
)
def test_every_queue_has_a_topic_of_its_own(queue: str, topic_name: str) -> None:
    assert topic_of(queue) == topic_name


def test_the_size_is_what_nobody_acknowledged(cluster: Cluster, topic: str) -> None:
    with connect(cluster) as connection:
        publish(connection, topic, *range(5))
        channel = connection.default_channel
        assert channel.queue_declare(topic, passive=True).message_count == 5
        for message in Taken(connection, topic).wait(5):
            message.ack()
        committed(cluster, topic, 5)
        assert channel.queue_declare(topic, passive=True).message_count == 0
        with pytest.raises(ChannelError, match="NOT_FOUND"):
            channel.queue_declare("nobody-made-it", passive=True)


def test_a_passive_declare_uses_the_account_and_tls_of_the_connection(
    rocketmq_cluster_factory: Callable[..., EmbeddedCluster], tmp_path: Path
) -> None:
    """As everything else does."""
    files = make_test_certificates(tmp_path)
    accounts = tmp_path / "accounts.yml"
    accounts.write_text(
        "accounts:\n- {accessKey: shopworker, secretKey: secret-of-shop, admin: true}\n"
    )
    guarded = rocketmq_cluster_factory(tls=files.server_tls(mode="enforcing"), acl=accounts)
    guarded.create_topic("T", queues=2)
    with kombu.Connection(
        f"rocketmq://shopworker:secret-of-shop@{guarded.namesrv_addr}",
        transport_options={"client_settings": {"ssl_context": files.client_context()}},
    ) as connection:
        publish(connection, "T", 1, 2)
        assert connection.default_channel.queue_declare("T", passive=True).message_count == 2


def test_kombus_own_ssl_is_tls() -> None:
    """Not plain connections although somebody asked for others."""
    assert kombu.Connection("rocketmq://ns", ssl=True).transport.config.use_tls
    with pytest.raises(ConfigurationError, match=r"broker_use_ssl.*ssl_context"):
        _ = kombu.Connection("rocketmq://ns", ssl={"ca_certs": "x"}).transport.config


def test_a_cluster_that_is_not_there_is_a_connection_error() -> None:
    """Celery then tries again by itself."""
    with kombu.Connection("rocketmq://127.0.0.1:1") as connection:
        assert ConnectError in connection.connection_errors or issubclass(
            ConnectError, connection.connection_errors
        )
        with pytest.raises(OperationalError):
            publish(connection, "any", 1, retry=True, retry_policy={"max_retries": 1})
        with pytest.raises(ConnectError):
            Taken(connection, "any")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_forked_child_publishes_over_a_connection_of_its_own(
    cluster: Cluster, topic: str
) -> None:
    """As servers do that load the program first and fork then; Celery's publishing tries again."""
    with connect(cluster) as connection:
        publish(connection, topic, "parent")
        child = os.fork()
        if child == 0:
            signal.alarm(int(WAIT_S))
            with suppress(BaseException):
                publish(connection, topic, "child", retry=True)
                os._exit(0)
            os._exit(1)
        assert os.waitpid(child, 0)[1] == 0
        assert sorted(m.payload for m in Taken(connection, topic).wait(2)) == ["child", "parent"]


@pytest.mark.parametrize("key", [7, UUID(int=7)])
def test_an_id_may_be_anything(cluster: Cluster, topic: str, key: Any) -> None:
    """Celery's are texts, and those of kombu's users their own."""
    with connect(cluster) as connection:
        publish(connection, topic, 1, headers={"id": key})
        publish(connection, topic, 2, correlation_id=key)
        assert [message.keys for message in stored(cluster, topic)] == [str(key)] * 2


def test_a_url_without_a_host_takes_the_environments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NAMESRV_ADDR", "a:1;b:2")
    config = kombu.Connection("rocketmq://").transport.config
    assert (
        config.name_servers()
        == kombu.Connection(
            "rocketmq://", transport_options={"namesrv_addr": "a:1;b:2"}
        ).transport.config.name_servers()
    )


def test_a_client_setting_that_does_not_exist_is_named() -> None:
    options = {"client_settings": {"use_tsl": True}}
    transport = kombu.Connection("rocketmq://ns", transport_options=options).transport
    with pytest.raises(ConfigurationError, match=r"client_settings .*'use_tsl'; .*use_tls"):
        _ = transport.config


def test_the_urls_user_is_an_accounts_key() -> None:
    transport = kombu.Connection("rocketmq://rocketmq2:12345678@ns:9999").transport
    assert transport.namesrv_addr == "ns:9999"
    assert transport.config.access_key == "rocketmq2"
    assert transport.config.secret_key == "12345678"
    several = kombu.Connection("rocketmq://", transport_options={"namesrv_addr": "a:1;b:2"})
    assert several.transport.config.namesrv_addr == "a:1;b:2"


def test_transport_waits_in_a_process_of_more_than_1_024_descriptors() -> None:
    resource = pytest.importorskip("resource")
    fcntl = pytest.importorskip("fcntl")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    near, far = socket.socketpair()
    try:
        far_up = socket.socket(fileno=fcntl.fcntl(far.fileno(), fcntl.F_DUPFD_CLOEXEC, 1_024))
        far_up.setblocking(False)
        transport = Transport.__new__(Transport)
        transport._bell = (far_up, near)
        with near, far, far_up:
            assert transport._wait(0), "the time is up"
            near.send(b"!")
            assert not transport._wait(WAIT_S)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
