"""``SparkPushConsumer``: a push consumer whose listener runs in Spark's tasks.

Its parts (source, sink, claim) also work on their own.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal, Unpack, overload

from rocketstream._util.clock import SYSTEM_CLOCK, Clock
from rocketstream.checks import is_whole, refused
from rocketstream.client.config import ClientConfig
from rocketstream.client.consumer.listener import (
    NO_LISTENER,
    AnyConcurrentListener,
    AnyOrderlyListener,
    MessageListenerOrderly,
    listener_of,
)
from rocketstream.client.consumer.settings import PushConsumerSettings
from rocketstream.client.consumer.subscription import subscribed, subscription_of
from rocketstream.client.instance.life_cycle import ServiceState, SyncClient, lacking, not_running
from rocketstream.client.keywords import SparkPushConsumerKeywords
from rocketstream.errors import ClientStateError, ConfigurationError
from rocketstream.model import MessageModel, MessageSelector
from rocketstream.protocol.names import check_topic, retry_topic
from rocketstream.protocol.subscription import EXPRESSION_SQL92
from rocketstream.settings import keyword_fields, unknown_setting
from rocketstream.spark.connections import admin_client
from rocketstream.spark.listener.claim import GroupClaim
from rocketstream.spark.listener.consume import query_claim, refuse_speculation, sink
from rocketstream.spark.listener.messages import READ_COLUMNS
from rocketstream.spark.listener.queries import (
    STARTS_MAX,
    ends_of,
    is_given_up,
    on_own_thread,
    starting_offsets,
    stop_between_batches,
    when_ended,
)
from rocketstream.spark.listener.sink import sink_options
from rocketstream.spark.options import (
    CONNECT_OPTIONS,
    READ_OPTIONS,
    connect_options,
    is_permissive,
    known,
)

logger: logging.Logger = logging.getLogger("rocketstream.spark")

SETTINGS: Final = frozenset(
    {
        "consume_from_where", "consume_timestamp", "consume_thread_max",
        "consume_message_batch_max_size", "max_reconsume_times", "suspend_current_queue_time_ms",
        "consume_timeout_minutes", "await_termination_ms_when_shutdown", "pull_batch_size",
        "check_crc", "send_back_cause",
    }
)  # fmt: skip
"""The settings of ``PushConsumerSettings`` that have a meaning on Spark."""

_KEYWORDS: Final = (
    "listener", "subscription", "namesrv_addr", "trigger", "max_offsets_per_trigger", "options",
    "micro_batch_timeout_ms", "checkpoint_location", "clock",
)  # fmt: skip
"""The other keywords of ``SparkPushConsumer``, which a misspelt name may have meant."""
GROUP_MEMBER: Final = "groupMember"
"""The source's option that accepts one member as no stranger to its group: this one."""
_DECIDED: Final = (
    "topic",
    "otherTopics",
    "assign",
    "group",
    "tags",
    "sql",
    "starting",
    "ending",
    "commit",
)
"""Options with these prefixes follow from the subscriptions and the group."""
_SPLITTING: Final = ("minPartitions", "maxRecordsPerPartition")
MAX_OFFSETS_PER_TRIGGER: Final = 10_000


