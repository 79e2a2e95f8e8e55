"""Around the listener: hooks, statistics, pools of a chosen size, messages consumed on request."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from rocketstream import (
    ClientConfig,
    ConsumeConcurrentlyContext,
    ConsumeConcurrentlyStatus,
    ConsumeMessageContext,
    ConsumeOrderlyContext,
    ConsumeOrderlyStatus,
    MessageExt,
    PushConsumer,
)
from rocketstream._util.clock import SYSTEM_CLOCK
from rocketstream.client.consumer.consume.concurrent import (
    AsyncConsumeService,
    ConsumeMessageConcurrentlyService,
    ConsumeRun,
)
from rocketstream.client.consumer.consume.listener_calls import (
    CallObserver,
    checked_status,
    consume_directly,
    mark_started,
)
from rocketstream.client.consumer.consume.workers import TaskPool
from rocketstream.client.consumer.listener import listener_of
from rocketstream.client.consumer.process_queue import ProcessQueue, Thresholds
from rocketstream.client.consumer.queue import AssignedQueue
from rocketstream.client.consumer.settings import PushConsumerSettings
from rocketstream.client.hooks import ConsumeHooks
from rocketstream.client.stats import ConsumerStats
from rocketstream.protocol.bodies import ConsumeMessageDirectlyResult
from rocketstream.protocol.codes import RequestCode
from rocketstream.protocol.message_ext import decode_messages
from tests.kits.client.fake_broker import GROUP, TOPIC, WAIT_S, FakeBroker, found, refusal
from tests.kits.client.locking_broker import LockingBroker
from tests.kits.listeners import LATER, SUCCESS, Seen
from tests.plugins.waiting import wait_until

ORDERLY = ConsumeOrderlyStatus
SUSPEND = ORDERLY.SUSPEND_CURRENT_QUEUE_A_MOMENT


@pytest.fixture
def broker() -> Iterator[LockingBroker]:
    with LockingBroker() as running:
        running.offsets[0] = 0
        yield running


def consumer(
    broker: FakeBroker, listener: Any, *, orderly: bool = False, **settings: Any
) -> PushConsumer:
    """Return a consumer of T, not started."""
    config = ClientConfig(namesrv_addr=broker.address, persist_consumer_offset_interval_ms=20)
    settings.setdefault("suspend_current_queue_time_ms", 10)
    settings.setdefault("local_retry_delay_ms", 20)
    made = PushConsumer(GROUP, config=config, **settings)
    made.register_message_listener(listener, orderly=orderly)
    made.subscribe(TOPIC)
    return made


class Hook:
    """Remembers what it was told, and raises."""

    name = "hook"

    def __init__(self) -> None:
        self.before: list[tuple[bool, int]] = []
        self.after: list[tuple[str | None, bool, str]] = []
        self.called = threading.Event()

    def consume_message_before(self, context: ConsumeMessageContext) -> None:
        self.before.append((context.success, len(context.messages)))
        assert (context.consumer_group, context.message_queue.topic) == (GROUP, TOPIC)
        raise ValueError("hooks harm nobody")

    def consume_message_after(self, context: ConsumeMessageContext) -> None:
        self.after.append(
            (context.status, context.success, context.properties["ConsumeContextType"])
        )
        self.called.set()
        raise ValueError("hooks harm nobody")


@pytest.mark.parametrize(
    ("orderly", "answer", "timeout_minutes", "told"),
    [
        (False, SUCCESS, 15, ("CONSUME_SUCCESS", True, "SUCCESS")),
        (False, SUCCESS, 1e-12, ("CONSUME_SUCCESS", True, "TIME_OUT")),
        (False, LATER, 15, ("RECONSUME_LATER", False, "FAILED")),
        (False, None, 15, ("RECONSUME_LATER", False, "RETURNNULL")),
        (False, "ok", 15, ("RECONSUME_LATER", False, "RETURNNULL")),
        (False, ValueError("no"), 1e-12, ("RECONSUME_LATER", False, "EXCEPTION")),
        (True, ORDERLY.SUCCESS, 15, ("SUCCESS", True, "SUCCESS")),
        (True, ORDERLY.COMMIT, 15, ("COMMIT", True, "SUCCESS")),
        (True, ORDERLY.ROLLBACK, 15, ("ROLLBACK", False, "SUCCESS")),
        (True, SUSPEND, 1e-12, (SUSPEND.name, False, "TIME_OUT")),
        (True, SUSPEND, 15, (SUSPEND.name, False, "FAILED")),
        (True, None, 15, (SUSPEND.name, False, "RETURNNULL")),
        (True, KeyboardInterrupt(), 15, (SUSPEND.name, False, "EXCEPTION")),
    ],
)
def test_hooks_are_told_how_a_call_ended(
    broker: LockingBroker,
    orderly: bool,
    answer: object,
    timeout_minutes: float,
    told: tuple[str, bool, str],
) -> None:
    """Covers C-257, C-258, C-594: all five return types; TIME_OUT is a label, nothing changes."""

    def listener(messages: list[MessageExt]) -> object:
        threading.Event().wait(0.001)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    hook = Hook()
    made = consumer(broker, listener, orderly=orderly, consume_timeout_minutes=timeout_minutes)
    made.register_consume_message_hook(hook)
    with made:
        broker.reply(broker.wait_pull(0), found([0]))
        assert hook.called.wait(WAIT_S)
    assert hook.before[0] == (False, 1)
    assert hook.after[0] == told


@pytest.mark.parametrize("orderly", [False, True])
def test_figures_tell_what_was_finished_and_what_failed(
    broker: LockingBroker, orderly: bool
) -> None:
    """Covers C-259: messages per second, failures, milliseconds per call."""
    failed: set[int] = set()
    done = threading.Semaphore(0)

    def listener(messages: list[MessageExt]) -> object:
        offset = messages[0].queue_offset
        threading.Event().wait(0.01)
        if offset == 1 and offset not in failed:
            failed.add(offset)
            return SUSPEND if orderly else LATER
        done.release()
        return ORDERLY.SUCCESS if orderly else SUCCESS

    made = consumer(broker, listener, orderly=orderly)
    with made:
        broker.reply(broker.wait_pull(0), found(range(4)))
        for _ in range(4 if orderly else 3):
            assert done.acquire(timeout=WAIT_S)
        impl = made._machine
        stats = impl.instance.stats
        wait_until(lambda: stats.consume_status(GROUP, TOPIC).consume_ok_tps > 0, "figures")
        wait_until(lambda: stats.consume_status(GROUP, TOPIC).consume_failed_msgs == 1, "failures")
        status = stats.consume_status(GROUP, TOPIC)
        assert status.consume_failed_tps > 0
        assert status.consume_rt > 0


@pytest.mark.parametrize("orderly", [False, True])
def test_a_pool_may_be_resized_while_it_works(orderly: bool) -> None:
    """Covers C-254, C-255, C-584: as many calls at once as wanted, up to consume_thread_max."""
    entered, opened = threading.Semaphore(0), threading.Event()
    names: set[str] = set()

    def listener(messages: list[MessageExt]) -> object:
        names.add(threading.current_thread().name)
        entered.release()
        opened.wait(WAIT_S)
        return ORDERLY.SUCCESS if orderly else SUCCESS

    with LockingBroker(queues=8) as broker:
        broker.offsets = dict.fromkeys(range(8), 0)
        with consumer(
            broker, listener, orderly=orderly, consume_thread_min=1, consume_thread_max=4
        ) as made:
            assert made.core_pool_size() == 4
            for wrong in (0, -1, 5, 40_000):
                assert not made.update_core_pool_size(wrong)
            assert made.update_core_pool_size(2)
            try:
                for queue in range(8):
                    (asked,) = broker.wait_for(
                        RequestCode.PULL_MESSAGE,
                        1,
                        lambda a, q=queue: a.ext["queueId"] == str(q) and a.ext["topic"] == TOPIC,  # type: ignore[misc]
                    )
                    broker.reply(asked, found([0], queue_id=queue))
                for _ in range(2):
                    assert entered.acquire(timeout=WAIT_S)
                assert not entered.acquire(timeout=0.05)
                assert made.update_core_pool_size(4)
                for _ in range(2):
                    assert entered.acquire(timeout=WAIT_S)
                assert not entered.acquire(timeout=0.05)
            finally:
                opened.set()
            for _ in range(4):
                assert entered.acquire(timeout=WAIT_S)
    assert len(names) == 4
    assert all(name.startswith(f"ConsumeMessageThread_{GROUP}_") for name in names)


@pytest.mark.parametrize("orderly", [False, True])
def test_listeners_get_their_threads_while_the_process_computes(orderly: bool) -> None:
    """Covers C-254: what the application computes on other threads keeps no message waiting."""
    together, ended = threading.Barrier(4), threading.Event()

    def listener(messages: list[MessageExt]) -> object:
        with contextlib.suppress(threading.BrokenBarrierError):
            together.wait(WAIT_S)
        met.release()
        return ORDERLY.SUCCESS if orderly else SUCCESS

    def compute() -> None:
        while not ended.is_set():
            hashlib.sha256(data)

    met, data = threading.Semaphore(0), bytes(1_000_000)
    computing = [threading.Thread(target=compute) for _ in range(3)]
    with LockingBroker(queues=4) as broker:
        broker.offsets = dict.fromkeys(range(4), 0)
        with consumer(broker, listener, orderly=orderly):
            pulls = broker.wait_for(
                RequestCode.PULL_MESSAGE, 4, lambda asked: asked.ext["topic"] == TOPIC
            )
            for each in computing:
                each.start()
            try:
                for pull in pulls:
                    broker.reply(pull, found([0], queue_id=int(pull.ext["queueId"])))
                for _ in range(4):
                    assert met.acquire(timeout=WAIT_S)
            finally:
                ended.set()
                for each in computing:
                    each.join()
    assert not together.broken


def test_a_shutdown_drops_what_waits_for_its_local_retry(broker: LockingBroker) -> None:
    """Covers C-268: it stays uncommitted and is delivered to the next owner."""
    broker.on[RequestCode.CONSUMER_SEND_MSG_BACK] = refusal(1, "busy")
    broker.on[RequestCode.SEND_MESSAGE_V2] = refusal(1, "busy")
    broker.topics[f"%RETRY%{GROUP}"] = 1
    seen = Seen(lambda message: LATER if message.queue_offset == 1 else SUCCESS)
    with consumer(broker, seen, local_retry_delay_ms=600_000):
        broker.reply(broker.wait_pull(0), found(range(3)))
        seen.wait_consumed(2)
        broker.wait_for(RequestCode.SEND_MESSAGE_V2)
    commits = [
        int(asked.ext["commitOffset"])
        for asked in broker.asked(RequestCode.UPDATE_CONSUMER_OFFSET)
        if asked.ext["topic"] == TOPIC
    ]
    assert commits[-1] == 1
    assert len(seen.deliveries) == 3


# --- consumed on request ------------------------------------------------------------------------


def message(topic: str = TOPIC, properties: str = "UNIQ_KEY\x01U") -> MessageExt:
    (made,) = decode_messages(bytes(found([5], topic=topic, properties=properties).body), "b")
    return made


def directly(
    listener: Any,
    given: MessageExt | None = None,
    *,
    orderly: bool = False,
    namespace: str | None = None,
) -> ConsumeMessageDirectlyResult:
    async def call() -> ConsumeMessageDirectlyResult:
        stats: Any = None
        hooks = ConsumeHooks()
        observer = CallObserver(GROUP, hooks, stats, SYSTEM_CLOCK, 15, namespace=namespace)
        wanted = listener_of(listener, orderly=orderly)
        return await consume_directly(wanted, given or message(), "broker-b", observer)

    return asyncio.run(call())


@pytest.mark.parametrize(
    ("orderly", "answer", "result"),
    [
        (False, SUCCESS, "CR_SUCCESS"),
        (False, LATER, "CR_LATER"),
        (False, None, "CR_RETURN_NULL"),
        (False, ORDERLY.SUCCESS, "CR_RETURN_NULL"),
        (True, ORDERLY.SUCCESS, "CR_SUCCESS"),
        (True, ORDERLY.COMMIT, "CR_COMMIT"),
        (True, ORDERLY.ROLLBACK, "CR_ROLLBACK"),
        (True, SUSPEND, "CR_LATER"),
        (True, None, "CR_RETURN_NULL"),
    ],
)
@pytest.mark.parametrize("is_async", [False, True])
def test_a_message_on_request_is_answered_with_the_listeners_status(
    orderly: bool, answer: object, result: str, is_async: bool
) -> None:
    """Covers C-269, C-295: every status has its name; plain and coroutine listeners."""

    def plain(messages: list[MessageExt]) -> object:
        assert [m.queue_offset for m in messages] == [5]
        return answer

    async def coroutine(messages: list[MessageExt]) -> object:
        return plain(messages)

    got = directly(coroutine if is_async else plain, orderly=orderly)
    assert (got.order, got.auto_commit, got.consume_result) == (orderly, True, result)
    assert got.spent_time_mills >= 0


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("error", [ValueError("no"), SystemExit(1), asyncio.CancelledError()])
def test_what_a_listener_raises_on_request_is_told(is_async: bool, error: BaseException) -> None:
    """Covers C-269, C-295: CR_THROW_EXCEPTION with the error as remark."""

    def plain(messages: list[MessageExt]) -> object:
        raise error

    async def coroutine(messages: list[MessageExt]) -> object:
        raise error

    got = directly(coroutine if is_async else plain)
    assert (got.consume_result, got.remark) == ("CR_THROW_EXCEPTION", repr(error))


def test_a_listener_on_request_sees_the_original_topic_and_its_context() -> None:
    """Covers C-256, C-295: retry topic and namespace are taken off, the context can be set."""
    seen: list[tuple[str, str]] = []

    def listener(messages: list[MessageExt], context: ConsumeOrderlyContext) -> object:
        context.auto_commit = False
        seen.append((messages[0].topic, messages[0].broker_name))
        assert context.message_queue.topic == messages[0].topic
        return ORDERLY.COMMIT

    retried = message(f"%RETRY%ns%{GROUP}", "RETRY_TOPIC\x01ns%Orders\x02UNIQ_KEY\x01U")
    got = directly(listener, retried, orderly=True, namespace="ns")
    assert seen == [("Orders", "broker-b")]
    assert got.auto_commit is False


def test_the_start_time_is_told_even_if_the_properties_were_read_before() -> None:
    """Covers C-233: a filter or an earlier try has read them."""
    fresh, read = message(), message()
    assert "CONSUME_START_TIME" not in read.properties
    mark_started([fresh, read], 1234)
    assert [m.properties["CONSUME_START_TIME"] for m in (fresh, read)] == ["1234", "1234"]


def test_contexts_begin_with_upstreams_values() -> None:
    """Covers C-261, C-284, C-285."""
    queue = message().message_queue
    concurrent, orderly = ConsumeConcurrentlyContext(queue), ConsumeOrderlyContext(queue)
    assert (concurrent.ack_index, concurrent.delay_level_when_next_consume) == (2**31 - 1, 0)
    assert (orderly.auto_commit, orderly.suspend_current_queue_time_ms) == (True, -1)
    assert ConsumeConcurrentlyStatus.CONSUME_SUCCESS.value == "CONSUME_SUCCESS"


@pytest.mark.parametrize("orderly", [False, True])
def test_an_id_that_is_no_text_harms_nobody(broker: LockingBroker, orderly: bool) -> None:
    """Covers C-270: the message is named and sent back with replacement characters, as in Java."""
    tries: list[int] = []

    def listener(messages: list[MessageExt]) -> object:
        offset = messages[0].queue_offset
        tries.append(offset)
        if offset == 0 and tries.count(0) == 1:
            raise ValueError("no")
        return ORDERLY.SUCCESS if orderly else SUCCESS

    with consumer(broker, listener, orderly=orderly):
        pulled = found(range(2))
        pulled.body = bytes(pulled.body).replace(b"UNIQ_KEY\x01U0", b"UNIQ_KEY\x01\xff0")
        broker.reply(broker.wait_pull(0), pulled)
        if orderly:
            wait_until(lambda: tries == [0, 0, 1], "another try in its place")
        else:
            (asked,) = broker.wait_for(RequestCode.CONSUMER_SEND_MSG_BACK)
            assert asked.ext["originMsgId"] == "\ufffd0"
            wait_until(lambda: sorted(tries) == [0, 1], "the other message")


def test_a_coroutine_that_ignores_its_cancellation_does_not_hold_up_the_end() -> None:
    """Covers C-120: it is left behind with a line in the log."""

    async def scenario() -> None:
        entered, ended = asyncio.Event(), asyncio.Event()

        async def work() -> None:
            entered.set()
            while not ended.is_set():
                with contextlib.suppress(asyncio.CancelledError):
                    await ended.wait()

        pool = TaskPool(work, 1, "g")
        pool.start_one()
        await entered.wait()
        await pool.shutdown(0)
        ended.set()
        await asyncio.sleep(0)

    asyncio.run(scenario())


def test_a_task_takes_no_more_work_once_its_pool_shrank_or_stopped() -> None:
    """Covers C-120: tasks that end in time are not cancelled."""

    async def scenario() -> None:
        ended = asyncio.Event()
        done: list[int] = []

        async def work() -> None:
            await ended.wait()
            done.append(1)

        pool = TaskPool(work, 2, "g")
        for _ in range(2):
            pool.start_one()
            await asyncio.sleep(0)
        assert pool.may_go_on()
        pool.resize(1)
        assert not pool.may_go_on(), "two tasks where one is allowed"
        pool.resize(2)
        ended.set()
        await pool.shutdown(1_000)
        assert not pool.may_go_on()
        assert len(done) == 2

    asyncio.run(scenario())


def test_an_orderly_status_of_a_concurrent_listener_gets_a_hint(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Covers C-261: it still counts as RECONSUME_LATER."""
    assert checked_status(ORDERLY.SUCCESS, None, [message()], LATER) is LATER
    assert "orderly=True" in caplog.text
    assert checked_status(SUCCESS, None, [message()], SUSPEND) is SUSPEND
    assert caplog.text.count("orderly=True") == 1


