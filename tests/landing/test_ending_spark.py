"""Ctrl-C and SIGTERM amid a call into Spark: what ends it, and with which exit code."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from py4j.protocol import Py4JError

from rocketstream.cli import landing
from rocketstream.cli.failure import EXIT_INTERRUPTED, EXIT_TERMINATED, guard
from rocketstream.cli.ingest import _Stop
from rocketstream.errors import ConfigurationError, SparkQueryError
from rocketstream.pipelines import local_session

CODES = {signal.SIGINT: EXIT_INTERRUPTED, signal.SIGTERM: EXIT_TERMINATED}


@pytest.fixture
def done(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The calls that reach a Spark that is none, in order."""
    found: list[str] = []
    monkeypatch.setattr(local_session, "start_session", lambda *given, **named: "spark")
    for name in ("end_at_once", "stop_session"):
        monkeypatch.setattr(local_session, name, lambda spark, name=name: found.append(name))
    return found


def run(block: Callable[[], None], is_the_end: Callable[[int], bool] | None = None) -> int:
    """The exit code of a command that runs ``block`` with a session."""

    def action() -> int:
        more = () if is_the_end is None else (is_the_end,)
        with landing.session("landing", Path("_spark.log"), "local[1]", {}, *more):
            block()
        return 0

    return guard(action)


def no_error() -> None:
    return


def of_py4j() -> None:
    raise Py4JError("Gateway must be connected to send cancel cmd.")


def of_the_query() -> None:
    raise SparkQueryError("the Spark query failed: no answer")


class Builder:
    """A builder of sessions that remembers the settings, and fails."""

    def __init__(self) -> None:
        self.settings: dict[str, str] = {}

    def __getattr__(self, name: str) -> Callable[..., Builder]:
        return lambda text: self

    def config(self, name: str, value: str) -> Builder:
        """Take a setting."""
        self.settings[name] = value
        return self

    def getOrCreate(self) -> None:
        """Fail."""
        raise Py4JError("there is none")


def test_options_of_java_that_are_given_stand_behind_ours(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Where they took their place, Java left files behind and no Avro body had a bound."""
    builder = Builder()
    monkeypatch.setattr("pyspark.sql.SparkSession.builder", builder)
    monkeypatch.setattr(local_session, "_end_gateway", lambda: None)
    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        monkeypatch.setenv(name, "")
    both = ("spark.driver.extraJavaOptions", "spark.executor.extraJavaOptions")
    with pytest.raises(ConfigurationError, match="there is none"):
        local_session.start_session(
            "landing", log_file=tmp_path / "log", config=dict.fromkeys(both, "-Da=b")
        )
    for name in both:
        words = builder.settings[name].split()
        assert words[-1] == "-Da=b"
        assert "-Dorg.apache.avro.limits.string.maxLength=67108864" in words
    assert builder.settings[both[0]].startswith("-Djava.io.tmpdir=")


@pytest.mark.parametrize("number", CODES)
@pytest.mark.parametrize("ends_with", [no_error, of_py4j, of_the_query])
def test_whatever_a_call_ends_with_the_signal_is_the_end_of_the_command(
    done: list[str],
    capsys: pytest.CaptureFixture[str],
    number: signal.Signals,
    ends_with: Callable[[], None],
) -> None:
    """An exception out of the handler would have Py4J put an error of its own in its place."""

    def block() -> None:
        signal.raise_signal(number)
        done.append("went on")
        ends_with()

    assert run(block) == CODES[number]
    assert done == ["end_at_once", "went on", "stop_session"]
    assert capsys.readouterr().err == ""


def test_a_signal_pressed_often_ends_spark_once(done: list[str]) -> None:
    def block() -> None:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGTERM):
            signal.raise_signal(number)

    assert run(block) == EXIT_TERMINATED
    assert done == ["end_at_once", "stop_session"]


def test_first_signal_asks_an_ingest_and_only_ctrl_c_after_it_insists(done: list[str]) -> None:
    stop = _Stop()

    def block() -> None:
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)  # the same wish, told twice
        done.append("asked" if stop.asked.is_set() else "not asked")
        signal.raise_signal(signal.SIGINT)
        of_py4j()

    assert run(block, stop.is_insisted_on) == EXIT_INTERRUPTED
    assert done == ["asked", "end_at_once", "stop_session"]


def test_an_error_without_a_signal_names_the_file_with_the_details(
    done: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(of_the_query) == 1
    assert "no answer (details: _spark.log)" in capsys.readouterr().err
    assert done == ["stop_session"]


class Spark:
    """A session, as far as it can be looked for in a set of weak references."""


def test_a_jvm_that_ends_by_itself_is_said_with_what_to_do(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Calls fail by a connection that is refused, which tells a user nothing."""
    log = tmp_path / "_spark.log"
    log.write_text("x: java.lang.OutOfMemoryError: Java heap space\n\tat y\n", "utf-8")
    words = [sys.executable, "-c", "import sys; sys.stdin.read(); sys.exit(52)"]
    with subprocess.Popen(words, stdin=subprocess.PIPE) as jvm:
        monkeypatch.setattr("pyspark.SparkContext._gateway", SimpleNamespace(proc=jvm))
        monkeypatch.setattr("pyspark.SparkContext._jvm", None)
        monkeypatch.setattr("pyspark.SparkContext._active_spark_context", None)
        monkeypatch.setattr(local_session, "start_session", lambda *given, **named: Spark())
        monkeypatch.setattr(local_session, "_JVM_GONE_TIMEOUT_S", 0)
        assert local_session.ended_by_itself(cast(Any, Spark()), log) is None
        monkeypatch.setattr(local_session, "_JVM_GONE_TIMEOUT_S", 60)

        def refused() -> None:
            assert jvm.stdin is not None
            jvm.stdin.close()
            raise ConnectionRefusedError(111, "Connection refused")

        def action() -> int:
            with landing.session("landing", log, "local[1]", {}):
                refused()
            return 0

        assert guard(action) == 1
    assert capsys.readouterr().err == (
        "error: Spark has ended: java.lang.OutOfMemoryError: Java heap space; give it more, with "
        f"--conf spark.driver.memory=4g, or less at a time (details: {log})\n"
    )
