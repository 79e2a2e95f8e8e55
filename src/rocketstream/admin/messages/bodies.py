"""Bodies decoded: text, JSON, Avro, Protobuf or, otherwise, their bytes in hex.

Law: output is bounded, and a body that does not decode says so and why. Only the file of a schema
is read.
"""

from __future__ import annotations

import datetime
import decimal
import io
import json
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rocketstream import limits
from rocketstream.errors import ConfigurationError

FORMATS: Final = ("auto", "text", "json", "hex", "avro", "protobuf")
HIDDEN: Final = "hidden"
UNDECODABLE: Final = "undecodable"
_AVRO_SINGLE_OBJECT: Final = b"\xc3\x01"
_REGISTRY_HEADER_BYTES: Final = 5
_DESCRIPTOR_HOW: Final = "protoc --include_imports --descriptor_set_out=FILE YOUR.proto"

Decoder = Callable[[bytes], Any]


@dataclass(frozen=True, slots=True)
class DecodedBody:
    """A body as it is shown.

    Attributes:
        kind: ``text``, ``json``, ``avro``, ``protobuf``, ``hex``; ``undecodable`` for a body that
            is not of the given format (then ``text`` is hex); ``hidden`` for a body that masking
            withholds (then ``text`` is empty).
        text: the text to show, cut after a bound: ``json`` as it was sent, ``avro`` and
            ``protobuf`` as JSON.
        size: bytes of the whole body, unpacked where it was compressed.
        value: the parsed value of ``json``, ``avro`` and ``protobuf``, whole; else None.
        is_cut: whether ``text`` is only the beginning.
        problem: why the body is hidden or cannot be decoded; else None.
        is_hex: whether ``text`` is bytes in hex, separated by blanks.
        characters: the length of the whole text; 0 for hex, where ``size`` is the length.
    """

    kind: str
    text: str
    size: int
    value: Any = None
    is_cut: bool = False
    problem: str | None = None
    is_hex: bool = False
    characters: int = 0

    def part(self, most: int = limits.SHOWN_BODY_CHARS_MAX) -> str | None:
        """Return how much is shown of how much, in words; None where all of it is shown.

        Args:
            most: how many characters of ``text`` are shown.
        """
        shown = min(len(self.text), most)
        if not self.is_cut and shown == len(self.text):
            return None
        if self.is_hex:
            return f"the first {(shown + 1) // 3:,} of {self.size:,} bytes"
        return f"the first {shown:,} of {max(self.characters, len(self.text)):,} characters"


class BodyFormat:
    """How bodies are read; make one with ``auto`` or ``parse``.

    Args:
        name: one of ``FORMATS``.
        decoder: the decoder of ``avro`` or ``protobuf``; None for the others.
    """

    def __init__(self, name: str = "auto", decoder: Decoder | None = None) -> None:
        self.name = name
        self._decoder = decoder

    @classmethod
    def parse(
        cls, name: str | None, schema: str | None = None, message: str | None = None
    ) -> BodyFormat:
        """Return a format by its name.

        Args:
            name: one of ``FORMATS``; None is ``auto``, or with a schema the format of its file:
                ``avro`` if the name ends in ``.avsc``, ``protobuf`` otherwise.
            schema: path of an Avro schema (``.avsc``) or of a Protobuf descriptor set.
            message: the full name of the Protobuf message in the bodies.

        Raises:
            ConfigurationError: an unknown name, a schema missing or one that cannot be used, or
                the library for it is not installed.
        """
        if name is None:
            is_avro = schema is not None and schema.endswith(".avsc")
            name = "auto" if schema is None else "avro" if is_avro else "protobuf"
        if name not in FORMATS:
            raise ConfigurationError(
                f"body format {name!r} is not known; accepted are {', '.join(FORMATS)}", format=name
            )
        if name not in ("avro", "protobuf"):
            if schema is not None or message is not None:
                raise ConfigurationError(
                    f"body format {name} takes no schema; leave it out, or name avro or protobuf"
                )
            return cls(name)
        if name == "avro":
            if message is not None:
                raise ConfigurationError("a message name is for protobuf; leave it out for avro")
            return cls(name, _avro_decoder(schema))
        return cls(name, _protobuf_decoder(schema, message))

    def decode(self, body: bytes, most: int = limits.SHOWN_BODY_CHARS_MAX) -> DecodedBody:
        """Return the decoded body; never raises, for any bytes.

        Args:
            body: the uncompressed body.
            most: how many characters to show, from 0.
        """
        if self._decoder is not None:
            return self._decoded(body, most)
        if self.name == "hex":
            return _hex(body, most)
        text = _text(body)
        if text is None:
            if self.name == "auto":
                return _hex(body, most)
            return _hex(body, most, UNDECODABLE, "it is not UTF-8 text")
        if self.name != "text":
            value = parse_json(text, names_once=True)
            if value is not NO_JSON and (self.name == "json" or isinstance(value, dict | list)):
                return _cut("json", text, len(body), most, value)
            if self.name == "json":
                return _cut(UNDECODABLE, text, len(body), most, None, "it is not JSON")
        if self.name == "auto" and not _is_printable(text):
            return _hex(body, most)
        return _cut("text", text, len(body), most)

    def _decoded(self, body: bytes, most: int) -> DecodedBody:
        assert self._decoder is not None
        try:
            value = self._decoder(body)
            text = to_json(value)
        except RecursionError:
            return _hex(body, most, UNDECODABLE, "it is nested too deeply")
        except Exception as error:  # the libraries raise errors of any type
            why = " ".join(str(error).split())[:200] or type(error).__name__
            return _hex(
                body, most, UNDECODABLE, f"it is not a value of the {self.name} schema: {why}"
            )
        return _cut(self.name, text, len(body), most, value)


