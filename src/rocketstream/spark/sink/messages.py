"""Record batches as messages: checked as a whole, then encoded by column in C++.

Law: nothing here loops over rows. The bytes of a row are those of ``protocol.record.encode_batch``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rocketstream import limits
from rocketstream.client.producer.message import DELAY_LEVEL_MAX, beyond_levels
from rocketstream.errors import MessageInvalidError
from rocketstream.spark.sink.identity import NOT_FOR_USERS, Identity
from rocketstream.spark.sink.texts import (
    after,
    blank,
    fixed,
    joined,
    lengths,
    offsets_of,
    separated,
)
from rocketstream.spark.worker import kept

logger = logging.getLogger("rocketstream.spark")

_WRITES_TOLD_MAX: Final = 16
_HEAD: Final = np.dtype(
    [("size", ">i4"), ("magic", ">i4"), ("crc", ">i4"), ("flag", ">i4"), ("body", ">i4")]
)
_RECORD_BYTES: Final = _HEAD.itemsize + 2
_STORED_EXTRA_BYTES: Final = 69 + 127 + 64
"""How much more than the row a broker may store: the rest of a record's head, the topic, and its
own properties. Apache's broker bounds the sum over the records of one request.
"""
_INT_MAX: Final = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules for making messages of rows.

    Attributes:
        columns: where each of our columns is in a row.
        body_bytes_max: the largest body in bytes.
        drop_reserved: whether properties with reserved names are left out instead of refused.
    """

    columns: dict[str, int]
    body_bytes_max: int
    drop_reserved: bool


@dataclass(slots=True)
class Block:
    """The messages of one record batch, all of which may be sent.

    Attributes:
        bodies: the bodies, as a binary array.
        texts: the properties in the brokers' text form, as a binary array.
        flags: the flags as numbers, None where all are 0.
        ends: for each row, how many bytes a broker may store of the rows up to and including it.
        topics, queue_ids, broker_names, sharding_keys: Arrow arrays, None without such a column.
        delayed: which rows are to be held back (booleans), None for none.
        timed: whether some have a delivery time of their own.
    """

    bodies: Any
    texts: Any
    flags: Any
    ends: Any
    topics: Any = None
    queue_ids: Any = None
    broker_names: Any = None
    sharding_keys: Any = None
    delayed: Any = None
    timed: bool = field(default=False)
    _frame: Any = field(default=None, init=False, repr=False)
    """The bytes before each body, and between it and the properties; set by the first batch.
    """

    def __len__(self) -> int:
        return len(self.bodies)

    def take(self, rows: Any) -> Block:
        """Return some rows in another order, without the columns that decided the order."""
        sizes = np.diff(self.ends, prepend=0)
        return Block(
            bodies=self.bodies.take(pa.array(rows)),
            texts=self.texts.take(pa.array(rows)),
            flags=None if self.flags is None else self.flags[rows],
            ends=np.cumsum(sizes[rows]),
        )

    def batch(self, begin: int, end: int) -> memoryview:
        """Return the body of a batch send of some rows, for reading only."""
        if self._frame is None:
            self._frame = self._make_frame()
        heads, sizes = self._frame
        parts = (part.slice(begin, end - begin) for part in (heads, self.bodies, sizes, self.texts))
        records = pc.binary_join_element_wise(*parts, pa.scalar(b""))
        view = memoryview(records.buffers()[2]).cast("B").toreadonly()
        return view[: offsets_of(records)[-1]]

    def _make_frame(self) -> tuple[Any, Any]:
        heads = np.zeros(len(self), _HEAD)
        heads["body"] = lengths(self.bodies)
        properties = lengths(self.texts)
        heads["size"] = heads["body"] + properties + _RECORD_BYTES
        if self.flags is not None:
            heads["flag"] = self.flags
        return fixed(heads, pa.binary()), fixed(properties.astype(">i2"), pa.binary())

    def one(self, row: int) -> tuple[bytes, str, int]:
        """Return body, properties and flag of one row."""
        flag = 0 if self.flags is None else int(self.flags[row])
        return self.bodies[row].as_py(), self.texts[row].as_py().decode(), flag


def load() -> None:
    """Load everything that encoding would load later: pyarrow's scalars import pandas."""
    pa.scalar(None)


