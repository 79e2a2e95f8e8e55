"""Spark reads RocketMQ: the data sources ``rocketmq`` and ``rocketmq-progress``.

Law: importing this package imports neither Spark nor Arrow.
"""

from __future__ import annotations

from typing import Any

from rocketstream.spark.letters import dead_letters
from rocketstream.spark.setup.preparation import check_lookup, prepare


def register(spark: Any, by_value: bool = False) -> None:
    """Register ``format("rocketmq")`` and ``format("rocketmq-progress")`` with a session.

    Not needed where the packages ``pyspark_rocketmq`` and ``pyspark_rocketmq_progress`` are
    installed, which they are with this one.

    Parameters
    ----------
    spark
        The ``SparkSession``, also of Spark Connect.
    by_value
        Send this package along with the sources, to executors and driver processes that do not
        have it. Needed instead of ``addPyFile``, which no streaming read survives. Dependencies
        (pyarrow, numpy, orjson) must be there.

    Raises
    ------
    ConfigurationError
        Spark runs its Python workers with a Python that does not have this package.
    """
    from rocketstream.spark.setup.requirements import check_requirements

    check_requirements()
    from rocketstream.spark.progress.source import ProgressDataSource
    from rocketstream.spark.setup.shipping import ship_by_value
    from rocketstream.spark.source import RocketMQDataSource

    if by_value:
        ship_by_value()
    else:
        check_lookup(spark)
    spark.dataSource.register(RocketMQDataSource)
    spark.dataSource.register(ProgressDataSource)


__all__ = ["dead_letters", "prepare", "register"]
