"""Answers to pulls that cannot be right: nothing is passed in silence, nothing comes twice."""

from __future__ import annotations

import asyncio
import logging
import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest

from rocketstream import (
    ConsumeConcurrentlyStatus,
    ConsumeOrderlyStatus,
    LitePullConsumer,
    MessageExt,
    MessageQueue,
    PullConsumer,
    PushConsumer,
    aio,
)
from rocketstream.client.consumer import pull_answer
from rocketstream.client.consumer.pull_answer import (
    LOOKS,
    LOOKS_AT_NOTHING,
    Believed,
    Missing,
    end_told,
    examined,
)
from rocketstream.client.consumer.pull_requests import Losses
from rocketstream.protocol.bodies import TopicConfig
from rocketstream.protocol.codes import RequestCode, ResponseCode
from rocketstream.protocol.command import RemotingCommand
from rocketstream.protocol.headers import PullMessageResponseHeader
from rocketstream.protocol.message_ext import decode_messages
from rocketstream.protocol.record import RecordFields, encode_record
from tests.kits.client.fake_broker import GROUP, TOPIC, WAIT_S, FakeBroker, found
from tests.kits.client.locking_broker import LockingBroker

PULL = RequestCode.PULL_MESSAGE
SHARE = 8
"""So many offsets are answered by one lie."""
MQ_TEXT = re.escape(f"MessageQueue(topic='{TOPIC}', broker_name='broker-a', queue_id=0)")


@dataclass(frozen=True)
class Record:
    """What a record of an answer says of itself."""

    offset: int
    topic: str = TOPIC
    queue_id: int = 0
    is_damaged: bool = False
    is_spoilt: bool = False

    def bytes(self, properties: str) -> bytes:
        """Return the record; its body is the offset."""
        if self.is_spoilt:
            properties, told = f"TAGS\x01B\x02{properties}{self.offset}\x02__CRC32#\x01", "0" * 10
            return bytes(encode_record(self._fields(f"{properties}{told}\x02")))
        data = bytes(encode_record(self._fields(f"{properties}{self.offset}")))
        return data[:8] + b"\0\0\0\0" + data[12:] if self.is_damaged else data

    def _fields(self, properties: str) -> RecordFields:
        return RecordFields(
            topic=self.topic, queue_id=self.queue_id, flag=0, sys_flag=0, born_timestamp=1,
            born_host=("127.0.0.1", 1), store_timestamp=2, store_host=("127.0.0.1", 2),
            reconsume_times=0, prepared_transaction_offset=0, body=str(self.offset).encode(),
            properties=properties, queue_offset=self.offset, physical_offset=self.offset * 1000,
        )  # fmt: skip


@dataclass
class Reply:
    """An answer before it is sent."""

    records: list[Record]
    next_offset: int
    code: int = 0


def all_records(**changes: Any) -> Callable[[Reply, int], None]:
    """Return a lie about every record."""

    def lie(reply: Reply, _: int) -> None:
        reply.records = [replace(record, **changes) for record in reply.records]

    return lie


def one_record(place: int, **changes: Any) -> Callable[[Reply, int], None]:
    """Return a lie about the record at a place of its share."""

    def lie(reply: Reply, first: int) -> None:
        reply.records = [
            replace(record, **changes) if record.offset == first + place else record
            for record in reply.records
        ]

    return lie


def moved(by: int, place: int | None = None) -> Callable[[Reply, int], None]:
    """Return a lie about the offset of all records, or of one."""

    def lie(reply: Reply, first: int) -> None:
        reply.records = [
            replace(record, offset=record.offset + by)
            if place is None or record.offset == first + place
            else record
            for record in reply.records
        ]

    return lie


def left_out(place: int) -> Callable[[Reply, int], None]:
    """Return a lie that leaves a record out."""

    def lie(reply: Reply, first: int) -> None:
        reply.records = [record for record in reply.records if record.offset != first + place]

    return lie


def next_moved(by: int) -> Callable[[Reply, int], None]:
    """Return a lie about where the queue goes on."""

    def lie(reply: Reply, _: int) -> None:
        reply.next_offset += by

    return lie


def empty(code: int) -> Callable[[Reply, int], None]:
    """Return a lie that shows nothing and leads on."""

    def lie(reply: Reply, _: int) -> None:
        reply.records, reply.code = [], code

    return lie


def twice(reply: Reply, _: int) -> None:
    """Show each record two times."""
    reply.records = [record for record in reply.records for _ in range(2)]


def reversed_order(reply: Reply, _: int) -> None:
    """Show the last record first."""
    reply.records.reverse()


