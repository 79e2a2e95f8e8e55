"""Which lines of an area's modules each test reaches, and what it takes.

Law: what is kept on disk is found again only for the same texts of modules and test.
"""

from __future__ import annotations

import hashlib
import json
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from tests.mutation.areas import ROOT

KEPT = ROOT / ".mutation"


@dataclass(frozen=True)
class Reach:
    """What a test reached: lines by file. ``ok`` is False where it failed without any change."""

    ok: bool
    seconds: float
    lines: dict[str, frozenset[int]]


class Tracer:
    """Notes the lines of some files that run, in every thread that starts from now on."""

    def __init__(self, files: Sequence[str]) -> None:
        self._lines: dict[str, set[int]] = {file: set() for file in files}

    def begin(self) -> None:
        """Forget what was noted."""
        for lines in self._lines.values():
            lines.clear()

    def install(self) -> None:
        """Note from now on."""
        threading.settrace(self._call)
        sys.settrace(self._call)

    def noted(self) -> dict[str, list[int]]:
        """Return the lines of each file that ran."""
        return {file: sorted(lines) for file, lines in self._lines.items() if lines}

    def _call(self, frame: FrameType, event: str, arg: object) -> Any:
        lines = self._lines.get(frame.f_code.co_filename)
        if lines is None:
            return None
        add = lines.add

        def local(frame: FrameType, event: str, arg: object) -> Any:
            add(frame.f_lineno)
            return local

        return local(frame, event, arg)


def record(items: Sequence[pytest.Item], files: Sequence[str], failed: set[str]) -> str:
    """Run tests and return what each reached, as JSON; ``failed`` gets the names that failed."""
    tracer = Tracer(files)
    tracer.install()
    told = {}
    for index, item in enumerate(items):
        following = items[index + 1] if index + 1 < len(items) else None
        tracer.begin()
        began = time.monotonic()
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        took = round(time.monotonic() - began, 3)
        told[item.nodeid] = [item.nodeid not in failed, took, tracer.noted()]
    return json.dumps(told)


def read(text: str) -> dict[str, Reach]:
    """Return what ``record`` returned as values."""
    return {
        name: Reach(ok, seconds, {file: frozenset(lines) for file, lines in noted.items()})
        for name, (ok, seconds, noted) in json.loads(text).items()
    }


class Kept:
    """What was reached in an earlier run, by test file; an empty directory knows nothing."""

    def __init__(self, files: Sequence[str], directory: Path = KEPT) -> None:
        self._directory = directory
        self._modules = hashlib.sha256()
        for file in files:
            self._modules.update(Path(file).read_bytes())

    def find(self, test_file: Path) -> str | None:
        """Return what ``keep`` was given for this text of the test and of the modules."""
        place = self._place(test_file)
        return place.read_text(encoding="utf-8") if place.exists() else None

    def keep(self, test_file: Path, text: str) -> None:
        """Keep it."""
        self._directory.mkdir(exist_ok=True)
        self._place(test_file).write_text(text, encoding="utf-8")

    def _place(self, test_file: Path) -> Path:
        digest = self._modules.copy()
        digest.update(test_file.read_bytes())
        return self._directory / f"{test_file.stem}-{digest.hexdigest()[:24]}.json"
