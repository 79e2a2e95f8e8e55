"""What fails is told when it begins and when it ends, however often it is tried in between."""

from __future__ import annotations

import logging

import pytest

from rocketstream import limits
from rocketstream.cli.failure import _Sparing
from rocketstream.client.instance.groups import Groups
from rocketstream.client.instance.outage_log import OutageLog
from rocketstream.errors import BrokerError, ConnectError, RequestTimeoutError, RouteNotFoundError
from rocketstream.model import MessageQueue
from rocketstream.testing import ManualClock

ADDRESS = "10.0.0.1:10911"
QUEUES = [MessageQueue("T", "broker-a", number) for number in range(4)]


GROUPS = Groups()
GROUPS.producers["g"] = None


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def log(clock: ManualClock, caplog: pytest.LogCaptureFixture) -> OutageLog:
    caplog.set_level(logging.INFO, "rocketstream.client")
    return OutageLog(clock, "10.0.0.7@mine", GROUPS)


def test_an_outage_is_one_line_when_it_begins_and_one_when_it_ends(
    log: OutageLog, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(261):
        log.failed(("pull of", QUEUES[0]), BrokerError(16, "no", ADDRESS))
    clock.advance(30_000)
    log.worked("pull of", QUEUES[0])
    log.worked("pull of", QUEUES[0])
    first, last = caplog.messages
    assert "pull of MessageQueue" in first
    assert "CODE: 16" in first
    assert last.endswith(
        "works again after 30.0 s and 261 failures (client 10.0.0.7@mine, group g)"
    )
    assert first.endswith("; it is tried again (client 10.0.0.7@mine, group g)")


def test_all_that_needs_a_server_is_one_outage_of_that_server(
    log: OutageLog, caplog: pytest.LogCaptureFixture
) -> None:
    for mq in QUEUES:
        log.failed(("pull of", mq), ConnectError("refused", address=ADDRESS))
        log.failed(
            ("storing offsets of", "g", "in", mq), RequestTimeoutError("no", address=ADDRESS)
        )
    log.failed(("heartbeat to", ADDRESS), ConnectError("refused", address=ADDRESS))
    assert len(caplog.messages) == 1
    assert f"server {ADDRESS} cannot be reached: refused" in caplog.text
    log.answered("10.0.0.2:10911")
    assert log
    log.answered(ADDRESS)
    assert not log
    assert len(caplog.messages) == 2


def test_name_servers_and_a_broker_without_route_are_outages_of_their_own(
    log: OutageLog, caplog: pytest.LogCaptureFixture
) -> None:
    for mq in QUEUES:
        log.failed(("route of topic", "T"), ConnectError("none", addresses=["a:1", "b:2"]))
        log.failed(("pull of", mq), RouteNotFoundError("The broker[broker-a] not exist", queue=mq))
        log.failed(("locks",), RouteNotFoundError("not exist", broker="broker-a"))
    assert len(caplog.messages) == 2
    log.worked("the name servers")
    log.worked("broker", "broker-a")
    assert len(caplog.messages) == 4


def test_a_failure_that_was_expected_is_told_when_it_comes_again(
    log: OutageLog, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """A broker that has just started does not know the group: it is told, and asked again."""
    pull = ("pull of", QUEUES[0])
    log.failed(pull, BrokerError(24, "unknown", ADDRESS), expected=1)
    log.worked(*pull)
    assert not log
    assert caplog.messages == []
    for _ in range(3):
        log.failed(pull, BrokerError(24, "unknown", ADDRESS), expected=1)
        clock.advance(1_000)
    log.worked(*pull)
    first, last = caplog.messages
    assert "CODE: 24" in first
    assert "works again after 3.0 s and 3 failures" in last


def test_what_nobody_tries_any_more_is_forgotten_in_silence(
    log: OutageLog, caplog: pytest.LogCaptureFixture
) -> None:
    log.failed(("pull of", QUEUES[0]), BrokerError(1, "x"))
    log.forget("pull of", QUEUES[0])
    assert not log
    assert len(caplog.messages) == 1


def test_outages_are_bounded(log: OutageLog, caplog: pytest.LogCaptureFixture) -> None:
    """The oldest is forgotten."""
    for number in range(limits.OUTAGES_MAX + 1):
        log.report(("pull of", number), "it fails")
    caplog.clear()
    log.worked("pull of", 0)
    assert caplog.messages == []
    log.worked("pull of", 1)
    assert len(caplog.messages) == 1


def test_the_command_line_shows_every_outage(
    log: OutageLog, caplog: pytest.LogCaptureFixture
) -> None:
    """It lets one line of a kind through every few seconds: each outage is a kind of its own."""
    for number in range(3):
        log.failed(("pull of", number), BrokerError(1, "100 %s"))
        log.worked("pull of", number)
    sparing = _Sparing()
    assert [sparing.filter(record) for record in caplog.records] == [True] * 6
    assert "100 %s" in caplog.messages[0]


def test_lines_name_some_groups_of_a_client_that_has_many(
    clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Hundreds of consumers of one process lose one broker: each line says whose it is."""
    groups = Groups()
    groups.producers.update({f"g{number}": None for number in range(5)})
    OutageLog(clock, "me", groups).failed(("heartbeat to", ADDRESS), BrokerError(1, "x"))
    assert caplog.messages[0].endswith("(client me, group g0, group g1, group g2, 2 groups more)")
