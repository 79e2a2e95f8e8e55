"""Triggers of Airflow's: messages wait, or a message came; and their providers, by scheme.

``watcher`` does the asking and consuming.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Hashable, Sequence
from contextlib import aclosing
from typing import Any

from rocketstream.client.config import ClientConfig
from rocketstream.errors import NotSupportedError, RocketMQError
from rocketstream.frameworks.airflow.watcher import (
    MessageFeed,
    arguments_of,
    backlogs,
    checked_group,
    checked_seconds,
    checked_topics,
    config_of,
    event_of,
)
from rocketstream.model import MessageQueue

try:
    from airflow.providers.common.messaging.providers.base_provider import BaseMessageQueueProvider
    from airflow.sdk.bases.hook import BaseHook
    from airflow.triggers.base import BaseEventTrigger, TriggerEvent
    from airflow.triggers.shared_stream import AdvanceItem, SharedStreamProducer
except ImportError as error:
    raise ImportError(
        f"a trigger needs Airflow 3 and its package common-messaging ({error}): "
        "pip install 'rocketstream[airflow]'"
    ) from error

__all__ = ["BacklogProvider", "BacklogTrigger", "MessageProvider", "MessageTrigger"]


class _Trigger(BaseEventTrigger):  # type: ignore[misc]
    """The arguments both have: topics, a group, and where the cluster is."""

    names: tuple[str, ...] = ("topics", "group", "rocketmq_conn_id", "namesrv_addr")

    def __init__(
        self,
        topics: str | Sequence[str],
        group: str,
        rocketmq_conn_id: str | None,
        namesrv_addr: str | None,
    ) -> None:
        super().__init__()
        self.topics = checked_topics(topics)
        self.group = checked_group(group)
        self.rocketmq_conn_id = rocketmq_conn_id
        self.namesrv_addr = namesrv_addr

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class and its arguments, as Airflow's database keeps them: without keys."""
        kind = type(self)
        arguments = {name: getattr(self, name) for name in self.names}
        return f"{kind.__module__}.{kind.__qualname__}", arguments

    async def configure(self) -> ClientConfig:
        """Return the settings of the clients, read anew.

        Raises:
            ConfigurationError: the Connection, or the environment, has no usable settings.
        """
        if self.namesrv_addr is not None or self.rocketmq_conn_id is None:
            return ClientConfig(namesrv_addr=self.namesrv_addr).checked()
        return config_of(await BaseHook.aget_connection(self.rocketmq_conn_id))


class BacklogTrigger(_Trigger):
    """Fires when messages wait that a group has not consumed; consumes none itself.

    Made for runs that consume on their own, as ``rocketstream ingest --group`` does. Messages wait
    until the group has committed them, so an event is never lost: a triggerer that is killed, or
    begins anew, fires again where messages wait. It may come twice; a run then lands nothing.

    After an event none follows until the group has come past the messages it told, or
    ``repeat_after_s`` is over. The payload is ``{"group": ..., "behind": {topic: messages}}``.

    Args:
        topics: a topic or several.
        group: the group whose committed offsets say what is consumed. The trigger does not join it.
        rocketmq_conn_id: the Airflow Connection with the name server's address and the account;
            None takes both from the triggerer's environment (NAMESRV_ADDR, ROCKETMQ_ACCESS_KEY).
        namesrv_addr: ``host:port``, several joined by ``;``, instead of a Connection; the account
            is the environment's.
        poll_interval_s: seconds between two looks at the offsets.
        repeat_after_s: seconds after which messages that still wait are told again; longer than
            the longest run.

    Raises:
        ConfigurationError: a name or number that cannot be used.
    """

    names = (*_Trigger.names, "poll_interval_s", "repeat_after_s")

    def __init__(
        self,
        *,
        topics: str | Sequence[str],
        group: str,
        rocketmq_conn_id: str | None = "rocketmq_default",
        namesrv_addr: str | None = None,
        poll_interval_s: float = 10.0,
        repeat_after_s: float = 900.0,
    ) -> None:
        super().__init__(topics, group, rocketmq_conn_id, namesrv_addr)
        self.poll_interval_s = checked_seconds("poll_interval_s", poll_interval_s)
        self.repeat_after_s = checked_seconds("repeat_after_s", repeat_after_s)

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Yield an event whenever messages wait, without end.

        Raises:
            ConfigurationError: the Connection, or the environment, has no usable settings.
        """
        looking = backlogs(
            self.configure,
            self.topics,
            self.group,
            poll_interval_s=self.poll_interval_s,
            repeat_after_s=self.repeat_after_s,
        )
        async with aclosing(looking):
            async for behind in looking:
                yield TriggerEvent({"group": self.group, "behind": behind})


class MessageTrigger(_Trigger):
    """Fires for each message, with its body; the group's offset passes a message afterwards.

    Made for small messages that say what is to be done, and not too many: Airflow keeps every event
    in its database. The offset is committed when Airflow has stored the event, so none is lost; a
    message comes twice where that was cut short. A DAG may have several events in one run.

    The payload is ``{"topic", "broker_name", "queue_id", "queue_offset", "msg_id", "properties",
    "body"}``, ``body_base64`` in place of ``body`` where it is not UTF-8. A new group begins where
    RocketMQ has it begin, which is at the end of a topic that is older than three days.

    Args:
        topics: a topic or several.
        group: the group of this watcher alone: the members of a group divide the messages.
        expression: ``*``, or tags joined by ``||``.
        rocketmq_conn_id: as of ``BacklogTrigger``.
        namesrv_addr: as of ``BacklogTrigger``.

    Raises:
        ConfigurationError: a name that cannot be used.
    """

    names = (*_Trigger.names, "expression")

    def __init__(
        self,
        *,
        topics: str | Sequence[str],
        group: str,
        expression: str = "*",
        rocketmq_conn_id: str | None = "rocketmq_default",
        namesrv_addr: str | None = None,
    ) -> None:
        super().__init__(topics, group, rocketmq_conn_id, namesrv_addr)
        self.expression = expression

    def shared_stream_key(self) -> Hashable:
        """Return what equal triggers have in common; they consume once for all of them."""
        classpath, arguments = self.serialize()
        return classpath, repr(arguments)

    @classmethod
    def create_shared_stream_producer(cls, kwargs: dict[str, Any]) -> _Stream:
        """Return what consumes for a trigger with these arguments."""
        return _Stream(cls(**kwargs))

    async def filter_shared_stream(
        self, shared_stream: AsyncIterator[dict[str, Any]]
    ) -> AsyncIterator[TriggerEvent]:
        """Yield an event for each message; a subclass may choose, or change the payload."""
        async for event in shared_stream:
            yield TriggerEvent(event)

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Refuse: outside a triggerer nobody says that an event is stored.

        Raises:
            NotSupportedError: always.
        """
        raise NotSupportedError(
            "a MessageTrigger runs in Airflow's triggerer, which says when an event is stored"
        )
        yield  # Airflow asks for an iterator


