"""The ingest pipeline's own decisions, without Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rocketstream.errors import ConfigurationError
from rocketstream.pipelines.ingest import IngestPlan, prepare_target
from rocketstream.pipelines.targets import Target


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
