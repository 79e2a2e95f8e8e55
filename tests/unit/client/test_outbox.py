"""What stands between ``send_async`` and the loop: fair to what else the loop has to do."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, cast

from rocketstream import ClientConfig
from rocketstream._util.clock import SYSTEM_CLOCK
from rocketstream._util.waiting import Locks
from rocketstream.client.instance.engine import Engine
from rocketstream.client.producer.async_sender import AsyncSender, SendDone, policy_of
from rocketstream.client.producer.outbox import Outbox
from rocketstream.client.producer.policy import SendTarget
from rocketstream.client.producer.settings import ProducerSettings
from rocketstream.model import MessageQueue, SendResult, SendStatus
from rocketstream.protocol.sends import PreparedSend

RESULT = SendResult(SendStatus.SEND_OK, "id", "offset-id", MessageQueue("T", "b", 0), 7)
PUT_MOST = 1_000


class Body:
    """As much of a prepared message as the way through needs."""

    body = b"x"
    topic = "T"


class Loop:
    """Calls what it is given when the test says so."""

    def __init__(self) -> None:
        self.due: list[Callable[[], object]] = []

    def call_soon(self, call: Callable[[], object]) -> None:
        self.due.append(call)

    call_soon_threadsafe = call_soon

    def turn(self) -> None:
        due, self.due = self.due, []
        for call in due:
            call()


class HandsOn:
    """As much of an engine as the way through needs."""

    loop_thread_id = -1

    def __init__(self) -> None:
        self.loop = Loop()
        self.locks = Locks()


class Flooded:
    """A sender that finds another message waiting whenever it has sent one."""

    policy = policy_of(ProducerSettings("g"), ClientConfig(), SYSTEM_CLOCK)

    def __init__(self) -> None:
        self.sent = 0
        self.refill: Callable[[], object] = lambda: None

    def send(self, *send: Any) -> None:
        self.sent += 1
        on_done: SendDone = send[-1]
        on_done(RESULT, None)
        if self.sent < PUT_MOST:
            self.refill()


def test_a_thread_that_keeps_putting_leaves_the_loop_time_for_answers() -> None:
    """Each turn of the loop takes a bounded number; none of them is forgotten."""
    engine, sender = HandsOn(), Flooded()
    outbox = Outbox(cast(Engine, engine), cast(AsyncSender, sender))
    body = cast(PreparedSend, Body())
    answered = threading.Semaphore(0)

    def put() -> None:
        outbox.put(body, SendTarget(), 1_000, lambda _: answered.release())

    sender.refill = put
    put()
    turns = 0
    while engine.loop.due:
        before = sender.sent
        engine.loop.turn()
        assert sender.sent - before < PUT_MOST / 4
        turns += 1
    assert sender.sent == PUT_MOST
    for _ in range(PUT_MOST):
        assert answered.acquire(timeout=20)
    outbox.wait_empty(0)
    outbox.close()
