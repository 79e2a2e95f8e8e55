"""What becomes of failed messages in broadcasting: nothing, but a line in the log.

Law: the place of a ``SendBack`` that sends nothing; each member has its own copy, so there is no
group to give a message back to (C-263).
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence

from rocketstream.client.consumer.consume.runs import OffsetUpdater, PullRequest
from rocketstream.client.consumer.push.send_back import Resubmit, SendBack
from rocketstream.client.core.settings import PushConsumerSettings
from rocketstream.client.instance.mq_client import MQClientInstance
from rocketstream.protocol.message_ext import MessageExt

logger = logging.getLogger("rocketstream.client")


class BroadcastDrop(SendBack):
    """Counts failed messages as done."""

    def __init__(
        self,
        instance: MQClientInstance,
        settings: PushConsumerSettings,
        offset_updater: OffsetUpdater,
        resubmit: Resubmit,
    ) -> None:
        super().__init__(instance, settings, offset_updater, resubmit)
        self._offset_updater = offset_updater

    def submit(self, request: PullRequest, messages: Sequence[MessageExt], level: int) -> None:
        """Log each message and count it as done; from any thread."""
        for message in messages:
            logger.warning(
                "BROADCASTING, the message consume failed, drop it, topic=%s broker=%s queue=%d "
                "offset=%d msgId=%s",
                message.topic, message.broker_name, message.queue_id, message.queue_offset,
                message.msg_id,
            )  # fmt: skip
        self._offset_updater.finish(request, deque(messages))

    async def expire(self, request: PullRequest, message: MessageExt) -> bool:
        """Leave a message to its listener, however long that takes (C-249, C-585)."""
        return False
