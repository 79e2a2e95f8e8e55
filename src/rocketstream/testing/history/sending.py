"""Checks that exactly the sent messages were stored: once, in order, and where they were reported.

Pure: checks over ``Stories``; each yields anomalies with the events that show them.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator

from rocketstream.errors import SendOutcome
from rocketstream.model import MessageQueue
from rocketstream.testing.history.anomaly import Anomaly, AnomalyKind, Rules
from rocketstream.testing.history.events import MessageStored, SendAcknowledged, SendInvoked
from rocketstream.testing.history.story import DLQ, NEVER, RETRY, SendStory, Stories

SLOW_MS = 1_000.0
"""A send that takes as long may have been tried again, since its answer did not come in time."""


def check_sending(stories: Stories, rules: Rules) -> Iterator[Anomaly]:
    """Yield the anomalies in the log."""
    for key, send in stories.sends.items():
        if not send.invoked:
            first = send.stored[0] if send.stored else None
            if first is not None:
                yield Anomaly(AnomalyKind.PHANTOM, f"{key} is stored, never sent", (first,))
            continue
        yield from _said_not_to_be_stored(key, send)
        yield from _not_taken_over(rules, key, send)
        yield from _acknowledged_and_gone(stories, rules, key, send)
        yield from _removed_early(stories, rules, key, send)
        yield from _stored_twice(stories, rules, key, send)
        yield from _rolled_back_but_stored(key, send)
        yield from _altered_or_elsewhere(key, send)
        yield from _in_another_queue(stories, rules, key, send)
        yield from _half_and_gone(stories, rules, key, send)
    for one, other in stories.clashes:
        text = f"{one.queue} offset {one.offset} was read as {one.key} and as {other.key}"
        if not _forgiven(stories, rules, one.queue.broker_name, one.at, one.at):
            yield Anomaly(AnomalyKind.MISPLACED, text, (one, other))
    yield from _stored_out_of_order(stories, rules)


def copies_in_topic(send: SendStory) -> list[MessageStored]:
    """Return the copies in the message's own topic, not those sent back or dead-lettered."""
    topic = send.invoked[0].topic
    return [stored for stored in send.stored if stored.queue.topic == topic]


def may_be_lost(stories: Stories, rules: Rules, send: SendStory) -> bool:
    """Return whether a power loss before the flush excuses that a message is missing."""
    begin = min((invoked.at for invoked in send.invoked), default=0.0)
    return any(
        _forgiven(stories, rules, broker, begin, ack.at)
        for ack in send.acknowledged
        for broker in ([ack.queue.broker_name] if ack.queue else stories.power_losses)
    )


def was_removed(stories: Stories, send: SendStory) -> bool:
    """Return whether a place it was acknowledged at left the log when its time was over."""
    return any(
        ack.queue is not None and ack.offset < stories.begin(ack.queue) for ack in send.acknowledged
    )


def must_be_seen(send: SendStory) -> bool:
    """Return whether the log must hold it: acknowledged, and committed if transactional."""
    if not send.acknowledged:
        return False
    if not send.invoked[0].transactional:
        return True
    return bool(send.decided) and all(decision.commit for decision in send.decided)


def _forgiven(stories: Stories, rules: Rules, broker: str, begin: float, end: float) -> bool:
    """Return whether what a broker wrote in [begin, end] may be lost; answers come later."""
    if rules.unflushed_ms is None:
        return stories.power_lost(broker, begin, NEVER)
    within_ms = rules.unflushed_ms
    return within_ms > 0 and stories.may_be_unflushed(broker, begin, end, within_ms)


def _said_not_to_be_stored(key: str, send: SendStory) -> Iterator[Anomaly]:
    if send.acknowledged or len(send.failed) < len(send.invoked) or not send.stored:
        return
    if all(failed.outcome is not SendOutcome.UNKNOWN for failed in send.failed):
        said = send.failed[0]
        yield Anomaly(
            AnomalyKind.PHANTOM,
            f"{key} failed with {said.outcome.value}, which says that it is not stored; it is",
            (said, send.stored[0]),
        )


def _not_taken_over(rules: Rules, key: str, send: SendStory) -> Iterator[Anomaly]:
    for failed in send.failed if rules.takeover_ms is not None else ():
        if failed.tries > 1:
            text = f"{key} failed after up to {failed.tries} tries, and a broker was there"
            yield Anomaly(AnomalyKind.NOT_TAKEN_OVER, text, (*send.invoked, failed))


