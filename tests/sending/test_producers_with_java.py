"""Our producers with the Java client on the other side, and what only 5.x brokers can."""

from __future__ import annotations

import base64
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from rocketstream import (
    ConsumeConcurrentlyStatus,
    LocalTransactionState,
    Message,
    MessageExt,
    Producer,
    ReplyTimeoutError,
    TransactionListener,
    TransactionProducer,
    create_reply_message,
)
from rocketstream.errors import BrokerError, MessageInvalidError, NotSupportedError
from rocketstream.server.embedded import EmbeddedCluster
from tests.kits.apache.cluster import ApacheCluster, JavaPrograms, create_retry_topic
from tests.kits.apache.ours import Collector, push_consumer
from tests.kits.apache.referee import Referee

pytestmark = [pytest.mark.interop, pytest.mark.timeout(180)]

COMMIT = LocalTransactionState.COMMIT_MESSAGE
ROLLBACK = LocalTransactionState.ROLLBACK_MESSAGE
TIMEOUT_MS = 30_000
HOUR_MS = 3_600_000


@pytest.fixture
def topic(apache_cluster: ApacheCluster) -> str:
    return apache_cluster.create_topic(apache_cluster.unique("ours"), queues=2)


@pytest.fixture
def group(apache_cluster: ApacheCluster) -> str:
    name = apache_cluster.unique("group")
    create_retry_topic(apache_cluster.namesrv_addr, apache_cluster.broker_addr, name)
    return name


def test_we_ask_and_java_answers(
    apache_cluster: ApacheCluster, java: JavaPrograms, topic: str, group: str
) -> None:
    """Covers C-479, C-480, C-482: our requests, their replies."""
    address = apache_cluster.namesrv_addr
    with (
        java.start(
            "JavaRequestReply", namesrv=address, topic=topic, group=group, role="answer"
        ) as peer,
        Producer("asking", namesrv_addr=address) as producer,
    ):
        peer.wait_event("ready")
        for number in range(20):
            reply = producer.request(Message(topic, f"python-{number}"), timeout_ms=TIMEOUT_MS)
            assert reply.body == b"PYTHON-%d" % number
            assert reply.get_property("MSG_TYPE") == "reply"
        with pytest.raises(ReplyTimeoutError) as raised:
            producer.request(Message(topic, b"x", tags="silent"), timeout_ms=1_000)
        assert raised.value.sent
        peer.end_input()
        peer.wait()
    assert not any('"failed"' in line for line in peer.output)


def test_java_asks_and_we_answer(
    apache_cluster: ApacheCluster, java: JavaPrograms, topic: str, group: str
) -> None:
    """Covers C-479 to C-482: their requests, our replies."""
    address = apache_cluster.namesrv_addr
    with Producer("answering", namesrv_addr=address) as producer:

        def answer(messages: list[MessageExt]) -> ConsumeConcurrentlyStatus:
            for message in messages:
                producer.send(create_reply_message(message, message.body.upper()))
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS

        with (
            push_consumer(address, group, topic, answer),
            java.start(
                "JavaRequestReply", namesrv=address, topic=topic, group=group, role="ask",
                count=20, timeout=TIMEOUT_MS,
            ) as peer,
        ):  # fmt: skip
            replies = [peer.wait_event("reply") for _ in range(20)]
            peer.wait()
    assert [reply["body"] for reply in replies] == [f"JAVA-{n}" for n in range(20)]
    assert {reply["type"] for reply in replies} == {"reply"}


class Decides(TransactionListener):
    """Commits what is to be committed."""

    def execute_local_transaction(
        self, message: Message, arg: LocalTransactionState
    ) -> LocalTransactionState:
        return arg

    def check_local_transaction(self, message: MessageExt) -> LocalTransactionState:
        return LocalTransactionState.UNKNOW


