"""A store of the user's own, told and asked step by step: what it knows when, and what is noted."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Collection, Coroutine, Iterator, Mapping
from concurrent.futures import CancelledError, ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any, cast

import pytest

from rocketstream._util.waiting import Locks
from rocketstream.client.config import ClientConfig
from rocketstream.client.consumer.offsets.store import (
    NO_OFFSET,
    UNREADABLE,
    OffsetStore,
    ReadOffsetType,
    RemoteBrokerOffsetStore,
)
from rocketstream.client.consumer.offsets.user_store import UserOffsets, open_store
from rocketstream.client.instance.engine import Engine
from rocketstream.errors import ClientStateError, ConnectError
from rocketstream.model import MessageModel, MessageQueue
from rocketstream.testing import ManualClock

ONE, TWO, OTHER = MessageQueue("T", "b", 0), MessageQueue("T", "b", 1), MessageQueue("U", "b", 0)


class Told(OffsetStore):
    """Notes what it is told and asked; ``fails`` is raised by what keeps and reads."""

    def __init__(self) -> None:
        self.steps: list[tuple[Any, ...]] = []
        self.memory: dict[MessageQueue, Any] = {}
        self.kept: Any = 7
        self.fails: Exception | None = None
        self.fails_notes = False

    def _step(self, *step: Any) -> None:
        self.steps.append(step)
        if self.fails is not None:
            raise self.fails

    def load(self) -> None:
        self._step("load")

    def update_offset(self, mq: MessageQueue, offset: int, increase_only: bool = True) -> None:
        self.steps.append(("update", mq, offset, increase_only))
        if self.fails_notes:
            raise ValueError("spoilt")

    def read_offset(self, mq: MessageQueue, read_type: ReadOffsetType) -> int:
        if read_type is ReadOffsetType.READ_FROM_MEMORY:
            if self.fails is not None:
                raise self.fails
            return cast(int, self.memory.get(mq, NO_OFFSET))
        self._step("read", mq, read_type)
        return cast(int, self.kept)

    def persist_all(self, mqs: Collection[MessageQueue]) -> None:
        self._step("persist", list(mqs))

    def remove_offset(self, mq: MessageQueue) -> None:
        self.steps.append(("remove", mq))
        if self.fails_notes:
            raise ValueError("spoilt")

    def clone_offset_table(self, topic: str | None = None) -> Mapping[MessageQueue, int]:
        return {mq: at for mq, at in self.memory.items() if topic in (None, mq.topic)}

    def update_consume_offset_to_broker(
        self, mq: MessageQueue, offset: int, is_oneway: bool = False
    ) -> None:
        self._step("broker", mq, offset, is_oneway)

    def names(self) -> list[str]:
        return [step[0] for step in self.steps]


class Bench:
    """Offsets kept by such a store; work for later waits until the test says so."""

    def __init__(self) -> None:
        self.store = Told()
        self.due: list[Coroutine[None, None, None]] = []
        self.offsets = UserOffsets(self.store, self.due.append)

    async def settle(self) -> int:
        """Let the loop turn, and do what is due; return how much that was."""
        await asyncio.sleep(0)
        due, self.due[:] = list(self.due), []
        for work in due:
            await work
        return len(due)


def play(main: Callable[[Bench], Coroutine[Any, Any, None]]) -> None:
    async def whole() -> None:
        bench = Bench()
        try:
            await main(bench)
        finally:
            await asyncio.sleep(0)
            for work in bench.due:
                work.close()

    asyncio.run(asyncio.wait_for(whole(), 30))


def test_a_store_is_told_soon_and_once_of_many_notes() -> None:
    async def main(bench: Bench) -> None:
        offsets = bench.offsets
        for offset in (3, 5, 5, 4):
            offsets.update_offset(ONE, offset)
        offsets.update_offset(TWO, 0)
        assert bench.store.steps == []
        assert (offsets.read_memory(ONE), offsets.read_memory(TWO)) == (5, 0)
        assert await bench.settle() == 1
        assert bench.store.steps == [("update", ONE, 5, True), ("update", TWO, 0, True)]
        assert await bench.settle() == 0
        offsets.update_offset(ONE, 6)
        assert await bench.settle() == 1
        assert bench.store.steps[2:] == [("update", ONE, 6, True)]

    play(main)


def test_what_is_noted_while_a_store_is_told_comes_in_the_same_round() -> None:
    async def main(bench: Bench) -> None:
        plain = bench.store.update_offset

        def update(mq: MessageQueue, offset: int, increase_only: bool = True) -> None:
            plain(mq, offset, increase_only)
            if offset == 1:
                bench.offsets.update_offset(mq, 2)

        bench.store.update_offset = update  # type: ignore[method-assign]
        bench.offsets.update_offset(ONE, 1)
        assert await bench.settle() == 1
        assert [step[2] for step in bench.store.steps] == [1, 2]
        assert await bench.settle() == 0
        bench.offsets.update_offset(ONE, 3)
        assert await bench.settle() == 1, "that round is over"

    play(main)


def test_what_was_put_back_stays_so_and_a_queue_forgotten_begins_anew() -> None:
    async def main(bench: Bench) -> None:
        offsets = bench.offsets
        offsets.update_offset(ONE, 9)
        offsets.update_offset(ONE, 4, increase_only=False)
        offsets.update_offset(ONE, 5)
        offsets.update_offset(TWO, 8)
        offsets.remove_offset(TWO)
        offsets.update_offset(TWO, 2)
        await bench.settle()
        assert bench.store.steps == [
            ("update", ONE, 9, True), ("update", ONE, 5, False),
            ("remove", TWO), ("update", TWO, 2, True),
        ]  # fmt: skip
        assert (offsets.read_memory(ONE), offsets.read_memory(TWO)) == (5, 2)

    play(main)


def test_a_forgotten_queue_is_told_soon_though_nothing_was_noted() -> None:
    async def main(bench: Bench) -> None:
        bench.store.memory[ONE] = 6
        assert bench.offsets.read_memory(ONE) == 6
        bench.offsets.remove_offset(ONE)
        assert bench.offsets.read_memory(ONE) is None, "the store does not know yet"
        assert await bench.settle() == 1
        assert bench.store.steps == [("remove", ONE)]

    play(main)


@pytest.mark.parametrize("how", ["read", "persist", "broker"])
def test_a_store_is_told_before_it_is_asked_or_keeps(how: str) -> None:
    async def main(bench: Bench) -> None:
        bench.offsets.update_offset(ONE, 3)
        if how == "read":
            assert await bench.offsets.read_store(ONE) == 7
        elif how == "persist":
            await bench.offsets.persist(iter([ONE]))
        else:
            await bench.offsets.update_consume_offset_to_broker(ONE, 5, True)
        assert bench.store.names() == ["update", how]
        await bench.settle()
        assert bench.store.names() == ["update", how]

    play(main)


async def cancelled(task: asyncio.Task[None]) -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@contextlib.contextmanager
def busy_thread() -> Iterator[Callable[[], asyncio.Future[bool]]]:
    """Have the loop's only thread be at work until what this yields is called."""
    freed = threading.Event()
    loop = asyncio.get_running_loop()
    with ThreadPoolExecutor(1) as threads:
        loop.set_default_executor(threads)
        busy = loop.run_in_executor(None, freed.wait)

        def free() -> asyncio.Future[bool]:
            freed.set()
            return busy

        yield free


