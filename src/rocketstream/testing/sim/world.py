"""Simulated processes, each on a machine of its own, with one common time.

The caller decides what runs in them, ``faults`` decides which of them fail.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

from rocketstream.client.config import ProcessIdentity
from rocketstream.client.instance.engine import forget_loop
from rocketstream.errors import RocketMQError, SimulationError
from rocketstream.protocol.message_id import UniqueIdGenerator
from rocketstream.testing.history.events import BrokerDied, BrokerPaused, Disturbed, ProcessDied
from rocketstream.testing.sim.disk import Disk, SimFiles
from rocketstream.testing.sim.loop import Scheduler, SimLoop
from rocketstream.testing.sim.network import Host, Network, NetworkSettings
from rocketstream.testing.sim.options import Options
from rocketstream.testing.sim.tls import trusting
from rocketstream.testing.sim.trace import Trace
from rocketstream.testing.sim.workers import SimWorkers

Main = Callable[["Node"], Awaitable[None]]
START_MS = 1_700_000_000_000
"""Wall clock of every machine at the beginning: 2023-11-14 22:13:20 UTC."""
RESTART_S = 0.1
_ASK_S = 0.25
_MONTH_MS = 28 * 86_400_000


class NodeClock:
    """The clocks of one machine: the wall clock may be set, the monotonic one only grows."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._jumps = [(0.0, 0)]
        """When the wall clock was set, and by how much it has been wrong since."""

    @property
    def skew_ms(self) -> int:
        """By how much the wall clock is ahead of the simulation's."""
        return self._jumps[-1][1]

    def jump(self, by_ms: int) -> None:
        """Set the wall clock forward, or back where ``by_ms`` is negative."""
        self._jumps.append((self.monotonic_ms(), self.skew_ms + by_ms))

    def when(self, stamp_ms: int, after_ms: float) -> float:
        """Return when the wall clock showed a stamp first, in ms since the simulation began.

        Args:
            stamp_ms: what it showed, ms since 1970.
            after_ms: the earliest time there is; also returned where the clock never showed it.
        """
        for (begin, skew), (end, _) in pairwise([*self._jumps, (self.monotonic_ms(), 0)]):
            at = float(stamp_ms - START_MS - skew)
            if begin < at + 1 and after_ms <= at <= end:  # a stamp has whole milliseconds
                return at
        return after_ms

    def now_ms(self) -> int:
        """Wall-clock milliseconds since 1970 UTC; may jump."""
        return START_MS + self.skew_ms + int(self._scheduler.now * 1000)

    def monotonic_ms(self) -> float:
        """Milliseconds since the simulation began."""
        return self._scheduler.now * 1000


def _identity(address: str, pid: int, chance: random.Random) -> ProcessIdentity:
    """Return what tells one incarnation of a process from every other."""
    packed = bytes(map(int, address.split(".")))
    unique_ids = UniqueIdGenerator(packed, pid, chance.getrandbits(32), _month_start_ms)
    return ProcessIdentity(address, unique_ids, lambda: f"{chance.getrandbits(128):032x}")


def _month_start_ms(now_ms: int) -> int:
    return now_ms - now_ms % _MONTH_MS


