"""What every suite is given: how much to measure, where to put files, and the Java peer.

Law: knows no measurement.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.harness import run_worker
from benchmarks.rounds import USUAL, Rule

if TYPE_CHECKING:
    from benchmarks.java import JavaPeer

_serial = itertools.count()


@dataclass(frozen=True)
class Settings:
    """How much to measure and where to put files."""

    folder: Path
    runs: int
    scale: float
    with_peer: bool
    rule: Rule = USUAL
    """When rounds are enough."""
    results: Path = Path()
    """Where the points of drawings go, beside the figures."""
    pictures: Path = Path()
    """Where drawings go."""
    stack: ExitStack = field(default_factory=ExitStack)
    """What is ended after the last suite."""
    _peers: list[JavaPeer | None] = field(default_factory=list)

    def count(self, messages: int) -> int:
        """A message count scaled as asked."""
        return max(1_000, int(messages * self.scale))

    def place(self, word: str) -> Path:
        """A fresh folder."""
        path = self.folder / f"{word}-{next(_serial)}"
        path.mkdir(parents=True)
        return path

    def peer(self) -> JavaPeer | None:
        """Apache's broker and Java client, one for all suites; None where they cannot be had."""
        if not self._peers:
            self._peers.append(self.stack.enter_context(fresh_peer(self)))
        return self._peers[0]


def fresh_group(word: str) -> str:
    """A group nobody else uses."""
    return f"bench-{word}-{next(_serial)}"


@contextmanager
def fresh_peer(settings: Settings, flush: str = "ASYNC_FLUSH") -> Iterator[JavaPeer | None]:
    """Apache's broker and Java client, or None with a line saying why not."""
    if not settings.with_peer:
        yield None
        return
    from benchmarks.java import JavaPeer, RefereeUnavailableError

    with ExitStack() as stack:
        try:
            java = stack.enter_context(JavaPeer(settings.place("apache"), flush=flush))
        except RefereeUnavailableError as reason:
            sys.stderr.write(f"  without the Java peer: {reason}\n")
            yield None
        else:
            yield java


def fill(namesrv: str, topic: str, count: int, size: int = 1024) -> None:
    """Put a backlog of messages with bodies of ``size`` bytes into a topic."""
    words = ["--namesrv", namesrv, "--topic", topic, "--count", str(count), "--size", str(size)]
    run_worker("fill", *words, timeout_s=900)
