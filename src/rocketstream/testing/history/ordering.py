"""Checks of offsets and order: commits never run ahead or back, orderly queues have one owner.

Pure: passes over the events of one group in one queue, in the order of time.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator

from rocketstream.model import MessageQueue
from rocketstream.testing.history.anomaly import Anomaly, AnomalyKind, Rules
from rocketstream.testing.history.consuming import wanted
from rocketstream.testing.history.events import (
    CommitSeen,
    LogTrimmed,
    MessageDelivered,
    OffsetReset,
    TakenBack,
)
from rocketstream.testing.history.story import (
    NEVER,
    RETRY,
    Delivery,
    GroupStory,
    QueueStory,
    Stories,
)

LATE_COMMIT_MS = 10_000.0
"""How long a commit of a killed process may still be under way."""
KNOWN_MS = 5_000.0
"""Where nothing is wrong, all know who is a member by then, and what an operator told them."""

_Change = OffsetReset | LogTrimmed | TakenBack | CommitSeen
_Moment = tuple[float, int, Delivery | _Change]
# Among events of one moment: first ends, then resets and removals, commits, and beginnings.
_ENDED, _RESET, _COMMITTED, _BEGAN = range(4)


def check_ordering(stories: Stories, rules: Rules) -> Iterator[Anomaly]:
    """Yield the anomalies of offsets, order and ownership."""
    for group in stories.groups.values():
        for queue, story in group.queues.items():
            yield from _committed_ahead(stories, group, queue, story)
            yield from _went_backwards(stories, rules, group, queue, story)
            yield from _reset_forgotten(stories, rules, group, queue, story)
            if group.declared.orderly:
                yield from _out_of_order(stories, group, queue, story)
                yield from _owned_twice(stories, rules, queue, story.deliveries)


def _finished(group: GroupStory, delivery: Delivery) -> float:
    """Return from when on a commit may pass the message: it is consumed, sent back or given up."""
    declared, end = group.declared, delivery.end
    if delivery.success is None or delivery.success:
        return min(end if delivery.success else NEVER, delivery.expired)
    if not declared.sends_back:
        return NEVER
    if not declared.orderly:
        return min(end, delivery.expired)
    return end if 0 < declared.attempts_max <= delivery.event.reconsume_times + 1 else NEVER


def _start(group: GroupStory, queue: MessageQueue, story: QueueStory) -> int:
    if group.declared.from_first or queue.topic.startswith(RETRY):
        return 0
    offsets = [story.commits[0].offset] if story.commits else []
    offsets += [delivery.event.offset for delivery in story.deliveries[:1]]
    return min(offsets, default=0)


class _Sweep:
    """Tracks the lowest unfinished offset as time goes on."""

    def __init__(self, stories: Stories, group: GroupStory, queue: MessageQueue) -> None:
        self._wanted = wanted(stories, group, queue)
        self._done: set[int] = set()
        self.next = _start(group, queue, group.queues[queue])

    def finish(self, offset: int) -> None:
        """Note that a message is finished."""
        self._done.add(offset)

    def change(self, what: _Change) -> None:
        """Go on further ahead; or, where a message is taken back, at it again."""
        if isinstance(what, TakenBack):
            self._done.discard(what.offset)
            self.next = min(self.next, what.offset)
        else:
            self.next = max(self.next, what.offset)

    def first_open(self, begin: int, end: int) -> int:
        """Return the lowest wanted, unfinished offset in [begin, end); ``end`` if there is none."""
        while begin < end and (begin in self._done or not self._wanted(begin)):
            begin += 1
        return begin


def _moments(
    stories: Stories, group: GroupStory, queue: MessageQueue, story: QueueStory
) -> list[_Moment]:
    """Return what moves the lowest unfinished offset: ends of messages, and changes."""
    moments: list[_Moment] = [
        (end, _ENDED, d) for d in story.deliveries if (end := _finished(group, d)) < NEVER
    ]
    moments += [(trim.since, _RESET, trim) for trim in stories.trims.get(queue, ())]
    changes: list[_Change] = [
        *story.resets,
        *(back for back in story.taken_back if not _has_another_finished(story, back)),
    ]
    return moments + [(change.at, _RESET, change) for change in changes]


def _has_another_finished(story: QueueStory, back: TakenBack) -> bool:
    """Return whether another member had finished what one takes back, so that it may be passed."""
    return any(
        each.event.offset == back.offset
        and each.event.member != back.member
        and each.success
        and each.end <= back.at
        for each in story.deliveries
    )


def _committed_ahead(
    stories: Stories, group: GroupStory, queue: MessageQueue, story: QueueStory
) -> Iterator[Anomaly]:
    sweep = _Sweep(stories, group, queue)
    moments = _moments(stories, group, queue, story)
    moments += [(commit.at, _COMMITTED, commit) for commit in story.commits]
    moments.sort(key=lambda moment: moment[:2])
    for _, _, what in moments:
        if isinstance(what, Delivery):
            sweep.finish(what.event.offset)
            continue
        if isinstance(what, CommitSeen):
            open_ = sweep.first_open(sweep.next, what.offset)
            if open_ < what.offset:
                tried = [d.event for d in story.deliveries if d.event.offset == open_]
                stored = stories.stored.get(queue, {}).get(open_)
                text = (
                    f"group {what.group} committed {what.offset} in {queue}; "
                    f"offset {open_} was {'not finished' if tried else 'never delivered'}"
                )
                events = (what, *([stored] if stored else []), *tried)
                yield Anomaly(AnomalyKind.COMMITTED_AHEAD, text, events)
        sweep.change(what)


def _went_backwards(
    stories: Stories, rules: Rules, group: GroupStory, queue: MessageQueue, story: QueueStory
) -> Iterator[Anomaly]:
    """Check that a commit falls only after a reset, a crash just before, or a change of owner.

    Without locks two members may hold a queue for a moment, and the one that is behind may commit
    last.
    """
    rising: list[CommitSeen] = []  # since the offset last fell
    broker = queue.broker_name
    for commit in story.commits:
        if rising and commit.offset < rising[-1].offset:
            higher = bisect_right([c.offset for c in rising], commit.offset)
            first = rising[higher]
            since = first.earliest
            recently = min(commit.at, stories.has_run(broker, first.at, rules.settle_ms))
            if not (
                any(reset.may_act_in(since, commit.at) for reset in story.resets)
                or stories.crashed(broker, since, recently)
                or _changed_hands(stories, rules, group, rising, commit)
                or (rules.unflushed_ms != 0 and stories.power_lost(broker, since, commit.at))
            ):
                text = f"{queue} went from {rising[-1].offset} back to {commit.offset}"
                found = (first, rising[-1], commit) if first is not rising[-1] else (first, commit)
                yield Anomaly(AnomalyKind.OFFSET_BACKWARDS, text, found)
            rising = []
        if not rising or commit.offset > rising[-1].offset:
            rising.append(commit)


def _reset_forgotten(
    stories: Stories, rules: Rules, group: GroupStory, queue: MessageQueue, story: QueueStory
) -> Iterator[Anomaly]:
    """Check that all of a queue from a reset's offset on was delivered after it.

    A member that just comes or goes, and a broker that dies before it has written the new offset
    down, may miss a reset.
    """
    if stories.ended is None:
        return
    broker, last = queue.broker_name, stories.ended.at
    for reset in story.resets:
        end = min(stories.has_run(broker, reset.at, rules.settle_ms), last)
        if (
            not reset.told
            or last < reset.at + KNOWN_MS
            or group.changes.any_between(reset.at - KNOWN_MS, end)
            or stories.disturbances.any_between(reset.at - rules.rebalance_ms, end)
            or stories.crashed(broker, reset.at - rules.rebalance_ms, end)
        ):
            continue
        given = {d.event.offset for d in story.deliveries if d.event.at >= reset.at}
        is_wanted = wanted(stories, group, queue)
        for offset, stored in sorted(stories.stored.get(queue, {}).items()):
            if offset >= reset.offset and is_wanted(offset) and offset not in given:
                text = f"group {reset.group} was told to go on at {reset.offset} in {queue}; "
                yield Anomaly(
                    AnomalyKind.RESET_FORGOTTEN,
                    f"{text}{stored.key} at {offset} was not delivered since",
                    (reset, stored),
                )
                break


def _changed_hands(
    stories: Stories, rules: Rules, group: GroupStory, rising: list[CommitSeen], commit: CommitSeen
) -> bool:
    """Return whether a former owner may have committed last: not below an offset long settled."""
    broker = commit.queue.broker_name
    if group.declared.orderly:
        # The lock passes on only after the offset is stored, unless its broker has forgotten it.
        begin = rising[0].at - rules.rebalance_ms
        return rules.untold_ms is not None and stories.crashed(broker, begin, commit.at)
    window_ms = rules.rebalance_ms if group.declared.shares else LATE_COMMIT_MS
    settled = [
        before.offset
        for before in rising
        if stories.has_run(broker, before.at, window_ms) < commit.at
    ]
    if settled and settled[-1] > commit.offset:
        return False
    begin = rising[0].at - rules.rebalance_ms
    changes, disturbances = group.changes, stories.disturbances
    return changes.any_between(begin, commit.at) or disturbances.any_between(begin, commit.at)


def _out_of_order(
    stories: Stories, group: GroupStory, queue: MessageQueue, story: QueueStory
) -> Iterator[Anomaly]:
    sweep = _Sweep(stories, group, queue)
    moments = _moments(stories, group, queue, story)
    moments += [(d.event.at, _BEGAN, d) for d in story.deliveries]
    moments.sort(key=lambda moment: moment[:2])
    call: tuple[str, int, float] | None = None
    expected = 0
    for _, kind, what in moments:
        if not isinstance(what, Delivery):
            sweep.change(what)
        elif kind == _ENDED:
            sweep.finish(what.event.offset)
        else:
            event = what.event
            own = (event.member, event.call, event.at)
            if own != call:
                sweep.next = sweep.first_open(sweep.next, event.offset)
                call, expected = own, sweep.next
            expected = sweep.first_open(expected, event.offset)
            if expected < event.offset:
                text = f"{queue} offset {event.offset} was delivered before {expected} was finished"
                missing = [d.event for d in story.deliveries if d.event.offset == expected]
                yield Anomaly(AnomalyKind.REORDERED, text, (event, *missing))
                sweep.next = event.offset
            expected = max(expected, event.offset + 1)


def _forgot(stories: Stories, rules: Rules, call: MessageDelivered, until: float) -> bool:
    """Return whether a broker may have forgotten the lock under which a call began."""
    if rules.untold_ms is None:
        return False
    broker = call.queue.broker_name
    return stories.crashed(broker, call.at - rules.untold_ms, until) or stories.power_lost(
        broker, call.at - rules.exclusive_ms, until
    )


def _owned_twice(
    stories: Stories, rules: Rules, queue: MessageQueue, deliveries: list[Delivery]
) -> Iterator[Anomaly]:
    """Check that no call begins while another one runs that may rely on its lock."""
    running: Delivery | None = None
    until = 0.0
    for delivery in deliveries:
        event = delivery.event
        end = min(delivery.end, event.at + rules.exclusive_ms)
        if running is not None:
            first = running.event
            same = (event.member, event.call) == (first.member, first.call)
            forgot = _forgot(stories, rules, first, event.at)
            if not same and event.at < until and not forgot:
                text = f"{queue}: {event.member} began while {first.member} was at it"
                yield Anomaly(AnomalyKind.OWNED_TWICE, text, (first, event))
            if end <= until:
                continue
        running, until = delivery, end
