"""Asking the name servers for routes, and keeping those that are used fresh.

On the instance's loop; ``routes`` says what a route means (C-134 to C-139).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable

from rocketstream._util.ending import shared
from rocketstream._util.patience import up_to
from rocketstream.client.instance.api import MQClientAPI
from rocketstream.client.instance.groups import Groups
from rocketstream.client.instance.outage_log import OutageLog
from rocketstream.client.instance.routes import RouteTable, default_topic_route
from rocketstream.errors import RocketMQError, RouteNotFoundError, TopicNotExistError
from rocketstream.limits import (
    ROUTE_QUESTIONS_AT_ONCE,
    ROUTE_RENEWAL_INTERVAL_MS,
    ROUTE_RENEWAL_WAIT_MS,
    UNUSED_TOPIC_MS,
)
from rocketstream.protocol.codes import MASTER_ID

_Key = tuple[str, tuple[str, int] | None]


class RouteUpdates:
    """The route look-ups of one client instance; those of one topic at a time are one."""

    def __init__(
        self,
        groups: Groups,
        api: MQClientAPI,
        routes: RouteTable,
        outages: OutageLog,
    ) -> None:
        self._groups = groups
        self._api = api
        self._routes = routes
        self._outages = outages
        self._running: dict[_Key, asyncio.Task[bool]] = {}
        self._asked_at: dict[str, float] = {}
        """When the routes were asked for that were asked for lately."""
        self._unused_since: dict[str, float] = {}
        """By topic that does not exist, or nobody wants: since when nobody has used it either."""

    async def update(self, topic: str, default_topic: tuple[str, int] | None = None) -> bool:
        """Ask the name server for a topic's route and take it in.

        Args:
            topic: whose route.
            default_topic: template topic and queue number to use when the topic is unknown
                (C-138).

        Returns:
            Whether the topic now has a route.

        Raises:
            ConnectError: no name server answered; every address tried is named.
            ClientStateError: the client ended meanwhile.
        """
        key = topic, default_topic
        task = self._running.get(key)
        if task is None:
            loop = asyncio.get_running_loop()
            task = loop.create_task(self._update(topic, default_topic))
            self._running[key] = task
            self._asked_at[topic] = loop.time()
            task.add_done_callback(lambda done: self._done(key, done))
        return await shared(task, f"asked for the route of topic {topic}")

    async def _update(self, topic: str, default_topic: tuple[str, int] | None) -> bool:
        try:
            route = await self._api.route(topic)
        except TopicNotExistError:
            if default_topic is None:
                return False
            try:
                route = default_topic_route(
                    await self._api.route(default_topic[0]), default_topic[1]
                )
            except TopicNotExistError:
                return False
        known = self._routes.subscribe_queues(topic)
        changed = self._routes.apply(topic, route)
        if self._outages:
            self._outages.worked("route of topic", topic)
            for broker in route.broker_datas:
                # Locks, sends and ends of transactions need its master: a slave is no way back.
                if MASTER_ID in broker.broker_addrs:
                    self._outages.worked("broker", broker.broker_name)
        if changed and known is not None and known != self._routes.subscribe_queues(topic):
            self._groups.rebalance_soon()
        return True

    def _done(self, key: _Key, task: asyncio.Task[bool]) -> None:
        self._running.pop(key, None)
        if not task.cancelled():
            task.exception()  # retrieved: the caller may have gone meanwhile

    async def publish(self, topic: str, create_topic_key: str, queue_nums: int) -> None:
        """Have a route for sending to ``topic``, the template's where it has none (C-457).

        Raises:
            RouteNotFoundError: neither has one, or no queue can be written.
            ConnectError: no name server answered.
        """
        self._groups.producer_topics.add(topic)
        is_there = await self.update(topic)
        if topic not in self._routes.publish_table:
            await self.update(topic, (create_topic_key, queue_nums))
        if topic not in self._routes.publish_table:
            self._groups.producer_topics.discard(topic)
            asked = ", ".join(self._api.name_servers.addresses)
            to_do = (
                "the topic is there, but no queue that can be written: its permission has no W "
                f"(rocketstream topic update {topic} --perm rw), or its master is away"
                if is_there
                else "create the topic or check its name"
            )
            raise RouteNotFoundError(
                f"No route info of this topic: {topic}; name servers asked: {asked}; {to_do}",
                topic=topic,
            )

    async def renew(self, topic: str) -> None:
        """Ask for the route of a topic whose broker failed, unless that was done a moment ago.

        Waits for a moment only, and fails never: what is known of the topic holds as before.
        """
        self._forget_asked()
        if topic in self._asked_at and (topic, None) not in self._running:
            return
        with contextlib.suppress(RocketMQError, TimeoutError):
            async with up_to(ROUTE_RENEWAL_WAIT_MS / 1000):
                await self.update(topic)

    def _forget_asked(self) -> None:
        since = asyncio.get_running_loop().time() - ROUTE_RENEWAL_INTERVAL_MS / 1000
        self._asked_at = {each: at for each, at in self._asked_at.items() if at > since}

    async def refresh(self, among: Iterable[str] | None = None) -> None:
        """Refresh the route of every topic somebody uses, or of some; failures are logged.

        A look at all of them drops the topics that do not exist, or nobody wants, and that nobody
        has sent to or pulled for some minutes. Topics that exist stay, however idle: a send may
        come while no name server answers.
        """
        wanted = self._groups.wanted_topics()
        # In one order whatever the hashes are, so that a simulated run can be repeated.
        topics = sorted(wanted if among is None else wanted.intersection(among))
        left = iter(topics)
        missing: set[str] = set()

        async def ask() -> None:
            for topic in left:
                try:
                    if not await self.update(topic):
                        missing.add(topic)
                except Exception as error:
                    self._outages.failed(("route of topic", topic), error)

        at_once = min(len(topics), ROUTE_QUESTIONS_AT_ONCE)
        await asyncio.gather(*(ask() for _ in range(at_once)))
        if among is None:
            self._forget_asked()
            self._drop_unused(missing.union(set(self._routes.topics()) - wanted))

    def _drop_unused(self, topics: Iterable[str]) -> None:
        now, used = asyncio.get_running_loop().time(), self._routes.used
        before = self._unused_since
        self._unused_since = {each: before.get(each, now) for each in topics if each not in used}
        used.clear()
        long_ago = now - UNUSED_TOPIC_MS / 1000
        unused = [each for each, since in self._unused_since.items() if since <= long_ago]
        for topic in self._groups.release(unused) if unused else ():
            self._routes.forget(topic)

    async def close(self) -> None:
        """Cancel what is on its way."""
        tasks = list(self._running.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
