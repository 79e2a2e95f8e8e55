"""A Taskiq broker: ``RocketMQBroker("tasks", namesrv_addr="...")``; needs the extra ``taskiq``.

``intake`` does the consuming.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from rocketstream.checks import check_range, is_number
from rocketstream.client.config import ClientConfig
from rocketstream.client.producer.aio_producer import AsyncProducer
from rocketstream.client.producer.policy import unsafe
from rocketstream.errors import ClientStateError, ConfigurationError
from rocketstream.frameworks.intake import (
    UNACKED_LIMIT_S,
    UNACKED_MAX,
    Delivery,
    Intake,
    check_unacked,
    place_of,
)
from rocketstream.model import Message

try:
    from taskiq import AckableMessage, AsyncBroker, BrokerMessage
except ImportError as _error:
    raise ImportError(
        f"a Taskiq broker needs the package taskiq ({_error}): pip install 'rocketstream[taskiq]'"
    ) from _error

logger: logging.Logger = logging.getLogger("rocketstream.frameworks")

__all__ = ["DELAY_LEVELS_S", "RocketMQBroker"]

# fmt: off
DELAY_LEVELS_S = (
    1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200,
)
# fmt: on
"""RocketMQ's delay levels 1 to 18 in seconds, unless a broker's configuration has others."""


class RocketMQBroker(AsyncBroker):
    """Tasks as messages of one topic, worked on by the members of one group.

    A task is done at least once: its message is consumed when Taskiq acknowledges it, by default
    after its result is saved. A task that a worker has not acknowledged within ``ack_limit_s``, or
    at its orderly end, comes again, and after ``max_reconsume_times`` (16) tries goes to
    ``%DLQ%<group>``. The tasks of a killed worker are taken over by the others; so are those it had
    finished within the last ``persist_consumer_offset_interval_ms`` (5 s). Workers that join or
    leave move queues, and tasks that run meanwhile may be done twice: tasks should bear that.

    A label ``delay`` delays a task by that many seconds, rounded up to the next delay level;
    ``delay_level`` names the level itself.

    Args:
        topic: topic of the tasks. It should have at least as many queues as there are workers.
        namesrv_addr: ``host:port``, several joined by ``;``; None takes NAMESRV_ADDR.
        group: consumer group of the workers; None takes ``<topic>-workers``.
        config: settings shared by all clients; ``namesrv_addr`` overrides its address.
        max_unacked: most tasks a worker process holds, running and waiting; 1 to 1000. More than
            run at once, so that a task that takes long does not keep others from beginning.
        ack_limit_s: seconds from when Taskiq has a task until it comes again if it is not
            acknowledged; longer than any task takes.
        delay_levels_s: the brokers' delay levels in seconds, if theirs are not the usual ones.
        producer_settings: of the producer, by name.
        consumer_settings: of the push consumer, by name.

    Raises:
        ConfigurationError: a value out of its range.
    """

    def __init__(
        self,
        topic: str = "taskiq",
        *,
        namesrv_addr: str | None = None,
        group: str | None = None,
        config: ClientConfig | None = None,
        max_unacked: int = UNACKED_MAX,
        ack_limit_s: float = UNACKED_LIMIT_S,
        delay_levels_s: Sequence[float] = DELAY_LEVELS_S,
        producer_settings: Mapping[str, Any] | None = None,
        consumer_settings: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        check_unacked(("max_unacked", max_unacked), ("ack_limit_s", ack_limit_s))
        self.topic = topic
        self.group: str = group or f"{topic}-workers"
        self._config = config or ClientConfig()
        if namesrv_addr is not None:
            self._config = replace(self._config, namesrv_addr=namesrv_addr)
        self._max_unacked = max_unacked
        self._ack_limit_s = ack_limit_s
        levels_s = () if isinstance(delay_levels_s, str) else tuple(delay_levels_s)
        if not levels_s or not all(is_number(each) and each > 0 for each in levels_s):
            raise ConfigurationError(
                "delay_levels_s must be the seconds of level 1, 2, ... as numbers above 0; given "
                f"is {delay_levels_s!r}"
            )
        self._delay_levels_s = levels_s
        self._producer_settings = dict(producer_settings or {})
        self._consumer_settings = dict(consumer_settings or {})
        self._producer: AsyncProducer | None = None
        self._intake: Intake | None = None
        self._arrived: asyncio.Queue[Delivery] = asyncio.Queue()

    def __repr__(self) -> str:
        return f"RocketMQBroker({self.topic!r}, group={self.group!r})"

    async def startup(self) -> None:
        """Open the producer; needs no network yet. Workers join the group when they listen.

        Raises:
            ConfigurationError: no name server address.
        """
        if self._producer is None:
            producer = AsyncProducer(
                f"{self.group}-producer", config=self._config, **self._producer_settings
            )
            await producer.start()
            self._producer = producer
        await super().startup()

    async def shutdown(self) -> None:
        """Leave the group and close; tasks not acknowledged come again, those begun in a second."""
        try:
            await super().shutdown()
        finally:
            intake, self._intake = self._intake, None
            producer, self._producer = self._producer, None
            self._arrived = asyncio.Queue()
            try:
                if intake is not None:
                    await intake.close()
            finally:
                if producer is not None:
                    await producer.shutdown()

    async def kick(self, message: BrokerMessage) -> None:
        """Send a task; returns once the broker has stored it, as safely as it is set up to.

        Its id becomes the message's key.

        Raises:
            SendError: no broker took it, or one did that does not call it safe. Taskiq raises
                ``SendTaskError`` from it.
            ConfigurationError: a delay that no level reaches.
            ClientStateError: ``startup`` was not awaited.
        """
        if self._producer is None:
            raise ClientStateError("the broker is not started; await broker.startup() first")
        level = self._delay_level(message.labels)
        stored = await self._producer.send(
            Message(self.topic, message.message, keys=message.task_id, delay_level=level)
        )
        # Nobody sees the status; a task that is retried counts as done once its copy is sent.
        if (doubt := unsafe(stored)) is not None:
            raise doubt

    async def listen(self) -> AsyncGenerator[bytes | AckableMessage, None]:
        """Yield tasks as they come, until it is closed; joins the group first.

        Raises:
            ConnectError: no name server answered.
        """
        if self._intake is None:
            intake = Intake(
                self.group,
                self.topic,
                self._config,
                self._arrived.put_nowait,
                unacked_max=self._max_unacked,
                unacked_limit_s=self._ack_limit_s,
                settings=self._consumer_settings,
            )
            await intake.start()
            self._intake = intake
        while True:
            delivery = await self._arrived.get()
            if not delivery.begin():
                continue
            try:
                self.formatter.loads(delivery.message.body)
            except Exception as error:  # anybody may send anything to a topic
                delivery.dead()  # Taskiq would take it as done
                logger.warning(
                    "%s is not a task of Taskiq's (%s), and becomes a dead letter of %s",
                    place_of(delivery.message), type(error).__name__, self.group,
                )  # fmt: skip
                continue
            yield AckableMessage(data=delivery.message.body, ack=delivery.done)

    def _delay_level(self, labels: Mapping[str, Any]) -> int:
        """Return the delay level labels ask for, 0 for none."""
        levels_s = self._delay_levels_s
        if "delay_level" in labels:
            level = int(_number(labels, "delay_level"))
            check_range("delay_level", level, 0)
            return level
        delay_s = _number(labels, "delay")
        if delay_s <= 0:
            return 0
        longest_s = max(levels_s)
        if delay_s > longest_s:
            raise ConfigurationError(
                f"a delay of {delay_s:g} s is more than the longest of the brokers, "
                f"{longest_s:g} s; use a schedule of Taskiq instead"
            )
        return 1 + levels_s.index(min(each for each in levels_s if each >= delay_s))


def _number(labels: Mapping[str, Any], name: str) -> float:
    given = labels.get(name) or 0
    try:
        number = float(given)
    except (TypeError, ValueError):
        number = float("nan")
    if number != number:
        raise ConfigurationError(f"the label {name} must be a number, not {given!r}")
    return number
