"""The answer to a stored message, written from a template.

Pure: the bytes of the general way of ``framing``, only quicker; an answer that was changed is
written the general way.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final

from rocketstream.protocol import plain_json
from rocketstream.protocol.codes import FLAG_RESPONSE, VERSION, LanguageCode, SerializeType
from rocketstream.protocol.command import RemotingCommand

_PREFIX: Final = struct.Struct(">ii")
_PYTHON: Final = LanguageCode.PYTHON
_JSON: Final = SerializeType.JSON


class SendAnswerPlan:
    """The common part of all answers of one broker that say a message is stored.

    Args:
        region: the broker's region (MSG_REGION).
    """

    __slots__ = ("_run", "region", "template")

    def __init__(self, region: str) -> None:
        self.region = region
        region_text = plain_json.dumps(region).replace(b"%", b"%%")
        self.template = (
            b'{"code":0,"extFields":{"msgId":"%b","queueId":"%d","queueOffset":"%d","MSG_REGION":'
            + region_text
            + b',"TRACE_ON":"true"},"flag":%d,"language":"PYTHON","opaque":%d,'
            + b'"serializeTypeCurrentRPC":"JSON","version":%d}' % VERSION
        )
        self._run = (
            b'{"code":0,"extFields":{"msgId":"%b%016X","queueId":"%d","queueOffset":"%d",'
            + b'"MSG_REGION":'
            + region_text
            + b',"TRACE_ON":"true"},"flag":%d' % FLAG_RESPONSE
            + b',"language":"PYTHON","opaque":%b,'
            + b'"serializeTypeCurrentRPC":"JSON","version":%d}' % VERSION
        )

    def frames(
        self,
        id_prefix: bytes,
        places: Iterable[tuple[int, int]],
        asked: Iterable[tuple[int, bytes, bool]],
    ) -> bytes:
        """Return the frames that answer several sends, one after another.

        Args:
            id_prefix: beginning of the message ids: the broker's address in hexadecimal digits.
            places: physical and queue offset of each message.
            asked: queue id and opaque id of each send, and whether its answer is wanted.
        """
        parts: list[bytes] = []
        run = self._run
        for (physical, offset), (queue_id, opaque, wants_answer) in zip(places, asked, strict=True):
            if wants_answer:
                header = run % (id_prefix, physical, queue_id, offset, opaque)
                size = len(header)
                parts += (_PREFIX.pack(size + 4, size), header)
        return b"".join(parts)


class SendAnswer(RemotingCommand):
    """One such answer; its ext map is made on first use."""

    __slots__ = ("_ext", "_msg_id", "_plan", "_queue_id", "_queue_offset")

    def __init__(self, plan: SendAnswerPlan, msg_id: str, queue_id: int, queue_offset: int) -> None:
        # Without the base's initialiser: an answer is made for every message.
        self.code = 0
        self.opaque = 0
        self.flag = FLAG_RESPONSE
        self.language = _PYTHON
        self.version = VERSION
        self.remark = None
        self.body = b""
        self.serialize_type = _JSON
        self._ext: dict[str, str] | None = None
        self._plan = plan
        self._msg_id = msg_id
        self._queue_id = queue_id
        self._queue_offset = queue_offset

    @property
    def ext_fields(self) -> dict[str, str] | None:
        """The header's values by wire name; once read, they are the ones that are sent."""
        if self._ext is None:
            self._ext = {
                "msgId": self._msg_id,
                "queueId": str(self._queue_id),
                "queueOffset": str(self._queue_offset),
                "MSG_REGION": self._plan.region,
                "TRACE_ON": "true",
            }
        return self._ext

    @ext_fields.setter
    def ext_fields(self, ext: dict[str, str] | None) -> None:
        self._ext = {} if ext is None else ext

    def _json_header(self) -> bytes:
        """Return the header: by the template unless the ext map was read, or more is said."""
        if self._ext is not None or self.code or self.remark is not None:
            return super()._json_header()
        return self._plan.template % (
            self._msg_id.encode(),
            self._queue_id,
            self._queue_offset,
            self.flag,
            self.opaque,
        )
