"""Orders, in order: produce with a sharding key, consume in a group, retry what failed.

Run it against any cluster (NAMESRV_ADDR=host:9876 python examples/orders.py) or without one: it
then starts an embedded server of its own.
"""

from __future__ import annotations

import json
import os
import threading
from contextlib import ExitStack

from rocketstream import (
    ConsumeConcurrentlyContext,
    ConsumeConcurrentlyStatus,
    ConsumeFromWhere,
    Message,
    MessageExt,
    Producer,
    PushConsumer,
)

TOPIC, GROUP, ORDERS = "example-orders", "example-billing", 200


def produce(namesrv_addr: str) -> None:
    """Send the steps of every order; those of one order go to one queue, in order."""
    with Producer("example-shop", namesrv_addr=namesrv_addr) as producer:
        for number in range(ORDERS):
            for step in ("created", "paid"):
                body = json.dumps({"order": number, "step": step})
                message = Message(TOPIC, body, tags=step, keys=f"order-{number}")
                producer.send(message, sharding_key=f"order-{number}")


class Billing:
    """Counts paid orders; the first attempt of every fiftieth one fails and comes back."""

    def __init__(self) -> None:
        self.paid: set[int] = set()
        self.retried = 0
        self.done = threading.Event()
        self._lock = threading.Lock()

    def __call__(
        self, messages: list[MessageExt], context: ConsumeConcurrentlyContext
    ) -> ConsumeConcurrentlyStatus:
        """Bill what was paid."""
        for message in messages:
            order = json.loads(message.body)["order"]
            if order % 50 == 0 and message.reconsume_times == 0:
                context.delay_level_when_next_consume = 1
                return ConsumeConcurrentlyStatus.RECONSUME_LATER
            with self._lock:
                self.paid.add(order)
                self.retried += message.reconsume_times > 0
                if len(self.paid) == ORDERS:
                    self.done.set()
        return ConsumeConcurrentlyStatus.CONSUME_SUCCESS


def consume(namesrv_addr: str) -> Billing:
    """Consume until every order is billed."""
    billing = Billing()
    with PushConsumer(
        GROUP,
        namesrv_addr=namesrv_addr,
        consume_from_where=ConsumeFromWhere.FIRST_OFFSET,
        subscription={TOPIC: "paid"},
        listener=billing,
    ):
        billing.done.wait(60)
    return billing


def main() -> None:
    """Produce, consume, and say what happened."""
    with ExitStack() as stack:
        namesrv_addr = os.environ.get("NAMESRV_ADDR", "")
        if not namesrv_addr:
            from rocketstream.server.embedded import EmbeddedCluster

            namesrv_addr = stack.enter_context(EmbeddedCluster()).namesrv_addr
        produce(namesrv_addr)
        billing = consume(namesrv_addr)
    print(f"{len(billing.paid)} of {ORDERS} orders billed, {billing.retried} after a retry")


if __name__ == "__main__":
    main()