def test_an_offset_is_told_though_its_teller_is_cancelled_before_a_thread_is_free() -> None:
    async def main(bench: Bench) -> None:
        with busy_thread() as free:
            bench.offsets.update_offset(ONE, 3)
            persisting = asyncio.create_task(bench.offsets.persist([ONE]))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            await cancelled(persisting)
            bench.offsets.update_offset(TWO, 4)
            telling = asyncio.create_task(bench.offsets.persist([TWO]))
            await asyncio.sleep(0)
            await free()
            await telling
        assert bench.store.steps == [
            ("update", ONE, 3, True), ("update", TWO, 4, True),
            ("persist", [ONE]), ("persist", [TWO]),
        ]  # fmt: skip

    play(main)


def test_an_offset_whose_telling_the_end_of_the_tasks_cut_off_is_told_later() -> None:
    async def main(bench: Bench) -> None:
        with busy_thread() as free:
            bench.offsets.update_offset(ONE, 3)
            before = asyncio.all_tasks()
            persisting = asyncio.create_task(bench.offsets.persist([ONE]))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            for task in asyncio.all_tasks() - before:
                task.cancel()
            await asyncio.wait([persisting])
            assert persisting.cancelled()
            await free()
            await bench.offsets.persist([ONE])
        assert bench.store.steps == [("update", ONE, 3, True), ("persist", [ONE])]

    play(main)


