"""The examples for Spark: each does what it says, as its own program or cell by cell."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException

from examples.spark import latest_rows, sessions, windows
from rocketstream.server.embedded import EmbeddedCluster
from tests.kits.spark.pipelines import pipeline_environment, placed, run_pipeline
from tests.kits.spark.support import Sent, send, stored

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples" / "spark"
NewTopic = Callable[..., str]


def bodies(cluster: EmbeddedCluster, topic: str) -> list[bytes]:
    return [row["body"] for row in stored(cluster, topic)]


@pytest.mark.long
def test_a_window_counts_what_is_late_and_leaves_out_what_is_too_late(
    spark: Any, shared_cluster: EmbeddedCluster, new_topic: NewTopic, tmp_path: Path
) -> None:
    """Each window is written once; the sale that came after it is the one row that is missing."""
    topic = new_topic(queues=2)
    dropped = []
    for sales in (windows.IN_TIME, windows.LATE, windows.TOO_LATE):
        windows.sell(shared_cluster.namesrv_addr, topic, sales)
        dropped.append(windows.add_up(spark, shared_cluster.namesrv_addr, topic, tmp_path))
    assert dropped == [0, 0, 1]
    closed = windows.takings(spark, tmp_path)
    in_time = {(first, shop): (5, 50) for first in range(0, 30, 5) for shop in ("Oslo", "Rome")}
    late = {(20, "Oslo"): (6, 150), (20, "Rome"): (6, 150), (35, "Rome"): (1, 10)}
    assert closed == in_time | late | {(25, "Rome"): (6, 1_050)}


@pytest.fixture
def rocksdb(spark: Any) -> Iterator[None]:
    """The store of states that timers need."""
    spark.conf.set(sessions.STATE_STORE, sessions.ROCKSDB)
    yield
    spark.conf.unset(sessions.STATE_STORE)


@pytest.mark.long
@pytest.mark.usefixtures("rocksdb")
def test_a_visit_is_written_once_when_its_timer_fires(
    spark: Any, shared_cluster: EmbeddedCluster, new_topic: NewTopic, tmp_path: Path
) -> None:
    """Wherever micro-batches and runs end; a click for a time that is over is the one left out."""
    pytest.importorskip("google.protobuf", reason="transformWithState needs protobuf")
    topic = new_topic(queues=2)
    over, late = [], 0
    for clicks, rows in zip(sessions.PARTS, (1, 100, 2, 100), strict=True):
        sessions.click(shared_cluster.namesrv_addr, topic, clicks)
        late += sessions.close_visits(spark, shared_cluster.namesrv_addr, topic, tmp_path, rows)
        over.append(sessions.closed(spark, tmp_path))
    first, second, third, last = over
    assert (first, second) == ([], [("Ben", 1, 1, 1)])
    assert third == [("Ann", 0, 23, 5), ("Ben", 1, 1, 1), ("Ben", 20, 25, 3)]
    assert (last, late) == ([*third, ("Cy", 60, 60, 1)], 1)


def test_clicks_make_the_same_visits_in_any_order_and_however_they_are_cut() -> None:
    """What Spark keeps between micro-batches is as good as the clicks themselves."""
    minutes = (0, 9, 18, 28, 40, 45, 55)
    clicks = [sessions.Visit(minute * 60_000, minute * 60_000, 1) for minute in minutes]
    wanted = [(0, 18, 3), (28, 28, 1), (40, 45, 2), (55, 55, 1)]
    for order in itertools.permutations(clicks):
        for cut in range(len(clicks)):
            visits = sessions.merged([*sessions.merged(order[:cut]), *order[cut:]])
            found = [(v.first_ms // 60_000, v.last_ms // 60_000, v.clicks) for v in visits]
            assert found == wanted


@pytest.mark.long
def test_rows_are_the_newest_whatever_the_order_of_changes(
    spark: Any, shared_cluster: EmbeddedCluster, new_topic: NewTopic, tmp_path: Path
) -> None:
    """A change older than the row, or than its deletion, changes nothing; nor does a replay."""
    topic = new_topic(queues=2)
    a, b = {"id": 1, "name": "a", "city": "x"}, {"id": 2, "name": "b", "city": "x"}
    change = latest_rows.envelope

    def take_in(*bodies: str) -> list[tuple[int, str, str]]:
        latest_rows.send(shared_cluster.namesrv_addr, topic, bodies)
        latest_rows.take_in(spark, shared_cluster.namesrv_addr, topic, tmp_path)
        return latest_rows.table(spark, tmp_path)

    moved = change(300, a, {**a, "city": "z"})
    assert take_in(moved, change(100, None, a), change(2, None, b)) == [
        (1, "a", "z"), (2, "b", "x"),
    ]  # fmt: skip
    assert take_in(change(200, a, {**a, "city": "y"}), change(900, b, None)) == [(1, "a", "z")]
    assert take_in(change(3, b, {**b, "city": "late"})) == [(1, "a", "z")]
    # The last micro-batch was cut short by a crash: Spark runs it again.
    (commit,) = (tmp_path / "checkpoint" / "commits").glob("2")
    commit.unlink()
    commit.with_name(".2.crc").unlink(missing_ok=True)
    assert take_in(change(950, None, {**b, "city": "back"})) == [(1, "a", "z"), (2, "b", "back")]
    assert latest_rows.versions(tmp_path) == [2, 3]
    with pytest.raises(StreamingQueryException, match=r'no change of a row: \{"payload"'):
        take_in(f'{{"payload": {change(960, b, {**b, "city": "lost"})}}}')


@pytest.mark.long
def test_the_notebook_runs_from_its_first_cell_to_its_last(
    spark: Any, shared_cluster: EmbeddedCluster, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """In order, in one namespace, as a kernel would; it is kept without outputs."""
    notebook = json.loads((EXAMPLES / "notebook.ipynb").read_text(encoding="utf-8"))
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert (notebook["nbformat"], [cell for cell in cells if cell["outputs"]]) == (4, [])
    assert len({cell["id"] for cell in notebook["cells"]}) == len(notebook["cells"])
    shared_cluster.create_topic("notebook-orders", queues=2)
    monkeypatch.setenv("NAMESRV_ADDR", shared_cluster.namesrv_addr)
    names: dict[str, Any] = {}
    for cell in cells:
        exec("".join(cell["source"]), names)  # noqa: S102 - our own notebook
    printed = capsys.readouterr().out
    counts = {row.tags: row["count"] for row in spark.table("by_city").collect()}
    assert counts == {"Bonn": 300, "Oslo": 300, "Rome": 300}
    assert "|Bonn|   200|" in printed
    assert "{2026-03-01 09:05:00, 2026-03-01 09:10:00}" in printed
    rows = [batch.rows for batch in names["batches"]]
    # The second part is sent while the stream runs: how it comes in is not to be foreseen.
    assert (rows[:3], sum(rows)) == ([200, 200, 200], 900)
    assert [batch.lag for batch in names["batches"][:3]] == [400, 200, 0]
    assert {row.lag for row in names["lag"]().collect()} == {0}


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("windows.py", "66 sales sent: 13 windows closed with 64, 1 late"),
        ("latest_rows.py", "2 changes taken in, the table is [(1, 'Ann', 'Bonn')]"),
        ("sessions.py", "12 clicks sent: 4 visits over with 10, 1 late"),
    ],
)
def test_an_example_runs_by_path_without_a_cluster(name: str, said: str, tmp_path: Path) -> None:
    environment = {key: value for key, value in os.environ.items() if key != "NAMESRV_ADDR"}
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert said in done.stdout


@pytest.mark.long
@pytest.mark.timeout(900)  # three runs, each of which starts Spark and has a bound of its own
def test_a_pipeline_bills_every_order_once_over_several_runs(
    shared_cluster: EmbeddedCluster, tmp_path: Path
) -> None:
    """By Spark's own command; the second run takes in what came after the first."""
    for package in ("grpc", "yaml"):
        pytest.importorskip(package, reason="pipelines need pyspark[pipelines]")
    for topic in ("example-orders", "example-bills", "example-returned"):
        shared_cluster.create_topic(topic, queues=2)
    spec = placed(EXAMPLES / "billing", shared_cluster, tmp_path)
    environment = pipeline_environment(tmp_path)
    sent = [Sent(b'{"id": %d, "city": "Oslo", "price": %d}' % (n, n * 100)) for n in range(1, 6)]
    for part in (sent[:3], [*sent[3:], Sent(b'{"city": "Rome"}'), Sent(b"\xff")]):
        send(shared_cluster, "example-orders", 0, part)
        run_pipeline(spec, environment)
    bills = [json.loads(body) for body in bodies(shared_cluster, "example-bills")]
    assert sorted((bill["id"], bill["total"]) for bill in bills) == [
        (n, n * 125.0) for n in range(1, 6)
    ]
    assert sorted(bodies(shared_cluster, "example-returned")) == [b'{"city": "Rome"}', b"\xff"]
