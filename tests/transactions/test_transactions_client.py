"""Transaction producers against a broker that does what the test says (C-483 to C-487)."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from rocketstream import (
    EndTransactionContext,
    LocalTransactionState,
    Message,
    MessageExt,
    SendOutcome,
    SendStatus,
    TransactionListener,
    TransactionProducer,
    aio,
)
from rocketstream.client.producer.base import ProducerBase
from rocketstream.client.producer.settings import TransactionSettings
from rocketstream.client.producer.transaction import TransactionBase
from rocketstream.errors import ConfigurationError, MessageInvalidError, SendError
from rocketstream.protocol.codes import RequestCode
from rocketstream.protocol.command import RemotingCommand
from rocketstream.protocol.headers import (
    CheckTransactionStateRequestHeader,
    EndTransactionRequestHeader,
    SendMessageRequestHeader,
    SendMessageResponseHeader,
)
from rocketstream.protocol.message_id import encode_offset_msg_id
from rocketstream.protocol.properties import decode_properties
from rocketstream.protocol.record import RecordFields, encode_record
from tests.kits.client.fake_broker import TOPIC, WAIT_S, FakeBroker, answer, refusal

COMMIT = LocalTransactionState.COMMIT_MESSAGE
ROLLBACK = LocalTransactionState.ROLLBACK_MESSAGE
UNKNOW = LocalTransactionState.UNKNOW
SEND = RequestCode.SEND_MESSAGE_V2
END = RequestCode.END_TRANSACTION
HALF_OFFSET = 4711
FLAGS = {COMMIT: 8, ROLLBACK: 12, UNKNOW: 0}


class Answers(TransactionListener):
    """Answers as it is told and remembers what it was asked."""

    def __init__(self, execute: Any = COMMIT, check: Any = COMMIT) -> None:
        self._execute = execute
        self._check = check
        self.executed: list[tuple[Message, Any, int]] = []
        self.checked: list[MessageExt] = []

    def execute_local_transaction(self, message: Message, arg: Any) -> Any:
        self.executed.append((message, arg, threading.get_ident()))
        return self._execute() if callable(self._execute) else self._execute

    def check_local_transaction(self, message: MessageExt) -> Any:
        self.checked.append(message)
        return self._check() if callable(self._check) else self._check


class AsyncAnswers(Answers):
    """The same as coroutines."""

    async def execute_local_transaction(self, message: Message, arg: Any) -> Any:
        await asyncio.sleep(0)
        return super().execute_local_transaction(message, arg)

    async def check_local_transaction(self, message: MessageExt) -> Any:
        await asyncio.sleep(0)
        return super().check_local_transaction(message)


def raising() -> Any:
    raise LookupError("no such order")


def half_stored(code: int = 0) -> Callable[[RemotingCommand], RemotingCommand]:
    """Store halves at commit log offset 1000."""
    msg_id = encode_offset_msg_id("127.0.0.1", 10911, 1000)
    return lambda _: answer(code, SendMessageResponseHeader(msg_id, 0, HALF_OFFSET))


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    with FakeBroker() as running:
        running.on[SEND] = half_stored()
        running.on[END] = lambda _: None
        yield running


def sync_send(broker: FakeBroker, message: Message, listener: Any, arg: Any = None) -> Any:
    with TransactionProducer(
        "pg", namesrv_addr=broker.address, transaction_listener=listener
    ) as producer:
        result = producer.send_message_in_transaction(message, arg)
        broker.wait_for(END)
        return result


def aio_send(broker: FakeBroker, message: Message, listener: Any, arg: Any = None) -> Any:
    async def scenario() -> Any:
        async with aio.TransactionProducer(
            "pg", namesrv_addr=broker.address, transaction_listener=listener
        ) as producer:
            result = await producer.send_message_in_transaction(message, arg)
            await asyncio.to_thread(broker.wait_for, END)
            return result

    return asyncio.run(scenario())


both_faces = pytest.mark.parametrize("send", [sync_send, aio_send])


def ends(broker: FakeBroker) -> list[EndTransactionRequestHeader]:
    return [EndTransactionRequestHeader.from_ext(each.ext) for each in broker.asked(END)]


@both_faces
@pytest.mark.parametrize("listener_type", [Answers, AsyncAnswers])
@pytest.mark.parametrize("state", list(LocalTransactionState))
def test_the_broker_is_told_how_the_local_transaction_ended(
    broker: FakeBroker, send: Any, listener_type: Any, state: LocalTransactionState
) -> None:
    """Covers C-483, C-484, C-413: the half, then one END_TRANSACTION with the listener's state."""
    listener = listener_type(state)
    message = Message(TOPIC, b"x", delay_level=3)
    result = send(broker, message, listener, "argument")

    assert result.local_transaction_state is state
    assert (result.send_status, result.queue_offset) == (SendStatus.SEND_OK, HALF_OFFSET)
    assert result.transaction_id == result.msg_id == message.transaction_id
    ((seen, arg, _),) = listener.executed
    assert (seen.transaction_id, arg) == (result.msg_id, "argument")

    (half,) = broker.asked(SEND)
    header = SendMessageRequestHeader.from_ext_v2(half.ext)
    properties = decode_properties(header.properties or "")
    assert (properties["TRAN_MSG"], properties["PGROUP"]) == ("true", "pg")
    assert "DELAY" not in properties
    assert header.sys_flag & 0xC == 4

    (end,) = ends(broker)
    assert (end.producer_group, end.msg_id) == ("pg", result.msg_id)
    assert (end.tran_state_table_offset, end.commit_log_offset) == (HALF_OFFSET, 1000)
    assert (end.commit_or_rollback, end.from_transaction_check) == (FLAGS[state], False)
    assert broker.asked(END)[0].command.is_oneway


