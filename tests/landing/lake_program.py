"""Reads a table a landing has made: ``FORMAT PLACE NAME=VALUE...``, the last ones Spark's settings.

Prints one JSON list of ``[queue, offset, id, city]``; a table that never had a city has nulls.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tests.plugins.spark import session_builder


def main(kind: str, place: str, root: Path, *settings: str) -> None:
    """Print the rows."""
    builder = session_builder(root)
    for name, _, value in (setting.partition("=") for setting in settings):
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    reader = spark.read.format(kind).option("mergeSchema", True)
    frame = spark.table(place) if kind == "iceberg" else reader.load(place)
    rows = frame.select("_queueId", "_queueOffset", "id", "city").collect()
    print(json.dumps(sorted([list(row) for row in rows], key=lambda row: row[:2])))
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]), *sys.argv[4:])
