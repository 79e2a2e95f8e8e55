"""Answers of tools, made from the values of the model: their fields, types and descriptions.

Law: null is unknown, never zero, and ``unknown`` says why. Every text passes ``seen``, and text
from outside stands under a name that begins with ``untrusted``. Every list is bounded, and
``left_out`` counts the rest.
"""

from __future__ import annotations

import dataclasses
import datetime
import functools
import inspect
import operator
import re
import types
import typing
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, create_model

from rocketstream._util.unseen import spelled_out

ROWS_MAX: Final = 200
ENTRIES_MAX: Final = 50
"""Most reasons in ``unknown``, and most entries of a mapping."""
LINE_CHARS_MAX: Final = 500
TEXT_CHARS_MAX: Final = 2_000
_CHARS_MAX: Final = {
    "command": TEXT_CHARS_MAX, "text": TEXT_CHARS_MAX, "stack": 4_000, "resume": 20_000,
}  # fmt: skip

_HOISTED: Final = frozenset({"errors", "problems", "unknown"})
"""Reasons why something is not known: those of every part stand in ``unknown`` of the answer."""
_OUTSIDE: Final = frozenset(
    {"cause", "evidence", "keys", "properties", "remark", "stack", "tag", "tags", "text", "where"}
)
"""Text that senders of messages and users of clients wrote."""
_SPANS: Final = frozenset(
    {"cost_ms", "eta_ms", "held_ms", "spent_ms", "sweep_ms", "time_lag_ms", "took_ms"}
)
"""Times that are spans; all others whose names end in ``_ms`` are moments."""
_HIDDEN: Final = frozenset(
    {
        "DecodedBody.value", "GroupState.consumed", "GroupState.member_count", "GroupState.topics",
        "QueueState.key", "ResetRow.queue", "TopicQueue.key", "TraceTimeline.is_empty",
        "WhyReport.pinned", "WhyReport.state",
    }
)  # fmt: skip
"""Fields and properties that repeat others, or have no place in JSON."""


class Part(BaseModel):
    """A part of an answer."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", frozen=True)


class Answer(Part):
    """The fields all answers share."""

    unknown: Annotated[
        list[str],
        Field(
            description="What could not be found out and why. The figures it concerns are null: "
            "null is UNKNOWN, never zero. Empty: all that was asked was answered."
        ),
    ] = []
    left_out: Annotated[
        int, Field(description="Rows that exist and are not in this answer; ask more narrowly.")
    ] = 0


class Form(Enum):
    """How a field of an answer is told; for ``Annotated``."""

    FLAT = "its single figures among those of its owner"
    WHOLE = "as it is, though other fields of this name are told elsewhere"


@dataclasses.dataclass(frozen=True, slots=True)
class _Told:
    """One field of a value: where it is read, and how it is told.

    Attributes:
        takes_now: whether it is a method that tells it for a moment.
        owner: the field whose value it is read of; None for the value itself.
    """

    name: str
    hint: Any
    said: str | None
    form: Form | None
    takes_now: bool = False
    owner: str | None = None

    @property
    def key(self) -> str:
        """The field's name in an answer."""
        name = f"untrusted_{self.name}" if self.name in _OUTSIDE else self.name
        if _is_moment(self.name):
            name = name.removesuffix("_ms") + "_at" if name != "at_ms" else "at"
        return name

    @property
    def is_hoisted(self) -> bool:
        """Whether it is told in ``unknown`` of the whole answer."""
        return self.name in _HOISTED and self.form is not Form.WHOLE

    @property
    def is_single(self) -> bool:
        """Whether it is one figure or text."""
        return all(
            arm is type(None) or (isinstance(arm, type) and not dataclasses.is_dataclass(arm))
            for arm in _arms(self.hint)
        )


# --- texts and times ------------------------------------------------------------------------------