class Node:
    """One simulated process on a machine of its own.

    Attributes:
        name: name of the process; of a broker's, the broker's.
        kind: ``client``, ``broker`` or ``name server``.
        host: address of its machine.
        incarnation: how often it was started.
        clock: the clocks of its machine.
        kept: a place for the caller's data; survives every crash.
        disk: the disk of its machine.
        files: the disk as this incarnation sees it.
        loop: event loop of this incarnation.
    """

    files: SimFiles
    loop: SimLoop
    workers: SimWorkers
    identity: ProcessIdentity

    def __init__(self, world: World, name: str, host: str, main: Main, kind: str) -> None:
        self.world = world
        self.name = name
        self.kind = kind
        self.host = host
        self.incarnation: int = 0
        self.kept: dict[str, Any] = {}
        self.clock: NodeClock = NodeClock(world.scheduler)
        self.disk: Disk = Disk(world.random(f"disk of {name}"), self.clock.now_ms)
        self._main = main
        self._machine: Host = world.network.add_host(host)
        self._chance = world.random(f"process {name}")
        self._restart: Any = None
        self._task: asyncio.Task[None] | None = None
        self._lives = False
        self._dead_loops: list[SimLoop] = []

    def __repr__(self) -> str:
        return f"<Node {self.name} {self.incarnation} {'up' if self.is_alive else 'down'}>"

    @property
    def is_alive(self) -> bool:
        """Whether the process is alive; a paused one is."""
        return self._lives

    # --- for the code of the process --------------------------------------------------------------

    def client(self, **settings: Any) -> dict[str, Any]:
        """Return the keyword arguments every client here needs; ``settings`` override them."""
        options = self.world.options
        account = {"access_key": "clients", "secret_key": "secret-of-clients"}
        return (
            (account if options.accounts else {})
            | ({"ssl_context": trusting(options.tls)} if options.tls else {})
            | {
                "namesrv_addr": self.world.namesrv_addr,
                "clock": self.clock,
                "client_ip": self.host,
                "instance_name": f"{self.name}-{self.incarnation}",
                "heartbeat_broker_interval_ms": options.heartbeat_ms,
                "rebalance_interval_ms": options.rebalance_ms,
                "persist_consumer_offset_interval_ms": options.client_persist_ms,
                "poll_name_server_interval_ms": min(options.heartbeat_ms, 10_000),
                "api_timeout_ms": options.request_timeout_ms,
            }
            | settings
        )

    def record(self, event: object) -> None:
        """Add an event to the history; events of a dead process are dropped."""
        if asyncio._get_running_loop() is self.loop and self._lives:
            self.world.history.append(event)
            self.world.trace.add(f"{self.name}: {event!r}")

    def log(self, text: str) -> None:
        """Add a line to the story."""
        self.world.trace.tell(f"{self.name}: {text}")

    # --- life -------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the process, and its machine if that is off."""
        if self._lives:
            return
        self._forget_restart()
        self.incarnation += 1
        self._lives = True
        world = self.world
        loop = self.loop = SimLoop(world.scheduler, self.name, self.host)
        loop.network = world.network
        loop.on_error = self._unhandled
        loop.executor_delay = self._work_delay_s
        self.identity = _identity(self.host, 1000 + self.incarnation, self._chance)
        self.files = SimFiles(self.disk)
        self.workers = SimWorkers(loop, self._work_delay_s)
        world.by_loop[loop] = self
        self._machine.boot()
        world.trace.add(f"{self.name} starts {self.incarnation}")
        # Kept: nothing else may refer to a process that only waits.
        self._task = loop.create_task(self._run(), name=f"{self.name}-main")

    async def _run(self) -> None:
        try:
            await self._main(self)
        except (RocketMQError, OSError) as error:
            self.world.trace.add(f"{self.name} ends: {type(error).__name__}: {error}")
            self.world.node_failed(self, error)
            self.world.scheduler.call_later(0.0, self._gave_up, self.incarnation)
        except Exception as error:
            self.world.fail(f"{self.name} failed: {type(error).__name__}: {error}", error)

    def _gave_up(self, incarnation: int) -> None:
        if incarnation == self.incarnation and self._lives:
            self.kill()
            self.restart_later(RESTART_S)

    def _work_delay_s(self) -> float:
        chance = self._chance
        usual_s = 0.0002 + 0.003 * chance.random() if chance.random() < 0.95 else 0.05
        return usual_s + self.disk.trouble.slow_s

    def kill(self) -> None:
        """End the process as SIGKILL does: machine and disk are untouched."""
        if self._lives:
            self._end(power_lost=False)
            self._machine.kill_process()

    def lose_power(self) -> None:
        """Stop the machine at once: chance decides which unsynced data survives."""
        if self._lives:
            self._end(power_lost=True)
        self._machine.lose_power()
        self.disk.lose_power()

    def _end(self, *, power_lost: bool) -> None:
        self._lives = False
        self.world.trace.add(f"{self.name} is gone")
        at = self.world.now_ms
        if self.kind == "broker":
            self.world.history.append(BrokerDied(at, self.name, power_lost))
        else:
            self.world.history.append(ProcessDied(at, self.name))
        self.files.die()
        self.loop.die()
        forget_loop(self.loop)
        self._dead_loops.append(self.loop)

    def restart_later(self, delay_s: float) -> None:
        """Start the process after ``delay_s``, unless it was started before."""
        self._forget_restart()
        self._restart = self.world.scheduler.call_later(delay_s, self.start)

    def _forget_restart(self) -> None:
        if self._restart is not None:
            self._restart.cancel()
            self._restart = None

    def stood_still_since(self, at: float) -> bool:
        """Return whether the process has been paused at any time since ``at``."""
        paused = f"{self.name} paused"
        return any(
            isinstance(event, Disturbed) and event.what == paused and event.until > at
            for event in self.world.history
        )

    def pause(self, seconds: float) -> None:
        """Stop the process for a while, as a full garbage collection or a moved machine does."""
        if self._lives and not self.loop.is_paused:
            loop = self.loop
            loop.pause()
            at = self.world.now_ms
            until = at + seconds * 1000
            self.world.history.append(Disturbed(at, until, f"{self.name} paused"))
            if self.kind == "broker":
                self.world.history.append(BrokerPaused(at, self.name, until))
            self.world.scheduler.call_later(seconds, loop.resume)

    def wake(self) -> None:
        """End a pause now."""
        if self._lives and self.loop.is_paused:
            self.loop.resume()

    def _unhandled(self, message: str, error: BaseException | None) -> None:
        self.world.unhandled(self, message, error)

    def bury(self) -> None:
        """Close everything every incarnation left open; the simulation is over."""
        if self._lives:
            self._end(power_lost=False)
        for loop in self._dead_loops:
            loop.bury()
        self._dead_loops.clear()


