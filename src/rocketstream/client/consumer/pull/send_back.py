"""Sending one message back on request of a pull consumer's user.

Law: runs on the loop; one message, awaited (C-270, C-271, C-498).
"""

from __future__ import annotations

import asyncio
import logging

from rocketstream.client.consumer.send_back_form import (
    FALLBACK_TIMEOUT_MS,
    SendBackForm,
    stored_at,
)
from rocketstream.client.core.queue_rotation import ANY_QUEUE
from rocketstream.client.instance.mq_client import MQClientInstance
from rocketstream.client.producer.async_sender import AsyncSender
from rocketstream.errors import RocketMQError, SendError
from rocketstream.model import SendResult
from rocketstream.protocol.message_ext import MessageExt

logger = logging.getLogger("rocketstream.client")


class SingleSendBack:
    """Sends single messages back to their broker."""

    def __init__(self, instance: MQClientInstance, *, unit_mode: bool, max_times: int) -> None:
        self._instance = instance
        self._form = SendBackForm(unit_mode=unit_mode, max_times=max_times)
        self._sender = AsyncSender(instance, self._form.inner)

    async def send(
        self, message: MessageExt, topic: str, group: str, level: int, broker_name: str | None
    ) -> None:
        """Have a message delivered to ``group`` again; sent anew where the broker refuses.

        Args:
            message: the message.
            topic: its topic as the servers know it.
            group: whose retry topic it goes to.
            level: delay level; 0 leaves it to the broker, -1 gives the message up.
            broker_name: who stores it; None: who it came from.

        Raises:
            SendError: neither way worked; the message was not sent back.
        """
        header = self._form.header(message, topic, group, level, broker_name)
        try:
            address = stored_at(self._instance, message, broker_name)
            await self._instance.api.send_message_back(address, header)
        except RocketMQError as error:
            logger.warning("send-back of %s failed, sending it anew: %s", message.msg_id, error)
            await self._send_anew(message, topic, group, level)

    async def _send_anew(self, message: MessageExt, topic: str, group: str, level: int) -> None:
        prepared = self._form.anew(message, topic, group, level)
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def sent(_result: SendResult | None, error: SendError | None) -> None:
            if done.done():
                return
            if error is None:
                done.set_result(None)
            else:
                done.set_exception(error)

        self._sender.send(prepared, ANY_QUEUE, FALLBACK_TIMEOUT_MS, sent)
        await done