def seen(text: str, most: int = LINE_CHARS_MAX) -> str:
    r"""Return a text with invisible characters spelled out (``\u202e``), cut after ``most``.

    Models read direction marks, tags of Unicode's plane 14 and the like, but people do not see
    them: instructions can hide there.
    """
    rest = f" ({len(text) - most:,} more characters)" if len(text) > most else ""
    return spelled_out(text[:most], kept="\n\t") + rest


def at(timestamp_ms: int | None) -> str | None:
    """Return a time in UTC, ``2026-05-01T12:00:00.000Z``; None for None and for an invalid time."""
    if timestamp_ms is None:
        return None
    try:
        moment = datetime.datetime.fromtimestamp(timestamp_ms / 1000, datetime.UTC)
    except (ValueError, OverflowError, OSError):
        return None
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _is_moment(name: str) -> bool:
    return name.endswith("_ms") and name not in _SPANS


# --- schemas --------------------------------------------------------------------------------------


@functools.cache
def shape_of(model: Any, *, is_answer: bool = False) -> type[BaseModel]:
    """Return the schema of a value's answer; ``model`` is a frozen dataclass of the model."""
    fields: dict[str, Any] = {}
    for told in _fields_of(model):
        if not told.is_hoisted:
            kind = _type_of(told)
            fields[told.key] = Annotated[kind, Field(description=told.said)] if told.said else kind
    return create_model(
        model.__name__,
        __base__=Answer if is_answer else Part,
        __doc__=inspect.cleandoc(model.__doc__ or "").partition("\n\n")[0],
        **fields,
    )


@functools.cache
def _fields_of(model: Any) -> tuple[_Told, ...]:
    said = dict(_descriptions(model))
    hints = typing.get_type_hints(model, include_extras=True)
    found = [_told(f.name, hints[f.name], said.get(f.name)) for f in dataclasses.fields(model)]
    for name, each in vars(model).items():
        is_property = isinstance(each, property)
        function = each.fget if isinstance(each, property) else each
        if name.startswith("_") or not inspect.isfunction(function):
            continue
        takes_now = list(inspect.signature(function).parameters)[1:] == ["now_ms"]
        if is_property or takes_now:
            text = inspect.cleandoc(function.__doc__ or "").partition("\n\n")[0]
            hint = typing.get_type_hints(function)["return"]
            found.append(_told(name, hint, " ".join(text.split()), takes_now))
    fields: dict[object, _Told] = {}
    for each in found:
        if f"{model.__name__}.{each.name}" not in _HIDDEN:
            for told in _flat(each) if each.form is Form.FLAT else (each,):
                fields.setdefault((told.owner, told.name) if told.is_hoisted else told.key, told)
    return tuple(fields.values())


def _flat(owner: _Told) -> Iterator[_Told]:
    """Yield the single figures of the value that a field holds; all are null where it is null."""
    model, *is_optional = (arm for arm in _arms(owner.hint))
    for each in _fields_of(model):
        if each.is_single or each.is_hoisted:
            hint = each.hint | None if is_optional else each.hint
            yield dataclasses.replace(each, hint=hint, owner=owner.name)


def _told(name: str, hint: Any, said: str | None, takes_now: bool = False) -> _Told:
    form = None
    if typing.get_origin(hint) is Annotated:
        hint, *marks = typing.get_args(hint)
        form = next((mark for mark in marks if isinstance(mark, Form)), None)
    if said and _is_moment(name):
        said = re.sub(r",? (in )?ms since 1970", ", UTC", said)
    if said:
        said = said.replace("``", "`").replace("None", "null")
    return _Told(name, hint, said, form, takes_now)


def _descriptions(model: type) -> Iterator[tuple[str, str]]:
    """Yield the fields that a class's docstring describes, with their descriptions."""
    _, _, block = inspect.cleandoc(model.__doc__ or "").partition("Attributes:\n")
    for entry in re.split(r"\n(?=    \S)", f"\n{block.partition(chr(10) * 2)[0]}"):
        names, found, text = " ".join(entry.split()).partition(": ")
        if found:
            yield from ((name.strip(), text) for name in names.split(","))


