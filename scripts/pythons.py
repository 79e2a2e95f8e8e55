"""Run the tests that need Python only on every supported Python that is installed here.

Looks on the PATH, in pyenv's folder and at the programs given as arguments; each gets an
environment of its own in ``.pythons/``. Says which Pythons are not here. Ends with 1 when tests
failed, or when there was none to run them on; what fails on a free-threaded Python is told and
fails nothing.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SUPPORTED = ("3.11", "3.12", "3.13", "3.14")
FREE_THREADED = ("3.13t", "3.14t")
FOLDERS = ("tests/protocol", "tests/unit", "tests/behaviour")
MARKS = "not interop and not long and not versions"
ASKING = (
    "import sys, sysconfig; print('%d.%d%s' % (*sys.version_info[:2],"
    " 't' if sysconfig.get_config_var('Py_GIL_DISABLED') else ''))"
)
TESTING = ["pytest", "pytest-timeout", "pytest-xdist", "hypothesis"]
# What a free-threaded Python may have no wheel for, such as orjson, is left out there.
OPTIONAL = ["uvloop", "lz4", "zstandard", "cryptography", "pyyaml", "numpy", "protobuf", "click"]
OPTIONAL += ["rich", "textual", "starlette", "uvicorn", "jinja2", "python-multipart", "httpx"]
OPTIONAL += ["opentelemetry-api", "opentelemetry-sdk", "pexpect", "pyte", "pydantic"]


def candidates(given: Iterable[str]) -> list[Path]:
    """Return programs that may be Pythons: those given, of the PATH, of pyenv."""
    places = [Path(place) for place in os.environ.get("PATH", os.defpath).split(os.pathsep)]
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    places += sorted((pyenv / "versions").glob("*/bin"))
    names = [f"python{tag}" for tag in (*SUPPORTED, *FREE_THREADED)]
    found = [Path(program) for program in given]
    found += [place / name for place in places for name in names]
    return [program for program in found if os.access(program, os.X_OK)]


def tag_of(program: Path) -> str:
    """Return what a program calls itself, such as ``3.13t``; nothing when it does not run."""
    try:
        done = subprocess.run(
            [program, "-c", ASKING], capture_output=True, text=True, timeout=60, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def installed(given: Iterable[str]) -> dict[str, Path]:
    """Return the first program of each Python that is asked for here."""
    found: dict[str, Path] = {}
    for program in candidates(given):
        tag = tag_of(program)
        if tag in SUPPORTED or tag in FREE_THREADED:
            found.setdefault(tag, program)
    return {tag: found[tag] for tag in (*SUPPORTED, *FREE_THREADED) if tag in found}


def run(*words: str | Path) -> bool:
    """Run a program in the clone; return whether it succeeded."""
    return subprocess.run([*words], cwd=ROOT, check=False).returncode == 0


def make_free_threaded(program: Path, folder: Path) -> bool:
    """Make an environment of what has wheels for such a Python; return whether it stands."""
    if not run(program, "-m", "venv", folder):
        return False
    pip: list[str | Path] = [
        folder / "bin" / "python",
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
    ]
    if not run(*pip, *TESTING, "hatchling", "editables"):
        return False
    lacking = [each for each in OPTIONAL if not run(*pip, "--only-binary", ":all:", each)]
    if lacking:
        print(f"no wheel for this Python, left out: {', '.join(lacking)}", flush=True)
    return run(*pip, "--no-deps", "--no-build-isolation", "--editable", ROOT)


def make(tag: str, program: Path) -> bool:
    """Make the environment of one Python; return whether it stands."""
    folder = ROOT / ".pythons" / tag
    if tag in FREE_THREADED:
        return make_free_threaded(program, folder)
    return run(program, ROOT / "scripts" / "setup_env.py", folder)


def tried(tag: str, workers: str) -> dict[str, bool]:
    """Run each folder of tests on a Python; return which succeeded."""
    words = ["-m", "pytest", "-m", MARKS, "-q", "-n", workers, "--dist", "loadfile"]
    if tag in FREE_THREADED:
        words.append("--continue-on-collection-errors")
    python = ROOT / ".pythons" / tag / "bin" / "python"
    return {folder: run(python, *words, folder) for folder in FOLDERS}


def main(given: list[str]) -> int:
    """Run it all and say what became of each; return the exit code."""
    pythons = installed(given)
    said = []
    failed = not set(pythons) & set(SUPPORTED)
    for tag in (*SUPPORTED, *FREE_THREADED):
        if tag not in pythons:
            said.append(f"{tag:6} not here")
            continue
        print(f"--- {tag}: {pythons[tag]}", flush=True)
        if not make(tag, pythons[tag]):
            outcome = "no environment could be made"
        else:
            bad = [
                folder
                for folder, good in tried(tag, os.environ.get("WORKERS", "2")).items()
                if not good
            ]
            outcome = f"failed: {', '.join(bad)}" if bad else "passed"
        said.append(f"{tag:6} {outcome}")
        failed = failed or (outcome != "passed" and tag in SUPPORTED)
    print("\n".join(said))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
