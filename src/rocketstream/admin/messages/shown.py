"""Messages as they are shown: decoded and masked, before any face gets them."""

from __future__ import annotations

import base64
import dataclasses
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from rocketstream.admin.messages.bodies import AUTO, HIDDEN, BodyFormat, DecodedBody, undecodable
from rocketstream.admin.messages.masking import MASK_VARIABLE, MASKED, Masking
from rocketstream.errors import NotSupportedError, RemoteProtocolError
from rocketstream.model import MessageQueue
from rocketstream.protocol.addresses import parse_address
from rocketstream.protocol.message_ext import MessageExt, assemble_message
from rocketstream.protocol.properties import PROPERTY_KEYS, PROPERTY_TAGS
from rocketstream.protocol.record import pack_host

_TOLD: Final = "told of it"
"""The name under which a text about a message is masked, as one of its properties would be."""


@dataclass(frozen=True, slots=True)
class ShownMessage:
    """A message as it may be shown.

    Attributes:
        msg_id: the sender's id, the broker's where the sender set none.
        offset_msg_id: the broker's id.
        born_ms: when the sender made it, ms since 1970.
        store_ms: when the broker stored it, ms since 1970.
        properties: all of them, masked.
        body: decoded and masked; ``hidden`` where a rule could not be applied; without its parsed
            value where its text is cut.
        masked_by: the masking rules that changed something.
    """

    topic: str
    broker_name: str
    queue_id: int
    queue_offset: int
    msg_id: str
    offset_msg_id: str
    tags: str | None
    keys: str | None
    born_ms: int
    born_host: str
    store_ms: int
    store_host: str
    reconsume_times: int
    properties: Mapping[str, str]
    body: DecodedBody
    masked_by: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Return the message as a JSON value; binary bodies are ``bodyBase64``, hidden ones left
        out.
        """
        row: dict[str, Any] = {
            "topic": self.topic,
            "brokerName": self.broker_name,
            "queueId": self.queue_id,
            "queueOffset": self.queue_offset,
            "msgId": self.msg_id,
            "offsetMsgId": self.offset_msg_id,
            "tags": self.tags,
            "keys": self.keys,
            "bornTimestamp": self.born_ms,
            "bornHost": self.born_host,
            "storeTimestamp": self.store_ms,
            "storeHost": self.store_host,
            "reconsumeTimes": self.reconsume_times,
            "properties": dict(self.properties),
            "bodyKind": self.body.kind,
            "bodyBytes": self.body.size,
        }
        if self.body.is_hex:
            row["bodyBase64"] = base64.b64encode(bytes.fromhex(self.body.text)).decode()
        elif self.body.kind != HIDDEN:
            row["body"] = self.body.text
        if self.body.is_cut:
            row["bodyCut"] = True
        if self.body.problem is not None:
            row["bodyProblem"] = self.body.problem
        if self.masked_by:
            row["maskedBy"] = list(self.masked_by)
        return row


class Showing:
    """Decodes and masks messages.

    Args:
        masking: the rules; None takes those of the file ``ROCKETSTREAM_MASK`` names, if it is set.

    Raises:
        ConfigurationError: the file cannot be used.
    """

    def __init__(self, masking: Masking | None = None) -> None:
        if masking is None:
            path = os.environ.get(MASK_VARIABLE)
            masking = Masking.from_file(path) if path else Masking()
        self.masking = masking

    def shown(self, message: MessageExt, how: BodyFormat = AUTO) -> ShownMessage:
        """Return a message as it may be shown; never raises, for any message."""
        try:
            properties: Mapping[str, str] = message.properties
        except RemoteProtocolError as error:
            # Nothing says which topic it is from, so no rule could be chosen either.
            body = undecodable(b"", str(error))
            return _value(message, {}, body, ())
        body = _decoded(message, how)
        masked = self.masking.apply(message.topic, properties, body)
        return _value(message, masked.properties, masked.body, masked.by)

    def told_of(self, message: MessageExt, text: str | None) -> str | None:
        """Return what somebody told of a message, masked as the message is: it may repeat parts."""
        if not text or not self.masking:
            return text
        try:
            properties = {**message.properties, _TOLD: text}
        except RemoteProtocolError:
            return MASKED  # nothing says which rules are the message's
        masked = self.masking.apply(message.topic, properties, _decoded(message, AUTO))
        return MASKED if masked.body.kind == HIDDEN else masked.properties[_TOLD]

    def masked(self, message: MessageExt) -> MessageExt:
        """Return a message with masked parts replaced; the same object where nothing is masked."""
        if not self.masking:
            return message
        shown = self.shown(message)
        if not shown.masked_by:
            return message
        return _rebuilt(message, shown)


def _decoded(message: MessageExt, how: BodyFormat) -> DecodedBody:
    try:
        return how.decode(message.body)
    except (RemoteProtocolError, NotSupportedError) as error:
        return undecodable(message.stored_body, error.message)


def _value(
    message: MessageExt, properties: Mapping[str, str], body: DecodedBody, by: tuple[str, ...]
) -> ShownMessage:
    if body.is_cut and body.value is not None:
        # Parsed, it takes many times its bytes, and a page of such messages would hold them all.
        body = dataclasses.replace(body, value=None)
    unique = properties.get("UNIQ_KEY")
    return ShownMessage(
        topic=message.topic,
        broker_name=message.broker_name,
        queue_id=message.queue_id,
        queue_offset=message.queue_offset,
        msg_id=unique or message.offset_msg_id,
        offset_msg_id=message.offset_msg_id,
        tags=properties.get(PROPERTY_TAGS),
        keys=properties.get(PROPERTY_KEYS),
        born_ms=message.born_timestamp,
        born_host=message.born_host,
        store_ms=message.store_timestamp,
        store_host=message.store_host,
        reconsume_times=message.reconsume_times,
        properties=properties,
        body=body,
        masked_by=by,
    )


def _rebuilt(message: MessageExt, shown: ShownMessage) -> MessageExt:
    text = shown.body.text
    body = bytes.fromhex(text) if shown.body.is_hex else text.encode()
    if shown.body.kind == HIDDEN:
        body = f"({shown.body.problem})".encode()
    return assemble_message(
        MessageQueue(message.topic, message.broker_name, message.queue_id),
        message.queue_offset,
        body,
        shown.properties,
        commit_log_offset=message.commit_log_offset,
        reconsume_times=message.reconsume_times,
        flag=message.flag,
        sys_flag=message.sys_flag,
        born_timestamp=message.born_timestamp,
        born_host=_packed(message.born_host),
        store_timestamp=message.store_timestamp,
        store_host=_packed(message.store_host),
    )


def _packed(address: str) -> bytes:
    return pack_host(*parse_address(address))
