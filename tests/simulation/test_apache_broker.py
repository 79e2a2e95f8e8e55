"""The ways of Apache's broker that simulated clients must bear: it has them, and they bear them."""

from __future__ import annotations

import random

import pytest

from rocketstream.model import MessageQueue
from rocketstream.protocol.bodies import ConsumerData, QueueLockTable
from rocketstream.server.broker.core.members import Member
from rocketstream.testing.sim.apache_broker import ForgottenLocks, UnorderedMembers
from tests.scenarios.campaign import run_seed
from tests.scenarios.draws import FAILOVER, LITE_TOPICS, STRANGE, draw_options
from tests.scenarios.workloads import SCENARIOS

QUEUE = MessageQueue("T", "b", 0)


def test_leases_do_not_outlive_the_broker() -> None:
    locks = ForgottenLocks()
    locks.load(QueueLockTable({"g": {QUEUE: "one"}}), 0.0)
    locks.wait_out(0.0)
    assert locks.lock("g", "two", [QUEUE], 1.0) == {QUEUE}
    assert locks.lock("g", "one", [QUEUE], 2.0) == set()


def test_members_are_told_in_another_order_each_time() -> None:
    members = UnorderedMembers(random.Random(1))
    data = ConsumerData(
        "g", "CONSUME_PASSIVELY", "CLUSTERING", "CONSUME_FROM_LAST_OFFSET", [], False
    )
    for name in "abc":
        members.register(data, Member(name, name, 3, 409, 0, 0.0))
    told = set()
    for _ in range(60):
        group = members.group("g")
        assert group is not None
        told.add("".join(group.client_ids()))
    assert len(told) == 6
    assert members.group("nobody") is None


@pytest.mark.parametrize("scenario", sorted({*SCENARIOS} - {FAILOVER, LITE_TOPICS, STRANGE}))
def test_clients_keep_their_promises_with_such_a_broker(scenario: str) -> None:
    seed = next(n for n in range(1_000) if draw_options(n, scenario).like_apache)
    result = run_seed(seed, scenario)
    assert result.ok, result.report()
