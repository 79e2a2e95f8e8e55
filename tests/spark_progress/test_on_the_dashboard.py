"""A query on the dashboard: what the page tells is what Spark tells of the query."""

from __future__ import annotations

import html
import queue
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from rocketstream import ConsumeConcurrentlyStatus
from rocketstream.admin.core.words import per_second
from rocketstream.client.admin.blocking import BlockingAdminClient
from rocketstream.server.embedded import EmbeddedCluster
from rocketstream.spark import ProgressListener, ReadProgress, consume
from rocketstream.spark.listener.queries import ends_of
from tests.dashboard.rig import LiveRig, browsing_live
from tests.kits.spark.support import numbered, send
from tests.plugins.waiting import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(180)]

CELL = re.compile(r'<t[hd][^>]* data-label="([^"]+)"[^>]*>(.*?)</t[hd]>', re.DOTALL)
LIVE = {"HX-Request": "true"}
LONG_S = 60.0
IDLE_PROGRESS = "spark.sql.streaming.noDataProgressEventInterval"
"""How often Spark tells of an idle query; what it told last stays if that is long, ms."""


def listener(messages: list[Any]) -> ConsumeConcurrentlyStatus:
    return ConsumeConcurrentlyStatus.CONSUME_SUCCESS


@pytest.fixture
def heard(spark: Any) -> Iterator[queue.Queue[ReadProgress]]:
    """What the project's listener of streaming queries tells."""
    told: queue.Queue[ReadProgress] = queue.Queue()
    progress_listener = ProgressListener(told.put)
    spark.streams.addListener(progress_listener)
    spark.conf.set(IDLE_PROGRESS, "3600000")
    yield told
    spark.conf.unset(IDLE_PROGRESS)
    spark.streams.removeListener(progress_listener)


def page(browser: TestClient, rig: LiveRig) -> str:
    """The live part of the page, after a sweep."""
    rig.sweep()
    text: str = browser.get("/spark", headers=LIVE).text
    return text


def row(text: str, group: str) -> dict[str, str]:
    """The row of a group's query, by column; empty where there is none."""
    for part in text.split("<tr ")[1:]:
        cells = {
            name: html.unescape(re.sub(r"<[^>]*>", " ", cell)).strip()
            for name, cell in CELL.findall(part)
        }
        if cells.get("Group") == group:
            return cells
    return {}


def without(text: str, group: str) -> str | None:
    """The page, where the group's query is not on it."""
    return None if row(text, group) else text


def test_the_page_tells_what_spark_tells_of_a_query_until_it_ends(
    spark: Any,
    shared_cluster: EmbeddedCluster,
    new_topic: Callable[..., str],
    heard: queue.Queue[ReadProgress],
    tmp_path: Path,
) -> None:
    topic, group = new_topic(queues=2), "on-the-dashboard"
    send(shared_cluster, topic, 0, numbered(0, 1_200))
    send(shared_cluster, topic, 1, numbered(1_200, 300))
    frame = spark.readStream.format("rocketmq").option("nameServer", shared_cluster.namesrv_addr)
    frame = frame.option("topic", f"{topic},%RETRY%{group}").option("group", group)
    frame = frame.option("startingOffsets", "earliest").load()
    query = (
        consume(frame, listener, group=group, nameServer=shared_cluster.namesrv_addr)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .queryName("shown to all")
        .trigger(processingTime="500 milliseconds")
        .start()
    )
    with browsing_live(shared_cluster.namesrv_addr, tmp_path) as (browser, rig):
        try:
            told = heard.get(timeout=LONG_S)
            spark_says = wait_until(lambda: query.lastProgress, "progress", LONG_S)
            ends = ends_of(query)
            with BlockingAdminClient(shared_cluster.namesrv_addr) as client:
                lag = sum(client.max_offset(each) - end for each, end in ends.items())
            assert (told.batch_id, told.rows) == (spark_says.batchId, spark_says.numInputRows)
            assert (spark_says.numInputRows, lag) == (1_500, 0)

            def shown() -> dict[str, str] | None:
                found = row(page(browser, rig), group)
                return found if found.get("Lag") == f"{lag}" and found["Batch"].isdigit() else None

            cells = wait_until(shown, "row with batch and lag", LONG_S)
            assert cells["Query"].split()[:3] == ["shown", "to", "all"]
            assert cells["Batch"] == str(spark_says.batchId)
            assert cells["Rows in it"] == f"{spark_says.numInputRows:,}"
            assert cells["Rows/s"] == per_second(round(spark_says.processedRowsPerSecond, 1))
        finally:
            query.stop()
        send(shared_cluster, topic, 0, numbered(1_500, 70))
        text = wait_until(
            lambda: without(page(browser, rig), group),
            "page without the query",
            LONG_S,
        )
        assert "No Spark query holds a group" in text
        rig.sweep()
        rest = browser.get("/group", params={"name": group}).text
        assert '<td class="num" data-label="Lag">70</td>' in rest
