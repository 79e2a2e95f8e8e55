"""A remoting command: one request or response, before it is encoded or after it was decoded.

Pure: values, which ``framing`` turns into bytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Self, TypeVar

from rocketstream.protocol.codes import (
    FLAG_ONEWAY,
    FLAG_RESPONSE,
    VERSION,
    LanguageCode,
    SerializeType,
)

if TYPE_CHECKING:
    from rocketstream.protocol.headers import Header

H = TypeVar("H", bound="Header")


class RemotingCommand:
    """One request or response.

    Attributes:
        code: request code, or response code when ``is_response``.
        opaque: correlation number chosen by the requester; set by the connection.
        flag: bit 0 response, bit 1 one-way.
        language: code of the sender's language (``LanguageCode`` where known).
        version: MQVersion ordinal of the sender.
        remark: error text or status name, None when absent.
        ext_fields: the header's values by wire name; None when the peer sent none.
        body: payload, empty when there is none.
        serialize_type: how the header is, or was, written.
    """

    __slots__ = (
        "body",
        "code",
        "ext_fields",
        "flag",
        "language",
        "opaque",
        "remark",
        "serialize_type",
        "version",
    )

    def __init__(
        self,
        code: int,
        opaque: int = 0,
        flag: int = 0,
        language: int = LanguageCode.PYTHON,
        version: int = VERSION,
        remark: str | None = None,
        ext_fields: dict[str, str] | None = None,
        body: bytes | memoryview = b"",
        serialize_type: SerializeType = SerializeType.JSON,
    ) -> None:
        self.code = code
        self.opaque = opaque
        self.flag = flag
        self.language = language
        self.version = version
        self.remark = remark
        self.ext_fields = ext_fields
        self.body = body
        self.serialize_type = serialize_type

    @classmethod
    def request(
        cls,
        code: int,
        header: Header | None = None,
        body: bytes | memoryview = b"",
        *,
        oneway: bool = False,
    ) -> Self:
        """Return a request; it always has an ext map, since upstream's processors need one."""
        command = cls(code)
        command.ext_fields = {} if header is None else header.to_ext()
        command.body = body
        if oneway:
            command.flag = FLAG_ONEWAY
        return command

    @classmethod
    def response(
        cls,
        code: int,
        remark: str | None = None,
        header: Header | None = None,
        body: bytes | memoryview = b"",
    ) -> Self:
        """Return a response; pass it to ``answer`` of the request it belongs to."""
        command = cls(code, 0, FLAG_RESPONSE)
        command.remark = remark
        if header is not None:
            command.ext_fields = header.to_ext()
        command.body = body
        return command

    def answer(self, response: RemotingCommand) -> RemotingCommand:
        """Give ``response`` this request's opaque id and serialize type, and return it."""
        response.opaque = self.opaque
        response.serialize_type = self.serialize_type
        return response

    @property
    def is_response(self) -> bool:
        """Whether this answers a request."""
        return self.flag & FLAG_RESPONSE != 0

    @property
    def is_oneway(self) -> bool:
        """Whether the sender does not want an answer."""
        return self.flag & FLAG_ONEWAY != 0

    def header(self, cls: type[H]) -> H:
        """Read the ext map as a header class.

        Raises:
            RemoteProtocolError: a field is missing or cannot be read; the text names it.
        """
        return cls.from_ext(self.ext_fields or {})

    def ready_header(self) -> bytes | None:
        """Return the JSON header if it is known without the ext map; None in this class."""
        return None

    def ready_frame(self) -> bytes | None:
        """Return the whole frame if there is a quicker way to it; None in this class."""
        return None

    def __repr__(self) -> str:
        kind = "response" if self.is_response else "oneway" if self.is_oneway else "request"
        return (
            f"RemotingCommand({kind} code={self.code} opaque={self.opaque} "
            f"remark={self.remark!r} ext_fields={self.ext_fields!r} body={len(self.body)} bytes)"
        )


class OversizedCommand(RemotingCommand):
    """A command whose body was too large to be kept: only its header was read.

    Attributes:
        body_bytes: size of the body that was dropped.
    """

    __slots__ = ("body_bytes",)

    body_bytes: int

    @classmethod
    def of(cls, head: RemotingCommand, body_bytes: int) -> Self:
        """Return the command of a header whose body of ``body_bytes`` was left out."""
        command = cls(
            head.code, head.opaque, head.flag, head.language, head.version, head.remark,
            head.ext_fields, b"", head.serialize_type,
        )  # fmt: skip
        command.body_bytes = body_bytes
        return command
