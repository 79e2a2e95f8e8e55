"""One listener for both kinds of push consumer, and what became of every message.

A hundredth of the messages fail: a third of those for ever, the others once or twice.
"""

from __future__ import annotations

import functools
import os
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rocketstream.model import ConsumeConcurrentlyStatus

RETRIES = 3
Table = dict[int, frozenset[int]]
"""By number of the message: which tries it had, 0 the first."""


def failures(number: int) -> int:
    """How often a message fails; more than ``RETRIES`` times is for ever."""
    if number % 100 != 7:
        return 0
    return RETRIES + 1 if number % 300 == 7 else 1 + number // 100 % 2


def poison(count: int) -> set[int]:
    """Those of the first ``count`` messages that fail for ever."""
    return {number for number in range(count) if failures(number) > RETRIES}


def expected(count: int) -> Table:
    """The tries each of the first ``count`` messages must have had in the end."""
    return {number: frozenset(range(min(failures(number), RETRIES) + 1)) for number in range(count)}


@functools.cache
def _notes(folder: str) -> int:
    """A file of this process, written without a buffer: what is noted survives a kill."""
    return os.open(f"{folder}/{os.getpid()}", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)


def outcome_listener(folder: str) -> Callable[[list[Any]], ConsumeConcurrentlyStatus]:
    """A listener that fails as told and notes each call in a folder."""

    def listener(messages: list[Any]) -> ConsumeConcurrentlyStatus:
        (message,) = messages
        number, tries = int(message.body), message.reconsume_times
        at_ms = time.time_ns() // 1_000_000
        os.write(_notes(folder), f"{number} {tries} {at_ms}\n".encode())
        if tries < failures(number):
            return ConsumeConcurrentlyStatus.RECONSUME_LATER
        return ConsumeConcurrentlyStatus.CONSUME_SUCCESS

    return listener


def noted(folder: Path) -> dict[int, dict[int, int]]:
    """By number and try: when it was first seen, ms since 1970."""
    seen: dict[int, dict[int, int]] = defaultdict(dict)
    for path in folder.iterdir():
        for line in path.read_text().splitlines():
            number, tries, at_ms = map(int, line.split())
            seen[number][tries] = min(at_ms, seen[number].get(tries, at_ms))
    return seen


def table_of(folder: Path) -> Table:
    """Which tries each message had."""
    return {number: frozenset(tries) for number, tries in noted(folder).items()}
