"""A PySpark of a version, as far as it is looked for before Spark is started."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest


def make_pyspark(root: Path, version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a PySpark of this version, and nothing else of it, before the one that is installed."""
    (root / "pyspark").mkdir(parents=True)
    (root / "pyspark/__init__.py").touch()
    (root / "pyspark/version.py").write_text(f"__version__: str = '{version}'\n")
    monkeypatch.delitem(sys.modules, "pyspark", raising=False)
    monkeypatch.syspath_prepend(str(root))
