"""Protobuf bodies: a message of a descriptor set as columns, and bodies as rows of them.

Law: the module travels to Spark's workers, so it imports all it needs at its head; it is itself
imported only where bodies are Protobuf.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory
from google.protobuf.message import DecodeError

from rocketstream.errors import ConfigurationError

_HOW: Final = "protoc --include_imports --descriptor_set_out=FILE YOUR.proto"
_UNDECODABLE: Final = (DecodeError, json_format.Error, ValueError, TypeError, OverflowError)
"""Errors for bytes that are not such a message; ValueError: text that is not UTF-8.
"""


@dataclass(frozen=True, slots=True)
class _Kind:
    """A type as Spark and as Arrow name it, and how a value of Protobuf is converted to it."""

    ddl: str
    arrow: pa.DataType
    value: Callable[[Any], Any]


def _same(value: Any) -> Any:
    return value


_SCALARS: Final[Mapping[str, _Kind]] = {
    "DOUBLE": _Kind("DOUBLE", pa.float64(), _same),
    "FLOAT": _Kind("FLOAT", pa.float32(), _same),
    "INT32": _Kind("INT", pa.int32(), _same),
    "INT64": _Kind("BIGINT", pa.int64(), _same),
    "UINT32": _Kind("BIGINT", pa.int64(), _same),
    "UINT64": _Kind("DECIMAL(20,0)", pa.decimal128(20, 0), Decimal),
    "BOOL": _Kind("BOOLEAN", pa.bool_(), _same),
    "STRING": _Kind("STRING", pa.string(), _same),
    "BYTES": _Kind("BINARY", pa.binary(), _same),
}
_SAME_AS: Final = {
    "SINT32": "INT32", "SFIXED32": "INT32", "SINT64": "INT64", "SFIXED64": "INT64",
    "FIXED32": "UINT32", "FIXED64": "UINT64",
}  # fmt: skip
_WRAPPERS: Final = {
    f"google.protobuf.{name}Value": name.upper()
    for name in ("Double", "Float", "Int32", "Int64", "UInt32", "UInt64", "Bool", "String", "Bytes")
}
_AS_JSON: Final = frozenset(
    f"google.protobuf.{name}" for name in ("Any", "Struct", "Value", "ListValue", "FieldMask")
)
_TIMESTAMP_SECONDS: Final = range(-62_135_596_800, 253_402_300_800)
_DURATION_SECONDS: Final = range(-315_576_000_000, 315_576_000_001)
"""As ``timestamp.proto`` and ``duration.proto`` have them: years 1 to 9999, and 10,000 years.
Greater ones, such as nanoseconds in the place of seconds, may not fit a column.
"""
_FIELD: Final = descriptor_pb2.FieldDescriptorProto
_TYPE_NAMES: Final = {number: name[5:] for name, number in _FIELD.Type.items()}


def read_descriptor(path: str, message: str | None) -> tuple[bytes, str]:
    """Return the content of a descriptor set and the columns of one of its messages.

    Parameters
    ----------
    path : str
        A file written by ``protoc``, with everything the message refers to.
    message : str or None
        Full name of the message, like ``shop.Order``.

    Returns
    -------
    bytes, str
        The set, and the columns as Spark DDL.

    Raises
    ------
    ConfigurationError
        The file does not exist or is not a descriptor set, the message is not in it, or the message
        has no columns.
    """
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise ConfigurationError(
            f"descriptor {path!r} cannot be read: {error.strerror}; make it with {_HOW}", path=path
        ) from error
    return content, columns(content, message, path)


def columns(content: bytes, message: str | None, source: str = "descriptor") -> str:
    """Return the columns of a message as Spark DDL.

    Raises
    ------
    ConfigurationError
        See :func:`read_descriptor`.
    """
    try:
        files = descriptor_pb2.FileDescriptorSet.FromString(content).file
    except DecodeError as error:
        files = []
        cause: Exception | None = error
    else:
        cause = None
    if not files:
        raise ConfigurationError(
            f"{source!r} is not a Protobuf descriptor set; make one with {_HOW}", path=source
        ) from cause
    known = sorted(_messages(files))
    if message not in known:
        given = "no message is named" if message is None else f"message {message!r} is not there"
        raise ConfigurationError(
            f"{given}; {source!r} has {', '.join(known) or 'none'}", message_name=message
        )
    try:
        kind = _message_kind(_pool(content).FindMessageTypeByName(message), ())
    except TypeError as error:
        raise ConfigurationError(
            f"{source!r} is not whole: {error}; make it with {_HOW}", path=source
        ) from error
    if not kind.ddl.startswith("STRUCT<"):
        raise ConfigurationError(
            f"message {message!r} has no fields that could be columns", message_name=message
        )
    return kind.ddl[len("STRUCT<") : -1]


def _messages(files: Any) -> Iterator[str]:
    for file in files:
        for message in file.message_type:
            yield from _nested(message, f"{file.package}." if file.package else "")


def _nested(message: Any, prefix: str) -> Iterator[str]:
    if message.options.map_entry:
        return
    yield prefix + message.name
    for inner in message.nested_type:
        yield from _nested(inner, f"{prefix}{message.name}.")


def _pool(content: bytes) -> Any:
    pool = descriptor_pool.DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(content).file:
        pool.AddSerializedFile(file.SerializeToString())
    return pool


def _message_kind(descriptor: Any, inside: tuple[str, ...]) -> _Kind:
    name = descriptor.full_name
    if name in inside:
        raise ConfigurationError(
            f"message {name!r} contains itself ({' → '.join((*inside, name))}), which columns "
            "cannot; land the bodies as text, or a message without the circle",
            message_name=name,
        )
    if name in _WRAPPERS:
        kind = _SCALARS[_WRAPPERS[name]]
        return _Kind(kind.ddl, kind.arrow, lambda message: kind.value(message.value))
    if name == "google.protobuf.Timestamp":
        return _Kind("TIMESTAMP", pa.timestamp("us", tz="UTC"), _timestamp)
    if name == "google.protobuf.Duration":
        return _Kind("INTERVAL DAY TO SECOND", pa.duration("us"), _duration)
    if name in _AS_JSON:
        as_json = functools.partial(
            json_format.MessageToJson, indent=None, descriptor_pool=descriptor.file.pool
        )
        return _Kind("STRING", pa.string(), as_json)
    if not descriptor.fields:
        return _Kind("BOOLEAN", pa.bool_(), lambda message: True)
    return _record_kind(descriptor, (*inside, name))


def _record_kind(descriptor: Any, inside: tuple[str, ...]) -> _Kind:
    fields = [(field, _field_kind(field, inside)) for field in descriptor.fields]
    parts = [(field.name, field.has_presence, kind.value) for field, kind in fields]

    def value(message: Any) -> dict[str, Any]:
        return {
            name: None if maybe and not message.HasField(name) else convert(getattr(message, name))
            for name, maybe, convert in parts
        }

    ddl = ", ".join(f"`{field.name}`: {kind.ddl}" for field, kind in fields)
    arrow = pa.struct([pa.field(field.name, kind.arrow) for field, kind in fields])
    return _Kind(f"STRUCT<{ddl}>", arrow, value)


def _field_kind(field: Any, inside: tuple[str, ...]) -> _Kind:
    inner = field.message_type
    if inner is not None and inner.GetOptions().map_entry:
        key = _single_kind(inner.fields_by_name["key"], inside)
        item = _single_kind(inner.fields_by_name["value"], inside)
        return _Kind(
            f"MAP<{key.ddl}, {item.ddl}>",
            pa.map_(key.arrow, item.arrow),
            lambda pairs: [(key.value(k), item.value(v)) for k, v in pairs.items()],
        )
    kind = _single_kind(field, inside)
    if not _repeated(field):
        return kind
    each = kind.value
    return _Kind(f"ARRAY<{kind.ddl}>", pa.list_(kind.arrow), lambda items: [each(i) for i in items])


def _repeated(field: Any) -> bool:
    # Newer releases of the package offer a property for this and warn when the label is used.
    found = getattr(field, "is_repeated", None)
    return bool(field.label == _FIELD.LABEL_REPEATED if found is None else found)


def _single_kind(field: Any, inside: tuple[str, ...]) -> _Kind:
    name = _TYPE_NAMES[field.type]
    if field.message_type is not None:
        return _message_kind(field.message_type, inside)
    if name == "ENUM":
        texts = {number: value.name for number, value in field.enum_type.values_by_number.items()}
        return _Kind("STRING", pa.string(), lambda number: texts.get(number, str(number)))
    return _SCALARS[_SAME_AS.get(name, name)]


def _timestamp(message: Any) -> int:
    return _micros(message, _TIMESTAMP_SECONDS)


def _duration(message: Any) -> int:
    return _micros(message, _DURATION_SECONDS)


def _micros(message: Any, allowed: range) -> int:
    if message.seconds not in allowed:
        raise ValueError(f"{message.seconds} seconds are out of range")
    return int(message.seconds * 1_000_000 + int(message.nanos / 1_000))


@functools.lru_cache(maxsize=8)
def _plan(content: bytes, message: str) -> tuple[Any, _Kind]:
    descriptor = _pool(content).FindMessageTypeByName(message)
    return message_factory.GetMessageClass(descriptor), _message_kind(descriptor, ())


def decode(content: bytes, message: str, bodies: list[bytes | None]) -> pa.Array:
    """Return bodies as records, null for each body that is not such a message.

    Parameters
    ----------
    content : bytes
        A descriptor set that :func:`columns` accepts for the message.
    message : str
        Full name of the message.
    bodies : list of bytes or None
        Serialised messages.
    """
    made, kind = _plan(content, message)
    return pa.array([_record(made, kind, body) for body in bodies], type=kind.arrow)


def _record(made: Any, kind: _Kind, body: bytes | None) -> Any:
    try:
        found = made.FromString(body)
        return kind.value(found) if found.IsInitialized() else None
    except _UNDECODABLE:
        return None


def batch_decoder(
    content: bytes, message: str, name: str
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return a function for ``mapInArrow`` that decodes ``body`` into one more column.

    Parameters
    ----------
    content : bytes
        As for :func:`decode`.
    message : str
        As for :func:`decode`.
    name : str
        Name of the column that is added: a record, null where the body did not decode.
    """

    def decode_batches(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            records = decode(content, message, batch.column("body").to_pylist())
            yield pa.RecordBatch.from_arrays(
                [*batch.columns, records], names=[*batch.schema.names, name]
            )

    return decode_batches
