"""Which brokers are avoided, and for how long (C-465, C-466, C-603)."""

from __future__ import annotations

import itertools
import socket
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketstream import Message, Producer
from rocketstream.client.producer.policy import FaultTable
from rocketstream.client.producer.settings import LATENCY_MAX_MS, NOT_AVAILABLE_DURATION_MS
from rocketstream.errors import ConfigurationError, SendError
from rocketstream.model import MessageQueue
from rocketstream.protocol.codes import RequestCode
from rocketstream.testing.clock import ManualClock
from tests.kits.client.fake_broker import TOPIC, FakeBroker, refusal
from tests.plugins.waiting import wait_until

SEND = RequestCode.SEND_MESSAGE_V2
QUEUES = tuple(MessageQueue("T", name, i) for name in ("a", "b", "c") for i in range(2))


def indexes(start: int = 0) -> Any:
    return itertools.count(start).__next__


@pytest.mark.parametrize(
    ("latency", "duration"),
    [(0, 0), (49, 0), (50, 0), (549, 0), (550, 2_000), (1_799, 2_000), (1_800, 5_000),
     (3_000, 6_000), (5_000, 10_000), (14_999, 10_000), (15_000, 30_000), (1e9, 30_000)],
)  # fmt: skip
def test_the_slower_a_broker_the_longer_it_is_avoided(latency: float, duration: float) -> None:
    """Covers C-465, C-603: 5.x's table; nothing is avoided for more than 30 s."""
    assert FaultTable().duration_ms(latency) == duration


def test_upstreams_old_table_can_be_set() -> None:
    """Covers C-89, C-465."""
    table = FaultTable(
        (50, 100, 550, 1000, 2000, 3000, 15000), (0, 0, 30000, 60000, 120000, 180000, 600000)
    )
    assert [table.duration_ms(ms) for ms in (99, 550, 1000, 2999, 3000, 15000)] == [
        0, 30_000, 60_000, 120_000, 180_000, 600_000,
    ]  # fmt: skip


def test_a_failure_isolates_for_ten_seconds() -> None:
    """Covers C-465, C-603: by the table's row for 10 s, not ten minutes."""
    table = FaultTable()
    table.update("a", 3, 1_000, isolate=True)
    assert not table.is_available("a", 10_999)
    assert table.is_available("a", 11_000)
    assert table.is_available("b", 1_000)


def test_a_good_try_clears_what_was_noted() -> None:
    """Covers C-465."""
    table = FaultTable()
    table.update("a", 3, 0, isolate=True, reachable=False)
    table.update("a", 3, 1)
    assert table.is_available("a", 1)
    assert table.unreachable() == []


def test_the_unreachable_wait_for_a_probe() -> None:
    """Covers C-603: time alone does not bring them back, a probe does at once."""
    table = FaultTable()
    table.update("a", 3, 0, isolate=True, reachable=False)
    assert not table.is_available("a", 1e9)
    assert table.unreachable() == ["a"]
    table.recovered("a")
    assert table.is_available("a", 1)


def test_queues_of_available_brokers_come_in_turn() -> None:
    """Covers C-466."""
    table = FaultTable()
    table.update("b", 700, 0)
    next_index = indexes()
    chosen = [table.choose(QUEUES, next_index, 1) for _ in range(4)]
    assert chosen == [QUEUES[0], QUEUES[1], QUEUES[4], QUEUES[5]]
    assert table.choose(QUEUES[2:4], next_index, 1) is None


def test_when_all_are_in_trouble_the_better_half_serves() -> None:
    """Covers C-466: available first, then faster, then back earlier."""
    table = FaultTable()
    table.update("a", 700, 0)
    table.update("b", 600, 0)
    table.update("c", 10, 0, isolate=True, reachable=False)
    assert table.ranked(1) == ["b", "a", "c"]
    assert table.choose(QUEUES, indexes(), 1) is None
    next_index = indexes()
    assert [table.least_bad(QUEUES, next_index, 1) for _ in range(3)] == [
        QUEUES[2],
        QUEUES[3],
        QUEUES[2],
    ]
    assert table.least_bad([MessageQueue("T", "d", 0)], next_index, 1) is None
    assert table.least_bad(QUEUES[4:], indexes(), 1) == QUEUES[4]
    assert FaultTable().least_bad(QUEUES, next_index, 1) is None


