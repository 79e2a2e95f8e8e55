"""Ready-made queue selectors (C-471).

Law: a selector is any ``f(queues, message, arg) -> MessageQueue``; these are two.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from rocketstream.errors import ConfigurationError
from rocketstream.model import Message, MessageQueue
from rocketstream.protocol.tag_hash import java_hash


class SelectMessageQueueByHash:
    """The queue of ``arg``'s Java hash: the same one a Java producer takes for the same value.

    ``arg`` is a str, an int (hashed as Java's Integer or Long, by its size) or a bool.
    """

    def __call__(self, queues: Sequence[MessageQueue], message: Message, arg: Any) -> MessageQueue:
        """Return the queue; the same for equal ``arg`` as long as the queues stay the same."""
        return queues[abs(hash_of(arg)) % len(queues)]


class SelectMessageQueueByRandom:
    """Any queue."""

    def __call__(self, queues: Sequence[MessageQueue], message: Message, arg: Any) -> MessageQueue:
        """Return a queue drawn at random."""
        return random.choice(queues)


def hash_of(value: object) -> int:
    """Return Java's ``hashCode`` of a value.

    Raises:
        ConfigurationError: a value of a type Java has no equal of.
    """
    if isinstance(value, str):
        return java_hash(value)
    if isinstance(value, bool):
        return 1231 if value else 1237
    if isinstance(value, int):
        if -0x8000_0000 <= value <= 0x7FFF_FFFF:
            return value
        if -0x8000_0000_0000_0000 <= value <= 0x7FFF_FFFF_FFFF_FFFF:
            bits = value & 0xFFFF_FFFF_FFFF_FFFF
            folded = (bits ^ bits >> 32) & 0xFFFF_FFFF
            return folded - 0x1_0000_0000 if folded >= 0x8000_0000 else folded
    raise ConfigurationError(
        f"arg must be a str, a bool or an int of 64 bits to be hashed as in Java, not {value!r:.80}"
    )
