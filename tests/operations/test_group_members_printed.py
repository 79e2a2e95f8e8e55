"""What ``running-info`` says of a member: what it holds and where, before anything else."""

from __future__ import annotations

import pytest

from rocketstream.admin.rows import RunningInfoRow, RunningQueueRow
from rocketstream.cli.group import print_running
from rocketstream.model import MessageQueue

NOW_MS = 1_700_000_000_000


def queue(
    queue_id: int, cached: int = 0, oldest: int | None = None, consumed_ms: int | None = NOW_MS
) -> RunningQueueRow:
    return RunningQueueRow(
        "orders", "broker-a", queue_id, 10, cached, 0, False, False, NOW_MS, consumed_ms, oldest
    )


def printed(row: RunningInfoRow, capsys: pytest.CaptureFixture[str], settings: bool = False) -> str:
    lags = {MessageQueue("orders", "broker-a", n): lag for n, lag in enumerate((5, 5_000))}
    print_running(row, lags, settings)
    return capsys.readouterr().out


def row(*queues: RunningQueueRow) -> RunningInfoRow:
    settings = {
        "PROP_THREADPOOL_CORE_SIZE": "20",
        "PROP_CONSUMEORDERLY": "true",
        "pullInterval": "0",
    }
    return RunningInfoRow("billing", "10.0.0.9@4242", settings, (), queues)


def test_the_queue_that_waits_for_longest_is_named_first(
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = printed(row(queue(0, 3, 40), queue(1, 1_000, 1_234, NOW_MS - 60_000), queue(2)), capsys)
    lines = text.splitlines()
    assert lines[0] == "10.0.0.9@4242 of group billing"
    assert lines[1].startswith(
        "holds 1,003 messages of 2 of its 3 queues; waiting for longest: orders broker-a:1 from "
        "offset 1,234 on"
    )
    table = [line.split() for line in lines[4:7]]
    assert [cells[2:5] for cells in table] == [
        ["1", "5,000", "1,000"],
        ["0", "5", "3"],
        ["2", "unknown", "0"],
    ]


def test_settings_are_shown_when_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(row(queue(0)), capsys)
    assert "holds no message; owns 1 queue" in text
    assert "threads for the listener: 20, in order" in text
    assert "3 settings: --settings shows them" in text
    assert "pullInterval" not in text
    assert "pullInterval" in printed(row(queue(0)), capsys, settings=True)
