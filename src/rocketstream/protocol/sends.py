"""Pure: a send, from its message to a request and from the answer to a result.

The boundary of producers: ``PreparedSend.command`` makes the request for a queue,
``PreparedSend.result`` reads the answer, and an ``AnswerReader`` of each connection reads what
comes. Behind it usual sends have a quicker form: a request is written from a template made once
for each queue, and an answer is read by its fixed places. Both have the bytes and values of the
general way of ``framing``, which everything else goes.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Sequence
from typing import Final

from rocketstream import limits
from rocketstream.errors import broker_error
from rocketstream.model import Message, MessageQueue, SendResult, SendStatus
from rocketstream.protocol import plain_json
from rocketstream.protocol.codes import (
    FLAG_RESPONSE,
    VERSION,
    LanguageCode,
    RequestCode,
    ResponseCode,
    SerializeType,
)
from rocketstream.protocol.command import RemotingCommand
from rocketstream.protocol.framing import FrameDecoder, decode_frame_within
from rocketstream.protocol.headers.send import SendMessageRequestHeader, SendMessageResponseHeader
from rocketstream.protocol.names import DEFAULT_REGION
from rocketstream.protocol.properties import PROPERTY_MSG_REGION, PROPERTY_TRACE_ON

ANSWER_BYTES_MAX: Final = 1_024
"""Longest answer a form is learnt from."""
_FORMS_MAX: Final = 32
"""Forms learnt of one server: one that changes them all the time is read the general way."""
_TEMPLATES_MAX: Final = 4_096

_PREFIX: Final = struct.Struct(">iI")
_LENGTH_MAX: Final = limits.FRAME_BYTES_MAX - 4
_CODE: Final = int(RequestCode.SEND_MESSAGE_V2)
_PYTHON: Final = LanguageCode.PYTHON
_JSON: Final = SerializeType.JSON
_STATUS: Final = {
    int(ResponseCode.SUCCESS): SendStatus.SEND_OK,
    int(ResponseCode.FLUSH_DISK_TIMEOUT): SendStatus.FLUSH_DISK_TIMEOUT,
    int(ResponseCode.FLUSH_SLAVE_TIMEOUT): SendStatus.FLUSH_SLAVE_TIMEOUT,
    int(ResponseCode.SLAVE_NOT_AVAILABLE): SendStatus.SLAVE_NOT_AVAILABLE,
}
_SEND_OK: Final = SendStatus.SEND_OK


class SendRequests:
    """Requests of one producer: their common fields, and templates of them by queue.

    Args:
        group: the producer group.
        create_topic_key: the topic whose settings one takes that a send creates.
        queue_nums: queues of a topic that a send creates.
        unit_mode: whether the client belongs to a unit.
    """

    __slots__ = ("_create_topic_key", "_group", "_queue_nums", "_templates", "_unit_mode")

    def __init__(
        self, group: str, create_topic_key: str, queue_nums: int, *, unit_mode: bool = False
    ) -> None:
        self._group = group
        self._create_topic_key = create_topic_key
        self._queue_nums = queue_nums
        self._unit_mode = unit_mode
        self._templates: dict[MessageQueue, _Template] = {}

    def template(self, send: PreparedSend, queue: MessageQueue) -> _Template:
        """Return the template of plain sends to a queue."""
        if queue.topic != send.topic:  # of a namespace, or a selector's, which may name any
            queue = MessageQueue(send.topic, queue.broker_name, queue.queue_id)
        template = self._templates.get(queue)
        if template is None:
            if len(self._templates) >= _TEMPLATES_MAX:
                self._templates.clear()
            template = self._templates[queue] = _Template(self.header(send, queue))
        return template

    def header(self, send: PreparedSend, queue: MessageQueue) -> SendMessageRequestHeader:
        """Return the header of any send."""
        return SendMessageRequestHeader(
            self._group,
            send.topic,
            self._create_topic_key,
            self._queue_nums,
            queue.queue_id,
            send.sys_flag,
            send.born_timestamp,
            send.flag,
            send.properties,
            send.reconsume_times,
            self._unit_mode,
            send.max_reconsume_times,
            send.code == RequestCode.SEND_BATCH_MESSAGE,
            queue.broker_name,
        )


class PreparedSend:
    """One message, or one batch, ready for any queue and any number of tries.

    Attributes:
        topic: as the servers know it.
        body: as it is sent, compressed if it is.
        properties: their text.
        msg_id: the client's id; of a batch the ids.
        born_timestamp: when it was made ready, ms since 1970.
        is_plain: nothing about it is special, so that its request fits the template of its queue.
        message: what the user gave, for what observes sends: a message, or the whole batch a part
            is of.
        unwrap: makes of a queue the user's, where there is a namespace.
    """

    __slots__ = (
        "_requests", "body", "born_timestamp", "code", "flag", "is_plain", "max_reconsume_times",
        "message", "msg_id", "properties", "reconsume_times", "sys_flag", "topic", "unwrap",
    )  # fmt: skip
    message: Message | Sequence[Message]

    def __init__(
        self,
        requests: SendRequests,
        topic: str,
        body: bytes | memoryview,
        properties: str,
        msg_id: str,
        born_timestamp: int,
        flag: int = 0,
        sys_flag: int = 0,
        code: int = _CODE,
        reconsume_times: int = 0,
        max_reconsume_times: int | None = None,
    ) -> None:
        self._requests = requests
        self.topic: str = topic
        self.body: bytes | memoryview = body
        self.properties: str = properties
        self.msg_id: str = msg_id
        self.born_timestamp: int = born_timestamp
        self.flag: int = flag
        self.sys_flag: int = sys_flag
        self.code: int = code
        self.is_plain: bool = code == _CODE and not reconsume_times and max_reconsume_times is None
        self.reconsume_times: int = reconsume_times
        self.max_reconsume_times: int | None = max_reconsume_times
        self.unwrap: Callable[[MessageQueue], MessageQueue] | None = None

    def command(self, queue: MessageQueue) -> RemotingCommand:
        """Return the request that stores it in ``queue``."""
        requests = self._requests
        if self.is_plain:
            return PlainSend(requests.template(self, queue), self)
        command = RemotingCommand(self.code)
        command.ext_fields = requests.header(self, queue).to_ext_v2()
        command.body = self.body
        return command

    def result(self, answer: RemotingCommand, queue: MessageQueue, address: str) -> SendResult:
        """Read the broker's answer.

        Raises:
            BrokerError: it did not store the message.
            RemoteProtocolError: the answer cannot be read.
        """
        if self.unwrap is not None:
            queue = self.unwrap(queue)
        if type(answer) is StoredAnswer and answer._ext is None and not answer.code:
            form = answer._form
            number, offset, place, transaction_id = answer._values
            queue_id = int(number)
            if queue_id != queue.queue_id:
                queue = MessageQueue(queue.topic, queue.broker_name, queue_id)
            return SendResult(
                _SEND_OK,
                self.msg_id,
                place.decode(),
                queue,
                int(offset),
                form.region_id,
                form.trace_on,
                transaction_id.decode() if form.names_transactions else None,
            )
        status = _STATUS.get(answer.code)
        if status is None:
            raise broker_error(answer.code, answer.remark, address)
        ext = answer.ext_fields or {}
        try:
            queue_id, queue_offset = int(ext["queueId"]), int(ext["queueOffset"])
            offset_msg_id = ext["msgId"]
        except (KeyError, ValueError):
            answer.header(SendMessageResponseHeader)  # says what is wrong
            raise
        if not (0 <= queue_id <= 0x7FFF_FFFF and 0 <= queue_offset <= 0x7FFF_FFFF_FFFF_FFFF):
            answer.header(SendMessageResponseHeader)
        if queue_id != queue.queue_id:
            queue = MessageQueue(queue.topic, queue.broker_name, queue_id)
        get = ext.get
        return SendResult(
            status,
            self.msg_id,
            offset_msg_id,
            queue,
            queue_offset,
            get(PROPERTY_MSG_REGION) or DEFAULT_REGION,
            get(PROPERTY_TRACE_ON) != "false",
            get("transactionId"),
            get("recallHandle"),
        )


# --- requests by template -------------------------------------------------------------------------


def _text(value: str) -> bytes:
    """Return a JSON string for a ``%`` template."""
    return plain_json.dumps(value).replace(b"%", b"%%")


class _Template:
    """The common part of all plain sends (code 310) of one producer to one queue.

    Args:
        example: the header of such a send; used are its group, topic, template topic, queue
            numbers, queue, unit mode and broker name.
    """

    __slots__ = ("example", "text")

    def __init__(self, example: SendMessageRequestHeader) -> None:
        self.example: SendMessageRequestHeader = example
        fields = example.to_ext_v2()
        before = b",".join(b'"%b":%b' % (name.encode(), _text(fields[name])) for name in "abcde")
        after = b",".join(
            b'"%b":%b' % (name.encode(), _text(fields[name]))
            for name in ("j", "k", "m", "n")
            if name in fields
        )
        self.text: bytes = b"".join(
            (
                b'{"code":%d,"extFields":{' % _CODE,
                before,
                b',"f":"%d","g":"%d","h":"%d","i":%b,',
                after,
                b'},"flag":%d,"language":"PYTHON","opaque":%d,',
                b'"serializeTypeCurrentRPC":"JSON","version":%d}' % VERSION,
            )
        )


class PlainSend(RemotingCommand):
    """One plain send; its ext map is made on first use, and then is what is sent."""

    __slots__ = ("_ext", "_send", "_template")

    def __init__(self, template: _Template, send: PreparedSend) -> None:
        # Without the base's initialiser: a request is made for every message.
        self.code = _CODE
        self.opaque = 0
        self.flag = 0
        self.language: int = _PYTHON
        self.version = VERSION
        self.remark: str | None = None
        self.body: bytes | memoryview = send.body
        self.serialize_type = _JSON
        self._ext: dict[str, str] | None = None
        self._send = send
        self._template = template

    @property
    def ext_fields(self) -> dict[str, str] | None:
        """The header's values by wire name; once read, they are the ones that are sent."""
        if self._ext is None:
            send, ext = self._send, self._template.example.to_ext_v2()
            ext["f"] = str(send.sys_flag)
            ext["g"] = str(send.born_timestamp)
            ext["h"] = str(send.flag)
            ext["i"] = send.properties
            self._ext = ext
        return self._ext

    @ext_fields.setter
    def ext_fields(self, ext: dict[str, str] | None) -> None:
        self._ext = {} if ext is None else ext

    def frame(self) -> bytes:
        """Return the frame: by the template unless the ext map was read; raises as any command."""
        if self._ext is not None or self.serialize_type is not _JSON:
            return super().frame()
        send, body = self._send, self.body
        header = self._template.text % (
            send.sys_flag, send.born_timestamp, send.flag, plain_json.dumps(send.properties),
            self.flag, self.opaque,
        )  # fmt: skip
        size = len(header)
        length = 4 + size + len(body)
        if length > _LENGTH_MAX:
            return super().frame()  # which says no
        return b"".join((_PREFIX.pack(length, size), header, body))