class _Stream(SharedStreamProducer):  # type: ignore[misc]
    """The messages of equal triggers; Airflow says which of their events it has stored."""

    def __init__(self, trigger: MessageTrigger) -> None:
        self._feed = MessageFeed(
            trigger.configure, trigger.topics, trigger.group, trigger.expression
        )

    async def open_stream(
        self,
    ) -> AsyncIterator[tuple[dict[str, Any], tuple[MessageQueue, int]]]:
        """Yield each message as JSON, and where it is stored."""
        messages = self._feed.messages()
        async with aclosing(messages):
            async for message in messages:
                yield event_of(message), (message.message_queue, message.queue_offset)

    def get_advance_lane(self, broker_payload: tuple[MessageQueue, int]) -> Hashable:
        """Return the queue: each has an offset of its own."""
        return broker_payload[0]

    async def advance(self, batch: Sequence[AdvanceItem]) -> None:
        """Commit past the messages whose events are stored.

        Raises:
            RocketMQError: an event is not stored, or a commit failed. Airflow begins the stream
                anew, and what is not committed comes again.
        """
        stored = 0
        for item in batch:
            if item.outcome.failed or not item.outcome.acked + item.outcome.rejected:
                break
            stored += 1
        if stored:
            queue, offset = batch[stored - 1].broker_payload
            await self._feed.consumed(queue, offset, stored)
        if stored < len(batch):
            queue, offset = batch[stored].broker_payload
            raise RocketMQError(
                f"the event of {queue} offset {offset} is not stored; it comes again"
            )

    async def aclose(self) -> None:
        """Leave the group."""
        await self._feed.close()


class _Provider(BaseMessageQueueProvider):  # type: ignore[misc]
    """Finds a trigger by a scheme, or by a URI that begins with it."""

    def queue_matches(self, queue: str) -> bool:
        """Whether a URI is ``SCHEME://host:9876/topic?group=name``."""
        return queue.startswith(f"{self.scheme}://")

    def trigger_kwargs(self, queue: str, **kwargs: Any) -> dict[str, Any]:
        """Return the arguments a URI stands for, but for those given beside it."""
        return {name: value for name, value in arguments_of(queue).items() if name not in kwargs}


class BacklogProvider(_Provider):
    """Lets ``MessageQueueTrigger(scheme="rocketmq", ...)`` be a ``BacklogTrigger``."""

    scheme = "rocketmq"

    def trigger_class(self) -> type[BacklogTrigger]:
        """Return the trigger, which defines the arguments."""
        return BacklogTrigger


class MessageProvider(_Provider):
    """Lets ``MessageQueueTrigger(scheme="rocketmq+messages", ...)`` be a ``MessageTrigger``."""

    scheme = "rocketmq+messages"

    def trigger_class(self) -> type[MessageTrigger]:
        """Return the trigger, which defines the arguments."""
        return MessageTrigger
