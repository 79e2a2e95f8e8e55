"""What a local Spark says, and when it is told to be quiet."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from rocketstream.pipelines.local_session import expect_no_answers


@pytest.fixture
def loggers_as_they_were() -> Iterator[None]:
    py4j, root = logging.getLogger("py4j"), logging.getLogger()
    level, filters = py4j.level, list(root.filters)
    yield
    py4j.setLevel(level)
    root.filters = filters


@pytest.mark.usefixtures("loggers_as_they_were")
def test_interrupted_calls_of_py4j_are_not_told(caplog: pytest.LogCaptureFixture) -> None:
    """Whichever of its loggers they are told to; everyone else is still heard."""
    of_py4j = logging.getLogger("py4j.clientserver")
    of_py4j.error("before")
    expect_no_answers()
    try:
        raise BrokenPipeError
    except BrokenPipeError:
        of_py4j.exception("Exception occurred while shutting down connection")
    logging.getLogger("py4j.java_gateway").critical("no answer")
    logging.getLogger("rocketstream").error("still told")
    assert [record.message for record in caplog.records] == ["before", "still told"]
