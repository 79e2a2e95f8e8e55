"""A shop whose messages flow: groups that keep up, fall behind, stand at one message, give up.

Law: real clients on an embedded cluster; listeners differ, nothing else does.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from rocketstream import (
    ConsumeConcurrentlyStatus,
    ConsumeFromWhere,
    Message,
    Producer,
    PushConsumer,
)
from rocketstream._util.clock import SYSTEM_CLOCK
from rocketstream.admin import Admin
from rocketstream.admin.state import GroupState, QueueKind, QueueState
from rocketstream.server.embedded import EmbeddedCluster
from rocketstream.watch.windows import Windows
from tests.plugins.waiting import wait_until

TOPICS = {"orders": 2, "parcels": 1, "payments": 2, "clicks": 1}
BACKLOG = 4_000
"""Messages stored ten minutes ago: more than the slow group takes while tests run."""
GIVEN_UP = 12
PAUSE_S = 0.05
ONE_THREAD = {"consume_thread_min": 1, "consume_thread_max": 1}
SUCCESS = ConsumeConcurrentlyStatus.CONSUME_SUCCESS


class LateClock:
    """The machine's clock, ten minutes late until it is set right."""

    def __init__(self) -> None:
        self.late_ms = 600_000

    def now_ms(self) -> int:
        return SYSTEM_CLOCK.now_ms() - self.late_ms

    def monotonic_ms(self) -> float:
        return SYSTEM_CLOCK.monotonic_ms()


WATCHED_S = 360


def watched_before(admin: Admin) -> Windows:
    """What a collector would have seen had it watched the shop for six minutes already.

    Verdicts need minutes; as seen here, each queue grew by ten messages a second and the slow
    group was as slow as it is from now on.
    """

    def is_under_way() -> bool:
        queues = admin.groups.state("shipping").of_kind(QueueKind.TOPIC)
        return all((queue.committed_offset or 0) >= 40 for queue in queues)

    wait_until(is_under_way, "offsets of the slow group", 60)
    state = admin.cluster.state()
    windows = Windows()
    for age_s in range(WATCHED_S, 0, -10):
        windows.add({name: _earlier(found, age_s) for name, found in state.groups.items()})
    return windows


def _earlier(found: GroupState, age_s: int) -> GroupState:
    def before(queue: QueueState) -> QueueState:
        if queue.max_offset is None or queue.committed_offset is None:
            return queue
        end = max(queue.max_offset - 10 * age_s, 0)
        at = queue.committed_offset
        if found.group == "shipping":
            at = at * (WATCHED_S + 10 - age_s) // (WATCHED_S + 10)
        return dataclasses.replace(queue, max_offset=max(end, at), committed_offset=at)

    taken_ms = found.taken_ms - age_s * 1_000
    return dataclasses.replace(
        found, taken_ms=taken_ms, queues=tuple(before(queue) for queue in found.queues)
    )


class Shop:
    """What listeners of the shop do, and when they end."""

    def __init__(self) -> None:
        self.stop = threading.Event()
        self.is_fixed = threading.Event()
        self.pinned = threading.Event()

    def keeps_up(self, messages: Sequence[Any], context: Any = None) -> Any:
        return SUCCESS

    def falls_behind(self, messages: Sequence[Any], context: Any = None) -> Any:
        self.stop.wait(0.5)
        return SUCCESS

    def stands(self, messages: Sequence[Any], context: Any = None) -> Any:
        if messages[0].keys == "payments-0":
            self.pinned.set()
            self.stop.wait()
        return SUCCESS

    def gives_up(self, messages: Sequence[Any], context: Any = None) -> Any:
        if messages[0].keys.startswith("bad-") and not self.is_fixed.is_set():
            raise ValueError(f"no price for {messages[0].keys}")
        return SUCCESS


def _produce(shop: Shop, namesrv: str) -> None:
    with Producer("shop", namesrv_addr=namesrv) as producer:
        number = BACKLOG
        while not shop.stop.wait(PAUSE_S):
            number += 1
            for topic in TOPICS:
                producer.send(_message(topic, number))


def _message(topic: str, number: int) -> Message:
    body = f'{{"id": {number}, "card": "4111111111111111", "total": {number * 1.37:.2f}}}'
    return Message(topic, body, tags="ab"[number % 2], keys=f"{topic}-{number}")


def _member(
    group: str, topic: str, listener: Callable[..., Any], namesrv: str, **settings: Any
) -> PushConsumer:
    member = PushConsumer(
        group,
        namesrv_addr=namesrv,
        consume_from_where=ConsumeFromWhere.FIRST_OFFSET,
        listener=listener,
        subscription={topic: "*"},
        **settings,
    )
    member.start()
    return member


@contextmanager
def trading() -> Iterator[tuple[str, Shop]]:
    """Run the shop; yields its name server once its dead letters are there."""
    clock, shop = LateClock(), Shop()
    levels = " ".join(["100ms"] * 18)
    with ExitStack() as open_:
        cluster = open_.enter_context(EmbeddedCluster(clock=clock, delay_levels=levels))
        namesrv = cluster.namesrv_addr
        for topic, queues in TOPICS.items():
            cluster.create_topic(topic, queues)
        with Producer("backlog", namesrv_addr=namesrv) as producer:
            for number in range(BACKLOG):
                for topic in ("orders", "parcels", "payments"):
                    producer.send(_message(topic, number))
            for number in range(GIVEN_UP):
                producer.send(Message("clicks", f"click {number}", keys=f"bad-{number}"))
        clock.late_ms = 0
        producing = threading.Thread(target=_produce, args=(shop, namesrv))
        producing.start()
        open_.callback(producing.join)
        open_.callback(shop.stop.set)
        for group, topic, listener, settings in (
            ("billing", "orders", shop.keeps_up, {}),
            ("billing", "orders", shop.keeps_up, {}),
            ("shipping", "parcels", shop.falls_behind, ONE_THREAD),
            ("audit", "payments", shop.stands, {}),
            ("pricing", "clicks", shop.gives_up, {"max_reconsume_times": 1}),
        ):  # fmt: skip
            member = _member(group, topic, listener, namesrv, **settings)
            open_.callback(member.shutdown)
        open_.callback(shop.stop.set)
        with Admin(namesrv) as admin:
            wait_until(
                lambda: admin.groups.state("pricing").dead_letters == GIVEN_UP, "dead letters"
            )
        yield namesrv, shop
