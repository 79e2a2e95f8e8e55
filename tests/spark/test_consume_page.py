"""The page on consuming: its examples are run as they stand, its tables name what there is."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from rocketstream.client.admin.blocking import BlockingAdminClient
from rocketstream.server.embedded import EmbeddedCluster
from rocketstream.spark.options import CONNECT_OPTIONS, CONSUME_OPTIONS
from tests.spark.support import numbered, send

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

PAGE = (Path(__file__).resolve().parents[2] / "docs/consume-on-spark.md").read_text("utf-8")
CODE = re.compile(r"```python\n(.*?)```", re.DOTALL)


def test_every_option_of_the_sink_is_listed() -> None:
    (table,) = re.findall(r"^\| option of .*?\n\n", PAGE, re.MULTILINE | re.DOTALL)
    listed = set(re.findall(r"`(\w+)`", table))
    assert listed >= (set(CONSUME_OPTIONS) - set(CONNECT_OPTIONS)) | {"nameServer"}


@pytest.mark.long
def test_the_examples_can_be_run(spark: Any, cluster: EmbeddedCluster, tmp_path: Path) -> None:
    """The first selects by tags, so it reads two sources; the second is behind a filter."""
    cluster.create_topic("orders", queues=2)
    send(cluster, "orders", 0, numbered(0, 20, TAGS="created"))
    send(cluster, "orders", 1, numbered(20, 20, TAGS="deleted"))
    names: dict[str, Any] = {"spark": spark}
    with BlockingAdminClient(cluster.namesrv_addr) as client:
        for queue in client.subscribe_queues("orders"):
            client.update_consumer_offset("billing", queue, 5)
        for code in CODE.findall(PAGE):
            here = code.replace("127.0.0.1:9876", cluster.namesrv_addr)
            exec(here.replace("/checkpoints", str(tmp_path)), names)  # noqa: S102 - our own page
            if "consumer" in names:
                consumer = names.pop("consumer")
                consumer.query.processAllAvailable()
                assert consumer.query.lastProgress.sink.numOutputRows in (0, 15)
                consumer.shutdown()
                for queue in client.subscribe_queues("orders"):
                    assert client.query_consumer_offset("billing", queue) == 20
    assert names["query"].lastProgress.numInputRows == 40
    assert names["query"].lastProgress.sink.numOutputRows == 40
