"""Which Pythons the tests are run on, what is said of those that are not here, and what fails."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from scripts import pythons
from tests.plugins.lacking import lacking
from tests.tidy.source import ROOT

SETTINGS = (ROOT / "pyproject.toml").read_text()


def program(folder: Path, name: str, says: str, code: int = 0) -> Path:
    """A program that answers as a Python of that version would, its last number 1."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/sh\necho {says} {says.rstrip('t')}.1\nexit {code}\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without any Python: its PATH and pyenv's folder are empty."""
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path / "pyenv"))
    monkeypatch.setattr(pythons, "ROOT", tmp_path)
    monkeypatch.delenv("ONLY", raising=False)
    monkeypatch.setenv("LIMIT_MIN", "60")
    return tmp_path


def test_pythons_of_path_and_pyenv_and_given_ones_are_found(machine: Path) -> None:
    """By what they say they are, the given one first; shims that do not run do not count."""
    program(machine / "bin", "python3.11", "3.11")
    program(machine / "bin", "python3.13", "not chosen", code=127)
    program(machine / "bin", "python3.10", "3.10")
    own = program(machine / "pyenv/versions/3.13.0/bin", "python3.13", "3.13")
    free = program(machine / "built", "python", "3.14t")
    program(machine / "pyenv/versions/3.12.1/bin", "python3.12", "3.12")
    given = program(machine / "mine", "python", "3.12")
    found = pythons.installed([str(given), str(free)])
    assert list(found) == ["3.11", "3.12", "3.13", "3.14t"]
    assert (found["3.12"], found["3.13"]) == ((given, "3.12.1"), (own, "3.13.1"))
    assert found["3.14t"] == (free, "3.14.1")


def test_this_python_says_what_it_is() -> None:
    tag, version = pythons.tag_of(Path(sys.executable))
    assert tag.rstrip("t") == f"3.{sys.version_info.minor}"
    assert version == "{}.{}.{}".format(*sys.version_info[:3])


REPORT = (
    '<testsuites><testsuite tests="9" failures="{bad}" errors="0" skipped="2" />'
    '<testsuite tests="1" failures="0" errors="{bad}" skipped="0" /></testsuites>'
)


def ran(monkeypatch: pytest.MonkeyPatch, failing: str, reports: bool = True) -> list[str]:
    """Have nothing run; tests of Pythons and folders named in ``failing`` fail, and report it."""
    calls: list[str] = []

    def run(*words: object, lacks: str = "", limit_s: float | None = None) -> bool:
        calls.append(" ".join(map(str, words)) + f" lacks {lacks}")
        good = not failing or failing not in calls[-1]
        if "--junitxml" in words and reports:
            report = Path(str(words[words.index("--junitxml") + 1]))
            report.parent.mkdir(parents=True, exist_ok=True)
            report.write_text(REPORT.format(bad=int(not good)))
        if "venv" in words:
            Path(str(words[-1])).mkdir(parents=True)
        return good

    monkeypatch.setattr(pythons, "run", run)
    return calls


def said(capsys: pytest.CaptureFixture[str]) -> list[list[str]]:
    """The lines of the table by their columns, without how long it took."""
    lines = capsys.readouterr().out.splitlines()
    return [re.split(r"  +", re.sub(r", \d+ s\b", "", line)) for line in lines]


def test_a_python_that_is_not_here_is_named(
    machine: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    program(machine / "bin", "python3.12", "3.12")
    calls = ran(monkeypatch, "")
    assert pythons.main([]) == 0
    lines = said(capsys)
    assert ["3.12.1", "8 passed, 2 skipped", "0 s"] in lines
    assert all([tag, "not here"] in lines for tag in ("3.11", "3.13", "3.14", "3.13t", "3.14t"))
    (tests,) = (call.split() for call in calls if " -m pytest " in call)
    assert "tests" in tests
    assert all((Path(__file__).parents[1] / folder).is_dir() for folder in pythons.ELSEWHERE)


def test_a_failure_on_any_python_that_is_here_fails(
    machine: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    program(machine / "bin", "python3.12", "3.12")
    program(machine / "bin", "python3.13t", "3.13t")
    ran(monkeypatch, ".pythons/3.13t/bin/python -m pytest")
    assert pythons.main([]) == 1
    lines = said(capsys)
    assert ["3.13.1t", "6 passed, 2 skipped, 2 FAILED", "0 s"] in lines
    assert lines[-1] == ["FAILED"]
    monkeypatch.setenv("ONLY", "3.12")
    ran(monkeypatch, " -m pytest ")
    assert pythons.main([]) == 1
    assert said(capsys)[-2][-2] == "6 passed, 2 skipped, 2 FAILED"


def test_what_hangs_is_told_from_what_ends_without_a_report(
    machine: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    program(machine / "bin", "python3.12", "3.12")
    ran(monkeypatch, " -m pytest ", reports=False)
    assert pythons.main([]) == 1
    assert said(capsys)[3][1] == "DID NOT END WELL"
    monkeypatch.setenv("LIMIT_MIN", "0")
    assert pythons.main([]) == 1
    assert said(capsys)[3][1] == "HUNG"


def test_a_program_over_its_time_is_ended_with_all_it_began(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A test's own server would live on, and hold what reads its output."""
    fifo, held = tmp_path / "held", []
    os.mkfifo(fifo)
    wait = subprocess.Popen.wait

    def over_once_the_child_runs(process: Any, timeout: float | None = None) -> int:
        if timeout is None:
            return wait(process)
        held.append(fifo.open())  # opens once the child has
        raise subprocess.TimeoutExpired("sh", timeout)

    monkeypatch.setattr(subprocess.Popen, "wait", over_once_the_child_runs)
    assert not pythons.run("sh", "-c", f"sh -c 'exec 3>{fifo}; sleep 600' & wait", limit_s=60)
    with held[0] as end:
        assert end.read() == ""  # ends once all are gone that held it


def test_what_has_no_wheel_is_left_out_and_told(
    machine: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And the tests are told, by the names of packages and of modules."""
    program(machine / "bin", "python3.14t", "3.14t")
    monkeypatch.setenv("ONLY", "3.14t")
    calls = ran(monkeypatch, "--only-binary :all: pyyaml")
    assert pythons.main([]) == 0
    assert ["3.14.1t has no wheels of: pyspark, pyyaml"] in said(capsys)
    assert calls[-1].endswith("tests/wheel lacks pyspark pyyaml yaml")


def test_only_a_package_that_was_left_out_skips_a_test() -> None:
    lacks = frozenset({"zstandard", "yaml"})
    assert lacking("ModuleNotFoundError: No module named 'yaml.nodes'", lacks) == "yaml"
    assert lacking("this message body needs the package zstandard: install", lacks) == "zstandard"
    assert not lacking("No module named 'rocketstream.client'", lacks)
    assert not lacking("AssertionError: zstandard", lacks)
    assert not lacking("No module named 'yaml'", frozenset())


def test_nothing_to_run_on_is_a_failure(
    machine: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    program(machine / "bin", "python3.13t", "3.13t")
    ran(monkeypatch, "")
    assert pythons.main([]) == 1


def test_the_package_says_the_pythons_it_is_tested_on() -> None:
    """Classifiers and the least version are those the tests are run on."""
    classified = [
        line.rpartition(" ")[2].rstrip('",')
        for line in SETTINGS.splitlines()
        if "Programming Language :: Python :: 3." in line
    ]
    assert tuple(classified) == pythons.SUPPORTED
    assert f'requires-python = ">={pythons.SUPPORTED[0]}"' in SETTINGS
