"""Dead letters: which are meant, why each was given up, and as which message it is sent again.

Pure: letters in, groups and messages out. Causes whose texts differ only in a number, an id or a
quoted value are one. Properties that a broker or a consumer added on the way to the dead-letter
topic are not sent back.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Final

from rocketstream import limits
from rocketstream.errors import ConfigurationError
from rocketstream.model import TIMER_PROPERTIES, Message
from rocketstream.protocol.cause import CAUSE_PROPERTIES, cause_of
from rocketstream.protocol.message_ext import MessageExt
from rocketstream.protocol.names import REDRIVE_GROUP, RETRY_PREFIX, dlq_topic
from rocketstream.protocol.properties import (
    KEY_SEPARATOR,
    PROPERTY_DLQ_ORIGIN_TOPIC,
    PROPERTY_ORIGIN_MESSAGE_ID,
    PROPERTY_REDRIVEN_BY,
    PROPERTY_REDRIVEN_FROM,
    PROPERTY_REDRIVEN_TIMES,
    PROPERTY_RETRY_TOPIC,
    whole_number,
)

PROGRESS_GROUP: Final = REDRIVE_GROUP
ANY_TEXT: Final = "…"
"""Used as the text where one place raises more different texts than are kept apart."""
_ID_CHARS: Final = 8
_TIMES_MAX: Final = 0x7FFF_FFFF
_QUOTED: Final = re.compile(r"(?:\bb)?(?:'([^']*)'|\"([^\"]*)\")")
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z_.\-]{0,40}")
_IDS: Final = re.compile(r"\b(?=[0-9a-fA-F-]*\d)[0-9a-fA-F][0-9a-fA-F-]{7,}\b")
_NUMBERS: Final = re.compile(r"\d+(?:[.,:]\d+)*")

_ADDED: Final = (
    "CHECK_IMMUNITY_TIME_IN_SECONDS CONSUME_START_TIME CORRECTION_FLAG DELAY "
    "DLQ_ORIGIN_MESSAGE_ID DLQ_ORIGIN_TOPIC INNER_MULTI_DISPATCH INNER_MULTI_QUEUE_OFFSET "
    "MAX_OFFSET MAX_RECONSUME_TIMES MIN_OFFSET MQ2_FLAG MSG_REGION ORIGIN_MESSAGE_ID PGROUP "
    "REAL_QID REAL_TOPIC RECONSUME_TIME RETRY_TOPIC TRACE_ON TRAN_MSG TRAN_PREPARED_QUEUE_OFFSET "
    "TRANSACTION_CHECK_TIMES TRANSFER_FLAG WAIT "
    # By brokers of 5.x: for timers under way, popped messages, inner batches.
    "TIMER_OUT_MS TIMER_ENQUEUE_MS TIMER_DEQUEUE_MS TIMER_ROLL_TIMES TIMER_DEL_UNIQKEY "
    "TIMER_DELAY_LEVEL POP_CK POP_CK_OFFSET 1ST_POP_TIME INNER_NUM INNER_BASE __transactionId__"
)
"""Properties that brokers and clients add on the way to the dead-letter topic."""
_LEFT_BEHIND: Final = TIMER_PROPERTIES | CAUSE_PROPERTIES | frozenset(_ADDED.split())


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


@dataclass(frozen=True, slots=True)
class LetterFilter:
    """Which dead letters are meant; a letter must meet every given condition.

    Attributes:
        since_ms: given up at this time or later, ms since 1970.
        until_ms: given up before this time, ms since 1970.
        tag: it has this tag.
        key: it has this key among its keys.
        origin: it was consumed from this topic.
        cause: it was given up for this cause: the cause's id, its text as ``by_cause``
            returns it, or the class of the exception.
        where: the exception was raised there: file, line and function as ``by_cause``
            returns them, or only the first of them (``shop/pricing.py``, ``shop/pricing.py:31``).
    """

    since_ms: int | None = None
    until_ms: int | None = None
    tag: str | None = None
    key: str | None = None
    origin: str | None = None
    cause: str | None = None
    where: str | None = None

    @property
    def is_all(self) -> bool:
        """Whether nothing is filtered."""
        return self == LetterFilter()

    def wants(self, letter: MessageExt) -> bool:
        """Return whether a dead letter is meant."""
        return (
            (self.since_ms is None or letter.store_timestamp >= self.since_ms)
            and (self.until_ms is None or letter.store_timestamp < self.until_ms)
            and (self.tag is None or letter.tags == self.tag)
            and (self.key is None or self.key in (letter.keys or "").split(KEY_SEPARATOR))
            and (self.origin is None or origin_topic(letter.properties) == self.origin)
            and is_of_cause(letter, self.cause, self.where)
        )


@dataclass(slots=True)
class Tally:
    """The counts of one cause; ``example`` is the last letter seen."""

    key: CauseKey
    example: MessageExt
    count: int = 0
    first_ms: int = 0
    last_ms: int = 0
    stale: int = 0
    redriven: int = 0
    topics: dict[str | None, int] = field(default_factory=dict)

    def add(self, letter: MessageExt, *, is_redriven: bool) -> None:
        """Count a letter."""
        at, told = letter.store_timestamp, cause_of(letter.properties)
        # The cause may be that of an earlier try, as another client failed the last. A send-back
        # raises the count by one over the try that failed; the last one of an orderly listener
        # does not.
        tried = None if told is None else told.tries
        is_stale = tried is not None and tried + 1 < letter.reconsume_times
        topics = {origin_topic(letter.properties): 1}
        self.merge(Tally(self.key, letter, 1, at, at, is_stale, is_redriven, topics))

    def merge(self, other: Tally) -> None:
        """Add the counts of another tally."""
        self.first_ms = min(self.first_ms or other.first_ms, other.first_ms)
        if other.last_ms >= self.last_ms:
            self.last_ms, self.example = other.last_ms, other.example
        self.count += other.count
        self.stale += other.stale
        self.redriven += other.redriven
        for topic, count in other.topics.items():
            self.topics[topic] = self.topics.get(topic, 0) + count


class CauseCount:
    """Counts dead letters by cause."""

    def __init__(self) -> None:
        self._by_place: dict[CauseKey, dict[CauseKey, Tally]] = {}
        self.letters: int = 0

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
            whole = Tally(place, letter)
            for each in tallies.values():
                whole.merge(each)
            self._by_place[place] = {place: whole}

    def tallies(self) -> list[Tally]:
        """Return the causes, the most frequent first."""
        every = [tally for tallies in self._by_place.values() for tally in tallies.values()]
        return sorted(every, key=lambda t: (-t.count, t.key.cause, t.key.id))


# --- sending them again ---------------------------------------------------------------------------


def target_topic(letter: MessageExt, to: str | None) -> str | None:
    """Return the topic a dead letter goes to: ``to``, else its origin; None if that is unknown."""
    return to if to is not None else origin_topic(letter.properties)


def again(group: str, letter: MessageExt, to: str | None, by: str | None = None) -> Message:
    """Return the message to send for a dead letter; ``by`` is the named place, if there is one.

    The message keeps body, flag, tags, keys, the sender's id and user properties, and names the
    letter it comes from. For a retry topic it also names the origin, which consumers of one expect.

    Raises:
        ConfigurationError: the letter's origin is unknown and ``to`` is None.
    """
    topic = target_topic(letter, to)
    if topic is None:
        raise ConfigurationError(
            f"dead letter {place_of(group, letter)} does not tell which topic it was consumed "
            "from: name one to send it to",
            msg_id=letter.msg_id,
        )
    found = letter.properties
    kept = {name: value for name, value in found.items() if name not in _LEFT_BEHIND}
    if topic.startswith(RETRY_PREFIX):
        for name in (PROPERTY_RETRY_TOPIC, PROPERTY_ORIGIN_MESSAGE_ID):
            if name in found:
                kept[name] = found[name]
        origin = origin_topic(found)
        if origin is not None:
            kept[PROPERTY_RETRY_TOPIC] = origin
    kept[PROPERTY_REDRIVEN_FROM] = place_of(group, letter)
    kept[PROPERTY_REDRIVEN_TIMES] = times_of_next(letter)
    kept.pop(PROPERTY_REDRIVEN_BY, None)
    if by is not None:
        kept[PROPERTY_REDRIVEN_BY] = by
    message = Message(topic, bytes(letter.body), flag=letter.flag)
    message.properties |= kept
    return message


def place_of(group: str, letter: MessageExt) -> str:
    """Return the place of a dead letter in the form of ``REDRIVEN_FROM``."""
    return f"{dlq_topic(group)}/{letter.broker_name}/{letter.queue_id}/{letter.queue_offset}"


def progress_group(wanted: LetterFilter, to: str | None) -> str:
    """Return the group whose offsets keep the place of such a redrive.

    Each selection and target has a group of its own, because letters one redrive leaves out are not
    sent by another.
    """
    if wanted.is_all and to is None:
        return PROGRESS_GROUP
    # Only later additions may be left out here, so that a place kept by an older release is found.
    later = ("cause", "where")
    chosen = {n: v for n, v in asdict(wanted).items() if v is not None or n not in later}
    text = json.dumps([chosen, to], sort_keys=True)
    return f"{PROGRESS_GROUP}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"


def times_of_next(letter: MessageExt) -> str:
    """Return the ``REDRIVEN_TIMES`` of what a redrive sends of a dead letter."""
    before = whole_number(letter.properties.get(PROPERTY_REDRIVEN_TIMES) or "", _TIMES_MAX) or 0
    return str(before + 1)
