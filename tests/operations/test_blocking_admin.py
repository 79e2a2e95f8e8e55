"""Routes and offsets over plain sockets, against an embedded cluster."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from rocketstream import Producer
from rocketstream.client.admin.blocking import ROUTE_LIFETIME_MS, BlockingAdminClient
from rocketstream.client.credentials import signer
from rocketstream.errors import (
    BrokerError,
    ConfigurationError,
    ConnectError,
    RequestTimeoutError,
    RouteNotFoundError,
)
from rocketstream.model import Message, MessageQueue
from rocketstream.protocol.codes import RequestCode, ResponseCode
from rocketstream.protocol.command import RemotingCommand
from rocketstream.protocol.headers import GetMaxOffsetRequestHeader, GetMaxOffsetResponseHeader
from rocketstream.protocol.signing import sign
from rocketstream.server.embedded import EmbeddedCluster
from rocketstream.testing import ManualClock
from tests.kits.client.fake_broker import TOPIC, FakeBroker


@pytest.fixture
def client(rocketmq_cluster: EmbeddedCluster) -> Iterator[BlockingAdminClient]:
    rocketmq_cluster.create_topic("T", queues=3)
    with BlockingAdminClient(rocketmq_cluster.namesrv_addr) as made:
        yield made


QUEUE = MessageQueue("T", "broker-a", 1)


def unused_address() -> str:
    """An address nothing listens at."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


def test_route_becomes_queues_and_addresses(
    rocketmq_cluster: EmbeddedCluster, client: BlockingAdminClient
) -> None:
    """Covers code 105 and the read queues of W 2.7."""
    assert client.subscribe_queues("T") == [MessageQueue("T", "broker-a", i) for i in range(3)]
    assert client.master("broker-a") == rocketmq_cluster.broker_addr
    assert client.address("broker-a") == rocketmq_cluster.broker_addr


def test_a_topic_without_read_permission_has_no_queues(
    rocketmq_cluster: EmbeddedCluster, client: BlockingAdminClient
) -> None:
    """Covers the permission bits of W 3.2."""
    rocketmq_cluster.create_topic("W", queues=2, perm=2)
    assert client.subscribe_queues("W") == []


def test_a_route_is_cached_until_asked_anew(
    rocketmq_cluster: EmbeddedCluster, client: BlockingAdminClient
) -> None:
    """A route is trusted for 30 s unless the caller knows better."""
    assert len(client.subscribe_queues("T")) == 3
    rocketmq_cluster.create_topic("T", queues=5)
    assert len(client.subscribe_queues("T")) == 3
    assert len(client.subscribe_queues("T", refresh=True)) == 5


def test_routes_that_count_no_more_are_not_kept(rocketmq_cluster: EmbeddedCluster) -> None:
    """Whoever watches a cluster for months is asked for topics that come and go."""
    clock = ManualClock()
    with BlockingAdminClient(rocketmq_cluster.namesrv_addr, clock=clock) as client:
        for topic in ("T0", "T1", "T2"):
            rocketmq_cluster.create_topic(topic, queues=1)
            client.route(topic)
            clock.advance(ROUTE_LIFETIME_MS / 3)
        client.route("T1", refresh=True)
        assert list(client._routes) == ["T2", "T1"]
        clock.advance(ROUTE_LIFETIME_MS - 1)
        client.route("T0")
        assert list(client._routes) == ["T1", "T0"]


def test_unknown_topic_and_broker_say_so(client: BlockingAdminClient) -> None:
    """Covers code 17 of the name server."""
    with pytest.raises(RouteNotFoundError, match="topic 'missing' is unknown to name server"):
        client.route("missing")
    with pytest.raises(RouteNotFoundError, match="broker 'missing' is not registered"):
        client.address("missing")


def test_offsets_of_an_empty_queue_are_zero(client: BlockingAdminClient) -> None:
    """Covers codes 29, 30 and 31; many queues are asked in one go."""
    queues = client.subscribe_queues("T")
    assert client.max_offsets(queues) == client.min_offsets(queues) == dict.fromkeys(queues, 0)
    assert (client.max_offset(QUEUE), client.min_offset(QUEUE)) == (0, 0)
    assert client.search_offset(QUEUE, 0) == 0


