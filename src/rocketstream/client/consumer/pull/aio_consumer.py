"""The pull consumer of the asyncio face: the machine on the caller's loop.

Law: checks arguments and forwards; the same rules as the sync one.
"""

from __future__ import annotations

from typing import Unpack

from rocketstream._util.clock import SYSTEM_CLOCK, Clock
from rocketstream.arguments import checks_calls
from rocketstream.client.admin.faces import AsyncAdmin
from rocketstream.client.admin.requests import MQAdmin
from rocketstream.client.config import ClientConfig
from rocketstream.client.consumer.pull.base import Expression, PullConsumerBase, check_pull
from rocketstream.client.consumer.queue_listener import QueueListener
from rocketstream.client.core.pull_result import PullResult
from rocketstream.client.instance.service_state import ServiceState
from rocketstream.client.instance.with_block import AsyncWithBlock
from rocketstream.client.keywords import PullConsumerKeywords
from rocketstream.model import MessageQueue
from rocketstream.protocol.message_ext import MessageExt


@checks_calls("pull", "pull_block_if_not_found")
class AsyncPullConsumer(PullConsumerBase, AsyncAdmin, AsyncWithBlock):
    """Pulls queues the caller chooses from offsets the caller keeps.

    Arguments, settings and errors are those of ``rocketstream.PullConsumer``; listeners may be
    coroutine functions.
    """

    def __init__(
        self,
        group: str,
        *,
        namesrv_addr: str | None = None,
        config: ClientConfig | None = None,
        clock: Clock = SYSTEM_CLOCK,
        **settings: Unpack[PullConsumerKeywords],
    ) -> None:
        super().__init__(group, namesrv_addr=namesrv_addr, config=config, clock=clock, **settings)

    async def start(self) -> None:
        """Make the client ready; with registered topics, join the group.

        Raises:
            ClientStateError: started before, or the group exists in this client instance.
            ConfigurationError: no name server address.
        """
        if self._is_started_again():
            return
        self._begin_start()
        _, impl = await self._start_here(self.config, self._make)
        impl.begin()

    async def shutdown(self) -> None:
        """Store what offsets were noted, leave the group, end. Does nothing unless running."""
        started = self._begin_shutdown()
        if started is not None:
            await self._end_here(started, started.machine.shutdown())

    # --- queues -----------------------------------------------------------------------------------

    async def fetch_subscribe_message_queues(self, topic: str) -> list[MessageQueue]:
        """Return the topic's readable queues, sorted."""
        name = self.config.topic_with_namespace(topic)
        queues = await self._machine.fetch_subscribe_message_queues(name)
        return self.config.queues_without_namespace(queues)

    def fetch_message_queues_in_balance(self, topic: str) -> list[MessageQueue]:
        """Return the queues of a registered topic that the group has allotted to this member."""
        name = self.config.topic_with_namespace(topic)
        return self.config.queues_without_namespace(self._machine.message_queues_in_balance(name))

    async def register_message_queue_listener(
        self, topic: str, listener: QueueListener | None = None
    ) -> None:
        """Take part in dividing a topic's queues, and have changes told."""
        name = self._keep_listener(topic, listener)
        if self.state is ServiceState.RUNNING:
            await self._machine.register_topics([name])

    # --- pulling ----------------------------------------------------------------------------------

    async def pull(
        self,
        message_queue: MessageQueue,
        expression: Expression,
        offset: int,
        max_nums: int,
        timeout_ms: float | None = None,
    ) -> PullResult:
        """Pull once; an empty queue is answered at once. See ``rocketstream.PullConsumer.pull``."""
        return await self._pull(message_queue, expression, offset, max_nums, False, timeout_ms)

    async def pull_block_if_not_found(
        self, message_queue: MessageQueue, expression: Expression, offset: int, max_nums: int
    ) -> PullResult:
        """Pull once; the broker holds the request while there is nothing new."""
        return await self._pull(message_queue, expression, offset, max_nums, True, None)

    async def _pull(
        self,
        message_queue: MessageQueue,
        expression: Expression,
        offset: int,
        max_nums: int,
        block: bool,
        timeout_ms: float | None,
    ) -> PullResult:
        inside = self._inside(message_queue)
        subscription = self._subscription_for(inside, expression)
        impl = self._machine
        check_pull(offset, max_nums)
        timeout = self._pull_timeout_ms(block, timeout_ms)
        return await impl.pull(
            inside, subscription, offset, max_nums, block=block, timeout_ms=timeout
        )

    # --- offsets ----------------------------------------------------------------------------------

    async def fetch_consume_offset(
        self, message_queue: MessageQueue, from_store: bool = False
    ) -> int:
        """Return the group's offset of a queue, -1 if there is none."""
        inside = self._inside(message_queue)
        return await self._machine.fetch_consume_offset(inside, from_store=from_store)

    def update_consume_offset(self, message_queue: MessageQueue, offset: int) -> None:
        """Note where the group is; stored by the timer, or at shutdown."""
        self._machine.update_consume_offset(self._inside(message_queue), offset)

    async def update_consume_offset_to_broker(
        self, message_queue: MessageQueue, offset: int
    ) -> None:
        """Note where the group is and have the broker store it now."""
        await self._machine.update_consume_offset_to_broker(self._inside(message_queue), offset)

    async def persist_consumer_offset(self) -> None:
        """Store every noted offset now; a failure is logged and tried again by the timer."""
        await self._machine.persist_offsets()

    # --- send-back --------------------------------------------------------------------------------

    async def send_message_back(
        self,
        message: MessageExt,
        delay_level: int,
        broker_name: str | None = None,
        consumer_group: str | None = None,
    ) -> None:
        """Have a message delivered again, to the retry topic of a group."""
        group = None if not consumer_group else self.config.with_namespace(consumer_group)
        await self._machine.send_message_back(message, delay_level, broker_name, group)

    # --- inside -----------------------------------------------------------------------------------

    def _admin(self) -> MQAdmin:
        return self._machine.admin