class SparkPushConsumer(SyncClient[None]):
    """Consumes topics with a listener that Spark's tasks call; a ``with`` block starts and ends it.

    Set its listener and its subscriptions before the block, or before ``start``. As with
    ``PushConsumer`` each message is consumed at least once, a message the listener fails comes back
    after the broker's delay, and after ``max_reconsume_times`` it goes into ``%DLQ%<group>``.
    Unlike there, only this query consumes the group, and Spark's checkpoint holds its offsets: the
    query begins at the group's committed offsets and keeps them up to date for every tool.

    Args:
        group: consumer group; nobody else may be consuming with it.
        spark: the session, also of Spark Connect. Nothing to register.
        checkpoint_location: directory of the query's checkpoint.
        namesrv_addr: ``host:port``, several joined by ``;``; None takes NAMESRV_ADDR.
        listener: as for ``register_message_listener``.
        subscription: topics with their expressions, the same as calls of ``subscribe``.
        trigger: keywords of Spark's ``DataStreamWriter.trigger``, such as
            ``{"processingTime": "1 second"}`` or ``{"availableNow": True}``; None starts the next
            micro-batch at once, again and again.
        max_offsets_per_trigger: how many messages one micro-batch has at most (Spark 4.2). It
            bounds how many messages a crash repeats, and how long a due retry waits. None for no
            limit.
        micro_batch_timeout_ms: how long a micro-batch waits for a listener call: the call is left
            behind then, and its messages are sent back. None is 60 s, and in order as long as
            ``consume_timeout_minutes`` lets the call run.
        options: further options of ``format("rocketmq")``: those of the connection (``useTls``,
            ``accessKey``, ...), ``failOnDataLoss``, ``requestTimeoutMs`` and others.
        clock: where time comes from.
        **settings: settings of ``PushConsumerSettings``: ``consume_from_where`` (LAST_OFFSET) and
            ``consume_timestamp`` for queues without a committed offset,
            ``consume_message_batch_max_size`` (1), ``consume_thread_max`` (20 calls at once in each
            task), ``max_reconsume_times`` (-1: 16, in order too), ``suspend_current_queue_time_ms``
            (1000), ``consume_timeout_minutes`` (15), ``await_termination_ms_when_shutdown``
            (30000), ``pull_batch_size``, ``check_crc``, ``send_back_cause``.

    Raises:
        ConfigurationError: a setting or option is unknown, without meaning on Spark, or out of its
            range.
    """

    # No settings are attributes here that could be misspelt.
    __setattr__: Callable[[Any, str, Any], None] = object.__setattr__  # type: ignore[assignment]

    def __init__(
        self,
        group: str,
        spark: Any,
        checkpoint_location: str,
        *,
        namesrv_addr: str | None = None,
        listener: AnyConcurrentListener | MessageListenerOrderly | None = None,
        subscription: Mapping[str, str | MessageSelector] | None = None,
        trigger: Mapping[str, Any] | None = None,
        max_offsets_per_trigger: int | None = MAX_OFFSETS_PER_TRIGGER,
        micro_batch_timeout_ms: int | None = None,
        options: Mapping[str, Any] | None = None,
        clock: Clock = SYSTEM_CLOCK,
        **settings: Unpack[SparkPushConsumerKeywords],
    ) -> None:
        self._create(clock)
        self.settings: PushConsumerSettings = checked_settings(group, settings)
        self.checkpoint_location: str = str(checkpoint_location)
        self._given = frozenset(settings)
        self._spark = spark
        self._trigger = dict(trigger or {})
        self._limit = max_offsets_per_trigger
        waits_ms = micro_batch_timeout_ms
        if waits_ms is not None and not (is_whole(waits_ms) and waits_ms > 0):
            raise refused("micro_batch_timeout_ms", waits_ms, "a whole number from 1 on, or None")
        self._micro_batch_timeout_ms = waits_ms
        self._options = _checked_options(namesrv_addr, options or {})
        self._listener: object = listener
        self._orderly = False
        self._subscriptions: dict[str, MessageSelector] = {}
        self._lock = threading.RLock()  # guards state, query and claim
        self._starts_left = STARTS_MAX - 1
        self._query: Any = None
        self._suspended = False
        self._claim: GroupClaim | None = None
        for topic, expression in subscribed(subscription):
            self.subscribe(topic, expression)
        if listener is not None:
            self.register_message_listener(listener)

    # --- before start -----------------------------------------------------------------------------

    @property
    def group(self) -> str:
        """The consumer group."""
        return self.settings.consumer_group

    @overload
    def register_message_listener(
        self, listener: AnyConcurrentListener, *, orderly: Literal[False] = ...
    ) -> None: ...
    @overload
    def register_message_listener(
        self, listener: AnyOrderlyListener, *, orderly: Literal[True]
    ) -> None: ...
    @overload
    def register_message_listener(
        self, listener: MessageListenerOrderly, *, orderly: bool = ...
    ) -> None: ...
    def register_message_listener(self, listener: object, *, orderly: bool = False) -> None:
        """Set the listener that consumes the messages; call it before ``start``.

        Args:
            listener: as for ``PushConsumer``; may be a coroutine function. It is sent to tasks by
                value and called there by several threads, or awaited on a loop.
            orderly: consume each queue in order, as is always done for a
                ``MessageListenerOrderly``.

        Raises:
            ConfigurationError: the listener is not such a callable.
            ClientStateError: the consumer was started already.
        """
        self._check_not_started("the listener can be set only before start()")
        self._orderly = listener_of(listener, orderly=orderly).is_orderly
        self._listener = listener

    def subscribe(self, topic: str, expression: str | MessageSelector | None = "*") -> None:
        """Consume a topic, replacing an earlier subscription of it; call it before ``start``.

        Topics with the same expression are one source of the query, and a checkpoint knows its
        sources by their number. So begin a new checkpoint directory when the number of expressions
        changes, or an expression that gives the sources another order; the query then continues at
        the group's offsets.

        Args:
            topic: the topic, which must exist when the query starts.
            expression: ``*`` for all, or tags as in ``TagA || TagB``;
                ``MessageSelector.by_sql(...)`` for a condition on properties, which brokers
                evaluate (Apache's with ``enablePropertyFilter=true``).

        Raises:
            ConfigurationError: the topic name is not valid.
            SubscriptionError: the expression has no tag, or the condition does not compile.
            ClientStateError: the consumer was started already.
        """
        self._check_not_started("topics can be subscribed only before start()")
        check_topic(topic)
        given = MessageSelector.of(expression)
        now_ms = self._clock.now_ms()
        data = subscription_of(topic, topic, given, now_ms, logger)
        self._subscriptions[topic] = MessageSelector(data.sub_string, given.expression_type)

    def unsubscribe(self, topic: str) -> None:
        """Remove a subscription; call it before ``start``."""
        self._check_not_started("topics can be unsubscribed only before start()")
        self._subscriptions.pop(topic, None)

    # --- life -------------------------------------------------------------------------------------

    def start(self) -> None:
        """Claim the group and start the query. Blocks for some requests and Spark's planning.

        A start that fails leaves nothing behind and may be tried again.

        Raises:
            ClientStateError: the group has live members, which the error names; or the consumer was
                started before.
            ConfigurationError: there is no listener or no subscription, the listener cannot be
                pickled, or Spark runs with speculation.
            RouteNotFoundError: a topic does not exist.
            ConnectError: no name server answered.
        """
        if self._is_started_again():
            return
        with self._lock:
            self._check_not_started("a consumer can be started only once")
            if self._listener is None:
                raise ConfigurationError(f"{NO_LISTENER} (Java: messageListener is null)")
            if not self._subscriptions:
                raise ConfigurationError("no topic to consume; call subscribe() before start()")
            for name in _SPLITTING if self._orderly else ():
                if name in self._options:
                    raise ConfigurationError(
                        f"option {name!r} splits queues, which are to be consumed in order; leave "
                        "it out",
                        option=name,
                    )
            refuse_speculation(self._spark)
            sink_of = self._sink_options()
            claim = self._new_claim(sink_of)
            claim.begin()
            self._claim = claim
            try:
                self._query = self._start_query(sink_of)
            except BaseException:
                self._claim = None
                claim.end()
                raise
            self.state = ServiceState.RUNNING
            self._leave_at_end(self._query)

    def suspend(self) -> None:
        """Stop the query between two micro-batches, until ``resume``; stay the group's member.

        Blocks until a micro-batch under way has ended, at most
        ``await_termination_ms_when_shutdown``.

        Raises:
            ClientStateError: the consumer is not running.
        """
        with self._lock:
            self._check_running()
            if not self._suspended:
                self._suspended = True
                self._stop_query(self.settings.await_termination_ms_when_shutdown)

    def resume(self) -> None:
        """Continue from the checkpoint after ``suspend``.

        Raises:
            ClientStateError: the consumer is not running.
        """
        with self._lock:
            self._check_running()
            if self._suspended:
                self._query = self._start_query(self._sink_options())
                self._suspended = False
                self._leave_at_end(self._query)

    def shutdown(self, await_ms: float | None = None) -> None:
        """Stop between two micro-batches, report the offsets, leave the group.

        Does nothing unless the consumer is running. Messages consumed by a micro-batch that is
        broken off are consumed again.

        Args:
            await_ms: how long a micro-batch may take to end; by default
                ``await_termination_ms_when_shutdown``.
        """
        with self._lock:
            if self.state is not ServiceState.RUNNING:
                return
            if await_ms is None:
                await_ms = self.settings.await_termination_ms_when_shutdown
            try:
                if not self._suspended:
                    self._stop_query(await_ms)
            finally:
                self._finish()

    def await_termination(self, timeout_ms: float | None = None) -> bool:
        """Wait until the query has ended or failed; return whether it has.

        Args:
            timeout_ms: how long to wait; None waits without end.

        Raises:
            StreamingQueryException: the query failed; the error is Spark's own.
            ClientStateError: the consumer was never started.
        """
        query = self._query
        if query is None:
            raise not_running("SparkPushConsumer", self.state)
        until_ms = None if timeout_ms is None else self._clock.monotonic_ms() + timeout_ms
        while True:
            try:
                return _ended(query, until_ms, self._clock)
            except Exception:  # Spark's
                if not self._goes_on_after(query):
                    raise
                query = self._query

    @property
    def query(self) -> Any:
        """Spark's ``StreamingQuery``, also after it has ended; None before ``start``."""
        return self._query

    @property
    def client_id(self) -> str | None:
        """The id by which brokers and tools know this consumer; None unless it is running."""
        claim = self._claim
        return None if claim is None else claim.client_id

    def _lacks(self) -> tuple[str, ...]:
        return lacking(listener=self._listener is not None, subscription=bool(self._subscriptions))

    # --- the query --------------------------------------------------------------------------------

    def _start_query(self, options: Mapping[str, str]) -> Any:
        rows = self._rows()
        writer = sink(self._spark, rows, options)
        writer = writer.option("checkpointLocation", self.checkpoint_location)
        if self._trigger:
            writer = writer.trigger(**self._trigger)
        return writer.start()

    def _rows(self) -> Any:
        """Return the rows of all topics and of the retry topic: one source per tag expression.

        No source splits a queue, so each queue is in one task and in order.
        """
        sources = sources_of(self._subscriptions, retry_topic(self.group))
        rows: Any = None
        with admin_client(connect_options(self._connect())) as admin:
            for selector, topics in sources:
                others = [name for _, some in sources if some is not topics for name in some]
                is_sql = selector.expression_type == EXPRESSION_SQL92
                reader = self._spark.readStream.format("rocketmq").schema(READ_COLUMNS)
                reader = reader.options(**self._source_options()).options(
                    topic=",".join(topics),
                    otherTopics=",".join(others),
                    startingOffsets=starting_offsets(admin, self.settings, topics),
                )
                frame = reader.option("sql" if is_sql else "tags", selector.expression).load()
                rows = frame if rows is None else rows.unionAll(frame)
        return rows

    def _source_options(self) -> dict[str, str]:
        options = dict(self._options) | {"group": self.group}
        if GROUP_MEMBER in READ_OPTIONS and self.client_id is not None:
            options[GROUP_MEMBER] = self.client_id
        if self._limit is not None and _has_limits(self._spark):
            options.setdefault("maxOffsetsPerTrigger", str(self._limit))
        if "pull_batch_size" in self._given:
            options["pullBatchSize"] = str(self.settings.pull_batch_size)
        if not self.settings.check_crc:
            options["checkBodyCrc"] = "false"
        return options

    def _sink_options(self) -> dict[str, str]:
        settings = self.settings
        given = {
            "group": self.group,
            "consumeMessageBatchMaxSize": settings.consume_message_batch_max_size,
            "consumeThreadMax": settings.consume_thread_max,
            "maxReconsumeTimes": settings.max_reconsume_times,
            "suspendCurrentQueueTimeMillis": max(10, settings.suspend_current_queue_time_ms),
            "consumeTimeout": settings.consume_timeout_minutes,
        }
        if self._micro_batch_timeout_ms is not None:
            given["microBatchTimeoutMs"] = self._micro_batch_timeout_ms
        if settings.send_back_cause:
            given["sendBackCause"] = "true"
        return sink_options(self._listener, self._orderly, self._connect() | given)

    def _connect(self) -> dict[str, str]:
        return {name: self._options[name] for name in CONNECT_OPTIONS if name in self._options}

    def _new_claim(self, options: Mapping[str, str]) -> GroupClaim:
        return query_claim(
            self._spark, options, lambda: self._query, self._subscriptions, self.settings,
            self._clock,
        )  # fmt: skip

    # --- the end ----------------------------------------------------------------------------------

    def _leave_at_end(self, query: Any) -> None:
        """Leave the group when the query ends without a call of ``shutdown``."""

        def leave() -> None:
            with self._lock:
                if not self._goes_on_after(query) and self._is_current(query):
                    self._finish()

        when_ended(query, self.group, leave)

    def _goes_on_after(self, query: Any) -> bool:
        """Return whether another query has taken a failed one's place, or takes it now."""
        with self._lock:
            if not self._is_current(query):
                return self._query is not query
            if not self._starts_left or not is_given_up(query):
                return False
            self._starts_left -= 1
            logger.warning(
                "Spark did not wait for the Python of the query of group %s to start, which took "
                "over ten seconds; nothing was read, the query is started again",
                self.group,
            )
            try:
                self._query = self._start_query(self._sink_options())
            except Exception as error:  # ours, or Spark's
                logger.error("the query of group %s was not started again: %s", self.group, error)
                return False
            self._leave_at_end(self._query)
            return True

    def _is_current(self, query: Any) -> bool:
        is_running = self.state is ServiceState.RUNNING and not self._suspended
        return is_running and self._query is query

    def _stop_query(self, await_ms: float) -> None:
        # Because a call of the user's to Spark may have been interrupted on this thread.
        on_own_thread(lambda: stop_between_batches(self._query, await_ms, self._clock))

    def _finish(self) -> None:
        self.state: ServiceState = ServiceState.SHUTDOWN_ALREADY
        claim, self._claim = self._claim, None
        if claim is not None:
            try:
                claim.report(on_own_thread(lambda: ends_of(self._query)))
            finally:
                claim.end()

    def _check_not_started(self, what: str) -> None:
        if self.state is not ServiceState.CREATE_JUST:
            raise ClientStateError(f"{what}; this consumer is {self.state.value}, create a new one")

    def _check_running(self) -> None:
        if self.state is not ServiceState.RUNNING:
            raise not_running("SparkPushConsumer", self.state)


