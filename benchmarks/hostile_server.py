"""The server under attack, in a process of its own, with a pulse on its loop that tells of stalls.

Law: serves and measures; who attacks it and how is not known here. Commands come on standard
input, one a line, and are answered by one JSON line each.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import sys
import time
from pathlib import Path

from benchmarks.harness import resident_mib
from rocketstream._util.loops import LoopThread
from rocketstream.server.embedded import EmbeddedCluster, spare_collector

PULSE_S = 0.001


class Pulse:
    """Beats every millisecond on a loop and remembers the longest time without a beat.

    Attributes:
        gap_ms: longest time between two beats since ``reset``.
        busy_ms: most processor time the loop's thread used between two beats; what other
            processes on the machine do does not count here.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.gap_ms = self.busy_ms = 0.0
        self._beat_s, self._used_s = time.perf_counter(), time.thread_time()
        self._beat()

    def _beat(self) -> None:
        now_s, used_s = time.perf_counter(), time.thread_time()
        self.gap_ms = max(self.gap_ms, (now_s - self._beat_s) * 1000)
        self.busy_ms = max(self.busy_ms, (used_s - self._used_s) * 1000)
        self._beat_s, self._used_s = now_s, used_s
        self._loop.call_later(PULSE_S, self._beat)

    def take(self) -> dict[str, float]:
        """Return the figures and begin anew."""
        found = {"gap_ms": round(self.gap_ms, 1), "busy_ms": round(self.busy_ms, 1)}
        self.gap_ms = self.busy_ms = 0.0
        return found


async def _start(cluster: EmbeddedCluster) -> Pulse:
    await cluster.start_async()
    spare_collector()
    return Pulse(asyncio.get_running_loop())


async def _take(cluster: EmbeddedCluster, pulse: Pulse) -> dict[str, float]:
    await asyncio.sleep(5 * PULSE_S)  # What has just ended counts at the next beat.
    return {**pulse.take(), "held_pulls": cluster.broker.held_pulls}


def _say(line: object) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


def main() -> None:
    """Serve until standard input ends."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.hostile_server")
    parser.add_argument("--store", type=Path, required=True)
    options = parser.parse_args()
    logging.basicConfig(level=logging.WARNING, filename=options.store / "server.log")
    cluster = EmbeddedCluster(options.store / "store", commit_log_file_bytes=256 * 1024 * 1024)
    with LoopThread("rocketstream-server") as thread:
        pulse = thread.run(_start(cluster))
        where = cluster.ready_info
        _say({
            "broker": where.broker_addr,
            "namesrv": where.namesrv_addr,
            "codes": cluster.broker.codes,
            "namesrv_codes": cluster.nameserver.dispatcher.codes,
        })  # fmt: skip
        for _ in sys.stdin:
            figures = thread.run(_take(cluster, pulse))
            _say({**figures, "rss_mib": round(resident_mib("self"), 1),
                  "own_mib": round(resident_mib("self", "RssAnon"), 1)})  # fmt: skip
        thread.run(cluster.close_async())


if __name__ == "__main__":
    main()
