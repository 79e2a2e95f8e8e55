"""The usual answer to a send (code 0, JSON), recognised by its fixed places.

Law: returns what the general way of ``framing`` would return, only quicker, or None in any doubt. A
form is learnt from an answer read the general way: the answers of one broker differ in few values.
"""

from __future__ import annotations

import re
import struct
from typing import Final

from rocketstream.protocol.codes import FLAG_RESPONSE, SerializeType
from rocketstream.protocol.command import RemotingCommand
from rocketstream.protocol.names import DEFAULT_REGION
from rocketstream.protocol.properties import PROPERTY_MSG_REGION, PROPERTY_TRACE_ON

HEADER_BYTES_MAX: Final = 1_024
"""Longest answer a form is learnt from."""

_VALUES: Final = {
    "queueId": rb"([0-9]{1,9})",
    "queueOffset": rb"([0-9]{1,18})",
    "msgId": rb"([0-9A-Fa-f,]+)",
    "transactionId": rb"([0-9A-Fa-f]+)",
}
_NAMES: Final = frozenset({*_VALUES, PROPERTY_MSG_REGION, PROPERTY_TRACE_ON})
_OPAQUE: Final = re.compile(rb'"opaque":([0-9]{1,10})')
_unpack_prefix: Final = struct.Struct(">iI").unpack_from

StoredValues = tuple[bytes, bytes, bytes, bytes]
"""Queue id, queue offset, message id and transaction id, as text."""


class StoredForm:
    """The form of the answer by which one broker says that a message is stored.

    Attributes:
        region_id: the broker's region.
        trace_on: whether it wants message trace.
        names_transactions: whether the answers have a transaction id, as those of 5.x brokers.
    """

    __slots__ = ("_groups", "_match", "names_transactions", "region_id", "trace_on")

    def __init__(
        self, pattern: bytes, groups: tuple[int, ...], region_id: str, *, trace_on: bool
    ) -> None:
        self._match = re.compile(rb".{8}" + pattern, re.DOTALL).match
        self._groups = groups
        self.names_transactions = groups[4] != groups[3]
        self.region_id = region_id
        self.trace_on = trace_on

    def read(self, data: bytes | bytearray, at: int) -> tuple[int, int, StoredValues] | None:
        """Read the frame that begins at ``at``, if it is complete and of this form.

        Returns:
            Where the frame ends, its opaque id, and its values; without a transaction id the
            message id stands in its place.
        """
        found = self._match(data, at)
        if found is None:
            return None
        end = found.end()
        length, word = _unpack_prefix(data, at)
        if length != end - at - 4 or word != length - 4:
            return None
        opaque, queue_id, offset, msg_id, transaction_id = found.group(*self._groups)
        return end, int(opaque), (queue_id, offset, msg_id, transaction_id)


def learn(frame: bytes, answer: RemotingCommand) -> StoredForm | None:
    """Return the form of an answer, if the answer says only that a message is stored.

    Args:
        frame: the whole frame.
        answer: the same frame, read the general way.
    """
    ext = answer.ext_fields
    if (
        answer.code
        or answer.flag != FLAG_RESPONSE
        or answer.remark is not None
        or answer.body
        or answer.serialize_type is not SerializeType.JSON
        or len(frame) > HEADER_BYTES_MAX
        or ext is None
        or not _NAMES.issuperset(ext)
    ):
        return None
    header = frame[8:]
    found = _OPAQUE.search(header)
    if found is None:
        return None
    places = [(*found.span(1), "opaque", rb"([0-9]{1,10})")]
    for name, value in _VALUES.items():
        at = header.find(b'"%b":"' % name.encode())
        if at < 0:
            continue
        begin = at + len(name) + 4
        places.append((begin, header.index(b'"', begin), name, value))
    places.sort()
    pattern, done = b"", 0
    for begin, end, _, value in places:
        pattern += re.escape(header[done:begin]) + value
        done = end
    order = {name: number for number, (_, _, name, _) in enumerate(places, 1)}
    if not {"opaque", "queueId", "queueOffset", "msgId"} <= order.keys():
        return None
    groups = (order["opaque"], order["queueId"], order["queueOffset"], order["msgId"])
    form = StoredForm(
        pattern + re.escape(header[done:]),
        (*groups, order.get("transactionId", order["msgId"])),
        ext.get(PROPERTY_MSG_REGION) or DEFAULT_REGION,
        trace_on=ext.get(PROPERTY_TRACE_ON) != "false",
    )
    return form if _reads(form, frame, answer.opaque, ext) else None


def _reads(form: StoredForm, frame: bytes, opaque: int, ext: dict[str, str]) -> bool:
    """Return whether a form reads its own example as the general way does."""
    found = form.read(frame, 0)
    if found is None:
        return False
    names = ("queueId", "queueOffset", "msgId", "transactionId")
    wanted = [ext.get(name) for name in names]
    if not form.names_transactions:
        wanted[3] = wanted[2] if wanted[3] is None else ""
    return found[:2] == (len(frame), opaque) and [v.decode() for v in found[2]] == wanted
