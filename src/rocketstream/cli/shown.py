"""Text that is safe for a terminal: no character that steers it, and how wide the rest is.

Pure: text in, text and numbers out.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Final

from rocketstream._util.unseen import JOINERS, spelled_out

_UNSAFE_IN_JSON: Final = re.compile("[\x7f-\x9f\u200b\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]")


def shown(text: str, *, lines: bool = False) -> str:
    r"""Return the text with control characters spelled out: ``\x1b``, ``\n``, ``\u202e``.

    Names and bodies come from anybody; a terminal would obey an escape sequence in them, and a
    direction mark makes a name look like another one.

    Args:
        text: the text.
        lines: line breaks and tabs stay.
    """
    return spelled_out(text, kept="\n\t" if lines else "", joiners=True)


def shown_json(text: str) -> str:
    r"""Return JSON with the steering characters JSON lets through written as ``\u009b``."""
    return text if text.isascii() and "\x7f" not in text else _UNSAFE_IN_JSON.sub(_escaped, text)


def _escaped(found: re.Match[str]) -> str:
    return f"\\u{ord(found[0]):04x}"


def width(text: str) -> int:
    """Return how many cells of a terminal the text takes: two for a wide character."""
    if text.isascii():
        return len(text)
    return sum(_cells(char) for char in text)


def _cells(char: str) -> int:
    if char in JOINERS or unicodedata.category(char) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1
