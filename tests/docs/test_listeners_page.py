"""The page on listeners: its unit tests pass as printed, and would not for another listener."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rocketstream import Message, Producer
from rocketstream.admin import Admin
from rocketstream.server.embedded import EmbeddedCluster
from tests.docs.ledger import COUNT, SENT, SLEPT_AT, run_ledger

PAGE = (Path(__file__).resolve().parents[2] / "docs/listeners.md").read_text(encoding="utf-8")
SAID = re.compile(r"<!-- test: order -->.*?```text\n(.*?)```", re.DOTALL)
EXAMPLE = re.compile(r"<!-- test: (\w+) -->\n```python\n(.*?)```", re.DOTALL)
EXAMPLES = dict(EXAMPLE.findall(PAGE))
DEFAULT_ADDR = "127.0.0.1:9876"


def functions_of(program: str) -> dict[str, Any]:
    names: dict[str, Any] = {}
    exec(program, names)  # noqa: S102 - our own page
    return {name: each for name, each in names.items() if name.startswith("test_")}


def test_the_example_tests_its_listener() -> None:
    program = EXAMPLES["listener"]
    tests = functions_of(program)
    assert len(tests) == 2
    for test in tests.values():
        test()
    broken = functions_of(program.replace("+ message.reconsume_times", ""))
    with pytest.raises(AssertionError):
        broken["test_an_order_for_later_waits_longer_each_time"]()


def test_what_is_consumed_in_order_comes_as_told(capsys: pytest.CaptureFixture[str]) -> None:
    told = SAID.search(PAGE)
    assert told is not None
    with EmbeddedCluster() as cluster:
        exec(EXAMPLES["order"].replace(DEFAULT_ADDR, cluster.namesrv_addr), {})  # noqa: S102 - our own page
    assert capsys.readouterr().out == told[1]


@pytest.mark.parametrize("batches", [(1, 1), (3, 2), (2, 3)])
@pytest.mark.parametrize("wakes_at", [SLEPT_AT, SLEPT_AT + 1, COUNT - 1])
def test_an_owner_that_slept_past_its_lease_books_nothing_twice(
    wakes_at: int, batches: tuple[int, int], tmp_path: Path
) -> None:
    """The second to write is refused: the sleeper, or the new owner that had not written yet."""
    written, bookings = run_ledger(EXAMPLES["slept"], tmp_path / "ledger.db", batches, wakes_at)
    owners = [name for name, offset in written if offset == SLEPT_AT]
    assert sorted(owners) == ["one", "two"], "one message was written by two owners"
    assert bookings == SENT


@pytest.mark.parametrize("wakes_at", [SLEPT_AT, COUNT - 1])
def test_without_the_offset_an_owner_that_slept_books_twice(wakes_at: int, tmp_path: Path) -> None:
    """The double owner is real: it is the comparison that refuses it."""
    comparison = " WHERE done.last_offset < excluded.last_offset"
    assert comparison in EXAMPLES["slept"]
    passing = EXAMPLES["slept"].replace(comparison, "")
    _, bookings = run_ledger(passing, tmp_path / "ledger.db", (1, 1), wakes_at)
    assert bookings.count(SENT[SLEPT_AT]) == 2


def test_refusing_only_what_is_less_lets_both_owners_book(tmp_path: Path) -> None:
    """The rule for the number of a lock is not the one for an offset."""
    weaker = EXAMPLES["slept"].replace("done.last_offset < ", "done.last_offset <= ")
    _, bookings = run_ledger(weaker, tmp_path / "ledger.db", (1, 1), SLEPT_AT)
    assert bookings.count(SENT[SLEPT_AT]) == 2


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_program_ends_in_good_order(number: signal.Signals, tmp_path: Path) -> None:
    """By Ctrl-C and as a service manager ends it: what was billed is stored as consumed."""
    script = tmp_path / "program.py"
    with EmbeddedCluster() as cluster:
        address = cluster.namesrv_addr
        cluster.create_topic("orders", queues=1)
        script.write_text(EXAMPLES["program"].replace(DEFAULT_ADDR, address), encoding="utf-8")
        with Admin(address) as admin, Producer("shop", namesrv_addr=address) as producer:
            admin.groups.begin("billing", "orders")
            producer.send(Message("orders", "7", keys="order-7"))
            with subprocess.Popen(
                [sys.executable, str(script)], stdout=subprocess.PIPE, text=True
            ) as program:
                assert program.stdout is not None
                assert program.stdout.readline() == "billed order-7\n"
                program.send_signal(number)
                rest, _ = program.communicate(timeout=60)
            assert (program.returncode, rest) == (0, "ended in good order\n")
            assert {row.lag for row in admin.groups.lag("billing")} == {0}
