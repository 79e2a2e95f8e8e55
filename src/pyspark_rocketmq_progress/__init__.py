"""Lets Spark find ``format("rocketmq-progress")`` by itself.

Law: thin and lazy. Spark imports every package named ``pyspark_*`` at the first lookup of any
format; an error here would break all of them.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql.datasource import DataSource

__all__ = ["DefaultSource"]


class DefaultSource(DataSource):  # type: ignore[misc]
    """Stands for ``rocketstream.spark.progress.source.ProgressDataSource`` until it is used."""

    def __init__(self, options: Any) -> None:
        from rocketstream.spark.setup.shipping import check_requirements

        check_requirements()
        from rocketstream.spark.progress.source import ProgressDataSource

        self._source = ProgressDataSource(options)

    @classmethod
    def name(cls) -> str:
        """Return the name for ``format``."""
        return "rocketmq-progress"

    def schema(self) -> Any:
        """Return all columns."""
        return self._source.schema()

    def reader(self, schema: Any) -> Any:
        """Return the batch reader."""
        return self._source.reader(schema)

    def streamReader(self, schema: Any) -> Any:
        """Return the stream reader."""
        return self._source.streamReader(schema)
