"""``rocketstream spark-env`` prints what a shell can take."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from rocketstream.spark.setup.preparation import local_python
from tests.plugins.commands import Quick


@pytest.fixture
def java_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    home = tmp_path / "a java's home"
    (home / "bin").mkdir(parents=True)
    java = home / "bin" / "java"
    java.write_text("#!/bin/sh\necho 'openjdk version \"21.0.8\"' >&2\n", "utf-8")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(home))
    return home


def test_settings_survive_the_shell(quick: Quick, java_home: Path) -> None:
    done = quick("spark-env").worked()
    assert f"taken: Java 21 of JAVA_HOME ({java_home}/bin/java)" in done.err
    script = f'{done.out}\nprintf "%s\\n" "$JAVA_HOME" "$PYSPARK_PYTHON"'
    taken = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True)
    assert taken.stdout.splitlines() == [str(java_home), sys.executable]


def test_json_says_the_same(quick: Quick, java_home: Path) -> None:
    told = quick("spark-env", "--json").worked().json
    assert told["javaHome"] == str(java_home)
    assert told["javaSource"] == "JAVA_HOME"
    assert told["javaMajor"] == 21
    assert told["pysparkPython"] == sys.executable


def test_executors_of_this_machine_get_a_python_that_starts_quickly(
    quick: Quick, java_home: Path
) -> None:
    told = quick("spark-env", "--local", "--json").worked().json
    assert told["pysparkPython"] == local_python() != sys.executable
    assert local_python() in quick("spark-env", "--local").worked().out


def test_java_home_that_must_not_stand_is_unset(
    quick: Quick, java_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The PATH's Java is Spark's own choice once JAVA_HOME is gone."""
    monkeypatch.setenv("PATH", str(java_home / "bin"))
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "gone"))
    done = quick("spark-env").worked()
    assert done.out.splitlines()[0] == "unset JAVA_HOME"
    assert "passed over: JAVA_HOME=" in done.err
    assert shlex.split(done.out.splitlines()[1])[0] == "export"
