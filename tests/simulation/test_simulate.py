"""A simulation of one's own listener: what cannot be run is refused, what was raised is told."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from rocketstream.errors import ClientStateError, ConfigurationError
from rocketstream.model import ConsumeConcurrentlyStatus
from rocketstream.testing.sim.simulate import Process, simulate


def writing(process: Process) -> Callable[..., Any]:
    """Make a listener that writes at once."""

    def listener(messages: list[Any]) -> ConsumeConcurrentlyStatus:
        for message in messages:
            process.database[message.keys] = process.name
        return ConsumeConcurrentlyStatus.CONSUME_SUCCESS

    return listener


async def of_coroutines(*_: Any) -> Any:
    """Be where a plain function is wanted."""


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"check": of_coroutines}, "check must be a function .* not a coroutine function"),
        ({"make_listener": of_coroutines}, "make_listener must be a function .* its listener"),
        ({"database": {}}, "database must be a function that makes the database"),
        ({"faults": ["client kiled"]}, "faults must be a list of .*client killed.*'client kiled'"),
        ({"faults": "delay"}, "faults must be a list of .*'delay'"),
        ({"sharding_key": lambda number: number % 3}, "sharding_key must return a str; for 1 .* 1"),
        ({"seeds": 0}, "seeds must be a whole number from 1 on, not 0"),
        ({"messages": 0}, "messages must be a whole number from 1 on, not 0"),
        ({"members": 0}, "members must be a whole number from 1 on, not 0"),
    ],
)
def test_what_would_find_nothing_is_refused(wrong: dict[str, Any], text: str) -> None:
    """Each of them ran, and many found nothing: the keys were refused, the check never awaited."""
    with pytest.raises(ConfigurationError, match=text):
        simulate(**{"make_listener": writing, "seeds": 1, **wrong})


def test_an_event_loop_is_told_how_to_simulate() -> None:
    async def within() -> None:
        simulate(writing, seeds=1)

    async def beside() -> Any:
        return await asyncio.to_thread(simulate, writing, seeds=1)

    with pytest.raises(ClientStateError, match=r"asyncio\.to_thread"):
        asyncio.run(within())
    assert asyncio.run(beside()).finding is None


@pytest.mark.parametrize("made", [ConsumeConcurrentlyStatus.CONSUME_SUCCESS, lambda: None, None])
def test_what_is_not_a_listener_is_told_at_once(made: Any) -> None:
    """And not, after minutes, that nothing was consumed by processes that ended 4,000 times."""
    finding = simulate(lambda _: made, seeds=1).finding
    assert finding is not None
    assert "make_listener(process) must return a listener" in finding.what


def test_a_check_may_return_false() -> None:
    finding = simulate(writing, seeds=1, check=lambda database, keys: len(database) < 0).finding
    assert finding is not None
    assert finding.what == "the check returned False"
    assert simulate(writing, seeds=1, check=lambda database, keys: set(keys) <= set(database))


def test_the_story_says_what_a_listener_raised() -> None:
    def raising(process: Process) -> Callable[..., Any]:
        def listener(messages: list[Any]) -> object:
            raise LookupError("no such table")

        return listener

    def written(database: Any, keys: Any) -> None:
        assert set(keys) <= set(database), "order-1 was never written"

    finding = simulate(raising, seeds=1, check=written, max_reconsume_times=1).finding
    assert finding is not None
    assert "raises LookupError: no such table for order-1" in finding.story
