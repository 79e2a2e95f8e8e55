"""kill -9 of the embedded broker in the middle of transactions."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from rocketstream._util.clock import SYSTEM_CLOCK
from rocketstream.errors import TransportError
from rocketstream.protocol.codes import RequestCode
from rocketstream.protocol.command import RemotingCommand
from rocketstream.protocol.headers import EndTransactionRequestHeader, SendMessageRequestHeader
from rocketstream.protocol.message_ext import decode_message
from rocketstream.protocol.message_id import decode_offset_msg_id
from rocketstream.protocol.properties import encode_properties
from rocketstream.server.embedded import EmbeddedCluster
from rocketstream.server.store import StoreConfig
from rocketstream.transport.blocking_connection import BlockingConnection
from tests.kits.kills import TIMEOUT_MS, TOPIC, Gate, create_topic, everything, running
from tests.kits.peer import Peer

pytestmark = [pytest.mark.chaos, pytest.mark.long, pytest.mark.timeout(300)]

KILLS = 8
CLIENTS = 3
COMMIT, ROLLBACK = 8, 12


@dataclass
class Ledger:
    """What was asked of each transaction, and what of that was answered, by message id."""

    prepared: set[str] = field(default_factory=set)
    asked: dict[str, int] = field(default_factory=dict)
    answered: dict[str, int] = field(default_factory=dict)


class Client(threading.Thread):
    """Transactions one after the other: committed, rolled back, left open, until the kill."""

    def __init__(self, address: str, name: str, ledger: Ledger, enough: Gate) -> None:
        super().__init__(name=f"client-{name}")
        self._address, self._name = address, name
        self._ledger, self._enough = ledger, enough
        self.unexpected: Exception | None = None

    def run(self) -> None:
        try:
            with BlockingConnection(self._address) as connection:
                for number in range(1_000_000):
                    self._one(connection, f"{self._name}-{number}", number % 3)
                    self._enough.count()
        except TransportError:
            pass  # the server was killed
        except Exception as error:
            self.unexpected = error

    def _one(self, connection: BlockingConnection, message_id: str, kind: int) -> None:
        answer = connection.request(half_command(message_id), TIMEOUT_MS)
        assert answer.code == 0, answer
        self._ledger.prepared.add(message_id)
        if kind == 2:
            return
        outcome = COMMIT if kind == 0 else ROLLBACK
        self._ledger.asked[message_id] = outcome
        ended = connection.request(end_command(message_id, answer, outcome), TIMEOUT_MS)
        assert ended.code == 0, ended
        self._ledger.answered[message_id] = outcome


def half_command(message_id: str) -> RemotingCommand:
    properties = {"TRAN_MSG": "true", "PGROUP": "pg", "UNIQ_KEY": message_id}
    header = SendMessageRequestHeader(
        "pg", TOPIC, "TBW102", 4, 0, 4, SYSTEM_CLOCK.now_ms(), 0, encode_properties(properties),
    )  # fmt: skip
    command = RemotingCommand.request(RequestCode.SEND_MESSAGE_V2, header, message_id.encode())
    command.ext_fields = header.to_ext_v2()
    return command


def end_command(message_id: str, half: RemotingCommand, outcome: int) -> RemotingCommand:
    ext = half.ext_fields or {}
    header = EndTransactionRequestHeader(
        producer_group="pg",
        tran_state_table_offset=int(ext["queueOffset"]),
        commit_log_offset=decode_offset_msg_id(ext["msgId"])[2],
        commit_or_rollback=outcome,
        msg_id=message_id,
    )
    return RemotingCommand.request(RequestCode.END_TRANSACTION, header)


def run_until_killed(store: Path, round_: int, ledger: Ledger) -> None:
    with running(store) as server:
        if round_ == 0:
            create_topic(server.broker_addr)
        gate = Gate(40 + round_ * 23 % 90)
        clients = [
            Client(server.broker_addr, f"r{round_}c{number}", ledger, gate)
            for number in range(CLIENTS)
        ]
        for client in clients:
            client.start()
        assert gate.opened.wait(60)
        server.kill()
        for client in clients:
            client.join(30)
            assert client.unexpected is None, client.unexpected


def asked_about(cluster: EmbeddedCluster) -> set[str]:
    """Have every undecided transaction checked; return which they are."""
    count = cluster.broker.undecided_transactions
    with Peer(cluster.broker_addr) as producer:
        producer.heartbeat("c1", producer="pg")
        cluster.check_transactions()
        found = {
            bytes(decode_message(bytes(asked.body)).body).decode()
            for asked in (
                producer.next_asked(RequestCode.CHECK_TRANSACTION_STATE) for _ in range(count)
            )
        }
    assert len(found) == count
    return found


def test_kills_lose_no_commit_and_deliver_no_rollback(tmp_path: Path) -> None:
    """Covers C-412 to C-418: what was answered holds, what was left open is asked about."""
    store, ledger = tmp_path / "store", Ledger()
    for round_ in range(KILLS):
        run_until_killed(store, round_, ledger)

    with EmbeddedCluster(
        store,
        store_config=StoreConfig(),
        transaction_timeout_ms=0,
        transaction_check_interval_ms=3_600_000,
    ) as cluster:
        messages = [m for found in everything(cluster.broker_addr).values() for m in found]
        delivered = Counter(bytes(message.body).decode() for message in messages)
        undecided = asked_about(cluster)

    committed = {i for i, outcome in ledger.answered.items() if outcome == COMMIT}
    rolled_back = {i for i, outcome in ledger.asked.items() if outcome == ROLLBACK}
    left_open = ledger.prepared - set(ledger.asked)
    unanswered = set(ledger.asked) - set(ledger.answered)
    assert committed <= set(delivered)
    assert not rolled_back & set(delivered)
    assert not left_open & set(delivered)
    assert set(delivered.values()) == {1}
    assert left_open <= undecided
    # Nothing decided is asked about; a half message whose answer was lost may be.
    assert undecided & ledger.prepared <= left_open | unanswered
    assert len(committed) > KILLS * 10