# --- many runs ------------------------------------------------------------------------------------


class SentBack:
    """Takes failed messages, and does nothing about them."""

    def __init__(self) -> None:
        self.given: list[object] = []

    def submit(self, *given: object) -> None:
        self.given.append(given)


def parts(listener: Callable[[list[MessageExt]], object], sent_back: Any) -> tuple[Any, ...]:
    """Return what a service is made of that calls the listener once at a time."""
    observer = CallObserver("G", ConsumeHooks(), ConsumerStats(SYSTEM_CLOCK), SYSTEM_CLOCK, 15)
    settings = PushConsumerSettings("G", consume_thread_max=1, consume_thread_min=1)
    return listener_of(listener, orderly=False), observer, sent_back, settings


def service(
    listener: Callable[[list[MessageExt]], object], sent_back: Any
) -> ConsumeMessageConcurrentlyService:
    return ConsumeMessageConcurrentlyService(*parts(listener, sent_back))


def assigned() -> AssignedQueue:
    links: Any = None
    return AssignedQueue(ProcessQueue(message().message_queue, 0), 0, Thresholds(), links)


def test_workers_share_the_oldest_run_and_forget_what_is_taken() -> None:
    """A listener that hangs in the middle of a pull holds no other's messages, however many."""

    async def main() -> None:
        consuming = service(lambda _: SUCCESS, SentBack())
        queue = assigned()
        first = ConsumeRun(queue, [message()] * 9, 1)
        consuming._runs.append(first)
        assert consuming.next_job() is consuming.oldest() is first
        for number in range(300):
            first.claimed = min(9, number)
            done = ConsumeRun(queue, [message()], 1)
            consuming._runs.append(done)
            if first.is_claimed:
                assert consuming.next_job() is not first
                done.claimed = 1
        for run in consuming._runs:
            run.claimed = run.chunks
        assert consuming.next_job() is None
        assert not consuming._runs

    asyncio.run(main())


