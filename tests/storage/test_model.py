"""The store against a list: any mix of puts, batches, reads, restarts and crashes."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from rocketstream.server.store import GetMessageStatus, MessageStore
from rocketstream.testing.clock import ManualClock
from tests.kits.stores import QuickFiles, bodies, make_record, put, put_records, small_config

QUEUES = [("T1", 0), ("T1", 1), ("T2", 0)]
queue_of = st.sampled_from(QUEUES)
body_of = st.binary(min_size=1, max_size=700)


class StoreModel(RuleBasedStateMachine):
    """Every queue is a list; whatever happens, a queue reads like its list."""

    @initialize()
    def open_store(self) -> None:
        self._directory = tempfile.TemporaryDirectory()
        self.clock = ManualClock()
        self.lists: dict[tuple[str, int], list[bytes]] = {queue: [] for queue in QUEUES}
        self._open()

    def _open(self) -> None:
        self.store = MessageStore(
            Path(self._directory.name), small_config(), self.clock, QuickFiles()
        )
        self.store.open()

    @rule(queue=queue_of, body=body_of, pause=st.sampled_from([0, 1, 5000]))
    def put_one(self, queue: tuple[str, int], body: bytes, pause: int) -> None:
        self.clock.advance(pause)
        result = put(self.store, body, topic=queue[0], queue_id=queue[1])
        assert result.queue_offset == len(self.lists[queue])
        self.lists[queue].append(body)

    @rule(
        queue=queue_of, batch=st.lists(st.binary(min_size=1, max_size=200), min_size=1, max_size=9)
    )
    def put_many(self, queue: tuple[str, int], batch: list[bytes]) -> None:
        records = [make_record(body, topic=queue[0], queue_id=queue[1]) for body in batch]
        result = put_records(self.store, *queue, records, [0] * len(batch), [()] * len(batch))
        assert result.queue_offset == len(self.lists[queue])
        assert result.physical_offset // 4096 == (result.end_offset - 1) // 4096
        self.lists[queue] += batch

    @rule(queue=queue_of, offset=st.integers(0, 60), count=st.integers(1, 40))
    def get(self, queue: tuple[str, int], offset: int, count: int) -> None:
        expected = self.lists[queue]
        result = self.store.get(*queue, offset, count)
        if offset >= len(expected):
            assert result.status is not GetMessageStatus.FOUND
            return
        found = bodies(result)
        assert found
        assert found == expected[offset : offset + len(found)]
        assert result.next_begin_offset == offset + len(found)
        assert len(found) == result.count <= count

    @rule()
    def flush(self) -> None:
        self.store.flush()

    @rule()
    def restart(self) -> None:
        self.store.close()
        self._open()

    @rule()
    def crash(self) -> None:
        self.store.abandon()
        self._open()

    @invariant()
    def bounds_are_the_lists(self) -> None:
        for queue, expected in self.lists.items():
            assert self.store.max_offset(*queue) == len(expected)
            assert self.store.min_offset(*queue) == 0

    def teardown(self) -> None:
        self.store.abandon()
        self._directory.cleanup()


TestStoreModel = StoreModel.TestCase
TestStoreModel.settings = settings(
    max_examples=25, stateful_step_count=30, deadline=None, derandomize=True
)
