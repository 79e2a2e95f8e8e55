"""Which offset store a pulling consumer uses.

Law: chooses and opens; what stores do is in ``offset_store``.
"""

from __future__ import annotations

from typing import Any

from rocketstream.client.consumer.offset_store import Offsets, RemoteBrokerOffsetStore
from rocketstream.client.instance import MQClientInstance
from rocketstream.errors import NotSupportedError
from rocketstream.model import MessageModel


async def open_store(
    instance: MQClientInstance, group: str, model: MessageModel, given: Any
) -> Offsets:
    """Return the store: the user's, the local file in broadcasting, else the brokers'."""
    if given is not None or model is MessageModel.BROADCASTING:
        raise NotSupportedError("only the brokers' offset store is supported yet")
    return RemoteBrokerOffsetStore(instance, group)