AUTO: Final = BodyFormat()


def decode_body(
    body: bytes, how: BodyFormat = AUTO, most: int = limits.SHOWN_BODY_CHARS_MAX
) -> DecodedBody:
    """Return the decoded body; see ``BodyFormat.decode``."""
    return how.decode(body, most)


def undecodable(stored: bytes, why: str, most: int = limits.SHOWN_BODY_CHARS_MAX) -> DecodedBody:
    """Return a body that could not even be uncompressed; ``stored`` holds its bytes as stored."""
    return _hex(stored, most, UNDECODABLE, why)


def hidden(size: int, why: str) -> DecodedBody:
    """Return a body of which nothing is shown."""
    return DecodedBody(HIDDEN, "", size, problem=why)


# --- JSON -----------------------------------------------------------------------------------------

NO_JSON: Final = object()
"""The value ``parse_json`` returns for a text that is not JSON."""


def parse_json(text: str, *, names_once: bool = False) -> Any:
    """Return the value of a JSON text; ``NO_JSON`` if it is not JSON.

    Args:
        text: what may be JSON.
        names_once: refuse an object that has a name twice: its value would lack what its text has.
    """
    hook = _once if names_once else None
    try:
        return json.loads(text, parse_constant=_no_constant, object_pairs_hook=hook)
    except (ValueError, RecursionError):
        return NO_JSON


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name stands twice")
    return found


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def to_json(value: Any) -> str:
    """Return a decoded value as JSON text; bytes as hex, times in ISO 8601."""
    return json.dumps(value, ensure_ascii=False, default=_plain)


def _plain(value: Any) -> Any:
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value).hex()
    if isinstance(value, datetime.datetime | datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, decimal.Decimal | uuid.UUID | datetime.timedelta):
        return str(value)
    raise TypeError(f"a {type(value).__name__} cannot be shown")


# --- text and bytes -------------------------------------------------------------------------------


def _text(body: bytes) -> str | None:
    try:
        return body.decode()
    except UnicodeDecodeError:
        return None


def _is_printable(text: str) -> bool:
    return all(c.isprintable() or c in "\t\r\n" for c in text)


def _cut(
    kind: str, text: str, size: int, most: int, value: Any = None, problem: str | None = None
) -> DecodedBody:
    is_cut = len(text) > most
    return DecodedBody(kind, text[:most], size, value, is_cut, problem, characters=len(text))


