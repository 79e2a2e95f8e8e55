"""The group that counts flights on Spark, and waiting for it and for the push consumers.

Law: settings and waiting; the one listener does the work, the ledger keeps what became of it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any

from demo.errors import DemoError, Interrupts
from demo.ledger import Ledger
from demo.listener import FlightListener
from demo.member import MAX_RECONSUME_TIMES
from demo.place import Place
from demo.produce import TOPIC
from demo.trouble import expected
from rocketstream import ConsumeFromWhere
from rocketstream.admin import Admin
from rocketstream.errors import RouteNotFoundError
from rocketstream.pipelines.ingest import query_error
from rocketstream.protocol.names import dlq_topic
from rocketstream.spark import SparkPushConsumer

SPARK_GROUP = "flight-totals-spark"
MEMBERS = 2
MESSAGES_PER_BATCH = 60_000
"""Of Spark's micro-batches; a retry that is due waits for the one under way."""
_END_OF_BATCH_MS = 10_000
_POLL_S = 0.2
_STALLED_S = 60.0


def on_spark(spark: Any, namesrv: str, place: Place, listener: FlightListener) -> SparkPushConsumer:
    """Return the group whose listener Spark calls, not started; it is a context manager."""
    consumer = SparkPushConsumer(
        SPARK_GROUP,
        spark,
        str(place.checkpoint),
        namesrv_addr=namesrv,
        max_offsets_per_trigger=MESSAGES_PER_BATCH,
        consume_from_where=ConsumeFromWhere.FIRST_OFFSET,
        max_reconsume_times=MAX_RECONSUME_TIMES,
        consume_thread_max=1,
        await_termination_ms_when_shutdown=_END_OF_BATCH_MS,
    )
    consumer.subscribe(TOPIC)
    consumer.register_message_listener(listener)
    return consumer


def wait_consumed(
    admin: Admin,
    ledgers: Mapping[str, Ledger],
    flights: int,
    interrupts: Interrupts,
    is_working: Callable[[], bool],
) -> dict[str, int]:
    """Wait until every flight is consumed or a dead letter in each group.

    Args:
        admin: asked for dead letters.
        ledgers: by group.
        flights: how many there are.
        interrupts: end the wait.
        is_working: whether a micro-batch is under way; raises where a group cannot go on. Spark
            starts a dozen processes for the first one, which takes minutes on a busy machine.

    Returns:
        How many are dead letters, by group.

    Raises:
        DemoError: nothing came for a minute, nor was a micro-batch under way.
    """
    _, given_up = expected(flights)
    open_groups = dict(ledgers)
    dead = dict.fromkeys(ledgers, 0)
    last, since = -1, time.monotonic()
    while True:
        finished = 0
        for group, ledger in ledgers.items():
            consumed = ledger.counts().consumed
            if group in open_groups and consumed + given_up >= flights:
                dead[group] = _dead_letters(admin, group)
            finished += consumed + dead[group]
            if consumed + dead[group] >= flights:
                open_groups.pop(group, None)
        if not open_groups:
            return dead
        interrupts.check()
        if is_working() or finished != last:
            last, since = finished, time.monotonic()
        elif time.monotonic() - since > _STALLED_S:
            missing = flights * len(ledgers) - finished
            raise DemoError(
                f"{missing:,} flights were neither consumed nor dead letters in "
                f"{', '.join(open_groups)}, and nothing came for {_STALLED_S:.0f} s"
            )
        interrupts.wait(_POLL_S)


def start(on_spark: SparkPushConsumer, members: ExitStack) -> None:
    """Start Spark's listener, until ``members`` ends; blocks for seconds.

    Raises:
        DemoError: it does not start.
    """
    try:
        members.enter_context(on_spark)
    except Exception as error:  # ours, or one of the many Spark raises
        raise DemoError(f"the listener on Spark did not start: {error}") from error


def is_working(on_spark: SparkPushConsumer) -> bool:
    """Return whether Spark is in the middle of a micro-batch; raise what ended its listener.

    Raises:
        DemoError: its query failed.
    """
    failure = on_spark.query.exception()
    if failure is not None:
        raise DemoError(f"the listener on Spark failed: {query_error(str(failure))}")
    status = on_spark.query.status
    return bool(status["isTriggerActive"] and status["isDataAvailable"])


def _dead_letters(admin: Admin, group: str) -> int:
    try:
        return sum(row.message_count for row in admin.topics.status(dlq_topic(group)))
    except RouteNotFoundError:
        return 0
