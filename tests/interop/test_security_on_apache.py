"""TLS and signatures against the real thing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rocketstream import ClientConfig, Message, Producer
from rocketstream.admin import Admin
from rocketstream.errors import BrokerError, RocketMQError
from rocketstream.transport.tls import client_context
from tests.interop.cluster import ApacheCluster
from tests.interop.messages import message_of
from tests.interop.ours import Collector, push_consumer, send_all
from tests.plugins.apache import prepared

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
- accessKey: operator
  secretKey: secret-of-operator
  whiteRemoteAddress:
  admin: true
"""


def test_everything_works_over_tls(apache_cluster: ApacheCluster) -> None:
    """Apache's servers take TLS on the same port, with a certificate of their own making."""
    topic = apache_cluster.create_topic(apache_cluster.unique("tls"), queues=2)
    config = ClientConfig(
        namesrv_addr=apache_cluster.namesrv_addr, ssl_context=client_context(verify=False)
    )
    collector = Collector()
    with push_consumer(
        apache_cluster.namesrv_addr, f"{topic}-group", topic, collector, config=config
    ):
        with Producer(f"{topic}-producer", config=config) as producer:
            stored = send_all(producer, (message_of(topic, "tls", n) for n in range(COUNT)))
        collector.wait(COUNT)

    assert sorted(each.sent for each in collector.consumed()) == sorted(stored)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApacheCluster]:
    """A broker with access control (4.9 only: 5.5 has another kind)."""
    root: Path = tmp_path_factory.mktemp("guarded")
    cluster = ApacheCluster(prepared("4.9.7"), root, broker_settings={"aclEnable": "true"})
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
        admin.topic_create("orders", queues=2)
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


def _texts(error: BaseException | None) -> str:
    """The texts of an error and of what caused it."""
    texts = []
    while error is not None:
        texts.append(f"{error} {error.remark}" if isinstance(error, BrokerError) else str(error))
        error = error.__cause__
    return "\n".join(texts)
