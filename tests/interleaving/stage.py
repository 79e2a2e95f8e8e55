"""A scene: a cluster, a client, calls of several threads at once, and what must be true after."""

from __future__ import annotations

import contextlib
import gc
import hashlib
import logging
import random
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from rocketstream import Message, Producer
from rocketstream._util import loops
from rocketstream.errors import RocketMQError
from rocketstream.protocol.message_ext import MessageExt, decode_messages
from rocketstream.server.embedded import EmbeddedCluster
from rocketstream.server.store import StoreConfig
from rocketstream.testing.sim.disk import Disk, SimFiles
from tests.interleaving.primitives import simulated
from tests.interleaving.scheduler import HangError, Scheduler

TOPIC: Final = "T"
_STORE = StoreConfig(
    commit_log_file_bytes=1 << 20, consume_queue_file_bytes=20 * 500, index_slots=16,
    index_entries=64,
)  # fmt: skip


@dataclass
class Call:
    """A call that a thread makes.

    Attributes:
        name: its name.
        function: what is called.
        may_fail: whether an error of the product may end it.
        value: its result.
        error: the error that ended it.
        is_over: whether it has ended.
    """

    name: str
    function: Callable[[], Any]
    may_fail: bool = False
    value: Any = None
    error: BaseException | None = None
    is_over: bool = False

    def run(self) -> None:
        """Make the call and keep how it ends."""
        try:
            self.value = self.function()
        except BaseException as error:
            self.error = error
        self.is_over = True


class Stage:
    """The place of one scene.

    Attributes:
        chance: what a scene draws from.
        cluster: the running cluster; it has ``TOPIC`` with two queues.
        problems: the promises that were broken.
    """

    def __init__(self, seed: object, scheduler: Scheduler, cluster: EmbeddedCluster) -> None:
        self.chance = random.Random(f"{seed} scene")
        self.scheduler = scheduler
        self.cluster = cluster
        self.problems: list[str] = []
        self._bodies = 0

    def ours(self, **settings: Any) -> dict[str, Any]:
        """Return the keyword arguments of a client."""
        return {"namesrv_addr": self.cluster.namesrv_addr, **settings}

    def draw(self, number: int, names: Collection[str]) -> list[str]:
        """Return so many of the names, any of them several times."""
        return self.chance.choices(sorted(names), k=number)

    def body(self) -> bytes:
        """Return a body no other message has."""
        self._bodies += 1
        return b"%d" % self._bodies

    def bodies(self, number: int) -> list[bytes]:
        """Return several of them."""
        return [self.body() for _ in range(number)]

    def fill(self, number: int) -> list[bytes]:
        """Store messages in ``TOPIC``; return their bodies."""
        bodies = self.bodies(number)
        with Producer("filling", **self.ours(instance_name="filling")) as producer:
            for body in bodies:
                producer.send(Message(TOPIC, body))
        return bodies

    def stored(self, topic: str = TOPIC) -> list[bytes]:
        """Return the bodies of what is stored."""
        return [bytes(message.body) for message in self.messages(topic)]

    def messages(self, topic: str = TOPIC) -> list[MessageExt]:
        """Return what is stored."""
        store, found = self.cluster.broker.store, []
        for queue_id in sorted(store.queue_ids(topic)):
            at, end = store.min_offset(topic, queue_id), store.max_offset(topic, queue_id)
            while at < end:
                result = store.get(topic, queue_id, at, 32)
                for part in result.records:
                    found.extend(decode_messages(part))
                at = result.next_begin_offset
        return found

    def at_once(self, *calls: Call, within: int = 2_500) -> None:
        """Make calls, each in a thread of its own, stopped at drawn steps; wait for their ends."""
        threads = [threading.Thread(target=call.run, name=call.name) for call in calls]
        self.scheduler.explore(within)
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.scheduler.stop_exploring()
        for call in calls:
            if call.error is not None and not (
                call.may_fail and isinstance(call.error, RocketMQError)
            ):
                self.problem(f"{call.name} raised {_told(call.error)}")

    def until(self, is_so: Callable[[], bool], seconds: float = 30.0) -> bool:
        """Let virtual time pass until something is so; return whether it is."""
        return self.scheduler.wait(is_so, seconds)

    def expect(self, is_so: bool, text: str) -> None:
        """Note a broken promise unless something is so."""
        if not is_so:
            self.problem(text)

    def problem(self, text: str) -> None:
        """Note a broken promise."""
        self.problems.append(text)


