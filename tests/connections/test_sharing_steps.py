"""What connections share, step by step: whose turn it is, what is counted, and who goes."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Any, cast

import pytest

from rocketstream import limits
from rocketstream.testing.clock import ManualClock
from rocketstream.transport.sharing import Sharing, Steps
from tests.connections.peers import Holder
from tests.plugins.loop_by_hand import LoopByHand

SLICE_MS, PASS_MS = limits.WORK_SLICE_MS, limits.WORK_PASS_MS
MIB = 1024 * 1024


class Worker(Holder):
    """Something with so much to do; each step takes so long."""

    def __init__(self, bench: Bench, name: str, steps: int, step_ms: float) -> None:
        super().__init__(0)
        self.bench, self.name, self.steps, self.step_ms = bench, name, steps, step_ms
        self.looks: list[bool] = []

    def work(self, until: Callable[[], bool]) -> bool:
        self.bench.worked.append(self.name)
        while self.steps:
            self.steps -= 1
            self.bench.clock.advance(self.step_ms)
            self.looks.append(until())
            if self.looks[-1]:
                break
        return self.steps > 0


class Bench:
    """A shared object on a loop and a clock that are a test's.

    Attributes:
        worked: who had a turn, one after another.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **how: Any) -> None:
        self.loop = LoopByHand()
        self.clock = ManualClock()
        with monkeypatch.context() as patch:
            patch.setattr(asyncio, "get_running_loop", lambda: self.loop)
            self.sharing = Sharing(self.clock, **how)
        self.worked: list[str] = []

    def worker(self, name: str, steps: int = 1, step_ms: float = 0.0) -> Any:
        return Worker(self, name, steps, step_ms)

    def turn(self) -> str:
        """Let the loop turn; return who worked."""
        self.worked.clear()
        self.loop.turn()
        return "".join(self.worked)


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    return Bench(monkeypatch)


# --- turns ----------------------------------------------------------------------------------------


def test_a_turn_is_as_long_as_a_slice(bench: Bench) -> None:
    worker = bench.worker("a", 10, SLICE_MS / 4)
    assert bench.sharing.go(worker)
    assert worker.looks == [False, False, False, True]
    assert (worker.is_waiting, len(bench.loop.due)) == (True, 1)
    bench.turn()
    assert worker.looks[4:] == [False, False, False, True]
    bench.turn()
    assert worker.steps == 0
    assert (worker.is_waiting, bench.loop.due) == (False, [])


def test_little_work_is_done_at_once_until_a_pass_is_used(bench: Bench) -> None:
    assert not bench.sharing.go(bench.worker("a", 1, PASS_MS * 15 / 64))
    assert bench.loop.due == []
    assert not bench.sharing.go(bench.worker("b", 1, PASS_MS / 64))
    assert len(bench.loop.due) == 1, "a pass that counts from zero"
    assert not bench.sharing.go(bench.worker("c", 1, PASS_MS * 3 / 4))
    late = bench.worker("d")
    assert bench.sharing.go(late)
    assert "".join(bench.worked) == "abc"
    assert late.is_waiting
    assert bench.turn() == "d"
    assert not bench.sharing.go(bench.worker("e"))
    assert bench.loop.due == []


def test_a_pass_without_work_counts_from_zero(bench: Bench) -> None:
    bench.sharing.go(bench.worker("a", 1, PASS_MS))
    assert bench.sharing._spent_ms == PASS_MS
    bench.turn()
    assert bench.sharing._spent_ms == 0
    assert not bench.sharing.go(bench.worker("b"))


def test_nobody_passes_those_in_line(bench: Bench) -> None:
    bench.sharing.again(bench.worker("a"))
    bench.sharing.again(bench.worker("b"))
    assert bench.sharing.go(bench.worker("c"))
    assert bench.worked == []
    assert bench.turn() == "abc"


def test_who_is_in_line_already_is_not_put_in_twice(bench: Bench) -> None:
    worker = bench.worker("a", 2)
    for _ in range(3):
        bench.sharing.again(worker)
    assert len(bench.loop.due) == 1
    assert bench.turn() == "a"
    assert bench.loop.due == []


def test_a_pass_serves_one_that_has_begun_and_then_those_who_are_new(bench: Bench) -> None:
    """Much work does not hold up little, and goes on all the same."""
    bench.sharing.go(bench.worker("A", 100, SLICE_MS))
    bench.sharing.start(named(bench, "B", 100))
    for name in "cdef":
        bench.sharing.again(bench.worker(name))
    assert bench.turn() == "AcdeB", "three who are new for each"
    assert bench.turn() == "fAB"
    bench.sharing.again(bench.worker("g", 1, PASS_MS))
    bench.sharing.again(bench.worker("h"))
    assert bench.turn() == "g", "the time of the pass is used"
    assert bench.turn() == "hAB", "the next pass goes on where it ended"


