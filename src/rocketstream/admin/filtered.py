"""Lag under a group's filter: how many of the messages not consumed the group will get.

``core.filtering`` decides which messages are read and what follows from them.

Law: no message is read twice, and never more than the bounds below.

Tags: a broker selects by the hash of a message's tag, which its consume queue holds (request 321),
and the client drops messages with the hash but not the text. The hashes are counted, all of them up
to ``entries_max``; then some of the messages they select are read (request 33). If the tag of each
is one of the texts, the count stands: two tags of one hash in one topic do not happen by accident
(``Aa`` and ``BB`` have it). If the tag of one is not, all selected messages are read if they are
not too many, else the share is estimated. So the count is that of the messages a consumer would
get; an estimate is marked as one.

SQL92: the broker evaluates each message's properties, which no index has. Some messages spread over
the queue are read and evaluated, all where there are few.

Batch queues (5.x, ``queue.type=BatchCQ``): an entry may stand for several messages, and the answer
does not say for how many. Where there are as many entries as offsets each stands for one; a
condition is evaluated at single offsets. Else the count is unknown, and says why. So it is where a
topic is compacted: of the messages not consumed only the last one of a key is ever given.

Neither pulls: a pull would count as consumption in the broker's statistics and could make a group.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rocketstream import limits
from rocketstream.admin.core.filtering import (
    estimate,
    estimate_of_runs,
    scaled,
    spread,
)
from rocketstream.admin.core.joining import Matching
from rocketstream.admin.state import QueueState
from rocketstream.admin.wire import questions
from rocketstream.admin.wire.looking import Asking
from rocketstream.errors import (
    BrokerError,
    NotSupportedError,
    RemoteProtocolError,
    RocketMQError,
    SubscriptionError,
)

if TYPE_CHECKING:
    from rocketstream.protocol.bodies import SubscriptionData, TopicConfig
    from rocketstream.protocol.message_ext import MessageExt

Wants = Callable[["MessageExt"], bool]


@dataclass(slots=True)
class _Entries:
    """The entries read of a queue's index: places, log offsets, sizes, hashes."""

    places: list[int]
    physical: list[int]
    sizes: list[int]
    codes: list[int]


@dataclass(frozen=True, slots=True)
class _Index:
    """The index of one queue.

    Attributes:
        may_batch: whether one entry may stand for several messages.
    """

    asking: Asking
    queue: QueueState
    may_batch: bool


@dataclass(frozen=True, slots=True)
class _Read:
    """The result of reading some messages.

    Attributes:
        wanted: how many the filter selects.
        looked_at: how many could be read.
        first: place and store time of the first that is wanted.
    """

    wanted: int
    looked_at: int
    first: tuple[int, int] | None


def has_filter(subscription: SubscriptionData) -> bool:
    """Return whether a subscription has a filter that can be counted."""
    if subscription.class_filter_mode:
        return False
    if subscription.expression_type in ("", "TAG"):
        return subscription.sub_string not in ("", "*")
    return subscription.expression_type == "SQL92"


def count_matching(
    asking: Asking,
    queue: QueueState,
    subscription: SubscriptionData,
    entries_max: int = limits.FILTER_ENTRIES_MAX,
    *,
    config: TopicConfig | None,
) -> Matching:
    """Return how many messages of a queue a group has not consumed and its filter selects.

    Args:
        queue: the queue with its offsets.
        subscription: the members' subscription of the topic.
        entries_max: how many entries of the index to look at; with more the result is an estimate.
        config: the topic's settings at this broker; None where it did not answer, and then the
            queue may be of either kind.

    Raises:
        TransportError: the broker does not answer (any more).
    """
    assert queue.max_offset is not None
    start = max(queue.committed_offset or 0, queue.min_offset or 0)
    index = _Index(asking, queue, config is None or config.has_batch_queues)
    try:
        if config is not None and config.is_compacted:
            raise NotSupportedError(
                f"{queue.topic} is compacted (cleanup.policy=COMPACTION): of the messages of one "
                "key only the last is given, and the index does not tell their keys"
            )
        if subscription.expression_type == "SQL92":
            return _by_condition(index, subscription, start, queue.max_offset)
        return _by_tags(index, subscription, start, queue.max_offset, entries_max)
    except (BrokerError, RemoteProtocolError, SubscriptionError, NotSupportedError) as error:
        return Matching(error=f"what the filter wants is not known: {error}")


# --- tags -----------------------------------------------------------------------------------------


def _by_tags(
    index: _Index,
    subscription: SubscriptionData,
    start: int,
    end: int,
    entries_max: int,
) -> Matching:
    runs, selected = _select(index, subscription.code_set, start, end, entries_max)
    first_sight = estimate_of_runs(runs, end - start)
    if not selected.places:
        return Matching(first_sight)

    def wants(message: MessageExt) -> bool:
        # As in the Java client: a message without a tag matches no tag.
        return bool(message.tags) and message.tags in subscription.tags_set

    some = spread(len(selected.places), limits.FILTER_TEXTS_CHECKED)
    read = _read(index.asking, selected, some, wants)
    if read.wanted < read.looked_at:
        most = limits.FILTER_MESSAGES_READ_MAX
        read = _read(index.asking, selected, spread(len(selected.places), most), wants)
        share = estimate(read.wanted, read.looked_at, len(selected.places))
        return Matching(scaled(first_sight, share, len(selected.places)), read.first)
    # A part that was not looked at may hold an earlier one.
    seen = first_sight.is_exact or selected.places[0] < start + limits.FILTER_ENTRIES_PER_REQUEST
    return Matching(first_sight, read.first if seen else None)


