"""Transactions, rule by rule: halves, outcomes, headers of ends, and questions that wait."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from types import SimpleNamespace
from typing import Any, cast

import pytest

from rocketstream import LocalTransactionState, Message, MessageQueue, TransactionProducer
from rocketstream._util.executors import CallbackExecutor
from rocketstream.client.hooks import EndTransactionContext, EndTransactionHooks
from rocketstream.client.instance.engine import Engine
from rocketstream.client.producer import transaction
from rocketstream.client.producer.base import ProducerBase
from rocketstream.client.producer.settings import TransactionSettings
from rocketstream.client.producer.transaction import (
    LocalOutcome,
    TransactionChecks,
    TransactionListener,
    awaited,
    checked_header,
    checked_listener,
    end_command,
    end_failed,
    end_header,
    mark_half,
    may_execute,
    outcome_async,
    outcome_in_thread,
    outcome_now,
    outcome_of_error,
    outcome_of_value,
    transaction_result,
)
from rocketstream.errors import (
    ConfigurationError,
    ConnectError,
    MessageInvalidError,
    RemoteProtocolError,
)
from rocketstream.limits import LOCAL_TRANSACTIONS_MAX
from rocketstream.model import SendResult, SendStatus
from rocketstream.protocol.codes import RequestCode
from rocketstream.protocol.command import RemotingCommand
from rocketstream.protocol.headers import (
    CheckTransactionStateRequestHeader,
    EndTransactionRequestHeader,
)
from rocketstream.protocol.message_ext import MessageExt
from rocketstream.protocol.message_id import encode_offset_msg_id
from rocketstream.protocol.properties import decode_properties

COMMIT = LocalTransactionState.COMMIT_MESSAGE
ROLLBACK = LocalTransactionState.ROLLBACK_MESSAGE
UNKNOW = LocalTransactionState.UNKNOW
QUEUE = MessageQueue("T", "broker-a", 0)
HALF = SendResult(
    SendStatus.SEND_OK, "U1", encode_offset_msg_id("127.0.0.1", 10911, 1_000), QUEUE, 47
)
CHECK = CheckTransactionStateRequestHeader(5, 2_000, None, "T1", None, "broker-a")


# --- halves ---------------------------------------------------------------------------------------


def test_a_half_is_marked_and_loses_its_delay() -> None:
    message = Message("T", b"x", delay_level=3)
    mark_half(message, "pg")
    marked = {name: message.properties[name] for name in ("TRAN_MSG", "PGROUP")}
    assert marked == {"TRAN_MSG": "true", "PGROUP": "pg"}
    assert "DELAY" not in message.properties
    mark_half(Message("T", b"x"), "pg")


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (Message("T", b"x", delay_time_ms=5), "cannot have a delivery time of its own"),
        (Message("T", b"x", lite_topic="a"), "lite topic cannot be in a transaction"),
        (cast(Message, 5), "message must be a rocketstream.Message, not 5"),
    ],
)
def test_what_cannot_be_a_half_is_named(message: Message, text: str) -> None:
    with pytest.raises(MessageInvalidError, match=text) as caught:
        mark_half(message, "pg")
    if isinstance(message, Message):
        assert caught.value.parameters["topic"] == "T"
        assert "TRAN_MSG" not in message.properties


@pytest.mark.parametrize("status", list(SendStatus))
def test_only_a_half_stored_as_wished_has_its_transaction_run(status: SendStatus) -> None:
    """Covers C-484."""
    stored = SendResult(status, "U1", "ID", QUEUE, 47)
    assert may_execute(stored) == (status is SendStatus.SEND_OK)


# --- outcomes -------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", list(LocalTransactionState))
def test_a_state_is_the_outcome(state: LocalTransactionState) -> None:
    assert outcome_of_value(state) == LocalOutcome(state)


def test_nothing_and_junk_are_unknow_and_junk_is_named() -> None:
    assert outcome_of_value(None) == LocalOutcome(UNKNOW)
    text = "the listener returned 'COMMIT', not a LocalTransactionState"
    assert outcome_of_value("COMMIT") == LocalOutcome(UNKNOW, text)
    error = outcome_of_error(LookupError("no"), "where")
    assert error == LocalOutcome(UNKNOW, "where exception: LookupError: no")


async def later(value: Any) -> Any:
    await asyncio.sleep(0)
    if isinstance(value, Exception):
        raise value
    return value


def test_a_listener_may_answer_now_or_later(caplog: pytest.LogCaptureFixture) -> None:
    no = LookupError("no")

    def raises() -> Any:
        raise no

    async def main() -> None:
        assert outcome_now("w", lambda: COMMIT) == LocalOutcome(COMMIT)
        assert outcome_now("w", lambda value: value, ROLLBACK) == LocalOutcome(ROLLBACK)
        assert outcome_now("w", raises) == outcome_of_error(no, "w")
        assert caplog.text.count("w raised; the transaction is UNKNOW") == 1
        assert outcome_now("w", lambda: 7) == outcome_of_value(7)
        assert "w: the listener returned 7, not a LocalTransactionState" in caplog.text
        promised = outcome_now("w", later, COMMIT)
        assert not isinstance(promised, LocalOutcome)
        assert await awaited("w", promised) == LocalOutcome(COMMIT)
        assert await awaited("w", later(no)) == outcome_of_error(no, "w")
        assert await outcome_async("w", later, COMMIT) == LocalOutcome(COMMIT)
        assert await outcome_async("w", lambda: COMMIT) == LocalOutcome(COMMIT)

    asyncio.run(main())


def test_a_coroutine_listener_that_says_it_was_cancelled_has_not_decided() -> None:
    async def cancelled() -> Any:
        raise asyncio.CancelledError

    outcome = asyncio.run(outcome_async("w", cancelled))
    assert outcome.state is UNKNOW
    assert "CancelledError()" in str(outcome.remark)


def test_a_listener_on_a_thread_may_raise_anything() -> None:
    executor = CallbackExecutor(1)
    ran_on: list[int] = []

    def leaves() -> Any:
        ran_on.append(threading.get_ident())
        raise SystemExit(3)

    async def main() -> None:
        left = await outcome_in_thread(executor, "w", leaves)
        assert left == LocalOutcome(UNKNOW, "w exception: SystemExit: 3")
        assert await outcome_in_thread(executor, "w", lambda: COMMIT) == LocalOutcome(COMMIT)
        assert await outcome_in_thread(executor, "w", later, ROLLBACK) == LocalOutcome(ROLLBACK)

    asyncio.run(main())
    assert ran_on != [threading.get_ident()]
    executor.close()
    executor.join()


# --- ends -----------------------------------------------------------------------------------------

FLAGS = [(COMMIT, 8), (ROLLBACK, 12), (UNKNOW, 0)]


@pytest.mark.parametrize(("state", "flag"), FLAGS)
def test_an_end_names_its_half_and_says_who_wanted_it(
    state: LocalTransactionState, flag: int
) -> None:
    own = end_header("pg", HALF, state)
    assert own == EndTransactionRequestHeader("pg", 47, 1_000, flag, "U1", False, None, "broker-a")
    asked = checked_header("pg", CHECK, "U1", state)
    assert asked == EndTransactionRequestHeader("pg", 5, 2_000, flag, "U1", True, "T1", "broker-a")


def test_an_end_is_oneway_and_carries_the_remark() -> None:
    command = end_command(end_header("pg", HALF, COMMIT), "remark")
    assert (command.code, command.is_oneway, command.remark) == (37, True, "remark")


def test_an_id_of_a_half_that_cannot_be_read_is_an_error() -> None:
    with pytest.raises(RemoteProtocolError):
        end_header("pg", SendResult(SendStatus.SEND_OK, "U1", "nonsense", QUEUE, 47), COMMIT)


def test_a_result_has_the_state_and_names_its_transaction() -> None:
    result = transaction_result(HALF, ROLLBACK)
    assert (result.local_transaction_state, result.transaction_id) == (ROLLBACK, "U1")
    assert (result.msg_id, result.queue_offset, result.message_queue) == ("U1", 47, QUEUE)
    named = SendResult(SendStatus.SEND_OK, "U1", "ID", QUEUE, 47, transaction_id="T9")
    assert transaction_result(named, COMMIT).transaction_id == "T9"


def test_a_listener_needs_both_methods() -> None:
    """Whatever has them is one."""
    duck = SimpleNamespace(execute_local_transaction=len, check_local_transaction=len)
    assert cast(Any, checked_listener(duck)) is duck
    assert checked_listener(None) is None
    for name in ("execute_local_transaction", "check_local_transaction"):
        half = SimpleNamespace(**{name: len})
        with pytest.raises(ConfigurationError, match="transaction_listener SimpleNamespace has no"):
            checked_listener(half)
        del duck.__dict__[name]
        setattr(duck, name, 5)
        with pytest.raises(ConfigurationError, match=rf"no method {name}\(\)"):
            checked_listener(duck)
        setattr(duck, name, len)


def test_an_end_that_cannot_be_told_is_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    end_failed(HALF, COMMIT, ConnectError("gone"))
    assert "U1 ended with COMMIT_MESSAGE, but the broker could not be told: gone" in caplog.text


# --- questions ------------------------------------------------------------------------------------


class Line:
    """A connection that keeps what is sent."""

    def __init__(self) -> None:
        self.sent: list[RemotingCommand] = []

    def oneway(self, command: RemotingCommand) -> None:
        self.sent.append(command)


class Gate:
    """A listener whose answers come when the test says so."""

    def __init__(self) -> None:
        self.asked = 0
        self.answers: list[asyncio.Future[Any]] = []

    async def check_local_transaction(self, message: Any) -> Any:
        self.asked += 1
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.answers.append(answer)
        return await answer

    execute_local_transaction = check_local_transaction


class Bench:
    """Questions of a broker that are a test's, to a listener of its own."""

    def __init__(self, listener: Any, **settings: int) -> None:
        self.line = Line()
        self.hooks = EndTransactionHooks()
        self.no_connection: Exception | None = None
        self.checks = TransactionChecks("pg", listener, TransactionSettings(**settings), self.hooks)
        self.checks.joined(cast(Any, SimpleNamespace(remoting=self)))
        self.message = cast(MessageExt, SimpleNamespace(msg_id="U1"))

    async def connection(self, address: str) -> Line:
        assert address == "a:1"
        if self.no_connection is not None:
            raise self.no_connection
        return self.line

    def ask(self) -> Coroutine[Any, Any, None]:
        return self.checks.answer("a:1", self.message, CHECK)

    def ends(self) -> list[EndTransactionRequestHeader]:
        return [EndTransactionRequestHeader.from_ext(c.ext_fields or {}) for c in self.line.sent]


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def play(main: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(main, 30))


