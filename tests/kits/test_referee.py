"""What happens where the referee cannot be had: a plain reason, and no green CI by accident."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from tests.kits.apache import referee
from tests.kits.apache.messages import body_of, digest
from tests.plugins.apache import prepared


@pytest.fixture
def bare_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine without Java and Maven, and an empty cache."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("ROCKETSTREAM_INTEROP_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("CI", raising=False)


@pytest.mark.usefixtures("bare_machine")
def test_missing_tools_are_named() -> None:
    with pytest.raises(referee.RefereeUnavailableError, match="java, javac, mvn not found"):
        referee.REFEREES["4.9.7"].prepare()


@pytest.mark.usefixtures("bare_machine")
def test_a_bare_machine_skips(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        pytest.skip.Exception, match=r"Apache RocketMQ 4.9.7 is not available: java"
    ):
        prepared("4.9.7")


@pytest.mark.usefixtures("bare_machine")
def test_a_bare_machine_fails_in_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="is not available"):
        prepared("5.5.0")


def test_two_builders_make_a_thing_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What is built appears whole, by whoever came first."""
    monkeypatch.setenv("ROCKETSTREAM_INTEROP_DIR", str(tmp_path))
    target = tmp_path / "thing"
    builds: list[Path] = []

    def build(draft: Path) -> None:
        assert not target.exists()
        builds.append(draft)
        (draft / "file").write_text("whole")

    threads = [threading.Thread(target=referee.built, args=(target, build)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
    assert len(builds) == 1
    assert (target / "file").read_text() == "whole"


def test_bodies_are_those_of_the_java_programs() -> None:
    """The figures JavaProducer recorded for its messages 0 and 1 of 1 KiB."""
    assert body_of("m", 7, 12) == b"m-7|efghijkl"
    assert digest(body_of("m", 0)) == "1024:451edfbf"
    assert digest(body_of("m", 1)) == "1024:a3694aad"
