"""Listeners travel by value and are unpacked once."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from typing import Any

import pytest

from rocketstream.errors import ConfigurationError
from rocketstream.model import ConsumeConcurrentlyStatus
from rocketstream.spark.listener.sink import pack, unpack

_calls: list[int] = []


class Listener:
    """The object form."""

    def __init__(self, answer: ConsumeConcurrentlyStatus) -> None:
        self.answer = answer

    def consume_message(self, messages: list[Any], context: Any) -> ConsumeConcurrentlyStatus:
        _calls.append(len(messages))
        return self.answer


def test_a_listener_comes_out_as_it_went_in() -> None:
    listener = Listener(ConsumeConcurrentlyStatus.RECONSUME_LATER)
    unpacked = unpack(pack(listener, orderly=False), orderly=False)
    assert unpacked.takes_context
    assert unpacked.call([], None) is ConsumeConcurrentlyStatus.RECONSUME_LATER


def test_a_listener_is_unpacked_once_in_a_process() -> None:
    """What it keeps between calls, a connection say, outlives a task."""
    text = pack(lambda messages: None, orderly=False)
    assert unpack(text, orderly=False) is unpack(text, orderly=False)


@pytest.mark.parametrize(
    "given",
    ["orders.listener", "functools.partial(functools.partial(orders.taxed, rate=1))"],
)
def test_tasks_need_not_have_the_module_of_the_listener(tmp_path: Path, given: str) -> None:
    """Nor what it makes once per process, in a function with ``functools.cache``."""
    (tmp_path / "orders.py").write_text(
        textwrap.dedent(
            """
            import functools

            PRICES = {"a": 3}

            @functools.cache
            def connection():
                return dict(PRICES)

            def price(message):
                return connection()[message]

            def listener(messages):
                return sum(map(price, messages))

            def taxed(messages, *, rate):
                return rate * listener(messages)
            """
        )
    )
    make = (
        f"import functools, sys; sys.path.insert(0, {str(tmp_path)!r}); import orders\n"
        "from rocketstream.spark.listener.sink import pack\n"
        f"print(pack({given}, orderly=False))"
    )
    text = subprocess.run(
        [sys.executable, "-c", make], capture_output=True, text=True, check=True, timeout=60
    ).stdout.strip()
    assert "orders" not in sys.modules
    assert unpack(text, orderly=False).call(["a", "a"]) == 6


def test_what_cannot_be_pickled_is_told_with_what_to_do() -> None:
    lock = threading.Lock()

    def listener(messages: list[Any]) -> None:
        with lock:
            pass

    with pytest.raises(ConfigurationError, match=r"cannot be pickled .* made where it is called"):
        pack(listener, orderly=False)


def test_what_is_no_listener_is_refused_before_it_travels() -> None:
    with pytest.raises(ConfigurationError, match="must be a function of"):
        pack("print", orderly=False)


@pytest.mark.parametrize("text", ["!", "abc def", "zzzzz"])
def test_an_option_that_holds_no_listener_says_who_sets_it(text: str) -> None:
    with pytest.raises(ConfigurationError, match=r"rocketstream\.spark\.consume sets it"):
        unpack(text, orderly=False)
