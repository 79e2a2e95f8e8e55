"""Your own listener in a simulated cluster, through crashes, partitions and pauses.

Law: a process loses its memory when it dies, the database stays; everything is drawn from the seed,
so a finding can be repeated.
"""

from __future__ import annotations

import asyncio
import inspect
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rocketstream import aio
from rocketstream.checks import check_range
from rocketstream.client.consumer.listener import listener_of
from rocketstream.errors import ClientStateError, ConfigurationError, RocketMQError
from rocketstream.model import ConsumeConcurrentlyStatus, ConsumeOrderlyStatus, Message
from rocketstream.testing.history import Recorder
from rocketstream.testing.history.events import (
    BrokerDied,
    Disturbed,
    Event,
    ListenerReturned,
    MessageDelivered,
    ProcessDied,
    SendAcknowledged,
)
from rocketstream.testing.sim.cluster import Cluster
from rocketstream.testing.sim.consuming import Manners, SimGroup
from rocketstream.testing.sim.options import FAULT_KINDS, Options
from rocketstream.testing.sim.producing import Sender
from rocketstream.testing.sim.runs import run_world, simulated
from rocketstream.testing.sim.workload import TOPIC, BaseWorkload
from rocketstream.testing.sim.world import Node, World

__all__ = ["FAULTS", "Finding", "Listener", "Process", "Report", "simulate"]

GROUP = "listeners"
FAULTS = (
    "broker killed",
    "client killed",
    "client paused",
    "delay",
    "name server killed",
    "partition",
    "reset",
)
"""The faults a simulated listener meets by default."""
STORY_LINES_MAX = 40
CALM_MS = 5_000.0
"""The check runs this long after everything was consumed."""
_DONE = {
    None,
    ConsumeConcurrentlyStatus.CONSUME_SUCCESS,
    ConsumeOrderlyStatus.SUCCESS,
    ConsumeOrderlyStatus.COMMIT,
}

_FUNCTIONS = {
    "make_listener": "takes a process and returns its listener",
    "database": "makes the database of a run",
    "check": "takes the database and the acknowledged keys",
}

Listener = Callable[..., Any]
Check = Callable[[Any, Sequence[str]], object]


@dataclass(frozen=True)
class Process:
    """One life of one of your processes.

    Attributes:
        name: name of the process; the same after a crash.
        life: 1 at first, one more after each crash.
        database: the object that survives crashes, shared by all your processes.
        random: source of randomness of this life; use no other.
    """

    name: str
    life: int
    database: Any
    random: random.Random


@dataclass(frozen=True)
class Finding:
    """A seed in which something went wrong.

    Attributes:
        seed: repeats it: ``simulate(..., first_seed=seed, seeds=1)``.
        what: the failure, in words.
        story: what happened, in virtual milliseconds.
        options: the options that were drawn.
    """

    seed: int
    what: str
    story: str
    options: Options

    def __str__(self) -> str:
        return f"seed {self.seed}: {self.what}\n{self.story}\n{self.options}"


@dataclass(frozen=True)
class Report:
    """The result of a simulation.

    Attributes:
        seeds: how many seeds ran.
        finding: the first seed that went wrong; None when none did.
        deliveries: messages given to listeners, over all seeds.
        crashes: processes of yours that were killed, over all seeds.
    """

    seeds: int
    finding: Finding | None
    deliveries: int
    crashes: int

    def __str__(self) -> str:
        if self.finding is not None:
            return f"after {self.seeds} seeds: {self.finding}"
        return (
            f"{self.seeds} seeds, nothing found: {self.deliveries} deliveries, "
            f"{self.crashes} crashes of listeners"
        )


@dataclass(frozen=True)
class Scene:
    """The settings of a simulation, equal for every seed; see ``simulate``."""

    make_listener: Callable[[Process], Listener]
    check: Check | None
    database: Callable[[], Any]
    members: int
    messages: int
    orderly: bool
    max_reconsume_times: int
    sharding_key: Callable[[int], str] | None


