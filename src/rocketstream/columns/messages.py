"""Record batches as messages: checked as a whole, encoded by column in C++, sorted by destination.

Pure: record batches in, bytes out. Law: nothing here loops over rows. The bytes of a row are those
of ``protocol.record.encode_batch``. Messages of one destination keep their order.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rocketstream import limits
from rocketstream.columns.values import BatchColumns, Words, after, fixed, lengths, offsets_of
from rocketstream.errors import MessageInvalidError
from rocketstream.model import MessageQueue
from rocketstream.protocol.codes import RequestCode
from rocketstream.protocol.message_id import RESERVED_IDS_MAX, UniqueIdGenerator
from rocketstream.protocol.properties import PROPERTY_WAIT

_BATCH_PROPERTIES: Final = f"{PROPERTY_WAIT}\x01true"
_HEAD: Final = np.dtype(
    [("size", ">i4"), ("magic", ">i4"), ("crc", ">i4"), ("flag", ">i4"), ("body", ">i4")]
)
_RECORD_BYTES: Final = _HEAD.itemsize + 2
_STORED_EXTRA_BYTES: Final = 69 + 127 + 64
"""How much more than the row a broker may store: the rest of a record's head, the topic, and its
own properties. Apache's broker bounds the sum over the records of one request.
"""
_INT_MAX: Final = 2**31 - 1
_DIGITS: Final = np.frombuffer(b"0123456789ABCDEF", np.uint8)
_SHIFTS: Final = np.array([12, 8, 4, 0])


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules for making messages of rows.

    Attributes:
        columns: where each of our columns is in a row.
        body_bytes_max: the largest body in bytes.
        reserved: names of properties that rows may not set.
        words: what errors say.
        drop_reserved: whether properties with reserved names are left out instead of refused.
        number_label: text of properties that each message gets, up to its row's number, which
            follows directly; None for no such properties.
    """

    columns: Mapping[str, int]
    body_bytes_max: int
    reserved: Collection[str]
    words: Words
    drop_reserved: bool = False
    number_label: str | None = None


@dataclass(slots=True)
class Block:
    """The messages of one record batch, all of which may be sent.

    Attributes:
        bodies: the bodies, as a binary array.
        texts: the properties in the brokers' text form, as a binary array.
        flags: the flags as numbers, None where all are 0.
        ids: their UNIQ_KEYs, as a string array.
        ends: for each row, how many bytes a broker may store of the rows up to and including it.
        topics, queue_ids, broker_names, sharding_keys: Arrow arrays, None without such a column.
        delayed: which rows are to be held back (booleans), None for none.
        timed: whether some have a delivery time of their own.
        rows: the place of each in its record batch, where they are in another order.
    """

    bodies: Any
    texts: Any
    flags: Any
    ids: Any
    ends: Any
    topics: Any = None
    queue_ids: Any = None
    broker_names: Any = None
    sharding_keys: Any = None
    delayed: Any = None
    timed: bool = field(default=False)
    rows: Any = None
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
            ids=self.ids.take(pa.array(rows)),
            ends=np.cumsum(sizes[rows]),
            timed=self.timed,
            rows=rows,
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

    def request(self, begin: int, end: int) -> tuple[bytes | memoryview, str, int, RequestCode]:
        """Return body, properties, flag and code of the send of some rows, of one row alone too."""
        if end - begin == 1:
            body, own, flag = self.one(begin)
            return body, f"{_BATCH_PROPERTIES}\x02{own}", flag, RequestCode.SEND_MESSAGE_V2
        return self.batch(begin, end), _BATCH_PROPERTIES, 0, RequestCode.SEND_BATCH_MESSAGE

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


