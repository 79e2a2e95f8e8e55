"""Arrow columns of messages-to-be: what is refused in a value, texts joined and cut in C++.

Pure: whole columns, without a loop over values. A check looks at all bytes together first, and at
each value only if that finds something.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rocketstream.errors import MessageInvalidError

_SEPARATED: Final = "{} contains U+0001 or U+0002, which separate properties"
_BLANKS_END, _ASCII_END = 0x21, 0x80
_EITHER: Final = (
    ("queueId", "shardingKey", "both say which queue"),
    ("delayLevel", "deliverTime", "both say how long to wait"),
)


@dataclass(frozen=True, slots=True)
class Words:
    """The words of errors about rows.

    Attributes:
        of_rows: follows a row's number, and says of which rows it is one; may be empty.
        size: the name of the setting that bounds bodies.
        reserved: the remedy for a property with a reserved name.
    """

    of_rows: str
    size: str
    reserved: str


def wrong_together(found: Collection[str], named: Collection[str | None]) -> list[str]:
    """Return in words which of a message's columns lack another, or exclude each other.

    Args:
        found: the columns that can be used.
        named: these, and those that are there with a wrong type, which is told already.
    """
    wrong = []
    if "brokerName" in found and "queueId" not in named:
        wrong.append("'brokerName' needs 'queueId' beside it")
    wrong += [
        f"{one!r} and {other!r} exclude each other: {why}"
        for one, other, why in _EITHER
        if one in found and other in found
    ]
    return wrong


class BatchColumns:
    """A record batch under our column names, with errors that name a row of it.

    Args:
        batch: the rows.
        places: where each of our columns is in it.
        first: the number of its first row, as errors name it.
        words: what errors call where rows and settings come from.
    """

    def __init__(
        self, batch: pa.RecordBatch, places: Mapping[str, int], first: int, words: Words
    ) -> None:
        self._batch = batch
        self._places = places
        self._first = first
        self._words = words

    def of(self, name: str) -> Any:
        """Return a column; None where there is none."""
        place = self._places.get(name)
        return None if place is None else _with_small_offsets(self._batch.column(place))

    def refuse(self, mask: Any, why: str) -> None:
        """Raise if any row is marked; the error names the first one."""
        marks = mask if isinstance(mask, np.ndarray) else mask.to_numpy(zero_copy_only=False)
        if marks.any():
            row = int(marks.argmax())
            raise MessageInvalidError(
                f"row {self._first + row}{self._words.of_rows} cannot be a message: {why}. None of "
                f"the {len(self._batch)} rows that came with it was sent"
            )

    def texts(self, name: str) -> Any:
        """Return a text column, with empty texts as null."""
        column = self.of(name)
        if column is None:
            return None
        empty = lengths(column) == 0
        if not empty.any():
            return column
        return pc.if_else(pa.array(empty), pa.scalar(None, pa.string()), column)

    def filled_texts(self, name: str) -> Any:
        """Return a text column in which every row must have a value."""
        column = self.texts(name)
        if column is not None:
            self.refuse(pc.is_null(column), f"{name} is null or empty")
        return column

    def numbers(self, name: str, low: int, high: int) -> Any:
        """Return a column of whole numbers within bounds."""
        column = self.of(name)
        if column is None:
            return None
        column = column.cast(pa.int64())
        outside = pc.or_(pc.less(column, low), pc.greater(column, high)).fill_null(False)
        self.refuse(outside, f"{name} is not from {low} to {high}")
        return column

    def tag(self) -> Any:
        """Return each row's tag."""
        return self._without_separators("tags", self.texts("tags"))

    def keys(self) -> Any:
        """Return each row's keys, several joined by spaces."""
        column = self.of("keys")
        if column is None or not pa.types.is_list(column.type):
            return self._without_separators("keys", self.texts("keys"))
        words = column.flatten()

        def rows() -> Any:
            return pc.list_parent_indices(column).to_numpy()

        if words.null_count:
            self._refuse_of(rows, pc.is_null(words), "keys has a null in it")
        self._refuse_of(rows, blank(words), "keys has an empty word in it")
        words_of = pc.binary_join(column, " ")
        some = pc.greater(pc.binary_length(words_of), 0)
        words_of = pc.if_else(some, words_of, pa.scalar(None, pa.string()))
        return self._without_separators("keys", words_of)

    def properties(self, reserved_names: Collection[str], drop_reserved: bool) -> Any:
        """Return the user's properties of each row as text.

        Args:
            reserved_names: names that rows may not set.
            drop_reserved: leave such properties out instead of refusing them.
        """
        column = self.of("properties")
        if column is None:
            return None
        offsets = column.offsets.to_numpy()
        first, count = offsets[0], offsets[-1] - offsets[0]
        names, values = column.keys.slice(first, count), column.items.slice(first, count)
        offsets = offsets - first
        if column.null_count:  # a null may have entries in its place, of which no reader sees any
            is_there = column.is_valid().to_numpy(zero_copy_only=False)
            names, values, offsets = _of_kept(
                np.repeat(is_there, np.diff(offsets)), names, values, offsets
            )
        reserved = pc.is_in(names, pa.array(sorted(reserved_names), names.type))
        any_reserved = pc.any(reserved).as_py()
        if drop_reserved and any_reserved:
            kept = pc.invert(reserved).to_numpy(zero_copy_only=False)
            names, values, offsets = _of_kept(kept, names, values, offsets)

        def rows() -> Any:
            return np.repeat(np.arange(len(column)), np.diff(offsets))

        if any_reserved and not drop_reserved:
            self._refuse_reserved(rows, names, reserved)
        for column_of, texts in (("a name", names), ("a value", values)):
            why = f"properties has {column_of} that is null or blank"
            self._refuse_of(rows, blank(texts), why)
            self._refuse_of(rows, separated(texts), _SEPARATED.format("properties"))
        mark, between = pa.scalar("\x02", names.type), pa.scalar("\x01", names.type)
        pairs = pc.binary_join_element_wise(mark, names, between, values, "")
        return joined(pairs, offsets)

    def _refuse_reserved(self, rows: Callable[[], Any], names: Any, reserved: Any) -> None:
        name = names.filter(reserved)[0].as_py()
        self._refuse_of(
            rows,
            reserved,
            f"properties has the reserved name {name!r}; {self._words.reserved}",
        )

    def _refuse_of(self, rows: Callable[[], Any], mask: Any, why: str) -> None:
        """Raise if any element of a list column is marked; the error names its row.

        Args:
            rows: returns the row of each element.
            mask: which elements are wrong; None for none.
            why: the mistake, in words.
        """
        if mask is None:
            return
        marks = np.zeros(len(self._batch), bool)
        marks[rows()[mask.to_numpy(zero_copy_only=False)]] = True
        self.refuse(marks, why)

    def _without_separators(self, name: str, column: Any) -> Any:
        mask = None if column is None else separated(column)
        if mask is not None:
            self.refuse(mask.fill_null(False), _SEPARATED.format(name))
        return column


def _of_kept(kept: Any, names: Any, values: Any, offsets: Any) -> tuple[Any, Any, Any]:
    """Return names and values of the kept entries, and where each row's begin and end."""
    if kept.all():
        return names, values, offsets
    before = np.concatenate((np.zeros(1, np.int32), np.cumsum(kept, dtype=np.int32)))
    return names.filter(pa.array(kept)), values.filter(pa.array(kept)), before[offsets]


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
    return np.frombuffer(column.buffers()[2] or b"", np.uint8)[offsets[0] : offsets[-1]]


def _with_small_offsets(column: Any) -> Any:
    """Undo ``spark.sql.execution.arrow.useLargeVarTypes``; no batch holds 2 GiB."""
    kind = column.type
    if pa.types.is_map(kind):
        return column.cast(pa.map_(pa.string(), pa.string()))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return column.cast(pa.list_(pa.string()))
    small = {pa.large_string(): pa.string(), pa.large_binary(): pa.binary()}
    return column.cast(small[kind]) if kind in small else column
