"""A listener sees what the source's own process knows: lag, rates, and what it warns of."""

from __future__ import annotations

import logging
import queue
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rocketstream.server.embedded import EmbeddedCluster
from rocketstream.spark import ProgressListener, ReadProgress, observe_bytes
from tests.kits.spark.support import numbered, run_to_end, send

pytestmark = [pytest.mark.spark, pytest.mark.timeout(180)]


def test_a_listener_is_told_of_each_batch_and_of_warnings(
    spark: Any,
    shared_cluster: EmbeddedCluster,
    new_topic: Callable[..., str],
    stream: Callable[..., Any],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The second run leaves a topic out, of which the source's process warns."""
    topic, left = new_topic(queues=1), new_topic(queues=1)
    send(shared_cluster, topic, 0, numbered(100, 10))
    send(shared_cluster, left, 0, numbered(100, 1))
    told: queue.Queue[ReadProgress] = queue.Queue()
    lines: list[str] = []
    listener = ProgressListener(told.put, log=lines.append)

    def run(topics: str) -> None:
        frame = stream(topics, "body BINARY", maxOffsetsPerTrigger=6)
        writer = observe_bytes(frame).writeStream.format("noop").queryName("landing")
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
        run_to_end(writer.trigger(availableNow=True))

    def batches(rows: int) -> list[ReadProgress]:
        """What was told up to the batch that has read the last of so many rows."""
        found: list[ReadProgress] = []
        while sum(record.rows for record in found) < rows:
            found.append(told.get(timeout=90))
        return found

    spark.streams.addListener(listener)
    try:
        run(f"{topic},{left}")
        records = [record for record in batches(11) if record.rows]
        send(shared_cluster, topic, 0, numbered(110, 2))
        with caplog.at_level(logging.WARNING, "rocketstream.spark.progress"):
            run(topic)
            later = batches(2)
    finally:
        spark.streams.removeListener(listener)
    assert [(record.query, record.rows, record.lag) for record in records] == [
        ("landing", 6, 5),
        ("landing", 5, 0),
    ]
    assert sum(record.bytes or 0 for record in records) == 11 * 3
    assert all(record.age_ms is not None and record.rows_per_second for record in records)
    (warning,) = [text for record in later for text in record.warnings]
    assert "these queues of the checkpoint" in warning
    assert repr(left) in warning
    assert f"landing: {warning}" in [record.getMessage() for record in caplog.records]
    assert len(lines) == 3
    assert "lag 5" in lines[0]


def test_what_a_callback_raises_does_not_silence_the_listener(
    caplog: pytest.LogCaptureFixture,
) -> None:
    text = '{"sources":[{"endOffset":{"v":2,"q":{"t":{"b":{"0":1}}}}}]}'
    event = SimpleNamespace(progress=SimpleNamespace(json=text))

    def fail(_: ReadProgress) -> None:
        raise ValueError("mine")

    listener = ProgressListener(fail)
    listener.onQueryProgress(event)
    listener.onQueryProgress(event)
    assert [record.exc_text and "mine" in record.exc_text for record in caplog.records] == [
        True,
        True,
    ]
