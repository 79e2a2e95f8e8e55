"""Messages sorted by destination: the topic, the queue if one is required, and held back or not.

Rows of one lane are then cut into requests.

Law: rows of one lane keep their order. A function that is passed in returns the queues.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rocketstream.client.producer.policy import queue_of_key
from rocketstream.errors import MessageInvalidError
from rocketstream.model import MessageQueue
from rocketstream.spark.sink.messages import Block

Queues = Callable[[str], Sequence[MessageQueue]]
"""Returns the queues of a topic, in the order a producer has them."""


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


def runs(block: Block, topic: str | None, queues_of: Queues) -> Iterator[Run]:
    """Yield a block's messages by lane.

    Args:
        block: the messages.
        topic: the topic of all of them, None where a column names it.
        queues_of: returns the queues of a topic.

    Raises:
        MessageInvalidError: a queue does not exist; nothing was sent.
    """
    topics, topic_codes = _topics(block, topic)
    queues, queue_codes = _queues(block, topics, topic_codes, queues_of)
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
    block: Block, topics: list[str], topic_codes: Any, queues_of: Queues
) -> tuple[list[MessageQueue], Any]:
    """Return the queues that rows require, and each row's index among them, -1 for none."""
    wishes: Any = None
    pick: Callable[[str, Sequence[MessageQueue], str], MessageQueue] = _named_queue
    if block.sharding_keys is not None:
        wishes, pick = block.sharding_keys, _queue_of_key
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


def _queue_of_key(_topic: str, queues: Sequence[MessageQueue], key: str) -> MessageQueue:
    return queue_of_key(queues, key)


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
