"""The queues of a write's topics and the addresses of their brokers.

Law: a task keeps the queues it learned at its start, so that equal sharding keys go to one queue;
only addresses are asked for again.
"""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Final, Self, TypeVar

from rocketstream._util.clock import SYSTEM_CLOCK, Clock
from rocketstream.client.instance import questions
from rocketstream.client.instance.routes import default_topic_route, publish_queues
from rocketstream.errors import (
    ConfigurationError,
    MessageInvalidError,
    RocketMQError,
    RouteNotFoundError,
    TransportError,
)
from rocketstream.model import MessageQueue
from rocketstream.protocol.codes import version_ordinal
from rocketstream.protocol.names import (
    AUTO_CREATE_TOPIC,
    RETRY_PREFIX,
    check_topic,
    is_not_allowed_send_topic,
)
from rocketstream.spark.connections import admin_client
from rocketstream.spark.options import WriteOptions
from rocketstream.spark.patience import Patience, patiently

logger: logging.Logger = logging.getLogger("rocketstream.spark")

T = TypeVar("T")
TIMER_VERSION: Final = version_ordinal(5, 0, 0)


class Routes:
    """Answers questions about the topics of a write; blocking; a context manager that closes it.

    Args:
        options: the options of the write.
        clock: bounds retries.
    """

    def __init__(self, options: WriteOptions, clock: Clock = SYSTEM_CLOCK) -> None:
        self._options = options
        self._clock = clock
        self._client = admin_client(options)
        self._queues: dict[str, tuple[MessageQueue, ...]] = {}
        self._can_time: set[str] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._client.close()

    def queues(self, topic: str) -> Sequence[MessageQueue]:
        """Return the queues a topic's messages may go to, the same for the life of this object.

        Retries for ``retryTimeoutMs`` while no name server answers.

        Raises:
            RouteNotFoundError: the topic does not exist, and no broker creates it on a send.
            ConfigurationError: the name is not a topic name, or nobody may write to the topic.
            TransportError: no name server answers.
        """
        found = self._queues.get(topic)
        if found is None:
            _check_name(topic)
            found = self._queues[topic] = self._patiently(lambda: self._publish_queues(topic))
        return found

    def address(self, broker_name: str, *, refresh: bool = False) -> str:
        """Return the address at which a broker accepts writes.

        Raises:
            RouteNotFoundError: the broker is away, or has no master now.
            TransportError: no name server answers.
        """
        return self._client.master(broker_name, refresh=refresh)

    def look_again(self, broker_name: str) -> None:
        """Ask for a broker's address again; keep the known one if nobody answers."""
        with contextlib.suppress(RocketMQError):
            self._client.cluster_info()
            logger.info("broker=%s looked up again", broker_name)

    def require_timers(self, topic: str, queues: Sequence[MessageQueue]) -> None:
        """Make sure that brokers can hold messages back until a time of their own.

        Raises:
            MessageInvalidError: a broker is older than 5.0 and would deliver at once.
            TransportError, BrokerError: a broker does not answer.
        """
        for queue in {queue.broker_name: queue for queue in queues}.values():
            if queue.broker_name not in self._can_time:
                if self._patiently(functools.partial(self._version, queue)) < TIMER_VERSION:
                    raise MessageInvalidError(
                        f"column 'deliverTime': broker {queue.broker_name} of topic {topic!r} is "
                        "older than 5.0 and would deliver at once; use delayLevel, or brokers from "
                        "5.0 on"
                    )
                self._can_time.add(queue.broker_name)

    def _version(self, queue: MessageQueue) -> int:
        """Return a broker's version, which is in each of its answers."""
        question = questions.max_offset(queue)
        return self._client.request(self.address(queue.broker_name), question.command()).version

    def _publish_queues(self, topic: str) -> tuple[MessageQueue, ...]:
        try:
            queues = publish_queues(topic, self._client.route(topic, refresh=True))
        except RouteNotFoundError:
            queues = self._queues_to_come(topic)
        if not queues:
            raise ConfigurationError(
                f"topic {topic!r} has no queue that can be written to: no broker that is there "
                "grants it write permission",
                topic=topic,
            )
        return queues

    def _queues_to_come(self, topic: str) -> tuple[MessageQueue, ...]:
        """Return the queues a new topic will get at brokers that create topics by themselves."""
        try:
            template = self._client.route(AUTO_CREATE_TOPIC, refresh=True)
        except RouteNotFoundError:
            names = ";".join(self._client.name_servers)
            raise RouteNotFoundError(
                f"topic {topic!r} is unknown to name server {names}, and no broker creates topics "
                "by itself: check its spelling or create it (rocketstream topic create)",
                topic=topic,
            ) from None
        route = default_topic_route(template, self._options.default_topic_queue_nums)
        return publish_queues(topic, route)

    def _patiently(self, ask: Callable[[], T]) -> T:
        patience = Patience(self._options.retry_timeout_ms, self._clock)
        return patiently(ask, patience, lambda error: isinstance(error, TransportError))


def _check_name(topic: str) -> None:
    check_topic(topic)
    if is_not_allowed_send_topic(topic) or topic.startswith(RETRY_PREFIX):
        raise ConfigurationError(
            f"topic {topic!r} is the brokers' own, nobody may write to it", topic=topic
        )
