"""A streaming query seen from outside."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from rocketstream.model import MessageQueue
from rocketstream.spark.driver.offsets import StreamOffset
from rocketstream.spark.listener.queries import ends_of, facts_of, stop_between_batches
from rocketstream.testing.clock import ManualClock

A, B = MessageQueue("T", "b", 0), MessageQueue("%RETRY%g", "b", 0)


def progress(batch: int, *offsets: Any) -> Any:
    sources = [SimpleNamespace(endOffset=offset, latestOffset=None) for offset in offsets]
    return SimpleNamespace(batchId=batch, timestamp="now", sources=sources)


def offset(ends: dict[MessageQueue, int]) -> str:
    return json.dumps(StreamOffset(ends).to_json())


class Query:
    """A query that is looked at ``busy`` times before it is idle."""

    def __init__(self, busy: int = 0, batches: list[int] | None = None) -> None:
        self.busy = busy
        self.batches = batches or [0]
        self.looks = 0
        self.stopped_at: int | None = None

    @property
    def isActive(self) -> bool:
        return self.stopped_at is None

    @property
    def status(self) -> dict[str, bool]:
        self.looks += 1
        return {"isDataAvailable": self.looks <= self.busy}

    @property
    def lastProgress(self) -> Any:
        return progress(self.batches[min(self.looks, len(self.batches) - 1)])

    def stop(self) -> None:
        self.stopped_at = self.looks


def test_the_ends_of_all_sources_count_and_foreign_ones_are_left_out() -> None:
    query = SimpleNamespace(
        lastProgress=progress(3, offset({A: 5}), offset({B: 2}), '{"logOffset":7}', "12", None)
    )
    assert ends_of(query) == {A: 5, B: 2}


@pytest.mark.parametrize("latest", [{A: 9}, {}])
def test_a_queue_that_is_read_no_more_has_no_end(latest: dict[MessageQueue, int]) -> None:
    """The checkpoint keeps its place, and whoever else consumes it moves the group's offset."""
    last = progress(3, offset({A: 5, B: 2}))
    last.sources[0].latestOffset = offset(latest) if latest else None
    ends = {A: 5} if latest else {A: 5, B: 2}  # Spark 4.0 tells no latest offset
    assert ends_of(SimpleNamespace(lastProgress=last)) == ends


def test_a_query_without_progress_has_no_ends() -> None:
    assert ends_of(None) == {}
    assert ends_of(SimpleNamespace(lastProgress=None)) == {}


def test_an_idle_query_is_stopped_at_once() -> None:
    query = Query()
    stop_between_batches(query, 60_000, ManualClock())
    assert query.stopped_at == 1


def test_a_busy_query_is_stopped_when_a_micro_batch_has_ended() -> None:
    query = Query(busy=1_000, batches=[4, 4, 4, 5])
    stop_between_batches(query, 60_000, ManualClock())
    assert query.stopped_at == 3


def test_a_micro_batch_that_does_not_end_is_broken_off_in_time() -> None:
    clock = ManualClock()

    class Stuck(Query):
        @property
        def status(self) -> dict[str, bool]:
            clock.advance(1_000)
            return super().status

    query = Stuck(busy=1_000)
    stop_between_batches(query, 3_000, clock)
    assert query.stopped_at == 3


def test_a_query_tells_its_name_and_its_last_batch() -> None:
    last = SimpleNamespace(batchId=7, numInputRows=1_200, processedRowsPerSecond=400.04)
    query = SimpleNamespace(
        name="billing", id="1-2", status={"message": "Processing new data"}, lastProgress=last
    )
    assert facts_of(query) == {
        "sparkQuery": "billing",
        "sparkStatus": "Processing new data",
        "sparkBatch": "7",
        "sparkRows": "1200",
        "sparkRowsPerSecond": "400.0",
    }


def test_what_spark_does_not_tell_of_a_query_is_left_out() -> None:
    assert facts_of(None) == {}
    early = SimpleNamespace(name=None, id="1-2", status={}, lastProgress=None)
    assert facts_of(early) == {"sparkQuery": "1-2"}
    odd = SimpleNamespace(batchId=0, numInputRows=0, processedRowsPerSecond=float("nan"))
    early.lastProgress = odd
    assert facts_of(early) == {"sparkQuery": "1-2", "sparkBatch": "0", "sparkRows": "0"}
