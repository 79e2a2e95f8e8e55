"""The properties that say which write a message belongs to, so that a reader can spot repeats.

Pure: names and text. The same rows written again by a retried task, or by a replayed micro-batch,
get the same properties.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from rocketstream.model import RESERVED_PROPERTIES

QUERY_ID: Final = "SPARK_QUERY_ID"
BATCH_ID: Final = "SPARK_BATCH_ID"
PARTITION: Final = "SPARK_PARTITION"
SEQUENCE: Final = "SPARK_SEQUENCE"
IDENTITY_PROPERTIES: Final = (QUERY_ID, BATCH_ID, PARTITION, SEQUENCE)
NOT_FOR_USERS: Final = RESERVED_PROPERTIES | frozenset(IDENTITY_PROPERTIES)
"""Names of properties that column ``properties`` may not set."""


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
