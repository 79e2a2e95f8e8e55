"""Messages that become visible with a local transaction, on a running cluster."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from rocketstream import (
    LocalTransactionState,
    Message,
    MessageExt,
    SendStatus,
    TransactionListener,
)
from rocketstream.protocol.message_id import decode_offset_msg_id
from tests.kits.cluster import QUICK_CHECKS, Cluster, running
from tests.kits.faces import TransactionProducer
from tests.kits.listeners import WAIT_S, Seen, consumer_of, send_all
from tests.plugins.clusters import BACKEND_PARAMS, Names

pytestmark = pytest.mark.usefixtures("face")

COMMIT = LocalTransactionState.COMMIT_MESSAGE
ROLLBACK = LocalTransactionState.ROLLBACK_MESSAGE
UNKNOW = LocalTransactionState.UNKNOW


@pytest.fixture(scope="module", params=BACKEND_PARAMS)
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Cluster:
    """Return a running cluster whose brokers ask early about undecided transactions."""
    return running(request.param, tmp_path_factory, QUICK_CHECKS)


class Orders(TransactionListener):
    """A data base of local transactions by transaction id, shared by producers of one group."""

    def __init__(self, execute: Any = UNKNOW) -> None:
        self._execute = execute
        self._changed = threading.Condition()
        self.states: dict[str, LocalTransactionState] = {}
        self.checks: list[MessageExt] = []

    def execute_local_transaction(self, message: Message, arg: Any) -> LocalTransactionState:
        if arg is not None:
            self.states[message.transaction_id or ""] = arg
        if self._execute is LookupError:
            raise LookupError("the data base is away")
        state: LocalTransactionState = self._execute
        return state

    def check_local_transaction(self, message: MessageExt) -> LocalTransactionState:
        with self._changed:
            self.checks.append(message)
            self._changed.notify_all()
        return self.states.get(message.transaction_id or "", UNKNOW)

    def wait_checks(self, count: int) -> list[MessageExt]:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.checks) >= count, WAIT_S), self.checks
            return list(self.checks)


def consumed_after_marker(cluster: Cluster, names: Names, expected: int) -> Seen:
    """Consume what there is, then one ordinary message more: nothing else was visible before."""
    seen = Seen()
    with consumer_of(cluster.namesrv_addr, names.group, names.topic, seen):
        seen.wait_consumed(expected)
        send_all(cluster.namesrv_addr, [Message(names.topic, b"marker")])
        seen.wait_consumed(expected + 1)
    return seen


def test_only_committed_messages_are_seen(cluster: Cluster, names: Names) -> None:
    """Covers C-412 to C-417, C-483, C-484: and a committed one looks as the original's does."""
    cluster.create_topic(names.topic, 1)
    listener = Orders()
    with TransactionProducer(
        f"{names.group}-p", namesrv_addr=cluster.namesrv_addr, transaction_listener=listener
    ) as producer:
        results = {}
        for state in (COMMIT, ROLLBACK, COMMIT):
            listener._execute = state
            message = Message(names.topic, f"{state.value}", tags="T", keys="k", delay_level=18)
            result = producer.send_message_in_transaction(message)
            assert result.local_transaction_state is state
            assert result.send_status is SendStatus.SEND_OK
            assert result.message_queue.topic == names.topic
            results[result.msg_id] = result
        seen = consumed_after_marker(cluster, names, 2)

    assert sorted(seen.bodies) == ["COMMIT_MESSAGE", "COMMIT_MESSAGE", "marker"]
    got = next(m for m in seen.consumed if m.body != b"marker")
    assert (got.tags, got.keys, got.topic) == ("T", "k", names.topic)
    assert got.msg_id == got.transaction_id
    assert got.msg_id in results
    assert got.sys_flag & 0xC == 8
    half = decode_offset_msg_id(results[got.msg_id].offset_msg_id)
    assert got.prepared_transaction_offset == half[2]
    properties = got.properties
    assert (properties["TRAN_MSG"], properties["PGROUP"]) == ("true", f"{names.group}-p")
    # 5.x brokers take these two out of what they commit.
    assert properties.get("REAL_TOPIC", names.topic) == names.topic
    assert properties.get("REAL_QID", "0") == "0"
    assert "DELAY" not in properties


@pytest.mark.parametrize("execute", [UNKNOW, LookupError])
def test_the_broker_asks_about_what_was_left_open(
    cluster: Cluster, names: Names, execute: Any
) -> None:
    """Covers C-418, C-419, C-485: an exception is as open as UNKNOW; the check decides."""
    cluster.create_topic(names.topic, 1)
    listener = Orders(execute)
    with TransactionProducer(
        f"{names.group}-p", namesrv_addr=cluster.namesrv_addr, transaction_listener=listener
    ) as producer:
        for number, state in enumerate((COMMIT, ROLLBACK, COMMIT)):
            message = Message(names.topic, str(number))
            result = producer.send_message_in_transaction(message, state)
            assert result.local_transaction_state is UNKNOW
        checks = listener.wait_checks(3)
        seen = consumed_after_marker(cluster, names, 2)
    assert sorted(seen.bodies) == ["0", "2", "marker"]
    asked = checks[0]
    assert (asked.topic, asked.queue_id) == (names.topic, 0)
    assert asked.transaction_id == asked.msg_id
    assert asked.transaction_id in listener.states
    assert asked.get_property("TRANSACTION_CHECK_TIMES") == "1"


def test_it_asks_until_it_knows(cluster: Cluster, names: Names) -> None:
    """Covers C-418, C-419: UNKNOW and silence are asked about again, and counted."""
    cluster.create_topic(names.topic, 1)
    listener = Orders()
    with TransactionProducer(
        f"{names.group}-p", namesrv_addr=cluster.namesrv_addr, transaction_listener=listener
    ) as producer:
        result = producer.send_message_in_transaction(Message(names.topic, b"open"))
        checks = listener.wait_checks(2)
        listener.states[result.msg_id] = COMMIT
        seen = consumed_after_marker(cluster, names, 1)
    times = [int(m.get_property("TRANSACTION_CHECK_TIMES") or 0) for m in checks[:2]]
    assert times == [1, 2]
    assert sorted(seen.bodies) == ["marker", "open"]


def test_another_producer_of_the_group_can_be_asked(cluster: Cluster, names: Names) -> None:
    """Covers C-486: the one that sent is gone; one that never sent answers from shared state."""
    cluster.create_topic(names.topic, 1)
    listener = Orders()
    group = f"{names.group}-p"
    with TransactionProducer(
        group, namesrv_addr=cluster.namesrv_addr, transaction_listener=listener
    ) as first:
        first.send_message_in_transaction(Message(names.topic, b"orphan"), COMMIT)
    with TransactionProducer(
        group, namesrv_addr=cluster.namesrv_addr, transaction_listener=listener
    ):
        seen = consumed_after_marker(cluster, names, 1)
    assert sorted(seen.bodies) == ["marker", "orphan"]
