"""Frames read: the bytes of a connection made commands, with JSON and binary (ROCKETMQ) headers.

Pure: bytes in, commands out. Upstream: NettyDecoder, RemotingCommand, RocketMQSerializable.

Law: the serialize type is taken from each frame, never assumed.
"""

from __future__ import annotations

import struct
from typing import Any, Final

from rocketstream import limits
from rocketstream.errors import (
    FrameTooLargeError,
    LocalProtocolError,
    MalformedFrameError,
    RemoteProtocolError,
)
from rocketstream.protocol import fastjson, plain_json
from rocketstream.protocol.codes import LanguageCode, SerializeType
from rocketstream.protocol.command import (
    BINARY_HEAD,
    HEADER_FIELD_MAX,
    LANGUAGE_NAMES,
    OversizedCommand,
    RemotingCommand,
)

_LENGTH: Final = struct.Struct(">i")
_unpack_length = _LENGTH.unpack_from
_unpack_word = struct.Struct(">I").unpack_from
_SHORT: Final = struct.Struct(">h")
_join = "".join

_HEADER_FIELDS_MAX: Final = limits.HEADER_FIELDS_MAX
_ROCKETMQ: Final = SerializeType.ROCKETMQ
_LANGUAGE_CODES: Final = {code.name: int(code) for code in LanguageCode}


def decode_frame_within(buffer: bytearray, begin: int, end: int) -> RemotingCommand:
    """Read the frame between two positions of a buffer, without its 4 length bytes.

    The command's data is copied out once, so that the buffer can be reused.

    Args:
        buffer: the received bytes.
        begin, end: where the frame begins and ends; at least 4 bytes apart.

    Raises:
        MalformedFrameError: lengths, header or serialize type are impossible.
    """
    return _decode(buffer, begin, end, HEADER_FIELD_MAX)


def _decode(
    data: bytes | bytearray, start: int, end: int, header_bytes_max: int
) -> RemotingCommand:
    (word,) = _unpack_word(data, start)
    header_start = start + 4
    body_start = header_start + (word & 0xFFFFFF)
    if word & 0xFFFFFF > header_bytes_max:
        raise MalformedFrameError(
            f"a header of {word & 0xFFFFFF} bytes is over the maximum of {header_bytes_max}"
        )
    if body_start > end:
        raise MalformedFrameError(
            f"header of {word & 0xFFFFFF} bytes in a frame of {end - start} bytes"
        )
    kind = word >> 24
    # A large frame is a bytearray: its slices would be bytearrays too, and bytes of them one more
    # copy.
    whole = data if type(data) is bytes else memoryview(data)
    if kind == 0:
        command = _decode_json(bytes(whole[header_start:body_start]))
    elif kind == 1:
        command = _decode_binary(bytes(whole[header_start:body_start]))
    else:
        raise MalformedFrameError(f"unknown serialize type {kind}; known are 0 JSON, 1 ROCKETMQ")
    if body_start != end:
        command.body = bytes(whole[body_start:end])
    return command


def _decode_json(data: bytes) -> RemotingCommand:
    try:
        header = plain_json.loads(data)
    except plain_json.JSONDecodeError:
        return _decode_unusual_json(_lenient(data))
    try:
        code, opaque = header["code"], header["opaque"]
        flag, version = header["flag"], header["version"]
        ext, remark = header.get("extFields"), header.get("remark")
        if (
            type(code) is type(opaque) is type(flag) is type(version) is int
            and not (code | opaque | flag | version) >> 31
            and (remark is None or type(remark) is str)
            and (
                ext is None
                or (type(ext) is dict and len(ext) <= _HEADER_FIELDS_MAX and _are_texts(ext))
            )
        ):
            language = _LANGUAGE_CODES[header["language"]]
            return RemotingCommand(code, opaque, flag, language, version, remark, ext)
    except (ValueError, TypeError, LookupError, AttributeError):
        pass
    return _decode_unusual_json(header)


def _are_texts(ext: dict[str, Any]) -> bool:
    """Return whether all values are text; joining them is the fastest test, and raises if not."""
    return _join(ext.values()) is not None


def _decode_unusual_json(header: Any) -> RemotingCommand:
    """Read a header in forms that other languages' clients may write, or raise its error."""
    if type(header) is not dict:
        raise MalformedFrameError("command header is not a JSON object")
    get = header.get
    code, opaque = _int32(get("code"), "code"), _int32(get("opaque"), "opaque")
    flag, version = _int32(get("flag"), "flag"), _int32(get("version"), "version")
    ext = get("extFields")
    if ext is not None:
        ext = _text_map(ext)
    remark = get("remark")
    if remark is not None:
        remark = _as_text(remark)
    language = get("language")
    if type(language) is not int or language not in LANGUAGE_NAMES:
        language = _language(language)
    return RemotingCommand(code, opaque, flag, language, version, remark, ext)