@both_faces
@pytest.mark.parametrize("bad", [None, "COMMIT_MESSAGE", raising])
def test_a_listener_without_an_answer_leaves_the_transaction_open(
    broker: FakeBroker, send: Any, bad: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Covers C-484: None, junk and exceptions are UNKNOW; what it raised is the remark."""
    with caplog.at_level(logging.WARNING):
        result = send(broker, Message(TOPIC, b"x"), Answers(bad))
    assert result.local_transaction_state is UNKNOW
    assert [end.commit_or_rollback for end in ends(broker)] == [0]
    remark = broker.asked(END)[0].command.remark
    if bad is raising:
        assert remark == "executeLocalTransactionBranch exception: LookupError: no such order"
        assert "raised; the transaction is UNKNOW" in caplog.text
    else:
        assert (remark is None) == (bad is None)


@both_faces
@pytest.mark.parametrize("code", [10, 11, 12])
def test_a_half_that_is_not_stored_as_wished_is_rolled_back(
    broker: FakeBroker, send: Any, code: int
) -> None:
    """Covers C-484: other statuses than SEND_OK never reach the listener."""
    broker.on[SEND] = half_stored(code)
    listener = Answers(COMMIT)
    result = send(broker, Message(TOPIC, b"x"), listener)
    assert result.local_transaction_state is ROLLBACK
    assert not listener.executed
    assert [end.commit_or_rollback for end in ends(broker)] == [12]


def test_the_local_transaction_runs_on_the_callers_thread(broker: FakeBroker) -> None:
    """Covers C-484."""
    listener = Answers()
    sync_send(broker, Message(TOPIC, b"x"), listener)
    assert listener.executed[0][2] == threading.get_ident()


def test_plain_local_transactions_of_asyncio_run_beside_each_other_and_the_checks(
    broker: FakeBroker,
) -> None:
    """Covers C-484, C-486: a broker may ask about one of them, which then must be answered."""
    together, asked = threading.Barrier(3), threading.Event()

    class Meeting(Answers):
        def execute_local_transaction(self, message: Message, arg: Any) -> Any:
            together.wait(WAIT_S)
            assert asked.wait(WAIT_S)
            return COMMIT

        def check_local_transaction(self, message: MessageExt) -> Any:
            asked.set()
            return UNKNOW

    async def scenario() -> list[Any]:
        async with aio.TransactionProducer(
            "pg", namesrv_addr=broker.address, transaction_listener=Meeting()
        ) as producer:
            sends = [
                asyncio.create_task(producer.send_message_in_transaction(Message(TOPIC, b"x")))
                for _ in range(2)
            ]
            await asyncio.to_thread(together.wait, WAIT_S)
            await asyncio.to_thread(ask, broker)
            return [(await each).local_transaction_state for each in sends]

    assert asyncio.run(scenario()) == [COMMIT, COMMIT]


@pytest.mark.parametrize("is_async", [False, True])
def test_a_stored_half_is_ended_though_its_sender_is_cancelled(
    broker: FakeBroker, is_async: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Covers C-484: else a database that committed waits for the broker to ask.

    Its block may end at once, as by an ``asyncio.timeout`` around it.
    """
    entered, released = threading.Event(), threading.Event()
    steps: list[str] = []
    close = ProducerBase._close

    async def closing(producer: Any, machine: Any) -> None:
        steps.append("closed")
        await close(producer, machine)

    class Slow(Answers):
        def execute_local_transaction(self, message: Message, arg: Any) -> Any:
            entered.set()
            assert released.wait(WAIT_S)
            return COMMIT

    class AsyncSlow(Answers):
        async def execute_local_transaction(self, message: Message, arg: Any) -> Any:
            return await asyncio.to_thread(Slow().execute_local_transaction, message, arg)

    async def scenario() -> None:
        async with aio.TransactionProducer(
            "pg",
            namesrv_addr=broker.address,
            transaction_listener=(AsyncSlow if is_async else Slow)(),
        ) as producer:
            hook = SimpleNamespace(end_transaction=lambda _: steps.append("told"))
            producer.register_end_transaction_hook(hook)
            send = asyncio.create_task(producer.send_message_in_transaction(Message(TOPIC, b"x")))
            try:
                assert await asyncio.to_thread(entered.wait, WAIT_S)
                send.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await send
            finally:
                asyncio.get_running_loop().call_soon(released.set)

    monkeypatch.setattr(ProducerBase, "_close", closing)
    asyncio.run(scenario())
    assert steps == ["told", "closed"]
    broker.wait_for(END)
    assert [end.commit_or_rollback for end in ends(broker)] == [FLAGS[COMMIT]]


def test_a_local_transaction_may_shut_its_producer_down(broker: FakeBroker) -> None:
    """Covers C-484: the end, which waits for others, does not wait for this one."""

    class Ending(Answers):
        async def execute_local_transaction(self, message: Message, arg: Any) -> Any:
            await asyncio.create_task(producer.shutdown())
            return COMMIT

    async def scenario() -> Any:
        await producer.start()
        return await producer.send_message_in_transaction(Message(TOPIC, b"x"))

    producer = aio.TransactionProducer(
        "pg", namesrv_addr=broker.address, transaction_listener=Ending(),
        send_msg_timeout_ms=3_600_000,
    )  # fmt: skip
    assert asyncio.run(scenario()).local_transaction_state is COMMIT


def test_a_half_that_is_refused_never_reaches_the_listener(broker: FakeBroker) -> None:
    """Covers C-483: the send's error with its outcome; nothing is ended."""
    broker.on[SEND] = refusal(16, "transactional messages are rejected")
    listener = Answers()
    with TransactionProducer(
        "pg", namesrv_addr=broker.address, transaction_listener=listener
    ) as producer:
        with pytest.raises(SendError) as raised:
            producer.send_message_in_transaction(Message(TOPIC, b"x"))
        assert raised.value.outcome is SendOutcome.REJECTED
    assert not listener.executed
    assert not broker.asked(END)


def test_a_retried_half_ends_by_the_one_that_was_answered() -> None:
    """Covers C-487: one UNIQ_KEY, two halves; the last is ended, the other will be asked about."""
    with FakeBroker() as one, FakeBroker(name="broker-b") as two:
        one.others = [two]
        one.on[SEND] = refusal(1, "busy")
        two.on[SEND] = half_stored()
        for broker in (one, two):
            broker.on[END] = lambda _: None
        with TransactionProducer(
            "pg", namesrv_addr=one.address, transaction_listener=Answers()
        ) as producer:
            for _ in range(2):
                result = producer.send_message_in_transaction(Message(TOPIC, b"x"))
                assert result.message_queue.broker_name == "broker-b"
            two.wait_for(END, 2)
        assert not one.asked(END)


def test_without_a_listener_nothing_is_sent(broker: FakeBroker) -> None:
    """Covers C-93, C-483."""
    with TransactionProducer("pg", namesrv_addr=broker.address) as producer:
        with pytest.raises(ConfigurationError, match="TransactionListener is null"):
            producer.send_message_in_transaction(Message(TOPIC, b"x"))
        producer.transaction_listener = Answers()
        assert producer.send_message_in_transaction(Message(TOPIC, b"x"))
    with pytest.raises(ConfigurationError, match="no method execute_local_transaction"):
        TransactionProducer("pg", transaction_listener=object())  # type: ignore[arg-type]


def test_a_timed_message_cannot_be_half(broker: FakeBroker) -> None:
    with (
        TransactionProducer(
            "pg", namesrv_addr=broker.address, transaction_listener=Answers()
        ) as producer,
        pytest.raises(MessageInvalidError, match="delivery time of its own"),
    ):
        producer.send_message_in_transaction(Message(TOPIC, b"x", delay_time_ms=5))


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        (
            {"check_thread_pool_min_size": 0},
            "check_thread_pool_min_size must be a whole number from 1 on",
        ),
        ({"check_thread_pool_min_size": 2}, "must not be more than"),
        ({"check_request_hold_max": 0}, "check_request_hold_max must be a whole number from 1 on"),
    ],
)
def test_check_settings_are_checked(settings: dict[str, Any], text: str) -> None:
    """Covers C-91, C-92."""
    default = TransactionSettings()
    assert (default.check_thread_pool_min_size, default.check_thread_pool_max_size) == (1, 1)
    assert default.check_request_hold_max == 2000
    with pytest.raises(ConfigurationError, match=text):
        TransactionProducer("pg", **settings)


