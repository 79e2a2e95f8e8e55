"""The common part of Spark's calls to all formats of ours.

Law: nothing is imported inside a function: a package that travels by value has no modules to import
from. Only pyspark's classes and their versions are known here, nothing of RocketMQ.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final, TypeVar

from pyspark.sql.datasource import DataSource

from rocketstream.errors import ClientStateError, InternalError, RocketMQError
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