def sources_of(
    subscriptions: Mapping[str, MessageSelector], retry: str
) -> list[tuple[MessageSelector, list[str]]]:
    """Return what each source of the query selects, and its topics: one source per expression.

    The order is that of a checkpoint, which knows sources by their number.
    """
    topics: dict[MessageSelector, list[str]] = {MessageSelector.by_tag("*"): [retry]}
    for topic, selector in sorted(subscriptions.items()):
        topics.setdefault(selector, []).append(topic)
    return sorted(
        topics.items(),
        key=lambda each: (each[0].expression_type == EXPRESSION_SQL92, each[0].expression),
    )


def _ended(query: Any, until_ms: float | None, clock: Clock) -> bool:
    """Wait until a query has ended, or until then; Spark counts whole seconds."""
    if until_ms is None:
        on_own_thread(query.awaitTermination)
        return True
    timeout_s = max(1, -(-int(until_ms - clock.monotonic_ms()) // 1000))
    return bool(on_own_thread(lambda: query.awaitTermination(timeout_s)))


def checked_settings(group: str, given: Mapping[str, Any]) -> PushConsumerSettings:
    """Return the checked settings of a consumer on Spark.

    Raises:
        ConfigurationError: a setting is unknown, without meaning on Spark, or out of its range.
    """
    every = {field.name for field in keyword_fields(PushConsumerSettings)}
    for name, value in given.items():
        if name == "message_model" and value is MessageModel.CLUSTERING:
            continue
        if name in SETTINGS:
            continue
        if name in every:
            raise ConfigurationError(
                f"{name!r} has no meaning on Spark, which paces and divides the reading itself "
                f"(option max_offsets_per_trigger); settings are {', '.join(sorted(SETTINGS))}",
                setting=name,
            )
        raise unknown_setting(
            "SparkPushConsumer", name, [PushConsumerSettings], _KEYWORDS, SETTINGS
        )
    made = PushConsumerSettings(group, **given)
    made.check()
    return made


def _checked_options(namesrv_addr: str | None, given: Mapping[str, Any]) -> dict[str, str]:
    accepted = [name for name in READ_OPTIONS if not name.startswith(_DECIDED)]
    text = {
        name: str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in given.items()
    }
    options = known(text, accepted)
    if is_permissive(options):
        raise ConfigurationError(
            "option mode=permissive makes rows of records that cannot be decoded, and no listener "
            "can have those: read them with rocketstream.spark.consume(df.filter('error IS NULL'), "
            "...), and keep the others somewhere",
            option="mode",
        )
    servers = ClientConfig(namesrv_addr or options.get("nameServer")).name_servers()
    options["nameServer"] = ";".join(servers)
    connect_options({name: options[name] for name in CONNECT_OPTIONS if name in options})
    return options


def _has_limits(spark: Any) -> bool:
    major, minor = str(spark.version).split(".")[:2]
    return (int(major), int(minor)) >= (4, 2)
