"""A compaction's requests to the store its table is in, where nothing has to be rewritten."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

from rocketstream.pipelines.compaction import compact
from rocketstream.pipelines.places import LocalPlace
from rocketstream.pipelines.targets import Target


class Asked(LocalPlace):
    """A directory that counts how often a file is read, by its name."""

    def __init__(self, path: Path, reads: Counter[str]) -> None:
        super().__init__(path)
        self.reads = reads

    def read(self, name: str) -> str | None:
        self.reads[name] += 1
        return super().read(name)

    def under(self, name: str) -> LocalPlace:
        return Asked(Path(str(self), name), self.reads)


def test_what_earlier_runs_left_waiting_is_read_once_a_run(tmp_path: Path) -> None:
    """In a store of objects each of them is a request."""
    log, work = tmp_path / "_spark_metadata", tmp_path / "_compaction"
    log.mkdir()
    work.mkdir()
    entry = {"path": f"file://{tmp_path}/merged", "size": 1 << 30, "action": "add"}
    (log / "9.compact").write_text(f"v1\n{json.dumps(entry)}", "utf-8")
    notes = [f"{number:012}.json" for number in range(1, 4)]
    for name in notes:
        source = f"file://{tmp_path}/{name}-source"
        note = {"sources": [source], "merged": [entry], "over": 9, "at": 0}
        (work / name).write_text(json.dumps(note), "utf-8")
    reads = Counter[str]()
    session: Any = None
    target = Target("parquet", str(tmp_path))
    done = compact(session, target, place=Asked(tmp_path, reads), now_ms=lambda: 1)
    assert (done.files, done.removed, done.waiting) == (0, 0, 3)
    assert {name: reads[name] for name in notes} == dict.fromkeys(notes, 1)
    assert sorted(each.name for each in work.iterdir()) == notes
