"""A transaction producer to be killed: `-m tests.transactions.selling_process NAMESRV DB PREFIX`.

Law: sells until it is killed; a seat is sold exactly if its row is committed, and the same rows
answer the broker's questions, whichever process is asked.
"""

from __future__ import annotations

import itertools
import sqlite3
import sys
import time
from typing import Any

from rocketstream import (
    LocalTransactionState,
    Message,
    MessageExt,
    TransactionListener,
    TransactionProducer,
)

TOPIC = "Seats"
GROUP = "box-office"
RUNNING_MS = 5_000
"""No local transaction takes that long, whatever the machine has to do."""


class Rows(TransactionListener):
    """Local transactions in a sqlite file that several processes use."""

    def __init__(self, file: str) -> None:
        self._file = file
        with self._open() as rows:
            rows.execute("CREATE TABLE IF NOT EXISTS sale (id TEXT PRIMARY KEY, seat TEXT)")

    def _open(self) -> sqlite3.Connection:
        return sqlite3.connect(self._file, timeout=30)

    def execute_local_transaction(self, message: Message, arg: Any) -> LocalTransactionState:
        """Sell every seat whose number does not end in 3."""
        if arg % 10 == 3:
            return LocalTransactionState.ROLLBACK_MESSAGE
        rows = self._open()
        with rows:
            rows.execute(
                "INSERT INTO sale VALUES (?, ?)", (message.transaction_id, message.body.decode())
            )
        rows.close()
        return LocalTransactionState.COMMIT_MESSAGE

    def check_local_transaction(self, message: MessageExt) -> LocalTransactionState:
        """Answer from the rows."""
        rows = self._open()
        query = "SELECT 1 FROM sale WHERE id = ?"
        found = rows.execute(query, (message.transaction_id,)).fetchone()
        rows.close()
        if found is not None:
            return LocalTransactionState.COMMIT_MESSAGE
        if time.time() * 1000 - message.born_timestamp < RUNNING_MS:
            return LocalTransactionState.UNKNOW  # the row may be on its way
        return LocalTransactionState.ROLLBACK_MESSAGE

    def seats(self) -> list[str]:
        """Every seat that is sold."""
        rows = self._open()
        found = [seat for (seat,) in rows.execute("SELECT seat FROM sale")]
        rows.close()
        return found


def main() -> None:
    """Sell until killed."""
    namesrv_addr, file, prefix = sys.argv[1:]
    with TransactionProducer(
        GROUP, namesrv_addr=namesrv_addr, transaction_listener=Rows(file)
    ) as producer:
        for number in itertools.count():
            message = Message(TOPIC, f"{prefix}-{number}")
            producer.send_message_in_transaction(message, number)


if __name__ == "__main__":
    main()
