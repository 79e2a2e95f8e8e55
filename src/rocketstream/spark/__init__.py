"""Spark reads RocketMQ: the ``rocketmq`` data source.

Law: importing this package imports neither Spark nor Arrow.
"""

from __future__ import annotations

from typing import Any

from rocketstream.spark.setup.preparation import check_lookup, prepare


def register(spark: Any, by_value: bool = False) -> None:
    """Register the source with a session, so that ``format("rocketmq")`` is found.

    Not needed where the package ``pyspark_rocketmq`` is installed, which is with this one.

    Parameters
    ----------
    spark
        The ``SparkSession``, also of Spark Connect.
    by_value
        Send this package along with the source, to executors and driver processes that do not
        have it. Needed instead of ``addPyFile``, which no streaming read survives. Dependencies
        (pyarrow, numpy, orjson) must be there.

    Raises
    ------
    ConfigurationError
        Spark runs its Python workers with a Python that does not have this package.
    """
    from rocketstream.spark.setup.requirements import check_requirements

    check_requirements()
    from rocketstream.spark.setup.shipping import ship_by_value
    from rocketstream.spark.source import RocketMQDataSource

    if by_value:
        ship_by_value()
    else:
        check_lookup(spark)
    spark.dataSource.register(RocketMQDataSource)


__all__ = ["prepare", "register"]
