"""Types of handlers' arguments that FastStream fills in from the context.

FastStream reads the annotations while the program runs.
"""

from typing import Annotated

from faststream import Context

from rocketstream.client.producer.aio_producer import AsyncProducer
from rocketstream.frameworks.faststream import broker, message

RocketMQMessage = Annotated[message.RocketMQMessage, Context("message")]
RocketMQBroker = Annotated[broker.RocketMQBroker, Context("broker")]
Producer = Annotated[AsyncProducer, Context("broker._connection")]

__all__ = ["Producer", "RocketMQBroker", "RocketMQMessage"]
