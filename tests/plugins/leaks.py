"""Fails a test that leaves threads, sockets or handlers of signals behind.

Law: one autouse fixture. Tests marked ``spark`` keep their gateway's threads and are not checked;
``allow_leaks`` says in a test that it leaves something on purpose. The gateway lives on in the
tests that come after, and a thread of it connects to Java when the first of Java's objects is
collected here: a test that opens no socket was found to leave one. They are told by their ports.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from rocketstream.testing.leaks import LeakCheck

UNCHECKED = ("spark", "allow_leaks", "interop")


def pytest_configure(config: pytest.Config) -> None:
    """Make the marker known."""
    config.addinivalue_line(
        "markers", "allow_leaks: leaves threads or sockets behind on purpose (say why)"
    )


def gateway_ports() -> set[int]:
    """Return the ports Spark's gateway listens on, at either side; none where there is none."""
    context: Any = getattr(sys.modules.get("pyspark.core.context"), "SparkContext", None)
    gateway = getattr(context, "_gateway", None)
    if gateway is None:
        return set()
    ports = {gateway.gateway_parameters.port}
    server = gateway.get_callback_server()
    if server is not None:
        ports.add(server.get_listening_port())
    updates = getattr(context._active_spark_context, "_accumulatorServer", None)
    if updates is not None and isinstance(updates.server_address, tuple):
        ports.add(updates.server_address[1])
    return ports - {0}


def _handlers() -> set[tuple[signal.Signals, Any]]:
    # By a handler that is left, the signal that another test sends would end the worker.
    return {(number, signal.getsignal(number)) for number in (signal.SIGINT, signal.SIGTERM)}


@pytest.fixture(autouse=True)
def _no_leaks(request: pytest.FixtureRequest) -> Iterator[None]:
    """Compare threads and sockets after the test with those before it."""
    if any(request.node.get_closest_marker(name) is not None for name in UNCHECKED):
        yield
        return
    check = LeakCheck(gateway_ports)
    handlers = _handlers()
    yield
    leaks = check.leaks()
    leaks += [f"a handler of {number.name}" for number, _ in _handlers() - handlers]
    if leaks:
        pytest.fail("the test left behind: " + ", ".join(leaks), pytrace=False)
