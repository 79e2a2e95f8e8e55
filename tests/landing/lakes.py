"""Table formats and object storage for landings: jars from Maven Central, each with its Spark.

Law: knows how to have them, and how a table there is read; what must be in it is the test's.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.request import Request, urlopen

from rocketstream.spark.setup.preparation import use_java
from scripts.spark_versions import installed
from tests.kits.apache.referee import RefereeUnavailableError, built, cache_dir, resolved_jars

ROOT: Final = Path(__file__).resolve().parents[2]
_POMS: Final = ROOT / "tests/kits/apache/poms"
_MOTO: Final = ("moto[s3]==5.2.5", "flask==3.1.3", "flask-cors==6.0.5")
BUCKET: Final = "lake"


@dataclass(frozen=True)
class Lake:
    """A place for tables, and what Spark needs to reach it."""

    spark: str | None
    """Version of PySpark; None is the environment's own."""
    target: str
    """As ``--to`` takes it."""
    checkpoint: str | None
    """As ``--checkpoint`` takes it; None leaves it in the table."""
    settings: dict[str, str]
    names: Callable[[str], list[str]]
    """The names in a directory of the checkpoint."""

    def environment(self) -> dict[str, str]:
        """The environment of a program on that Spark."""
        use_java()
        folders = [str(ROOT / "src"), str(ROOT)]
        if self.spark is not None:
            folders.insert(0, str(installed(self.spark)))
        left = {name: value for name, value in os.environ.items() if name != "SPARK_HOME"}
        return left | {"PYTHONPATH": os.pathsep.join(folders), "SPARK_LOCAL_IP": "127.0.0.1"}

    def ingest(self, namesrv: str, topic: str, *more: str) -> list[str]:
        """The command that lands a topic there."""
        kept = [] if self.checkpoint is None else ["--checkpoint", self.checkpoint]
        words = ["--namesrv", namesrv, "ingest", topic, "--to", self.target, *more, *kept]
        return self._command(words)

    def compact(self) -> list[str]:
        """The command that puts what has landed into fewer files and removes the others."""
        return self._command(["compact", self.target, "--keep", "0s", "--json"])

    def _command(self, words: list[str]) -> list[str]:
        settings = [f"--conf={name}={value}" for name, value in self.settings.items()]
        return [sys.executable, "-m", "rocketstream", *words, "--master", "local[2]", *settings]

    def rows(self, root: Path) -> list[list[Any]]:
        """Queue, offset, id and city of each row, in order of the first two."""
        kind, _, place = self.target.partition(":")
        settings = [f"{name}={value}" for name, value in self.settings.items()]
        program = [sys.executable, "-m", "tests.landing.lake_program", kind, place, str(root)]
        done = subprocess.run(
            [*program, *settings],
            cwd=ROOT,
            env=self.environment(),
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-3_000:]
        found: list[list[Any]] = json.loads(done.stdout.splitlines()[-1])
        return found


@contextmanager
def delta(root: Path) -> Iterator[Lake]:
    """Delta Lake on Spark 4.2."""
    settings = {
        "spark.jars": _jars("delta-4.2"),
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    }
    table = root / "table"
    yield Lake("4.2.1", f"delta:{table}", None, settings, _local(table / "_checkpoint"))


@contextmanager
def iceberg(root: Path) -> Iterator[Lake]:
    """Iceberg on Spark 4.1, with a catalog that is a directory."""
    settings = {
        "spark.jars": _jars("iceberg-4.1"),
        "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.lake.type": "hadoop",
        "spark.sql.catalog.lake.warehouse": str(root / "warehouse"),
    }
    kept = root / "checkpoint"
    yield Lake("4.1.4", "iceberg:lake.shop.orders", str(kept), settings, _local(kept))


@contextmanager
def s3(root: Path) -> Iterator[Lake]:
    """Parquet and its checkpoint in an S3 server, on the environment's own Spark."""
    jars = resolved_jars(_POMS / "s3a-3.5.xml")
    words = [sys.executable, str(ROOT / "tests/landing/s3_program.py")]
    with (root / "s3.log").open("wb") as log:
        server = subprocess.Popen(
            words,
            env=os.environ | {"PYTHONPATH": str(_moto())},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
        )
    try:
        assert server.stdout is not None
        address = f"http://127.0.0.1:{int(server.stdout.readline())}"
        urlopen(Request(f"{address}/{BUCKET}", method="PUT"), timeout=60).close()
        settings = {
            "spark.driver.extraClassPath": f"{jars}/*",
            "spark.hadoop.fs.s3a.endpoint": address,
            "spark.hadoop.fs.s3a.endpoint.region": "us-east-1",
            "spark.hadoop.fs.s3a.path.style.access": "true",
            "spark.hadoop.fs.s3a.access.key": "key",
            "spark.hadoop.fs.s3a.secret.key": "secret",
        }
        names = _stored(address, "orders/_checkpoint")
        yield Lake(None, f"parquet:s3a://{BUCKET}/orders", None, settings, names)
    finally:
        server.communicate(timeout=60)


LAKES: Final = {"delta": delta, "iceberg": iceberg, "s3": s3}


def _jars(pom: str) -> str:
    return ",".join(map(str, sorted(resolved_jars(_POMS / f"{pom}.xml").glob("*.jar"))))


def _moto() -> Path:
    """The folder with the S3 server, which needs packages that nothing else here does."""
    words = [sys.executable, "-m", "pip", "install", "--disable-pip-version-check", "--no-input"]

    def install(draft: Path) -> None:
        done = subprocess.run(
            [*words, "--quiet", "--target", str(draft), *_MOTO],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise RefereeUnavailableError(f"cannot install {_MOTO[0]}:\n{done.stderr[-1500:]}")

    return built(cache_dir() / "python" / _MOTO[0], install)


def _local(checkpoint: Path) -> Callable[[str], list[str]]:
    return lambda folder: [each.name for each in (checkpoint / folder).glob("[0-9]*")]


def _stored(address: str, checkpoint: str) -> Callable[[str], list[str]]:
    def names(folder: str) -> list[str]:
        url = f"{address}/{BUCKET}?list-type=2&prefix={checkpoint}/{folder}/"
        with urlopen(url, timeout=60) as answer:
            keys: Sequence[str] = re.findall(r"<Key>[^<]*/(\d+)</Key>", answer.read().decode())
        return list(keys)

    return names