def _lenient(data: bytes) -> Any:
    # Java's reader takes single quotes, unquoted names and trailing commas.
    try:
        return fastjson.loads(data, lenient_chars_max=limits.HEADER_LENIENT_BYTES_MAX)
    except RemoteProtocolError as error:
        raise MalformedFrameError(f"command header is not JSON: {error.message}") from None


def _text_map(ext: object) -> dict[str, str]:
    if type(ext) is not dict:
        raise MalformedFrameError("extFields of a command header is not a JSON object")
    if len(ext) > _HEADER_FIELDS_MAX:
        raise _too_many_fields()
    return {str(name): _as_text(value) for name, value in ext.items() if value is not None}


def _too_many_fields() -> MalformedFrameError:
    return MalformedFrameError(
        f"a command header has more than the maximum of {_HEADER_FIELDS_MAX} fields"
    )


def _as_text(value: object) -> str:
    if isinstance(value, str):
        return value
    try:
        return fastjson.dumps(value)
    except LocalProtocolError as error:
        raise MalformedFrameError(f"command header: {error.message}") from None


def _int32(value: object, name: str) -> int:
    if type(value) is not int:
        value = _lenient_int(value, name)
    if -0x8000_0000 <= value <= 0x7FFF_FFFF:
        return value
    raise MalformedFrameError(f"{name} of a command header is not a 32-bit number: {value}")


def _lenient_int(value: object, name: str) -> int:
    if value is None:
        return 0
    try:
        if isinstance(value, (str, float)):
            return int(value)
    except (ValueError, OverflowError):
        pass
    raise MalformedFrameError(f"{name} of a command header is not a number: {value!r:.50}")


def _language(value: object) -> int:
    # A value that is neither a name nor an ordinal of the enum becomes null upstream, OTHER here.
    if value is None:
        return int(LanguageCode.JAVA)
    name = value.upper() if isinstance(value, str) else ""
    return _LANGUAGE_CODES.get(name, int(LanguageCode.OTHER))


def _decode_binary(data: bytes) -> RemotingCommand:
    try:
        code, language, version, opaque, flag = BINARY_HEAD.unpack_from(data)
        (remark_bytes,) = _LENGTH.unpack_from(data, 13)
        ext_at = 17 + remark_bytes
        if remark_bytes < 0 or ext_at + 4 > len(data):
            raise MalformedFrameError(f"remark of {remark_bytes} bytes is longer than the header")
        remark = data[17:ext_at].decode() if remark_bytes else None
        (ext_bytes,) = _LENGTH.unpack_from(data, ext_at)
        ext_end = ext_at + 4 + ext_bytes
        if ext_bytes < 0 or ext_end > len(data):
            raise MalformedFrameError(f"ext block of {ext_bytes} bytes is longer than the header")
        ext = _decode_binary_ext(data, ext_at + 4, ext_end) if ext_bytes else None
    except (struct.error, UnicodeDecodeError) as error:
        raise MalformedFrameError(f"binary command header is damaged: {error}") from None
    return RemotingCommand(code, opaque, flag, language, version, remark, ext, b"", _ROCKETMQ)


def _decode_binary_ext(data: bytes, position: int, end: int) -> dict[str, str]:
    ext: dict[str, str] = {}
    left = _HEADER_FIELDS_MAX
    while position < end:
        left -= 1
        if left < 0:
            raise _too_many_fields()
        (name_bytes,) = _SHORT.unpack_from(data, position)
        value_at = position + 2 + name_bytes
        if name_bytes < 0 or value_at + 4 > end:
            raise MalformedFrameError(f"ext name of {name_bytes} bytes is longer than its block")
        (value_bytes,) = _LENGTH.unpack_from(data, value_at)
        stop = value_at + 4 + value_bytes
        if value_bytes < 0 or stop > end:
            raise MalformedFrameError(f"ext value of {value_bytes} bytes is longer than its block")
        # Upstream reads a zero-length name or value as null: such a pair carries no value.
        if name_bytes and value_bytes:
            name = data[position + 2 : value_at].decode()
            ext[name] = data[value_at + 4 : stop].decode()
        position = stop
    return ext