LIES: dict[str, Callable[[Reply, int], None]] = {
    "of another topic": all_records(topic="Z"),
    "one of another topic": one_record(3, topic="Z"),
    "of another queue": all_records(queue_id=77),
    "one of another queue": one_record(0, queue_id=77),
    "offsets of before": moved(-40),
    "one offset of before": moved(-40, 4),
    "offsets of later": moved(40),
    "one offset of later": moved(1 << 33, 7),
    "found without a record": empty(0),
    "left out at the beginning": left_out(0),
    "left out in the middle": left_out(5),
    "left out at the end": left_out(7),
    "next too far": next_moved(30),
    "next too near": next_moved(-3),
    "next behind": next_moved(-40),
    "nothing new, and leads on": empty(ResponseCode.PULL_NOT_FOUND),
    "nothing matched, and leads on": empty(ResponseCode.PULL_RETRY_IMMEDIATELY),
    "each twice": twice,
    "in reverse": reversed_order,
}
"""Each begins at a multiple of SHARE, in this order; the last share is answered honestly."""
FOREIGN = [name for name in LIES if "another" in name or "before" in name or name == "each twice"]
"""Those that can be noticed too where tags leave messages out."""
HEALED = {
    **LIES,
    "a damaged body": one_record(2, is_damaged=True),
    "properties that do not match the record's CRC": one_record(3, is_spoilt=True),
}


class Liar:
    """Serves a queue of which each share is answered with a lie of its own.

    Args:
        lies: by name.
        stay: whether a share is always answered so; else its first answer only.
    """

    def __init__(
        self, lies: dict[str, Callable[[Reply, int], None]], *, stay: bool, tag: bool = False
    ) -> None:
        self.lies = list(lies.values())
        self.end = SHARE * (len(lies) + 1)
        self.stay = stay
        self.properties = ("TAGS\x01A\x02" if tag else "") + "UNIQ_KEY\x01U"
        self.told: set[int] = set()

    def __call__(self, command: RemotingCommand) -> RemotingCommand | None:
        ext = command.ext_fields or {}
        offset = int(ext["queueOffset"])
        if ext["topic"] != TOPIC or offset >= self.end:
            return None
        share = offset // SHARE
        first = share * SHARE
        reply = Reply([Record(each) for each in range(offset, first + SHARE)], first + SHARE)
        if share < len(self.lies) and (self.stay or share not in self.told):
            self.told.add(share)
            self.lies[share](reply, first)
        header = PullMessageResponseHeader(0, reply.next_offset, 0, self.end)
        body = b"".join(record.bytes(self.properties) for record in reply.records)
        return RemotingCommand.response(reply.code, None, header, body)


# --- whoever consumes -----------------------------------------------------------------------------

Consumed = Callable[[FakeBroker, Liar, str], list[int]]


class Got:
    """The offsets a listener got; the queue is done with the last one."""

    def __init__(self, liar: Liar, *, orderly: bool) -> None:
        self.status = (
            ConsumeOrderlyStatus.SUCCESS if orderly else ConsumeConcurrentlyStatus.CONSUME_SUCCESS
        )
        self.offsets: list[int] = []
        self.done = threading.Event()
        self.last = liar.end - 1

    def __call__(self, messages: list[MessageExt]) -> Any:
        self.offsets += [message.queue_offset for message in messages]
        if self.last in self.offsets:
            self.done.set()
        return self.status


def pushed(broker: FakeBroker, liar: Liar, expression: str, *, orderly: bool = False) -> list[int]:
    got = Got(liar, orderly=orderly)
    consumer: Any = PushConsumer(GROUP, namesrv_addr=broker.address)
    consumer.register_message_listener(got, orderly=orderly)
    consumer.subscribe(TOPIC, expression)
    with consumer:
        assert got.done.wait(WAIT_S), got.offsets
    return got.offsets


def in_order(broker: FakeBroker, liar: Liar, expression: str) -> list[int]:
    offsets = pushed(broker, liar, expression, orderly=True)
    assert offsets == sorted(offsets)
    return offsets


def polled(broker: FakeBroker, liar: Liar, expression: str) -> list[int]:
    offsets: list[int] = []
    with LitePullConsumer(GROUP, namesrv_addr=broker.address) as consumer:
        consumer.subscribe(TOPIC, expression)
        while liar.end - 1 not in offsets:
            messages = consumer.poll(WAIT_S * 1000)
            assert messages, offsets
            offsets += [message.queue_offset for message in messages]
    return offsets


