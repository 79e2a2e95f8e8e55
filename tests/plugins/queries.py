"""Fixtures: one cluster on a clock set by hand, and queries without Spark that do not wait.

Law: the connector is imported by those who ask for it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.kits.spark.micro_batches import Query, Topics

_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def topics() -> Iterator[Topics]:
    """A cluster for the tests of a module; each has topics of its own."""
    from tests.kits.spark.micro_batches import Topics

    made = Topics()
    with made.cluster:
        yield made


@pytest.fixture
def topic() -> str:
    """A name nobody else has; the topic is the test's to make."""
    return f"case-{next(_numbers)}"


@pytest.fixture
def query(topics: Topics, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Query]]:
    """A function that starts a query, ``query(**options)``, ended with the test.

    What is new is seen at the next question, without the pauses that spare a broker.
    """
    from rocketstream.spark import worker
    from rocketstream.spark.driver import continuity, streaming
    from tests.kits.spark.micro_batches import Query

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
