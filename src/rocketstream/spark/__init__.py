"""Spark reads and consumes RocketMQ: ``rocketmq``, ``rocketmq-progress``, ``rocketmq-consumer``.

Law: importing this package imports neither Spark nor Arrow; names that need them are imported when
they are first used.

Numbers such as C-187 in these modules are those of docs/behaviours.md.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rocketstream.spark.listener.claim import GroupClaim
    from rocketstream.spark.listener.consume import consume
    from rocketstream.spark.listener.push_consumer import SparkPushConsumer
    from rocketstream.spark.measures import ReadProgress
    from rocketstream.spark.progress.listener import ProgressListener, observe_bytes

from rocketstream.spark.letters import dead_letters
from rocketstream.spark.setup.preparation import check_lookup, prepare


def register(spark: Any, by_value: bool = False) -> None:
    """Register ``format("rocketmq")``, ``"rocketmq-progress"`` and ``"rocketmq-consumer"``.

    Not needed where the packages ``pyspark_rocketmq`` and ``pyspark_rocketmq_progress`` are
    installed, as they are together with this package; ``consume`` registers its own sink.

    Parameters
    ----------
    spark
        The ``SparkSession``, also of Spark Connect.
    by_value
        Send this package along with the sources, to executors and driver processes that do not
        have it. Needed instead of ``addPyFile``, which no streaming read survives. Dependencies
        (pyarrow, numpy, orjson) must be installed there.

    Raises
    ------
    ConfigurationError
        Spark runs its Python workers with a Python that does not have this package.
    """
    from rocketstream.spark.setup.shipping import check_requirements

    check_requirements()
    from rocketstream.spark.listener.sink import RocketMQConsumerSink
    from rocketstream.spark.progress.source import ProgressDataSource
    from rocketstream.spark.setup.shipping import ship_by_value
    from rocketstream.spark.source import RocketMQDataSource

    if by_value:
        ship_by_value()
    else:
        check_lookup(spark)
    spark.dataSource.register(RocketMQDataSource)
    spark.dataSource.register(ProgressDataSource)
    spark.dataSource.register(RocketMQConsumerSink)


_LATER = {
    "GroupClaim": "rocketstream.spark.listener.claim",
    "ProgressListener": "rocketstream.spark.progress.listener",
    "ReadProgress": "rocketstream.spark.measures",
    "SparkPushConsumer": "rocketstream.spark.listener.push_consumer",
    "consume": "rocketstream.spark.listener.consume",
    "observe_bytes": "rocketstream.spark.progress.listener",
}


if not TYPE_CHECKING:  # else every misspelt name would be an Any to type checkers

    def __getattr__(name: str) -> Any:
        if name not in _LATER:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(importlib.import_module(_LATER[name]), name)


__all__ = [
    "GroupClaim",
    "ProgressListener",
    "ReadProgress",
    "SparkPushConsumer",
    "consume",
    "dead_letters",
    "observe_bytes",
    "prepare",
    "register",
]
