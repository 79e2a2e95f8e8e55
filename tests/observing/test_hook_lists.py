"""Lists of hooks: order, what a failing hook does, what cannot be registered."""

from __future__ import annotations

import logging

import pytest

from rocketstream import (
    CheckForbiddenContext,
    ConsumeMessageContext,
    ConsumeReturnType,
    EndTransactionContext,
    FilterMessageContext,
    LitePullConsumer,
    MessageType,
    Producer,
    PullConsumer,
    PushConsumer,
    SendMessageContext,
    TransactionProducer,
    aio,
)
from rocketstream.client.hooks import (
    CheckForbiddenHooks,
    ConsumeHooks,
    EndTransactionHooks,
    FilterHooks,
    SendHooks,
)
from rocketstream.errors import ConfigurationError
from rocketstream.model import Message, MessageQueue

MQ = MessageQueue("T", "b", 0)


class Noting:
    """A hook of every kind that notes its calls and may fail."""

    def __init__(self, name: str, calls: list[str], fails: bool = False) -> None:
        self.name = name
        self._calls = calls
        self._fails = fails

    def _note(self, what: str) -> None:
        self._calls.append(f"{self.name} {what}")
        if self._fails:
            raise RuntimeError("hook")

    def consume_message_before(self, context: ConsumeMessageContext) -> None:
        self._note("before")

    def consume_message_after(self, context: ConsumeMessageContext) -> None:
        self._note("after")

    def send_message_before(self, context: SendMessageContext) -> None:
        self._note("before")

    def send_message_after(self, context: SendMessageContext) -> None:
        self._note("after")

    def end_transaction(self, context: EndTransactionContext) -> None:
        self._note("end")

    def filter_message(self, context: FilterMessageContext) -> None:
        context.messages.clear()
        self._note("filter")

    def check_forbidden(self, context: CheckForbiddenContext) -> None:
        self._note("check")


@pytest.fixture
def calls() -> list[str]:
    return []


def test_hooks_run_in_order_and_failures_are_logged(
    calls: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    """Covers C-232: what a hook raises changes nothing, and the next hook is called."""
    hooks = ConsumeHooks()
    assert not hooks
    hooks.register(Noting("bad", calls, fails=True))
    hooks.register(Noting("good", calls))
    assert hooks
    assert hooks.names == ["bad", "good"]
    context = ConsumeMessageContext("cg", [], MQ)
    with caplog.at_level(logging.WARNING, "rocketstream.client"):
        hooks.before(context)
        hooks.after(context)
    assert calls == ["bad before", "good before", "bad after", "good after"]
    assert "hook bad failed" in caplog.text


def test_other_kinds_swallow_too(calls: list[str]) -> None:
    """Covers C-232."""
    message = Message("T", b"x")
    send, end, filters = SendHooks(), EndTransactionHooks(), FilterHooks()
    for hooks in (send, end, filters):
        hooks.register(Noting("bad", calls, fails=True))
    context = SendMessageContext("pg", message, MQ, "h:1")
    send.before(context)
    send.after(context)
    end.end(EndTransactionContext("pg", message, "h:1", "id", "id", "COMMIT_MESSAGE"))
    assert filters.filter(FilterMessageContext("cg", [], MQ)) == []
    assert calls == ["bad before", "bad after", "bad end", "bad filter"]


def test_a_check_may_forbid(calls: list[str]) -> None:
    hooks = CheckForbiddenHooks()
    hooks.register(Noting("no", calls, fails=True))
    with pytest.raises(RuntimeError):
        hooks.check(CheckForbiddenContext("n", "pg", Message("T", b"x"), MQ, "h:1"))


def test_a_hook_without_its_methods_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"object cannot be registered.*no method"):
        SendHooks().register(object())  # type: ignore[arg-type]


def test_numbers_of_the_enumerations_are_upstreams() -> None:
    """Covers C-258, C-545: trace writes them."""
    names = ["SUCCESS", "TIME_OUT", "EXCEPTION", "RETURNNULL", "FAILED"]
    assert [ConsumeReturnType(number).name for number in range(5)] == names
    kinds = ["NORMAL_MSG", "TRANS_MSG_HALF", "TRANS_MSG_COMMIT", "DELAY_MSG"]
    assert [MessageType(number).name for number in range(4)] == kinds


@pytest.mark.parametrize("face", [PushConsumer, PullConsumer, LitePullConsumer, aio.PushConsumer,
                                  aio.PullConsumer, aio.LitePullConsumer])  # fmt: skip
def test_every_consumer_registers_hooks(face: type, calls: list[str]) -> None:
    """Covers C-232: before start, on both faces."""
    consumer = face("cg", namesrv_addr="127.0.0.1:1")
    consumer.register_consume_message_hook(Noting("c", calls))
    consumer.register_filter_message_hook(Noting("f", calls))


@pytest.mark.parametrize("face", [Producer, TransactionProducer, aio.Producer,
                                  aio.TransactionProducer])  # fmt: skip
def test_every_producer_registers_hooks(face: type, calls: list[str]) -> None:
    producer = face("pg", namesrv_addr="127.0.0.1:1")
    producer.register_send_message_hook(Noting("s", calls))
    producer.register_check_forbidden_hook(Noting("f", calls))
    if hasattr(producer, "transaction_settings"):
        producer.register_end_transaction_hook(Noting("e", calls))
