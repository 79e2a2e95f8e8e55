"""Sending one message back on request of a pull consumer's user.

Law: runs on the loop; one message, awaited (C-270, C-271, C-498).
"""

from __future__ import annotations

import asyncio
import logging

from rocketstream.client.core.producer_settings import ProducerSettings
from rocketstream.client.core.retry import fallback_message
from rocketstream.client.instance import MQClientInstance
from rocketstream.client.producer.async_sender import ANY_QUEUE, AsyncSender
from rocketstream.client.producer.sending import PreparedSend
from rocketstream.errors import RocketMQError, RouteNotFoundError, SendError
from rocketstream.model import SendResult
from rocketstream.protocol.codes import MessageSysFlag
from rocketstream.protocol.headers import ConsumerSendMsgBackRequestHeader
from rocketstream.protocol.message_ext import MessageExt
from rocketstream.protocol.names import CLIENT_INNER_PRODUCER_GROUP
from rocketstream.protocol.properties import (
    PROPERTY_MAX_RECONSUME_TIMES,
    PROPERTY_RECONSUME_TIME,
    encode_properties,
)

logger = logging.getLogger("rocketstream.client")

FALLBACK_TIMEOUT_MS = 3_000
_KEPT_SYS_FLAGS = MessageSysFlag.COMPRESSED | MessageSysFlag.COMPRESSION_MASK


class SingleSendBack:
    """Sends single messages back to their broker."""

    def __init__(self, instance: MQClientInstance, max_times: int) -> None:
        self._instance = instance
        self._max_times = max_times
        self._inner = ProducerSettings(CLIENT_INNER_PRODUCER_GROUP)
        self._sender = AsyncSender(instance, self._inner)

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
        header = ConsumerSendMsgBackRequestHeader(
            message.commit_log_offset,
            group,
            level,
            message.msg_id,
            topic,
            False,
            self._max_times,
            broker_name or message.broker_name,
        )
        try:
            await self._instance.api.send_message_back(self._address(message, broker_name), header)
        except RocketMQError as error:
            logger.warning("send-back of %s failed, sending it anew: %s", message.msg_id, error)
            await self._send_anew(message, topic, group, level)

    def _address(self, message: MessageExt, broker_name: str | None) -> str:
        name = broker_name or message.broker_name
        if not name:
            return message.store_host
        address = self._instance.routes.master(name)
        if address is None:
            raise RouteNotFoundError(f"The broker[{name}] not exist", broker=name)
        return address

    async def _send_anew(self, message: MessageExt, topic: str, group: str, level: int) -> None:
        retry = fallback_message(
            group,
            topic,
            message.properties,
            origin_message_id=message.offset_msg_id,
            reconsume_times=message.reconsume_times,
            delay_level=level,
            max_times=self._max_times,
        )
        prepared = PreparedSend(
            self._inner,
            retry.topic,
            message.stored_body,
            encode_properties(retry.properties),
            message.msg_id,
            message.born_timestamp,
            message.flag,
            message.sys_flag & _KEPT_SYS_FLAGS,
        )
        prepared.reconsume_times = int(retry.properties[PROPERTY_RECONSUME_TIME])
        prepared.max_reconsume_times = int(retry.properties[PROPERTY_MAX_RECONSUME_TIMES])
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
