"""The end of a query that holds a group: its last offsets are reported, and the group is left.

Spark is asked on threads that Ctrl-C may interrupt without harm to the calls that come after.
"""

from __future__ import annotations

import atexit
import concurrent.futures
import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

from rocketstream._util.waiting import Latch
from rocketstream.errors import RocketMQError
from rocketstream.model import MessageQueue
from rocketstream.spark.connections import admin_client
from rocketstream.spark.options import ConnectOptions

logger = logging.getLogger("rocketstream.spark")

T = TypeVar("T")

EXIT_WAIT_S: Final = 10.0
"""How long a process that ends waits for the work that follows the end of its queries."""
_endings: set[tuple[Any, threading.Thread]] = set()


def when_ended(query: Any, group: str, then: Callable[[], object]) -> None:
    """Call a function once a query has ended, stopped or failed; does not wait.

    The call is made even if the process's main thread ends after the query's end.

    Args:
        query: Spark's ``StreamingQuery``.
        group: the group to name if the query failed.
        then: called on a thread of its own.
    """

    def wait() -> None:
        try:
            query.awaitTermination()
        except Exception as error:  # Spark's; a caller that awaits the query gets it too
            logger.error("the query of group %s has failed: %s", group, error)
        try:
            then()
        finally:
            _endings.discard(ending)

    thread = threading.Thread(target=wait, name=f"SparkPushConsumer-{group}", daemon=True)
    ending = (query, thread)
    _endings.add(ending)
    thread.start()


def report_ends(options: ConnectOptions, group: str, ends: Mapping[MessageQueue, int]) -> None:
    """Report the last micro-batch's end, because the source reports one batch late; never raises.

    Args:
        options: say how the cluster is reached.
        group: the group of the offsets.
        ends: the offsets by queue.
    """
    try:
        with admin_client(options) as admin:
            for queue, end in ends.items():
                admin.update_consumer_offset(group, queue, end)
    except RocketMQError as error:
        logger.warning(
            "the last offsets of group %s were not reported, the checkpoint has them: %s",
            group, error,
        )  # fmt: skip


def _has_ended(query: Any) -> bool:
    try:
        return not query.isActive
    except Exception:  # the session is gone, and its queries with it
        return True


@atexit.register
def _finish() -> None:
    """Wait for the work that follows the end of queries before the process ends."""
    for query, thread in list(_endings):
        if _has_ended(query):
            thread.join(EXIT_WAIT_S)


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
