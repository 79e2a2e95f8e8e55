"""The requests of one ``send_many``: what goes when, and what becomes of the rest on a failure."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest

from rocketstream import limits
from rocketstream.client.config import check_columns
from rocketstream.client.producer.async_sender import AsyncSender
from rocketstream.client.producer.many import Encoding, Many, ManySends, SendManyResult, given_of
from rocketstream.client.producer.message import MessagePreparer
from rocketstream.client.producer.settings import ProducerSettings
from rocketstream.errors import (
    MessageInvalidError,
    NotSupportedError,
    SendError,
    SendManyError,
    SendOutcome,
)
from rocketstream.model import MessageQueue, SendResult, SendStatus
from rocketstream.protocol.record import decode_batch
from rocketstream.testing.clock import ManualClock

QUEUES = tuple(MessageQueue("T", "b", number) for number in range(3))


class Scripted:
    """A sender whose requests are answered by the test."""

    def __init__(self) -> None:
        settings = ProducerSettings("pg", retry_times_when_send_failed=2)
        self.policy = SimpleNamespace(settings=settings)
        self.observer = None
        self.asked: list[tuple[Any, MessageQueue | None, Any]] = []
        self.total = self.routes = 0
        self._tasks: list[asyncio.Task[None]] = []
        self.instance = SimpleNamespace(background=self)

    def send(self, prepared: Any, target: Any, _timeout_ms: float, done: Any) -> None:
        self.asked.append((prepared, target.queue, done))
        self.total += 1

    def run_soon(self, work: Coroutine[Any, Any, None], _dropped: Any) -> None:
        self._tasks.append(asyncio.get_running_loop().create_task(work))

    async def route(self, _topic: str) -> None:
        self.routes += 1

    def answer(self, at: int = 0, error: SendError | None = None) -> int:
        """End one of the requests under way; return how many messages it had."""
        prepared, queue, done = self.asked.pop(at)
        if error is not None:
            done(None, error)
        else:
            where = queue or QUEUES[0]
            done(SendResult(SendStatus.SEND_OK, "", "", where, 100), None)
        return len(decode_batch(prepared.body)) if prepared.code == 320 else 1


async def passes() -> None:
    """Let tasks run until all of them wait."""
    for _ in range(20):
        await asyncio.sleep(0)


def begin(sender: Scripted, bodies: Any, **more: Any) -> tuple[Many, ManySends]:
    given = given_of(bodies, **more)
    settings, clock = sender.policy.settings, ManualClock()

    async def timers(_topic: str, _queue: MessageQueue | None) -> None:
        """Brokers hold messages back."""

    preparer = MessagePreparer(settings, clock)
    sends = ManySends(cast(AsyncSender, sender), preparer, "T", 1_000, clock, timers)
    encoding = Encoding("T", QUEUES, given.columns, settings, clock)
    return Many("T", given, encoding, sends), sends


async def run(sending: Many) -> SendManyResult:
    for step in sending.steps():
        await step
    return sending.result()


def failure(outcome: SendOutcome, *, retriable: bool = False) -> SendError:
    return SendError("it failed", outcome, topic="T").with_retriable(retriable)


def test_requests_have_bounds_and_so_have_those_under_way() -> None:
    async def case() -> None:
        sender = Scripted()
        sending, _ = begin(sender, [b"x"] * 20_000)
        task = asyncio.create_task(run(sending))
        await passes()
        assert len(sender.asked) == limits.SEND_MANY_REQUESTS
        sizes = []
        while sender.asked:
            assert len(sender.asked) <= limits.SEND_MANY_REQUESTS
            sizes.append(sender.answer())
            await passes()
        assert max(sizes) == limits.SEND_MANY_MESSAGES
        assert sum(sizes) == 20_000
        result = await task
        assert result.stored_count == len(result) == 20_000
        rows = sorted(row for part in result.stored for row in part.rows)
        assert rows == list(range(20_000))

    asyncio.run(case())


def test_great_messages_fill_a_request_by_their_bytes() -> None:
    async def case() -> None:
        sender = Scripted()
        sending, _ = begin(sender, [b"x" * 100_000] * 5 + [b"y" * 3_000_000])
        task = asyncio.create_task(run(sending))
        await passes()
        sizes = [sender.answer() for _ in range(len(sender.asked))]
        await task
        assert sizes == [2, 2, 1, 1]

    asyncio.run(case())


def test_when_its_caller_has_left_it_makes_and_sends_no_request_more() -> None:
    """To encode what nobody will send would hold up the loop."""

    async def case() -> None:
        sender, landed = Scripted(), list[int]()
        sending, sends = begin(sender, [b"x"] * 200_000)
        task = asyncio.create_task(run(sending))
        await passes()
        made, waiting = len(sender.asked), len(sends._waiting)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert len(sends._waiting) == waiting
        sending.leave(lambda: landed.append(len(sends._flying)))
        while sender.asked:
            assert landed == []
            sender.answer()
            await passes()
        assert landed == [0]
        assert sender.total == made
        sending.leave(lambda: landed.append(-1))
        assert landed == [0, -1]

    asyncio.run(case())


def test_a_queue_of_a_key_has_one_request_under_way() -> None:
    async def case() -> None:
        sender = Scripted()
        keys = ["a", "b", "c"] * 1_000  # Java's hashes 97, 98 and 99: all three queues
        sending, _ = begin(sender, [b"%d" % n for n in range(3_000)], shardingKey=keys)
        task = asyncio.create_task(run(sending))
        numbers: dict[Any, list[int]] = {}
        await passes()
        while sender.asked:
            queues = [queue for _, queue, _ in sender.asked]
            assert len(queues) == len(set(queues)) <= 3
            prepared, queue, _ = sender.asked[-1]
            found = [int(bytes(item.body)) for item in decode_batch(prepared.body)]
            numbers.setdefault(queue, []).extend(found)
            sender.answer(-1)
            await passes()
        await task
        assert len(numbers) == 3
        assert all(each == sorted(each) for each in numbers.values())

    asyncio.run(case())


def test_after_a_failure_nothing_more_is_sent_and_the_rest_can_be_sent_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A table is there as a whole, so all of it is accounted for, in whatever chunks it is."""
    monkeypatch.setattr(limits, "SEND_MANY_WAITING_MAX", 2)

    async def case() -> None:
        sender = Scripted()
        bodies = [b"%d" % number for number in range(10_000)]
        parts = pa.chunked_array([bodies[:6_000], bodies[6_000:8_000], bodies[8_000:]])
        sending, _ = begin(sender, pa.table({"body": parts}), tags="A")
        task = asyncio.create_task(run(sending))
        await passes()
        sender.answer()
        sender.answer(error=failure(SendOutcome.UNKNOWN))
        await passes()
        under_way = len(sender.asked)
        while sender.asked:
            sender.answer()
        await passes()
        assert sender.total == 2 + under_way
        with pytest.raises(SendManyError, match="messages for topic 'T' are not known") as caught:
            await task
        result = caught.value.result
        assert str(caught.value).startswith(f"{10_000 - result.stored_count} of 10000 messages ")
        assert caught.value.outcome is SendOutcome.UNKNOWN
        assert len(result) == 10_000
        assert result.stored_count == 500 * (1 + under_way)
        rest = result.rest
        assert rest.num_rows == 10_000 - result.stored_count
        again = {int(body) for body in rest.column("body").to_pylist()}
        stored = {row for part in result.stored for row in part.rows}
        assert again == set(range(10_000)) - stored
        assert rest.column("body").to_pylist() == [bodies[row] for row in sorted(again)]
        outcomes = result.table().column("outcome").to_pylist()
        assert outcomes.count("UNKNOWN") == 500
        assert outcomes.count("NOT_SENT") == rest.num_rows - 500
        assert outcomes.count(None) == result.stored_count

    asyncio.run(case())