def _acknowledged_and_gone(
    stories: Stories, rules: Rules, key: str, send: SendStory
) -> Iterator[Anomaly]:
    for ack in send.acknowledged:
        queue = ack.queue
        if queue is None or ack.offset < 0 or queue not in stories.reads:
            continue
        if ack.offset < stories.begin(queue):
            continue  # deleted when its retention time was over
        there = stories.stored[queue].get(ack.offset)
        if ack.offset >= stories.reads[queue].end:
            there = None  # it was there when the queue was read before
        if there is not None and there.key == key:
            continue
        if _forgiven(stories, rules, queue.broker_name, send.invoked[0].at, ack.at):
            continue
        if there is None:
            text = f"{key} was acknowledged at {queue} offset {ack.offset}, where nothing is"
            yield Anomaly(AnomalyKind.LOST, text, (*send.invoked, ack, *send.stored))
        else:
            text = f"{key} was acknowledged at {queue} offset {ack.offset}; {there.key} is there"
            yield Anomaly(AnomalyKind.MISPLACED, text, (ack, there))
    if _placeless_and_gone(stories, send) and not may_be_lost(stories, rules, send):
        text = f"{key} was acknowledged, and {send.invoked[0].topic} does not hold it"
        yield Anomaly(AnomalyKind.LOST, text, (*send.invoked, *send.acknowledged, *send.decided))


def _removed_early(stories: Stories, rules: Rules, key: str, send: SendStory) -> Iterator[Anomaly]:
    """Check that a message stayed in the log for as long as messages are kept."""
    first = send.invoked[0]
    for ack in send.acknowledged if rules.kept_ms else ():
        trims = stories.trims.get(ack.queue, ()) if ack.queue is not None else ()
        for trim in trims:
            if trim.offset > ack.offset:
                age = trim.at - first.at + stories.clock_excuse_ms(first.at, trim.at)
                if age < rules.kept_ms:
                    text = (
                        f"{key} was removed after {age:.0f} ms; it is kept {rules.kept_ms:.0f} ms"
                    )
                    yield Anomaly(AnomalyKind.LOST, text, (first, ack, trim))
                break


def _placeless_and_gone(stories: Stories, send: SendStory) -> bool:
    """Return whether a delayed or transactional message of unknown place is missing at the end."""
    if stories.ended is None or not must_be_seen(send) or copies_in_topic(send):
        return False
    if any(ack.queue is not None for ack in send.acknowledged):
        return False
    reads = [read for read in stories.reads.values() if read.queue.topic == send.invoked[0].topic]
    return bool(reads) and all(read.begin == 0 for read in reads)


def _stored_twice(stories: Stories, rules: Rules, key: str, send: SendStory) -> Iterator[Anomaly]:
    copies = copies_in_topic(send)
    spare = len(copies) - max(send.tries, 1)
    if spare <= 0:
        yield from _tried_again_for_nothing(stories, rules, key, send, copies)
        return
    first = send.invoked[0]
    if first.due_ms or first.transactional:
        # The broker writes these itself, and may write them again after a crash that came right
        # afterwards. The end of a transaction is written together with its message: only a loss of
        # power, or a failing disk, separates the two.
        if first.transactional and math.isinf(rules.settle_ms):
            return
        excuses = stories.power_lost if first.transactional else stories.crashed
        spare -= sum(
            excuses(broker, copy.at, stories.has_run(broker, copy.at, rules.settle_ms))
            for copy in copies
            for broker in [copy.queue.broker_name]
        )
    if spare > 0:
        text = f"{key} is stored {len(copies)} times after {send.tries} tries"
        events = (*send.invoked, *send.acknowledged, *send.failed, *copies)
        yield Anomaly(AnomalyKind.STORED_TWICE, text, events)


def _tried_again_for_nothing(
    stories: Stories, rules: Rules, key: str, send: SendStory, copies: list[MessageStored]
) -> Iterator[Anomaly]:
    """Check that a message was written again only where something kept an answer from coming.

    A broker may write a delayed one again, and what a transaction commits, after a crash.
    """
    if send.invoked and (send.invoked[0].due_ms or send.invoked[0].transactional):
        return
    if len(copies) <= len(send.invoked) or len(send.acknowledged) < len(send.invoked):
        return
    begin, end = send.invoked[0].at, max(ack.at for ack in send.acknowledged)
    if end - begin >= SLOW_MS or stories.is_disturbed(begin - rules.settle_ms, end):
        return
    text = f"{key} is stored {len(copies)} times, though nothing kept its answer from coming"
    yield Anomaly(AnomalyKind.STORED_TWICE, text, (*send.invoked, *send.acknowledged, *copies))


