"""A FastStream broker: ``RocketMQBroker("127.0.0.1:9876")``; needs the extra ``faststream``.

Law: ``faststream._internal`` is imported in no other package. FastStream has no interface for
brokers of others, so this one uses its private modules, and supports one release series of it.
``intake`` does the consuming.
"""

try:
    from faststream.__about__ import __version__ as _installed
except ImportError as _error:
    raise ImportError(
        f"a FastStream broker needs the package faststream ({_error}): "
        "pip install 'rocketstream[faststream]'"
    ) from _error

from rocketstream.frameworks.faststream.versions import check_version

check_version(_installed)

from rocketstream.frameworks.faststream.annotations import RocketMQMessage  # noqa: E402
from rocketstream.frameworks.faststream.broker import RocketMQBroker  # noqa: E402
from rocketstream.frameworks.faststream.command import (  # noqa: E402
    RocketMQPublishCommand,
    RocketMQResponse,
)
from rocketstream.frameworks.faststream.router import (  # noqa: E402
    RocketMQPublisher,
    RocketMQRoute,
    RocketMQRouter,
)
from rocketstream.frameworks.faststream.testing import TestRocketMQBroker  # noqa: E402

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
