"""One Java process of a test: started in a group of its own, read line by line, always ended.

Law: knows processes and lines, nothing of RocketMQ.
"""

from __future__ import annotations

import json
import os
import queue
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

SMALL_JVM = (
    "-XX:+UseSerialGC", "-XX:-UsePerfData", "-XX:TieredStopAtLevel=1", "-Xshare:auto",
)  # fmt: skip
"""Flags that keep a helper JVM out of the way of a machine with two cores."""


def _events(lines: Sequence[str], event: str) -> list[dict[str, Any]]:
    """The JSON objects among lines of output whose ``event`` is the wanted one."""
    objects = (json.loads(line) for line in lines if line.startswith("{") and line.endswith("}"))
    return [each for each in objects if each.get("event") == event]


class Jvm:
    """A running JVM. Standard output is read by a thread and offered as lines and JSON events."""

    def __init__(
        self, name: str, arguments: Sequence[str], log: Path, env: Mapping[str, str] | None = None
    ) -> None:
        self.name = name
        self.log = log
        self._lines: queue.Queue[str | None] = queue.Queue()
        self.output: list[str] = []
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                [shutil.which("java") or "java", *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env={**os.environ, **(env or {})},
                start_new_session=True,
                text=True,
                errors="replace",
            )
        self._reader = threading.Thread(target=self._read, name=f"read-{name}", daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.output.append(line.rstrip("\n"))
            self._lines.put(line.rstrip("\n"))
        self._lines.put(None)

    @property
    def pid(self) -> int:
        """Process id, which is also the id of its group."""
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """Exit code once it ended."""
        return self._process.poll()

    def wait_line(self, part: str, timeout_s: float = 60.0) -> str:
        """Return the next line of output that holds ``part``."""
        deadline = time.monotonic() + timeout_s
        while True:
            line = self._next_line(deadline, f"a line with {part!r}")
            if part in line:
                return line

    def wait_event(self, event: str, timeout_s: float = 60.0) -> dict[str, Any]:
        """Return the next JSON object of output whose ``event`` is the wanted one."""
        deadline = time.monotonic() + timeout_s
        while True:
            for value in _events([self._next_line(deadline, f"event {event!r}")], event):
                return value

    def said(self, event: str) -> list[dict[str, Any]]:
        """Return all JSON objects of its output whose ``event`` is the wanted one."""
        return _events(self.output, event)

    def _next_line(self, deadline: float, wanted: str) -> str:
        try:
            line = self._lines.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            raise TimeoutError(f"{self.name}: no {wanted} in time\n{self.tail()}") from None
        if line is None:
            self._process.wait(timeout=10)
            raise RuntimeError(
                f"{self.name} ended with exit code {self.exit_code} before {wanted}\n{self.tail()}"
            )
        return line

    def tail(self, characters: int = 3000) -> str:
        """The end of what it said on both outputs, for the text of a failure."""
        errors = self.log.read_text(errors="replace") if self.log.exists() else ""
        return ("\n".join(self.output[-40:]) + "\n--- stderr ---\n" + errors)[-characters:]

    def tell(self, line: str) -> None:
        """Write a line to its standard input: how a program is told its next round."""
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def end_input(self) -> None:
        """Close its standard input: how our Java programs are told to shut down."""
        if self._process.stdin is not None and not self._process.stdin.closed:
            self._process.stdin.close()

    def wait(self, timeout_s: float = 60.0) -> int:
        """Wait for its end and return the exit code."""
        code = self._process.wait(timeout=timeout_s)
        self._reader.join(timeout=10)
        return code

    def stop(self, *, kill: bool = False, timeout_s: float = 20.0) -> None:
        """End the whole process group: asked first (SIGTERM), unless ``kill``; then forced."""
        self._signal(signal.SIGKILL if kill else signal.SIGTERM)
        try:
            self._process.wait(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            pass
        self._signal(signal.SIGKILL)
        self._process.wait(timeout=10)
        self._reader.join(timeout=10)
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()

    def _signal(self, number: signal.Signals) -> None:
        try:
            os.killpg(self.pid, number)
        except ProcessLookupError:
            pass

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop(kill=True)
