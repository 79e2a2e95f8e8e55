"""The properties of many messages as Arrow columns: the whole map, or single values of it.

Pure: the rules are those of ``protocol.properties``: a name given twice keeps its first place and
its last value, bytes that are not UTF-8 are replaced.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rocketstream.columns.layout import Array, Layout, gather, spread
from rocketstream.protocol.properties import decode_properties
from rocketstream.protocol.record import PROPERTIES_CRC, SEAL_BYTES

_MIDDLE, _END = 1, 2
_SEAL_BEGINS, _SEAL_ENDS = (
    int.from_bytes(part, "big") for part in (PROPERTIES_CRC[:8], PROPERTIES_CRC[-8:])
)
_NO_BYTES = np.zeros(0, np.uint8)
_COMPARISON_BYTES_MIN = 1 << 20
_DEDUPLICATION_CELLS_MAX = 16_000_000


class PropertyTable:
    """Properties of n messages: entry i belongs to the message whose offsets enclose i.

    Args:
        offsets: n + 1 positions into the entries.
        names: names of the entries, dictionary-encoded.
        values: their values, read only for the entries that are wanted.
    """

    def __init__(self, offsets: Array, names: Any, values: Any, value_at: Array) -> None:
        self._offsets = offsets
        self._names = names
        self._values = values
        self._value_at = value_at

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def map_column(self) -> Any:
        """Return every message's properties as a map."""
        names = self._names.dictionary_decode().cast(pa.string())
        values = self._values.take(pa.array(self._value_at))
        return pa.MapArray.from_arrays(pa.array(self._offsets, pa.int32()), names, values)

    def value_column(self, name: str) -> Any:
        """Return one property of every message, null where it is absent."""
        code = pc.index(self._names.dictionary, name).as_py()
        if code < 0:
            return pa.nulls(len(self), pa.string())
        entries = np.flatnonzero(self._names.indices.to_numpy() == code)
        rows = np.searchsorted(self._offsets, entries, side="right") - 1
        if len(rows) == len(self):
            return self._values.take(pa.array(self._value_at[entries]))
        picked = np.zeros(len(self), np.int64)
        absent = np.ones(len(self), bool)
        picked[rows] = self._value_at[entries]
        absent[rows] = False
        return self._values.take(pa.array(picked, mask=absent))


class UniformTable:
    """Properties of n messages that all have the same names in the same order, the usual case.

    Args:
        names: the names.
        values: strings that contain all values.
        value_at: the index of each value in ``values``, one row per message, one column per name.
    """

    def __init__(self, names: Sequence[str], values: Any, value_at: Array) -> None:
        self._names = names
        self._values = values
        self._value_at = value_at

    def __len__(self) -> int:
        return len(self._value_at)

    def map_column(self) -> Any:
        """Return every message's properties as a map."""
        count, width = self._value_at.shape
        places = np.tile(np.arange(width), count)
        names = pa.array(self._names, pa.string()).take(pa.array(places))
        values = self._values.take(pa.array(self._value_at.ravel()))
        return pa.MapArray.from_arrays(
            pa.array(np.arange(count + 1) * width, pa.int32()), names, values
        )

    def value_column(self, name: str) -> Any:
        """Return one property of every message, null where it is absent."""
        if name not in self._names:
            return pa.nulls(len(self), pa.string())
        place = self._names.index(name)
        return self._values.take(pa.array(np.ascontiguousarray(self._value_at[:, place])))


Properties = PropertyTable | UniformTable


def table_of(layout: Layout) -> Properties:
    """Return the properties of all messages of a layout.

    The byte after each message's properties is overwritten with a separator, so call this after all
    fields before them have been read.
    """
    starts, sizes = layout.properties, _without_seals(layout)
    terminated = (sizes > 0) & (layout.bytes[starts + sizes - 1] == _END)
    layout.bytes[starts + sizes] = _END
    blob = gather(layout.bytes, starts, sizes + ((sizes > 0) & ~terminated))
    table = _split(blob)
    if table is None:
        table = _split(_in_utf8(blob))
    return table_of_texts(blob.to_pylist()) if table is None else table


def _without_seals(layout: Layout) -> Array:
    """Return the sizes of the texts without the seal that an embedded broker puts at their end."""
    sizes = layout.properties_size
    at = np.maximum(layout.properties + sizes - SEAL_BYTES, 0)
    # As two numbers that overlap: byte by byte it takes twelve times as long.
    ends_at = at + len(PROPERTIES_CRC) - 8
    found = (layout.number(at) == _SEAL_BEGINS) & (layout.number(ends_at) == _SEAL_ENDS)
    is_sealed = (sizes >= SEAL_BYTES) & found
    # With the separator before it, where anything stands there.
    return np.where(is_sealed, np.maximum(sizes - SEAL_BYTES - 1, 0), sizes)


def table_of_texts(texts: Sequence[bytes]) -> PropertyTable:
    """Return the properties of messages from their text forms, one by one."""
    tables = [properties_of(text) for text in texts]
    counts = np.fromiter((len(table) for table in tables), np.int64, len(tables))
    offsets = np.concatenate(([0], np.cumsum(counts)))
    names = pa.array([name for table in tables for name in table], pa.string())
    values = pa.array([value for table in tables for value in table.values()], pa.string())
    return PropertyTable(offsets, names.dictionary_encode(), values, np.arange(len(values)))


def properties_of(text: bytes) -> dict[str, str]:
    """Return the properties of one message; bytes that are not UTF-8 are replaced."""
    return decode_properties(text.decode("utf-8", "replace"))


