"""One session for long: hundreds of micro-batches, and a stream begun again and again."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from rocketstream.server.embedded import EmbeddedCluster
from rocketstream.spark.listener.queries import STARTS_MAX, is_given_up
from tests.kits.spark.support import numbered, send
from tests.spark_read.census import Census, take_census

pytestmark = [
    pytest.mark.spark,
    pytest.mark.long,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="counts what /proc shows"),
]

BATCHES = 200
WARM_BATCHES = 60
BATCH_ROWS = 2
RESTARTS = 16
WARM_RESTARTS = 4
ROWS_A_START = 8
DEADLINE_S = 300
MORE_MAX = {
    # Spark has a worker more where tasks run at once, and ends those that are idle for a minute.
    "processes": 3,
    "threads of Python": 6,
    "sockets of Python": 9,
    "threads of the driver": 4,
    "sockets of the driver": 6,
    # The JVM keeps a socket of each start of a stream that reads a Python source, any one.
    "threads of the JVM": 80,
    "sockets of the JVM": RESTARTS + 6,
    "MiB of the driver": 24,
    "MiB of the largest Python": 8,
}
"""A leak of ours of one in each restart, or in one of ten micro-batches, is more than these."""


class Landing:
    """A stream of a topic into Parquet that is begun again from its checkpoint."""

    def __init__(self, frame: Any, root: Path) -> None:
        self._root = root
        writer = frame.writeStream.format("parquet").option("path", str(root / "table"))
        self._writer = writer.option("checkpointLocation", str(root / "checkpoint"))

    def batches(self) -> int:
        """How many micro-batches have landed."""
        commits = (self._root / "checkpoint/commits").glob("[0-9]*")
        return 1 + max((int(each.name) for each in commits), default=-1)

    @contextmanager
    def running(self, batches: int) -> Iterator[Any]:
        """Run it until so many have landed; it is stopped where it is at the end of the block."""
        query = self._started()
        try:
            pause = threading.Event()
            for _ in range(DEADLINE_S * 50):
                if self.batches() >= batches:
                    break
                assert query.exception() is None, query.exception()
                pause.wait(0.02)
            assert self.batches() >= batches
            yield query
        finally:
            query.stop()

    def _started(self) -> Any:
        """Start it, again where a busy machine took over ten seconds to start its Python."""
        for _ in range(STARTS_MAX):
            query = self._writer.start()
            while query.isActive and query.lastProgress is None:
                query.awaitTermination(0.05)
            if query.exception() is None or not is_given_up(query):
                break
        return query

    def numbers(self, spark: Any) -> list[int]:
        """The numbers of all rows, sorted; repeats stay."""
        return sorted(
            int(row.body) for row in spark.read.parquet(str(self._root / "table")).collect()
        )


def more(before: Census, after: Census) -> dict[str, tuple[int, int]]:
    """Return what has grown by more than it may, with its figures before and after."""
    then, now = before.totals(), after.totals()
    grown = {name: (then[name], now[name]) for name in then}
    return {name: pair for name, pair in grown.items() if pair[1] > pair[0] + MORE_MAX[name]}


def assert_flat(spark: Any, before: Census) -> None:
    """Count until nothing has grown: what is being ended, as Spark's workers, takes seconds."""
    pause = threading.Event()
    for _ in range(60):
        after = take_census(spark)
        if not (found := more(before, after)):
            return
        pause.wait(0.5)
    raise AssertionError(f"grown: {found}\n{before.pythons}\n{after.pythons}")


def test_hundreds_of_micro_batches_and_restarts_keep_nothing(
    spark: Any, shared_cluster: EmbeddedCluster, new_topic: Callable[..., str],
    stream: Callable[..., Any], tmp_path: Path,
) -> None:  # fmt: skip
    """Processes, threads, sockets and memory are flat, and each row comes once."""
    topic = new_topic(queues=2)
    rows = BATCHES * BATCH_ROWS
    for queue_id in range(2):
        send(shared_cluster, topic, queue_id, numbered(queue_id * rows // 2, rows // 2))
    frame = stream(topic, "body BINARY", maxOffsetsPerTrigger=BATCH_ROWS, group=f"g-{topic}")
    landing = Landing(frame, tmp_path)
    with landing.running(WARM_BATCHES) as query:
        warm = take_census(spark)
        query.processAllAvailable()
        assert_flat(spark, warm)
    assert landing.batches() >= BATCHES
    assert landing.numbers(spark) == list(range(rows))

    for restart in range(RESTARTS):
        before = landing.batches()
        send(shared_cluster, topic, restart % 2, numbered(rows, ROWS_A_START))
        rows += ROWS_A_START
        # Every other one is stopped wherever it is, with rows left to read.
        with landing.running(before + 1) as query:
            if restart % 2:
                query.processAllAvailable()
            if restart == WARM_RESTARTS:
                warm = take_census(spark)
            elif restart == RESTARTS - 1:
                assert_flat(spark, warm)
    assert landing.numbers(spark) == list(range(rows))
