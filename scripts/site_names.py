"""Where long names in the tables of the site may be broken: at their joints, nowhere else.

Law: text in, text out; what a page says and what a reader copies stays the same.
"""

from __future__ import annotations

import re

LONG = 12
"""Shorter words are never broken."""
_CELL = re.compile(r"(<t[dh]\b[^>]*>)(.*?)(</t[dh]>)", re.DOTALL)
_TAG_OR_WORD = re.compile(r"<[^>]*>|[^\s<]+")
_JOINT = re.compile(r"(?<=[_./])(?=\w)|(?<=[a-z])(?=[A-Z])")


def breakable(html: str) -> str:
    """Return a page whose long names in tables may be broken, as ``consume_|thread_|max``."""
    return _CELL.sub(lambda cell: cell[1] + _TAG_OR_WORD.sub(_broken, cell[2]) + cell[3], html)


def _broken(found: re.Match[str]) -> str:
    word = found[0]
    is_name = not word.startswith("<") and len(word) >= LONG
    return _JOINT.sub("<wbr>", word) if is_name else word
