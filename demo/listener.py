"""The demo's one listener, for push consumers and for Spark's tasks alike.

Law: a message in, a line of the journal and an answer out. What is made of the lines is the
ledger's; it knows neither which consumer calls it nor what other processes have seen.
"""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass

import orjson

from demo.trouble import RefusedError, cause_of, refuses
from rocketstream import ConsumeConcurrentlyStatus, MessageExt


@functools.cache
def _journal(folder: str, pid: int) -> int:
    """Open this process's file; written without a buffer, so that nothing is noted too late."""
    return os.open(f"{folder}/{pid}.jsonl", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)


@dataclass(frozen=True, slots=True)
class FlightListener:
    """Notes every flight it consumes or refuses; raises for the chosen ones.

    A line is one JSON array: id, deliveries before this one, carrier, minutes of departure and
    arrival delay (null where not known), and the cause where it is refused, else null.

    Attributes:
        folder: of the journal, one file for each process.
    """

    folder: str

    def __call__(self, messages: list[MessageExt]) -> ConsumeConcurrentlyStatus:
        """Take messages; raising sends them to be consumed again later."""
        for message in messages:
            flight = orjson.loads(message.body)
            times = message.reconsume_times
            cause = cause_of(flight) if refuses(flight["id"], times) else None
            line = (
                flight["id"], times, flight["carrier"], flight["dep_delay"], flight["arr_delay"],
                cause,
            )  # fmt: skip
            journal = _journal(self.folder, os.getpid())
            os.write(journal, orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE))
            if cause is not None:
                raise RefusedError(f"flight {flight['id']}: {cause}")
        return ConsumeConcurrentlyStatus.CONSUME_SUCCESS
