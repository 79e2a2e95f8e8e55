"""Producers with ``auto_batch``: what brokers are asked, and what each sender is told."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from rocketstream import Message, MessageQueue, Producer, SendMessageContext, SendResult, aio
from rocketstream.errors import ConfigurationError, SendError, SendOutcome
from rocketstream.protocol.codes import RequestCode, ResponseCode
from rocketstream.protocol.command import RemotingCommand
from rocketstream.protocol.headers import SendMessageResponseHeader
from rocketstream.protocol.properties import decode_properties
from rocketstream.protocol.record import decode_batch
from tests.kits.client.fake_broker import FakeBroker, answer, refusal

WAIT_S = 20
ONE, MANY = RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE
QUEUE = MessageQueue("T", "broker-a", 0)


class Batching(FakeBroker):
    """A broker of one queue that holds answers back until told, and remembers what it stored."""

    def __init__(self) -> None:
        super().__init__()
        self.stored: list[bytes] = []
        self.refused = b""
        self.held = threading.Event()
        self.holding = False
        self.on[ONE] = self._one
        self.on[MANY] = self._many

    def _one(self, command: RemotingCommand) -> RemotingCommand | None:
        return self._store([bytes(command.body)])

    def _many(self, command: RemotingCommand) -> RemotingCommand | None:
        return self._store([item.body for item in decode_batch(command.body)])

    def _store(self, bodies: list[bytes]) -> RemotingCommand | None:
        if self.refused in bodies:
            return RemotingCommand.response(ResponseCode.MESSAGE_ILLEGAL, "illegal")
        offset = len(self.stored)
        self.stored += bodies
        if self.holding:
            return None
        ids = ",".join(f"ID{offset + n}" for n in range(len(bodies)))
        return answer(0, SendMessageResponseHeader(ids, 0, offset))

    def batches(self) -> list[list[bytes]]:
        """Bodies of each batch that was asked for."""
        return [[item.body for item in decode_batch(a.command.body)] for a in self.asked(MANY)]


@pytest.fixture
def broker() -> Iterator[Batching]:
    with Batching() as broker:
        yield broker


def producer_of(broker: FakeBroker, **settings: Any) -> Producer:
    return Producer(
        "pg",
        namesrv_addr=broker.address,
        auto_batch=True,
        **{"batch_max_delay_ms": 2_000, **settings},
    )


def all_at_once(
    broker: Batching, producer: Producer, messages: list[Message], **how: Any
) -> list[SendResult | BaseException]:
    """Send messages so that all but the first are gathered; return how each ended."""
    broker.holding = True
    first = producer.send_async(Message("T", b"first"), **how)
    asked = broker.wait_for(ONE)[0]
    futures = [producer.send_async(message, **how) for message in messages]
    broker.holding = False
    broker.reply(asked, answer(0, SendMessageResponseHeader("ID0", 0, 0)))
    assert first.result(WAIT_S).queue_offset == 0
    return [future.exception(WAIT_S) or future.result() for future in futures]


def test_what_comes_while_a_send_is_under_way_goes_as_one_batch(broker: Batching) -> None:
    """Each sender gets its own id, place and offset, as if it had sent alone."""
    messages = [Message("T", b"%d" % n, tags=f"t{n}", keys=f"k{n}") for n in range(5)]
    with producer_of(broker) as producer:
        ends = all_at_once(broker, producer, messages)
    results = [end for end in ends if isinstance(end, SendResult)]
    assert [r.queue_offset for r in results] == [1, 2, 3, 4, 5]
    assert [r.offset_msg_id for r in results] == [f"ID{n}" for n in range(1, 6)]
    assert [r.msg_id for r in results] == [m.properties["UNIQ_KEY"] for m in messages]
    assert {r.message_queue for r in results} == {QUEUE}
    (asked,) = broker.asked(MANY)
    items = decode_batch(asked.command.body)
    stored = [{**m.properties, "WAIT": None} for m in messages]
    assert [{**decode_properties(item.properties), "WAIT": None} for item in items] == stored
    assert asked.ext["i"] == ""


def test_a_batch_waits_for_the_disk_as_its_messages_do(broker: Batching) -> None:
    """A broker that flushes each message asks the properties of the batch, not its members'."""
    messages = [Message("T", b"%d" % n, wait_store_msg_ok=False) for n in range(2)]
    with producer_of(broker) as producer:
        all_at_once(broker, producer, messages)
    (asked,) = broker.asked(MANY)
    assert decode_properties(asked.ext["i"]) == {"WAIT": "false"}


def test_a_refused_message_does_not_take_its_neighbours_along(broker: Batching) -> None:
    """The batch is refused, so each goes alone; the next batch to the queue waits for them."""
    broker.refused = b"bad"
    bodies = [b"a", b"bad", b"b", b"c"]
    with producer_of(broker) as producer:
        ends = all_at_once(
            broker, producer, [Message("T", body) for body in bodies], message_queue=QUEUE
        )
    assert [isinstance(end, SendResult) for end in ends] == [True, False, True, True]
    error = ends[1]
    assert isinstance(error, SendError)
    assert error.outcome is SendOutcome.REJECTED
    assert broker.stored == [b"first", b"a", b"b", b"c"]