# --- answers by their places ----------------------------------------------------------------------

_VALUES: Final = {
    "queueId": rb"([0-9]{1,9})",
    "queueOffset": rb"([0-9]{1,18})",
    "msgId": rb"([0-9A-Fa-f,]+)",
    "transactionId": rb"([0-9A-Fa-f]+)",
}
_NAMES: Final = frozenset({*_VALUES, PROPERTY_MSG_REGION, PROPERTY_TRACE_ON})
_OPAQUE: Final = re.compile(rb'"opaque":([0-9]{1,10})')
_unpack_prefix: Final = _PREFIX.unpack_from


class StoredAnswer(RemotingCommand):
    """The usual answer to a send: stored as wished. Its ext map is made on first use."""

    __slots__ = ("_ext", "_form", "_values")

    def __init__(self, form: _Form, opaque: int, values: tuple[bytes, bytes, bytes, bytes]) -> None:
        # Without the base's initialiser: an answer is read for every message.
        self.code = 0
        self.opaque = opaque
        self.flag = FLAG_RESPONSE
        self.language: int = form.language
        self.version: int = form.version
        self.remark: str | None = None
        self.body: bytes | memoryview = b""
        self.serialize_type = _JSON
        self._ext: dict[str, str] | None = None  # once read it may have been changed
        self._form = form
        self._values = values

    @property
    def ext_fields(self) -> dict[str, str] | None:
        """The header's values by wire name."""
        if self._ext is None:
            self._ext = self._form.ext(self._values)
        return self._ext

    @ext_fields.setter
    def ext_fields(self, ext: dict[str, str] | None) -> None:
        self._ext = {} if ext is None else ext