@pytest.mark.parametrize("how", ["persist", "read", "broker"])
def test_no_second_thread_tells_a_store_while_that_of_a_cancelled_caller_does(how: str) -> None:
    """The second would be told first, and the store go back."""
    entered, released = threading.Event(), threading.Event()

    async def main(bench: Bench) -> None:
        plain = bench.store.update_offset

        def update(mq: MessageQueue, offset: int, increase_only: bool = True) -> None:
            if offset == 3:
                entered.set()
                assert released.wait(20)
            plain(mq, offset, increase_only)

        bench.store.update_offset = update  # type: ignore[method-assign]
        bench.offsets.update_offset(ONE, 3, increase_only=False)
        calls: dict[str, Callable[[], Coroutine[Any, Any, Any]]] = {
            "persist": lambda: bench.offsets.persist([ONE]),
            "read": lambda: bench.offsets.read_store(ONE),
            "broker": lambda: bench.offsets.update_consume_offset_to_broker(ONE, 4),
        }
        first = asyncio.create_task(calls[how]())
        await asyncio.to_thread(entered.wait, 20)
        await cancelled(first)
        bench.offsets.update_offset(ONE, 4, increase_only=False)
        second = asyncio.create_task(calls[how]())
        for _ in range(5):
            await asyncio.sleep(0)
        await asyncio.to_thread(lambda: None)  # what was handed to a thread before has begun
        assert bench.store.steps == []
        released.set()
        await second
        notes = [step for step in bench.store.steps if step[0] == "update"]
        assert notes == [("update", ONE, 3, False), ("update", ONE, 4, False)]

    async def with_two_threads(bench: Bench) -> None:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(2))
        try:
            await main(bench)
        finally:
            released.set()

    play(with_two_threads)


def test_a_store_of_ours_is_told_at_once() -> None:
    store = Told()
    offsets = UserOffsets(store)
    offsets.update_offset(ONE, 3)
    offsets.update_offset(ONE, 2, increase_only=False)
    offsets.remove_offset(ONE)
    assert store.steps == [("update", ONE, 3, True), ("update", ONE, 2, False), ("remove", ONE)]
    assert store.memory == {}


def test_nothing_is_kept_of_no_queues_and_failures_are_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main(bench: Bench) -> None:
        bench.store.fails, bench.store.fails_notes = ValueError("spoilt"), True
        await bench.offsets.persist([])
        assert bench.store.steps == []
        bench.offsets.update_offset(ONE, 3)
        await bench.offsets.persist([ONE])
        bench.offsets.remove_offset(TWO)
        await bench.settle()
        assert bench.store.names() == ["update", "persist", "remove"]
        assert bench.offsets.read_memory(OTHER) is None

    play(main)
    for text in (
        "failed to take offset 3 of",
        "failed to persist the offsets of",
        "failed to remove the offset of",
        "failed to tell the offset it has of",
    ):
        assert text in caplog.text


@pytest.mark.parametrize("junk", [-1, -2, None, "5"])
def test_memory_of_a_store_is_an_offset_or_none(junk: Any) -> None:
    async def main(bench: Bench) -> None:
        bench.store.memory[ONE] = junk
        assert bench.offsets.read_memory(ONE) is None
        bench.store.memory[ONE] = 0
        assert bench.offsets.read_memory(ONE) == 0

    play(main)


def test_an_answer_is_an_offset_none_or_an_error() -> None:
    async def main(bench: Bench) -> None:
        for kept, offset in ((0, 0), (5, 5), (NO_OFFSET, None)):
            bench.store.kept = kept
            assert await bench.offsets.read_store(ONE) == offset
        for junk in (UNREADABLE, None, "5"):
            bench.store.kept = junk
            with pytest.raises(ClientStateError, match="must return an offset from 0 on, or -1"):
                await bench.offsets.read_store(ONE)
        bench.store.fails = ValueError("spoilt")
        with pytest.raises(ClientStateError, match=r"failed for .*: ValueError\('spoilt'\)"):
            await bench.offsets.read_store(ONE)
        bench.store.fails = error = ConnectError("gone")
        with pytest.raises(ConnectError) as caught:
            await bench.offsets.read_store(ONE)
        assert caught.value is error

    play(main)


@pytest.mark.parametrize("kind", [StopIteration, asyncio.CancelledError, CancelledError])
@pytest.mark.parametrize("is_async", [False, True])
def test_a_store_neither_holds_up_nor_cancels_what_waits_for_it(
    caplog: pytest.LogCaptureFixture, kind: type[BaseException], is_async: bool
) -> None:
    """A timer that stores offsets would end for ever, and a rebalance that reads them hang."""

    def fail(*_: object) -> int:
        raise kind

    async def fail_async(*_: object) -> int:
        raise kind

    async def main(bench: Bench) -> None:
        store: Any = bench.store
        store.persist_all = store.read_offset = store.load = fail_async if is_async else fail
        await bench.offsets.persist([ONE])
        with pytest.raises(ClientStateError, match=f"failed for .*{kind.__name__}"):
            await bench.offsets.read_store(ONE)
        with pytest.raises(RuntimeError, match=kind.__name__):
            await bench.offsets.load()

    play(main)
    assert "the offset store failed to persist" in caplog.text


