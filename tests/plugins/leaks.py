"""Fails a test that leaves threads or sockets behind.

Law: one autouse fixture. Tests marked ``spark`` keep their gateway's threads and are not checked;
``allow_leaks`` says in a test that it leaves something on purpose.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rocketstream.testing.leaks import LeakCheck

UNCHECKED = ("spark", "allow_leaks", "interop")


def pytest_configure(config: pytest.Config) -> None:
    """Make the marker known."""
    config.addinivalue_line(
        "markers", "allow_leaks: leaves threads or sockets behind on purpose (say why)"
    )


@pytest.fixture(autouse=True)
def _no_leaks(request: pytest.FixtureRequest) -> Iterator[None]:
    """Compare threads and sockets after the test with those before it."""
    if any(request.node.get_closest_marker(name) is not None for name in UNCHECKED):
        yield
        return
    check = LeakCheck()
    yield
    if leaks := check.leaks():
        pytest.fail("the test left behind: " + ", ".join(leaks), pytrace=False)
