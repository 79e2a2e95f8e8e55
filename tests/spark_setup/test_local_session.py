"""What a local Spark says, and when it is told to be quiet."""

from __future__ import annotations

import logging
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from rocketstream.pipelines.local_session import (
    _takes_sockets,
    _workers_outlived,
    expect_no_answers,
)

PARENT = """
import subprocess, sys
child = subprocess.Popen(["cat"], stdout=subprocess.DEVNULL)
print(child.pid, flush=True)
child.wait()
"""
"""Ends, as Spark's JVM does, before what it started, which ends with its input."""


@pytest.fixture
def loggers_of_a_new_process() -> Iterator[None]:
    """A landing that this process ran before, in another test, has told Py4J to be quiet."""
    py4j, root = logging.getLogger("py4j"), logging.getLogger()
    level, filters = py4j.level, list(root.filters)
    py4j.setLevel(logging.NOTSET)
    root.filters = []
    yield
    py4j.setLevel(level)
    root.filters = filters


@pytest.mark.usefixtures("loggers_of_a_new_process")
def test_interrupted_calls_of_py4j_are_not_told(caplog: pytest.LogCaptureFixture) -> None:
    """Whichever of its loggers they are told to; everyone else is still heard."""
    of_py4j = logging.getLogger("py4j.clientserver")
    of_py4j.error("before")
    expect_no_answers()
    try:
        raise BrokenPipeError
    except BrokenPipeError:
        of_py4j.exception("Exception occurred while shutting down connection")
    logging.getLogger("py4j.java_gateway").critical("no answer")
    logging.getLogger("rocketstream").error("still told")
    assert [record.message for record in caplog.records] == ["before", "still told"]


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="only children can be waited for here")
def test_what_a_jvm_started_is_outlived() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as jvm:
        assert jvm.stdin is not None
        assert jvm.stdout is not None
        child = os.pidfd_open(int(jvm.stdout.readline()))
        later = threading.Timer(0.2, jvm.stdin.close)
        with _workers_outlived(jvm.pid):
            jvm.send_signal(signal.SIGKILL)
            jvm.wait()
            assert not select.select([child], [], [], 0)[0], "ended before it was to be waited for"
            later.start()
        assert select.select([child], [], [], 0)[0]
        later.join()
        os.close(child)


@pytest.mark.skipif(not hasattr(socket, "AF_UNIX"), reason="there are no such sockets here")
@pytest.mark.parametrize(("length", "taken"), [(60, True), (61, False)])
def test_a_deep_scratch_directory_has_spark_use_ports(length: int, taken: bool) -> None:
    """Spark's workers ended with "AF_UNIX path too long", and the command with them."""
    assert _takes_sockets("/" + "é" * 20 + "d" * (length - 41)) is taken
