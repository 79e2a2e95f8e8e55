"""The JSON of a body class, as fastjson writes it, and its reader.

Pure: the generic way, driven by annotations and coders; in a frame unknown names are ignored and
missing ones keep their defaults, a file must say everything.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Generator, Mapping
from typing import Any, ClassVar, NamedTuple, Self, TypeVar, dataclass_transform

from rocketstream import limits
from rocketstream.errors import LocalProtocolError, RemoteProtocolError
from rocketstream.model import MessageQueue
from rocketstream.protocol import fastjson
from rocketstream.protocol.headers.base import wire_name

B = TypeVar("B", bound="type[Body]")
_ENTRIES_JOINED = 256
_MAY_LACK = frozenset({"dataVersion", "dead", "notifyConsumerIdsChangedEnable"})
"""Names that files of earlier versions, ours or Apache's, do not have."""


class Coder(NamedTuple):
    """How one kind of value is read from, and written to, plain JSON values."""

    read: Callable[[Any], Any]
    write: Callable[[Any], Any]


class BodyField(NamedTuple):
    """One field: attribute, wire name, the name normalised for loose comparison, coder."""

    name: str
    wire: str
    loose: str
    coder: Coder


class Body:
    """Base of all JSON bodies; see ``body`` for how a class declares its fields."""

    __slots__ = ()
    body_fields: ClassVar[tuple[BodyField, ...]] = ()

    def to_json(self) -> dict[str, Any]:
        """Return plain values in fastjson's order: names alphabetical, None left out."""
        values: dict[str, Any] = {}
        for field in self.body_fields:
            value = getattr(self, field.name)
            if value is not None:
                values[field.wire] = field.coder.write(value)
        return values

    @classmethod
    def from_json(cls, values: Any) -> Self:
        """Read plain values.

        Raises:
            RemoteProtocolError: the value is not an object, or a field has another type.
        """
        if not isinstance(values, Mapping):
            raise RemoteProtocolError(
                f"{cls.__name__}: expected an object, got {type(values).__name__}"
            )
        found: dict[str, Any] = {}
        loose: dict[str, Any] | None = None
        for field in cls.body_fields:
            value = values.get(field.wire)
            if value is None:
                if field.wire in values:
                    continue
                if loose is None:
                    loose = {_loose(name): item for name, item in values.items()}
                value = loose.get(field.loose)
                if value is None:
                    continue
            try:
                found[field.name] = field.coder.read(value)
            except (ValueError, TypeError, OverflowError) as error:
                raise RemoteProtocolError(
                    f"{cls.__name__}: field {field.wire}: {error}", field=field.wire
                ) from None
        return cls(**found)

    def encode(self, *, pretty: bool = False) -> bytes:
        """Return the JSON as fastjson writes it; ``pretty`` is the form of config files."""
        return fastjson.dumps(self.to_json(), pretty=pretty).encode()

    def encoding(self) -> Generator[None, None, list[bytes]]:
        """Do what ``encode`` does in steps of one entry of a table each.

        Returns the JSON in parts, to be sent one after another: joining the parts of a large table
        would be one long step. Freeing it would be another one, so its tables are empty afterwards.
        """
        parts: list[bytes] = []
        yield from self._write_into(parts)
        return parts

    def _write_into(self, parts: list[bytes]) -> Generator[None, None, None]:
        before = "{"
        for field in self.body_fields:
            value = getattr(self, field.name)
            if value is None:
                continue
            parts.append(f"{before}{fastjson.dumps(field.wire)}:".encode())
            before = ","
            if isinstance(value, (dict, list, set)):
                yield from _write_table(parts, value, field.coder)
            elif isinstance(value, Body):
                yield from value._write_into(parts)
            else:
                parts.append(fastjson.dumps(field.coder.write(value)).encode())
        parts.append(b"}" if before == "," else b"{}")

    @classmethod
    def decode(cls, data: bytes | str | memoryview) -> Self:
        """Read JSON.

        Raises:
            RemoteProtocolError: the data is not JSON, or a field has another type.
        """
        return cls.from_json(fastjson.loads(data))

    @classmethod
    def decode_file(cls, text: bytes | str) -> Self:
        """Read the text of a file, strictly: a damaged one must not pass for another table.

        Every name must be there, every value must be of its own type, and what was read must be
        what stands there. Names of later versions are ignored.

        Raises:
            RemoteProtocolError: the text says something else, or a value that cannot be.
        """
        # Bounds are for what peers send: a table may be as large as its owner lets it grow.
        values = fastjson.loads(text, values_max=len(text), lenient_chars_max=len(text))
        read = cls.from_json(values)
        problem = _unlike(values, read.to_json(), "text") or read.file_problem()
        if problem is not None:
            raise RemoteProtocolError(problem)
        return read

    def file_problem(self) -> str | None:
        """Return which value no file can hold; None when all can be."""
        return None

    @classmethod
    def decode_request(
        cls,
        data: bytes | memoryview,
        *,
        values_max: int = limits.REQUEST_JSON_VALUES_MAX,
        bytes_max: int = limits.REQUEST_JSON_BYTES_MAX,
    ) -> Self:
        """Read the JSON of a request, within bounds that keep the server responsive.

        Raises:
            RemoteProtocolError: the data is not JSON, exceeds a bound, or a field has another type.
        """
        return cls.from_json(request_json(data, values_max=values_max, bytes_max=bytes_max))


