"""What goes back for a failed message: the request, and the message sent anew if it is refused.

Law: no I/O; one form for the consumers that send back by themselves and for those whose user does
(C-270, C-271, C-289, C-498).
"""

from __future__ import annotations

from rocketstream.client.core.producer_settings import ProducerSettings
from rocketstream.client.core.retry import RetryMessage, dead_letter_message, fallback_message
from rocketstream.client.instance.mq_client import MQClientInstance
from rocketstream.client.producer.sending import PreparedSend
from rocketstream.protocol.codes import MessageSysFlag
from rocketstream.protocol.headers import ConsumerSendMsgBackRequestHeader
from rocketstream.protocol.message_ext import MessageExt
from rocketstream.protocol.names import CLIENT_INNER_PRODUCER_GROUP
from rocketstream.protocol.properties import encode_properties

FALLBACK_TIMEOUT_MS = 3_000
_KEPT_SYS_FLAGS = MessageSysFlag.COMPRESSED | MessageSysFlag.COMPRESSION_MASK


def stored_at(instance: MQClientInstance, message: MessageExt, broker_name: str | None) -> str:
    """Return the address of the broker that stored a message: only it can find it (C-400).

    Args:
        instance: knows the routes.
        message: what is sent back.
        broker_name: who stores it; None: who it came from.

    Raises:
        RouteNotFoundError: that broker has left the routes.
    """
    name = broker_name or message.broker_name
    if not name:
        return message.store_host
    return instance.routes.known_master(name)


class SendBackForm:
    """Makes what one group sends back.

    Args:
        unit_mode: whether the client belongs to a unit; the broker marks the retry topic so (C-11).
        max_times: retries after which a message is dead (C-401).
    """

    def __init__(self, *, unit_mode: bool, max_times: int) -> None:
        self._unit_mode = unit_mode
        self._max_times = max_times
        self.inner = ProducerSettings(CLIENT_INNER_PRODUCER_GROUP)

    def header(
        self, message: MessageExt, topic: str, group: str, level: int, broker_name: str | None
    ) -> ConsumerSendMsgBackRequestHeader:
        """Return the header of the request (C-270); ``topic`` as the servers know it."""
        return ConsumerSendMsgBackRequestHeader(
            message.commit_log_offset,
            group,
            level,
            message.msg_id,
            topic,
            self._unit_mode,
            self._max_times,
            broker_name or message.broker_name,
        )

    def anew(self, message: MessageExt, topic: str, group: str, level: int) -> PreparedSend:
        """Return the message that replaces a send-back the broker refused (C-271)."""
        retry = fallback_message(
            group,
            topic,
            message.properties,
            origin_message_id=message.offset_msg_id,
            reconsume_times=message.reconsume_times,
            delay_level=level,
            max_times=self._max_times,
        )
        return self._prepared(message, retry)

    def dead(self, message: MessageExt, topic: str, group: str, max_times: int) -> PreparedSend:
        """Return what goes to the dead-letter topic in place of a message (C-289)."""
        retry = dead_letter_message(
            group,
            topic,
            message.properties,
            origin_message_id=message.msg_id,
            reconsume_times=message.reconsume_times,
            max_times=max_times,
        )
        return self._prepared(message, retry)

    def _prepared(self, message: MessageExt, retry: RetryMessage) -> PreparedSend:
        prepared = PreparedSend(
            self.inner,
            retry.topic,
            message.stored_body,
            encode_properties(retry.properties),
            message.msg_id,
            message.born_timestamp,
            message.flag,
            message.sys_flag & _KEPT_SYS_FLAGS,
        )
        prepared.reconsume_times = retry.reconsume_times
        prepared.max_reconsume_times = retry.max_reconsume_times
        return prepared
