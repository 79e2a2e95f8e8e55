"""The JSON dialect of fastjson 1.2: a lenient reader and an exact writer.

Pure: text and plain values; ``bodies`` has the meaning of a body.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from rocketstream.errors import LocalProtocolError, RemoteProtocolError
from rocketstream.limits import JSON_LENIENT_CHARS_MAX, JSON_VALUES_MAX
from rocketstream.model import MessageQueue
from rocketstream.protocol import plain_json

DEPTH_MAX: Final = 64
"""Nesting accepted and written; upstream's most deeply nested body has 6 levels."""

_SPACE = re.compile(r"[ \t\r\n\f\b]*")
_NUMBER = re.compile(r"-?\d+(\.\d+)?([eE][+-]?\d+)?")
_NAME = re.compile(r"[A-Za-z_$][A-Za-z0-9_$]*")
_PAIR = re.compile(
    r"""[ \t\r\n\f\b]*
    (?:"(?P<quoted>[^"\\]*)"|(?P<name>[A-Za-z_$][A-Za-z0-9_$]*)|(?P<number>-?[0-9]{1,18}))
    [ \t\r\n\f\b]*:[ \t\r\n\f\b]*
    (?:"(?P<text>[^"\\]*)"|(?P<integer>-?[0-9]{1,18}))
    [ \t\r\n\f\b]*(?:,|(?=\}))""",
    re.VERBOSE,
)
"""A name and a plain value, with the comma that follows; most texts consist of these."""
_INTEGERS = re.compile(r"(?:-?[0-9]{1,18},)+")
_COMMAS = re.compile(r"[, \t\r\n\f\b]*")
_PLAIN = {'"': re.compile(r'[^"\\]*'), "'": re.compile(r"[^'\\]*")}
_SURROGATE = re.compile("[\ud800-\udfff]")
_HEX4 = re.compile(r"[0-9a-fA-F]{4}")
_HEX2 = re.compile(r"[0-9a-fA-F]{2}")
_ESCAPES: Final = {
    '"': '"', "'": "'", "\\": "\\", "/": "/", "b": "\b", "f": "\f", "F": "\f", "n": "\n",
    "r": "\r", "t": "\t", "v": "\v", "0": "\0", "1": "\1", "2": "\2", "3": "\3", "4": "\4",
    "5": "\5", "6": "\6", "7": "\7",
}  # fmt: skip
_WORDS: Final = {
    "true": True, "false": False, "null": None, "NaN": None, "undefined": None,
}  # fmt: skip
_QUEUE_KEYS: Final = frozenset({"brokerName", "queueId", "topic"})


# --- reading ----------------------------------------------------------------------------------


def loads(
    data: bytes | str | memoryview,
    *,
    values_max: int = JSON_VALUES_MAX,
    lenient_chars_max: int = JSON_LENIENT_CHARS_MAX,
) -> Any:
    """Read standard JSON, or the forms that fastjson also accepts.

    Beyond JSON: bare and object map keys, single quotes, unquoted names, trailing commas. An object
    key that is a queue becomes a ``MessageQueue``, any other key a tuple of its items.

    Args:
        data: the text.
        values_max: commas, colons and brackets the text may have; they determine the cost of
            reading.
        lenient_chars_max: characters the text may have when it is not standard JSON.

    Raises:
        RemoteProtocolError: the text is neither, is nested deeper than ``DEPTH_MAX``, or exceeds a
            bound.
    """
    # There cannot be more values than bytes.
    if len(data) > values_max:
        _check_values(data, values_max)
    try:
        return plain_json.loads(data)
    except plain_json.JSONDecodeError as error:
        if len(data) > lenient_chars_max:
            raise RemoteProtocolError(
                f"not JSON ({error}), and too long to be read as fastjson's dialect of it:"
                f" {len(data)} characters, at most {lenient_chars_max}"
            ) from None
    if not isinstance(data, str):
        try:
            data = bytes(data).decode()
        except UnicodeDecodeError as error:
            raise RemoteProtocolError(f"JSON text is not UTF-8: {error}") from None
    return _Reader(data).document()


def _check_values(data: bytes | str | memoryview, values_max: int) -> None:
    """Refuse a text of too many values, a hundred times faster than reading it."""
    if isinstance(data, str):
        values = sum(map(data.count, ",:[{"))
    else:
        values = sum(map(bytes(data).count, (b",", b":", b"[", b"{")))
    if values > values_max:
        raise RemoteProtocolError(
            f"JSON of {len(data)} bytes with {values} values and names is over the maximum of"
            f" {values_max}",
            values=values,
            values_max=values_max,
        )


