"""The table of settings: checks, keyword types and documentation are made of it.

Pure: the fields of a settings class are the table: name, type and default stand there, bounds and
unit in ``setting(...)``, the meaning in the class's docstring.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Callable, Collection, Container, Iterable
from dataclasses import dataclass
from typing import Any

from rocketstream import checks
from rocketstream.errors import ConfigurationError

_ABOUT = "about"


@dataclass(frozen=True, slots=True)
class About(checks.Bounds):
    """The facts of a setting beside its field: its bounds, unit and names.

    Attributes:
        unit: the counted thing, where the name does not say it.
        java: its name in Java's clients or servers; None for the name in camel case, an empty text
            where they have none.
        shown: the default as documentation shows it, where an environment may change it.
        typed: type of the keyword, where it is wider or narrower than the field's.
        secret: the value is never shown.
        changeable: it can be changed while a client runs.
    """

    unit: str = ""
    java: str | None = None
    shown: str | None = None
    typed: str | None = None
    secret: bool = False
    changeable: bool = False


_PLAIN = About()


def setting(
    default: Any = dataclasses.MISSING,
    *,
    factory: Callable[[], Any] | None = None,
    **about: Any,
) -> Any:
    """Return a field of a settings class with its bounds, unit and name in Java.

    Args:
        default: its default.
        factory: makes the default instead.
        **about: as of ``About``.
    """
    metadata = {_ABOUT: About(**about)}
    if factory is not None:
        return dataclasses.field(default_factory=factory, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def about(field: dataclasses.Field[Any]) -> About:
    """Return the facts of a setting beside its name, type and default."""
    found: About = field.metadata.get(_ABOUT, _PLAIN)
    return found


def java_name(field: dataclasses.Field[Any]) -> str:
    """Return Java's name of a setting; empty where Java has none."""
    told = about(field).java
    return camel_case(field.name) if told is None else told


def camel_case(name: str) -> str:
    """Return a setting's name as Java spells it, which leaves units out."""
    first, *rest = name.removesuffix("_ms").removesuffix("_minutes").split("_")
    return first + "".join(part.capitalize() for part in rest)


# --- checks ---------------------------------------------------------------------------------------


def check_values(settings: Any, *names: str) -> None:
    """Check settings against their types and bounds, in the order of the class.

    Args:
        settings: of any settings class.
        *names: those to check; none given checks all.

    Raises:
        ConfigurationError: the first that cannot be used; the text names the setting, what is
            accepted and what was given.
    """
    hints = checks.hints_of(settings.__class__)
    for field in dataclasses.fields(settings):
        if names and field.name not in names:
            continue
        hint, value, bounds = hints[field.name], getattr(settings, field.name), about(field)
        if typing.get_origin(hint) in (tuple, frozenset):
            hint = Collection[typing.get_args(hint)[0]]  # type: ignore[misc]  # as it is given
        if not checks.fits(value, hint) or (value is not None and not bounds.has(value)):
            raise refused(field, checks.accepted(hint, bounds), value)


def refused(field: dataclasses.Field[Any], accepted: str, value: object) -> ConfigurationError:
    """Return the error for a value that cannot be used."""
    shown = type(value).__name__ if about(field).secret else repr(value)
    java = java_name(field)
    hint = f" (Java: {java})" if java and java != field.name else ""
    return ConfigurationError(
        f"{field.name} must be {accepted}, not {shown}{hint}", setting=field.name
    )


def refused_value(settings: Any, name: str, accepted: str) -> ConfigurationError:
    """Return the error for a setting whose value cannot be used.

    Args:
        settings: of any settings class.
        name: the setting.
        accepted: the accepted values, in words.
    """
    field = next(each for each in dataclasses.fields(settings) if each.name == name)
    return refused(field, accepted, getattr(settings, name))


def keyword_fields(kind: type[Any]) -> list[dataclasses.Field[Any]]:
    """Return the settings of a class that have a default: the group has none."""
    missing = dataclasses.MISSING
    return [
        each
        for each in dataclasses.fields(kind)
        if each.default is not missing or each.default_factory is not missing
    ]


# --- names ----------------------------------------------------------------------------------------


def unknown_setting(
    whose: str,
    name: str,
    classes: Iterable[type[Any]],
    more: Iterable[str] = (),
    among: Container[str] | None = None,
    elsewhere: Iterable[str] = (),
) -> ConfigurationError:
    """Return the error for a name that is not a setting; it suggests names that may have been
    meant.

    Args:
        whose: the object without such a setting.
        name: the name given; Java's names are understood.
        classes: the settings classes it could have come from.
        more: further names that can be given.
        among: the settings of those classes that can be given; None for all.
        elsewhere: the object that has a setting of exactly this name.
    """
    from rocketstream.suggestions import likely_names  # needed only where a name is wrong

    text = f"{whose} has no setting {name!r}"
    if owners := list(elsewhere):
        *first, last = owners
        text += f", which {', '.join(first)} and {last} have" if first else f", which {last} has"
    spellings = spellings_of(classes, more, among)
    likely = likely_names(name, spellings)
    if likely:
        text += f"; did you mean {' or '.join(repr(each) for each in likely)}?"
    elif not owners:
        names = {*spellings.values()} - {"group"}
        text += f"; settings are {', '.join(sorted(names))}"
    return ConfigurationError(text, setting=name)


def not_assignable(name: str, whose: str, classes: Iterable[type[Any]]) -> ConfigurationError:
    """Return the error for an attribute that was assigned to a client, and that none has.

    Args:
        name: its name.
        whose: the client's class.
        classes: the classes of its settings.
    """
    kinds = tuple(classes)
    if any(name == each.name for kind in kinds for each in keyword_fields(kind)):
        text = f"{name!r} is one of them"
    else:
        text = unknown_setting(whose, name, kinds).message
    text = f"settings are arguments of {whose}(...), and cannot be assigned: {text}"
    return ConfigurationError(text, setting=name)


def spellings_of(
    classes: Iterable[type[Any]], more: Iterable[str] = (), among: Container[str] | None = None
) -> dict[str, str]:
    """Return every way to spell a setting, ours and Java's, with its name.

    Args:
        classes: the settings classes.
        more: further names.
        among: the settings of those classes that count; None for all.
    """
    kinds = tuple(classes)
    every = (each for kind in kinds for each in keyword_fields(kind))
    known = [each for each in every if among is None or each.name in among]
    spellings = {each: each for each in (*more, *(each.name for each in known))}
    for each in known:
        spellings.setdefault(java_name(each) or each.name, each.name)
    if any(_is_group(each) for kind in kinds for each in dataclasses.fields(kind)):
        spellings["group"] = "group"
    return spellings


def _is_group(field: dataclasses.Field[Any]) -> bool:
    """Whether a field is a client's group, the one argument that is not a setting."""
    return field.default is dataclasses.MISSING and field.name.endswith("_group")
