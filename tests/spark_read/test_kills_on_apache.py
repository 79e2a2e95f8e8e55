"""kill -9 of driver, executors and Apache's broker while our source lands its topic.

``KILLS`` in the environment says how often the driver is killed (2), ``APACHE`` which broker it
is (4.9.7).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.kits.apache.cluster import ApacheCluster
from tests.plugins.apache import prepared
from tests.spark_read.landing import QUEUES, TOPIC, Topic, check, land_through_kills, landing_from

KILLS = int(os.environ.get("KILLS", "2"))
APACHE = os.environ.get("APACHE", "4.9.7")

pytestmark = [
    pytest.mark.interop,
    pytest.mark.spark,
    pytest.mark.chaos,
    pytest.mark.timeout(420 + 240 * KILLS),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


class Killable(ApacheCluster):
    """Apache's broker as the kills know one."""

    def kill(self) -> None:
        """kill -9."""
        self.kill_broker()

    def restart(self) -> None:
        """Start it again on its store."""
        self.restart_broker()


def test_kills_on_apaches_broker_lose_and_repeat_nothing(spark: Any, tmp_path: Path) -> None:
    """What ours promises is no property of our broker."""
    broker = Killable(prepared(APACHE), tmp_path / "apache")
    try:
        broker.start()
        broker.create_topic(TOPIC, queues=QUEUES)
        with landing_from(broker, tmp_path) as landing:
            topic = Topic(broker)
            replays = land_through_kills(landing, broker, topic, KILLS)
    finally:
        broker.stop(kill=True)
    rows = spark.read.parquet(str(tmp_path / "table")).select("body").collect()
    check(landing, topic, [int(bytes(row.body)) for row in rows], replays)