def pulled(broker: FakeBroker, liar: Liar, expression: str) -> list[int]:
    offsets: list[int] = []
    with PullConsumer(GROUP, namesrv_addr=broker.address) as consumer:
        (mq,) = consumer.fetch_subscribe_message_queues(TOPIC)
        at = 0
        while at < liar.end:
            result = consumer.pull(mq, expression, at, 32)
            assert result.next_begin_offset > at
            at = result.next_begin_offset
            offsets += [message.queue_offset for message in result.msg_found_list]
    return offsets


def pushed_aio(
    broker: FakeBroker, liar: Liar, expression: str, *, orderly: bool = False
) -> list[int]:
    async def run() -> list[int]:
        got, done = Got(liar, orderly=orderly), asyncio.Event()

        async def listener(messages: list[MessageExt]) -> Any:
            status = got(messages)
            if got.done.is_set():
                done.set()
            return status

        consumer: Any = aio.PushConsumer(GROUP, namesrv_addr=broker.address)
        consumer.register_message_listener(listener, orderly=orderly)
        await consumer.subscribe(TOPIC, expression)
        async with consumer, asyncio.timeout(WAIT_S):
            await done.wait()
        return got.offsets

    return asyncio.run(run())


def in_order_aio(broker: FakeBroker, liar: Liar, expression: str) -> list[int]:
    offsets = pushed_aio(broker, liar, expression, orderly=True)
    assert offsets == sorted(offsets)
    return offsets


def polled_aio(broker: FakeBroker, liar: Liar, expression: str) -> list[int]:
    async def run() -> list[int]:
        offsets: list[int] = []
        async with aio.LitePullConsumer(GROUP, namesrv_addr=broker.address) as consumer:
            await consumer.subscribe(TOPIC, expression)
            while liar.end - 1 not in offsets:
                messages = await consumer.poll(WAIT_S * 1000)
                assert messages, offsets
                offsets += [message.queue_offset for message in messages]
        return offsets

    return asyncio.run(run())


def pulled_aio(broker: FakeBroker, liar: Liar, expression: str) -> list[int]:
    async def run() -> list[int]:
        offsets: list[int] = []
        async with aio.PullConsumer(GROUP, namesrv_addr=broker.address) as consumer:
            (mq,) = await consumer.fetch_subscribe_message_queues(TOPIC)
            at = 0
            while at < liar.end:
                result = await consumer.pull(mq, expression, at, 32)
                assert result.next_begin_offset > at
                at = result.next_begin_offset
                offsets += [message.queue_offset for message in result.msg_found_list]
        return offsets

    return asyncio.run(run())


CONSUMERS = [
    pushed, in_order, polled, pulled, pushed_aio, in_order_aio, polled_aio, pulled_aio,
]  # fmt: skip


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeBroker]:
    """A broker that grants every lock; what stands is asked for again at once."""
    monkeypatch.setattr(pull_answer, "STALL_MS", 0)
    with LockingBroker() as running:
        running.offsets[0] = 0
        yield running


def named(text: str) -> set[int]:
    """Return the offsets that the log names as lost."""
    lost: set[int] = set()
    for first, last in re.findall(rf"lost offsets (\d+) to (\d+) of {MQ_TEXT}", text):
        lost |= set(range(int(first), int(last) + 1))
    return lost


def summed(text: str) -> int:
    """Return how many more were lost than the log names one by one."""
    return sum(map(int, re.findall(rf"lost (\d+) more offsets of {MQ_TEXT}", text)))


@pytest.mark.parametrize("consume", CONSUMERS)
def test_what_a_lie_left_out_is_asked_for_again(
    broker: FakeBroker, caplog: pytest.LogCaptureFixture, consume: Consumed
) -> None:
    liar = Liar(HEALED, stay=False)
    broker.on[PULL] = liar
    assert consume(broker, liar, "*") == list(range(liar.end))
    assert not named(caplog.text)
    assert not summed(caplog.text)


@pytest.mark.parametrize("consume", CONSUMERS)
def test_what_stays_away_is_named(
    broker: FakeBroker, caplog: pytest.LogCaptureFixture, consume: Consumed
) -> None:
    """All that is not consumed is told, and only that; nothing comes twice, nothing is foreign."""
    liar = Liar(LIES, stay=True)
    broker.on[PULL] = liar
    with caplog.at_level(logging.WARNING, "rocketstream.client"):
        offsets = consume(broker, liar, "*")
    assert offsets == sorted(set(offsets))
    missing = set(range(liar.end)) - set(offsets)
    places = {name: number * SHARE for number, name in enumerate(LIES)}
    assert missing == {
        *range(places["of another topic"], places["of another topic"] + SHARE),
        places["one of another topic"] + 3,
        *range(places["of another queue"], places["of another queue"] + SHARE),
        places["one of another queue"],
        *range(places["offsets of before"], places["offsets of before"] + SHARE),
        places["one offset of before"] + 4,
        *range(places["offsets of later"], places["offsets of later"] + SHARE),
        places["one offset of later"] + 7,
        *range(places["found without a record"], places["found without a record"] + SHARE),
        places["left out at the beginning"],
        places["left out in the middle"] + 5,
        places["left out at the end"] + 7,
        *range(places["nothing new, and leads on"], places["each twice"]),
    }
    assert len(named(caplog.text)) + summed(caplog.text) == len(missing)
    assert named(caplog.text) <= missing


