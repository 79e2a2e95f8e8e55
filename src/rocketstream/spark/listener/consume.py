"""The sink over any DataFrame's rows, and the claim on the group of the query it ends in."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, Self

from rocketstream._util.clock import SYSTEM_CLOCK, Clock
from rocketstream.client.consumer.settings import PushConsumerSettings
from rocketstream.errors import ConfigurationError, NotSupportedError
from rocketstream.model import MessageSelector
from rocketstream.spark.listener.claim import GroupClaim
from rocketstream.spark.listener.messages import check_columns
from rocketstream.spark.listener.on_request import OnRequest
from rocketstream.spark.listener.queries import ends_of, facts_of, when_ended
from rocketstream.spark.listener.sink import FORMAT, RocketMQConsumerSink, sink_options
from rocketstream.spark.options import CONNECT_OPTIONS, CONSUME_OPTIONS, consume_options

_QUEUE: Final = ("topic", "brokerName", "queueId")
_DECIDED: Final = frozenset(name.lower() for name in CONSUME_OPTIONS)
_FORWARDED: Final = "option, options, outputMode, queryName, trigger and start"


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


def query_claim(
    session: Any,
    options: Mapping[str, str],
    query: Callable[[], Any],
    subscriptions: Mapping[str, str | MessageSelector] | None = None,
    settings: PushConsumerSettings | None = None,
    clock: Clock = SYSTEM_CLOCK,
) -> GroupClaim:
    """Return the claim by which a query holds its group.

    Args:
        session: runs the listener when an operator asks for it.
        options: the options of the sink.
        query: returns Spark's query, None before it is started.
        subscriptions: as for ``GroupClaim``.
        settings: the settings shown in running info; by default what the options say of them.
        clock: the client's clock.
    """
    connect = {name: options[name] for name in CONNECT_OPTIONS if name in options}
    return GroupClaim(
        options["group"],
        subscriptions or {},
        settings=settings or told_settings(options),
        orderly=options["orderly"] == "true",
        progress=lambda: ends_of(query()),
        facts=lambda: facts_of(query()),
        directly=OnRequest(session, options),
        clock=clock,
        **connect,
    )


def told_settings(options: Mapping[str, str]) -> PushConsumerSettings:
    """Return the options of the sink under a push consumer's names, for running info.

    Raises:
        ConfigurationError: they are not options of the sink.
    """
    told = consume_options(options)
    given: dict[str, Any] = {
        "consume_thread_max": told.threads_max,
        "consume_message_batch_max_size": told.batch_size,
        "max_reconsume_times": told.max_reconsume_times,
        "suspend_current_queue_time_ms": told.suspend_ms,
        "consume_timeout_minutes": told.timeout_ms / 60_000,
        "send_back_cause": told.send_back_cause,
    }
    return PushConsumerSettings(told.group, **given)


class ConsumingWriter:
    """A ``DataStreamWriter`` whose ``start`` claims the group first, and leaves it at the end.

    It has those methods of Spark's writer that make sense with a listener; ``consume`` makes it.

    Args:
        session: the session that runs the query.
        writer: Spark's writer, with the sink set up.
        options: the options of the sink.
        claim: True makes a claim, False makes none; or the claim that holds the group.
    """

    def __init__(
        self, session: Any, writer: Any, options: Mapping[str, str], claim: bool | GroupClaim
    ) -> None:
        self._session = session
        self._writer = writer
        self._options = dict(options)
        self._claim = claim

    def option(self, key: str, value: Any) -> Self:
        """Set an option of the query, such as ``checkpointLocation``."""
        _check_name(key)
        self._writer = self._writer.option(key, value)
        return self

    def options(self, **options: Any) -> Self:
        """Set several options."""
        for name in options:
            _check_name(name)
        self._writer = self._writer.options(**options)
        return self

    def outputMode(self, outputMode: str) -> Self:
        """Set the output mode; only ``append`` is useful."""
        self._writer = self._writer.outputMode(outputMode)
        return self

    def queryName(self, queryName: str) -> Self:
        """Name the query."""
        self._writer = self._writer.queryName(queryName)
        return self

    def trigger(self, **trigger: Any) -> Self:
        """Set when micro-batches begin, with the keywords of Spark's ``trigger``."""
        self._writer = self._writer.trigger(**trigger)
        return self

    def start(self, **options: Any) -> Any:
        """Claim the group, then start the query; blocks for some requests and Spark's planning.

        Parameters
        ----------
        **options
            Further options, including ``queryName`` and ``outputMode``.

        Returns
        -------
        StreamingQuery
            Spark's own. When it ends, its last offsets are reported and the group is left.

        Raises
        ------
        ClientStateError
            The group has live members, which the error names.
        ConfigurationError
            The given claim is of another group, or has not begun.
        ConnectError
            This process cannot reach the cluster.
        """
        for name in options:
            _check_name(name)
        if isinstance(self._claim, GroupClaim):
            self._claim.check_of(self._options["group"])
        if self._claim is not True:
            return self._writer.start(**options)
        return self._start_and_hold(options)

    def _start_and_hold(self, options: Mapping[str, Any]) -> Any:
        query: Any = None
        claim = query_claim(self._session, self._options, lambda: query)
        claim.begin()
        try:
            query = self._writer.start(**options)
        except BaseException:
            claim.end()
            raise

        def leave() -> None:
            try:
                claim.report(ends_of(query))
            finally:
                claim.end()

        when_ended(query, claim.group, leave)
        return query

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        raise NotSupportedError(
            f"a writer that consumes has no {name!r}: a listener takes the rows, no table or other "
            f"sink does; it has {_FORWARDED}"
        )


def _check_name(name: str) -> None:
    if name.lower() in _DECIDED:
        raise ConfigurationError(
            f"option {name!r} is one of the listener's, which are checked and packed together: "
            "give it to consume(df, listener, ...)",
            option=name,
        )
