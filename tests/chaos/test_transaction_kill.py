"""Transaction producers killed anywhere: what is committed is delivered, and nothing else."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rocketstream import TransactionProducer
from tests.behaviour.cluster import Cluster, embedded
from tests.behaviour.support import Seen, consumer_of
from tests.chaos.selling_process import GROUP, TOPIC, Rows
from tests.plugins.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]
KILLS = 4


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with embedded(tmp_path) as running:
        yield running


def sell_and_be_killed(cluster: Cluster, rows: Rows, file: Path, number: int) -> None:
    """Sell in a process of its own until some dozens of rows are there, then kill it."""
    before = len(rows.seats())
    command = [sys.executable, "-m", "tests.chaos.selling_process"]
    with subprocess.Popen(
        [*command, cluster.namesrv_addr, str(file), f"p{number}"], cwd=ROOT
    ) as process:
        try:
            wait_until(lambda: len(rows.seats()) > before + 30 + number, "sales")
        finally:
            process.kill()


@pytest.mark.timeout(180)
def test_kills_neither_lose_nor_invent_a_sale(cluster: Cluster, tmp_path: Path) -> None:
    """Covers C-484, C-485, C-486: a kill between the half, the row and the end of a transaction
    leaves it open; a producer of the group that has sent nothing answers for the dead ones."""
    cluster.create_topic(TOPIC, 2)
    file = tmp_path / "rows"
    rows = Rows(str(file))
    seen = Seen()
    with consumer_of(cluster.namesrv_addr, "printer", TOPIC, seen) as consumer:
        consumer.start()
        for number in range(KILLS):
            sell_and_be_killed(cluster, rows, file, number)
        sold = sorted(rows.seats())
        with TransactionProducer(
            GROUP, namesrv_addr=cluster.namesrv_addr, transaction_listener=rows
        ):
            seen.wait(lambda now: len({m.body for m in now.consumed}) >= len(sold))
    assert sorted(set(seen.bodies)) == sold
    assert not any(body.endswith("3") for body in seen.bodies)
