"""What a store promised to keep is there after a loss of power, on a disk that keeps no more."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from rocketstream.server.store import MessageStore, StoreConfig
from rocketstream.testing.clock import ManualClock
from rocketstream.testing.sim.disk import Disk, SimFiles
from rocketstream.testing.sim.loop import Scheduler, SimLoop
from rocketstream.testing.sim.workers import SimWorkers
from tests.unit.store.kit import TOPIC, put

ROOT = Path("/data/store")
SMALL = StoreConfig(
    commit_log_file_bytes=8192, consume_queue_file_bytes=160, index_slots=16, index_entries=64
)


def open_store(disk: Disk) -> MessageStore:
    loop = SimLoop(Scheduler())
    store = MessageStore(
        ROOT, SMALL, ManualClock(), files=SimFiles(disk), workers=SimWorkers(loop, lambda: 0.0)
    )
    store.open()
    return store


@pytest.mark.parametrize("seed", range(20))
def test_flushed_messages_of_a_new_store_survive(seed: int) -> None:
    disk = Disk(random.Random(seed), lambda: 0)
    store = open_store(disk)
    for _ in range(3):
        put(store, b"kept")
    store.flush()
    disk.lose_power()
    assert open_store(disk).max_offset(TOPIC, 0) == 3