class World:
    """All processes, the network between them, and time.

    Attributes:
        seed: the source of all chance.
        options: the options of the run.
        history: the events processes recorded, in order.
        healed: whether faults are over.
        power_lost: whether a broker's machine lost power.
        index_damaged: whether a bit of an index flipped: what is found by key may be less.
        faults: faults that happened, by kind.
        failure: why the run failed; None if it has not failed.
        internal_errors: errors nobody caught.
    """

    def __init__(self, options: Options, *, keep_story: bool = False) -> None:
        self.options = options
        self.seed: int = options.seed
        self.scheduler: Scheduler = Scheduler()
        self.trace: Trace = Trace(lambda: self.scheduler.now, keep=keep_story)
        self.history: list[Any] = []
        self.healed = False
        self.power_lost = False
        self.index_damaged = False
        self.faults: Counter[str] = Counter()
        self.failure: str | None = None
        self.error: BaseException | None = None
        self.internal_errors: list[str] = []
        self.namesrv_addr = ""
        self.cluster: Any = None
        self.nodes: dict[str, Node] = {}
        self.by_loop: dict[SimLoop, Node] = {}
        self.on_node_failed: Callable[[Node, Exception], None] = lambda node, error: None
        settings = NetworkSettings(
            latency_s=(0.0001, options.latency_ms / 1000),
            slow_share=options.slow_share,
            split_share=options.split_share,
        )
        self.network: Network = Network(
            self.scheduler, self.random("network"), settings, on_event=self.trace.add
        )

    @property
    def now_ms(self) -> float:
        """True time: virtual milliseconds since the beginning."""
        return self.scheduler.now * 1000

    @property
    def may_lose(self) -> bool:
        """Whether a fault may have taken acknowledged messages away."""
        unflushed = self.power_lost and self.options.flush == "async"
        return unflushed or self.is_damaged

    @property
    def is_damaged(self) -> bool:
        """Whether a message of a broker's log was damaged, and its start refused."""
        return self.faults["bit flip"] > 0

    def random(self, name: str) -> random.Random:
        """Return a random stream for one purpose; equal seeds and names give equal streams."""
        return random.Random(f"{self.seed} {name}")

    def add_node(self, name: str, main: Main, kind: str = "client") -> Node:
        """Add a process; it is started with the others, and again after each crash.

        Args:
            name: its name, which no other process has.
            main: runs in the process; called again for each incarnation.
            kind: what it is for faults and for the history.

        Raises:
            SimulationError: the name is taken.
        """
        if name in self.nodes:
            raise SimulationError(f"there is a process {name!r} already; give each its own name")
        number = len(self.nodes) + 1
        node = Node(self, name, f"10.0.{number // 250}.{number % 250}", main, kind)
        self.nodes[name] = node
        return node

    def node(self, name: str) -> Node:
        """Return a process by its name."""
        return self.nodes[name]

    def running(self) -> Node | None:
        """Return the process whose code runs now."""
        loop = asyncio._get_running_loop()
        return self.by_loop.get(loop) if isinstance(loop, SimLoop) else None

    def identity(self) -> ProcessIdentity | None:
        """Return the identity of the process whose code runs now."""
        node = self.running()
        return None if node is None else node.identity

    # --- time -------------------------------------------------------------------------------------

    def run(self, seconds: float, is_over: Callable[[], bool] | None = None) -> bool:
        """Let virtual time pass; return whether ``is_over``, asked now and then, ended it."""
        end = self.scheduler.now + seconds
        while self.scheduler.now < end and self.failure is None:
            if is_over is not None and is_over():
                return True
            self.scheduler.run(min(end, self.scheduler.now + _ASK_S))
        return is_over is not None and self.failure is None and is_over()

    # --- failures ---------------------------------------------------------------------------------

    def fail(self, text: str, error: BaseException | None = None) -> None:
        """Mark the run as failed and end it."""
        if self.failure is None:
            self.failure = text
            self.error = error
            self.trace.add(f"failed: {text}")

    def unhandled(self, node: Node, message: str, error: BaseException | None) -> None:
        """Note an error that nobody caught."""
        text = f"{node.name}: {message}: {type(error).__name__}: {error}"
        self.trace.add(text)
        self.internal_errors.append(text)
        self.error = self.error or error

    def node_failed(self, node: Node, error: Exception) -> None:
        """Note that a process ended with an error it is allowed to end with."""
        self.on_node_failed(node, error)

    def close(self) -> None:
        """End every process and forget everything scheduled."""
        for node in self.nodes.values():
            node.bury()
        self.scheduler.clear()
        self.by_loop.clear()


STORE_DIR = Path("/store")
"""Where a simulated broker keeps its store."""
