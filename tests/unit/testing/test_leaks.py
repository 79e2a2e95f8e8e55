"""The check for leaks itself."""

from __future__ import annotations

import socket

import pytest

from rocketstream.testing import leaks
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
