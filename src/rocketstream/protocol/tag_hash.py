"""The tag hash stored in the consume queue: Java's ``String.hashCode``.

Pure: text in, a number out; ``subscription`` uses it.
"""

from __future__ import annotations

from functools import lru_cache


def java_hash(text: str) -> int:
    """Return Java's ``String.hashCode``: over UTF-16 code units, signed 32 bit (C-102).

    >>> java_hash("TagA")
    2598919
    """
    value = 0
    if text.isascii():
        for unit in text.encode():
            value = (31 * value + unit) & 0xFFFFFFFF
    else:
        data = text.encode("utf-16-be", "surrogatepass")
        for high, low in zip(data[::2], data[1::2], strict=True):
            value = (31 * value + (high << 8 | low)) & 0xFFFFFFFF
    return value - 0x1_0000_0000 if value & 0x8000_0000 else value


@lru_cache(maxsize=4096)
def tags_code(tags: str | None) -> int:
    """Return the consume queue's tagsCode of a TAGS property: its hash, 0 when there is none."""
    return java_hash(tags) if tags else 0
