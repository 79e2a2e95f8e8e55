r"""Spells out invisible characters (``\u202e``) wherever text of others is shown.

Pure: text in, text out. Terminals, pages and agents share one set: a character that one of them
obeys, hides or confuses is spelled out for all of them.
"""

from __future__ import annotations

import unicodedata
from typing import Final

JOINERS: Final = frozenset("\u200c\u200d")
"""Joiners: they shape Persian words and families of emoji."""
_UNSEEN: Final = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
"""Controls, direction marks, tags, lone surrogates, characters no font has, line breaks."""
_BLANK: Final = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u3164\uffa0")
"""Letters and marks without a visible shape: with them one name passes for another."""
_NAMED: Final = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def spelled_out(text: str, *, kept: str = "", joiners: bool = False) -> str:
    r"""Return a text with every invisible character escaped: ``\n``, ``\x1b``, ``\u202e``.

    Args:
        text: the text.
        kept: characters that stay, like line breaks.
        joiners: let zero width joiners stay, for people who read words shaped by them.
    """
    if text.isascii() and text.isprintable():
        return text
    staying = JOINERS.union(kept) if joiners else kept
    return "".join(c if c in staying or not _hides(c) else _spelled(c) for c in text)


def _hides(char: str) -> bool:
    return char in _BLANK or unicodedata.category(char) in _UNSEEN


def _spelled(char: str) -> str:
    if char in _NAMED:
        return _NAMED[char]
    code = ord(char)
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
