"""`python -m benchmarks.modules_passed`: modules that a message, a group why, a micro-batch pass.

Law: counts calls in this process alone; the broker, and whoever else takes part, are processes of
their own. A change is a call into, or a return to, another module than the one before on its
thread.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from pyspark.sql.types import (
    BinaryType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

import rocketstream
from rocketstream import (
    ConsumeConcurrentlyStatus,
    ConsumeOrderlyStatus,
    Message,
    Producer,
    PushConsumer,
)
from rocketstream.admin import Admin
from rocketstream.columns.table import COLUMNS
from rocketstream.spark.source import RocketMQDataSource

PACKAGE = str(Path(rocketstream.__file__).parent)
TOPIC = "passed"
FIRST = rocketstream.ConsumeFromWhere.FIRST_OFFSET
PATIENCE_S = 60.0
REVOKED_S = 3.0
"""Until a member that has come has its queues."""
AGED_S = 0.2
"""Longer than the known ends of queues are trusted."""
_TYPES = {
    "string": StringType(),
    "int": IntegerType(),
    "bigint": LongType(),
    "binary": BinaryType(),
    "timestamp": TimestampType(),
    "map<string,string>": MapType(StringType(), StringType()),
}
OTHER_MEMBER = """
import sys
from rocketstream import ConsumeOrderlyStatus, PushConsumer
consumer = PushConsumer({group!r}, namesrv_addr={namesrv!r}, subscription={{{topic!r}: "*"}})
consumer.register_message_listener(lambda _: ConsumeOrderlyStatus.SUCCESS, orderly=True)
with consumer:
    print("started", flush=True)
    sys.stdin.read()
"""


class Passed:
    """Modules that were passed, and how often the module changed."""

    def __init__(self) -> None:
        self.modules: set[str] = set()
        self.changes = 0
        self.is_on = False
        self._at = threading.local()

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        """Note an event of the profiler."""
        if not self.is_on or event not in ("call", "return"):
            return
        seen = frame if event == "call" else frame.f_back
        while seen is not None and not seen.f_code.co_filename.startswith(PACKAGE):
            seen = seen.f_back
        if seen is None:
            self._at.module = None
            return
        module = seen.f_code.co_filename
        if module != getattr(self._at, "module", None):
            self._at.module = module
            self.modules.add(module.removeprefix(PACKAGE + "/"))
            self.changes += 1

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Count what happens meanwhile."""
        self.modules, self.changes, self.is_on = set(), 0, True
        yield
        self.is_on = False

    def told(self, what: str) -> str:
        """Return a line for people."""
        return f"{what}: {len(self.modules)} modules, {self.changes} changes of module"


def wait(is_so: Callable[[], bool], what: str) -> None:
    """Look until something is so."""
    end = time.monotonic() + PATIENCE_S
    while not is_so():
        if time.monotonic() > end:
            raise TimeoutError(what)
        time.sleep(0.02)


