"""kill -9 of driver, executors and broker while a topic is landed: each message once.

``KILLS`` in the environment says how often the driver is killed (4); executors and broker are
killed half as often each.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.kits.spark.served import served
from tests.spark_read.landing import Topic, check, land_through_kills, landing_from

KILLS = int(os.environ.get("KILLS", "4"))

WITHOUT_CHMOD = {
    "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
}
"""The advice of docs/spark-operating.md for checkpoints on a local disk; Apache's broker sees the
defaults.
"""

pytestmark = [
    pytest.mark.spark,
    pytest.mark.chaos,
    pytest.mark.long,
    pytest.mark.timeout(420 + 240 * KILLS),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


def test_kills_of_driver_executors_and_broker_lose_and_repeat_nothing(
    spark: Any, tmp_path: Path
) -> None:
    """Each replay of a micro-batch reads the same rows, and the table holds every message once."""
    with (
        served(tmp_path / "store") as server,
        landing_from(server, tmp_path, WITHOUT_CHMOD) as landing,
    ):
        topic = Topic(server)
        replays = land_through_kills(landing, server, topic, KILLS)
    assert not list(tmp_path.rglob("*.crc")), "the settings are not in effect"
    rows = spark.read.parquet(str(tmp_path / "table")).select("body").collect()
    check(landing, topic, [int(bytes(row.body)) for row in rows], replays)
