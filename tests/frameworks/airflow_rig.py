"""A whole Airflow of its own for tests: database, API, scheduler, DAG processor, triggerer.

Airflow pins what others need, so it has an environment of its own, made once and kept with what
else is fetched for tests. Ours is put beside it by PYTHONPATH, with the entry points of a package.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import tomllib
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Self

import pytest

from tests.plugins.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]
CONSTRAINTS = Path(__file__).with_name("airflow-constraints.txt")
WANTED = ("apache-airflow-core", "apache-airflow-providers-common-messaging", "orjson", "uvloop")
PARTS = ("api-server", "scheduler", "dag-processor", "triggerer")
START_S = 180.0


def environment() -> Path:
    """Return the folder of the environment, making it first where it is not there whole.

    Blocks for minutes then. Skips the test where it cannot be made, or fails it in CI.
    """
    given = os.environ.get("ROCKETSTREAM_INTEROP_DIR")
    home = Path(given).resolve() if given else ROOT / ".interop"
    home.mkdir(parents=True, exist_ok=True)
    mark = hashlib.sha256(CONSTRAINTS.read_bytes()).hexdigest()[:12]
    folder = home / f"airflow-{mark}"
    with (home / "airflow.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / ".whole").exists():
            shutil.rmtree(folder, ignore_errors=True)
            _make(folder)
            (folder / ".whole").touch()
    return folder


def _make(folder: Path) -> None:
    quiet = ["-q", "--disable-pip-version-check", "--no-input"]
    for words in (
        [sys.executable, "-m", "venv", str(folder)],
        [str(folder / "bin/pip"), "install", *quiet, "-c", str(CONSTRAINTS), *WANTED],
    ):
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            text = f"there is no environment for Airflow: {done.stdout}{done.stderr}"
            if os.environ.get("CI", "").lower() in ("1", "true", "yes"):
                pytest.fail(text, pytrace=False)
            pytest.skip(text)


def put_beside(folder: Path) -> str:
    """Return the PYTHONPATH with which Airflow finds this tree as an installed package."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    facts = folder / f"rocketstream-{project['version']}.dist-info"
    facts.mkdir(parents=True)
    head = f"Metadata-Version: 2.1\nName: rocketstream\nVersion: {project['version']}\n"
    (facts / "METADATA").write_text(head, "utf-8")
    lines = []
    for group, points in project["entry-points"].items():
        lines += [f"[{group}]", *(f"{name} = {place}" for name, place in points.items())]
    (facts / "entry_points.txt").write_text("\n".join(lines), "utf-8")
    return os.pathsep.join([str(folder), str(ROOT / "src")])


class Airflow:
    """Runs in a folder of its own; to be used in a ``with`` block.

    Args:
        folder: where it may put what it likes; its DAGs are in ``dags``.
        variables: of the environment of its parts, besides its own.
    """

    def __init__(self, folder: Path, variables: Mapping[str, str]) -> None:
        self.folder = folder
        self.python = environment() / "bin/python"
        self._parts: dict[str, subprocess.Popen[bytes]] = {}
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.address = f"http://127.0.0.1:{port}"
        self.variables = {
            **{k: v for k, v in os.environ.items() if not k.startswith(("AIRFLOW", "PYTHON"))},
            "PYTHONPATH": put_beside(folder / "beside"),
            "AIRFLOW_HOME": str(folder),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__CORE__PARALLELISM": "2",
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "True",
            "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"{self.address}/execution/",
            "AIRFLOW__API__HOST": "127.0.0.1",
            "AIRFLOW__API__PORT": str(port),
            "AIRFLOW__API__WORKERS": "1",
            "AIRFLOW__API_AUTH__JWT_SECRET": hashlib.sha256(os.urandom(32)).hexdigest(),
            # A busy machine takes longer than five seconds to answer.
            "AIRFLOW__WORKERS__EXECUTION_API_TIMEOUT": "60",
            "AIRFLOW__TRIGGERER__TRIGGERER_HEALTH_CHECK_THRESHOLD": "10",
            **variables,
        }

    def __enter__(self) -> Self:
        with (self.folder / "db-migrate.log").open("wb") as log:
            self._run("db", "migrate", log=log).wait(START_S)
        try:
            for part in PARTS:
                self.start(part)
            wait_until(self._answers, "API of Airflow", START_S, 0.5)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        # The scheduler ends the tasks it runs; nothing else has anything to end in order.
        scheduler = self._parts.get("scheduler")
        if scheduler is not None:
            scheduler.terminate()
            with suppress(subprocess.TimeoutExpired):
                scheduler.wait(20)
        for name in list(self._parts):
            self.kill(name)

    def start(self, part: str) -> None:
        """Start a part; its output is in a file."""
        words = [part] + (["--skip-serve-logs"] if part in ("scheduler", "triggerer") else [])
        with self.log(part).open("ab") as log:
            self._parts[part] = self._run(*words, log=log)

    def kill(self, part: str) -> None:
        """Kill a part as ``kill -9`` does, with the processes it made."""
        process = self._parts.pop(part)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def _run(self, *words: str, log: Any) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [str(self.python), "-m", "airflow", *words],
            env=self.variables,
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.address}/api/v2/version", timeout=30):
                return True
        except OSError:
            return False

    # --- what happened ----------------------------------------------------------------------------

    def log(self, part: str) -> Path:
        """Return the file of a part's output."""
        return self.folder / f"{part}.log"

    def runs(self, dag: str) -> list[str]:
        """Return the states of a DAG's runs, the oldest first."""
        with _asked(self.folder / "airflow.db") as database:
            found = database.execute(
                "SELECT state FROM dag_run WHERE dag_id = ? ORDER BY id", (dag,)
            )
            return [state for (state,) in found]

    def wait_for(self, reached: Callable[[], bool], what: str, timeout_s: float) -> None:
        """Wait until something is so; a failed run ends it, and the error has all logs."""
        try:
            wait_until(lambda: self._none_failed() and reached(), what, timeout_s, 0.5)
        except TimeoutError as error:
            raise AssertionError(f"{error}; {self.told()}") from None

    def _none_failed(self) -> bool:
        with _asked(self.folder / "airflow.db") as database:
            found = database.execute("SELECT dag_id FROM dag_run WHERE state = 'failed'").fetchall()
        if found:
            raise AssertionError(f"a run of {found[0][0]} failed; {self.told()}")
        return True

    def wait_for_watchers(self, count: int) -> None:
        """Wait until so many triggers have been started since Airflow was."""

        def started() -> bool:
            text = self.log("triggerer").read_text("utf-8", "replace")
            return text.count(" starting  ") >= count

        wait_until(started, f"start of trigger {count}", START_S, 0.5)

    def told(self) -> str:
        """Return the ends of all logs, those of tasks too."""
        paths = [self.log(part) for part in PARTS]
        paths += sorted((self.folder / "logs").rglob("attempt=*.log"))
        return "\n".join(
            f"--- {path}\n{path.read_text('utf-8', 'replace')[-3000:]}" for path in paths
        )


@contextmanager
def _asked(path: Path) -> Iterator[sqlite3.Connection]:
    database = sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=30)
    try:
        yield database
    finally:
        database.close()
