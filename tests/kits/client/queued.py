"""Messages as queues hold them."""

from __future__ import annotations

from typing import Final

from rocketstream import MessageExt
from rocketstream.testing import received_message

_MESSAGE: Final = received_message("T", b"")


def queued(queue_offset: int = 0, body_size: int = 10, reconsume_times: int = 0) -> MessageExt:
    """Return a received message; its body is not there, however long it says that it is."""
    made = object.__new__(MessageExt)  # state machines make thousands: a copy of one is enough
    for name in MessageExt.__slots__:
        setattr(made, name, getattr(_MESSAGE, name))
    made._queue_offset, made._body_size = queue_offset, body_size
    made._reconsume_times = reconsume_times
    return made
