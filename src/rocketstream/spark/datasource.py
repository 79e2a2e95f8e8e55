"""The ``rocketmq`` data source as Spark sees it.

Law: names, schema and readers; imports of numpy and pyarrow only when something is read.
"""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any, NoReturn

from pyspark.sql.datasource import DataSource

from rocketstream.errors import NotSupportedError
from rocketstream.spark.columns import choose, ddl
from rocketstream.spark.options import Mode, read_options
from rocketstream.spark.scan import Scan, new_scan

if TYPE_CHECKING:
    from rocketstream.spark.reader import RocketMQReader, RocketMQStreamReader


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
        self._options = dict(options)

    @classmethod
    def name(cls) -> str:
        """Return the name for ``format``."""
        return "rocketmq"

    def schema(self) -> str:
        """Return all columns; not called when the user gives a schema."""
        check_imports()
        return ddl()

    def reader(self, schema: Any) -> RocketMQReader:
        """Return the batch reader.

        Raises
        ------
        ConfigurationError
            An option or the schema is not accepted.
        """
        scan = self._scan(schema, "batch")
        from rocketstream.spark.reader import RocketMQReader

        return RocketMQReader(scan)

    def streamReader(self, schema: Any) -> RocketMQStreamReader:
        """Return the stream reader; raises as ``reader`` does."""
        scan = self._scan(schema, "stream")
        from rocketstream.spark.reader import RocketMQStreamReader

        return RocketMQStreamReader(scan)

    def writer(self, schema: Any, overwrite: bool) -> NoReturn:
        """Refuse: this version reads."""
        raise _writing()

    def streamWriter(self, schema: Any, overwrite: bool) -> NoReturn:
        """Refuse: this version reads."""
        raise _writing()

    def _scan(self, schema: Any, mode: Mode) -> Scan:
        check_imports()
        options = read_options(self._options, mode)
        columns = choose([(field.name, field.dataType.simpleString()) for field in schema.fields])
        return new_scan(options, columns)


def check_imports() -> None:
    """Say in words what is missing in a worker's Python; Spark itself only loses the connection.

    Raises:
        NotSupportedError: numpy or pyarrow is missing or too old.
    """
    missing = [name for name in ("numpy", "pyarrow") if importlib.util.find_spec(name) is None]
    if missing:
        raise NotSupportedError(
            f"the rocketmq source needs {' and '.join(missing)} in the Python of the driver and of "
            "every executor; install rocketstream[spark] there"
        )
    from rocketstream.spark.gather import check_pyarrow

    check_pyarrow()


def _writing() -> NotSupportedError:
    return NotSupportedError(
        "writing to format('rocketmq') is not supported yet; send rows with rocketstream.Producer, "
        "for example in foreachPartition or foreachBatch"
    )
