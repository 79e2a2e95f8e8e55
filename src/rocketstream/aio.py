"""The asyncio face: the same names as ``rocketstream``, with coroutines for methods that wait."""

from rocketstream.client.consumer.lite.aio_consumer import (
    AsyncLitePullConsumer as LitePullConsumer,
)
from rocketstream.client.consumer.lite_topics.consumer import (
    AsyncLitePushConsumer as LitePushConsumer,
)
from rocketstream.client.consumer.pull.consumer import AsyncPullConsumer as PullConsumer
from rocketstream.client.consumer.pull.schedule import (
    AsyncMQPullConsumerScheduleService as MQPullConsumerScheduleService,
)
from rocketstream.client.consumer.pull.schedule import AsyncPullTaskContext as PullTaskContext
from rocketstream.client.consumer.push.consumer import AsyncPushConsumer as PushConsumer
from rocketstream.client.producer.aio_producer import AsyncProducer as Producer
from rocketstream.client.producer.transaction import AsyncTransactionProducer as TransactionProducer

__all__ = [
    "LitePullConsumer",
    "LitePushConsumer",
    "MQPullConsumerScheduleService",
    "Producer",
    "PullConsumer",
    "PullTaskContext",
    "PushConsumer",
    "TransactionProducer",
]
