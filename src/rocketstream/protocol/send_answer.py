"""The answer to a stored message, written from a template.

Law: the same bytes as the general way of ``framing``, only quicker; an answer that was changed is
written the general way.
"""

from __future__ import annotations

from typing import Final

import orjson

from rocketstream.protocol.codes import FLAG_RESPONSE, VERSION, LanguageCode, SerializeType
from rocketstream.protocol.command import RemotingCommand

_PYTHON: Final = LanguageCode.PYTHON
_JSON: Final = SerializeType.JSON


class SendAnswerPlan:
    """What is the same in all answers of one broker that say a message is stored.

    Args:
        region: the broker's region (MSG_REGION).
    """

    __slots__ = ("region", "template")

    def __init__(self, region: str) -> None:
        self.region = region
        self.template = (
            b'{"code":0,"extFields":{"msgId":"%b","queueId":"%d","queueOffset":"%d","MSG_REGION":'
            + orjson.dumps(region).replace(b"%", b"%%")
            + b',"TRACE_ON":"true"},"flag":%d,"language":"PYTHON","opaque":%d,'
            + b'"serializeTypeCurrentRPC":"JSON","version":%d}' % VERSION
        )


class SendAnswer(RemotingCommand):
    """One such answer; its ext map comes into being when somebody asks for it."""

    __slots__ = ("_ext", "_msg_id", "_plan", "_queue_id", "_queue_offset")

    def __init__(self, plan: SendAnswerPlan, msg_id: str, queue_id: int, queue_offset: int) -> None:
        # Not by the base's initialiser: this is made for every message.
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
        """The header's values by wire name; from now on they are what is sent."""
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

    def ready_header(self) -> bytes | None:
        """Return the JSON header, unless the answer was looked at or says more than success."""
        if self._ext is not None or self.code or self.remark is not None:
            return None
        return self._plan.template % (
            self._msg_id.encode(),
            self._queue_id,
            self._queue_offset,
            self.flag,
            self.opaque,
        )
