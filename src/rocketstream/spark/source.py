"""The ``rocketmq`` data source as Spark sees it: names, schemas, readers and writers.

Law: nothing is imported inside a function: a package that travels by value has no modules to import
from.
"""

from __future__ import annotations

from typing import Any

from rocketstream.client.config import new_uuid
from rocketstream.columns.table import Column, RequestedColumn, choose, ddl
from rocketstream.errors import ConfigurationError, NotSupportedError
from rocketstream.spark.format import Format, called_by_spark, plans
from rocketstream.spark.options import (
    Mode,
    WriteOptions,
    is_permissive,
    is_store_read,
    read_options,
    store_options,
    write_options,
)
from rocketstream.spark.reader import RocketMQReader, RocketMQStreamReader, StoreReader
from rocketstream.spark.scan import Scan, new_scan
from rocketstream.spark.sink.columns import choose as choose_to_write
from rocketstream.spark.sink.routes import Routes
from rocketstream.spark.sink.writer import (
    RocketMQStreamWriter,
    RocketMQWriter,
    Sink,
    StreamArrowWriter,
)
from rocketstream.spark.store.rows import new_store_scan


class RocketMQDataSource(Format):
    """Reads and writes RocketMQ topics, in batch and as a stream: ``format("rocketmq")``.

    Give options ``nameServer`` and ``topic``. A read has every column, or those of
    ``.schema(...)``, which also saves the cost of the others. A write has the columns of
    ``rocketstream.spark.sink.columns.COLUMNS``. The full lists of options are ``READ_OPTIONS`` and
    ``WRITE_OPTIONS`` in ``rocketstream.spark.options``.
    """

    @classmethod
    def name(cls) -> str:
        """Return the name for ``format``."""
        return "rocketmq"

    @called_by_spark
    def schema(self) -> str:
        """Return all columns; not called when the user gives a schema."""
        return ddl(is_permissive(self._options))

    @plans
    def reader(self, schema: Any) -> RocketMQReader | StoreReader:
        """Return the batch reader: through brokers, or of a store directory (``storePath``).

        Raises
        ------
        ConfigurationError
            An option or the schema is not accepted.
        """
        if is_store_read(self._options):
            return StoreReader(new_store_scan(store_options(self._options), columns_of(schema)))
        return RocketMQReader(self._scan(schema, "batch"))

    @plans
    def streamReader(self, schema: Any) -> RocketMQStreamReader:
        """Return the stream reader; raises as ``reader`` does."""
        if is_store_read(self._options):
            raise ConfigurationError(
                "option 'storePath' is for batch reads: a directory tells nobody when it grows. "
                "Stream through the broker (option 'nameServer'), or read what is there with "
                "spark.read",
                option="storePath",
            )
        return RocketMQStreamReader(self._scan(schema, "stream"))

    @plans
    def writer(self, schema: Any, overwrite: bool) -> RocketMQWriter:
        """Return the batch writer; asks the name server for the topic.

        Raises
        ------
        ConfigurationError
            An option, the schema or the save mode is not accepted.
        RouteNotFoundError
            The topic of option ``topic`` does not exist.
        """
        _check_append(overwrite)
        sink = self._sink(schema, "batch")
        if sink.options.topic is not None:
            with Routes(sink.options) as routes:
                routes.queues(sink.options.topic)
        return RocketMQWriter(sink)

    @plans
    def streamWriter(self, schema: Any, overwrite: bool) -> RocketMQStreamWriter:
        """Return the stream writer; called for every micro-batch.

        Raises
        ------
        ConfigurationError
            An option, the schema or the output mode is not accepted.
        NotSupportedError
            This Spark cannot hand Arrow batches to a stream's sink.
        """
        if StreamArrowWriter is None:
            raise NotSupportedError(
                "writeStream.format('rocketmq') needs Spark 4.1; with Spark 4.0 write each "
                "micro-batch with df.write.format('rocketmq') in foreachBatch, with option writeId "
                "made of the query's name and the batch id"
            )
        _check_append(overwrite)
        return RocketMQStreamWriter(self._sink(schema, "stream"))

    def _sink(self, schema: Any, mode: Mode) -> Sink:
        options: WriteOptions = write_options(self._options, mode)
        fields = [(field.name, field.dataType.simpleString()) for field in schema.fields]
        columns = choose_to_write(fields, options.topic)
        return Sink(options, columns, options.write_id or new_uuid())

    def _scan(self, schema: Any, mode: Mode) -> Scan:
        options = read_options(self._options, mode)
        return new_scan(options, columns_of(schema))


def columns_of(schema: Any) -> tuple[Column, ...]:
    """Return the columns that a Spark schema asks for.

    Raises
    ------
    ConfigurationError
        A column or type that is not ours.
    """
    return choose(
        [
            RequestedColumn(
                field.name,
                field.dataType.simpleString(),
                field.nullable,
                getattr(field.dataType, "valueContainsNull", True),
            )
            for field in schema.fields
        ]
    )


def _check_append(overwrite: bool) -> None:
    if overwrite:
        raise ConfigurationError(
            "a topic is only appended to: messages cannot be overwritten. Use mode('append'), in a "
            "stream outputMode('append') or 'update'"
        )
