"""Requests answered by a consumer, on a running cluster."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from rocketstream import (
    ConsumeConcurrentlyStatus,
    Message,
    MessageExt,
    ReplyTimeoutError,
    SendError,
    SendOutcome,
    create_reply_message,
)
from tests.kits.cluster import Cluster
from tests.kits.faces import Producer
from tests.kits.listeners import SUCCESS, WAIT_S, consumer_of
from tests.plugins.clusters import Names
from tests.plugins.waiting import wait_until

pytestmark = pytest.mark.usefixtures("face")

TIMEOUT_MS = 20_000


@contextmanager
def responder(cluster: Cluster, names: Names) -> Iterator[list[MessageExt]]:
    """Answer every request with its body in capitals; silent ones not at all."""
    requests: list[MessageExt] = []
    with Producer(f"{names.group}-replies", namesrv_addr=cluster.namesrv_addr) as replies:

        def listen(messages: list[MessageExt]) -> ConsumeConcurrentlyStatus:
            for message in messages:
                requests.append(message)
                if message.tags != "silent":
                    replies.send(create_reply_message(message, message.body.upper()))
            return SUCCESS

        with consumer_of(cluster.namesrv_addr, names.group, names.topic, listen) as consumer:
            wait_until(
                lambda: sum(mq.topic == names.topic for mq in consumer.assigned_queues()) == 2,
                "queues of the responder",
            )
            yield requests


def test_a_request_gets_its_reply(cluster: Cluster, names: Names) -> None:
    """Covers C-479 to C-482: waited for or later; the properties of both ways."""
    cluster.create_topic(names.topic, 2)
    with (
        responder(cluster, names) as requests,
        Producer("asking", namesrv_addr=cluster.namesrv_addr) as producer,
    ):
        reply = producer.request(Message(names.topic, b"sync"), timeout_ms=TIMEOUT_MS)
        assert reply.body == b"SYNC"
        request = requests[0]
        for name in ("CORRELATION_ID", "REPLY_TO_CLIENT", "TTL"):
            assert reply.get_property(name) == request.get_property(name)
        assert request.get_property("REPLY_TO_CLIENT") == producer.client_id
        assert reply.topic == f"{request.get_property('CLUSTER')}_REPLY_TOPIC"
        assert reply.get_property("MSG_TYPE") == "reply"
        pushed = int(reply.get_property("PUSH_REPLY_TIME") or 0)
        assert 0 < pushed <= time.time() * 1000 + 1000
        assert int(reply.get_property("ARRIVE_TIME") or 0) > 0

        future = producer.request_async(Message(names.topic, b"later"), timeout_ms=TIMEOUT_MS)
        assert future.result(WAIT_S).body == b"LATER"


def test_many_requests_at_once_each_get_their_own(cluster: Cluster, names: Names) -> None:
    """Covers C-482."""
    cluster.create_topic(names.topic, 2)
    with (
        responder(cluster, names),
        Producer("asking", namesrv_addr=cluster.namesrv_addr) as producer,
        ThreadPoolExecutor(8) as pool,
    ):

        def ask(number: int) -> bytes:
            message = Message(names.topic, f"r{number}")
            return producer.request(message, timeout_ms=TIMEOUT_MS).body

        assert list(pool.map(ask, range(100))) == [b"R%d" % n for n in range(100)]


def test_without_a_reply_the_request_times_out(cluster: Cluster, names: Names) -> None:
    """Covers C-479: sent, and nobody answered."""
    cluster.create_topic(names.topic, 2)
    with Producer("asking", namesrv_addr=cluster.namesrv_addr) as producer:
        with pytest.raises(ReplyTimeoutError, match="no reply within 1000 ms") as e:
            producer.request(Message(names.topic, b"x", tags="silent"), timeout_ms=1_000)
        assert e.value.sent
        assert e.value.outcome is SendOutcome.UNKNOWN


def test_a_reply_to_nobody_is_refused(cluster: Cluster, names: Names) -> None:
    """Covers C-481: the requester is gone; whoever replies learns it."""
    cluster.create_topic(names.topic, 2)
    with responder(cluster, names) as requests:
        with Producer("asking", namesrv_addr=cluster.namesrv_addr) as producer:
            producer.request(Message(names.topic, b"first"), timeout_ms=TIMEOUT_MS)
        reply = create_reply_message(requests[0], b"again")
        with Producer(
            "late", namesrv_addr=cluster.namesrv_addr, retry_times_when_send_failed=0
        ) as late:
            with pytest.raises(SendError) as raised:
                late.send(reply)
            assert raised.value.outcome is SendOutcome.REJECTED
