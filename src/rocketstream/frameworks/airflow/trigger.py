"""A trigger of Airflow's for messages behind a group, and how Airflow finds it by its scheme.

``watcher`` does the asking.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from typing import Any

from rocketstream.client.config import ClientConfig
from rocketstream.frameworks.airflow.watcher import (
    arguments_of,
    backlogs,
    checked_group,
    checked_seconds,
    checked_topics,
    config_of,
)

try:
    from airflow.providers.common.messaging.providers.base_provider import BaseMessageQueueProvider
    from airflow.sdk.bases.hook import BaseHook
    from airflow.triggers.base import BaseEventTrigger, TriggerEvent
except ImportError as _error:
    raise ImportError(
        f"a trigger needs Airflow 3 and its package common-messaging ({_error}): "
        "pip install 'rocketstream[airflow]'"
    ) from _error

__all__ = ["BacklogProvider", "BacklogTrigger"]

SCHEME = "rocketmq"


class BacklogTrigger(BaseEventTrigger):  # type: ignore[misc]
    """Fires when messages wait that a group has not consumed; consumes none itself.

    Made for runs that consume on their own, as ``rocketstream ingest --group`` does. Messages wait
    until the group has committed them, so an event is never lost: a triggerer that is killed, or
    begins anew, fires again where messages wait. It may come twice; a run then lands nothing.

    An event is a hint, and the offsets are what counts: Airflow passes over events that come close
    behind each other (apache/airflow#56050), so a trigger must not be the only one that knows of a
    message. After an event none follows until the group has come past the messages it told, or
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
        super().__init__()
        self.topics: list[str] = checked_topics(topics)
        self.group: str = checked_group(group)
        self.rocketmq_conn_id = rocketmq_conn_id
        self.namesrv_addr = namesrv_addr
        self.poll_interval_s: float = checked_seconds("poll_interval_s", poll_interval_s)
        self.repeat_after_s: float = checked_seconds("repeat_after_s", repeat_after_s)

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class and its arguments, as Airflow's database keeps them: without keys."""
        names = (
            "topics", "group", "rocketmq_conn_id", "namesrv_addr", "poll_interval_s",
            "repeat_after_s",
        )  # fmt: skip
        kind = type(self)
        arguments = {name: getattr(self, name) for name in names}
        return f"{kind.__module__}.{kind.__qualname__}", arguments

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Yield an event whenever messages wait, without end.

        Raises:
            ConfigurationError: the Connection, or the environment, has no usable settings.
        """
        looking = backlogs(
            self._configure,
            self.topics,
            self.group,
            poll_interval_s=self.poll_interval_s,
            repeat_after_s=self.repeat_after_s,
        )
        async with aclosing(looking):
            async for behind in looking:
                yield TriggerEvent({"group": self.group, "behind": behind})

    async def _configure(self) -> ClientConfig:
        """Return the settings of the clients, read anew."""
        if self.namesrv_addr is not None or self.rocketmq_conn_id is None:
            return ClientConfig(namesrv_addr=self.namesrv_addr).checked()
        return config_of(await BaseHook.aget_connection(self.rocketmq_conn_id))


class BacklogProvider(BaseMessageQueueProvider):  # type: ignore[misc]
    """Lets ``MessageQueueTrigger(scheme="rocketmq", ...)`` be a ``BacklogTrigger``."""

    scheme = SCHEME

    def queue_matches(self, queue: str) -> bool:
        """Whether a URI is ``rocketmq://host:9876/topic?group=name``."""
        return queue.startswith(f"{SCHEME}://")

    def trigger_class(self) -> type[BacklogTrigger]:
        """Return the trigger, which defines the arguments."""
        return BacklogTrigger

    def trigger_kwargs(self, queue: str, **kwargs: Any) -> dict[str, Any]:
        """Return the arguments a URI stands for, but for those given beside it."""
        return {name: value for name, value in arguments_of(queue).items() if name not in kwargs}