class _Reader:
    __slots__ = ("depth", "position", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self.position = self.depth = 0

    def document(self) -> Any:
        self.text = self.text.removeprefix("\ufeff")
        value = self.value()
        if self.peek():
            raise self.bad("text after the value")
        return value

    def bad(self, what: str) -> RemoteProtocolError:
        near = self.text[self.position : self.position + 20]
        return RemoteProtocolError(f"not JSON at character {self.position}: {what}, near {near!r}")

    def peek(self) -> str:
        match = _SPACE.match(self.text, self.position)
        if match:
            self.position = match.end()
        return self.text[self.position : self.position + 1]

    def value(self) -> Any:
        first = self.peek()
        if first == "{":
            return self.object()
        if first == "[":
            return self.array()
        if first in ('"', "'") and first:
            return self.string(first)
        if first == "-" or first.isdigit():
            return self.number()
        return self.word()

    def enter(self) -> None:
        self.depth += 1
        self.position += 1
        if self.depth > DEPTH_MAX:
            raise self.bad(f"nested deeper than {DEPTH_MAX}")

    def leave(self) -> None:
        self.depth -= 1
        self.position += 1

    def object(self) -> dict[Any, Any]:
        self.enter()
        items: dict[Any, Any] = {}
        self.pairs(items)
        while (first := self.peek()) != "}":
            if first == ",":
                self.commas()
                self.pairs(items)
                continue
            key = self.key(first)
            if self.peek() != ":":
                raise self.bad("expected ':'")
            self.position += 1
            items[key] = self.value()
            if self.peek() not in (",", "}"):
                raise self.bad("expected ',' or '}'")
        self.leave()
        return items

    def pairs(self, items: dict[Any, Any]) -> None:
        """Take the plain pairs that come next, all at once."""
        text, take = self.text, _PAIR.match
        while match := take(text, self.position):
            quoted, name, number, plain, integer = match.groups()
            key = int(number) if number is not None else name if quoted is None else quoted
            items[key] = int(integer) if plain is None else plain
            self.position = match.end()

    def commas(self) -> None:
        match = _COMMAS.match(self.text, self.position)
        if match:
            self.position = match.end()

    def key(self, first: str) -> Any:
        if first in ('"', "'") and first:
            return self.string(first)
        if first == "{":
            return _frozen(self.object())
        if first == "-" or first.isdigit():
            number = self.number()
            return number if isinstance(number, int) else str(number)
        match = _NAME.match(self.text, self.position)
        if not match:
            raise self.bad("expected a name")
        self.position = match.end()
        return match.group()

    def array(self) -> list[Any]:
        self.enter()
        items: list[Any] = []
        while (first := self.peek()) != "]":
            if first == ",":
                self.commas()
                continue
            run = _INTEGERS.match(self.text, self.position)
            if run:
                items += map(int, run.group()[:-1].split(","))
                self.position = run.end()
                continue
            items.append(self.value())
            if self.peek() not in (",", "]"):
                raise self.bad("expected ',' or ']'")
        self.leave()
        return items

    def number(self) -> int | float:
        match = _NUMBER.match(self.text, self.position)
        if not match or match.end() - match.start() > 400 or not match.group().isascii():
            raise self.bad("expected a number")
        self.position = match.end()
        if match.group(1) is None and match.group(2) is None:
            number = int(match.group())
            # fastjson's type suffix of a long.
            if self.text[self.position : self.position + 1] == "L":
                self.position += 1
            return number
        return float(match.group())

    def word(self) -> Any:
        match = _NAME.match(self.text, self.position)
        if not match or match.group() not in _WORDS:
            raise self.bad("expected a value")
        self.position = match.end()
        return _WORDS[match.group()]

    def string(self, quote: str) -> str:
        plain = _PLAIN[quote]
        parts: list[str] = []
        self.position += 1
        while True:
            match = plain.match(self.text, self.position)
            if match:
                parts.append(match.group())
                self.position = match.end()
            end = self.text[self.position : self.position + 1]
            if end == quote:
                self.position += 1
                return _joined(parts)
            if not end:
                raise self.bad("string without an end")
            parts.append(self.escape())

    def escape(self) -> str:
        kind = self.text[self.position + 1 : self.position + 2]
        if kind in _ESCAPES:
            self.position += 2
            return _ESCAPES[kind]
        pattern = {"u": _HEX4, "x": _HEX2}.get(kind)
        match = pattern.match(self.text, self.position + 2) if pattern else None
        if not match:
            raise self.bad("unknown escape")
        self.position = match.end()
        return chr(int(match.group(), 16))


def _joined(parts: list[str]) -> str:
    text = "".join(parts)
    if _SURROGATE.search(text):
        # Escapes name UTF-16 units: pairs become one character, halves become U+FFFD.
        text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def _frozen(value: Any) -> Any:
    if isinstance(value, dict):
        if value.keys() == _QUEUE_KEYS:
            queue = as_queue(value)
            if queue is not None:
                return queue
        return tuple((key, _frozen(item)) for key, item in value.items())
    if isinstance(value, list):
        return tuple(_frozen(item) for item in value)
    return value


def as_queue(value: Any) -> MessageQueue | None:
    """Return the queue that an object, or a string holding one, stands for; else None."""
    if isinstance(value, MessageQueue):
        return value
    if isinstance(value, str) and value.startswith("{"):
        try:
            value = loads(value)
        except RemoteProtocolError:
            return None
    if not isinstance(value, dict):
        return None
    topic, broker_name = value.get("topic"), value.get("brokerName")
    queue_id = value.get("queueId", 0)
    if isinstance(topic, str) and isinstance(broker_name, str) and type(queue_id) is int:
        return MessageQueue(topic, broker_name, queue_id)
    return None


# --- writing ----------------------------------------------------------------------------------

_LETTERS: Final = {"\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r"}
_SPECIAL = re.compile('["\\\\\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]')
_SPECIAL_STANDARD = re.compile('["\\\\/\x00-\x1f]|[^\x00-\x7e]')


def _escape(match: re.Match[str]) -> str:
    unit = match.group()
    if unit in '"\\/':
        return "\\" + unit
    if unit in _LETTERS:
        return _LETTERS[unit]
    code = ord(unit)
    if code > 0xFFFF:
        code -= 0x10000
        return f"\\u{0xD800 + (code >> 10):04X}\\u{0xDC00 + (code & 0x3FF):04X}"
    return f"\\u{code:04X}"


def dumps(value: Any, *, pretty: bool = False, standard: bool = False) -> str:
    """Write a value as fastjson does.

    Args:
        value: dicts (keys in the caller's order), lists, tuples, sets, strings, numbers, booleans,
            None.
        pretty: the form of the files under ``config/`` (tabs, maps with bare keys on one line).
        standard: quoted keys, sorted maps, ``/`` and everything outside ASCII escaped.

    Raises:
        LocalProtocolError: a value has another type, or is nested deeper than ``DEPTH_MAX``.
    """
    parts: list[str] = []
    _Writer(parts, pretty, standard).value(value, 0)
    return "".join(parts)


class _Writer:
    __slots__ = ("parts", "pretty", "special", "standard")

    def __init__(self, parts: list[str], pretty: bool, standard: bool) -> None:
        self.parts = parts
        self.pretty = pretty
        self.standard = standard
        self.special = _SPECIAL_STANDARD if standard else _SPECIAL

    def line(self, depth: int) -> None:
        if self.pretty:
            self.parts.append("\n" + "\t" * depth)

    def value(self, value: Any, depth: int) -> None:
        kind = type(value)  # the usual kinds first: to ask of a protocol takes long
        if kind is int:
            self.parts.append(str(value))
        elif kind is dict:
            self.object(value, depth)
        elif isinstance(value, str):
            self.parts.append(self.quoted(value))
        elif isinstance(value, MessageQueue):
            self.object(_queue_object(value), depth)
        elif isinstance(value, Mapping):
            self.object(value, depth)
        elif isinstance(value, list):
            self.array(value, depth, self.pretty)
        elif isinstance(value, tuple):
            # fastjson indents lists, but not arrays and other collections.
            self.array(value, depth, False)
        elif isinstance(value, (set, frozenset)):
            self.array(sorted(value), depth, False)
        else:
            self.parts.append(_scalar(value))

    def quoted(self, text: str) -> str:
        return f'"{self.special.sub(_escape, text)}"'

    def object(self, value: Mapping[Any, Any], depth: int) -> None:
        _check_depth(depth)
        self.parts.append("{")
        keys: Iterable[Any] = sorted(value) if self.standard else value
        for number, key in enumerate(keys):
            if number:
                self.parts.append(",")
            self.key(key, depth + 1)
            self.parts.append(":")
            self.value(value[key], depth + 1)
        if value:
            self.line(depth)
        self.parts.append("}")

    def key(self, key: Any, depth: int) -> None:
        if isinstance(key, str):
            self.line(depth)
            self.parts.append(self.quoted(key))
        elif self.standard:
            self.parts.append(self.quoted(dumps(key)))
        else:
            # Bare numbers and inlined beans stay on the line (MapSerializer of fastjson).
            self.value(key, depth)

    def array(self, items: Iterable[Any], depth: int, lines: bool) -> None:
        _check_depth(depth)
        self.parts.append("[")
        empty = True
        for item in items:
            if not empty:
                self.parts.append(",")
            empty = False
            if lines:
                self.line(depth + 1)
            self.value(item, depth + 1)
        if lines and not empty:
            self.line(depth)
        self.parts.append("]")


def _queue_object(queue: MessageQueue) -> dict[str, Any]:
    return {"brokerName": queue.broker_name, "queueId": queue.queue_id, "topic": queue.topic}


def _check_depth(depth: int) -> None:
    if depth > DEPTH_MAX:
        raise LocalProtocolError(f"JSON nested deeper than {DEPTH_MAX} is not written")


def _scalar(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return int.__repr__(value)
    if isinstance(value, float):
        return java_double(value)
    raise LocalProtocolError(f"a {type(value).__name__} cannot be written as JSON")


def java_double(value: float) -> str:
    """Return a double as Java's ``Double.toString`` does; ``null`` when it is not finite.

    >>> java_double(1e10)
    '1.0E10'
    """
    if not math.isfinite(value):
        return "null"
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        return repr(value)
    # The fewest digits that tell it from its neighbours; seventeen always do.
    precision = next(each for each in range(1, 17) if float(f"{value:.{each}e}") == value)
    mantissa, _, exponent = f"{value:.{precision}e}".partition("e")
    return f"{mantissa}E{int(exponent)}"
