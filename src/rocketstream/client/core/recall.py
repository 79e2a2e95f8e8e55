"""The handle by which a timed message is taken back (upstream 5.x RecallMessageHandle).

Law: text in, values out.
"""

from __future__ import annotations

import base64
import binascii

from rocketstream.errors import ConfigurationError
from rocketstream.late import dataclass

_VERSION = "v1"
_PARTS = 5


@dataclass(frozen=True, slots=True)
class RecallHandle:
    """What a handle says.

    Attributes:
        topic: topic as the servers know it.
        broker_name: broker that holds the message.
        timestamp: when it is to be delivered, ms since 1970, as text.
        message_id: its UNIQ_KEY.
    """

    topic: str
    broker_name: str
    timestamp: str
    message_id: str


def decode_recall_handle(handle: str | None) -> RecallHandle:
    """Read a handle.

    Raises:
        ConfigurationError: not a handle of a known version.
    """
    try:
        text = base64.urlsafe_b64decode((handle or "").encode()).decode()
    except (binascii.Error, UnicodeError):
        text = ""
    parts = text.split(" ")
    if parts[0] != _VERSION or len(parts) < _PARTS:
        raise ConfigurationError(
            f"recall handle is invalid: {handle!r:.80}; it comes with the result of sending a "
            "timed message to a broker from 5.3.1 on"
        )
    return RecallHandle(*parts[1:_PARTS])
