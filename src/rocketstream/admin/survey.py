"""The questions one broker is asked in a sweep, in the order that keeps it cheap.

Law: a refusal is noted as the reason for the missing figures; silence ends the survey, and earlier
answers stay. One connection has several requests under way; ``admin.core`` decides what the answers
mean.

The price of a sweep for a broker (request codes in brackets): five requests for its settings and
all offsets (28, 21, 201, 43, 45) and one for its clock; one a group for its members (203); one a
topic for its queues (202); and where a group is behind, one for each topic for lag in time (303),
unless it stands where it stood in the sweep before. GET_CONSUME_STATS (208) would read a message
from the disk for every queue of every group, GET_BROKER_CONSUME_STATS (317) all of them within one
request.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from rocketstream import limits
from rocketstream._util.clock import Clock
from rocketstream.admin.core import joining
from rocketstream.admin.core.joining import BrokerAnswers
from rocketstream.admin.filtered import count_matching, has_filter
from rocketstream.admin.service import BrokerMemory, spot
from rocketstream.admin.state import QueueState, TopicQueue
from rocketstream.admin.wire import questions
from rocketstream.admin.wire.looking import Asking
from rocketstream.client.instance.questions import max_offset, min_offset
from rocketstream.errors import (
    AccessDeniedError,
    ConsumerNotOnlineError,
    RocketMQError,
    TopicNotExistError,
    TransportError,
)
from rocketstream.model import MessageQueue
from rocketstream.protocol import names
from rocketstream.protocol.properties import PROPERTY_REAL_TOPIC

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rocketstream.protocol.bodies import QueueTimeSpan

T = TypeVar("T")
CLOCK_GROUP = "ROCKETSTREAM_CLOCK"
"""A group that nobody consumes with; see ``Survey._ask_clock``."""


@dataclass(frozen=True, slots=True)
class SweepScope:
    """The scope of a sweep.

    Attributes:
        wanted: returns whether a group is wanted.
        topics: only these topics; None for all.
        all_topics: also topics no wanted group consumes.
        owners: also ask members which queues they hold.
        entries_max: entries of consume queues to look at for a group's filter; 0 for no look.
        tps: also ask how fast messages are delivered to groups.
    """

    wanted: Callable[[str], bool]
    topics: frozenset[str] | None = None
    all_topics: bool = False
    owners: bool = False
    entries_max: int = 0
    tps: bool = False

    def wants_topic(self, topic: str) -> bool:
        """Return whether a topic is wanted."""
        return self.topics is None or topic in self.topics


class Survey:
    """Asks one broker everything a sweep needs of it; used once.

    Args:
        memory: answers kept from earlier sweeps.
    """

    def __init__(
        self,
        broker: BrokerAnswers,
        asking: Asking,
        memory: BrokerMemory,
        scope: SweepScope,
        clock: Clock,
    ) -> None:
        self._broker = broker
        self._asking = asking
        self._memory = memory
        self._scope = scope
        self._clock = clock
        self._groups: list[str] = []

    def run(self) -> None:
        """Ask; blocks until everything is answered or the broker is silent for one timeout."""
        broker = self._broker
        try:
            self._ask_settings()
            self._groups = [g for g in groups_at(broker) if self._scope.wanted(g)]
            self._ask_members()
            if "offsets" in broker.refused:
                self._ask_stats_instead()
            self._ask_ends()
            self._memory.compare_ends(broker)
            self._ask_times()
            self._ask_delayed()
            if not self._scope.all_topics:
                broker.ends.pop(names.SCHEDULE_TOPIC, None)  # nobody asked for it
            if self._scope.entries_max:
                self._ask_matching()
            if self._scope.tps:
                self._ask_tps()
        except (TransportError, AccessDeniedError) as error:
            keep_failure(broker, error)

    # --- settings, members, queues ----------------------------------------------------------------

    def _ask_settings(self) -> None:
        broker, asking = self._broker, self._asking
        keep_facts(broker, let_in(asking.one(questions.RUNTIME)))
        broker.topics = self._told("topics", asking.one(questions.TOPICS))
        broker.groups = self._told("groups", asking.one(questions.GROUPS))
        offsets = asking.one(questions.OFFSETS)
        delays = asking.one(questions.DELAY_OFFSETS)
        if isinstance(offsets, RocketMQError):
            text = f"whether 0 is a committed offset is not known: {offsets}"
            broker.refused["offsets"] = text
        else:
            broker.offsets = joining.by_group(offsets)
        broker.delays = None if isinstance(delays, RocketMQError) else delays

    def _told(self, what: str, answer: T | RocketMQError) -> T | None:
        if not isinstance(answer, RocketMQError):
            return answer
        self._broker.refused[what] = (
            f"broker {self._broker.name} does not tell its {what}: {answer}"
        )
        return None

    def _ask_stats_instead(self) -> None:
        """Ask for each group's offsets (208) where the broker refuses all of them together (43).

        The answer is 0 where no offset is stored, so 0 counts as unknown (C-527).
        """
        broker = self._broker
        found: dict[str, dict[str, dict[int, int]]] = {}
        answers = self._asking.each([questions.stats_of(group) for group in self._groups])
        for group, answer in zip(self._groups, answers, strict=True):
            if isinstance(answer, RocketMQError):
                continue
            for queue, held in answer.offset_table.items():
                topic = found.setdefault(group, {}).setdefault(queue.topic, {})
                if held.consumer_offset > 0:
                    topic[queue.queue_id] = held.consumer_offset
        broker.offsets = found

    def _ask_members(self) -> None:
        broker = self._broker
        answers = self._asking.each([questions.connection_of(group) for group in self._groups])
        for group, answer in zip(self._groups, answers, strict=True):
            if isinstance(answer, ConsumerNotOnlineError):
                continue
            if isinstance(answer, RocketMQError):
                text = f"members are not known: {answer}"
                broker.refused[joining.about_members(group)] = text
                continue
            broker.connections[group] = answer

    def _ask_ends(self) -> None:
        broker = self._broker
        topics = {topic for group in self._groups for topic in self._topics_of(group)}
        if self._scope.all_topics:
            topics |= {topic for topic in broker.topics or () if self._scope.wants_topic(topic)}
        if self._groups and broker.delays is not None:
            topics.add(names.SCHEDULE_TOPIC)
        wanted = sorted(topics)
        answers = self._asking.each([questions.ends_of(topic) for topic in wanted])
        for topic, answer in zip(wanted, answers, strict=True):
            if isinstance(answer, TopicNotExistError):
                continue
            if isinstance(answer, RocketMQError):
                broker.refused[joining.about_ends(topic)] = f"queues are not known: {answer}"
                continue
            broker.ends[topic] = {queue.queue_id: queue for queue in answer.values()}
        self._ask_hidden_ends(wanted)

    def _ask_hidden_ends(self, topics: Iterable[str]) -> None:
        """Ask for queues that are only read: 4.9 reports (202) only written ones, too few while a
        topic is being given fewer queues.
        """
        broker = self._broker
        hidden = []
        for topic in topics:
            config = (broker.topics or {}).get(topic)
            if config is not None and topic in broker.ends:
                ids = range(config.read_queue_nums)
                unheard = [i for i in ids if i not in broker.ends[topic]]
                hidden += [MessageQueue(topic, broker.name, i) for i in unheard]
        lows = self._asking.each([min_offset(queue) for queue in hidden])
        highs = self._asking.each([max_offset(queue) for queue in hidden])
        for (topic, _, queue_id), low, high in zip(hidden, lows, highs, strict=True):
            if not isinstance(low, RocketMQError) and not isinstance(high, RocketMQError):
                queue = TopicQueue(topic, broker.name, queue_id, max(low, 0), max(high, 0), None)
                broker.ends[topic] = {**broker.ends[topic], queue_id: queue}

    # --- lag in time ------------------------------------------------------------------------------

    def _ask_times(self) -> None:
        """Find out when the next message was stored, wherever a group is behind."""
        broker = self._broker
        asked: list[tuple[str, str, list[QueueState]]] = []
        for group, topic in self._consumed():
            untold = [q for q in self._behind(group, topic) if not self._remembered(group, q)]
            if untold:
                asked.append((group, topic, untold))
        if asked or self._memory.ahead_ms is None:
            self._ask_clock()
        broker.ahead_ms = self._memory.ahead_ms
        answers = self._asking.each([questions.span_of(topic, group) for group, topic, _ in asked])
        now_ms = self._clock.now_ms() + (broker.ahead_ms or 0)
        alone: list[tuple[str, QueueState]] = []
        for (group, topic, behind), answer in zip(asked, answers, strict=True):
            if isinstance(answer, TopicNotExistError):
                continue  # deleted meanwhile
            if isinstance(answer, RocketMQError):
                text = f"lag in time is not known: {answer}"
                broker.refused[joining.about_times(group, topic)] = text
                continue
            spans = {
                s.message_queue.queue_id: s for s in answer.consume_time_span_set if s.message_queue
            }
            alone += self._take_times(group, behind, spans, now_ms)
        self._ask_times_alone(alone)

    def _ask_clock(self) -> None:
        """Find out by how much the broker's clock differs from ours, as far as Apache's reveals it.

        Ages (303) and store times are by that clock, but no request returns its time. For a group
        without an offset it takes -1 for the store time of the next message, so that the age it
        answers is its time plus 1. Our broker answers 0.
        """
        broker = self._broker
        full = (
            t for t, ends in broker.ends.items() if any(e.max_offset > 0 for e in ends.values())
        )
        topic = next(full, None)
        if topic is None:
            return
        answer = self._asking.one(questions.span_of(topic, CLOCK_GROUP))
        if not isinstance(answer, RocketMQError):
            newest = max((s.delay_time for s in answer.consume_time_span_set), default=0)
            if newest > max(s.max_time_stamp for s in answer.consume_time_span_set):
                self._memory.ahead_ms = newest - 1 - self._clock.now_ms()

    def _remembered(self, group: str, queue: QueueState) -> bool:
        times = self._memory.times_at(queue)
        if times is not None:
            self._broker.times[group, queue.topic, queue.queue_id] = times
        return times is not None

    def _take_times(
        self,
        group: str,
        behind: Iterable[QueueState],
        spans: Mapping[int, QueueTimeSpan],
        now_ms: int,
    ) -> list[tuple[str, QueueState]]:
        """Note the times in an answer; return the queues it does not cover."""
        untold = []
        for queue in behind:
            span = spans.get(queue.queue_id)
            if span is None:
                untold.append((group, queue))
                continue
            times = joining.times_of(queue, span, now_ms)
            self._broker.times[group, queue.topic, queue.queue_id] = times
            self._memory.keep_times(queue, times)
        return untold

    def _ask_times_alone(self, queues: Sequence[tuple[str, QueueState]]) -> None:
        """Read the next message of queues that are only read: 303 covers only written ones."""
        spots = [spot(queue) for _, queue in queues]
        entries = self._asking.each([questions.entries_of(*place, 1) for place in spots])
        found = [
            (group, queue, entry.physical[0])
            for (group, queue), entry in zip(queues, entries, strict=True)
            if not isinstance(entry, RocketMQError) and entry.physical
        ]
        messages = self._asking.each([questions.message_at(at) for _, _, at in found])
        for (group, queue, _), message in zip(found, messages, strict=True):
            if not isinstance(message, RocketMQError):
                times = (message.store_timestamp, None)
                self._broker.times[group, queue.topic, queue.queue_id] = times
                self._memory.keep_times(queue, times)

    # --- messages waiting for their delay ---------------------------------------------------------

    def _ask_delayed(self) -> None:
        """Read which group each message waiting in the delay topic is of, each once.

        A message sent back waits in SCHEDULE_TOPIC_XXXX, in the queue of its delay level, whose
        index has the due times but not the groups. 5.x keeps them there too: only messages with a
        delivery time go to the timer's topic.
        """
        broker = self._broker
        retries = {names.retry_topic(group) for group in self._groups}
        if broker.delays is None or (
            broker.topics is not None and not retries & set(broker.topics)
        ):
            broker.delayed = {} if broker.delays is not None else None
            return
        room = limits.ADMIN_DELAYED_READ_MAX
        wanted: list[tuple[int, int]] = []
        for queue_id, held in sorted(broker.ends.get(names.SCHEDULE_TOPIC, {}).items()):
            level = queue_id + 1
            first = max(broker.delays.get(level, 0), held.min_offset)
            known = self._memory.forget_delivered(level, first)
            fresh = range(known.stop, held.max_offset)
            taken = fresh[: room - len(wanted)]
            wanted += [(level, offset) for offset in taken]
            broker.delayed_is_exact &= len(taken) == len(fresh)
        self._read_delayed(wanted)
        broker.delayed = self._memory.delayed_by_topic()

    def _read_delayed(self, wanted: Sequence[tuple[int, int]]) -> None:
        # Neighbours go into one request: the messages of a level are consecutive.
        runs: dict[int, list[int]] = {}
        for level, offset in wanted:
            runs.setdefault(level, []).append(offset)
        asked = [
            questions.entries_of(names.SCHEDULE_TOPIC, level - 1, offsets[0], len(offsets))
            for level, offsets in runs.items()
        ]
        places: list[tuple[int, int, int]] = []
        for (level, offsets), entries in zip(runs.items(), self._asking.each(asked), strict=True):
            if isinstance(entries, RocketMQError):
                self._broker.delayed_is_exact = False
                continue
            pairs = list(zip(offsets, entries.physical, strict=False))
            self._broker.delayed_is_exact &= len(pairs) == len(offsets)
            places += [(level, offset, physical) for offset, physical in pairs]
        answers = self._asking.each([questions.message_at(at) for _, _, at in places])
        for (level, offset, _), message in zip(places, answers, strict=True):
            topic = ""
            if not isinstance(message, RocketMQError):
                topic = message.properties.get(PROPERTY_REAL_TOPIC, "")
            retried = topic.startswith(names.RETRY_PREFIX)
            self._memory.delayed[level][offset] = topic if retried else ""

    # --- filters and rates ------------------------------------------------------------------------

    def _ask_matching(self) -> None:
        """Count the messages filters want, wherever a group with a filter is behind."""
        broker = self._broker
        for group in self._groups:
            topics = self._topics_of(group)
            for topic, subscription in broker.subscribed(group).items():
                if not has_filter(subscription) or topic not in topics:
                    continue
                behind = self._behind(group, topic)
                config = (broker.topics or {}).get(topic)
                for queue in behind:
                    most = self._scope.entries_max // len(behind)
                    found = count_matching(self._asking, queue, subscription, most, config=config)
                    broker.matching[group, topic, queue.queue_id] = found

    def _ask_tps(self) -> None:
        asked = list(self._consumed())
        answers = self._asking.each([questions.stats_of(group, topic) for group, topic in asked])
        for place, answer in zip(asked, answers, strict=True):
            if not isinstance(answer, RocketMQError):
                self._broker.tps[place] = answer.consume_tps

    # --- parts ------------------------------------------------------------------------------------

    def _topics_of(self, group: str) -> list[str]:
        found = joining.topics_of(group, self._broker)
        return [topic for topic in found if self._scope.wants_topic(topic)]

    def _consumed(self) -> Iterable[tuple[str, str]]:
        for group in self._groups:
            for topic in self._topics_of(group):
                if topic != names.dlq_topic(group):
                    yield group, topic

    def _behind(self, group: str, topic: str) -> list[QueueState]:
        states = joining.queues_of(group, topic, self._broker)
        return [state for state in states if joining.is_behind(state)]


def groups_at(broker: BrokerAnswers) -> list[str]:
    """Return the groups a broker knows."""
    return sorted({*(broker.groups or ()), *(broker.offsets or ())})


def keep_facts(broker: BrokerAnswers, told: Mapping[str, str] | RocketMQError) -> None:
    """Keep a broker's report about itself, or why there is none."""
    if isinstance(told, RocketMQError):
        broker.refused["facts"] = f"broker {broker.name} does not tell of itself: {told}"
    else:
        broker.facts = told


def let_in(answer: T | RocketMQError) -> T | RocketMQError:
    """Return the answer, unless it refuses access.

    Raises:
        AccessDeniedError: the broker answers nothing to these keys, or nothing without keys.
    """
    if isinstance(answer, AccessDeniedError) and not answer.knows_who:
        raise answer
    return answer


def keep_failure(broker: BrokerAnswers, error: TransportError | AccessDeniedError) -> None:
    """Keep why a broker cannot be asked any more."""
    broker.failure = error
    if isinstance(error, AccessDeniedError):
        broker.error = f"broker {broker.name}: {error}"
    else:
        broker.error = f"broker {broker.name} at {broker.master} does not answer: {error}"