def simulate(
    make_listener: Callable[[Process], Listener],
    *,
    check: Check | None = None,
    database: Callable[[], Any] = dict,
    seeds: int = 100,
    first_seed: int = 0,
    members: int = 2,
    messages: int = 40,
    orderly: bool = False,
    max_reconsume_times: int = 16,
    sharding_key: Callable[[int], str] | None = None,
    faults: Sequence[str] = FAULTS,
) -> Report:
    """Run a listener through many simulated runs until something goes wrong; blocks.

    Each run sends messages with the keys ``order-1``, ``order-2``, … to a cluster in which
    ``members`` processes of yours consume them, while faults happen. Then the faults end,
    everything is consumed, and ``check`` is called.

    Args:
        make_listener: called when a process of yours starts, again after each crash; returns the
            listener: a coroutine function or a function, of messages or messages and context.
            Time in it is virtual: ``await asyncio.sleep(60)`` takes none.
        check: called at the end with the database and the keys of all acknowledged messages;
            raises ``AssertionError``, or returns False, when something is wrong.
        database: makes the database of a run.
        seeds: how many runs at most.
        first_seed: the first seed.
        members: how many processes consume.
        messages: how many messages a run sends.
        orderly: consume queues in order.
        max_reconsume_times: how often a message may fail before it is dead-lettered.
        sharding_key: gives the sharding key of a message by its number, for order.
        faults: the faults that happen, by their names in
            ``rocketstream.testing.sim.options.FAULT_KINDS``.

    Raises:
        ConfigurationError: an argument that cannot be used.
        ClientStateError: called within an event loop.
    """
    scene = Scene(
        make_listener, check, database, members, messages, orderly, max_reconsume_times,
        sharding_key,
    )  # fmt: skip
    _check(scene, seeds, first_seed, faults)
    deliveries = crashes = 0
    for number, seed in enumerate(range(first_seed, first_seed + seeds), 1):
        with simulated(seed, _options(scene, seed, faults)) as world:
            Cluster(world)
            workload = _Simulation(world, scene)
            result = run_world(world, workload)
            deliveries += sum(isinstance(e, MessageDelivered) for e in world.history)
            crashes += world.faults["client killed"]
            what = workload.broken or result.failure
            if what:
                story = _story(world.history, what, workload.raised)
                finding = Finding(seed, what, story, world.options)
                return Report(number, finding, deliveries, crashes)
    return Report(seeds, None, deliveries, crashes)


def _check(scene: Scene, seeds: int, first_seed: int, faults: Sequence[str]) -> None:
    """Refuse what would run and find nothing, or something else than was meant."""
    if asyncio._get_running_loop() is not None:
        raise ClientStateError(
            "simulate() runs event loops of its own and blocks; from a coroutine call it as "
            "await asyncio.to_thread(simulate, ...), in a test leave the async out"
        )
    check_range("seeds", seeds, 1)
    check_range("first_seed", first_seed)
    check_range("members", scene.members, 1)
    check_range("messages", scene.messages, 1)
    check_range("max_reconsume_times", scene.max_reconsume_times, 0)
    for name, words in _FUNCTIONS.items():
        given = getattr(scene, name)
        if name == "check" and given is None:
            continue
        if not callable(given) or inspect.iscoroutinefunction(given):
            raise ConfigurationError(
                f"{name} must be a function that {words}, and not a coroutine function; given is "
                f"{given!r}"
            )
    if isinstance(faults, str) or not set(faults) <= set(FAULT_KINDS):
        raise ConfigurationError(
            f"faults must be a list of {', '.join(FAULT_KINDS)}; given is {faults!r}"
        )
    for number in range(1, scene.messages + 1) if scene.sharding_key else ():
        assert scene.sharding_key is not None
        key = scene.sharding_key(number)
        if not isinstance(key, str):
            raise ConfigurationError(
                f"sharding_key must return a str; for {number} it returned {key!r}"
            )


def _options(scene: Scene, seed: int, faults: Sequence[str]) -> Options:
    chance = random.Random(f"simulate {seed}")
    return Options(
        seed=seed,
        scenario="simulate",
        queues=chance.choice((1, 2, 4)),
        messages=scene.messages,
        members=scene.members,
        fault_ms=chance.choice((3_000, 8_000, 20_000)),
        fault_interval_ms=chance.choice((300, 1_000)),
        faults=tuple(faults),
        latency_ms=chance.choice((0.5, 5.0, 20.0)),
        heartbeat_ms=chance.choice((1_000, 5_000)),
        rebalance_ms=chance.choice((1_000, 5_000)),
        client_persist_ms=chance.choice((200, 1_000, 5_000)),
        pull_batch=chance.choice((4, 32)),
        consume_batch=chance.choice((1, 1, 4)),
    )


class _Simulation(BaseWorkload):
    """A producer, the user's group, and the user's check at the end."""

    postscripts = 0.0

    def __init__(self, world: World, scene: Scene) -> None:
        self.scene = scene
        self.database = scene.database()
        self.broken = ""
        self.raised: dict[tuple[float, str], str] = {}
        """Errors that listeners raised, by time and process."""
        self._done_since: float | None = None
        super().__init__(world)

    def build(self) -> None:
        scene = self.scene
        self.producers.append(_Orders(self.world, scene))
        manners = Manners(
            GROUP, TOPIC, scene.members, orderly=scene.orderly, retries=scene.max_reconsume_times
        )
        self.groups.append(_Listeners(self, manners))

    def is_done(self) -> bool:
        """Whether everything has been done for a while: listeners may still finish delayed work."""
        if not super().is_done():
            self._done_since = None
            return False
        if self._done_since is None:
            self._done_since = self.world.now_ms
        return self.world.now_ms - self._done_since >= CALM_MS

    def check(self) -> list[Any]:
        acknowledged = sorted(
            {event.key for event in self.world.history if isinstance(event, SendAcknowledged)},
            key=lambda key: (len(key), key),
        )
        if self.scene.check is not None:
            try:
                answer = self.scene.check(self.database, acknowledged)
            except AssertionError as error:
                self.broken = str(error) or "the check failed without a word"
            else:
                self.broken = "the check returned False" if answer is False else ""
        return super().check()


