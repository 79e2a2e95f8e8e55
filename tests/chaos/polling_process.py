"""A lite pull consumer to be killed: `python -m tests.chaos.polling_process NAMESRV LOG N HOW`.

HOW is ``poll`` or ``iterate``. Before message N + 1 it is stuck for good (N = 0: never), so that it
is killed with messages done, in hand and cached.

Law: writes a line for each message before it comes back for more, so that the log of a killed
process holds at least what it let commit.
"""

from __future__ import annotations

import itertools
import os
import sys
import threading
from collections.abc import Iterator

from rocketstream import ClientConfig, ConsumeFromWhere, LitePullConsumer, MessageExt

COMMIT_EVERY_MS = 1_000
STORE_EVERY_MS = 20
GROUP, TOPIC = "killed", "Kill"


def polled(consumer: LitePullConsumer) -> Iterator[MessageExt]:
    """Return the messages of polls; the next poll comes after the last message was taken."""
    while True:
        yield from consumer.poll(60_000)


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
    messages = iter(consumer) if how == "iterate" else polled(consumer)
    for number, message in zip(itertools.count(1), messages, strict=False):
        if 0 < int(most) < number:
            threading.Event().wait()
        os.write(lines, b"%d %d\n" % (message.queue_id, message.queue_offset))


if __name__ == "__main__":
    main()
