"""The trace of a message: the records its producer and consumers wrote, as a timeline.

Law: times are by the clocks of the machines that recorded them; none is corrected.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final

from rocketstream.admin.messages.lookup import Lookup
from rocketstream.admin.messages.masking import Masking
from rocketstream.errors import (
    OffsetNotFoundError,
    RemoteProtocolError,
    RocketMQError,
    RouteNotFoundError,
)
from rocketstream.protocol.message_ext import MessageExt
from rocketstream.protocol.names import TRACE_TOPIC
from rocketstream.protocol.trace import (
    TraceEndTransaction,
    TracePub,
    TraceRecall,
    TraceRecord,
    TraceSubAfter,
    TraceSubBefore,
    decode_trace,
)

OUTCOMES: Final = ("SUCCESS", "TIME_OUT", "EXCEPTION", "RETURNNULL", "FAILED")
UNFINISHED: Final = "UNFINISHED"
TRACE_PAGES_MAX: Final = 8
"""Most questions to one broker about one message, enough for 512 trace messages."""
_SEND_KINDS: Final = ("normal", "half", "commit", "delayed")


@dataclass(frozen=True, slots=True)
class TraceSend:
    """A producer sent the message.

    Attributes:
        began_ms: when the send began, ms since 1970, by the producer's clock.
        cost_ms: how long until the broker answered.
        is_stored: whether the answer was SEND_OK.
        kind: ``normal``, ``half``, ``commit`` or ``delayed``.
        client: address of the producer; None where it is not recorded.
    """

    began_ms: int
    cost_ms: int
    is_stored: bool
    kind: str
    group: str | None
    client: str | None
    store_host: str | None
    keys: str | None
    offset_msg_id: str | None


@dataclass(frozen=True, slots=True)
class TraceTry:
    """A listener got the message.

    Attributes:
        began_ms: when it was handed over, by the consumer's clock; None where that record is lost.
        cost_ms: how long the listener took, or this message's share of it in a batch; None while it
            runs.
        outcome: one of ``OUTCOMES``, or ``UNFINISHED`` where no end is recorded (yet).
        retry_times: how often it had been sent back before; None where it is not recorded.
        client: address of the consumer.
    """

    group: str
    began_ms: int | None
    cost_ms: int | None
    outcome: str
    retry_times: int | None
    client: str | None


@dataclass(frozen=True, slots=True)
class TraceEnd:
    """How the message's transaction ended, or that the producer recalled it (``RECALL``)."""

    at_ms: int
    group: str | None
    state: str
    is_answer: bool


