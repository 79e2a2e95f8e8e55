"""Dead letters by cause: which messages a group gave up and why, counted.

Law: nothing leaves here unmasked. ``core.letter_causes`` decides which letters share a cause.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, overload

from rocketstream.admin.core.again import LetterFilter, progress_group
from rocketstream.admin.core.letter_causes import CauseCount, CauseKey, Tally, key_of
from rocketstream.admin.letters.redrive import RedriveAdmin
from rocketstream.admin.messages.shown import ShownMessage
from rocketstream.admin.service import question
from rocketstream.admin.sweep import Sweep
from rocketstream.errors import RouteNotFoundError
from rocketstream.protocol.cause import PROPERTY_SEND_BACK_CAUSE, PROPERTY_SEND_BACK_WHERE
from rocketstream.protocol.message_ext import MessageExt
from rocketstream.protocol.names import retry_topic

LETTERS_MAX: Final = 100_000

_Tables = Mapping[str, Mapping[str, Mapping[int, int]]]
"""Offsets by broker, ``topic@group`` and queue."""


@dataclass(frozen=True, slots=True)
class LetterCause:
    """Dead letters of one cause.

    Attributes:
        id: identifies the cause; ``LetterFilter(cause=…)`` accepts it.
        is_told: whether the consumer recorded the cause; if not, the letters share origin, tag and
            number of tries.
        cause: the exception, without the parts that differ from letter to letter.
        where: the file, line and function that raised it; None where they are not recorded.
        count: how many letters.
        redriven: how many of them redrives of this cause, or of all, have sent again.
        stale: how many letters have the cause of an earlier try, because the client that failed the
            last one does not record causes.
        first_ms: when the first was given up, ms since 1970.
        last_ms: when the last was given up, ms since 1970.
        topics: how many letters by the topic they were consumed from; None stands for an unknown
            one.
        tag: the tag, where nothing else is recorded.
        tries: how often they were sent back, where nothing else is recorded.
        example: the last letter.
    """

    id: str
    is_told: bool
    cause: str
    where: str | None
    count: int
    redriven: int
    stale: int
    first_ms: int
    last_ms: int
    topics: Mapping[str | None, int]
    tag: str | None
    tries: int | None
    example: ShownMessage


@dataclass(frozen=True, slots=True)
class LetterCauses(Sequence[LetterCause]):
    """The causes of a group's dead letters, the most frequent first.

    Attributes:
        causes: the causes with their counts.
        letters: how many letters were counted.
        kept: how many letters the dead-letter topic holds, including those left out.
        is_complete: whether all kept letters were looked at.
    """

    group: str
    causes: tuple[LetterCause, ...]
    letters: int
    kept: int
    is_complete: bool

    @overload
    def __getitem__(self, index: int) -> LetterCause: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[LetterCause]: ...
    def __getitem__(self, index: int | slice) -> LetterCause | Sequence[LetterCause]:
        return self.causes[index]

    def __len__(self) -> int:
        return len(self.causes)


class Letters(RedriveAdmin):
    """``Admin.letters``."""

    @question
    def by_cause(
        self, group: str, wanted: LetterFilter | None = None, *, most: int = LETTERS_MAX
    ) -> LetterCauses:
        """Return the causes of a group's dead letters.

        Reads the newest letters of each queue, at most ``most`` of each.

        Args:
            group: the consumer group.
            wanted: which letters; None for all.
            most: how many letters are read of each queue at most.

        Raises:
            ConfigurationError: no broker knows the group.
        """
        try:
            run = self._run(group, wanted, None, None, None)
        except RouteNotFoundError:
            # No such topic: the group gave nothing up, or there is no such group.
            Sweep(self._reach).group(group, matching=False, owners=False)
            return LetterCauses(group, (), 0, 0, is_complete=True)
        low, high = self._client.min_offsets(run.queues), self._client.max_offsets(run.queues)
        begin = {queue: max(low[queue], high[queue] - most) for queue in run.queues}
        tables = self._wire.offset_tables(self._wire.masters()) or {}
        places = _Places(group, run.topic, tables)
        count = CauseCount()
        for letter, is_wanted in self._letters(
            run.over({queue: (begin[queue], high[queue]) for queue in run.queues})
        ):
            if is_wanted:
                count.add(letter, is_redriven=places.has_passed(letter))
        causes = tuple(self._letter_cause(tally) for tally in count.tallies())
        kept = sum(high[queue] - low[queue] for queue in run.queues)
        return LetterCauses(group, causes, count.letters, kept, begin == low)

    @question
    def of_cause(self, group: str, wanted: LetterFilter, *, most: int = 32) -> list[ShownMessage]:
        """Return some of a group's dead letters, the newest of each queue first.

        Raises:
            RouteNotFoundError: the group has no dead letters.
        """
        run = self._run(group, wanted, None, None, None)
        low, high = self._client.min_offsets(run.queues), self._client.max_offsets(run.queues)
        found: list[MessageExt] = []
        for queue in run.queues:
            end, mine = high[queue], 0
            while end > low[queue] and mine < most:
                begin = max(low[queue], end - 32)
                some = [x for x, ok in self._letters(run.over({queue: (begin, end)})) if ok]
                found += some
                mine += len(some)
                end = begin
        found.sort(key=lambda x: (x.store_timestamp, x.queue_id, x.queue_offset), reverse=True)
        return [self._showing.shown(letter) for letter in found[:most]]

    def _letter_cause(self, tally: Tally) -> LetterCause:
        key = tally.key
        shown = self._showing.shown(tally.example)
        cause, where = key.cause, key.where
        if shown.masked_by and key.kind is not None:
            cause, where = _masked(key, shown, tally.example)
        return LetterCause(
            id=key.id,
            is_told=key.kind is not None,
            cause=cause,
            where=where,
            count=tally.count,
            redriven=tally.redriven,
            stale=tally.stale,
            first_ms=tally.first_ms,
            last_ms=tally.last_ms,
            topics=dict(sorted(tally.topics.items(), key=lambda item: (-item[1], item[0] or ""))),
            tag=key.tag,
            tries=key.tries,
            example=shown,
        )


def _masked(key: CauseKey, shown: ShownMessage, letter: MessageExt) -> tuple[str, str | None]:
    """Return cause and place after masking."""
    cause, where = key.cause, key.where
    told = letter.properties.get(PROPERTY_SEND_BACK_CAUSE)
    if shown.properties.get(PROPERTY_SEND_BACK_CAUSE) != told:
        cause = shown.properties.get(PROPERTY_SEND_BACK_CAUSE, "")
    if shown.properties.get(PROPERTY_SEND_BACK_WHERE) != letter.properties.get(
        PROPERTY_SEND_BACK_WHERE
    ):
        where = shown.properties.get(PROPERTY_SEND_BACK_WHERE)
    return cause, where


class _Places:
    """How far redrives of one group's dead letters are."""

    def __init__(self, group: str, topic: str, tables: _Tables) -> None:
        self._group = group
        self._topic = topic
        self._tables = tables
        self._keepers: dict[CauseKey, tuple[str, ...]] = {}

    def has_passed(self, letter: MessageExt) -> bool:
        """Return whether a redrive of all letters, or of this one's cause, has passed a letter."""
        table = self._tables.get(letter.broker_name, {})
        for keeper in self._of(key_of(letter)):
            place = table.get(f"{self._topic}@{keeper}", {}).get(letter.queue_id, 0)
            if place > letter.queue_offset:
                return True
        return False

    def _of(self, key: CauseKey) -> tuple[str, ...]:
        keepers = self._keepers.get(key)
        if keepers is None:
            ids = {key.id, key.folded().id} if key.kind is not None else {key.id}
            chosen = [LetterFilter(), *(LetterFilter(cause=each) for each in sorted(ids))]
            keepers = self._keepers[key] = tuple(
                progress_group(wanted, to)
                for wanted in chosen
                for to in (None, retry_topic(self._group))
            )
        return keepers
