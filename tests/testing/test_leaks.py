"""The check for leaks itself."""

from __future__ import annotations

import gc
import socket

import pytest

from rocketstream.testing import leaks
from rocketstream.testing.clock import ManualClock
from rocketstream.testing.leaks import LeakCheck


@pytest.mark.allow_leaks  # this is what is looked for
def test_a_socket_that_stays_open_is_told_with_its_ports() -> None:
    check = LeakCheck()
    with socket.create_server(("127.0.0.1", 0)) as server:
        (line,) = check.leaks(wait_ms=0)
        assert f"port {server.getsockname()[1]} to 0" in line
    assert check.leaks(wait_ms=0) == []


def test_nothing_left_asks_the_system_for_no_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """A table of a busy machine took longer to read than most tests take."""
    monkeypatch.setattr(leaks, "_ends", lambda: pytest.fail("the tables were read"))
    assert LeakCheck().leaks() == []


@pytest.mark.allow_leaks  # all sockets are closed in the end
def test_a_socket_closed_while_the_tables_are_read_is_none_that_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is in no table any more, as one that has no ports is not."""
    check = LeakCheck()
    server = socket.create_server(("127.0.0.1", 0))

    def too_late() -> dict[str, leaks._Ends]:
        server.close()
        return {}

    monkeypatch.setattr(leaks, "_ends", too_late)
    assert check.leaks(wait_ms=0) == []


@pytest.mark.allow_leaks  # all sockets are closed in the end
def test_collecting_rubbish_takes_no_time_from_who_is_about_to_close(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It holds up all threads, those too that would have closed a socket meanwhile."""
    check = LeakCheck()
    clock = ManualClock()
    first, second = (socket.create_server(("127.0.0.1", 0)) for _ in range(2))
    looks = [second.close, first.close]

    def ends() -> dict[str, leaks._Ends]:
        looks.pop()()
        return {}

    monkeypatch.setattr(leaks, "SYSTEM_CLOCK", clock)
    monkeypatch.setattr(gc, "collect", lambda: clock.advance(5000))
    monkeypatch.setattr(leaks, "_ends", ends)
    assert check.leaks(wait_ms=2000) == []
    assert not looks
