"""Read a topic queue by queue with a pull consumer, keeping the offsets oneself.

Run it against your own cluster, or let it start one in this process:

    NAMESRV_ADDR=localhost:9876 python examples/pull.py
    python examples/pull.py
"""

from __future__ import annotations

import os
from contextlib import ExitStack

from rocketstream import Message, MessageQueue, Producer, PullConsumer, PullStatus

TOPIC = "order-topic"
MESSAGES = 100

offset_table: dict[MessageQueue, int] = {}


def main() -> None:
    """Send some messages, then pull every queue of the topic until it is empty."""
    with ExitStack() as stack:
        namesrv_addr = os.environ.get("NAMESRV_ADDR", "")
        if not namesrv_addr:
            from rocketstream.server.embedded import EmbeddedCluster

            namesrv_addr = stack.enter_context(EmbeddedCluster()).namesrv_addr
        with Producer("orders", namesrv_addr=namesrv_addr) as producer:
            for number in range(MESSAGES):
                producer.send(Message(TOPIC, f"order {number}"))
        pull(namesrv_addr)


def pull(namesrv_addr: str) -> None:
    """Pull each queue from where the group was, and remember where it is now."""
    # How long the broker may hold a pull at the end of a queue; 20 s unless told otherwise.
    with PullConsumer(
        "groupName", namesrv_addr=namesrv_addr, broker_suspend_max_time_ms=200
    ) as consumer:  # its end stores the offsets
        total = 0
        for mq in consumer.fetch_subscribe_message_queues(TOPIC):
            offset_table[mq] = max(consumer.fetch_consume_offset(mq, from_store=True), 0)
            print(f"queue {mq.queue_id} of {mq.broker_name} from {offset_table[mq]}")
            while True:
                result = consumer.pull_block_if_not_found(mq, None, offset_table[mq], 32)
                # Every status says where to go on.
                offset_table[mq] = result.next_begin_offset
                if result.pull_status is PullStatus.FOUND:
                    total += sum(m.body.startswith(b"order ") for m in result.msg_found_list)
                elif result.pull_status is not PullStatus.NO_MATCHED_MSG:
                    break  # NO_NEW_MSG: the queue's end; OFFSET_ILLEGAL: it begins elsewhere now
            consumer.update_consume_offset(mq, offset_table[mq])
    print(f"pulled {total} messages of {len(offset_table)} queues")


if __name__ == "__main__":
    main()
