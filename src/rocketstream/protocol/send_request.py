"""The request of a plain send, written from a template prepared once per queue.

Law: the same bytes as the general way of ``framing``, only quicker; a request whose fields were
read or changed is written the general way.
"""

from __future__ import annotations

import struct
from typing import Any, Final

from rocketstream import limits
from rocketstream.errors import LocalProtocolError
from rocketstream.protocol import plain_json
from rocketstream.protocol.codes import VERSION, LanguageCode, RequestCode, SerializeType
from rocketstream.protocol.command import RemotingCommand
from rocketstream.protocol.headers.send import SendMessageRequestHeader

_CODE: Final = int(RequestCode.SEND_MESSAGE_V2)
_PYTHON: Final = LanguageCode.PYTHON
_JSON: Final = SerializeType.JSON
_PREFIX: Final = struct.Struct(">iI")


def _text(value: str) -> bytes:
    """Return a JSON string for a ``%`` template."""
    return plain_json.dumps(value).replace(b"%", b"%%")


class SendPlan:
    """The common part of all plain sends (code 310) of one producer to one queue.

    Args:
        example: the header of such a send; used are its group, topic, template topic, queue
            numbers, queue, unit mode and broker name.
    """

    __slots__ = ("example", "template")

    def __init__(self, example: SendMessageRequestHeader) -> None:
        self.example = example
        fields = example.to_ext_v2()
        before = b",".join(b'"%b":%b' % (name.encode(), _text(fields[name])) for name in "abcde")
        after = b",".join(
            b'"%b":%b' % (name.encode(), _text(fields[name]))
            for name in ("j", "k", "m", "n")
            if name in fields
        )
        self.template = b"".join(
            (
                b'{"code":%d,"extFields":{' % _CODE,
                before,
                b',"f":"%d","g":"%d","h":"%d","i":%b,',
                after,
                b'},"flag":%d,"language":"PYTHON","opaque":%d,',
                b'"serializeTypeCurrentRPC":"JSON","version":%d}' % VERSION,
            )
        )

    def frame(
        self,
        body: bytes | memoryview,
        properties: str,
        born_timestamp: int,
        sys_flag: int,
        user_flag: int,
        opaque: int,
    ) -> bytes:
        """Return the complete frame of a send that wants an answer.

        Raises:
            LocalProtocolError: the frame exceeds the maximum.
        """
        header = self.template % (
            sys_flag, born_timestamp, user_flag, plain_json.dumps(properties), 0, opaque,
        )  # fmt: skip
        size = len(header)
        length = 4 + size + len(body)
        if length > limits.FRAME_BYTES_MAX - 4:
            raise LocalProtocolError(
                f"a frame of {length + 4} bytes is over the maximum of {limits.FRAME_BYTES_MAX}",
                frame_bytes=length + 4,
            )
        return b"".join((_PREFIX.pack(length, size), header, body))


class SendRequest(RemotingCommand):
    """One plain send; its ext map is made on first use."""

    __slots__ = ("_born_timestamp", "_ext", "_plan", "_properties", "_sys_flag", "_user_flag")

    def __init__(
        self,
        plan: SendPlan,
        body: bytes | memoryview,
        properties: str,
        born_timestamp: int,
        sys_flag: int,
        user_flag: int,
    ) -> None:
        # Without the base's initialiser: a request is made for every message.
        self.code = _CODE
        self.opaque = 0
        self.flag = 0
        self.language = _PYTHON
        self.version = VERSION
        self.remark = None
        self.body = body
        self.serialize_type = _JSON
        self._ext: dict[str, str] | None = None
        self._plan = plan
        self._properties = properties
        self._born_timestamp = born_timestamp
        self._sys_flag = sys_flag
        self._user_flag = user_flag

    @property
    def ext_fields(self) -> dict[str, str] | None:
        """The header's values by wire name; once read, they are the ones that are sent."""
        if self._ext is None:
            ext = self._plan.example.to_ext_v2()
            ext["f"] = str(self._sys_flag)
            ext["g"] = str(self._born_timestamp)
            ext["h"] = str(self._user_flag)
            ext["i"] = self._properties
            self._ext = ext
        return self._ext

    @ext_fields.setter
    def ext_fields(self, ext: dict[str, str] | None) -> None:
        self._ext = {} if ext is None else ext

    def ready_header(self) -> bytes | None:
        """Return the JSON header; None if the ext map was read."""
        if self._ext is not None:
            return None
        values: tuple[Any, ...] = (
            self._sys_flag,
            self._born_timestamp,
            self._user_flag,
            plain_json.dumps(self._properties),
            self.flag,
            self.opaque,
        )
        return self._plan.template % values
