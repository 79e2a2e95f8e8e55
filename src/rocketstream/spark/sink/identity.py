"""What each message says of the write it belongs to, so that a reader can tell a repeat.

Law: pure; names and text. The same rows written again by a retried task, or by a micro-batch that
is replayed, say the same.
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
"""Property names that column ``properties`` may not set."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Which task of which write.

    Attributes:
        query_id: of the streaming query; of a batch write its own id.
        batch_id: of the micro-batch; 0 in a batch write.
        partition: of the DataFrame.
    """

    query_id: str
    batch_id: int
    partition: int

    def text(self) -> str:
        """Return the properties up to the number of the row, which follows directly."""
        pairs = ((QUERY_ID, self.query_id), (BATCH_ID, self.batch_id), (PARTITION, self.partition))
        return "".join(f"{name}\x01{value}\x02" for name, value in pairs) + f"{SEQUENCE}\x01"
