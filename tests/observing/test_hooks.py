"""Hooks around listener calls, pulls, sends and ends of transactions, on a running cluster."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from rocketstream import (
    CheckForbiddenContext,
    ConsumeFromWhere,
    ConsumeMessageContext,
    EndTransactionContext,
    FilterMessageContext,
    LocalTransactionState,
    Message,
    MessageExt,
    SendMessageContext,
    TransactionListener,
)
from rocketstream.errors import SendError, SendOutcome
from tests.kits import orderly
from tests.kits.cluster import Cluster
from tests.kits.faces import (
    ASYNCIO,
    LitePullConsumer,
    Producer,
    PullConsumer,
    PushConsumer,
    TransactionProducer,
)
from tests.kits.listeners import LATER, SUCCESS, WAIT_S, Seen, numbered, send_all
from tests.plugins.clusters import Names
from tests.plugins.waiting import wait_until

pytestmark = pytest.mark.usefixtures("face")

FIRST = ConsumeFromWhere.FIRST_OFFSET


class Watching:
    """A consume hook that notes every call; what it raises must not matter."""

    name = "watching"

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self.before: list[str] = []
        self.after: list[ConsumeMessageContext] = []

    def consume_message_before(self, context: ConsumeMessageContext) -> None:
        assert not context.success
        self.before += [message.body.decode() for message in context.messages]
        context.properties["mine"] = "1"
        raise RuntimeError("before")

    def consume_message_after(self, context: ConsumeMessageContext) -> None:
        assert context.properties["mine"] == "1"
        with self._changed:
            self.after.append(context)
            self._changed.notify_all()
        raise RuntimeError("after")

    def wait(self, count: int) -> list[ConsumeMessageContext]:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.after) >= count, WAIT_S), self.after
            return list(self.after)


def outcome(context: ConsumeMessageContext) -> tuple[str | None, bool, str]:
    return context.status, context.success, context.properties["ConsumeContextType"]


def raising(_: Any) -> None:
    raise LookupError("listener")


CONCURRENT: list[tuple[Callable[[Any], Any], tuple[str, bool, str]]] = [
    (lambda _: SUCCESS, ("CONSUME_SUCCESS", True, "SUCCESS")),
    (lambda _: LATER, ("RECONSUME_LATER", False, "FAILED")),
    (lambda _: None, ("RECONSUME_LATER", False, "RETURNNULL")),
    (raising, ("RECONSUME_LATER", False, "EXCEPTION")),
]


@pytest.mark.parametrize(("listener", "wanted"), CONCURRENT)
def test_concurrent_calls_are_told(
    cluster: Cluster, names: Names, listener: Any, wanted: tuple[str, bool, str]
) -> None:
    """Covers C-232, C-258: before with the messages, after with how it ended."""
    cluster.create_topic(names.topic, 1)
    send_all(cluster.namesrv_addr, numbered(names.topic, [7]))
    hook = Watching()
    consumer = PushConsumer(
        names.group, namesrv_addr=cluster.namesrv_addr, listener=listener, consume_from_where=FIRST
    )
    consumer.subscribe(names.topic)
    consumer.register_consume_message_hook(hook)
    with consumer:
        context = hook.wait(1)[0]
    assert outcome(context) == wanted
    assert (context.consumer_group, context.message_queue.topic) == (names.group, names.topic)
    assert hook.before[0] == "7"


@pytest.mark.parametrize(
    ("status", "wanted"),
    [
        (orderly.SUCCESS, ("SUCCESS", True, "SUCCESS")),
        (orderly.SUSPEND, ("SUSPEND_CURRENT_QUEUE_A_MOMENT", False, "FAILED")),
        (None, ("SUSPEND_CURRENT_QUEUE_A_MOMENT", False, "RETURNNULL")),
    ],
)
def test_orderly_calls_are_told(
    cluster: Cluster, names: Names, status: Any, wanted: tuple[str, bool, str]
) -> None:
    """Covers C-232, C-258 for orderly listeners."""
    cluster.create_topic(names.topic, 1)
    send_all(cluster.namesrv_addr, numbered(names.topic, [7]))
    hook = Watching()
    consumer = PushConsumer(
        names.group, namesrv_addr=cluster.namesrv_addr, consume_from_where=FIRST
    )
    consumer.register_message_listener(lambda _messages: status, orderly=True)
    consumer.subscribe(names.topic)
    consumer.register_consume_message_hook(hook)
    with consumer:
        assert outcome(hook.wait(1)[0]) == wanted


class DropsEven:
    """A filter hook that keeps odd numbers and raises in the end."""

    name = "drops even"

    def __init__(self) -> None:
        self.contexts: list[FilterMessageContext] = []

    def filter_message(self, context: FilterMessageContext) -> None:
        self.contexts.append(context)
        context.messages[:] = [m for m in context.messages if int(m.body) % 2]
        raise RuntimeError("filter")


def test_filtered_messages_count_as_consumed(cluster: Cluster, names: Names) -> None:
    """Covers C-220, C-232: what the hook drops is not consumed, and the offset passes it."""
    cluster.create_topic(names.topic, 1)
    send_all(cluster.namesrv_addr, numbered(names.topic, range(8)))
    seen, hook = Seen(), DropsEven()
    consumer = PushConsumer(
        names.group, namesrv_addr=cluster.namesrv_addr, listener=seen, consume_from_where=FIRST
    )
    consumer.subscribe(names.topic)
    consumer.register_filter_message_hook(hook)
    with consumer:
        seen.wait_consumed(4)
    assert sorted(seen.bodies) == ["1", "3", "5", "7"]
    wait_until(lambda: cluster.committed(names.group, names.topic, 1) == [8], "offset 8")
    mine = [c for c in hook.contexts if c.message_queue.topic == names.topic]
    assert (mine[0].consumer_group, mine[0].unit_mode) == (names.group, False)


def test_pull_consumers_run_hooks_too(cluster: Cluster, names: Names) -> None:
    """Covers C-220, C-547: inside pull and poll, as successes."""
    cluster.create_topic(names.topic, 1)
    send_all(cluster.namesrv_addr, numbered(names.topic, range(4)))
    hook, drop = Watching(), DropsEven()
    with PullConsumer(names.group, namesrv_addr=cluster.namesrv_addr) as pull:
        pull.register_consume_message_hook(hook)
        pull.register_filter_message_hook(drop)
        (mq,) = pull.fetch_subscribe_message_queues(names.topic)
        found = pull.pull(mq, "*", 0, 32).msg_found_list
    assert [message.body for message in found] == [b"1", b"3"]
    assert outcome(hook.wait(1)[0]) == ("CONSUME_SUCCESS", True, "SUCCESS")
    hook, drop = Watching(), DropsEven()
    lite = LitePullConsumer(
        names.group, namesrv_addr=cluster.namesrv_addr, consume_from_where=FIRST
    )
    lite.register_consume_message_hook(hook)
    lite.register_filter_message_hook(drop)
    lite.subscribe(names.topic)
    lite.start()
    try:
        found = lite.poll(WAIT_S * 1_000)
    finally:
        lite.shutdown()
    assert [message.body for message in found] == [b"1", b"3"]
    assert hook.wait(1)[0].success


# --- producers ----------------------------------------------------------------------------------


class Sending:
    """A send hook that notes every try and raises."""

    name = "sending"

    def __init__(self) -> None:
        self.before: list[SendMessageContext] = []
        self.after: list[tuple[str, bool, bool]] = []

    def send_message_before(self, context: SendMessageContext) -> None:
        self.before.append(context)
        raise RuntimeError("before")

    def send_message_after(self, context: SendMessageContext) -> None:
        stored = context.send_result is not None
        self.after.append((context.communication_mode, stored, context.error is not None))
        raise RuntimeError("after")


def awaited(face: str) -> str:
    """Return what a send whose result is waited for is called: asyncio knows no other."""
    return "ASYNC" if face == ASYNCIO else "SYNC"


def test_every_way_to_send_is_told(cluster: Cluster, names: Names, face: str) -> None:
    """Covers C-475: sync, future, batch and one-way; the context has queue and address."""
    cluster.create_topic(names.topic, 1)
    hook = Sending()
    with Producer(names.group, namesrv_addr=cluster.namesrv_addr) as producer:
        producer.register_send_message_hook(hook)
        producer.send(Message(names.topic, b"1", tags="A"))
        producer.send_async(Message(names.topic, b"2")).result(WAIT_S)
        producer.send([Message(names.topic, b"3"), Message(names.topic, b"4")])
        producer.send_oneway(Message(names.topic, b"5"))
    assert hook.after == [
        (awaited(face), True, False),
        ("ASYNC", True, False),
        (awaited(face), True, False),
        ("ONEWAY", False, False),
    ]
    first = hook.before[0]
    assert isinstance(first.message, Message)
    assert (first.producer_group, first.message.tags) == (names.group, "A")
    assert first.message_queue.topic == names.topic
    assert ":" in first.broker_address


def test_a_failed_try_is_told_with_its_error(cluster: Cluster, names: Names, face: str) -> None:
    """Covers C-475: each try has a context of its own."""
    cluster.create_topic(names.topic, 1)
    hook = Sending()
    big = 8 * 1024 * 1024
    with Producer(
        names.group,
        namesrv_addr=cluster.namesrv_addr,
        max_message_size=big,
        compress_msg_body_over_howmuch=big,
    ) as producer:
        producer.register_send_message_hook(hook)
        with pytest.raises(SendError):
            producer.send(Message(names.topic, bytes(5 * 1024 * 1024)))
    assert hook.after == [(awaited(face), False, True)]


class Forbids:
    """A check that forbids one body."""

    name = "forbids"

    def check_forbidden(self, context: CheckForbiddenContext) -> None:
        message = context.message
        if isinstance(message, Message) and message.body == b"bad":
            raise PermissionError("not this one")


def test_a_check_forbids_a_send(cluster: Cluster, names: Names) -> None:
    """The one hook whose exception counts: nothing is sent."""
    cluster.create_topic(names.topic, 1)
    with Producer(names.group, namesrv_addr=cluster.namesrv_addr) as producer:
        producer.register_check_forbidden_hook(Forbids())
        producer.send(Message(names.topic, b"good"))
        with pytest.raises(SendError, match="not this one") as caught:
            producer.send(Message(names.topic, b"bad"))
        assert caught.value.outcome is SendOutcome.NOT_SENT
    wait_until(lambda: cluster.ends(names.topic, 1) == [1], "the good one alone")


class Ends:
    """An end-transaction hook that notes and raises."""

    name = "ends"

    def __init__(self) -> None:
        self.contexts: list[EndTransactionContext] = []

    def end_transaction(self, context: EndTransactionContext) -> None:
        self.contexts.append(context)
        raise RuntimeError("end")


class Commits(TransactionListener):
    def execute_local_transaction(self, message: Message, arg: Any) -> LocalTransactionState:
        return LocalTransactionState.COMMIT_MESSAGE

    def check_local_transaction(self, message: MessageExt) -> LocalTransactionState:
        return LocalTransactionState.COMMIT_MESSAGE


def test_ends_of_transactions_are_told(cluster: Cluster, names: Names) -> None:
    """Covers C-545: state, ids, and that no broker had asked."""
    cluster.create_topic(names.topic, 1)
    hook, sending = Ends(), Sending()
    producer = TransactionProducer(
        names.group, transaction_listener=Commits(), namesrv_addr=cluster.namesrv_addr
    )
    producer.register_end_transaction_hook(hook)
    producer.register_send_message_hook(sending)
    with producer:
        result = producer.send_message_in_transaction(Message(names.topic, b"x"))
    (context,) = hook.contexts
    assert (context.transaction_state, context.from_transaction_check) == ("COMMIT_MESSAGE", False)
    assert (context.msg_id, context.transaction_id) == (result.msg_id, result.msg_id)
    assert sending.before[0].msg_type.name == "TRANS_MSG_HALF"


# --- what a listener can see --------------------------------------------------------------------


def test_messages_carry_the_bounds_of_their_queue(cluster: Cluster, names: Names) -> None:
    """Covers C-233, C-234: the backlog behind a message is MAX_OFFSET minus its offset."""
    cluster.create_topic(names.topic, 1)
    send_all(cluster.namesrv_addr, numbered(names.topic, range(5)))
    seen = Seen()
    with PushConsumer(
        names.group,
        namesrv_addr=cluster.namesrv_addr,
        listener=seen,
        consume_from_where=FIRST,
        subscription={names.topic: "*"},
    ):
        seen.wait_consumed(5)
    backlogs = [int(m.properties["MAX_OFFSET"]) - m.queue_offset for m in seen.consumed]
    assert sorted(backlogs) == [1, 2, 3, 4, 5]
    assert {m.properties["MIN_OFFSET"] for m in seen.consumed} == {"0"}
    assert all(m.properties["CLUSTER"] for m in seen.consumed)