def test_what_was_finished_before_a_call_that_hangs_is_committed(broker: LockingBroker) -> None:
    """Covers C-265: of one run, consumed within a moment, its last message hangs."""
    entered, opened = threading.Event(), threading.Event()

    def listener(messages: list[MessageExt]) -> object:
        if messages[0].queue_offset == 3:
            entered.set()
            opened.wait(WAIT_S)
        return SUCCESS

    with consumer(broker, listener, consume_thread_min=1, consume_thread_max=1):
        broker.reply(broker.wait_pull(0), found(range(4)))
        assert entered.wait(WAIT_S)
        broker.wait_for(
            RequestCode.UPDATE_CONSUMER_OFFSET, 1, lambda asked: asked.ext["commitOffset"] == "3"
        )
        opened.set()


@pytest.mark.parametrize("answer", [SUCCESS, LATER, None])
def test_a_result_for_a_queue_given_up_meanwhile_counts_for_nothing(answer: object) -> None:
    """Covers C-549: neither done nor sent back, for its next owner consumes it."""

    async def main() -> None:
        queue, sent_back = assigned(), SentBack()

        def listener(messages: list[MessageExt]) -> object:
            queue.drop()
            return answer

        consuming = service(listener, sent_back)
        consuming.work(ConsumeRun(queue, [message(), message()], 1))
        assert (sent_back.given, list(queue.finished)) == ([], [])

    asyncio.run(main())


