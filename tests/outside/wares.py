"""Pure: the messages of a round, each a function of its name."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Mapping
from dataclasses import dataclass

TAGS = ("A", "B", "C")
SHADES = ("dark", "light", "")
IDENT, OURS = "ident", ("ident", "shade", "note")
"""The property a message is known by, and all that a producer here sets."""
DELAYS_S = (1.0, 2.0, 1.0)
"""Delay of level 1, 2, 3; from level 3 on the broker's retries use them."""
DELAY_LEVELS = "1s 2s 1s " + " ".join(["1s"] * 15)


@dataclass(frozen=True)
class Ware:
    """A message before it is one of the product's."""

    ident: str
    topic: str
    body: bytes
    tags: str
    keys: str
    properties: Mapping[str, str]
    delay_level: int = 0

    def described(self) -> dict[str, object]:
        """The fields of an event that tell what was sent."""
        return {
            "ident": self.ident,
            "topic": self.topic,
            "tags": self.tags,
            "keys": self.keys,
            "properties": dict(self.properties),
            "digest": digest(self.body),
            "delay_s": DELAYS_S[self.delay_level - 1] if self.delay_level else 0.0,
        }


def digest(body: bytes) -> str:
    """Return what stands for a body in a history."""
    return hashlib.sha256(body).hexdigest()[:16]


def ware(ident: str, topic: str, *, delayed: bool = False) -> Ware:
    """Return the message of a name: most are small, some large enough to be compressed."""
    chance = random.Random(ident)
    size = chance.choice((0, 20, 200, 200, 6_000))
    filler = (
        chance.randbytes(size) if chance.random() < 0.5 else bytes([chance.randrange(256)]) * size
    )
    properties = {IDENT: ident, "note": chance.choice(("", "plain", "Ünïcode ✓ \t x", "a=b|c"))}
    shade = chance.choice(SHADES)
    if shade:
        properties["shade"] = shade
    return Ware(
        ident,
        topic,
        ident.encode() + b"|" + filler,
        chance.choice(TAGS),
        ident if chance.random() < 0.5 else f"{ident} k{chance.randrange(9)}",
        {name: value for name, value in properties.items() if value},
        chance.randint(1, 3) if delayed else 0,
    )


def chance_of(ident: str, purpose: str) -> float:
    """Return a number from 0 to 1 that is the same for a message in every process."""
    return random.Random(f"{purpose} {ident}").random()