def test_a_groups_offset_is_stored_and_read(
    rocketmq_cluster: EmbeddedCluster, client: BlockingAdminClient
) -> None:
    """Covers codes 14 and 15."""
    with Producer("P", namesrv_addr=rocketmq_cluster.namesrv_addr) as producer:
        for _ in range(3):
            producer.send(Message("T", b"x"), message_queue=QUEUE)
    client.update_consumer_offset("G", QUEUE, 3)
    assert client.query_consumer_offset("G", QUEUE) == 3
    client.update_consumer_offset("G", QUEUE, 1)
    assert client.query_consumer_offset("G", QUEUE) == 1


def test_an_error_code_is_raised_as_its_error(
    rocketmq_cluster: EmbeddedCluster, client: BlockingAdminClient
) -> None:
    """A caller never has to look at codes."""
    with pytest.raises(BrokerError) as caught:
        client.request(rocketmq_cluster.broker_addr, RemotingCommand.request(32_000))
    assert (caught.value.code, caught.value.address) == (3, rocketmq_cluster.broker_addr)


def test_the_next_name_server_is_asked_when_one_is_away(
    rocketmq_cluster: EmbeddedCluster, client: BlockingAdminClient
) -> None:
    """The one that answered is asked first from then on."""
    addresses = f"{unused_address()};{rocketmq_cluster.namesrv_addr}"
    with BlockingAdminClient(addresses) as both:
        assert both.cluster_info().broker_addr_table.keys() == {"broker-a"}
        assert both._servers._preferred == 1


def test_all_name_servers_away_lists_each() -> None:
    """The text is what the user has to go on."""
    first, second = unused_address(), unused_address()
    with (
        BlockingAdminClient(f"{first};{second}") as client,
        pytest.raises(ConnectError, match="no name server answered") as caught,
    ):
        client.route("T")
    assert first in str(caught.value)
    assert second in str(caught.value)


def test_a_broker_that_moved_is_found_again(
    rocketmq_cluster: EmbeddedCluster, client: BlockingAdminClient
) -> None:
    """A dead cached address is looked up anew, once."""
    client.cluster_info()
    client._brokers["broker-a"] = {0: unused_address()}
    assert client.max_offset(QUEUE) == 0
    assert client.master("broker-a") == rocketmq_cluster.broker_addr


def test_no_name_server_address_is_a_configuration_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """NAMESRV_ADDR counts when nothing is given."""
    monkeypatch.delenv("NAMESRV_ADDR", raising=False)
    with pytest.raises(ConfigurationError, match="NAMESRV_ADDR"):
        BlockingAdminClient()
    monkeypatch.setenv("NAMESRV_ADDR", "h:1;g:2")
    with BlockingAdminClient() as client:
        assert client.name_servers == ["h:1", "g:2"]


def test_requests_are_signed_once_per_content() -> None:
    """Covers W 6.2: a repeated request gets the signature of its own fields, not of the old one."""
    hook = signer("key-1234", "secret-1234", "token")
    assert hook is not None
    header = GetMaxOffsetRequestHeader(topic="T", queue_id=1)
    command = RemotingCommand.request(RequestCode.GET_MAX_OFFSET, header)
    hook("h:1", command)
    first = dict(command.ext_fields or {})
    hook("h:1", command)
    assert command.ext_fields == first
    expected = sign(header.to_ext(), b"", "key-1234", "secret-1234", "token")
    assert first == {**header.to_ext(), **expected}


def test_half_a_pair_of_keys_is_refused() -> None:
    """Neither key is of use alone."""
    assert signer(None, None) is None
    with pytest.raises(ConfigurationError, match="secret_key is missing"):
        signer("key", None)


