"""Our frames on Apache's broker: what it stores, hands back and says, read by our protocol."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from contextlib import closing

import pytest

from rocketstream.protocol.bodies import TopicRouteData
from rocketstream.protocol.codes import MessageSysFlag, RequestCode, SerializeType
from rocketstream.protocol.command import RemotingCommand
from rocketstream.protocol.headers import (
    EndTransactionRequestHeader,
    GetRouteInfoRequestHeader,
    QueryConsumerOffsetRequestHeader,
    QueryConsumerOffsetResponseHeader,
    SearchOffsetRequestHeader,
    SearchOffsetResponseHeader,
    SendMessageResponseHeader,
    UpdateConsumerOffsetRequestHeader,
    ViewMessageRequestHeader,
)
from rocketstream.protocol.message_ext import decode_message, decode_messages
from rocketstream.protocol.message_id import decode_offset_msg_id
from rocketstream.server.embedded import EmbeddedCluster
from rocketstream.transport.blocking_connection import BlockingConnection
from tests.kits.apache.cluster import ApacheCluster
from tests.kits.apache.wire import (
    BORN_MS,
    TIMEOUT_MS,
    batch_command,
    max_offset,
    pull_all,
    pull_command,
    send_command,
)
from tests.plugins.waiting import wait_until

pytestmark = [pytest.mark.interop, pytest.mark.timeout(120)]

COMMIT = 8


@pytest.fixture
def broker(apache_cluster: ApacheCluster) -> Iterator[BlockingConnection]:
    with BlockingConnection(apache_cluster.broker_addr) as connection:
        yield connection


@pytest.fixture
def topic(apache_cluster: ApacheCluster) -> str:
    return apache_cluster.create_topic(apache_cluster.unique("wire"), queues=1)


def ask(connection: BlockingConnection, command: RemotingCommand) -> RemotingCommand:
    return connection.request(command, TIMEOUT_MS)


@pytest.mark.parametrize("code", [RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2])
@pytest.mark.parametrize("serialize_type", list(SerializeType))
def test_sent_message_comes_back_as_it_was(
    broker: BlockingConnection, topic: str, code: RequestCode, serialize_type: SerializeType
) -> None:
    """Both send headers, both header codecs (W 1.2, 2.2, 4.1)."""
    properties = {"TAGS": "红", "KEYS": "k1 k2", "UNIQ_KEY": "unique-1", "note": "grüße"}
    command = send_command(topic, b"payload", properties, code=code)
    command.serialize_type = serialize_type

    answer = ask(broker, command)

    stored = answer.header(SendMessageResponseHeader)
    assert (answer.code, stored.queue_id, stored.queue_offset) == (0, 0, 0)
    (message,) = pull_all(broker, topic, 1)
    assert message.body == b"payload"
    assert (message.topic, message.flag, message.born_timestamp) == (topic, 7, BORN_MS)
    assert (message.tags, message.keys, message.msg_id) == ("红", "k1 k2", "unique-1")
    assert message.get_property("note") == "grüße"
    assert message.offset_msg_id == stored.msg_id
    message.check_crc()


def test_batch_gets_consecutive_offsets(broker: BlockingConnection, topic: str) -> None:
    """One request, three messages, three offsets (W 4.5)."""
    bodies = [b"first", b"second", b"third"]

    answer = ask(broker, batch_command(topic, bodies))

    assert answer.code == 0
    assert len(answer.header(SendMessageResponseHeader).msg_id.split(",")) == 3
    messages = pull_all(broker, topic, 3)
    assert [message.body for message in messages] == bodies
    assert [message.queue_offset for message in messages] == [0, 1, 2]


def test_compressed_body_is_stored_as_sent_and_read_inflated(
    broker: BlockingConnection, topic: str
) -> None:
    """The broker keeps the deflated bytes; reading inflates them (W 4.2)."""
    plain = b"x" * 50_000
    deflated = zlib.compress(plain, 5)

    assert ask(broker, send_command(topic, deflated, sys_flag=MessageSysFlag.COMPRESSED)).code == 0

    (message,) = pull_all(broker, topic, 1)
    assert message.stored_body == deflated
    assert message.body == plain


def test_broker_filters_by_tag_hash(broker: BlockingConnection, topic: str) -> None:
    """A pull with an expression brings the matching tags only (W 4.4)."""
    for number in range(90):
        assert (
            ask(broker, send_command(topic, b"%d" % number, {"TAGS": "ABC"[number % 3]})).code == 0
        )

    found = pull_all(broker, topic, 90, "A || C")

    assert [int(message.body) for message in found] == [n for n in range(90) if n % 3 != 1]
    assert {message.tags for message in found} == {"A", "C"}


def test_offsets_are_asked_and_told(broker: BlockingConnection, topic: str) -> None:
    """Max offset, search by time, and a committed offset read back (W 2.3).

    5.5 takes offsets only of a group it knows; the pull above made this one known.
    """
    for number in range(5):
        ask(broker, send_command(topic, b"%d" % number))
    messages = pull_all(broker, topic, 5)

    search = SearchOffsetRequestHeader(topic, 0, messages[0].store_timestamp)
    first = ask(broker, RemotingCommand.request(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, search))
    update = UpdateConsumerOffsetRequestHeader("wire", topic, 0, 3)
    told = ask(broker, RemotingCommand.request(RequestCode.UPDATE_CONSUMER_OFFSET, update))
    query = QueryConsumerOffsetRequestHeader("wire", topic, 0)
    committed = ask(broker, RemotingCommand.request(RequestCode.QUERY_CONSUMER_OFFSET, query))

    assert max_offset(broker, topic) == 5
    assert messages[first.header(SearchOffsetResponseHeader).offset].store_timestamp == (
        messages[0].store_timestamp
    )
    assert told.code == 0
    assert committed.header(QueryConsumerOffsetResponseHeader).offset == 3


def test_message_is_found_by_its_offset_id(broker: BlockingConnection, topic: str) -> None:
    """The id a send returns leads back to the record (W 4.7)."""
    sent = ask(broker, send_command(topic, b"by id")).header(SendMessageResponseHeader)
    host, port, offset = decode_offset_msg_id(sent.msg_id)

    view = RemotingCommand.request(RequestCode.VIEW_MESSAGE_BY_ID, ViewMessageRequestHeader(offset))
    answer = ask(broker, view)

    assert f"{host}:{port}" == broker.address
    assert decode_message(bytes(answer.body)).body == b"by id"


def test_route_names_broker_and_queues(apache_cluster: ApacheCluster, topic: str) -> None:
    """The name server's route, standard JSON for our version (W 2.7, 3.2)."""
    command = RemotingCommand.request(
        RequestCode.GET_ROUTEINFO_BY_TOPIC, GetRouteInfoRequestHeader(topic)
    )
    with BlockingConnection(apache_cluster.namesrv_addr) as namesrv:
        route = TopicRouteData.decode(bytes(ask(namesrv, command).body))

    assert route.broker_datas[0].broker_addrs == {0: apache_cluster.broker_addr}
    assert [(q.read_queue_nums, q.write_queue_nums, q.perm) for q in route.queue_datas] == [
        (1, 1, 6)
    ]


