"""Around one listener call: what hooks and statistics are told, and what an answer counts as."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace
from typing import Any, cast

import pytest

from rocketstream import (
    ConsumeConcurrentlyStatus,
    ConsumeMessageContext,
    ConsumeOrderlyStatus,
    MessageExt,
    MessageQueue,
)
from rocketstream._util.ending import Cancellation
from rocketstream._util.user_code import IS_CALLED_BY_CLIENT
from rocketstream.client.consumer.consume.listener_calls import (
    CallObserver,
    checked_status,
    consume_directly,
    mark_started,
)
from rocketstream.client.consumer.listener import listener_of
from rocketstream.client.hooks import CONSUME_CONTEXT_TYPE, ConsumeHooks
from tests.kits.client.fake_broker import GROUP, TOPIC, WAIT_S
from tests.kits.client.queued import queued

MQ = MessageQueue(f"ns%{TOPIC}", "broker-a", 0)
SUCCESS = ConsumeConcurrentlyStatus.CONSUME_SUCCESS
LATER = ConsumeConcurrentlyStatus.RECONSUME_LATER
SUSPEND = ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT


class Around:
    """An observer, the hook and the figures it tells."""

    def __init__(self, namespace: str | None = "ns", timeout_minutes: float = 2) -> None:
        self.name = "hook"
        self.before: list[ConsumeMessageContext] = []
        self.after: list[ConsumeMessageContext] = []
        self.figures: list[tuple[Any, ...]] = []
        self.now = 100.0
        hooks = ConsumeHooks()
        hooks.register(cast(Any, self))
        stats = SimpleNamespace(
            inc_consume_rt=lambda *given: self.figures.append(("rt", *given)),
            inc_consume_ok_tps=lambda *given: self.figures.append(("ok", *given)),
            inc_consume_failed_tps=lambda *given: self.figures.append(("failed", *given)),
        )
        clock = SimpleNamespace(monotonic_ms=lambda: self.now)
        self.observer = CallObserver(
            GROUP, hooks, cast(Any, stats), cast(Any, clock), timeout_minutes, namespace, "CLOUD"
        )

    def consume_message_before(self, context: ConsumeMessageContext) -> None:
        self.before.append(context)

    def consume_message_after(self, context: ConsumeMessageContext) -> None:
        self.after.append(context)


def test_listeners_see_topics_without_a_namespace() -> None:
    """Covers C-256."""
    assert Around().observer.seen_queue(MQ) == MQ._replace(topic=TOPIC)
    assert Around(namespace=None).observer.seen_queue(MQ) is MQ


def test_hooks_are_told_before_a_call_with_a_list_of_their_own() -> None:
    """Covers C-257."""
    around, batch = Around(), [queued(1)]
    context = around.observer.before(batch, MQ)
    assert around.before == [context]
    assert context.messages == batch
    assert context.messages is not batch
    assert (context.consumer_group, context.message_queue) == (GROUP, MQ)
    assert (context.namespace, context.access_channel) == ("ns", "CLOUD")


def test_a_hook_that_exits_ends_no_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """The messages go to the listener all the same, and its answer counts."""

    def exits(_: ConsumeMessageContext) -> None:
        raise SystemExit

    around = Around()
    monkeypatch.setattr(around, "consume_message_before", exits)
    monkeypatch.setattr(around, "consume_message_after", exits)
    context = around.observer.before([queued(1)], MQ)
    around.observer.after(context, SUCCESS, SUCCESS, None, 1)
    assert context.success


@pytest.mark.parametrize(
    ("answer", "status", "error", "took_ms", "success", "kind"),
    [
        (SUCCESS, SUCCESS, None, 119_999, True, "SUCCESS"),
        (SUCCESS, SUCCESS, None, 120_000, True, "TIME_OUT"),
        (LATER, LATER, None, 5, False, "FAILED"),
        (SUSPEND, SUSPEND, None, 5, False, "FAILED"),
        (None, LATER, None, 5, False, "RETURNNULL"),
        (None, LATER, None, 120_000, False, "RETURNNULL"),
        (None, LATER, ValueError("no"), 120_000, False, "EXCEPTION"),
        (ConsumeOrderlyStatus.ROLLBACK, ConsumeOrderlyStatus.ROLLBACK, None, 5, False, "SUCCESS"),
    ],
)
def test_hooks_are_told_after_a_call_how_it_ended(
    answer: object, status: Any, error: BaseException | None, took_ms: float,
    success: bool, kind: str,
) -> None:  # fmt: skip
    """Covers C-257, C-258: a call that took as long as the limit took too long."""
    around = Around()
    context = around.observer.before([queued(1)], MQ)
    around.observer.after(context, answer, status, error, took_ms)
    assert around.after == [context]
    assert (context.status, context.success, context.error) == (status.name, success, error)
    assert context.properties[CONSUME_CONTEXT_TYPE] == kind


def test_a_call_that_was_cut_off_has_ended_too() -> None:
    """Covers C-120, C-257."""
    around, error = Around(), asyncio.CancelledError()
    context = around.observer.before([queued(1)], MQ)
    around.observer.cut_off(context, LATER, error)
    assert around.after == [context]
    assert (context.status, context.success, context.error) == ("RECONSUME_LATER", False, error)
    assert context.properties[CONSUME_CONTEXT_TYPE] == "EXCEPTION"


def test_figures_are_added_where_there_are_any() -> None:
    """Covers C-259."""
    around = Around()
    around.observer.count(TOPIC, 0, 0, 7, 0)
    assert around.figures == []
    around.observer.count(TOPIC, 1, 2, 7, 3)
    assert around.figures == [
        ("rt", GROUP, TOPIC, 7, 3),
        ("ok", GROUP, TOPIC, 1),
        ("failed", GROUP, TOPIC, 2),
    ]


def test_an_answer_that_is_a_status_is_taken_and_nothing_is_said(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert checked_status(SUCCESS, None, [queued(1)], LATER) is SUCCESS
    assert caplog.text == ""


@pytest.mark.parametrize(
    ("answer", "error", "told"),
    [
        (None, None, "listener returned None, which is not a ConsumeConcurrentlyStatus;"),
        (SUCCESS, ValueError("no"), "listener raised ValueError; counts as RECONSUME_LATER"),
        (
            ConsumeOrderlyStatus.SUCCESS,
            None,
            "ConsumeConcurrentlyStatus; register the listener with orderly=True",
        ),
    ],
)
def test_anything_else_counts_as_a_failure_and_is_told_with_its_first_message(
    caplog: pytest.LogCaptureFixture, answer: object, error: BaseException | None, told: str
) -> None:
    """Covers C-261."""
    assert checked_status(answer, error, [queued(5), queued(6)], LATER) is LATER
    assert told in caplog.text
    assert "offset=5" in caplog.text
    assert "messages=2" in caplog.text
    assert ("orderly=True" in caplog.text) is (answer is ConsumeOrderlyStatus.SUCCESS)


def test_no_other_kind_of_answer_is_taken_for_the_other_kind_of_listener(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert checked_status(SUCCESS, None, [queued(1)], SUSPEND) is SUSPEND
    assert checked_status("x", None, [queued(1)], SUSPEND) is SUSPEND
    assert "orderly=True" not in caplog.text


def test_messages_have_the_time_they_went_to_the_listener() -> None:
    """Covers C-233: as a property once that was read."""
    fresh, read = queued(1), queued(2)
    assert read.properties is not None
    mark_started([fresh, read], 1_234)
    assert (fresh.consume_start_ms, read.consume_start_ms) == (1_234, 1_234)
    assert fresh._properties is None
    assert read._properties is not None
    assert read._properties["CONSUME_START_TIME"] == "1234"


# --- on request -----------------------------------------------------------------------------------


def directly(around: Around, listener: Any, broker_name: str | None = "b2", **how: Any) -> Any:
    message = queued(3)
    message._topic, message._broker_name = MQ.topic, "b1"
    wanted = listener_of(listener, orderly=how.get("orderly", False))
    return asyncio.run(consume_directly(wanted, message, broker_name, around.observer))


@pytest.mark.parametrize(("broker_name", "seen"), [("b2", "b2"), (None, "b1")])
def test_a_message_on_request_is_timed_and_named_as_listeners_see_it(
    broker_name: str | None, seen: str
) -> None:
    """Covers C-256, C-269: neither hooks nor figures are told."""
    around = Around()

    def listener(messages: list[MessageExt]) -> object:
        around.now += 40
        assert [each.queue_offset for each in messages] == [3]
        assert (messages[0].topic, messages[0].broker_name) == (TOPIC, seen)
        return SUCCESS

    result = directly(around, listener, broker_name)
    assert (result.consume_result, result.remark) == ("CR_SUCCESS", None)
    assert result.spent_time_mills == 40
    assert (around.before, around.after, around.figures) == ([], [], [])


def test_a_message_of_another_topic_keeps_its_name_on_request() -> None:
    """Covers C-256: though it has been retried before."""
    message = queued(3)
    message._topic = TOPIC
    assert message.properties is not None
    message.properties["RETRY_TOPIC"] = "Orders"
    wanted = listener_of(lambda messages: SUCCESS, orderly=False)
    asyncio.run(consume_directly(wanted, message, None, Around().observer))
    assert message.topic == TOPIC


@pytest.mark.parametrize("orderly", [False, True])
def test_a_listener_on_request_has_the_context_of_its_kind(orderly: bool) -> None:
    """Covers C-269, C-295."""
    kinds: list[str] = []

    def listener(messages: list[MessageExt], context: object) -> object:
        kinds.append(type(context).__name__)
        return ConsumeOrderlyStatus.COMMIT if orderly else SUCCESS

    result = directly(Around(), listener, orderly=orderly)
    assert kinds == ["ConsumeOrderlyContext" if orderly else "ConsumeConcurrentlyContext"]
    assert (result.order, result.auto_commit) == (orderly, True)
    assert result.consume_result == ("CR_COMMIT" if orderly else "CR_SUCCESS")


@pytest.mark.parametrize("answer", [None, "yes"])
def test_what_is_no_status_is_told_to_the_asker(answer: object) -> None:
    """Covers C-269: nothing at all needs no remark."""
    result = directly(Around(), lambda messages: answer)
    assert result.consume_result == "CR_RETURN_NULL"
    remark = "the listener returned 'yes', which is not a status"
    assert result.remark == (None if answer is None else remark)


def test_a_plain_listener_on_request_has_a_daemon_of_its_own() -> None:
    """Covers C-269: a program ends though its listener does not return; an end that it asks for
    does not wait for another, which may wait for it."""
    threads: list[threading.Thread] = []
    known: list[bool] = []

    def listener(messages: list[MessageExt]) -> object:
        threads.append(threading.current_thread())
        known.append(IS_CALLED_BY_CLIENT.get())
        return SUCCESS

    directly(Around(), listener)
    (thread,) = threads
    assert known == [True]
    assert (thread.name, thread.daemon) == ("ConsumeMessageDirectly", True)
    assert thread is not threading.main_thread()


def test_an_asker_that_waits_no_more_is_not_told() -> None:
    """Covers C-269: the listener goes on, and its answer goes nowhere."""
    entered, opened = threading.Event(), threading.Event()

    def listener(messages: list[MessageExt]) -> object:
        entered.set()
        assert opened.wait(WAIT_S)
        return SUCCESS

    async def scenario() -> None:
        problems: list[Any] = []
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: problems.append(context))
        wanted = listener_of(listener, orderly=False)
        asking = loop.create_task(consume_directly(wanted, queued(3), None, Around().observer))
        await loop.run_in_executor(None, entered.wait, WAIT_S)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        assert asking.cancelled()
        threads = [each for each in threading.enumerate() if each.name == "ConsumeMessageDirectly"]
        opened.set()
        for thread in threads:
            await loop.run_in_executor(None, thread.join, WAIT_S)
        await asyncio.sleep(0)
        assert problems == []

    asyncio.run(scenario())


@pytest.mark.parametrize("is_own", [False, True])
def test_a_cancelled_coroutine_on_request_ends_with_its_asker(is_own: bool) -> None:
    """Covers C-295: a CancelledError of its own is an answer."""
    entered = asyncio.Event()

    async def listener(messages: list[MessageExt]) -> object:
        entered.set()
        if is_own:
            raise asyncio.CancelledError
        await asyncio.Event().wait()
        return SUCCESS

    async def scenario() -> None:
        wanted = listener_of(listener, orderly=False)
        work = consume_directly(wanted, queued(3), None, Around().observer)
        asking = asyncio.get_running_loop().create_task(work)
        await entered.wait()
        if not is_own:
            asking.cancel()
        (result,) = await asyncio.gather(asking, return_exceptions=True)
        if is_own:
            assert cast(Any, result).consume_result == "CR_THROW_EXCEPTION"
        else:
            assert asking.cancelled()

    asyncio.run(scenario())


def test_an_error_of_a_coroutine_that_is_cancelled_is_its_answer() -> None:
    entered = asyncio.Event()

    async def listener(messages: list[MessageExt]) -> object:
        entered.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise ValueError("no") from None
        return SUCCESS

    async def scenario() -> None:
        wanted = listener_of(listener, orderly=False)
        work = consume_directly(wanted, queued(3), None, Around().observer)
        asking = asyncio.get_running_loop().create_task(work)
        await entered.wait()
        asking.cancel()
        assert (await asking).consume_result == "CR_THROW_EXCEPTION"

    asyncio.run(scenario())


def test_a_task_knows_whether_it_is_cancelled_since_a_call_began() -> None:
    """One that was caught before is no reason to end later calls."""
    seen: list[bool] = []

    async def work() -> None:
        before = Cancellation()
        seen.append(before.has_come)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            seen.extend((before.has_come, Cancellation().has_come))
            raise

    async def scenario() -> None:
        task = asyncio.get_running_loop().create_task(work())
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        asyncio.get_running_loop().call_soon(lambda: seen.append(Cancellation().has_come))
        await asyncio.sleep(0)

    asyncio.run(scenario())
    assert seen == [False, True, False, False]