class _Orders(Sender):
    """Sends ``order-1``, ``order-2``, … one after another."""

    def __init__(self, world: World, scene: Scene) -> None:
        self._scene = scene
        super().__init__(world, "producer")

    async def _main(self, node: Node) -> None:
        kept, chance = node.kept, self._world.random(f"orders {node.incarnation}")
        recorder = Recorder(lambda: self._world.now_ms, node.record)
        producer = aio.Producer("orders", **node.client())
        await producer.start()
        pause_s = 1.5 * self._world.options.fault_ms / self._scene.messages / 1000
        while kept["sent"] < self._scene.messages and not self._world.healed:
            kept["sent"] += 1
            await self._send(producer, recorder, kept["sent"])
            await asyncio.sleep(chance.random() * pause_s)
        kept["busy"] = False

    async def _send(self, producer: aio.Producer, recorder: Recorder, number: int) -> None:
        key = f"order-{number}"
        shard = self._scene.sharding_key(number) if self._scene.sharding_key else None
        sending = recorder.sending(key, TOPIC, tries_max=1 if shard else 3)
        try:
            result = await producer.send(Message(TOPIC, key, keys=key), sharding_key=shard)
        except RocketMQError as error:
            sending.failed(error)
        else:
            sending.acknowledged(result)


class _Listeners(SimGroup):
    """The user's listener in each member; each life of a process makes its own."""

    def __init__(self, simulation: _Simulation, manners: Manners) -> None:
        self._simulation = simulation
        super().__init__(simulation.world, manners)

    def listener(self, node: Node, recorder: Recorder) -> Callable[..., Awaitable[Any]]:
        chance = self.world.random(f"{node.name} {node.incarnation}")
        process = Process(node.name, node.incarnation, self._simulation.database, chance)
        make_listener = self._simulation.scene.make_listener
        try:
            users = listener_of(make_listener(process), orderly=self.manners.orderly)
        except ConfigurationError as error:  # or the process would only be started again
            raise TypeError(f"make_listener(process) must return a listener: {error}") from error

        async def listener(messages: list[Any], context: Any) -> Any:
            with recorder.listening(self.manners.group, node.name, messages) as returned:
                try:
                    status = (
                        users.call(messages, context)
                        if users.takes_context
                        else users.call(messages)
                    )
                    if users.is_async:
                        status = await status
                except Exception as error:
                    told = f"{type(error).__name__}: {error}"
                    self._simulation.raised[self.world.now_ms, node.name] = told
                    raise
                success = status in _DONE
                returned(success)
                self.record(node.name, messages, success=success)
            return status

        return listener


def _story(history: Sequence[Event], what: str, raised: Mapping[tuple[float, str], str]) -> str:
    """Return the events of the messages that ``what`` names, and those of the processes."""
    named = {word.strip(".,:;'\"()[]{}") for word in what.split()}
    lines: list[str] = []
    for event in history:
        line = _line(event, named, raised)
        if line:
            lines.append(f"  {event.at:9.1f} ms  {line}")
    if len(lines) > STORY_LINES_MAX:
        left_out = len(lines) - STORY_LINES_MAX
        lines = [f"  … {left_out} lines before", *lines[-STORY_LINES_MAX:]]
    return "\n".join(lines)


def _line(event: Event, named: set[str], raised: Mapping[tuple[float, str], str]) -> str:
    if isinstance(event, ProcessDied):
        return f"{event.process} is killed"
    if isinstance(event, BrokerDied):
        return "the broker is killed"
    if isinstance(event, Disturbed):
        told = event.what.endswith(("killed", "loses power", " paused"))  # by another event
        return "" if told else event.what.split(":")[0]
    if isinstance(event, SendAcknowledged) and event.key in named:
        return f"{event.key} is acknowledged"
    if isinstance(event, MessageDelivered) and event.key in named:
        again = f", retry {event.reconsume_times}" if event.reconsume_times else ""
        return f"{event.key} is given to {event.member}{again}"
    if isinstance(event, ListenerReturned) and event.delivery.key in named:
        member, key = event.delivery.member, event.delivery.key
        if (event.at, member) in raised:
            return f"{member} raises {raised[event.at, member]} for {key}"
        return f"{member} returns {'success' if event.success else 'later'} for {key}"
    return ""