@pytest.mark.parametrize("size", [1_000, 20_000])
def test_a_reader_is_read_no_further_after_a_failure(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that was read is accounted for, also where it is looked at in parts."""
    monkeypatch.setattr(limits, "SEND_MANY_WAITING_MAX", 2)

    async def case() -> None:
        read = 0

        def batches() -> Any:
            nonlocal read
            for _ in range(100):
                read += 1
                yield pa.record_batch({"body": [b"x"] * size})

        reader = pa.RecordBatchReader.from_batches(pa.schema([("body", pa.binary())]), batches())
        sender = Scripted()
        sending, _ = begin(sender, reader)
        task = asyncio.create_task(run(sending))
        await passes()
        while sender.asked:
            sender.answer(error=failure(SendOutcome.REJECTED))
            await passes()
        with pytest.raises(SendManyError) as caught:
            await task
        result = caught.value.result
        assert read < 100
        assert len(result) == result.rest.num_rows == read * size
        outcomes = result.table().column("outcome").to_pylist()
        assert len(outcomes) == len(result)
        assert {*outcomes} == {"REJECTED", "NOT_SENT"}
        assert outcomes[-1] == "NOT_SENT"

    asyncio.run(case())


def test_messages_of_a_key_are_tried_again_before_those_behind_them() -> None:
    """Covers C-469: a send to a queue of its own has one try, so the tries are made here."""

    async def case() -> None:
        sender = Scripted()
        sending, _ = begin(sender, [b"x"] * 600, shardingKey=["a"] * 600)
        task = asyncio.create_task(run(sending))
        await passes()
        for _ in range(2):
            assert len(sender.asked[0][0].body) > 0
            sender.answer(error=failure(SendOutcome.UNKNOWN, retriable=True))
            await passes()
            assert len(sender.asked) == 1
        assert sender.routes == 2
        assert sender.answer() == 500
        await passes()
        for _ in range(3):
            sender.answer(error=failure(SendOutcome.UNKNOWN, retriable=True))
            await passes()
        assert not sender.asked
        with pytest.raises(SendManyError, match="100 of 600 messages"):
            await task

    asyncio.run(case())


def test_a_try_that_may_have_stored_messages_of_a_key_counts_whatever_the_last_one_says() -> None:
    """Said to be NOT_SENT, they would be sent again as messages that cannot be there twice."""

    async def case() -> None:
        sender = Scripted()
        sending, _ = begin(sender, [b"x"] * 3, shardingKey=["a"] * 3)
        task = asyncio.create_task(run(sending))
        outcomes = (SendOutcome.NOT_SENT, SendOutcome.UNKNOWN, SendOutcome.NOT_SENT)
        for outcome in outcomes:
            await passes()
            sender.answer(error=failure(outcome, retriable=True))
        with pytest.raises(SendManyError) as caught:
            await task
        assert caught.value.outcome is SendOutcome.UNKNOWN
        assert {part.error.outcome for part in caught.value.result.failed} == {SendOutcome.UNKNOWN}

    asyncio.run(case())


def test_a_bad_row_ends_it_once_those_before_are_answered() -> None:
    async def case() -> None:
        sender = Scripted()
        sending, _ = begin(sender, [b"x"] * 5_000 + [b""])
        task = asyncio.create_task(run(sending))
        await passes()
        while sender.asked:
            assert not task.done()
            sender.answer()
            await passes()
        with pytest.raises(MessageInvalidError, match="row 5000 ") as caught:
            await task
        assert caught.value.parameters["sent"].stored_count == 4_096

    asyncio.run(case())


def test_delayed_messages_go_alone() -> None:
    async def case() -> None:
        sender = Scripted()
        table = pa.table({"body": ["a", "b", "c"], "delayLevel": [0, 3, 3]})
        sending, _ = begin(sender, table)
        task = asyncio.create_task(run(sending))
        await passes()
        assert {prepared.code for prepared, _, _ in sender.asked} == {310}
        properties = [prepared.properties for prepared, _, _ in sender.asked]
        while sender.asked:
            sender.answer()
        await task
        assert ["DELAY\x013" in text for text in properties] == [False, True, True]

    asyncio.run(case())


def test_no_messages_are_sent_in_no_requests() -> None:
    sender = Scripted()
    sending, _ = begin(sender, [])
    result = asyncio.run(run(sending))
    assert (len(result), result.stored_count, sender.total) == (0, 0, 0)
    assert result.rest.num_rows == result.table().num_rows == 0


def test_delay_levels_beyond_those_of_brokers_are_told_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Covers C-403."""

    async def case() -> None:
        sender = Scripted()
        levels = [19, *([0] * 5_000), 99]
        sending, _ = begin(sender, pa.table({"body": ["x"] * 5_002, "delayLevel": levels}))
        task = asyncio.create_task(run(sending))
        await passes()
        while sender.asked:
            sender.answer()
            await passes()
        await task

    asyncio.run(case())
    (told,) = caplog.records
    assert told.getMessage().startswith("column delayLevel: 19 is beyond the 18 levels ")


def test_rows_of_a_key_that_failed_are_named_by_their_numbers() -> None:
    async def case() -> None:
        sender = Scripted()
        keys = ["a", "b"] * 3_000
        bodies = [b"%d" % number for number in range(6_000)]
        sending, _ = begin(sender, bodies, shardingKey=keys)
        task = asyncio.create_task(run(sending))
        await passes()
        while len(sender.asked) == 2 and sender.total < 12:
            sender.answer(0)
            await passes()
        while sender.asked:
            sender.answer(error=failure(SendOutcome.REJECTED))
            await passes()
        with pytest.raises(
            SendManyError, match=r"are not known to be stored: it failed\. "
        ) as caught:
            await task
        result = caught.value.result
        failed = sorted(row for part in result.failed for row in part.rows)
        stored = sorted(row for part in result.stored for row in part.rows)
        assert sorted(failed + stored) == list(range(6_000))
        assert {*result.rest.column("body").to_pylist()} == {bodies[row] for row in failed}
        offsets = result.table().column("queueOffset").to_pylist()
        assert [row for row, offset in enumerate(offsets) if offset is None] == failed

    asyncio.run(case())


def test_without_pyarrow_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    check_columns.cache_clear()
    with pytest.raises(NotSupportedError, match=r"pip install 'rocketstream\[columns\]'"):
        given_of([b"x"])


def test_a_failed_message_that_got_its_id_here_keeps_it() -> None:
    async def case() -> None:
        sender = Scripted()
        table = pa.table({"body": ["a", "b"], "msgId": pa.array([None, "mine"])})
        sending, _ = begin(sender, table)
        task = asyncio.create_task(run(sending))
        await passes()
        sent = decode_batch(sender.asked[0][0].body)
        sender.answer(error=failure(SendOutcome.UNKNOWN))
        with pytest.raises(SendManyError) as caught:
            await task
        ids = caught.value.result.rest.column("msgId").to_pylist()
        assert ids[1] == "mine"
        assert f"UNIQ_KEY\x01{ids[0]}".encode() in bytes(sent[0].properties)

    asyncio.run(case())


def test_an_error_of_the_reader_comes_as_it_is_once_those_before_are_stored() -> None:
    async def case() -> None:
        def batches() -> Any:
            yield pa.record_batch({"body": [b"x"] * 10})
            raise LookupError("no more of the file")

        reader = pa.RecordBatchReader.from_batches(pa.schema([("body", pa.binary())]), batches())
        sender = Scripted()
        sending, _ = begin(sender, reader)
        task = asyncio.create_task(run(sending))
        await passes()
        assert not task.done()
        sender.answer()
        with pytest.raises(LookupError, match="no more of the file") as caught:
            await task
        assert caught.value.__notes__ == [
            "of the messages read before: SendManyResult(count=10, stored=10, failed=0)"
        ]

    asyncio.run(case())


def test_timed_messages_old_brokers_would_deliver_at_once_are_not_sent() -> None:
    async def case() -> None:
        sender = Scripted()
        moment = pa.array([1_700_000_000_000_000], pa.timestamp("us", "UTC"))
        sending, sends = begin(sender, pa.table({"body": ["a"], "deliverTime": moment}))

        async def refuse(_topic: str, _queue: MessageQueue | None) -> None:
            raise MessageInvalidError("broker b is older than 5.0")

        sends._require_timers = refuse
        with pytest.raises(MessageInvalidError, match=r"older than 5\.0") as caught:
            await run(sending)
        assert (sender.total, caught.value.parameters["sent"].stored_count) == (0, 0)

    asyncio.run(case())


def test_a_send_to_any_queue_has_its_tries_by_itself() -> None:
    async def case() -> None:
        sender = Scripted()
        sending, _ = begin(sender, [b"x"])
        task = asyncio.create_task(run(sending))
        await passes()
        sender.answer(error=failure(SendOutcome.NOT_SENT, retriable=True))
        await passes()
        assert (sender.total, sender.routes) == (1, 0)
        with pytest.raises(SendManyError):
            await task

    asyncio.run(case())


def test_what_is_on_its_way_is_waited_for_where_timed_messages_are_refused() -> None:
    """Only those that are timed need brokers that can hold them back."""

    async def case() -> None:
        sender = Scripted()
        moments = [None] * 4_096 + [1_700_000_000_000_000]
        times = pa.array(moments, pa.timestamp("us", "UTC"))
        sending, sends = begin(sender, pa.table({"body": ["a"] * 4_097, "deliverTime": times}))

        async def refuse(_topic: str, _queue: MessageQueue | None) -> None:
            raise MessageInvalidError("broker b is older than 5.0")

        sends._require_timers = refuse
        task = asyncio.create_task(run(sending))
        await passes()
        while sender.asked:
            assert not task.done()
            sender.answer()
            await passes()
        with pytest.raises(MessageInvalidError) as caught:
            await task
        assert caught.value.parameters["sent"].stored_count == 4_096

    asyncio.run(case())