class _Form:
    """The form of the answer by which one broker says that a message is stored.

    Args:
        pattern: of the header, with a group for each value that differs.
        groups: numbers of the groups of opaque id, queue id, queue offset, message id and
            transaction id; the last is that of the message id where there is none.
        example: an answer of this form.
    """

    __slots__ = (
        "_example", "_groups", "_match", "language", "names_transactions", "region_id", "trace_on",
        "version",
    )  # fmt: skip

    language: int
    version: int

    def __init__(
        self, pattern: bytes, groups: tuple[int, int, int, int, int], example: RemotingCommand
    ) -> None:
        self._match = re.compile(rb".{8}" + pattern, re.DOTALL).match
        self._groups = groups
        self._example = example.ext_fields or {}
        self.names_transactions: bool = groups[4] != groups[3]
        self.language, self.version = example.language, example.version
        self.region_id: str = self._example.get(PROPERTY_MSG_REGION) or DEFAULT_REGION
        self.trace_on: bool = self._example.get(PROPERTY_TRACE_ON) != "false"

    def read(self, data: bytes | bytearray, at: int) -> tuple[int, StoredAnswer] | None:
        """Read the frame that begins at ``at``; return its end and the answer.

        None where it is incomplete, or in any doubt.
        """
        found = self._match(data, at)
        if found is None:
            return None
        end = found.end()
        length, word = _unpack_prefix(data, at)
        if length != end - at - 4 or word != length - 4:
            return None
        opaque, queue_id, offset, msg_id, transaction_id = found.group(*self._groups)
        number = int(opaque)
        if number > 0x7FFF_FFFF:
            return None
        return end, StoredAnswer(self, number, (queue_id, offset, msg_id, transaction_id))

    def ext(self, values: tuple[bytes, bytes, bytes, bytes]) -> dict[str, str]:
        """Return the ext map of an answer with these values."""
        changed = {
            name: value.decode()
            for name, value in zip(_VALUE_NAMES, values, strict=True)
            if name in self._example
        }
        return {**self._example, **changed}


