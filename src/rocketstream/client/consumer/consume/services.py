"""Which consume service a listener needs.

Law: puts parts together; decides nothing else.
"""

from __future__ import annotations

import os
from typing import Protocol

from rocketstream._util.clock import Clock
from rocketstream.client.consumer.blame import Blame
from rocketstream.client.consumer.consume.base import ConcurrentParts
from rocketstream.client.consumer.consume.calls import CallObserver
from rocketstream.client.consumer.consume.concurrently import (
    ConsumeMessageConcurrentlyService,
)
from rocketstream.client.consumer.consume.coroutines import AsyncConsumeService
from rocketstream.client.consumer.consume.orderly import (
    AsyncOrderlyService,
    ConsumeMessageOrderlyService,
)
from rocketstream.client.consumer.consume.runs import (
    ConsumeService,
    OffsetUpdater,
    QueueKeeper,
    Settler,
)
from rocketstream.client.consumer.consume.turns import OrderlyParts, OrderlyService
from rocketstream.client.consumer.listener import Listener
from rocketstream.client.consumer.push.send_back import SendBack
from rocketstream.client.consumer.queue_locks import QueueLocks
from rocketstream.client.core.orderly import OrderlyTimes
from rocketstream.client.core.settings import PushConsumerSettings
from rocketstream.client.hooks import ConsumeHooks
from rocketstream.client.instance.mq_client import MQClientInstance
from rocketstream.errors import ConfigurationError
from rocketstream.model import MessageModel

LOCK_MAX_LIVE_VARIABLE = "ROCKETMQ_REBALANCE_LOCK_MAX_LIVE_MS"
LOCK_INTERVAL_VARIABLE = "ROCKETMQ_REBALANCE_LOCK_INTERVAL_MS"
TURN_MAX_VARIABLE = "ROCKETMQ_MAX_TIME_CONSUME_CONTINUOUSLY_MS"


class Consuming(Protocol):
    """The consumer a service is for."""

    group: str
    clock: Clock
    instance: MQClientInstance
    settings: PushConsumerSettings
    consume_hooks: ConsumeHooks
    offset_updater: OffsetUpdater
    send_back: SendBack


def orderly_times() -> OrderlyTimes:
    """Return the times of orderly consumers; environment variables stand for upstream's sysprops.

    Raises:
        ConfigurationError: one of them is not a number of milliseconds.
    """
    usual = OrderlyTimes()
    return OrderlyTimes(
        lock_max_live_ms=_milliseconds(LOCK_MAX_LIVE_VARIABLE, usual.lock_max_live_ms),
        lock_interval_ms=_milliseconds(LOCK_INTERVAL_VARIABLE, usual.lock_interval_ms),
        turn_max_ms=_milliseconds(TURN_MAX_VARIABLE, usual.turn_max_ms),
    )


def _milliseconds(variable: str, default: float) -> float:
    text = os.environ.get(variable, "").strip()
    if not text:
        return default
    if not (text.isascii() and text.isdigit() and int(text)):
        raise ConfigurationError(
            f"environment variable {variable} must be a number of milliseconds above 0, "
            f"not {text!r}"
        )
    return float(text)


def make_service(consumer: Consuming, listener: Listener) -> ConsumeService:
    """Return the service for a listener: in order or not, tasks for coroutines, else threads."""
    settings, config = consumer.settings, consumer.instance.config
    observer = CallObserver(
        consumer.group,
        consumer.consume_hooks,
        consumer.instance.stats,
        consumer.clock,
        settings.consume_timeout_minutes,
        config.effective_namespace(),
        config.access_channel,
        Blame(listener.call) if settings.send_back_cause else None,
    )
    if listener.is_orderly:
        clustered = settings.message_model is MessageModel.CLUSTERING
        orderly = AsyncOrderlyService if listener.is_async else ConsumeMessageOrderlyService
        return orderly(
            OrderlyParts(
                listener,
                consumer.offset_updater,
                consumer.send_back,
                observer,
                settings,
                QueueLocks(consumer.instance, consumer.group) if clustered else None,
                consumer.instance.rebalance_soon,
                orderly_times(),
            )
        )
    settler = Settler(consumer.send_back.submit)
    concurrent = AsyncConsumeService if listener.is_async else ConsumeMessageConcurrentlyService
    return concurrent(
        ConcurrentParts(
            listener,
            consumer.offset_updater,
            settler,
            observer,
            settings.consume_message_batch_max_size,
            settings.consume_thread_max,
        )
    )


def keeper_of(service: ConsumeService) -> QueueKeeper | None:
    """Return the service as what keeps its queues; None for those that lock nothing."""
    return service if isinstance(service, OrderlyService) else None
