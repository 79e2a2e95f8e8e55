"""A FastStream broker: ``RocketMQBroker("127.0.0.1:9876")``; needs the extra ``faststream``.

Law: what FastStream asks of a broker, said in RocketMQ's terms; consuming is the intake's.
FastStream has no interface for brokers of others, so this stands on its private modules: one
release series of it is supported, and ``faststream._internal`` is imported in no other room.
"""

try:
    import faststream as _faststream  # noqa: F401
except ImportError as error:
    raise ImportError(
        f"a FastStream broker needs the package faststream ({error}): "
        "pip install 'rocketstream[faststream]'"
    ) from error

from rocketstream.frameworks.faststream.annotations import RocketMQMessage
from rocketstream.frameworks.faststream.broker import RocketMQBroker
from rocketstream.frameworks.faststream.command import RocketMQPublishCommand, RocketMQResponse
from rocketstream.frameworks.faststream.router import (
    RocketMQPublisher,
    RocketMQRoute,
    RocketMQRouter,
)
from rocketstream.frameworks.faststream.testing import TestRocketMQBroker

__all__ = [
    "RocketMQBroker",
    "RocketMQMessage",
    "RocketMQPublishCommand",
    "RocketMQPublisher",
    "RocketMQResponse",
    "RocketMQRoute",
    "RocketMQRouter",
    "TestRocketMQBroker",
]
