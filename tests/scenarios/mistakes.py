"""Mistakes of a program that uses the clients: wrong settings, listeners, selectors, addresses.

Law: each is told by an error of the documented kind that says what is wrong, at once or within the
time that was given; it changes nothing, and the same client does what it is asked for afterwards.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple

from rocketstream import OffsetOption, SelectMessageQueueByHash, aio
from rocketstream.client.consumer.allocate import (
    AllocateMachineRoomNearby,
    AllocateMessageQueueAveragely,
    AllocateMessageQueueAveragelyByCircle,
    AllocateMessageQueueByConfig,
    AllocateMessageQueueByMachineRoom,
    AllocateMessageQueueConsistentHash,
)
from rocketstream.client.consumer.listener import (
    ConsumeConcurrentlyContext,
    ConsumeOrderlyContext,
)
from rocketstream.errors import (
    ClientStateError,
    ConfigurationError,
    RocketMQError,
    SendError,
    SendOutcome,
)
from rocketstream.model import Message, MessageQueue
from rocketstream.testing.sim.producing import Sender
from rocketstream.testing.sim.world import Node, World

CLUMSY = "clumsy"
"""What names begin with under which nothing may be stored."""
HASHES: tuple[tuple[object, int], ...] = (
    ("Aa", 2112), ("BB", 2112), (True, 1231), (False, 1237), (5, 5), (-3, -3), (2**40, 256),
    (-(2**63), -(2**31)), (2**32 - 1, -1), ("polygenelubricants", -(2**31)),
)  # fmt: skip
"""Values, and their ``hashCode`` in Java."""
ENDS_MS = 30_000.0
Deed = Callable[[], Any]


class Mistake(NamedTuple):
    """A thing that cannot be done.

    Attributes:
        name: what it is about.
        deed: does it; what it returns is awaited if it can be.
        says: words of the error.
        error: its kind.
    """

    name: str
    deed: Deed
    says: str
    error: type[RocketMQError] = ConfigurationError


def mistakes(node: Node, topic: str, broker: str) -> list[Mistake]:
    """Return mistakes of every kind; ``broker`` is the address of one."""
    return [
        *_producers(node), *_consumers(node), *_listeners(node), *_lite(node, topic),
        *_strategies(topic), *_contexts(topic), *_addresses(node, topic, broker),
    ]  # fmt: skip


async def _started(make: Callable[..., Any], *given: Any, **settings: Any) -> None:
    """Make a client and start it; nothing stays if that succeeds."""
    client = make(*given, **settings)
    await client.start()
    await client.shutdown()


def _producers(node: Node) -> list[Mistake]:
    make = partial(_started, aio.Producer, CLUMSY)
    transactions = partial(_started, aio.TransactionProducer, CLUMSY, transaction_listener=None)
    wrong: tuple[tuple[str, dict[str, Any]], ...] = (
        ("compress_type", {"compress_type": "RAR"}),
        ("a space in one", {"topics": ("a space in one",)}),
        ("must be less than send_msg_timeout_ms", {
            "auto_batch": True, "batch_max_delay_ms": 3_000, "send_msg_timeout_ms": 3_000}),
        ("same number of entries", {"latency_max": (50,), "not_available_duration": (0, 10)}),
        ("must be ascending", {"latency_max": (50, 20), "not_available_duration": (0, 10)}),
        ("milliseconds from 0 on", {"latency_max": (50,), "not_available_duration": (-1,)}),
        ("retry_times_when_send_failed", {"retry_times_when_send_failed": -2}),
    )  # fmt: skip
    found = [Mistake("producer", partial(make, **node.client(**s)), says) for says, s in wrong]
    settings = node.client(check_thread_pool_min_size=3, check_thread_pool_max_size=2)
    says = "must not be more than check_thread_pool_max_size"
    return [*found, Mistake("transactions", partial(transactions, **settings), says)]


def _consumers(node: Node) -> list[Mistake]:
    push = partial(_started, aio.PushConsumer, CLUMSY, listener=_listener)
    pull = partial(_started, aio.PullConsumer, CLUMSY)
    lite = partial(_started, aio.LitePullConsumer, CLUMSY)
    topics = partial(_started, aio.LitePushConsumer, CLUMSY, CLUMSY, listener=_listener)
    wrong: tuple[tuple[Callable[..., Any], str, dict[str, Any]], ...] = (
        (push, "is larger than consume_thread_max", {
            "consume_thread_min": 5, "consume_thread_max": 2}),
        (push, "consume_timestamp", {"consume_timestamp": "yesterday"}),
        (push, "consume_timestamp", {"consume_timestamp": "20239914221320"}),
        (push, "allocate_message_queue_strategy", {"allocate_message_queue_strategy": "circle"}),
        (push, "consume_message_batch_max_size", {"consume_message_batch_max_size": 0}),
        (pull, "consumer_timeout_ms_when_suspend", {
            "consumer_timeout_ms_when_suspend": 10, "broker_suspend_max_time_ms": 20}),
        (pull, "a space in one", {"register_topics": ("a space in one",)}),
        (lite, "consume_timestamp", {"consume_timestamp": ""}),
        (lite, "consumer_timeout_ms_when_suspend", {
            "consumer_timeout_ms_when_suspend": 10, "broker_suspend_max_time_ms": 20}),
        (topics, "invisible_ms", {"invisible_ms": 1}),
    )  # fmt: skip
    return [Mistake("consumer", partial(make, **node.client(**s)), says) for make, says, s in wrong]


async def _listener(messages: list[Any]) -> None:
    """A listener that is never called."""


def _listeners(node: Node) -> list[Mistake]:
    def with_none() -> None:
        aio.PushConsumer(CLUMSY, **node.client()).register_message_listener(None)  # type: ignore[call-overload]

    def with_one(given: Any) -> None:
        aio.PushConsumer(CLUMSY, **node.client()).register_message_listener(given)

    async def of_nothing() -> None: ...

    async def of_three(messages: Any, context: Any, more: Any) -> None: ...

    must = "must take (messages) or (messages, context)"
    start = partial(_started, aio.PushConsumer, CLUMSY, **node.client(subscription={CLUMSY: "*"}))
    return [
        Mistake("listener", with_none, "there is no listener"),
        Mistake("listener", start, "there is no listener"),
        Mistake("listener", partial(with_one, "print"), "is neither"),
        Mistake("listener", partial(with_one, SimpleNamespace(consume_message=5)), "is neither"),
        Mistake("listener", partial(with_one, of_nothing), must),
        Mistake("listener", partial(with_one, of_three), must),
    ]


def _lite(node: Node, topic: str) -> list[Mistake]:
    queue = MessageQueue(topic, "broker-a", 0)
    make = partial(aio.LitePullConsumer, CLUMSY, **node.client())

    async def subscribe_then(deed: str, *given: Any) -> None:
        consumer = make()
        await consumer.subscribe(topic, "*")
        done = getattr(consumer, deed)(*given)
        if asyncio.iscoroutine(done):
            await done

    async def assign_then_subscribe() -> None:
        consumer = make()
        consumer.set_sub_expression_for_assign(topic, "*")
        await consumer.subscribe(topic, "*")

    exclusive = "Subscribe and assign are mutually exclusive."
    return [
        Mistake("lite", partial(subscribe_then, "assign", [queue]), exclusive, ClientStateError),
        Mistake("lite", partial(subscribe_then, "set_sub_expression_for_assign", topic, "*"),
                exclusive, ClientStateError),
        Mistake("lite", assign_then_subscribe, exclusive, ClientStateError),
        Mistake("lite", lambda: make().assign([]), "must be one queue at least"),
        Mistake("lite", lambda: make().poll(0), "start", ClientStateError),
        Mistake("option", lambda: OffsetOption.of_offset(-1), "offset"),
        Mistake("option", lambda: OffsetOption.of_tail_n(-1), "messages"),
    ]  # fmt: skip


def _strategies(topic: str) -> list[Mistake]:
    queues, members = [MessageQueue(topic, "north@a", 0)], ["one", "two"]
    averagely = AllocateMessageQueueAveragely()
    nowhere: Any = SimpleNamespace(
        broker_deploy_in=lambda queue: "", consumer_deploy_in=lambda member: ""
    )
    nearby = AllocateMachineRoomNearby(averagely, nowhere)
    none: Any = None
    return [
        Mistake("strategy", lambda: averagely.allocate("g", "", queues, members), "current_cid"),
        Mistake("strategy", lambda: averagely.allocate("g", "one", [], members), "mq_all"),
        Mistake("strategy", lambda: averagely.allocate("g", "one", queues, []), "cid_all"),
        Mistake("strategy", lambda: AllocateMachineRoomNearby(none, nowhere), "must not be None"),
        Mistake("strategy", lambda: AllocateMachineRoomNearby(averagely, none), "must not be None"),
        Mistake("strategy", lambda: nearby.allocate("g", "one", queues, members), "Machine room"),
        Mistake("strategy", lambda: AllocateMessageQueueConsistentHash(-1), "virtual_node_cnt"),
    ]


def _contexts(topic: str) -> list[Mistake]:
    queue = MessageQueue(topic, "broker-a", 0)
    concurrently = ConsumeConcurrentlyContext(queue)
    orderly = ConsumeOrderlyContext(queue)
    soon: Any = "soon"

    def level() -> None:
        concurrently.delay_level_when_next_consume = soon

    def pause() -> None:
        orderly.suspend_current_queue_time_ms = soon

    return [
        Mistake("context", level, "delay_level_when_next_consume"),
        Mistake("context", pause, "suspend_current_queue_time_ms"),
    ]


def _addresses(node: Node, topic: str, broker: str) -> list[Mistake]:
    # Clients of one name in a process share what asks name servers.
    settings = node.client(namesrv_addr=broker, instance_name=CLUMSY)

    async def ask_broker() -> None:
        async with aio.Producer(CLUMSY, **settings) as producer:
            await producer.fetch_publish_message_queues(topic)

    return [Mistake("address", ask_broker, "not a name server", SendError)]


def odd_strategies(world: World, topic: str) -> None:
    """Check what strategies say of themselves, and give to who is no member."""
    queues, members = [MessageQueue(topic, "broker-a", number) for number in range(5)], ["a", "b"]
    rooms = AllocateMessageQueueByMachineRoom(["broker-a"])
    circle = AllocateMessageQueueAveragelyByCircle()
    nearby = AllocateMachineRoomNearby(
        circle,
        SimpleNamespace(
            broker_deploy_in=lambda queue: "north", consumer_deploy_in=lambda member: "north"
        ),
    )
    config = AllocateMessageQueueByConfig(queues[:2])
    far = AllocateMachineRoomNearby(circle, SimpleNamespace(
        broker_deploy_in=lambda queue: "north" if queue.queue_id < 2 else "south",
        consumer_deploy_in=lambda member: "north",
    ))  # fmt: skip
    averagely, empty = AllocateMessageQueueAveragely(), AllocateMessageQueueConsistentHash(0)
    concurrently = ConsumeConcurrentlyContext(queues[0])
    concurrently.delay_level_when_next_consume = 3
    orderly = ConsumeOrderlyContext(queues[0])
    orderly.suspend_current_queue_time_ms = 70
    seen = {
        "stranger": [
            list(each.allocate("g", "c", queues, members))
            for each in (circle, rooms, nearby, averagely, AllocateMessageQueueConsistentHash())
        ],
        "circle": [[each.queue_id for each in circle.allocate("g", m, queues, members)]
                   for m in members],
        "nearby": [nearby.name, [q.queue_id for q in nearby.allocate("g", "b", queues, members)]],
        "config": [[each.queue_id for each in config.allocate("g", "x", queues, members)]],
        "far": [q.queue_id for q in far.allocate("g", "a", queues, members)],
        "nobody": list(empty.allocate("g", "a", queues, members)),
        "no room": list(rooms.allocate("g", "a", queues, members)),
        "shown": [
            repr(circle), repr(AllocateMessageQueueConsistentHash(3)),
            "delay_level_when_next_consume=3)" in repr(concurrently),
            "suspend_current_queue_time_ms=70)" in repr(orderly),
        ],
    }  # fmt: skip
    expected = {
        "stranger": [[], [], [], [], []],
        "circle": [[0, 2, 4], [1, 3]],
        "nearby": ["MACHINE_ROOM_NEARBY-AVG_BY_CIRCLE", [1, 3]],
        "config": [[0, 1]],
        "far": [0, 2, 4],
        "nobody": [],
        "no room": [],
        "shown": [
            "AllocateMessageQueueAveragelyByCircle()",
            "AllocateMessageQueueConsistentHash(virtual_node_cnt=3)",
            True,
            True,
        ],
    }
    if seen != expected:
        world.fail(f"strategies gave {seen}, and should have given {expected}")


class SimMuddler(Sender):
    """A process that makes every mistake there is, some while faults happen, all once more after.

    Args:
        world: the world it lives in.
        topic: a topic that is there.
    """

    def __init__(self, world: World, topic: str) -> None:
        self._topic = topic
        super().__init__(world, "muddler")

    async def _main(self, node: Node) -> None:
        chance = self._world.random(f"mistakes of {node.incarnation}")
        broker = self._world.cluster.brokers[0]
        every = mistakes(node, self._topic, broker.address)
        producer = aio.Producer("muddlers", **node.client())
        await producer.start()
        while not (self._world.healed and broker.is_ready):
            await asyncio.sleep(chance.random())
            await self._make(chance.choice(every))
        chance.shuffle(every)
        for mistake in every:
            await self._make(mistake, calm=True)
        odd_strategies(self._world, self._topic)
        await self._select(producer)
        if left := [name for name in broker.running.store.topics() if CLUMSY in name]:
            self._world.fail(f"mistakes have left {left}")
        node.kept["busy"] = False

    async def _make(self, mistake: Mistake, *, calm: bool = False) -> None:
        began_ms = self._world.now_ms
        told: BaseException | None = None
        try:
            done = mistake.deed()
            if asyncio.iscoroutine(done):
                await done
        except RocketMQError as error:
            told = error
        right = isinstance(told, mistake.error) and mistake.says in str(told)
        # Who is a broker says so only where it answers.
        if not right and (calm or mistake.name != "address"):
            text = f"a mistake about {mistake.name} ({mistake.says!r}) ends with {told!r}"
            self._world.fail(text, told)
        took_ms = self._world.now_ms - began_ms
        if took_ms > ENDS_MS and not self.node.stood_still_since(began_ms):
            self._world.fail(f"a mistake about {mistake.name} is told after {took_ms:.0f} ms")

    # --- selectors --------------------------------------------------------------------------------

    async def _select(self, producer: aio.Producer) -> None:
        """Have selectors fail, and one choose by the hashes of Java."""
        queues: list[MessageQueue] = []
        while not queues:
            with contextlib.suppress(RocketMQError):
                queues = await producer.fetch_publish_message_queues(self._topic)
            await asyncio.sleep(1)
        own = SendError("not this one", SendOutcome.REJECTED)
        for raised, says, outcome in (
            (ValueError("no queue"), "the selector of the queue raised", SendOutcome.NOT_SENT),
            (own, "not this one", SendOutcome.REJECTED),
        ):
            error = await self._failing(producer, partial(_raise, raised))
            if error is None or says not in str(error) or error.outcome is not outcome:
                self._world.fail(f"a selector that raises {raised!r} ends a send with {error!r}")
        error = await self._failing(producer, SelectMessageQueueByHash(), 1.5)
        if error is None or "a str, a bool or an int of 64 bits" not in str(error):
            self._world.fail(f"a hash of 1.5 ends a send with {error!r}")
        choose = SelectMessageQueueByHash()
        message = Message(self._topic, b"x")
        for value, hashed in HASHES:
            if choose(queues, message, value) != queues[abs(hashed) % len(queues)]:
                self._world.fail(f"{value!r} is not hashed as {hashed}")

    async def _failing(
        self, producer: aio.Producer, selector: Any, arg: object = None
    ) -> SendError | None:
        message = Message(self._topic, b"never stored", keys=f"{CLUMSY}-message")
        try:
            await producer.send(message, selector=selector, arg=arg)
        except SendError as error:
            return error
        return None


def _raise(error: Exception, _queues: Sequence[MessageQueue], _: Message, _arg: Any) -> Any:
    raise error
