"""A streaming query seen from outside: where it begins, how far it is, and how it ends.

The facts come from Spark's own reports. Spark is asked on threads that Ctrl-C may interrupt without
harm to the calls that come after.
"""

from __future__ import annotations

import atexit
import concurrent.futures
import json
import logging
import math
import threading
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

from rocketstream._util.clock import Clock
from rocketstream._util.waiting import Latch
from rocketstream.client.admin.blocking import BlockingAdminClient
from rocketstream.client.consumer.allocate import StartAt, start_at
from rocketstream.client.consumer.settings import PushConsumerSettings
from rocketstream.errors import ConfigurationError
from rocketstream.model import MessageQueue
from rocketstream.protocol.names import RETRY_PREFIX
from rocketstream.spark.driver.offsets import StreamOffset

logger: logging.Logger = logging.getLogger("rocketstream.spark")

T = TypeVar("T")

_LOOK_MS: Final = 20.0
STARTS_MAX: Final = 3
"""How often a query is started whose Python Spark does not wait for."""
GIVEN_UP: Final = "Python worker failed to connect back"
"""How Spark ends a query whose Python took more than ten seconds to start: a busy machine."""
EXIT_WAIT_S: Final = 10.0
"""How long a process that ends waits for the work that follows the end of its queries."""
_endings: set[tuple[Any, threading.Thread]] = set()


def starting_offsets(
    admin: BlockingAdminClient, settings: PushConsumerSettings, topics: list[str]
) -> str:
    """Return option ``startingOffsets`` for some topics (C-189); a checkpoint overrides it.

    A queue begins at the offset members of the group committed. Without one, a retry topic begins
    at its oldest message and other topics where ``consume_from_where`` says. An offset the queue no
    longer holds becomes the nearest one it holds, with a warning.

    Raises:
        RouteNotFoundError: a topic does not exist.
        TransportError, BrokerError: a broker does not say.
    """
    table: dict[str, dict[str, dict[str, int]]] = {}
    for topic in topics:
        queues = admin.subscribe_queues(topic, refresh=True)
        lows, highs = admin.min_offsets(queues), admin.max_offsets(queues)
        for queue in queues:
            offset = _start(admin, settings, queue, lows[queue], highs[queue])
            brokers = table.setdefault(topic, {})
            brokers.setdefault(queue.broker_name, {})[str(queue.queue_id)] = offset
    return json.dumps(table, sort_keys=True)


def _start(
    admin: BlockingAdminClient,
    settings: PushConsumerSettings,
    queue: MessageQueue,
    low: int,
    high: int,
) -> int:
    group = settings.consumer_group
    committed = admin.query_consumer_offset(group, queue)
    if committed is not None and committed >= 0:
        offset = min(max(committed, low), high)
        if offset != committed:
            logger.warning(
                "group %s committed offset %d of %s, which holds %d to %d: it goes on at %d",
                group, committed, queue, low, high - 1, offset,
            )  # fmt: skip
        return offset
    where = start_at(settings.consume_from_where, is_retry=queue.topic.startswith(RETRY_PREFIX))
    if where is StartAt.ZERO:
        return low
    if where is StartAt.TIMESTAMP:
        return admin.search_offset(queue, settings.consume_timestamp_ms())
    return high


def is_given_up(query: Any) -> bool:
    """Return whether a query ended because the Python of a source took too long to start.

    Spark waits ten seconds, no more and no less, which a busy machine may exceed. The source has
    read nothing by then, so the query can be started again.
    """
    try:
        failure = query.exception()
    except Exception:  # the session is gone, and its queries with it
        return False
    return failure is not None and GIVEN_UP in str(failure)


def ends_of(query: Any) -> dict[MessageQueue, int]:
    """Return where a query's last finished micro-batch ended; empty before the first one.

    Queues that are read no more keep their place in the checkpoint; they are left out where the
    source says which there are.
    """
    progress = None if query is None else query.lastProgress
    ends: dict[MessageQueue, int] = {}
    for source in [] if progress is None else progress.sources:
        reached, there = _ends(source.endOffset), _ends(source.latestOffset)
        ends |= {q: end for q, end in reached.items() if q in there or not there}
    return ends


def _ends(offset: Any) -> Mapping[MessageQueue, int]:
    """Return the ends in an offset of a progress report; none in that of another source."""
    try:
        value = json.loads(offset) if isinstance(offset, str) else offset
        return StreamOffset.from_json(value).ends
    except (ConfigurationError, ValueError):
        return {}


def facts_of(query: Any) -> dict[str, str]:
    """Return a query's report about itself, for its group's member to show.

    ``sparkQuery`` (its name, its id where it has none), ``sparkStatus``, and of the last finished
    micro-batch ``sparkBatch``, ``sparkRows`` and ``sparkRowsPerSecond``; values Spark does not
    report are left out. Empty if ``query`` is None.
    """
    if query is None:
        return {}
    found = {"sparkQuery": query.name or str(query.id)}
    message = (query.status or {}).get("message")
    if message:
        found["sparkStatus"] = str(message)
    progress = query.lastProgress
    if progress is None:
        return found
    found |= {"sparkBatch": str(progress.batchId), "sparkRows": str(progress.numInputRows)}
    rate = progress.processedRowsPerSecond
    if rate is not None and math.isfinite(rate):
        found["sparkRowsPerSecond"] = f"{rate:.1f}"
    return found


def stop_between_batches(query: Any, await_ms: float, clock: Clock) -> None:
    """Stop a query when it is idle or has just finished a micro-batch.

    Stopping inside a micro-batch would consume its messages again. Blocks for at most ``await_ms``,
    then stops the query where it is.
    """
    until_ms = clock.monotonic_ms() + await_ms
    batch = _batch(query)
    never = threading.Event()
    while query.isActive and clock.monotonic_ms() < until_ms:
        if not query.status["isDataAvailable"] or _batch(query) != batch:
            break
        never.wait(_LOOK_MS / 1000)
    query.stop()


def _batch(query: Any) -> object:
    progress = query.lastProgress
    return None if progress is None else (progress.batchId, progress.timestamp)


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
