"""The ingest pipeline's own decisions, without Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from rocketstream.errors import ConfigurationError, SparkQueryError
from rocketstream.pipelines import ingest as ingesting
from rocketstream.pipelines.ingest import IngestPlan, ingest, prepare_target
from rocketstream.pipelines.targets import Target
from rocketstream.spark.push.queries import STARTS_MAX


def plan(path: Path, topic: str = "T", **changes: Any) -> IngestPlan:
    source = {"nameServer": "127.0.0.1:9876"}
    return IngestPlan((topic,), source, Target("parquet", str(path)), **changes)


@pytest.mark.parametrize("batch", [0, 150])
def test_a_table_is_known_again_however_many_batches_it_has(tmp_path: Path, batch: int) -> None:
    """Spark throws old offsets away, the first one too, after a hundred batches."""
    table = plan(tmp_path / "table")
    prepare_target(table)
    assert not table.resumes
    offsets = Path(table.checkpoint, "offsets")
    offsets.mkdir(parents=True)
    (offsets / f".{batch}.crc").touch()
    assert not table.resumes
    (offsets / str(batch)).touch()
    assert table.resumes
    prepare_target(table)
    with pytest.raises(
        ConfigurationError, match=r"was landed with topics=\['T'\], now it is \['other'\]"
    ):
        prepare_target(plan(tmp_path / "table", "other"))


class Query:
    """A query that has ended."""

    name = "ingest T"

    @property
    def isActive(self) -> bool:
        return False

    @property
    def recentProgress(self) -> tuple[()]:
        return ()

    def __init__(self, failure: str | None = None) -> None:
        self._failure = failure

    def exception(self) -> str | None:
        return self._failure


LATE = "[STREAM_FAILED] Query terminated: Python worker failed to connect back."


@pytest.mark.parametrize("late", range(STARTS_MAX + 1))
def test_a_query_whose_python_started_late_is_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, late: int
) -> None:
    queries = iter([Query(LATE)] * late + [Query()])
    monkeypatch.setattr(ingesting, "start_query", lambda *_: next(queries))
    made: Any = plan(tmp_path / "table")
    if late < STARTS_MAX:
        assert ingest(cast("Any", None), made).rows == 0
        assert next(queries, None) is None
    else:
        with pytest.raises(SparkQueryError, match="failed to connect back"):
            ingest(cast("Any", None), made)


def test_a_query_that_failed_otherwise_is_not_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queries = iter([Query("the table is gone"), Query()])
    monkeypatch.setattr(ingesting, "start_query", lambda *_: next(queries))
    with pytest.raises(SparkQueryError, match="the table is gone"):
        ingest(cast("Any", None), plan(tmp_path / "table"))
    assert next(queries, None) is not None
