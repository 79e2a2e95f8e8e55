"""Processes of a round: started with a log of their own, told, frozen, killed, and always ended."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.outside.history import SECOND

JVM_TERMINATED = 143
"""Exit code of a JVM that SIGTERM ended, after its own end in good order."""


class EndedError(Exception):
    """A process ended, or said nothing, before it said what was waited for."""


class Process:
    """One process, in a group of its own."""

    def __init__(
        self, name: str, command: Sequence[str], log: Path, environment: Mapping[str, str]
    ) -> None:
        self.name = name
        self._log = log
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                list(command),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=dict(environment),
                start_new_session=True,
            )
        self._pending = b""

    @property
    def pid(self) -> int:
        """Its number."""
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether it has not ended."""
        return self._process.poll() is None

    def line(self, timeout_s: float = 60.0) -> str:
        """Return its next line of output."""
        assert self._process.stdout is not None
        deadline = time.monotonic() + timeout_s
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._pending:
                ready = selector.select(max(0.0, deadline - time.monotonic()))
                data = os.read(self._process.stdout.fileno(), 65536) if ready else b""
                if not data:
                    raise EndedError(f"{self.name} said nothing more:\n{self.tail()}")
                self._pending += data
        line, _, self._pending = self._pending.partition(b"\n")
        return line.decode()

    def tell(self, line: str) -> str:
        """Write a line, and return the one it answers."""
        assert self._process.stdin is not None
        self._process.stdin.write(line.encode() + b"\n")
        self._process.stdin.flush()
        return self.line()

    def tail(self, characters: int = 3_000) -> str:
        """The end of its log."""
        return self._log.read_text("utf-8", "replace")[-characters:]

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to it and its children."""
        try:
            os.killpg(self.pid, number)
        except ProcessLookupError:
            pass

    def freeze(self) -> None:
        """Stop it where it stands."""
        self.signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """Let it go on."""
        self.signal(signal.SIGCONT)

    def kill(self) -> int:
        """Kill it (it says nothing any more), and return when it was gone."""
        self.signal(signal.SIGKILL)
        self._process.wait(10)
        self._close()
        return time.monotonic_ns()

    def leave(self, timeout_s: float = 60.0) -> bool:
        """Have it leave in good order; kill it, and return False, where it does not in time."""
        self.signal(signal.SIGCONT)
        self.signal(signal.SIGTERM)
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
            return False
        self._close()
        return self._process.returncode in (0, JVM_TERMINATED)

    def _close(self) -> None:
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()


def now() -> int:
    """The time of a history."""
    return time.monotonic_ns()


def seconds_since(at: int) -> float:
    """How long a time of a history is ago."""
    return (now() - at) / SECOND
