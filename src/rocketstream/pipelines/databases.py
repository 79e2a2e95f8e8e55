"""Databases as targets: their drivers, types and passwords, and rows that they have already.

Spark's JDBC writer appends, whatever is there. A micro-batch that is tried again after a crash is
compared with the table by the place of each message, in the database.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from rocketstream.errors import ConfigurationError
from rocketstream.pipelines.installed import check_jar

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

PLACE: Final = ("_topic", "_brokerName", "_queueId", "_queueOffset")
"""The columns by which a message is known; no other one has all four."""
TYPES: Final = {"createTableColumnTypes": "_topic VARCHAR(255), _brokerName VARCHAR(255)"}
"""Types that databases compare and index; Spark's own for text is the greatest there is."""

_DRIVERS: Final = {
    "postgresql": ("postgresql", "org.postgresql:postgresql"),
    "mysql": ("mysql-connector", "com.mysql:mysql-connector-j"),
    "mariadb": ("mariadb-java-client", "org.mariadb.jdbc:mariadb-java-client"),
    "sqlserver": ("mssql-jdbc", "com.microsoft.sqlserver:mssql-jdbc"),
    "oracle": ("ojdbc", "com.oracle.database.jdbc:ojdbc11"),
    "db2": ("jcc", "com.ibm.db2:jcc"),
    "sqlite": ("sqlite-jdbc", "org.xerial:sqlite-jdbc"),
    "h2": ("h2", "com.h2database:h2"),
}
"""By the second word of a URL: part of the name of the driver's jar, and where to get it."""
_NO_JDBC: Final = frozenset({"struct", "map", "variant", "interval", "void", "array"})
# A failed query's text has whatever its rows have: no pattern here looks at a character more than a
# thousand times.
_NAMED: Final = re.compile(r"(?<![\w.-])([\w.-]+)\s*=\s*")
"""A parameter's name, in each spelling that drivers have, up to its value."""
_SECRET: Final = re.compile(
    "passw|pwd|passphrase|secret|token|credential|privatekey", re.IGNORECASE
)
_VALUE: Final = re.compile(r"\{[^}]{0,1000}\}|(?:(?!,\s{0,9}\w{1,99}=|\)(?:[,/()]|$))[^&;\s])*")
_PASSWORDS: Final = (
    re.compile(r"(//[^/:@\s?;]*:)[^\s?;]{0,1000}@"),  # //user:password@host
    re.compile(r"(:(?:thin|oci\d?):[^/@\s]{0,1000}/)[^\s?;]{0,1000}@", re.IGNORECASE),  # Oracle's
)


def without_secrets(text: str) -> str:
    """Return a text with ``***`` for each password in a URL, in any form drivers take."""
    shown, end = [], 0
    for found in _NAMED.finditer(text):
        if found.start() >= end and _SECRET.search(found[1]):
            value = _VALUE.match(text, found.end())
            shown += [text[end : found.end()], "***"]
            end = value.end() if value else found.end()
    text = "".join([*shown, text[end:]])
    for pattern in _PASSWORDS:
        text = pattern.sub(r"\1***@", text)
    return text


def has_places(columns: Iterable[str]) -> bool:
    """Return whether rows with these columns tell which message each is."""
    return set(PLACE) <= set(columns)


def check_database(url: str | None, columns: Mapping[str, str] | None, sql: str | None) -> None:
    """Refuse columns that a database cannot hold; with a query only Spark can tell its columns.

    Parameters
    ----------
    url : str or None
        The JDBC URL; None for a target of another kind.
    columns : mapping or None
        Names and types of the columns; None where only Spark can tell.
    sql : str or None
        The query whose result is landed instead.

    Raises
    ------
    ConfigurationError
        A column has a type that JDBC does not have.
    """
    if url is None or columns is None or sql is not None:
        return
    refused = _NO_JDBC - ({"array"} if _scheme(url) == "postgresql" else set())
    wrong = [
        f"{name} ({kind.upper()})" for name, kind in columns.items() if _first(kind) in refused
    ]
    if wrong:
        raise ConfigurationError(
            f"a database cannot hold {', '.join(wrong)}; take the fields apart with --sql, or make "
            "one text of them: --sql 'SELECT to_json(NAME) AS NAME, … FROM messages'",
            columns=wrong,
        )


def check_driver(url: str | None, config: Mapping[str, str]) -> None:
    """Refuse a database whose driver Spark will not have, before Spark is started.

    Parameters
    ----------
    url : str or None
        The JDBC URL; None for a target of another kind.
    config : mapping
        Spark settings; jars of a name of their own in it are believed to hold the driver.

    Raises
    ------
    ConfigurationError
        No jar of a driver for that URL is named or in Spark's own directory.
    """
    if url is None or (scheme := _scheme(url)) not in _DRIVERS:
        return
    if not any(config.get(name) for name in ("spark.jars", "spark.driver.extraClassPath")):
        check_jar(f"jdbc:{scheme}", *_DRIVERS[scheme], config.get("spark.jars.packages", ""))


def _first(kind: str) -> str:
    return re.split(r"\W", kind, maxsplit=1)[0].lower()


def _scheme(url: str) -> str:
    return url.split(":")[1].lower()


def insert_missing(rows: DataFrame, options: Mapping[str, str], beside: str) -> None:
    """Move rows whose messages a table does not have into it, in one statement; blocks.

    Parameters
    ----------
    rows : DataFrame
        The rows, with the columns of ``PLACE``.
    options : mapping
        Spark's options of the table: ``url``, ``dbtable`` and more.
    beside : str
        The table that holds the rows; it is dropped afterwards.
    """
    with _Statements(rows.sparkSession, options) as database:
        database.run(_insert(rows.columns, options["dbtable"], beside, database.quoted))
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

    def __init__(self, session: Any, options: Mapping[str, str]) -> None:
        jvm = session._jvm
        sources = jvm.org.apache.spark.sql
        given = jvm.java.util.HashMap()
        for name, value in options.items():
            given.put(name, value)
        scala = jvm.org.apache.spark.api.python.PythonUtils.toScalaMap(given)
        chosen = sources.execution.datasources.jdbc.JDBCOptions(scala)
        self._dialect = sources.jdbc.JdbcDialects.get(options["url"])
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
