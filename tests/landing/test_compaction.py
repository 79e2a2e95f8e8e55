"""Compaction of landed tables: killed before each step, beside a landing and beside readers."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rocketstream.errors import ConfigurationError, SparkQueryError
from rocketstream.pipelines.compaction import Compaction, compact, plan_compaction
from rocketstream.pipelines.places import LocalPlace, Place
from rocketstream.pipelines.targets import Target

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

LISTED = 10
"""Micro-batches of a first list."""


class Landing:
    """A table that a stream lands in: a micro-batch, and a file, a row."""

    def __init__(self, spark: Any, root: Path, kind: str = "parquet") -> None:
        self.spark = spark
        self.root = root
        self.target = Target(kind, str(root / "a table"))
        self.sent = 0
        (root / "in").mkdir()

    @property
    def path(self) -> Path:
        return Path(self.target.place)

    def land(self, count: int, *columns: str, partition_by: tuple[str, ...] = ()) -> None:
        for number in range(self.sent, self.sent + count):
            (self.root / "in" / f"{number:04}").write_text(f"{number}\n")
        self.sent += count
        lines = self.spark.readStream.option("maxFilesPerTrigger", 1).text(str(self.root / "in"))
        rows = lines.selectExpr("int(value) AS id", *columns)
        writer = rows.writeStream.format(self.target.kind).partitionBy(*partition_by)
        writer = writer.option("checkpointLocation", str(self.path / "_checkpoint"))
        writer.trigger(availableNow=True).start(str(self.path)).awaitTermination()

    def table(self) -> Any:
        return self.spark.read.format(self.target.kind).load(str(self.path))

    def rows(self) -> list[int]:
        return sorted(row.id for row in self.table().collect())

    def data(self) -> set[str]:
        """The names of the files with rows, in the log or not."""
        return {each.name for each in self.path.rglob("part-*") if "_compaction" not in each.parts}

    def compact(self, keep_ms: int = 0, place: Place | None = None, now_ms: int = 1) -> Compaction:
        def clock() -> int:
            return now_ms

        return compact(self.spark, self.target, keep_ms=keep_ms, place=place, now_ms=clock)


@pytest.fixture
def landing(spark: Any, tmp_path: Path) -> Landing:
    return Landing(spark, tmp_path)


class Watched(LocalPlace):
    """A directory that calls a function before each change in it."""

    def __init__(self, path: Path, before: Callable[[str], None]) -> None:
        super().__init__(path)
        self._before = before

    def write(self, name: str, text: str) -> None:
        self._before(f"write {Path(str(self), name)}")
        super().write(name, text)

    def move(self, name: str, to: Place) -> None:
        self._before(f"move {Path(str(self), name)}")
        super().move(name, to)

    def remove(self, name: str) -> None:
        self._before(f"remove {Path(str(self), name)}")
        super().remove(name)

    def under(self, name: str) -> Place:
        return Watched(Path(str(self), name), self._before)


class Killed(BaseException):
    """The end of the process."""


def killing(step: int) -> Callable[[str], None]:
    """A function that ends the process at a call of it, by number."""
    left = iter(range(step))

    def count(change: str) -> None:
        if next(left, None) is None:
            raise Killed(change)

    return count


@pytest.mark.long
def test_a_compaction_killed_before_any_step_loses_and_repeats_nothing(landing: Landing) -> None:
    """The next one finishes or undoes it; then the folder has the rows once, and nothing else."""
    landing.land(LISTED)
    before, begun = landing.rows(), landing.root / "begun"
    shutil.copytree(landing.path, begun)
    killed = []
    for step in range(100):
        shutil.rmtree(landing.path)
        shutil.copytree(begun, landing.path)
        try:
            landing.compact(place=Watched(landing.path, killing(step)))
        except Killed as change:
            killed.append(str(change).replace(str(landing.path), ""))
        else:
            break
        assert landing.rows() == before, killed[-1]
        landing.compact()
        assert landing.rows() == before, killed[-1]
        assert len(landing.data()) == 1, killed[-1]
        assert not list(landing.path.glob("_compaction/[!.]*")), killed[-1]
    steps = [change.split()[0] for change in killed]
    assert steps == ["write", "move", "write", "write", "remove", *["remove"] * LISTED, "remove"]
    assert killed[2] == "write /_spark_metadata/9.compact"


def test_files_of_a_spark_killed_while_it_wrote_are_removed(landing: Landing) -> None:
    landing.land(LISTED)
    left = landing.path / "_compaction" / "000000000001" / "_temporary" / "0"
    left.mkdir(parents=True)
    (left / "part-0").write_bytes(b"half")
    landing.compact()
    assert not left.exists()
    assert landing.rows() == list(range(LISTED))


def test_a_reader_that_starts_at_any_step_sees_each_row_once(landing: Landing) -> None:
    """Those that began before go on with the files that were replaced."""
    landing.land(LISTED + 2)
    early, seen = landing.table(), []
    assert len(early.inputFiles()) == LISTED + 2
    watched = Watched(landing.path, lambda change: seen.append(landing.rows()))
    done = landing.compact(3_600_000, watched)
    assert (done.files, done.into, done.removed, done.waiting) == (LISTED, 1, 0, LISTED)
    assert len(seen) == 5
    assert all(rows == list(range(LISTED + 2)) for rows in [*seen, landing.rows()])
    assert len(landing.table().inputFiles()) == 3
    assert sorted(row.id for row in early.collect()) == list(range(LISTED + 2))
    assert landing.compact(3_600_000, now_ms=3_600_000).removed == 0
    assert landing.compact(3_600_000, now_ms=3_600_001).removed == LISTED


@pytest.mark.long
def test_a_landing_goes_on_while_its_table_is_compacted(landing: Landing) -> None:
    """A micro-batch or ten before each step: a new list of Spark's comes between any two."""
    landing.land(LISTED)
    counts = iter([1, 9, 10, 1])

    def go_on(change: str) -> None:
        landing.land(next(counts, 0))

    landing.compact(3_600_000, Watched(landing.path, go_on))
    assert next(counts, None) is None
    assert landing.rows() == list(range(landing.sent))
    landing.land(LISTED)
    landing.compact()
    assert landing.rows() == list(range(landing.sent))
    assert len(landing.table().inputFiles()) <= LISTED


