"""An offset that somebody else put back is put right, though no message comes."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from rocketstream import ClientConfig, ConsumeFromWhere, MessageQueue
from rocketstream.client.admin.blocking import BlockingAdminClient
from tests.kits.cluster import Cluster
from tests.kits.faces import LitePullConsumer
from tests.kits.listeners import WAIT_S, Seen, broker_name, consumer_of, numbered, send_all
from tests.plugins.clusters import Names
from tests.plugins.waiting import wait_until

pytestmark = pytest.mark.usefixtures("face")


@pytest.mark.parametrize("kind", ["push", "lite"])
def test_what_a_former_owner_put_back_is_put_right(
    cluster: Cluster, names: Names, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Covers C-568: a member that was cut off may commit last, and lower; whoever has the queue
    now has nothing new to commit."""
    module = "rocketstream.client.consumer.offsets.store"
    monkeypatch.setattr(f"{module}.OFFSET_CHECK_INTERVAL_MS", 200)
    cluster.create_topic(names.topic, 1)
    send_all(cluster.namesrv_addr, numbered(names.topic, range(10)))
    config = ClientConfig(namesrv_addr=cluster.namesrv_addr, persist_consumer_offset_interval_ms=50)
    with ExitStack() as stack:
        if kind == "push":
            seen = Seen()
            stack.enter_context(
                consumer_of(cluster.namesrv_addr, names.group, names.topic, seen, config=config)
            )
            seen.wait_consumed(10)
        else:
            first = ConsumeFromWhere.FIRST_OFFSET
            lite = stack.enter_context(
                LitePullConsumer(names.group, config=config, consume_from_where=first)
            )
            lite.subscribe(names.topic)
            assert len(lite.poll(WAIT_S * 1000)) == 10
            lite.commit_sync()

        def is_right() -> bool:
            return cluster.committed(names.group, names.topic, 1) == [10]

        wait_until(is_right, "the first commit")
        queue = MessageQueue(names.topic, broker_name(cluster), 0)
        with BlockingAdminClient(cluster.namesrv_addr) as former:
            for _ in range(3):  # the first time the commit may still be said for the second time
                former.update_consumer_offset(names.group, queue, 3)
                wait_until(is_right, "the offset to be put right")
