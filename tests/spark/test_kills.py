"""kill -9 of driver, executors and broker while a topic is landed: each message once.

``KILLS`` in the environment says how often the driver is killed (4); executors and broker are
killed half as often each.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.interop.cluster import free_port_for
from tests.spark.landing import Topic, check, land_through_kills, landing_from
from tests.spark.test_engines import environment

KILLS = int(os.environ.get("KILLS", "4"))

pytestmark = [
    pytest.mark.spark,
    pytest.mark.chaos,
    pytest.mark.long,
    pytest.mark.timeout(300 + 120 * KILLS),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


class Server:
    """A `rocketstream serve` process that is started anew at the same ports."""

    def __init__(self, store: Path) -> None:
        self._store = store
        self._ports = (str(free_port_for()), str(free_port_for()))
        self._process: subprocess.Popen[str] | None = None
        self.namesrv_addr = self.broker_addr = ""

    def restart(self) -> None:
        """Start it and wait until it is ready."""
        namesrv, broker = self._ports
        command = [sys.executable, "-m", "rocketstream", "serve", "--store", str(self._store)]
        command += ["--namesrv-port", namesrv, "--broker-port", broker, "--flush", "sync"]
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, env=environment(), start_new_session=True
        )
        self._process = process
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("ready "), f"the server said {line!r}"
        words = dict(word.split("=", 1) for word in line.split()[1:])
        self.namesrv_addr, self.broker_addr = words["namesrv"], words["broker"]

    def kill(self) -> None:
        """kill -9."""
        process = self._process
        assert process is not None
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


@contextmanager
def serving(store: Path) -> Iterator[Server]:
    """Lend a server; it is killed at the end."""
    server = Server(store)
    server.restart()
    try:
        yield server
    finally:
        server.kill()


def test_kills_of_driver_executors_and_broker_lose_and_repeat_nothing(
    spark: Any, tmp_path: Path
) -> None:
    """Each replay of a micro-batch reads the same rows, and the table holds every message once."""
    with serving(tmp_path / "store") as server, landing_from(server, tmp_path) as landing:
        topic = Topic(server)
        replays = land_through_kills(landing, server, topic, KILLS)
    rows = spark.read.parquet(str(tmp_path / "table")).select("body").collect()
    check(landing, topic, [int(bytes(row.body)) for row in rows], replays)
