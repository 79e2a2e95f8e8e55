"""Scenes of push consumers: listeners on threads, and calls of others meanwhile."""

from __future__ import annotations

import threading
from collections import defaultdict
from typing import Any

from rocketstream import (
    ConsumeConcurrentlyStatus,
    ConsumeFromWhere,
    ConsumeOrderlyStatus,
    Message,
    MessageExt,
    Producer,
    PushConsumer,
)
from tests.interleaving.stage import TOPIC, Call, Stage

GROUP = "readers"


class Listening:
    """What listeners of a group were given and answered."""

    def __init__(self, stage: Stage, *, orderly: bool, fails: float) -> None:
        self._stage = stage
        self.orderly = orderly
        self._fails = fails
        self.given: list[bytes] = []
        self.answered: dict[int, set[int]] = defaultdict(set)
        self._now: dict[int, int] = defaultdict(int)
        self._next: dict[int, int] = defaultdict(int)

    def consume(self, messages: list[MessageExt]) -> Any:
        """Be the listener."""
        stage, queue_id = self._stage, messages[0].queue_id
        fails = messages[0].reconsume_times == 0 and stage.chance.random() < self._fails
        self._now[queue_id] += 1
        if self.orderly:
            stage.expect(self._now[queue_id] == 1, "two listener calls of one queue at once")
            stage.expect(
                messages[0].queue_offset <= self._next[queue_id],
                f"{messages[0].queue_offset} came before {self._next[queue_id]}",
            )
        threading.Event().wait(stage.chance.choice([0.0, 0.0, 0.002, 0.3]))
        self._now[queue_id] -= 1
        if not fails:
            self.given.extend(bytes(message.body) for message in messages)
            self._next[queue_id] = messages[-1].queue_offset + 1
        if not (fails and self.orderly):
            for message in messages:
                if message.topic == TOPIC:
                    self.answered[queue_id].add(message.queue_offset)
        if self.orderly:
            return (
                ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT
                if fails
                else ConsumeOrderlyStatus.SUCCESS
            )
        if fails:
            return ConsumeConcurrentlyStatus.RECONSUME_LATER
        return ConsumeConcurrentlyStatus.CONSUME_SUCCESS

    def member(self, name: str) -> PushConsumer:
        """Return a consumer with this listener."""
        consumer = PushConsumer(
            GROUP,
            subscription={TOPIC: "*"},
            consume_from_where=ConsumeFromWhere.FIRST_OFFSET,
            pull_batch_size=5,
            consume_thread_min=2,
            consume_thread_max=3,
            **self._stage.ours(instance_name=name),
        )
        if self.orderly:
            consumer.register_message_listener(self.consume, orderly=True)
        else:
            consumer.register_message_listener(self.consume)
        return consumer

    def check_offsets(self) -> None:
        """No committed offset may have passed a message no listener has answered for."""
        offsets = self._stage.cluster.broker.controller.offsets
        for queue_id in range(2):
            at = offsets.query(GROUP, TOPIC, queue_id)
            missing = set(range(at or 0)) - self.answered[queue_id]
            self._stage.expect(not missing, f"committed {at}, passing {sorted(missing)}")


_CHANGES = {
    "pull_batch_size": [3, 6],
    "pull_threshold_for_queue": [10, 50],
    "pull_interval_ms": [1, 2],
    "consume_concurrently_max_span": [900, 901],
}
"""Settings that may be changed, to values none has at first."""


class Calls:
    """Calls of one member, and beside it."""

    def __init__(self, stage: Stage, listening: Listening, sent: list[bytes]) -> None:
        self._stage = stage
        self._listening = listening
        self._sent = sent
        self.consumer = listening.member("one")
        self._others = 0
        self.changed: dict[str, set[int]] = {}

    def send(self) -> None:
        self._others += 1
        name = f"more{self._others}"
        with Producer(name, **self._stage.ours(instance_name=name)) as producer:
            for body in self._stage.bodies(4):
                producer.send(Message(TOPIC, body))
                self._sent.append(body)

    def suspend(self) -> None:
        self.consumer.suspend()
        self.consumer.resume()

    def change(self) -> None:
        name = self._stage.chance.choice(list(_CHANGES))
        value = self._stage.chance.choice(_CHANGES[name])
        setattr(self.consumer, name, value)
        self.changed.setdefault(name, set()).add(value)
        self.consumer.update_core_pool_size(self._stage.chance.choice([1, 2, 3]))

    def check_changes(self) -> None:
        """A setting that was set is as one has set it, whoever set others."""
        for name, values in self.changed.items():
            value = getattr(self.consumer, name)
            self._stage.expect(value in values, f"{name} is {value}, and was set to {values}")

    def look(self) -> None:
        self.consumer.assigned_queues()
        self.consumer.fetch_subscribe_message_queues(TOPIC)
        self.consumer.core_pool_size()
        repr(self.consumer)

    def resubscribe(self) -> None:
        self.consumer.unsubscribe(TOPIC)
        self.consumer.subscribe(TOPIC, "*")

    def another(self) -> None:
        self._others += 1
        member = self._listening.member(f"other{self._others}")
        with member:
            threading.Event().wait(self._stage.chance.choice([0.0, 0.5, 25.0]))

    def shutdown(self) -> None:
        self.consumer.shutdown()


def _play(stage: Stage, *, orderly: bool, others: bool) -> None:
    listening = Listening(stage, orderly=orderly, fails=stage.chance.choice([0.0, 0.0, 0.1]))
    sent = stage.fill(stage.chance.choice([4, 20]))
    calls = Calls(stage, listening, sent)
    calls.consumer.start()
    if stage.chance.random() < 0.5:
        stage.until(lambda: bool(listening.given), 5.0)
    ops = ["send", "suspend", "change", "look", "shutdown"]
    ops += ["another"] * 3 if others else ["resubscribe"]  # members must subscribe alike
    names = stage.draw(stage.chance.choice([2, 3, 3]), ops)
    ends = "shutdown" in names
    stage.at_once(*(Call(name, getattr(calls, name), may_fail=ends) for name in names))
    if not ends:
        stage.until(lambda: set(sent) <= set(listening.given), 100.0)
        _complete(stage, listening, sent, "before the end")
    calls.check_changes()
    calls.consumer.shutdown()
    listening.check_offsets()
    if ends:
        with listening.member("last"):
            stage.until(lambda: set(sent) <= set(listening.given), 100.0)
        _complete(stage, listening, sent, "after all")
        listening.check_offsets()
    again = len(listening.given) - len(set(listening.given))
    if names == ["suspend"] * len(names):
        stage.expect(not again, f"{again} messages came again")


def _complete(stage: Stage, listening: Listening, sent: list[bytes], when: str) -> None:
    missing = sorted(set(sent) - set(listening.given))
    stage.expect(not missing, f"not consumed {when}: {missing}")


def listening(stage: Stage) -> None:
    """Calls of a member that consumes at once."""
    _play(stage, orderly=False, others=False)


def listening_in_order(stage: Stage) -> None:
    """Calls of a member that consumes in order."""
    _play(stage, orderly=True, others=False)


def changing(stage: Stage) -> None:
    """Threads that change settings of one member."""
    calls = Calls(stage, Listening(stage, orderly=False, fails=0.0), [])
    calls.consumer.start()
    stage.at_once(*(Call(f"change {n}", calls.change) for n in range(3)), within=300)
    calls.check_changes()
    calls.consumer.shutdown()


def dividing(stage: Stage) -> None:
    """Members that come and go while others call."""
    _play(stage, orderly=stage.chance.random() < 0.5, others=True)
