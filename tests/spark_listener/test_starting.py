"""Where a group without a checkpoint begins."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from rocketstream import Message, Producer
from rocketstream.client.admin.blocking import BlockingAdminClient
from rocketstream.client.consumer.settings import PushConsumerSettings
from rocketstream.errors import RouteNotFoundError
from rocketstream.model import ConsumeFromWhere, MessageQueue
from rocketstream.server.embedded import EmbeddedCluster
from rocketstream.spark.listener.queries import starting_offsets
from rocketstream.spark.options import read_options
from tests.kits.spark.support import numbered, send

Q0, Q1 = MessageQueue("orders", "broker-a", 0), MessageQueue("orders", "broker-a", 1)


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster() as running:
        running.create_topic("orders", queues=2)
        running.create_topic("%RETRY%new", queues=1)
        send(running, "orders", 0, numbered(0, 10))
        send(running, "orders", 1, numbered(10, 5))
        with Producer("any", namesrv_addr=running.namesrv_addr) as producer:
            producer.send(Message("%RETRY%new", b"again"))
        yield running


def start(admin: BlockingAdminClient, group: str, *topics: str, **settings: Any) -> Any:
    topics = topics or ("orders",)
    text = starting_offsets(admin, PushConsumerSettings(group, **settings), list(topics))
    options = {"nameServer": "h:1", "topic": ",".join(topics), "startingOffsets": text}
    read_options(options, "stream")  # the source takes it
    return json.loads(text)


def orders(first: int, second: int) -> dict[str, Any]:
    return {"orders": {"broker-a": {"0": first, "1": second}}}


def test_a_group_goes_on_where_its_members_were(admin: BlockingAdminClient) -> None:
    """Covers C-189: what a push consumer left off at, Spark takes up."""
    admin.update_consumer_offset("moved", Q0, 4)
    admin.update_consumer_offset("moved", Q1, 5)
    assert start(admin, "moved") == orders(4, 5)


def test_queues_made_meanwhile_are_begun_too(
    cluster: EmbeddedCluster, admin: BlockingAdminClient
) -> None:
    """A consumer that goes on after ``suspend`` asks anew."""
    cluster.create_topic("grows", queues=1)
    assert len(start(admin, "asks", "grows")["grows"]["broker-a"]) == 1
    cluster.create_topic("grows", queues=3)
    assert len(start(admin, "asks", "grows")["grows"]["broker-a"]) == 3


def test_a_new_group_begins_at_the_end_but_takes_all_retries(
    admin: BlockingAdminClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Brokers say 0 of a queue that still has its first message in memory; others say nothing."""
    monkeypatch.setattr(admin, "query_consumer_offset", lambda group, queue: None)
    found = start(admin, "new", "orders", "%RETRY%new")
    assert found == orders(10, 5) | {"%RETRY%new": {"broker-a": {"0": 0}}}


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"consume_from_where": ConsumeFromWhere.FIRST_OFFSET}, (0, 0)),
        (
            {
                "consume_from_where": ConsumeFromWhere.TIMESTAMP,
                "consume_timestamp": "20200101000000",
            },
            (0, 0),
        ),
    ],
)
def test_a_new_group_begins_where_it_is_told_to(
    admin: BlockingAdminClient,
    monkeypatch: pytest.MonkeyPatch,
    settings: dict[str, Any],
    expected: tuple[int, int],
) -> None:
    monkeypatch.setattr(admin, "query_consumer_offset", lambda group, queue: None)
    assert start(admin, "told", **settings) == orders(*expected)


def test_an_offset_the_queue_does_not_hold_becomes_the_nearest_with_a_warning(
    admin: BlockingAdminClient,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Apache stores any offset; a topic made anew may be shorter than the last one."""
    caplog.set_level(logging.WARNING, "rocketstream.spark")
    committed = {Q0: 99, Q1: 5}
    monkeypatch.setattr(admin, "query_consumer_offset", lambda group, queue: committed[queue])
    assert start(admin, "beyond") == orders(10, 5)
    (record,) = caplog.records
    assert "committed offset 99" in record.getMessage()


def test_a_topic_that_does_not_exist_is_named(admin: BlockingAdminClient) -> None:
    with pytest.raises(RouteNotFoundError, match="'nothing'"):
        start(admin, "new", "nothing")
