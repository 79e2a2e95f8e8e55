"""Topics: which exist, what they hold, who consumes them, and creating them.

Law: every failure is one of ``rocketstream.errors``.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import TYPE_CHECKING

from rocketstream.admin.rows import RouteRow, TopicRow
from rocketstream.admin.service import Reach, Service, change, question
from rocketstream.admin.state import TopicQueue, permission, topic_kind
from rocketstream.admin.wire import questions
from rocketstream.errors import (
    RequestTimeoutError,
    RouteNotFoundError,
    TopicNotExistError,
)
from rocketstream.protocol import names
from rocketstream.protocol.codes import Perm

if TYPE_CHECKING:
    from rocketstream.admin.state import TopicState
    from rocketstream.model import MessageQueue
    from rocketstream.protocol.bodies import TopicConfig

DEFAULT_TOPIC_QUEUES = 8
_ROUTE_POLL_S = 0.02


class Topics(Service):
    """``Admin.topics``."""

    @question
    def names(self) -> list[str]:
        """Return the names of all topics except the system's, sorted; two requests in all.

        Raises:
            ConnectError: no name server answered.
        """
        system = self._wire.system_topic_names()
        return [
            name
            for name in self._wire.topic_names()
            if name not in system and not names.is_system_topic(name)
        ]

    @question
    def all(self) -> list[TopicRow]:
        """Return every topic of the cluster, system topics included (``kind`` marks them)."""
        system = self._wire.system_topic_names()
        configs: dict[str, list[tuple[str, TopicConfig]]] = {}
        for broker_name, address in self._wire.masters().items():
            table = self._wire.ask(address, questions.TOPICS)
            for topic, config in table.items():
                configs.setdefault(topic, []).append((broker_name, config))
        topics = set(self._wire.topic_names()) | set(configs)
        return [_topic_row(topic, system, configs.get(topic, [])) for topic in sorted(topics)]

    @change
    def create(
        self, topic: str, queues: int = DEFAULT_TOPIC_QUEUES, perm: int = Perm.READ | Perm.WRITE
    ) -> list[RouteRow]:
        """Create a topic on every broker, or change its queues and permission where it exists.

        Returns when the name server routes to the topic on every broker, but waits no longer than
        the timeout of one request.

        Args:
            topic: 1 to 127 characters of ``[%|a-zA-Z0-9_-]``.
            queues: read and write queues on each broker, from 1.
            perm: bits of ``Perm`` (4 read, 2 write).

        Raises:
            ConfigurationError: the name, queue count or permission is not acceptable.
            RequestTimeoutError: the brokers made the topic but the name server does not route to it
                yet.
        """
        from rocketstream.admin.core import steps  # most calls only look

        names.check_topic(topic)
        settings = steps.new_topic_settings(queues, perm, False, {})
        steps.check_topic_settings(settings)
        self._changes.check("topic.create")
        masters = self._wire.masters()
        arguments = {"topic": topic, "queues": queues, "perm": perm}
        with self._changes.open("topic.create", arguments) as made:
            for address in masters.values():
                made.wire.put_topic(address, topic, settings)
            return self._wait_routed(topic, masters, queues)

    def _wait_routed(self, topic: str, brokers: Iterable[str], queues: int) -> list[RouteRow]:
        """Ask for the route until it shows the queues: brokers register a topic after they
        answer.
        """
        pause = threading.Event()
        deadline = self._clock.monotonic_ms() + self._timeout_ms
        while True:
            try:
                rows = self.route(topic)
            except (RouteNotFoundError, TopicNotExistError):
                rows = []
            routed = {row.broker_name for row in rows if row.read_queues == queues}
            if routed.issuperset(brokers):
                return rows
            if self._clock.monotonic_ms() >= deadline:
                raise RequestTimeoutError(
                    f"the brokers created topic {topic!r}, but after {self._timeout_ms} ms the "
                    "name server does not route to it; check that the brokers can reach it",
                    topic=topic,
                )
            pause.wait(_ROUTE_POLL_S)

    @question
    def route(self, topic: str) -> list[RouteRow]:
        """Return which brokers hold a topic and with how many queues.

        Raises:
            RouteNotFoundError: the name server does not know the topic.
        """
        route = self._wire.route(topic)
        masters = {data.broker_name: data.broker_addrs.get(0) for data in route.broker_datas}
        return sorted(
            (
                RouteRow(
                    topic=topic,
                    broker_name=data.broker_name,
                    address=masters.get(data.broker_name),
                    read_queues=data.read_queue_nums,
                    write_queues=data.write_queue_nums,
                    permission=permission(data.perm),
                )
                for data in route.queue_datas
            ),
            key=lambda row: row.broker_name,
        )

    @question
    def status(self, topic: str) -> list[TopicQueue]:
        """Return the offsets of each queue of a topic (C-538), from the masters.

        Raises:
            RouteNotFoundError: the name server does not know the topic.
        """
        return sorted(
            queue
            for address in self._wire.topic_masters(topic).values()
            for queue in self._wire.ask(address, questions.ends_of(topic)).values()
        )

    @question
    def consumers(self, topic: str) -> list[str]:
        """Return the groups that subscribe a topic now or have progress in it (300).

        Raises:
            RouteNotFoundError: the topic is unknown.
        """
        groups: set[str] = set()
        for address in self._wire.topic_masters(topic).values():
            groups |= self._wire.ask(address, questions.consumers_of(topic))
        return sorted(groups)

    @question
    def state(self, topic: str) -> TopicState:
        """Return one topic at one moment, and the groups that consume it.

        Raises:
            RouteNotFoundError: the name server does not know the topic.
            ConnectError: no name server answered.
        """
        from rocketstream.admin.sweep import Sweep  # a list of topics needs no sweep

        return Sweep(self._reach).topic(topic)


def offset_at(reach: Reach, queue: MessageQueue, row: TopicQueue | None, timestamp_ms: int) -> int:
    """Return where a queue's messages of a time begin; its end where all are older.

    Args:
        row: the queue as it is; None asks the broker in any case.
        timestamp_ms: ms since 1970.
    """
    # A search by a time after the newest message finds that message, not the end (C-372).
    if row is not None and (row.last_update_ms is None or timestamp_ms > row.last_update_ms):
        return row.max_offset
    return reach.client.search_offset(queue, timestamp_ms)


def _topic_row(topic: str, system: set[str], configs: list[tuple[str, TopicConfig]]) -> TopicRow:
    perm: int | None = None
    for _, config in configs:
        perm = config.perm if perm is None else perm & config.perm
    return TopicRow(
        topic=topic,
        kind=topic_kind(topic, system),
        brokers=tuple(sorted(name for name, _ in configs)),
        read_queues=sum(c.read_queue_nums for _, c in configs) if configs else None,
        write_queues=sum(c.write_queue_nums for _, c in configs) if configs else None,
        permission=None if perm is None else permission(perm),
    )
