"""The workers that send: each in one way, writing down every message before and after."""

from __future__ import annotations

import asyncio
import itertools
import random
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rocketstream import (
    LocalTransactionState,
    Message,
    MessageExt,
    Producer,
    SendError,
    SendResult,
    TransactionListener,
    TransactionProducer,
    aio,
)
from tests.outside.recording import Recorder, pause
from tests.outside.wares import IDENT, Ware, chance_of, ware

KEYS = tuple(f"account-{number}" for number in range(6))


@dataclass
class Work:
    """What a worker that sends is to do, and where it says so."""

    recorder: Recorder
    namesrv_addr: str
    topic: str
    name: str
    rate: float
    quiet: Path
    """A file: once it is there nothing more is sent."""
    leaving: threading.Event
    retries: int = 2
    send_timeout_ms: int = 3_000

    def names(self) -> Iterator[str]:
        """Give one name after another, in pace, until it is time to be quiet."""
        own = self.recorder.by.replace("#", ".")
        for number in itertools.count():
            if self.leaving.is_set() or self.quiet.exists():
                return
            yield f"{own}-{number}"
            self.leaving.wait(random.uniform(0, 2) / self.rate)

    def begins(self, goods: Ware, how: str, *, sharding_key: str = "") -> Message:
        """Write down that a message is about to be sent, and make it."""
        self.recorder.note(
            "send", how=how, retries=self.retries, sharding_key=sharding_key, **goods.described()
        )
        return Message(
            goods.topic,
            goods.body,
            tags=goods.tags,
            keys=goods.keys.split(" "),
            properties=dict(goods.properties),
            delay_level=goods.delay_level,
        )

    def stored(self, ident: str, result: SendResult, index: int = 0) -> None:
        """Write down an answer."""
        queue = result.message_queue
        place = [queue.topic, queue.queue_id, result.queue_offset + index]
        self.recorder.note("sent", ident=ident, outcome=result.send_status.name, place=place)

    def failed(self, ident: str, error: BaseException) -> None:
        """Write down that a send raised, and what it said of the message."""
        outcome = (
            error.outcome.name
            if isinstance(error, SendError)
            else f"{type(error).__name__}: {error}"
        )
        self.recorder.note("sent", ident=ident, outcome=outcome, text=str(error)[:200])

    def settings(self) -> dict[str, Any]:
        """The settings of the producer."""
        return {
            "namesrv_addr": self.namesrv_addr,
            "retry_times_when_send_failed": self.retries,
            "retry_times_when_send_async_failed": self.retries,
            "send_msg_timeout_ms": self.send_timeout_ms,
            "instance_name": self.name,
            "poll_name_server_interval_ms": 5_000,
            "heartbeat_broker_interval_ms": 5_000,
        }

    def until_told(self) -> None:
        """Stay, as a service does that has nothing to send for a while."""
        self.recorder.wait(self.leaving)


def one_by_one(work: Work) -> None:
    """Send and wait, one message at a time."""
    with Producer(f"p-{work.name}", **work.settings()) as producer:
        work.recorder.note("ready")
        for name in work.names():
            goods = ware(name, work.topic)
            try:
                work.stored(name, producer.send(work.begins(goods, "sync")))
            except Exception as error:
                work.failed(name, error)
        work.until_told()
        work.recorder.note("stopping")


def in_order(work: Work) -> None:
    """Send with sharding keys, each send awaited."""
    with Producer(f"p-{work.name}", **work.settings()) as producer:
        work.recorder.note("ready")
        for name in work.names():
            goods = ware(name, work.topic)
            key = KEYS[int(chance_of(name, "key") * len(KEYS))]
            message = work.begins(goods, "keyed", sharding_key=key)
            try:
                work.stored(name, producer.send(message, sharding_key=key))
            except Exception as error:
                work.failed(name, error)
        work.until_told()
        work.recorder.note("stopping")


def _ends(work: Work, name: str) -> Callable[[Future[SendResult]], None]:
    def end(future: Future[SendResult]) -> None:
        error = future.exception()
        if error is None:
            work.stored(name, future.result())
        else:
            work.failed(name, error)

    return end


def at_once(work: Work) -> None:
    """Send in the background, gathered into batches; now and then a batch of its own."""
    with Producer(f"p-{work.name}", auto_batch=True, **work.settings()) as producer:
        work.recorder.note("ready")
        for name in work.names():
            kind = chance_of(name, "kind")
            parts = [ware(f"{name}.{part}", work.topic) for part in range(1 + int(kind * 4))]
            if kind < 0.7:
                for goods in parts:
                    future = producer.send_async(work.begins(goods, "async"))
                    future.add_done_callback(_ends(work, goods.ident))
                continue
            messages = [work.begins(goods, "batch") for goods in parts]
            try:
                result = producer.send(messages)
            except Exception as error:
                for goods in parts:
                    work.failed(goods.ident, error)
            else:
                for index, goods in enumerate(parts):
                    work.stored(goods.ident, result, index)
        work.until_told()
        work.recorder.note("stopping")


