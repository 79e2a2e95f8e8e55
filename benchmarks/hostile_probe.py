"""A healthy client beside an attack: sends one message at a time and says how long each took.

Law: an ordinary peer. The line ``take`` on standard input begins a new measurement and is answered
by the figures of the last one; any other line is answered by how many times it has so far.
"""

from __future__ import annotations

import json
import statistics
import sys
import threading
import time

from rocketstream import Message, Producer

PAUSE_S = 0.002
TIMEOUT_MS = 30_000


def figures(took_ms: list[float]) -> dict[str, float]:
    """Median, 99th percentile and worst of some times."""
    if len(took_ms) < 2:
        return {"count": len(took_ms)}
    cuts = statistics.quantiles(took_ms, n=100, method="inclusive")
    return {
        "count": len(took_ms),
        "p50_ms": round(cuts[49], 2),
        "p99_ms": round(cuts[98], 2),
        "max_ms": round(max(took_ms), 2),
    }


def main() -> None:
    """Send until standard input ends."""
    took_ms: list[float] = []
    ended = threading.Event()

    def send_all() -> None:
        with Producer(
            "hostile-probe", namesrv_addr=sys.argv[1], send_msg_timeout_ms=TIMEOUT_MS
        ) as producer:
            while not ended.is_set():
                began = time.perf_counter()
                producer.send(Message("Healthy", b"x" * 200))
                took_ms.append((time.perf_counter() - began) * 1000)
                time.sleep(PAUSE_S)

    thread = threading.Thread(target=send_all, name="probe")
    thread.start()
    began = 0
    for line in sys.stdin:
        # The sender only appends: what it adds meanwhile belongs to the next measurement.
        count = len(took_ms)
        found: dict[str, float] = {"count": count - began}
        if line.strip() == "take":
            found, began = figures(took_ms[began:count]), count
        sys.stdout.write(json.dumps(found) + "\n")
        sys.stdout.flush()
    ended.set()
    thread.join()


if __name__ == "__main__":
    main()
