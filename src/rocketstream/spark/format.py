"""The common part of Spark's calls to all formats of ours.

Law: nothing is imported inside a function: a package that travels by value has no modules to import
from. Only pyspark's classes and their versions are known here, nothing of RocketMQ.
"""

from __future__ import annotations

import functools
import inspect
import os
import socket
from collections.abc import Callable, Iterator
from dataclasses import is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeVar

from pyspark.sql.datasource import DataSource

from rocketstream import __version__
from rocketstream.errors import (
    ClientStateError,
    InternalError,
    NotSupportedError,
    RocketMQError,
)
from rocketstream.spark.setup.shipping import check_requirements, make_constants_picklable

try:
    from pyspark.sql.streaming import datasource as _limits
except ImportError:  # Spark 4.0 and 4.1: no limits; availableNow is one batch of everything
    _limits = None


class _Absent:
    """Stands in for a class that a Spark version does not have."""


limits: Any = _limits
"""pyspark's module of read limits; None before 4.2."""
if TYPE_CHECKING:

    class AvailableNow:
        """The base class of stream readers that know ``availableNow``."""

else:
    AvailableNow = limits.SupportsTriggerAvailableNow if limits else _Absent

DEBUG_VARIABLE: Final = "ROCKETSTREAM_DEBUG"
"""If set in the environment of Spark's Python workers, every traceback is left whole."""
_OURS: Final = (InternalError, ClientStateError)
"""Mistakes of the connector itself, which only a traceback tells."""

Method = TypeVar("Method", bound=Callable[..., Any])
T = TypeVar("T")

_FOLDER: Final = str(Path(__file__).parents[1])
"""A constant, so that it is the driver's folder where the package travels by value."""


class Format(DataSource):  # type: ignore[misc]
    """A data source of ours: checks the Python it runs in, and holds the options.

    Parameters
    ----------
    options
        As given to ``option(...)``; names match in any case.
    """

    def __init__(self, options: Any) -> None:
        _make_ready()
        self._options = dict(options)


def _make_ready() -> None:
    check_requirements()
    make_constants_picklable()


def called_by_spark(method: Method) -> Method:
    """Return a method of a source, reader or writer whose errors show only a few lines.

    Spark shows users the whole traceback of a source's error: some twenty lines of our insides
    before the one that helps. An error with a text for users is shown without them. A method that
    yields, as ``read`` does in a task, must be a generator itself.
    """

    @functools.wraps(method)
    def call(*arguments: Any, **named: Any) -> Any:
        try:
            return method(*arguments, **named)
        except RocketMQError as error:
            if _has_insides_to_show(error):
                raise
            raise error.with_traceback(None) from None

    @functools.wraps(method)
    def rows(*arguments: Any, **named: Any) -> Iterator[Any]:
        try:
            yield from method(*arguments, **named)
        except RocketMQError as error:
            if _has_insides_to_show(error):
                raise
            raise error.with_traceback(None) from None

    return rows if inspect.isgeneratorfunction(method) else call  # type: ignore[return-value]


def _has_insides_to_show(error: RocketMQError) -> bool:
    return isinstance(error, _OURS) or bool(os.environ.get(DEBUG_VARIABLE))


def plans(method: Method) -> Method:
    """Wrap a method of a ``Format`` that makes a reader or writer.

    Spark calls these in separate processes, on a source that was pickled. So each call checks the
    Python it runs in, and teaches it to pickle the reader's values.
    """

    @functools.wraps(method)
    def call(*arguments: Any, **named: Any) -> Any:
        _make_ready()
        return method(*arguments, **named)

    return called_by_spark(call)  # type: ignore[return-value]


# --- values between processes ---------------------------------------------------------------------


class Shipped:
    """A value that Spark pickles in one process and unpickles in another, of the same package only.

    Python pickles frozen values with slots without the names of their fields: a package with a
    field more or less would take each value for its neighbour's, without an error. So a pickle
    tells its version and the fields of what it holds, which are compared before anything is made.
    """

    _way: ClassVar[tuple[str, str]] = ("driver", "worker")
    """Where the value is pickled, and where it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        state = dict(self.__dict__)
        kinds = dict.fromkeys(kind for value in state.values() for kind in _kinds(value))
        held = tuple((kind, _field_names(kind)) for kind in kinds)
        return _made, (_Sender(self._way), type(self), held), state


class _Sender:
    """The process that pickles. The other side makes it first, and of another version no more: a
    class that such a value needs may be gone."""

    def __init__(self, way: tuple[str, str]) -> None:
        self.way = way

    def __reduce__(self) -> tuple[Any, ...]:
        return _of_this_version, (__version__, _place(), self.way)


def _of_this_version(
    version: str, place: str, way: tuple[str, str]
) -> tuple[str, str, tuple[str, str]]:
    """Return what a pickle tells of its sender.

    Raises:
        NotSupportedError: the sender has another version; the text names both.
    """
    if version != __version__:
        raise _other_package(version, place, way)
    return version, place, way


def _made(
    sender: tuple[str, str, tuple[str, str]],
    kind: type[T],
    held: tuple[tuple[type, tuple[str, ...]], ...],
) -> T:
    """Return a value still without its state.

    Raises:
        NotSupportedError: what it holds has other fields here.
    """
    for each, names in held:
        if _field_names(each) != names:
            raise _other_package(*sender, how=f", with another {each.__name__}")
    return kind.__new__(kind)


def _other_package(
    version: str, place: str, way: tuple[str, str], how: str = ""
) -> NotSupportedError:
    there, here = way
    return NotSupportedError(
        f"the {there} has rocketstream {version} ({place}), the {here} has rocketstream "
        f"{__version__} ({_place()}){how}: they would take each other's values for others. Install "
        "one version for the driver and every worker, and start the Spark application again; "
        "upgrade only while none runs",
        there=version,
        here=__version__,
    )


def _kinds(value: object) -> Iterator[type]:
    """Yield the dataclasses of a value and of its fields; for a tuple those of its first item."""
    if isinstance(value, tuple):
        for first in value[:1]:
            yield from _kinds(first)
    elif is_dataclass(value):
        yield type(value)
        for name in _field_names(type(value)):
            yield from _kinds(getattr(value, name))


def _field_names(kind: type) -> tuple[str, ...]:
    return tuple(getattr(kind, "__dataclass_fields__", ()))


def _place() -> str:
    return f"{_FOLDER} on {socket.gethostname()}"