def _write_table(
    parts: list[bytes], value: dict[Any, Any] | list[Any] | set[Any], coder: Coder
) -> Generator[None, None, None]:
    """Write a table entry by entry: each as a table of its own, without its brackets.

    Some hundred texts are joined at a time. Each entry is released once it is written: freeing all
    at the end would be one long step.
    """
    left: list[Any]
    if isinstance(value, dict):
        left = [(key, one) for key, one in value.items()]
    else:
        left = sorted(value) if isinstance(value, set) else list(value)
    kind = dict if isinstance(value, dict) else set if isinstance(value, set) else list
    value.clear()
    left.reverse()
    before, last = "{}" if kind is dict else "[]"
    entries: list[str] = []
    while left:
        if text := fastjson.dumps(coder.write(kind((left.pop(),))))[1:-1]:
            entries.append(text)
        if len(entries) == _ENTRIES_JOINED:
            parts.append(f"{before}{','.join(entries)}".encode())
            before, entries = ",", []
        yield
    if entries or before != ",":
        parts.append(f"{before}{','.join(entries)}".encode())
    parts.append(last.encode())


def request_json(
    data: bytes | memoryview,
    *,
    values_max: int = limits.REQUEST_JSON_VALUES_MAX,
    bytes_max: int = limits.REQUEST_JSON_BYTES_MAX,
) -> Any:
    """Read the JSON of a request as plain values, as ``Body.decode_request`` does."""
    if len(data) > bytes_max:
        raise RemoteProtocolError(
            f"a JSON body of {len(data)} bytes is over the maximum of {bytes_max};"
            " send several requests"
        )
    return fastjson.loads(
        data,
        values_max=values_max,
        lenient_chars_max=limits.REQUEST_JSON_LENIENT_CHARS_MAX,
    )


def _loose(name: Any) -> str:
    # fastjson compares names without case, '_' and '-'.
    return str(name).lower().replace("_", "").replace("-", "")


def _unlike(given: Any, read: Any, place: str) -> str | None:
    """Return where a text differs from what was read of it; None when it does not."""
    if isinstance(read, Mapping):
        return _unlike_object(given, read, place)
    if isinstance(read, (list, tuple)):
        if not isinstance(given, list) or len(given) != len(read):
            return f"{place} is {given!r:.200}, not a list of its kind"
        pairs = zip(given, read, strict=True)
        return next((why for one, other in pairs if (why := _unlike(one, other, place))), None)
    if type(given) is not type(read) or given != read:
        return f"{place} is {given!r:.200}, not {_wanted(read)}"
    return None


