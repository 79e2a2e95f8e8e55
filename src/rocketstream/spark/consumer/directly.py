"""The call of the listener with one message for an operator (309), in a task of its own.

Law: nothing is sent back, counted or committed; the only result is the answer.
"""

from __future__ import annotations

import asyncio
import threading
from typing import Final

from rocketstream._util.clock import SYSTEM_CLOCK
from rocketstream.client.consumer.consume.listener_calls import CallObserver, consume_directly
from rocketstream.client.hooks import ConsumeHooks
from rocketstream.client.stats import ConsumerStats
from rocketstream.protocol.bodies import ConsumeMessageDirectlyResult
from rocketstream.protocol.message_ext import decode_message
from rocketstream.spark.consumer.parcel import unpack
from rocketstream.spark.options import ConsumeOptions

_MS_PER_MINUTE: Final = 60_000


def consume_one(options: ConsumeOptions, record: bytes, broker_name: str) -> bytes:
    """Call a listener with one message; return the encoded outcome.

    The outcome names the exception the listener raised, or says that the call took longer than
    ``consumeTimeout`` and was left behind.

    Args:
        options: the options of consuming, with the listener.
        record: the message as brokers store it.
        broker_name: the broker that stores it.
    """
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
    return (answers[0] if answers else _hanging(options)).encode()


def _hanging(options: ConsumeOptions) -> ConsumeMessageDirectlyResult:
    return ConsumeMessageDirectlyResult(
        order=options.orderly,
        consume_result="CR_THROW_EXCEPTION",
        remark="the listener took longer than consumeTimeout "
        f"({options.timeout_ms / _MS_PER_MINUTE:g} min) and still runs",
        spent_time_mills=int(options.timeout_ms),
    )
