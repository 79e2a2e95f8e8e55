"""Spark's part: the topic as a Parquet table, its totals, and the answer by SQL.

Law: reads the broker and the table; prints nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from demo.errors import DemoError
from demo.flights import SCHEMA
from demo.place import Place
from demo.produce import TOPIC
from demo.totals import Totals, from_rows
from rocketstream.errors import RocketMQError
from rocketstream.pipelines.bodies import bodies_of
from rocketstream.pipelines.ingest import IngestPlan, ingest
from rocketstream.pipelines.progress import IngestProgress
from rocketstream.pipelines.targets import Target

GROUP = "flight-table"
ROWS_PER_BATCH = 60_000

_TOTALS_SQL = """
SELECT carrier, count(*) AS flights,
       sum(dep_delay) AS dep_delay, count(dep_delay) AS dep_known,
       sum(arr_delay) AS arr_delay, count(arr_delay) AS arr_known
FROM flights GROUP BY carrier
"""

_DELAYS_SQL = """
SELECT carrier, hour, count(dep_delay) AS flights, avg(dep_delay) AS delay
FROM flights WHERE dep_delay IS NOT NULL
GROUP BY carrier, hour ORDER BY carrier, hour
"""

_ORDER_SQL = """
SELECT count(DISTINCT tailnum) AS aircraft,
       count_if(id < before) AS out_of_order,
       count_if(_queueId <> queue_before) AS moved
FROM (
  SELECT tailnum, id, _queueId,
         lag(id) OVER flight AS before, lag(_queueId) OVER flight AS queue_before
  FROM flights
  WINDOW flight AS (PARTITION BY tailnum ORDER BY _queueOffset)
)
WHERE tailnum IS NOT NULL
"""


def land(
    spark: Any,
    namesrv: str,
    place: Place,
    on_progress: Callable[[IngestProgress], None],
    stop: threading.Event,
) -> IngestProgress:
    """Land the topic once, partitioned by origin, and name the table ``flights``.

    Raises:
        DemoError: the query failed.
    """
    plan = IngestPlan(
        topics=(TOPIC,),
        source={
            "nameServer": namesrv,
            "group": GROUP,
            "startingOffsets": "earliest",
            "maxOffsetsPerTrigger": str(ROWS_PER_BATCH),
        },
        target=Target("parquet", str(place.table)),
        bodies=bodies_of("json", SCHEMA),
        partition_by=("origin",),
    )
    try:
        progress = ingest(spark, plan, on_progress=on_progress, stop=stop)
    except (RocketMQError, OSError) as error:
        raise DemoError(f"landing the table failed: {error} (see {place.spark_log})") from error
    if not stop.is_set():
        spark.read.parquet(str(place.table)).createOrReplaceTempView("flights")
    return progress


def table_totals(spark: Any) -> Totals:
    """Return the table's figures per carrier."""
    return from_rows([row.asDict() for row in spark.sql(_TOTALS_SQL).collect()])


def order_facts(spark: Any) -> dict[str, int]:
    """Return how many aircraft there are, and how many flights are out of order or moved queue."""
    return dict(spark.sql(_ORDER_SQL).collect()[0].asDict())


def delays(spark: Any) -> dict[str, dict[int, tuple[int, float]]]:
    """Return flights and average departure delay in minutes, by carrier and scheduled hour."""
    found: dict[str, dict[int, tuple[int, float]]] = {}
    for row in spark.sql(_DELAYS_SQL).collect():
        found.setdefault(row["carrier"], {})[row["hour"]] = (row["flights"], row["delay"])
    return found
