"""Skips tests of packages that the environment was made without, and says which.

Law: acts only where ``ROCKETSTREAM_LACKS`` names modules, as scripts/pythons.py does for a Python
that some packages have no wheel for. Anywhere else a missing package fails the tests of it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Generator
from pathlib import Path
from typing import TypeVar

import pytest

LACKS = frozenset(os.environ.get("ROCKETSTREAM_LACKS", "").split())
MISSING = re.compile(r"No module named '(\w+)|needs the package (\w+)")


def lacking(text: str, lacks: frozenset[str] = LACKS) -> str:
    """Return the first module of those left out that a failure's text is about, or nothing."""
    found = (first or second for first, second in MISSING.findall(text))
    return next((name for name in found if name in lacks), "")


R = TypeVar("R", pytest.CollectReport, pytest.TestReport)


def _skipped(report: R, path: Path) -> R:
    """Return a report, as one of a skip if it failed for want of a package left out."""
    if LACKS and report.failed and (name := lacking(str(report.longrepr))):
        report.outcome = "skipped"
        report.longrepr = (str(path), 0, f"Skipped: this Python has no {name}")
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Skip a module of tests that cannot be imported."""
    return _skipped((yield), collector.path)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Skip a test that came upon what is missing."""
    return _skipped((yield), item.path)
