"""Message trace of one client: off, or a dispatcher with the hooks that feed it.

Law: starts and stops with its client and never keeps it from either (C-541).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rocketstream._util.clock import Clock
from rocketstream.client.config import ClientConfig
from rocketstream.client.hooks import ConsumeHooks, EndTransactionHooks, SendMessageHook
from rocketstream.client.trace.dispatcher import AsyncTraceDispatcher
from rocketstream.client.trace.hooks import (
    ConsumeMessageTraceHook,
    EndTransactionTraceHook,
    SendMessageTraceHook,
)
from rocketstream.errors import RocketMQError
from rocketstream.settings import check_values

logger = logging.getLogger("rocketstream.client")


class Tracing:
    """What a client does about message trace; false when it is off."""

    def __init__(self, dispatcher: AsyncTraceDispatcher | None = None) -> None:
        self.dispatcher = dispatcher

    def __bool__(self) -> bool:
        return self.dispatcher is not None

    def observe_sends(self, register: Callable[[SendMessageHook], object]) -> None:
        """Trace the sends of a producer."""
        if self.dispatcher is not None:
            register(SendMessageTraceHook(self.dispatcher))

    def observe_ends(self, hooks: EndTransactionHooks) -> None:
        """Trace the ends of a producer's transactions."""
        if self.dispatcher is not None:
            hooks.register(EndTransactionTraceHook(self.dispatcher))

    def observe_consumption(self, hooks: ConsumeHooks) -> None:
        """Trace a consumer's listener calls or polls."""
        if self.dispatcher is not None:
            hooks.register(ConsumeMessageTraceHook(self.dispatcher))

    def start(self) -> None:
        """Begin to send; a failure is only logged. Blocks shortly, without any network."""
        if self.dispatcher is None:
            return
        try:
            self.dispatcher.start()
        except RocketMQError as error:
            logger.warning("trace dispatcher start failed, nothing is traced: %s", error)

    async def stop(self) -> None:
        """Send what is left, for at most half a second, and end; a failure is only logged."""
        if self.dispatcher is None:
            return
        try:
            # The dispatcher has a loop of its own, on another thread.
            await asyncio.to_thread(self.dispatcher.shutdown)
        except RocketMQError as error:
            logger.warning("trace dispatcher shutdown failed: %s", error)


@dataclass(frozen=True, slots=True)
class TraceSettings:
    """Settings of a client's message trace.

    Attributes:
        enable_msg_trace: tell the trace topic of every send, consumption and end of a transaction.
        customized_trace_topic: that topic; None takes the brokers' own, RMQ_SYS_TRACE_TOPIC.
    """

    enable_msg_trace: bool = False
    customized_trace_topic: str | None = None


TRACE_SETTINGS = ("enable_msg_trace", "customized_trace_topic")


def tracing_of(
    settings: dict[str, Any], group: str, kind: str, config: ClientConfig, clock: Clock
) -> Tracing:
    """Return what ``enable_msg_trace`` and ``customized_trace_topic`` of a client ask for.

    Args:
        settings: keywords of the client; the two are taken out.
        group: the client's group.
        kind: PRODUCE or CONSUME.
        config: the client's configuration.
        clock: where time comes from.

    Raises:
        ConfigurationError: not a flag, or not a topic.
    """
    asked = TraceSettings(
        **{each: settings.pop(each) for each in TRACE_SETTINGS if each in settings}
    )
    check_values(asked)
    if not asked.enable_msg_trace:
        return Tracing()
    topic = asked.customized_trace_topic
    return Tracing(AsyncTraceDispatcher(group, kind, config, topic, clock))
