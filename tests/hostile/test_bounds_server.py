"""What one peer may cost a broker: counted in steps, bytes and entries, never in seconds."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from rocketstream import limits
from rocketstream.errors import BrokerError
from rocketstream.model import MessageQueue
from rocketstream.protocol.bodies import ConsumerData, HeartbeatData
from rocketstream.protocol.codes import RequestCode, ResponseCode
from rocketstream.protocol.command import RemotingCommand
from rocketstream.protocol.headers import QueryMessageRequestHeader
from rocketstream.server.broker.core.locks import QueueLocks
from rocketstream.server.broker.core.room import Fullness, Room
from rocketstream.server.broker.registration import NameServerRegistrar
from rocketstream.server.embedded import SMALL_STORE, EmbeddedCluster
from rocketstream.transport.sharing import Steps
from tests.kits.peer import Peer, ext
from tests.plugins.waiting import wait_until

CONNECTIONS = 400


def batch(count: int, body: bytes = b"") -> bytes:
    """The body of a batch of so many messages."""
    size = 22 + len(body)
    item = struct.pack(">iiiii", size, 0, 0, 0, len(body)) + body + struct.pack(">h", 0)
    return item * count


# --- batches --------------------------------------------------------------------------------------


def test_batch_whose_properties_multiply_is_refused(
    rocketmq_cluster: EmbeddedCluster, broker_peer: Peer
) -> None:
    """98 KB became 98 MB: the properties of a batch are stored with each of its messages."""
    broker_peer.send("T1")
    end = rocketmq_cluster.broker.store.physical_max_offset
    properties = {"p": "x" * 30_000}
    answer = broker_peer.send("T1", batch(3_000), batch=True, properties=properties)
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert "take more than 8388608 bytes" in (answer.remark or "")
    assert rocketmq_cluster.broker.store.physical_max_offset == end
    assert broker_peer.send("T1", batch(100), batch=True, properties=properties).code == 0


def test_batch_of_more_messages_than_the_bound_is_refused(broker_peer: Peer) -> None:
    answer = broker_peer.send("T1", batch(limits.BATCH_MESSAGES_MAX + 1), batch=True)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "more than the maximum of 16384 messages; send several" in (answer.remark or "")


def test_batch_of_a_mebibyte_is_taken_whole(broker_peer: Peer) -> None:
    """10,000 messages of 100 bytes, as a sender that splits at 1 MiB sends them."""
    answer = broker_peer.send("T1", batch(10_000, b"x" * 100), batch=True)
    assert answer.code == 0
    assert len(ext(answer)["msgId"].split(",")) == 10_000
    assert ext(broker_peer.send("T1"))["queueOffset"] == "10000"


def test_body_over_what_a_server_reads_is_refused_and_the_connection_goes_on(
    broker_peer: Peer,
) -> None:
    """A frame of 16 MiB is no reason to hold 16 MiB, nor to leave the sender without an answer."""
    body = b"x" * (limits.MESSAGE_BODY_BYTES_MAX + 1)
    answer = broker_peer.send("T1", body)
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert "msg body length limit 4194304B" in (answer.remark or "")
    answer = broker_peer.call(RequestCode.HEART_BEAT, body=body)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "body of 4194305 bytes is over what this server reads" in (answer.remark or "")
    assert broker_peer.send("T1").code == 0


# --- heartbeats -----------------------------------------------------------------------------------


def test_heartbeat_of_many_groups_writes_no_file_of_its_own(
    rocketmq_cluster: EmbeddedCluster, broker_peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """200 groups took 2.5 s: for each of them both tables were written anew."""
    saves: list[str] = []
    saver = rocketmq_cluster.broker.controller.saver
    monkeypatch.setattr(saver, "topics_saved", lambda: saves.append("topics"))
    monkeypatch.setattr(saver, "groups_saved", lambda: saves.append("groups"))
    groups = [ConsumerData(f"g{number}", "CONSUME_PASSIVELY") for number in range(200)]
    answer = broker_peer.call(RequestCode.HEART_BEAT, body=HeartbeatData("c1", [], groups).encode())
    assert answer.code == 0
    assert saves == []
    topics = rocketmq_cluster.broker.controller.topics
    assert all(topics.get(f"%RETRY%g{number}") is not None for number in range(200))


# --- full tables ----------------------------------------------------------------------------------


def test_a_table_that_fills_up_is_told_once_before_it_is_full_and_once_then() -> None:
    """One that hovers about a mark fills no log; one that was emptied and fills again is told."""
    fullness = Fullness()

    def told(used: int) -> list[str]:
        lines = fullness.look([Room("groups", used, 10), Room("topics", 0, 10)])
        return [line.split()[0] for line in lines]

    near, full = ["condition=TABLE_NEARLY_FULL"], ["condition=TABLE_FULL"]
    assert [told(used) for used in (7, 8, 9, 7, 8)] == [[], near, [], [], []]
    assert [told(used) for used in (10, 9, 10, 7, 10)] == [full, [], [], [], []]
    assert [told(used) for used in (6, 10, 6, 8, 10)] == [[], full, [], near, full]


def test_a_broker_whose_tables_are_full_says_so(
    rocketmq_cluster: EmbeddedCluster, caplog: pytest.LogCaptureFixture
) -> None:
    controller = rocketmq_cluster.broker.controller
    controller.groups._groups_max = len(list(controller.groups))
    controller.offsets._offsets_max = 0
    controller.tell_fullness()
    controller.tell_fullness()
    assert [record.message for record in caplog.records if "TABLE_FULL" in record.message] == [
        "broker: condition=TABLE_FULL this broker keeps 7 groups at most: further ones are refused",
        "broker: condition=TABLE_FULL this broker keeps 0 offsets at most: further ones are "
        "refused",
    ]


# --- queue locks ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"group": "x" * 256}, "a group has 255 characters at most; this one has 256"),
        ({"client_id": "x" * 300}, "a client id has 255 characters at most; this one has 300"),
        ({"topic": "x" * 256}, "a topic has 255 characters at most; this one has 256"),
        ({"broker": "x" * 256}, "a broker has 255 characters at most; this one has 256"),
    ],
)
def test_queue_locks_of_endless_names_are_refused(changed: dict[str, str], text: str) -> None:
    """A lease keeps them, in memory and in queueLocks.json, where a client named all of them."""
    locks = QueueLocks()
    names = {"group": "g", "client_id": "c", "topic": "t", "broker": "b"}

    def lock(group: str, client_id: str, topic: str, broker: str) -> set[MessageQueue]:
        queues = [MessageQueue("T1", "b", 0), MessageQueue(topic, broker, 0)]
        return locks.lock(group, client_id, queues, 0.0)

    with pytest.raises(BrokerError, match=text):
        lock(**{**names, **changed})
    assert locks.room.used == 0
    assert len(lock(**dict.fromkeys(names, "x" * 255))) == 2


# --- conditions -----------------------------------------------------------------------------------

DEAR = " OR ".join(f"a = '{number}'" for number in range(2_000))


def scan(broker: Peer, condition: str, offset: int = 0) -> RemotingCommand:
    return broker.pull("T1", offset, expression=condition, expression_type="SQL92", count=1_000)


def test_pull_by_a_dear_condition_is_answered_before_it_has_seen_all(broker_peer: Peer) -> None:
    """A condition of 60 KB took 8.5 s a pull: now each pull has its share of steps."""
    for _ in range(40):
        broker_peer.send("T1")
    pulls = offset = 0
    while offset < 40:
        answer = scan(broker_peer, DEAR, offset)
        assert answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY
        following = int(ext(answer)["nextBeginOffset"])
        seen = following - offset
        assert 1 <= seen <= limits.FILTER_STEPS_PER_PULL // 6_000 + 1
        offset, pulls = following, pulls + 1
    assert pulls >= 6


def test_pull_out_of_steps_gives_what_it_has_found(broker_peer: Peer) -> None:
    """Nothing is skipped and nothing comes twice."""
    for number in range(20):
        broker_peer.send("T1", b"%d" % number, properties={"a": str(number % 2)})
    found: list[int] = []
    offset = 0
    while offset < 20:
        answer = scan(broker_peer, f"a = '1' AND ({DEAR} OR b IS NULL)", offset)
        offset = int(ext(answer)["nextBeginOffset"])
        if answer.code == 0:
            found += [int(bytes(one)) for one in bodies(answer)]
    assert found == list(range(1, 20, 2))


def bodies(answer: RemotingCommand) -> list[bytes]:
    from rocketstream.protocol.message_ext import decode_messages

    return [bytes(one.body) for one in decode_messages(bytes(answer.body))]


def test_cheap_condition_still_sees_eight_hundred_messages(broker_peer: Peer) -> None:
    """Covers C-368. What is usual is far from the bound."""
    for _ in range(9):
        assert broker_peer.send("T1", batch(100), batch=True, properties={"a": "x" * 50}).code == 0
    assert ext(scan(broker_peer, "a = 'y' AND b = 'z'"))["nextBeginOffset"] == "900"


@pytest.mark.parametrize(
    ("condition", "why"),
    [
        (" OR ".join(["a = 1"] * 2_990), "6144 parts"),
        (" OR ".join(["a CONTAINS 'x'"] * 200), "6144 parts"),
        ("a IN (" + ",".join(["''"] * 6_001) + ")", "12000 words"),
    ],
)
def test_condition_of_too_many_parts_is_refused(
    broker_peer: Peer, condition: str, why: str
) -> None:
    broker_peer.send("T1")
    answer = scan(broker_peer, condition)
    assert answer.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
    assert why in (answer.remark or "")


# --- held pulls -----------------------------------------------------------------------------------


def test_one_connection_holds_so_many_pulls_of_a_queue(broker_peer: Peer) -> None:
    """Those beyond the bound are answered at once, and the connection goes on."""
    broker_peer.send("T1")
    pull: Callable[[], int] = lambda: broker_peer.submit_pull("T1", 1, suspend_ms=60_000)  # noqa: E731
    for _ in range(limits.HELD_PULLS_OF_QUEUE_MAX):
        pull()
    assert broker_peer.answer(pull()).code == ResponseCode.PULL_NOT_FOUND


@pytest.mark.parametrize(
    ("expression", "kind", "count"),
    [
        ("||".join(f"{number:x}" for number in range(35_000)), "TAG", 7),
        (" OR ".join(f"a = '{number}'" for number in range(2_000)), "SQL92", 9),
        ("*", "TAG", 100),
    ],
)
def test_one_connection_holds_so_many_bytes_of_pulls(
    broker_peer: Peer, expression: str, kind: str, count: int
) -> None:
    """200 pulls of 35,000 tags took 660 MB."""
    broker_peer.send("T1")
    broker_peer.heartbeat("c1", "cg", {"T1": "*"})

    def pull() -> int:
        return broker_peer.submit_pull(
            "T1", 1, suspend_ms=60_000, expression=expression, expression_type=kind
        )

    held = [pull() for _ in range(count)]
    if expression != "*":
        assert broker_peer.answer(pull()).code == ResponseCode.PULL_NOT_FOUND
    broker_peer.call(RequestCode.GET_BROKER_RUNTIME_INFO)
    assert not any(broker_peer.has_answer(one) for one in held)


def test_all_pulls_held_for_a_queue_are_answered_by_one_message(broker_peer: Peer) -> None:
    broker_peer.send("T1")
    waiting = [broker_peer.submit_pull("T1", 1, suspend_ms=60_000) for _ in range(200)]
    broker_peer.send("T1", b"news")
    assert [bodies(broker_peer.answer(one)) for one in waiting] == [[b"news"]] * 200


# --- connections ----------------------------------------------------------------------------------


def test_hundreds_of_connections_are_served_at_once_and_released(
    rocketmq_cluster: EmbeddedCluster,
) -> None:
    """Members, held pulls and unfinished frames of all of them: nothing is left when they go."""
    broker = rocketmq_cluster.broker
    server, sharing = broker._server, broker.controller.sharing
    assert server is not None
    assert sharing is not None
    rocketmq_cluster.create_topic("T1")
    half = struct.pack(">iI", 200_000, 100) + bytes(10_000)
    with ExitStack() as stack:
        peers = [
            stack.enter_context(Peer(rocketmq_cluster.broker_addr)) for _ in range(CONNECTIONS)
        ]
        held = [one.submit_pull("T1", 0, suspend_ms=600_000) for one in peers]
        for number, peer in enumerate(peers):
            assert peer.heartbeat(f"c{number}", f"g{number}", {"T1": "*"}).code == 0
            assert not peer.has_answer(held[number])
        assert len(server.connections) == broker.held_pulls == CONNECTIONS
        assert len(broker.controller.consumers.names()) == CONNECTIONS
        for peer in peers:
            peer.send_bytes(half)
        wait_until(lambda: sharing.bytes_held == CONNECTIONS * len(half), "a count of all bytes")
    wait_until(lambda: not server.connections, "the end of all connections")
    wait_until(lambda: not sharing.bytes_held, "an empty count")
    wait_until(lambda: not broker.held_pulls, "the end of all pulls")
    wait_until(lambda: not broker.controller.consumers.names(), "the end of all members")
    with Peer(rocketmq_cluster.broker_addr) as peer:
        assert peer.send("T1").code == 0


# --- keys -----------------------------------------------------------------------------------------


def test_message_is_found_by_so_many_keys(broker_peer: Peer) -> None:
    """16,000 keys in one message kept the index, and all who waited for it, busy for a second."""
    keys = " ".join(f"k{number}" for number in range(2_000))
    broker_peer.send("T1", properties={"KEYS": keys})

    def find(key: str) -> int:
        header = QueryMessageRequestHeader("T1", key, 10, 0, 1 << 62)
        return broker_peer.call(RequestCode.QUERY_MESSAGE, header).code

    assert find(f"k{limits.KEYS_MAX - 1}") == 0
    assert find(f"k{limits.KEYS_MAX}") == ResponseCode.QUERY_NOT_FOUND


# --- registrations --------------------------------------------------------------------------------


def test_whole_table_is_registered_in_steps_of_a_topic(tmp_path: Path) -> None:
    """Every 30 s 20,000 topics held everybody up for 170 ms."""

    async def play() -> None:
        async with EmbeddedCluster(tmp_path, store_config=SMALL_STORE) as cluster:
            controller = cluster.broker.controller
            sharing, counts = controller.sharing, []
            assert sharing is not None
            start = sharing.start

            def counting(steps: Steps) -> Steps:
                counts.append(0)
                for _ in steps:
                    counts[-1] += 1
                    yield

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(sharing, "start", lambda steps: start(counting(steps)))
                registrar = controller.registrar
                assert isinstance(registrar, NameServerRegistrar)
                await registrar.register()
            assert counts == [len(list(controller.topics))]

    asyncio.run(play())
