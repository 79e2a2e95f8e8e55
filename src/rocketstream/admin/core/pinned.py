"""RocketMQ's own stuck case: one message never leaves a process queue while others go on.

Pure: two looks into a member in, a decision out. A message is called pinned only when it is held
for longer than a backlog, a slow listener or threads finishing out of order explain.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rocketstream.admin.core.evidence import (
    Evidence,
    HeldQueue,
    Look,
    Member,
    MessageFacts,
    TopicRates,
    is_same_time,
)
from rocketstream.admin.core.stacks import ThreadStack, busy_listeners
from rocketstream.admin.state import PinnedMessage, QueueState
from rocketstream.model import MessageQueue

HELD_MS = 30_000
"""A message in a listener's hands for less than this is being worked on."""
SLOWER = 3
"""A message in a listener's hands for less than this many mean calls is being worked on, too."""
MINUTE_MS = 60_000
"""Members report how many messages they pulled and finished over a minute."""
ROUNDING = 1.1
"""A member's minute may be up to ten seconds longer."""
ONE_PULL = 32
SPAN_MAX = 2_000
"""The span of held offsets at which a member stops pulling until the first one is finished."""
STEADY = (0.3, 2.0)
"""A member that finishes this many times the arriving messages neither falls behind nor catches up.
"""


def find_pinned(
    evidence: Evidence, stands_ms: Mapping[MessageQueue, int] | None = None
) -> list[PinnedMessage]:
    """Return the messages that are pinned, the one held longest first.

    Args:
        evidence: two looks into members; members that answered fewer are left out.
        stands_ms: for how long each watched queue was seen standing still, in ms.
    """
    state = evidence.state
    queues = {MessageQueue(q.topic, q.broker_name, q.queue_id): q for q in state.queues}
    found: list[PinnedMessage] = []
    for member in evidence.members:
        first, second = member.first, member.second
        if first is None or second is None or second.is_orderly:
            continue
        stack = _stack(state.group, first, second)
        for at, held in second.queues.items():
            queue, before = queues.get(at), first.queues.get(at)
            if queue is None or before is None or not _is_held(queue, before, held):
                continue
            case = _Case(evidence, queue, first, second, before, held)
            stood_ms = (stands_ms or {}).get(at, 0) if queue.committed_offset == held.first else 0
            held_ms = case.held_ms(stood_ms)
            if held_ms is not None:
                message = evidence.messages.get(at)
                found.append(_pinned(member, at, held, held_ms, case.behind, message, stack))
    return sorted(found, key=lambda each: -each.held_ms)


def _is_held(queue: QueueState, before: HeldQueue, held: HeldQueue) -> bool:
    """Return whether the same message was the first at both looks, and holds the offset back."""
    if held.first is None or held.first != before.first or held.dropped:
        return False
    return queue.committed_offset is not None and queue.committed_offset <= held.first


