"""What a setting is: the table that checks, keyword types and documentation are made of.

Law: pure; knows no client and no server. The fields of a settings class are the table: name, type
and default stand there, bounds and unit in ``setting(...)``, the meaning in the class's docstring.
"""

from __future__ import annotations

import dataclasses
import enum
import math
from collections.abc import Callable, Collection, Container, Iterable
from typing import Any

from rocketstream.errors import ConfigurationError
from rocketstream.late import dataclass

_ABOUT = "about"


@dataclass(frozen=True, slots=True)
class About:
    """What its field does not say of a setting.

    Attributes:
        low: smallest value accepted.
        high: largest value accepted.
        above: what a value must be greater than.
        also: the one number accepted outside of the bounds, which switches something off.
        unit: what is counted, where the name does not say it.
        java: what Java's clients or servers call it; None for the name in camel case, an empty
            text where they have none.
        shown: the default as documentation shows it, where an environment may change it.
        typed: type of the keyword, where it is wider or narrower than the field's.
        secret: the value is never shown.
    """

    low: int | None = None
    high: int | None = None
    above: int | None = None
    also: int | None = None
    unit: str = ""
    java: str | None = None
    shown: str | None = None
    typed: str | None = None
    secret: bool = False


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
    """Return what is said of a setting besides its name, type and default."""
    found: About = field.metadata.get(_ABOUT, _PLAIN)
    return found


def java_name(field: dataclasses.Field[Any]) -> str:
    """Return what Java calls a setting; empty where it has none."""
    told = about(field).java
    return camel_case(field.name) if told is None else told


def camel_case(name: str) -> str:
    """Return a setting's name as Java spells it, which leaves units out."""
    first, *rest = name.removesuffix("_ms").removesuffix("_minutes").split("_")
    return first + "".join(part.capitalize() for part in rest)


# --- checks ---------------------------------------------------------------------------------------


def is_whole(value: object) -> bool:
    """Whether it is a whole number; True and False are not."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: object) -> bool:
    """Whether it is a number that can be counted with."""
    return is_whole(value) or (isinstance(value, float) and math.isfinite(value))


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _several(fits: Callable[[object], bool]) -> Callable[[object], bool]:
    def check(value: object) -> bool:
        if not isinstance(value, Collection) or isinstance(value, str | bytes):
            return False
        return all(fits(each) for each in value)

    return check


_KINDS: dict[str, tuple[str, Callable[[object], bool]]] = {
    "int": ("a whole number", is_whole),
    "float": ("a number", is_number),
    "bool": ("True or False", lambda value: isinstance(value, bool)),
    "str": ("a str", _is_text),
    "frozenset[int]": ("a set of numbers", _several(is_whole)),
    "tuple[int, ...]": ("a tuple of numbers", _several(is_whole)),
    "tuple[str, ...]": ("a tuple of str", _several(_is_text)),
    "Collection[str]": ("a set of str", _several(_is_text)),
}
"""By annotation as it is written; fields of other kinds have checks of their own."""


def check_values(settings: Any, *names: str) -> None:
    """Check settings against their types and bounds, in the order of the class.

    Args:
        settings: of any settings class.
        *names: those to check; none given checks all.

    Raises:
        ConfigurationError: the first that cannot be used; the text names the setting, what is
            accepted and what was given.
    """
    for field in dataclasses.fields(settings):
        if not names or field.name in names:
            _check(field, getattr(settings, field.name))


def _check(field: dataclasses.Field[Any], value: object) -> None:
    more = about(field)
    annotation = str(field.type)
    if value is None and annotation.endswith("| None"):
        return
    expected, fits = _KINDS.get(annotation.removesuffix(" | None"), ("", None))
    if fits is None:
        if isinstance(field.default, enum.Enum) and not isinstance(value, type(field.default)):
            raise refused(field, _members(type(field.default)), value)
        return
    if not fits(value) or not _in_bounds(more, value):
        bounded = expected + _bounds(more)
        raise refused(field, bounded + (" or None" if "| None" in annotation else ""), value)


def _members(kind: type[enum.Enum]) -> str:
    return f"a {kind.__name__} ({', '.join(each.name for each in kind)})"


def _in_bounds(more: About, value: Any) -> bool:
    if more.also is not None and value == more.also:
        return True
    return (
        (more.low is None or value >= more.low)
        and (more.high is None or value <= more.high)
        and (more.above is None or value > more.above)
    )


def _bounds(more: About) -> str:
    text = bounds(more)
    return f" {text}" if text else ""


def bounds(more: About) -> str:
    """Return the numbers a setting accepts, in words; empty where there are no bounds."""
    if more.above is not None:
        text = f"greater than {more.above}"
    elif more.low is not None and more.high is not None:
        text = f"from {more.low} to {more.high}"
    elif more.low is not None:
        text = f"from {more.low} on"
    elif more.high is not None:
        text = f"up to {more.high}"
    else:
        return ""
    return text if more.also is None else f"{text}, or {more.also}"


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
        accepted: what it must be.
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
    """Return the error for a name that is not a setting; it says what may have been meant.

    Args:
        whose: what has no such setting.
        name: the name given; Java's names are understood.
        classes: the settings classes it could have come from.
        more: further names that can be given.
        among: the settings of those classes that can be given; None for all.
        elsewhere: what has a setting of exactly this name.
    """
    from rocketstream.likely import likely_names  # needed only where a name is wrong

    text = f"{whose} has no setting {name!r}"
    if owners := list(elsewhere):
        *first, last = owners
        text += f", which {', '.join(first)} and {last} have" if first else f", which {last} has"
    kinds = tuple(classes)
    every = (each for kind in kinds for each in keyword_fields(kind))
    known = [each for each in every if among is None or each.name in among]
    names = dict.fromkeys([*more, *(each.name for each in known)])
    spellings = {each: each for each in names}
    for each in known:
        spellings.setdefault(java_name(each) or each.name, each.name)
    if any(_is_group(each) for kind in kinds for each in dataclasses.fields(kind)):
        spellings["group"] = "group"
    likely = likely_names(name, spellings)
    if likely:
        text += f"; did you mean {' or '.join(repr(each) for each in likely)}?"
    elif not owners:
        text += f"; settings are {', '.join(sorted(names))}"
    return ConfigurationError(text, setting=name)


def _is_group(field: dataclasses.Field[Any]) -> bool:
    """Whether a field is a client's group, the one argument that is not a setting."""
    return field.default is dataclasses.MISSING and field.name.endswith("_group")
