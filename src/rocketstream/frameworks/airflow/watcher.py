"""The watcher behind a trigger: looks at a group's backlog again and again.

Law: knows no Airflow; runs on the triggerer's event loop and never blocks it.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol
from urllib.parse import parse_qsl, unquote, urlsplit

from rocketstream._util.clock import SYSTEM_CLOCK
from rocketstream.checks import is_number
from rocketstream.client.admin.blocking import BlockingAdminClient
from rocketstream.client.config import ClientConfig
from rocketstream.errors import ConfigurationError, RocketMQError
from rocketstream.frameworks.airflow.backlog import Backlog, Position
from rocketstream.model import MessageQueue
from rocketstream.protocol.names import check_group, check_topic

logger: logging.Logger = logging.getLogger("rocketstream.frameworks")

NAMESRV_PORT = 9876
_KEYS = {"access_key": "its login", "secret_key": "its password", "namesrv_addr": "its host"}
"""Settings a Connection has a field for, which Airflow encrypts or shows."""
_ARGUMENTS = ("group", "rocketmq_conn_id", "poll_interval_s", "repeat_after_s")
"""Arguments of the trigger that a URI may have after its path."""


class Connection(Protocol):
    """The fields of an Airflow Connection that are read."""

    conn_id: str
    host: str | None
    port: int | None
    login: str | None
    password: str | None

    @property
    def extra_dejson(self) -> Mapping[str, Any]:
        """The JSON of its field Extra."""
        ...


def config_of(connection: Connection) -> ClientConfig:
    """Return the settings a Connection holds.

    Its host and port are the name server's (a host with colons stands as it is, several joined by
    ``;``), login and password the access key and the secret key; Extra has settings of
    ``ClientConfig`` by name, as ``{"use_tls": true}``.

    Raises:
        ConfigurationError: it has no host, or a setting that cannot be used.
    """
    named = f"the Airflow connection {connection.conn_id!r}"
    if not connection.host:
        raise ConfigurationError(f"{named} has no host; set it to the name server's")
    address = connection.host
    if ":" not in address:
        address = f"{address}:{connection.port or NAMESRV_PORT}"
    extra = dict(connection.extra_dejson)
    known = {field.name for field in dataclasses.fields(ClientConfig)} - _KEYS.keys()
    for name in extra:
        if name not in known:
            instead = f"; {name} is {_KEYS[name]}" if name in _KEYS else ""
            raise ConfigurationError(
                f"{named} has {name!r} in Extra, which ClientConfig does not have there{instead}"
            )
    settings = ClientConfig(
        namesrv_addr=address,
        access_key=connection.login or None,
        secret_key=connection.password or None,
        **extra,
    )
    return settings.checked()


def arguments_of(uri: str) -> dict[str, Any]:
    """Return the arguments a URI stands for: ``rocketmq://host:9876/topic,topic?group=name``.

    The other arguments of the trigger may follow the group, as ``&poll_interval_s=5``.

    Raises:
        ConfigurationError: it has keys, which everybody would see who sees the DAG; or an argument
            that the trigger has not.
    """
    parts = urlsplit(uri)
    if "@" in parts.netloc:
        raise ConfigurationError(
            "a queue must not have keys in its URI, where they are kept in clear; put address and "
            "keys into an Airflow connection named rocketmq_default, or another one that "
            "rocketmq_conn_id names, and leave them out of the URI: rocketmq:///topic?group=name"
        )
    found: dict[str, Any] = dict(parse_qsl(parts.query))
    for name, value in found.items():
        if name not in _ARGUMENTS:
            raise ConfigurationError(
                f"the URI {uri!r} has {name!r}; accepted after ? are {', '.join(_ARGUMENTS)}"
            )
        if name.endswith("_s"):
            with contextlib.suppress(ValueError):
                value = float(value)
            found[name] = checked_seconds(name, value)
    if parts.netloc:
        found["namesrv_addr"] = parts.netloc
    if parts.path.strip("/"):
        found["topics"] = [unquote(each) for each in parts.path.strip("/").split(",")]
    return found


def checked_topics(topics: str | Sequence[str]) -> list[str]:
    """Return the topics as a list, sorted, so that equal triggers are equal.

    Raises:
        ConfigurationError: none given, or a name that no topic can have.
    """
    named = [topics] if isinstance(topics, str) else list(topics)
    if not named:
        raise ConfigurationError("topics must name at least one topic")
    for topic in named:
        check_topic(topic, "topics")
    return sorted(set(named))


def checked_group(group: str) -> str:
    """Return a group's name.

    Raises:
        ConfigurationError: a name that no group can have.
    """
    check_group(group)
    return group


def checked_seconds(name: str, seconds: float) -> float:
    """Return a span.

    Raises:
        ConfigurationError: it is not a number above 0.
    """
    if not is_number(seconds) or seconds <= 0:
        raise ConfigurationError(f"{name} must be a number of seconds above 0, not {seconds!r}")
    return seconds


async def backlogs(
    configure: Callable[[], Awaitable[ClientConfig]],
    topics: Sequence[str],
    group: str,
    *,
    poll_interval_s: float,
    repeat_after_s: float,
) -> AsyncGenerator[dict[str, int], None]:
    """Yield, without end, how many messages of each topic wait when ``Backlog`` tells them.

    The group is asked about and never joined: a landing refuses a group that has members. A
    cluster that cannot be asked is asked again, with the settings as they are then.

    Args:
        configure: returns the settings; called at the start and after each failure.
        topics: topics to watch.
        group: whose offsets say what has been consumed.
        poll_interval_s: seconds between two looks.
        repeat_after_s: seconds after which the same messages are told again.

    Raises:
        ConfigurationError: settings that no cluster can be asked with.
    """
    backlog = Backlog(repeat_after_s * 1000)
    cluster: _Cluster | None = None
    fails = False
    try:
        while True:
            try:
                cluster = cluster or _Cluster(await configure())
                positions = await asyncio.to_thread(cluster.positions, topics, group)
            except ConfigurationError:
                raise
            except RocketMQError as error:
                level = logging.DEBUG if fails else logging.WARNING
                logger.log(level, "the backlog of group %s is not known now: %s", group, error)
                fails = True
                if cluster is not None:
                    cluster.client.close()
                cluster = None
            else:
                fails = False
                told = backlog.look(positions, SYSTEM_CLOCK.monotonic_ms())
                if told is not None:
                    yield told
            await asyncio.sleep(poll_interval_s)
    finally:
        if cluster is not None:
            cluster.client.close()


class _Cluster:
    """A cluster that is asked how far groups are."""

    def __init__(self, config: ClientConfig) -> None:
        self.config = config
        self.client = BlockingAdminClient.of(config)

    def positions(self, topics: Sequence[str], group: str) -> dict[MessageQueue, Position]:
        """Return how far a group is in every queue of topics; blocks.

        Raises:
            RocketMQError: a topic is unknown, or a server does not answer.
        """
        named = [self.config.topic_with_namespace(topic) for topic in topics]
        queues = [queue for topic in named for queue in self.client.subscribe_queues(topic)]
        member = self.config.with_namespace(group)
        # The ends last: an offset committed meanwhile must not seem to be beyond the end.
        committed = {queue: self.client.query_consumer_offset(member, queue) for queue in queues}
        lows, ends = self.client.min_offsets(queues), self.client.max_offsets(queues)
        return {
            self.config.queue_without_namespace(queue): Position(
                lows[queue], committed[queue], ends[queue]
            )
            for queue in queues
        }
