"""The page on consuming: its examples are run as they stand, its tables name what there is."""

from __future__ import annotations

import os
import re
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from rocketstream.client.admin.blocking import BlockingAdminClient
from rocketstream.server.embedded import EmbeddedCluster
from rocketstream.spark.options import CONNECT_OPTIONS, CONSUME_OPTIONS
from tests.kits.spark.support import numbered, send
from tests.plugins.waiting import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]
TIMEOUT_S = 60.0

PAGE = (Path(__file__).resolve().parents[2] / "docs/consume-on-spark.md").read_text("utf-8")
CODE = re.compile(r"```python\n(.*?)```", re.DOTALL)


def test_every_option_of_the_sink_is_listed() -> None:
    (table,) = re.findall(r"^\| option of .*?\n\n", PAGE, re.MULTILINE | re.DOTALL)
    listed = set(re.findall(r"`(\w+)`", table))
    assert listed >= (set(CONSUME_OPTIONS) - set(CONNECT_OPTIONS)) | {"nameServer"}


def end_by_ctrl_c(names: dict[str, Any]) -> threading.Thread:
    """Send this process Ctrl-C once the example's consumer has consumed all there is.

    Args:
        names: the example's variables; its ``consumer`` comes up on another thread.

    Returns:
        The thread that looks and sends.
    """

    def end() -> None:
        try:
            wait_until(lambda: "consumer" in names, "the example's consumer", TIMEOUT_S)
            names["consumer"].query.processAllAvailable()
        finally:
            os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=end)
    thread.start()
    return thread


@pytest.mark.long
def test_the_examples_can_be_run(
    spark: Any, shared_cluster: EmbeddedCluster, tmp_path: Path
) -> None:
    """The first selects by tags and ends by Ctrl-C, after which its block still stops the query;
    the second is behind a filter."""
    shared_cluster.create_topic("orders", queues=2)
    send(shared_cluster, "orders", 0, numbered(0, 20, TAGS="created"))
    send(shared_cluster, "orders", 1, numbered(20, 20, TAGS="deleted"))
    names: dict[str, Any] = {"spark": spark}
    first, second = (
        code.replace("127.0.0.1:9876", shared_cluster.namesrv_addr).replace(
            "/checkpoints", str(tmp_path)
        )
        for code in CODE.findall(PAGE)
    )
    with BlockingAdminClient(shared_cluster.namesrv_addr) as client:
        queues = client.subscribe_queues("orders")
        for queue in queues:
            client.update_consumer_offset("billing", queue, 5)
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            thread = end_by_ctrl_c(names)
            with pytest.raises(KeyboardInterrupt):
                exec(first, names)  # noqa: S102 - our own page
            thread.join()
        finally:
            signal.signal(signal.SIGINT, before)
        assert names["consumer"].state.name == "SHUTDOWN_ALREADY"
        assert not names["consumer"].query.isActive
        assert [client.query_consumer_offset("billing", queue) for queue in queues] == [20, 20]
    exec(second, names)  # noqa: S102 - our own page
    assert names["query"].lastProgress.numInputRows == 40
    assert names["query"].lastProgress.sink.numOutputRows == 40
