"""The ``rocketmq-consumer`` sink as Spark sees it.

Law: nothing is imported inside a function: a package that travels by value has no modules to import
from. ``write`` runs in tasks, once per attempt; ``commit`` runs on another copy.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql import datasource as api

from rocketstream.errors import ConfigurationError
from rocketstream.spark.consumer.messages import check_columns
from rocketstream.spark.consumer.parcel import unpack
from rocketstream.spark.consumer.task import Counts, consume_rows
from rocketstream.spark.format import Format, called_by_spark, plans
from rocketstream.spark.options import ConsumeOptions, consume_options
from rocketstream.spark.worker import prepare

logger = logging.getLogger("rocketstream.spark")

FORMAT: Final = "rocketmq-consumer"
# Spark 4.0 has no Arrow writer for streams; its rows are consumed alike.
_StreamWriter: Any = getattr(api, "DataSourceStreamArrowWriter", api.DataSourceStreamWriter)


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
class Consumed(api.WriterCommitMessage):  # type: ignore[misc]
    """The outcome of one task's messages."""

    counts: Counts


class _Writer:
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


class ConsumerStreamWriter(_Writer, _StreamWriter):  # type: ignore[misc]
    """Consumes a micro-batch."""

    def commit(self, messages: list[Any], batchId: int) -> None:
        """Log what became of the messages."""
        self._tell(messages, f"micro-batch {batchId}")

    def abort(self, messages: list[Any], batchId: int) -> None:
        """Do nothing: the micro-batch is consumed again."""
