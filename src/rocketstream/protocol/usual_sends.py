r"""A usual send (code 310, JSON) as a broker has it: header read by its places, answer by a form.

Pure: the values and bytes of the general way of ``framing``, ``headers`` and ``properties``, only
quicker, or None in any doubt; an answer that was changed is written the general way. Headers of all
clients have the same fields in the same order.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterable
from typing import Final, TypeAlias

from rocketstream.protocol import plain_json
from rocketstream.protocol.codes import FLAG_RESPONSE, VERSION, LanguageCode, SerializeType
from rocketstream.protocol.command import RemotingCommand

_PREFIX: Final = struct.Struct(">ii")
_PYTHON: Final = LanguageCode.PYTHON
_JSON: Final = SerializeType.JSON
USUAL_HEADER_BYTES_MAX: Final = 4096
"""Longest header that is searched; the search takes time in proportion to it."""

_TEXT: Final = rb"[ !#-\[\]-~]"
r"""Characters that stand for themselves in JSON, take one byte and separate nothing: no quote, no
backslash (so no ``\u0001``), no control character, nothing beyond ASCII."""
_NUMBER: Final = rb"(?:0|[1-9][0-9]{0,2})"
_LANE: Final = re.compile(
    rb'(%(text)b+)","c":"%(text)b*","d":"%(number)b","e":"(%(number)b)","f":"(%(number)b)'
    % {b"text": _TEXT, b"number": _NUMBER}
)
_PAIR: Final = (
    rb"(?:UNIQ_KEY\\u0001(%(text)b++)|KEYS\\u0001(%(text)b++)|TAGS\\u0001(%(text)b++)"
    rb"|WAIT\\u0001true(?!%(text)b)|(?!(?:WAIT|%(odd)b)\\)%(text)b++\\u0001%(text)b++)"
)
_HEADER: Final = (
    rb'\{"code":310,"extFields":\{"a":"%(text)b++",'
    rb'"b":"(%(text)b++","c":"%(text)b*+","d":"%(number)b","e":"%(number)b","f":"%(number)b)",'
    rb'"g":"([0-9]{1,15})","h":"(%(number)b)",'
    rb'"i":"((?:%(pair)b(?:\\u0002(?!["\\])|(?=(?:\\u0002)?")))*+)(?:\\u0002)?+",'
    rb'"j":"0"(?:,"k":"(?:false|true)")?(?:,"l":"%(number)b")?(?:,"m":"false")?'
    rb'(?:,"n":"%(text)b*+")?\},"flag":([02]),"language":"[A-Z]+","opaque":(0|[1-9][0-9]{0,8}),'
    rb'"serializeTypeCurrentRPC":"JSON","version":[0-9]{1,4}\}'
)
MatchSend: TypeAlias = Callable[[bytes | bytearray, int, int], "re.Match[bytes] | None"]


def send_matcher(odd: Iterable[str]) -> MatchSend:
    """Return what reads a usual send: called with a buffer and where the header begins and ends.

    The groups of its match: the lane (:func:`read_lane`), born timestamp, flag, the properties
    (:func:`stored_properties`), the values of UNIQ_KEY, KEYS and TAGS, the command's flag (0, or 2
    for one-way) and its opaque id.

    Args:
        odd: properties that no usual send has; nor has one ``WAIT`` with a value but ``true``.
    """
    parts = {b"text": _TEXT, b"number": _NUMBER}
    pair = _PAIR % {**parts, b"odd": b"|".join([re.escape(name.encode()) for name in odd])}
    return re.compile(_HEADER % {**parts, b"pair": pair}).fullmatch


def read_lane(lane: bytes) -> tuple[str, int, int]:
    """Return topic, queue id and sysFlag of the lane, the part of a header that names its queue."""
    found = _LANE.fullmatch(lane)
    assert found is not None, lane
    topic, queue_id, sys_flag = found.groups()
    return topic.decode(), int(queue_id), int(sys_flag)


def stored_properties(written: bytes, more: bytes) -> bytes:
    r"""Return the properties as they are stored: without ``WAIT``, with the broker's own behind.

    One that is given twice stays twice: the last counts for all who read it.

    Args:
        written: the properties of a header that a matcher took, with their escapes.
        more: text that follows; it begins with the separator ``\x02``.
    """
    if written:
        written = (b"\\u0002" + written).replace(b"\\u0002WAIT\\u0001true", b"")
    text = written + more
    return text.replace(b"\\u0001", b"\x01").replace(b"\\u0002", b"\x02").removeprefix(b"\x02")


class SendAnswerPlan:
    """The common part of all answers of one broker that say a message is stored.

    Args:
        region: the broker's region (MSG_REGION).
    """

    __slots__ = ("_run", "region", "template")

    def __init__(self, region: str) -> None:
        self.region: str = region
        region_text = plain_json.dumps(region).replace(b"%", b"%%")
        self.template: bytes = (
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
        self.language: int = _PYTHON
        self.version = VERSION
        self.remark: str | None = None
        self.body: bytes | memoryview = b""
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
