"""Sell seats: a ticket is printed only if the row it speaks of is committed in the database.

Run it as it is (python examples/transaction.py): it starts an embedded server of its own.
"""

from __future__ import annotations

import sqlite3
import threading

from rocketstream import (
    ConsumeConcurrentlyStatus,
    ConsumeFromWhere,
    LocalTransactionState,
    Message,
    MessageExt,
    PushConsumer,
    TransactionListener,
    TransactionProducer,
)
from rocketstream.server.embedded import EmbeddedCluster

SEATS = 30
CUSTOMERS = 50


class Sales(TransactionListener):
    """The local transaction is a row; the same row answers when the broker asks later."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.rows = sqlite3.connect(":memory:", check_same_thread=False)
        self.rows.execute("CREATE TABLE sale (id TEXT PRIMARY KEY, customer INTEGER)")

    def execute_local_transaction(self, message: Message, arg: int) -> LocalTransactionState:
        """Sell a seat to customer ``arg``, if there is one left."""
        with self.lock, self.rows:
            (sold,) = self.rows.execute("SELECT count(*) FROM sale").fetchone()
            if sold == SEATS:
                return LocalTransactionState.ROLLBACK_MESSAGE
            self.rows.execute("INSERT INTO sale VALUES (?, ?)", (message.transaction_id, arg))
        if arg % 10 == 0:
            return LocalTransactionState.UNKNOW  # as if the answer was lost: the broker will ask
        return LocalTransactionState.COMMIT_MESSAGE

    def check_local_transaction(self, message: MessageExt) -> LocalTransactionState:
        """Tell whether the seat was sold."""
        with self.lock:
            query = "SELECT 1 FROM sale WHERE id = ?"
            row = self.rows.execute(query, (message.transaction_id,)).fetchone()
        return (
            LocalTransactionState.COMMIT_MESSAGE if row else LocalTransactionState.ROLLBACK_MESSAGE
        )


def main() -> None:
    """Sell, let the broker ask about what was left open, and print the tickets."""
    tickets: list[str] = []
    printed = threading.Event()

    def print_tickets(messages: list[MessageExt]) -> ConsumeConcurrentlyStatus:
        tickets.extend(message.body.decode() for message in messages)
        if len(tickets) == SEATS:
            printed.set()
        return ConsumeConcurrentlyStatus.CONSUME_SUCCESS

    with EmbeddedCluster(transaction_timeout_ms=500, transaction_check_interval_ms=500) as cluster:
        cluster.create_topic("sales")
        with (
            TransactionProducer(
                "box-office", namesrv_addr=cluster.namesrv_addr, transaction_listener=Sales()
            ) as box_office,
            PushConsumer(
                "printer",
                namesrv_addr=cluster.namesrv_addr,
                consume_from_where=ConsumeFromWhere.FIRST_OFFSET,
                subscription={"sales": "*"},
                listener=print_tickets,
            ),
        ):
            results = [
                box_office.send_message_in_transaction(Message("sales", f"seat of {n}"), n)
                for n in range(CUSTOMERS)
            ]
            states = [result.local_transaction_state for result in results]
            printed.wait(60)
    print(
        f"{len(tickets)} tickets for {CUSTOMERS} customers: "
        f"{states.count(LocalTransactionState.COMMIT_MESSAGE)} committed at once, "
        f"{states.count(LocalTransactionState.UNKNOW)} when the broker asked, "
        f"{states.count(LocalTransactionState.ROLLBACK_MESSAGE)} rolled back"
    )


if __name__ == "__main__":
    main()
