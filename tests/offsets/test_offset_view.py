"""A consumer's offsets as its user sees them: the user's names here, the servers' behind."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from rocketstream import ClientConfig, MessageQueue, ReadOffsetType, RocketMQError
from rocketstream.client.consumer.offsets.user_store import AsyncOffsetStoreView, OffsetStoreView

MEMORY = ReadOffsetType.READ_FROM_MEMORY
STORE = ReadOffsetType.READ_FROM_STORE
BOTH = ReadOffsetType.MEMORY_FIRST_THEN_STORE


def mine(queue_id: int = 0, topic: str = "T") -> MessageQueue:
    return MessageQueue(topic, "broker-a", queue_id)


def theirs(queue_id: int = 0, topic: str = "T") -> MessageQueue:
    return mine(queue_id, f"NS%{topic}")


class Recorded:
    """Offsets by the servers' names; what is kept is set by the test."""

    def __init__(self) -> None:
        self.noted: dict[MessageQueue, int] = {}
        self.kept: dict[MessageQueue, int | Exception] = {}
        self.calls: list[tuple[Any, ...]] = []

    def update_offset(self, mq: MessageQueue, offset: int, *, increase_only: bool = True) -> None:
        self.calls.append(("update", mq, offset, increase_only))

    def read_memory(self, mq: MessageQueue) -> int | None:
        return self.noted.get(mq)

    async def read_store(self, mq: MessageQueue) -> int | None:
        kept = self.kept.get(mq)
        if isinstance(kept, Exception):
            raise kept
        return kept

    async def persist(self, mqs: list[MessageQueue]) -> None:
        self.calls.append(("persist", mqs))

    def remove_offset(self, mq: MessageQueue) -> None:
        self.calls.append(("remove", mq))

    def clone_offset_table(self, topic: str | None = None) -> dict[MessageQueue, int]:
        self.calls.append(("clone", topic))
        return dict(self.noted)

    async def update_consume_offset_to_broker(
        self, mq: MessageQueue, offset: int, is_oneway: bool = False
    ) -> None:
        self.calls.append(("tell", mq, offset, is_oneway))


class Engine:
    """As much of the engine as the view of threads uses."""

    def __init__(self, config: ClientConfig) -> None:
        self.instance = self
        self.config = config
        self.checked = 0

    def run(self, work: Any) -> Any:
        return asyncio.run(work)

    def check_process(self) -> None:
        self.checked += 1


def config() -> ClientConfig:
    return ClientConfig(namesrv_addr="127.0.0.1:9876", namespace="NS")


@pytest.fixture(params=["sync", "asyncio"])
def face(request: pytest.FixtureRequest) -> tuple[Recorded, Any]:
    """The offsets behind a view, and a function that calls the view in either face."""
    offsets = Recorded()
    view: Any
    if request.param == "sync":
        engine: Any = Engine(config())
        view = OffsetStoreView(offsets, engine)  # type: ignore[arg-type]
    else:
        view = AsyncOffsetStoreView(offsets, config())  # type: ignore[arg-type]

    def call(name: str, *args: Any) -> Any:
        answer = getattr(view, name)(*args)
        return asyncio.run(answer) if asyncio.iscoroutine(answer) else answer

    return offsets, call


@pytest.mark.parametrize(
    ("noted", "kept", "read", "answer"),
    [
        (None, None, MEMORY, -1),
        (None, 9, MEMORY, -1),
        (0, 9, MEMORY, 0),
        (4, 9, MEMORY, 4),
        (4, None, STORE, -1),
        (4, 0, STORE, 0),
        (4, 9, STORE, 9),
        (4, RocketMQError("late"), STORE, -2),
        (0, 9, BOTH, 0),
        (4, 9, BOTH, 4),
        (None, 9, BOTH, 9),
        (None, None, BOTH, -1),
        (None, RocketMQError("late"), BOTH, -2),
    ],
)
def test_an_offset_is_read_where_it_was_asked_for(
    face: tuple[Recorded, Any],
    noted: int | None,
    kept: int | Exception | None,
    read: ReadOffsetType,
    answer: int,
) -> None:
    """Covers C-302: -1 is none, -2 is unreadable."""
    offsets, call = face
    if noted is not None:
        offsets.noted[theirs()] = noted
    if kept is not None:
        offsets.kept[theirs()] = kept
    assert call("read_offset", mine(), read) == answer


def test_whatever_is_said_of_a_queue_reaches_the_servers_queue(face: tuple[Recorded, Any]) -> None:
    """Covers C-111, C-299, C-300, C-319."""
    offsets, call = face
    call("update_offset", mine(), 5)
    call("update_offset", mine(), 4, False)
    call("persist_all", [mine(), mine(1)])
    call("persist", mine(2))
    call("remove_offset", mine(3))
    call("update_consume_offset_to_broker", mine(), 6)
    call("update_consume_offset_to_broker", mine(), 7, True)
    assert offsets.calls == [
        ("update", theirs(), 5, True),
        ("update", theirs(), 4, False),
        ("persist", [theirs(), theirs(1)]),
        ("persist", [theirs(2)]),
        ("remove", theirs(3)),
        ("tell", theirs(), 6, False),
        ("tell", theirs(), 7, True),
    ]


@pytest.mark.parametrize(("topic", "asked"), [("T", "NS%T"), (None, None), ("", None), (" ", None)])
def test_a_table_has_the_users_names(
    face: tuple[Recorded, Any], topic: str | None, asked: str | None
) -> None:
    """Covers C-320: a blank topic is all of them."""
    offsets, call = face
    offsets.noted = {theirs(): 1, theirs(2): 3}
    table: Mapping[MessageQueue, int] = call("clone_offset_table", topic)
    assert table == {mine(): 1, mine(2): 3}
    assert offsets.calls == [("clone", asked)]


def test_what_does_not_wait_is_refused_in_a_forked_child_too() -> None:
    engine: Any = Engine(config())
    view = OffsetStoreView(Recorded(), engine)  # type: ignore[arg-type]
    view.update_offset(mine(), 1)
    view.remove_offset(mine())
    assert engine.checked == 2
