"""TLS and signatures against the real thing."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from rocketstream import ClientConfig, Message, Producer
from rocketstream.admin import Admin
from rocketstream.errors import BrokerError, RocketMQError
from rocketstream.spark import worker
from rocketstream.spark.options import write_options
from rocketstream.spark.sink.columns import Identity
from rocketstream.spark.sink.writer import Sink, write_rows
from rocketstream.transport.tls import client_context
from tests.kits.apache.cluster import ApacheCluster
from tests.kits.apache.messages import message_of
from tests.kits.apache.ours import Collector, push_consumer, send_all
from tests.kits.apache.referee import Referee
from tests.kits.spark.micro_batches import Query, rows_by
from tests.plugins.apache import prepared
from tests.plugins.waiting import wait_until

pytestmark = [pytest.mark.interop, pytest.mark.timeout(120)]

COUNT = 200
ACCOUNTS = """accounts:
- accessKey: salesdesk
  secretKey: secret-of-sales
  whiteRemoteAddress:
  admin: false
  defaultTopicPerm: DENY
  defaultGroupPerm: SUB
  topicPerms:
  - orders=PUB|SUB
  - ledger=PUB|SUB
- accessKey: operator
  secretKey: secret-of-operator
  whiteRemoteAddress:
  admin: true
"""


def test_everything_works_over_tls(apache: Referee, tmp_path: Path) -> None:
    """Apache's servers take TLS on the same port, with a certificate of their own making."""
    cluster = ApacheCluster(apache, tmp_path, tls=True)
    collector = Collector()
    try:
        topic = cluster.start().create_topic("orders", queues=2)
        config = ClientConfig(
            namesrv_addr=cluster.namesrv_addr, ssl_context=client_context(verify=False)
        )
        with push_consumer(cluster.namesrv_addr, "shop", topic, collector, config=config):
            with Producer("till", config=config) as producer:
                stored = send_all(producer, (message_of(topic, "tls", n) for n in range(COUNT)))
            collector.wait(COUNT)
    finally:
        cluster.stop(kill=True)

    assert sorted(each.sent for each in collector.consumed()) == sorted(stored)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApacheCluster]:
    """A broker with access control (4.9 only: 5.5 has another kind)."""
    root: Path = tmp_path_factory.mktemp("guarded")
    settings = {"aclEnable": "true"}
    cluster = ApacheCluster(prepared("4.9.7"), root, broker_settings=settings, tls=True)
    conf = root / "home" / "conf"
    conf.mkdir(parents=True)
    (conf / "plain_acl.yml").write_text(ACCOUNTS)
    try:
        yield cluster.start()
    finally:
        cluster.stop(kill=True)


def keys(cluster: ApacheCluster, access_key: str, secret_key: str) -> ClientConfig:
    return ClientConfig(
        namesrv_addr=cluster.namesrv_addr, access_key=access_key, secret_key=secret_key
    )


def test_signed_requests_are_let_in(guarded: ApacheCluster) -> None:
    """Topic made by the operator, messages sent and consumed by the sales desk (W 6.2)."""
    with Admin(
        guarded.namesrv_addr, access_key="operator", secret_key="secret-of-operator"
    ) as admin:
        admin.topics.create("orders", queues=2)
    config = keys(guarded, "salesdesk", "secret-of-sales")
    collector = Collector()
    with push_consumer(guarded.namesrv_addr, "shop", "orders", collector, config=config):
        with Producer("till", config=config) as producer:
            stored = send_all(producer, (message_of("orders", "acl", n) for n in range(COUNT)))
            batch = producer.send([message_of("orders", "batch", n) for n in range(10)])
        collector.wait(COUNT + 10)

    assert batch.message_queue.topic == "orders"
    consumed = {each.msg_id for each in collector.consumed()}
    assert consumed == {each.msg_id for each in stored} | set(batch.msg_id.split(","))


