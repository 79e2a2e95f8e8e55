"""A lite pull consumer to be killed: `python -m tests.pulling.polling_process NAMESRV LOG N HOW`.

HOW is ``poll``, ``iterate`` or ``columns``. Before message N + 1 it is stuck for good (N = 0:
never), so that it is killed with messages done, in hand and cached.

Law: writes a line for each message before it comes back for more, so that the log of a killed
process holds at least what it let commit.
"""

from __future__ import annotations

import itertools
import os
import sys
import threading
from collections.abc import Iterator

from rocketstream import ClientConfig, ConsumeFromWhere, LitePullConsumer

COMMIT_EVERY_MS = 1_000
STORE_EVERY_MS = 20
GROUP, TOPIC = "killed", "Kill"


Place = tuple[int, int]
"""Queue and offset of a message."""


def polled(consumer: LitePullConsumer) -> Iterator[Place]:
    """Return the messages of polls; the next poll comes after the last message was taken."""
    while True:
        for message in consumer.poll(60_000):
            yield message.queue_id, message.queue_offset


def iterated(consumer: LitePullConsumer) -> Iterator[Place]:
    """Return the messages one by one."""
    for message in consumer:
        yield message.queue_id, message.queue_offset


def in_columns(consumer: LitePullConsumer) -> Iterator[Place]:
    """Return the rows of small batches; the next poll comes after the last row was taken."""
    while True:
        batch = consumer.poll_arrow(37, ["queueId", "queueOffset"], 60_000)
        yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)


HOW = {"poll": polled, "iterate": iterated, "columns": in_columns}


def main() -> None:
    """Consume until killed."""
    namesrv_addr, log, most, how = sys.argv[1:]
    lines = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    consumer = LitePullConsumer(
        GROUP,
        config=ClientConfig(
            namesrv_addr=namesrv_addr, persist_consumer_offset_interval_ms=STORE_EVERY_MS
        ),
        consume_from_where=ConsumeFromWhere.FIRST_OFFSET,
        auto_commit_interval_ms=COMMIT_EVERY_MS,
    )
    consumer.subscribe(TOPIC)
    consumer.start()
    for number, place in zip(itertools.count(1), HOW[how](consumer), strict=False):
        if 0 < int(most) < number:
            threading.Event().wait()
        os.write(lines, b"%d %d\n" % place)


if __name__ == "__main__":
    main()
