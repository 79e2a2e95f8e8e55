"""Ends a worker whose test has outlasted its time-out: what hangs must not hang the whole run.

Law: knows pytest and its time-outs, nothing of the project.

pytest-timeout raises in the main thread. A test that waits where nothing can be raised, or whose
clean-up waits again, goes on all the same. Its worker is ended here a minute later with the stacks
of all threads on stderr; pytest-xdist counts the test as failed and starts another worker.
"""

from __future__ import annotations

import faulthandler
from collections.abc import Generator
from typing import Final

import pytest
from _pytest.faulthandler import fault_handler_stderr_fd_key

GRACE_S: Final = 60.0


def _timeout_s(item: pytest.Item) -> float:
    marker = item.get_closest_marker("timeout")
    if marker is not None and marker.args:
        return float(marker.args[0])
    return float(item.config.getini("timeout"))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Watch over one test, its fixtures included."""
    # What tests print is captured; pytest keeps a handle of the real stderr for such dumps.
    stderr = item.config.stash[fault_handler_stderr_fd_key]
    faulthandler.dump_traceback_later(_timeout_s(item) + GRACE_S, exit=True, file=stderr)
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()
