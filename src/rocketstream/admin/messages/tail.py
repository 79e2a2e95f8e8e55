"""The tail of a topic: arriving messages, decoded, masked and filtered.

Law: joins no group, stores no offset. Bounded: one question to each broker per round shows which
queues grew, and messages that arrive faster than they are read are passed over and counted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from rocketstream.admin.messages.bodies import AUTO, BodyFormat
from rocketstream.admin.messages.search import MessageFilter, read_range
from rocketstream.admin.messages.shown import ShownMessage
from rocketstream.admin.messages.viewing import MessageAdmin
from rocketstream.admin.service import question
from rocketstream.errors import ConfigurationError, RocketMQError
from rocketstream.model import MessageQueue

TAIL_BEHIND_MAX: Final = 1_000


TailPlace = Mapping[MessageQueue, int]
"""The place of a tail: the next offset of each queue."""


@dataclass(frozen=True, slots=True)
class TailRound:
    """The result of one round of a tail.

    Attributes:
        messages: the wanted messages, in order of store time.
        place: pass it to the next round.
        examined: how many messages were read.
        passed_over: how many messages were left out, because they came faster than they are read.
        problems: brokers that could not be asked; the next round asks them again.
    """

    messages: tuple[ShownMessage, ...]
    place: TailPlace
    examined: int
    passed_over: int = 0
    problems: tuple[str, ...] = ()


class TailAdmin(MessageAdmin):
    """The live tail of ``Admin``."""

    @question
    def tail(
        self,
        topic: str,
        place: TailPlace | None = None,
        *,
        wanted: MessageFilter | None = None,
        last: int = 0,
        behind_max: int = TAIL_BEHIND_MAX,
        how: BodyFormat = AUTO,
    ) -> TailRound:
        """Return what arrived since the last round; the first round only finds the queues' ends.

        Does not wait: call it again after, say, a fifth of a second, with the place of the previous
        round. Costs one request to each broker, and pulls from the queues that grew.

        Args:
            topic: the topic.
            place: the place of the previous round; None begins.
            wanted: leave out all other messages.
            last: begin this many messages before the end of each queue, up to ``behind_max``.
            behind_max: if a queue grew by more messages since the last round, the older ones are
                passed over.
            how: how bodies are decoded.

        Raises:
            RouteNotFoundError: the topic is unknown.
            ConfigurationError: the filter cannot be used, or a value is out of range.
        """
        test = (wanted or MessageFilter()).compiled()
        if behind_max < 1 or not 0 <= last <= behind_max:
            raise ConfigurationError(
                "behind_max must be 1 or more and last from 0 to behind_max; they are "
                f"{behind_max} and {last}"
            )
        problems: list[str] = []
        spans = self._tail_spans(topic, problems)
        if place is None:
            place = {queue: max(low, high - last) for queue, (low, high) in spans.items()}
        places = dict(place)
        found: list[ShownMessage] = []
        examined = passed = 0
        for queue, (low, high) in sorted(spans.items()):
            at = places.get(queue, low)
            if at > high:  # the topic was deleted and made again
                at = low
            begin = max(at, low, high - behind_max)
            try:
                messages = read_range(self, queue, (begin, high))
            except RocketMQError as error:
                problems.append(f"{queue}: {error.message}")
                continue
            passed += begin - at
            places[queue] = high
            examined += len(messages)
            shown = [self._showing.shown(message, how) for message in messages]
            found += [message for message in shown if test(message)]
        found.sort(key=lambda m: (m.store_ms, m.broker_name, m.queue_id, m.queue_offset))
        return TailRound(tuple(found), places, examined, passed, tuple(problems))

    def _tail_spans(self, topic: str, problems: list[str]) -> dict[MessageQueue, tuple[int, int]]:
        """Return the range of offsets in each queue, for the brokers that answer."""
        found: dict[MessageQueue, tuple[int, int]] = {}
        for name, address in self._wire.topic_masters(topic).items():
            try:
                table = self._wire.topic_stats(address, topic).offset_table
            except RocketMQError as error:
                problems.append(f"broker {name}: {error.message}")
                continue
            found |= {queue: (max(s.min_offset, 0), s.max_offset) for queue, s in table.items()}
        return found
