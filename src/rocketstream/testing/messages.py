"""Received messages made by hand, for the unit test of a listener.

Law: a message made here was encoded and decoded as in a broker's answer; it is not a stand-in.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from rocketstream._util.clock import SYSTEM_CLOCK
from rocketstream.errors import ConfigurationError, LocalProtocolError
from rocketstream.model import (
    PROPERTY_KEYS,
    PROPERTY_LITE_TOPIC,
    PROPERTY_TAGS,
    PROPERTY_UNIQ_KEY,
    Message,
)
from rocketstream.protocol.message_ext import MessageExt, decode_messages
from rocketstream.protocol.names import check_topic
from rocketstream.protocol.properties import encode_properties
from rocketstream.protocol.record import RecordFields, encode_record
from rocketstream.protocol.tag_hash import java_hash

_BORN_HOST: Final = ("127.0.0.1", 50_000)
_STORE_HOST: Final = ("127.0.0.1", 10_911)
_INT_MAX: Final = 0x7FFF_FFFF
_LONG_MAX: Final = 0x7FFF_FFFF_FFFF_FFFF
_WORDS: Final = (PROPERTY_TAGS, PROPERTY_KEYS, PROPERTY_LITE_TOPIC)


def received_message(
    topic: str,
    body: bytes | str,
    *,
    tags: str | None = None,
    keys: str | list[str] | tuple[str, ...] | None = None,
    properties: Mapping[str, str] | None = None,
    lite_topic: str | None = None,
    queue_id: int = 0,
    queue_offset: int = 0,
    reconsume_times: int = 0,
    broker_name: str = "broker-a",
    born_timestamp: int | None = None,
    store_timestamp: int | None = None,
    commit_log_offset: int = 0,
    flag: int = 0,
    msg_id: str | None = None,
) -> MessageExt:
    """Return a message as a listener gets it, without a broker.

    ``listener([received_message("orders", b"7", tags="new")], context)`` is a unit test's call.
    The message can be read, changed, copied and pickled as any other.

    Args:
        topic: of the message; for a retry the original one, as a listener sees it.
        body: the payload; ``str`` is encoded as UTF-8.
        tags: the tag.
        keys: the keys; several are joined by spaces.
        properties: all other properties, by any name: a received message also has those that
            brokers set.
        lite_topic: the lite topic below ``topic`` it was sent to.
        queue_id: id of the queue it is read from.
        queue_offset: its place in that queue.
        reconsume_times: how often it was sent back before.
        broker_name: the broker it comes from.
        born_timestamp: when it was made, ms since 1970; None takes ``store_timestamp``.
        store_timestamp: when it was stored, ms since 1970; None takes now.
        commit_log_offset: where the broker stores it, in bytes; a part of ``offset_msg_id``.
        flag: the sender's 32-bit flag.
        msg_id: the sender's id (UNIQ_KEY); None makes one of topic, queue and offset, so that the
            same call gives the same.

    Raises:
        ConfigurationError: a value that no message can have; the text names it.
    """
    sent = Message(topic, body, tags=tags, keys=keys, flag=flag, lite_topic=lite_topic)
    check_topic(topic)
    stored = SYSTEM_CLOCK.now_ms() if store_timestamp is None else store_timestamp
    _check_whole(_INT_MAX, queue_id=queue_id, reconsume_times=reconsume_times)
    _check_whole(_LONG_MAX, queue_offset=queue_offset, commit_log_offset=commit_log_offset)
    _check_whole(_LONG_MAX, store_timestamp=stored)
    born = stored if born_timestamp is None else born_timestamp
    _check_whole(_LONG_MAX, born_timestamp=born)
    own = {PROPERTY_UNIQ_KEY: msg_id or _made_id(topic, queue_id, queue_offset)}
    own |= {name: sent.properties[name] for name in _WORDS if name in sent.properties}
    own |= properties or {}
    _check_properties(own)
    try:
        record = encode_record(
            RecordFields(
                topic,
                queue_id,
                sent.flag,
                0,
                born,
                _BORN_HOST,
                stored,
                _STORE_HOST,
                reconsume_times,
                0,
                bytes(sent.body),
                encode_properties(own),
                queue_offset,
                commit_log_offset,
            )
        )
    except LocalProtocolError as error:
        raise ConfigurationError(f"no message of {topic!r} can be like that: {error}") from error
    (message,) = decode_messages(record, broker_name, check_crc=True)
    return message


def _check_whole(most: int, **numbers: object) -> None:
    for name, given in numbers.items():
        if type(given) is not int or not 0 <= given <= most:
            raise ConfigurationError(
                f"{name} must be a whole number from 0 to {most}; given is {given!r}",
                argument=name,
            )


def _check_properties(properties: Mapping[str, str]) -> None:
    for name, value in properties.items():
        for text in (name, value):
            if not isinstance(text, str) or not text or "\x01" in text or "\x02" in text:
                raise ConfigurationError(
                    "the name and value of a property are str, not empty, without the separators "
                    f"\\x01 and \\x02; given is {name!r}: {value!r}",
                    property=name,
                )


def _made_id(topic: str, queue_id: int, queue_offset: int) -> str:
    return f"{java_hash(topic) & 0xFFFF_FFFF:08X}{queue_id:08X}{queue_offset:016X}"