def _unlike_object(given: Any, read: Mapping[Any, Any], place: str) -> str | None:
    if not isinstance(given, Mapping):
        return f"{place} is {given!r:.200}, not an object"
    # A text stays one, though it may look like a queue: clients choose topics and namespaces.
    found = {
        name if type(name) is str and name in read else _file_name(name): value
        for name, value in given.items()
    }
    if len(found) != len(given) or None in found or None in found.values():
        return f"{place} has a name twice, or one without a value"
    for name, value in read.items():
        key = name if type(name) is str else _file_name(name)
        if key in found:
            problem = _unlike(found[key], value, f"{place}/{name}")
            if problem is not None:
                return problem
        elif key not in _MAY_LACK:
            return f"{place} has no {name}"
    return None


def _wanted(value: Any) -> str:
    kinds = {bool: "true or false", int: "a whole number", str: "one of its texts"}
    return kinds.get(type(value), _kind(value))


def _file_name(name: Any) -> str | MessageQueue | None:
    """Return a name as one that can be compared, in whichever form it was written."""
    queue = fastjson.as_queue(dict(name) if type(name) is tuple else name)
    return queue if queue is not None or type(name) is tuple else str(name)


# --- coders -----------------------------------------------------------------------------------


def _same(value: Any) -> Any:
    return value


def _read_int(value: Any) -> int:
    if type(value) is int:
        number: int = value
    elif isinstance(value, (str, float)):
        number = int(value)
    else:
        raise ValueError(f"expected a number, got {_kind(value)}")
    if not -0x8000_0000_0000_0000 <= number <= 0x7FFF_FFFF_FFFF_FFFF:
        raise ValueError("number out of 64 bits")
    return number


def _read_float(value: Any) -> float:
    if isinstance(value, (int, float, str)) and not isinstance(value, bool):
        return float(value)
    raise ValueError(f"expected a number, got {_kind(value)}")


def _read_bool(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str):
        return value.lower() in ("true", "1", "y", "t")
    if isinstance(value, int):
        return value == 1
    raise ValueError(f"expected true or false, got {_kind(value)}")


def _read_str(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, (bool, int, float, dict, list)):
        try:
            return fastjson.dumps(value)
        except LocalProtocolError as error:
            raise ValueError(error.message) from None
    raise ValueError(f"expected a text, got {_kind(value)}")


def _kind(value: Any) -> str:
    return type(value).__name__


INT = Coder(_read_int, _same)
FLOAT = Coder(_read_float, _same)
BOOL = Coder(_read_bool, _same)
STR = Coder(_read_str, _same)


def _read_queue(value: Any) -> MessageQueue:
    if isinstance(value, Mapping):
        bean = _Queue.from_json(value)
        return MessageQueue(bean.topic, bean.broker_name, bean.queue_id)
    queue = fastjson.as_queue(value)
    if queue is None:
        raise ValueError(f"expected a message queue, got {_kind(value)}")
    return queue


def _write_queue(queue: MessageQueue) -> dict[str, Any]:
    return {"brokerName": queue.broker_name, "queueId": queue.queue_id, "topic": queue.topic}


QUEUE = Coder(_read_queue, _write_queue)


def bean(cls: type[Body]) -> Coder:
    """Return the coder of a nested body."""
    return Coder(cls.from_json, lambda value: value.to_json())


def enumeration(default: str, *names: str) -> Coder:
    """Return the coder of an enum kept as text: by name in any case or by ordinal.

    An unknown value becomes ``default``, where upstream has null.
    """
    known = {name.upper(): name for name in names}

    def read(value: Any) -> str:
        if isinstance(value, str):
            return known.get(value.upper(), default)
        if type(value) is int and 0 <= value < len(names):
            return names[value]
        return default

    return Coder(read, _same)


