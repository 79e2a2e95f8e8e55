"""Apache RocketMQ running: name server, broker, mqadmin and Java programs on free loopback ports.

Law: no pytest here, benchmarks use it too. The referee is asked with frames written by hand, so
that readiness never rests on the code under test.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import re
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.kits.apache.jvm import SMALL_JVM, Jvm
from tests.kits.apache.referee import JAVA_OPENS, Referee
from tests.plugins.kept import kept
from tests.plugins.waiting import wait_until

SHORT_DELAYS = " ".join(["1s"] * 18)
"""Delay levels of one second each: a retry must not take longer than a test may."""
BROKER_NAME = "broker-a"
CLUSTER_NAME = "DefaultCluster"

_LOGBACK = """<configuration>
  <appender name="out" class="ch.qos.logback.core.ConsoleAppender">
    <target>System.err</target>
    <encoder><pattern>%d{HH:mm:ss.SSS} %-5p [%t] %logger{20} - %m%n</pattern></encoder>
  </appender>
  <root level="WARN"><appender-ref ref="out"/></root>
</configuration>
"""
BOOT_TIMEOUT_S = 150
"""A JVM that starts takes seconds of a core, and gets a tenth of one on a busy machine."""
MQADMIN_ATTEMPTS = 3
"""mqadmin gives a request 3 or 5 seconds, too few for a cold JVM on a loaded machine."""
_OUT_OF_TIME = re.compile(
    r"Remoting(Timeout|Connect|SendRequest|TooMuchRequest)Exception|timeout"
    # Java's client logs that a name server was too slow into a file of its own, and says only this:
    r"|not matched route info|No (topic )?route info|finished, but no message"
)
_serial = itertools.count()
_STATUS_LINE = re.compile(r"^\d\d:\d\d:\d\d[,.]\d{3} \|-|^SLF4J|^RocketMQLog")


def ask(address: str, code: int, ext: dict[str, str], body: bytes = b"") -> tuple[int, bytes]:
    """Send one request over a socket of its own and return the answer's code and body."""
    header = json.dumps(
        {"code": code, "language": "PYTHON", "version": 409, "opaque": 1, "flag": 0}
        | {"extFields": ext}
    ).encode()
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=5) as peer:
        peer.sendall(struct.pack(">ii", 4 + len(header) + len(body), len(header)) + header + body)
        with peer.makefile("rb") as stream:
            length, word = struct.unpack(">ii", stream.read(8))
            rest = stream.read(length - 4)
    header_bytes = word & 0xFFFFFF
    return int(json.loads(rest[:header_bytes])["code"]), rest[header_bytes:]


def _free(ports: list[int]) -> bool:
    with ExitStack() as stack:
        try:
            for port in ports:
                probe = stack.enter_context(socket.socket())
                probe.bind(("", port))
        except OSError:
            return False
    return True


def free_port_for(offsets: tuple[int, ...] = (0,)) -> int:
    """A port P with P + each offset free, below the range the system hands out to clients."""
    for candidate in random.SystemRandom().sample(range(15_000, 32_000), 2_000):
        if _free([candidate + offset for offset in offsets]):
            return candidate
    raise RuntimeError("no free ports between 15000 and 32000")


