"""The ``rocketmq-progress`` data source as Spark sees it.

Rows are read on the driver and travel inside the partition: a task only hands them on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import datasource as api

from rocketstream._util.clock import SYSTEM_CLOCK
from rocketstream.errors import ConfigurationError
from rocketstream.spark.format import AvailableNow, Format, Shipped, called_by_spark, plans
from rocketstream.spark.options.formats import (
    FileOptions,
    ProgressOptions,
    file_options,
    is_of_files,
    progress_options,
)
from rocketstream.spark.progress.history import History, SnapshotOffset
from rocketstream.spark.progress.tables import (
    CLUSTER_COLUMNS,
    FILE_COLUMNS,
    Chosen,
    Row,
    choose,
    ddl,
    picked,
    read_files,
    take,
)

_TYPES: Final = {
    "string": pa.string(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "double": pa.float64(),
    "timestamp": pa.timestamp("us", "UTC"),
}
_US_PER_MS: Final = 1_000


class ProgressDataSource(Format):
    """How far consumer groups are, in batch and as a stream; or the offsets in a broker's files.

    ``spark.read.format("rocketmq-progress").option("nameServer", ...).load()`` reads a cluster,
    ``.load("/store/config/consumerOffset.json")`` a file.
    """

    @classmethod
    def name(cls) -> str:
        """Return the name for ``format``."""
        return "rocketmq-progress"

    def schema(self) -> str:
        """Return all columns; not called when the user gives a schema."""
        return ddl(FILE_COLUMNS if is_of_files(self._options) else CLUSTER_COLUMNS)

    @plans
    def reader(self, schema: Any) -> ProgressReader | OffsetFileReader:
        """Return the batch reader.

        Raises
        ------
        ConfigurationError
            An option or the schema is not accepted.
        """
        if is_of_files(self._options):
            options = file_options(self._options)
            return OffsetFileReader(options, Shape.of(FILE_COLUMNS, schema))
        return ProgressReader(progress_options(self._options), Shape.of(CLUSTER_COLUMNS, schema))

    @plans
    def streamReader(self, schema: Any) -> ProgressStreamReader:
        """Return the stream reader; raises as ``reader`` does."""
        if is_of_files(self._options):
            raise ConfigurationError(
                "offset files are read in batch: use spark.read, or leave the path out to follow "
                "a cluster"
            )
        return ProgressStreamReader(
            progress_options(self._options), Shape.of(CLUSTER_COLUMNS, schema)
        )


class ProgressPartition(Shipped, api.InputPartition):  # type: ignore[misc]
    """The one partition of a snapshot; ``value`` has its rows."""


@dataclass(frozen=True, slots=True)
class Shape:
    """The columns a read returns, out of the existing ones.

    Attributes:
        columns: name and Spark type of the existing columns.
        chosen: the requested columns.
    """

    columns: Mapping[str, str]
    chosen: Chosen

    @classmethod
    def of(cls, columns: Mapping[str, str], schema: Any) -> Shape:
        """Return the shape a Spark schema asks for.

        Raises
        ------
        ConfigurationError
            A column or type that is not ours.
        """
        fields = [(f.name, f.dataType.simpleString(), f.nullable) for f in schema.fields]
        return cls(columns, choose(columns, fields))

    def partitions(self, rows: Sequence[Row]) -> list[api.InputPartition]:
        """Return the one partition, which carries some rows."""
        return [ProgressPartition(picked(self.columns, self.chosen, rows))]

    def batches(self, partition: api.InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows a partition carries."""
        rows = partition.value
        if rows:
            kinds = [(label, self.columns[name]) for label, name in self.chosen]
            yield _batch(kinds, rows)


def _batch(columns: Sequence[tuple[str, str]], rows: Sequence[Sequence[Any]]) -> pa.RecordBatch:
    """Return rows as a record batch; timestamps are given in ms since 1970.

    Args:
        columns: name and Spark type of each.
        rows: values in the order of the columns.
    """
    arrays = []
    for index, (_, kind) in enumerate(columns):
        values = [row[index] for row in rows]
        if kind == "timestamp":
            values = [None if ms is None else ms * _US_PER_MS for ms in values]
        arrays.append(pa.array(values, _TYPES[kind]))
    schema = pa.schema([(name, _TYPES[kind]) for name, kind in columns])
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


class ProgressReader(Shipped, api.DataSourceReader):  # type: ignore[misc]
    """Reads one snapshot of a cluster.

    Spark 4.1 and later plan once per ``load()``: a DataFrame keeps its snapshot.
    """

    def __init__(self, options: ProgressOptions, shape: Shape) -> None:
        self._options = options
        self._shape = shape

    @called_by_spark
    def partitions(self) -> Sequence[api.InputPartition]:
        """Take the snapshot; blocks on the network."""
        return self._shape.partitions(take(self._options, SYSTEM_CLOCK.now_ms()))

    @called_by_spark
    def read(self, partition: api.InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the snapshot's rows."""
        yield from self._shape.batches(partition)


class OffsetFileReader(Shipped, api.DataSourceReader):  # type: ignore[misc]
    """Reads offset files of the driver's machine."""

    def __init__(self, options: FileOptions, shape: Shape) -> None:
        self._options = options
        self._shape = shape

    @called_by_spark
    def partitions(self) -> Sequence[api.InputPartition]:
        """Read the files."""
        return self._shape.partitions(read_files(self._options))

    @called_by_spark
    def read(self, partition: api.InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the files' rows."""
        yield from self._shape.batches(partition)


class ProgressStreamReader(
    Shipped,
    AvailableNow,
    api.DataSourceStreamReader,  # type: ignore[misc]
):
    """Takes a snapshot per micro-batch, at most every ``interval``."""

    def __init__(self, options: ProgressOptions, shape: Shape) -> None:
        self._options = options
        self._shape = shape
        self._open: History | None = None

    def initialOffset(self) -> dict[str, Any]:
        """Return the offset before the first snapshot."""
        return SnapshotOffset().to_json()

    @called_by_spark
    def latestOffset(
        self, start: dict[str, Any] | None = None, limit: Any = None
    ) -> dict[str, Any]:
        """Return the offset of a new snapshot, or ``start`` itself while none is due."""
        begin = None if start is None else SnapshotOffset.from_json(start)
        return self._history().latest(begin).to_json()

    @called_by_spark
    def prepareForTriggerAvailableNow(self) -> None:
        """Take one snapshot and end."""
        self._history().prepare_available_now()

    @called_by_spark
    def partitions(
        self, start: dict[str, Any], end: dict[str, Any]
    ) -> Sequence[api.InputPartition]:
        """Return the batch's snapshot, or take one if an earlier run planned the batch."""
        begin, until = SnapshotOffset.from_json(start), SnapshotOffset.from_json(end)
        rows = self._history().rows(begin, until)
        return self._shape.partitions(rows) if rows else []

    @called_by_spark
    def read(self, partition: api.InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the snapshot's rows."""
        yield from self._shape.batches(partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Do nothing: a snapshot leaves nothing to release."""

    def stop(self) -> None:
        """Stop waiting."""
        if self._open is not None:
            self._open.stop()

    def _history(self) -> History:
        if self._open is None:
            options = self._options
            self._open = History(lambda at_ms: take(options, at_ms), options.interval_ms)
        return self._open
