"""A streaming query seen from outside: how far it is, and stopping it between micro-batches.

The facts come from Spark's own reports.
"""

from __future__ import annotations

import json
import math
import threading
from typing import Any, Final

from rocketstream._util.clock import Clock
from rocketstream.errors import ConfigurationError
from rocketstream.model import MessageQueue
from rocketstream.spark.driver.offsets import StreamOffset

_LOOK_MS: Final = 20.0
STARTS_MAX: Final = 3
"""How often a query is started whose Python Spark does not wait for."""
GIVEN_UP: Final = "Python worker failed to connect back"
"""How Spark ends a query whose Python took more than ten seconds to start: a busy machine."""


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
    """Return where a query's last finished micro-batch ended; empty before the first one."""
    progress = None if query is None else query.lastProgress
    ends: dict[MessageQueue, int] = {}
    for source in [] if progress is None else progress.sources:
        offset = source.endOffset
        try:
            value = json.loads(offset) if isinstance(offset, str) else offset
            ends.update(StreamOffset.from_json(value).ends)
        except (ConfigurationError, ValueError):  # of a source that is not ours
            continue
    return ends


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
