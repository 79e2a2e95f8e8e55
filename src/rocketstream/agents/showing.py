"""Results of ``admin`` and ``watch`` as the answers of tools.

Law: every name and text from others passes through ``seen``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from rocketstream.admin.core.moves import ResetPlan
from rocketstream.admin.core.timeline import TraceTimeline
from rocketstream.admin.letters.causes import LetterCause
from rocketstream.admin.messages.search import SearchPage
from rocketstream.admin.messages.shown import ShownMessage
from rocketstream.admin.state import (
    URGENCY,
    BrokerState,
    GroupState,
    GroupVerdict,
    QueueState,
    TopicState,
    WhyReport,
)
from rocketstream.agents import answers
from rocketstream.agents.answers import Untrusted
from rocketstream.agents.text import NAME_CHARS_MAX, TEXT_CHARS_MAX, at, seconds, seen

BODY_CHARS_MAX: Final = 2_000
PROPERTIES_MAX: Final = 40
STACK_CHARS_MAX: Final = 4_000
FACTS: Final = frozenset(
    {
        "bootTimestamp", "brokerVersionDesc", "commitLogDiskRatio", "commitLogMaxOffset",
        "commitLogMinOffset", "consumeQueueDiskRatio", "dispatchBehindBytes",
        "earliestMessageTimeStamp", "getTransferredTps", "getTransferedTps", "msgGetTotalTodayNow",
        "msgPutTotalTodayNow", "pageCacheLockTimeMills", "pullThreadPoolQueueHeadWaitTimeMills",
        "pullThreadPoolQueueSize", "putLatency99", "putMessageFailedTimes", "putTps",
        "remainHowManyDataToFlush", "runtime", "sendThreadPoolQueueHeadWaitTimeMills",
        "sendThreadPoolQueueSize",
    }
)  # fmt: skip
"""The facts, out of a hundred, that show how a broker is doing."""
NOTES_MAX: Final = 50


def name(text: str) -> str:
    """Return a name in the form agents get it."""
    return seen(text, NAME_CHARS_MAX)


def untrusted(text: str, most: int = TEXT_CHARS_MAX, *, is_cut: bool = False) -> Untrusted:
    """Return text from outside, marked as such."""
    return Untrusted(untrusted_text=seen(text, most), is_cut=is_cut or len(text) > most)


def notes(lines: Iterable[str]) -> list[str]:
    """Return a bounded list of reasons."""
    return [seen(line, 500) for line in list(lines)[:NOTES_MAX]]


def counted(verdicts: Mapping[str, GroupVerdict]) -> dict[str, int]:
    """Return how many groups have each verdict, the most urgent first."""
    found = Counter(verdict.verdict for verdict in verdicts.values())
    return {verdict.value: found[verdict] for verdict in URGENCY if found[verdict]}


def by_urgency(verdicts: Iterable[GroupVerdict]) -> list[GroupVerdict]:
    """Return verdicts, the most urgent first."""
    return sorted(verdicts, key=lambda each: (URGENCY.index(each.verdict), each.group))


def group_line(state: GroupState | None, verdict: GroupVerdict) -> answers.GroupLine:
    """Return one group as a line of a list."""
    members = None if state is None or state.members is None else len(state.members)
    return answers.GroupLine(
        group=name(verdict.group),
        verdict=verdict.verdict.value,
        sentence=seen(verdict.sentence, 500),
        lag=None if state is None else state.lag,
        time_lag_s=None if state is None else seconds(state.time_lag_ms),
        expired=None if state is None else state.expired,
        retrying=None if state is None else state.retrying,
        dead_letters=None if state is None else state.dead_letters,
        members=members,
        consume_per_s=verdict.consume_rate,
        arrive_per_s=verdict.arrival_rate,
        eta_s=seconds(verdict.eta_ms),
    )


def queue_line(queue: QueueState, now_ms: int) -> answers.QueueLine:
    """Return one queue of a group."""
    return answers.QueueLine(
        topic=name(queue.topic),
        broker=name(queue.broker_name),
        queue=queue.queue_id,
        kind=queue.kind.value,
        min_offset=queue.min_offset,
        max_offset=queue.max_offset,
        committed_offset=queue.committed_offset,
        lag=queue.lag,
        waiting=queue.waiting,
        waiting_is_exact=queue.matching_is_exact,
        expired=queue.expired,
        time_lag_s=seconds(queue.time_lag_ms(now_ms)),
        last_consumed_message_stored_at=at(queue.last_consumed_ms),
        owner=None if queue.client_id is None else name(queue.client_id),
        error=None if queue.error is None else seen(queue.error, 500),
    )


def progress(state: GroupState, most: int) -> answers.GroupProgress:
    """Return one group, queue by queue."""
    now = state.taken_ms
    waiting = [queue.waiting for queue in state.queues if queue.kind.value != "dead letter"]
    known = [count for count in waiting if count is not None]
    # Unknown queues first: an unknown lag may be the worst.
    order = sorted(
        state.queues,
        key=lambda q: (q.waiting is not None, -(q.time_lag_ms(now) or 0), -(q.waiting or 0)),
    )
    members = None
    if state.members is not None:
        members = [
            answers.Member(
                client_id=name(m.client_id), address=name(m.address), language=name(m.language)
            )
            for m in state.members[:most]
        ]
    return answers.GroupProgress(
        group=name(state.group),
        taken_at=at(now),
        message_model=state.message_model,
        consume_type=state.consume_type,
        lag=state.lag,
        waiting=sum(known) if known else None,
        time_lag_s=seconds(state.time_lag_ms),
        expired=state.expired,
        retrying=state.retrying,
        delayed=state.delayed,
        dead_letters=state.dead_letters,
        members=members,
        subscriptions=[
            answers.Subscription(
                topic=name(s.topic),
                expression=seen(s.expression, 500),
                type=name(s.expression_type),
            )
            for s in state.subscriptions[:most]
        ],
        queues=[queue_line(queue, now) for queue in order[:most]],
        unknown=notes([*state.errors, *dict.fromkeys(q.error for q in state.queues if q.error)]),
        left_out=max(len(order) - most, 0),
    )


def why(report: WhyReport) -> answers.Why:
    """Return why a group is behind."""
    return answers.Why(
        group=name(report.group),
        verdict=report.verdict.verdict.value,
        sentence=seen(report.verdict.sentence, 500),
        causes=[
            answers.CauseLine(
                kind=cause.kind.value,
                sentence=seen(cause.sentence, 1_000),
                evidence=[untrusted(line, 500) for line in cause.evidence[:20]],
                remedy=None if cause.remedy is None else seen(cause.remedy, 500),
                stack=None if cause.stack is None else untrusted(cause.stack, STACK_CHARS_MAX),
            )
            for cause in report.causes
        ],
        took_s=seconds(report.took_ms),
        unknown=notes(report.unknown),
    )


def topic_line(state: TopicState) -> answers.TopicLine:
    """Return one topic as a line of a list."""
    consumers = state.consumers
    return answers.TopicLine(
        topic=name(state.topic),
        kind=state.kind,
        permission=state.permission,
        queues=len(state.queues),
        messages=state.messages if state.queues or not state.errors else None,
        consumers=None if consumers is None else [name(group) for group in consumers[:100]],
    )


def topic(state: TopicState, most: int) -> answers.Topic:
    """Return one topic, queue by queue."""
    return answers.Topic(
        taken_at=at(state.taken_ms),
        topic=topic_line(state),
        queues=[
            answers.TopicQueue(
                broker=name(broker), queue=queue, min_offset=low, max_offset=high,
                last_stored_at=at(last),
            )
            for broker, queue, low, high, last in state.queues[:most]
        ],
        unknown=notes(state.errors),
        left_out=max(len(state.queues) - most, 0),
    )  # fmt: skip


def broker_line(state: BrokerState) -> answers.BrokerLine:
    """Return one broker."""
    facts = sorted((key, value) for key, value in state.facts.items() if key in FACTS)
    return answers.BrokerLine(
        cluster=name(state.cluster),
        broker=name(state.broker_name),
        addresses={str(number): name(where) for number, where in state.addresses.items()},
        version=None if state.version is None else name(state.version),
        facts={name(key): seen(value, 200) for key, value in facts},
        error=None if state.error is None else seen(state.error, 500),
    )


def message_line(message: ShownMessage, most: int = BODY_CHARS_MAX) -> answers.MessageLine:
    """Return one message as a line; it is already masked."""
    properties = list(message.properties.items())[:PROPERTIES_MAX]
    body = message.body
    text = body.problem or "" if body.kind == "hidden" else body.text
    return answers.MessageLine(
        msg_id=name(message.msg_id),
        topic=name(message.topic),
        broker=name(message.broker_name),
        queue=message.queue_id,
        offset=message.queue_offset,
        stored_at=at(message.store_ms),
        born_at=at(message.born_ms),
        untrusted_tags=None if message.tags is None else name(message.tags),
        untrusted_keys=None if message.keys is None else seen(message.keys, 500),
        untrusted_properties={name(key): seen(value, 500) for key, value in properties},
        reconsume_times=message.reconsume_times,
        body_kind=body.kind,
        body_bytes=body.size,
        body=untrusted(text, most, is_cut=body.is_cut),
        masked_by=[seen(rule, 200) for rule in message.masked_by],
    )


def messages(page: SearchPage) -> answers.Messages:
    """Return the messages a search found."""
    return answers.Messages(
        messages=[message_line(message) for message in page.messages],
        examined=page.examined,
        resume=page.resume,
        ended_by=page.ended_by,
        unknown=notes(page.problems),
    )


def trace(found: TraceTimeline) -> answers.Trace:
    """Return a timeline as a list of events."""
    events: list[tuple[int, answers.TraceEvent]] = []

    def add(when: int | None, what: str, **details: object) -> None:
        texts = {k: seen(v, 255) if isinstance(v, str) else v for k, v in details.items()}
        events.append((when or 0, answers.TraceEvent(at=at(when), what=what, details=texts)))

    for send in found.sends:
        add(send.began_ms, "sent", **_details(send, "began_ms"))
    if found.store_ms is not None:
        add(found.store_ms, "stored", host=found.store_host)
    for each in found.tries:
        add(each.began_ms, "consumed", **_details(each, "began_ms"))
    for end in found.ends:
        add(end.at_ms, "transaction ended", **_details(end, "at_ms"))
    events.sort(key=lambda pair: pair[0])
    unknown = notes(found.problems)
    if found.is_empty:
        unknown.append("no client recorded a trace of this message; clients do where tracing is on")
    return answers.Trace(
        topic=name(found.topic),
        msg_id=name(found.msg_id),
        events=[event for _, event in events[:200]],
        unknown=unknown,
        left_out=max(len(events) - 200, 0),
    )


def _details(value: object, but: str) -> dict[str, object]:
    fields: Sequence[str] = type(value).__slots__  # type: ignore[attr-defined]
    return {field: getattr(value, field) for field in fields if field != but}


def letter_cause(cause: LetterCause) -> answers.LetterCauseLine:
    """Return dead letters of one cause."""
    return answers.LetterCauseLine(
        cause_id=cause.id,
        is_told=cause.is_told,
        cause=untrusted(cause.cause, 500),
        where=None if cause.where is None else untrusted(cause.where, 500),
        count=cause.count,
        redriven=cause.redriven,
        first_at=at(cause.first_ms),
        last_at=at(cause.last_ms),
        topics={"not told" if t is None else name(t): n for t, n in cause.topics.items()},
        example=message_line(cause.example, 500),
    )


def moves(plan: ResetPlan, most: int) -> list[answers.MoveLine]:
    """Return the moves of a reset, queue by queue."""
    return [
        answers.MoveLine(
            topic=name(row.topic), broker=name(row.broker_name), queue=row.queue_id,
            from_offset=row.from_offset, to_offset=row.to_offset, skipped=row.skipped,
            repeated=row.repeated,
        )
        for row in plan.rows[:most]
    ]  # fmt: skip
