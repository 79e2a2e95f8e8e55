"""``rocketstream ingest`` into Delta Lake, Iceberg and object storage, killed in the middle."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from rocketstream.server.embedded import EmbeddedCluster
from tests.kits.apache.referee import RefereeUnavailableError
from tests.kits.spark.support import Sent, send
from tests.landing.lakes import LAKES, ROOT, Lake
from tests.plugins.waiting import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1_800)]

OWN_SPARK = ("delta", "iceberg")
"""Kinds that take a Spark of their own, which is downloaded."""

TOPIC = "orders"
NARROW = ("--schema", "id INT")
WIDE = ("--schema", "id INT, city STRING")
PART = 20
DEADLINE_S = 300


KINDS = {
    name: pytest.param(
        name, marks=pytest.mark.versions if name in OWN_SPARK else pytest.mark.interop
    )
    for name in sorted(LAKES)
}


@pytest.fixture(params=KINDS.values())
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Lake]:
    """A place for the table; skips the test where it cannot be had, or fails it in CI."""
    made: Callable[[Path], AbstractContextManager[Lake]] = LAKES[request.param]
    try:
        with made(tmp_path) as place:
            place.environment()
            yield place
    except (RefereeUnavailableError, RuntimeError) as reason:
        if os.environ.get("CI", "").lower() in ("1", "true", "yes"):
            pytest.fail(str(reason), pytrace=False)
        pytest.skip(str(reason))


def orders(first: int) -> list[Sent]:
    ids = range(first, first + PART)
    return [Sent(json.dumps({"id": n, "city": f"c{n % 3}"}).encode()) for n in ids]


def killed_in_a_micro_batch(lake: Lake, cluster: EmbeddedCluster, root: Path) -> None:
    """Land what there is, and end driver and JVM when more has been planned, wherever that is."""
    words = lake.ingest(cluster.namesrv_addr, TOPIC, *NARROW, "--continuous", "--every", "0s")
    with (root / "killed.log").open("w+") as log:
        landing = subprocess.Popen(
            words, cwd=root, env=lake.environment(), stdout=log, stderr=log, start_new_session=True
        )
        try:

            def reached(folder: str, number: int) -> bool:
                assert landing.poll() is None, Path(log.name).read_text()[-3_000:]
                return str(number) in lake.names(folder)

            wait_until(lambda: reached("commits", 0), "landed micro-batch", DEADLINE_S)
            send(cluster, TOPIC, 1, orders(2 * PART))
            wait_until(lambda: reached("offsets", 1), "planned micro-batch", DEADLINE_S, 0.001)
        finally:
            os.killpg(landing.pid, signal.SIGKILL)
            landing.wait(60)


def landed(lake: Lake, cluster: EmbeddedCluster, *schema: str) -> dict[str, Any]:
    """Land what there is and return what the run says of it."""
    return told(lake, lake.ingest(cluster.namesrv_addr, TOPIC, *schema, "--once", "--json"))


def told(lake: Lake, words: list[str]) -> dict[str, Any]:
    """Run a command and return its JSON."""
    done = subprocess.run(
        words,
        cwd=ROOT,
        env=lake.environment(),
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3_000:]
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_a_killed_landing_goes_on_in_a_wider_table_and_each_message_is_there_once(
    lake: Lake, tmp_path: Path
) -> None:
    """What had landed is not landed again, and earlier rows have a null in the new column."""
    with EmbeddedCluster() as cluster:
        cluster.create_topic(TOPIC, queues=2)
        for queue_id in range(2):
            send(cluster, TOPIC, queue_id, orders(queue_id * PART))
        killed_in_a_micro_batch(lake, cluster, tmp_path)
        send(cluster, TOPIC, 0, orders(3 * PART))
        # On Spark 4.1 the first run after a kill lands no more than the killed one had begun.
        runs = [landed(lake, cluster, *WIDE) for _ in range(2)]
    assert sum(run["rows"] for run in runs) in (PART, 2 * PART), runs
    rows = lake.rows(tmp_path)
    firsts = {0: (0, 3 * PART), 1: (PART, 2 * PART)}
    ids = [
        (queue, n)
        for queue in firsts
        for first in firsts[queue]
        for n in range(first, first + PART)
    ]
    wanted = [[queue, place % (2 * PART), n] for place, (queue, n) in enumerate(ids)]
    assert [row[:3] for row in rows] == wanted
    cities = {row[2]: row[3] for row in rows}
    assert [cities[n] for n in range(2 * PART)] == [None] * (2 * PART)
    assert [cities[n] for n in range(3 * PART, 4 * PART)] == [
        f"c{n % 3}" for n in range(3 * PART, 4 * PART)
    ]


@pytest.mark.parametrize("lake", [KINDS["s3"]], indirect=True)
def test_a_table_in_a_store_of_objects_is_compacted_and_landed_on(
    lake: Lake, tmp_path: Path
) -> None:
    """Replaced files are gone, nothing is landed twice."""
    with EmbeddedCluster() as cluster:
        cluster.create_topic(TOPIC, queues=1)
        send(cluster, TOPIC, 0, orders(0))
        assert landed(lake, cluster, *WIDE, "--rows-per-batch", "2")["batches"] == PART // 2
        done = told(lake, lake.compact())
        assert (done["files"], done["into"], done["removed"]) == (PART // 2, 1, PART // 2)
        send(cluster, TOPIC, 0, orders(PART))
        assert landed(lake, cluster, *WIDE)["landed"] == PART
    rows = lake.rows(tmp_path)
    assert rows == [[0, n, n, f"c{n % 3}"] for n in range(2 * PART)]
