"""Transactions of Java producers on our servers."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from rocketstream.server.embedded import EmbeddedCluster
from tests.kits.apache.cluster import SHORT_DELAYS, JavaPrograms
from tests.kits.apache.jvm import Jvm
from tests.kits.apache.ours import Collector

FILE_BYTES = 128 * 1024 * 1024
TOPIC = "orders"


def embedded(store: Path, **more: Any) -> EmbeddedCluster:
    """Our servers on a store, with checks every second."""
    return EmbeddedCluster(
        store,
        delay_levels=SHORT_DELAYS,
        commit_log_file_bytes=FILE_BYTES,
        transaction_timeout_ms=500,
        transaction_check_interval_ms=1_000,
        transaction_check_max=1_000,
        **more,
    )


def begin(java: JavaPrograms, namesrv: str, **arguments: Any) -> Jvm:
    given = {"namesrv": namesrv, "topic": TOPIC, "group": "till", **arguments}
    return java.start("JavaTransactionProducer", **given)


def close(producer: Jvm) -> None:
    producer.end_input()
    producer.wait_event("closed")
    assert producer.wait() == 0


def bodies(prefix: str, indexes: range | list[int]) -> Counter[str]:
    return Counter(f"{prefix}-{index}" for index in indexes)


def keys(collector: Collector) -> Counter[str]:
    return Counter(each.sent.keys for each in collector.consumed())


def undecided(cluster: EmbeddedCluster) -> int:
    """How many transactions our broker waits for."""
    return cluster.broker.undecided_transactions
