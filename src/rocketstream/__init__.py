"""Rocketstream: RocketMQ for Python.

Law: public names only; each is imported when it is first used, so importing the package is cheap.
"""

from __future__ import annotations

from importlib import import_module

TYPE_CHECKING = False  # importing ``typing`` would take longer than all the rest of this
if TYPE_CHECKING:
    from typing import Any

    from rocketstream.client.config import ClientConfig
    from rocketstream.client.consumer.allocate import (
        AllocateMachineRoomNearby,
        AllocateMessageQueueAveragely,
        AllocateMessageQueueAveragelyByCircle,
        AllocateMessageQueueByConfig,
        AllocateMessageQueueByMachineRoom,
        AllocateMessageQueueConsistentHash,
        AllocateMessageQueueStrategy,
        MachineRoomResolver,
    )
    from rocketstream.client.consumer.listener import (
        ConsumeConcurrentlyContext,
        ConsumeOrderlyContext,
        MessageListenerConcurrently,
        MessageListenerOrderly,
    )
    from rocketstream.client.consumer.lite.consumer import LitePullConsumer
    from rocketstream.client.consumer.lite_topics.consumer import LitePushConsumer
    from rocketstream.client.consumer.lite_topics.service import LiteTopicContext
    from rocketstream.client.consumer.offsets.local_store import (
        LocalFileOffsetStore,
    )
    from rocketstream.client.consumer.offsets.store import (
        OffsetStore,
        ReadOffsetType,
    )
    from rocketstream.client.consumer.pull.consumer import PullCallback, PullConsumer
    from rocketstream.client.consumer.pull.schedule import (
        MQPullConsumerScheduleService,
        PullTaskContext,
    )
    from rocketstream.client.consumer.pull_answer import PullResult
    from rocketstream.client.consumer.push.consumer import PushConsumer
    from rocketstream.client.consumer.settings import OffsetOption
    from rocketstream.client.consumer.subscription import MessageQueueListener
    from rocketstream.client.hooks import (
        CheckForbiddenContext,
        CheckForbiddenHook,
        ConsumeMessageContext,
        ConsumeMessageHook,
        ConsumeReturnType,
        EndTransactionContext,
        EndTransactionHook,
        FilterMessageContext,
        FilterMessageHook,
        MessageType,
        RPCHook,
        SendMessageContext,
        SendMessageHook,
    )
    from rocketstream.client.instance.life_cycle import ServiceState
    from rocketstream.client.producer.many import SendManyResult
    from rocketstream.client.producer.message import (
        SelectMessageQueueByHash,
        SelectMessageQueueByRandom,
    )
    from rocketstream.client.producer.producer import Producer
    from rocketstream.client.producer.request_reply import create_reply_message
    from rocketstream.client.producer.transaction import TransactionListener, TransactionProducer
    from rocketstream.errors import (
        ReplyTimeoutError,
        RocketMQError,
        SendError,
        SendManyError,
        SendOutcome,
    )
    from rocketstream.model import (
        ConsumeConcurrentlyStatus,
        ConsumeFromWhere,
        ConsumeOrderlyStatus,
        LocalTransactionState,
        Message,
        MessageModel,
        MessageQueue,
        MessageSelector,
        PullStatus,
        SendResult,
        SendStatus,
        TransactionSendResult,
    )
    from rocketstream.protocol.message_ext import MessageExt

__version__ = "0.1.0"

