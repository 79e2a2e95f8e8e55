"""Scenes of producers: what a caller is told of a message must be true of the store."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from rocketstream import Message, Producer, SendManyError, SendOutcome
from rocketstream.errors import ClientStateError, RocketMQError
from tests.interleaving.stage import TOPIC, Call, Stage


class Told:
    """What callers were told of each body."""

    def __init__(self) -> None:
        self._told: dict[bytes, SendOutcome | None] = {}

    def stored(self, bodies: list[bytes]) -> None:
        """Note that they are stored."""
        self._told |= dict.fromkeys(bodies)

    def failed(self, bodies: list[bytes], error: BaseException) -> None:
        """Note what an error tells of them; one of a client that does not run: nothing was sent."""
        outcome = SendOutcome.NOT_SENT if isinstance(error, ClientStateError) else None
        outcome = getattr(error, "outcome", outcome) or SendOutcome.UNKNOWN
        self._told |= dict.fromkeys(bodies, outcome)

    def unknown(self, bodies: list[bytes]) -> None:
        """Note that nothing is known of them."""
        self._told |= dict.fromkeys(bodies, SendOutcome.UNKNOWN)

    def judge(self, stage: Stage) -> None:
        """Compare with the store."""
        stored = Counter(stage.stored())
        for body, outcome in self._told.items():
            if outcome is None:
                stage.expect(stored[body] == 1, f"stored {stored[body]} times: {body!r}")
            elif outcome is not SendOutcome.UNKNOWN:
                stage.expect(not stored[body], f"stored, and told {outcome}: {body!r}")
        stage.expect(stored.keys() <= self._told.keys(), "stored, and never sent")


class Calls:
    """The calls of one producer."""

    def __init__(self, stage: Stage, producer: Producer, told: Told) -> None:
        self._stage = stage
        self.producer = producer
        self._told = told
        self.futures: list[tuple[bytes, Any]] = []

    def _noted(self, bodies: list[bytes], send: Callable[[], Any]) -> None:
        try:
            send()
        except SendManyError:
            self._told.unknown(bodies)
            raise
        except BaseException as error:
            self._told.failed(bodies, error)
            raise
        self._told.stored(bodies)

    def send(self) -> None:
        body = self._stage.body()
        self._noted([body], lambda: self.producer.send(Message(TOPIC, body)))

    def batch(self) -> None:
        bodies = self._stage.bodies(3)
        messages = [Message(TOPIC, body) for body in bodies]
        self._noted(bodies, lambda: self.producer.send_batch(messages))

    def many(self) -> None:
        bodies = self._stage.bodies(5)
        self._noted(bodies, lambda: self.producer.send_many(TOPIC, bodies))

    def oneway(self) -> None:
        body = self._stage.body()
        self._told.unknown([body])
        self.producer.send_oneway(Message(TOPIC, body))

    def later(self) -> None:
        for body in self._stage.bodies(3):
            try:
                self.futures.append((body, self.producer.send_async(Message(TOPIC, body))))
            except BaseException as error:
                self._told.failed([body], error)
                raise

    def flush(self) -> None:
        self.producer.flush(20_000)

    def queues(self) -> None:
        self.producer.fetch_publish_message_queues(TOPIC)

    def shutdown(self) -> None:
        self.producer.shutdown()

    def settle(self, *, ends: bool) -> None:
        """Note how futures ended; each must have, once the producer is shut down."""
        for body, future in self.futures:
            if not self._stage.until(future.done):
                self._stage.problem("a future was never done")
                continue
            error = future.exception()
            if error is None:
                self._told.stored([body])
                continue
            self._told.failed([body], error)
            if not (ends and isinstance(error, RocketMQError)):
                self._stage.problem(f"a future ended with {error!r}")


def sending(stage: Stage) -> None:
    """Two or three calls of one producer."""
    told = Told()
    producer = Producer("senders", **stage.ours(auto_batch=stage.chance.random() < 0.3))
    producer.start()
    calls = Calls(stage, producer, told)
    if stage.chance.random() < 0.6:
        calls.send()
    ops = ["send", "batch", "many", "oneway", "later", "flush", "queues", "shutdown"]
    names = stage.draw(stage.chance.choice([2, 2, 3]), ops)
    ends = "shutdown" in names
    stage.at_once(*(Call(name, getattr(calls, name), may_fail=ends) for name in names))
    producer.shutdown()
    calls.settle(ends=ends)
    told.judge(stage)


def sharing(stage: Stage) -> None:
    """Two producers of one instance, started, used and shut down by threads of their own."""
    told = Told()

    def life() -> None:
        name = f"senders-{stage.chance.random()}".replace(".", "")
        with Producer(name, **stage.ours(instance_name="shared")) as producer:
            calls = Calls(stage, producer, told)
            calls.send()
            calls.later()
            if stage.chance.random() < 0.5:
                calls.flush()
        calls.settle(ends=False)

    stage.at_once(*(Call(f"life {n}", life) for n in range(stage.chance.choice([2, 3]))))
    told.judge(stage)


def beginning(stage: Stage) -> None:
    """One producer that is started, used and shut down by three threads."""
    told = Told()
    calls = Calls(stage, Producer("senders", **stage.ours()), told)
    ops = ["start", *stage.draw(2, ["send", "later", "shutdown", "start", "queues"])]
    functions = {name: getattr(calls, name, calls.producer.start) for name in ops}
    stage.at_once(*(Call(name, functions[name], may_fail=True) for name in ops))
    calls.producer.shutdown()
    calls.settle(ends=True)
    told.judge(stage)


def ending(stage: Stage) -> None:
    """One producer that several threads shut down, while one may send many messages."""
    told = Told()
    producer = Producer("senders", **stage.ours())
    producer.start()
    calls = Calls(stage, producer, told)
    ends = [Call("shutdown", producer.shutdown) for _ in range(2)]
    stage.at_once(*ends, Call("many", calls.many, may_fail=True), within=300)
    producer.shutdown()
    told.judge(stage)
