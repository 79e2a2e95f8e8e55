"""Listeners travel by value and are unpacked once."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from pyspark import cloudpickle

from rocketstream.errors import ConfigurationError
from rocketstream.model import ConsumeConcurrentlyStatus
from rocketstream.spark.listener import sink as sinking
from rocketstream.spark.listener.sink import (
    ConsumerStreamWriter,
    _travelling_module,
    pack,
    sink_options,
    unpack,
)
from rocketstream.spark.listener.task import Counts
from rocketstream.spark.options import consume_options

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


def not_of_a_file(messages: list[Any]) -> None:
    """As of an interactive session's module."""


not_of_a_file.__module__ = "made_up_in_memory"


def of_no_module(messages: list[Any]) -> None:
    """As of a program that is no module to others."""


of_no_module.__module__ = "nowhere.to.be.found"


@pytest.mark.parametrize(
    ("listener", "travels"),
    [
        (Listener(ConsumeConcurrentlyStatus.CONSUME_SUCCESS), True),
        (Listener.consume_message, True),
        (functools.partial(functools.partial(Listener.consume_message)), True),
        (len, False),
        (json.loads, False),
        (pytest.raises, False),
        (sink_options, False),
        (not_of_a_file, False),
        (of_no_module, False),
    ],
)
def test_a_module_travels_unless_tasks_have_it(
    listener: Any, travels: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not Python's, not what is installed, not this package, nothing that has no file."""
    monkeypatch.setitem(sys.modules, "made_up_in_memory", ModuleType("made_up_in_memory"))
    here = sys.modules[__name__]
    assert _travelling_module(listener) is (here if travels else None)
    cloudpickle.register_pickle_by_value(here)
    try:
        assert _travelling_module(listener) is None
    finally:
        cloudpickle.unregister_pickle_by_value(here)


def test_what_is_packed_leaves_the_pickler_as_it_was() -> None:
    """Whatever else the session pickles goes as before."""
    before = cloudpickle.list_registry_pickle_by_value()
    pack(Listener(ConsumeConcurrentlyStatus.CONSUME_SUCCESS), orderly=False)
    assert cloudpickle.list_registry_pickle_by_value() == before


def test_a_task_prepares_its_process_and_tells_its_counts(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """And the driver logs the sum; a task that failed told none."""
    prepared: list[bool] = []
    monkeypatch.setattr(sinking, "prepare", lambda: prepared.append(True))
    given = {"group": "g", "nameServer": "127.0.0.1:1"}
    options = consume_options(sink_options(lambda messages: None, False, given))
    monkeypatch.setattr(sinking, "unpack", lambda text, orderly: None)
    monkeypatch.setattr(sinking, "consume_rows", lambda *_: Counts(1, 2, 3, 4))
    writer = ConsumerStreamWriter(options, {})
    done = writer.write(iter(()))
    assert prepared == [True]
    with caplog.at_level("INFO", "rocketstream.spark"):
        writer.commit([done, None, done], 7)
    assert f"group=g micro-batch 7: {Counts(2, 4, 6, 8)}" in caplog.text


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