@dataclass(frozen=True, slots=True)
class TraceTimeline:
    """The recorded events of one message.

    Attributes:
        store_ms: when the broker stored it, by the broker's clock; None where the message is gone.
        store_host: the broker that stored it; None where the message is gone.
        sends: the sends: usually one, several where a producer tried again.
        tries: the tries of all groups, in order of time.
        ends: the ends of its transaction.
        problems: what could not be read; the timeline may then be incomplete.
    """

    topic: str
    msg_id: str
    store_ms: int | None
    store_host: str | None
    sends: tuple[TraceSend, ...]
    tries: tuple[TraceTry, ...]
    ends: tuple[TraceEnd, ...]
    problems: tuple[str, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether no trace of it is recorded."""
        return not (self.sends or self.tries or self.ends)

    def by_group(self) -> dict[str, tuple[TraceTry, ...]]:
        """Return the tries of each consumer group."""
        found: dict[str, list[TraceTry]] = {}
        for each in self.tries:
            found.setdefault(each.group, []).append(each)
        return {group: tuple(tries) for group, tries in found.items()}


def timeline(
    topic: str,
    msg_id: str,
    records: Iterable[tuple[TraceRecord, str | None]],
    store_ms: int | None = None,
    store_host: str | None = None,
    problems: tuple[str, ...] = (),
) -> TraceTimeline:
    """Return the timeline of one message.

    Args:
        topic: the message's topic.
        msg_id: the id the sender gave it.
        records: records that may concern it, each with the address of the client that wrote it.
        store_ms: when the broker stored it.
    """
    sends: list[TraceSend] = []
    ends: list[TraceEnd] = []
    began: dict[str, tuple[TraceSubBefore, str | None]] = {}
    ended: dict[str, tuple[TraceSubAfter, str | None]] = {}
    for record, client in records:
        if msg_id not in (record.msg_id or "").split(","):
            continue
        if isinstance(record, TracePub):
            sends.append(_send(record, client))
        elif isinstance(record, TraceSubBefore):
            began[_call(record)] = record, client
        elif isinstance(record, TraceSubAfter):
            ended[_call(record)] = record, client
        elif isinstance(record, TraceEndTransaction):
            state = record.transaction_state or "UNKNOW"
            ends.append(
                TraceEnd(record.timestamp, record.group_name, state, record.from_transaction_check)
            )
        elif isinstance(record, TraceRecall):
            state = "RECALL" if record.success else "RECALL_FAILED"
            ends.append(TraceEnd(record.timestamp, record.group_name, state, False))
    tries = [_try(began.get(call), ended.get(call)) for call in began | ended]
    return TraceTimeline(
        topic,
        msg_id,
        store_ms,
        store_host,
        tuple(sorted(set(sends), key=lambda s: s.began_ms)),
        tuple(sorted(tries, key=lambda t: (t.began_ms or 0, t.group))),
        tuple(sorted(set(ends), key=lambda e: e.at_ms)),
        problems,
    )


def _call(record: TraceSubBefore | TraceSubAfter) -> str:
    return record.request_id or ""


def _send(record: TracePub, client: str | None) -> TraceSend:
    kind = record.msg_type
    return TraceSend(
        began_ms=record.timestamp,
        cost_ms=record.cost_time,
        is_stored=record.success,
        kind=_SEND_KINDS[kind] if 0 <= kind < len(_SEND_KINDS) else str(kind),
        group=record.group_name,
        client=record.client_host or client,
        store_host=record.store_host,
        keys=record.keys,
        offset_msg_id=record.offset_msg_id,
    )


def _try(
    before: tuple[TraceSubBefore, str | None] | None,
    after: tuple[TraceSubAfter, str | None] | None,
) -> TraceTry:
    end = None if after is None else after[0]
    group = (before[0].group_name if before else None) or (end.group_name if end else None)
    began_ms = before[0].timestamp if before else None
    if began_ms is None and end is not None and end.timestamp:
        began_ms = end.timestamp - end.cost_time
    return TraceTry(
        group=group or "?",
        began_ms=began_ms,
        cost_ms=None if end is None else end.cost_time,
        outcome=UNFINISHED if end is None else _outcome(end),
        retry_times=before[0].retry_times if before else None,
        client=(before or after or (None, None))[1],
    )


def _outcome(record: TraceSubAfter) -> str:
    code = record.context_code
    if not record.success and code == 0:
        return "FAILED"
    return OUTCOMES[code] if 0 <= code < len(OUTCOMES) else str(code)


# --- reading the records --------------------------------------------------------------------------


def read_trace(
    lookup: Lookup, masking: Masking, topic: str, msg_id: str, trace_topic: str = TRACE_TOPIC
) -> TraceTimeline:
    """Return the timeline of a message; see ``Messages.trace``."""
    message: MessageExt | None
    try:
        message = lookup.first_sent(topic, msg_id)
    except OffsetNotFoundError:
        message = None
    unique = message.msg_id if message is not None else msg_id
    try:
        masters = lookup.wire.topic_masters(trace_topic)
    except RouteNotFoundError:
        raise RouteNotFoundError(
            f"there is no trace: topic {trace_topic!r} does not exist; brokers create it where "
            "traceTopicEnable=true, and clients record with enable_msg_trace=True",
            topic=trace_topic,
        ) from None
    records: list[tuple[TraceRecord, str | None]] = []
    problems: list[str] = []
    for name, address in masters.items():
        try:
            for found in _trace_messages(lookup, (name, address), trace_topic, unique, problems):
                records += [(record, found.born_host) for record in _records(found, problems)]
        except RocketMQError as error:
            problems.append(f"broker {name}: {error.message}")
    told = timeline(
        topic,
        unique,
        records,
        None if message is None else message.store_timestamp,
        None if message is None else message.store_host,
        tuple(dict.fromkeys(problems)),
    )
    keys = next((send.keys for send in told.sends if send.keys), None)
    masked = masking.apply_keys(keys)
    if masked == keys:
        return told
    return replace(told, sends=tuple(replace(send, keys=masked) for send in told.sends))


def _trace_messages(
    lookup: Lookup, broker: tuple[str, str], trace_topic: str, msg_id: str, problems: list[str]
) -> Iterator[MessageExt]:
    count = 0
    pages = lookup.pages(*broker, trace_topic, msg_id)
    for page in itertools.islice(pages, TRACE_PAGES_MAX):
        count += len(page.fresh)
        yield from page.fresh
        if page.floor_ms is None:
            return
    problems.append(f"there may be more records than the {count} messages found hold")


def _records(message: MessageExt, problems: list[str]) -> list[TraceRecord]:
    try:
        return decode_trace(message.body.decode("utf-8", "replace"))
    except RemoteProtocolError as error:
        problems.append(f"a trace message at {message.offset_msg_id}: {error.message}")
        return []
