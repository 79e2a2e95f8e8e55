"""Run the tests that need Python only on every supported Python that is installed here.

Looks on the PATH, in pyenv's folder and at the programs given as arguments; each gets an
environment of its own in ``.pythons/``. Ends with a table of what ran on which Python and how long
it took, and of what is not here; with 1 when tests failed, on a free-threaded Python too, or when
there was no supported Python to run them on. ``ONLY="3.13 3.14t"`` tries those alone, ``WORKERS``
says how many processes run tests (2), ``LIMIT_MIN`` after how many minutes they are ended as tests
that hang (60).
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterable, Mapping
from pathlib import Path
from time import monotonic
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
SUPPORTED = ("3.11", "3.12", "3.13", "3.14")
FREE_THREADED = ("3.13t", "3.14t")
MARKS = "not interop and not long and not versions and not spark"
# Needs more than Python and the package, or is about this repository, whatever Python it runs on.
ELSEWHERE = (
    "benchmarks", "dashboard", "demo", "docs", "frameworks", "mutants", "mutation", "outside",
    "scripts", "tidy", "typing", "wheel",
)  # fmt: skip
TESTS = ("tests", *(f"--ignore=tests/{folder}" for folder in ELSEWHERE))
ASKING = (
    "import sys, sysconfig; of = sys.version_info; print('%d.%d%s %d.%d.%d' % (*of[:2],"
    " 't' if sysconfig.get_config_var('Py_GIL_DISABLED') else '', *of[:3]))"
)
TESTING = ["pytest", "pytest-timeout", "pytest-xdist", "hypothesis", "hatchling", "editables"]
# What a free-threaded Python may have no wheel for is left out there, and tests of it are skipped:
# the package and the module that is missing then.
OPTIONAL = {
    "orjson": "orjson",
    "uvloop": "uvloop",
    "lz4": "lz4",
    "zstandard": "zstandard",
    "cryptography": "cryptography",
    "pyyaml": "yaml",
    "numpy": "numpy",
    "pyarrow": "pyarrow",
    "fastavro": "fastavro",
    "protobuf": "google",
    "click": "click",
    "rich": "rich",
    "textual": "textual",
    "starlette": "starlette",
    "uvicorn": "uvicorn",
    "jinja2": "jinja2",
    "python-multipart": "python_multipart",
    "httpx": "httpx",
    "opentelemetry-api": "opentelemetry",
    "opentelemetry-sdk": "opentelemetry",
    "opentelemetry-instrumentation": "opentelemetry",
    "pexpect": "pexpect",
    "pyte": "pyte",
    "pydantic": "pydantic",
    "mcp": "mcp",
    "taskiq": "taskiq",
    "celery": "celery",
    "faststream": "faststream",
    "fastapi": "fastapi",
}
# 400 MB from source, and Spark's own Python workers are no free-threaded ones.
NEVER = {"pyspark": "pyspark"}


class Tried(NamedTuple):
    """What became of the tests on one Python."""

    good: bool
    said: str  # such as "1287 passed, 3 skipped, 24 s"


def candidates(given: Iterable[str]) -> list[Path]:
    """Return programs that may be Pythons: those given, of the PATH, of pyenv."""
    places = [Path(place) for place in os.environ.get("PATH", os.defpath).split(os.pathsep)]
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    places += sorted((pyenv / "versions").glob("*/bin"))
    names = [f"python{tag}" for tag in (*SUPPORTED, *FREE_THREADED)]
    found = [Path(program) for program in given]
    found += [place / name for place in places for name in names]
    return [program for program in found if os.access(program, os.X_OK)]


def tag_of(program: Path) -> tuple[str, str]:
    """Return what a program calls itself, such as ``3.13t``, and its version, or two nothings."""
    try:
        done = subprocess.run(
            [program, "-c", ASKING], capture_output=True, text=True, timeout=60, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return "", ""
    tag, _, version = done.stdout.strip().partition(" ")
    return (tag, version) if done.returncode == 0 else ("", "")


def installed(given: Iterable[str]) -> dict[str, tuple[Path, str]]:
    """Return the first program of each Python that is asked for here, and its version."""
    found: dict[str, tuple[Path, str]] = {}
    for program in candidates(given):
        tag, version = tag_of(program)
        if tag in SUPPORTED or tag in FREE_THREADED:
            found.setdefault(tag, (program, version))
    return {tag: found[tag] for tag in (*SUPPORTED, *FREE_THREADED) if tag in found}


def run(*words: str | Path, lacks: str = "", limit_s: float | None = None) -> bool:
    """Run a program in the clone, what it began ended with it; return whether it succeeded.

    Args:
        words: the program and its arguments.
        lacks: modules its environment lacks: tests/plugins/lacking.py skips what needs them.
        limit_s: when it is ended; None is never.
    """
    environ: Mapping[str, str] = {**os.environ, "ROCKETSTREAM_LACKS": lacks}
    with subprocess.Popen([*words], cwd=ROOT, env=environ, start_new_session=True) as process:
        try:
            return process.wait(limit_s) == 0
        except subprocess.TimeoutExpired:
            return False
        finally:
            if process.returncode is None:
                os.killpg(process.pid, signal.SIGKILL)


def make_free_threaded(program: Path, folder: Path) -> bool:
    """Make an environment of what has wheels for such a Python; return whether it stands.

    What has none is noted in the file ``lacks`` of it.
    """
    if not run(program, "-m", "venv", folder):
        return False
    pip: list[str | Path] = [folder / "bin" / "python", "-m", "pip", "install", "--quiet"]
    pip += ["--disable-pip-version-check", "--only-binary", ":all:"]
    if not run(*pip, *TESTING):
        return False
    lacking = {name for name in OPTIONAL if not run(*pip, name)} | set(NEVER)
    print(f"no wheel for this Python, left out: {', '.join(sorted(lacking))}", flush=True)
    (folder / "lacks").write_text(" ".join(sorted(lacking)))
    return run(*pip, "--no-deps", "--no-build-isolation", "--editable", ROOT)


def make(tag: str, program: Path) -> bool:
    """Make the environment of one Python; return whether it stands."""
    folder = ROOT / ".pythons" / tag
    if tag in FREE_THREADED:
        return make_free_threaded(program, folder)
    return run(program, ROOT / "scripts" / "setup_env.py", folder)


def lacks_of(tag: str) -> list[str]:
    """Return the packages the environment of a Python was made without."""
    noted = ROOT / ".pythons" / tag / "lacks"
    return noted.read_text().split() if noted.exists() else []


def counted(report: Path) -> str:
    """Return what pytest's report counts; nothing when it wrote none."""
    try:
        suites = ElementTree.parse(report).getroot().iter("testsuite")
    except (OSError, ElementTree.ParseError):
        return ""
    sums = dict.fromkeys(("tests", "failures", "errors", "skipped"), 0)
    for suite in suites:
        for name in sums:
            sums[name] += int(suite.get(name, 0))
    bad = sums["failures"] + sums["errors"]
    shown = [f"{sums['tests'] - bad - sums['skipped']} passed"]
    shown += [f"{sums['skipped']} skipped"] if sums["skipped"] else []
    shown += [f"{bad} FAILED"] if bad else []
    return ", ".join(shown)


