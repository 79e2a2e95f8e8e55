"""`python -m benchmarks.spark_listener`: messages a second that a task on Spark gives a listener.

Law: one process, no Spark and no broker: Arrow rows as the source gives them go into the task, so
that what is counted is the task's own work.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import time
from typing import Any, Final

import pyarrow as pa

from rocketstream import ConsumeConcurrentlyStatus, ConsumeOrderlyStatus
from rocketstream.client.consumer.listener import listener_of
from rocketstream.columns.table import COLUMNS
from rocketstream.spark.listener.messages import check_columns
from rocketstream.spark.listener.task import consume_rows
from rocketstream.spark.options import consume_options

QUEUES: Final = 8
RECORD_BATCH: Final = 10_000
"""Rows in a record batch that Spark hands to a Python writer, unless set otherwise."""
_TYPES: Final = {
    "string": pa.string(), "int": pa.int32(), "bigint": pa.int64(), "binary": pa.binary(),
    "map<string,string>": pa.map_(pa.string(), pa.string()),
    "timestamp": pa.timestamp("us", "UTC"),
}  # fmt: skip


def record_batches(count: int) -> list[pa.RecordBatch]:
    """Return rows of eight queues, in runs of a hundred a queue, with bodies of 100 bytes."""
    schema = pa.schema([(name, _TYPES[kind]) for name, kind in COLUMNS.items()])
    rows: list[dict[str, Any]] = [
        {
            "topic": "T", "brokerName": "broker-a", "queueId": at // 100 % QUEUES,
            "queueOffset": at, "msgId": f"7F0000010001{at:020X}", "tags": "a", "keys": None,
            "body": b"x" * 100, "flag": 0, "bornTimestamp": 1_714_979_289_123_000,
            "properties": [("UNIQ_KEY", f"7F0000010001{at:020X}"), ("TAGS", "a"), ("WAIT", "true")],
            "storeTimestamp": 1_714_979_289_124_000, "bornHost": "10.0.0.9:77",
            "storeHost": "10.0.0.1:10911", "reconsumeTimes": 0, "sysFlag": 0,
            "commitLogOffset": 300 * at,
        }
        for at in range(count)
    ]  # fmt: skip
    return [
        pa.RecordBatch.from_pylist(rows[first : first + RECORD_BATCH], schema)
        for first in range(0, count, RECORD_BATCH)
    ]


def succeed(messages: list[Any]) -> ConsumeConcurrentlyStatus:
    """Look at every body."""
    for message in messages:
        len(message.body)
    return ConsumeConcurrentlyStatus.CONSUME_SUCCESS


async def succeed_async(messages: list[Any]) -> ConsumeConcurrentlyStatus:
    """Look at every body, as a coroutine."""
    return succeed(messages)


def succeed_in_order(messages: list[Any]) -> ConsumeOrderlyStatus:
    """Look at every body, in order."""
    succeed(messages)
    return ConsumeOrderlyStatus.SUCCESS


LISTENERS: Final = {"plain": succeed, "async": succeed_async, "orderly": succeed_in_order}


def run(kind: str, batches: list[pa.RecordBatch], batch_size: int) -> tuple[float, float]:
    """Consume the rows once; return seconds, and seconds of processor."""
    options = consume_options(
        {
            "nameServer": "127.0.0.1:1", "group": "g", "listener": "x",
            "orderly": str(kind == "orderly").lower(),
            "consumeMessageBatchMaxSize": str(batch_size),
        }
    )  # fmt: skip
    listener = listener_of(LISTENERS[kind], orderly=kind == "orderly")
    began, busy = time.perf_counter(), time.process_time()
    counts = consume_rows(options, check_columns(list(COLUMNS.items())), listener, batches)
    took = time.perf_counter() - began, time.process_time() - busy
    if counts.consumed != sum(batch.num_rows for batch in batches):
        raise SystemExit(f"not everything was consumed: {counts}")
    return took


def main() -> None:
    """Print a line for each kind of listener."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=50_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batch", type=int, default=1, help="consumeMessageBatchMaxSize")
    parser.add_argument("--kind", choices=LISTENERS, action="append")
    parser.add_argument("--profile", action="store_true", help="the task's own thread only")
    chosen = parser.parse_args()
    batches = record_batches(chosen.count)
    for kind in chosen.kind or LISTENERS:
        if chosen.profile:
            profile = cProfile.Profile()
            profile.runcall(run, kind, batches, chosen.batch)
            pstats.Stats(profile).sort_stats("tottime").print_stats(25)
            continue
        took, busy = min(run(kind, batches, chosen.batch) for _ in range(chosen.rounds))
        print(
            f"{kind}: {chosen.count / took:,.0f} messages/s, "
            f"{busy / chosen.count * 1e6:.1f} µs of processor each",
            flush=True,
        )


if __name__ == "__main__":
    main()