def test_what_is_owed_goes_by_turns_with_those_who_are_new(bench: Bench) -> None:
    """Among many who ask, an answer waits behind as many of them as there are answers."""
    for name in "abcdefgh":
        bench.sharing.again(bench.worker(name))
    for name in "XY":
        bench.sharing.owe(bench.worker(name))
    assert bench.turn() == "XaYbcdefgh"
    bench.sharing.owe(bench.worker("Z", 3, SLICE_MS))
    bench.sharing.again(bench.worker("i"))
    assert bench.turn() == "Zi"
    bench.sharing.owe(bench.worker("Y"))
    bench.sharing.again(bench.worker("j"))
    assert bench.turn() == "ZjY", "what is left of it waits with what is owed"


def test_work_in_long_steps_keeps_nobody_from_a_first_turn(bench: Bench) -> None:
    """A step longer than a pass came first in every one: nobody else had a turn."""
    bench.sharing.go(bench.worker("A", 100, 2 * PASS_MS))
    bench.sharing.again(bench.worker("b"))
    bench.sharing.owe(bench.worker("C"))
    assert [bench.turn() for _ in range(3)] == ["A", "CbA", "A"]


def named(bench: Bench, name: str, count: int) -> Steps:
    bench.worked.append(name)
    for step in range(count):
        bench.clock.advance(SLICE_MS)
        if step:
            bench.worked.append(name)
        yield


def test_a_pass_ends_when_its_time_is_used(bench: Bench) -> None:
    for name in "abcde":
        bench.sharing.again(bench.worker(name, 1, PASS_MS / 2))
    assert bench.turn() == "ab"
    assert bench.turn() == "cd"
    assert bench.turn() == "e"
    assert bench.loop.due == []


def test_who_comes_amid_a_pass_waits_for_the_next(bench: Bench) -> None:
    late = bench.worker("b")
    first = bench.worker("a")
    plain = first.work

    def work(until: Callable[[], bool]) -> bool:
        bench.sharing.again(late)
        return bool(plain(until))

    first.work = work
    bench.sharing.again(first)
    assert bench.turn() == "a"
    assert bench.turn() == "b"