def tried(tag: str) -> Tried:
    """Run the tests on a Python."""
    home = ROOT / ".pythons" / tag
    report = home / "tests.xml"
    report.unlink(missing_ok=True)
    words = ["-m", "pytest", "-m", MARKS, "-q", "-n", os.environ.get("WORKERS", "2")]
    words += ["--dist", "loadfile", "--junitxml", str(report)]
    modules = {**OPTIONAL, **NEVER}
    lacks = " ".join(sorted({name for each in lacks_of(tag) for name in (each, modules[each])}))
    limit_s = 60 * float(os.environ.get("LIMIT_MIN", "60"))
    began_s = monotonic()
    good = run(home / "bin" / "python", *words, *TESTS, lacks=lacks, limit_s=limit_s)
    took_s = monotonic() - began_s
    counts = counted(report) or ("HUNG" if took_s >= limit_s else "DID NOT END WELL")
    return Tried(good, f"{counts}, {took_s:.0f} s")


def table(rows: Iterable[Iterable[str]]) -> str:
    """Return rows of texts as lines whose columns stand under each other."""
    lines = [list(row) for row in rows]
    widths = [
        max(len(row[at]) for row in lines if at < len(row)) for at in range(max(map(len, lines)))
    ]
    shown = ["  ".join(text.ljust(widths[at]) for at, text in enumerate(row)) for row in lines]
    return "\n".join(line.rstrip() for line in shown)


def main(given: list[str]) -> int:
    """Run it all and say what became of each; return the exit code."""
    only = os.environ.get("ONLY", "").split() or [*SUPPORTED, *FREE_THREADED]
    pythons = {tag: found for tag, found in installed(given).items() if tag in only}
    rows = [["Python", "tests", "environment"]]
    lacks = []
    failed = not pythons or ("ONLY" not in os.environ and not set(pythons) & set(SUPPORTED))
    for tag in only:
        if tag not in pythons:
            rows.append([tag, "not here"])
            continue
        program, version = pythons[tag]
        name = version + "t" * (tag in FREE_THREADED)
        print(f"--- {name}: {program}", flush=True)
        began_s = monotonic()
        made = make(tag, program)
        took = f"{monotonic() - began_s:.0f} s"
        if not made:
            rows.append([name, "NO ENVIRONMENT COULD BE MADE", took])
            failed = True
            continue
        done = tried(tag)
        rows.append([name, done.said, took])
        failed = failed or not done.good
        if lacks_of(tag):
            lacks.append(f"{name} has no wheels of: {', '.join(lacks_of(tag))}")
    print("\n".join([table(rows), *lacks, "FAILED" if failed else "passed"]))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
