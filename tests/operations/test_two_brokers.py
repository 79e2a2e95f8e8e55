"""Groups on two brokers: moved, paused and taken back on both, and what is left half way."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from rocketstream.admin import Admin, AuditLog, ResetTarget
from rocketstream.admin.safety import ChangingWire
from rocketstream.errors import ConnectError, TransportError
from rocketstream.model import MessageQueue
from rocketstream.protocol.bodies import (
    DataVersion,
    RegisterBrokerBody,
    TopicConfig,
    TopicConfigSerializeWrapper,
)
from rocketstream.protocol.codes import RequestCode
from rocketstream.protocol.headers import RegisterBrokerRequestHeader
from rocketstream.server.broker.core.offsets import ConsumerOffsets
from rocketstream.server.broker.handlers import offsets as offset_handlers
from rocketstream.server.embedded import EmbeddedCluster
from tests.kits.peer import Peer

T, G = "orders", "billing"


class Two:
    """One name server that knows two brokers; each has five messages, of which three consumed."""

    def __init__(self, first: EmbeddedCluster, second: EmbeddedCluster, name_server: Peer) -> None:
        self.first, self.second = first, second
        for cluster in (first, second):
            cluster.create_topic(T, 1)
            with Peer(cluster.broker_addr) as peer:
                for number in range(5):
                    peer.send(T, b"%d" % number)
                peer.commit(G, T, 0, 3)
        wrapper = TopicConfigSerializeWrapper({T: TopicConfig(T, 1, 1)}, DataVersion(1, 1))
        header = RegisterBrokerRequestHeader(
            "broker-b", second.broker_addr, "DefaultCluster", "127.0.0.1:1", 0, False, 0
        )
        body = RegisterBrokerBody(wrapper, []).encode()
        assert name_server.call(RequestCode.REGISTER_BROKER, header, body).code == 0

    def stored(self) -> tuple[int | None, int | None]:
        found = []
        for cluster in (self.first, self.second):
            with Peer(cluster.broker_addr) as peer:
                found.append(peer.offset(G, T, 0))
        return found[0], found[1]


@pytest.fixture
def two() -> Iterator[Two]:
    with ExitStack() as stack:
        first = stack.enter_context(EmbeddedCluster())
        second = stack.enter_context(EmbeddedCluster(broker_name="broker-b"))
        # A name server forgets a broker whose connection ends.
        yield Two(first, second, stack.enter_context(Peer(first.namesrv_addr)))


@pytest.fixture
def admin(two: Two, tmp_path: Path) -> Iterator[Admin]:
    audit = AuditLog(tmp_path / "audit.jsonl")
    with Admin(two.first.namesrv_addr, audit=audit, timeout_ms=2_000) as admin:
        yield admin


def test_group_is_moved_and_paused_on_both(two: Two, admin: Admin, tmp_path: Path) -> None:
    plan = admin.changes.reset_plan(G, T, ResetTarget.shift(-1))
    assert [(row.broker_name, row.to_offset) for row in plan.rows] == [
        ("broker-a", 2), ("broker-b", 2),
    ]  # fmt: skip
    admin.changes.reset_apply(plan, undo_directory=tmp_path)
    assert two.stored() == (2, 2)
    one = [MessageQueue(T, "broker-b", 0)]
    admin.changes.reset_apply(
        admin.changes.reset_plan(G, T, ResetTarget.offset(0), one), undo_directory=tmp_path
    )
    assert two.stored() == (2, 0)
    assert admin.changes.topic_delete_plan(T).losses[0] == "10 messages kept on broker-a, broker-b"
    admin.changes.apply(admin.changes.group_pause_plan(G))
    for cluster in (two.first, two.second):
        with Peer(cluster.broker_addr) as peer:
            assert peer.pull(T, 0, group=G).code == 16


def test_broker_that_is_gone_before_anything_moved_leaves_all_as_it_is(
    two: Two, admin: Admin, tmp_path: Path
) -> None:
    plan = admin.changes.reset_plan(G, T, ResetTarget.earliest())
    pause = admin.changes.group_pause_plan(G)
    two.second.close()
    with pytest.raises(ConnectError):
        admin.changes.reset_apply(plan, undo_directory=tmp_path)
    with pytest.raises(ConnectError):
        admin.changes.apply(pause)
    with Peer(two.first.broker_addr) as peer:
        assert peer.offset(G, T, 0) == 3
        assert peer.pull(T, 0, group=G).code == 0


@pytest.mark.parametrize("at", ["delete_topic", "store_offset"])
def test_topic_deletion_that_ended_half_way_leaves_no_offset_once_it_is_run_again(
    two: Two, admin: Admin, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    """Brokers of 4.x keep the offsets of a topic they deleted, and take commits for it."""
    monkeypatch.setattr(ConsumerOffsets, "remove_topic", lambda *_: None)
    monkeypatch.setattr(offset_handlers, "commit_refusal", lambda *_: None)
    whole = getattr(ChangingWire, at)

    def broken(wire: ChangingWire, *where: Any) -> None:
        if two.second.broker_addr in where or "broker-b" in str(where):
            raise TransportError("cut off")
        whole(wire, *where)

    with monkeypatch.context() as patch:
        patch.setattr(ChangingWire, at, broken)
        with pytest.raises(TransportError):
            admin.changes.apply(admin.changes.topic_delete_plan(T))
    assert two.stored() == (0, 3)
    again = admin.changes.apply(admin.changes.topic_delete_plan(T))
    assert again.differing == ()
    assert two.stored() == (0, 0)


def test_reset_that_ends_half_way_says_how_to_take_it_back(
    two: Two,
    admin: Admin,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = ChangingWire.store_offset

    def broken(wire: ChangingWire, group: str, queue: MessageQueue, offset: int) -> None:
        if queue.broker_name == "broker-b":
            raise TransportError("cut off")
        store(wire, group, queue, offset)

    plan = admin.changes.reset_plan(G, T, ResetTarget.earliest())
    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING, "rocketstream.admin"):
        patch.setattr(ChangingWire, "store_offset", broken)
        with pytest.raises(TransportError, match="cut off"):
            admin.changes.reset_apply(plan, undo_directory=tmp_path / "undo")
    assert two.stored() == (0, 3)
    (undo,) = (tmp_path / "undo").iterdir()
    assert f"{undo} takes back what was moved" in caplog.text
    end = json.loads((tmp_path / "audit.jsonl").read_text().splitlines()[-1])
    assert (end["phase"], end["error"]) == ("failed", "TransportError: cut off")
    assert end["after"] == {"undo": str(undo)}
    admin.changes.reset_apply(admin.changes.undo(undo), undo_directory=tmp_path)
    assert two.stored() == (3, 3)
