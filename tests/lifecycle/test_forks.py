"""Every public method of every client, called in a forked child, says what to do instead.

The child has neither the loop's thread nor the right to the connections: whatever is not refused at
once would hang, or answer the parent's requests.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import rocketstream
from rocketstream import Message, MessageQueue, TransactionListener, aio
from rocketstream.client.consumer.offsets import local_store
from rocketstream.client.consumer.offsets.local_store import LocalFileOffsetStore
from rocketstream.client.instance import engine as engines
from rocketstream.errors import ForkedClientError
from rocketstream.protocol.codes import RequestCode
from rocketstream.protocol.headers import PullMessageResponseHeader
from rocketstream.server.embedded import EmbeddedCluster
from rocketstream.testing import received_message
from tests.kits.client.fake_broker import GROUP, TOPIC, FakeBroker, answer

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork"),
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning"),
]

CHILD_S = 30
MQ = MessageQueue(TOPIC, "broker-a", 0)
NOTES_ONLY = ("register_", "add_retry_response_code", "set_sub_expression_for_assign")
"""Methods that only note something, whatever process they are called in."""


class Listener(TransactionListener):
    """Takes part in no transaction."""

    def execute_local_transaction(self, message: Any, arg: Any) -> Any:
        """Not called."""

    def check_local_transaction(self, message: Any) -> Any:
        """Not called."""


RECEIVED = received_message(TOPIC, b"x")
VALUES: dict[str, Any] = {
    "message": Message(TOPIC, b"x"),
    "messages": [Message(TOPIC, b"x")],
    "mq": MQ,
    "queue": MQ,
    "message_queue": MQ,
    "mqs": [MQ],
    "queues": [MQ],
    "message_queues": [MQ],
    "topic": TOPIC,
    "new_topic": "U",
    "key": "k",
    "sharding_key": "k",
    "msg_id": "0" * 32,
    "expression": "*",
    "core_pool_size": 3,
    "recall_handle": "h",
    "callback": print,
    "on_success": print,
    "listener": print,
}


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    with FakeBroker() as running:
        running.offsets[0] = 0
        running.on[RequestCode.PULL_MESSAGE] = lambda _: answer(
            19, PullMessageResponseHeader(0, 0, 0, 0)
        )
        yield running


def methods(client: object) -> list[str]:
    """Return the names of the public methods."""
    return [
        name
        for name, member in inspect.getmembers(type(client), inspect.isfunction)
        if not name.startswith(("_", *NOTES_ONLY))
    ]


def call(client: object, name: str) -> object:
    """Call a method with plausible arguments; run a coroutine up to its first wait."""
    bound: Callable[..., Any] = getattr(client, name)
    arguments = [
        RECEIVED
        if name == "send_message_back" and parameter.name == "message"
        else VALUES.get(parameter.name, 1)
        for parameter in inspect.signature(bound).parameters.values()
        if parameter.default is parameter.empty
        and parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    ]
    result = bound(*arguments)
    if not inspect.iscoroutine(result):
        return result
    try:
        return result.send(None)
    finally:
        result.close()


def refused_in_child(client: object) -> str:
    """Fork; return what went wrong with the child's calls, one line each."""
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        wrong: list[str] = []
        try:
            signal.alarm(CHILD_S)
            for name in methods(client):
                try:
                    wrong.append(f"{name} returned {call(client, name)!r:.100}")
                except ForkedClientError:
                    pass
                except BaseException as error:
                    wrong.append(f"{name} raised {error!r:.200}")
        finally:
            os.write(write_end, "\n".join(wrong).encode()[:60_000])
            os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end, "rb") as stream:
        text = stream.read().decode()
    status = os.waitpid(child, 0)[1]
    return text if status == 0 else f"the child hung or died with {status}: {text}"


def start(client: Any) -> None:
    """Start a client of either face."""
    begun = client.start()
    if inspect.iscoroutine(begun):
        asyncio.run(begun)


def listener(messages: list[Any]) -> None:
    """Consume nothing."""


async def async_listener(messages: list[Any]) -> None:
    """Consume nothing."""


def more(name: str, *, is_async: bool) -> dict[str, Any]:
    """Return the arguments a class cannot do without."""
    if name == "PushConsumer":
        return {"listener": async_listener if is_async else listener}
    return {"transaction_listener": Listener()} if name == "TransactionProducer" else {}


NAMES = ["Producer", "TransactionProducer", "PushConsumer", "PullConsumer", "LitePullConsumer"]


@pytest.mark.parametrize("name", NAMES)
def test_a_sync_client_refuses_every_call_in_a_child(broker: FakeBroker, name: str) -> None:
    make = getattr(rocketstream, name)
    client = make(GROUP, namesrv_addr=broker.address, **more(name, is_async=False))
    if name in ("PushConsumer", "LitePullConsumer"):
        client.subscribe(TOPIC)
    client.start()
    try:
        assert len(methods(client)) > 3
        assert refused_in_child(client) == ""
    finally:
        client.shutdown()


@pytest.mark.parametrize("name", NAMES)
def test_an_asyncio_client_refuses_every_call_in_a_child(broker: FakeBroker, name: str) -> None:
    make = getattr(aio, name)

    async def run() -> None:
        client = make(GROUP, namesrv_addr=broker.address, **more(name, is_async=True))
        if name in ("PushConsumer", "LitePullConsumer"):
            result = client.subscribe(TOPIC)
            if inspect.iscoroutine(result):
                await result
        await client.start()
        try:
            assert refused_in_child(client) == ""
        finally:
            await client.shutdown()

    asyncio.run(run())


