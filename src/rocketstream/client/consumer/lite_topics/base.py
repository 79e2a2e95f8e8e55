"""What the sync and the asyncio consumer of lite topics share: settings, listener, names.

Law: no I/O and no waiting.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rocketstream._util.clock import SYSTEM_CLOCK, Clock
from rocketstream.client.config import ClientConfig
from rocketstream.client.consumer.base import ConsumerBase
from rocketstream.client.consumer.listener import NO_LISTENER, Listener, listener_of
from rocketstream.client.consumer.lite_topics.impl import LitePlan, LitePushConsumerImpl
from rocketstream.client.core.lite_settings import LitePushConsumerSettings, OffsetOption
from rocketstream.client.instance.service_state import ServiceState
from rocketstream.client.instance.with_block import StartedByWith
from rocketstream.client.instruments import INSTRUMENTS
from rocketstream.errors import ClientStateError, ConfigurationError
from rocketstream.model import check_lite_topic
from rocketstream.protocol.names import check_topic


class LitePushConsumerBase(
    StartedByWith, ConsumerBase[LitePushConsumerImpl, LitePushConsumerSettings]
):
    """Settings, lite topics and state; see ``rocketstream.LitePushConsumer`` for the arguments."""

    _kind = "LitePushConsumer"
    _keywords = ("bind_topic", "listener", "lite_topics")

    def __init__(
        self,
        group: str,
        bind_topic: str,
        *,
        namesrv_addr: str | None = None,
        config: ClientConfig | None = None,
        listener: object = None,
        lite_topics: Iterable[str] = (),
        clock: Clock = SYSTEM_CLOCK,
        **settings: Any,
    ) -> None:
        super().__init__(LitePushConsumerSettings, group, namesrv_addr, config, clock, settings)
        check_topic(bind_topic, "bind_topic")
        self.bind_topic = bind_topic
        self._from_start = checked_names(lite_topics)
        self._listener: Listener | None = None
        if listener is not None:
            self._set_listener(listener)
        INSTRUMENTS.made(self)

    @property
    def lite_topics(self) -> frozenset[str]:
        """The lite topics subscribed; those another member has taken over are left out."""
        if self.state is ServiceState.RUNNING:
            return self._machine.topics.wanted
        return frozenset(self._from_start)

    def _set_listener(self, listener: object) -> None:
        if self.state is not ServiceState.CREATE_JUST:
            raise ClientStateError("the listener is set before start()")
        found = listener_of(listener)
        if found.is_orderly:
            raise ConfigurationError(
                "a lite topic is consumed in order by any listener; give one that is not a "
                "MessageListenerOrderly and returns ConsumeConcurrentlyStatus"
            )
        self._listener = found

    def _shown(self) -> dict[str, list[str]]:
        return {"bind_topic": [self.bind_topic]}

    def _lacks(self) -> tuple[str, ...]:
        return () if self._listener is not None else ("listener",)

    def _begin_start(self) -> LitePlan:
        self._check_new()
        if self._listener is None:
            raise ConfigurationError(f"{NO_LISTENER} (Java: messageListener is null)")
        self.config.name_servers()
        return LitePlan(
            self.settings,
            self.bind_topic,
            self._from_start,
            self._listener,
            self.consume_hooks,
            self._tracing,
        )


def checked_names(lite_topics: Iterable[str]) -> list[str]:
    """Return the names of lite topics, given as one or several, each checked.

    Raises:
        ConfigurationError: one of them is not a name of a lite topic, or neither was given.
    """
    if isinstance(lite_topics, str):
        names = [lite_topics]
    elif isinstance(lite_topics, Iterable):
        names = list(lite_topics)
    else:
        raise ConfigurationError(
            f"lite topics are given as a str, or several of them; given is {lite_topics!r}"
        )
    for name in names:
        check_lite_topic(name)
    return names


def checked_option(option: object) -> OffsetOption | None:
    """Return where a group is to go on.

    Raises:
        ConfigurationError: it is not an ``OffsetOption``.
    """
    if option is None or isinstance(option, OffsetOption):
        return option
    raise ConfigurationError(
        f"offset_option must be an OffsetOption, such as OffsetOption.MIN_OFFSET, not {option!r}"
    )
