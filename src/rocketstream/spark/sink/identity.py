"""The ids of new messages, and the properties that say which write a message belongs to.

The same rows written again by a retried task, or by a replayed micro-batch, get the same
properties, so that a reader can spot repeats. Ids become text in numpy, without a loop over rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa

from rocketstream.model import RESERVED_PROPERTIES
from rocketstream.protocol.message_id import RESERVED_IDS_MAX, UniqueIdGenerator
from rocketstream.spark.sink.texts import fixed

QUERY_ID: Final = "SPARK_QUERY_ID"
BATCH_ID: Final = "SPARK_BATCH_ID"
PARTITION: Final = "SPARK_PARTITION"
SEQUENCE: Final = "SPARK_SEQUENCE"
IDENTITY_PROPERTIES: Final = (QUERY_ID, BATCH_ID, PARTITION, SEQUENCE)
NOT_FOR_USERS: Final = RESERVED_PROPERTIES | frozenset(IDENTITY_PROPERTIES)
"""Names of properties that column ``properties`` may not set."""

_DIGITS: Final = np.frombuffer(b"0123456789ABCDEF", np.uint8)
_SHIFTS: Final = np.array([12, 8, 4, 0])


@dataclass(frozen=True, slots=True)
class Identity:
    """Identifies a task of a write.

    Attributes:
        query_id: the id of the streaming query, or of the batch write.
        batch_id: the number of the micro-batch; 0 in a batch write.
        partition: the number of the DataFrame's partition.
    """

    query_id: str
    batch_id: int
    partition: int

    def text(self) -> str:
        """Return the properties as text up to the row's number, which must follow directly."""
        pairs = ((QUERY_ID, self.query_id), (BATCH_ID, self.batch_id), (PARTITION, self.partition))
        return "".join(f"{name}\x01{value}\x02" for name, value in pairs) + f"{SEQUENCE}\x01"


def new_ids(generator: UniqueIdGenerator, count: int, now_ms: Callable[[], int]) -> Any:
    """Return ``count`` new ids as a string array; no two of them are the same.

    Args:
        generator: the generator of this process.
        count: how many ids, 0 or more.
        now_ms: returns ms since 1970.
    """
    parts, moment = [_part(generator, 0, now_ms())] if not count else [], -1
    while count:
        # One millisecond has no more: the next ones are of a later millisecond.
        moment = max(now_ms(), moment + 1)
        size = min(count, RESERVED_IDS_MAX)
        parts.append(_part(generator, size, moment))
        count -= size
    return parts[0] if len(parts) == 1 else pa.concat_arrays(parts)


def _part(generator: UniqueIdGenerator, count: int, now_ms: int) -> Any:
    head, numbers = generator.reserve(count, now_ms)
    letters = np.empty((count, len(head) + len(_SHIFTS)), np.uint8)
    letters[:, : len(head)] = np.frombuffer(head.encode(), np.uint8)
    letters[:, len(head) :] = _DIGITS[np.array(numbers, np.int64)[:, None] >> _SHIFTS & 0xF]
    return fixed(letters, pa.string())
