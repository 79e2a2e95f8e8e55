"""A whole task against a real broker: what is consumed, sent back, given up, and when it fails."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
from pyspark.sql import Row

from rocketstream import ConsumeConcurrentlyContext
from rocketstream._util.clock import SYSTEM_CLOCK, Clock
from rocketstream.client.admin.blocking import BlockingAdminClient
from rocketstream.client.consumer.listener import listener_of
from rocketstream.columns.table import COLUMNS
from rocketstream.errors import NotSupportedError, SendError
from rocketstream.model import ConsumeConcurrentlyStatus, ConsumeOrderlyStatus, MessageQueue
from rocketstream.protocol.message_ext import MessageExt
from rocketstream.server.embedded import EmbeddedCluster
from rocketstream.spark.listener.messages import NEEDED, check_columns
from rocketstream.spark.listener.task import CALLS_AHEAD, SUBMITTED_AT_ONCE, Counts, consume_rows
from rocketstream.spark.options import consume_options
from rocketstream.spark.worker import close_pools
from rocketstream.testing.clock import ManualClock
from tests.kits.spark.broker_contents import dead_letters, pulled, waiting
from tests.kits.spark.support import numbered, send

SUCCESS = ConsumeConcurrentlyStatus.CONSUME_SUCCESS
LATER = ConsumeConcurrentlyStatus.RECONSUME_LATER
ORDERLY = ConsumeOrderlyStatus.SUCCESS
SUSPEND = ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT
LONG_S = 20.0

Run = Callable[..., Counts]


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(delay_levels="1h 2h 3h 4h") as running:
        running.create_topic("T", queues=2)
        running.create_topic("%RETRY%g", queues=1)  # as the heartbeat of a claim makes it
        with BlockingAdminClient(running.namesrv_addr):
            send(running, "T", 0, numbered(0, 10))
            send(running, "T", 1, numbered(10, 10))
        yield running


@pytest.fixture
def admin(cluster: EmbeddedCluster) -> Iterator[BlockingAdminClient]:
    with BlockingAdminClient(cluster.namesrv_addr) as client:
        yield client
    close_pools()


def row(message: MessageExt, **changes: Any) -> Row:
    values = {
        "topic": message.topic, "brokerName": message.broker_name, "queueId": message.queue_id,
        "queueOffset": message.queue_offset, "commitLogOffset": message.commit_log_offset,
        "reconsumeTimes": message.reconsume_times, "properties": dict(message.properties),
        "body": message.body,
    }  # fmt: skip
    return Row(**(values | changes))


@pytest.fixture
def run(cluster: EmbeddedCluster, admin: BlockingAdminClient) -> Run:
    """A task over the twenty messages, ten of each queue."""
    rows = [
        row(message)
        for queue_id in (0, 1)
        for message in pulled(admin, MessageQueue("T", "broker-a", queue_id), 0)
    ]

    def consume(
        listener: Any,
        *,
        count: int = 20,
        reverse: bool = False,
        changed: Mapping[str, Any] | None = None,
        clock: Clock = SYSTEM_CLOCK,
        **options: Any,
    ) -> Counts:
        least = {
            "nameServer": cluster.namesrv_addr, "group": "g", "listener": "x", "retryTimeoutMs": "0"
        }  # fmt: skip
        parsed = consume_options(least | {name: str(value) for name, value in options.items()})
        needed = check_columns([each for each in COLUMNS.items() if each[0] in rows[0].asDict()])
        given = [Row(**(each.asDict() | dict(changed or {}))) for each in rows[:count]]
        made = listener_of(listener, orderly=parsed.orderly)
        return consume_rows(parsed, needed, made, reversed(given) if reverse else given, clock)

    return consume


def test_every_message_is_given_once_in_batches_of_one_queue(run: Run) -> None:
    seen: list[tuple[int, ...]] = []

    def listener(messages: list[MessageExt]) -> ConsumeConcurrentlyStatus:
        assert len({message.queue_id for message in messages}) == 1
        seen.append(tuple(int(message.body) for message in messages))
        return SUCCESS

    assert run(listener, consumeMessageBatchMaxSize=4) == Counts(consumed=20)
    assert sorted(number for batch in seen for number in batch) == list(range(20))
    assert sorted(len(batch) for batch in seen) == [2, 2, 4, 4, 4, 4]


def test_a_task_reads_no_further_than_its_calls_can_follow() -> None:
    """A partition may be far larger than a worker's memory."""
    read = done = most = 0

    def rows() -> Iterator[dict[str, Any]]:
        nonlocal read, most
        for offset in range(1_500):
            read += 1
            most = max(most, read - done)
            yield {
                "topic": "T", "brokerName": "b", "queueId": 0, "queueOffset": offset,
                "commitLogOffset": 0, "reconsumeTimes": 0, "properties": {}, "body": b"x",
            }  # fmt: skip

    def listener(messages: list[MessageExt]) -> ConsumeConcurrentlyStatus:
        nonlocal done
        done += 1
        return SUCCESS

    given = {"nameServer": "h:1", "group": "g", "listener": "x", "consumeThreadMax": "1"}
    columns = {name: name for name in NEEDED}
    made = listener_of(listener, orderly=False)
    assert consume_rows(consume_options(given), columns, made, rows()) == Counts(consumed=1_500)
    assert most <= CALLS_AHEAD + SUBMITTED_AT_ONCE


