"""The ``rocketmq-consumer`` sink: its options, the listener among them, and its writers.

The listener is pickled where the query is made, by Spark's own cloudpickle, and unpickled in tasks;
the pickle holds the user's own code and runs with the user's rights.

Law: nothing is imported inside a function: a package that travels by value has no modules to import
from. ``write`` runs in tasks, once per attempt; ``commit`` runs on another copy.
"""

from __future__ import annotations

import base64
import binascii
import functools
import hashlib
import logging
import pickle
import sys
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pyspark import cloudpickle
from pyspark.sql import datasource as api

from rocketstream import limits
from rocketstream.client.consumer.listener import Listener, listener_of
from rocketstream.errors import ConfigurationError
from rocketstream.spark.format import Format, Shipped, called_by_spark, plans
from rocketstream.spark.listener.messages import check_columns
from rocketstream.spark.listener.task import Counts, consume_rows
from rocketstream.spark.options import CONSUME_OPTIONS, ConsumeOptions, consume_options, known
from rocketstream.spark.setup.shipping import make_constants_picklable
from rocketstream.spark.worker import kept, prepare

logger: logging.Logger = logging.getLogger("rocketstream.spark")

FORMAT: Final = "rocketmq-consumer"
# Spark 4.0 has no Arrow writer for streams; its rows are consumed alike.
if TYPE_CHECKING:
    _StreamWriter = api.DataSourceStreamArrowWriter
else:
    _StreamWriter = getattr(api, "DataSourceStreamArrowWriter", api.DataSourceStreamWriter)
_OURS: Final = ("rocketstream", "__main__")
_KIND: Final = "listeners"


class RocketMQConsumerSink(Format):
    """Gives rows to a message listener: ``df.writeStream.format("rocketmq-consumer")``.

    ``rocketstream.spark.consume`` sets it up. The options are in
    ``rocketstream.spark.options.CONSUME_OPTIONS``.
    """

    @classmethod
    def name(cls) -> str:
        """Return the name for ``format``."""
        return FORMAT

    @plans
    def writer(self, schema: Any, overwrite: bool) -> ConsumerWriter:
        """Return the writer of a batch.

        Raises
        ------
        ConfigurationError
            An option or a column is not accepted, or the mode overwrites rows.
        """
        return ConsumerWriter(*self._plan(schema, overwrite))

    @plans
    def streamWriter(self, schema: Any, overwrite: bool) -> ConsumerStreamWriter:
        """Return the writer of a micro-batch; raises as ``writer`` does."""
        return ConsumerStreamWriter(*self._plan(schema, overwrite))

    def _plan(self, schema: Any, overwrite: bool) -> tuple[ConsumeOptions, dict[str, str]]:
        if overwrite:
            raise ConfigurationError(
                "rows are consumed, they overwrite nothing; use mode or outputMode 'append'"
            )
        options = consume_options(self._options)
        unpack(options.listener, orderly=options.orderly)  # options that are wrong raise here
        columns = [(field.name, field.dataType.simpleString()) for field in schema.fields]
        return options, check_columns(columns)


@dataclass(frozen=True)
class Consumed(Shipped, api.WriterCommitMessage):  # type: ignore[misc]
    """The outcome of one task's messages."""

    counts: Counts

    _way = ("worker", "driver")


class _Writer(Shipped):
    """The common part of the batch and the stream writer."""

    def __init__(self, options: ConsumeOptions, columns: Mapping[str, str]) -> None:
        self._options = options
        self._columns = dict(columns)

    @called_by_spark
    def write(self, iterator: Iterator[Any]) -> Consumed:
        """Consume the rows of one partition; returns when everything is acknowledged."""
        prepare()
        options = self._options
        listener = unpack(options.listener, orderly=options.orderly)
        return Consumed(consume_rows(options, self._columns, listener, iterator))

    def _tell(self, messages: Sequence[Consumed | None], what: str) -> None:
        total = Counts()
        for message in messages:
            if message is not None:
                total.add(message.counts)
        logger.info("group=%s %s: %s", self._options.group, what, total)


class ConsumerWriter(_Writer, api.DataSourceArrowWriter):  # type: ignore[misc]
    """Consumes a DataFrame."""

    def commit(self, messages: list[Any]) -> None:
        """Log what became of the messages."""
        self._tell(messages, "batch")

    def abort(self, messages: list[Any]) -> None:
        """Do nothing: the messages of this attempt are consumed again."""


