"""Descriptor sets as protoc makes them, put together without it."""

from __future__ import annotations

from typing import Any

from google.protobuf import (
    any_pb2,
    descriptor_pb2,
    descriptor_pool,
    duration_pb2,
    empty_pb2,
    message_factory,
    struct_pb2,
    timestamp_pb2,
    wrappers_pb2,
)

_FIELD = descriptor_pb2.FieldDescriptorProto
_MODULES = (any_pb2, duration_pb2, empty_pb2, struct_pb2, timestamp_pb2, wrappers_pb2)


def field(
    name: str,
    kind: str,
    number: int,
    *,
    of: str = "",
    repeated: bool = False,
    required: bool = False,
) -> Any:
    """A field; ``of`` is the full name of its message or enum, with a dot before it."""
    label = "REPEATED" if repeated else "REQUIRED" if required else "OPTIONAL"
    return _FIELD(
        name=name,
        number=number,
        type=_FIELD.Type.Value(f"TYPE_{kind}"),
        label=_FIELD.Label.Value(f"LABEL_{label}"),
        type_name=of or None,
    )


def nested(name: str, *fields: Any) -> Any:
    """A message."""
    return descriptor_pb2.DescriptorProto(name=name, field=fields)


def file_of(name: str, messages: Any, syntax: str) -> Any:
    """A file of package ``shop`` that imports all well-known types."""
    found = messages if isinstance(messages, list) else [messages]
    return descriptor_pb2.FileDescriptorProto(
        name=name,
        package="shop",
        syntax=syntax,
        message_type=found,
        dependency=[m.DESCRIPTOR.name for m in _MODULES] if _needs(found) else [],
    )


def _needs(messages: list[Any]) -> bool:
    return any(f.type_name.startswith(".google.") for m in messages for f in m.field)


def descriptor_set(*files: Any) -> bytes:
    """The set of files, serialised."""
    return bytes(descriptor_pb2.FileDescriptorSet(file=files).SerializeToString())


def message_class(content: bytes, message: str) -> Any:
    """The class of a message of a set, to make bodies with."""
    pool = descriptor_pool.DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(content).file:
        pool.AddSerializedFile(file.SerializeToString())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(message))


def _file(module: Any) -> Any:
    found = descriptor_pb2.FileDescriptorProto()
    module.DESCRIPTOR.CopyToProto(found)
    return found


KNOWN = [_file(module) for module in _MODULES]
"""The files of the well-known types, as ``--include_imports`` adds them."""
