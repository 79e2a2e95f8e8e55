"""FastStream's publish command with the extra fields of a RocketMQ message."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, TypedDict

from faststream.response import PublishCommand, PublishType, Response

from rocketstream.client.producer.request_reply import create_reply_message
from rocketstream.errors import ConfigurationError
from rocketstream.frameworks.faststream.message import CONTENT_TYPE, CORRELATION_ID, REPLY_TO
from rocketstream.model import Message
from rocketstream.protocol.message_ext import MessageExt

if TYPE_CHECKING:
    from fast_depends.library.serializer import SerializerProto
    from faststream._internal.parser import CodecProto

_JSON = "application/json"


class MessageOptions(TypedDict, total=False):
    """The options of a message besides its body and topic.

    tags: the one tag subscribers filter by. keys: words it can be found by. delay_level: the
    broker's delay level from 1, 0 for none. sharding_key: messages with the same one go to the same
    queue, for subscribers in order. headers: user properties, text to text.
    """

    tags: str | None
    keys: str | Iterable[str] | None
    delay_level: int
    sharding_key: str | None
    headers: dict[str, str] | None


class PublishOptions(MessageOptions, total=False):
    """Options of one message; reply_to is the topic for the handler's result."""

    correlation_id: str | None
    reply_to: str


class RocketMQPublishCommand(PublishCommand):
    """A message about to be sent, as publisher middlewares see it."""

    def __init__(
        self,
        body: Any,
        *,
        topic: str = "",
        tags: str | None = None,
        keys: str | Iterable[str] | None = None,
        delay_level: int = 0,
        sharding_key: str | None = None,
        headers: dict[str, str] | None = None,
        correlation_id: str | None = None,
        reply_to: str = "",
        timeout: float | None = None,
        request: MessageExt | None = None,
        _publish_type: PublishType = PublishType.PUBLISH,
    ) -> None:
        super().__init__(
            body,
            _publish_type=_publish_type,
            reply_to=reply_to,
            destination=topic,
            correlation_id=correlation_id,
            headers=headers,
        )
        self.tags = tags
        self.keys = keys
        self.delay_level: int = delay_level
        self.sharding_key = sharding_key
        self.timeout = timeout
        self.request = request

    @classmethod
    def from_cmd(cls, cmd: PublishCommand) -> RocketMQPublishCommand:
        """Return the command a handler's result made, as one of this broker's."""
        if isinstance(cmd, cls):
            return cmd
        return cls(
            cmd.body,
            topic=cmd.destination,
            headers=cmd.headers,
            correlation_id=cmd.correlation_id,
            reply_to=cmd.reply_to,
            _publish_type=cmd.publish_type,
        )

    def fill(self, options: MessageOptions) -> None:
        """Take the missing values from a publisher's options."""
        self.add_headers(dict(options.get("headers") or {}), override=False)
        self.tags = self.tags or options.get("tags")
        self.keys = self.keys or options.get("keys")
        self.delay_level = self.delay_level or options.get("delay_level", 0)
        self.sharding_key = self.sharding_key or options.get("sharding_key")

    async def message(self, codec: CodecProto, serializer: SerializerProto | None) -> Message:
        """Return the message to send.

        Raises:
            ConfigurationError: an empty body, or a header that is not a text.
        """
        body, content_type = await codec.encode(self.body, serializer)
        if self.body is None and not body:
            body, content_type = b"null", _JSON
        if not body:
            raise ConfigurationError(
                f"a message of RocketMQ's has at least one byte; given is {self.body!r}, which is "
                "empty once encoded"
            )
        properties = dict(self.headers)
        if content_type:
            properties[CONTENT_TYPE] = content_type
        if self.correlation_id:
            properties[CORRELATION_ID] = self.correlation_id
        if self.reply_to:
            properties[REPLY_TO] = self.reply_to
        if self.request is None:
            return Message(
                self.destination,
                body,
                tags=self.tags,
                keys=self.keys,
                delay_level=self.delay_level,
                properties=properties,
            )
        reply = create_reply_message(self.request, body)
        for name, value in properties.items():
            reply.put_user_property(name, value)
        return reply


class RocketMQResponse(Response):
    """A handler's result with a tag, keys, a delay level or a sharding key of its own."""

    def __init__(
        self,
        body: Any,
        *,
        tags: str | None = None,
        keys: str | Iterable[str] | None = None,
        delay_level: int = 0,
        sharding_key: str | None = None,
        headers: dict[str, str] | None = None,
        correlation_id: str | None = None,
    ) -> None:
        super().__init__(body, headers=headers, correlation_id=correlation_id)
        self.tags = tags
        self.keys = keys
        self.delay_level = delay_level
        self.sharding_key = sharding_key

    def as_publish_command(self) -> RocketMQPublishCommand:
        """Return the command publishers send."""
        return RocketMQPublishCommand(
            self.body,
            tags=self.tags,
            keys=self.keys,
            delay_level=self.delay_level,
            sharding_key=self.sharding_key,
            headers=self.headers,
            correlation_id=self.correlation_id,
        )