def test_the_first_offset_of_a_topic_is_stored_before_the_others_are_sent() -> None:
    """A broker that gets the first two of a group at once may keep one only."""
    with FakeBroker(queues=3) as broker:
        broker.topics["U"] = 2
        broker.on[RequestCode.UPDATE_CONSUMER_OFFSET] = lambda _: None
        with BlockingAdminClient(broker.address, timeout_ms=200) as client:
            client.route(TOPIC)
            queues = [*client.subscribe_queues(TOPIC), *client.subscribe_queues("U")]
            with pytest.raises(RequestTimeoutError):
                client.update_consumer_offsets("G", dict.fromkeys(queues, 7))
        asked = broker.asked(RequestCode.UPDATE_CONSUMER_OFFSET)
    assert sorted(each.ext["topic"] for each in asked) == [TOPIC, "U"]


def test_what_one_broker_refuses_or_cannot_be_told_does_not_keep_offsets_from_the_others() -> None:
    """The failure is told after all have been tried."""
    with FakeBroker(queues=3) as broker, FakeBroker(name="broker-b") as other:
        broker.others.append(other)

        def refusing(command: RemotingCommand) -> RemotingCommand:
            code = ResponseCode.SYSTEM_ERROR if _fields(command)["queueId"] == "2" else 0
            return RemotingCommand.response(code, "not this one")

        broker.on[RequestCode.UPDATE_CONSUMER_OFFSET] = refusing
        with BlockingAdminClient(broker.address) as client:
            queues = client.subscribe_queues(TOPIC)
            gone = MessageQueue(TOPIC, "broker-c", 0)
            client._brokers["broker-c"] = {1: unused_address()}
            with pytest.raises(BrokerError, match="not this one"):
                client.update_consumer_offsets("G", dict.fromkeys(queues, 7))
            with pytest.raises(RouteNotFoundError, match="'broker-c' has no master"):
                client.update_consumer_offsets("G", dict.fromkeys([gone, *queues[3:]], 8))
        assert len(broker.asked(RequestCode.UPDATE_CONSUMER_OFFSET)) == 3
        told = other.asked(RequestCode.UPDATE_CONSUMER_OFFSET)
    assert [each.ext["commitOffset"] for each in told] == ["7"] * 3 + ["8"] * 3


def test_what_is_asked_of_a_broker_names_it(
    client: BlockingAdminClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As upstream's mqadmin: a proxy of 5.x finds the broker by its name alone."""
    sent: list[RemotingCommand] = []
    client.cluster_info()
    monkeypatch.setattr(client._pool, "_before_request", lambda _, command: sent.append(command))
    client.max_offset(QUEUE)
    client.min_offset(QUEUE)
    client.search_offset(QUEUE, 0)
    client.query_consumer_offset("G", QUEUE)
    client.update_consumer_offset("G", QUEUE, 0)
    client.max_offsets(client.subscribe_queues("T"))
    named = [fields["bname"] for fields in map(_fields, sent) if "queueId" in fields]
    assert named == ["broker-a"] * 8


def _fields(command: RemotingCommand) -> dict[str, str]:
    return command.ext_fields or {}


def test_one_refusal_among_several_answers_is_raised_and_the_next_questions_get_their_own() -> None:
    def answer(command: RemotingCommand) -> RemotingCommand:
        queue_id = int(_fields(command)["queueId"])
        if queue_id == 1:
            return RemotingCommand.response(ResponseCode.SYSTEM_ERROR, "not this one")
        return RemotingCommand.response(0, None, GetMaxOffsetResponseHeader(queue_id * 10))

    with FakeBroker(queues=4) as broker, BlockingAdminClient(broker.address) as client:
        broker.on[RequestCode.GET_MAX_OFFSET] = answer
        queues = client.subscribe_queues(TOPIC)
        with pytest.raises(BrokerError, match="not this one") as caught:
            client.max_offsets(queues)
        assert caught.value.address == broker.address
        others = [queue for queue in reversed(queues) if queue.queue_id != 1]
        assert client.max_offsets(others) == {queue: queue.queue_id * 10 for queue in others}
