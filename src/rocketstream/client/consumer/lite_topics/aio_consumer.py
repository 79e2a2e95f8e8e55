"""The consumer of lite topics of the asyncio face: the machine on the caller's loop.

Law: starts, stops and forwards; the same rules as the sync one.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Unpack

from rocketstream._util.clock import SYSTEM_CLOCK, Clock
from rocketstream.arguments import checks_calls
from rocketstream.client.config import ClientConfig
from rocketstream.client.consumer.listener_faces import AsyncListenerConsumer
from rocketstream.client.consumer.lite_topics.base import (
    LitePushConsumerBase,
    checked_names,
    checked_option,
)
from rocketstream.client.consumer.lite_topics.context import AnyLiteTopicListener
from rocketstream.client.consumer.lite_topics.impl import LitePushConsumerImpl, start_lite
from rocketstream.client.core.lite_settings import OffsetOption
from rocketstream.client.keywords import LitePushConsumerKeywords


@checks_calls()
class AsyncLitePushConsumer(LitePushConsumerBase, AsyncListenerConsumer[LitePushConsumerImpl]):
    """Consumes lite topics, each in order; ``async with`` starts it and shuts it down.

    Arguments, settings and errors are those of ``rocketstream.LitePushConsumer``. A coroutine
    listener is awaited on the caller's loop, at most ``consume_thread_max`` calls at once, each for
    another lite topic; a plain function is called on worker threads.
    """

    def __init__(
        self,
        group: str,
        bind_topic: str,
        *,
        namesrv_addr: str | None = None,
        config: ClientConfig | None = None,
        listener: AnyLiteTopicListener | None = None,
        lite_topics: Iterable[str] = (),
        clock: Clock = SYSTEM_CLOCK,
        **settings: Unpack[LitePushConsumerKeywords],
    ) -> None:
        super().__init__(
            group,
            bind_topic,
            namesrv_addr=namesrv_addr,
            config=config,
            listener=listener,
            lite_topics=lite_topics,
            clock=clock,
            **settings,
        )

    def register_message_listener(self, listener: AnyLiteTopicListener) -> None:
        """Set what consumes the messages; may be a coroutine function."""
        self._set_listener(listener)

    async def start(self) -> None:
        """Subscribe at every broker, and begin to consume.

        Raises as ``rocketstream.LitePushConsumer.start``; what fails leaves nothing behind.
        """
        if self._is_started_again():
            return
        plan = self._begin_start()
        await self._start_here(self.config, partial(start_lite, plan))

    async def subscribe_lite(
        self, lite_topic: str | Iterable[str], offset_option: OffsetOption | None = None
    ) -> None:
        """Consume one lite topic, or several; see ``rocketstream.LitePushConsumer``."""
        names, option = checked_names(lite_topic), checked_option(offset_option)
        await self._machine.subscribe(names, option)

    async def unsubscribe_lite(self, lite_topic: str | Iterable[str]) -> None:
        """Consume one lite topic no more, or several; see ``rocketstream.LitePushConsumer``."""
        await self._machine.unsubscribe(checked_names(lite_topic))
