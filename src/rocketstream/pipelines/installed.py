"""The installed Spark, found out before it is started.

Law: imports nothing of Spark; it looks at files, and works where Spark is not installed.
"""

from __future__ import annotations

import importlib.util
import os
import re
from pathlib import Path
from typing import Final

from rocketstream.errors import ConfigurationError

_VERSION: Final = re.compile(r"__version__[^=\n]*=\s*[\"'](\d+(?:\.\d+)*)")
_LIMITS_SINCE: Final = (4, 2)


def importable(name: str) -> bool:
    """Return whether a module is installed; it is not imported."""
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # the package a module would be in
        return False


def spark_version() -> str | None:
    """Return the version of PySpark; None where it is missing or names no version."""
    for home in _homes():
        says = Path(home, "version.py")
        found = _VERSION.search(says.read_text("utf-8")) if says.is_file() else None
        if found:
            return found[1]
    return None


def spark_jars() -> list[str]:
    """Return the names of the jars in Spark's own directories, in lower case."""
    directories = [Path(home, "jars") for home in (os.environ.get("SPARK_HOME"), *_homes()) if home]
    return [
        entry.name.lower()
        for directory in directories
        if directory.is_dir()
        for entry in directory.iterdir()
    ]


def check_jar(needs: str, mark: str, package: str, named: str) -> None:
    """Refuse to begin where neither settings nor Spark's own directories name a jar.

    Parameters
    ----------
    needs : str
        The kind of target, format of bodies or scheme of a URL that needs it.
    mark : str
        How the name of the jar begins.
    package : str
        Where Spark gets it from.
    named : str
        The settings that may name it.

    Raises
    ------
    ConfigurationError
        The jar is missing.
    """
    if mark in named.lower() or any(name.startswith(mark) for name in spark_jars()):
        return
    raise ConfigurationError(
        f"{needs} needs a package that this Spark ({spark_version() or 'version unknown'}) does "
        f"not have; add --package {package}:VERSION (Spark fetches it), or put its jar into "
        "Spark's jars directory",
        needs=needs,
    )


def _homes() -> list[str]:
    spec = importlib.util.find_spec("pyspark")
    return list(spec.submodule_search_locations or []) if spec else []


def spark_line(version: str | None) -> str | None:
    """Return the first two numbers of a version."""
    return None if version is None else ".".join(version.split(".")[:2])


def limits_batches(version: str | None) -> bool:
    """Whether this Spark can ask a Python source for only a part of what is available."""
    if version is None:
        return True
    return tuple(int(part) for part in version.split(".")[:2]) >= _LIMITS_SINCE