@pytest.mark.parametrize(("brokers", "better"), [(1, 1), (3, 1), (4, 2), (7, 3)])
def test_the_better_half_of_the_brokers_is_asked_in_turn(brokers: int, better: int) -> None:
    """Covers C-466: half of them, rounded down, and one at least."""
    names = "abcdefg"[:brokers]
    table = FaultTable()
    for place, name in enumerate(names):
        table.update(name, 1_000 + place, 0, isolate=True)
    queues = [MessageQueue("T", name, 0) for name in names]
    next_index = indexes()
    chosen = [table.least_bad(queues, next_index, 1) for _ in range(8)]
    assert {mq.broker_name for mq in chosen if mq is not None} == set(table.ranked(1)[:better])


def test_all_queues_of_the_better_brokers_are_used() -> None:
    """Covers C-466: brokers in turn, and the queues of each in turn."""
    table = FaultTable()
    for place, name in enumerate("abcd"):
        table.update(name, 1_000 + place, 0, isolate=True)
    queues = [MessageQueue("T", name, number) for name in "abcd" for number in range(2)]
    next_index = indexes()
    chosen = [table.least_bad(queues, next_index, 1) for _ in range(4)]
    assert chosen == [queues[0], queues[2], queues[1], queues[3]]


EVENTS = st.lists(
    st.tuples(
        st.sampled_from("abc"),
        st.sampled_from(["fast", "slow", "failed", "lost", "probe", "wait"]),
        st.integers(0, 40_000),
    ),
    max_size=60,
)


@given(EVENTS)
def test_no_broker_is_avoided_for_longer_than_it_should_be(
    events: list[tuple[str, str, int]],
) -> None:
    """Covers C-465, C-466, C-603: any history against a model of three rules."""
    table, now = FaultTable(), 0.0
    until: dict[str, float] = {}
    for broker, event, number in events:
        if event == "wait":
            now += number
        elif event == "probe":
            table.recovered(broker)
            until[broker] = now
        elif event in ("failed", "lost"):
            table.update(broker, number, now, isolate=True, reachable=event == "failed")
            until[broker] = now + 10_000 if event == "failed" else float("inf")
        else:
            latency = number if event == "slow" else 10
            table.update(broker, latency, now)
            until[broker] = now + table.duration_ms(latency)
            assert until[broker] <= now + 30_000
        free = {name for name in "abc" if until.get(name, 0) <= now}
        assert {name for name in "abc" if table.is_available(name, now)} == free
        chosen = table.choose(QUEUES, indexes(number), now)
        assert (chosen is None) == (not free)
        assert chosen is None or chosen.broker_name in free
        if not free:
            assert table.least_bad(QUEUES, indexes(number), now) in QUEUES


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"latency_max": (1, 2)}, "same number of entries"),
        ({"latency_max": (), "not_available_duration": ()}, "at least one"),
        ({"latency_max": (2, 1), "not_available_duration": (0, 0)}, "ascending"),
        ({"latency_max": (1, 2), "not_available_duration": (0, -1)}, "from 0 on"),
        ({"detect_interval_ms": 0}, "detect_interval_ms must be a whole number from 1"),
        ({"send_latency_fault_enable": 1}, "must be True or False"),
    ],
)
def test_latency_settings_are_checked(settings: dict[str, Any], text: str) -> None:
    """Covers C-88, C-89."""
    with pytest.raises(ConfigurationError, match=text):
        Producer("pg", **settings)
    producer = Producer("pg")
    assert producer.settings.latency_max == LATENCY_MAX_MS
    assert producer.settings.not_available_duration == NOT_AVAILABLE_DURATION_MS
    assert not producer.settings.send_latency_fault_enable


