"""Thirteen faults planted in a running cluster: topics, traffic, and our own faulty consumers.

Law: no pytest here and no judgement; ``FaultyConsumer.java`` does the same with Java's consumers. A
fault's group and topic bear its name behind a prefix.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from rocketstream import (
    ConsumeConcurrentlyStatus,
    ConsumeFromWhere,
    ConsumeOrderlyStatus,
    Message,
    MessageExt,
    Producer,
    PushConsumer,
)
from rocketstream.admin import Admin
from rocketstream.admin.state import CauseKind, Verdict
from rocketstream.admin.wire import questions
from rocketstream.model import MessageQueue

OK = ConsumeConcurrentlyStatus.CONSUME_SUCCESS
GHOST = "10.9.9.9@ghost"
LOCK_EVERY_S = 15.0
TRAFFIC_EVERY_S = 1.0


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault.

    Attributes:
        queues: of its topic.
        messages: sent before its consumers start.
        tag: of all messages.
        traffic: whether a message comes each second, too.
        kind: the cause that is to be named; None for the group that is healthy.
        in_sentence: what its sentence or evidence must name besides.
        verdict: the verdict of one look; None where that takes watching.
        is_first: whether its cause is the first of all.
    """

    name: str
    kind: CauseKind | None
    queues: int = 2
    messages: int = 40
    tag: str = "paid"
    traffic: bool = False
    in_sentence: tuple[str, ...] = ()
    verdict: Verdict | None = None
    is_first: bool = True

    def named(self, prefix: str) -> str:
        """Its group and its topic."""
        return f"{prefix}-{self.name}"


FAULTS = (
    Fault("healthy", None, traffic=True),
    Fault(
        "pinned", CauseKind.PINNED_MESSAGE, queues=1, traffic=True, in_sentence=("pin-me",),
        verdict=Verdict.PINNED,
    ),
    Fault("poison", CauseKind.POISON_MESSAGE, traffic=True, in_sentence=("poison-me",)),
    Fault("starved", CauseKind.STARVED_POOL, verdict=Verdict.STALLED),
    Fault("slow", CauseKind.SLOW_LISTENER, messages=2_000),
    Fault(
        "mismatch", CauseKind.SUBSCRIPTION_MISMATCH, in_sentence=("paid", "refused"),
        verdict=Verdict.LOSING,
    ),
    Fault("unowned", CauseKind.UNOWNED_QUEUE, in_sentence=("queue 0",), verdict=Verdict.STALLED),
    Fault("idle", CauseKind.IDLE_MEMBERS, messages=4_000, is_first=False),
    Fault("expired", CauseKind.EXPIRED_OFFSET, queues=1, messages=4, is_first=False),
    Fault("paused", CauseKind.PAUSED, verdict=Verdict.STALLED),
    Fault("locked", CauseKind.DEAD_LOCK_OWNER, verdict=Verdict.STALLED),
    Fault("readonly", CauseKind.BROKER_READ_ONLY, verdict=Verdict.OK),
    Fault(
        "filtered", CauseKind.FILTERED_TO_NOTHING, messages=200, traffic=True,
        verdict=Verdict.LOSING,
    ),
    Fault("letters", CauseKind.DEAD_LETTERS, traffic=True, in_sentence=("dead letters",)),
)  # fmt: skip
"""The thirteen, and a group that has none."""
BY_NAME = {fault.name: fault for fault in FAULTS}


