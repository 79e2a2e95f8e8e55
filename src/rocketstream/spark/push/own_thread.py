"""Calls to Spark that Ctrl-C may interrupt without harm to the calls that come after."""

from __future__ import annotations

import concurrent.futures
import threading
from collections.abc import Callable
from typing import TypeVar

from rocketstream._util.waiting import Latch

T = TypeVar("T")


def on_own_thread(call: Callable[[], T]) -> T:
    """Make a call to Spark on a thread of its own and wait for it; return or raise its outcome.

    A classic session has one connection to the JVM for each Python thread, used by one call after
    the other. An exception that a signal raises inside a call leaves the call's answer on the
    connection: the thread's next call waits for it, and takes it for its own. On a thread of its
    own the interrupted call keeps its connection to itself until it ends.

    Args:
        call: made on a daemon thread; it goes on if this wait is interrupted.
    """
    outcome: concurrent.futures.Future[T] = concurrent.futures.Future()
    ended = Latch()

    def make() -> None:
        try:
            outcome.set_result(call())
        except BaseException as error:
            outcome.set_exception(error)
        ended.open()

    threading.Thread(target=make, name="SparkPushConsumer-call", daemon=True).start()
    ended.wait(None)
    return outcome.result()
