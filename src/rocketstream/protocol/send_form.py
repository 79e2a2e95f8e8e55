r"""The header of a usual send (code 310, JSON), read by its fixed places.

Pure: the values of the general way of ``framing``, ``headers`` and ``properties``, only quicker, or
None in any doubt. Headers of all clients have the same fields in the same order.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Final, TypeAlias

HEADER_BYTES_MAX: Final = 4096
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