class Encoder:
    """Turns the record batches of one task into messages.

    Args:
        rules: the rules of the write.
        identity: the identity of the task.
        new_ids: returns a string array with the number of new UNIQ_KEYs asked for.
    """

    def __init__(self, rules: Rules, identity: Identity, new_ids: Callable[[int], Any]) -> None:
        self._rules = rules
        self._identity = identity
        self._new_ids = new_ids
        self.rows = 0
        """How many rows became messages, which is also the number of the next one."""

    def block(self, batch: pa.RecordBatch) -> Block:
        """Check a record batch and return its messages.

        Raises:
            MessageInvalidError: a row cannot become a message; nothing of the batch may be sent.
        """
        columns = _Columns(batch, self._rules.columns, self._identity.partition, self.rows)
        bodies = self._bodies(columns)
        delay, delayed, timed = _delays(columns)
        self._tell_of_level(columns)
        texts = self._texts(columns, len(batch), delay)
        sizes = lengths(bodies).astype(np.int64) + lengths(texts)
        block = Block(
            bodies,
            texts,
            _flags(columns),
            np.cumsum(sizes + _RECORD_BYTES + _STORED_EXTRA_BYTES),
            topics=columns.filled_texts("topic"),
            queue_ids=columns.numbers("queueId", 0, limits.TOPIC_QUEUES_MAX),
            broker_names=columns.texts("brokerName"),
            sharding_keys=columns.texts("shardingKey"),
            delayed=delayed,
            timed=timed,
        )
        self.rows += len(batch)
        return block

    def _tell_of_level(self, columns: _Columns) -> None:
        """Warn of a delay level that brokers do not have unless told to (C-403), once a write."""
        levels = columns.of("delayLevel")
        most = None if levels is None else pc.max(levels).as_py()
        if most is not None and most > DELAY_LEVEL_MAX:
            kept(
                "told of level", self._identity.query_id,
                lambda: logger.warning("column delayLevel: %s", beyond_levels(most)),
                _WRITES_TOLD_MAX,
            )  # fmt: skip

    def _bodies(self, columns: _Columns) -> Any:
        bodies = columns.of("body")
        columns.refuse(pc.is_null(bodies), "body is null: filter such rows, or give them a body")
        if not pa.types.is_binary(bodies.type):
            bodies = bodies.cast(pa.binary())
        sizes, most = lengths(bodies), self._rules.body_bytes_max
        columns.refuse(sizes == 0, "body is empty; brokers take bodies from 1 byte on")
        columns.refuse(
            sizes > most,
            f"body is larger than {most} bytes (option maxMessageSize, which brokers bound too): "
            "split it, or store it elsewhere and send where it is",
        )
        return bodies

    def _texts(self, columns: _Columns, count: int, delay: Any) -> Any:
        """Return each row's properties in their text form."""
        pieces = [
            *_labelled("UNIQ_KEY\x01", self._new_ids(count)),
            *_labelled("\x02TAGS\x01", columns.tag()),
            *_labelled("\x02KEYS\x01", columns.keys()),
            delay,
            *_labelled(
                "\x02" + self._identity.text(),
                pa.array(np.arange(self.rows, self.rows + count)).cast(pa.string()),
            ),
            columns.properties(self._rules.drop_reserved),
        ]
        given = [piece for piece in pieces if piece is not None]
        texts = pc.binary_join_element_wise(*given, "", null_handling="skip").cast(pa.binary())
        most = limits.PROPERTIES_BYTES_MAX
        columns.refuse(
            lengths(texts) > most,
            f"its properties, tags and keys take more than {most} bytes as text",
        )
        return texts


class _Columns:
    """A record batch under our column names, with errors that name a row of it."""

    def __init__(
        self, batch: pa.RecordBatch, places: dict[str, int], partition: int, first: int
    ) -> None:
        self._batch = batch
        self._places = places
        self._partition = partition
        self._first = first

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
                f"row {self._first + row} of partition {self._partition} cannot be a message: "
                f"{why}. None of the {len(self._batch)} rows that came with it was sent"
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

    def properties(self, drop_reserved: bool) -> Any:
        """Return the user's properties of each row as text."""
        column = self.of("properties")
        if column is None:
            return None
        offsets = column.offsets.to_numpy()
        names, values = column.keys, column.items
        if offsets[0] or offsets[-1] != len(names):
            names = names.slice(offsets[0], offsets[-1] - offsets[0])
            values = values.slice(offsets[0], offsets[-1] - offsets[0])
            offsets = offsets - offsets[0]
        reserved = pc.is_in(names, pa.array(sorted(NOT_FOR_USERS), names.type))
        any_reserved = pc.any(reserved).as_py()
        if drop_reserved and any_reserved:
            kept = pc.invert(reserved)
            before = np.cumsum(kept.to_numpy(zero_copy_only=False), dtype=np.int32)
            offsets = np.concatenate((np.zeros(1, np.int32), before))[offsets]
            names, values = names.filter(kept), values.filter(kept)

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
            f"properties has the reserved name {name!r}; rename it, or give option "
            "reservedProperties=drop to leave such names out",
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


_SEPARATED: Final = "{} contains U+0001 or U+0002, which separate properties"


def _with_small_offsets(column: Any) -> Any:
    """Undo ``spark.sql.execution.arrow.useLargeVarTypes``; no batch holds 2 GiB."""
    kind = column.type
    if pa.types.is_map(kind):
        return column.cast(pa.map_(pa.string(), pa.string()))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return column.cast(pa.list_(pa.string()))
    small = {pa.large_string(): pa.string(), pa.large_binary(): pa.binary()}
    return column.cast(small[kind]) if kind in small else column


def _labelled(label: str, column: Any) -> list[Any]:
    """Return a property as pieces of text to be joined; a null value leaves all of it out."""
    if column is None:
        return []
    if column.null_count:
        return [after(label, column)]
    return [pa.scalar(label, column.type), column]


def _delays(columns: _Columns) -> tuple[Any, Any, bool]:
    """Return the property that holds a row back, which rows have it, and whether it is a time."""
    level = columns.numbers("delayLevel", 0, _INT_MAX)
    if level is not None:
        some = pc.greater(level, 0).fill_null(False)
        level = pc.if_else(some, level, pa.scalar(None, level.type))
        return after("\x02DELAY\x01", level.cast(pa.string())), _marks(some), False
    times = columns.of("deliverTime")
    if times is None:
        return None, None, False
    micros = times.cast(pa.timestamp("us", times.type.tz)).cast(pa.int64())
    columns.refuse(pc.less(micros, 1_000).fill_null(False), "deliverTime is before 1970")
    millis = pc.divide(micros, 1_000)
    some = _marks(pc.is_valid(millis))
    return after("\x02TIMER_DELIVER_MS\x01", millis.cast(pa.string())), some, some is not None


def _flags(columns: _Columns) -> Any:
    flags = columns.numbers("flag", -_INT_MAX - 1, _INT_MAX)
    return None if flags is None else flags.fill_null(0).to_numpy()


def _marks(mask: Any) -> Any:
    """Return a mask as a numpy array; None if it marks nothing."""
    marks = mask.to_numpy(zero_copy_only=False)
    return marks if marks.any() else None