class Ground:
    """Topics and messages of all faults under one prefix, and what goes on in them meanwhile."""

    def __init__(
        self,
        namesrv_addr: str,
        prefix: str,
        create_topic: Callable[[str, int], Any],
        names: Collection[str] = tuple(BY_NAME),
    ) -> None:
        self.prefix = prefix
        self._address = namesrv_addr
        self._create_topic = create_topic
        self._faults = [fault for fault in FAULTS if fault.name in names]
        self._end = threading.Event()
        self._threads: list[threading.Thread] = []
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        self._producer = self._stack.enter_context(
            Producer(f"{self.prefix}-senders", namesrv_addr=self._address)
        )
        self._admin = self._stack.enter_context(Admin(self._address))
        for fault in self._faults:
            self._create_topic(fault.named(self.prefix), fault.queues)
            for number in range(fault.messages):
                self._send(fault, f"{number}")
        if "locked" in {fault.name for fault in self._faults}:
            self._lock()
            self._go(self._lock, LOCK_EVERY_S)
        self._go(self._traffic, TRAFFIC_EVERY_S)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._end.set()
        for thread in self._threads:
            thread.join(timeout=10)
        self._stack.close()

    def more(self, name: str, count: int) -> None:
        """Send more messages of one fault."""
        for number in range(count):
            self._send(BY_NAME[name], f"more-{number}")

    def _go(self, step: Callable[[], None], every_s: float) -> None:
        def run() -> None:
            while not self._end.wait(every_s):
                step()

        thread = threading.Thread(target=run, name=f"{self.prefix}-ground", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _traffic(self) -> None:
        for fault in self._faults:
            if fault.traffic:
                self._send(fault, "traffic")

    def _send(self, fault: Fault, key: str) -> None:
        topic = fault.named(self.prefix)
        if key == "5" and fault.name in {"pinned", "poison"}:
            key = {"pinned": "pin-me", "poison": "poison-me"}[fault.name]
        self._producer.send(Message(topic, b"fault", tags=fault.tag, keys=key))

    def _lock(self) -> None:
        """Take the queues' locks for a client that is no member, as a lost process would."""
        topic = BY_NAME["locked"].named(self.prefix)
        queues: dict[str, set[MessageQueue]] = {}
        for queue in self._admin._client.subscribe_queues(topic):
            queues.setdefault(queue.broker_name, set()).add(queue)
        masters = self._admin._wire.masters()
        for broker_name, each in queues.items():
            self._admin._wire.ask(masters[broker_name], questions.lock_of(topic, GHOST, each))


class LeavesTheFirstOut:
    """Divides all queues but the first: nobody gets that one."""

    name = "LEAVES_FIRST_OUT"

    def allocate(
        self,
        consumer_group: str,
        current_cid: str,
        mq_all: Sequence[MessageQueue],
        cid_all: Sequence[str],
    ) -> Sequence[MessageQueue]:
        """Return all queues but the first of a topic; a retry topic's queues are all kept."""
        return [mq for mq in mq_all if mq.queue_id or mq.topic.startswith("%RETRY%")]


@dataclass
class OurConsumers:
    """Our consumers, one group a fault; leaving it ends them."""

    namesrv_addr: str
    prefix: str
    released: threading.Event = field(default_factory=threading.Event)
    consumers: list[PushConsumer] = field(default_factory=list)
    _numbers: itertools.count[int] = field(default_factory=itertools.count)

    def start(self, names: Collection[str]) -> None:
        """Plant these faults."""
        for name in names:
            getattr(self, f"_{name}")(BY_NAME[name].named(self.prefix))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.released.set()
        for consumer in self.consumers:
            consumer.shutdown()

    # --- the faults -------------------------------------------------------------------------------

    def _healthy(self, topic: str) -> None:
        self._consumer(topic, lambda messages: OK)

    def _pinned(self, topic: str) -> None:
        self._consumer(topic, self._wait_for_a_friend, consume_thread_max=8, consume_thread_min=8)

    def _poison(self, topic: str) -> None:
        self._consumer(topic, _refuse_poison, max_reconsume_times=1_000)

    def _starved(self, topic: str) -> None:
        self._consumer(topic, self._wait_for_all, consume_thread_max=4, consume_thread_min=4)

    def _slow(self, topic: str) -> None:
        self._consumer(topic, self._work_slowly, consume_thread_max=2, consume_thread_min=2)

    def _mismatch(self, topic: str) -> None:
        self._consumer(topic, lambda messages: OK, expression="paid")
        self._consumer(topic, lambda messages: OK, expression="refused")

    def _unowned(self, topic: str) -> None:
        self._consumer(
            topic, lambda messages: OK, allocate_message_queue_strategy=LeavesTheFirstOut()
        )

    def _idle(self, topic: str) -> None:
        for _ in range(3):
            self._consumer(topic, self._work_slowly, consume_thread_max=2, consume_thread_min=2)

    def _expired(self, topic: str) -> None:
        """Nobody consumes: its messages are deleted before."""

    def _paused(self, topic: str) -> None:
        """Paused once it has consumed what was there: before that it would get no queue."""
        left = threading.Semaphore(0)

        def listener(messages: list[MessageExt]) -> ConsumeConcurrentlyStatus:
            left.release(len(messages))
            return OK

        consumer = self._consumer(topic, listener)
        for _ in range(BY_NAME["paused"].messages):
            assert left.acquire(timeout=60)
        consumer.suspend()

    def _locked(self, topic: str) -> None:
        self._consumer(topic, lambda messages: ConsumeOrderlyStatus.SUCCESS, orderly=True)

    def _readonly(self, topic: str) -> None:
        self._consumer(topic, lambda messages: OK)

    def _filtered(self, topic: str) -> None:
        self._consumer(topic, lambda messages: OK, expression="Paid")

    def _letters(self, topic: str) -> None:
        self._consumer(topic, _refuse_all, max_reconsume_times=0)

    # --- listeners --------------------------------------------------------------------------------

    def _wait_for_a_friend(self, messages: list[MessageExt]) -> ConsumeConcurrentlyStatus:
        if any(message.keys == "pin-me" for message in messages):
            self.released.wait()
        return OK

    def _wait_for_all(self, messages: list[MessageExt]) -> ConsumeConcurrentlyStatus:
        self.released.wait()
        return OK

    def _work_slowly(self, messages: list[MessageExt]) -> ConsumeConcurrentlyStatus:
        self.released.wait(0.5)
        return OK

    def _consumer(
        self,
        topic: str,
        listener: Callable[[list[MessageExt]], Any],
        *,
        expression: str = "*",
        orderly: bool = False,
        **settings: Any,
    ) -> PushConsumer:
        consumer = PushConsumer(
            topic,
            namesrv_addr=self.namesrv_addr,
            consume_from_where=ConsumeFromWhere.FIRST_OFFSET,
            instance_name=f"ours-{next(self._numbers)}",
            await_termination_ms_when_shutdown=100,
            **settings,
        )
        consumer.subscribe(topic, expression)
        consumer.register_message_listener(listener, orderly=orderly)  # type: ignore[call-overload]
        self.consumers.append(consumer)
        consumer.start()
        return consumer


def _refuse_poison(messages: list[MessageExt]) -> ConsumeConcurrentlyStatus:
    if any(message.keys == "poison-me" for message in messages):
        raise ValueError("this one is beyond me")
    return OK


def _refuse_all(messages: list[MessageExt]) -> ConsumeConcurrentlyStatus:
    raise ValueError("these are beyond me")
