"""Arrow arrays from many slices of one buffer, copied in C++.

Pure: buffers in, arrays out. pyarrow 19 is needed, whose view types can be built from buffers.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa

from rocketstream.spark.arrow.layout import Array

_INLINE_BYTES: Final = 12


def gather(raw: Array, starts: Array, sizes: Array, extra: bytes = b"", moved: Any = None) -> Any:
    """Return ``raw[start : start + size]`` for every pair, as a binary array.

    Args:
        raw: bytes, with at least 12 more after the last slice.
        starts: positions, below 2 GiB.
        sizes: lengths.
        extra: a second buffer, for slices that are not in ``raw``.
        moved: which slices are in ``extra`` (a boolean array); None if none is.
    """
    views = np.zeros((len(starts), 4), np.int32)
    views[:, 0] = sizes
    views[:, 3] = starts
    buffers = [None, pa.py_buffer(views), pa.py_buffer(raw)]
    _inline(views, raw, starts, sizes, slice(None) if moved is None else ~moved)
    if moved is not None:
        views[moved, 2] = 1
        padded = np.frombuffer(extra + bytes(_INLINE_BYTES), np.uint8)
        _inline(views, padded, starts, sizes, moved)
        buffers.append(pa.py_buffer(padded))
    return pa.Array.from_buffers(pa.binary_view(), len(starts), buffers).cast(pa.binary())


def _inline(views: Array, raw: Array, starts: Array, sizes: Array, chosen: Any) -> None:
    """Put slices of up to 12 bytes into their view, where Arrow expects them."""
    small = np.zeros(len(starts), bool)
    small[chosen] = sizes[chosen] <= _INLINE_BYTES
    if not small.any():
        return
    span = np.arange(_INLINE_BYTES)
    data = raw[starts[small][:, None] + span] * (span < sizes[small][:, None])
    views.view(np.uint8).reshape(-1, 16)[small, 4:] = data
