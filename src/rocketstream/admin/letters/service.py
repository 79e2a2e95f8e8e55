"""The service of dead letters: which messages a group gave up and why, and sending them again.

Law: nothing leaves here unmasked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, overload

from rocketstream.admin.letters.causes import (
    CauseCount,
    CauseKey,
    LetterFilter,
    Tally,
    key_of,
    progress_group,
)
from rocketstream.admin.letters.redrive import OnSent, Redrive, RedrivePlan, RedriveResult
from rocketstream.admin.messages.shown import ShownMessage
from rocketstream.admin.service import Service, question
from rocketstream.admin.sweep import Sweep
from rocketstream.errors import ConfigurationError, RouteNotFoundError
from rocketstream.protocol.cause import PROPERTY_SEND_BACK_CAUSE, PROPERTY_SEND_BACK_WHERE
from rocketstream.protocol.message_ext import MessageExt
from rocketstream.protocol.names import retry_topic

if TYPE_CHECKING:
    from rocketstream.client.producer.producer import Producer

LETTERS_MAX: Final = 100_000


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


class Letters(Service):
    """``Admin.letters``."""

    @question
    def by_cause(
        self, group: str, wanted: LetterFilter | None = None, *, most: int = LETTERS_MAX
    ) -> LetterCauses:
        """Return the causes of a group's dead letters.

        Reads the newest letters of each queue, at most ``most`` of each.

        Args:
            wanted: which letters; None for all.
            most: how many letters are read of each queue at most.

        Raises:
            ConfigurationError: no broker knows the group.
        """
        try:
            dead = Redrive(self._reach, self._showing, group, wanted)
        except RouteNotFoundError:
            # No such topic: the group gave nothing up, or there is no such group.
            Sweep(self._reach).group(group, matching=False, owners=False)
            return LetterCauses(group, (), 0, 0, is_complete=True)
        low, high = self._client.min_offsets(dead.queues), self._client.max_offsets(dead.queues)
        begin = {queue: max(low[queue], high[queue] - most) for queue in dead.queues}
        tables = self._wire.offset_tables(self._wire.masters()) or {}
        keepers: dict[CauseKey, list[str]] = {}
        count = CauseCount()
        for letter, is_wanted in dead.letters({q: (begin[q], high[q]) for q in dead.queues}):
            if not is_wanted:
                continue
            key = key_of(letter)
            if key not in keepers:
                keepers[key] = _keepers(group, key)
            table, at = tables.get(letter.broker_name, {}), letter.queue_offset
            is_redriven = any(
                table.get(f"{dead.topic}@{keeper}", {}).get(letter.queue_id, 0) > at
                for keeper in keepers[key]
            )
            count.add(letter, is_redriven=is_redriven)
        causes = tuple(self._cause(tally) for tally in count.tallies())
        kept = sum(high[queue] - low[queue] for queue in dead.queues)
        return LetterCauses(group, causes, count.letters, kept, begin == low)

    @question
    def of_cause(self, group: str, wanted: LetterFilter, *, most: int = 32) -> list[ShownMessage]:
        """Return some of a group's dead letters, the newest of each queue first.

        Raises:
            RouteNotFoundError: the group has no dead letters.
        """
        dead = Redrive(self._reach, self._showing, group, wanted)
        low, high = self._client.min_offsets(dead.queues), self._client.max_offsets(dead.queues)
        found: list[MessageExt] = []
        for queue in dead.queues:
            end, mine = high[queue], 0
            while end > low[queue] and mine < most:
                begin = max(low[queue], end - 32)
                some = [letter for letter, ok in dead.letters({queue: (begin, end)}) if ok]
                found += some
                mine += len(some)
                end = begin
        found.sort(key=lambda x: (x.store_timestamp, x.queue_id, x.queue_offset), reverse=True)
        return [self._showing.shown(letter) for letter in found[:most]]

    @question
    def redrive_plan(
        self,
        group: str,
        wanted: LetterFilter | None = None,
        *,
        to: str | None = None,
        limit: int | None = None,
        progress: str | None = None,
    ) -> RedrivePlan:
        """Return what ``redrive`` would send; changes nothing.

        Reads the dead letters that were not sent before, until ``limit`` are selected.

        Args:
            wanted: which of its dead letters; None for all.
            to: the topic to send to; None for the one each letter was consumed from. The group's
                own retry topic (``%RETRY%`` and its name) makes only this group consume them again.
            limit: how many letters to send at most.
            progress: the group whose offsets keep the place; None for one derived from the
                selection.

        Raises:
            RouteNotFoundError: the group has no dead letters.
            ConfigurationError: a name or the limit cannot be used.
        """
        return Redrive(self._reach, self._showing, group, wanted, to, limit, progress).plan()

    @question  # awaited, it may be cancelled: it ends between two letters and keeps its place
    def redrive(
        self,
        group: str,
        wanted: LetterFilter | None = None,
        *,
        to: str | None = None,
        limit: int | None = None,
        progress: str | None = None,
        as_shown: RedrivePlan | None = None,
        rate: float | None = None,
        producer: Producer | None = None,
        on_sent: OnSent | None = None,
        should_stop: Callable[[], bool] | None = None,
    ) -> RedriveResult:
        """Send dead letters again, and keep the place; blocks until it is done.

        Sends only letters that exist when it begins, so that a letter that dies again is not sent
        in a circle. Only one redrive of a group runs at a time, for any selection; the brokers keep
        others out. After an interruption or a failure the next call with the same selection
        continues behind the last letter sent. The place is kept every 32 letters or every second.
        Letters sent after that before a crash are found in the target topic by the sender's id and
        left alone; only letters without an id, or at brokers without a key index, are then sent
        twice.

        Args:
            wanted: which of its dead letters; None for all.
            to: as for ``redrive_plan``.
            limit: how many letters to send at most.
            progress: as for ``redrive_plan``.
            as_shown: the plan that was shown, of the same selection and target: only its letters
                are sent, and none that the group gave up since. None sends all there are.
            rate: how many messages a second to send at most; None for no bound.
            producer: sends the letters; None makes one that connects to the cluster as this Admin
                does.
            on_sent: called with each letter and the message that is stored for it, both masked.
            should_stop: asked before each letter is sent; the redrive ends when it returns true,
                and another one continues there.

        Raises:
            RouteNotFoundError: the group has no dead letters.
            ReadOnlyError: this Admin is read-only.
            ClientStateError: another redrive of the group is under way, or continued in place of
                this one while it was paused; or the letters of ``as_shown`` are no longer there.
            ConfigurationError: a topic to send to does not exist, or a letter does not name its
                origin; the letters before it are sent.
            SendError: a letter could not be sent, or it is not known whether it was sent.
        """
        if rate is not None and not rate > 0:
            raise ConfigurationError(f"rate is {rate}; it takes messages a second above 0")
        self._changes.check("dlq.redrive")
        redrive = Redrive(self._reach, self._showing, group, wanted, to, limit, progress)
        if as_shown is not None:
            redrive.check_of(as_shown)
        return redrive.run(
            as_shown=as_shown,
            rate=rate,
            producer=producer,
            on_sent=on_sent,
            should_stop=should_stop,
        )

    def _cause(self, tally: Tally) -> LetterCause:
        key, letter = tally.key, tally.example
        shown = self._showing.shown(letter)
        cause, where = key.cause, key.where
        if shown.masked_by and key.kind is not None:
            told, here = shown.properties, letter.properties
            if told.get(PROPERTY_SEND_BACK_CAUSE) != here.get(PROPERTY_SEND_BACK_CAUSE):
                cause = told.get(PROPERTY_SEND_BACK_CAUSE, "")
            if told.get(PROPERTY_SEND_BACK_WHERE) != here.get(PROPERTY_SEND_BACK_WHERE):
                where = told.get(PROPERTY_SEND_BACK_WHERE)
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


def _keepers(group: str, key: CauseKey) -> list[str]:
    """Return the groups that keep how far redrives of all letters, and of a cause, are."""
    ids = {key.id, key.folded().id} if key.kind is not None else {key.id}
    chosen = [LetterFilter(), *(LetterFilter(cause=each) for each in sorted(ids))]
    return [progress_group(wanted, to) for wanted in chosen for to in (None, retry_topic(group))]
