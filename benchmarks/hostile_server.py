"""The server under attack, in a process of its own, with a pulse on its loop that tells of stalls.

Law: serves and measures; who attacks it and how is not known here. Commands come on standard
input, one a line, and are answered by one JSON line each.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import sys
import time
from pathlib import Path

from rocketstream._util.loops import LoopThread
from rocketstream.server.embedded import EmbeddedCluster
from rocketstream.server.gc_scheduler import GcScheduler

PULSE_S = 0.001
MEMORY_EVERY = 8
PAGES_OF_MIB = 1024 * 1024 / os.sysconf("SC_PAGE_SIZE")


class Pulse:
    """Beats every millisecond on a loop and remembers the longest time without a beat.

    Attributes:
        gap_ms: longest time between two beats since ``take``.
        busy_ms: most processor time the loop's thread used between two beats; what other
            processes on the machine do does not count here.
        rss_mib: most memory the process held since ``take`` (Linux).
        own_mib: the same without pages of mapped files.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._memory = os.open("/proc/self/statm", os.O_RDONLY)
        self._beats = 0
        self._begin()
        self._beat_s, self._used_s = time.perf_counter(), time.thread_time()
        self._beat()

    def _begin(self) -> None:
        self.gap_ms = self.busy_ms = self.rss_mib = self.own_mib = 0.0

    def _beat(self) -> None:
        now_s, used_s = time.perf_counter(), time.thread_time()
        self.gap_ms = max(self.gap_ms, (now_s - self._beat_s) * 1000)
        self.busy_ms = max(self.busy_ms, (used_s - self._used_s) * 1000)
        self._beat_s, self._used_s = now_s, used_s
        self._beats += 1
        if self._beats % MEMORY_EVERY == 0:
            self._weigh()
        self._loop.call_later(PULSE_S, self._beat)

    def take(self) -> dict[str, float]:
        """Return the figures and begin anew."""
        self._weigh()
        names = ("gap_ms", "busy_ms", "rss_mib", "own_mib")
        found = {name: round(getattr(self, name), 1) for name in names}
        self._begin()
        return found

    def _weigh(self) -> None:
        _, resident, shared, *_ = os.pread(self._memory, 128, 0).split()
        self.rss_mib = max(self.rss_mib, int(resident) / PAGES_OF_MIB)
        self.own_mib = max(self.own_mib, (int(resident) - int(shared)) / PAGES_OF_MIB)


async def _start(cluster: EmbeddedCluster) -> Pulse:
    await cluster.start_async()
    loop = asyncio.get_running_loop()
    GcScheduler(loop).start()
    return Pulse(loop)


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
            _say(thread.run(_take(cluster, pulse)))
        thread.run(cluster.close_async())


if __name__ == "__main__":
    main()
