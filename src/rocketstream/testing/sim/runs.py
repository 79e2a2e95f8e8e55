"""Runs one seed and judges the result.

Law: nothing is retried. The workload of a seed and the promises every run must keep judge it.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import logging
import os
import random
import traceback
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

from rocketstream.client.config import set_process_identity
from rocketstream.errors import SimulationError, StoreDamagedError, StoreError
from rocketstream.testing.sim.faults import Faults
from rocketstream.testing.sim.options import FLIP_AT_WORK, Options
from rocketstream.testing.sim.world import Node, World

START_MS_MAX = 20_000


class Workload(Protocol):
    """The actions of the clients in a run, and how the run is judged."""

    @property
    def messages(self) -> int:
        """How many messages were sent."""
        ...

    def is_done(self) -> bool:
        """Whether everything is consumed, committed and owned; asked once faults are over."""
        ...

    def unfinished(self) -> str:
        """Return a text that says what is missing."""
        ...

    def check(self) -> list[Any]:
        """Return the anomalies of the history."""
        ...


@dataclass
class SeedResult:
    """The result of one seed.

    Attributes:
        failure: why the seed failed; empty when it passed.
        digest: digest of everything that happened.
        story: what happened, for a reader; only when asked for.
    """

    seed: int
    scenario: str
    options: Options
    failure: str = ""
    anomalies: list[str] = field(default_factory=list)
    digest: str = ""
    faults: Counter[str] = field(default_factory=Counter)
    messages: int = 0
    virtual_ms: float = 0.0
    story: str = ""

    @property
    def ok(self) -> bool:
        """Whether the seed passed."""
        return not self.failure

    def report(self) -> str:
        """Return the text a reader needs to investigate a failure."""
        lines = [
            f"seed {self.seed} ({self.scenario}) failed: {self.failure}",
            *(f"  {each}" for each in self.anomalies[:20]),
            f"  {self.options}",
            f"  digest {self.digest}",
        ]
        return "\n".join(lines)


@contextlib.contextmanager
def simulated(seed: int, options: Options, *, trace: bool = False) -> Iterator[World]:
    """Yield a world, and keep the rest of the process from influencing it."""
    world = World(options, keep_story=trace)
    before = random.getstate()
    collecting = gc.isenabled()
    gc.disable()
    random.seed(seed)
    set_process_identity(world.identity)
    handler = _Listening(world)
    root = logging.getLogger("rocketstream")
    level, propagate, disabled = root.level, root.propagate, logging.root.manager.disable
    root.addHandler(handler)
    root.propagate = False
    root.setLevel(logging.DEBUG if trace else logging.ERROR)
    try:
        yield world
    finally:
        world.close()
        logging.disable(disabled)
        root.removeHandler(handler)
        root.propagate = propagate
        root.setLevel(level)
        set_process_identity(None)
        random.setstate(before)
        if collecting:
            gc.enable()


class _Listening(logging.Handler):
    """Copies log lines into the story, and errors a handler should have caught into the verdict."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        node = self._world.running()
        if node is None or not node.is_alive:
            return
        error = record.exc_info[1] if record.exc_info else None
        if self._world.trace.is_kept:
            node.log(f"[{record.levelname}] {record.getMessage()}")
            if error is not None:
                node.log("".join(traceback.format_exception(error)))
        if record.levelno < logging.ERROR or error is None:
            return
        if not isinstance(error, StoreError | OSError):  # these the disk was told to raise
            self._world.unhandled(node, record.getMessage(), error)


def run_world(world: World, workload: Workload) -> SeedResult:
    """Run a world with its cluster and clients through faults to the end, and judge it."""
    options = world.options
    result = SeedResult(options.seed, options.scenario, options)
    try:
        faults = _run(world, workload)
        result.anomalies = [str(each) for each in _judge(world, workload)]
        result.faults = world.faults + faults.count_disks()
    except SimulationError as error:
        world.fail(str(error), error)
    except Exception as error:  # of a check too: without its seed a failure cannot be repeated
        world.fail(f"the check itself failed: {type(error).__name__}: {error}", error)
    if world.failure is not None:
        result.failure = world.failure
        if world.error is not None and world.trace.is_kept:
            world.trace.tell("".join(traceback.format_exception(world.error)))
    elif result.anomalies:
        result.failure = f"{len(result.anomalies)} anomalies, the first: {result.anomalies[0]}"
    result.messages = workload.messages
    result.virtual_ms = world.now_ms
    result.digest = world.trace.digest()
    result.story = world.trace.story()
    return result


def _run(world: World, workload: Workload) -> Faults:
    cluster, options = world.cluster, world.options
    cluster.start()
    faults = Faults(world)
    if not world.run(START_MS_MAX / 1000, lambda: cluster.is_ready):
        world.fail("the cluster did not start")
    world.on_node_failed = lambda node, error: _ended(world, node, error)
    for node in world.nodes.values():
        node.start()
    faults.begin()
    world.run(options.fault_ms / 1000)
    faults.end()
    world.healed = True
    world.trace.add("faults are over")
    if world.failure is None:
        done = world.run(options.heal_ms / 1000, lambda: cluster.is_ready and workload.is_done())
        if not done:
            world.fail(
                f"not done {options.heal_ms / 1000:g} s after the faults: {workload.unfinished()}"
            )
    return faults


def _ended(world: World, node: Node, error: Exception) -> None:
    """Judge the end of a process: a server may give up when its disk fails or is damaged."""
    flips = world.faults["bit flip"] + world.faults[FLIP_AT_WORK]
    excused = flips or os.strerror(errno.EIO) in str(error)
    if isinstance(error, StoreDamagedError) and not excused:
        world.fail(f"the store refuses to start: {error}", error)


def _judge(world: World, workload: Workload) -> list[Any]:
    if world.internal_errors:
        world.fail(f"errors nobody caught: {world.internal_errors[0]}", world.error)
    if world.failure is not None:
        return []
    return list(workload.check())