class ConsumerStreamWriter(_Writer, _StreamWriter):  # type: ignore[misc, valid-type]
    """Consumes a micro-batch."""

    def commit(self, messages: list[Any], batchId: int) -> None:
        """Log what became of the messages."""
        self._tell(messages, f"micro-batch {batchId}")

    def abort(self, messages: list[Any], batchId: int) -> None:
        """Do nothing: the micro-batch is consumed again."""


# --- the options ----------------------------------------------------------------------------------


def sink_options(listener: object, orderly: bool, options: Mapping[str, Any]) -> dict[str, str]:
    """Return the options of the sink for a listener, checked.

    Raises:
        ConfigurationError: the listener cannot be used or pickled, or an option is wrong.
    """
    given = {name: _text(value) for name, value in options.items() if value is not None}
    in_order = listener_of(listener, orderly=orderly).is_orderly
    given |= {"listener": pack(listener, orderly=in_order), "orderly": _text(in_order)}
    consume_options(given)
    return dict(known(given, CONSUME_OPTIONS))


class _Packed(Shipped):
    """A listener on its way to Spark's tasks."""

    def __init__(self, listener: object) -> None:
        self.listener = listener


def pack(listener: object, *, orderly: bool) -> str:
    """Return a listener as the text of option ``listener``.

    Its own module travels with it by value, unless it is installed (in ``site-packages``), so
    executors need not have it. Modules that it imports are imported there.

    Raises:
        ConfigurationError: it is not a listener, or cannot be pickled; the error says what to do.
    """
    listener_of(listener, orderly=orderly)
    make_constants_picklable()
    module = _travelling_module(listener)
    if module is not None:
        cloudpickle.register_pickle_by_value(module)
    try:
        data = cloudpickle.dumps(_Packed(listener))
    except Exception as error:
        raise ConfigurationError(
            f"the listener {listener!r} cannot be pickled for Spark's tasks: {error}. What it uses "
            "(connections, locks, clients) must be made where it is called: in the function, or "
            "once per process in a functools.cache of a function without arguments",
        ) from error
    finally:
        if module is not None:
            cloudpickle.unregister_pickle_by_value(module)
    return base64.b85encode(data).decode("ascii")


def unpack(text: str, *, orderly: bool) -> Listener:
    """Return the listener from a text made by ``pack``; unpickled once per Python process.

    State that a listener keeps in its module or object outlives a task, as in any consumer.

    Raises:
        ConfigurationError: the text is not one of ``pack``, or the listener needs a package that is
            not installed here.
        NotSupportedError: it was packed by another version of this package.
    """
    key = hashlib.sha256(text.encode()).hexdigest() + str(orderly)
    return kept(
        _KIND, key, lambda: listener_of(_loaded(text), orderly=orderly),
        limits.SPARK_LISTENERS_KEPT_MAX,
    )  # fmt: skip


def _loaded(text: str) -> Any:
    try:
        return cloudpickle.loads(base64.b85decode(text)).listener
    except (ValueError, binascii.Error, EOFError, pickle.UnpicklingError) as error:
        raise ConfigurationError(
            "option 'listener' holds no listener; rocketstream.spark.consume sets it"
        ) from error
    except ImportError as error:
        raise ConfigurationError(
            f"the listener needs a module that Spark's Python workers do not have: {error}. "
            "Install it there, or define what is needed beside the listener",
        ) from error


def _travelling_module(listener: object) -> Any:
    """Return the module to send along; None where there is none or the other side has it."""
    while isinstance(listener, functools.partial):  # its own module is Python's
        listener = listener.func
    name = getattr(listener, "__module__", None) or type(listener).__module__
    module = sys.modules.get(name)
    if module is None or name.partition(".")[0] in _OURS:
        return None
    place = getattr(module, "__file__", None)
    if place is None or name in cloudpickle.list_registry_pickle_by_value():
        return None
    installed = {Path(path).resolve() for path in sysconfig.get_paths().values()}
    parents = set(Path(place).resolve().parents)
    return None if parents & installed - {Path(sys.prefix).resolve()} else module


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
