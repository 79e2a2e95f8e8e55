"""What ``group lag`` says below its table."""

from __future__ import annotations

import pytest

from rocketstream.admin.state import GroupState, QueueState
from rocketstream.cli.group import print_states


def told(capsys: pytest.CaptureFixture[str], *queues: QueueState) -> str:
    print_states([GroupState("billing", 0, queues=queues)], named=False)
    return capsys.readouterr().out


def test_the_one_owner_of_all_queues_is_told_once(capsys: pytest.CaptureFixture[str]) -> None:
    queues = [QueueState("orders", "a", number, client_id="c1") for number in (0, 1)]
    assert "\nc1 owns all queues\n" in told(capsys, *queues)


def test_nobody_owns_the_queues_of_a_group_that_has_none(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert "owns" not in told(capsys)
    assert "owns" not in told(capsys, QueueState("orders", "a", 0))