@pytest.mark.parametrize("untouched", [True, False])
def test_a_message_left_untouched_is_neither_done_nor_sent_back(untouched: bool) -> None:
    """By a framework that has not begun it: it waits for the next owner, and so do those behind."""

    async def main() -> None:
        queue, sent_back = assigned(), SentBack()
        contexts: list[ConsumeConcurrentlyContext] = []

        async def listener(_: list[MessageExt], context: ConsumeConcurrentlyContext) -> object:
            contexts.append(context)
            context._untouched = untouched
            return LATER

        made: Any = parts(listener, sent_back)  # type: ignore[arg-type]
        await AsyncConsumeService(*made)._consume(ConsumeRun(queue, [message(), message()], 1))
        assert len(contexts) == (1 if untouched else 2)
        assert len(sent_back.given) == (0 if untouched else 2)
        assert not queue.finished
        assert not contexts[0]._is_leaving
        queue.leave()
        assert contexts[0]._is_leaving

    asyncio.run(main())


def test_a_call_that_is_thrown_away_with_its_loop_is_the_last() -> None:
    """As when a loop is closed under a consumer: the collector ends the coroutine in its wait.

    The other messages of the pull would be given to the listener outside of any loop.
    """
    calls: list[list[MessageExt]] = []

    async def listener(messages: list[MessageExt]) -> object:
        calls.append(messages)
        return await asyncio.get_running_loop().create_future()

    async def main() -> None:
        queue, sent_back = assigned(), SentBack()
        consuming = AsyncConsumeService(*parts(listener, sent_back))
        consuming._runs.append(ConsumeRun(queue, [message(), message(), message()], 1))
        consuming._pool._coming = True  # no other task takes part
        work: Any = consuming._work()
        task = asyncio.create_task(work)
        await asyncio.sleep(0)
        work.close()
        assert (sent_back.given, list(queue.finished)) == ([], [])
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(main())
    assert len(calls) == 1
