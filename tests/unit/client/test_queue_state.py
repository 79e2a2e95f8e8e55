"""How an assigned queue may stand, and that nothing but its machine changes it."""

from __future__ import annotations

import ast
import itertools
from pathlib import Path

import pytest

import rocketstream
from rocketstream.client.core.process_queue import ProcessQueue
from rocketstream.client.core.queue_state import TRANSITIONS, Change, Standing, after
from rocketstream.errors import InternalError
from rocketstream.model import MessageQueue

STEPS = {
    Change.HOLD: ProcessQueue.hold_pull,
    Change.RELEASE: ProcessQueue.release_pull,
    Change.LEAVE: ProcessQueue.leave,
    Change.DROP: ProcessQueue.drop,
}
SHOWN = {"dropped", "leaving", "flow_controlled"}


def process_queue() -> ProcessQueue:
    return ProcessQueue(MessageQueue("T", "broker-a", 0), 1, 0)


def shown(queue: ProcessQueue) -> tuple[bool, bool, bool]:
    return queue.flow_controlled, queue.leaving, queue.dropped


def test_every_change_is_foreseen_in_every_standing() -> None:
    """The table has a line for each pair."""
    assert TRANSITIONS.keys() == set(itertools.product(Standing, Change))


def test_what_is_dropped_stays_dropped() -> None:
    """Covers C-549, C-557: whoever gets the queue next has another process queue."""
    assert {after(Standing.DROPPED, change) for change in Change} == {Standing.DROPPED}


def test_what_leaves_is_never_pulled_again() -> None:
    """Covers C-556: not even when there is room again, or the queue is allotted back."""
    reached = {after(Standing.LEAVING, change) for change in Change}
    assert reached == {Standing.LEAVING, Standing.DROPPED}


@pytest.mark.parametrize("steps", list(itertools.product(Change, repeat=3)))
def test_the_process_queue_shows_how_it_stands(steps: tuple[Change, ...]) -> None:
    """After any three changes exactly what the table says."""
    queue, standing = process_queue(), Standing.PULLED
    assert shown(queue) == (False, False, False)
    for step in steps:
        STEPS[step](queue)
        standing = after(standing, step)
        held, leaving, dropped = Standing.HELD, Standing.LEAVING, Standing.DROPPED
        assert shown(queue) == (standing is held, standing is leaving, standing is dropped)


def test_an_unforeseen_change_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hole in the table is a mistake of ours, and says which."""
    monkeypatch.delitem(TRANSITIONS, (Standing.HELD, Change.LEAVE))
    with pytest.raises(InternalError, match="a queue that is HELD cannot LEAVE"):
        after(Standing.HELD, Change.LEAVE)


def test_only_its_process_queue_writes_how_a_queue_stands() -> None:
    """No module of the consumers sets what the machine shows."""
    root = Path(rocketstream.__file__).parent / "client"
    home = {root / "core" / "process_queue.py", root / "core" / "lite_pull.py"}
    found = [
        f"{file.relative_to(root)}:{node.lineno} {node.attr}"
        for file in sorted(root.rglob("*.py"))
        if file not in home and "trace" not in file.parts
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and node.attr in SHOWN
    ]
    assert found == []
