"""The ext map of a header class in a frame, and its reader.

Pure: the generic way, driven by annotations; frequent headers override it by hand.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Self, TypeAlias, TypeVar, dataclass_transform

from rocketstream.errors import LocalProtocolError, RemoteProtocolError

Long: TypeAlias = int
"""A 64-bit number; plain ``int`` in a header is a 32-bit one."""

T = TypeVar("T", bound="type[Header]")


def parse_int(text: str) -> int:
    """Read a Java int.

    Raises:
        ValueError: the text is not a number, or does not fit in 32 bits.
    """
    value = int(text)
    if -0x8000_0000 <= value <= 0x7FFF_FFFF:
        return value
    raise ValueError("out of 32 bits")


def parse_long(text: str) -> int:
    """Read a Java long.

    Raises:
        ValueError: the text is not a number, or does not fit in 64 bits.
    """
    value = int(text)
    if -0x8000_0000_0000_0000 <= value <= 0x7FFF_FFFF_FFFF_FFFF:
        return value
    raise ValueError("out of 64 bits")


def parse_bool(text: str) -> bool:
    """Read a Java boolean: anything but ``true`` in any case is false."""
    return text.lower() == "true"


_PARSERS: dict[str, Callable[[str], Any]] = {
    "str": str,
    "int": parse_int,
    "Long": parse_long,
    "bool": parse_bool,
    "float": float,
}


@dataclasses.dataclass(slots=True, frozen=True)
class HeaderField:
    """One field: attribute, wire name, reader, whether it is required, and its default."""

    name: str
    wire: str
    parse: Callable[[str], Any]
    required: bool
    default: Any


class Header:
    """Base of all headers; see ``header`` for how a class declares its fields."""

    __slots__ = ()
    header_fields: ClassVar[tuple[HeaderField, ...]] = ()

    def to_ext(self) -> dict[str, str]:
        """Return the ext map; fields that are None are left out."""
        ext: dict[str, str] = {}
        for field in self.header_fields:
            value = getattr(self, field.name)
            if value is None:
                if field.required:
                    raise LocalProtocolError(f"{type(self).__name__}.{field.name} must be set")
            elif value is True:
                ext[field.wire] = "true"
            elif value is False:
                ext[field.wire] = "false"
            else:
                ext[field.wire] = str(value)
        return ext

    @classmethod
    def from_ext(cls, ext: Mapping[str, str]) -> Self:
        """Read an ext map; unknown keys are ignored.

        Raises:
            RemoteProtocolError: a required field is missing, or a number cannot be read.
        """
        values: list[Any] = []
        for field in cls.header_fields:
            text = ext.get(field.wire)
            if text is None:
                if field.required:
                    raise missing_field(cls, field.wire)
                values.append(field.default)
                continue
            try:
                values.append(field.parse(text))
            except ValueError:
                raise bad_field(cls, field.wire, text) from None
        return cls(*values)


def missing_field(cls: type[Header], wire: str) -> RemoteProtocolError:
    """Return the error for a required field that is missing."""
    return RemoteProtocolError(f"{cls.__name__}: field {wire} is missing", field=wire)


def bad_field(cls: type[Header], wire: str, text: str) -> RemoteProtocolError:
    """Return the error for a field whose text is not a number of its size."""
    return RemoteProtocolError(
        f"{cls.__name__}: field {wire} is not a number of its size: {text!r:.80}", field=wire
    )


def unreadable(cls: type[Header], ext: Mapping[str, str], error: Exception) -> RemoteProtocolError:
    """Return the error that names the field a hand-written reader failed on with ``error``."""
    for field in cls.header_fields:
        text = ext.get(field.wire)
        if text is None:
            if field.required:
                return missing_field(cls, field.wire)
            continue
        try:
            field.parse(text)
        except ValueError:
            return bad_field(cls, field.wire, text)
    return RemoteProtocolError(f"{cls.__name__} cannot be read: {error}")


def wire_name(name: str) -> str:
    """Return the camelCase name of a snake_case field."""
    head, *rest = name.split("_")
    return head + "".join(part.capitalize() for part in rest)


def _header_fields(cls: Any, wire_names: Mapping[str, str]) -> tuple[HeaderField, ...]:
    return tuple(
        HeaderField(
            field.name,
            wire_names.get(field.name, wire_name(field.name)),
            _PARSERS[str(field.type).partition(" ")[0]],
            field.default is dataclasses.MISSING,
            None if field.default is dataclasses.MISSING else field.default,
        )
        for field in dataclasses.fields(cls)
    )


@dataclass_transform()
def header(**wire_names: str) -> Callable[[T], T]:
    """Make a header class from annotated fields.

    Types are ``str``, ``int`` (32 bit), ``Long``, ``bool``, ``float``, each possibly ``| None``. A
    field without default is required on the wire. Wire names are the camelCase of the field names
    unless given.
    """

    def make(cls: T) -> T:
        made: Any = dataclasses.dataclass(slots=True)(cls)
        made.header_fields = _header_fields(made, wire_names)
        return made  # type: ignore[no-any-return]

    return make