@pytest.mark.parametrize(
    ("access_key", "secret_key", "topic"),
    [
        ("salesdesk", "wrong-secret", "orders"),
        ("nobody-known", "secret-of-sales", "orders"),
        ("salesdesk", "secret-of-sales", "salaries"),
    ],
    ids=["wrong secret", "unknown key", "topic not allowed"],
)
def test_others_are_refused_with_a_reason(
    guarded: ApacheCluster, access_key: str, secret_key: str, topic: str
) -> None:
    """The broker's refusal reaches the caller with its text, nothing is retried for ever."""
    config = keys(guarded, access_key, secret_key)
    with Producer("till", config=config) as producer, pytest.raises(RocketMQError) as refused:
        producer.send(Message(topic, b"body"))

    assert "AclException" in _texts(refused.value)


def spark_options(cluster: ApacheCluster, topic: str, **changes: str) -> dict[str, str]:
    """Of a read or write as the sales desk; makes the topic."""
    with Admin(
        cluster.namesrv_addr, access_key="operator", secret_key="secret-of-operator"
    ) as admin:
        admin.topics.create(topic, queues=2)
    signed = {"accessKey": "salesdesk", "secretKey": "secret-of-sales"}
    tls = {"useTls": "true", "tlsVerify": "false", "retryTimeoutMs": "2000"}
    return {"nameServer": cluster.namesrv_addr, "topic": topic, **signed, **tls} | changes


def write_as_spark(options: dict[str, str], count: int = COUNT) -> int:
    """A task of a write."""
    batch = pa.record_batch({"body": pa.array([b"%d" % n for n in range(count)])})
    sink = Sink(write_options(options, "batch"), {"body": 0}, "job")
    return write_rows(sink, [batch], Identity("job", 0, 0))


def write_one_as_spark(options: dict[str, str]) -> int:
    """A task of a write of one row, which goes as a message and not as a batch."""
    return write_as_spark(options, 1)


@pytest.fixture
def _no_connections_left() -> Iterator[None]:
    yield
    worker.close_pools()


@pytest.mark.usefixtures("_no_connections_left")
def test_spark_writes_reads_and_reports_signed_and_over_tls(guarded: ApacheCluster) -> None:
    """With the rights of the sales desk alone."""
    options = spark_options(guarded, "ledger")
    assert write_as_spark(options) == COUNT
    wait_until(lambda: rows_by(options) == list(range(COUNT)), "every row in a batch read")
    query = Query(guarded, group="desk", startingOffsets="earliest", **options).start()
    try:
        assert query.drain() == list(range(COUNT))
        query._reader.commit(json.loads(query.offset_log[-1]))
        wait_until(
            lambda: sum(guarded.committed("ledger", "desk").values()) == COUNT,
            "the stream's progress at the broker",
        )
    finally:
        query.stop()


@pytest.mark.usefixtures("_no_connections_left")
@pytest.mark.parametrize(
    ("attempt", "changes"),
    [
        (write_as_spark, {"secretKey": "wrong-secret"}),
        (write_one_as_spark, {"topic": "salaries"}),
        (rows_by, {"secretKey": "wrong-secret"}),
    ],
    ids=["write with a wrong secret", "write to a topic not allowed", "read with a wrong secret"],
)
def test_spark_is_told_why_it_is_refused(
    guarded: ApacheCluster, attempt: Callable[[dict[str, str]], object], changes: dict[str, str]
) -> None:
    """By the broker, in its words.

    Apache's 4.9 asks for a right to the topic for single messages only (``PlainAccessResource``
    knows requests 10 and 310): a batch of whoever has a valid signature may go to any topic.
    """
    options = spark_options(guarded, **{"topic": "ledger"} | changes)
    with pytest.raises(RocketMQError) as refused:
        attempt(options)
    assert "AclException" in _texts(refused.value)


def _texts(error: BaseException | None) -> str:
    """The texts of an error and of what caused it."""
    texts = []
    while error is not None:
        texts.append(f"{error} {error.remark}" if isinstance(error, BrokerError) else str(error))
        error = error.__cause__
    return "\n".join(texts)
