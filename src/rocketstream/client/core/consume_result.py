"""What a concurrent listener's answer means for each message of its batch.

Law: pure (C-262 to C-265).
"""

from __future__ import annotations

from rocketstream.model import ConsumeConcurrentlyStatus

ACK_ALL = 2**31 - 1
"""The context's ackIndex before the listener touches it."""


def acknowledged(status: ConsumeConcurrentlyStatus, ack_index: int, batch_size: int) -> int:
    """Return how many messages from the front of the batch succeeded; the rest failed.

    CONSUME_SUCCESS honours ``ack_index`` (partial success); RECONSUME_LATER fails all.
    """
    if status is not ConsumeConcurrentlyStatus.CONSUME_SUCCESS:
        return 0
    return max(0, min(ack_index + 1, batch_size))