@both_faces
def test_a_stored_half_has_its_broker_know_the_producer(
    broker: FakeBroker, send: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Covers C-486: it may ask before the next round of heartbeats."""
    halves: list[str] = []

    def half_stored(self: Any, engine: Any, result: Any) -> None:
        assert engine.instance is not None
        halves.append(result.msg_id)

    monkeypatch.setattr(TransactionBase, "_half_stored", half_stored)
    result = send(broker, Message(TOPIC, b"x"), Answers())
    assert halves == [result.msg_id]


@pytest.mark.parametrize("face", ["threads", "asyncio"])
def test_an_end_that_cannot_be_told_is_no_failed_send(
    broker: FakeBroker, face: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Covers C-484: the broker will ask; its id of the half cannot be read here."""
    broker.on[SEND] = lambda _: answer(0, SendMessageResponseHeader("nonsense", 0, HALF_OFFSET))
    message = Message(TOPIC, b"x")
    settings: dict[str, Any] = {
        "namesrv_addr": broker.address, "transaction_listener": Answers(ROLLBACK),
    }  # fmt: skip

    async def scenario() -> Any:
        async with aio.TransactionProducer("pg", **settings) as producer:
            return await producer.send_message_in_transaction(message)

    if face == "asyncio":
        result = asyncio.run(scenario())
    else:
        with TransactionProducer("pg", **settings) as producer:
            result = producer.send_message_in_transaction(message)
    assert result.local_transaction_state is ROLLBACK
    assert "ended with ROLLBACK_MESSAGE, but the broker could not be told" in caplog.text
    assert not broker.asked(END)


# --- the broker asks ------------------------------------------------------------------------------


def ask(
    broker: FakeBroker, transaction_id: str = "T1", group: str = "pg", topic: str = TOPIC
) -> None:
    """Ask every connection that has sent a heartbeat for a transaction (39)."""
    record = encode_record(
        RecordFields(
            topic=topic,
            queue_id=0,
            flag=0,
            sys_flag=0,
            born_timestamp=1,
            born_host=("127.0.0.1", 1),
            store_timestamp=2,
            store_host=("127.0.0.1", 10911),
            reconsume_times=0,
            prepared_transaction_offset=0,
            body=b"half",
            properties=f"PGROUP\x01{group}\x02TRAN_MSG\x01true\x02UNIQ_KEY\x01{transaction_id}",
            queue_offset=HALF_OFFSET + 1,
            physical_offset=2000,
        )
    )
    header = CheckTransactionStateRequestHeader(
        HALF_OFFSET + 1, 2000, "offset id", transaction_id, "offset id"
    )
    command = RemotingCommand.request(RequestCode.CHECK_TRANSACTION_STATE, header, bytes(record))
    (beat, *_) = broker.wait_for(RequestCode.HEART_BEAT)

    async def push() -> None:
        beat.connection.oneway(command)

    broker.thread.run(push())


@pytest.mark.parametrize("listener_type", [Answers, AsyncAnswers])
@pytest.mark.parametrize("state", list(LocalTransactionState))
def test_a_broker_that_asks_is_told(
    broker: FakeBroker, listener_type: Any, state: LocalTransactionState
) -> None:
    """Covers C-485, C-486: also a producer that has sent nothing answers for its group."""
    listener = listener_type(check=state)
    with TransactionProducer("pg", namesrv_addr=broker.address, transaction_listener=listener):
        ask(broker)
        broker.wait_for(END)
    (checked,) = listener.checked
    assert (checked.body, checked.topic, checked.transaction_id) == (b"half", TOPIC, "T1")
    (end,) = ends(broker)
    assert (end.producer_group, end.msg_id, end.transaction_id) == ("pg", "T1", "T1")
    assert (end.tran_state_table_offset, end.commit_log_offset) == (HALF_OFFSET + 1, 2000)
    assert (end.commit_or_rollback, end.from_transaction_check) == (FLAGS[state], True)


@pytest.mark.parametrize("listener_type", [Answers, AsyncAnswers])
def test_the_asyncio_face_answers_too(broker: FakeBroker, listener_type: Any) -> None:
    """Covers C-485."""
    listener = listener_type(check=ROLLBACK)

    async def scenario() -> None:
        async with aio.TransactionProducer(
            "pg", namesrv_addr=broker.address, transaction_listener=listener
        ):
            await asyncio.to_thread(ask, broker)
            await asyncio.to_thread(broker.wait_for, END)

    asyncio.run(scenario())
    assert [end.commit_or_rollback for end in ends(broker)] == [12]


def ending_the_interpreter() -> Any:
    raise SystemExit(3)


@pytest.mark.parametrize("bad", [raising, ending_the_interpreter, None, 7])
def test_a_check_that_fails_is_unknow(broker: FakeBroker, bad: Any) -> None:
    """Covers C-485: and the next question is answered as if nothing had been."""
    answers = iter([bad, lambda: COMMIT])

    def next_answer() -> Any:
        answer = next(answers)
        return answer() if callable(answer) else answer

    listener = Answers(check=next_answer)
    with TransactionProducer("pg", namesrv_addr=broker.address, transaction_listener=listener):
        ask(broker)
        broker.wait_for(END)
        ask(broker)
        broker.wait_for(END, 2)
    assert [end.commit_or_rollback for end in ends(broker)] == [0, 8]


def test_more_questions_than_may_wait_are_dropped(
    broker: FakeBroker, caplog: pytest.LogCaptureFixture
) -> None:
    """Covers C-91, C-92: one thread asks, one more question waits, the third is asked again."""
    entered, opened = threading.Event(), threading.Event()

    def wait() -> LocalTransactionState:
        entered.set()
        opened.wait(WAIT_S)
        return COMMIT

    listener = Answers(check=wait)
    with (
        TransactionProducer(
            "pg",
            namesrv_addr=broker.address,
            transaction_listener=listener,
            check_request_hold_max=2,
        ) as producer,
        caplog.at_level(logging.WARNING),
    ):
        for number in range(3):
            ask(broker, f"T{number}")
            entered.wait(WAIT_S)
        # A question on the same connection after them: they were all taken in.
        ask(broker, "T3", "another group")
        producer.send_message_in_transaction(Message(TOPIC, b"x"))
        broker.wait_for(END)
        opened.set()
        broker.wait_for(END, 3)
    assert [m.msg_id for m in listener.checked] == ["T0", "T1"]
    assert "the broker will ask again" in caplog.text


def test_a_group_without_listener_is_not_asked(
    broker: FakeBroker, caplog: pytest.LogCaptureFixture
) -> None:
    """Covers C-485: nothing is told of what nobody here knows."""
    seen = threading.Event()

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "no listener" in record.getMessage():
                seen.set()

    handler = Handler()
    logging.getLogger("rocketstream.client").addHandler(handler)
    try:
        with TransactionProducer("pg", namesrv_addr=broker.address):
            ask(broker)
            assert seen.wait(WAIT_S)
    finally:
        logging.getLogger("rocketstream.client").removeHandler(handler)
    assert not broker.asked(END)


def test_end_transaction_hooks_see_every_end(broker: FakeBroker) -> None:
    """Covers C-475: the end after the send and the one the broker asked for."""
    contexts: list[EndTransactionContext] = []

    class Hook:
        name = "ends"

        def end_transaction(self, context: EndTransactionContext) -> None:
            contexts.append(context)
            raise LookupError("only logged")

    producer = TransactionProducer(
        "pg", namesrv_addr=broker.address, transaction_listener=Answers(check=ROLLBACK)
    )
    producer.register_end_transaction_hook(Hook())
    with producer:
        result = producer.send_message_in_transaction(Message(TOPIC, b"x"))
        broker.wait_for(END)
        ask(broker)
        broker.wait_for(END, 2)
    first, second = contexts
    assert (first.producer_group, first.msg_id) == ("pg", result.msg_id)
    assert (first.transaction_state, first.from_transaction_check) == ("COMMIT_MESSAGE", False)
    assert (second.transaction_state, second.from_transaction_check) == ("ROLLBACK_MESSAGE", True)
    assert (second.msg_id, second.transaction_id) == ("T1", "T1")


def test_a_namespace_is_on_the_wire_and_nowhere_else(broker: FakeBroker) -> None:
    """Covers C-148, C-485: the broker knows group and topic with it, the listener without."""
    broker.topics[f"ns%{TOPIC}"] = 1
    listener = Answers(check=ROLLBACK)
    with TransactionProducer(
        "pg", namesrv_addr=broker.address, namespace="ns", transaction_listener=listener
    ) as producer:
        result = producer.send_message_in_transaction(Message(TOPIC, b"x"))
        broker.wait_for(END)
        ask(broker, "T1", "ns%pg", f"ns%{TOPIC}")
        broker.wait_for(END, 2)
    assert result.message_queue.topic == TOPIC
    header = SendMessageRequestHeader.from_ext_v2(broker.asked(SEND)[0].ext)
    assert (header.topic, header.producer_group) == (f"ns%{TOPIC}", "ns%pg")
    assert decode_properties(header.properties or "")["PGROUP"] == "ns%pg"
    assert [message.topic for message in listener.checked] == [TOPIC]
    assert {end.producer_group for end in ends(broker)} == {"ns%pg"}