def test_java_consumes_what_we_commit(
    apache_cluster: ApacheCluster, java: JavaPrograms, topic: str, group: str
) -> None:
    """Covers C-483, C-484: what is rolled back or open never reaches it."""
    address = apache_cluster.namesrv_addr
    states = list(LocalTransactionState)
    with ExitStack() as stack:
        peer = stack.enter_context(
            java.start("JavaPushConsumer", namesrv=address, topic=topic, group=group, count=10)
        )
        peer.wait_event("ready")
        producer = stack.enter_context(
            TransactionProducer(f"{group}-p", namesrv_addr=address, transaction_listener=Decides())
        )
        for number in range(30):
            message = Message(topic, str(number), properties={"index": str(number)})
            producer.send_message_in_transaction(message, states[number % 3])
        peer.wait_event("done")
        peer.end_input()
        closed = peer.wait_event("closed")
        peer.wait()
    assert (closed["count"], closed["unique"]) == (10, 10)


@pytest.mark.parametrize("first", ["python", "java"])
def test_one_producer_group_of_two_languages(
    java: JavaPrograms, tmp_path: Path, first: str
) -> None:
    """Covers C-486: what one left open the other is asked about, and its answer counts."""
    collector = Collector()
    states = {str(n): COMMIT if n % 2 else ROLLBACK for n in range(6)}
    with EmbeddedCluster(
        tmp_path / "store",
        transaction_timeout_ms=300,
        transaction_check_interval_ms=300,
        transaction_check_max=1_000,  # asking while a JVM starts counts too
    ) as cluster:
        cluster.create_topic("sales", queues=2)
        common: dict[str, Any] = {
            "namesrv": cluster.namesrv_addr,
            "topic": "sales",
            "group": "till",
        }
        ours = partial(TransactionProducer, "till", namesrv_addr=cluster.namesrv_addr)
        with ExitStack() as stack:
            stack.enter_context(push_consumer(cluster.namesrv_addr, "shop", "sales", collector))
            if first == "python":
                with ours(transaction_listener=ByIndex({})) as producer:
                    for index in states:
                        message = Message("sales", index, properties={"index": index}, keys=index)
                        producer.send_message_in_transaction(message)
                # The 5.5 client is known to brokers only once it has sent something.
                peer = stack.enter_context(
                    java.start("JavaTransactionProducer", **common, count=1, decide="R", check="RC")
                )
            else:
                peer = stack.enter_context(
                    java.start("JavaTransactionProducer", **common, count=6, decide="U", check="U")
                )
                peer.wait_event("done")
                stack.enter_context(ours(transaction_listener=ByIndex(states)))
            collector.wait(3)
            peer.end_input()
            peer.wait()
    assert sorted(int(each.index) for each in collector.consumed()) == [1, 3, 5]


class ByIndex(TransactionListener):
    """Leaves everything open, and answers checks by the property index."""

    def __init__(self, states: dict[str, LocalTransactionState]) -> None:
        self._states = states

    def execute_local_transaction(self, message: Message, arg: object) -> LocalTransactionState:
        return LocalTransactionState.UNKNOW

    def check_local_transaction(self, message: MessageExt) -> LocalTransactionState:
        index = message.get_property("index") or ""
        return self._states.get(index, LocalTransactionState.UNKNOW)


def test_timed_messages_need_a_5_broker(
    apache: Referee, apache_cluster: ApacheCluster, topic: str, group: str
) -> None:
    """A 4.9 broker would deliver at once, so nothing is sent; 5.x holds it back, and recalls it."""
    address = apache_cluster.namesrv_addr
    collector = Collector()
    with Producer("pg", namesrv_addr=address) as producer:
        if apache.version.startswith("4"):
            with pytest.raises(MessageInvalidError, match=r"older than 5\.0"):
                producer.send(Message(topic, b"x", delay_time_ms=1_000))
            with pytest.raises((NotSupportedError, BrokerError)):
                producer.recall_message(topic, _handle(topic))
            return
        with push_consumer(address, group, topic, collector):
            begin = time.monotonic()
            held = producer.send(Message(topic, b"soon", keys="soon", delay_time_ms=3_000))
            collector.wait(1)
            assert time.monotonic() - begin >= 2.0
        assert held.send_status.value == "SEND_OK"
        late_ms = int(time.time() * 1000) + HOUR_MS
        far = producer.send(Message(topic, b"never", deliver_time_ms=late_ms))
        assert far.recall_handle is not None
        assert producer.recall_message(topic, far.recall_handle) == far.msg_id


def _handle(topic: str) -> str:
    text = f"v1 {topic} broker-a {2**41} UKEY"
    return base64.urlsafe_b64encode(text.encode()).decode()
