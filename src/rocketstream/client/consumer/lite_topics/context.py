"""What a listener of lite topics is told of its messages, and may say besides the status.

Law: values; checked where they are set.
"""

from __future__ import annotations

from collections.abc import Awaitable

from rocketstream.client.consumer.listener import Listening
from rocketstream.client.core.kinds import check_natural
from rocketstream.model import ConsumeConcurrentlyStatus, MessageQueue


class LiteTopicContext:
    """Where the messages of a call come from, and when they come again if they fail.

    Attributes:
        lite_topic: the lite topic all of them are of.
        message_queue: the parent topic and the broker; a lite topic is one queue, 0.
    """

    __slots__ = ("_suspend_ms", "lite_topic", "message_queue")

    def __init__(self, lite_topic: str, message_queue: MessageQueue, suspend_ms: int) -> None:
        self.lite_topic = lite_topic
        self.message_queue = message_queue
        self._suspend_ms = suspend_ms

    def __repr__(self) -> str:
        return (
            f"LiteTopicContext({self.lite_topic!r}, {self.message_queue!r}, "
            f"suspend_ms={self._suspend_ms})"
        )

    @property
    def suspend_ms(self) -> int:
        """With RECONSUME_LATER: how long the lite topic rests; by default the setting."""
        return self._suspend_ms

    @suspend_ms.setter
    def suspend_ms(self, value: int) -> None:
        check_natural("suspend_ms", value)
        self._suspend_ms = value


LiteTopicListener = Listening[ConsumeConcurrentlyStatus, LiteTopicContext]
AnyLiteTopicListener = (
    LiteTopicListener | Listening[Awaitable[ConsumeConcurrentlyStatus], LiteTopicContext]
)
