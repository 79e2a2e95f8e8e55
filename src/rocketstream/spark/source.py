"""The ``rocketmq`` data source as Spark sees it.

Law: names, schema and readers. Nothing is imported inside a function: a package that travels by
value has no modules to import from.
"""

from __future__ import annotations

from typing import Any, NoReturn

from pyspark.sql.datasource import DataSource

from rocketstream.errors import ConfigurationError, NotSupportedError
from rocketstream.spark.columns import Column, Wish, choose, ddl
from rocketstream.spark.options import Mode, is_store_read, read_options, store_options
from rocketstream.spark.reader import RocketMQReader, RocketMQStreamReader, StoreReader
from rocketstream.spark.scan import Scan, new_scan
from rocketstream.spark.setup.requirements import check_requirements
from rocketstream.spark.setup.shipping import make_constants_picklable
from rocketstream.spark.store.rows import new_store_scan


class RocketMQDataSource(DataSource):  # type: ignore[misc]
    """Reads RocketMQ topics, in batch and as a stream: ``spark.read.format("rocketmq")``.

    Give options ``nameServer`` and ``topic``; the schema is every column, or those of
    ``.schema(...)``, which is also the way not to pay for the others. The full list of options is
    in ``rocketstream.spark.options.READ_OPTIONS``.

    Parameters
    ----------
    options
        As given to ``option(...)``; names match in any case.
    """

    def __init__(self, options: Any) -> None:
        check_requirements()
        make_constants_picklable()
        self._options = dict(options)

    @classmethod
    def name(cls) -> str:
        """Return the name for ``format``."""
        return "rocketmq"

    def schema(self) -> str:
        """Return all columns; not called when the user gives a schema."""
        return ddl()

    def reader(self, schema: Any) -> RocketMQReader | StoreReader:
        """Return the batch reader: through brokers, or of a store directory (``storePath``).

        Raises
        ------
        ConfigurationError
            An option or the schema is not accepted.
        """
        if is_store_read(self._options):
            check_requirements()
            make_constants_picklable()
            return StoreReader(new_store_scan(store_options(self._options), columns_of(schema)))
        return RocketMQReader(self._scan(schema, "batch"))

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

    def writer(self, schema: Any, overwrite: bool) -> NoReturn:
        """Refuse: this version reads."""
        raise _writing()

    def streamWriter(self, schema: Any, overwrite: bool) -> NoReturn:
        """Refuse: this version reads."""
        raise _writing()

    def _scan(self, schema: Any, mode: Mode) -> Scan:
        check_requirements()
        make_constants_picklable()
        options = read_options(self._options, mode)
        return new_scan(options, columns_of(schema))


def columns_of(schema: Any) -> tuple[Column, ...]:
    """Return the columns a Spark schema asks for.

    Raises
    ------
    ConfigurationError
        A column or type that is not ours.
    """
    return choose(
        [
            Wish(
                field.name,
                field.dataType.simpleString(),
                field.nullable,
                getattr(field.dataType, "valueContainsNull", True),
            )
            for field in schema.fields
        ]
    )


def _writing() -> NotSupportedError:
    return NotSupportedError(
        "writing to format('rocketmq') is not supported yet; send rows with rocketstream.Producer, "
        "for example in foreachPartition or foreachBatch"
    )