def _arms(hint: Any) -> tuple[Any, ...]:
    is_union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    return typing.get_args(hint) if is_union else (hint,)


def _type_of(told: _Told) -> Any:
    return _union(
        str if _is_moment(told.name) and arm is int else _one_type_of(arm)
        for arm in _arms(told.hint)
    )


def _union(kinds: Iterable[Any]) -> Any:
    return functools.reduce(operator.or_, kinds)


def _one_type_of(hint: Any) -> Any:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is tuple:
        rows: Any = list[_union(map(_one_type_of, (a for a in args if a is not ...)))]  # type: ignore[misc]
        return Annotated[rows, Field(max_length=ROWS_MAX)]
    if origin in (dict, Mapping):
        return dict[str, _one_type_of(args[1])]  # type: ignore[misc]
    if len(_arms(hint)) > 1:
        return _union(map(_one_type_of, _arms(hint)))
    if not isinstance(hint, type):
        raise TypeError(f"an answer cannot hold {hint!r}")
    if dataclasses.is_dataclass(hint):
        model: Any = hint
        return shape_of(model)
    if issubclass(hint, Enum):
        return Literal[tuple(each.value for each in hint)]
    if hint not in (str, bool, int, float, type(None)):
        raise TypeError(f"an answer cannot hold {hint!r}")
    return hint


# --- values ---------------------------------------------------------------------------------------


def tell(value: Any, most: int = ROWS_MAX) -> dict[str, Any]:
    """Return a value of the model as an answer; its own lists have at most ``most`` rows."""
    telling = _Telling()
    found = telling.fields(value, most, None)
    unknown = [seen(each) for each in list(telling.unknown)[:ENTRIES_MAX]]
    return {**found, "unknown": unknown, "left_out": telling.left_out}


class _Telling:
    """One answer while it is made: what of it is unknown, and how many rows are left out."""

    def __init__(self) -> None:
        self.unknown: dict[str, None] = {}
        self.left_out = 0

    def fields(self, value: Any, most: int, now_ms: int | None) -> dict[str, Any]:
        """Return a dataclass of the model as an object."""
        now_ms = getattr(value, "taken_ms", now_ms)
        model: Any = type(value)
        found: dict[str, Any] = {}
        for told in _fields_of(model):
            owner = value if told.owner is None else getattr(value, told.owner)
            each: Any = None if owner is None else getattr(owner, told.name)
            if told.takes_now and each is not None:
                each = None if now_ms is None else each(now_ms)
            if told.is_hoisted:
                self.unknown.update(dict.fromkeys(each or ()))
            else:
                found[told.key] = self.value(each, told, most, now_ms)
        if "is_cut" in found:
            found["is_cut"] = value.is_cut or len(value.text) > TEXT_CHARS_MAX
        error = getattr(value, "error", None)
        if error:
            where = getattr(value, "broker_name", None)
            is_said = where is None or where in error
            self.unknown[error if is_said else f"{where}: {error}"] = None
        return found

    def value(self, value: Any, told: _Told, most: int, now_ms: int | None) -> Any:
        """Return what a field holds as JSON."""
        if isinstance(value, bool) or value is None:
            return value
        if isinstance(value, Enum):
            return value.value
        if isinstance(value, int):
            return at(value) if _is_moment(told.name) else value
        if isinstance(value, float):
            return round(value, 3)
        if isinstance(value, str):
            return seen(value, _CHARS_MAX.get(told.name, LINE_CHARS_MAX))
        if isinstance(value, Mapping):
            entries = list(value.items())
            self.left_out += max(len(entries) - ENTRIES_MAX, 0)
            return {
                seen("unknown" if key is None else str(key)): self.value(each, told, most, now_ms)
                for key, each in entries[:ENTRIES_MAX]
            }
        if isinstance(value, tuple):
            self.left_out += max(len(value) - most, 0)
            return [self.value(each, told, most, now_ms) for each in value[:most]]
        return self.fields(value, ROWS_MAX, now_ms)
