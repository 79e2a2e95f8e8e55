"""Jepsen's rules, as we hold them, find the anomaly each is about; EDN is as Jepsen reads it."""

from __future__ import annotations

import pytest

from tests.outside import edn
from tests.outside.by_hand import healthy
from tests.outside.edn import Operation, Polled, Sent
from tests.outside.kafka_rules import judge


def sent(process: int, offset: int | None, value: int, kind: str = "ok") -> Operation:
    return Operation(kind, "send", process, value, (Sent(0, value, offset),))


def polled(process: int, *pairs: tuple[int, int], kind: str = "ok") -> Operation:
    return Operation(kind, "poll", process, 100, polls=(Polled(((0, pairs),)),))


def assigned(process: int) -> Operation:
    return Operation("ok", "assign", process, 0, keys=(0,))


SENDS = (sent(1, 0, 10), sent(1, 1, 11), sent(1, 2, 12))
PLANTED = (
    ("lost-write", (*SENDS, polled(2, (0, 10)), polled(3, (2, 12)))),
    ("unseen", (*SENDS, polled(2, (0, 10), (1, 11)))),
    ("inconsistent-offsets", (*SENDS, polled(2, (0, 10), (1, 99), (2, 12)))),
    ("duplicate", (*SENDS, polled(2, (0, 10), (1, 11), (2, 12), (3, 11)))),
    ("G1a", (*SENDS, sent(4, None, 13, "fail"), polled(2, (0, 10), (1, 11), (2, 12), (3, 13)))),
    ("int-poll-skip", (*SENDS, polled(2, (0, 10), (2, 12)), polled(3, (1, 11)))),
    ("int-nonmonotonic-poll", (*SENDS, polled(2, (1, 11), (0, 10)), polled(3, (2, 12)))),
    (
        "poll-skip",
        (*SENDS, assigned(2), polled(2, (0, 10)), polled(2, (2, 12)), polled(3, (1, 11))),
    ),
    (
        "nonmonotonic-poll",
        (*SENDS, assigned(2), polled(2, (0, 10), (1, 11), (2, 12)), polled(2, (0, 10))),
    ),
    ("nonmonotonic-send", (sent(1, 1, 10), sent(1, 0, 11), polled(2, (0, 11), (1, 10)))),
)


@pytest.mark.parametrize(("name", "operations"), PLANTED, ids=[name for name, _ in PLANTED])
def test_a_planted_anomaly_has_its_name(name: str, operations: tuple[Operation, ...]) -> None:
    assert name in judge(operations).cases


def test_a_clean_history_is_valid() -> None:
    clean = (*SENDS, assigned(2), polled(2, (0, 10), (1, 11)), polled(2, (2, 12)))
    assert judge(clean).is_valid


def test_a_consumer_that_subscribes_may_skip_from_poll_to_poll_as_its_queues_change_hands() -> None:
    subscribed = Operation("ok", "subscribe", 2, 0, keys=(0,))
    operations = (*SENDS, subscribed, polled(2, (0, 10)), polled(2, (2, 12)), polled(3, (1, 11)))
    assert judge(operations).is_valid


def test_a_send_nobody_knows_the_end_of_is_lost_by_nobody() -> None:
    assert judge((*SENDS[:2], sent(3, None, 13, "info"), polled(2, (0, 10), (1, 11)))).is_valid


def test_a_value_that_may_repeat_is_no_duplicate_and_no_step() -> None:
    operations = (*SENDS, assigned(2), polled(2, (0, 10), (1, 11), (2, 12), (3, 11)))
    assert judge(operations, {11}).is_valid


def test_a_healthy_history_is_valid_to_jepsens_rules_too() -> None:
    made = healthy()
    assert judge(edn.operations(made), edn.may_repeat(made)).texts == []


def test_operations_are_written_as_jepsen_writes_them() -> None:
    made = (
        Operation("invoke", "send", 3, 5, (Sent(0, 7),)),
        Operation("ok", "send", 3, 6, (Sent(0, 7, 12),)),
        Operation("info", "send", 3, 7, (Sent(-1, 8),)),
        Operation("invoke", "poll", 4, 8, polls=(Polled(),)),
        Operation("ok", "poll", 4, 9, polls=(Polled(((0, ((12, 7), (13, 9))), (2, ((0, 1),)))),)),
        Operation("ok", "assign", 4, 10, keys=(0, 2)),
    )
    assert [edn.line(index, each) for index, each in enumerate(made)] == [
        "{:index 0, :time 5, :type :invoke, :process 3, :f :send, :value [[:send 0 7]]}",
        "{:index 1, :time 6, :type :ok, :process 3, :f :send, :value [[:send 0 [12 7]]]}",
        "{:index 2, :time 7, :type :info, :process 3, :f :send, :value [[:send -1 [nil 8]]]}",
        "{:index 3, :time 8, :type :invoke, :process 4, :f :poll, :value [[:poll]]}",
        "{:index 4, :time 9, :type :ok, :process 4, :f :poll, "
        ":value [[:poll {0 [[12 7] [13 9]], 2 [[0 1]]}]]}",
        "{:index 5, :time 10, :type :ok, :process 4, :f :assign, :value [0 2]}",
    ]


def test_no_process_of_an_exported_history_has_two_operations_at_once() -> None:
    busy: set[int] = set()
    for operation in edn.operations(healthy()):
        if operation.type == "invoke":
            assert operation.process not in busy
            busy.add(operation.process)
        else:
            busy.remove(operation.process)
