"""Record batches of a lite pull consumer whose broker lies, is slow, or sends what is damaged."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import zlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from rocketstream import ClientConfig, ConsumeFromWhere, aio
from rocketstream.client.consumer.lite.arrow import ArrowPolls
from rocketstream.client.consumer.lite.batches import Batches, Doubtful
from rocketstream.client.consumer.lite.queues import LiteCache, LiteQueue
from rocketstream.client.consumer.pull_answer import Records, records_of
from rocketstream.client.consumer.settings import LitePullConsumerSettings
from rocketstream.columns import decode
from rocketstream.columns.table import named
from rocketstream.errors import RemoteProtocolError
from rocketstream.model import MessageQueue
from rocketstream.protocol.codes import RequestCode
from rocketstream.protocol.command import RemotingCommand
from rocketstream.protocol.headers import GetMinOffsetResponseHeader
from rocketstream.protocol.message_ext import decode_messages
from rocketstream.protocol.record import RECORD_BYTES_MIN
from tests.kits.client.consumers import lite
from tests.kits.client.fake_broker import GROUP, TOPIC, FakeBroker, found
from tests.kits.client.queued import queued
from tests.kits.records import record
from tests.plugins.waiting import wait_until

PULL = RequestCode.PULL_MESSAGE
MQ = MessageQueue(TOPIC, "broker-a", 0)
OTHER = MessageQueue(TOPIC, "broker-a", 1)
WAIT_MS = 20_000


class Script:
    """Answers pulls by their offsets, each answer once and the last again and again.

    The pull a consumer begins with, before batches are asked of it, finds message 10.
    """

    def __init__(self, broker: FakeBroker, **answers: list[RemotingCommand]) -> None:
        self.left = {"at10": [found([10], max_offset=11)], **answers}
        broker.offsets[0] = 10
        broker.on[PULL] = self.answer

    def answer(self, command: RemotingCommand) -> RemotingCommand | None:
        answers = self.left.get(f"at{(command.ext_fields or {})['queueOffset']}", [])
        if not answers:
            return None  # held
        return answers.pop(0) if len(answers) > 1 else answers[0]


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    with FakeBroker() as running:
        yield running


def poll_rows(consumer: Any, count: int, **more: Any) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    while len(rows) < count:
        batch = consumer.poll_arrow(timeout_ms=WAIT_MS, **more)
        assert batch.num_rows, f"{rows} came"
        rows += batch.to_pylist()
    return rows


def offsets(rows: list[dict[str, Any]]) -> list[int | None]:
    return [row["queueOffset"] for row in rows]


def in_columns(broker: FakeBroker, **settings: Any) -> Any:
    """A started consumer that is asked for batches before its first pull is answered."""
    script, broker.on[PULL] = broker.on[PULL], lambda _: None
    consumer = lite(broker, **settings)
    assert consumer.poll_arrow(timeout_ms=0).num_rows == 0
    broker.wait_pull(10)
    broker.on[PULL] = script
    for asked in broker.asked(PULL):
        broker.reply(asked, found([10], max_offset=11))
    return consumer


def long(numbers: list[int]) -> RemotingCommand:
    """An answer with messages so long that there might be more of them."""
    return found(numbers, properties=f"pad\x01{'x' * 200}\x02UNIQ_KEY\x01U")


def test_offsets_left_out_are_asked_for_again(broker: FakeBroker) -> None:
    Script(broker, at11=[long([11, 13]), found([11, 12, 13])])
    with in_columns(broker) as consumer:
        rows = poll_rows(consumer, 4)
    assert offsets(rows) == [10, 11, 12, 13]


def test_offsets_every_answer_leaves_out_are_told_as_lost(
    broker: FakeBroker, caplog: pytest.LogCaptureFixture
) -> None:
    """Covers C-512: as messages are, and what follows is kept undecoded again."""
    Script(
        broker, at11=[long([11, 13])], at12=[found([13], next_offset=14)], at14=[found([14, 15])]
    )
    with in_columns(broker) as consumer:
        rows = poll_rows(consumer, 5)
    assert offsets(rows) == [10, 11, 13, 14, 15]
    assert "lost offsets 12 to 12" in caplog.text


def test_an_end_told_too_far_is_not_believed(broker: FakeBroker) -> None:
    Script(broker, at11=[found([11, 12], next_offset=500, max_offset=13)], at13=[found([13])])
    with in_columns(broker) as consumer:
        rows = poll_rows(consumer, 4)
    assert offsets(rows) == [10, 11, 12, 13]


def damaged(*numbers: int, bad: int) -> RemotingCommand:
    """An answer in which the body of one message has changed."""
    whole = found(list(numbers))
    text = str(bad).encode()
    whole.body = bytes(whole.body).replace(
        text + b"\x01" + TOPIC.encode(), b"##\x01" + TOPIC.encode()
    )
    return whole


def test_a_damaged_body_is_a_row_that_says_so(broker: FakeBroker) -> None:
    Script(broker, at11=[damaged(11, 12, 13, bad=12)])
    with in_columns(broker) as consumer:
        rows = poll_rows(consumer, 4)
    assert offsets(rows) == [10, 11, 12, 13]
    assert [row["error"] is None for row in rows] == [True, True, False, True]
    assert "CRC" in rows[2]["error"]
    assert b"##" in rows[2]["body"]


def test_unless_bodies_are_not_checked(broker: FakeBroker) -> None:
    Script(broker, at11=[damaged(11, 12, bad=12)])
    with in_columns(broker, check_crc=False) as consumer:
        rows = poll_rows(consumer, 3)
    assert [row["body"] for row in rows] == [b"10", b"11", b"##"]


def test_without_its_column_what_cannot_be_decoded_is_an_error_and_comes_again(
    broker: FakeBroker,
) -> None:
    wanted = ["queueOffset", "body"]
    Script(broker, at11=[damaged(11, 12, bad=12), damaged(11, 12, bad=12), found([11, 12])])
    with in_columns(broker) as consumer:
        assert offsets(poll_rows(consumer, 1, columns=wanted, max_rows=1)) == [10]
        for _ in range(2):
            with pytest.raises(RemoteProtocolError, match=r"offset 12 of .*CRC"):
                consumer.poll_arrow(timeout_ms=WAIT_MS, columns=wanted)
        assert offsets(poll_rows(consumer, 2, columns=wanted)) == [11, 12]


def test_messages_of_an_answer_that_was_looked_into_are_rows_too(broker: FakeBroker) -> None:
    """Covers C-223: of an answer with a gap the messages are decoded one by one."""
    Script(broker, at11=[found([11, 13])], at12=[found([12, 13])])
    with in_columns(broker) as consumer:
        rows = poll_rows(consumer, 4)
    assert offsets(rows) == [10, 11, 12, 13]
    assert {row["error"] for row in rows} == {None}


def inflated(numbers: list[int]) -> RemotingCommand:
    """An answer with compressed messages."""
    answer = found(numbers)
    answer.body = b"".join(
        record(n, zlib.compress(b"%d" % n), b"", TOPIC.encode(), sys_flag=1, queue_id=0)
        for n in numbers
    )
    return answer


@pytest.mark.parametrize("sought", [False, True])
def test_an_answer_too_large_for_one_batch_comes_in_several(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch, sought: bool
) -> None:
    """Once each; and what is left of it not at all, where the caller goes on elsewhere."""
    monkeypatch.setattr(decode, "BATCH_BODY_BYTES_MAX", 1)
    least = RemotingCommand.response(0, None, GetMinOffsetResponseHeader(0))
    broker.on[RequestCode.GET_MIN_OFFSET] = lambda _: least
    Script(broker, at11=[inflated([11, 12, 13])], at20=[found([20])])
    with in_columns(broker) as consumer:
        assert offsets(poll_rows(consumer, 2)) == [10, 11]
        if sought:
            consumer.seek(MQ, 20)
        assert offsets(poll_rows(consumer, 1)) == [20 if sought else 12]
        assert sought or offsets(poll_rows(consumer, 1)) == [13]
    assert len(broker.wait_for(PULL, 1, lambda asked: asked.ext["queueOffset"] == "11")) == 1


def test_a_body_that_cannot_be_inflated_is_told_to_whoever_wants_bodies() -> None:
    """Also of an answer that was looked into: as an error where no column is there for it."""
    (broken,) = decode_messages(
        record(5, b"no zlib", b"", TOPIC.encode(), sys_flag=1, queue_id=0), "broker-a"
    )

    def rows(*names: str) -> list[dict[str, Any]]:
        cache, (queue,) = cache_of(MQ)
        cache.arrived(queue, 0, [broken], 6, 10)
        batch = Batches(cache.lend(9, 1 << 20), named(names), check_crc=True).read()
        assert batch is not None
        return list(batch.to_pylist())

    with pytest.raises(RemoteProtocolError, match="offset 5 of "):
        rows("queueOffset", "body")
    (told,) = rows("queueOffset", "body", "error")
    assert (told["queueOffset"], told["error"] is None) == (5, False)
    assert rows("queueOffset", "error") == [{"queueOffset": 5, "error": None}]


# --- far behind -----------------------------------------------------------------------------------


def give_all(broker: FakeBroker, end: int) -> None:
    """Answer pulls with 32 messages at a time, as Apache's brokers do; hold those at the end."""

    def answer(command: RemotingCommand) -> RemotingCommand | None:
        begin = int((command.ext_fields or {})["queueOffset"])
        numbers = range(begin, min(begin + 32, end))
        return found(numbers, max_offset=end) if numbers else None

    broker.offsets[0] = 10
    broker.on[PULL] = answer


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Polls wait for more rows as long as it takes."""
    monkeypatch.setattr("rocketstream.client.consumer.lite.consumer.GATHER_S", 60)
    monkeypatch.setattr("rocketstream.client.consumer.lite.aio_consumer.GATHER_S", 60)


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize(("most", "rows"), [(10_000, 1_000), (100, 96)])
def test_a_poll_far_behind_takes_what_one_great_pull_would_have_brought(
    broker: FakeBroker, most: int, rows: int
) -> None:
    """Of 32 rows each costs ten times as much as of 1,000."""
    give_all(broker, 10_000)
    with in_columns(broker, pull_threshold_for_queue=5_000) as consumer:
        assert consumer.poll_arrow(most, timeout_ms=WAIT_MS).num_rows
        assert consumer.poll_arrow(most, timeout_ms=WAIT_MS).num_rows >= rows


@pytest.mark.usefixtures("patient")
def test_a_poll_far_behind_waits_for_no_more_than_may_be_cached(broker: FakeBroker) -> None:
    give_all(broker, 10_000)
    with in_columns(broker, pull_threshold_for_queue=40, consume_max_span=50) as consumer:
        assert consumer.poll_arrow(timeout_ms=WAIT_MS).num_rows
        assert consumer.poll_arrow(timeout_ms=WAIT_MS).num_rows >= 32


@pytest.mark.usefixtures("patient")
def test_a_poll_that_has_caught_up_waits_for_nothing(broker: FakeBroker) -> None:
    give_all(broker, 14)
    with in_columns(broker) as consumer:
        assert offsets(poll_rows(consumer, 4)) == [10, 11, 12, 13]


def test_pulls_before_one_that_cannot_be_decoded_are_handed_out(broker: FakeBroker) -> None:
    """Though all were there at once."""
    broken = damaged(13, 14, bad=14)
    Script(
        broker, at11=[found([11, 12])], at13=[broken], at15=[found(range(15, 300), max_offset=300)]
    )
    rows: list[dict[str, Any]] = []
    with in_columns(broker) as consumer:
        broker.wait_pull(300)
        while len(rows) < 3:
            with contextlib.suppress(RemoteProtocolError):
                rows += poll_rows(consumer, 1, columns=["queueOffset", "body"])
    assert offsets(rows) == [10, 11, 12]


@pytest.mark.usefixtures("patient")
def test_a_poll_without_time_takes_what_is_there(broker: FakeBroker) -> None:
    Script(broker, at11=[found(range(11, 43), max_offset=9_000)])
    with in_columns(broker) as consumer:
        broker.wait_pull(43)
        rows: list[dict[str, Any]] = []
        while len(rows) < 33:
            rows += consumer.poll_arrow(timeout_ms=0).to_pylist()
    assert offsets(rows) == list(range(10, 43))


@pytest.mark.usefixtures("patient")
def test_a_shutdown_ends_a_poll_that_waits_for_more_rows(broker: FakeBroker) -> None:
    Script(broker, at11=[found(range(11, 43), max_offset=9_000)])
    consumer = in_columns(broker)
    polled = threading.Thread(target=lambda: consumer.poll_arrow(timeout_ms=WAIT_MS))
    with consumer:
        broker.wait_pull(43)
        polled.start()
        wait_until(lambda: consumer._waiting or not polled.is_alive(), "poll that waits")
    polled.join(20)
    assert not polled.is_alive()


# --- asyncio --------------------------------------------------------------------------------------


@pytest.mark.usefixtures("patient")
def test_a_task_far_behind_takes_what_one_great_pull_would_have_brought(
    broker: FakeBroker,
) -> None:
    async def run() -> int:
        async with aio.LitePullConsumer(
            GROUP, namesrv_addr=broker.address, subscription={TOPIC: "*"},
            consume_from_where=ConsumeFromWhere.FIRST_OFFSET, pull_threshold_for_queue=5_000,
        ) as consumer:  # fmt: skip
            rows = 0
            for _ in range(3):
                rows = (await consumer.poll_arrow(timeout_ms=WAIT_MS)).num_rows
            return rows

    give_all(broker, 100_000)
    assert asyncio.run(run()) >= 1_000


def test_a_poll_that_is_cancelled_while_it_decodes_loses_nothing(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, go_on = threading.Event(), threading.Event()
    read = Batches.read

    def slow(self: Batches) -> Any:
        began.set()
        assert go_on.wait(20)
        return read(self)

    async def run() -> list[int | None]:
        config = ClientConfig(namesrv_addr=broker.address)
        async with aio.LitePullConsumer(
            GROUP, config=config, subscription={TOPIC: "*"},
            consume_from_where=ConsumeFromWhere.FIRST_OFFSET,
        ) as consumer:  # fmt: skip
            with monkeypatch.context() as patched:
                patched.setattr(Batches, "read", slow)
                poll = asyncio.create_task(consumer.poll_arrow(timeout_ms=WAIT_MS))
                await asyncio.to_thread(began.wait, 20)
                poll.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await poll
                go_on.set()
            batch = await consumer.poll_arrow(timeout_ms=WAIT_MS)
            return offsets(batch.to_pylist())

    Script(broker)
    assert asyncio.run(run()) == [10]


def test_a_poll_that_is_cancelled_when_it_has_decoded_loses_nothing(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its caller gets nothing of it, though the thread that decodes has handed it out."""
    decoded = threading.Event()
    read = ArrowPolls.read

    def noted(self: ArrowPolls, batches: Batches) -> Any:
        found = read(self, batches)
        decoded.set()
        return found

    async def run() -> list[int | None]:
        async with aio.LitePullConsumer(
            GROUP, namesrv_addr=broker.address, subscription={TOPIC: "*"},
            consume_from_where=ConsumeFromWhere.FIRST_OFFSET,
        ) as consumer:  # fmt: skip
            await asyncio.to_thread(wait_until, lambda: consumer._machine.cache.has(1), "message")
            with monkeypatch.context() as patched:
                patched.setattr(ArrowPolls, "read", noted)
                poll = asyncio.create_task(consumer.poll_arrow(timeout_ms=WAIT_MS))
                await asyncio.sleep(0)
                decoded.wait(20)  # the loop stands still: it has not heard of it yet
                poll.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await poll
            batch = await consumer.poll_arrow(timeout_ms=2_000)
            return offsets(batch.to_pylist())

    Script(broker)
    assert asyncio.run(run()) == [10]