_VALUE_NAMES: Final = ("queueId", "queueOffset", "msgId", "transactionId")


def _learn(frame: bytes, answer: RemotingCommand) -> _Form | None:
    """Return the form of an answer that says only that a message is stored.

    Args:
        frame: the whole frame.
        answer: the same frame, read the general way.
    """
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
    message_id = order["msgId"]
    groups = (
        order["opaque"], order["queueId"], order["queueOffset"], message_id,
        order.get("transactionId", message_id),
    )  # fmt: skip
    form = _Form(pattern + re.escape(header[done:]), groups, answer)
    read = form.read(frame, 0)
    if read is None or read[0] != len(frame) or read[1].opaque != answer.opaque:
        return None
    return form if read[1].ext_fields == answer.ext_fields else None


def _is_usual(answer: RemotingCommand, frame_bytes: int) -> bool:
    """Whether an answer says that a message is stored, and nothing else."""
    if type(answer) is not RemotingCommand:  # its body was dropped
        return False
    if answer.code or answer.flag != FLAG_RESPONSE or answer.body or answer.remark is not None:
        return False
    ext = answer.ext_fields
    return (
        ext is not None
        and "queueOffset" in ext
        and frame_bytes <= ANSWER_BYTES_MAX
        and answer.serialize_type is _JSON
        and _NAMES.issuperset(ext)
    )


class AnswerReader:
    """Reads the frames of one server; of its usual answers to sends it learns the form.

    Attributes:
        form: the form learnt last; None before.
    """

    __slots__ = ("_left", "form")

    def __init__(self) -> None:
        self.form: _Form | None = None
        self._left = _FORMS_MAX

    def decode(self, data: bytearray, begin: int, end: int) -> RemotingCommand:
        """Read the whole frame between two positions of a buffer.

        Raises:
            MalformedFrameError: as ``decode_frame_within``.
        """
        form = self.form
        if form is not None and (found := form.read(data, begin)) is not None and found[0] == end:
            return found[1]
        answer = decode_frame_within(data, begin + 4, end)
        self.learn(data, begin, end, answer)
        return answer

    def learn(self, data: bytes | bytearray, begin: int, end: int, answer: RemotingCommand) -> None:
        """Take in how a frame that was read the general way says what it says."""
        if self._left and _is_usual(answer, end - begin):
            self._left -= 1
            self.form = _learn(bytes(data[begin:end]), answer) or self.form


class AnswerDecoder(FrameDecoder):
    """Makes commands of the bytes that one server sends."""

    __slots__ = ("_reader",)

    def __init__(self, frame_bytes_max: int, header_bytes_max: int, body_bytes_max: int) -> None:
        super().__init__(frame_bytes_max, header_bytes_max, body_bytes_max)
        self._reader = AnswerReader()

    def next(self) -> RemotingCommand | None:
        """Return the next complete command; raises as ``FrameDecoder.next``."""
        data, at, form = self._data, self._position, self._reader.form
        if form is not None and self._oversized is None:
            found = form.read(data, at)
            if found is not None:
                self._position, answer = found
                return answer
        command = super().next()
        if command is not None:
            self._reader.learn(data, at, self._position, command)
        return command