@dataclass(frozen=True, slots=True)
class _Case:
    """A queue whose first message was the same at both looks."""

    evidence: Evidence
    queue: QueueState
    first: Look
    second: Look
    before: HeldQueue
    held: HeldQueue

    @property
    def rates(self) -> TopicRates:
        return self.second.rates.get(self.queue.topic) or TopicRates()

    def held_ms(self, stood_ms: int) -> int | None:
        """Return how many ms at least a listener has had the message; None if not proven."""
        rates = self.rates
        if not rates.consume_ms and not rates.ok_tps and not self.behind:
            return None  # nothing shows that listeners return sooner than that
        enough = max(HELD_MS, SLOWER * rates.consume_ms)
        if stood_ms >= enough and self._is_in_hand:
            return stood_ms
        if (quiet_ms := self._quiet_ms()) >= enough:
            return quiet_ms
        since_ms = self._since_stored_ms()
        if enough > MINUTE_MS or since_ms < MINUTE_MS:
            return None  # members tell their rates over a minute
        passed_ms = MINUTE_MS if self._alone_for_a_minute() else min(self._passed_ms(), MINUTE_MS)
        if passed_ms < enough:
            return None
        return since_ms if self.all_pulled else round(passed_ms)

    @property
    def behind(self) -> int:
        """The least number of messages behind the first that were pulled and finished."""
        held, queue = self.held, self.queue
        if (held.first or 0) < (queue.min_offset or 0):
            return 0  # a gap of messages that were deleted looks like finished ones
        unread = 0 if self._pull_waits else ONE_PULL
        if any(s.topic == queue.topic and s.expression != "*" for s in self.second.subscriptions):
            # Gaps of a filter look like finished messages; wanted ones may have been counted.
            if queue.matching is None or not queue.matching_is_exact or not self.all_pulled:
                return 0
            return max(queue.matching - held.held - unread, 0)
        if not self.all_pulled or queue.max_offset is None:
            return held.finished_behind
        pulled = queue.max_offset - (held.first or 0) - unread
        return max(held.finished_behind, pulled - held.held)

    def _quiet_ms(self) -> int:
        """Return how many ms nothing of the queue was finished, although something behind it was.

        The messages finished behind it were handed out later; so it was in a listener's hands when
        the last of them was finished. Where a thread is free, it does not wait for others.
        """
        in_hand = sum(held.held for held in self.second.queues.values())
        last_ms, now_ms = self.held.last_consume_ms, self.second.now_ms
        if not self.behind or in_hand >= self.second.pool_size or not self._all_in_hand:
            return 0
        return 0 if last_ms is None or now_ms is None else now_ms - last_ms

    def _passed_ms(self) -> float:
        """Return how many ms it takes to finish as many messages as were finished behind it.

        Messages of a queue are handed out in order, so all of them were finished since it was. The
        member tells its rate for the whole topic: a queue has its share of it, up to twice that, or
        as many as arrive there.
        """
        if not self.behind:
            return 0.0
        queue, earlier = self.queue, self.evidence.earlier
        finished = (self.rates.ok_tps + self.rates.failed_tps) * ROUNDING
        owned = max(sum(at.topic == queue.topic for at in self.second.queues), 1)
        share = min(finished, 2 * finished / owned)
        if earlier is not None and (took_ms := self.evidence.state.taken_ms - earlier.taken_ms):
            before = next((q for q in earlier.queues if q.key == queue.key), None)
            came = (queue.max_offset or 0) - ((before.max_offset if before else None) or 0)
            share = min(finished, max(share, came * 1_000 / took_ms)) if before else share
        return self.behind * 1_000 / share if share else float(MINUTE_MS)

    def _alone_for_a_minute(self) -> bool:
        """Whether nothing was pulled or finished for a minute: it had a thread that long."""
        rates = self.rates
        idle = not (rates.pull_tps or rates.ok_tps or rates.failed_tps)
        return idle and rates.consume_ms > 0 and self._all_in_hand and self._has_run_long

    @property
    def _is_in_hand(self) -> bool:
        """Whether a thread must have it: others behind it were finished, or all held ones are."""
        in_hand = self.second.pool_size * self.second.batch_size
        held = sum(each.held for each in self.second.queues.values())
        return self.behind > 0 or held <= in_hand

    @property
    def all_pulled(self) -> bool:
        """Whether the member takes messages as they come, and all it has are in its hands."""
        if not self._all_in_hand or self._is_flow_controlled:
            return False
        if self._pull_waits:
            return True
        age_ms = self.queue.time_lag_ms(self.evidence.state.taken_ms) or 0
        if age_ms < HELD_MS or not self._has_run_long:
            return False
        owned = sum(at.topic == self.queue.topic for at in self.second.queues)
        arrives = (self.queue.lag or 0) * 1_000 / age_ms * owned
        low, high = STEADY
        return low * arrives <= self.rates.ok_tps <= high * arrives

    @property
    def _all_in_hand(self) -> bool:
        in_hand = self.second.pool_size * self.second.batch_size
        return max(self.before.held, self.held.held) <= in_hand

    @property
    def _pull_waits(self) -> bool:
        """Whether its pull waits at the broker, so that there is nothing more to pull."""
        return is_same_time(self.before.last_pull_ms, self.held.last_pull_ms)

    @property
    def _is_flow_controlled(self) -> bool:
        first, last = self.held.first or 0, self.held.last or 0
        full = self.held.held_mib >= self.second.threshold_mib > 0
        return full or last - first >= SPAN_MAX or self.held.held >= self.second.threshold

    @property
    def _has_run_long(self) -> bool:
        """Whether the member has run for longer than its figures reach back."""
        started_ms, now_ms = self.second.started_ms, self.second.now_ms
        return started_ms is not None and now_ms is not None and now_ms - started_ms > MINUTE_MS

    def _since_stored_ms(self) -> int:
        """Return how many ms ago the message was stored, or the member started if later."""
        age_ms = self.queue.time_lag_ms(self.evidence.state.taken_ms) or 0
        started_ms, now_ms = self.second.started_ms, self.second.now_ms
        if started_ms is not None and now_ms is not None:
            age_ms = min(age_ms, now_ms - started_ms)
        return age_ms


def _pinned(
    member: Member,
    at: MessageQueue,
    held: HeldQueue,
    held_ms: int,
    behind: int,
    message: MessageFacts | None,
    stack: str | None,
) -> PinnedMessage:
    assert held.first is not None
    if message is not None and message.queue_offset != held.first:
        message = None
    return PinnedMessage(
        at.topic,
        at.broker_name,
        at.queue_id,
        held.first,
        member.client_id,
        held_ms,
        behind,
        None if message is None else message.msg_id,
        None if message is None else message.keys,
        stack,
    )


def _stack(group: str, first: Look, second: Look) -> str | None:
    """Return the stack of the listener thread that stood at the same place at both looks."""
    before = {t.name: t.listener for t in busy_listeners(first.threads, group)}
    stuck = [t for t in busy_listeners(second.threads, group) if before.get(t.name) == t.listener]
    return _rarest(stuck).text() if stuck else None


def _rarest(threads: Sequence[ThreadStack]) -> ThreadStack:
    """Return the thread whose place is the rarest: the others may only be slow."""
    places = [thread.place for thread in threads]
    return min(threads, key=lambda thread: (places.count(thread.place), thread.name))