def test_empty_and_passed_offsets_say_so(broker: BlockingConnection, topic: str) -> None:
    """Codes of a pull beyond the queue (W 2.3, C-367 to C-370)."""
    assert ask(broker, pull_command(topic, 0)).code == 19
    assert ask(broker, pull_command(topic, 5)).code == 21
    ask(broker, send_command(topic, b"only"))
    pull_all(broker, topic, 1)
    assert ask(broker, pull_command(topic, 1)).code == 19
    beyond = ask(broker, pull_command(topic, 2))
    assert (beyond.code, (beyond.ext_fields or {})["nextBeginOffset"]) == (21, "1")


def test_a_commit_that_comes_twice_stores_twice_at_apaches_and_once_at_ours(
    apache_cluster: ApacheCluster,
) -> None:
    """Covers C-606: why no exactly-once sink is built on half messages (docs/spark-writing.md)."""
    name = apache_cluster.unique("twice")
    topic = apache_cluster.create_topic(name, queues=1)
    with EmbeddedCluster() as ours:
        ours.create_topic(topic, queues=1)
        stored = [
            _committed_twice(address, topic)
            for address in (apache_cluster.broker_addr, ours.broker_addr)
        ]
    assert stored == [2, 1]


def _committed_twice(address: str, topic: str) -> int:
    """Store a half message and commit it twice; return how many messages that made."""
    half = {"TRAN_MSG": "true", "PGROUP": "wire", "UNIQ_KEY": "U1"}
    with closing(BlockingConnection(address)) as connection:
        command = send_command(topic, b"paid", half, sys_flag=MessageSysFlag.TRANSACTION_PREPARED)
        stored = connection.request(command, TIMEOUT_MS).header(SendMessageResponseHeader)
        *_, place = decode_offset_msg_id(stored.msg_id)
        end = EndTransactionRequestHeader("wire", stored.queue_offset, place, COMMIT, msg_id="U1")
        for _ in range(2):
            request = RemotingCommand.request(RequestCode.END_TRANSACTION, end)
            assert connection.request(request, TIMEOUT_MS).code == 0
        # Behind all that the commits have stored.
        connection.request(send_command(topic, b"mark"), TIMEOUT_MS)
        found = wait_until(lambda: _until_mark(connection, topic), "the mark")
    return len(found) - 1


def _until_mark(connection: BlockingConnection, topic: str) -> list[bytes] | None:
    answer = connection.request(pull_command(topic, 0), TIMEOUT_MS)
    bodies = [] if answer.code else [each.body for each in decode_messages(bytes(answer.body), "b")]
    return bodies if b"mark" in bodies else None
