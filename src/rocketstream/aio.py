"""The asyncio face: the same names as ``rocketstream``, with coroutines for methods that wait.

Law: names only.
"""

from rocketstream.client.consumer.lite.aio_consumer import (
    AsyncLitePullConsumer as LitePullConsumer,
)
from rocketstream.client.consumer.lite_topics.aio_consumer import (
    AsyncLitePushConsumer as LitePushConsumer,
)
from rocketstream.client.consumer.pull.aio_consumer import AsyncPullConsumer as PullConsumer
from rocketstream.client.consumer.pull.schedule import (
    AsyncMQPullConsumerScheduleService as MQPullConsumerScheduleService,
)
from rocketstream.client.consumer.pull.schedule import AsyncPullTaskContext as PullTaskContext
from rocketstream.client.consumer.push.aio_consumer import AsyncPushConsumer as PushConsumer
from rocketstream.client.producer.aio_producer import AsyncProducer as Producer
from rocketstream.client.producer.aio_transaction_producer import (
    AsyncTransactionProducer as TransactionProducer,
)

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