def test_what_is_beyond_ack_index_is_sent_back_at_the_level_asked_for(
    run: Run, admin: BlockingAdminClient
) -> None:
    """Covers C-262 and C-264."""
    before = waiting(admin, 2)

    def listener(
        messages: list[MessageExt], context: ConsumeConcurrentlyContext
    ) -> ConsumeConcurrentlyStatus:
        context.ack_index = 6
        context.delay_level_when_next_consume = 2
        return SUCCESS

    counts = run(listener, consumeMessageBatchMaxSize=10)
    assert counts == Counts(consumed=14, sent_back=6)
    assert waiting(admin, 2) == before + 6


@pytest.mark.parametrize("answer", [LATER, None, "yes", ORDERLY, ValueError("broken")])
def test_what_is_no_success_is_sent_back(
    run: Run, admin: BlockingAdminClient, answer: object
) -> None:
    """Covers C-261: None, an exception and nonsense count as RECONSUME_LATER."""
    before = waiting(admin, 3)

    def listener(messages: list[MessageExt]) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer

    assert run(listener, count=2) == Counts(sent_back=2)
    assert waiting(admin, 3) == before + 2


def test_a_listener_that_spoils_its_message_does_not_spoil_its_return(
    run: Run, admin: BlockingAdminClient
) -> None:
    before = waiting(admin, 3)

    def listener(messages: list[MessageExt]) -> ConsumeConcurrentlyStatus:
        for message in messages:
            message.properties.clear()
        messages.clear()
        return LATER

    assert run(listener, count=2) == Counts(sent_back=2)
    schedule = MessageQueue("SCHEDULE_TOPIC_XXXX", "broker-a", 2)
    for message in pulled(admin, schedule, before):
        assert message.reconsume_times == 1
        assert message.get_property("RETRY_TOPIC") == "T"
        assert message.keys


def test_a_coroutine_listener_is_awaited(run: Run) -> None:
    async def listener(messages: list[MessageExt]) -> ConsumeConcurrentlyStatus:
        await asyncio.sleep(0)
        return LATER if int(messages[0].body) == 3 else SUCCESS

    assert run(listener) == Counts(consumed=19, sent_back=1)


@pytest.mark.allow_leaks  # a thread in a listener cannot be ended; the test lets it go at the end
def test_a_listener_that_hangs_is_sent_back_and_left_behind(
    run: Run, admin: BlockingAdminClient
) -> None:
    """Covers C-248: level 3."""
    release = threading.Event()
    before = waiting(admin, 3)

    def listener(messages: list[MessageExt]) -> ConsumeConcurrentlyStatus:
        if int(messages[0].body) == 3:
            release.wait(LONG_S)
        return SUCCESS

    counts = run(listener, consumeTimeout=0.002, consumeThreadMax=1)
    assert counts == Counts(consumed=19, sent_back=1, left_behind=1)
    assert waiting(admin, 3) == before + 1
    release.set()