def test_an_answer_goes_to_the_broker_that_asked() -> None:
    async def main() -> None:
        gate = Gate()
        bench = Bench(gate)
        asking = asyncio.ensure_future(bench.ask())
        await settle()
        gate.answers[0].set_result(ROLLBACK)
        await asking
        assert bench.ends() == [checked_header("pg", CHECK, "U1", ROLLBACK)]
        assert bench.line.sent[0].remark is None

    play(main())


def test_no_more_questions_wait_than_may(caplog: pytest.LogCaptureFixture) -> None:
    """Covers C-92: those answered make room again, also those that failed."""

    async def main() -> None:
        gate = Gate()
        bench = Bench(gate, check_request_hold_max=2, check_thread_pool_max_size=5)
        asking = [asyncio.ensure_future(bench.ask()) for _ in range(3)]
        await settle()
        assert [each.done() for each in asking] == [False, False, True]
        assert "2 questions about transactions of group pg wait already; one from a:1" in (
            caplog.text
        )
        gate.answers[0].set_exception(LookupError("no"))
        await asking[0]
        assert bench.ends()[0].commit_or_rollback == 0
        assert "checkLocalTransactionState exception: LookupError" in str(bench.line.sent[0].remark)
        asking += [asyncio.ensure_future(bench.ask()) for _ in range(2)]
        await settle()
        assert gate.asked == 3
        for answer in gate.answers[1:]:
            answer.set_result(COMMIT)
        await asyncio.gather(*asking)
        assert len(bench.line.sent) == 3
        await asyncio.wait_for(asyncio.gather(*[cancelled(bench, gate) for _ in range(2)]), 20)
        assert bench.checks._held == 0

    play(main())


