"""The options of ``format("rocketmq-consumer")``: a listener, its group, its bounds.

Pure: text in, a frozen value out; every mistake is a ConfigurationError naming the option.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from rocketstream.protocol.names import check_consumer_group
from rocketstream.spark.options.connecting import CONNECT_OPTIONS, ConnectOptions, connect_settings
from rocketstream.spark.options.parsing import bad, flag, known, number, of_a_sink, required

MAX_RECONSUME_TIMES: Final = 16
"""The meaning of -1, in order too: a task must end, so a queue cannot be suspended for ever."""
_MS_PER_MINUTE: Final = 60_000

CONSUME_OPTIONS: Final = (
    "listener",
    "group",
    "orderly",
    "consumeMessageBatchMaxSize",
    "consumeThreadMax",
    "maxReconsumeTimes",
    "suspendCurrentQueueTimeMillis",
    "consumeTimeout",
    "sendBackCause",
    *CONNECT_OPTIONS,
)
"""Every option of the sink, spelled as documented; the names are RocketMQ's."""


@dataclass(frozen=True, slots=True)
class ConsumeOptions(ConnectOptions):
    """The options of consuming.

    Attributes:
        listener: the listener as ``rocketstream.spark.consume`` packed it.
        group: the consumer group whose retry topic takes messages that fail.
        orderly: whether each queue is consumed in order.
        batch_size: how many messages one listener call gets at most.
        threads_max: how many listener calls run at once in one task at most.
        max_reconsume_times: how many tries follow the first before the dead-letter topic.
        suspend_ms: pause of a queue whose orderly listener asks for one.
        timeout_ms: how long a listener call may take before it is left behind and its messages are
            sent back.
        send_back_cause: whether messages sent back say what the listener raised, and where.
    """

    listener: str
    group: str
    orderly: bool
    batch_size: int
    threads_max: int
    max_reconsume_times: int
    suspend_ms: int
    timeout_ms: float
    send_back_cause: bool

    def __repr__(self) -> str:
        return f"ConsumeOptions(group={self.group!r}, name_server={self.name_server!r})"


def consume_options(given: Mapping[str, str]) -> ConsumeOptions:
    """Parse the options of consuming; names match in any case.

    Raises:
        ConfigurationError: an option is unknown, missing or unusable; the error says what to give.
    """
    values = known(of_a_sink(given), CONSUME_OPTIONS)
    connect = connect_settings(values)
    group = required(values, "group", "the consumer group")
    check_consumer_group(group)
    tries = number(values, "maxReconsumeTimes", -1, -1, 2**31 - 1)
    return ConsumeOptions(
        **connect,
        listener=required(
            values, "listener", "what rocketstream.spark.consume(df, listener, ...) makes of one"
        ),
        group=group,
        orderly=flag(values, "orderly", False),
        batch_size=number(values, "consumeMessageBatchMaxSize", 1, 1, 1024),
        threads_max=number(values, "consumeThreadMax", 20, 1, 1000),
        max_reconsume_times=MAX_RECONSUME_TIMES if tries == -1 else tries,
        suspend_ms=number(values, "suspendCurrentQueueTimeMillis", 1_000, 10, 30_000),
        timeout_ms=_timeout_ms(values),
        send_back_cause=flag(values, "sendBackCause", False),
    )


def _timeout_ms(values: Mapping[str, str]) -> float:
    text = values.get("consumeTimeout", "15")
    try:
        minutes = float(text)
    except ValueError:
        minutes = 0.0
    if not 0 < minutes < float("inf"):
        raise bad("consumeTimeout", text, "a number of minutes, more than 0")
    return minutes * _MS_PER_MINUTE
