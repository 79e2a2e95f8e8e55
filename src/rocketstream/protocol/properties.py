r"""The properties of a message as text: ``key \x01 value \x02 key \x01 value``.

Pure: the text form and the reserved names; C-98 says who may set them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

PROPERTY_KEYS: Final = "KEYS"
PROPERTY_TAGS: Final = "TAGS"
PROPERTY_WAIT: Final = "WAIT"
PROPERTY_DELAY: Final = "DELAY"
PROPERTY_UNIQ_KEY: Final = "UNIQ_KEY"
PROPERTY_RETRY_TOPIC: Final = "RETRY_TOPIC"
PROPERTY_REAL_TOPIC: Final = "REAL_TOPIC"
PROPERTY_REAL_QID: Final = "REAL_QID"
PROPERTY_TRAN_MSG: Final = "TRAN_MSG"
PROPERTY_PGROUP: Final = "PGROUP"
PROPERTY_TRAN_PREPARED_QUEUE_OFFSET: Final = "TRAN_PREPARED_QUEUE_OFFSET"
PROPERTY_TRANSACTION_CHECK_TIMES: Final = "TRANSACTION_CHECK_TIMES"
PROPERTY_CHECK_IMMUNITY_TIME_IN_SECONDS: Final = "CHECK_IMMUNITY_TIME_IN_SECONDS"
PROPERTY_ORIGIN_MESSAGE_ID: Final = "ORIGIN_MESSAGE_ID"
PROPERTY_RECONSUME_TIME: Final = "RECONSUME_TIME"
PROPERTY_MAX_RECONSUME_TIMES: Final = "MAX_RECONSUME_TIMES"
PROPERTY_MIN_OFFSET: Final = "MIN_OFFSET"
PROPERTY_MAX_OFFSET: Final = "MAX_OFFSET"
PROPERTY_CONSUME_START_TIME: Final = "CONSUME_START_TIME"
PROPERTY_MSG_REGION: Final = "MSG_REGION"
PROPERTY_TRACE_ON: Final = "TRACE_ON"
PROPERTY_CLUSTER: Final = "CLUSTER"
PROPERTY_CORRELATION_ID: Final = "CORRELATION_ID"
PROPERTY_REPLY_TO_CLIENT: Final = "REPLY_TO_CLIENT"
PROPERTY_TTL: Final = "TTL"
PROPERTY_MSG_TYPE: Final = "MSG_TYPE"
PROPERTY_PUSH_REPLY_TIME: Final = "PUSH_REPLY_TIME"
PROPERTY_ARRIVE_TIME: Final = "ARRIVE_TIME"
PROPERTY_INSTANCE_ID: Final = "INSTANCE_ID"
PROPERTY_INNER_MULTI_DISPATCH: Final = "INNER_MULTI_DISPATCH"
PROPERTY_LITE_TOPIC: Final = "__LITE_TOPIC"
PROPERTY_INNER_MULTI_QUEUE_OFFSET: Final = "INNER_MULTI_QUEUE_OFFSET"
PROPERTY_DLQ_ORIGIN_TOPIC: Final = "DLQ_ORIGIN_TOPIC"
PROPERTY_REDRIVEN_FROM: Final = "REDRIVEN_FROM"
"""Of a dead letter that was sent again, a name of ours as the next two:
``<dead-letter topic>/<broker>/<queue id>/<offset>``."""
PROPERTY_REDRIVEN_TIMES: Final = "REDRIVEN_TIMES"
"""How many times a dead letter has been sent again."""
PROPERTY_REDRIVEN_BY: Final = "REDRIVEN_BY"
"""The named place a dead letter was sent again under, if any. A redrive with a place of its own
sends what others have sent, but nothing twice itself."""
PROPERTY_CRC32: Final = "__CRC32#"
PROPERTIES_CRC: Final = "PROPERTIES_CRC"
"""The CRC an embedded broker adds to a stored message (``record.sealable``); not a property of
it."""

KEY_SEPARATOR: Final = " "
_DIGITS_MAX: Final = 20
"""Of a number of 64 bits; leading zeros count."""


def encode_properties(properties: Mapping[str, str]) -> str:
    r"""Return the text form without a trailing ``\x02``, as 4.9.1 to 4.9.8 write it."""
    return "\x02".join([f"{name}\x01{value}" for name, value in properties.items()])


def split_keys(text: str) -> list[str]:
    """Return the keys of a message; no other white space parts them, or nobody would find them."""
    return [key for key in text.split(KEY_SEPARATOR) if key]


def decode_properties(text: bytes | str) -> dict[str, str]:
    """Read the text form; pairs with an empty name or value are dropped, as upstream does.

    The seal of a stored record is left out: it belongs to the record, not to the message.

    Bytes that are not UTF-8 become replacement characters, as in Java: a sender's odd property
    must not keep a queue from being consumed.
    """
    if not isinstance(text, str):
        text = text.decode("utf-8", "replace")
    properties: dict[str, str] = {}
    for pair in text.split("\x02"):
        name, _, value = pair.partition("\x01")
        if name and value:
            properties[name] = value
    properties.pop(PROPERTIES_CRC, None)
    return properties


def whole_number(text: str, most: int) -> int | None:
    """Return the number a peer's text stands for; None where it is not a number up to ``most``.

    ``int`` reads digits of every script, signs and underscores, and raises for thousands of digits.
    """
    if not (text.isascii() and text.isdigit()) or len(text) > _DIGITS_MAX:
        return None
    number = int(text)
    return number if number <= most else None
