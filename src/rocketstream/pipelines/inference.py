"""The schema of bodies, inferred from a sample of them.

A bounded number of messages is read; the schema is text for ``Bodies``, which can be shown before
anything is landed.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Final

from rocketstream.errors import ConfigurationError
from rocketstream.pipelines.bodies import Bodies

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SAMPLE_ROWS: Final = 1_000


def infer_bodies(session: SparkSession, messages: DataFrame, bodies: Bodies) -> Bodies:
    """Return the bodies with the schema inferred from a sample, as DDL.

    Parameters
    ----------
    session : SparkSession
        Not of Spark Connect.
    messages : DataFrame
        A batch read with a column ``body``; its first rows are the sample.
    bodies : Bodies
        Bodies of JSON or CSV. Where there is no schema to infer they are returned unchanged.

    Raises
    ------
    ConfigurationError
        There is no message to sample, or no sampled message shows any columns.
    """
    if not bodies.inferred:
        return bodies
    rows = messages.select("body").limit(SAMPLE_ROWS).collect()
    texts = [bytes(row.body).decode("utf-8", "replace") for row in rows]
    if not texts:
        raise ConfigurationError(
            "there is no message to infer a schema from; give the schema, or wait for messages"
        )
    lines: Any = session.sparkContext.parallelize(texts, 1)
    if bodies.format == "csv":
        found = session.read.options(inferSchema="true", **bodies.options).csv(lines).schema
    else:
        found = session.read.options(**bodies.options).json(lines).schema
    fields = [field for field in found.fields if field.name != "_corrupt_record"]
    if not fields:
        raise ConfigurationError(
            f"none of the first {len(texts)} messages is {bodies.format.upper()} with columns, so "
            f"no schema can be inferred; the first is {texts[0][:100]!r}"
        )
    return dataclasses.replace(bodies, schema=type(found)(fields).toDDL())
