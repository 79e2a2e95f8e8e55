"""Waiting on several plain connections at a time.

Law: tells which of them have something to read, and reads nothing.
"""

from __future__ import annotations

import selectors
from collections.abc import Sequence

from rocketstream.transport.blocking_connection import BlockingConnection


def wait_for_answers(
    connections: Sequence[BlockingConnection], timeout_ms: float
) -> list[BlockingConnection]:
    """Return the connections whose ``receive`` need not wait, as soon as there are any.

    Also those that ended, whose ``receive`` says so. Blocks for ``timeout_ms`` at most, which none
    of them is closed for.
    """
    here = [each for each in connections if each.has_input]
    if here or not connections:
        return here
    with selectors.DefaultSelector() as selector:
        for each in connections:
            selector.register(each.fileno(), selectors.EVENT_READ, each)
        return [key.data for key, _ in selector.select(timeout_ms / 1000)]
