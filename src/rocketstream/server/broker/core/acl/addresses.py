"""Addresses that need no keys: the forms of whiteRemoteAddress.

Pure: a text becomes a rule, which answers yes or no for an address. Upstream:
RemoteAddressStrategyFactory.
"""

from __future__ import annotations

import ipaddress
import re
import struct
from dataclasses import dataclass
from typing import Final

from rocketstream.errors import ConfigurationError

_ANYBODY: Final = ("*", "*.*.*.*", "*:*:*:*:*:*:*:*")
_PART: Final = re.compile(r"(\*)|([0-9A-Fa-f]+)(?:-([0-9A-Fa-f]+))?")
_ACCEPTED: Final = (
    "accepted are *, 192.168.0.7, 192.168.0.*, 192.168.*.*, 192.168.0.1-100, 192.168.0.{7,8}, "
    "192.168.0.7,192.168.0.8, and the same of IPv6"
)
_V4_PARTS, _V6_PARTS = 4, 8
_V6: Final = struct.Struct(">8H")

Span = tuple[int, int]
"""Lowest and highest value of one part of an address."""


@dataclass(frozen=True, slots=True)
class AddressRule:
    """Which addresses are let in.

    Attributes:
        anybody: whether every address is let in.
        patterns: otherwise one of these must fit: a span for each part of the address.
    """

    anybody: bool = False
    patterns: tuple[tuple[Span, ...], ...] = ()

    def fits(self, host: str) -> bool:
        """Return whether a host is let in; a host that is not an address only by ``*``."""
        if self.anybody:
            return True
        parts = _parts_of(host)
        return any(
            len(pattern) == len(parts)
            and all(low <= part <= high for part, (low, high) in zip(parts, pattern, strict=True))
            for pattern in self.patterns
        )


NOBODY: Final = AddressRule()


def parse_rule(text: str | None) -> AddressRule:
    """Return the rule of a text; a blank one lets no address in.

    Upstream reads no further than the first ``*`` or range of an address (``10.*.0.1`` lets all of
    ``10.`` in), and fails at the first request where the first part is one; here every part counts.

    Raises:
        ConfigurationError: the text has none of the accepted forms.
    """
    text = (text or "").strip()
    if not text:
        return NOBODY
    if text in _ANYBODY:
        return AddressRule(anybody=True)
    if text.endswith("}"):
        head, _, listed = text.partition("{")
        if not head.endswith((".", ":")):
            raise _unusable(text)
        return _of_singles(text, [head + item.strip() for item in listed[:-1].split(",")])
    if "," in text:
        return _of_singles(text, [item.strip() for item in text.split(",")])
    return AddressRule(patterns=(_pattern(text),))


def _of_singles(text: str, items: list[str]) -> AddressRule:
    """Return the rule of a list; as upstream, a list may have only single addresses."""
    patterns = []
    for item in filter(None, items):
        parts = _parts_of(item)
        if not parts:
            raise _unusable(text)
        patterns.append(tuple((part, part) for part in parts))
    if not patterns:
        raise _unusable(text)
    return AddressRule(patterns=tuple(patterns))


def _pattern(text: str) -> tuple[Span, ...]:
    if ":" in text:
        return _v6_pattern(text)
    parts = text.split(".")
    if len(parts) != _V4_PARTS:
        raise _unusable(text)
    return _spans(text, parts, base=10, most=255)


def _v6_pattern(text: str) -> tuple[Span, ...]:
    if "*" not in text and "-" not in text:
        numbers = _parts_of(text)
        if not numbers:
            raise _unusable(text)
        return tuple((number, number) for number in numbers)
    head, gap, tail = text.partition("::")
    left = head.split(":") if head else []
    right = tail.split(":") if tail else []
    if gap:
        left += ["0"] * (_V6_PARTS - len(left) - len(right))
    parts = left + right
    if len(parts) != _V6_PARTS:
        raise _unusable(text)
    return _spans(text, parts, base=16, most=0xFFFF)


def _spans(text: str, parts: list[str], *, base: int, most: int) -> tuple[Span, ...]:
    spans = []
    for place, part in enumerate(parts):
        found = _PART.fullmatch(part.strip())
        if found is None or (found[1] and not place):
            raise _unusable(text)
        if found[1]:
            spans.append((0, most))
            continue
        try:
            low = int(found[2], base)
            high = int(found[3], base) if found[3] else low
        except ValueError:
            raise _unusable(text) from None
        if not low <= high <= most:
            raise _unusable(text)
        spans.append((low, high))
    return tuple(spans)


def _parts_of(host: str) -> tuple[int, ...]:
    """Return the numbers of an address; nothing when the text is not an address."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return ()
    if isinstance(address, ipaddress.IPv6Address):
        # The peer of a socket for both IP versions; Java shows it as IPv4 too.
        if address.ipv4_mapped is None:
            return _V6.unpack(address.packed)
        address = address.ipv4_mapped
    return tuple(address.packed)


def _unusable(text: str) -> ConfigurationError:
    return ConfigurationError(
        f"the address {text!r} is not accepted: {_ACCEPTED}", whiteRemoteAddress=text
    )