class ApacheCluster:
    """A name server and one broker of the referee, each a JVM of its own.

    Attributes:
        namesrv_addr: ``host:port`` of the name server.
        broker_addr: ``host:port`` of the broker.
        store_dir: the broker's storePathRootDir; ``config/consumerOffset.json`` lies below it.
        tls: whether both take TLS too.
    """

    def __init__(
        self,
        referee: Referee,
        root: Path,
        *,
        store_dir: Path | None = None,
        delay_levels: str = SHORT_DELAYS,
        flush: str = "ASYNC_FLUSH",
        broker_settings: dict[str, str] | None = None,
        jvm_options: tuple[str, ...] = SMALL_JVM,
        broker_heap: str = "512m",
        tls: bool = False,
    ) -> None:
        self.referee = referee
        self.root = root
        self.store_dir = store_dir or root / "store"
        self.delay_levels = delay_levels
        self.flush = flush
        self.broker_settings = broker_settings or {}
        self.jvm_options = jvm_options
        self.broker_heap = broker_heap
        self.tls = tls
        self.namesrv_addr = ""
        self.broker_addr = ""
        self._processes: list[Jvm] = []
        self._serial = itertools.count()

    # --- life -------------------------------------------------------------------------------

    def start(self) -> Self:
        """Start both and return when the broker is registered and a created topic has a route."""
        self._write_home()
        for attempt in itertools.count(1):
            try:
                self._start_once()
            except (RuntimeError, TimeoutError) as failure:
                # One that ended may have lost a port to another process between the look and the
                # bind. One that is only late would need all its time again.
                self.stop(kill=True)
                if attempt == 3 or isinstance(failure, TimeoutError):
                    raise
            else:
                return self
        raise AssertionError("unreachable")

    def _start_once(self) -> None:
        namesrv_port = free_port_for()
        self.namesrv_addr = f"127.0.0.1:{namesrv_port}"
        self._launch("namesrv", self._namesrv_settings(namesrv_port), "128m")
        broker_port = free_port_for((-2, 0, 1))
        self.broker_addr = f"127.0.0.1:{broker_port}"
        self._launch_broker()
        for process in self._processes:
            process.wait_line("boot success", timeout_s=BOOT_TIMEOUT_S)
        wait_until(self._registered, "registration of the broker", timeout_s=60)
        if not self.broker_settings.keys() & {"aclEnable", "authenticationEnabled"}:
            self.create_topic("ready", queues=1)

    def kill_broker(self) -> None:
        """kill -9 of the broker; the name server stays."""
        self._processes.pop().stop(kill=True)

    def restart_broker(self) -> None:
        """Start a killed broker where it was; returns when it is registered."""
        self._launch_broker()
        self._processes[-1].wait_line("boot success", timeout_s=BOOT_TIMEOUT_S)
        wait_until(self._registered, "registration of the broker", timeout_s=60)

    def _launch_broker(self) -> None:
        port = int(self.broker_addr.rpartition(":")[2])
        self._launch("broker", self._broker_settings(port), self.broker_heap)

    def _registered(self) -> bool:
        try:
            code, body = ask(self.namesrv_addr, 106, {})
        except OSError:
            return False
        return code == 0 and self.broker_addr.encode() in body

    def stop(self, *, kill: bool = False) -> None:
        """End both processes: the broker in its own order (7 to 17 seconds), or killed."""
        for process in reversed(self._processes):
            # The name server keeps nothing that a kill could lose.
            process.stop(kill=kill or process.name == "namesrv", timeout_s=60)
        self._processes.clear()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    # --- files and processes ------------------------------------------------------------------

    def _write_home(self) -> None:
        conf = self.root / "home" / "conf"
        conf.mkdir(parents=True, exist_ok=True)
        (self.root / "user").mkdir(exist_ok=True)
        for part in ("namesrv", "broker", "tools"):
            (conf / f"logback_{part}.xml").write_text(_LOGBACK)

    def _namesrv_settings(self, port: int) -> dict[str, str]:
        state = self.root / "namesrv"
        settings = {
            "listenPort": str(port),
            "kvConfigPath": str(state / "kvConfig.json"),
            "configStorePath": str(state / "namesrv.properties"),
        }
        return settings | self._loopback()

    def _broker_settings(self, port: int) -> dict[str, str]:
        settings = {
            "brokerClusterName": CLUSTER_NAME,
            "brokerName": BROKER_NAME,
            "brokerId": "0",
            "namesrvAddr": self.namesrv_addr,
            "brokerIP1": "127.0.0.1",
            "listenPort": str(port),
            "storePathRootDir": str(self.store_dir),
            "storePathCommitLog": str(self.store_dir / "commitlog"),
            "mappedFileSizeCommitLog": str(128 * 1024 * 1024),
            "autoCreateTopicEnable": "true",
            "autoCreateSubscriptionGroup": "true",
            "flushDiskType": self.flush,
            "messageDelayLevel": self.delay_levels,
            # On two cores a send may wait behind another JVM: that is no reason to refuse it here.
            "waitTimeMillsInSendQueue": "10000",
            "osPageCacheBusyTimeOutMills": "10000",
            "flushConsumerOffsetInterval": "1000",
            "recallMessageEnable": "true",
            # 5.x notes ended transactions in batches, and a thread of 5.5.0 spins from one interval
            # after the last of them until the broker ends (batchSendOpMessage): here each is noted
            # at once, and none is as old as the interval.
            "transactionOpMsgMaxSize": "1",
            "transactionOpBatchInterval": "3600000",
            # 5.x writes figures of transactions this often; until the first time a thread spins.
            "transactionMetricFlushInterval": "250",
            # 5.x compares its wheel of timers, 37 MB, byte by byte each second: a fifth of a core.
            "timerFlushIntervalMs": "60000",
        }
        return settings | self._loopback() | self.broker_settings

    def _loopback(self) -> dict[str, str]:
        return {"bindAddress": "127.0.0.1"} if self.referee.version.startswith("5") else {}

    def _launch(self, part: str, settings: dict[str, str], heap: str) -> None:
        file = self.root / f"{part}.properties"
        file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        main = {
            "namesrv": "org.apache.rocketmq.namesrv.NamesrvStartup",
            "broker": "org.apache.rocketmq.broker.BrokerStartup",
        }[part]
        arguments = [f"-Xmx{heap}", f"-XX:MaxDirectMemorySize={heap}", *self.jvm_options]
        arguments += [*JAVA_OPENS, f"-Duser.home={self.root / 'user'}"]
        # Servers that may be asked for TLS make a key and a certificate as they start.
        arguments += [] if self.tls else ["-Dtls.server.mode=disabled"]
        arguments += [*self.referee.servers, main, "-c", str(file)]
        self._processes.append(Jvm(part, arguments, self.root / f"{part}.log", self._env()))

    def _env(self) -> dict[str, str]:
        return {"ROCKETMQ_HOME": str(self.root / "home")}

    @property
    def pids(self) -> list[int]:
        """Process ids of name server and broker."""
        return [process.pid for process in self._processes]

    # --- use ------------------------------------------------------------------------------------

    def create_topic(self, name: str, queues: int = 4, perm: int = 6, attributes: str = "") -> str:
        """Create a topic on the broker and return when its route answers.

        ``attributes`` are those of 5.x, such as ``+queue.type=BatchCQ``.
        """
        create_topic(self.namesrv_addr, self.broker_addr, name, queues, perm, attributes)
        return name

    def topics(self) -> set[str]:
        """Every topic the name server knows."""
        _, body = ask(self.namesrv_addr, 206, {})
        return set(json.loads(body)["topicList"])

    def unique(self, word: str) -> str:
        """A name nobody else in this cluster uses."""
        return f"{word}-{os.getpid()}-{next(self._serial)}"

    def committed(self, topic: str, group: str) -> dict[int, int]:
        """Committed offsets by queue id as the broker's own file holds them now."""
        return committed_offsets(self.store_dir, topic, group)

    def mqadmin(self, *arguments: str) -> str:
        """Run one mqadmin command against this cluster and return what it printed."""
        return run_mqadmin(self.referee, self.root, self.namesrv_addr, *arguments)


