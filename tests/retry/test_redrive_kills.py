"""Ten thousand dead letters of five faults: told apart, and sent again by a tool that is killed."""

from __future__ import annotations

import os
import signal
from collections import Counter
from concurrent.futures import Future
from typing import Any

import pytest

from rocketstream import Message, Producer
from rocketstream._util.clock import SYSTEM_CLOCK
from rocketstream.admin import Admin
from rocketstream.model import MessageQueue
from rocketstream.server.embedded import EmbeddedCluster
from rocketstream.testing.clock import ManualClock
from tests.plugins.commands import Cli

GROUP, DEAD, ORIGIN = "billing", "%DLQ%billing", "orders"
LETTERS = 10_000
FAULTS = (
    "ValueError: no price for order {0}",
    "shop.errors.RefusedError: card of order-{0} was refused",
    "KeyError: 'price'",
    "TIME_OUT: the listener takes longer than consume_timeout_minutes",
    "requests.ConnectionError: bank did not answer for '{0} EUR'",
)
LOCKED_MS = 61_000
"""So long after a crash the brokers keep another redrive out."""


def fill(namesrv: str) -> None:
    with Producer("filler", namesrv_addr=namesrv) as producer:
        waiting: list[Future[Any]] = []
        for number in range(LETTERS):
            message = Message(DEAD, f"body {number}", keys=f"k{number}")
            message.properties |= {
                "RETRY_TOPIC": ORIGIN,
                "SEND_BACK_CAUSE": FAULTS[number % 5].format(number),
                "SEND_BACK_WHERE": f"shop/pay.py:{10 + number % 5} pay",
                "SEND_BACK_TRY": "0",
            }
            waiting.append(producer.send_async(message))
        for each in waiting:
            each.result(30)


def places(admin: Admin) -> Counter[str]:
    """Return how often each letter was sent again."""
    found: Counter[str] = Counter()
    for row in admin.topics.status(ORIGIN):
        queue, at = MessageQueue(ORIGIN, row.broker_name, row.queue_id), row.min_offset
        while at < row.max_offset:
            address = admin._client.address(row.broker_name)
            some, at = admin._wire.pull(address, "reader", queue, at, 32)
            found.update(message.properties["REDRIVEN_FROM"] for message in some)
    return found


def let_locks_go(clock: ManualClock, admin: Admin, topic: str) -> None:
    """Let time pass; a new topic has the broker register, whose own timer runs on real time."""
    clock.advance(LOCKED_MS)
    admin.topics.create(topic, 1)


@pytest.mark.long
def test_a_redrive_of_one_cause_that_is_killed_and_resumed_sends_each_letter_once() -> None:
    clock = ManualClock(SYSTEM_CLOCK.now_ms())
    with (
        EmbeddedCluster(clock=clock) as cluster,
        Admin(cluster.namesrv_addr, clock=clock) as admin,
    ):
        admin.topics.create(DEAD, 1)
        admin.topics.create(ORIGIN, 4)
        fill(cluster.namesrv_addr)
        found = admin.letters.by_cause(GROUP)
        assert [cause.count for cause in found] == [LETTERS // 5] * 5
        mine = next(cause for cause in found if cause.cause == "ValueError: no price for order <n>")
        cli = Cli(cluster.namesrv_addr)
        words = ("dlq", "redrive", GROUP, "--cause", mine.id, "--yes", "--json")
        # In the middle of what is not kept yet, right behind it, and soon after the beginning.
        for stop_after in (317, 640, 7):
            tool = cli.start(*words)
            assert tool.stdout is not None
            for _ in range(stop_after):
                assert tool.stdout.readline()
            os.kill(tool.pid, signal.SIGKILL)
            tool.communicate()
            let_locks_go(clock, admin, f"after-{stop_after}")
        sent = places(admin)
        assert 964 <= len(sent) < mine.count
        assert set(sent.values()) == {1}
        assert cli(*words).worked()
        sent = places(admin)
        assert (len(sent), set(sent.values())) == (mine.count, {1})
        # The rest, by a redrive of everything that is killed too.
        everything = ("dlq", "redrive", GROUP, "--yes", "--json")
        tool = cli.start(*everything)
        assert tool.stdout is not None
        for _ in range(500):
            assert tool.stdout.readline()
        os.kill(tool.pid, signal.SIGKILL)
        tool.communicate()
        let_locks_go(clock, admin, "after-everything")
        assert cli(*everything).worked()
        sent = places(admin)
        assert (len(sent), set(sent.values())) == (LETTERS, {1})
        assert admin.letters.redrive_plan(GROUP).letters == 0
