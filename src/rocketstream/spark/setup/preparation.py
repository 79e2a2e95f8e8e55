"""The environment for a Spark started by this process: a suitable Java, and this Python.

Law: imports no Spark; changes the environment variables it names and nothing else.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from rocketstream.errors import ConfigurationError
from rocketstream.spark.setup.java import Java, use_java
from rocketstream.spark.setup.launchers import launcher

_PYTHON = "PYSPARK_PYTHON"
_DRIVER_PYTHON = "PYSPARK_DRIVER_PYTHON"
_HAS_PACKAGE = "import importlib.util as u, sys; sys.exit(u.find_spec('rocketstream') is None)"
_START_TIMEOUT_S = 20
# Spark asks a shell for the program without quoting it, and finds no source if that fails.
_PLAIN = re.compile(r"[\w./+:@%,-]+", re.ASCII)


def prepare() -> Java:
    """Make the Spark that this process is about to start use this Python and a suitable Java.

    Call it before the ``SparkSession`` is made. Spark runs its Python workers, which also look up
    data sources, with the ``python3`` of the PATH; where that is another Python than this one (a
    script run by path, a notebook), PYSPARK_PYTHON is set to this one. JAVA_HOME is set where Spark
    would find no Java 17 or newer, such as the one of ``rocketstream[java]``. Variables that are
    set and suitable are left as they are. Takes about 0.1 s.

    Returns
    -------
    Java
        The Java that Spark will run on.

    Raises
    ------
    ConfigurationError
        There is no Java 17 or newer; the error says what to install.
    """
    if other_python() is not None:
        os.environ[_PYTHON] = this_python()
    return use_java()


def this_python() -> str:
    """Return the program for Spark to run this Python: a launcher if the path has a blank."""
    if _PLAIN.fullmatch(sys.executable) or os.name == "nt":
        return sys.executable
    text = f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n'
    folder = launcher("python3", text, fits=lambda place: _PLAIN.fullmatch(str(place)) is not None)
    return str(folder / "bin" / "python3")


def other_python() -> str | None:
    """Return the command of Spark's Python workers if it is another Python than this one.

    None if it is this one, or if the user has chosen one.
    """
    if os.environ.get(_PYTHON) or os.environ.get(_DRIVER_PYTHON) or not sys.executable:
        return None
    found = shutil.which("python3")
    if found is None:
        return "python3"
    # The folder counts, not the program: all environments link to one program.
    same = Path(found).parent.resolve() == Path(sys.executable).parent.resolve()
    return None if same else found


def check_lookup(spark: Any) -> None:
    """Refuse a session whose Python workers do not have this package.

    Runs the other Python only where there is one. A session of Spark Connect is not checked,
    because its workers are elsewhere.

    Raises
    ------
    ConfigurationError
        The package cannot be found there; the error says what to set.
    """
    other = other_python()
    if other is None or type(spark).__module__.startswith("pyspark.sql.connect"):
        return
    try:
        asked = subprocess.run(
            [other, "-c", _HAS_PACKAGE],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_START_TIMEOUT_S,
            check=False,
        )
        found = asked.returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        found = False
    if not found:
        raise ConfigurationError(
            f"Spark runs its Python workers with {other}, which has no rocketstream; call "
            "rocketstream.spark.prepare() before the SparkSession is made, or set "
            f"PYSPARK_PYTHON={this_python()}",
            python=other,
        )
