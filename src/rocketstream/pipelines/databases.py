"""Rows that a database has already: a micro-batch that is tried again is not written twice.

Spark's JDBC writer appends, whatever is there. A micro-batch that is tried again after a crash is
compared with the table by the place of each message, in the database.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

PLACE: Final = ("_topic", "_brokerName", "_queueId", "_queueOffset")
"""The columns by which a message is known; no other one has all four."""
TYPES: Final = {"createTableColumnTypes": "_topic VARCHAR(255), _brokerName VARCHAR(255)"}
"""Types that databases compare and index; Spark's own for text is the greatest there is."""


def has_places(columns: Iterable[str]) -> bool:
    """Return whether rows with these columns tell which message each is."""
    return set(PLACE) <= set(columns)


def insert_missing(rows: DataFrame, url: str, table: str, options: Mapping[str, str]) -> None:
    """Append rows whose messages the table does not have, in one statement; blocks.

    The rows go into a table beside it, ``…_landing``, which is dropped afterwards.

    Parameters
    ----------
    rows : DataFrame
        With the columns of ``PLACE``.
    url, table : str
        The database and its table; Spark makes the table where there is none.
    options : mapping
        Spark's options of its JDBC writer.
    """
    beside = f"{table}_landing"
    given = {**TYPES, **options, "url": url}
    for frame, mode, name in ((rows.limit(0), "append", table), (rows, "overwrite", beside)):
        frame.write.format("jdbc").mode(mode).options(**given).option("dbtable", name).save()
    with _Statements(rows.sparkSession, url, table, options) as database:
        database.run(_insert(rows.columns, table, beside, database.quoted))
        database.run(f"DROP TABLE {beside}")


def _insert(columns: Sequence[str], table: str, beside: str, quoted: Any) -> str:
    names = [quoted(name) for name in columns]
    same = " AND ".join(f"t.{quoted(name)} = s.{quoted(name)}" for name in PLACE)
    chosen = ", ".join(f"s.{name}" for name in names)
    return (
        f"INSERT INTO {table} ({', '.join(names)}) SELECT {chosen} FROM {beside} s "
        f"WHERE NOT EXISTS (SELECT 1 FROM {table} t WHERE {same})"
    )


class _Statements:
    """A connection of Spark's own to a database, with its drivers and its dialect."""

    def __init__(self, session: Any, url: str, table: str, options: Mapping[str, str]) -> None:
        jvm = session._jvm
        sources = jvm.org.apache.spark.sql
        given = jvm.java.util.HashMap()
        for name, value in {"url": url, "dbtable": table, **options}.items():
            given.put(name, value)
        scala = jvm.org.apache.spark.api.python.PythonUtils.toScalaMap(given)
        chosen = sources.execution.datasources.jdbc.JDBCOptions(scala)
        self._dialect = sources.jdbc.JdbcDialects.get(url)
        self._connection = self._dialect.createConnectionFactory(chosen).apply(-1)

    def __enter__(self) -> _Statements:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def quoted(self, name: str) -> str:
        """Return a column's name as this database spells it."""
        return str(self._dialect.quoteIdentifier(name))

    def run(self, statement: str) -> None:
        """Carry out one statement."""
        made = self._connection.createStatement()
        try:
            made.executeUpdate(statement)
        finally:
            made.close()
