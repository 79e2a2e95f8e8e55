"""Fixtures: one cluster on a clock set by hand, and queries that do not wait."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from rocketstream.spark import worker
from rocketstream.spark.driver import continuity, streaming
from tests.unit.spark.micro_batches import Query, Topics, names

_names = names()


@pytest.fixture(scope="module")
def topics() -> Iterator[Topics]:
    """A cluster for the tests of a module; each has topics of its own."""
    made = Topics()
    with made.cluster:
        yield made


@pytest.fixture
def topic() -> str:
    """A name nobody else has; the topic is the test's to make."""
    return next(_names)


@pytest.fixture
def query(topics: Topics, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Query]]:
    """A function that starts a query, ``query(**options)``, ended with the test.

    What is new is seen at the next question, without the pauses that spare a broker.
    """
    monkeypatch.setattr(continuity, "ENDS_LIFETIME_MS", -1)
    monkeypatch.setattr(streaming, "IDLE_WAIT_MS", 0)
    # Nor is a broker trusted to tell of it in time: it need not have, however soon we ask.
    monkeypatch.setattr(streaming, "IDLE_ENDS_MS", -1)
    monkeypatch.setattr(worker, "prepare", lambda: None)
    started: list[Query] = []

    def make(*, available_now: bool = False, **options: Any) -> Query:
        started.append(Query(topics.cluster, **options))
        return started[-1].start(available_now=available_now)

    yield make
    for each in started:
        each.stop()
    worker.close_pools()