class FrameDecoder:
    """Makes commands of the bytes of one connection; unusable after its first error.

    Memory is bounded by one frame plus what the last ``put`` brought. A frame whose body exceeds
    the maximum becomes an ``OversizedCommand``: the header is read and the body dropped as it
    arrives, unless one ``put`` brought all of it.
    """

    __slots__ = (
        "_body_bytes_max",
        "_data",
        "_error",
        "_frame_bytes_max",
        "_header_bytes_max",
        "_needed",
        "_oversized",
        "_partial",
        "_position",
        "_skip_bytes",
    )

    def __init__(
        self,
        frame_bytes_max: int = limits.FRAME_BYTES_MAX,
        header_bytes_max: int = HEADER_FIELD_MAX,
        body_bytes_max: int = limits.FRAME_BYTES_MAX,
    ) -> None:
        self._frame_bytes_max = frame_bytes_max
        self._header_bytes_max = header_bytes_max
        self._body_bytes_max = body_bytes_max
        self._oversized: OversizedCommand | None = None
        self._skip_bytes = 0
        self._data: bytes | bytearray = b""
        self._position = 0
        self._partial = bytearray()
        self._needed: int  # by ``_keep``, together with the part of a frame that needs them
        self._error: RemoteProtocolError | None = None

    @property
    def bytes_pending(self) -> int:
        """Bytes held that do not form a command yet."""
        return len(self._partial) + len(self._data) - self._position

    @property
    def frame_bytes(self) -> int:
        """Size of the frame being received, as far as known; 0 between frames."""
        return self._needed if self._partial else 0

    @property
    def held(self) -> tuple[bytes | bytearray, int]:
        """The bytes held, and where in them the next frame begins; valid until ``put``."""
        if self._oversized is not None or self._error is not None:
            return b"", 0
        return self._data, self._position

    def skip_to(self, position: int) -> None:
        """Continue at another position of ``held``: the frames before it were read elsewhere."""
        self._position = position

    def feed(self, data: bytes | bytearray | memoryview) -> list[RemotingCommand]:
        """Take bytes and return the commands they complete, oldest first.

        Raises:
            MalformedFrameError: a frame is malformed.
            FrameTooLargeError: a length is negative or over the maximum.
        """
        self.put(data)
        commands: list[RemotingCommand] = []
        while (command := self.next()) is not None:
            commands.append(command)
        return commands

    def put(self, data: bytes | bytearray | memoryview) -> None:
        """Take bytes; ``next`` returns the commands they complete.

        Raises:
            RemoteProtocolError: earlier bytes were malformed.
        """
        if self._error is not None:
            raise self._error
        partial = self._partial
        if partial:
            partial += data
            if len(partial) < self._needed:
                self._shed()
                return
            # Handed over without a copy: copying 16 MiB would keep all other connections waiting.
            self._data, self._position = partial, 0
            self._partial = bytearray()
            return
        if type(data) is not bytes:
            data = bytes(data)
        if self._skip_bytes:
            skipped = min(self._skip_bytes, len(data))
            self._skip_bytes -= skipped
            data = data[skipped:]
        self._data = self._data[self._position :] + data if self._data else data
        self._position = 0

    def next(self) -> RemotingCommand | None:
        """Return the next complete command, None when more bytes are needed.

        Raises:
            MalformedFrameError: the frame is malformed.
            FrameTooLargeError: a length is negative or over the maximum.
        """
        data, position = self._data, self._position
        available = len(data) - position
        if self._oversized is not None:
            if self._skip_bytes:
                return None
            command, self._oversized = self._oversized, None
            return command
        if available < 4:
            if available:
                self._keep(4)
            else:
                self._data, self._position = b"", 0
            return None
        (length,) = _unpack_length(data, position)
        if not 4 <= length <= self._frame_bytes_max - 4:
            self._error = self._refusal(length)
            raise self._error
        if available < 4 + length:
            self._keep(4 + length)
            return None
        self._position = end = position + 4 + length
        try:
            return _decode(data, position + 4, end, self._header_bytes_max)
        except RemoteProtocolError as error:
            self._error = error
            raise

    def _keep(self, needed: int) -> None:
        """Keep the beginning of a frame that needs ``needed`` bytes in all."""
        self._needed = needed
        self._partial += self._data[self._position :] if self._position else self._data
        self._data, self._position = b"", 0
        self._shed()

    def _shed(self) -> None:
        """Once the header of a frame with a too large body is there, keep only the header."""
        partial = self._partial
        if self._needed <= self._body_bytes_max or len(partial) < 8:
            return
        header_end = 8 + (_unpack_word(partial, 4)[0] & 0xFFFFFF)
        body_bytes = self._needed - header_end
        if body_bytes <= self._body_bytes_max or len(partial) < header_end:
            return
        try:
            head = _decode(bytes(partial[:header_end]), 4, header_end, self._header_bytes_max)
        except RemoteProtocolError as error:
            self._error = error
            raise
        self._oversized = OversizedCommand.of(head, body_bytes)
        self._skip_bytes = self._needed - len(partial)
        self._partial = bytearray()

    def _refusal(self, length: int) -> RemoteProtocolError:
        if 0 <= length < 4:
            return MalformedFrameError(f"a frame length of {length} leaves no room for a header")
        return FrameTooLargeError(
            f"a frame length of {length} is not between 4 and {self._frame_bytes_max - 4}",
            frame_bytes=length,
            frame_bytes_max=self._frame_bytes_max,
        )