def left_in_child(block: Callable[[Callable[[], None]], None]) -> int:
    """Fork inside a block; return the status of the child, 0 where it left the block in peace."""
    children: list[int] = []

    def fork() -> None:
        children.append(os.fork())
        if not children[0]:
            signal.alarm(CHILD_S)

    status = 1
    try:
        block(fork)
        status = 0
    finally:
        if children == [0]:
            os._exit(status)
    return os.waitpid(children[0], 0)[1]


@pytest.mark.parametrize("name", NAMES)
def test_a_child_leaves_a_block_in_peace(broker: FakeBroker, name: str) -> None:
    """The block began in the parent, whose client goes on."""

    def block(fork: Callable[[], None]) -> None:
        given: dict[str, Any] = more(name, is_async=False)
        if name in ("PushConsumer", "LitePullConsumer"):
            given["subscription"] = {TOPIC: "*"}
        with getattr(rocketstream, name)(GROUP, namesrv_addr=broker.address, **given) as client:
            fork()
            if name == "Producer":
                with contextlib.suppress(ForkedClientError):  # of the child
                    client.send(Message(TOPIC, b"x"))

    assert left_in_child(block) == 0


@pytest.mark.parametrize("name", NAMES)
def test_a_child_leaves_an_asyncio_block_in_peace(broker: FakeBroker, name: str) -> None:
    async def run(fork: Callable[[], None]) -> None:
        given: dict[str, Any] = more(name, is_async=True)
        if name in ("PushConsumer", "LitePullConsumer"):
            given["subscription"] = {TOPIC: "*"}
        async with getattr(aio, name)(GROUP, namesrv_addr=broker.address, **given):
            fork()

    def block(fork: Callable[[], None]) -> None:
        loop = asyncio.new_event_loop()
        task = loop.create_task(run(fork))
        loop.run_until_complete(task)
        loop.close()

    assert left_in_child(block) == 0


def refused_start(client: Any) -> int:
    """Fork, and start a client in the child; return 0 where that is refused."""
    parent = os.getpid()

    def block(fork: Callable[[], None]) -> None:
        fork()
        if os.getpid() != parent:
            with pytest.raises(ForkedClientError, match="create a new one in the child"):
                start(client)

    return left_in_child(block)


@pytest.mark.parametrize("face", [rocketstream, aio], ids=["sync", "asyncio"])
@pytest.mark.parametrize("name", [*NAMES, "MQPullConsumerScheduleService"])
def test_a_client_made_before_the_fork_is_not_started_in_a_child(
    broker: FakeBroker, face: Any, name: str
) -> None:
    """Each child would have the parent's client id, and so all queues, locks and message ids."""
    given: dict[str, Any] = more(name, is_async=face is aio)
    client = getattr(face, name)(GROUP, namesrv_addr=broker.address, **given)
    assert refused_start(client) == 0


def test_a_start_is_refused_in_a_child_though_the_parent_was_starting_the_client(
    broker: FakeBroker,
) -> None:
    """The thread that holds the lock of the start is not in the child."""
    client = rocketstream.Producer(GROUP, namesrv_addr=broker.address)
    holds, forked = threading.Event(), threading.Event()

    def hold() -> None:
        with client._life.lock:
            holds.set()
            forked.wait(CHILD_S)

    starter = threading.Thread(target=hold)
    starter.start()
    holds.wait(CHILD_S)
    try:
        assert refused_start(client) == 0
    finally:
        forked.set()
        starter.join()


def test_a_child_leaves_the_block_of_a_cluster_in_peace() -> None:
    """Its store is still the parent's."""

    def block(fork: Callable[[], None]) -> None:
        with EmbeddedCluster() as cluster:
            fork()
            assert cluster.store_dir.exists()

    assert left_in_child(block) == 0


def test_a_child_may_make_clients_of_its_own(broker: FakeBroker) -> None:
    """Even when the parent forks while another of its threads makes a client."""
    with rocketstream.Producer("p", namesrv_addr=broker.address) as parent:
        parent.send(Message(TOPIC, b"x"))
        with engines._lock:
            child = os.fork()
            if child == 0:
                status = 1
                try:
                    signal.alarm(CHILD_S)
                    with rocketstream.Producer("p", namesrv_addr=broker.address) as own:
                        own.send(Message(TOPIC, b"x"))
                    status = 0
                finally:
                    os._exit(status)
        assert os.waitpid(child, 0)[1] == 0
        parent.send(Message(TOPIC, b"y"))


def test_a_child_may_read_offsets_its_parent_was_writing(tmp_path: Path) -> None:
    """The thread that writes them is not in the child, and its lock is let go by nobody."""
    parent, mine = os.getpid(), LocalFileOffsetStore("client", GROUP, tmp_path)

    def block(fork: Callable[[], None]) -> None:
        with mine._file_lock, local_store._locks_guard:
            fork()
            if os.getpid() != parent:
                LocalFileOffsetStore("client", GROUP, tmp_path).load()

    assert left_in_child(block) == 0
