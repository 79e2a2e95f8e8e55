"""Transactions of the unmodified Java client on our broker."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kits.apache.cluster import JavaPrograms
from tests.kits.apache.messages import body_of, digest
from tests.kits.apache.ours import Collector, push_consumer
from tests.plugins.waiting import wait_until
from tests.transactions.java_producers import TOPIC, begin, bodies, close, embedded, keys, undecided

pytestmark = [pytest.mark.interop, pytest.mark.timeout(240)]


def test_java_transactions_end_as_their_listener_says(java: JavaPrograms, tmp_path: Path) -> None:
    """Covers C-412 to C-419: committed ones once, rolled back ones never, undecided ones asked
    about until they are decided."""
    collector = Collector()
    with embedded(tmp_path / "store") as ours:
        ours.create_topic(TOPIC, queues=4)
        with (
            push_consumer(ours.namesrv_addr, "shop", TOPIC, collector),
            # By index modulo 3: committed, rolled back, undecided; of the undecided ones (2, 5, 8,
            # …) the first check commits the even and leaves the odd, which the second rolls back.
            begin(java, ours.namesrv_addr, count=300, decide="CRU", check="CU,CR") as producer,
        ):
            producer.wait_event("done")
            committed = [i for i in range(300) if i % 3 == 0]
            checked = [i for i in range(300) if i % 3 == 2 and i % 2 == 0]
            collector.wait(len(committed) + len(checked))
            wait_until(lambda: undecided(ours) == 0, "decisions")
            close(producer)
        assert keys(collector) == bodies("t", committed + checked)
        digests = {each.sent.keys: each.sent.digest for each in collector.consumed()}
        assert digests["t-0"] == digest(body_of("t", 0, 100))


def test_java_checks_count_up(java: JavaPrograms, tmp_path: Path) -> None:
    """Covers C-418, C-419: what the listener sees of the second and third check."""
    with embedded(tmp_path / "store") as ours:
        ours.create_topic(TOPIC, queues=1)
        with begin(java, ours.namesrv_addr, count=1, decide="U", check="U,U,C") as producer:
            seen = [producer.wait_event("checked") for _ in range(3)]
            wait_until(lambda: undecided(ours) == 0, "the commit")
            close(producer)
    assert [event["counted"] for event in seen] == ["1", "2", "3"]
    assert {event["topic"] for event in seen} == {TOPIC}