def create_topic(
    namesrv_addr: str,
    broker_addr: str,
    name: str,
    queues: int = 4,
    perm: int = 6,
    attributes: str = "",
) -> None:
    """Create a topic on any broker and return when its route answers."""
    ext = {
        "topic": name,
        "defaultTopic": "TBW102",
        "readQueueNums": str(queues),
        "writeQueueNums": str(queues),
        "perm": str(perm),
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": "0",
        "order": "false",
    }
    if attributes:
        ext["attributes"] = attributes
    code, _ = ask(broker_addr, 17, ext)
    if code != 0:
        raise RuntimeError(f"creating topic {name} answered code {code}")
    wait_until(lambda: has_route(namesrv_addr, name), f"route of topic {name}")


def create_retry_topic(namesrv_addr: str, broker_addr: str, group: str) -> None:
    """Make a group's retry topic routable before its first consumer starts.

    The 5.5 client asks for that route before its first heartbeat, which is what makes a broker
    create the topic, and then not again for 30 s.
    """
    create_topic(namesrv_addr, broker_addr, f"%RETRY%{group}", queues=1)


def has_route(namesrv_addr: str, topic: str) -> bool:
    """Whether the name server knows the topic."""
    return ask(namesrv_addr, 105, {"topic": topic})[0] == 0


def committed_offsets(store_dir: Path, topic: str, group: str) -> dict[int, int]:
    """Read a broker's ``config/consumerOffset.json`` (bare integer keys, so not plain JSON)."""
    try:
        text = (store_dir / "config" / "consumerOffset.json").read_text()
    except FileNotFoundError:
        return {}
    quoted = re.sub(r"([{,]\s*)(\d+)\s*:", r'\1"\2":', text)
    try:
        table: dict[str, dict[str, int]] = json.loads(quoted)["offsetTable"]
    except ValueError:
        # 4.9 replaces the file by writing over it: a look in between sees half of it.
        return {}
    return {int(queue): offset for queue, offset in table.get(f"{topic}@{group}", {}).items()}


def run_mqadmin(referee: Referee, root: Path, namesrv_addr: str, *arguments: str) -> str:
    """Run an mqadmin command of the referee against any name server, ours included."""
    tools = kept("mqadmin", Tools)
    for attempt in range(MQADMIN_ATTEMPTS):
        told, complaints = tools.run(referee, root, [*arguments, "-n", namesrv_addr])
        if not _OUT_OF_TIME.search(complaints):
            break
        print(f"mqadmin {arguments} ran out of its own time (attempt {attempt + 1})")
    if complaints:
        print(f"mqadmin {arguments} complained: {complaints}")
    return "\n".join(line for line in told if not _STATUS_LINE.match(line)) + "\n"


