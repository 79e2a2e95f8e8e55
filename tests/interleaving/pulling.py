"""Scenes of lite pull consumers, of pull consumers and of their schedules."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import CancelledError
from typing import Any

from rocketstream import (
    ConsumeFromWhere,
    LitePullConsumer,
    MessageExt,
    MessageQueue,
    MQPullConsumerScheduleService,
    PullConsumer,
    PullStatus,
)
from rocketstream.errors import ClientStateError, RocketMQError
from tests.interleaving.stage import TOPIC, Call, Stage

GROUP = "readers"
Place = tuple[int, int]


class LiteCalls:
    """The calls of one lite pull consumer."""

    def __init__(self, stage: Stage, *, assigns: bool, auto_commit: bool) -> None:
        self._stage = stage
        self._assigns = assigns
        self.got: list[Place] = []
        self.is_committed = False
        self.consumer = LitePullConsumer(
            GROUP,
            subscription=None if assigns else {TOPIC: "*"},
            consume_from_where=ConsumeFromWhere.FIRST_OFFSET,
            pull_batch_size=7,
            auto_commit=auto_commit,
            **stage.ours(instance_name="one"),
        )
        self.consumer.start()
        self.queues = sorted(self.consumer.fetch_message_queues(TOPIC))
        if assigns:
            self.consumer.assign(self.queues)
        stage.until(lambda: self.consumer.assignment() == self.queues)

    def _take(self, messages: Iterable[MessageExt]) -> None:
        self.got.extend((message.queue_id, message.queue_offset) for message in messages)

    def poll(self) -> None:
        self._take(self.consumer.poll(20))

    def arrow(self) -> None:
        batch = self.consumer.poll_arrow(10, ["queueId", "queueOffset"], 20)
        columns = batch.to_pydict()
        self.got.extend(zip(columns["queueId"], columns["queueOffset"], strict=True))

    def commit(self) -> None:
        self.consumer.commit()
        self.is_committed = True

    def persist(self) -> None:
        self.consumer.commit(persist=True)
        self.is_committed = True

    def pause(self) -> None:
        self.consumer.pause(self.queues[:1])
        self.consumer.resume(self.queues[:1])

    def seek(self) -> None:
        self.consumer.seek(self.queues[0], 0)

    def seek_end(self) -> None:
        self.consumer.seek_to_end(self.queues[0])

    def committed(self) -> None:
        self.consumer.committed(self.queues[0])
        self.consumer.assignment()

    def choose(self) -> None:
        if self._assigns:
            self.consumer.assign(self.queues[:1])
            self.consumer.assign(self.queues)
        else:
            self.consumer.unsubscribe(TOPIC)
            self.consumer.subscribe(TOPIC, "*")

    def shutdown(self) -> None:
        self.consumer.shutdown()

    def drain(self, whole: int) -> None:
        """Poll until there are so many, or nothing comes for long."""
        idle = 0
        while len(set(self.got)) < whole and idle < 30:
            before = len(self.got)
            self._take(self.consumer.poll(1_000))
            idle = idle + 1 if len(self.got) == before else 0


def polling(stage: Stage) -> None:
    """Two or three calls of one lite pull consumer."""
    chance = stage.chance
    whole = len(stage.fill(30))
    assigns, auto_commit = chance.random() < 0.4, chance.random() < 0.5
    calls = LiteCalls(stage, assigns=assigns, auto_commit=auto_commit)
    for _ in range(chance.choice([0, 2])):
        calls._take(calls.consumer.poll(3_000))
    before = {queue_id: offset + 1 for queue_id, offset in calls.got}
    ops = ["poll", "poll", "arrow", "commit", "persist", "pause", "seek", "seek_end", "committed"]
    names = stage.draw(chance.choice([2, 2, 3]), [*ops, "choose", "shutdown"])
    ends = "shutdown" in names
    may_fail = ends or "choose" in names
    stage.at_once(*(Call(name, getattr(calls, name), may_fail=may_fail) for name in names))
    skips = "seek_end" in names
    if not ends and not skips:
        calls.drain(whole)
        missing = whole - len(set(calls.got))
        stage.expect(not missing, f"{missing} messages were not polled")
    again = len(calls.got) - len(set(calls.got))
    # Of several threads that poll, which is advised against, one may get what another got.
    polls = names.count("poll") + names.count("arrow")
    if polls <= 1 and not {"seek", "choose"} & set(names):
        stage.expect(not again, f"{again} messages came again")
    calls.consumer.shutdown()
    if calls.is_committed and not {"seek", "choose"} & set(names):
        offsets = stage.cluster.broker.controller.offsets
        stored = {queue_id: offsets.query(GROUP, TOPIC, queue_id) or 0 for queue_id in before}
        kept = all(stored[queue_id] >= at for queue_id, at in before.items())
        stage.expect(kept, f"committed {before}, and stored {stored}")
    if not skips:
        _rest(stage, calls, whole)


def _rest(stage: Stage, calls: LiteCalls, whole: int) -> None:
    """Whoever goes on gets all that nobody got."""
    last = LiteCalls(stage, assigns=False, auto_commit=True)
    last.got = calls.got
    last.drain(whole)
    last.consumer.shutdown()
    missing = whole - len(set(calls.got))
    stage.expect(not missing, f"{missing} messages were committed, and nobody got them")


class PullCalls:
    """The calls of one pull consumer."""

    def __init__(self, stage: Stage, whole: int) -> None:
        self._stage = stage
        self._whole = whole
        self.consumer = PullConsumer(
            GROUP, broker_suspend_max_time_ms=2_000, **stage.ours(instance_name="one")
        )
        self.consumer.start()
        self.queues = sorted(self.consumer.fetch_subscribe_message_queues(TOPIC))
        self.futures: list[tuple[int, Any]] = []
        self.called: list[object] = []
        self.noted: dict[MessageQueue, set[int]] = {}

    def _check(self, offset: int, result: Any) -> None:
        offsets = [message.queue_offset for message in result.msg_found_list]
        is_found = result.pull_status is PullStatus.FOUND
        self._stage.expect(bool(offsets) is is_found, f"{result.pull_status} with {offsets}")
        self._stage.expect(
            offsets == list(range(offset, offset + len(offsets))), f"pulled {offset}: {offsets}"
        )

    def pull(self) -> None:
        self._check(2, self.consumer.pull(self.queues[0], "*", 2, 4))

    def block(self) -> None:
        self._check(15, self.consumer.pull_block_if_not_found(self.queues[1], "*", 15, 4))

    def later(self) -> None:
        for offset in (0, 3):
            future = self.consumer.pull_async(self.queues[0], "*", offset, 5, self.called.append)
            self.futures.append((offset, future))

    def later_block(self) -> None:
        future = self.consumer.pull_block_if_not_found_async(self.queues[1], "*", 15, 5)
        self.futures.append((15, future))

    def note(self) -> None:
        queue, offset = self._stage.chance.choice(self.queues), self._stage.chance.randrange(1, 9)
        self.consumer.update_consume_offset(queue, offset)
        self.noted.setdefault(queue, set()).add(offset)

    def persist(self) -> None:
        self.consumer.persist_consumer_offset()

    def fetch(self) -> None:
        self.consumer.fetch_consume_offset(self.queues[0])
        self.consumer.fetch_subscribe_message_queues(TOPIC)

    def divide(self) -> None:
        self.consumer.register_message_queue_listener(TOPIC, lambda *_: None)
        self.consumer.fetch_message_queues_in_balance(TOPIC)
        repr(self.consumer)

    def shutdown(self) -> None:
        self.consumer.shutdown()

    def settle(self, *, ends: bool) -> None:
        """Each future has ended, and its callback was called."""
        with_callback = 0
        for offset, future in self.futures:
            if not self._stage.until(future.done):
                self._stage.problem("a future was never done")
                continue
            with_callback += offset != 15
            try:
                self._check(offset, future.result(0))
            except (RocketMQError, CancelledError) as error:
                self._stage.expect(ends, f"a pull ended with {error!r}")
        called = self._stage.until(lambda: len(self.called) == with_callback)
        self._stage.expect(called, f"{len(self.called)} of {with_callback} callbacks")


def pulling(stage: Stage) -> None:
    """Two or three calls of one pull consumer."""
    calls = PullCalls(stage, len(stage.fill(30)))
    ops = ["pull", "block", "later", "later_block", "note", "note", "persist", "fetch", "divide"]
    names = stage.draw(stage.chance.choice([2, 3, 3]), [*ops, "shutdown"])
    ends = "shutdown" in names
    stage.at_once(*(Call(name, getattr(calls, name), may_fail=ends) for name in names))
    calls.settle(ends=ends)
    calls.consumer.shutdown()
    offsets = stage.cluster.broker.controller.offsets
    for queue, noted in calls.noted.items():
        at = offsets.query(GROUP, TOPIC, queue.queue_id)
        stage.expect(at in noted, f"noted {noted} of {queue}, and stored {at}")


def scheduled(stage: Stage) -> None:
    """A schedule that is given tasks, and shut down, while its tasks run."""
    stage.fill(6)
    running, ran, late = set[int](), list[int](), list[int]()
    ended = False
    schedule = MQPullConsumerScheduleService(GROUP, **stage.ours(instance_name="one"))

    def task(queue: MessageQueue, context: Any) -> None:
        stage.expect(queue.queue_id not in running, "two tasks of one queue at once")
        running.add(queue.queue_id)
        if ended:
            late.append(queue.queue_id)
        try:
            threading.Event().wait(stage.chance.choice([0.0, 0.001, 0.4]))
            offset = max(context.pull_consumer.fetch_consume_offset(queue), 0)
            result = context.pull_consumer.pull(queue, "*", offset, 3)
            context.pull_consumer.update_consume_offset(queue, result.next_begin_offset)
        except ClientStateError:
            stage.expect("shutdown" in names, "it did not run, and nobody shut it down")
        finally:
            running.discard(queue.queue_id)
        context.pull_next_delay_ms = stage.chance.choice([1, 50])
        ran.append(queue.queue_id)

    def register() -> None:
        schedule.register_pull_task_callback(TOPIC, task)

    def wait() -> None:
        threading.Event().wait(stage.chance.choice([0.0, 0.3]))

    names = stage.draw(stage.chance.choice([2, 3]), ["register", "shutdown", "start", "wait"])
    functions: dict[str, Callable[[], None]] = {
        "register": register,
        "shutdown": schedule.shutdown,
        "wait": wait,
        "start": schedule.start,
    }
    begins = stage.chance.random() < 0.8
    register()
    if begins:
        schedule.start()
    stage.at_once(*(Call(name, functions[name], may_fail=True) for name in names))
    if begins and "shutdown" not in names:
        stage.expect(stage.until(lambda: {0, 1} <= set(ran)), f"tasks of {set(ran)} alone ran")
    schedule.shutdown()
    ended = True
    stage.until(lambda: bool(late), 5.0)
    stage.expect(not late, f"tasks of {late} began after the end")
