"""The page on watching: its examples are run as they stand, in order, against a cluster."""

from __future__ import annotations

import dataclasses
import queue
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rocketstream.client.admin.blocking import BlockingAdminClient
from rocketstream.model import MessageQueue
from rocketstream.server.embedded import EmbeddedCluster
from rocketstream.spark import ReadProgress
from rocketstream.spark.options.formats import CLUSTER_ONLY
from rocketstream.spark.progress.tables import CLUSTER_COLUMNS
from tests.kits.spark.support import Sent, numbered, send

pytestmark = [pytest.mark.spark, pytest.mark.timeout(180)]

PAGE = (Path(__file__).resolve().parents[2] / "docs/watch.md").read_text(encoding="utf-8")
CODE = re.compile(r"```python\n(.*?)```", re.DOTALL)


def examples(heading: str) -> list[str]:
    """The Python examples of one chapter."""
    (chapter,) = (part for part in re.split(r"^## ", PAGE, flags=re.MULTILINE)
                  if part.startswith(heading))  # fmt: skip
    return CODE.findall(chapter)


def run(code: str, names: dict[str, Any], cluster: EmbeddedCluster) -> None:
    """Run an example against the cluster."""
    exec(code.replace("127.0.0.1:9876", cluster.namesrv_addr), names)  # noqa: S102 - our own page


def first_cells(name: str) -> str:
    (table,) = re.findall(rf"^\| {name} \|.*?\n\n", PAGE, re.MULTILINE | re.DOTALL)
    return "\n".join(line.split("|")[1] for line in table.splitlines()[2:] if line)


def test_every_column_and_option_of_progress_is_listed() -> None:
    assert set(re.findall(r"`(\w+)`", first_cells("column"))) >= set(CLUSTER_COLUMNS)
    assert set(re.findall(r"`(\w+)`", first_cells("option"))) >= set(CLUSTER_ONLY)


def test_the_examples_of_progress_can_be_run(
    spark: Any,
    shared_cluster: EmbeddedCluster,
    new_topic: Callable[..., str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    topic = new_topic(queues=1)
    send(shared_cluster, topic, 0, numbered(0, 1_234))
    with BlockingAdminClient(shared_cluster.namesrv_addr) as client:
        client.update_consumer_offset("page", MessageQueue(topic, "broker-a", 0), 0)
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "consumerOffset.json").write_bytes(
        b'{"offsetTable":{"orders@billing":{0:2}}}'
    )
    names: dict[str, Any] = {"spark": spark}
    said = []
    for code in examples("Who falls behind"):
        here = code.replace("/lake", str(tmp_path)).replace("/store", str(tmp_path))
        run(here, names, shared_cluster)
        if "query" in names:
            names["query"].processAllAvailable()
            names.pop("query").stop()
        said.append(capsys.readouterr().out)
    assert re.search(rf"page\| *{topic}\| *1234\|", said[0])
    assert re.search(r"page\|[^|]*\| *1234\|", said[2])
    assert re.search(r"billing\|orders\|.*\| *2\|", said[3])


def test_the_examples_of_dead_letters_can_be_run(
    spark: Any, shared_cluster: EmbeddedCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    shared_cluster.create_topic("%DLQ%billing", queues=1)
    send(
        shared_cluster, "%DLQ%billing", 0, [Sent(b"x", {"RETRY_TOPIC": "orders", "TAGS": "eu"})] * 3
    )
    names: dict[str, Any] = {"spark": spark}
    shared_cluster.create_topic("orders", queues=1)
    reading, sending = examples("What a group gave up")
    run(reading, names, shared_cluster)
    assert re.search(r"orders\| *eu\| *3\|", capsys.readouterr().out)
    run(sending, names, shared_cluster)
    assert capsys.readouterr().out.splitlines() == ["3 {'orders': 3} ()", "3 {'orders': 3}"]
    assert set(re.findall(r"`(\w+)`", first_cells("letter"))) == set(names["letters"].columns)


def test_the_example_of_a_listener_can_be_run(spark: Any, shared_cluster: EmbeddedCluster) -> None:
    topic = "orders-of-the-listener"
    shared_cluster.create_topic(topic, queues=1)
    send(shared_cluster, topic, 0, numbered(0, 5))
    lines: queue.Queue[str] = queue.Queue()
    names: dict[str, Any] = {"spark": spark, "print": lambda *words: lines.put(str(words[0]))}
    (code,) = examples("How a query is doing")
    run(code.replace('"orders"', repr(topic)), names, shared_cluster)
    try:
        assert re.match(
            rf"landing, {topic}: batch 0, 5 rows, .*MB/s, lag 0,", lines.get(timeout=90)
        )
    finally:
        names["query"].stop()
        spark.streams.removeListener(names["listener"])


def test_every_measure_is_listed() -> None:
    listed = set(re.findall(r"`(\w+)`", first_cells("measure")))
    assert listed == {field.name for field in dataclasses.fields(ReadProgress)}