def _hex(body: bytes, most: int, kind: str = "hex", problem: str | None = None) -> DecodedBody:
    shown = body[: max(most // 3, 0)]
    is_cut = len(shown) < len(body)
    return DecodedBody(kind, shown.hex(" "), len(body), None, is_cut, problem, is_hex=True)


# --- with a schema --------------------------------------------------------------------------------


def _content(path: str | None, what: str) -> bytes:
    if path is None:
        raise ConfigurationError(f"body format {what}: name its file")
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise ConfigurationError(
            f"schema {path!r} cannot be read: {error.strerror}", path=path
        ) from error


def _avro_decoder(path: str | None) -> Decoder:
    content = _content(path, "avro needs a schema (.avsc)")
    try:
        import fastavro
    except ImportError:
        raise ConfigurationError(
            "Avro bodies need fastavro: pip install 'rocketstream[avro]'"
        ) from None
    try:
        tree = json.loads(content)
        _refuse_endless(tree)
        schema = fastavro.parse_schema(tree)
    except ConfigurationError:
        raise
    except Exception as error:  # fastavro raises KeyError and others beside its own errors
        raise ConfigurationError(
            f"{path!r} is not an Avro schema: {type(error).__name__}: {error}", path=path
        ) from error

    def value_of(data: bytes) -> Any:
        stream = io.BytesIO(data)
        value = fastavro.schemaless_reader(stream, schema, None)
        if stream.tell() != len(data):
            raise ValueError(f"{len(data) - stream.tell()} bytes are left over")
        return value

    def decode(body: bytes) -> Any:
        if body.startswith(_AVRO_SINGLE_OBJECT):
            return value_of(body[10:])
        try:
            return value_of(body)
        except Exception:
            # As serializers of a schema registry write it: a zero and the schema's number first.
            if body[:1] == b"\0" and len(body) > _REGISTRY_HEADER_BYTES:
                return value_of(body[_REGISTRY_HEADER_BYTES:])
            raise

    return decode


def _refuse_endless(tree: Any) -> None:
    """Refuse arrays whose items take no bytes: a few bytes of a body could then hold a trillion."""
    if isinstance(tree, list):
        for each in tree:
            _refuse_endless(each)
    if not isinstance(tree, Mapping):
        return
    items = tree.get("items") if tree.get("type") == "array" else None
    if items == "null" or (isinstance(items, Mapping) and _is_empty(items)):
        raise ConfigurationError("an Avro array of values that take no bytes is not decoded")
    for each in tree.values():
        _refuse_endless(each)


def _is_empty(schema: Mapping[str, Any]) -> bool:
    kind = schema.get("type")
    if kind == "record":
        return all(field.get("type") == "null" for field in schema.get("fields", ()))
    return kind == "null" or (kind == "fixed" and schema.get("size") == 0)


def _protobuf_decoder(path: str | None, message: str | None) -> Decoder:
    content = _content(path, f"protobuf needs a descriptor set ({_DESCRIPTOR_HOW})")
    try:
        from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory
    except ImportError:
        raise ConfigurationError(
            "Protobuf bodies need protobuf: pip install 'rocketstream[protobuf]'"
        ) from None
    pool = descriptor_pool.DescriptorPool()
    known: list[str] = []
    try:
        for file in descriptor_pb2.FileDescriptorSet.FromString(content).file:
            pool.AddSerializedFile(file.SerializeToString())
            prefix = f"{file.package}." if file.package else ""
            known += [prefix + each.name for each in file.message_type]
        if not known:
            raise ValueError("it holds no message")
    except Exception as error:  # protobuf raises errors of several kinds for bytes that are none
        raise ConfigurationError(
            f"{path!r} is not a Protobuf descriptor set ({error}); make one with {_DESCRIPTOR_HOW}",
            path=path,
        ) from error
    try:
        kind = message_factory.GetMessageClass(pool.FindMessageTypeByName(message or ""))
    except KeyError:
        said = "no message is named" if message is None else f"message {message!r} is not there"
        raise ConfigurationError(
            f"{said}; {path!r} has {', '.join(known[:20])}", message_name=message
        ) from None

    def decode(body: bytes) -> Any:
        found = kind.FromString(body)
        found.DiscardUnknownFields()
        if body and not found.ByteSize():
            # Nearly any bytes can be read as a message of unknown fields.
            raise ValueError("it has none of the message's fields")
        return json_format.MessageToDict(
            found, preserving_proto_field_name=True, descriptor_pool=pool
        )

    return decode
