"""Waiting on several plain connections at a time.

Law: tells which connections have something to read, and reads nothing.
"""

from __future__ import annotations

import selectors
from collections.abc import Sequence

from rocketstream.transport.blocking_connection import BlockingConnection


def wait_for_answers(
    connections: Sequence[BlockingConnection], timeout_ms: float
) -> list[BlockingConnection]:
    """Return the connections whose ``receive`` would not wait, as soon as there are any.

    Connections that ended are returned too: their ``receive`` raises the reason. Blocks for
    ``timeout_ms`` at most; no connection is closed when that time is over.
    """
    here = [each for each in connections if each.has_input]
    if here or not connections:
        return here
    with selectors.DefaultSelector() as selector:
        for each in connections:
            selector.register(each.fileno(), selectors.EVENT_READ, each)
        return [key.data for key, _ in selector.select(timeout_ms / 1000)]
