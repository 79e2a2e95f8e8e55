"""Which plain sends go together, and when they leave: the decisions of ``auto_batch``."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketstream import Message
from rocketstream.client.producer.gathering import Batch, Gathering, each_alone, may_be_gathered
from rocketstream.errors import SendConnectError, SendError, SendOutcome, SendRouteError

DELAY_MS = 10
TIMEOUT_MS = 3_000


class Machine:
    """A gathering with a clock that tests move, for messages of ten bytes."""

    def __init__(self, bytes_max: int = 50, records_max: int = 1_000, messages_max: int = 8):
        self.now = 0.0
        self.machine: Gathering[int] = Gathering(bytes_max, records_max, DELAY_MS, messages_max)

    def add(
        self,
        item: int,
        lane: Hashable = "T",
        *,
        terms: Hashable = None,
        order: bool = False,
        alone: bool = False,
        size: int = 10,
        timeout_ms: float = TIMEOUT_MS,
    ) -> bool:
        return self.machine.add(
            item,
            lane,
            terms,
            size,
            size + 30,
            self.now,
            timeout_ms,
            keeps_order=order,
            alone=alone,
        )

    def take(self, *, everything: bool = False) -> list[Batch[int]]:
        return self.machine.take(self.now, everything=everything)

    def under_way(self) -> Batch[int]:
        """Have one message under way, so that what follows is gathered."""
        assert self.add(0)
        (batch,) = self.take()
        return batch


def items(batches: list[Batch[int]]) -> list[list[int]]:
    return [batch.items for batch in batches]


def test_what_finds_nothing_under_way_leaves_at_once() -> None:
    """A program that waits for each answer never waits for the delay."""
    machine = Machine()
    assert machine.add(1)
    assert machine.add(2)  # came before anybody looked: it goes along
    assert items(machine.take()) == [[1, 2]]
    assert machine.take() == []


def test_messages_wait_for_each_other_unless_one_is_said_to_go_alone() -> None:
    machine = Machine()
    machine.under_way()
    for item in (1, 2):
        machine.machine.add(item, "T", None, 10, 40, machine.now, TIMEOUT_MS)
    machine.now = DELAY_MS
    assert items(machine.take()) == [[1, 2]]


def test_a_lane_is_any_queue_of_its_topic_unless_it_is_said_to_be_one() -> None:
    """So its batches need not wait for one another."""
    machine = Machine(bytes_max=20)
    for item in (1, 2, 3, 4):
        machine.machine.add(item, "T", None, 10, 40, machine.now, TIMEOUT_MS)
    assert items(machine.take()) == [[1, 2], [3, 4]]


def test_while_a_batch_is_under_way_the_next_is_gathered_until_the_answer() -> None:
    machine = Machine()
    first = machine.under_way()
    assert not machine.add(1)
    assert not machine.add(2)
    assert machine.take() == []
    assert machine.machine.done(first)
    assert items(machine.take()) == [[1, 2]]


def test_a_full_batch_leaves_though_others_are_under_way() -> None:
    machine = Machine(bytes_max=30)
    machine.under_way()
    assert not machine.add(1)
    assert not machine.add(2)
    assert machine.add(3)
    assert items(machine.take()) == [[1, 2, 3]]
    assert not machine.add(4)
    assert machine.take() == []


def test_a_batch_is_full_by_number_too() -> None:
    machine = Machine(bytes_max=10_000, records_max=10_000, messages_max=3)
    machine.under_way()
    assert [machine.add(n) for n in (1, 2, 3)] == [False, False, True]
    assert items(machine.take()) == [[1, 2, 3]]


def test_what_a_request_cannot_carry_goes_into_the_next_batch() -> None:
    """Properties count: three records of 40 bytes do not fit 100."""
    machine = Machine(bytes_max=10_000, records_max=100)
    machine.under_way()
    for n in (1, 2, 3):
        machine.add(n)
    assert items(machine.take()) == [[1, 2]]
    assert items(machine.take(everything=True)) == [[3]]


@pytest.mark.parametrize(("carries", "together"), [(80, [[1, 2]]), (79, [[1], [2]])])
def test_a_request_is_filled_to_the_last_byte(carries: int, together: list[list[int]]) -> None:
    machine = Machine(bytes_max=10_000, records_max=carries)
    machine.under_way()
    machine.add(1)
    machine.add(2)
    assert items(machine.take(everything=True)) == together


@pytest.mark.parametrize(("full", "together"), [(20, [[1, 2]]), (21, [[1, 2, 3]])])
def test_bodies_make_a_batch_full_from_the_byte_that_reaches_the_bound(
    full: int, together: list[list[int]]
) -> None:
    machine = Machine(bytes_max=full)
    machine.under_way()
    for n in (1, 2, 3):
        machine.add(n)
    assert items(machine.take()) == together


def test_no_message_waits_longer_than_the_delay() -> None:
    machine = Machine()
    machine.under_way()
    machine.now = 5
    machine.add(1)
    machine.now = 9
    machine.add(2)
    assert machine.machine.next_ms() == 5 + DELAY_MS
    machine.now = 14.9
    assert machine.take() == []
    machine.now = 15
    assert items(machine.take()) == [[1, 2]]
    assert machine.machine.next_ms() == math.inf


def test_messages_of_other_terms_are_in_another_batch() -> None:
    """WAIT, and how long the sender waits, hold for a whole batch."""
    machine = Machine()
    machine.under_way()
    machine.add(1, terms="a")
    assert machine.add(2, terms="b")
    assert items(machine.take()) == [[1]]
    assert items(machine.take(everything=True)) == [[2]]


def test_lanes_do_not_wait_for_one_another() -> None:
    machine = Machine()
    machine.under_way()
    assert not machine.add(1)
    assert machine.add(2, "U")
    assert items(machine.take()) == [[2]]


def test_what_goes_alone_follows_what_its_lane_holds() -> None:
    machine = Machine()
    machine.under_way()
    machine.add(1)
    machine.add(2, alone=True)
    machine.add(3)
    assert items(machine.take(everything=True)) == [[1], [2], [3]]


def test_of_a_queue_one_batch_is_under_way_at_a_time() -> None:
    """Were it refused and sent one by one, a batch behind it would overtake its messages."""
    machine = Machine(bytes_max=20)
    machine.add(1, order=True)
    (first,) = machine.take()
    assert not any(machine.add(n, order=True) for n in (2, 3, 4, 5, 6))
    machine.now = DELAY_MS + 1
    assert machine.take() == []
    assert machine.machine.done(first)
    (second,) = machine.take()
    assert second.items == [2, 3]
    assert machine.take() == []
    machine.machine.done(second)
    (third,) = machine.take()
    machine.machine.done(third)
    assert items([third, *machine.take()]) == [[4, 5], [6]]


def test_what_waited_for_its_turn_too_long_leaves_to_fail() -> None:
    """A broker that does not answer keeps nobody waiting beyond the timeout given."""
    machine = Machine()
    machine.add(1, order=True)
    machine.take()
    machine.add(2, order=True, timeout_ms=100, terms=100)
    machine.add(3, order=True)
    assert machine.machine.next_ms() == 100
    machine.now = 100
    assert items(machine.take()) == [[2]]
    assert machine.machine.next_ms() == TIMEOUT_MS
    assert machine.take(everything=True) == [], "it has left, and the other waits for its turn"


def test_what_is_still_gathered_leaves_to_fail_at_the_end_of_its_time_and_not_before() -> None:
    machine = Machine()
    machine.add(1, order=True)
    machine.take()
    machine.add(2, order=True, timeout_ms=100)
    machine.now = 99.9
    assert machine.take(everything=False) == []
    machine.now = 100
    assert items(machine.take()) == [[2]]


def test_an_answer_says_nothing_while_others_of_its_lane_are_awaited() -> None:
    """The last of them does: then what was gathered meanwhile may leave."""
    machine = Machine(bytes_max=20)
    first = machine.under_way()
    for n in (1, 2, 3):
        machine.add(n)
    (second,) = machine.take()
    assert [machine.machine.done(batch) for batch in (first, second)] == [False, True]
    assert items(machine.take()) == [[3]]


def test_what_was_not_sent_is_given_back_once() -> None:
    machine = Machine(bytes_max=20)
    first = machine.under_way()
    machine.add(1)
    for n in (2, 3, 4):
        machine.add(n, "Q", order=True)
    assert sorted(machine.machine.give_up()) == [1, 2, 3, 4]
    assert machine.machine.give_up() == []
    assert not machine.machine.done(first)
    assert machine.take(everything=True) == []
    assert machine.machine.next_ms() == math.inf


steps = st.lists(
    st.one_of(
        st.tuples(
            st.just("add"), st.sampled_from(["T", "Q1", "Q2"]), st.integers(1, 40), st.booleans()
        ),
        st.tuples(st.just("done"), st.integers(0, 5)),
        st.tuples(st.just("time"), st.integers(1, 15)),
    ),
    max_size=60,
)


@given(steps)
def test_every_message_leaves_once_in_order_within_the_delay(
    moves: list[tuple[object, ...]],
) -> None:
    """Whatever comes in whatever order; looked at whenever it is said that something may leave."""
    machine = Machine(bytes_max=60, messages_max=4)
    added: dict[Hashable, list[int]] = defaultdict(list)
    left: dict[Hashable, list[int]] = defaultdict(list)
    since: dict[int, float] = {}
    under_way: list[Batch[int]] = []

    def look() -> None:
        for batch in machine.take():
            left[batch.lane] += batch.items
            under_way.append(batch)
            if batch.lane == "T":
                assert all(machine.now - since[item] <= DELAY_MS for item in batch.items)
        assert all(sum(b.lane == q for b in under_way) <= 1 for q in ("Q1", "Q2"))

    def pass_time(until: float) -> None:
        while machine.machine.next_ms() <= until:
            machine.now = machine.machine.next_ms()
            look()
        machine.now = until

    for number, (kind, *what) in enumerate(moves):
        if kind == "add":
            lane, size, alone = what
            assert isinstance(size, int)
            since[number] = machine.now
            added[str(lane)].append(number)
            if machine.add(
                number, str(lane), size=size, alone=bool(alone), order=lane != "T", timeout_ms=1e6
            ):
                look()
        elif kind == "done" and under_way:
            index = what[0]
            assert isinstance(index, int)
            if machine.machine.done(under_way.pop(index % len(under_way))):
                look()
        elif kind == "time":
            step = what[0]
            assert isinstance(step, int)
            pass_time(machine.now + step)
    pass_time(machine.now + DELAY_MS)
    while under_way:
        if machine.machine.done(under_way.pop()):
            look()
    assert left == added


@pytest.mark.parametrize(
    ("message", "together"),
    [
        (Message("T", b"x", tags="A", keys="k", properties={"p": "v"}, flag=-5), True),
        (Message("T", b"x", delay_level=2), False),
        (Message("T", b"x", delay_time_ms=5), False),
    ],
)
def test_what_a_batch_cannot_carry_goes_alone(message: Message, together: bool) -> None:
    assert may_be_gathered(message.properties, message.flag) is together


@pytest.mark.parametrize("name", ["TRAN_MSG", "PGROUP", "MSG_TYPE", "INNER_MULTI_DISPATCH"])
def test_what_brokers_treat_apart_goes_alone(name: str) -> None:
    assert not may_be_gathered({"WAIT": "true", name: "x"}, 0)


@pytest.mark.parametrize(
    ("error", "one_by_one"),
    [
        (SendError("illegal", SendOutcome.REJECTED), True),
        (SendError("a hook says no", SendOutcome.NOT_SENT), True),
        (SendError("busy", SendOutcome.REJECTED).with_retriable(True), False),
        (SendError("timeout", SendOutcome.UNKNOWN).with_retriable(True), False),
        (SendError("lost", SendOutcome.UNKNOWN), False),
        (SendRouteError("no route"), False),
        (SendConnectError("nobody", SendOutcome.NOT_SENT).with_retriable(True), False),
    ],
)
def test_only_what_was_refused_for_good_is_sent_one_by_one(
    error: SendError, one_by_one: bool
) -> None:
    """Never what may be stored, nor what would fail alike: a busy broker is not asked more."""
    assert each_alone(error) is one_by_one


@pytest.mark.parametrize(
    ("flag", "fits"), [(2**31 - 1, True), (2**31, False), (-(2**31), True), (-(2**31) - 1, False)]
)
def test_a_flag_of_32_bits_can_be_gathered(flag: int, fits: bool) -> None:
    assert may_be_gathered({}, flag) is fits
