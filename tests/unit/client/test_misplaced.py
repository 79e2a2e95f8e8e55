"""A broker's address given as name server is named as such, whoever asks."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rocketstream import Message, Producer
from rocketstream.client.admin.blocking import BlockingAdminClient
from rocketstream.client.core import misplaced
from rocketstream.errors import ConfigurationError, RequestNotSupportedError, SendError
from rocketstream.protocol.codes import RequestCode, ResponseCode
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


def test_a_name_server_that_lacks_a_request_is_not_taken_for_a_broker(
    cluster: EmbeddedCluster,
) -> None:
    with (
        BlockingAdminClient(cluster.namesrv_addr) as client,
        pytest.raises(RequestNotSupportedError),
    ):
        client.request_namesrv(RemotingCommand.request(RequestCode.GET_ALL_TOPIC_CONFIG))


def answer(code: int, body: bytes = b"") -> RemotingCommand:
    found = RemotingCommand.response(code, None)
    found.body = body
    return found


def test_what_a_broker_tells_of_itself_may_be_missing_or_refused() -> None:
    for told in (
        answer(ResponseCode.SUCCESS, b"\xff\xfe not what was expected"),
        answer(ResponseCode.SUCCESS),
        answer(ResponseCode.NO_PERMISSION),
    ):
        error = misplaced.judge("10.0.0.1:10911", told)
        assert error is not None
        assert error.message == (
            "10.0.0.1:10911 is a broker, not a name server; give its name server's address"
        )
    assert misplaced.judge("a:1", answer(ResponseCode.REQUEST_CODE_NOT_SUPPORTED)) is None
