"""The topics and queues a read selects: by name, by pattern, or one by one.

Pure: text in, a frozen value out; which of the names exist is unknown here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from rocketstream.errors import ConfigurationError
from rocketstream.model import MessageQueue
from rocketstream.spark.options.parsing import bad

TOPIC_OPTIONS: Final = ("topic", "topics", "topicPattern", "assign")
"""The options that select what to read; exactly one of them is given."""

_NAMES: Final = "a topic, or several separated by commas"
_ASSIGN: Final = 'queues as {"topic":{"broker":[0,1]}}'


@dataclass(frozen=True, slots=True)
class TopicChoice:
    """The topics and queues a read selects.

    Attributes:
        names: the named topics, in the order given, without repeats; none with ``pattern``.
        pattern: regular expression that a whole topic name must match, None for names.
        queues: the only queues to read of ``names``, None for all of them.
    """

    names: tuple[str, ...]
    pattern: str | None = None
    queues: frozenset[MessageQueue] | None = None

    def has(self, topic: str) -> bool:
        """Whether queues of a topic are selected."""
        if self.pattern is not None:
            return re.fullmatch(self.pattern, topic) is not None
        return topic in self.names

    def wants(self, queue: MessageQueue) -> bool:
        """Whether a queue is selected."""
        return self.has(queue.topic) if self.queues is None else queue in self.queues

    @property
    def text(self) -> str:
        """The selection as text for messages."""
        if self.pattern is not None:
            return f"topics that match {self.pattern!r}"
        return ", ".join(self.names)


def topic_choice(values: Mapping[str, str]) -> TopicChoice:
    """Return the topics and queues a read selects.

    Raises:
        ConfigurationError: none or several of ``TOPIC_OPTIONS`` are given, or one cannot be used.
    """
    given = [name for name in TOPIC_OPTIONS if values.get(name, "").strip()]
    if len(given) != 1:
        empty = [name for name in TOPIC_OPTIONS if name in values and name not in given]
        found = f"{' and '.join(map(repr, given))} are given" if given else "none is"
        if empty and not given:
            found = f"option {empty[0]!r} is empty"
        raise ConfigurationError(
            "say what to read by exactly one of the options 'topic' (or 'topics'), 'topicPattern' "
            f"and 'assign': {found}",
            options=given,
        )
    name = given[0]
    text = values[name].strip()
    if name == "topicPattern":
        return TopicChoice((), pattern=_pattern(text))
    if name == "assign":
        queues = _assigned(text)
        topics = tuple(dict.fromkeys(queue.topic for queue in queues))
        return TopicChoice(topics, queues=frozenset(queues))
    topics = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    if not topics:
        raise bad(name, text, _NAMES)
    return TopicChoice(topics)


def _pattern(text: str) -> str:
    try:
        re.compile(text)
    except (re.error, OverflowError) as error:
        accepted = "a regular expression of whole topic names, such as 'orders-.*'"
        raise bad("topicPattern", text, f"{accepted} ({error})") from error
    return text


def _assigned(text: str) -> list[MessageQueue]:
    try:
        tree = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise bad("assign", text, _ASSIGN) from error
    queues = [
        MessageQueue(topic, broker, queue_id)
        for topic, brokers in _entries(tree, text)
        for broker, ids in _entries(brokers, text)
        for queue_id in _ids(ids, text)
    ]
    if not queues:
        raise bad("assign", text, _ASSIGN)
    return queues


def _entries(node: Any, text: str) -> list[tuple[str, Any]]:
    if not isinstance(node, dict) or not node:
        raise bad("assign", text, _ASSIGN)
    return list(node.items())


def _ids(node: Any, text: str) -> list[int]:
    good = isinstance(node, list) and all(type(i) is int and 0 <= i < 2**31 for i in node)
    if not good or not node:
        raise bad("assign", text, _ASSIGN)
    return list(node)