class Encoder:
    """Turns record batches, one after the other, into messages.

    Args:
        rules: the rules of the write.
        new_ids: returns a string array with the number of new UNIQ_KEYs asked for.
        beyond: told of the greatest delay level of a record batch that brokers do not have unless
            told to (C-403).
    """

    def __init__(
        self, rules: Rules, new_ids: Callable[[int], Any], beyond: Callable[[int], None]
    ) -> None:
        self._rules = rules
        self._new_ids = new_ids
        self._beyond = beyond
        self.rows: int = 0
        """How many rows became messages, which is also the number of the next one."""

    def block(self, batch: pa.RecordBatch) -> Block:
        """Check a record batch and return its messages.

        Raises:
            MessageInvalidError: a row cannot become a message; nothing of the batch may be sent.
        """
        columns = BatchColumns(batch, self._rules.columns, self.rows, self._rules.words)
        bodies = self._bodies(columns)
        delay, delayed, timed = _delays(columns)
        self._tell_of_level(columns)
        ids, texts = self._texts(columns, len(batch), delay)
        sizes = lengths(bodies).astype(np.int64) + lengths(texts)
        block = Block(
            bodies,
            texts,
            _flags(columns),
            ids,
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

    def _tell_of_level(self, columns: BatchColumns) -> None:
        levels = columns.of("delayLevel")
        most = None if levels is None else pc.max(levels).as_py()
        if most is not None and most > limits.DELAY_LEVEL_MAX:
            self._beyond(most)

    def _bodies(self, columns: BatchColumns) -> Any:
        bodies = columns.of("body")
        columns.refuse(pc.is_null(bodies), "body is null: filter such rows, or give them a body")
        if not pa.types.is_binary(bodies.type):
            bodies = bodies.cast(pa.binary())
        sizes, most = lengths(bodies), self._rules.body_bytes_max
        columns.refuse(sizes == 0, "body is empty; brokers take bodies from 1 byte on")
        columns.refuse(
            sizes > most,
            f"body is larger than {most} bytes ({self._rules.words.size}, which brokers bound "
            "too): split it, or store it elsewhere and send where it is",
        )
        return bodies

    def _texts(self, columns: BatchColumns, count: int, delay: Any) -> tuple[Any, Any]:
        """Return each row's id, and its properties in their text form."""
        ids, new = columns.texts("msgId"), self._new_ids(count)
        ids = new if ids is None else pc.coalesce(ids, new)
        pieces = [
            *_labelled("UNIQ_KEY\x01", ids),
            *_labelled("\x02TAGS\x01", columns.tag()),
            *_labelled("\x02KEYS\x01", columns.keys()),
            delay,
            *self._numbers(count),
            columns.properties(self._rules.reserved, self._rules.drop_reserved),
        ]
        given = [piece for piece in pieces if piece is not None]
        texts = pc.binary_join_element_wise(*given, "", null_handling="skip").cast(pa.binary())
        most = limits.PROPERTIES_BYTES_MAX
        columns.refuse(
            lengths(texts) > most,
            f"its properties, tags and keys take more than {most} bytes as text",
        )
        return ids, texts

    def _numbers(self, count: int) -> list[Any]:
        label = self._rules.number_label
        if label is None:
            return []
        numbers = pa.array(np.arange(self.rows, self.rows + count)).cast(pa.string())
        return _labelled("\x02" + label, numbers)


def _labelled(label: str, column: Any) -> list[Any]:
    """Return a property as pieces of text to be joined; a null value leaves all of it out."""
    if column is None:
        return []
    if column.null_count:
        return [after(label, column)]
    return [pa.scalar(label, column.type), column]


def _delays(columns: BatchColumns) -> tuple[Any, Any, bool]:
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


def _flags(columns: BatchColumns) -> Any:
    flags = columns.numbers("flag", -_INT_MAX - 1, _INT_MAX)
    return None if flags is None else flags.fill_null(0).to_numpy()


def _marks(mask: Any) -> Any:
    """Return a mask as a numpy array; None if it marks nothing."""
    marks = mask.to_numpy(zero_copy_only=False)
    return marks if marks.any() else None


def new_ids(generator: UniqueIdGenerator, count: int, now_ms: Callable[[], int]) -> Any:
    """Return ``count`` new UNIQ_KEYs as a string array; no two of them are the same.

    Args:
        generator: the generator of this process.
        count: how many ids, 0 or more.
        now_ms: returns ms since 1970.
    """
    parts, moment = [_part(generator, 0, now_ms())] if not count else [], -1
    while count:
        # One millisecond has no more: the next ones are of a later millisecond.
        moment = max(now_ms(), moment + 1)
        size = min(count, RESERVED_IDS_MAX)
        parts.append(_part(generator, size, moment))
        count -= size
    return parts[0] if len(parts) == 1 else pa.concat_arrays(parts)


def _part(generator: UniqueIdGenerator, count: int, now_ms: int) -> Any:
    head, numbers = generator.reserve(count, now_ms)
    letters = np.empty((count, len(head) + len(_SHIFTS)), np.uint8)
    letters[:, : len(head)] = np.frombuffer(head.encode(), np.uint8)
    letters[:, len(head) :] = _DIGITS[np.array(numbers, np.int64)[:, None] >> _SHIFTS & 0xF]
    return fixed(letters, pa.string())


Queues = Callable[[str], Sequence[MessageQueue]]
"""Returns the queues of a topic, in the order a producer has them."""
ByKey = Callable[[Sequence[MessageQueue], str], MessageQueue]


@dataclass(frozen=True, slots=True)
class Run:
    """Messages with the same destination.

    Attributes:
        topic: their topic.
        queue: the queue they must go to, in order; None for any queue.
        delayed: whether they are held back, which is only possible for messages sent alone.
        block: the messages.
    """

    topic: str
    queue: MessageQueue | None
    delayed: bool
    block: Block


def runs(block: Block, topic: str | None, queues_of: Queues, by_key: ByKey) -> Iterator[Run]:
    """Yield a block's messages by lane.

    Args:
        block: the messages.
        topic: the topic of all of them, None where a column names it.
        queues_of: returns the queues of a topic.
        by_key: returns the queue of a sharding key among those of a topic.

    Raises:
        MessageInvalidError: a queue does not exist; nothing was sent.
    """
    topics, topic_codes = _topics(block, topic)
    queues, queue_codes = _queues(block, topics, topic_codes, queues_of, by_key)
    delayed = np.zeros(len(block), np.int64) if block.delayed is None else block.delayed
    codes = (topic_codes * (len(queues) + 1) + queue_codes + 1) * 2 + delayed
    if not len(codes):
        return
    if (codes == codes[0]).all():
        lanes = [(int(codes[0]), block)]
    else:
        order = np.argsort(codes, kind="stable")
        starts = np.flatnonzero(np.diff(codes[order])) + 1
        lanes = [(int(codes[rows[0]]), block.take(rows)) for rows in np.split(order, starts)]
    for code, part in lanes:
        topic_code, queue_code = divmod(code // 2, len(queues) + 1)
        queue = queues[queue_code - 1] if queue_code else None
        yield Run(topics[topic_code], queue, bool(code % 2), part)


def _topics(block: Block, topic: str | None) -> tuple[list[str], Any]:
    if topic is not None:
        return [topic], np.zeros(len(block), np.int64)
    encoded = pc.dictionary_encode(block.topics)
    return encoded.dictionary.to_pylist(), encoded.indices.to_numpy().astype(np.int64)


def _queues(
    block: Block, topics: list[str], topic_codes: Any, queues_of: Queues, by_key: ByKey
) -> tuple[list[MessageQueue], Any]:
    """Return the queues that rows require, and each row's index among them, -1 for none."""
    wishes: Any = None
    pick: Callable[[str, Sequence[MessageQueue], str], MessageQueue] = _named_queue
    if block.sharding_keys is not None:
        wishes, pick = block.sharding_keys, lambda _topic, queues, key: by_key(queues, key)
    elif block.queue_ids is not None:
        wishes = _names_of(block)
    if wishes is None or wishes.null_count == len(wishes):
        return [], np.full(len(block), -1)
    encoded = pc.dictionary_encode(wishes)
    texts = encoded.dictionary.to_pylist()
    wish_codes = encoded.indices.fill_null(-1).to_numpy().astype(np.int64)
    pairs, places = np.unique(topic_codes * (len(texts) + 1) + wish_codes + 1, return_inverse=True)
    queues: dict[MessageQueue, int] = {}
    found = np.full(len(pairs), -1)
    for at, pair in enumerate(pairs.tolist()):
        topic_code, wish = divmod(pair, len(texts) + 1)
        if wish:
            topic = topics[topic_code]
            queue = pick(topic, queues_of(topic), texts[wish - 1])
            found[at] = queues.setdefault(queue, len(queues))
    return list(queues), found[places.reshape(-1)]


def _names_of(block: Block) -> Any:
    """Return ``id`` or ``id/broker`` of each row that names a queue."""
    ids = block.queue_ids.cast(pa.string())
    if block.broker_names is None:
        return ids
    return pc.binary_join_element_wise(ids, block.broker_names.fill_null(""), "/")


def _named_queue(topic: str, queues: Sequence[MessageQueue], name: str) -> MessageQueue:
    queue_id, _, broker = name.partition("/")
    found = [
        queue
        for queue in queues
        if queue.queue_id == int(queue_id) and (not broker or queue.broker_name == broker)
    ]
    if len(found) == 1:
        return found[0]
    of = f" of broker {broker!r}" if broker else ""
    known = ", ".join(f"{queue.broker_name}/{queue.queue_id}" for queue in queues)
    why = "is on several brokers: add a column brokerName" if found else "cannot be written to"
    raise MessageInvalidError(
        f"queue {queue_id}{of} of topic {topic!r} {why}. Queues of the topic: {known}"
    )


def cut(ends: Sequence[int], bytes_max: int, count_max: int) -> Iterator[tuple[int, int]]:
    """Yield consecutive spans ``(begin, end)`` of rows that fit both bounds.

    A row larger than ``bytes_max`` gets a span of its own.

    Args:
        ends: how many bytes the rows up to and including each one take together; ascending.
        bytes_max: how many bytes a span has at most.
        count_max: how many rows a span has at most, from 1.
    """
    begin, before, count = 0, 0, len(ends)
    while begin < count:
        end = bisect_right(ends, before + bytes_max, begin, min(count, begin + count_max))
        end = max(end, begin + 1)
        yield begin, end
        begin, before = end, int(ends[end - 1])