@contextmanager
def served() -> Iterator[str]:
    """Run servers in another process; gives the name server's address."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "rocketstream", "serve", "--namesrv-port", "0"]
        command += ["--broker-port", "0", "--store", folder]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
            assert server.stdout is not None
            words = dict(w.split("=", 1) for w in server.stdout.readline().split() if "=" in w)
            yield words["namesrv"]
            server.terminate()


def of_a_send(passed: Passed, namesrv: str) -> str:
    """One synchronous send of a producer that has sent before."""
    with Producer("senders", namesrv_addr=namesrv) as producer:
        for _ in range(20):
            producer.send(Message(TOPIC, b"before"))
        with passed.counted():
            producer.send(Message(TOPIC, b"counted"))
    return passed.told("Producer.send")


def command(namesrv: str, *words: str) -> None:
    """Run one of our commands in another process."""
    line = [sys.executable, "-m", "rocketstream", *words, "-n", namesrv]
    subprocess.run(line, check=True, capture_output=True)


def is_done(namesrv: str, group: str) -> bool:
    """Whether a group has committed all there is."""
    line = [sys.executable, "-m", "rocketstream", "group", "lag", group, "--max", "0"]
    return not subprocess.run([*line, "-n", namesrv], capture_output=True).returncode


def of_a_message(passed: Passed, namesrv: str) -> str:
    """One message of a push consumer, from the answer of its pull to its commit."""
    seen: list[str] = []

    def listen(messages: list[rocketstream.MessageExt]) -> ConsumeConcurrentlyStatus:
        seen.extend(message.msg_id for message in messages)
        return ConsumeConcurrentlyStatus.CONSUME_SUCCESS

    with PushConsumer(
        "passers", namesrv_addr=namesrv, listener=listen, subscription={TOPIC: "*"},
        consume_from_where=FIRST, persist_consumer_offset_interval_ms=1000,
    ):  # fmt: skip
        wait(lambda: bool(seen) and is_done(namesrv, "passers"), "the messages before")
        before = len(seen)
        with passed.counted():
            command(namesrv, "send", TOPIC, "counted")
            wait(lambda: len(seen) > before, "the message")
            wait(lambda: is_done(namesrv, "passers"), "its commit")
    return passed.told("a pushed message, from its pull to its commit")


def of_a_revoke(passed: Passed, namesrv: str) -> str:
    """Half of the queues of an orderly consumer, which go to a member that comes."""
    seen: list[int] = []

    def listen(messages: list[rocketstream.MessageExt]) -> ConsumeOrderlyStatus:
        seen.append(len(messages))
        return ConsumeOrderlyStatus.SUCCESS

    consumer = PushConsumer(
        "keepers", namesrv_addr=namesrv, subscription={TOPIC: "*"}, consume_from_where=FIRST
    )
    consumer.register_message_listener(listen, orderly=True)
    with consumer:
        wait(lambda: bool(seen) and is_done(namesrv, "keepers"), "the messages before")
        code = OTHER_MEMBER.format(group="keepers", namesrv=namesrv, topic=TOPIC)
        with passed.counted():
            other = subprocess.Popen(
                [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )
            with other:
                assert other.stdout is not None
                other.stdout.readline()
                time.sleep(REVOKED_S)
                passed.is_on = False
    return passed.told("an orderly revoke")


def of_a_why(passed: Passed, namesrv: str) -> str:
    """One `Admin.groups.why` of a group with one member, by an `Admin` that is made for it."""
    code = OTHER_MEMBER.format(group="asked", namesrv=namesrv, topic=TOPIC)
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as member:
        assert member.stdout is not None
        member.stdout.readline()
        wait(lambda: is_done(namesrv, "asked"), "the messages before")
        with passed.counted(), Admin(namesrv) as admin:
            admin.groups.why("asked")
    return passed.told("Admin.groups.why")


def of_a_micro_batch(passed: Passed, namesrv: str) -> str:
    """The calls Spark makes for one micro-batch of a stream that has read one before."""
    every = StructType([StructField(name, _TYPES[kind]) for name, kind in COLUMNS.items()])
    given = {"nameserver": namesrv, "topic": TOPIC, "startingoffsets": "earliest"}
    reader, task = (RocketMQDataSource(given).streamReader(every) for _ in range(2))

    def batch(start: dict[str, Any]) -> dict[str, Any]:
        end = reader.latestOffset(start, None)
        for partition in reader.partitions(start, end):
            for _ in task.read(partition):
                pass
        return end

    end = batch(reader.initialOffset())
    command(namesrv, "send", TOPIC, "counted")
    time.sleep(AGED_S)
    with passed.counted():
        batch(end)
    reader.stop()
    driver = sum(name.startswith("spark/") for name in passed.modules)
    return passed.told("latestOffset to record batch") + f", {driver} of them of spark"


def main() -> int:
    """Count and print."""
    passed = Passed()
    threading.setprofile(passed)
    sys.setprofile(passed)
    with served() as namesrv:
        for count in (of_a_send, of_a_message, of_a_revoke, of_a_why, of_a_micro_batch):
            sys.stdout.write(count(passed, namesrv) + "\n")
            sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
