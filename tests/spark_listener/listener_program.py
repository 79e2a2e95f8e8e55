"""A consumer on Spark in a process of its own, to be killed: ``NAMESRV TOPIC ROOT MASTER``.

Runs until the file ``ROOT/stop`` is there, then shuts down.
"""

from __future__ import annotations

import sys
from pathlib import Path

from rocketstream.model import ConsumeFromWhere
from rocketstream.spark import SparkPushConsumer
from tests.kits.spark.engine_program import session
from tests.spark_listener.outcomes import RETRIES, outcome_listener


def main(name_server: str, topic: str, root: Path, master: str) -> None:
    """Consume until told to stop."""
    spark = session(master, root)
    spark.sparkContext.setLogLevel("OFF")
    consumer = SparkPushConsumer(
        "killed",
        spark,
        str(root / "checkpoint"),
        namesrv_addr=name_server,
        listener=outcome_listener(str(root / "notes")),
        subscription={topic: "*"},
        max_reconsume_times=RETRIES,
        consume_from_where=ConsumeFromWhere.FIRST_OFFSET,
        max_offsets_per_trigger=1_250,
        options={"retryTimeoutMs": 120_000},
    )
    with consumer:
        while not (root / "stop").exists():
            assert not consumer.await_termination(1_000)
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]), sys.argv[4])
