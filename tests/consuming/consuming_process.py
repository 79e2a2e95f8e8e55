"""A consumer to be killed: `python -m tests.consuming.consuming_process NAMESRV GROUP TOPIC LOG N`.

After N messages its listeners never return (N = 0: they always do), so that it is killed in the
middle, with messages finished, running and waiting.

Law: writes a line for each message before it counts as consumed, so that the log of a killed
process holds at least what it acknowledged.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import sys
import threading

from rocketstream import (
    ClientConfig,
    ConsumeConcurrentlyStatus,
    ConsumeFromWhere,
    MessageExt,
    PushConsumer,
)
from rocketstream.errors import TransportError

COMMIT_EVERY_MS = 20


STARTS_MAX = 5


def start(consumer: PushConsumer) -> None:
    """Start, on a machine so busy that a name server may not answer in time."""
    for _ in range(STARTS_MAX - 1):
        with contextlib.suppress(TransportError):
            return consumer.start()
    return consumer.start()


def main() -> None:
    """Consume until killed."""
    namesrv_addr, group, topic, log, most = sys.argv[1:]
    lines = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    numbers = itertools.count(1)
    never = threading.Event()

    def listener(messages: list[MessageExt]) -> ConsumeConcurrentlyStatus:
        if 0 < int(most) < next(numbers):
            never.wait()
        for message in messages:
            os.write(lines, b"%d %d\n" % (message.queue_id, message.queue_offset))
        return ConsumeConcurrentlyStatus.CONSUME_SUCCESS

    consumer = PushConsumer(
        group,
        config=ClientConfig(
            namesrv_addr=namesrv_addr, persist_consumer_offset_interval_ms=COMMIT_EVERY_MS
        ),
        listener=listener,
        consume_from_where=ConsumeFromWhere.FIRST_OFFSET,
    )
    consumer.subscribe(topic)
    start(consumer)
    sys.stdin.read()
    consumer.shutdown()


if __name__ == "__main__":
    main()