@pytest.mark.parametrize("consume", CONSUMERS)
def test_records_that_were_not_asked_for_are_no_reason_to_pass_tagged_ones(
    broker: FakeBroker, caplog: pytest.LogCaptureFixture, consume: Consumed
) -> None:
    """Under tags gaps are right, so only strays can be noticed."""
    liar = Liar({name: LIES[name] for name in FOREIGN}, stay=False, tag=True)
    broker.on[PULL] = liar
    assert consume(broker, liar, "A") == list(range(liar.end))
    assert "lost" not in caplog.text


# --- where offsets may be missing -----------------------------------------------------------------


@pytest.mark.parametrize("consume", CONSUMERS)
def test_a_topic_that_keeps_the_last_message_of_a_key_has_gaps(
    broker: FakeBroker, caplog: pytest.LogCaptureFixture, consume: Consumed
) -> None:
    """Its broker is asked once, at the first gap that stays; then nothing is asked for again."""
    compacted = TopicConfig(TOPIC, attributes={"cleanup.policy": "COMPACTION"})
    broker.on[RequestCode.GET_TOPIC_CONFIG] = lambda _: RemotingCommand.response(
        0, body=compacted.encode()
    )
    liar = Liar({str(place): left_out(place) for place in range(SHARE)}, stay=True)
    broker.on[PULL] = liar
    offsets = consume(broker, liar, "*")
    assert len(offsets) == liar.end - SHARE
    assert "lost" not in caplog.text
    assert len(broker.asked(RequestCode.GET_TOPIC_CONFIG)) == 1


def test_records_of_a_static_topic_are_counted_from_its_own_offsets(broker: FakeBroker) -> None:
    """5.x: they name the queue and the offset of the broker they lie at, and parts may be empty."""

    def answer(command: RemotingCommand) -> RemotingCommand:
        header = PullMessageResponseHeader(0, 1_003, 0, 2_000, offset_delta=1_000)
        body = found([0, 1, 2], queue_id=5).body
        return RemotingCommand.response(0, None, header, body)

    broker.on[PULL] = answer
    with PullConsumer(GROUP, namesrv_addr=broker.address) as consumer:
        (mq,) = consumer.fetch_subscribe_message_queues(TOPIC)
        result = consumer.pull(mq, "*", 999, 32)
    assert [message.queue_offset for message in result.msg_found_list] == [1_000, 1_001, 1_002]
    assert result.next_begin_offset == 1_003


def test_further_losses_of_a_queue_are_summed_up(caplog: pytest.LogCaptureFixture) -> None:
    """A group whose members subscribe different tags must not fill the disk with log lines."""
    mq = MessageQueue(TOPIC, "broker-a", 0)

    async def lose(losses: Losses) -> None:
        for start in (3, 10, 20):
            losses.passed(mq, Missing(start, start + 2, ""), "a:1")
        losses.passed(MessageQueue(TOPIC, "broker-a", 1), Missing(0, 1, "a record"), "a:1")
        losses.close()

    with caplog.at_level(logging.WARNING, "rocketstream.client"):
        asyncio.run(lose(Losses(GROUP)))
    lines = [record.getMessage() for record in caplog.records]
    assert ["lost offsets" in line for line in lines] == [True, True, False]
    assert "but a record, however often" in lines[1]
    assert lines[2] == f"group g lost 4 more offsets of {mq}, between 10 and 21 (6 since the first)"


def test_the_sum_is_told_after_a_while(caplog: pytest.LogCaptureFixture) -> None:
    mq = MessageQueue(TOPIC, "broker-a", 0)

    async def lose(losses: Losses) -> None:
        losses.passed(mq, Missing(3, 5, ""), "a:1")
        losses.passed(mq, Missing(7, 8, ""), "a:1")
        losses._due(mq)
        assert "lost 1 more offsets" in caplog.text
        losses._due(mq)  # with nothing more to tell it is forgotten
        losses.passed(mq, Missing(9, 10, ""), "a:1")
        assert "lost offsets 9 to 9" in caplog.text
        losses.close()

    with caplog.at_level(logging.WARNING, "rocketstream.client"):
        asyncio.run(lose(Losses(GROUP)))


