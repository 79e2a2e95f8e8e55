"""Dataclasses whose methods are made when the first of them is needed.

Law: pure, and nothing here has a meaning of its own. ``dataclasses`` writes the source of a class's
methods and compiles it while the class is made. Of the hundreds of headers, bodies and rows a short
command imports it needs a dozen, and making all of them was a third of its time. A class made here
is an ordinary dataclass in all it does, and as fast: after its first use the methods are the ones
``dataclasses`` made.
"""

from __future__ import annotations

import dataclasses
import inspect
import sys
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

_COMPARISONS: Final = ("__lt__", "__le__", "__gt__", "__ge__")
_FIELD_SETTINGS: Final = ("default", "default_factory", "init", "repr", "hash", "compare")


class Attribute:
    """An attribute of a class that is computed when it is first read.

    Two threads that read it first at once both compute it, and either result stays.
    """

    __slots__ = ("_cls", "_compute", "_name")

    def __init__(self, cls: type, name: str, compute: Callable[[], Any]) -> None:
        self._cls, self._name, self._compute = cls, name, compute
        setattr(cls, name, self)

    def made(self) -> Any:
        """Compute the attribute, put it into the class, and return it from there."""
        setattr(self._cls, self._name, self._compute())
        return self._cls.__dict__[self._name]

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        made = self.made()
        bind = getattr(type(made), "__get__", None)
        return made if bind is None else bind(made, instance, owner)


if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:

    def dataclass(cls=None, /, **settings):
        """Make a dataclass as ``dataclasses.dataclass`` does, but its methods at first use.

        Settings are the same, without ``weakref_slot``. Mistakes in fields (a mutable default, a
        field without a default after one with) raise at first use.
        """

        def make(cls: type) -> type:
            return _declared(cls, **settings)

        return make if cls is None else make(cls)


def _declared(
    cls: type,
    *,
    init: bool = True,
    repr: bool = True,
    eq: bool = True,
    order: bool = False,
    frozen: bool = False,
    match_args: bool = True,
    kw_only: bool = False,
    slots: bool = False,
) -> type:
    fields = _own_fields(cls)
    hashed = eq and frozen and not _has_own_hash(cls)
    unhashable = eq and not frozen and not _has_own_hash(cls)
    if slots:
        cls = _with_slots(cls, tuple(fields))
    else:
        _leave_defaults(cls, fields)
    if unhashable:
        cls.__hash__ = None  # type: ignore[assignment]
    if frozen:
        _freeze(cls, frozenset(fields), slots=slots)
    settings = {
        "__dataclass_fields__": True,
        "__dataclass_params__": True,
        "__match_args__": match_args,
        "__replace__": sys.version_info >= (3, 13),
        "__repr__": repr,
        "__eq__": eq,
        **dict.fromkeys(_COMPARISONS, order),
        "__init__": init,
    }
    names = [name for name, is_set in settings.items() if is_set and name not in cls.__dict__]
    if hashed:
        names.append("__hash__")

    def make(wanted: str) -> Any:
        made: Any = dataclasses.dataclass(
            init=init, repr=repr, eq=eq, order=order,
            frozen=frozen, match_args=match_args, kw_only=kw_only,
        )(_twin(cls, fields, kw_only=kw_only))  # fmt: skip
        for name in names:
            setattr(cls, name, made.__dict__[name])
        return made.__dict__[wanted]

    for name in names:
        Attribute(cls, name, partial(make, name))
    return cls


def _own_fields(cls: type) -> dict[str, tuple[Any, Any]]:
    # What the class itself declares: name -> annotation, and default or ``field()`` if any.
    return {
        name: (kind, cls.__dict__.get(name, dataclasses.MISSING))
        for name, kind in inspect.get_annotations(cls).items()
        if not str(kind).startswith(("ClassVar", "typing.ClassVar"))
    }


def _has_own_hash(cls: type) -> bool:
    # Python itself puts None where a class defines ``__eq__`` alone.
    own = cls.__dict__
    return "__hash__" in own and not (own["__hash__"] is None and "__eq__" in own)


def _leave_defaults(cls: type, fields: dict[str, tuple[Any, Any]]) -> None:
    for name, (_, default) in fields.items():
        if not isinstance(default, dataclasses.Field):
            continue
        if default.default is dataclasses.MISSING:
            delattr(cls, name)
        else:
            setattr(cls, name, default.default)


def _with_slots(cls: type, names: tuple[str, ...]) -> type:
    # A class with slots can only be made anew. Slots of a base need no second place.
    inherited = {name for base in cls.__mro__[1:] for name in base.__dict__.get("__slots__", ())}
    members = dict(cls.__dict__)
    for name in (*names, "__dict__", "__weakref__"):
        members.pop(name, None)
    members["__slots__"] = tuple(name for name in names if name not in inherited)
    made = type(cls)(cls.__name__, cls.__bases__, members)
    made.__qualname__ = cls.__qualname__
    return made


def _freeze(cls: Any, names: frozenset[str], *, slots: bool) -> None:
    def __setattr__(self: object, name: str, value: object) -> None:  # noqa: N807
        if type(self) is cls or name in names:
            raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")
        super(cls, self).__setattr__(name, value)

    def __delattr__(self: object, name: str) -> None:  # noqa: N807
        if type(self) is cls or name in names:
            raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")
        super(cls, self).__delattr__(name)

    methods: dict[str, Any] = {"__setattr__": __setattr__, "__delattr__": __delattr__}
    if slots:  # pickle and copy set attributes one by one otherwise, which is refused
        methods |= {"__getstate__": _getstate, "__setstate__": _setstate}
    for name, method in methods.items():
        if name not in cls.__dict__:
            setattr(cls, name, method)


def _getstate(self: Any) -> list[Any]:
    return [getattr(self, field.name) for field in dataclasses.fields(self)]


def _setstate(self: Any, state: list[Any]) -> None:
    for field, value in zip(dataclasses.fields(self), state, strict=True):
        object.__setattr__(self, field.name, value)


def _twin(cls: type, fields: dict[str, tuple[Any, Any]], *, kw_only: bool) -> type:
    """Return a class without bases that has all fields of ``cls``, to take its methods from.

    The class itself cannot be given to ``dataclasses`` now: other threads may be using it, its
    defaults may have become slots, and hooks of its bases would see it a second time.
    """
    kinds: dict[str, Any] = {}
    members: dict[str, Any] = {}
    for base in cls.__mro__[-1:0:-1]:
        for field in dataclasses.fields(base) if dataclasses.is_dataclass(base) else ():
            kinds[field.name] = field.type
            members[field.name] = _again(field, field.kw_only)
    for name, (kind, default) in fields.items():
        kinds[name] = kind
        if isinstance(default, dataclasses.Field):
            own = default.kw_only
            members[name] = _again(default, kw_only if own is dataclasses.MISSING else own)
        else:
            members[name] = dataclasses.field(default=default, kw_only=kw_only)
    if hasattr(cls, "__post_init__"):
        members["__post_init__"] = cls.__post_init__
    whose = {"__module__": cls.__module__, "__qualname__": cls.__qualname__}
    return type(cls.__name__, (), {**members, **whose, "__annotations__": kinds})


def _again(field: Any, kw_only: Any) -> Any:
    # A field belongs to one class, which sets its name.
    settings = {name: getattr(field, name) for name in _FIELD_SETTINGS}
    return dataclasses.field(**settings, metadata=field.metadata, kw_only=kw_only)
