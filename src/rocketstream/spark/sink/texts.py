"""Text columns as the bytes they consist of: lengths, checks and joins without a loop over values.

A check looks at all bytes together first, and at each value only if that finds something.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

_BLANKS_END, _ASCII_END = 0x21, 0x80


def offsets_of(column: Any) -> Any:
    """Return where each value of a text or binary column begins, and the end of the last one."""
    place = column.buffers()[1]
    if not len(column):
        return np.zeros(1, np.int32)
    return np.frombuffer(place, np.int32, len(column) + 1, column.offset * 4)


def lengths(column: Any) -> Any:
    """Return how many bytes each value of a text or binary column without nulls has."""
    return np.diff(offsets_of(column))


def separated(texts: Any) -> Any:
    """Return which texts contain U+0001 or U+0002 (nulls stay null); None if none does."""
    data = _bytes_of(texts, offsets_of(texts))
    if not len(data) or data.min() > 2:
        return None
    return pc.or_(pc.match_substring(texts, "\x01"), pc.match_substring(texts, "\x02"))


def blank(texts: Any) -> Any:
    """Return which texts are null or only white space; None if none is."""
    if not texts.null_count:
        offsets = offsets_of(texts)
        starts = offsets[:-1] - offsets[0]
        if not len(starts):
            return None
        if np.diff(offsets).min():
            first = _bytes_of(texts, offsets)[starts]
            if first.min() >= _BLANKS_END and first.max() < _ASCII_END:
                return None
    return pc.equal(pc.binary_length(pc.utf8_trim_whitespace(texts)), 0).fill_null(True)


def after(text: str, column: Any) -> Any:
    """Put a text before every value; null stays null."""
    if column is None:
        return None
    return pc.binary_join_element_wise(pa.scalar(text, column.type), column, "")


def fixed(values: Any, kind: Any) -> Any:
    """Return an array of ``kind`` whose values are the bytes of each row of numbers."""
    width = values.strides[0]
    offsets = np.arange(len(values) + 1, dtype=np.int32) * width
    places = [None, pa.py_buffer(offsets), pa.py_buffer(values)]
    return pa.Array.from_buffers(kind, len(values), places)


def joined(texts: Any, offsets: Any) -> Any:
    """Return a string array that joins the texts between two offsets each; copies nothing.

    Args:
        texts: a string array without nulls.
        offsets: where the runs begin and end; the first is 0, the last the number of texts.
    """
    ends = pa.py_buffer(offsets_of(texts)[offsets])
    data = texts.buffers()[2] or pa.py_buffer(b"")
    return pa.StringArray.from_buffers(len(offsets) - 1, ends, data)


def _bytes_of(column: Any, offsets: Any) -> Any:
    """Return the bytes of all values."""
    data = column.buffers()[2]
    if data is None:
        return np.empty(0, np.uint8)
    return np.frombuffer(data, np.uint8)[offsets[0] : offsets[-1]]
