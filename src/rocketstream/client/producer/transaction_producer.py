"""The transaction producer of the sync face (upstream's TransactionMQProducer).

Law: the local transaction runs on the caller's thread; brokers' questions on check threads.
"""

from __future__ import annotations

from typing import Any

from rocketstream.arguments import checks_calls
from rocketstream.client.core.queue_rotation import ANY_QUEUE
from rocketstream.client.core.transaction import NOT_STORED_OK, LocalOutcome, may_execute
from rocketstream.client.producer.machine import BlockingMachine
from rocketstream.client.producer.producer import Producer
from rocketstream.client.producer.transaction import (
    CHECK_JOIN_S,
    EXECUTE,
    TransactionListener,
    awaited,
    outcome_now,
    transaction_result,
)
from rocketstream.client.producer.transaction_base import TransactionBase, end_failed
from rocketstream.errors import RocketMQError
from rocketstream.model import Message, SendResult, TransactionSendResult


@checks_calls()
class TransactionProducer(TransactionBase[BlockingMachine], Producer):
    """A producer whose messages become visible with the commit of a local transaction.

    Args:
        group: producer group; brokers ask any of its live members about open transactions.
        transaction_listener: a ``TransactionListener``; needed before the first send.
        check_thread_pool_min_size: 1; must not exceed the next.
        check_thread_pool_max_size: 1; threads that answer brokers, started when needed.
        check_request_hold_max: 2000; questions that may wait, more are dropped and asked again.
        **settings: as for ``Producer``.

    Raises:
        ConfigurationError: a setting that cannot be used; the text names it.
    """

    def send_message_in_transaction(
        self, message: Message, arg: Any = None, *, timeout_ms: float | None = None
    ) -> TransactionSendResult:
        """Store a message out of sight, run the local transaction, tell the broker how it ended.

        The broker is told one way, as upstream does: if that is lost it asks later. A delay level
        of the message is dropped.

        Args:
            message: what to send.
            arg: handed to ``execute_local_transaction``.
            timeout_ms: for storing the message, all tries together.

        Raises:
            SendError: the message was not stored, or that is unknown; the listener was not called.
            ConfigurationError: there is no listener.
        """
        started = self._running()
        listener, prepared = self._half(message)
        result = self._send(prepared, ANY_QUEUE, self._timeout(timeout_ms))
        self._half_stored(started.engine, result)
        outcome = self._execute(listener, message, arg, result)
        try:
            address, command = self._end_request(
                started.engine, message, result, outcome.state, outcome.remark
            )
            self._machine.pool.oneway(address, command)
        except RocketMQError as error:
            end_failed(result, outcome.state, error)
        return transaction_result(result, outcome.state)

    def _execute(
        self, listener: TransactionListener, message: Message, arg: Any, result: SendResult
    ) -> LocalOutcome:
        if not may_execute(result):
            return NOT_STORED_OK
        value = outcome_now(EXECUTE, listener.execute_local_transaction, message, arg)
        return value if isinstance(value, LocalOutcome) else self._wait(awaited(EXECUTE, value))

    def shutdown(self) -> None:
        """As ``Producer.shutdown``; answers to brokers under way may be lost."""
        super().shutdown()
        self._checks.executor.join(CHECK_JOIN_S)
