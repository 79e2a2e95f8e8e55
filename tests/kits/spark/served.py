"""A broker in a process of its own, to be killed and started again at the same place."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.kits.apache.cluster import free_port_for
from tests.kits.spark.engines import environment


class Server:
    """A `rocketstream serve` process that is started anew at the same ports.

    What it acknowledges is on disk. Further words are those of the command.

    Attributes:
        namesrv_addr: its name server.
        broker_addr: its broker.
    """

    def __init__(self, store: Path, *further: str) -> None:
        ports = free_port_for(), free_port_for()
        self.namesrv_addr, self.broker_addr = (f"127.0.0.1:{port}" for port in ports)
        words = ["serve", "--store", str(store), "--flush", "sync"]
        words += ["--namesrv-port", str(ports[0]), "--broker-port", str(ports[1])]
        self._command = [sys.executable, "-m", "rocketstream", *words, *further]
        self._process: subprocess.Popen[str] | None = None

    def restart(self) -> None:
        """Start it and wait until it is ready."""
        process = subprocess.Popen(
            self._command,
            stdout=subprocess.PIPE,
            text=True,
            env=environment(),
            start_new_session=True,
        )
        self._process = process
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("ready "), f"the server said {line!r}"

    def kill(self) -> None:
        """kill -9."""
        assert self._process is not None
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.communicate()


@contextmanager
def served(store: Path, *further: str) -> Iterator[Server]:
    """Lend a server that is running; it is killed at the end."""
    server = Server(store, *further)
    server.restart()
    try:
        yield server
    finally:
        server.kill()
