"""What Spark's calls of our formats do alike: how they fail, and how they look from outside."""

from __future__ import annotations

import inspect
import traceback
from typing import Any

import pytest
from pyspark.sql.types import BinaryType, StructField, StructType

from rocketstream.errors import ConfigurationError
from rocketstream.spark.consumer.sink import RocketMQConsumerSink
from rocketstream.spark.format import DEBUG_VARIABLE
from rocketstream.spark.progress.source import ProgressDataSource
from rocketstream.spark.reader import RocketMQStreamReader
from rocketstream.spark.source import RocketMQDataSource

SCHEMA = StructType([StructField("body", BinaryType())])
LINES_MAX = 4


def failure(call: Any, *arguments: Any) -> list[str]:
    """What Spark would show of a call that fails."""
    with pytest.raises(ConfigurationError) as caught:
        call(*arguments)
    error = caught.value
    if error.__traceback__ is not None:
        error.__traceback__ = error.__traceback__.tb_next  # this test
    return "".join(traceback.format_exception(error)).splitlines()


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


def test_the_whole_story_is_there_for_who_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(DEBUG_VARIABLE, "1")
    options = {"nameserver": "h:1", "topic": "T", "startingoffsets": "first"}
    lines = failure(RocketMQDataSource(options).reader, SCHEMA)
    assert any("positions.py" in line for line in lines)


def test_spark_sees_the_parameters_it_looks_for() -> None:
    """It counts those of latestOffset, and calls others by their names."""
    seen = inspect.signature(RocketMQStreamReader.latestOffset).parameters
    assert list(seen) == ["self", "start", "limit"]
    assert list(inspect.signature(RocketMQDataSource.writer).parameters)[1:] == [
        "schema", "overwrite",
    ]  # fmt: skip