_HOMES = {
    "rocketstream.client.consumer.offsets.local_store": ("LocalFileOffsetStore",),
    "rocketstream.client.consumer.offsets.store": (
        "OffsetStore",
        "ReadOffsetType",
    ),
    "rocketstream.client.config": ("ClientConfig",),
    "rocketstream.client.consumer.allocate": (
        "AllocateMachineRoomNearby",
        "AllocateMessageQueueAveragely",
        "AllocateMessageQueueAveragelyByCircle",
        "AllocateMessageQueueByConfig",
        "AllocateMessageQueueByMachineRoom",
        "AllocateMessageQueueConsistentHash",
        "AllocateMessageQueueStrategy",
        "MachineRoomResolver",
    ),
    "rocketstream.client.consumer.pull_answer": ("PullResult",),
    "rocketstream.client.consumer.listener": (
        "ConsumeConcurrentlyContext",
        "ConsumeOrderlyContext",
        "MessageListenerConcurrently",
        "MessageListenerOrderly",
    ),
    "rocketstream.client.hooks": (
        "CheckForbiddenContext",
        "CheckForbiddenHook",
        "ConsumeMessageContext",
        "ConsumeMessageHook",
        "ConsumeReturnType",
        "EndTransactionContext",
        "EndTransactionHook",
        "FilterMessageContext",
        "FilterMessageHook",
        "MessageType",
        "RPCHook",
        "SendMessageContext",
        "SendMessageHook",
    ),
    "rocketstream.client.instance.life_cycle": ("ServiceState",),
    "rocketstream.client.producer.many": ("SendManyResult",),
    "rocketstream.client.producer.producer": ("Producer",),
    "rocketstream.client.producer.request_reply": ("create_reply_message",),
    "rocketstream.client.producer.message": (
        "SelectMessageQueueByHash",
        "SelectMessageQueueByRandom",
    ),
    "rocketstream.client.producer.transaction": ("TransactionListener", "TransactionProducer"),
    "rocketstream.client.consumer.lite.consumer": ("LitePullConsumer",),
    "rocketstream.client.consumer.lite_topics.consumer": ("LitePushConsumer",),
    "rocketstream.client.consumer.lite_topics.service": ("LiteTopicContext",),
    "rocketstream.client.consumer.settings": ("OffsetOption",),
    "rocketstream.client.consumer.pull.consumer": ("PullCallback", "PullConsumer"),
    "rocketstream.client.consumer.pull.schedule": (
        "MQPullConsumerScheduleService",
        "PullTaskContext",
    ),
    "rocketstream.client.consumer.push.consumer": ("PushConsumer",),
    "rocketstream.client.consumer.subscription": ("MessageQueueListener",),
    "rocketstream.errors": (
        "ReplyTimeoutError",
        "RocketMQError",
        "SendError",
        "SendManyError",
        "SendOutcome",
    ),
    "rocketstream.model": (
        "ConsumeConcurrentlyStatus",
        "ConsumeFromWhere",
        "ConsumeOrderlyStatus",
        "LocalTransactionState",
        "Message",
        "MessageModel",
        "MessageQueue",
        "MessageSelector",
        "PullStatus",
        "SendResult",
        "SendStatus",
        "TransactionSendResult",
    ),
    "rocketstream.protocol.message_ext": ("MessageExt",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "AllocateMachineRoomNearby",
    "AllocateMessageQueueAveragely",
    "AllocateMessageQueueAveragelyByCircle",
    "AllocateMessageQueueByConfig",
    "AllocateMessageQueueByMachineRoom",
    "AllocateMessageQueueConsistentHash",
    "AllocateMessageQueueStrategy",
    "CheckForbiddenContext",
    "CheckForbiddenHook",
    "ClientConfig",
    "ConsumeConcurrentlyContext",
    "ConsumeConcurrentlyStatus",
    "ConsumeFromWhere",
    "ConsumeMessageContext",
    "ConsumeMessageHook",
    "ConsumeOrderlyContext",
    "ConsumeOrderlyStatus",
    "ConsumeReturnType",
    "EndTransactionContext",
    "EndTransactionHook",
    "FilterMessageContext",
    "FilterMessageHook",
    "LitePullConsumer",
    "LitePushConsumer",
    "LiteTopicContext",
    "LocalFileOffsetStore",
    "LocalTransactionState",
    "MQPullConsumerScheduleService",
    "MachineRoomResolver",
    "Message",
    "MessageExt",
    "MessageListenerConcurrently",
    "MessageListenerOrderly",
    "MessageModel",
    "MessageQueue",
    "MessageQueueListener",
    "MessageSelector",
    "MessageType",
    "OffsetOption",
    "OffsetStore",
    "Producer",
    "PullCallback",
    "PullConsumer",
    "PullResult",
    "PullStatus",
    "PullTaskContext",
    "PushConsumer",
    "RPCHook",
    "ReadOffsetType",
    "ReplyTimeoutError",
    "RocketMQError",
    "SelectMessageQueueByHash",
    "SelectMessageQueueByRandom",
    "SendError",
    "SendMessageContext",
    "SendMessageHook",
    "SendManyError",
    "SendManyResult",
    "SendOutcome",
    "SendResult",
    "SendStatus",
    "ServiceState",
    "TransactionListener",
    "TransactionProducer",
    "TransactionSendResult",
    "__version__",
    "create_reply_message",
]


if not TYPE_CHECKING:  # else every misspelt name would be an Any to type checkers

    def __getattr__(name: str) -> Any:
        home = _HOME_OF.get(name)
        if home is None:
            # Not for a module of ours, which Python looks for here first: that is each start.
            if name[:1].isupper():
                from rocketstream.suggestions import class_hint

                if (ours := class_hint(name)) is not None:
                    # An AttributeError's text is lost where it is imported by "from".
                    raise ImportError(f"rocketstream has no {name}; use {ours}", name=__name__)
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(import_module(home), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME_OF})