# --- live -----------------------------------------------------------------------------------------


@pytest.fixture
def pair() -> Iterator[tuple[FakeBroker, FakeBroker]]:
    with FakeBroker() as one, FakeBroker(name="broker-b") as two:
        one.others = [two]
        yield one, two


@pytest.mark.parametrize("form", ["sync", "future"])
def test_a_failing_broker_gets_nothing_until_its_time_is_over(
    pair: tuple[FakeBroker, FakeBroker], form: str
) -> None:
    """Covers C-88, C-465, C-466: in both ways of sending, and back after the time."""
    one, two = pair
    one.on[SEND] = refusal(1, "busy")
    clock = ManualClock()
    with Producer(
        "pg", namesrv_addr=one.address, clock=clock, send_latency_fault_enable=True
    ) as producer:

        def send() -> str:
            message = Message(TOPIC, b"x")
            if form == "future":
                return producer.send_async(message).result(20).message_queue.broker_name
            return producer.send(message).message_queue.broker_name

        assert {send() for _ in range(6)} == {"broker-b"}
        assert len(one.asked(SEND)) == 1
        one.on[SEND] = two.on[SEND]
        clock.advance(10_000)
        assert Counter(send() for _ in range(6)) == {"broker-a": 3, "broker-b": 3}


def test_a_code_added_while_running_counts_against_its_broker(
    pair: tuple[FakeBroker, FakeBroker],
) -> None:
    """Covers C-87, C-465: the table knows the codes as they are now, like the tries."""
    one, _ = pair
    one.on[SEND] = refusal(13, "not now")
    with Producer(
        "pg", namesrv_addr=one.address, clock=ManualClock(), send_latency_fault_enable=True
    ) as producer:
        producer.add_retry_response_code(13)
        stored = [producer.send(Message(TOPIC, b"x")).message_queue for _ in range(6)]
    assert {queue.broker_name for queue in stored} == {"broker-b"}
    assert len(one.asked(SEND)) == 1


def test_a_refused_message_says_nothing_of_the_broker(pair: tuple[FakeBroker, FakeBroker]) -> None:
    """Covers C-465: unlike the original an illegal message isolates nobody."""
    one, two = pair
    one.on[SEND] = two.on[SEND] = refusal(13, "illegal")
    with Producer("pg", namesrv_addr=one.address, send_latency_fault_enable=True) as producer:
        for _ in range(4):
            with pytest.raises(SendError):
                producer.send(Message(TOPIC, b"x"))
    assert len(one.asked(SEND)) == len(two.asked(SEND)) == 2


def test_without_it_every_broker_stays_in_turn(pair: tuple[FakeBroker, FakeBroker]) -> None:
    """Covers C-88: off by default; a retry goes elsewhere, the next send comes back."""
    one, _ = pair
    one.on[SEND] = refusal(1, "busy")
    with Producer("pg", namesrv_addr=one.address) as producer:
        for _ in range(6):
            producer.send(Message(TOPIC, b"x"))
    assert len(one.asked(SEND)) >= 3


def test_a_broker_that_comes_back_is_found_by_a_probe(pair: tuple[FakeBroker, FakeBroker]) -> None:
    """Covers C-603: active detection, long before any isolation would have ended."""
    one, two = pair
    address = two.address
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        two.address = f"127.0.0.1:{holder.getsockname()[1]}"
        with Producer(
            "pg",
            namesrv_addr=one.address,
            send_latency_fault_enable=True,
            detect_interval_ms=10,
            poll_name_server_interval_ms=50,
        ) as producer:
            results = [producer.send(Message(TOPIC, b"x")) for _ in range(4)]
            assert {result.message_queue.broker_name for result in results} == {"broker-a"}
            two.address = address
            two.wait_for(RequestCode.GET_MAX_OFFSET)
            names: set[str] = set()

            def both() -> bool:
                names.add(producer.send(Message(TOPIC, b"x")).message_queue.broker_name)
                return len(names) == 2

            wait_until(both, "sends to the broker that came back")
