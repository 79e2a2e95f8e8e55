"""Filling topics quickly, on a plain connection: what is under test here is reading."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

from rocketstream.columns.table import ALL_COLUMNS
from rocketstream.protocol.codes import RequestCode
from rocketstream.protocol.command import RemotingCommand
from rocketstream.protocol.headers import SendMessageRequestHeader
from rocketstream.protocol.properties import encode_properties
from rocketstream.protocol.record import encode_batch
from rocketstream.server.embedded import EmbeddedCluster
from rocketstream.spark.driver.cluster import Cluster
from rocketstream.spark.driver.positions import batch_ranges
from rocketstream.spark.executor.fetch import read_rows
from rocketstream.spark.listener.queries import STARTS_MAX, is_given_up
from rocketstream.spark.options import read_options
from rocketstream.spark.scan import PartitionPlan, new_scan
from rocketstream.transport.blocking_connection import BlockingConnection

PAGES = Path(__file__).resolve().parents[3] / "docs"
EXAMPLE = re.compile(r"<!-- test: (\w+) -->\n```python\n(.*?)```", re.DOTALL)
BATCH = 50
CONNECT_ON_ANY_PORT: Final = {"SPARK_TESTING": "1"}
"""Environment in which Spark gives its own Connect server any free port, not 15002."""
BORN_MS = 1_700_000_000_000


@dataclass(frozen=True)
class Sent:
    """One message to send."""

    body: bytes
    properties: Mapping[str, str] = field(default_factory=dict)


def run_to_end(writer: Any, wait_s: float = 120) -> Any:
    """Start a writer whose trigger ends by itself, wait for its end, and return the query.

    Begins again, as ``ingest`` and push consumers do, when a busy machine has not started the
    source's Python within the ten seconds that Spark waits: nothing was read by then.
    """
    for start in range(STARTS_MAX):
        query = writer.start()
        try:
            assert query.awaitTermination(wait_s), f"it runs for more than {wait_s} s"
            break
        except Exception:
            if start + 1 == STARTS_MAX or not is_given_up(query):
                raise
    return query


class HasBroker(Protocol):
    """A cluster, as far as sending to it goes."""

    @property
    def broker_addr(self) -> str:
        """Its broker."""
        ...


def send(
    cluster: HasBroker,
    topic: str,
    queue_id: int,
    messages: Iterable[Sent],
    sys_flag: int = 0,
) -> None:
    """Send messages to one queue, in order; acknowledged when this returns."""
    pending = [(0, m.body, encode_properties(m.properties).encode()) for m in messages]
    with BlockingConnection(cluster.broker_addr) as connection:
        for first in range(0, len(pending), BATCH):
            command = RemotingCommand(RequestCode.SEND_BATCH_MESSAGE)
            header = SendMessageRequestHeader(
                producer_group="pg",
                topic=topic,
                default_topic="TBW102",
                default_topic_queue_nums=4,
                queue_id=queue_id,
                sys_flag=sys_flag,
                born_timestamp=BORN_MS,
                flag=0,
                properties="WAIT\x01true",
                reconsume_times=0,
                unit_mode=False,
                batch=True,
            )
            command.ext_fields = header.to_ext_v2()
            command.body = encode_batch(pending[first : first + BATCH])
            answer = connection.request(command, 10_000)
            assert answer.code == 0, answer


def numbered(first: int, count: int, **properties: str) -> list[Sent]:
    """Messages whose bodies are numbers, so that any loss or repeat shows."""
    return [
        Sent(b"%d" % number, {"KEYS": f"k{number}", "WAIT": "true", **properties})
        for number in range(first, first + count)
    ]


def page_example(name: str) -> str:
    """Return an example of the pages about Spark, as printed."""
    texts = [page.read_text(encoding="utf-8") for page in PAGES.glob("spark*.md")]
    (found,) = (text for all_ in map(EXAMPLE.findall, texts) for n, text in all_ if n == name)
    return str(found)


def stored(cluster: EmbeddedCluster | str, topic: str) -> list[dict[str, Any]]:
    """All rows of a topic by queue and offset, read without Spark."""
    address = cluster if isinstance(cluster, str) else cluster.namesrv_addr
    scan = new_scan(read_options({"nameServer": address, "topic": topic}, "batch"), ALL_COLUMNS)
    driver = Cluster(scan.options)
    try:
        spans = batch_ranges(scan.options, driver)
        plan = PartitionPlan(tuple(spans), driver.addresses(span.queue for span in spans))
    finally:
        driver.close()
    rows = [row for batch in read_rows(scan, plan) for row in batch.to_pylist()]
    return sorted(rows, key=lambda row: (row["queueId"], row["queueOffset"]))


def numbers(rows: list[dict[str, Any]]) -> list[int]:
    """The numbers in the bodies, in their order; repeats stay."""
    return [int(row["body"]) for row in rows]
