"""kill -9 of a process that writes: what was acknowledged is there, and nothing that was not sent.

Law: a child process owns the store and reports each flushed message on its standard output.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from rocketstream.errors import StoreLockedError
from rocketstream.server.store import MessageStore, StoreConfig
from rocketstream.testing.clock import ManualClock
from tests.kits.stores import all_bodies

pytestmark = pytest.mark.chaos

WRITER = """
import sys
from pathlib import Path
from rocketstream.protocol.record import new_draft
from rocketstream.protocol.record import pack_host
from rocketstream.server.store import MessageStore, StoreConfig

config = StoreConfig(commit_log_file_bytes=65536, consume_queue_file_bytes=2000, flush="sync")
store = MessageStore(Path(sys.argv[1]), config)
store.open()
host = pack_host("127.0.0.1", 10911)
number = store.max_offset("T1", 0)

def acknowledge(number):
    def tell(error):
        if error is None:
            sys.stdout.write(f"{number}\\n")
            sys.stdout.flush()
    return tell

while True:
    body = b"%08d" % number * (1 + number % 700)
    key = b"UNIQ_KEY\\x01%032d" % number
    store.append([new_draft("T1", 0, 0, 0, 1, host, host, body, key, 0, ("%032d" % number,))])
    store.when_flushed(store.physical_max_offset, acknowledge(number))
    number += 1
"""
CONFIG = StoreConfig(commit_log_file_bytes=65536, consume_queue_file_bytes=2000, flush="sync")


def test_killed_writer_loses_nothing_acknowledged(tmp_path: Path) -> None:
    """Five kills in a row on one store; the lock of a live process is respected (W 5.5)."""
    acknowledged = -1
    for round_number in range(5):
        child = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE, text=True
        )
        assert child.stdout is not None
        with child, child.stdout as output:
            for _ in range(200 + 37 * round_number):
                acknowledged = int(output.readline())
            with pytest.raises(StoreLockedError, match="another process"):
                MessageStore(tmp_path, CONFIG).open()
            child.kill()
            acknowledged = max(
                [acknowledged, *(int(line) for line in output if line.endswith("\n"))]
            )
        store = MessageStore(tmp_path, CONFIG, ManualClock())
        report = store.open()
        bodies = all_bodies(store)
        store.abandon()
        assert not report.clean_exit
        assert not report.quarantined
        assert len(bodies) > acknowledged
        assert bodies == [b"%08d" % number * (1 + number % 700) for number in range(len(bodies))]
