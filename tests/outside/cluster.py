"""The servers of a round, as a user starts them, behind a network of ours."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.outside.processes import EndedError, Process
from tests.outside.wares import DELAY_LEVELS

SERVERS, CLIENTS = "127.0.0.1", "127.0.0.2"
"""Where servers listen, and where clients believe they do."""
READY = re.compile(r"ready namesrv=\S+:(\d+) broker=\S+:(\d+) ")
START_S = 90.0


class Cluster:
    """``serve`` and the proxy before it."""

    def __init__(
        self,
        folder: Path,
        environment: Mapping[str, str],
        *,
        flush: str = "sync",
        store: Path | None = None,
        cheat: str = "",
    ) -> None:
        self._folder, self._environment = folder, environment
        self._flush, self._cheat = flush, cheat
        self.store = store or folder / "store"
        self._ports = (_free_port(), _free_port())
        self.broker: Process | None = None
        self._proxy: Process | None = None

    @property
    def namesrv_addr(self) -> str:
        """The address clients are given."""
        return f"{CLIENTS}:{self._ports[0]}"

    def start(self) -> None:
        """Start the servers, then their network."""
        self.start_broker()
        ways = [f"{CLIENTS}:{port}={SERVERS}:{port}" for port in self._ports]
        cheat = [f"CHEAT={self._cheat}"] if self._cheat else []
        self._proxy = Process(
            "proxy",
            [sys.executable, "-m", "tests.outside.proxy", *ways, *cheat],
            self._folder / "proxy.log",
            self._environment,
        )
        self._proxy.line()

    def start_broker(self, more: Mapping[str, str] | None = None) -> None:
        """Start name server and broker, and wait until they say that they are ready.

        Raises:
            EndedError: they end, or are not ready in time.
        """
        namesrv, broker = map(str, self._ports)
        self.broker = Process(
            "serve",
            [
                sys.executable, "-m", "rocketstream", "serve", "--namesrv-port", namesrv,
                "--broker-port", broker, "--advertise", CLIENTS, "--store", str(self.store),
                "--flush", self._flush, "--delay-levels", DELAY_LEVELS,
                "--transaction-timeout", "1", "--transaction-check-interval", "1",
            ],
            self._folder / "serve.log",
            {**self._environment, **(more or {})},
        )  # fmt: skip
        line = self.broker.line(START_S)
        if not READY.match(line):
            raise EndedError(f"serve said {line!r}:\n{self.broker.tail()}")

    def network(self, command: str) -> None:
        """Have the network do something."""
        assert self._proxy is not None
        self._proxy.tell(command)

    def create_topic(self, topic: str, queues: int) -> None:
        """Create a topic by the command a user has for it."""
        self.command("topic", "create", topic, "--queues", str(queues))

    def command(self, *words: str) -> str:
        """Run a command of the package; return what it prints."""
        done = subprocess.run(
            [sys.executable, "-m", "rocketstream", *words],
            env={**self._environment, "NAMESRV_ADDR": self.namesrv_addr},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        if done.returncode:
            raise EndedError(f"{words}: {done.stdout}{done.stderr}")
        return done.stdout

    def stop(self) -> bool:
        """End everything; return whether the servers ended in good order."""
        is_good = self.broker is not None and self.broker.is_running and self.broker.leave()
        if self.broker is not None and self.broker.is_running:
            self.broker.kill()
        if self._proxy is not None and self._proxy.is_running:
            self._proxy.kill()
        return is_good


def worker(
    by: str,
    role: str,
    folder: Path,
    namesrv_addr: str,
    environment: Mapping[str, str],
    settings: Mapping[str, object],
    *,
    group: str = "",
    package: Path,
) -> Process:
    """Start a worker; it says ``ready`` in its history."""
    order = {
        "by": by, "name": by.partition("#")[0], "role": role, "group": group, "folder": str(folder),
        "namesrv_addr": namesrv_addr, "settings": dict(settings), "package": str(package),
    }  # fmt: skip
    command: Sequence[str] = [sys.executable, "-m", "tests.outside.worker", json.dumps(order)]
    return Process(by, command, folder / "logs" / f"{by}.log", environment)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((SERVERS, 0))
        port: int = probe.getsockname()[1]
    return port
