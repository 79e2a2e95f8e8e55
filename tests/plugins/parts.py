"""Runs the files of a suite in the order of their need, and begins none after a given time.

Law: knows pytest, nothing of the project; does nothing unless ``CI_RECORD`` names a file.

The record keeps of each file how long it took and when it was last run. Files that have waited
longest come first, and of those that were run together the longest, so that the workers end
together; where nothing is recorded, ``seconds.json`` says which files are long. From
``CI_LAST_BEGIN`` on (seconds since 1970) no further file is begun, nor before one that would end
more than ten minutes after it: its tests are skipped, the summary names it, and it is among the
first the next time.
"""

from __future__ import annotations

import json
import os
import time
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import pytest

LEFT: Final = "left for the next run: its time was over"
DAY_S: Final = 86_400
LATE_S: Final = 600
"""How long after the last begin a file may be expected to end."""
KNOWN: Final = Path(__file__).with_name("seconds.json")
"""Seconds of the files that take a minute or more, as a quiet run recorded them."""


def file_of(nodeid: str) -> str:
    """The file a test stands in."""
    return nodeid.partition("::")[0]


def in_order(
    files: Iterable[str], record: dict[str, Any], day: int, known: dict[str, float]
) -> list[str]:
    """Files by need: never run, then waiting longest, then the longest first.

    Short ones without a record begin at another one each day: on a machine that keeps none, and
    never has the time for all of them, each has its turn.

    Args:
        files: paths of a suite's files.
        record: what earlier runs on this machine recorded of each.
        day: days since 1970.
        known: seconds of long files.
    """
    names = sorted(set(files))
    start = day % max(1, len(names))
    turned = names[start:] + names[:start]

    def need(file: str) -> tuple[float, float]:
        kept = record.get(file, {"ran": 0, "seconds": known.get(file, 0.0)})
        return kept["ran"], -kept["seconds"]

    return sorted(turned, key=need)


class Parts:
    """One run of pytest, a worker's or the controller's."""

    def __init__(self, path: Path, last_begin_s: float, *, is_worker: bool) -> None:
        self._path = path
        self._last_begin_s = last_begin_s
        self._is_worker = is_worker
        self._record: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
        self._known: dict[str, float] = json.loads(KNOWN.read_text())
        self._begun: set[str] = set()
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._left: set[str] = set()

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Put the files in order; within a file nothing changes."""
        day = int(self._last_begin_s // DAY_S)
        files = in_order((file_of(item.nodeid) for item in items), self._record, day, self._known)
        place = {file: at for at, file in enumerate(files)}
        items.sort(key=lambda item: place[file_of(item.nodeid)])

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Begin no file after its time; one that was begun is run to its end."""
        file = file_of(item.nodeid)
        if file not in self._begun and self._is_too_late(file):
            pytest.skip(LEFT)
        self._begun.add(file)

    def _is_too_late(self, file: str) -> bool:
        kept = self._record.get(file, {"seconds": self._known.get(file, 0.0)})
        now = time.time()
        return now > self._last_begin_s or now + kept["seconds"] > self._last_begin_s + LATE_S

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count what each file takes."""
        file = file_of(report.nodeid)
        self._seconds[file] += report.duration
        if report.skipped and LEFT in str(report.longrepr):
            self._left.add(file)

    def pytest_sessionfinish(self) -> None:
        """Write what was learnt down, once for all workers."""
        if self._is_worker:
            return
        now = int(time.time())
        for file in self._seconds.keys() - self._left:
            self._record[file] = {"ran": now, "seconds": round(self._seconds[file], 1)}
        self._path.parent.mkdir(parents=True, exist_ok=True)
        fresh = self._path.with_suffix(".new")
        fresh.write_text(json.dumps(self._record, indent=1, sort_keys=True))
        fresh.replace(self._path)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Say which files were left, and which took longest."""
        for seconds, file in sorted(((s, f) for f, s in self._seconds.items()), reverse=True)[:10]:
            terminalreporter.write_line(f"{seconds:7.1f} s {file}")
        for file in sorted(self._left):
            terminalreporter.write_line(f"left for the next run: {file}")


def pytest_configure(config: pytest.Config) -> None:
    """Take part where CI asks for it."""
    path = os.environ.get("CI_RECORD")
    if path:
        end = float(os.environ.get("CI_LAST_BEGIN", "1e11"))
        is_worker = hasattr(config, "workerinput")
        config.pluginmanager.register(Parts(Path(path), end, is_worker=is_worker), "ci-parts")
