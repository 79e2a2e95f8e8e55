"""Calls on their own thread: the outcome is the caller's, an interrupted wait leaves them alone."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator

import pytest

from rocketstream.spark.listener.queries import on_own_thread


@pytest.fixture
def _ctrl_c() -> Iterator[None]:
    """Ctrl-C raises, whatever handler this process has."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_the_outcome_of_the_call_is_returned_or_raised() -> None:
    assert on_own_thread(lambda: 5) == 5
    with pytest.raises(ZeroDivisionError):
        on_own_thread(lambda: 1 / 0)


def test_no_two_calls_share_a_thread() -> None:
    """Py4J keeps one connection for each."""
    threads = [on_own_thread(threading.current_thread) for _ in range(2)]
    assert len({*threads, threading.current_thread()}) == 3
    assert all(thread.daemon for thread in threads), "a call that hangs keeps no process"


@pytest.mark.usefixtures("_ctrl_c")
def test_ctrl_c_ends_the_wait_and_leaves_the_call_to_itself() -> None:
    """The call goes on, and the next one is made beside it."""
    calls: list[threading.Thread] = []
    may_end = threading.Event()

    def blocks() -> None:
        calls.append(threading.current_thread())
        signal.raise_signal(signal.SIGINT)
        may_end.wait()

    with pytest.raises(KeyboardInterrupt):
        on_own_thread(blocks)
    assert calls[0].is_alive()
    assert on_own_thread(lambda: 5) == 5
    may_end.set()
    calls[0].join()
