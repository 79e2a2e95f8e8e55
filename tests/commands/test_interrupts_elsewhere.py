"""Ctrl-C where a signal is not what it is on Linux."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from rocketstream.cli import signals


@pytest.fixture(autouse=True)
def _windows(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """There ``os.kill`` ends the process without asking its handlers."""
    monkeypatch.setattr(signals, "_IS_WINDOWS", True)
    monkeypatch.setattr(os, "kill", lambda *_: pytest.fail("the process would have been ended"))
    before = signal.getsignal(signal.SIGINT)
    yield
    signal.signal(signal.SIGINT, before)


def test_a_signal_lost_in_a_finalizer_comes_again_on_windows() -> None:
    came: list[int] = []
    signal.signal(signal.SIGINT, lambda number, frame: came.append(number))
    signals._press_again()
    assert came == [signal.SIGINT]


def test_a_second_ctrl_c_ends_with_the_code_of_an_interrupt_on_windows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    codes: list[int] = []
    monkeypatch.setattr(os, "_exit", codes.append)
    monkeypatch.setattr(signal, "raise_signal", lambda number: None)
    signals._end_after_last_act(signal.SIGINT, None)
    assert codes == [signals.INTERRUPTED]
