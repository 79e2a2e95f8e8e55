"""The installed command as a process of its own, and a cluster for it to talk to.

Law: nothing is waited for but output and exit.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from io import BytesIO, TextIOWrapper
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

TIMEOUT_S = 180


@dataclass(frozen=True)
class Done:
    """A command that has ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def json_lines(self) -> list[Any]:
        return [json.loads(line) for line in self.out.splitlines()]

    def failed(self, code: int = 1) -> str:
        """Check that it failed with one ``error:`` line and return the line."""
        assert self.code == code, (self.code, self.out, self.err)
        lines = self.err.splitlines()
        assert len(lines) == 1, self.err
        assert lines[0].startswith("error: ")
        assert "Traceback" not in self.err
        return lines[0]

    def worked(self) -> Done:
        assert self.code == 0, (self.code, self.out, self.err)
        return self


def environment(namesrv: str | None = None) -> dict[str, str]:
    """Return the environment of a command: no terminal size, no name server but the given one."""
    env = {k: v for k, v in os.environ.items() if k not in ("NAMESRV_ADDR", "COLUMNS", "LINES")}
    if namesrv is not None:
        env["NAMESRV_ADDR"] = namesrv
    return env


@dataclass(frozen=True)
class Cli:
    """Runs ``rocketstream`` commands."""

    namesrv: str | None = None

    def __call__(self, *arguments: str, stdin: str | bytes | None = None) -> Done:
        data = stdin.encode() if isinstance(stdin, str) else stdin
        done = subprocess.run(
            command(arguments),
            input=data if data is not None else b"",
            capture_output=True,
            env=environment(self.namesrv),
            timeout=TIMEOUT_S,
            check=False,
        )
        return Done(done.returncode, done.stdout.decode(), done.stderr.decode())

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            command(arguments),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment(self.namesrv),
        )


@dataclass(frozen=True)
class Quick(Cli):
    """The same commands inside this process, where a process of their own shows nothing more."""

    def __call__(self, *arguments: str, stdin: str | bytes | None = None) -> Done:
        # Not before it is wanted: a Python without a wheel of its packages runs the other tests.
        from rocketstream.cli.main import main

        data = stdin.encode() if isinstance(stdin, str) else stdin
        out, err = _Captured(), _Captured()
        with (
            mock.patch.dict(os.environ, environment(self.namesrv), clear=True),
            mock.patch.object(sys, "stdin", TextIOWrapper(BytesIO(data or b""), "utf-8")),
            mock.patch.object(sys, "stdout", out),
            mock.patch.object(sys, "stderr", err),
        ):
            code = main(list(arguments))
        return Done(code, out.text(), err.text())


class _Captured(TextIOWrapper):
    def __init__(self) -> None:
        super().__init__(BytesIO(), "utf-8", write_through=True)

    def text(self) -> str:
        self.flush()
        self.seek(0)
        return self.read()


def command(arguments: Sequence[str]) -> list[str]:
    return [sys.executable, "-m", "rocketstream", *arguments]


@pytest.fixture(scope="session")
def namesrv(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of a ``rocketstream serve`` all tests share; each uses topics of its own."""
    store = tmp_path_factory.mktemp("rocketmq") / "store"
    process = Cli().start(
        "serve", "--namesrv-port", "0", "--broker-port", "0", "--store", str(store)
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline().decode()
        assert line.startswith("ready namesrv="), line
        yield line.split()[1].partition("=")[2]
        process.terminate()
        assert process.wait(TIMEOUT_S) == 0
    finally:
        _end(process)


@pytest.fixture
def cli(namesrv: str) -> Cli:
    return Cli(namesrv)


@pytest.fixture
def quick(namesrv: str) -> Quick:
    return Quick(namesrv)


Starter = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def start() -> Iterator[Starter]:
    """Start commands that go on; what still runs at the end is killed."""
    with ExitStack() as cleanup:

        def begin(*arguments: str, namesrv: str | None = None) -> subprocess.Popen[bytes]:
            process = Cli(namesrv).start(*arguments)
            cleanup.callback(_end, process)
            return process

        yield begin


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.kill()
    process.communicate()


def table(path: Path) -> list[dict[str, Any]]:
    """Read a Parquet table without Spark, hidden files and checkpoint left out."""
    dataset = pytest.importorskip("pyarrow.dataset")
    files = [str(f) for f in path.rglob("*.parquet")]
    rows: list[dict[str, Any]] = dataset.dataset(files, format="parquet").to_table().to_pylist()
    return sorted(rows, key=lambda row: (row["_queueId"], row["_queueOffset"]))