def _rolled_back_but_stored(key: str, send: SendStory) -> Iterator[Anomaly]:
    if not send.invoked[0].transactional or not send.decided:
        return
    copies = copies_in_topic(send)
    if copies and not any(decision.commit for decision in send.decided):
        text = f"{key} was rolled back, and is stored"
        yield Anomaly(AnomalyKind.ROLLED_BACK_SEEN, text, (*send.decided, copies[0]))


def _altered_or_elsewhere(key: str, send: SendStory) -> Iterator[Anomaly]:
    first = send.invoked[0]
    for stored in send.stored:
        topic = stored.queue.topic
        if topic != first.topic and not topic.startswith((RETRY, DLQ)):
            text = f"{key} was sent to {first.topic}, and {topic} holds it"
            yield Anomaly(AnomalyKind.MISPLACED, text, (first, stored))
        if change := first.altered(stored.content):
            yield Anomaly(AnomalyKind.ALTERED, f"{key} is stored with {change}", (stored,))


def _in_another_queue(
    stories: Stories, rules: Rules, key: str, send: SendStory
) -> Iterator[Anomaly]:
    """Check that a message which waited is in the queue it was sent to.

    A try without an answer may have been sent to another queue, and be stored there as well.
    """
    topic = send.invoked[0].topic
    asked = {ack.wanted for ack in send.acknowledged if ack.wanted is not None}
    wanted = {queue for queue in asked if queue.topic == topic}
    copies = copies_in_topic(send) if wanted else []
    strays = [stored for stored in copies if stored.queue not in wanted]
    if not strays or (send.tries > 1 and len(strays) < len(copies)):
        return
    if send.tries > 1 and may_be_lost(stories, rules, send):
        return
    queues = " and ".join(str(queue) for queue in wanted)
    text = f"{key} was sent to {queues}, and {strays[0].queue} holds it"
    yield Anomaly(AnomalyKind.MISPLACED, text, (*send.invoked, *send.acknowledged, *strays))


def _half_and_gone(stories: Stories, rules: Rules, key: str, send: SendStory) -> Iterator[Anomaly]:
    """Check that an acknowledged half message was decided or given up: nothing asks for others."""
    given_up = stories.given_up
    if given_up is None or not send.invoked[0].transactional or not send.acknowledged:
        return
    if send.decided or key in given_up.keys or may_be_lost(stories, rules, send):
        return
    text = f"{key} waits for the end of its transaction, and nobody is asked for it any more"
    yield Anomaly(AnomalyKind.LOST, text, (*send.invoked, *send.acknowledged))


def _stored_out_of_order(stories: Stories, rules: Rules) -> Iterator[Anomaly]:
    """Check that a message acknowledged before another send began precedes it in their queue."""
    places: dict[MessageQueue, list[tuple[SendInvoked, SendAcknowledged]]] = defaultdict(list)
    for send in stories.sends.values():
        if len(send.invoked) != 1 or len(send.acknowledged) != 1:
            continue
        invoked, ack = send.invoked[0], send.acknowledged[0]
        if ack.queue is None or ack.offset < 0:
            continue
        if not _forgiven(stories, rules, ack.queue.broker_name, invoked.at, ack.at):
            places[ack.queue].append((invoked, ack))
    for queue, sends in places.items():
        yield from _queue_out_of_order(queue, sends)


def _queue_out_of_order(
    queue: MessageQueue, sends: list[tuple[SendInvoked, SendAcknowledged]]
) -> Iterator[Anomaly]:
    by_invocation = sorted(sends, key=lambda pair: pair[0].at)
    by_answer = sorted(sends, key=lambda pair: pair[1].at)
    highest: tuple[SendInvoked, SendAcknowledged] | None = None
    answered = 0
    for invoked, ack in by_invocation:
        while by_answer[answered][1].at < invoked.at:
            pair = by_answer[answered]
            if highest is None or pair[1].offset > highest[1].offset:
                highest = pair
            answered += 1
        if highest is not None and highest[1].offset > ack.offset:
            text = (
                f"{invoked.key} was sent after {highest[1].key} was acknowledged, "
                f"and stands before it in {queue}"
            )
            yield Anomaly(AnomalyKind.REORDERED, text, (*highest, invoked, ack))
