"""Calls of a client, interrupted at each step by a signal handler that uses the same client.

Law: run as a program of its own: what waits for itself is ended with it. The handler runs where
Python lets one run: between two steps of the main thread, given by a profile function.
"""

from __future__ import annotations

import contextlib
import faulthandler
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

from rocketstream import (
    ConsumeConcurrentlyStatus,
    ConsumeFromWhere,
    LitePullConsumer,
    Message,
    Producer,
    PushConsumer,
)
from rocketstream.client.instance.life_cycle import ServiceState
from rocketstream.errors import ClientStateError, SendError

HANGS_S = 20
TOPIC = "S"
EVENTS = ("call", "c_return", "return")
REFUSED = (ClientStateError, SendError)


class Interruption:
    """Calls a handler once, at the n-th step of what the main thread does."""

    def __init__(self, step: int, handler: Callable[[], object]) -> None:
        self.left = step
        self._handler = handler
        self._at_each = self._stepped  # kept: Python 3.11 may call it once nobody else holds it
        self.refused = 0

    def __enter__(self) -> Interruption:
        sys.setprofile(self._at_each)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _stepped(self, _frame: object, event: str, _arg: object) -> None:
        if event not in EVENTS:
            return
        self.left -= 1
        if not self.left:
            sys.setprofile(None)
            try:
                self._handler()
            except REFUSED:
                self.refused += 1


def producer(namesrv: str, **settings: Any) -> Producer:
    made = Producer("p", namesrv_addr=namesrv, send_msg_timeout_ms=5_000, **settings)
    made.start()
    made.send(Message(TOPIC, b"first"))
    return made


def poller(namesrv: str) -> LitePullConsumer:
    made = LitePullConsumer(
        "l",
        namesrv_addr=namesrv,
        subscription={TOPIC: "*"},
        consume_from_where=ConsumeFromWhere.FIRST_OFFSET,
        pull_batch_size=1,
    )
    made.start()
    return made


def pushed(namesrv: str) -> PushConsumer:
    made = PushConsumer(
        "c",
        namesrv_addr=namesrv,
        subscription={TOPIC: "*"},
        listener=lambda _: ConsumeConcurrentlyStatus.CONSUME_SUCCESS,
    )
    made.start()
    return made


MESSAGE = Message(TOPIC, b"x")
CLIENTS: dict[str, Callable[[str], Any]] = {
    "producer": producer,
    "gathering": lambda namesrv: producer(namesrv, auto_batch=True, batch_max_delay_ms=1),
    "poller": poller,
    "pushed": pushed,
}
CALLS: dict[str, Callable[[Any], object]] = {
    "send": lambda client: client.send(MESSAGE),
    "async": lambda client: client.send_async(MESSAGE),
    "result": lambda client: client.send_async(MESSAGE).result(5),
    "oneway": lambda client: client.send_oneway(MESSAGE),
    "flush": lambda client: client.flush(),
    "poll": lambda client: client.poll(0),
    "commit": lambda client: client.commit_sync(),
    "told": lambda client: (client.suspend(), client.assigned_queues(), client.resume()),
    "shutdown": lambda client: client.shutdown(),
}


def interrupt_everywhere(
    namesrv: str, kind: str, call: str, handler: str, every: int = 1
) -> tuple[int, int]:
    """Interrupt a call at each step, or each few, until it has no more; return steps and refusals.

    Args:
        namesrv: where the cluster is.
        kind: of the client.
        call: what the main thread does.
        handler: what the signal handler does.
        every: interrupt at each so many.
    """
    step = refused = 0
    client: Any = None
    while True:
        step += every
        if client is None:
            client = CLIENTS[kind](namesrv)
        faulthandler.dump_traceback_later(HANGS_S, exit=True)
        interruption = Interruption(step, partial(CALLS[handler], client))
        with contextlib.suppress(*REFUSED), interruption:
            CALLS[call](client)
        refused += interruption.refused
        if interruption.left > 0 or handler == "shutdown":
            client.shutdown()  # which may go on in a thread
            while client.state is not ServiceState.SHUTDOWN_ALREADY:
                client.shutdown()
            client = None
        faulthandler.cancel_dump_traceback_later()
        if interruption.left > 0:
            return step, refused


def main(namesrv: str, *cases: str) -> None:
    """Run cases: kind of client, call, handler, and how many steps at a time, with commas."""
    for case in cases:
        kind, call, handler, *every = case.split(",")
        print(case, file=sys.stderr)
        steps, refused = interrupt_everywhere(namesrv, kind, call, handler, *map(int, every))
        print(case, "steps" if steps > 10 else "no steps", file=sys.stdout)
        print(steps, refused, file=sys.stderr)


if __name__ == "__main__":
    main(*sys.argv[1:])
