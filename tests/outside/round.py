"""One round: a cluster, its workers, the faults of a seed, calm, and the history of it all."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tests.outside import disk, shim
from tests.outside.cluster import Cluster, worker
from tests.outside.faults import BROKER, KINDS, NETWORK, Kind, Planned, plan
from tests.outside.history import Group, History, Send, read
from tests.outside.installed import environment
from tests.outside.processes import EndedError, Process, seconds_since
from tests.outside.recording import Recorder, lines, pause
from tests.outside.rules import waiting

PLAIN, KEYED, LATE, LEDGER = "plain", "keyed", "late", "ledger"
TOPICS = {PLAIN: 4, KEYED: 3, LATE: 2, LEDGER: 2}
PATIENCE_S = 180.0
"""More than the expiry of dead members, which the guarantees name."""
CALM_S = 6.0


@dataclass(frozen=True)
class Post:
    """A worker of the round: what it does, and where."""

    name: str
    role: str
    topic: str
    group: str = ""
    rate: float = 15.0
    retries: int = 2

    @property
    def sends(self) -> bool:
        """Whether it is a producer."""
        return not self.group


GROUPS = (
    Group("many", "push", PLAIN, max_reconsume_times=2),
    Group("batches", "push-batches", PLAIN, max_reconsume_times=2),
    Group("pulled", "lite", PLAIN),
    Group("some-tags", "push", PLAIN, tags=("A", "B"), max_reconsume_times=2),
    Group("dark", "push-awaited", PLAIN, shades=("dark",), max_reconsume_times=2),
    Group("everyone", "broadcast", PLAIN),
    Group("ordered", "orderly", KEYED),
    Group("late", "push", LATE, max_reconsume_times=2),
    Group("booked", "push", LEDGER, max_reconsume_times=2),
)
READER = Group("reader", "reader", "", is_observer=True)
SMALL = (
    Post("sync", "sync", PLAIN, retries=0),
    Post("batch", "batch", PLAIN, rate=6),
    Post("keyed", "keyed", KEYED, rate=25),
    Post("delayed", "delayed", LATE, rate=6, retries=0),
    Post("ledger-a", "transactions", LEDGER, rate=6, retries=0),
    Post("many-a", "push", PLAIN, "many"),
    Post("many-b", "push", PLAIN, "many"),
    Post("pulled-a", "lite", PLAIN, "pulled"),
    Post("dark-a", "push-awaited", PLAIN, "dark"),
    Post("everyone-a", "broadcast", PLAIN, "everyone"),
    Post("ordered-a", "orderly", KEYED, "ordered"),
    Post("ordered-b", "orderly", KEYED, "ordered"),
    Post("late-a", "push", LATE, "late"),
    Post("booked-a", "push", LEDGER, "booked"),
)
ALL = (
    *SMALL,
    Post("awaited", "awaited", PLAIN),
    Post("oneway", "oneway", PLAIN, rate=3),
    Post("ledger-b", "transactions", LEDGER, rate=4),
    Post("batches-a", "push-batches", PLAIN, "batches"),
    Post("pulled-b", "lite", PLAIN, "pulled"),
    Post("some-tags-a", "push", PLAIN, "some-tags"),
    Post("everyone-b", "broadcast", PLAIN, "everyone"),
)


@dataclass
class Setting:
    """What a round is like."""

    folder: Path
    package: Path
    seed: int = 1
    seconds: float = 10.0
    posts: Sequence[Post] = SMALL
    kinds: Sequence[Kind] = KINDS
    flush: str = "sync"
    patience_s: float = PATIENCE_S
    cheat: str = ""
    store: Path | None = None
    faults: Sequence[Planned] | None = None
    variables: dict[str, str] = field(default_factory=dict)
    java: Sequence[str] = ()
    """How Java's workers are started, where there are any."""


