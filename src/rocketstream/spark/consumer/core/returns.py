"""The request for a message that failed: back to its broker, a new send, or a dead letter.

Pure: one message in, headers and bodies of requests out. The rules are the push consumer's
(``client.consumer.retry``).
"""

from __future__ import annotations

from typing import Final

from rocketstream.client.consumer.retry import RetryMessage, dead_letter_message, fallback_message
from rocketstream.model import MessageQueue
from rocketstream.protocol.codes import RequestCode
from rocketstream.protocol.command import RemotingCommand
from rocketstream.protocol.compression import compress
from rocketstream.protocol.headers import (
    ConsumerSendMsgBackRequestHeader,
    SendMessageRequestHeader,
)
from rocketstream.protocol.message_ext import MessageExt
from rocketstream.protocol.names import AUTO_CREATE_TOPIC, CLIENT_INNER_PRODUCER_GROUP
from rocketstream.protocol.properties import encode_properties

COMPRESS_BODY_OVER: Final = 4096
"""Java's inner producer compresses from this size on; the row's body is already inflated."""
_DEFAULT_QUEUES: Final = 4


def send_back_command(
    message: MessageExt, group: str, level: int, max_times: int
) -> RemotingCommand:
    """Return the request by which a broker stores a message for another try (36, C-270).

    Args:
        message: the message under its original topic; the broker finds it by its place in the log.
        group: the group that tries again.
        level: -1 sends it to the dead letters, 0 lets the broker decide, another number is the
            delay level.
        max_times: after how many tries the broker puts it into the dead letters.
    """
    header = ConsumerSendMsgBackRequestHeader(
        message.commit_log_offset,
        group,
        level,
        message.msg_id,
        message.topic,
        False,
        max_times,
        message.broker_name,
    )
    return RemotingCommand.request(RequestCode.CONSUMER_SEND_MSG_BACK, header)


class Replacement:
    """A message that is sent to the retry topic in place of another one.

    Attributes:
        topic: the retry topic.
    """

    __slots__ = ("_body", "_message", "_retry", "_sys_flag", "topic")

    def __init__(self, message: MessageExt, retry: RetryMessage) -> None:
        self.topic = retry.topic
        self._retry = retry
        self._message = message
        self._body, self._sys_flag = message.body, 0
        if len(self._body) >= COMPRESS_BODY_OVER:
            self._body, self._sys_flag = compress(self._body)

    @property
    def properties_bytes(self) -> int:
        """The size of the properties as text in bytes; a broker adds its own properties."""
        return len(encode_properties(self._retry.properties).encode())

    def command(self, queue: MessageQueue) -> RemotingCommand:
        """Return the request that stores the message in a queue of the retry topic."""
        retry, message = self._retry, self._message
        header = SendMessageRequestHeader(
            CLIENT_INNER_PRODUCER_GROUP,
            retry.topic,
            AUTO_CREATE_TOPIC,
            _DEFAULT_QUEUES,
            queue.queue_id,
            self._sys_flag,
            message.born_timestamp,
            message.flag,
            encode_properties(retry.properties),
            retry.reconsume_times,
            False,
            retry.max_reconsume_times,
            False,
            queue.broker_name,
        )
        command = RemotingCommand(RequestCode.SEND_MESSAGE_V2)
        command.ext_fields = header.to_ext_v2()
        command.body = self._body
        return command


def anew(message: MessageExt, group: str, level: int, max_times: int) -> Replacement:
    """Return the message to send where a send-back is refused as its place is gone (C-271)."""
    retry = fallback_message(
        group,
        message.topic,
        message.properties,
        origin_message_id=message.offset_msg_id,
        reconsume_times=message.reconsume_times,
        delay_level=level,
        max_times=max_times,
    )
    return Replacement(message, retry)


def dead(message: MessageExt, group: str, max_times: int) -> Replacement:
    """Return the dead letter for a message after an orderly listener's last try (C-289)."""
    retry = dead_letter_message(
        group,
        message.topic,
        message.properties,
        origin_message_id=message.msg_id,
        reconsume_times=message.reconsume_times,
        max_times=max_times,
    )
    return Replacement(message, retry)
