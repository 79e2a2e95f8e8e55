"""The set-up of the sink that gives any DataFrame's rows to a listener: its options."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from rocketstream.client.consumer.listener import listener_of
from rocketstream.errors import ConfigurationError
from rocketstream.spark.consumer.messages import check_columns
from rocketstream.spark.consumer.parcel import pack
from rocketstream.spark.consumer.sink import FORMAT, RocketMQConsumerSink
from rocketstream.spark.options import CONSUME_OPTIONS, consume_options, known
from rocketstream.spark.push.claim import GroupClaim
from rocketstream.spark.push.writer import ConsumingWriter

_QUEUE: Final = ("topic", "brokerName", "queueId")


def consume(
    df: Any,
    listener: object,
    *,
    orderly: bool = False,
    claim: bool | GroupClaim = True,
    **options: Any,
) -> Any:
    """Return the writer that gives the rows of a DataFrame to a message listener.

    The rows are those of ``format("rocketmq")``, after any transform that keeps the columns
    ``topic, brokerName, queueId, queueOffset, commitLogOffset, reconsumeTimes, properties, body``;
    other columns are not seen by the listener. Read ``%RETRY%<group>`` besides the topic; otherwise
    messages that fail are stored there and not consumed again. ``SparkPushConsumer`` does all of
    that.

    Parameters
    ----------
    df
        Rows to consume, streaming or not.
    listener
        As for ``PushConsumer.register_message_listener``; may be a coroutine function. It is sent
        to tasks by value; many of its calls run at once (``consumeThreadMax``).
    orderly
        Consume each queue in order. The rows of a queue are brought into one task.
    claim
        Whether ``start`` of a stream makes this process the live member of the group until the
        query ends; it is refused if the group has other members. With Spark Connect it is the
        client's process, which must reach the cluster. False: no tool sees a consumer and nobody
        is refused. A ``GroupClaim`` that has begun stays beyond this query. A batch never claims:
        it moves no offsets, and messages that fail in it are left to the group's consumers.
    **options
        ``group`` and ``nameServer`` are required; ``consumeMessageBatchMaxSize`` (1),
        ``consumeThreadMax`` (20 calls at once in a task), ``maxReconsumeTimes`` (16),
        ``suspendCurrentQueueTimeMillis`` (1000), ``consumeTimeout`` (15 minutes),
        ``microBatchTimeoutMs`` (60000, in order none), and the connection options of the source.

    Returns
    -------
    ConsumingWriter or DataFrameWriter
        Give it a checkpoint, a trigger and a name as you would Spark's own, then start it, or save.

    Raises
    ------
    ConfigurationError
        The listener cannot be used or pickled, an option is wrong, a column is missing, or Spark
        runs with speculation, which would call the listener twice for the same messages.
    """
    session = df.sparkSession
    refuse_speculation(session)
    given = sink_options(listener, orderly, options)
    if not isinstance(claim, bool | GroupClaim):
        raise ConfigurationError(f"claim is True, False or a GroupClaim, not {claim!r}")
    check_columns([(field.name, field.dataType.simpleString()) for field in df.schema.fields])
    rows = df.repartition(*_QUEUE) if given["orderly"] == "true" else df
    writer = sink(session, rows, given)
    return ConsumingWriter(session, writer, given, claim) if df.isStreaming else writer


def sink_options(listener: object, orderly: bool, options: Mapping[str, Any]) -> dict[str, str]:
    """Return the options of the sink for a listener, checked.

    Raises:
        ConfigurationError: the listener cannot be used or pickled, or an option is wrong.
    """
    given = {name: _text(value) for name, value in options.items() if value is not None}
    in_order = listener_of(listener, orderly=orderly).is_orderly
    given |= {"listener": pack(listener, orderly=in_order), "orderly": _text(in_order)}
    consume_options(given)
    return dict(known(given, CONSUME_OPTIONS))


def sink(session: Any, rows: Any, options: Mapping[str, str]) -> Any:
    """Return the writer of rows whose distribution is already that of consumption."""
    session.dataSource.register(RocketMQConsumerSink)
    if rows.isStreaming:
        # A stream's sink is looked up in the session that is active in this thread, and a thread
        # that the user began has none; making a DataFrame is Spark's only public way to set it.
        session.createDataFrame([], "nothing INT")
        writer = rows.writeStream
    else:
        writer = rows.write.mode("append")
    return writer.format(FORMAT).options(**options)


def refuse_speculation(session: Any) -> None:
    """Refuse a session that runs tasks twice at the same time.

    Raises:
        ConfigurationError: ``spark.speculation`` is on.
    """
    if str(session.conf.get("spark.speculation", "false")).lower() == "true":
        raise ConfigurationError(
            "spark.speculation is true: a second attempt of a slow task would give the listener "
            "the same messages at the same time; start Spark with spark.speculation=false",
            option="spark.speculation",
        )


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