@pytest.mark.parametrize("kind", [SystemExit, asyncio.CancelledError])
def test_a_store_that_is_asked_on_the_network_thread_ends_nothing_there(
    caplog: pytest.LogCaptureFixture, kind: type[BaseException]
) -> None:
    read: list[object] = []

    class Exiting(Told):
        def read_offset(self, mq: MessageQueue, read_type: ReadOffsetType) -> int:
            raise kind

    async def ask() -> None:
        read.append(UserOffsets(Exiting(), lambda work: work.close()).read_memory(ONE))

    network = threading.Thread(target=asyncio.run, args=[ask()])
    network.start()
    network.join(20)
    assert read == [None]
    assert "the offset store failed to tell the offset" in caplog.text


def test_a_table_has_what_is_noted_and_leaves_out_what_is_forgotten() -> None:
    async def main(bench: Bench) -> None:
        bench.store.memory = {ONE: 1, TWO: 2, OTHER: 3}
        bench.offsets.update_offset(ONE, 9)
        bench.offsets.remove_offset(TWO)
        bench.offsets.update_offset(OTHER, 8)
        assert bench.offsets.clone_offset_table() == {ONE: 9, OTHER: 8}
        assert bench.offsets.clone_offset_table("T") == {ONE: 9}
        assert bench.offsets.clone_offset_table("U") == {OTHER: 8}

    play(main)


def test_a_closed_loop_tells_nobody_and_says_nothing() -> None:
    async def made() -> UserOffsets:
        return UserOffsets(Told(), lambda work: work.close())

    offsets = asyncio.run(made())
    offsets.update_offset(ONE, 3)
    offsets.remove_offset(ONE)
    assert cast(Told, offsets.store).steps == []


def test_a_consumer_has_the_store_its_model_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """Covers C-111: the user's before any; each is loaded."""
    run_soon: Any = object()
    instance = SimpleNamespace(
        client_id="id",
        background=SimpleNamespace(run_soon=run_soon),
        config=ClientConfig(),
        clock=ManualClock(),
    )
    engine = cast(Engine, SimpleNamespace(instance=instance, locks=Locks()))
    loaded: list[Any] = []

    async def load(self: Any) -> None:
        loaded.append(self)

    async def main() -> None:
        monkeypatch.setattr(UserOffsets, "load", load)
        monkeypatch.setattr(RemoteBrokerOffsetStore, "load", load)
        own = Told()
        for model in MessageModel:
            offsets = await open_store(engine, "g", model, own)
            assert isinstance(offsets, UserOffsets)
            assert (offsets.store, offsets._run_soon) == (own, run_soon)
        local = await open_store(engine, "g", MessageModel.BROADCASTING)
        assert isinstance(local, UserOffsets)
        assert repr(local.store).startswith("LocalFileOffsetStore(group='g', path=")
        assert local._run_soon is None
        brokers = await open_store(engine, "g", MessageModel.CLUSTERING)
        assert isinstance(brokers, RemoteBrokerOffsetStore)
        assert loaded[-2:] == [local, brokers]
        assert len(loaded) == 4

    asyncio.run(main())


@pytest.mark.parametrize("model", list(MessageModel))
def test_a_signal_handler_amid_a_note_waits_for_nobody(model: MessageModel) -> None:
    """It runs on the thread that holds the lock: it neither notes nor shuts down there."""
    assert threading.current_thread() is threading.main_thread()

    async def main() -> None:
        background = SimpleNamespace(run_soon=lambda work: work.close())
        instance = SimpleNamespace(client_id="id", background=background)
        engine = SimpleNamespace(instance=instance, locks=Locks())
        offsets = await open_store(cast(Engine, engine), "g", model, Told())
        assert isinstance(offsets, UserOffsets)
        offsets.update_offset(ONE, 5)
        assert offsets._lock.acquire(timeout=20)
        try:
            assert engine.locks.are_mine
            assert offsets.read_memory(ONE) == 5
            with pytest.raises(ClientStateError, match="a signal handler"):
                offsets.update_offset(ONE, 6)
            with pytest.raises(ClientStateError, match="a signal handler"):
                offsets.remove_offset(ONE)
        finally:
            offsets._lock.release()
        offsets.update_offset(ONE, 7)
        assert offsets.read_memory(ONE) == 7

    asyncio.run(main())


def test_a_load_that_raises_fails_the_start() -> None:
    async def main(bench: Bench) -> None:
        await bench.offsets.load()
        bench.store.fails = ValueError("spoilt")
        with pytest.raises(ValueError, match="spoilt"):
            await bench.offsets.load()
        assert bench.store.names() == ["load", "load"]

    play(main)
