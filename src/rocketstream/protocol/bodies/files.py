"""Bodies that are also, or only, files under ``config/`` of a broker and of a client.

Law: values and their exact text (wire-and-storage 3.4, C-305, C-327); writing files is not here.
"""

from __future__ import annotations

from dataclasses import field

from rocketstream.model import MessageQueue
from rocketstream.protocol.bodies.base import Body, body


@body()
class ConsumerOffsetTable(Body):
    """consumerOffset.json and code 43: offset by queue id under ``topic@group``."""

    offset_table: dict[str, dict[int, int]] = field(default_factory=dict)


@body()
class DelayOffsetTable(Body):
    """delayOffset.json and code 45: queue offset by delay level."""

    offset_table: dict[int, int] = field(default_factory=dict)


@body()
class OffsetSerializeWrapper(Body):
    """offsets.json of a broadcasting consumer: offset by queue."""

    offset_table: dict[MessageQueue, int] = field(default_factory=dict)


@body()
class KVConfigSerializeWrapper(Body):
    """kvConfig.json of a name server: values by key by namespace."""

    config_table: dict[str, dict[str, str]] = field(default_factory=dict)