class Round:
    """Runs one; ``run`` returns the history."""

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        folder = setting.folder
        for name in ("history", "logs", "homes"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        self._environment = environment(setting.package, folder)
        self.cluster = Cluster(
            folder,
            {**self._environment, **setting.variables},
            flush=setting.flush,
            store=setting.store,
            cheat=setting.cheat,
        )
        self._notes = Recorder(folder / "history", "round")
        self._locks = defaultdict[str, threading.Lock](threading.Lock)
        """One for each target: what happens to one waits for no other."""
        self._processes: dict[str, Process] = {}
        self._incarnations: dict[str, int] = {}
        self._posts = {post.name: post for post in setting.posts}
        self._numbers = iter(range(1_000_000))
        self._chance = random.Random(setting.seed)

    def run(self) -> History:
        """Do it all, whatever happens on the way."""
        try:
            self._begin()
            self._do_faults()
            is_complete = self._calm_down()
            are_read = self._read()
            self._notes.note("end", is_complete=is_complete, letters_read=are_read)
        finally:
            self._end()
        return read(lines(self._setting.folder / "history"))

    def history(self) -> History:
        """The history so far."""
        return read(lines(self._setting.folder / "history"))

    def _begin(self) -> None:
        used = {post.group for post in self._setting.posts}
        groups = [group for group in GROUPS if group.name in used]
        self._notes.note(
            "round", seed=self._setting.seed, flush=self._setting.flush, send_timeout_s=3.0,
            retry_delay_s=1.0,
            groups=[asdict(group) for group in (*groups, READER)],
        )  # fmt: skip
        self.cluster.start()
        for topic, queues in TOPICS.items():
            self.cluster.create_topic(topic, queues)
        looks = [(group.name, group.topic) for group in groups if group.kind != "broadcast"]
        letters = [group.name for group in groups if group.max_reconsume_times >= 0]
        self._start(
            "observer", "observer", {"groups": looks, "topics": list(TOPICS), "letters": letters}
        )
        for post in self._setting.posts:
            self._start_post(post)
        self._until(lambda made: all(self._is_ready(made, post) for post in self._posts), 60)

    def _is_ready(self, made: History, name: str) -> bool:
        life = made.lives.get(self._by(name))
        return life is not None and life.ready is not None

    def _by(self, name: str) -> str:
        return f"{name}#{self._incarnations[name]}"

    def _start_post(self, post: Post) -> None:
        if post.sends:
            self._start(
                post.name,
                post.role,
                {"topic": post.topic, "rate": post.rate, "retries": post.retries},
            )
            return
        group = next(each for each in GROUPS if each.name == post.group)
        settings = {
            "topic": post.topic, "tags": group.tags, "shades": group.shades,
            "max_reconsume_times": group.max_reconsume_times, "fails": group.kind != "broadcast",
        }  # fmt: skip
        self._start(post.name, post.role, settings, post.group)

    def _start(self, name: str, role: str, settings: dict[str, object], group: str = "") -> None:
        self._incarnations[name] = self._incarnations.get(name, 0) + 1
        home = self._setting.folder / "homes" / name
        home.mkdir(exist_ok=True)
        if role.startswith("java-"):
            by, folder = self._by(name), self._setting.folder
            words = (role, by, folder, self.cluster.namesrv_addr, settings["topic"], group)
            line = [*self._setting.java, *map(str, words)]
            self._processes[name] = Process(by, line, folder / "logs" / f"{by}.log", os.environ)
            return
        self._processes[name] = worker(
            self._by(name), role, self._setting.folder, self.cluster.namesrv_addr,
            {**self._environment, "HOME": str(home)}, settings,
            group=group, package=self._setting.package,
        )  # fmt: skip

    def _until(self, holds: Callable[[History], bool], timeout_s: float) -> bool:
        deadline = time.monotonic() + timeout_s
        while not holds(self.history()):
            if time.monotonic() > deadline:
                return False
            pause(0.7)
        return True

    def _do_faults(self) -> None:
        began = time.monotonic()
        producers = [name for name, post in self._posts.items() if post.sends]
        consumers = [name for name, post in self._posts.items() if not post.sends]
        planned = self._setting.faults
        if planned is None:
            planned = plan(
                self._setting.seed, self._setting.seconds, producers, consumers, self._setting.kinds
            )
        threads = []
        for fault in planned:
            pause(max(0.0, began + fault.at_s - time.monotonic()))
            thread = threading.Thread(target=self._do, args=(fault,), daemon=True)
            thread.start()
            threads.append(thread)
        pause(max(0.0, began + self._setting.seconds - time.monotonic()))
        for thread in threads:
            thread.join()

    def _do(self, fault: Planned) -> None:
        number = next(self._numbers)
        try:
            if fault.target == NETWORK:
                self._do_network(number, fault)
            elif fault.what == "full-disk":
                self._fill_disk(number, fault)
            elif fault.what in shim.FAULTS:
                self._do_shim(number, fault)
            elif fault.what == "freeze":
                self._freeze(number, fault)
            else:
                self._take_away(number, fault)
        except Exception as error:
            self._notes.note("problem", text=f"{fault}: {type(error).__name__}: {error}")
        self._notes.note("healed", number=number)

    def _fault(self, number: int, what: str, target: str) -> None:
        self._notes.note("fault", number=number, what=what, target=target)

    def _do_network(self, number: int, fault: Planned) -> None:
        with self._locks[NETWORK]:
            self._fault(number, fault.what, NETWORK)
            amount = f" {0.02 + fault.how_much * 0.2:.3f}" if fault.what == "slow" else ""
            self.cluster.network(fault.what + amount)
        pause(fault.for_s)
        with self._locks[NETWORK]:
            self.cluster.network("pass")

    def _do_shim(self, number: int, fault: Planned) -> None:
        control = shim.Control(self._setting.folder / "shim")
        with self._locks[BROKER]:
            control.begin(fault.what, fault.how_much)
            self._fault(number, fault.what, BROKER)
        pause(fault.for_s)
        with self._locks[BROKER]:
            control.end(fault.what)

    def _fill_disk(self, number: int, fault: Planned) -> None:
        ballast = self.cluster.store.parent / "ballast"
        self._fault(number, fault.what, BROKER)
        disk.fill(ballast)
        pause(fault.for_s)
        ballast.unlink(missing_ok=True)

    def _freeze(self, number: int, fault: Planned) -> None:
        with self._locks[fault.target]:
            process = self._process(fault.target)
            if process is None or not process.is_running:
                return
            self._fault(number, "freeze", self._subject(fault.target))
            process.freeze()
        pause(fault.for_s)
        with self._locks[fault.target]:
            if process.is_running:
                process.go_on()

    def _process(self, target: str) -> Process | None:
        return self.cluster.broker if target == BROKER else self._processes.get(target)

    def _subject(self, target: str) -> str:
        return target if target == BROKER else self._by(target)

    def _take_away(self, number: int, fault: Planned) -> None:
        """Kill a process, or have it leave, and start it again after a while."""
        with self._locks[fault.target]:
            process = self._process(fault.target)
            if process is None or not process.is_running:
                return
            if fault.what in ("kill", "older-store"):
                self._fault(number, "kill", self._subject(fault.target))
                process.kill()
            else:
                self._leaves(number, fault.target, process)
            self._exchange(fault.what)
        pause(fault.for_s)
        with self._locks[fault.target]:
            if fault.target == BROKER:
                self.cluster.start_broker()
            else:
                self._start_post(self._posts[fault.target])

    def _exchange(self, what: str) -> None:
        """Keep a copy of the store of a broker that is stopped, or put it in the store's place."""
        store, copy = self.cluster.store, self._setting.folder / "store-copy"
        if what == "older-store":
            shutil.rmtree(store)
            store, copy = copy, store
        if what in ("copy-store", "older-store"):  # its log files are mostly holes
            subprocess.run(["cp", "-a", "--sparse=always", store, copy], check=True, timeout=120)

    def _leaves(self, number: int, target: str, process: Process) -> None:
        self._fault(number, "stop", self._subject(target))
        if process.leave() or self._subject(target) not in (BROKER, *self.history().lives):
            return  # or it had only just begun, and did not yet know how to leave
        text = f"{target} did not leave in good order:\n{process.tail()}"
        self._notes.note("problem", text=text)
        self._fault(number, "kill", self._subject(target))

    def _calm_down(self) -> bool:
        """Wait until all that is promised for calm times has come; tell whether it has."""
        self._until(lambda made: all(self._is_ready(made, name) for name in self._posts), 60)
        calm = self._notes.note("calm")
        for name, process in self._processes.items():
            if not process.is_running:
                self._notes.note("problem", text=f"{name} has ended by itself:\n{process.tail()}")
        pause(CALM_S)
        (self._setting.folder / "quiet").touch()
        self._until(lambda made: not any(send.ended is None for send in self._living(made)), 30)
        self._until(lambda made: not waiting(made), self._setting.patience_s - seconds_since(calm))
        self._leave(post.name for post in self._setting.posts if not post.sends)
        return True

    def _living(self, made: History) -> list[Send]:
        lives = {self._by(name) for name in self._posts}
        return [send for send in made.sends if send.by in lives]

    def _read(self) -> bool:
        (self._setting.folder / "final").touch()
        deadline = time.monotonic() + 120
        while not (self._setting.folder / "read").exists():
            if time.monotonic() > deadline:
                return False
            pause(0.2)
        return True

    def _leave(self, names: Iterable[str]) -> None:
        for name in list(names):
            process = self._processes.pop(name, None)
            if process is not None and process.is_running and not process.leave():
                text = f"{name} did not leave in good order:\n{process.tail()}"
                self._notes.note("problem", text=text)

    def _end(self) -> None:
        with suppress(EndedError):
            self._leave(self._posts)
            self._leave(["observer"])
        for process in self._processes.values():
            if process.is_running:
                process.kill()
        if not self.cluster.stop():
            assert self.cluster.broker is not None
            text = f"serve did not end in good order:\n{self.cluster.broker.tail()}"
            self._notes.note("problem", text=text)
        self._notes.close()
