"""Which Pythons the tests are run on, what is said of those that are not here, and what fails."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from scripts import pythons
from tests.tidy.source import ROOT

SETTINGS = (ROOT / "pyproject.toml").read_text()


def program(folder: Path, name: str, says: str, code: int = 0) -> Path:
    """A program that answers as a Python of that version would."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/sh\necho {says}\nexit {code}\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without any Python: its PATH and pyenv's folder are empty."""
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path / "pyenv"))
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
    assert (found["3.12"], found["3.13"], found["3.14t"]) == (given, own, free)


def test_this_python_says_what_it_is() -> None:
    assert pythons.tag_of(Path(sys.executable)).rstrip("t") == f"3.{sys.version_info.minor}"


def ran(monkeypatch: pytest.MonkeyPatch, failing: str) -> list[str]:
    """Have nothing run; tests of Pythons and folders named in ``failing`` fail."""
    calls: list[str] = []

    def run(*words: object) -> bool:
        calls.append(" ".join(map(str, words)))
        return not failing or failing not in calls[-1]

    monkeypatch.setattr(pythons, "run", run)
    return calls


def test_a_python_that_is_not_here_is_named(
    machine: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    program(machine / "bin", "python3.12", "3.12")
    calls = ran(monkeypatch, "")
    assert pythons.main([]) == 0
    said = capsys.readouterr().out
    assert "3.12   passed\n" in said
    assert all(f"{tag:6} not here\n" in said + "\n" for tag in ("3.11", "3.13", "3.14", "3.14t"))
    assert [call.split()[-1] for call in calls if " -m pytest " in call] == list(pythons.FOLDERS)


def test_a_failure_fails_unless_the_python_is_free_threaded(
    machine: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    program(machine / "bin", "python3.12", "3.12")
    program(machine / "bin", "python3.13t", "3.13t")
    ran(monkeypatch, ".pythons/3.13t/bin/python -m pytest")
    assert pythons.main([]) == 0
    assert "3.13t  failed: tests/protocol, tests/unit" in capsys.readouterr().out
    ran(monkeypatch, "tests/behaviour")
    assert pythons.main([]) == 1
    assert "3.12   failed: tests/behaviour\n" in capsys.readouterr().out


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
