"""What a progress event of Spark tells of a RocketMQ source, and what stays unknown."""

from __future__ import annotations

import dataclasses
import json
import logging
from typing import Any

import pytest

from rocketstream.model import MessageQueue
from rocketstream.spark.driver.offsets import Mark, StreamOffset
from rocketstream.spark.driver.runner import KEPT_MAX, WarningTail
from rocketstream.spark.measures import Measures, ReadProgress

FIRST, SECOND = MessageQueue("orders", "broker-a", 0), MessageQueue("orders", "broker-a", 1)
OTHER = MessageQueue("returns", "broker-a", 0)
BEGUN_MS = 1_700_000_000_000
START = StreamOffset({FIRST: 10, SECOND: 5})
END = StreamOffset(
    {FIRST: 30, SECOND: 5},
    marks={FIRST: Mark(BEGUN_MS - 500, 1), SECOND: Mark(BEGUN_MS - 9_000, 2)},
)
LATEST = StreamOffset({FIRST: 37, SECOND: 5, OTHER: 2})


def event(**changes: Any) -> dict[str, Any]:
    """A batch of 20 rows that took 2 s, 7 and 2 messages behind."""
    source = {
        "description": "rocketmq",
        "startOffset": START.to_json(),
        "endOffset": END.to_json(),
        "latestOffset": LATEST.to_json(),
        "numInputRows": 20,
    }
    source |= changes
    return {
        "id": "q",
        "runId": "r",
        "name": "landing",
        "timestamp": "2023-11-14T22:13:20.000Z",
        "batchId": 3,
        "durationMs": {"triggerExecution": 2_000},
        "observedMetrics": {},
        "sources": [source],
    }


def only(progress: dict[str, Any]) -> ReadProgress:
    (record,) = Measures().of(progress)
    return record


def test_lag_rates_and_the_age_of_the_newest_row_are_told() -> None:
    record = only(event())
    assert (record.query, record.batch_id, record.topics) == ("landing", 3, ("orders",))
    assert (record.rows, record.offsets, record.rows_per_second) == (20, 20, 10.0)
    assert (record.lag, dict(record.lag_by_topic)) == (9, {"orders": 7, "returns": 2})
    assert record.newest_ms == BEGUN_MS - 500  # of the queue that moved
    assert record.age_ms == 2_500
    assert str(record) == (
        "landing, orders: batch 3, 20 rows, 10 rows/s, lag 9, newest row 2.5 s old"
    )


def test_offsets_may_be_text_as_they_are_in_some_versions() -> None:
    told = {"startOffset": START, "endOffset": END, "latestOffset": LATEST}
    assert only(event(**{k: json.dumps(v.to_json()) for k, v in told.items()})) == only(event())


@pytest.mark.parametrize("nothing", [None, "null", "None", ""])
def test_without_a_latest_offset_the_lag_is_unknown(nothing: Any) -> None:
    """Spark 4.0 and 4.1 have none."""
    record = only(event(latestOffset=nothing))
    assert (record.lag, record.rows, record.age_ms) == (None, 20, 2_500)
    assert "lag unknown" in str(record)


def test_the_first_batch_begins_where_its_end_says() -> None:
    end = dataclasses.replace(END, base={FIRST: 27, SECOND: 5})
    record = only(event(startOffset=None, endOffset=end.to_json(), numInputRows=3))
    assert record.offsets == 3


def test_a_batch_without_rows_has_neither_rates_nor_age() -> None:
    record = only(event(startOffset=END.to_json(), numInputRows=0))
    assert (record.rows, record.offsets, record.rows_per_second) == (0, 0, None)
    assert (record.newest_ms, record.age_ms) == (None, None)


def test_offsets_without_a_row_are_counted() -> None:
    assert str(only(event(numInputRows=15))).endswith("5 offsets without a row")


def test_bytes_are_told_where_the_query_observes_them() -> None:
    assert (only(event()).bytes, only(event()).mb_per_second) == (None, None)
    progress = event() | {"observedMetrics": {"rocketstream": {"bytes": 3_000_000}}}
    record = only(progress)
    assert (record.bytes, record.mb_per_second) == (3_000_000, 1.5)
    assert "1.5 MB/s" in str(record)


def test_sources_of_others_are_left_out() -> None:
    progress = event()
    progress["sources"] = [{"endOffset": {"orders": {"0": 5}}}, {"endOffset": None},
                           {"endOffset": "{"}, *progress["sources"]]  # fmt: skip
    assert [record.source for record in Measures().of(progress)] == [3]
    assert Measures().of({}) == []


def test_each_warning_is_told_once_a_run() -> None:
    measures = Measures()

    def told(run: str, *pairs: tuple[int, str]) -> tuple[str, ...]:
        latest = LATEST.to_json() | {"warnings": [list(pair) for pair in pairs]}
        (record,) = measures.of(event(latestOffset=latest) | {"runId": run})
        return record.warnings

    assert told("r", (1, "a"), (2, "b")) == ("a", "b")
    assert told("r", (1, "a"), (2, "b"), (3, "c")) == ("c",)
    assert told("other", (1, "a")) == ("a",)
    measures.forget("r")
    assert told("r", (3, "c")) == ("c",)
    assert told("other", (1, "a")) == ()


def test_a_tail_keeps_the_last_warnings_and_stderr_still_has_them(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    tail = WarningTail()
    tail.attach()
    try:
        for number in range(KEPT_MAX + 5):
            logging.getLogger("rocketstream.spark").warning("loss %d", number)
        logging.getLogger("rocketstream.spark").info("nothing")
    finally:
        tail.detach()
    told = tail.told()
    assert len(told) == KEPT_MAX
    assert (told[0], told[-1]) == ([6, "loss 5"], [KEPT_MAX + 5, f"loss {KEPT_MAX + 4}"])
    assert "loss 0" in capsys.readouterr().err
    logging.getLogger("rocketstream.spark").warning("later")
    assert tail.told() == told