class Hurrying(ManualClock):
    """Goes on by a second with each look, once it is told to."""

    hurries = False

    def monotonic_ms(self) -> float:
        if self.hurries:
            self.advance(1_000)
        return super().monotonic_ms()


@pytest.mark.allow_leaks  # as above
@pytest.mark.parametrize("is_async", [False, True])
def test_a_micro_batch_waits_a_minute_for_a_call_that_hangs(
    run: Run, admin: BlockingAdminClient, is_async: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Spark runs one micro-batch at a time, so all queues of the group would wait with it."""
    release, clock = threading.Event(), Hurrying()
    before = waiting(admin, 3)

    def hangs(messages: list[MessageExt]) -> bool:
        clock.hurries = int(messages[0].body) == 3
        return clock.hurries

    def listener(messages: list[MessageExt]) -> ConsumeConcurrentlyStatus:
        if hangs(messages):
            release.wait(LONG_S)
        return SUCCESS

    async def awaited(messages: list[MessageExt]) -> ConsumeConcurrentlyStatus:
        if hangs(messages):
            await asyncio.sleep(LONG_S)
        return SUCCESS

    try:
        counts = run(awaited if is_async else listener, consumeThreadMax=1, clock=clock)
    finally:
        release.set()
    assert counts == Counts(consumed=19, sent_back=1, left_behind=1)
    assert waiting(admin, 3) == before + 1
    assert "longer than 60 s (the smaller of consumeTimeout and microBatchTimeoutMs)" in caplog.text


@pytest.mark.allow_leaks  # as above
def test_a_message_of_a_call_left_behind_says_so(run: Run, admin: BlockingAdminClient) -> None:
    release, clock = threading.Event(), ManualClock()
    before = dead_letters(admin)

    def listener(messages: list[MessageExt]) -> ConsumeConcurrentlyStatus:
        clock.advance(200)
        release.wait(LONG_S)
        return SUCCESS

    options = {"sendBackCause": "true", "maxReconsumeTimes": 0, "microBatchTimeoutMs": 200}
    try:
        assert run(listener, count=1, clock=clock, **options).left_behind == 1
    finally:
        release.set()
    (dead,) = pulled(admin, MessageQueue("%DLQ%g", "broker-a", 0), before)
    cause = "TIME_OUT: the listener takes longer than 0.2 s (the smaller of consumeTimeout and "
    assert dead.properties["SEND_BACK_CAUSE"] == cause + "microBatchTimeoutMs)"


def test_what_was_transformed_and_fails_goes_back_with_its_cause_as_it_was_sent(
    run: Run, admin: BlockingAdminClient
) -> None:
    """The transform sees it again, and once."""
    before = dead_letters(admin)

    def fail(messages: list[MessageExt]) -> Any:
        raise ValueError(bytes(messages[0].body).decode())

    options = {"maxReconsumeTimes": 0, "sendBackCause": "true"}
    changed = {"body": b"transformed", "properties": {"mine": "x"}}
    assert run(fail, count=1, changed=changed, **options) == Counts(sent_back=1)
    (dead,) = pulled(admin, MessageQueue("%DLQ%g", "broker-a", 0), before)
    assert (dead.body, dead.properties.get("mine")) == (b"0", None)
    assert dead.properties["SEND_BACK_CAUSE"] == "ValueError: transformed"


@pytest.mark.parametrize("orderly", ["false", "true"])
def test_what_fails_tells_its_cause_when_asked_to(
    run: Run, admin: BlockingAdminClient, orderly: str
) -> None:
    before = dead_letters(admin)

    def fail(messages: list[MessageExt], context: Any) -> Any:
        messages[0].properties["mine"] = "x"
        if messages[0].body == b"3":
            raise ValueError("three is wrong")
        return ORDERLY if orderly == "true" else SUCCESS

    options = {"maxReconsumeTimes": 0, "sendBackCause": "true", "orderly": orderly}
    done = {"given_up": 1} if orderly == "true" else {"sent_back": 1}
    assert run(fail, count=5, **options) == Counts(consumed=4, **done)
    (dead,) = pulled(admin, MessageQueue("%DLQ%g", "broker-a", 0), before)
    assert dead.body == b"3"
    assert dead.properties["SEND_BACK_CAUSE"] == "ValueError: three is wrong"
    assert dead.properties["SEND_BACK_WHERE"].endswith("<locals>.fail")
    assert "mine" not in dead.properties


def test_a_task_fails_when_a_send_back_is_not_acknowledged(run: Run) -> None:
    """The rows are then consumed again: at least once."""
    with pytest.raises(SendError, match="could be neither sent back nor sent anew"):
        run(lambda _: LATER, nameServer="127.0.0.1:1", connectTimeoutMs=300)


def test_a_queue_is_consumed_in_order_one_batch_at_a_time(run: Run) -> None:
    seen: dict[int, list[int]] = {0: [], 1: []}
    busy: set[int] = set()

    def listener(messages: list[MessageExt]) -> ConsumeOrderlyStatus:
        queue = messages[0].queue_id
        assert queue not in busy
        busy.add(queue)
        seen[queue] += [int(message.body) for message in messages]
        busy.discard(queue)
        return ORDERLY

    counts = run(listener, orderly="true", consumeMessageBatchMaxSize=3, reverse=True)
    assert counts == Counts(consumed=20)
    assert seen == {0: list(range(10)), 1: list(range(10, 20))}


def test_a_queue_that_is_suspended_tries_again_in_place_and_then_gives_up(
    run: Run, admin: BlockingAdminClient
) -> None:
    """Covers C-285 and C-287: what is behind it waits, the other queue does not."""
    before = dead_letters(admin)
    seen: list[tuple[int, int]] = []

    def listener(messages: list[MessageExt]) -> ConsumeOrderlyStatus:
        (message,) = messages
        seen.append((int(message.body), message.reconsume_times))
        return SUSPEND if message.body == b"4" else ORDERLY

    options = {"maxReconsumeTimes": 2, "suspendCurrentQueueTimeMillis": 10}
    assert run(listener, orderly="true", **options) == Counts(consumed=19, given_up=1)
    mine = [each for each in seen if each[0] < 10]
    assert mine[3:9] == [(3, 0), (4, 0), (4, 1), (4, 2), (5, 0), (6, 0)]
    assert dead_letters(admin) == before + 1
    (dead,) = pulled(admin, MessageQueue("%DLQ%g", "broker-a", 0), before)
    assert dead.body == b"4"


@pytest.mark.allow_leaks  # as above
def test_an_orderly_listener_that_hangs_is_sent_back_and_its_queue_goes_on(
    run: Run, admin: BlockingAdminClient
) -> None:
    release = threading.Event()
    before = waiting(admin, 3)
    seen: list[int] = []

    def listener(messages: list[MessageExt]) -> ConsumeOrderlyStatus:
        seen.append(int(messages[0].body))
        if messages[0].body == b"4":
            release.wait(LONG_S)
        return ORDERLY

    counts = run(listener, orderly="true", consumeTimeout=0.002)
    assert counts == Counts(consumed=19, sent_back=1, left_behind=1)
    assert [number for number in seen if number < 10] == list(range(10))
    assert waiting(admin, 3) == before + 1
    release.set()


@pytest.mark.allow_leaks  # as above
def test_a_bound_that_is_given_holds_in_order_too(run: Run, admin: BlockingAdminClient) -> None:
    release, clock = threading.Event(), ManualClock()

    def listener(messages: list[MessageExt]) -> ConsumeOrderlyStatus:
        if messages[0].body == b"4":
            clock.advance(5_000)
            release.wait(LONG_S)
        return ORDERLY

    options = {"orderly": "true", "microBatchTimeoutMs": 5_000, "consumeThreadMax": 1}
    try:
        counts = run(listener, clock=clock, **options)
    finally:
        release.set()
    assert counts == Counts(consumed=19, sent_back=1, left_behind=1)


def test_manual_commit_is_refused_with_the_reason(run: Run) -> None:
    def listener(messages: list[MessageExt], context: Any) -> ConsumeOrderlyStatus:
        context.auto_commit = False
        return ORDERLY

    with pytest.raises(NotSupportedError, match="cannot switch auto_commit off"):
        run(listener, orderly="true")