@dataclass
class Result:
    """How a scene went.

    Attributes:
        seed: its seed.
        scene: its name.
        problems: promises that were broken.
        switches: where threads were when others went on.
    """

    seed: int
    scene: str
    problems: list[str]
    switches: list[str] = field(repr=False)

    @property
    def digest(self) -> str:
        """Stands for the order in which the threads ran."""
        return hashlib.sha256("\n".join(self.switches).encode()).hexdigest()[:16]

    def told(self) -> str:
        """Return what broke, and where threads were stopped before."""
        stops = [each for each in self.switches if ".py:" in each]
        lines = [
            f"{self.scene}, seed {self.seed}:",
            *self.problems,
            "threads were stopped:",
            *stops,
        ]
        return "\n  ".join(lines)


def run_scene(name: str, play: Callable[[Stage], None], seed: int) -> Result:
    """Play one scene; equal seeds play alike."""
    scheduler = Scheduler(f"{name} {seed}")
    stage: Stage | None = None
    random.seed(f"{name} {seed}")
    with _heard() as heard, _collected(), simulated(scheduler):
        try:
            files = SimFiles(Disk(random.Random(seed), lambda: int(scheduler.now_s * 1000)))
            with EmbeddedCluster(Path("/store"), files=files, store_config=_STORE) as cluster:
                cluster.create_topic(TOPIC, 2)
                scheduler.leave_alone()
                stage = Stage(f"{name} {seed}", scheduler, cluster)
                play(stage)
            scheduler.stop_exploring()
            if not scheduler.wait(lambda: not scheduler.left(), 60.0):
                heard.append(f"threads were left: {scheduler.left()}")
        except HangError as error:
            heard.append(str(error))
        finally:
            scheduler.stop_exploring()
    problems = [] if stage is None else stage.problems
    return Result(seed, name, problems + heard, scheduler.switches)


@contextlib.contextmanager
def _collected() -> Iterator[None]:
    """Collect garbage at the end alone: what it runs would count as steps."""
    gc.disable()
    gc.freeze()  # what was there before need not be looked through
    try:
        yield
        gc.collect()
    finally:
        gc.unfreeze()
        gc.enable()


class _Heard(logging.Handler):
    """Takes down what is logged as an error or with a traceback."""

    def __init__(self, heard: list[str]) -> None:
        super().__init__()
        self._heard = heard

    def createLock(self) -> None:
        self.lock = None  # threads are stopped while they log, too

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno >= logging.ERROR or record.exc_info:
            error = record.exc_info[1] if record.exc_info else None
            self._heard.append(f"logged: {record.getMessage()}: {_told(error)}")


@contextlib.contextmanager
def _heard() -> Iterator[list[str]]:
    """Yield what nobody may be told of: errors that are logged or not caught, tasks left over."""
    heard: list[str] = []
    root = logging.getLogger()
    before = root.handlers, threading.excepthook, sys.unraisablehook, loops._cancel_all

    def cancel_all(loop: Any) -> None:
        import asyncio

        tasks = [repr(task) for task in asyncio.all_tasks(loop)]
        # A call that a thread waits for is ended by the end of the loop, and the thread is told; so
        # is one that waits for users' code on a thread.
        known = "cb=[_tell(", "_chain_future"
        left = [task for task in tasks if not any(word in task for word in known)]
        heard.extend(f"a task was left: {task}" for task in left)
        before[3](loop)

    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        root.handlers = [_Heard(heard)]
        threading.excepthook = lambda each: heard.append(f"not caught: {_told(each.exc_value)}")
        sys.unraisablehook = lambda each: heard.append(f"not raised: {_told(each.exc_value)}")
        loops._cancel_all = cancel_all
        try:
            yield heard
        finally:
            root.handlers, threading.excepthook, sys.unraisablehook, loops._cancel_all = before
            heard.extend(f"warned: {each.message}" for each in warned)


def _told(error: BaseException | None) -> str:
    if error is None:
        return "no error"
    return "".join(traceback.format_exception(error))[-2_000:]
