"""Scenes of transactions, and of requests that wait for replies."""

from __future__ import annotations

import contextlib
from typing import Any

from rocketstream import (
    ConsumeConcurrentlyStatus,
    ConsumeFromWhere,
    LocalTransactionState,
    Message,
    MessageExt,
    Producer,
    PushConsumer,
    TransactionListener,
    TransactionProducer,
    create_reply_message,
)
from rocketstream.errors import RocketMQError, SendError
from tests.interleaving.stage import TOPIC, Call, Stage

COMMIT = LocalTransactionState.COMMIT_MESSAGE
ROLLBACK = LocalTransactionState.ROLLBACK_MESSAGE
UNKNOWN = LocalTransactionState.UNKNOW


class Ledger(TransactionListener):
    """The local transactions: what each was decided to be."""

    def __init__(self) -> None:
        self.decided: dict[bytes, LocalTransactionState] = {}

    def execute_local_transaction(self, message: Message, arg: Any) -> LocalTransactionState:
        """Decide."""
        body = bytes(message.body)
        self.decided[body] = arg[0]
        return UNKNOWN if arg[1] else self.decided[body]

    def check_local_transaction(self, message: MessageExt) -> LocalTransactionState:
        """Answer a broker."""
        return self.decided.get(bytes(message.body), ROLLBACK)


def transactions(stage: Stage) -> None:
    """Threads that send in transactions, while brokers ask and the producer may be shut down."""
    ledger = Ledger()
    producer = TransactionProducer("deciders", transaction_listener=ledger, **stage.ours())
    producer.start()
    cluster = stage.cluster

    def send() -> None:
        for body in stage.bodies(2):
            decision = stage.chance.choice([COMMIT, ROLLBACK]), stage.chance.random() < 0.4
            producer.send_message_in_transaction(Message(TOPIC, body), decision)

    def ask() -> None:
        for _ in range(2):
            stage.until(lambda: False, 7.0)
            cluster.check_transactions()

    if stage.chance.random() < 0.5:
        send()
    functions = {"send": send, "ask": ask, "shutdown": producer.shutdown}
    names = ["send", *stage.draw(2, ["send", "send", "ask", "shutdown"])]
    ends = "shutdown" in names
    stage.at_once(*(Call(name, functions[name], may_fail=ends) for name in names), within=4_000)
    producer.shutdown()
    with TransactionProducer(
        "deciders", transaction_listener=ledger, **stage.ours(instance_name="last")
    ):
        wanted = {body for body, state in ledger.decided.items() if state is COMMIT}
        for _ in range(10):
            cluster.check_transactions()
            stage.until(lambda: not cluster.broker.undecided_transactions, 7.0)
    stage.expect(not cluster.broker.undecided_transactions, "transactions are undecided")
    stored = stage.stored()
    stage.expect(len(stored) == len(set(stored)), "a message was stored twice")
    stage.expect(set(stored) == wanted, f"committed {sorted(wanted)}, and stored {sorted(stored)}")


def asking(stage: Stage) -> None:
    """Threads that wait for replies, and callbacks of others, while their producer may end."""
    chance = stage.chance
    answering = Producer("answering", **stage.ours(instance_name="answering"))
    answering.start()

    def answer(messages: list[MessageExt]) -> ConsumeConcurrentlyStatus:
        for message in messages:
            with contextlib.suppress(SendError):  # nobody is there any more
                answering.send(create_reply_message(message, b"re " + bytes(message.body)))
        return ConsumeConcurrentlyStatus.CONSUME_SUCCESS

    consumer = PushConsumer(
        "answerers",
        subscription={TOPIC: "*"},
        consume_from_where=ConsumeFromWhere.FIRST_OFFSET,
        listener=answer,
        **stage.ours(instance_name="answerers"),
    )
    asking = Producer("asking", **stage.ours(instance_name="asking"))
    futures: list[tuple[bytes, Any]] = []
    called: list[object] = []

    def ask() -> None:
        body = stage.body()
        reply = asking.request(Message(TOPIC, body), timeout_ms=9_000)
        stage.expect(bytes(reply.body) == b"re " + body, f"{body!r} was answered {reply.body!r}")

    def later() -> None:
        for body in stage.bodies(2):
            message = Message(TOPIC, body)
            future = asking.request_async(message, timeout_ms=9_000, callback=called.append)
            futures.append((body, future))

    def send() -> None:
        asking.send(Message("U", b"besides"))

    functions = {"ask": ask, "later": later, "send": send, "shutdown": asking.shutdown}
    stage.cluster.create_topic("U", 1)
    with consumer:
        asking.start()
        if chance.random() < 0.5:
            ask()
        names = stage.draw(chance.choice([2, 3]), ["ask", "ask", "later", "send", "shutdown"])
        ends = "shutdown" in names
        stage.at_once(*(Call(name, functions[name], may_fail=ends) for name in names))
        for body, future in futures:
            if not stage.until(future.done):
                stage.problem("a request was never done")
                continue
            error = future.exception()
            if error is None:
                stage.expect(bytes(future.result().body) == b"re " + body, "another's reply")
            else:
                told = ends and isinstance(error, RocketMQError)
                stage.expect(told, f"a request ended with {error!r}")
        stage.expect(stage.until(lambda: len(called) == len(futures)), "a callback was forgotten")
        asking.shutdown()
    answering.shutdown()
