"""A message consumed on an operator's request (309): by the listener, in a one-task Spark job.

Law: nothing is sent back, counted or committed; the only result is the answer.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from typing import Any, Final

from pyspark.sql import functions

from rocketstream._util.clock import SYSTEM_CLOCK
from rocketstream.client.consumer.consume.listener_calls import CallObserver, consume_directly
from rocketstream.client.hooks import ConsumeHooks
from rocketstream.client.stats import ConsumerStats
from rocketstream.protocol.bodies import ConsumeMessageDirectlyResult
from rocketstream.protocol.message_ext import MessageExt, decode_message
from rocketstream.spark.listener.sink import unpack
from rocketstream.spark.options import consume_options

_MS_PER_MINUTE: Final = 60_000


class OnRequest:
    """Gives messages to a listener in Spark's workers; one at a time; from any thread.

    Args:
        session: the session whose workers run the listener.
        options: the options of the sink, with the packed listener.
    """

    def __init__(self, session: Any, options: Mapping[str, str]) -> None:
        self._session = session
        self._options = dict(options)
        self._busy = threading.Lock()

    def __call__(self, message: MessageExt, broker_name: str) -> ConsumeMessageDirectlyResult:
        """Consume a message; blocks until Spark has a slot and the listener has answered.

        A failure is reported in the answer, like a listener's exception.
        """
        if not self._busy.acquire(blocking=False):
            return _failed("another message is being consumed on request; ask again")
        try:
            return self._run(message.stored_record, broker_name)
        except Exception as error:  # whatever Spark raises for a job that fails
            return _failed(f"the Spark job that calls the listener failed: {error}")
        finally:
            self._busy.release()

    def _run(self, record: bytes, broker_name: str) -> ConsumeMessageDirectlyResult:
        options = self._options
        # A lambda, because Spark derives the kind of function from type hints. Not deterministic,
        # because Spark may call a deterministic function again.
        call = functions.udf(lambda _: consume_one(options, record, broker_name), "binary")
        asked = call.asNondeterministic()
        rows = self._session.range(0, 1, 1, 1).select(asked("id").alias("answer")).collect()
        return ConsumeMessageDirectlyResult.decode(bytes(rows[0].answer))


def consume_one(given: Mapping[str, str], record: bytes, broker_name: str) -> bytes:
    """Call a listener with one message; return the encoded outcome.

    The outcome names the exception the listener raised, or says that the call took longer than
    ``consumeTimeout`` and was left behind.

    Args:
        given: the options of the sink, with the packed listener.
        record: the message as brokers store it.
        broker_name: the broker that stores it.
    """
    options = consume_options(given)
    listener = unpack(options.listener, orderly=options.orderly)
    minutes = options.timeout_ms / _MS_PER_MINUTE
    stats = ConsumerStats(SYSTEM_CLOCK)
    observer = CallObserver(options.group, ConsumeHooks(), stats, SYSTEM_CLOCK, minutes)
    message = decode_message(record, broker_name)
    answers: list[ConsumeMessageDirectlyResult] = []

    def call() -> None:
        answers.append(asyncio.run(consume_directly(listener, message, broker_name, observer)))

    # On a thread, because a coroutine may block the loop that would have to end it.
    thread = threading.Thread(target=call, name="ConsumeMessageDirectly", daemon=True)
    thread.start()
    thread.join(options.timeout_ms / 1000)
    if not answers:
        hanging = _failed(
            f"the listener took longer than consumeTimeout ({minutes:g} min) and still runs"
        )
        hanging.order, hanging.spent_time_mills = options.orderly, int(options.timeout_ms)
        return hanging.encode()
    return answers[0].encode()


def _failed(remark: str) -> ConsumeMessageDirectlyResult:
    return ConsumeMessageDirectlyResult(consume_result="CR_THROW_EXCEPTION", remark=remark)