def test_a_landing_that_read_the_list_before_brings_the_files_back_and_loses_none(
    landing: Landing,
) -> None:
    """It writes the next list from what it read; so nothing is removed before there is one."""
    landing.land(2 * LISTED - 1)
    newest = landing.path / "_spark_metadata" / "9.compact"
    read, small = newest.read_bytes(), landing.data()
    assert landing.compact().waiting == LISTED
    assert small < landing.data()
    newest.write_bytes(read)
    landing.land(1)
    assert landing.rows() == list(range(2 * LISTED))
    assert len(landing.table().inputFiles()) == 2 * LISTED
    done = landing.compact()
    assert (done.files, done.into, done.removed, done.waiting) == (11, 1, 21, 0)
    assert landing.rows() == list(range(2 * LISTED))
    assert len(landing.data()) == 1


@pytest.mark.long
def test_nothing_is_removed_while_a_landing_may_be_writing_the_next_list(landing: Landing) -> None:
    landing.land(2 * LISTED - 1)
    assert landing.compact().removed == 0
    assert landing.compact().removed == 0
    landing.land(1)
    assert landing.compact().removed == LISTED + 1 + 10
    assert landing.rows() == list(range(2 * LISTED))


@pytest.mark.long
@pytest.mark.parametrize("kind", ["parquet", "orc"])
def test_partitions_keep_their_names_and_columns_that_came_later(
    spark: Any, tmp_path: Path, kind: str
) -> None:
    """Values that look like numbers, have signs of paths or are missing; a column more."""
    landing = Landing(spark, tmp_path, kind)
    town = "CASE id % 3 WHEN 0 THEN '01' WHEN 1 THEN 'a b/{1}%' END AS town"
    landing.land(LISTED, town, partition_by=("town",))
    landing.land(LISTED, town, "id * 2 AS twice", partition_by=("town",))

    def read() -> list[Any]:
        table = spark.read.option("mergeSchema", True).format(kind).load(str(landing.path))
        return sorted(map(tuple, table.select("id", "town", "twice").collect()))

    before = read()
    places = {each.parent.name for each in landing.path.rglob(f"*.{kind}")}
    assert landing.compact().into == 3
    assert read() == before
    assert {each.parent.name for each in landing.path.rglob(f"*.{kind}")} == places
    assert len(landing.data()) == 3


@pytest.mark.long
def test_a_file_that_cannot_be_read_leaves_the_table_as_it_is(landing: Landing) -> None:
    """Though the session passes over such files."""
    landing.land(LISTED)
    broken = sorted(landing.path.glob("part-*"))[3]
    broken.write_bytes(broken.read_bytes()[:-9] + b"\0" * 9)
    log = landing.path / "_spark_metadata" / "9.compact"
    before = log.read_bytes()
    landing.spark.conf.set("spark.sql.files.ignoreCorruptFiles", "true")
    try:
        with pytest.raises(SparkQueryError, match=broken.name):
            landing.compact()
    finally:
        landing.spark.conf.unset("spark.sql.files.ignoreCorruptFiles")
    assert log.read_bytes() == before


def test_a_second_compaction_of_a_table_is_refused(landing: Landing) -> None:
    landing.land(LISTED)

    def once_more(change: str) -> None:
        with pytest.raises(ConfigurationError, match="is being compacted by another run"):
            landing.compact()

    assert landing.compact(place=Watched(landing.path, once_more)).into == 1


@pytest.mark.long
def test_a_table_that_only_hadoop_reaches_is_compacted(spark: Any, tmp_path: Path) -> None:
    name = "fs.viewfs.mounttable.compacted.link./tables"
    spark.conf.set(name, tmp_path.as_uri())
    landing = Landing(spark, tmp_path)
    landing.target = dataclasses.replace(landing.target, place="viewfs://compacted/tables/a table")
    inbox = spark.readStream.option("maxFilesPerTrigger", 1).text(str(tmp_path / "in"))
    for number in range(LISTED):
        (tmp_path / "in" / f"{number}").write_text(f"{number}\n")
    writer = inbox.selectExpr("int(value) AS id").writeStream.format("parquet")
    writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
    writer.trigger(availableNow=True).start(landing.target.place).awaitTermination()
    assert plan_compaction(spark, landing.target).files == LISTED
    table = spark.read.parquet(landing.target.place)
    before = sorted(table.collect())
    done = landing.compact()
    assert (done.files, done.into, done.removed) == (LISTED, 1, LISTED)
    assert sorted(spark.read.parquet(landing.target.place).collect()) == before
    spark.conf.unset(name)