def _in_utf8(blob: Any) -> Any:
    """Return texts in which bytes that are not UTF-8 are replaced, as in ``decode_properties``."""
    texts = [text.decode("utf-8", "replace").encode() for text in blob.to_pylist()]
    return pa.array(texts, pa.binary())


def _split(blob: Any) -> Properties | None:
    """Split all texts at once; None if one is not UTF-8, or splitting would need too much memory.

    Args:
        blob: the texts, each of them empty or with a separator at its end.
    """
    ends = np.frombuffer(blob.buffers()[1], np.int32, len(blob) + 1, blob.offset * 4)
    data = blob.buffers()[2]
    text = np.frombuffer(data, np.uint8, int(ends[-1])) if ends[-1] else _NO_BYTES
    edges, pair_ends = _edges(text)
    pairs = len(pair_ends)
    # Arrow strings lie end to end, so the bytes between the pairs become strings of their own,
    # which are never used.
    tokens = pa.Array.from_buffers(pa.string(), 4 * pairs, [None, pa.py_buffer(edges), data])
    if len(text) and text.max() > 0x7F and not _is_utf8(tokens):
        return None
    offsets = np.searchsorted(pair_ends, ends).astype(np.int64)
    uniform = _same_names(text, edges, offsets, tokens)
    if uniform is not None:
        return uniform
    names = tokens.take(pa.array(np.arange(0, 4 * pairs, 4))).dictionary_encode()
    value_at = np.arange(2, 4 * pairs, 4)
    return _without_repeats(PropertyTable(offsets, names, tokens, value_at))


def _edges(text: Array) -> tuple[Array, Array]:
    """Return where tokens begin and end, four to a pair: name, mark, value, and the text up to the
    next name; and where the pairs end."""
    marks = np.flatnonzero(text <= _END)
    if len(marks) % 2 == 0 and _regular(text, marks):
        edges = np.empty(2 * len(marks) + 1, np.int32)
        edges[0::2][1:] = marks + 1
        edges[1::2] = marks
        edges[0] = 0
        return edges, marks[1::2]
    # A pair without name, value or the mark between them is dropped; a value may contain marks.
    kinds = text[marks]
    stops = marks[kinds == _END]
    starts = np.concatenate(([0], stops[:-1] + 1))[: len(stops)]
    middles = np.concatenate((marks[kinds == _MIDDLE], [len(text)]))
    middle = middles[np.searchsorted(middles, starts)]
    good = (middle > starts) & (middle + 1 < stops)
    starts, middle, stops = starts[good], middle[good], stops[good]
    edges = np.empty((len(stops), 4), np.int32)
    edges[:, 0], edges[:, 1], edges[:, 2], edges[:, 3] = starts, middle, middle + 1, stops
    last = stops[-1:] + 1 if len(stops) else [0]
    return np.concatenate((edges.ravel(), last)).astype(np.int32), stops


def _same_names(text: Array, edges: Array, offsets: Array, tokens: Any) -> UniformTable | None:
    """Return the table if all messages have the names of the first one, in the same order."""
    rows, width = len(offsets) - 1, int(offsets[1])
    if not width or (np.diff(offsets) != width).any():
        return None
    starts = edges[0:-1:4].reshape(rows, width)
    sizes = edges[1::4].reshape(rows, width) - starts
    if (sizes != sizes[0]).any():
        return None
    longest = int(sizes[0].max())
    if rows * width * longest > 8 * len(text) + _COMPARISON_BYTES_MIN:
        return None  # one long name among many short ones: comparing would need too much memory
    padded = np.concatenate((text, np.zeros(longest, np.uint8)))
    found = spread(padded, longest)[starts.ravel()].view(np.uint8).reshape(rows, width, longest)
    outside = np.arange(longest) >= sizes[0][:, None]
    if ((found != found[0]) & ~outside).any():
        return None
    names = [
        found[0, place, :size].tobytes().decode() for place, size in enumerate(sizes[0].tolist())
    ]
    # A name given twice keeps its first place and its last value.
    last = {name: place for place, name in enumerate(names)}
    places = np.fromiter(last.values(), np.int64, len(last))
    value_at = 4 * (np.arange(rows)[:, None] * width + places) + 2
    return UniformTable(list(last), tokens, value_at)


def _regular(text: Array, marks: Array) -> bool:
    kinds = text[marks]
    return bool(
        (kinds[0::2] == _MIDDLE).all()
        and (kinds[1::2] == _END).all()
        and (np.diff(marks, prepend=-1) > 1).all()
    )


def _is_utf8(tokens: Any) -> bool:
    try:
        tokens.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def _without_repeats(table: PropertyTable) -> PropertyTable | None:
    """Merge names given twice in a message (each message of a batch carries WAIT twice)."""
    codes = table._names.indices.to_numpy()
    words = len(table._names.dictionary)
    if len(table) * words > _DEDUPLICATION_CELLS_MAX:
        return None
    rows = np.repeat(np.arange(len(table)), np.diff(table._offsets))
    cells = rows * words + codes
    entries = np.arange(len(cells))
    last = np.empty(len(table) * words, np.int64)
    last[cells] = entries
    if (last[cells] == entries).all():
        return table
    first = np.empty(len(table) * words, np.int64)
    first[cells[::-1]] = entries[::-1]
    kept = np.flatnonzero(first[cells] == entries)
    offsets = np.searchsorted(kept, table._offsets)
    names = table._names.take(pa.array(kept))
    return PropertyTable(offsets, names, table._values, table._value_at[last[cells[kept]]])
