"""The installed Spark, found out before it is started.

Law: imports nothing of Spark; it looks at files, and works where Spark is not installed.
"""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Final

_VERSION: Final = re.compile(r"__version__[^=\n]*=\s*[\"'](\d+(?:\.\d+)*)")
_LIMITS_SINCE: Final = (4, 2)


def spark_version() -> str | None:
    """Return the version of PySpark; None where it is missing or names no version."""
    spec = importlib.util.find_spec("pyspark")
    for home in (spec.submodule_search_locations or []) if spec else []:
        says = Path(home, "version.py")
        found = _VERSION.search(says.read_text("utf-8")) if says.is_file() else None
        if found:
            return found[1]
    return None


def spark_line(version: str | None) -> str | None:
    """Return the first two numbers of a version."""
    return None if version is None else ".".join(version.split(".")[:2])


def limits_batches(version: str | None) -> bool:
    """Whether this Spark can ask a Python source for only a part of what is available."""
    if version is None:
        return True
    return tuple(int(part) for part in version.split(".")[:2]) >= _LIMITS_SINCE
