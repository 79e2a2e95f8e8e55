"""A broker's address given as name server is named as such, whoever asks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from rocketstream import LitePullConsumer, Message, Producer, PushConsumer
from rocketstream.client.admin.blocking import BlockingAdminClient
from rocketstream.errors import ConfigurationError, RequestNotSupportedError, SendError
from rocketstream.protocol.codes import RequestCode
from rocketstream.protocol.command import RemotingCommand
from rocketstream.server.embedded import EmbeddedCluster


@pytest.fixture
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster() as servers:
        yield servers


def test_blocking_questions_say_that_it_is_a_broker_and_which_is_its_name_server(
    cluster: EmbeddedCluster,
) -> None:
    with (
        BlockingAdminClient(cluster.broker_addr) as client,
        pytest.raises(ConfigurationError) as caught,
    ):
        client.cluster_info()
    text = caught.value.message
    assert text.startswith(f"{cluster.broker_addr} is broker 'broker-a', not a name server")
    assert cluster.namesrv_addr in text


def test_producers_say_so_too(cluster: EmbeddedCluster) -> None:
    with (
        Producer("p", namesrv_addr=cluster.broker_addr) as producer,
        pytest.raises(SendError, match="not a name server") as caught,
    ):
        producer.send(Message("orders", b"x"))
    assert cluster.namesrv_addr in caught.value.message


@pytest.mark.parametrize("kind", [PushConsumer, LitePullConsumer])
def test_a_consumer_that_is_given_a_broker_does_not_start(
    cluster: EmbeddedCluster, kind: Any
) -> None:
    """It never gets better, so it is not for the log of a client that runs."""
    consumer = kind("g", namesrv_addr=cluster.broker_addr)
    consumer.subscribe("orders")
    if kind is PushConsumer:
        consumer.register_message_listener(lambda messages: None)
    with pytest.raises(ConfigurationError, match="is broker 'broker-a', not a name server"):
        consumer.start()


def test_a_name_server_that_lacks_a_request_is_not_taken_for_a_broker(
    cluster: EmbeddedCluster,
) -> None:
    with (
        BlockingAdminClient(cluster.namesrv_addr) as client,
        pytest.raises(RequestNotSupportedError),
    ):
        client.request_namesrv(RemotingCommand.request(RequestCode.GET_ALL_TOPIC_CONFIG))
