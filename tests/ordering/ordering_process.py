"""An orderly consumer to be killed: `-m tests.ordering.ordering_process ADDR GROUP TOPIC LOG`.

Law: writes a row for each message before it counts as consumed, and answers every line of its
standard input with the numbers of its queues.
"""

from __future__ import annotations

import os
import sys

from rocketstream import (
    ClientConfig,
    ConsumeFromWhere,
    ConsumeOrderlyStatus,
    MessageExt,
    PushConsumer,
)

COMMIT_EVERY_MS = 20


def main() -> None:
    """Consume until killed, or until standard input ends."""
    namesrv_addr, group, topic, log = sys.argv[1:]
    lines = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def listener(messages: list[MessageExt]) -> ConsumeOrderlyStatus:
        for m in messages:
            row = f"OK\t{m.topic}\t{m.broker_name}\t{m.queue_id}\t{m.queue_offset}\n"
            os.write(lines, row.encode())
        return ConsumeOrderlyStatus.SUCCESS

    config = ClientConfig(
        namesrv_addr=namesrv_addr,
        persist_consumer_offset_interval_ms=COMMIT_EVERY_MS,
        rebalance_interval_ms=1_000,
    )
    consumer = PushConsumer(group, config=config, consume_from_where=ConsumeFromWhere.FIRST_OFFSET)
    consumer.register_message_listener(listener, orderly=True)
    consumer.subscribe(topic)
    consumer.start()
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    for _ in sys.stdin:
        own = [mq.queue_id for mq in consumer.assigned_queues() if mq.topic == topic]
        sys.stdout.write(",".join(map(str, own)) + "\n")
        sys.stdout.flush()
    consumer.shutdown()


if __name__ == "__main__":
    main()
