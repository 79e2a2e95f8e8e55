"""Whether a queue may be pulled now: three bounds on what is cached and not finished.

Law: pure; all comparisons are strict (C-204).
"""

from __future__ import annotations

import enum
from dataclasses import replace

from rocketstream.client.core.process_queue import ProcessQueue
from rocketstream.late import dataclass

MIB = 1024 * 1024


class FlowControl(enum.Enum):
    """The bound that holds a pull back."""

    COUNT = "COUNT"
    SIZE = "SIZE"
    SPAN = "SPAN"


@dataclass(frozen=True, slots=True)
class Thresholds:
    """The bounds of one queue (C-30 to C-34)."""

    count: int = 1_000
    size_mib: int = 100
    span: int = 2_000

    def shared(self, topic_count: int, topic_size_mib: int, queues: int) -> Thresholds:
        """Divide per-topic bounds (-1 = off) among all queues in the table (C-183, C-184)."""
        if queues == 0:
            return self
        count = self.count if topic_count == -1 else max(1, topic_count // queues)
        size_mib = self.size_mib if topic_size_mib == -1 else max(1, topic_size_mib // queues)
        return replace(self, count=count, size_mib=size_mib)


def flow_control(queue: ProcessQueue, thresholds: Thresholds) -> FlowControl | None:
    """Return what holds the next pull back, None when it may go (C-203 steps 5 to 7a)."""
    if queue.message_count > thresholds.count:
        return FlowControl.COUNT
    if queue.body_bytes // MIB > thresholds.size_mib:
        return FlowControl.SIZE
    if queue.max_span > thresholds.span:
        return FlowControl.SPAN
    return None