async def cancelled(bench: Bench, gate: Gate) -> None:
    asking = asyncio.ensure_future(bench.ask())
    await settle()
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)


def test_coroutines_answer_as_many_at_a_time_as_threads_would() -> None:
    """Covers C-91."""

    async def main() -> None:
        gate = Gate()
        bench = Bench(gate, check_thread_pool_max_size=2)
        asking = [asyncio.ensure_future(bench.ask()) for _ in range(3)]
        await settle()
        assert gate.asked == 2
        gate.answers[0].set_result(COMMIT)
        await settle()
        assert gate.asked == 3
        for answer in gate.answers[1:]:
            answer.set_result(COMMIT)
        await asyncio.gather(*asking)

    play(main())
    assert Bench(None, check_thread_pool_max_size=2).checks.executor._threads_max == 2


def test_a_group_without_listener_says_so_and_answers_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bench = Bench(None)
    play(bench.ask())
    assert "a:1 asks for a transaction of group pg, which has no listener" in caplog.text
    assert bench.line.sent == []


class Plain(TransactionListener):
    """Answers at once, on a thread."""

    def execute_local_transaction(self, message: Any, arg: Any) -> Any:
        return COMMIT

    def check_local_transaction(self, message: Any) -> Any:
        return COMMIT


def test_a_broker_that_is_gone_is_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench(Plain())
    bench.no_connection = ConnectError("gone")
    play(bench.ask())
    assert "the state of transaction U1 could not be told to a:1: gone" in caplog.text
    bench.checks.executor.close()
    bench.checks.executor.join()


class Hook:
    """Notes the ends it is told of, and where."""

    name = "hook"

    def __init__(self) -> None:
        self.told: list[tuple[EndTransactionContext, int]] = []

    def end_transaction(self, context: EndTransactionContext) -> None:
        self.told.append((context, threading.get_ident()))