def test_a_busy_broker_is_not_asked_for_each_message(broker: Batching) -> None:
    """The batch has its tries, and every sender an error of its own."""
    broker.on[MANY] = refusal(ResponseCode.SYSTEM_BUSY)
    with producer_of(broker) as producer:
        ends = all_at_once(broker, producer, [Message("T", b"%d" % n) for n in range(4)])
    errors = [end for end in ends if isinstance(end, SendError)]
    assert [(e.outcome, e.retriable) for e in errors] == [(SendOutcome.REJECTED, True)] * 4
    assert len({id(e) for e in errors}) == 4
    assert all(e.__cause__ is errors[0].__cause__ for e in errors)
    assert len(broker.asked(MANY)) == 3
    assert broker.stored == [b"first"]


def test_a_batch_whose_answer_is_lost_is_unknown_to_every_sender(broker: Batching) -> None:
    """It may be stored, so it is not sent one by one."""

    def lost(command: RemotingCommand) -> None:
        for connection in list(broker.server.connections):
            connection.close("the broker is gone")

    broker.on[MANY] = lost
    settings = {"retry_times_when_send_async_failed": 0}
    with producer_of(broker, **settings) as producer:
        ends = all_at_once(broker, producer, [Message("T", b"%d" % n) for n in range(3)])
    assert [isinstance(end, SendError) and end.outcome for end in ends] == [SendOutcome.UNKNOWN] * 3
    assert broker.stored == [b"first"]


def test_messages_no_batch_can_carry_go_alone_and_keep_their_place(broker: Batching) -> None:
    """Delayed, compressed and great ones, between others of their queue."""
    messages = [
        Message("T", b"1"),
        Message("T", b"2"),
        Message("T", b"3", delay_level=1),
        Message("T", b"4"),
        Message("T", b"5" * 40_000),
        Message("T", b"6"),
        Message("T", b"7"),
    ]
    settings = {"compress_msg_body_over_howmuch": 1 << 22}
    with producer_of(broker, **settings) as producer:
        ends = all_at_once(broker, producer, messages, message_queue=QUEUE)
    assert all(isinstance(end, SendResult) for end in ends)
    assert [body[:1] for body in broker.stored[1:]] == [b"%d" % n for n in range(1, 8)]
    assert [[b[:1] for b in batch] for batch in broker.batches()] == [[b"1", b"2"], [b"6", b"7"]]


def test_a_body_that_is_compressed_goes_alone(broker: Batching) -> None:
    """A batch has no mark that only some of its bodies are."""
    messages = [Message("T", b"x"), Message("T", b"z" * 5_000), Message("T", b"y")]
    with producer_of(broker) as producer:
        ends = all_at_once(broker, producer, messages)
    assert all(isinstance(end, SendResult) for end in ends)
    assert broker.batches() == []
    assert len(broker.asked(ONE)) == 4


def test_a_sharding_key_decides_the_queue_before_gathering(broker: Batching) -> None:
    """Messages of one key stay in one queue, in order; what picks is called by the sender."""
    broker.queues = broker.topics["T"] = 4
    chosen: list[str] = []

    def pick(queues: Any, message: Message, arg: Any) -> MessageQueue:
        chosen.append(threading.current_thread().name)
        return MessageQueue(*queues[arg])

    with producer_of(broker) as producer:
        producer.send(Message("T", b"0"), selector=pick, arg=3)
        futures = [
            producer.send_async(Message("T", b"%d" % n), sharding_key=f"key{n % 7}")
            for n in range(70)
        ]
        queues = [producer.queue_of("T", f"key{n % 7}") for n in range(70)]
        assert all(future.result(WAIT_S) for future in futures)
        with pytest.raises(SendError, match="the selector of the queue raised"):
            producer.send(Message("T", b"x"), selector=lambda q, m, a: q[99])
    assert chosen == [threading.current_thread().name]
    wanted = Counter(queue.queue_id for queue in queues) + Counter([3])
    sent: Counter[int] = Counter(int(a.ext["e"]) for a in broker.asked(ONE))
    for asked in broker.asked(MANY):
        sent[int(asked.ext["e"])] += len(decode_batch(asked.command.body))
    assert sent == wanted


def test_shutdown_sends_what_is_gathered(broker: Batching) -> None:
    """Without waiting for the delay; senders hear of it."""
    with producer_of(broker, batch_max_delay_ms=2_900) as producer:
        broker.holding = True
        first = producer.send_async(Message("T", b"first"))
        asked = broker.wait_for(ONE)[0]
        futures = [producer.send_async(Message("T", b"%d" % n)) for n in range(3)]
        broker.holding = False
        closing = threading.Thread(target=producer.shutdown)
        closing.start()
        broker.wait_for(MANY)
        broker.reply(asked, answer(0, SendMessageResponseHeader("ID0", 0, 0)))
        closing.join(WAIT_S)
        assert [future.result(0).queue_offset for future in (first, *futures)] == [0, 1, 2, 3]


