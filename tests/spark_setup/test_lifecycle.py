"""Processes: a driver killed in the middle, workers, shipping the package, Spark's own signals."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rocketstream.client.admin.blocking import BlockingAdminClient
from rocketstream.model import MessageQueue
from rocketstream.protocol.names import SCHEDULE_TOPIC
from rocketstream.server.embedded import EmbeddedCluster
from rocketstream.spark.setup.preparation import local_python
from rocketstream.testing import LeakCheck
from tests.kits.spark.support import numbered, send
from tests.plugins.leaks import gateway_ports

ROOT = Path(__file__).resolve().parents[2]

pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(240),
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas"),
]


def start_driver(cluster: EmbeddedCluster, topic: str, root: Path) -> subprocess.Popen[bytes]:
    """Start the job in a process group of its own, with its JVM."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": local_python()}
    program = [sys.executable, "-m", "tests.spark_setup.driver_program"]
    return subprocess.Popen(
        [*program, cluster.namesrv_addr, topic, str(root)],
        cwd=ROOT,
        env=environment,
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=(root / "driver.log").open("ab"),
    )


@pytest.mark.chaos
@pytest.mark.long
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_driver_killed_inside_a_micro_batch_loses_and_repeats_nothing(
    spark: Any, shared_cluster: EmbeddedCluster, new_topic: Callable[..., str], tmp_path: Path
) -> None:
    """kill -9 of driver and JVM while a task of batch 2 runs; then a restart on the checkpoint."""
    topic = new_topic(queues=2)
    send(shared_cluster, topic, 0, numbered(0, 300))
    send(shared_cluster, topic, 1, numbered(300, 200))
    driver = start_driver(shared_cluster, topic, tmp_path)
    pause = threading.Event()
    while not (tmp_path / "reached").exists():
        assert driver.poll() is None, (tmp_path / "driver.log").read_text()[-2_000:]
        pause.wait(0.05)
    os.killpg(driver.pid, signal.SIGKILL)
    driver.wait(30)
    offsets = len(list((tmp_path / "checkpoint/offsets").glob("[0-9]*")))
    assert offsets > len(list((tmp_path / "checkpoint/commits").glob("[0-9]*"))) >= 1

    again = start_driver(shared_cluster, topic, tmp_path)
    assert again.wait(120) == 0, (tmp_path / "driver.log").read_text()[-2_000:]
    rows = spark.read.parquet(str(tmp_path / "table")).collect()
    assert sorted(row.number for row in rows) == list(range(500))


def test_the_source_runner_ends_orderly_at_sigterm(tmp_path: Path) -> None:
    """Covers S 0.5: Spark never calls stop() at a normal end, it sends SIGTERM."""
    program = f"""
import os, signal, sys, threading
sys.modules["pyspark.sql.streaming.python_streaming_source_runner"] = sys
from pathlib import Path
from rocketstream.spark.driver.runner import stop_on_sigterm
stop_on_sigterm()
try:
    os.kill(os.getpid(), signal.SIGTERM)
    threading.Event().wait(30)
finally:
    Path({str(tmp_path / "stopped")!r}).touch()
"""
    done = subprocess.run([sys.executable, "-c", program], timeout=60)
    assert done.returncode == 143
    assert (tmp_path / "stopped").exists()


def test_other_processes_keep_their_signals() -> None:
    """The planner and this test run are not the source runner."""
    from rocketstream.spark.driver.runner import is_source_runner, stop_on_sigterm

    before = signal.getsignal(signal.SIGTERM)
    stop_on_sigterm()
    assert not is_source_runner()
    assert signal.getsignal(signal.SIGTERM) is before


def retries(cluster: EmbeddedCluster) -> int:
    """How many messages were ever sent back for the first time."""
    with BlockingAdminClient(cluster.namesrv_addr) as admin:
        return admin.max_offset(MessageQueue(SCHEDULE_TOPIC, "broker-a", 2))


@pytest.mark.long
def test_registered_by_value_the_package_travels_along(
    spark: Any, shared_cluster: EmbeddedCluster, new_topic: Callable[..., str], tmp_path: Path
) -> None:
    """Covers S 7: without the package executors read, streams and files too, write and consume."""
    topic = new_topic(queues=1)
    send(shared_cluster, topic, 0, numbered(0, 20))
    before = retries(shared_cluster)
    done = subprocess.run(
        [sys.executable, "-m", "tests.kits.spark.by_value_program",
         shared_cluster.namesrv_addr, topic,
         str(shared_cluster.store_dir), str(tmp_path)],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"},
        timeout=120,
        capture_output=True,
        text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3_000:]
    assert done.stdout.split() == ["20", "20", "1", "1", "40", "40", "40"]
    assert retries(shared_cluster) == before + 2, "what the listener failed was sent back"


def test_what_spark_opens_when_it_likes_is_no_leak_of_a_test(spark: Any) -> None:
    """Each thread that speaks to Java gets a connection, that which ends Java's objects too."""
    others, everything = LeakCheck(gateway_ports), LeakCheck()
    spoken, end = threading.Event(), threading.Event()

    def speak() -> None:
        spark._jvm.java.lang.System.nanoTime()
        spoken.set()
        end.wait(60)

    thread = threading.Thread(target=speak, daemon=True)
    thread.start()
    assert spoken.wait(60)
    try:
        assert everything.leaks(wait_ms=0)
        assert others.leaks(wait_ms=0) == []
    finally:
        end.set()
        thread.join(60)
