"""Checks that each group got every message, none too early, and in order where it asked for it.

Pure: checks over ``Stories``; each yields anomalies with the events that show them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator

from rocketstream.model import MessageQueue
from rocketstream.testing.history.anomaly import Anomaly, AnomalyKind, Rules
from rocketstream.testing.history.events import Event, MessageStored
from rocketstream.testing.history.sending import (
    copies_in_topic,
    may_be_lost,
    must_be_seen,
    was_removed,
)
from rocketstream.testing.history.story import (
    NEVER,
    RETRY,
    Delivery,
    GroupStory,
    Stories,
)


def check_consuming(stories: Stories, rules: Rules) -> Iterator[Anomaly]:
    """Yield the anomalies in the messages that groups were given."""
    yield from _after_end(stories)
    for group in stories.groups.values():
        for queue, story in group.queues.items():
            for delivery in story.deliveries:
                yield from _allowed_at_all(stories, rules, delivery)
                yield from _as_sent_and_selected(stories, group, delivery)
            yield from _repeated(stories, rules, group, queue, story.deliveries)
            yield from _other_message(stories, rules, queue, story.deliveries)
        by_key = _deliveries_by_key(group)
        yield from _retries(stories, rules, group, by_key)
        yield from _given_up_early(stories, group, by_key)
        yield from _given_up_once(stories, rules, group, by_key)
        yield from _late(stories, rules, group, by_key)
        yield from _never_consumed(stories, rules, group, by_key)
        yield from _waited(stories, rules, group, by_key)
        for seen in group.owners:
            if len(seen.members) != 1:
                who = " and ".join(seen.members) or "nobody"
                text = f"{seen.queue} belongs to {who} in group {seen.group}"
                yield Anomaly(AnomalyKind.NOT_OWNED, text, (seen,))


def _after_end(stories: Stories) -> Iterator[Anomaly]:
    for end, event in stories.after_end:
        text = (
            f"{event.key} was delivered to {event.member} {event.at - end.at:.0f} ms after its end"
        )
        yield Anomaly(AnomalyKind.AFTER_END, text, (end, event))


def wanted(stories: Stories, group: GroupStory, queue: MessageQueue) -> Callable[[int], bool]:
    """Return a function that tells whether the group must consume the message at an offset."""
    read = stories.reads.get(queue)
    # Where removals were seen, they count from when they were.
    begin = read.begin if read is not None and queue not in stories.trims else 0
    declared = group.declared
    if declared.selects_all or queue.topic.startswith(RETRY):
        return lambda offset: offset >= begin
    there = stories.stored.get(queue, {})

    def selects(offset: int) -> bool:
        stored = there.get(offset)
        if offset < begin or stored is None:
            return False
        return declared.selects(stored.tags, stored.content)

    return selects


def _allowed_at_all(stories: Stories, rules: Rules, delivery: Delivery) -> Iterator[Anomaly]:
    event = delivery.event
    send = stories.sends.get(event.key)
    if send is None or not send.invoked:
        text = f"{event.key} was delivered to {event.member}, never sent"
        yield Anomaly(AnomalyKind.PHANTOM, text, (event,))
        return
    first = send.invoked[0]
    if event.at < first.at:
        text = f"{event.key} was delivered before it was sent"
        yield Anomaly(AnomalyKind.PHANTOM, text, (event, first))
    if first.due_ms:
        due = first.at + first.due_ms - rules.early_ms
        if event.at < due - stories.clock_excuse_ms(first.at, event.at):
            early = first.at + first.due_ms - event.at
            text = f"{event.key} was delivered {early:.0f} ms before it was due"
            yield Anomaly(AnomalyKind.DELAYED_EARLY, text, (first, event))
    if first.transactional:
        commits = [decision.at for decision in send.decided if decision.commit]
        if not commits and send.decided:
            text = f"{event.key} was rolled back, and delivered to {event.member}"
            yield Anomaly(AnomalyKind.ROLLED_BACK_SEEN, text, (*send.decided, event))
        elif not commits or event.at < min(commits):
            text = f"{event.key} was delivered before its local transaction had committed"
            yield Anomaly(AnomalyKind.TRANSACTION_EARLY, text, (first, *send.decided, event))


def _as_sent_and_selected(
    stories: Stories, group: GroupStory, delivery: Delivery
) -> Iterator[Anomaly]:
    event, declared = delivery.event, group.declared
    send = stories.sends.get(event.key)
    if send is None or not send.invoked:
        return
    first = send.invoked[0]
    if event.queue.topic not in (first.topic, group.retry_topic):
        text = f"{event.key} was sent to {first.topic}, and delivered from {event.queue.topic}"
        yield Anomaly(AnomalyKind.MISPLACED, text, (first, event))
    if change := first.altered(event.content):
        yield Anomaly(AnomalyKind.ALTERED, f"{event.key} was delivered with {change}", (event,))
    if not declared.selects(first.tags, first.content):
        text = f"{event.key} was delivered to group {declared.group}, which excludes it"
        yield Anomaly(AnomalyKind.UNWANTED, text, (first, event))


def _repeated(
    stories: Stories,
    rules: Rules,
    group: GroupStory,
    queue: MessageQueue,
    deliveries: list[Delivery],
) -> Iterator[Anomaly]:
    """Check that a message repeats only after a crash, a change of owner or a reset.

    Of a call that never came back, its member must be gone. One that failed too, where it comes
    back from another place: a client that could not send it back keeps it here, and counts the try.
    """
    comes_back_elsewhere = group.declared.sends_back and not group.declared.orderly
    before: dict[int, Delivery] = {}
    resets = group.queues[queue].resets
    taken_back = group.queues[queue].taken_back
    for delivery in deliveries:
        event = delivery.event
        earlier = before.get(event.offset)
        before[event.offset] = delivery
        if earlier is None or (earlier.success is None and earlier.end < NEVER):
            continue
        kept_here = event.reconsume_times > earlier.event.reconsume_times
        if not earlier.success and (kept_here or not comes_back_elsewhere):
            continue
        begin = earlier.event.at - rules.rebalance_ms
        if (
            group.changes.any_between(begin, event.at)
            or stories.disturbances.any_between(begin, event.at)
            or stories.crashed(queue.broker_name, begin, event.at)
            or any(reset.may_act_in(earlier.event.at, event.at) for reset in resets)
            or any(
                back.offset == event.offset and earlier.event.at <= back.at <= event.at
                for back in taken_back
            )
        ):
            continue
        text = f"{event.key} was consumed by {earlier.event.member}, and delivered again"
        yield Anomaly(AnomalyKind.REPEATED, text, (earlier.event, event))


def _other_message(
    stories: Stories, rules: Rules, queue: MessageQueue, deliveries: list[Delivery]
) -> Iterator[Anomaly]:
    if rules.unflushed_ms != 0 and stories.power_lost(queue.broker_name, 0, NEVER):
        return  # unflushed messages are lost, and their offsets are assigned again
    there = stories.stored.get(queue, {})
    seen: dict[int, Delivery] = {}
    for delivery in deliveries:
        event = delivery.event
        other: Event | None = None
        stored = there.get(event.offset)
        earlier = seen.setdefault(event.offset, delivery)
        if stored is not None and stored.key != event.key:
            other = stored
        elif earlier.event.key != event.key:
            other = earlier.event
        if other is not None:
            text = f"{queue} offset {event.offset} was delivered as {event.key}"
            yield Anomaly(AnomalyKind.MISPLACED, text, (event, other))


def _deliveries_by_key(group: GroupStory) -> dict[str, list[Delivery]]:
    found: dict[str, list[Delivery]] = defaultdict(list)
    for story in group.queues.values():
        for delivery in story.deliveries:
            found[delivery.event.key].append(delivery)
    return found


def _retries(
    stories: Stories, rules: Rules, group: GroupStory, by_key: dict[str, list[Delivery]]
) -> Iterator[Anomaly]:
    """Check that a message failed as often as it counts, and came back once for each failure."""
    for key, deliveries in by_key.items():
        most = max(delivery.event.reconsume_times for delivery in deliveries)
        if most == 0:
            continue
        deliveries.sort(key=lambda delivery: delivery.event.at)
        failures = 0
        for delivery in deliveries:
            if delivery.event.reconsume_times > failures:
                said = delivery.event.reconsume_times
                text = f"{key} says it failed {said} times; it failed {failures} times"
                events = tuple(d.event for d in deliveries)
                yield Anomaly(AnomalyKind.MISCOUNTED, text, events)
                break
            failures += delivery.failed
        yield from _sent_back_once(stories, rules, group, key, deliveries)
        yield from _retried_too_often(group, key, deliveries)


def _retried_too_often(
    group: GroupStory, key: str, deliveries: list[Delivery]
) -> Iterator[Anomaly]:
    """Check that no message comes back that has had all its attempts.

    Its count as it is stored is the least one of its place: a client that could not send it back
    counts the tries it gives it itself.
    """
    most = group.declared.attempts_max
    counts: dict[tuple[MessageQueue, int], Delivery] = {}
    for delivery in deliveries:
        event = delivery.event
        least = counts.setdefault((event.queue, event.offset), delivery)
        if event.reconsume_times < least.event.reconsume_times:
            counts[event.queue, event.offset] = delivery
    for delivery in counts.values():
        times = delivery.event.reconsume_times
        if 0 < most <= times:
            text = f"{key} came back after {times} failures; it had {most} attempts"
            yield Anomaly(AnomalyKind.MISCOUNTED, text, (delivery.event,))


def _sent_back_once(
    stories: Stories, rules: Rules, group: GroupStory, key: str, deliveries: list[Delivery]
) -> Iterator[Anomaly]:
    places: dict[int, dict[tuple[MessageQueue, int], Delivery]] = defaultdict(dict)
    failed: dict[int, list[Delivery]] = defaultdict(list)
    for delivery in deliveries:
        event = delivery.event
        if delivery.failed:
            failed[event.reconsume_times].append(delivery)
        if event.queue.topic == group.retry_topic:
            places[event.reconsume_times].setdefault((event.queue, event.offset), delivery)
    for times, copies in places.items():
        causes = failed[times - 1]
        spare = len(copies) - len(causes)
        if spare <= 0 or not causes:
            continue
        moments = _ends(causes)
        moments += [(place[0].broker_name, _stored_at(stories, place)) for place in copies]
        if spare > _excuses(stories, rules, moments):
            text = f"{key} was sent back {len(causes)} times as retry {times}, and came back "
            events = tuple(d.event for d in [*causes, *copies.values()])
            yield Anomaly(AnomalyKind.STORED_TWICE, f"{text}{len(copies)} times", events)


def _ends(deliveries: list[Delivery]) -> list[tuple[str, float]]:
    """Return when, and at which broker, messages were sent back."""
    return [(each.event.queue.broker_name, min(each.end, each.expired)) for each in deliveries]


def _excuses(stories: Stories, rules: Rules, moments: list[tuple[str, float]]) -> int:
    """Return at how many moments a broker may have stored what nobody was told it had."""
    return sum(
        stories.crashed(broker, at, stories.has_run(broker, at, rules.settle_ms))
        or stories.disturbances.any_between(at - rules.settle_ms, at + rules.settle_ms)
        for broker, at in moments
        if at < NEVER
    )


def _stored_at(stories: Stories, place: tuple[MessageQueue, int]) -> float:
    queue, offset = place
    stored = stories.stored.get(queue, {}).get(offset)
    return NEVER if stored is None else stored.at


def _dead_letters(stories: Stories, group: GroupStory) -> dict[str, list[MessageStored]]:
    found: dict[str, list[MessageStored]] = defaultdict(list)
    for queue, there in stories.stored.items():
        if queue.topic == group.dead_topic:
            for stored in there.values():
                found[stored.key].append(stored)
    return found


def _given_up_once(
    stories: Stories, rules: Rules, group: GroupStory, by_key: dict[str, list[Delivery]]
) -> Iterator[Anomaly]:
    """Check that a message has one dead letter for each time that its last attempt failed."""
    most = group.declared.attempts_max
    for key, letters in _dead_letters(stories, group).items() if most else ():
        failed = [each for each in by_key.get(key, []) if each.failed]
        causes = [each for each in failed if each.event.reconsume_times + 1 >= most]
        spare = len(letters) - max(len(causes), 1)
        moments = _ends(causes) + [(each.queue.broker_name, each.at) for each in letters]
        if spare > 0 and spare > _excuses(stories, rules, moments):
            text = f"{key} was given up {len(causes)} times, and has {len(letters)} dead letters"
            events = (*(each.event for each in causes), *letters)
            yield Anomaly(AnomalyKind.STORED_TWICE, text, events)


def _given_up_early(
    stories: Stories, group: GroupStory, by_key: dict[str, list[Delivery]]
) -> Iterator[Anomaly]:
    most = group.declared.attempts_max
    if most == 0:
        return
    for key, letters in _dead_letters(stories, group).items():
        dead, deliveries = letters[-1], by_key.get(key, [])
        failures = sum(delivery.failed for delivery in deliveries)
        if failures < most:
            text = f"{key} was dead-lettered after {failures} failures; it had {most} attempts"
            events = (*(delivery.event for delivery in deliveries), dead)
            yield Anomaly(AnomalyKind.GIVEN_UP_EARLY, text, events)


def _never_consumed(
    stories: Stories, rules: Rules, group: GroupStory, by_key: dict[str, list[Delivery]]
) -> Iterator[Anomaly]:
    if stories.ended is None:
        return
    declared = group.declared
    dead = _dead_letters(stories, group)
    starts = {} if declared.from_first else _starts(group)
    for key, send in stories.sends.items():
        if not send.invoked or not declared.wants(send.invoked[0]):
            continue
        deliveries = by_key.get(key, [])
        if key in dead or any(delivery.success for delivery in deliveries):
            continue
        copies = [s for s in copies_in_topic(send) if s.offset >= stories.begin(s.queue)]
        if not declared.from_first and not stories.is_calm_at(send.invoked[0].at):
            copies = [s for s in copies if s.offset >= starts.get(s.queue, NEVER)]
            if not copies:
                continue
        if not copies and (
            not must_be_seen(send)
            or may_be_lost(stories, rules, send)
            or was_removed(stories, send)
        ):
            continue
        text = f"{key} was never consumed by group {declared.group}"
        events = (*send.invoked, *send.acknowledged, *copies, *(d.event for d in deliveries))
        yield Anomaly(AnomalyKind.LOST, text, events)


def _late(
    stories: Stories, rules: Rules, group: GroupStory, by_key: dict[str, list[Delivery]]
) -> Iterator[Anomaly]:
    """Check that a message sent when all was calm was delivered at once.

    It may wait for listeners that are at work with others.
    """
    for key, send in stories.sends.items():
        if not send.acknowledged or not send.invoked:
            continue
        if not stories.is_calm_at(send.invoked[0].at):
            continue
        stored_at = send.acknowledged[0].at
        first = min((d.event for d in by_key.get(key, ())), key=lambda d: d.at, default=None)
        if first is None or first.at <= stored_at + rules.prompt_ms:
            continue
        since = max(stored_at, _idle_since(group, first.member, first.at))
        if first.at > since + rules.prompt_ms:
            text = f"{key} was delivered {first.at - stored_at:.0f} ms after it was acknowledged"
            events = (*send.invoked, *send.acknowledged, *(d.event for d in by_key[key]))
            yield Anomaly(AnomalyKind.LATE, f"{text} to group {group.declared.group}", events)


def _idle_since(group: GroupStory, member: str, at: float) -> float:
    """Return when the last listener call of a member had ended by a time, 0 for none."""
    every = (delivery for queue in group.queues.values() for delivery in queue.deliveries)
    return max((d.end for d in every if d.event.member == member and d.end <= at), default=0.0)


def _waited(
    stories: Stories, rules: Rules, group: GroupStory, by_key: dict[str, list[Delivery]]
) -> Iterator[Anomaly]:
    """Check that a group is given what a living broker has, though another one is away.

    Not one in order: a lock outlives the member that had it by a minute.
    """
    if rules.takeover_ms is None or stories.ended is None or group.declared.orderly:
        return
    for key, send in stories.sends.items():
        first = send.invoked[0] if send.invoked else None
        if first is None or not group.declared.wants(first):
            continue
        given = min((delivery.event.at for delivery in by_key.get(key, ())), default=NEVER)
        for ack in send.acknowledged:
            limit = ack.at + rules.takeover_ms
            if ack.queue is None or given <= limit or stories.ended.at < limit:
                continue
            if not stories.crashed(ack.queue.broker_name, ack.at, limit):
                text = f"{key} waited for group {group.declared.group} {given - ack.at:.0f} ms"
                yield Anomaly(AnomalyKind.NOT_TAKEN_OVER, text, (first, ack))


def _starts(group: GroupStory) -> dict[MessageQueue, float]:
    """Return each queue's first offset for a group that does not begin with the first message."""
    return {
        queue: min(
            [delivery.event.offset for delivery in story.deliveries]
            + [commit.offset for commit in story.commits],
            default=NEVER,
        )
        for queue, story in group.queues.items()
    }
