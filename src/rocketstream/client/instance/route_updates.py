"""Asking the name servers for routes, and keeping those that are used fresh.

Law: on the loop; what a route means is ``core.routes``' (C-134 to C-139).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from rocketstream.client.core.routes import RouteTable, default_topic_route
from rocketstream.client.instance.api import MQClientAPI
from rocketstream.client.instance.groups import Groups
from rocketstream.client.instance.outage_log import OutageLog
from rocketstream.errors import RouteNotFoundError, TopicNotExistError

_Key = tuple[str, int | None]


class RouteUpdates:
    """The route look-ups of one client instance; those of one topic at a time are one."""

    def __init__(
        self,
        groups: Groups,
        api: MQClientAPI,
        routes: RouteTable,
        outages: OutageLog,
        queues_changed: Callable[[], None],
    ) -> None:
        self._groups = groups
        self._api = api
        self._routes = routes
        self._outages = outages
        self._queues_changed = queues_changed
        self._running: dict[_Key, asyncio.Task[bool]] = {}

    async def update(self, topic: str, default_topic: tuple[str, int] | None = None) -> bool:
        """Ask for a topic's route and take it in; see ``MQClientInstance.update_route``."""
        key = (topic, default_topic[1] if default_topic else None)
        task = self._running.get(key)
        if task is None:
            coro = self._update(topic, default_topic)
            task = asyncio.get_running_loop().create_task(coro)
            self._running[key] = task
            task.add_done_callback(lambda done: self._done(key, done))
        return await asyncio.shield(task)

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
                self._outages.worked("broker", broker.broker_name)
        if changed and known is not None and known != self._routes.subscribe_queues(topic):
            self._queues_changed()
        return True

    def _done(self, key: _Key, task: asyncio.Task[bool]) -> None:
        self._running.pop(key, None)
        if not task.cancelled():
            task.exception()  # retrieved: whoever asked may have gone meanwhile

    async def publish(self, topic: str, create_topic_key: str, queue_nums: int) -> None:
        """Have a route for sending; see ``MQClientInstance.publish_route``."""
        self._groups.producer_topics.add(topic)
        await self.update(topic)
        if self._routes.publish_info(topic) is None:
            await self.update(topic, (create_topic_key, queue_nums))
        if self._routes.publish_info(topic) is None:
            self._groups.producer_topics.discard(topic)
            raise RouteNotFoundError(
                f"No route info of this topic: {topic}; name servers asked: "
                f"{', '.join(self._api.name_servers)}; create the topic or check its name",
                topic=topic,
            )

    async def refresh(self) -> None:
        """Refresh the route of every topic somebody uses; failures are logged."""
        # In one order whatever the hashes are, so that a simulated run can be repeated.
        topics = sorted(self._groups.wanted_topics())
        results = await asyncio.gather(
            *(self.update(topic) for topic in topics), return_exceptions=True
        )
        for topic, result in zip(topics, results, strict=True):
            if isinstance(result, Exception):
                self._outages.failed(("route of topic", topic), result)

    async def close(self) -> None:
        """Cancel what is on its way."""
        tasks = list(self._running.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
