"""The environment for a Spark started by this process: a suitable Java, and this Python.

Law: imports no Spark; changes the environment variables it names and nothing else.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

from rocketstream.errors import ConfigurationError
from rocketstream.spark.setup.java import Java, use_java
from rocketstream.spark.setup.launchers import launcher

_PYTHON = "PYSPARK_PYTHON"
_DRIVER_PYTHON = "PYSPARK_DRIVER_PYTHON"
_HAS_PACKAGE = "import importlib.util as u, sys; sys.exit(u.find_spec('rocketstream') is None)"
_START_TIMEOUT_S = 20
_log = logging.getLogger("rocketstream.spark")
# Spark asks a shell for the program without quoting it, and finds no source if that fails.
_PLAIN = re.compile(r"[\w./+:@%,-]+", re.ASCII)


_QUICK: Final = """#!/bin/sh
# Starts Python without the archives of PySpark that Spark puts in front of what is installed: they
# hold nothing compiled, and each process would compile all it imports anew.
set -f
kept= between=
IFS=:
for part in $PYTHONPATH; do
  case "$part" in
    {archives}) ;;
    *) kept=$kept$between$part between=: ;;
  esac
done
unset IFS
if [ -n "$kept" ]; then export PYTHONPATH="$kept"; else unset PYTHONPATH; fi
exec {python} "$@"
"""


def prepare(*, local: bool = False) -> Java:
    """Make the Spark that this process is about to start use this Python and a suitable Java.

    Call it before the ``SparkSession`` is made. Spark runs its Python workers, which also look up
    data sources, with the ``python3`` of the PATH. Where that is this Python, a folder goes in
    front of the PATH whose ``python3`` starts it in a third of the time (``local_python``);
    executors on other machines have a PATH of their own. Where it is another Python (a script run
    by path, a notebook), PYSPARK_PYTHON is set to this one. JAVA_HOME is set where Spark would find
    no Java 17 or newer, such as the one of ``rocketstream[java]``. Variables that are set and
    suitable are left as they are. Takes about 0.1 s.

    Parameters
    ----------
    local : bool
        Whether all executors are on this machine: PYSPARK_PYTHON is set to ``local_python()``,
        unless a Python was chosen.

    Returns
    -------
    Java
        The Java that Spark will run on.

    Raises
    ------
    ConfigurationError
        There is no Java 17 or newer; the error says what to install.
    """
    if not _is_chosen():
        if local:
            os.environ[_PYTHON] = local_python()
        elif other_python() is not None:
            os.environ[_PYTHON] = this_python()
        elif (quick := local_python()) != this_python():
            _put_in_front(Path(quick).parent)
    return use_java()


def local_python() -> str:
    """Return the program for Spark to run this Python on this machine, quickly started.

    Spark puts the archives of its own Python in front of what is installed. They hold no compiled
    modules, so each process compiles what it imports, which takes three times as long as loading
    it; a busy machine then exceeds the ten seconds that Spark waits for a stream's Python. The
    program is a launcher that leaves out those of the PySpark this Python has installed; a Spark of
    another SPARK_HOME keeps its own. ``this_python()`` where there is nothing to leave out, or no
    folder for a launcher.
    """
    found = importlib.util.find_spec("pyspark")
    folders = found.submodule_search_locations if found is not None else None
    archives = Path(folders[0], "python", "lib") if folders else None
    if os.name == "nt" or archives is None or not (archives / "pyspark.zip").exists():
        return this_python()
    places = dict.fromkeys(shlex.quote(str(each)) for each in (archives, archives.resolve()))
    patterns = [f"{place}/{name}" for place in places for name in ("pyspark.zip", "py4j-*-src.zip")]
    text = _QUICK.format(archives="|".join(patterns), python=shlex.quote(sys.executable))
    try:
        return _launched(text)
    except ConfigurationError as error:  # it only saves time
        _log.info("Spark starts its Python processes slowly: %s", error)
        return this_python()


def _put_in_front(folder: Path) -> None:
    before = os.environ.get("PATH", os.defpath)
    if before.split(os.pathsep)[0] != str(folder):
        os.environ["PATH"] = f"{folder}{os.pathsep}{before}"


def this_python() -> str:
    """Return the program for Spark to run this Python: a launcher if the path has a blank."""
    if _PLAIN.fullmatch(sys.executable) or os.name == "nt":
        return sys.executable
    return _launched(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n')


def _launched(text: str) -> str:
    folder = launcher("python3", text, fits=lambda place: _PLAIN.fullmatch(str(place)) is not None)
    return str(folder / "bin" / "python3")


def _is_chosen() -> bool:
    return bool(os.environ.get(_PYTHON) or os.environ.get(_DRIVER_PYTHON))


def other_python() -> str | None:
    """Return the command of Spark's Python workers if it is another Python than this one.

    None if it is this one, or if the user has chosen one.
    """
    if _is_chosen() or not sys.executable:
        return None
    found = shutil.which("python3")
    if found is None:
        return "python3"
    # The folder counts, not the program: all environments link to one program.
    folders = (Path(sys.executable).parent, Path(local_python()).parent)
    same = Path(found).parent.resolve() in [folder.resolve() for folder in folders]
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
