"""Sending around brokers that are slow or fail, and probing those that could not be reached.

Law: applies ``core.fault_latency`` to live sends; made only with ``send_latency_fault_enable``.
Upstream's MQFaultStrategy with 5.x's bounds and detector (C-465, C-466, C-603).
"""

from __future__ import annotations

import asyncio
import logging
import random

from rocketstream._util.patience import up_to
from rocketstream.client.core.fault_latency import FaultTable
from rocketstream.client.core.producer_settings import ProducerSettings
from rocketstream.client.core.queue_rotation import FaultAvoidingRotation
from rocketstream.client.instance.mq_client import MQClientInstance
from rocketstream.errors import BrokerError, RocketMQError, TooManyRequestsError, TransportError
from rocketstream.protocol.codes import RequestCode
from rocketstream.protocol.command import RemotingCommand
from rocketstream.protocol.headers import GetMaxOffsetRequestHeader

logger = logging.getLogger("rocketstream.client")


class FaultStrategy:
    """What one producer knows of its brokers. ``update`` may be called from any thread."""

    def __init__(
        self,
        settings: ProducerSettings,
        instance: MQClientInstance,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.table = FaultTable(settings.latency_max, settings.not_available_duration)
        self._settings = settings
        self._instance = instance
        self._loop = loop
        self._now = instance.clock.monotonic_ms
        self._detecting: asyncio.Task[None] | None = None
        self._closed = False

    def rotation(self) -> FaultAvoidingRotation:
        """Return a rotation of queues that avoids the brokers in trouble."""
        return FaultAvoidingRotation(random.randrange(1 << 16), self.table, self._now)

    def update(
        self, broker_name: str, latency_ms: float, now_ms: float, error: BaseException | None
    ) -> None:
        """Take in how a try ended."""
        if error is None:
            self.table.update(broker_name, latency_ms, now_ms)
            return
        if not self._is_brokers_fault(error):
            return
        lost = isinstance(error, TransportError) and self._settings.start_detector_enable
        self.table.update(broker_name, latency_ms, now_ms, isolate=True, reachable=not lost)
        if lost and not self._closed:
            try:
                self._loop.call_soon_threadsafe(self._detect_soon)
            except RuntimeError:  # the loop was closed meanwhile
                return

    def _is_brokers_fault(self, error: BaseException) -> bool:
        if isinstance(error, BrokerError):
            # A refused message says nothing of the broker; other brokers would refuse it too.
            return error.code in self._settings.retry_response_codes
        return isinstance(error, TransportError) and not isinstance(error, TooManyRequestsError)

    # --- detection --------------------------------------------------------------------------------

    def close(self) -> None:
        """Stop probing; on the loop."""
        self._closed = True
        if self._detecting is not None:
            self._detecting.cancel()

    def _detect_soon(self) -> None:
        if self._closed or (self._detecting is not None and not self._detecting.done()):
            return
        self._detecting = self._loop.create_task(self._detect(), name="rocketstream-detector")

    async def _detect(self) -> None:
        while names := self.table.unreachable():
            await asyncio.gather(*(self._probe(name) for name in names))
            if self.table.unreachable():
                await asyncio.sleep(self._settings.detect_interval_ms / 1000)

    async def _probe(self, broker_name: str) -> None:
        address = self._instance.routes.master(broker_name)
        if address is None:
            self.table.recovered(broker_name)  # out of every route: nothing is sent there anyway
            return
        header = GetMaxOffsetRequestHeader(self._settings.create_topic_key, 0)
        command = RemotingCommand.request(RequestCode.GET_MAX_OFFSET, header)
        try:
            async with up_to(self._settings.detect_timeout_ms / 1000):
                await self._instance.remoting.request(
                    address, command, self._settings.detect_timeout_ms
                )
        except (RocketMQError, TimeoutError) as error:
            logger.debug("broker %s at %s is still not there: %s", broker_name, address, error)
            return
        logger.info("broker %s at %s can be reached again", broker_name, address)
        self.table.recovered(broker_name)
