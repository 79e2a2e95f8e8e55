"""The evidence why a group is behind, asked from brokers and members within two seconds.

Law: questions not answered in time are reported as unknown. They run in parallel, each bounded;
``admin.core`` decides.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeVar

from rocketstream import limits
from rocketstream._util.stopping import wait_unless_stopped
from rocketstream.admin.core.causes import LETTERS_MS, explain
from rocketstream.admin.core.evidence import (
    Evidence,
    FilterSeen,
    LettersSeen,
    Look,
    Member,
    MessageFacts,
    arrival_tps,
    condition_seen,
    look_of,
    message_of,
    not_told,
    tags_seen,
)
from rocketstream.admin.core.joining import Matching
from rocketstream.admin.core.windows import MATCH_ALL
from rocketstream.admin.core.words import named
from rocketstream.admin.filtered import count_matching
from rocketstream.admin.letters.causes import CauseCount
from rocketstream.admin.rows import SubscriptionRow
from rocketstream.admin.service import Service
from rocketstream.admin.state import (
    GroupState,
    QueueKind,
    QueueState,
    WhyReport,
    permission,
)
from rocketstream.admin.sweep import Sweep
from rocketstream.admin.wire import questions
from rocketstream.admin.wire.looking import Asking
from rocketstream.errors import BrokerError, RocketMQError
from rocketstream.model import MessageQueue
from rocketstream.protocol import names
from rocketstream.protocol.subscription import parse_subscription

if TYPE_CHECKING:
    from rocketstream.protocol.message_ext import MessageExt

T = TypeVar("T")

APART_MS = 500
"""The time between two looks into members: a queue that stands still in both counts as standing."""
LOOK_TIMEOUT_MS = 900
"""A member that does not answer within this is reported as unknown; brokers would wait 10 s."""
LOOKS_MS = 1_800
"""Most time for two looks and the pause between them."""
QUEUES_READ_MAX = 8
"""Most queues whose next message is read."""
TAGS_READ_MAX = 32
"""Most of the newest messages read of a queue, to see which tags they have."""
ENTRIES_COUNTED_MAX = 20_000
"""Most of the newest messages of a queue that are counted by tag, and of a topic on which brokers
evaluate a condition, for which they read the messages.
"""
CONDITION_MS = 1_000
"""Most time brokers are given to evaluate a condition."""
RETRIES_READ_MAX = 16
"""Most of the newest messages read of a retry queue."""
LETTERS_READ_MAX = 32
"""Most of the newest dead letters read of a queue."""


class Why(Service):
    """Judges a group and finds out why it is behind."""

    @functools.cached_property
    def _sweep(self) -> Sweep:
        return Sweep(self._reach)

    def report(self, group: str, window: Sequence[GroupState]) -> WhyReport:
        """Find out why a group is behind; see ``Groups.why``."""
        names.check_group(group)
        for _ in range(2):
            began_ms = self._clock.monotonic_ms()
            evidence, seen = self._evidence(group, window)
            took_ms = round(self._clock.monotonic_ms() - began_ms)
            if took_ms <= limits.STANDSTILL_MS:
                break
            # Answers of an hour ago that are read now look as if members had done nothing since.
        state = _with_owners(evidence.state, evidence.members)
        return replace(explain(evidence, seen), took_ms=took_ms, state=state)

    # --- evidence ---------------------------------------------------------------------------------

    def _evidence(
        self, group: str, window: Sequence[GroupState]
    ) -> tuple[Evidence, list[GroupState]]:
        began_ms = self._clock.monotonic_ms()
        asking = _Asking(self, masters=self._wire.masters())
        with ThreadPoolExecutor(limits.ADMIN_LOOKS_AT_ONCE_MAX) as pool:
            asking.pool = pool
            looking = asking.start(asking.look_at_all, group)
            first = self._sweep.group(group, owners=False)
            reads = [asking.start(asking.next_of, queue) for queue in _oldest(first)]
            letters = asking.start(asking.letters_of, first)
            failed = [asking.start(asking.failed_of, queue) for queue in _retries(first)]
            permissions = asking.start(asking.permissions, first)
            closed = [asking.start(asking.is_closed, n, group) for n in asking.masters]
            filters = [asking.start(asking.filter_of, first, s) for s in _filters(first)]
            before = looking.result()
            second, after = first, before
            if before and (first.lag or first.queues_unknown):
                wait_unless_stopped(APART_MS / 1_000)
                again = asking.start(lambda: self._sweep.group(group, owners=False))
                left_ms = began_ms + LOOKS_MS - self._clock.monotonic_ms()
                told = [client for client, look in before.items() if isinstance(look, Look)]
                after = asking.look_at(group, told, max(left_ms, LOOK_TIMEOUT_MS / 3))
                second = again.result()
            members = _members(before, after, asking)
            seen = [*window, first, second]
            evidence = Evidence(
                second,
                first,
                members,
                permissions.result(),
                {at: message for each in reads for at, message in each.result()},
                tuple(m for each in failed for m in each.result()),
                arrival_tps(seen[max(len(seen) - 8, 0)], second),
                {found.topic: found for each in filters if (found := each.result()) is not None},
                letters=letters.result(),
                paused_at=tuple(name for each in closed if (name := each.result()) is not None),
            )
        unknown = (*second.errors, *dict.fromkeys(asking.unknown), *not_told(evidence))
        return replace(evidence, unknown=tuple(dict.fromkeys(unknown))), seen


@dataclass(slots=True)
class _Asking:
    """The questions of one report, on a few threads.

    Attributes:
        unknown: the questions that were not answered.
        addresses: the address of a broker each member is connected to.
        masters: address of each broker's master.
    """

    admin: Why
    pool: ThreadPoolExecutor = field(init=False)
    unknown: list[str] = field(default_factory=list)
    addresses: dict[str, str] = field(default_factory=dict)
    masters: dict[str, str] = field(default_factory=dict)

    def start(self, call: Callable[..., T], *arguments: object) -> Future[T]:
        """Run a call on a thread, in the caller's context, so that its end can be requested."""
        return self.pool.submit(copy_context().run, lambda: call(*arguments))

    # --- members ----------------------------------------------------------------------------------

    def look_at_all(self, group: str) -> dict[str, Look | str]:
        """Look into every member, as far as the bound allows."""
        for address in self.masters.values():
            try:
                connection = self.admin._wire.ask(address, questions.connection_of(group))
            except RocketMQError:
                continue  # the state says who did not answer, and that nobody is connected
            for member in connection.connection_set:
                self.addresses.setdefault(member.client_id, address)
        wanted = sorted(self.addresses)
        if len(wanted) > limits.ADMIN_LOOKS_MAX:
            self.unknown.append(
                f"{len(wanted) - limits.ADMIN_LOOKS_MAX} of {len(wanted)} members were not asked "
                "what they do: too many"
            )
        return self.look_at(group, wanted[: limits.ADMIN_LOOKS_MAX])

    def look_at(
        self, group: str, members: Iterable[str], timeout_ms: float = LOOK_TIMEOUT_MS
    ) -> dict[str, Look | str]:
        """Look into members in parallel; one that does not answer gets the error's text."""
        asked = {each: self.start(self._look, group, each, timeout_ms) for each in members}
        return {client_id: future.result() for client_id, future in asked.items()}

    def _look(self, group: str, client_id: str, timeout_ms: float) -> Look | str:
        try:
            asked = questions.running_of(group, client_id, jstack_enable=True)
            address = self.addresses[client_id]
            info = self.admin._wire.ask(address, asked, timeout_ms=round(timeout_ms))
        except BrokerError as error:
            # The words are the member's: an agent would take them for ours.
            return f"it was answered with code {error.code}"
        except RocketMQError as error:
            return str(error)
        return look_of(info, self.admin._clock.now_ms())

    # --- messages ---------------------------------------------------------------------------------

    def failed_of(self, queue: QueueState) -> list[MessageFacts]:
        """Return the newest messages of a retry queue, and the one the group stands at."""
        low, high = queue.min_offset or 0, queue.max_offset or 0
        offsets = range(max(high - RETRIES_READ_MAX, low), high)
        found = self._read(queue, offsets.start, len(offsets)) if offsets else []
        at = queue.committed_offset
        if at is not None and low <= at < offsets.start:
            found += self._read(queue, at, 1)
        return [message_of(message, queue) for message in found]

    def letters_of(self, state: GroupState) -> tuple[LettersSeen, ...]:
        """Return the newest dead letters of the last minutes, by cause, the most frequent first."""
        counted = CauseCount()
        for queue in state.of_kind(QueueKind.DEAD_LETTER):
            low, high = queue.min_offset or 0, queue.max_offset or 0
            start = max(high - LETTERS_READ_MAX, low)
            for letter in self._read(queue, start, high - start) if start < high else ():
                if state.taken_ms - letter.store_timestamp < LETTERS_MS:
                    counted.add(letter, is_redriven=False)
        return tuple(
            LettersSeen(
                tally.key.id,
                tally.key.cause,
                tally.key.where,
                tally.count,
                tally.example.keys or None,
            )
            for tally in counted.tallies()
        )

    def filter_of(self, state: GroupState, row: SubscriptionRow) -> FilterSeen | None:
        """Return which of the newest messages of a topic a group's filter matches."""
        found: list[MessageExt] = []
        queues = [q for q in state.of_kind(QueueKind.TOPIC) if q.topic == row.topic]
        for queue in queues:
            low, high = queue.min_offset or 0, queue.max_offset or 0
            start = max(high - TAGS_READ_MAX, low)
            if start < high and len(found) < QUEUES_READ_MAX * TAGS_READ_MAX:
                found += self._read(queue, start, TAGS_READ_MAX)
        if not found:
            return None
        if row.expression_type == "SQL92":
            seen = condition_seen(row, [message.properties for message in found])
            return self._evaluated(seen, queues)
        tags = tags_seen(row, [message.tags for message in found])
        return tags if tags.matching else self._looked_further(state, tags)

    def _evaluated(self, seen: FilterSeen, queues: Sequence[QueueState]) -> FilterSeen | None:
        """Let brokers evaluate a condition on the newest messages, until one matches."""
        ends_ms = self.admin._clock.monotonic_ms() + CONDITION_MS
        share = max(ENTRIES_COUNTED_MAX // len(queues), TAGS_READ_MAX)
        examined = 0
        for queue in queues:
            where = queue.key
            end = queue.max_offset or 0
            at = max(end - share, queue.min_offset or 0)
            while at < end:
                if self.admin._clock.monotonic_ms() > ends_ms:
                    self.unknown.append(
                        f"whether the condition of {seen.topic} matches anything: brokers took "
                        f"over {CONDITION_MS} ms for {examined} messages"
                    )
                    return None
                before = at
                try:
                    address = self.masters[queue.broker_name]
                    matching, at = self.admin._wire.pull(
                        address, names.TOOLS_CONSUMER_GROUP, where, at, 1, seen.expression
                    )
                except (RocketMQError, KeyError) as error:
                    self.unknown.append(f"what the condition of {seen.topic} wants: {error}")
                    return None
                if matching:
                    return replace(seen, examined=examined + 1, matching=1)
                examined += min(at, end) - before
        return replace(seen, examined=examined)

    def _looked_further(self, state: GroupState, seen: FilterSeen) -> FilterSeen | None:
        """Count matches in the index: a filter that matches one message in thousands is healthy."""
        examined = matching = 0
        for queue in state.of_kind(QueueKind.TOPIC):
            low, high = queue.min_offset or 0, queue.max_offset or 0
            if queue.topic != seen.topic or low >= high:
                continue
            start = max(high - ENTRIES_COUNTED_MAX, low)
            asking = Asking(
                self.admin._client, self.masters[queue.broker_name], self.admin._timeout_ms
            )
            part = replace(queue, committed_offset=start, min_offset=low)
            wanted = parse_subscription(seen.topic, seen.expression, 0)
            try:
                configs = self.admin._wire.ask(asking.address, questions.TOPICS)
                config = configs.get(seen.topic)
                counted = count_matching(asking, part, wanted, config=config)
            except (RocketMQError, KeyError) as error:
                counted = Matching(error=str(error))
            if counted.count is None:
                self.unknown.append(f"what the filter of {seen.topic} wants: {counted.error}")
                return None
            examined += high - start
            matching += counted.count.high
        return replace(seen, examined=examined, matching=matching)

    def next_of(self, queue: QueueState) -> list[tuple[MessageQueue, MessageFacts]]:
        """Return the message a group stands at in a queue; nothing where none could be read."""
        at = max(queue.committed_offset or 0, queue.min_offset or 0)
        if queue.max_offset is None or at >= queue.max_offset:
            return []
        return [(queue.key, message_of(m, queue)) for m in self._read(queue, at, 1)]

    def _read(self, queue: QueueState, at: int, most: int) -> list[MessageExt]:
        where = queue.key
        try:
            address = self.masters[queue.broker_name]
            found = self.admin._wire.pull(address, names.TOOLS_CONSUMER_GROUP, where, at, most)[0]
            # Sentences name messages by their keys: masked keys stay masked here.
            return [self.admin._showing.masked(message) for message in found]
        except (RocketMQError, KeyError) as error:
            self.unknown.append(f"messages of {where} could not be read: {error}")
            return []

    def is_closed(self, broker_name: str, group: str) -> str | None:
        """Return the broker's name if its settings refuse the group's pulls."""
        try:
            configs = self.admin._wire.ask(self.masters[broker_name], questions.GROUPS)
        except RocketMQError as error:
            self.unknown.append(f"the group's settings at {broker_name}: {error}")
            return None
        config = configs.get(group)
        return broker_name if config is not None and not config.consume_enable else None

    def permissions(self, state: GroupState) -> dict[tuple[str, str], str]:
        """Return the permissions of a group's topics, according to their routes."""
        found: dict[tuple[str, str], str] = {}
        topics = {s.topic for s in state.subscriptions}
        topics |= {q.topic for q in state.of_kind(QueueKind.TOPIC, QueueKind.RETRY)}
        for topic in sorted(topics):
            try:
                route = self.admin._wire.route(topic)
            except RocketMQError as error:
                self.unknown.append(f"the route of {topic} could not be asked: {error}")
                continue
            for data in route.queue_datas:
                found[topic, data.broker_name] = permission(data.perm)
        return found


def _members(
    before: Mapping[str, Look | str], after: Mapping[str, Look | str], asking: _Asking
) -> tuple[Member, ...]:
    found: list[Member] = []
    for client_id, first in before.items():
        second = after.get(client_id, first)
        error = next((each for each in (second, first) if isinstance(each, str)), None)
        if error is not None:
            who = named(client_id, "of another name")
            asking.unknown.append(f"member {who} did not tell what it does: {error}")
        looks = (look if isinstance(look, Look) else None for look in (first, second))
        found.append(Member(client_id, next(looks), next(looks), error))
    return tuple(found)


def _with_owners(state: GroupState, members: Iterable[Member]) -> GroupState:
    """Return the state with the owner of each queue that a member says it has."""
    owners = {
        queue: member.client_id
        for member in members
        if member.look is not None
        for queue, held in member.look.queues.items()
        if not held.dropped
    }
    queues = (replace(q, client_id=q.client_id or owners.get(q.key)) for q in state.queues)
    return replace(state, queues=tuple(queues))


def _oldest(state: GroupState) -> list[QueueState]:
    """Return the queues whose next message has waited longest."""
    found = [q for q in state.of_kind(QueueKind.TOPIC, QueueKind.RETRY) if q.lag]
    found.sort(key=lambda queue: -(queue.time_lag_ms(state.taken_ms) or 0))
    return found[:QUEUES_READ_MAX]


def _retries(state: GroupState) -> list[QueueState]:
    return [queue for queue in state.of_kind(QueueKind.RETRY) if queue.max_offset]


def _filters(state: GroupState) -> list[SubscriptionRow]:
    """Return the subscriptions that want only some messages, one per topic."""
    found = {
        s.topic: s
        for s in reversed(state.subscriptions)
        if s.expression_type in {"TAG", "SQL92"}
        and s.expression.strip() not in MATCH_ALL
        and not s.topic.startswith(names.RETRY_PREFIX)
    }
    return list(found.values())