def test_work_of_the_server_itself_is_done_in_slices(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    done: list[int] = []

    def steps(count: int) -> Steps:
        for number in range(count):
            bench.clock.advance(SLICE_MS / 2)
            done.append(number)
            yield
        raise ValueError("spoilt")

    bench.sharing.start(steps(3))
    assert (done, len(bench.loop.due)) == ([0, 1], 1)
    bench.turn()
    assert (done, bench.loop.due) == ([0, 1, 2], [])
    assert "INTERNAL work of a server failed" in caplog.text
    bench.sharing.start(iter_nothing())
    assert bench.loop.due == []


def iter_nothing() -> Steps:
    yield


def test_close_does_all_that_waits(bench: Bench) -> None:
    workers = [bench.worker(name, 5, SLICE_MS) for name in "abc"]
    bench.sharing.go(workers[0])
    bench.sharing.again(workers[1])
    bench.sharing.owe(workers[2])
    bench.sharing.holds(Holder(1), 1)
    bench.sharing.close()
    assert [worker.steps for worker in workers] == [0, 0, 0]
    assert not any(worker.is_waiting for worker in workers)
    assert bench.loop.waiting() == []


# --- memory ---------------------------------------------------------------------------------------


def test_bytes_are_counted_each_mebibyte_and_each_half_second(bench: Bench) -> None:
    one = Holder(10)
    bench.sharing.holds(one, MIB - 1)
    assert bench.sharing.bytes_held == 0
    bench.sharing.holds(one, 1)
    assert bench.sharing.bytes_held == 10
    one.bytes_held = 20
    bench.sharing.holds(one, MIB - 1)
    assert bench.sharing.bytes_held == 10
    (timer,) = bench.loop.timers
    assert timer.pause_s == 0.5
    timer.call()
    assert bench.sharing.bytes_held == 20
    assert len(bench.loop.timers) == 2, "it is looked at again as long as something is held"
    one.bytes_held = 0
    bench.loop.timers[1].call()
    assert (bench.sharing.bytes_held, len(bench.loop.timers)) == (0, 2)
    bench.sharing.holds(one, 1)
    assert len(bench.loop.timers) == 3


def test_a_holder_knows_since_when(bench: Bench) -> None:
    one = Holder(10)
    bench.loop.now_s = 3.0
    bench.sharing.holds(one, MIB)
    assert one.holds_since_s == 3.0
    bench.loop.now_s = 5.0
    bench.sharing.holds(one, MIB)
    assert one.holds_since_s == 3.0
    one.bytes_held = 0
    bench.sharing.holds(one, MIB)
    assert one.holds_since_s == math.inf


@pytest.mark.parametrize("spare", [0, -1])
def test_no_more_is_held_than_may_be(monkeypatch: pytest.MonkeyPatch, spare: int) -> None:
    bench = Bench(monkeypatch, bytes_max=100 + spare)
    holders = [Holder(40), Holder(60)]
    for holder in holders:
        bench.sharing.holds(holder, MIB)
    assert [len(holder.reasons) for holder in holders] == ([0, 0] if spare == 0 else [0, 1])
    assert bench.sharing.bytes_held == (100 if spare == 0 else 40)
    if spare:
        text = "60 bytes wait for it, and all connections hold more than the maximum of 99"
        assert holders[1].reasons == [text]
        assert list(bench.sharing._holders) == [holders[0]]


def test_one_that_holds_more_than_all_may_is_the_last_to_go(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench(monkeypatch, bytes_max=100)
    only = Holder(101)
    bench.sharing.holds(only, MIB)
    assert (len(only.reasons), bench.sharing.bytes_held) == (1, 0)


def test_size_counts_with_the_time_it_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    """One second is added: 10 bytes for 4 seconds outweigh 49 that came this instant, not 51."""
    for size, goes in ((49, 0), (51, 1)):
        bench = Bench(monkeypatch, bytes_max=size + 9)
        old, fresh = Holder(10), Holder(size)
        bench.sharing.holds(old, MIB)
        bench.loop.now_s = 4.0
        bench.sharing.holds(fresh, MIB)
        assert [len(old.reasons), len(fresh.reasons)] == [1 - goes, goes]


def test_a_frame_that_is_late_goes(bench: Bench) -> None:
    holders = [Holder(1) for _ in range(3)]
    for holder, due_s in zip(holders, (4.9, 5.0, 5.1), strict=True):
        holder.frame_due_s = due_s
        bench.sharing.holds(holder, 1)
    bench.loop.now_s = 5.0
    (timer,) = bench.loop.waiting()
    timer.call()
    assert [holder.reasons for holder in holders] == [
        ["its frame was not complete in time"], ["its frame was not complete in time"], [],
    ]  # fmt: skip


# --- room for large frames ------------------------------------------------------------------------

ROOM = limits.FRAME_ROOM_BYTES_MAX


def test_room_has_a_bound_but_for_one_frame_alone(bench: Bench) -> None:
    sharing = bench.sharing
    one, two, three = (cast(Any, Holder(1)) for _ in range(3))
    assert sharing.ask_room(one, ROOM + 5)
    assert not sharing.ask_room(two, 1)
    sharing.leave_room(one)
    bench.loop.turn()
    assert two.rooms == 1
    assert sharing.ask_room(three, ROOM - 1)
    assert not sharing.ask_room(one, 1)
    sharing.leave_room(three)
    bench.loop.turn()
    assert (one.rooms, sharing._room_bytes) == (1, 2)
    for each in (one, two, three):
        sharing.leave_room(each)
    assert sharing._room_bytes == 0


def test_room_that_is_left_goes_to_the_smallest_and_to_as_many_as_fit(bench: Bench) -> None:
    sharing = bench.sharing
    first, *others = (cast(Any, Holder(1)) for _ in range(5))
    sharing.ask_room(first, ROOM)
    for each, size in zip(others, (ROOM, 30, 20, 10), strict=True):
        assert not sharing.ask_room(each, size)
    sharing.leave_room(others[3])
    sharing.leave_room(first)
    assert [each.rooms for each in others] == [0] * 4, "not amid the call"
    bench.loop.turn()
    assert [each.rooms for each in others] == [0, 1, 1, 0]
    assert (len(sharing._wanted), sharing._room_bytes) == (1, 50)
    sharing.leave_room(others[1])
    sharing.leave_room(others[2])
    sharing.leave_room(others[0])
    bench.loop.turn()
    assert others[0].rooms == 0, "it left before it was told"


def test_a_room_filled_too_slowly_is_taken_while_others_wait(bench: Bench) -> None:
    patience_s = (limits.ROOM_GRACE_MS + ROOM / limits.ROOM_BYTES_PER_MS_MIN) / 1000
    slow, other = cast(Any, Holder(1)), cast(Any, Holder(1))
    bench.loop.now_s = 1.0
    bench.sharing.ask_room(slow, ROOM)
    bench.sharing._clear_rooms(1.0 + 2 * patience_s)
    assert slow.reasons == [], "nobody waits"
    bench.sharing.ask_room(other, 1)
    bench.sharing._clear_rooms(1.0 + patience_s)
    assert slow.reasons == []
    bench.sharing._clear_rooms(1.0 + patience_s + 0.001)
    assert slow.reasons == [f"its frame of {ROOM} bytes took too long while others waited"]
    slow.reasons.clear()
    bench.sharing.holds(other, 1)
    bench.loop.now_s = 1.0 + 2 * patience_s
    bench.loop.timers[0].call()
    assert len(slow.reasons) == 1, "each look sees to it"


def test_little_is_read_of_who_has_no_room_while_others_wait(bench: Bench) -> None:
    one, two = cast(Any, Holder(1)), cast(Any, Holder(1))
    full = limits.SERVER_READ_BYTES
    assert len(bench.sharing.read_buffer(one)) == full
    bench.sharing.ask_room(one, ROOM)
    assert len(bench.sharing.read_buffer(two)) == full
    bench.sharing.ask_room(two, 1)
    assert len(bench.sharing.read_buffer(one)) == full
    assert len(bench.sharing.read_buffer(two)) == limits.SERVER_READ_BYTES_CROWDED
