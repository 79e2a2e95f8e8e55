"""The asyncio face: the same names as ``rocketstream``, with coroutines for methods that wait.

Law: names only.
"""

from rocketstream.client.aio_producer import AsyncProducer as Producer
from rocketstream.client.aio_push_consumer import AsyncPushConsumer as PushConsumer

__all__ = ["Producer", "PushConsumer"]