class Tools:
    """mqadmin as a program that stays: one process for the commands of a home, till another one.

    Commands run one after the other, whichever threads ask for them.
    """

    def __init__(self, jvm_options: tuple[str, ...] = SMALL_JVM) -> None:
        self._jvm_options = jvm_options
        self._turn = threading.Lock()
        self._process: Jvm | None = None
        self._key: tuple[object, ...] = ()

    def run(self, referee: Referee, root: Path, words: list[str]) -> tuple[list[str], str]:
        """Run a command; return the lines it printed, and what it wrote to standard error."""
        with self._turn:
            return self._run(self._process_of(referee, root), words)

    def _run(self, process: Jvm, words: list[str]) -> tuple[list[str], str]:
        told_before, read_before = len(process.output), process.log.stat().st_size
        process.tell("\037".join(words))
        try:
            process.wait_line("\036", timeout_s=60)
            told = process.output[told_before:]
        except RuntimeError:  # some commands end the process that runs them
            told = [*process.output[told_before:], "\036"]
            self.close()
        except TimeoutError:  # what it says later is no answer to the next command
            self.close()
            raise
        complaints = process.log.read_bytes()[read_before:].decode(errors="replace")
        # The line end before the separator ends a last line that lacks its own.
        return told[: told.index("\036")], complaints

    def _process_of(self, referee: Referee, root: Path) -> Jvm:
        key = (referee.version, root, os.environ.get("JAVA_TOOL_OPTIONS"))
        if self._process is None or key != self._key:
            self.close()
            home = root / "home"
            (home / "conf").mkdir(parents=True, exist_ok=True)
            (home / "conf" / "logback_tools.xml").write_text(_LOGBACK)
            flags = ["-Xmx128m", *self._jvm_options, *JAVA_OPENS]
            flags += [f"-Duser.home={root / 'user'}", "-Drocketmq.log.level=WARN"]
            line = [*flags, *referee.programs, "JavaTools"]
            log = root / f"mqadmin-{next(_serial)}.log"
            self._process = Jvm("mqadmin", line, log, {"ROCKETMQ_HOME": str(home)})
            self._key = key
        return self._process

    def close(self) -> None:
        """End the process, if there is one."""
        if self._process is not None:
            self._process.stop(kill=True)
            self._process = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


class JavaPrograms:
    """Starts the Java programs of ``tests/kits/apache/java`` with the client of one version."""

    def __init__(self, referee: Referee, root: Path) -> None:
        self.referee = referee
        self.root = root
        root.mkdir(parents=True, exist_ok=True)
        self._logback = root / "logback.xml"
        self._logback.write_text(_LOGBACK)
        self._serial = itertools.count()

    def start(
        self, program: str, *, jvm_options: tuple[str, ...] = SMALL_JVM, **arguments: Any
    ) -> Jvm:
        """Start ``program`` with name=value arguments; use it as a context manager."""
        flags = ["-Xmx512m", *jvm_options, f"-Duser.home={self.root / 'user'}"]
        flags += ["-Drocketmq.client.logUseSlf4j=true", "-Drocketmq.log.level=WARN"]
        flags += [f"-Dlogback.configurationFile={self._logback}"]
        flags += ["-Drocketmq.client.rebalance.waitInterval=1000"]
        values = [f"{name}={_java(value)}" for name, value in arguments.items()]
        log = self.root / f"{program}-{next(self._serial)}.log"
        line = [*flags, *self.referee.programs, program, *values]
        return Jvm(program, line, log)

    def produce(self, *, timeout_s: float = 120.0, **arguments: Any) -> dict[str, Any]:
        """Run JavaProducer to its end and return its figures; every send must have succeeded."""
        with self.producing(timeout_s=timeout_s, **arguments) as done:
            return done

    @contextmanager
    def producing(self, *, timeout_s: float = 120.0, **arguments: Any) -> Iterator[dict[str, Any]]:
        """Have JavaProducer send and stay until the block ends, for its traces to be sent too."""
        with self.start("JavaProducer", **arguments) as process:
            done = process.wait_event("done", timeout_s)
            if done["failed"]:
                raise RuntimeError(f"{done}\n{process.tail()}")
            yield done
            process.end_input()
            process.wait(timeout_s=30)


def _java(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def mqadmins(cluster: ApacheCluster, group: str, topic: str) -> dict[int, tuple[int, int, int]]:
    """Return broker offset, consumer offset and Diff of each queue as mqadmin prints them."""
    found = {}
    for line in cluster.mqadmin("consumerProgress", "-g", group).splitlines():
        words = line.split()
        if words and words[0] == topic:
            numbers = [int(word) for word in words[2:] if word.lstrip("-").isdecimal()]
            found[numbers[0]] = (numbers[1], numbers[2], numbers[3])
    return found
