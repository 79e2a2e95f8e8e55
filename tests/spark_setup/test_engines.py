"""Where it runs: a standalone cluster, Spark Connect; and how it may not come.

On a cluster in one JVM (``local-cluster``) executors are killed: ``tests/spark_read``.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rocketstream.server.embedded import EmbeddedCluster
from tests.kits.spark.engines import ROOT, SPARK_HOME, environment
from tests.kits.spark.support import numbered, send

ROWS = 300
EVERYTHING = [2 * ROWS] * 3 + [2 * ROWS + 2 * ROWS // 100, 1]
"""Rows read, streamed and written; tries of a listener, a hundredth twice; one on request."""

pytestmark = [pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(900)]


def counts(
    master: str, cluster: EmbeddedCluster, new_topic: Callable[..., str], root: Path
) -> list[int]:
    """Run the program on an engine and return what it counted."""
    topic, copy = new_topic(queues=2), new_topic(queues=2)
    for queue_id in range(2):
        send(cluster, topic, queue_id, numbered(queue_id * ROWS, ROWS))
    program = [sys.executable, "-m", "tests.kits.spark.engine_program"]
    done = subprocess.run(
        [*program, master, cluster.namesrv_addr, topic, copy, str(root)],
        cwd=ROOT,
        env=environment(),
        timeout=800,  # three JVMs and more
        capture_output=True,
        text=True,
    )
    # Spark says much after the error that ended the program.
    failed = done.stderr[max(done.stderr.rfind("Traceback"), 0) :][:4_000]
    assert done.returncode == 0, (done.stdout, failed)
    return [int(line) for line in done.stdout.split() if line.isdigit()]


@contextlib.contextmanager
def daemon(log: Path, *words: str) -> Iterator[Path]:
    """Run one of Spark's daemons; its log is what it prints."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            [str(SPARK_HOME / "bin" / "spark-class"), *words],
            env=environment(),
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        try:
            yield log
        finally:
            process.terminate()
            process.wait(30)


def told(log: Path, pattern: str) -> str:
    """Wait until a daemon has said something, and return it."""
    pause = threading.Event()
    for _ in range(1_200):
        found = re.search(pattern, log.read_text())
        if found:
            return found.group(1)
        pause.wait(0.1)
    raise AssertionError(f"{pattern} never came:\n{log.read_text()[-3_000:]}")


def test_a_standalone_cluster_of_two_workers_reads_streams_writes_and_consumes(
    shared_cluster: EmbeddedCluster, new_topic: Callable[..., str], tmp_path: Path
) -> None:
    deploy, local = "org.apache.spark.deploy", ("--host", "127.0.0.1", "--webui-port", "0")
    with contextlib.ExitStack() as stack:
        master = (f"{deploy}.master.Master", *local, "--port", "0")
        log = stack.enter_context(daemon(tmp_path / "master.log", *master))
        address = told(log, r"Starting Spark master at (spark://\S+)")
        for number in range(2):
            work = ("--cores", "1", "--memory", "1g", "--work-dir", str(tmp_path / f"w{number}"))
            worker = (f"{deploy}.worker.Worker", *local, *work, address)
            log = stack.enter_context(daemon(tmp_path / f"worker-{number}.log", *worker))
            told(log, r"(Successfully registered) with master")
        assert counts(address, shared_cluster, new_topic, tmp_path) == EVERYTHING


def test_spark_connect_reads_streams_writes_and_consumes(
    shared_cluster: EmbeddedCluster, new_topic: Callable[..., str], tmp_path: Path
) -> None:
    assert counts("connect", shared_cluster, new_topic, tmp_path) == EVERYTHING


PY_FILES = """
import sys
from pyspark.sql import SparkSession
from rocketstream.spark import register
spark = SparkSession.builder.getOrCreate()
try:
    register(spark)
except Exception as error:
    print(f"{type(error).__name__}: {error}")
spark.stop()
"""


def test_py_files_are_refused_with_the_reason(tmp_path: Path) -> None:
    """A stream could not find the package; that is said before anything is read."""
    package = shutil.make_archive(str(tmp_path / "package"), "zip", ROOT / "src", "rocketstream")
    program = tmp_path / "program.py"
    program.write_text(PY_FILES)
    settings = ("--conf", "spark.ui.enabled=false", "--master", "local[1]")
    done = subprocess.run(
        [str(SPARK_HOME / "bin" / "spark-submit"), *settings, "--py-files", package, str(program)],
        cwd=tmp_path,
        env=environment() | {"PYTHONPATH": ""},
        timeout=200,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3_000:]
    assert "NotSupportedError: rocketstream was brought along by --py-files" in done.stdout
    assert "by_value=True" in done.stdout