def test_the_thread_of_a_cancelled_poll_takes_nothing_of_the_next(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may begin when the next poll has taken its messages: they were committed and lost."""
    begun, go_on, ended = threading.Event(), threading.Event(), threading.Event()
    read = ArrowPolls.read
    reads: list[Batches] = []

    def late(self: ArrowPolls, *given: Any) -> Any:
        reads.append(given[0])
        if len(reads) == 1:
            begun.set()
            go_on.wait(20)
            found = read(self, *given)
            ended.set()
            return found
        go_on.set()
        ended.wait(20)
        return read(self, *given)

    async def run() -> list[int | None]:
        async with aio.LitePullConsumer(
            GROUP, namesrv_addr=broker.address, subscription={TOPIC: "*"},
            consume_from_where=ConsumeFromWhere.FIRST_OFFSET,
        ) as consumer:  # fmt: skip
            await asyncio.to_thread(wait_until, lambda: consumer._machine.cache.has(1), "message")
            monkeypatch.setattr(ArrowPolls, "read", late)
            poll = asyncio.create_task(consumer.poll_arrow(timeout_ms=WAIT_MS))
            await asyncio.to_thread(begun.wait, 20)
            poll.cancel()
            with pytest.raises(asyncio.CancelledError):
                await poll
            batch = await consumer.poll_arrow(timeout_ms=WAIT_MS)
            return offsets(batch.to_pylist())

    Script(broker)
    assert asyncio.run(run()) == [10]


@pytest.mark.parametrize("arrow", [False, True], ids=["messages", "batches"])
def test_an_iteration_goes_on_after_a_step_that_waited_in_vain(
    broker: FakeBroker, arrow: bool
) -> None:
    """As after ``asyncio.wait_for(anext(messages), 1)``: a generator would be over then."""

    async def run() -> Any:
        async with aio.LitePullConsumer(
            GROUP, namesrv_addr=broker.address, subscription={TOPIC: "*"},
            consume_from_where=ConsumeFromWhere.FIRST_OFFSET,
        ) as consumer:  # fmt: skip
            each: Any = consumer.arrow_batches() if arrow else aiter(consumer)
            await asyncio.to_thread(broker.wait_pull, 10)
            step = asyncio.ensure_future(anext(each))
            await asyncio.sleep(0)
            step.cancel()
            with pytest.raises(asyncio.CancelledError):
                await step
            broker.reply(broker.wait_pull(10), found([10], max_offset=11))
            async with asyncio.timeout(WAIT_MS / 1000):
                got = await anext(each)
            async with contextlib.aclosing(each):  # as a generator may be
                await consumer.shutdown()
            with pytest.raises(StopAsyncIteration):
                await anext(each)
            return got.num_rows if arrow else got.queue_offset

    broker.offsets[0] = 10
    assert asyncio.run(run()) == (1 if arrow else 10)


def test_an_iteration_that_is_cut_short_loses_no_message(broker: FakeBroker) -> None:
    """As ``asyncio.timeout`` may do at any moment: what nobody got counts as consumed otherwise."""

    async def run() -> int:
        async with aio.LitePullConsumer(
            GROUP, namesrv_addr=broker.address, subscription={TOPIC: "*"},
            consume_from_where=ConsumeFromWhere.FIRST_OFFSET,
        ) as consumer:  # fmt: skip
            cache = consumer._machine.cache
            await asyncio.to_thread(wait_until, lambda: cache.has(1), "message")
            async with asyncio.timeout(WAIT_MS / 1000):
                first = asyncio.ensure_future(anext(aiter(consumer)))
                await asyncio.sleep(0)  # it has begun
                first.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    return (await first).queue_offset
                return (await anext(aiter(consumer))).queue_offset

    Script(broker)
    assert asyncio.run(run()) == 10


# --- the cache ------------------------------------------------------------------------------------


def cache_of(*mqs: MessageQueue) -> tuple[LiteCache, list[LiteQueue]]:
    cache = LiteCache(LitePullConsumerSettings(GROUP))
    return cache, [cache.add(mq, 5) for mq in mqs]


def stored(first: int, count: int) -> Records:
    body = b"".join(
        record(first + n, b"b", b"", topic=TOPIC.encode(), queue_id=0) for n in range(count)
    )
    return Records(body, count, first, first + count - 1)


def bring(cache: LiteCache, queue: LiteQueue, first: int, count: int) -> None:
    records = stored(first, count)
    assert cache.arrived(queue, queue.epoch, [], first + count, 10 * count, records)


def given(lent: list[Any]) -> list[int]:
    return [message.queue_offset for part in lent for message in part.found]


def spans(lent: list[Any]) -> list[tuple[int, int]]:
    return [(part.found.first, part.found.last) for part in lent]


def test_lent_records_count_once_they_are_handed_out_and_settled() -> None:
    cache, (queue, other) = cache_of(MQ, OTHER)
    bring(cache, queue, 5, 3)
    bring(cache, other, 5, 2)
    lent = cache.lend(100, 1 << 20)
    assert spans(lent) == [(5, 7), (5, 6)]
    assert (cache.cached, queue.position, cache.commits()) == (0, 5, {})
    cache.settle()
    assert cache.commits() == {}
    cache.hand_out(lent)
    assert (queue.position, other.position, cache.commits()) == (8, 7, {})
    cache.settle()
    assert cache.commits() == {MQ: 8, OTHER: 7}


def test_what_was_filtered_out_behind_lent_records_is_passed_with_them() -> None:
    """Covers C-513: and not before, or a crash would leave them out."""
    cache, (queue,) = cache_of(MQ)
    bring(cache, queue, 5, 3)
    lent = cache.lend(100, 1 << 20)
    cache.arrived(queue, queue.epoch, [], 20)
    assert (queue.position, queue.acked) == (5, 5)
    cache.hand_out(lent)
    assert (queue.position, queue.acked) == (20, 5)


def test_a_pull_that_is_too_large_is_divided_and_a_second_one_left() -> None:
    cache, (queue,) = cache_of(MQ)
    bring(cache, queue, 5, 4)
    bring(cache, queue, 9, 3)
    assert queue.ends == (5, 11)
    taken = []
    while lent := cache.lend(3, 1 << 20):
        taken.append(spans(lent))
        cache.hand_out(lent)
    assert taken == [[(5, 7)], [(8, 8)], [(9, 11)]]
    assert (queue.position, queue.cached, cache.cached) == (12, 0, 0)


def test_messages_are_lent_as_records_are() -> None:
    cache, (queue,) = cache_of(MQ)
    cache.arrived(queue, 0, [queued(5), queued(6), queued(9)], 12, 30)
    first = cache.lend(2, 1 << 20)
    assert given(first) == [5, 6]
    cache.hand_out(first)
    assert queue.position == 7
    rest = cache.lend(2, 1 << 20)
    assert given(rest) == [9]
    cache.hand_out(rest)
    assert queue.position == 12


def test_messages_and_records_are_not_lent_together() -> None:
    """Covers C-513: or a failure of the ones would have the others handed out twice."""
    cache, (queue,) = cache_of(MQ)
    cache.arrived(queue, 0, [queued(5)], 6, 10)
    bring(cache, queue, 6, 2)
    bring(cache, queue, 8, 2)
    tagged = replace(stored(10, 1), complete=False, tags=frozenset({"A"}))
    cache.arrived(queue, 0, [], 11, 10, tagged)
    assert given(cache.lend(100, 1 << 20)) == [5]
    assert spans(cache.lend(100, 1 << 20)) == [(6, 7), (8, 9)]
    assert spans(cache.lend(100, 1 << 20)) == [(10, 10)]


def test_no_further_pull_is_lent_once_there_are_bytes_enough() -> None:
    cache, (queue,) = cache_of(MQ)
    bring(cache, queue, 5, 4)
    bring(cache, queue, 9, 4)
    assert spans(cache.lend(100, 40)) == [(5, 8)]
    assert spans(cache.lend(100, 41)) == [(9, 12)]


@pytest.mark.parametrize("how", ["dropped", "sought"])
def test_a_queue_that_left_while_its_records_were_lent_is_not_committed(how: str) -> None:
    """Covers C-519: nor is what its next owner, or the seek, has begun at overwritten."""
    cache, (queue, other) = cache_of(MQ, OTHER)
    bring(cache, queue, 5, 3)
    bring(cache, other, 5, 3)
    lent = cache.lend(100, 1 << 20)
    if how == "dropped":
        cache.drop(MQ)
    else:
        cache.seek(queue, 100)
    cache.hand_out(lent)
    cache.settle()
    assert cache.commits() == ({OTHER: 8} if how == "dropped" else {MQ: 100, OTHER: 8})
    assert [part.counts for part in lent] == [False, True]


def test_what_is_taken_back_is_pulled_again_from_where_the_caller_is() -> None:
    cache, (queue, other) = cache_of(MQ, OTHER)
    bring(cache, queue, 5, 3)
    cache.hand_out(cache.lend(100, 1 << 20))
    bring(cache, queue, 8, 3)
    bring(cache, other, 5, 3)
    cache.settle()
    lent = cache.lend(100, 1 << 20)
    bring(cache, queue, 11, 3)
    cache.drop(OTHER)
    assert cache.take_back(lent) == [queue]
    assert (queue.pull_offset, queue.position, queue.acked, queue.cached) == (8, 8, 8, 0)
    assert cache.lend(100, 1 << 20) == []


def test_messages_are_wanted_again_of_queues_with_undecoded_or_lent_records_only() -> None:
    cache, (queue, other) = cache_of(MQ, OTHER)
    third = cache.add(MessageQueue(TOPIC, "broker-a", 2), 5)
    bring(cache, queue, 5, 3)
    lent = cache.lend(100, 1 << 20)
    bring(cache, other, 5, 3)
    cache.arrived(third, 0, [queued(5)], 6, 10)
    assert cache.decoded_only() == [queue, other]
    assert (queue.pull_offset, other.pull_offset, third.pull_offset) == (5, 5, 6)
    cache.hand_out(lent)
    assert queue.position == 5
    assert [m.queue_offset for m in cache.take(9)] == [5]


# --- records --------------------------------------------------------------------------------------


def body_of(*numbers: int, **fields: Any) -> bytes:
    return b"".join(
        record(number, b"b", b"", topic=TOPIC.encode(), queue_id=0, **fields) for number in numbers
    )


def test_records_with_no_offset_left_out_are_taken_by_their_first() -> None:
    body = body_of(5, 6, 7)
    assert records_of(body, MQ, 5, 8, complete=True) == Records(body, 3, 5, 7)


@pytest.mark.parametrize(
    ("body", "asked", "told"),
    [
        (b"", 5, 8),
        (body_of(6, 7), 5, 8),
        (body_of(5, 6), 5, 5),
        (body_of(5, 6), 5, 4),
        (body_of(5, 6), 5, 5 + len(body_of(5, 6)) // RECORD_BYTES_MIN + 1),
        (body_of(5, magic=1), 5, 6),
        (body_of(5, sys_flag=0x80), 5, 6),
        (body_of(5, sys_flag=0x40), 5, 6),
        (body_of(5)[:-1], 5, 6),
        (body_of(5)[:40], 5, 6),
        (body_of(5, size=90), 5, 6),
    ],
)
def test_records_that_are_not_usual_are_looked_into(body: bytes, asked: int, told: int) -> None:
    assert records_of(body, MQ, asked, told, complete=True) is None


def test_records_of_another_queue_are_looked_into() -> None:
    assert records_of(body_of(5), OTHER, 5, 6, complete=True) is None


def test_filtered_records_are_counted_and_ascend_within_what_was_asked() -> None:
    body = body_of(6, 9)
    assert records_of(body, MQ, 5, 12, complete=False) == Records(body, 2, 6, 9, complete=False)
    for wrong in (body_of(6, 6), body_of(9, 6), body_of(4, 6), body_of(6, 12), body + b"x"):
        assert records_of(wrong, MQ, 5, 12, complete=False) is None


def test_records_are_divided_where_the_next_begins() -> None:
    head, rest = Records(body_of(5, 6, 7), 3, 5, 7).split(2)
    assert (head.body, head.count, head.first, head.last) == (body_of(5, 6), 2, 5, 6)
    assert (rest.body, rest.count, rest.first, rest.last) == (body_of(7), 1, 7, 7)
    head, rest = Records(body_of(5, 8, 9), 3, 5, 9, complete=False).split(2)
    assert (head.count, head.last, rest.count, rest.first, rest.last) == (2, 8, 1, 9, 9)


def test_records_that_make_no_sense_are_not_divided() -> None:
    whole = Records(body_of(5, 6)[:-50], 2, 5, 6)
    assert whole.split(1) == (whole, Records(b"", 0, 5, 6))


def test_records_whose_offsets_lie_are_not_divided() -> None:
    whole = Records(body_of(5, 900, 6), 3, 5, 7)
    assert whole.split(2) == (whole, Records(b"", 0, 5, 7))


def test_a_damaged_pull_is_lent_as_a_whole() -> None:
    cache, (queue,) = cache_of(MQ)
    damaged_ = Records(body_of(5, 6)[:-50], 2, 5, 6)
    cache.arrived(queue, 0, [], 7, 10, damaged_)
    (part,) = cache.lend(1, 1 << 20)
    assert (part.found, part.end, cache.cached) == (damaged_, 7, 0)


def test_missing_records_name_their_queue_to_be_looked_into() -> None:
    cache, (queue,) = cache_of(MQ)
    cache.arrived(queue, 0, [], 8, 10, Records(body_of(5, 7), 3, 5, 7))
    lent = cache.lend(100, 1 << 20)
    with pytest.raises(Doubtful) as doubtful:
        Batches(lent, named(["body"]), check_crc=True).read()
    cache.look_into(doubtful.value.queue, lent)
    assert queue.look_to == 8
