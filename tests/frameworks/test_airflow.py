"""Airflow itself runs DAGs when messages wait: found, run, landed, over a killed triggerer."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.parquet as parquet
import pytest

from rocketstream import Message, Producer
from tests.frameworks.airflow_rig import ROOT, Airflow, environment, put_beside
from tests.kits.cluster import Cluster

pytestmark = [pytest.mark.versions, pytest.mark.timeout(900)]

HERE = Path(__file__).parent
RUN_S, LAND_S = 180.0, 400.0


def send(cluster: Cluster, topic: str, numbers: range) -> None:
    with Producer("senders", namesrv_addr=cluster.namesrv_addr) as producer:
        for number in numbers:
            producer.send(Message(topic, json.dumps({"n": number}).encode()))


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("table") / "orders"


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("told") / "events"
    path.touch()
    return path


@pytest.fixture(scope="module")
def airflow(
    cluster: Cluster, table: Path, told: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Airflow]:
    for topic in ("notes", "orders", "jobs"):
        cluster.create_topic(topic, 2)
    folder = tmp_path_factory.mktemp("airflow")
    dags = folder / "dags"
    dags.mkdir()
    source = HERE / "airflow_dags.py"
    (dags / source.name).write_bytes(source.read_bytes())
    land = [sys.executable, "-m", "rocketstream", "--namesrv", cluster.namesrv_addr]
    land += ["ingest", "orders", "--to", f"parquet:{table}", "--schema", "n INT"]
    land += ["--group", "landing", "--master", "local[2]"]
    variables = {
        "TOLD": str(told),
        "OBEYED": str(told.with_name("obeyed")),
        "NAMESRV_ADDR": cluster.namesrv_addr,
        "LAND": shlex.join(land),
        "AIRFLOW_CONN_ROCKETMQ_DEFAULT": json.dumps(
            dict(zip(("conn_type", "host", "port"), ("generic", *address_of(cluster)), strict=True))
        ),
    }
    with Airflow(folder, variables) as running:
        yield running


def address_of(cluster: Cluster) -> tuple[str, int]:
    host, _, port = cluster.namesrv_addr.rpartition(":")
    return host, int(port)


def in_airflow(folder: Path, program: Path) -> str:
    """Run a program with Airflow's Python; return what it printed."""
    done = subprocess.run(
        [str(environment() / "bin/python"), str(program)],
        env={
            "PATH": "/usr/bin:/bin",
            "PYTHONPATH": put_beside(folder / "beside"),
            "AIRFLOW_HOME": str(folder),
            "HOME": str(folder),
        },
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_airflow_finds_keeps_and_runs_the_trigger(tmp_path: Path) -> None:
    """By its scheme and by a URI; restored from the DAG and the database it is the same one."""
    done = in_airflow(tmp_path, HERE / "airflow_program.py")
    lines = [json.loads(line) for line in done.splitlines() if line.startswith("{")]
    kept = {"classpath": "rocketstream.frameworks.airflow.trigger.BacklogTrigger"}
    assert lines == [
        {**kept, "topics": ["orders"], "same": True, "hashes": 1},
        {"before": 0, "payload": {"group": "landing", "behind": {"orders": 1}}},
        {**kept, "topics": ["payments"], "same": True, "hashes": 1},
        {"before": 0, "payload": {"group": "landing", "behind": {"payments": 1}}},
    ]


def test_the_dags_of_the_page_can_be_read_by_airflow(tmp_path: Path) -> None:
    page = (ROOT / "docs/frameworks.md").read_text("utf-8").partition("\n## Airflow\n")[2]
    blocks = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 2
    ends = "\nprint(waiting.serialize(), orders.watchers[0].name)\n"
    begins = "from rocketstream import ConsumeFromWhere, LitePullConsumer\n"
    (tmp_path / "page.py").write_text(begins + "\n".join(blocks) + ends, "utf-8")
    done = in_airflow(tmp_path, tmp_path / "page.py")
    assert "BacklogTrigger" in done.splitlines()[-1]


def succeeded(airflow: Airflow, dag: str, count: int) -> None:
    """Wait until a DAG has run so many times, with success."""
    airflow.wait_for(
        lambda: airflow.runs(dag).count("success") >= count, f"{count} runs of {dag}", RUN_S
    )


def payloads(told: Path) -> list[dict[str, Any]]:
    """Return what the events carried that the DAG was run for."""
    return [json.loads(line)["payload"] for line in told.read_text("utf-8").splitlines()]


def test_a_dag_runs_when_a_message_comes_and_not_before(
    airflow: Airflow, cluster: Cluster, told: Path
) -> None:
    airflow.wait_for_watchers(3)
    assert airflow.runs("tell") == []
    send(cluster, "notes", range(1))
    succeeded(airflow, "tell", 1)
    assert payloads(told) == [{"group": "readers", "behind": {"notes": 1}}]


def test_a_message_that_comes_while_no_triggerer_runs_has_its_event(
    airflow: Airflow, cluster: Cluster, told: Path
) -> None:
    airflow.kill("triggerer")
    send(cluster, "notes", range(1))
    airflow.start("triggerer")
    succeeded(airflow, "tell", 2)
    assert payloads(told)[1:] == [{"group": "readers", "behind": {"notes": 2}}]


def test_a_task_takes_the_messages_over_a_triggerer_that_is_killed(
    airflow: Airflow, cluster: Cluster, told: Path
) -> None:
    def obeyed() -> set[int]:
        path = told.with_name("obeyed")
        lines = path.read_text("utf-8").splitlines() if path.exists() else []
        return {json.loads(line)["n"] for line in lines}

    send(cluster, "jobs", range(1))
    airflow.wait_for(lambda: set(airflow.runs("obey")) == {"success"}, "a run", RUN_S)
    assert obeyed() == {0}
    airflow.kill("triggerer")
    send(cluster, "jobs", range(1, 20))
    airflow.start("triggerer")
    airflow.wait_for(lambda: obeyed() == set(range(20)), "runs with all messages", RUN_S)
    airflow.wait_for(partial(is_consumed, cluster, "workers", "jobs", 20), "commit", RUN_S)


def test_a_dag_lands_what_waits_each_message_once(
    airflow: Airflow, cluster: Cluster, table: Path
) -> None:
    for end in (30, 60):
        send(cluster, "orders", range(end - 30, end))
        landed_all = partial(is_consumed, cluster, "landing", "orders", end)
        airflow.wait_for(landed_all, f"landing up to {end}", LAND_S)
        airflow.wait_for(lambda: set(airflow.runs("land")) == {"success"}, "end of runs", LAND_S)
        landed = parquet.read_table(table, columns=["n"]).column("n").to_pylist()
        assert sorted(landed) == list(range(end))


def is_consumed(cluster: Cluster, group: str, topic: str, count: int) -> bool:
    """Whether a group has committed so many messages of a topic."""
    return sum(max(0, each) for each in cluster.committed(group, topic, 2)) >= count
