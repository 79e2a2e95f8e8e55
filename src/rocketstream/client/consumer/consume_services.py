"""Which consume service a listener needs.

Law: puts parts together; decides nothing else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rocketstream.client.consumer.consume_async import AsyncConsumeService
from rocketstream.client.consumer.consume_call import CallWatch
from rocketstream.client.consumer.consume_concurrently import ConsumeMessageConcurrentlyService
from rocketstream.client.consumer.consume_orderly import (
    AsyncOrderlyService,
    ConsumeMessageOrderlyService,
)
from rocketstream.client.consumer.consume_run import ConsumeService, Settler
from rocketstream.client.consumer.queue_locks import QueueLocks
from rocketstream.client.core.orderly import OrderlyTimes
from rocketstream.model import MessageModel

if TYPE_CHECKING:
    from rocketstream.client.consumer.listener import Listener
    from rocketstream.client.consumer.push_impl import PushConsumerImpl


def make_service(
    impl: PushConsumerImpl, listener: Listener, times: OrderlyTimes | None = None
) -> ConsumeService:
    """Return the service for a listener: in order or not, tasks for coroutines, else threads."""
    settings, config = impl.settings, impl.instance.config
    watch = CallWatch(
        impl.group,
        impl.consume_hooks,
        impl.instance.stats,
        impl.clock,
        settings.consume_timeout_minutes,
        config.effective_namespace(),
        config.access_channel,
    )
    if listener.is_orderly:
        clustered = settings.message_model is MessageModel.CLUSTERING
        orderly = AsyncOrderlyService if listener.is_async else ConsumeMessageOrderlyService
        return orderly(
            listener,
            impl.book,
            impl.send_back,
            watch,
            settings,
            QueueLocks(impl.instance, impl.group) if clustered else None,
            impl.instance.rebalance_soon,
            times or OrderlyTimes(),
        )
    settler = Settler(impl.send_back.submit)
    size, most = settings.consume_message_batch_max_size, settings.consume_thread_max
    if listener.is_async:
        return AsyncConsumeService(
            listener, impl.book, settler, watch, batch_size=size, tasks_max=most
        )
    return ConsumeMessageConcurrentlyService(
        listener, impl.book, settler, watch, batch_size=size, threads_max=most
    )