# --- one answer -----------------------------------------------------------------------------------


def judged(
    records: list[Record], told: int, looks: int = 0, *, complete: bool = True, found: bool = True
) -> Believed:
    """Return what is taken of an answer to a pull from offset 10 of a queue that ends at 100."""
    messages = decode_messages(b"".join(record.bytes("UNIQ_KEY\x01U") for record in records))
    mq = MessageQueue(TOPIC, "broker-a", 0)
    return examined(mq, messages, 10, told, 100, found=found, complete=complete, looks=looks)


def offsets(result: Believed) -> list[int]:
    return [message.queue_offset for message in result.messages]


def test_messages_before_a_gap_are_taken_and_the_gap_asked_for() -> None:
    result = judged([Record(10), Record(12)], 14)
    assert (offsets(result), result.next_offset, result.lost) == ([10], 11, None)
    assert result.missing == Missing(11, 12, "", LOOKS)


def test_a_gap_is_passed_when_answers_agree_and_the_next_one_is_not() -> None:
    records = [Record(12), Record(14)]
    assert judged(records, 15, LOOKS - 2).lost is None
    result = judged(records, 15, LOOKS - 1)
    assert result.lost == Missing(10, 12, "", LOOKS)
    assert (offsets(result), result.next_offset) == ([12], 13)


def test_an_answer_without_a_record_is_doubted_longer() -> None:
    for records in ([], [Record(10, topic="Z"), Record(11, queue_id=7)]):
        assert judged(records, 12, LOOKS_AT_NOTHING - 2).lost is None
        lost = judged(records, 12, LOOKS_AT_NOTHING - 1).lost
        assert lost is not None
        assert (lost.start, lost.end) == (10, 12)
    assert judged([], 12, LOOKS - 1, found=False).lost is not None


def test_under_tags_only_what_a_stray_may_stand_for_is_doubted() -> None:
    whole = judged([Record(12), Record(17)], 20, complete=False)
    assert (offsets(whole), whole.next_offset, whole.missing) == ([12, 17], 20, None)
    stray = judged([Record(12), Record(14, topic="Z"), Record(17)], 20, complete=False)
    assert (offsets(stray), stray.next_offset) == ([12], 13)
    assert stray.missing == Missing(13, 17, stray.stray, LOOKS)
    assert stray.stray == "a record of topic Z, queue 0, offset 14"
    beside = judged([Record(12), Record(3), Record(13)], 20, complete=False)
    assert (offsets(beside), beside.next_offset, beside.missing) == ([12, 13], 20, None)
    nothing = judged([], 20, complete=False)
    assert (nothing.next_offset, nothing.missing) == (10, Missing(10, 20, "", LOOKS_AT_NOTHING))


def test_an_answer_that_leads_back_is_read_to_the_end_of_the_queue() -> None:
    result = judged([Record(10), Record(11), Record(100)], 3)
    assert (offsets(result), result.next_offset, result.missing) == ([10, 11], 12, None)
    assert judged([Record(3)], 3).next_offset == 10


def test_the_end_of_the_queue_bounds_where_a_broker_leads() -> None:
    assert end_told(10, 12, 100, 11) == 12
    assert end_told(10, 1 << 40, 100, 99) == 100
    assert end_told(10, 1 << 40, 100, (1 << 40) - 1) == 100
    assert end_told(10, 50, 10, -1) == 50  # that end cannot be right


@pytest.mark.parametrize("expression", ["*", "A"])
def test_records_stored_while_a_broker_answers_are_taken(
    broker: FakeBroker, caplog: pytest.LogCaptureFixture, expression: str
) -> None:
    """Apache's broker asks for the end of the queue first: it may read one record more."""
    records = b"".join(Record(each).bytes("TAGS\x01A\x02UNIQ_KEY\x01U") for each in (0, 1, 2))
    header = PullMessageResponseHeader(0, 3, 0, 2)
    broker.on[PULL] = lambda _: RemotingCommand.response(0, None, header, records)
    with PullConsumer(GROUP, namesrv_addr=broker.address) as consumer:
        (mq,) = consumer.fetch_subscribe_message_queues(TOPIC)
        result = consumer.pull(mq, expression, 0, 32)
    assert [message.queue_offset for message in result.msg_found_list] == [0, 1, 2]
    assert result.next_begin_offset == 3
    assert "was not asked for" not in caplog.text