def test_hooks_see_each_message_as_if_it_went_alone(broker: Batching) -> None:
    """Message trace is made of them: a record a message, with its id, tag and keys."""
    seen: list[SendMessageContext] = []

    class Hook:
        name = "hook"

        def send_message_before(self, context: SendMessageContext) -> None:
            pass

        def send_message_after(self, context: SendMessageContext) -> None:
            seen.append(context)

    messages = [Message("T", b"%d" % n, tags=f"t{n}") for n in range(3)]
    with producer_of(broker) as producer:
        producer.register_send_message_hook(Hook())
        ends = all_at_once(broker, producer, messages)
    assert [context.message for context in seen[1:]] == messages
    assert [context.send_result for context in seen[1:]] == ends
    assert len(broker.batches()) == 1


def test_a_hook_that_forbids_one_message_forbids_that_one(broker: Batching) -> None:
    class Forbids:
        name = "forbids"

        def check_forbidden(self, context: Any) -> None:
            if context.message.body == b"1":
                raise ValueError("not this one")

    with producer_of(broker) as producer:
        producer.register_check_forbidden_hook(Forbids())
        ends = all_at_once(broker, producer, [Message("T", b"%d" % n) for n in range(3)])
    assert [isinstance(end, SendResult) for end in ends] == [True, False, True]
    assert sorted(broker.stored) == [b"0", b"2", b"first"]


def test_more_than_the_total_waits_for_room(broker: Batching) -> None:
    """Memory is bounded: the sender that finds no room waits, and is told when there is none."""
    with producer_of(broker, total_batch_max_bytes=100) as producer:
        broker.holding = True
        held = producer.send_async(Message("T", b"x" * 120))
        asked = broker.wait_for(ONE)[0]
        with pytest.raises(SendError, match="none was answered within 50 ms") as caught:
            producer.send_async(Message("T", b"y"), timeout_ms=50)
        assert caught.value.outcome is SendOutcome.NOT_SENT
        broker.holding = False
        broker.reply(asked, answer(0, SendMessageResponseHeader("ID0", 0, 0)))
        assert held.result(WAIT_S)
        assert producer.send(Message("T", b"y"))


def test_a_thread_that_keeps_putting_lets_the_loop_send(broker: Batching) -> None:
    """What may leave does not wait for the thread's next pause: it gives way, and goes on."""
    with producer_of(broker) as producer:
        looked: list[int] = []
        gatherer = producer._machine.outbox._gatherer
        assert gatherer is not None
        gatherer._give_way = lambda: looked.append(1)  # type: ignore[method-assign]
        gatherer._woken_for = gatherer._looks  # the loop is to look, and does not get to it
        futures = [producer.send_async(Message("T", b"x")) for _ in range(200)]
        assert len(looked) >= 3
        gatherer._look_soon()
        assert all(future.result(WAIT_S) for future in futures)


def test_asyncio_senders_share_batches_too(broker: Batching) -> None:
    """And shutdown waits for what was gathered."""

    async def run() -> list[SendResult | BaseException]:
        producer = aio.Producer("pg", namesrv_addr=broker.address, auto_batch=True)
        await producer.start()
        await producer.fetch_publish_message_queues("T")
        sends = [
            asyncio.create_task(producer.send(Message("T", b"%d" % n), message_queue=QUEUE))
            for n in range(6)
        ]
        await asyncio.sleep(0)
        await producer.shutdown()
        return await asyncio.gather(*sends, return_exceptions=True)

    broker.refused = b"3"
    ends = asyncio.run(run())
    assert [isinstance(end, SendResult) for end in ends] == [True] * 3 + [False] + [True] * 2
    assert [e.queue_offset for e in ends if isinstance(e, SendResult)] == [0, 1, 2, 3, 4]
    assert broker.stored == [b"0", b"1", b"2", b"4", b"5"]
    assert len(broker.batches()) == 1


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        (
            {"batch_max_delay_ms": 0},
            "batch_max_delay_ms must be a whole number from 1 to 30000, not 0",
        ),
        ({"batch_max_delay_ms": 30_001}, "from 1 to 30000, not 30001"),
        ({"batch_max_bytes": 1 << 22}, "batch_max_bytes must be a whole number from 1 to 2097152"),
        ({"total_batch_max_bytes": 0}, "total_batch_max_bytes must be a whole number from 1 on"),
        ({"batch_max_delay_ms": 3_000}, r"must be less than send_msg_timeout_ms \(3000\)"),
        ({"auto_batch": "yes"}, "auto_batch"),
    ],
)
def test_bounds_that_cannot_hold_are_refused(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigurationError, match=text):
        Producer("pg", namesrv_addr="127.0.0.1:1", **{"auto_batch": True, **settings})