def test_hooks_hear_of_an_end_off_the_loop_and_not_after_the_close() -> None:
    bench, hook = Bench(Plain()), Hook()
    bench.hooks.register(hook)
    play(bench.ask())
    ((context, ran_on),) = hook.told
    assert ran_on != threading.get_ident()
    assert context == EndTransactionContext(
        "pg", bench.message, "a:1", "U1", "T1", "COMMIT_MESSAGE", True
    )
    bench.checks.executor.close()
    bench.checks.executor.join()
    play(bench.checks._tell("a:1", bench.message, CHECK, LocalOutcome(ROLLBACK, "why")))
    assert len(hook.told) == 1
    assert [end.commit_or_rollback for end in bench.ends()] == [8, 12]
    assert bench.line.sent[1].remark == "why"


# --- the producer ---------------------------------------------------------------------------------


def producer(**settings: Any) -> TransactionProducer:
    return TransactionProducer("pg", namesrv_addr="127.0.0.1:1", **settings)


def test_a_half_made_ready_is_one_the_broker_holds_back() -> None:
    made = producer(transaction_listener=Plain())
    listener, prepared = made._half(Message("T", b"x"))
    assert listener is made.transaction_listener
    assert prepared.sys_flag == 4
    assert decode_properties(prepared.properties)["TRAN_MSG"] == "true"
    compressed = made._half(Message("T", b"x" * 5_000))[1]
    assert compressed.sys_flag == 0x301 | 4
    made.transaction_listener = None
    with pytest.raises(ConfigurationError, match="TransactionListener is null"):
        made._half(Message("T", b"x"))


def test_settings_of_transactions_are_told_from_those_of_sends() -> None:
    made = producer(check_thread_pool_max_size=3, check_request_hold_max=7, max_message_size=100)
    assert made.transaction_settings == TransactionSettings(
        check_thread_pool_max_size=3, check_request_hold_max=7
    )
    assert made.settings.max_message_size == 100
    assert made._checks._hold_max == 7
    assert made._local._threads_max == LOCAL_TRANSACTIONS_MAX


@pytest.mark.parametrize(
    ("address", "version", "beats"), [("a:1", 0, True), ("a:1", 453, False), (None, 0, False)]
)
def test_a_broker_that_has_heard_no_beat_gets_one_at_once(
    address: str | None, version: int, beats: bool
) -> None:
    """It may ask about the transaction before the next round."""
    called: list[Any] = []
    heartbeats = SimpleNamespace(broker_version=lambda _: version, send_soon="beat")
    masters = {} if address is None else {"broker-a": address}
    instance = SimpleNamespace(routes=SimpleNamespace(masters=masters), heartbeats=heartbeats)
    engine = SimpleNamespace(instance=instance, call_soon=called.append)
    producer()._half_stored(cast(Engine, engine), HALF)
    assert called == (["beat"] if beats else [])


def test_an_end_goes_to_the_master_and_hooks_hear_of_it_first() -> None:
    made, hook = producer(), Hook()
    message = Message("T", b"x")
    routes = SimpleNamespace(known_master=lambda name: {"broker-a": "a:1"}[name])
    engine = cast(Engine, SimpleNamespace(instance=SimpleNamespace(routes=routes)))
    address, command = made._end_request(engine, message, HALF, COMMIT, "remark")
    assert (address, command.code, command.remark) == ("a:1", RequestCode.END_TRANSACTION, "remark")
    made.register_end_transaction_hook(hook)
    made._end_request(engine, message, HALF, COMMIT, None)
    ((context, _),) = hook.told
    assert context == EndTransactionContext("pg", message, "a:1", "U1", "U1", "COMMIT_MESSAGE")


def test_a_shutdown_gives_answers_a_second() -> None:
    made = producer()
    waits: list[float | None] = []
    made._checks.executor.join = waits.append  # type: ignore[method-assign,assignment]
    made.shutdown()
    assert waits == [1.0] == [transaction.CHECK_JOIN_S]


def test_an_end_takes_no_more_calls_of_listeners() -> None:
    """Neither for questions nor for what is sent."""
    made = producer()
    ended: list[Any] = []

    async def close(_: Any, machine: Any) -> None:
        ended.append(machine)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ProducerBase, "_close", close)
        asyncio.run(made._close(cast(Any, "machine")))
    assert (ended, made._checks.executor._closed, made._local._closed) == (["machine"], True, True)


def test_brokers_know_the_producer_before_it_sends() -> None:
    """Covers C-486."""
    made = producer(create_topic_key="KEY")
    joining = made._joining()
    assert joining.announced == ("KEY",)
    assert joining.check == made._checks.answer