def list_of(item: Coder) -> Coder:
    """Return the coder of a list."""
    return Coder(
        lambda value: [item.read(one) for one in _sequence(value) if one is not None],
        lambda value: [item.write(one) for one in value],
    )


def set_of(item: Coder) -> Coder:
    """Return the coder of a set, written in sorted order."""
    return Coder(
        lambda value: {item.read(one) for one in _sequence(value) if one is not None},
        lambda value: [item.write(one) for one in sorted(value)],
    )


def map_of(key: Coder, item: Coder) -> Coder:
    """Return the coder of a map."""

    def read(value: Any) -> dict[Any, Any]:
        if not isinstance(value, Mapping):
            raise ValueError(f"expected an object, got {_kind(value)}")
        return {key.read(name): item.read(one) for name, one in value.items() if one is not None}

    return Coder(read, lambda value: {name: item.write(one) for name, one in value.items()})


def queue_map_of(item: Coder) -> Coder:
    """Return the coder of a map whose keys are queues.

    A key that is a ``$ref`` (one object met twice.1 rule 9) does not name a
    queue; its entry is left out.
    """

    def read(value: Any) -> dict[MessageQueue, Any]:
        if not isinstance(value, Mapping):
            raise ValueError(f"expected an object, got {_kind(value)}")
        items: dict[MessageQueue, Any] = {}
        for name, one in value.items():
            queue = fastjson.as_queue(dict(name) if type(name) is tuple else name)
            if queue is not None and one is not None:
                items[queue] = item.read(one)
        return items

    return Coder(read, lambda value: {name: item.write(one) for name, one in value.items()})


def _sequence(value: Any) -> list[Any]:
    if isinstance(value, list):
        return value
    raise ValueError(f"expected a list, got {_kind(value)}")


_CODERS = {
    "int": INT,
    "float": FLOAT,
    "bool": BOOL,
    "str": STR,
    "list[str]": list_of(STR),
    "set[str]": set_of(STR),
    "set[int]": set_of(INT),
    "set[MessageQueue]": set_of(QUEUE),
    "MessageQueue": QUEUE,
    "dict[str, str]": map_of(STR, STR),
    "dict[int, str]": map_of(INT, STR),
    "dict[int, int]": map_of(INT, INT),
    "dict[str, list[str]]": map_of(STR, list_of(STR)),
    "dict[str, dict[int, int]]": map_of(STR, map_of(INT, INT)),
    "dict[str, dict[str, str]]": map_of(STR, map_of(STR, STR)),
    "dict[MessageQueue, int]": queue_map_of(INT),
    "dict[str, dict[MessageQueue, int]]": map_of(STR, queue_map_of(INT)),
}


def coded(coder: Coder) -> dict[str, Coder]:
    """Return the ``metadata`` of a dataclass field whose coder cannot be found by its type."""
    return {"coder": coder}


def _body_fields(cls: Any, wire_names: Mapping[str, str]) -> tuple[BodyField, ...]:
    fields = []
    for field in dataclasses.fields(cls):
        wire = wire_names.get(field.name, wire_name(field.name))
        kind = str(field.type).removesuffix(" | None")
        coder = field.metadata.get("coder") or _CODERS[kind]
        fields.append(BodyField(field.name, wire, _loose(wire), coder))
    return tuple(sorted(fields, key=lambda one: one.wire))


@dataclass_transform(field_specifiers=(dataclasses.field,))
def body(**wire_names: str) -> Callable[[B], B]:
    """Make a body class from annotated fields, which all have defaults.

    Wire names are the camelCase of the field names unless given.
    """

    def make(cls: B) -> B:
        made: Any = dataclasses.dataclass(slots=True)(cls)
        made.body_fields = _body_fields(made, wire_names)
        return made  # type: ignore[no-any-return]

    return make


@body()
class _Queue(Body):
    topic: str = ""
    broker_name: str = ""
    queue_id: int = 0