def later(work: Work) -> None:
    """Send messages with a delay."""
    with Producer(f"p-{work.name}", **work.settings()) as producer:
        work.recorder.note("ready")
        for name in work.names():
            goods = ware(name, work.topic, delayed=True)
            try:
                result = producer.send(work.begins(goods, "delayed"))
                work.recorder.note(
                    "sent", ident=name, outcome=result.send_status.name, place=None
                )  # it gets its place when its delay is over
            except Exception as error:
                work.failed(name, error)
        work.until_told()
        work.recorder.note("stopping")


class _Ledger(TransactionListener):
    """Decides by a message's name alone, so that every producer of the group answers the same."""

    def __init__(self, work: Work) -> None:
        self._work = work

    def _says(
        self, ident: str, state: LocalTransactionState, *, asked: bool
    ) -> LocalTransactionState:
        self._work.recorder.note("decided", ident=ident, state=state.name, asked=asked)
        return state

    def execute_local_transaction(self, message: Message, arg: Any) -> LocalTransactionState:
        """Commit, roll back, or leave it open, by chance."""
        ident = message.properties[IDENT]
        if chance_of(ident, "open") < 0.3:
            return self._says(ident, LocalTransactionState.UNKNOW, asked=False)
        return self._says(ident, _final(ident), asked=False)

    def check_local_transaction(self, message: MessageExt) -> LocalTransactionState:
        """Answer the broker; now and then it is not known yet."""
        ident = message.properties[IDENT]
        if random.random() < 0.3:
            return self._says(ident, LocalTransactionState.UNKNOW, asked=True)
        return self._says(ident, _final(ident), asked=True)


def _final(ident: str) -> LocalTransactionState:
    is_kept = chance_of(ident, "commit") < 0.6
    return (
        LocalTransactionState.COMMIT_MESSAGE if is_kept else LocalTransactionState.ROLLBACK_MESSAGE
    )


def transactions(work: Work) -> None:
    """Send messages in transactions, and answer for them until the end."""
    producer = TransactionProducer(
        "p-ledger", transaction_listener=_Ledger(work), **work.settings()
    )
    with producer:
        work.recorder.note("ready")
        for name in work.names():
            message = work.begins(ware(name, work.topic), "transaction")
            try:
                result = producer.send_message_in_transaction(message)
                work.recorder.note("sent", ident=name, outcome=result.send_status.name, place=None)
            except Exception as error:
                work.failed(name, error)
        work.until_told()
        work.recorder.note("stopping")


async def _awaited(work: Work) -> None:
    async with aio.Producer(f"p-{work.name}", **work.settings()) as producer:
        work.recorder.note("ready")
        names = work.names()

        async def one() -> None:
            while (name := await asyncio.to_thread(next, names_, None)) is not None:
                goods = ware(name, work.topic)
                try:
                    work.stored(name, await producer.send(work.begins(goods, "awaited")))
                except Exception as error:
                    work.failed(name, error)

        names_ = _Shared(names)
        await asyncio.gather(one(), one(), one())
        await asyncio.to_thread(work.until_told)
        work.recorder.note("stopping")


class _Shared(Iterator[str]):
    """Names several tasks take from."""

    def __init__(self, names: Iterator[str]) -> None:
        self._names = names
        self._lock = threading.Lock()

    def __next__(self) -> str:
        with self._lock:
            return next(self._names)


def awaited(work: Work) -> None:
    """Send from three tasks of asyncio."""
    asyncio.run(_awaited(work))


def without_answers(work: Work) -> None:
    """Send one-way: nobody knows of any message whether it is stored."""
    with Producer(f"p-{work.name}", **work.settings()) as producer:
        work.recorder.note("ready")
        for name in work.names():
            message = work.begins(ware(name, work.topic), "oneway")
            try:
                producer.send_oneway(message)
                work.recorder.note("sent", ident=name, outcome="UNKNOWN", place=None)
            except Exception as error:
                work.failed(name, error)
            pause(0.01)
        work.until_told()
        work.recorder.note("stopping")


ROLES: dict[str, Callable[[Work], None]] = {
    "sync": one_by_one,
    "keyed": in_order,
    "batch": at_once,
    "delayed": later,
    "transactions": transactions,
    "awaited": awaited,
    "oneway": without_answers,
}
