"""A store with everything in it moves to an Apache broker, and back."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rocketstream import (
    ConsumeConcurrentlyStatus,
    LocalTransactionState,
    Message,
    MessageExt,
    Producer,
    TransactionListener,
    TransactionProducer,
)
from rocketstream.server.embedded import EmbeddedCluster
from tests.kits.apache.cluster import SHORT_DELAYS, ApacheCluster
from tests.kits.apache.ours import Collector, push_consumer
from tests.kits.apache.referee import Referee
from tests.plugins.waiting import wait_until

pytestmark = [pytest.mark.interop, pytest.mark.timeout(400)]

FILE_BYTES = 128 * 1024 * 1024
TOPIC, LATER, TILLS, SHOP = "orders", " ".join(["1h"] * 18), "tills", "shop"
CHECKS = {
    "transactionCheckInterval": "1000",
    "transactionTimeOut": "500",
    "transactionCheckMax": "1000",
}
SERVE = """
import sys
from pathlib import Path
from rocketstream.server.embedded import EmbeddedCluster
with EmbeddedCluster(
    Path(sys.argv[1]), delay_levels=sys.argv[2], commit_log_file_bytes=int(sys.argv[3]),
    transaction_check_interval_ms=3_600_000,
) as cluster:
    cluster.create_topic("orders", queues=4)
    print(cluster.namesrv_addr, flush=True)
    sys.stdin.read()
"""
ORDERED = [f"ordered-{number}" for number in range(20)]
BEFORE = {*ORDERED, "delayed", "committed", "undecided", "batch-0", "batch-1", "refused"} | {
    "x" * 50_000
}
"""Bodies that must come out in the end; what was rolled back must not."""


class Decisions(TransactionListener):
    """As each body says; asked later, everything is committed."""

    def execute_local_transaction(self, message: Message, arg: object) -> LocalTransactionState:
        return {
            b"committed": LocalTransactionState.COMMIT_MESSAGE,
            b"rolled back": LocalTransactionState.ROLLBACK_MESSAGE,
        }.get(message.body, LocalTransactionState.UNKNOW)

    def check_local_transaction(self, message: MessageExt) -> LocalTransactionState:
        return LocalTransactionState.COMMIT_MESSAGE


@contextmanager
def our_process(store: Path, *, kill: bool) -> Iterator[str]:
    """Our servers in a process of their own, which is killed or ends in order."""
    line = [sys.executable, "-c", SERVE, str(store), LATER, str(FILE_BYTES)]
    with subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().decode().strip()
        finally:
            if kill:
                process.send_signal(signal.SIGKILL)
            process.communicate(timeout=60)


def fill(namesrv: str) -> None:
    """Put everything into a store that a store can hold; what is delayed stays in it."""
    with Producer(TILLS, namesrv_addr=namesrv) as producer:
        for body in ORDERED:
            message = Message(TOPIC, body.encode(), keys="ordered")
            producer.send(message, selector=lambda queues, _, arg: queues[arg], arg=0)
        producer.send(Message(TOPIC, b"x" * 50_000))
        producer.send([Message(TOPIC, b"batch-0"), Message(TOPIC, b"batch-1")])
        producer.send(Message(TOPIC, b"delayed", delay_level=18))
        producer.send(Message(TOPIC, b"refused", tags="R"))
    with TransactionProducer(
        "sales", namesrv_addr=namesrv, transaction_listener=Decisions()
    ) as sales:
        for outcome in (b"committed", b"rolled back", b"undecided"):
            sales.send_message_in_transaction(Message(TOPIC, outcome))
    refusing = Collector(fails=lambda message: True)
    with push_consumer(namesrv, SHOP, TOPIC, refusing, "R"):
        refusing.wait_deliveries(1)
        # It is sent back when the consumer has left; the copy waits for its delay.


class Bodies:
    """A listener that remembers bodies in the order they came, of each queue."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def __call__(self, messages: list[MessageExt]) -> ConsumeConcurrentlyStatus:
        self.seen += [message.body.decode() for message in messages]
        return ConsumeConcurrentlyStatus.CONSUME_SUCCESS


def consumed(namesrv: str, group: str, wanted: set[str], expression: str = "*") -> list[str]:
    """Return what a group is given, once all that is wanted came."""
    came = Bodies()
    with push_consumer(namesrv, group, TOPIC, came, expression):
        wait_until(lambda: wanted <= set(came.seen), f"{len(wanted)} messages", timeout_s=90)
    return came.seen


def check(seen: list[str], wanted: set[str]) -> None:
    assert set(seen) == wanted
    ordered = list(dict.fromkeys(body for body in seen if body.startswith("ordered")))
    assert ordered == ORDERED


@pytest.mark.parametrize("kill", [False, True], ids=["stopped", "killed"])
def test_a_store_with_everything_in_it_goes_to_apache_and_back(
    apache: Referee, tmp_path: Path, kill: bool
) -> None:
    store = tmp_path / "store"
    with our_process(store, kill=kill) as namesrv:
        fill(namesrv)
    theirs = ApacheCluster(
        apache, tmp_path / "apache", store_dir=store, delay_levels=SHORT_DELAYS,
        broker_settings=CHECKS,
    )  # fmt: skip
    try:
        theirs.start()
        addr = theirs.namesrv_addr
        with TransactionProducer("sales", namesrv_addr=addr, transaction_listener=Decisions()):
            check(consumed(addr, "fresh", BEFORE), BEFORE)
        # Its offset may be lost with the kill: then the message comes besides its copy.
        assert set(consumed(addr, SHOP, {"refused"}, "R")) == {"refused"}
        with Producer(TILLS, namesrv_addr=addr) as producer:
            producer.send(Message(TOPIC, b"theirs"))
    finally:
        theirs.stop(kill=True)
    with EmbeddedCluster(
        store, delay_levels=SHORT_DELAYS, commit_log_file_bytes=FILE_BYTES
    ) as ours:
        wanted = BEFORE | {"theirs"}
        check(consumed(ours.namesrv_addr, "again", wanted), wanted)
