"""What a broker, and through it an operator, may ask of a push consumer, and make it do.

Law: reads the consumer's state and answers; runs on the loop (C-132, C-532, C-540).
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Protocol

from rocketstream._util.clock import Clock
from rocketstream.client.config import ClientConfig
from rocketstream.client.consumer.consume.runs import ConsumeService, PullRequest
from rocketstream.client.consumer.listener import Listener
from rocketstream.client.consumer.offsets.store import Offsets
from rocketstream.client.consumer.rebalance_impl import RebalanceImpl
from rocketstream.client.core.orderly import OrderlyProcessQueue
from rocketstream.client.core.settings import PushConsumerSettings
from rocketstream.client.instance.mq_client import MQClientInstance
from rocketstream.errors import RocketMQError
from rocketstream.model import MessageQueue
from rocketstream.protocol.bodies import (
    ConsumeMessageDirectlyResult,
    ConsumerRunningInfo,
    ProcessQueueInfo,
    SubscriptionData,
)
from rocketstream.protocol.message_ext import MessageExt
from rocketstream.settings import camel_case, java_name

logger = logging.getLogger("rocketstream.client")

NO_OFFSET = -1
_MIB = 1024 * 1024
_NOT_TOLD = frozenset({"access_key", "secret_key", "security_token", "ssl_context", "rpc_hook"})
"""Secrets, and objects whose text says nothing."""


class Told(Protocol):
    """What is told, and changed, of a push consumer; its machine has all of it."""

    group: str
    clock: Clock
    instance: MQClientInstance
    settings: PushConsumerSettings
    subscriptions: dict[str, SubscriptionData]
    listener: Listener
    service: ConsumeService
    store: Offsets
    queues: RebalanceImpl


class PushRemote:
    """Answers for one push consumer."""

    def __init__(self, consumer: Told) -> None:
        self._consumer = consumer
        self._started_ms = consumer.clock.now_ms()

    async def running_info(self) -> ConsumerRunningInfo:
        """Return settings, subscriptions, queues and rates (C-540)."""
        consumer = self._consumer
        listener, settings = consumer.listener, consumer.settings
        config = consumer.instance.config
        subscribed = [f"{each.topic}={each.sub_string}" for each in consumer.subscriptions.values()]
        properties = properties_of(config) | properties_of(settings)
        properties.update(
            clientIP=consumer.instance.client_id.partition("@")[0],
            clientCallbackExecutorThreads=str(config.callback_threads()),
            language="PYTHON",
            messageListener=getattr(listener.call, "__qualname__", type(listener.call).__name__),
            offsetStore=type(consumer.store).__name__,
            subscription=f"{{{', '.join(subscribed)}}}",
            PROP_CONSUMEORDERLY="true" if listener.is_orderly else "false",
            PROP_THREADPOOL_CORE_SIZE=str(consumer.service.core_pool_size),
            PROP_CONSUMER_START_TIMESTAMP=str(self._started_ms),
        )
        subscriptions = list(consumer.subscriptions.values())
        stats = consumer.instance.stats
        return ConsumerRunningInfo(
            properties=properties,
            subscription_set=subscriptions,
            mq_table={
                mq: self._queue_info(request, await self._offset(mq))
                for mq, request in list(consumer.queues.table.items())
            },
            status_table={
                each.topic: stats.consume_status(consumer.group, each.topic)
                for each in subscriptions
            },
        )

    async def consume_directly(
        self, message: MessageExt, broker_name: str
    ) -> ConsumeMessageDirectlyResult:
        """Give one message to the listener, outside of process queue and offsets (C-269, C-295)."""
        return await self._consumer.service.consume_directly(message, broker_name)

    async def reset_offsets(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Go on at these offsets in the queues this consumer has (C-532, C-533).

        Each queue begins anew at once: what its listeners still finish no longer counts, the new
        offset is stored at the broker first, and nothing else pauses (C-572).
        """
        consumer = self._consumer
        for mq, offset in offsets.items():
            try:
                done = await consumer.queues.restart(mq, max(offset, 0))
            except RocketMQError as error:
                logger.warning("offset of %s could not be reset to %d: %s", mq, offset, error)
                continue
            if done:
                logger.info("group %s is reset to offset %d in %s", consumer.group, offset, mq)
        consumer.instance.rebalance_soon()

    def consumer_status(self, topic: str) -> dict[MessageQueue, int]:
        """Return the offsets noted of a topic's queues."""
        consumer = self._consumer
        found: dict[MessageQueue, int] = {}
        for mq in list(consumer.queues.table):
            offset = consumer.store.read_memory(mq) if mq.topic == topic else None
            if offset is not None:
                found[mq] = offset
        return found

    async def _offset(self, mq: MessageQueue) -> int:
        store = self._consumer.store
        noted = store.read_memory(mq)
        if noted is None:
            try:
                noted = await store.read_store(mq)
            except RocketMQError as error:
                logger.info("the stored offset of %s is unknown: %s", mq, error)
        return NO_OFFSET if noted is None else noted

    def _queue_info(self, request: PullRequest, offset: int) -> ProcessQueueInfo:
        clock = self._consumer.clock
        began_ms = clock.now_ms() - clock.monotonic_ms()  # when the monotonic clock stood at 0
        with request.lock:
            queue = request.process_queue
            info = ProcessQueueInfo(
                commit_offset=offset,
                cached_msg_count=queue.message_count,
                cached_msg_size_in_mib=queue.body_bytes // _MIB,
                droped=queue.dropped,
                last_pull_timestamp=int(began_ms + queue.last_pull_ms),
                last_consume_timestamp=int(began_ms + queue.last_consume_ms),
            )
            if queue.message_count:
                info.cached_msg_min_offset = queue.min_offset
                info.cached_msg_max_offset = queue.min_offset + queue.max_span
            if isinstance(queue, OrderlyProcessQueue):
                _add_orderly(info, queue, began_ms)
        return info


def _add_orderly(info: ProcessQueueInfo, queue: OrderlyProcessQueue, began_ms: float) -> None:
    taken = queue.taken_offsets
    info.transaction_msg_count = len(taken)
    if taken:
        info.transaction_msg_min_offset, info.transaction_msg_max_offset = taken[0], taken[-1]
    if queue.message_count:
        info.cached_msg_max_offset = queue.queue_offset_max
    if queue.lease is not None:
        info.locked = queue.lease.locked
        info.last_lock_timestamp = int(began_ms + queue.lease.locked_ms)


def properties_of(settings: Any) -> dict[str, str]:
    """Return settings by the names Java's consumers tell them by; secrets are left out."""
    return {
        java_name(each) or camel_case(each.name): _java_text(
            each.name, getattr(settings, each.name), settings
        )
        for each in fields(settings)
        if each.name not in _NOT_TOLD
    }


def _java_text(name: str, value: Any, settings: Any) -> str:
    if name == "namesrv_addr" and isinstance(settings, ClientConfig):
        return ";".join(settings.name_servers())
    if name == "consume_thread_min":
        value = min(value, settings.consume_thread_max)  # the usual minimum bounds nothing here
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, enum.Enum):
        return str(value.value)
    return str(value) if isinstance(value, (str, int, float)) else type(value).__name__
