"""The reason a message was sent back, as properties of its copy: an opt-in of ours, not RocketMQ's.

Pure: values in, properties out, and back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from rocketstream import limits

PROPERTY_SEND_BACK_CAUSE: Final = "SEND_BACK_CAUSE"
"""The exception: ``ValueError: no price``."""
PROPERTY_SEND_BACK_WHERE: Final = "SEND_BACK_WHERE"
"""Where it was raised: ``shop/pricing.py:31 price_of``."""
PROPERTY_SEND_BACK_TRY: Final = "SEND_BACK_TRY"
"""The try that failed so: how often the message had been sent back before."""
CAUSE_PROPERTIES: Final = frozenset(
    {PROPERTY_SEND_BACK_CAUSE, PROPERTY_SEND_BACK_WHERE, PROPERTY_SEND_BACK_TRY}
)


@dataclass(frozen=True, slots=True)
class SendBackCause:
    """The reason why a try failed.

    Attributes:
        kind: name of the exception's class, with its module unless that is Python's own; or the
            other kind of failure: ``RECONSUME_LATER``, ``TIME_OUT``.
        message: the exception's text, one line; may be empty.
        where: file, line and function; None where it is not known.
        tries: how often the message had been sent back before the try that failed.
    """

    kind: str
    message: str = ""
    where: str | None = None
    tries: int | None = None

    def properties(self) -> dict[str, str]:
        """Return the properties that describe the cause, bounded and without control characters."""
        text = f"{self.kind}: {self.message}" if self.message else self.kind
        found = {PROPERTY_SEND_BACK_CAUSE: one_line(text, limits.SEND_BACK_CAUSE_CHARS_MAX)}
        if self.where:
            found[PROPERTY_SEND_BACK_WHERE] = one_line(self.where, limits.SEND_BACK_WHERE_CHARS_MAX)
        if self.tries is not None:
            found[PROPERTY_SEND_BACK_TRY] = str(self.tries)
        return found


def cause_of(properties: Mapping[str, str]) -> SendBackCause | None:
    """Return the cause a message's properties describe; None when they describe none."""
    # Cut as ours are written: any sender can set these, and readers search them for patterns.
    text = properties.get(PROPERTY_SEND_BACK_CAUSE, "")[: limits.SEND_BACK_CAUSE_CHARS_MAX]
    if not text:
        return None
    kind, _, message = text.partition(": ")
    where = properties.get(PROPERTY_SEND_BACK_WHERE)
    if where is not None:
        where = where[: limits.SEND_BACK_WHERE_CHARS_MAX]
    times = properties.get(PROPERTY_SEND_BACK_TRY, "")
    tries = int(times) if times.isascii() and times.isdigit() and len(times) < 10 else None
    return SendBackCause(kind, message, where, tries)


def one_line(text: str, most: int) -> str:
    """Return a text without line breaks and control characters, cut to ``most`` with three dots."""
    # Twice the kept length is enough: a text may be megabytes of which most is thrown away.
    clean = " ".join("".join(c if c.isprintable() else " " for c in text[: 2 * most]).split())
    return clean if len(clean) <= most else clean[: most - 1] + "…"
