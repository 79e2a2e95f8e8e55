"""The transaction producer of the asyncio face.

Law: listeners that are not coroutine functions run on check threads, never on the loop.
"""

from __future__ import annotations

import inspect
from typing import Any

from rocketstream.arguments import checks_calls
from rocketstream.client.core.queue_rotation import ANY_QUEUE
from rocketstream.client.core.transaction import NOT_STORED_OK, LocalOutcome, may_execute
from rocketstream.client.producer.aio_producer import AsyncProducer
from rocketstream.client.producer.machine import LoopMachine
from rocketstream.client.producer.transaction import (
    EXECUTE,
    TransactionListener,
    outcome_async,
    outcome_in_thread,
    transaction_result,
)
from rocketstream.client.producer.transaction_base import TransactionBase, end_failed
from rocketstream.errors import RocketMQError
from rocketstream.model import Message, SendResult, TransactionSendResult


@checks_calls()
class AsyncTransactionProducer(TransactionBase[LoopMachine], AsyncProducer):
    """Sends messages in transactions; arguments are those of ``rocketstream.TransactionProducer``.

    The listener's methods may be coroutines; others run on threads.
    """

    async def send_message_in_transaction(
        self, message: Message, arg: Any = None, *, timeout_ms: float | None = None
    ) -> TransactionSendResult:
        """Store a message out of sight, run the local transaction, tell the broker how it ended.

        See ``rocketstream.TransactionProducer.send_message_in_transaction``.
        """
        engine = self._running().engine
        listener, prepared = self._half(message)
        result = await self._send(prepared, ANY_QUEUE, self._timeout(timeout_ms), self._begin())
        self._half_stored(engine, result)
        outcome = await self._execute(listener, message, arg, result)
        try:
            address, command = self._end_request(
                engine, message, result, outcome.state, outcome.remark
            )
            connection = await engine.instance.remoting.connection(address)
            connection.oneway(command)
        except RocketMQError as error:
            end_failed(result, outcome.state, error)
        return transaction_result(result, outcome.state)

    async def _execute(
        self, listener: TransactionListener, message: Message, arg: Any, result: SendResult
    ) -> LocalOutcome:
        if not may_execute(result):
            return NOT_STORED_OK
        call = listener.execute_local_transaction
        if inspect.iscoroutinefunction(call):
            return await outcome_async(EXECUTE, call, message, arg)
        return await outcome_in_thread(self._checks.executor, EXECUTE, call, message, arg)
