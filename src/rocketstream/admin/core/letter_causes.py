"""Dead letters grouped by cause: the known facts why each was given up.

Pure: letters in, groups out. Texts that differ only in a number, an id or a quoted value are one
text.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from rocketstream import limits
from rocketstream.protocol.cause import SendBackCause, cause_of
from rocketstream.protocol.message_ext import MessageExt
from rocketstream.protocol.properties import PROPERTY_RETRY_TOPIC

PROPERTY_DLQ_ORIGIN_TOPIC: Final = "DLQ_ORIGIN_TOPIC"
ANY_TEXT: Final = "…"
"""Used as the text where one place raises more different texts than are kept apart."""
_ID_CHARS: Final = 8
_QUOTED: Final = re.compile(r"(?:\bb)?(?:'([^']*)'|\"([^\"]*)\")")
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z_.\-]{0,40}")
_IDS: Final = re.compile(r"\b(?=[0-9a-fA-F-]*\d)[0-9a-fA-F][0-9a-fA-F-]{7,}\b")
_NUMBERS: Final = re.compile(r"\d+(?:[.,:]\d+)*")


def template(message: str) -> str:
    """Return a text without the parts that differ from message to message."""

    def quoted(match: re.Match[str]) -> str:
        inner = match[1] if match[1] is not None else match[2]
        return match[0] if _NAME.fullmatch(inner) else "<text>"

    return _NUMBERS.sub("<n>", _IDS.sub("<id>", _QUOTED.sub(quoted, message)))


@dataclass(frozen=True, slots=True)
class CauseKey:
    """The key that dead letters of one cause share.

    Attributes:
        kind: the exception's class, or another reason the letter gives; None where it gives none:
            then the last three fields hold the known facts of the letter.
        text: the exception's text as a template, ``ANY_TEXT`` where there are too many.
        where: the place that raised it.
    """

    kind: str | None = None
    text: str = ""
    where: str | None = None
    origin: str | None = None
    tag: str | None = None
    tries: int | None = None

    @property
    def id(self) -> str:
        """Eight digits that identify the cause."""
        parts = [self.kind, self.text, self.where, self.origin, self.tag, self.tries]
        text = json.dumps(parts, ensure_ascii=False)
        return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:_ID_CHARS]

    @property
    def cause(self) -> str:
        """The cause as it is shown."""
        if self.kind is None:
            return "not told"
        return f"{self.kind}: {self.text}" if self.text else self.kind

    def folded(self) -> CauseKey:
        """Return the same cause with any text."""
        return CauseKey(self.kind, ANY_TEXT, self.where)


def key_of(letter: MessageExt) -> CauseKey:
    """Return the cause of a dead letter."""
    properties = letter.properties
    told = cause_of(properties)
    if told is not None:
        return CauseKey(told.kind, template(told.message), told.where)
    return CauseKey(origin=origin_topic(properties), tag=letter.tags, tries=letter.reconsume_times)


def origin_topic(properties: Mapping[str, str]) -> str | None:
    """Return the topic a dead letter was consumed from; None where the letter does not say."""
    return properties.get(PROPERTY_DLQ_ORIGIN_TOPIC) or properties.get(PROPERTY_RETRY_TOPIC)


def is_of_cause(letter: MessageExt, cause: str | None, where: str | None) -> bool:
    """Return whether a dead letter has a cause.

    Args:
        letter: the dead letter.
        cause: a cause's id, its text as it is shown, an exception's class or its whole text; None
            for any.
        where: the place as it is shown, or only ``file:line`` or the file; None for any.
    """
    key = key_of(letter)
    if where is not None and not _is_at(key.where, where):
        return False
    if cause is None:
        return True
    if key.kind is None:
        return cause == key.id
    told = cause_of(letter.properties)
    whole = f"{told.kind}: {told.message}" if told is not None and told.message else key.kind
    return cause in (key.id, key.folded().id, key.cause, key.kind, whole)


def _is_at(where: str | None, wanted: str) -> bool:
    if where is None:
        return False
    place = where.partition(" ")[0]
    return wanted in (where, place, place.rpartition(":")[0])


@dataclass(slots=True)
class Tally:
    """The counts of one cause; ``example`` is the last letter seen."""

    key: CauseKey
    example: MessageExt
    count: int = 0
    first_ms: int = 0
    last_ms: int = 0
    stale: int = 0
    topics: dict[str | None, int] = field(default_factory=dict)
    redriven: int = 0

    def add(self, letter: MessageExt, *, is_redriven: bool) -> None:
        """Count a letter."""
        at = letter.store_timestamp
        self.first_ms = min(self.first_ms or at, at)
        if at >= self.last_ms:
            self.last_ms, self.example = at, letter
        self.count += 1
        self.redriven += is_redriven
        self.stale += _is_stale(cause_of(letter.properties), letter)
        origin = origin_topic(letter.properties)
        self.topics[origin] = self.topics.get(origin, 0) + 1

    def merge(self, other: Tally) -> None:
        """Add the counts of another tally."""
        self.first_ms = min(self.first_ms, other.first_ms)
        if other.last_ms >= self.last_ms:
            self.last_ms, self.example = other.last_ms, other.example
        self.count += other.count
        self.stale += other.stale
        self.redriven += other.redriven
        for topic, count in other.topics.items():
            self.topics[topic] = self.topics.get(topic, 0) + count


def _is_stale(told: SendBackCause | None, letter: MessageExt) -> bool:
    """Whether a letter's cause is that of an earlier try, as another client failed the last.

    A send-back raises the count by one over the try that failed; the last one of an orderly
    listener does not.
    """
    return told is not None and told.tries is not None and told.tries + 1 < letter.reconsume_times


class CauseCount:
    """Counts dead letters by cause."""

    def __init__(self) -> None:
        self._by_place: dict[CauseKey, dict[CauseKey, Tally]] = {}
        self.letters = 0

    def add(self, letter: MessageExt, *, is_redriven: bool = False) -> None:
        """Count a letter."""
        self.letters += 1
        key = key_of(letter)
        place = key.folded() if key.kind is not None else key
        tallies = self._by_place.setdefault(place, {})
        if place in tallies:  # there are too many texts already, or the letter has none
            key = place
        tally = tallies.get(key)
        if tally is None:
            tally = tallies[key] = Tally(key, letter)
        tally.add(letter, is_redriven=is_redriven)
        if len(tallies) > limits.LETTER_TEMPLATES_MAX:
            self._by_place[place] = {place: _merged(place, tallies)}

    def tallies(self) -> list[Tally]:
        """Return the causes, the most frequent first."""
        every = [tally for tallies in self._by_place.values() for tally in tallies.values()]
        return sorted(every, key=lambda t: (-t.count, t.key.cause, t.key.id))


def _merged(place: CauseKey, tallies: Mapping[CauseKey, Tally]) -> Tally:
    first, *others = tallies.values()
    whole = Tally(
        place, first.example, first.count, first.first_ms, first.last_ms, first.stale,
        dict(first.topics), first.redriven,
    )  # fmt: skip
    for tally in others:
        whole.merge(tally)
    return whole
