"""Accounts, in order: an orderly listener per queue, suspended when it must wait, dead letters.

Run it against any cluster (NAMESRV_ADDR=host:9876 python examples/in_order.py) or without one: it
then starts an embedded server of its own.
"""

from __future__ import annotations

import json
import os
import threading
from collections import defaultdict
from contextlib import ExitStack

from rocketstream import (
    ConsumeFromWhere,
    ConsumeOrderlyContext,
    ConsumeOrderlyStatus,
    Message,
    MessageExt,
    MessageListenerOrderly,
    Producer,
    PushConsumer,
)

TOPIC, GROUP, ACCOUNTS, BOOKINGS = "example-accounts", "example-ledger", 20, 10


def produce(namesrv_addr: str) -> None:
    """Send the bookings of every account; those of one account go to one queue, in order."""
    with Producer("example-bank", namesrv_addr=namesrv_addr) as producer:
        for booking in range(BOOKINGS):
            for account in range(ACCOUNTS):
                body = json.dumps({"account": account, "booking": booking})
                producer.send(Message(TOPIC, body), sharding_key=f"account-{account}")


class Ledger(MessageListenerOrderly):
    """Books in order; account 7's third booking is wrong and never can be booked."""

    def __init__(self) -> None:
        self.booked: dict[int, list[int]] = defaultdict(list)
        self.tries = 0
        self.done = threading.Event()
        self._lock = threading.Lock()

    def consume_message(
        self, messages: list[MessageExt], context: ConsumeOrderlyContext
    ) -> ConsumeOrderlyStatus:
        """Book each message; nothing of this queue comes before the answer."""
        for message in messages:
            booking = json.loads(message.body)
            if (booking["account"], booking["booking"]) == (7, 2):
                self.tries += 1
                context.suspend_current_queue_time_ms = 100
                return ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT
            with self._lock:
                self.booked[booking["account"]].append(booking["booking"])
                if sum(map(len, self.booked.values())) == ACCOUNTS * BOOKINGS - 1:
                    self.done.set()
        return ConsumeOrderlyStatus.SUCCESS


def consume(namesrv_addr: str) -> Ledger:
    """Consume until everything is booked; after two retries a booking becomes a dead letter."""
    ledger = Ledger()
    with PushConsumer(
        GROUP,
        namesrv_addr=namesrv_addr,
        consume_from_where=ConsumeFromWhere.FIRST_OFFSET,
        max_reconsume_times=2,
        subscription={TOPIC: "*"},
        listener=ledger,
    ):
        ledger.done.wait(60)
    return ledger


def main() -> None:
    """Produce, consume, and say what happened."""
    with ExitStack() as stack:
        namesrv_addr = os.environ.get("NAMESRV_ADDR", "")
        if not namesrv_addr:
            from rocketstream.server.embedded import EmbeddedCluster

            namesrv_addr = stack.enter_context(EmbeddedCluster()).namesrv_addr
        produce(namesrv_addr)
        ledger = consume(namesrv_addr)
    in_order = sum(bookings == sorted(bookings) for bookings in ledger.booked.values())
    booked = sum(map(len, ledger.booked.values()))
    print(
        f"{booked} of {ACCOUNTS * BOOKINGS} bookings, {in_order} of {ACCOUNTS} accounts in order; "
        f"the wrong one was given up after {ledger.tries} tries"
    )


if __name__ == "__main__":
    main()