def _select(
    index: _Index, codes: set[int], start: int, end: int, entries_max: int
) -> tuple[list[tuple[int, int]], _Entries]:
    """Return how many entries of each run are selected and its length, and the selected entries."""
    step = limits.FILTER_ENTRIES_PER_REQUEST
    pieces = [(at, min(at + step, end)) for at in range(start, end, step)]
    pieces = [pieces[i] for i in spread(len(pieces), max(entries_max // step, 2))]
    selected = _Entries([], [], [], [])
    runs: list[tuple[int, int]] = []
    for (low, high), found in zip(pieces, _entries(index, pieces), strict=True):
        # A code of a set is an int of Java, one of the index a long.
        hits = [i for i, code in enumerate(found.codes) if code in codes]
        runs.append((len(hits), high - low))
        selected.places += [found.places[i] for i in hits]
        selected.physical += [found.physical[i] for i in hits]
        selected.sizes += [found.sizes[i] for i in hits]
    return runs, selected


# --- conditions -----------------------------------------------------------------------------------


def _by_condition(index: _Index, subscription: SubscriptionData, start: int, end: int) -> Matching:
    from rocketstream.protocol.sql92 import compile_expression  # few groups have conditions

    condition = compile_expression(subscription.sub_string)
    most = limits.FILTER_SAMPLE
    total = end - start
    if total <= most and not index.may_batch:
        pieces = [(start, end)]
    else:
        pieces = [(start + place, start + place + 1) for place in spread(total, most)]
    entries = _Entries([], [], [], [])
    for found in _entries(index, pieces):
        entries.places += found.places
        entries.physical += found.physical
        entries.sizes += found.sizes
    everything = list(range(len(entries.places)))
    read = _read(index.asking, entries, everything, lambda m: condition.matches(m.properties))
    count = estimate(read.wanted, read.looked_at, total)
    return Matching(count, read.first if count.is_exact else None)


# --- reading --------------------------------------------------------------------------------------


def _entries(index: _Index, pieces: Sequence[tuple[int, int]]) -> list[_Entries]:
    """Return the entries of each piece of a queue's index, all of them.

    An answer ends where a file of the index ends; our broker's also at ten thousand entries.

    Raises:
        NotSupportedError: there are fewer entries than messages.
    """
    asking, queue = index.asking, index.queue
    found = [_Entries([], [], [], []) for _ in pieces]
    open_ = list(range(len(pieces)))
    while open_:
        asked = []
        for i in open_:
            low, high = pieces[i]
            at = low + len(found[i].places)
            asked.append(questions.entries_of(queue.topic, queue.queue_id, at, high - at))
        still = []
        for i, answer in zip(open_, asking.each(asked), strict=True):
            low, high = pieces[i]
            at = low + len(found[i].places)
            if isinstance(answer, RocketMQError):
                raise answer
            if answer.unknown:
                raise RemoteProtocolError(
                    f"{asking.address} has lost tags of queue {queue.queue_id}"
                )
            got = min(len(answer.codes), high - at)
            if not got:
                raise RemoteProtocolError(
                    f"{asking.address} has no index entry {at} of queue {queue.queue_id} of "
                    f"{queue.topic} any more"
                )
            if index.may_batch:
                _check_single(index, found[i], answer.physical[:got], at, high)
            found[i].places += range(at, at + got)
            found[i].physical += answer.physical[:got]
            found[i].sizes += answer.sizes[:got]
            found[i].codes += answer.codes[:got]
            if at + got < high:
                still.append(i)
        open_ = still
    return found


def _check_single(index: _Index, known: _Entries, physical: list[int], at: int, high: int) -> None:
    """Make sure that each entry answered for the offsets from ``at`` on stands for one message.

    An answer begins with the entry that holds the offset asked for. Entries are consecutive, so n
    of them for n offsets stand for one message each. So do fewer, where a file of the index ends
    after them and the next entry holds the next offset.
    """
    queue = index.queue
    begins_anew = not known.physical or physical[0] != known.physical[-1]
    last = at + len(physical) - 1
    if begins_anew and last + 1 == high:
        return
    if begins_anew:
        again = index.asking.one(questions.entries_of(queue.topic, queue.queue_id, last, 1))
        if isinstance(again, RocketMQError):
            raise again
        if again.physical[:1] == physical[-1:]:
            return
    raise NotSupportedError(
        f"queue {queue.queue_id} of {queue.topic} at {queue.broker_name} holds batches "
        "(queue.type=BatchCQ): an entry of its index stands for several messages, and the broker "
        "does not tell for how many"
    )


def _read(asking: Asking, entries: _Entries, chosen: Sequence[int], wants: Wants) -> _Read:
    """Read messages, fewer than chosen where they are big; always the first selected one."""
    size = max(sum(entries.sizes[i] for i in chosen), 1)
    most = max(len(chosen) * limits.FILTER_BYTES_READ_MAX // size, 1)
    if most < len(chosen):
        chosen = [chosen[i] for i in spread(len(chosen), most)]
    chosen = sorted({0, *chosen}) if entries.places else []
    asked = [questions.message_at(entries.physical[i]) for i in chosen]
    wanted = looked_at = 0
    first: tuple[int, int] | None = None
    for i, answer in zip(chosen, asking.each(asked), strict=True):
        if isinstance(answer, RocketMQError):
            continue  # deleted meanwhile
        looked_at += 1
        if wants(answer):
            wanted += 1
            first = first or (entries.places[i], answer.store_timestamp)
    return _Read(wanted, looked_at, first)
