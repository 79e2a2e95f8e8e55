"""Announces to brokers which lite topics a consumer wants, and where the group begins in them.

Law: on the loop; one request to a broker at a time, so that the whole set never overtakes a name
that was added meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence

from rocketstream.client.consumer.lite_topics.requests import (
    COMPLETE_ADD,
    COMPLETE_REMOVE,
    PARTIAL_ADD,
    PARTIAL_REMOVE,
    LiteRequests,
)
from rocketstream.client.core.lite_settings import OffsetOption
from rocketstream.client.core.lite_topics import LiteTopics, begins_at_oldest, in_requests
from rocketstream.client.instance.mq_client import MQClientInstance
from rocketstream.errors import RouteNotFoundError, TransportError

logger = logging.getLogger("rocketstream.client")

_ASKED_AT_ONCE = 128

_UNREACHED = (TransportError, RouteNotFoundError)


class Announcer:
    """Announces the lite topics of one consumer to its brokers."""

    def __init__(
        self, instance: MQClientInstance, requests: LiteRequests, topics: LiteTopics
    ) -> None:
        self._instance = instance
        self._requests = requests
        self._topics = topics
        self._locks: dict[str, asyncio.Lock] = {}
        self._changing = asyncio.Lock()

    def address(self, broker: str) -> str:
        """Return where a broker's master is.

        Raises:
            RouteNotFoundError: no route names the broker.
        """
        return self._instance.routes.known_master(broker)

    async def introduce(self) -> None:
        """Announce all to every broker for the first time, and check that each can give messages.

        Raises:
            RocketMQError: a broker refuses, or none of them can be reached.
        """

        async def first(broker: str) -> None:
            await self.announce_all(broker)
            await self._requests.probe(self.address(broker))

        await self._each(first)

    async def announce_all(self, broker: str) -> None:
        """Announce the whole set to a broker; names it may have forgotten are added before.

        Raises:
            RocketMQError: it refuses, or cannot be reached.
        """
        topics = self._topics
        async with self._lock_of(broker):
            # Those of now: one that is added meanwhile is not placed yet, and a broker that has it
            # in the whole set may begin at its end, past messages nobody has consumed.
            mark, names = topics.mark(broker), topics.wanted
            await self._place(broker, topics.to_place(broker))
            await self._requests.subscribe(self.address(broker), COMPLETE_ADD, names)
            topics.told_all(broker, mark, self._instance.clock.monotonic_ms())

    async def add(self, names: Iterable[str], option: OffsetOption | None) -> None:
        """Add lite topics, and announce them to every broker.

        A broker that cannot be reached learns of them later, unless ``option`` moves the group: it
        would not be moved there.

        Raises:
            RocketMQError: a broker refuses, or none of them can be reached; none is subscribed.
        """
        # A name on its way counts as subscribed only when it has arrived: one change at a time.
        async with self._changing:
            await self._add_new(self._topics.new(names), option)

    async def _add_new(self, new: Sequence[str], option: OffsetOption | None) -> None:
        if not new:
            return
        topics = self._topics
        topics.add(new, option)

        async def announce(broker: str) -> None:
            async with self._lock_of(broker):
                if option is None:
                    await self._place(broker, new)
                    return
                await self._add_at(broker, new, option)

        try:
            await self._each(announce, strict=not begins_at_oldest(option))
        except BaseException:
            topics.remove(new)
            for broker in topics.brokers:
                topics.forgot(broker)
            raise

    async def remove(self, names: Iterable[str]) -> None:
        """Remove lite topics, and tell every broker; one out of reach learns of it later.

        Raises:
            RocketMQError: a broker refuses, or none of them can be reached.
        """
        async with self._changing:
            known = self._topics.known(names)
            if not known:
                return
            self._topics.remove(known)

            async def announce(broker: str) -> None:
                async with self._lock_of(broker):
                    for part in in_requests(known):
                        await self._requests.subscribe(self.address(broker), PARTIAL_REMOVE, part)

            await self._each(announce)

    async def withdraw(self, brokers: Collection[str]) -> None:
        """Have brokers forget all they were told; what fails is logged."""

        async def announce(broker: str) -> None:
            async with self._lock_of(broker):
                await self._requests.subscribe(self.address(broker), COMPLETE_REMOVE)

        results = await asyncio.gather(*map(announce, brokers), return_exceptions=True)
        for result in results:
            if isinstance(result, Exception):
                logger.info("%s: %s", COMPLETE_REMOVE, result)

    # --- inside -----------------------------------------------------------------------------------

    def _lock_of(self, broker: str) -> asyncio.Lock:
        return self._locks.setdefault(broker, asyncio.Lock())

    async def _place(self, broker: str, names: Sequence[str]) -> None:
        """Add lite topics; where the group has no offset, it begins at the oldest message."""
        placed: list[str] = []
        fresh: list[str] = []
        address = self.address(broker)
        for at in range(0, len(names), _ASKED_AT_ONCE):
            some = names[at : at + _ASKED_AT_ONCE]
            answers = await asyncio.gather(
                *(self._requests.has_offset(address, broker, name) for name in some)
            )
            for name, has_one in zip(some, answers, strict=True):
                (placed if has_one else fresh).append(name)
        await self._add_at(broker, fresh, OffsetOption.MIN_OFFSET)
        await self._add_at(broker, placed, None)
        self._topics.placed(broker, placed)

    async def _add_at(self, broker: str, names: Sequence[str], option: OffsetOption | None) -> None:
        for part in in_requests(names):
            await self._requests.subscribe(self.address(broker), PARTIAL_ADD, part, option)

    async def _each(
        self, announce: Callable[[str], Awaitable[None]], *, strict: bool = False
    ) -> None:
        """Announce to every broker; one that is out of reach learns of it when it is back.

        Raises:
            RocketMQError: one refuses, or none could be reached; with ``strict`` when one could
                not.
        """
        brokers = self._topics.brokers
        results = await asyncio.gather(*map(announce, brokers), return_exceptions=True)
        unreached: list[BaseException] = []
        for broker, result in zip(brokers, results, strict=True):
            if result is None:
                continue
            if not isinstance(result, _UNREACHED):
                raise result
            unreached.append(result)
            self._topics.forgot(broker)
        if unreached and (strict or len(unreached) == len(brokers)):
            raise unreached[0]
        for error in unreached:
            logger.warning("a broker will be told of lite topics when it is back: %s", error)
