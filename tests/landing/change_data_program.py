"""Runs ``examples/spark/change_data`` after each line of input, and prints its tables: ``SPEC``.

A line is read before each run, and one of JSON written after it. All runs are in this process:
the tables are in its JVM's memory.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from pyspark.pipelines.cli import run
from pyspark.sql import SparkSession

CATALOG = "org.apache.spark.sql.connector.catalog.SharedTablesInMemoryRowLevelOperationTableCatalog"


def session() -> SparkSession:
    """A session of Spark Connect, on a server in this process."""
    builder = SparkSession.builder.remote("local[2]").config("spark.ui.enabled", "false")
    return builder.config("spark.sql.catalog.lake", CATALOG).getOrCreate()


def tables() -> str:
    """The table and its history, in the order of changes."""
    spark = session()
    now = spark.table("lake.shop.customers").orderBy("id").select("id", "name", "city")
    history = spark.table("lake.shop.customers_history").orderBy("id", "__START_AT")
    found = {
        "customers": [list(row) for row in now.collect()],
        "history": [[row.id, row.city, row["__END_AT"] is None] for row in history.collect()],
    }
    return json.dumps(found)


def main(spec: Path) -> None:
    """Run the pipeline for every line."""
    os.chdir(spec.parent)
    for _ in sys.stdin:
        session().sql("CREATE NAMESPACE IF NOT EXISTS lake.shop")
        run(spec, [], False, [], False)
        print(tables(), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
