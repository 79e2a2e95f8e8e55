"""What Spark's calls of our formats do alike: how they fail, and how they look from outside."""

from __future__ import annotations

import inspect
import traceback
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import BinaryType, StructField, StructType

from rocketstream.errors import ConfigurationError, ConnectError, RocketMQError
from rocketstream.model import MessageQueue
from rocketstream.spark.format import DEBUG_VARIABLE
from rocketstream.spark.listener.sink import RocketMQConsumerSink
from rocketstream.spark.progress.source import ProgressDataSource
from rocketstream.spark.reader import RocketMQStreamReader
from rocketstream.spark.scan import PartitionPlan, QueueRange
from rocketstream.spark.sink import writer as writing
from rocketstream.spark.source import RocketMQDataSource

SCHEMA = StructType([StructField("body", BinaryType())])
LINES_MAX = 4


def failure(
    call: Any, *arguments: Any, error: type[RocketMQError] = ConfigurationError
) -> list[str]:
    """What Spark would show of a call that fails."""
    with pytest.raises(error) as caught:
        call(*arguments)
    shown = caught.value
    if shown.__traceback__ is not None:
        shown.__traceback__ = shown.__traceback__.tb_next  # this test
    return "".join(traceback.format_exception(shown)).splitlines()


@pytest.mark.parametrize("source", [RocketMQDataSource, ProgressDataSource, RocketMQConsumerSink])
def test_a_mistake_is_told_without_our_insides(source: Any) -> None:
    """Twenty lines of them come before the one that matters otherwise."""
    given = source({"nameserver": "nowhere"})
    call = (
        (given.writer, SCHEMA, False) if source is RocketMQConsumerSink else (given.reader, SCHEMA)
    )
    lines = failure(*call)
    assert len(lines) <= LINES_MAX
    assert lines[-1].startswith("rocketstream.errors.ConfigurationError: option")


def test_a_bad_time_is_told_without_what_json_thought_of_it() -> None:
    """An error from another one is shown alone."""
    options = {"nameserver": "h:1", "topic": "T", "startingoffsets": "first"}
    assert len(failure(RocketMQDataSource(options).reader, SCHEMA)) <= LINES_MAX


def test_an_error_of_a_task_is_told_without_our_insides() -> None:
    """What is read of a broker that is away: nine frames of the connector came before its name."""
    options = {"nameserver": "127.0.0.1:1", "topic": "T", "retrytimeoutms": "0"}
    span = QueueRange(MessageQueue("T", "b", 0), 0, 1)
    partition = InputPartition(PartitionPlan((span,), {"b": "127.0.0.1:1"}))
    for reader in (RocketMQDataSource(options).reader, RocketMQDataSource(options).streamReader):
        lines = failure(list, reader(SCHEMA).read(partition), error=ConnectError)
        assert len(lines) <= LINES_MAX
        assert "127.0.0.1:1" in lines[-1]


def test_an_error_of_a_row_is_told_without_the_sinks_insides(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A body that is null: up to nine frames of the connector came before the column's name."""

    def refuse(sink: Any, batches: Any, identity: Any, deeper: int = 9) -> None:
        if deeper:
            refuse(sink, batches, identity, deeper - 1)
        raise ConfigurationError("column 'body' is null")

    monkeypatch.setattr(writing, "_task", lambda: SimpleNamespace(partitionId=lambda: 0))
    monkeypatch.setattr(writing, "prepare", lambda: None)
    monkeypatch.setattr(writing, "write_rows", refuse)
    writer = writing.RocketMQWriter(SimpleNamespace(write_id="w"))  # type: ignore[arg-type]
    lines = failure(writer.write, iter(()))
    assert len(lines) <= LINES_MAX
    assert "column 'body' is null" in lines[-1]


def test_the_whole_story_is_there_for_who_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(DEBUG_VARIABLE, "1")
    options = {"nameserver": "h:1", "topic": "T", "startingoffsets": "first"}
    lines = failure(RocketMQDataSource(options).reader, SCHEMA)
    assert any("reading.py" in line for line in lines)


def test_spark_sees_the_parameters_it_looks_for() -> None:
    """It counts those of latestOffset, and calls others by their names."""
    seen = inspect.signature(RocketMQStreamReader.latestOffset).parameters
    assert list(seen) == ["self", "start", "limit"]
    assert list(inspect.signature(RocketMQDataSource.writer).parameters)[1:] == [
        "schema", "overwrite",
    ]  # fmt: skip
