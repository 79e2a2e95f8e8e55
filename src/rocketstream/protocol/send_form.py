r"""The header of a usual send (code 310, JSON), recognised by its fixed places.

Pure: the values of the general way of ``framing``, ``headers`` and ``properties``, only quicker, or
None in any doubt. A form is identified by the names of the message's properties: the
headers of one client differ from message to message in a few values only, and each has a fixed
place.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Final

from rocketstream.protocol.properties import (
    PROPERTY_CLUSTER,
    PROPERTY_KEYS,
    PROPERTY_TAGS,
    PROPERTY_UNIQ_KEY,
    PROPERTY_WAIT,
    encode_properties,
)

NAMES_MAX: Final = 16
NAME_CHARS_MAX: Final = 64
HEADER_BYTES_MAX: Final = 4096
"""Longest header that is searched; the search takes time in proportion to it."""

_TEXT: Final = rb"[ !#-\[\]-~]"
r"""Characters that stand for themselves in JSON, take one byte and separate nothing: no quote, no
backslash (so no ``\u0001``), no control character, nothing beyond ASCII."""
_NUMBER: Final = rb"(?:0|[1-9][0-9]{0,2})"
_BEFORE: Final = (
    rb'\{"code":310,"extFields":\{"a":"%(text)b+",'
    rb'"b":"(%(text)b+","c":"%(text)b*","d":"%(number)b","e":"%(number)b","f":"%(number)b)",'
    rb'"g":"([0-9]{1,15})","h":"(%(number)b)","i":"'
) % {b"text": _TEXT, b"number": _NUMBER}
_AFTER: Final = (
    rb'(?:\\u0002)?","j":"0"(?:,"k":"(?:false|true)")?(?:,"l":"%(number)b")?(?:,"m":"false")?'
    rb'(?:,"n":"%(text)b*")?\},"flag":([02]),"language":"[A-Z]+","opaque":(0|[1-9][0-9]{0,8}),'
    rb'"serializeTypeCurrentRPC":"JSON","version":[0-9]{1,4}\}'
) % {b"text": _TEXT, b"number": _NUMBER}
_LANE: Final = re.compile(
    rb'(%(text)b+)","c":"%(text)b*","d":"%(number)b","e":"(%(number)b)","f":"(%(number)b)'
    % {b"text": _TEXT, b"number": _NUMBER}
)
_NAME: Final = re.compile(r"[0-9A-Za-z_.\-]+")

Match = Callable[[bytes | bytearray, int, int], "re.Match[bytes] | None"]


class SendForm:
    r"""Sends whose properties have these names, in this order.

    Attributes:
        match: called with a buffer and where the header begins and ends. The groups of its match:
            the lane (:func:`read_lane`), born timestamp, flag, the values of the properties, the
            command's flag (0, or 2 for one-way) and its opaque id.
        text: a ``%`` template of the properties as they are stored, for the values.
        unique: which of the groups is the value of UNIQ_KEY; 0 when there is none.
        keys: the same for KEYS.
        tags: the same for TAGS.
    """

    __slots__ = ("__weakref__", "keys", "match", "tags", "text", "unique")

    def __init__(self, names: Sequence[str], cluster: str) -> None:
        values = [name for name in names if name != PROPERTY_WAIT]
        pairs = [
            name.encode() + rb"\\u0001" + (rb"true" if name == PROPERTY_WAIT else rb"(%b+)" % _TEXT)
            for name in (re.escape(name) for name in names)
        ]
        self.match: Match = re.compile(_BEFORE + rb"\\u0002".join(pairs) + _AFTER).fullmatch
        stored = {**dict.fromkeys(values, "\0"), PROPERTY_CLUSTER: cluster}
        text = encode_properties(stored).encode()
        self.text = text.replace(b"%", b"%%").replace(b"\0", b"%b")
        self.unique = _place(PROPERTY_UNIQ_KEY, values)
        self.keys = _place(PROPERTY_KEYS, values)
        self.tags = _place(PROPERTY_TAGS, values)


def _place(name: str, values: list[str]) -> int:
    return _VALUES_AT + values.index(name) if name in values else 0


_VALUES_AT: Final = 3


def may_have_form(names: Sequence[str], cluster: str) -> bool:
    """Return whether a form can be made of messages with these properties."""
    return (
        len(names) <= NAMES_MAX
        and PROPERTY_CLUSTER not in names
        and "\0" not in cluster
        and all(len(name) <= NAME_CHARS_MAX and _NAME.fullmatch(name) for name in names)
    )


def read_lane(lane: bytes) -> tuple[str, int, int]:
    """Return topic, queue id and sysFlag of the lane, the part of a header a form matched."""
    found = _LANE.fullmatch(lane)
    assert found is not None, lane
    topic, queue_id, sys_flag = found.groups()
    return topic.decode(), int(queue_id), int(sys_flag)
