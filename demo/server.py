"""The broker of a run: ``rocketstream serve`` as a process of its own.

Law: starts one process and ends it.
"""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from dataclasses import dataclass
from typing import IO

from demo.errors import DemoError, Interrupts
from demo.place import Place

DELAY_LEVELS = "1s 1s 1s 1s 1s"
"""Retries wait a second here; RocketMQ's own levels begin with 10 s for the first retry."""
_START_TIMEOUT_S = 30.0
_STOP_TIMEOUT_S = 20.0
_READY = re.compile(r"ready namesrv=(\S+) broker=(\S+) store=(.+)")


@dataclass(frozen=True, slots=True)
class Addresses:
    """Where the name server and the broker listen."""

    namesrv: str
    broker: str


class ServerProcess:
    """``rocketstream serve`` on free loopback ports.

    It gets a session of its own, so that a Ctrl-C in the terminal reaches it only after its
    clients have ended.
    """

    def __init__(self, place: Place) -> None:
        self._log: IO[bytes] = place.server_log.open("wb")
        self._log_path = place.server_log
        self._process = subprocess.Popen(
            [
                sys.executable, "-m", "rocketstream", "serve",
                "--namesrv-port", "0", "--broker-port", "0",
                "--store", str(place.store), "--delay-levels", DELAY_LEVELS,
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._log,
            start_new_session=True,
        )  # fmt: skip
        self._line = b""
        self._said = threading.Event()
        self._reader = threading.Thread(target=self._read, name="server-ready", daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        self._line = self._process.stdout.readline()
        self._said.set()

    def wait_ready(self, interrupts: Interrupts) -> Addresses:
        """Return the addresses once clients can connect.

        Raises:
            DemoError: it ended or said nothing in time; the text carries its own words.
        """
        for _ in range(int(_START_TIMEOUT_S / 0.1)):
            if self._said.wait(0.1):
                break
            interrupts.check()
        found = _READY.fullmatch(self._line.decode(errors="replace").strip())
        if found is None:
            # A Ctrl-C that comes before the new process has its session ends it as well.
            interrupts.check()
            raise DemoError(f"the broker did not start: {self._last_words()}")
        return Addresses(found[1], found[2])

    def _last_words(self) -> str:
        said = self._log_path.read_text("utf-8", errors="replace").strip().splitlines()
        return said[-1].removeprefix("error: ") if said else f"see {self._log_path}"

    def check(self) -> None:
        """Raise DemoError when the process has ended."""
        if self._process.poll() is not None:
            raise DemoError(f"the broker ended by itself: {self._last_words()}")

    def close(self) -> None:
        """End the process and wait until it is gone."""
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(_STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._reader.join()
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._log.close()
