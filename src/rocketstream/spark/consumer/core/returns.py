"""What is sent for a message that failed: back to its broker, anew, or to the dead letters.

Law: pure; one message in, headers and bodies of requests out. The rules are the push consumer's
(``client.core.retry``).
"""

from __future__ import annotations

from typing import Final

from rocketstream.client.core.retry import RetryMessage, dead_letter_message, fallback_message
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
"""Java's inner producer compresses from this size on: the row's body is inflated."""
_DEFAULT_QUEUES: Final = 4


def send_back_command(
    message: MessageExt, group: str, level: int, max_times: int
) -> RemotingCommand:
    """Return the request that has the broker store a message for another try (36, C-270).

    Args:
        message: under its original topic; the broker finds it by its place in the log.
        group: the group that tries again.
        level: -1 to the dead letters, 0 for the broker to decide, else this delay level.
        max_times: tries before the broker puts it into the dead letters.
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
    """A message sent to the retry topic in place of another one.

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
        """How much the properties take as text; a broker adds its own."""
        return len(encode_properties(self._retry.properties).encode())

    def command(self, queue: MessageQueue) -> RemotingCommand:
        """Return the request that stores it in a queue of the retry topic."""
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
    """Return what is sent where a send-back is refused: its place in the log is gone (C-271)."""
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
    """Return what goes to the dead letters after an orderly listener's last try (C-289)."""
    retry = dead_letter_message(
        group,
        message.topic,
        message.properties,
        origin_message_id=message.msg_id,
        reconsume_times=message.reconsume_times,
        max_times=max_times,
    )
    return Replacement(message, retry)
