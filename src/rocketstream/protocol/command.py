"""A remoting command: one request or response, and its frame with a JSON or binary header.

Pure: values in, bytes out; ``framing`` reads what comes. Upstream: RemotingCommand,
RocketMQSerializable.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

from rocketstream import limits
from rocketstream.errors import LocalProtocolError
from rocketstream.protocol import plain_json
from rocketstream.protocol.codes import (
    FLAG_ONEWAY,
    FLAG_RESPONSE,
    VERSION,
    LanguageCode,
    ResponseCode,
    SerializeType,
)

if TYPE_CHECKING:
    from rocketstream.protocol.headers import Header

H = TypeVar("H", bound="Header")

OPAQUE_MASK: Final = 0x7FFF_FFFF
HEADER_FIELD_MAX: Final = 0xFFFFFF
"""The most bytes of a header that the 24 bits of its length can tell."""
LANGUAGE_NAMES: Final = {int(code): code.name for code in LanguageCode}
BINARY_HEAD: Final = struct.Struct(">hBhii")
_PREFIX: Final = struct.Struct(">iI")
_LENGTH: Final = struct.Struct(">i")
_SHORT: Final = struct.Struct(">h")
_JSON: Final = SerializeType.JSON


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
        self.code: int = code
        self.opaque: int = opaque
        self.flag: int = flag
        self.language: int = language
        self.version: int = version
        self.remark: str | None = remark
        self.ext_fields: dict[str, str] | None = ext_fields
        self.body: bytes | memoryview = body
        self.serialize_type: SerializeType = serialize_type

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

    def refusal(self) -> RemotingCommand:
        """Return the answer of a side without a processor for this request: code 3."""
        remark = f" request type {self.code} not supported"
        response = RemotingCommand.response(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark)
        return self.answer(response)

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

    # --- as bytes ---------------------------------------------------------------------------------

    def frame(self) -> bytes:
        """Return the complete frame.

        Raises:
            LocalProtocolError: the header cannot carry a value, or the frame exceeds the maximum.
        """
        body = self.body
        head = self.frame_head(len(body))
        return b"".join((head, body)) if body else head

    def frame_head(self, body_bytes: int) -> bytes:
        """Return length, header word and header of a frame whose body is sent separately.

        Raises:
            LocalProtocolError: a value the header cannot carry, or a frame over the maximum.
        """
        if self.serialize_type is _JSON:
            header = self._json_header()
            word = len(header)
        else:
            header = self._binary_header()
            word = 0x1000000 | len(header)
        length = 4 + len(header) + body_bytes
        if length > limits.FRAME_BYTES_MAX - 4 or len(header) > HEADER_FIELD_MAX:
            raise LocalProtocolError(
                f"a frame of {length + 4} bytes is over the maximum of {limits.FRAME_BYTES_MAX}",
                frame_bytes=length + 4,
            )
        return _PREFIX.pack(length, word) + header

    def _json_header(self) -> bytes:
        # Alphabetical order, as fastjson writes; serializeTypeCurrentRPC is a bean property of
        # upstream.
        header: dict[str, Any] = {"code": self.code}
        if self.ext_fields is not None:
            header["extFields"] = self.ext_fields
        header["flag"] = self.flag
        header["language"] = LANGUAGE_NAMES.get(self.language, "OTHER")
        header["opaque"] = self.opaque
        if self.remark is not None:
            header["remark"] = self.remark
        header["serializeTypeCurrentRPC"] = "JSON"
        header["version"] = self.version
        try:
            return plain_json.dumps(header)
        except (TypeError, plain_json.JSONEncodeError) as error:
            text = f"command header cannot be written as JSON: {error}"
            raise LocalProtocolError(text) from None

    def _binary_header(self) -> bytes:
        try:
            remark = (self.remark or "").encode()
            ext = _binary_ext(self.ext_fields) if self.ext_fields else b""
            head = BINARY_HEAD.pack(
                self.code, self.language & 0xFF, self.version, self.opaque, self.flag
            )
        except (struct.error, UnicodeEncodeError, AttributeError, TypeError) as error:
            text = f"command header cannot be written as binary: {error}"
            raise LocalProtocolError(text) from None
        return b"".join((head, _LENGTH.pack(len(remark)), remark, _LENGTH.pack(len(ext)), ext))

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


def _binary_ext(ext: Mapping[str, str]) -> bytes:
    parts: list[bytes] = []
    for name, value in ext.items():
        name_bytes = name.encode()
        value_bytes = value.encode()
        parts += (
            _SHORT.pack(len(name_bytes)),
            name_bytes,
            _LENGTH.pack(len(value_bytes)),
            value_bytes,
        )
    return b"".join(parts)


BeforeRequest = Callable[[str, RemotingCommand], None]
"""Called with an address and a request before it is encoded, which is where signing belongs."""
AfterResponse = Callable[[str, RemotingCommand, RemotingCommand], None]
"""Called with an address, a request and its answer."""
