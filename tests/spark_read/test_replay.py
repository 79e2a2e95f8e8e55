"""A micro-batch run again from its checkpoint: the same rows, whatever has changed since."""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rocketstream.server.embedded import EmbeddedCluster
from tests.kits.spark.support import numbered, run_to_end, send

pytestmark = [pytest.mark.spark, pytest.mark.timeout(180)]

NewTopic = Callable[..., str]


class Replays:
    """Runs queries on one checkpoint and notes what each attempt at a micro-batch read."""

    def __init__(self, spark: Any, cluster: EmbeddedCluster, checkpoint: Path) -> None:
        self._spark = spark
        self._cluster = cluster
        self._checkpoint = checkpoint
        self.attempts: dict[int, list[str]] = defaultdict(list)
        self.numbers: dict[int, list[int]] = {}

    def run(self, topic: str, **options: Any) -> None:
        """Run to the end of what is there; earliest unless said otherwise."""
        options = {"startingOffsets": "earliest", "retryTimeoutMs": 0} | options
        stream = self._spark.readStream.format("rocketmq").options(topic=topic, **options)
        frame = stream.option("nameServer", self._cluster.namesrv_addr).load()
        frame = frame.select("queueId", "queueOffset", "msgId", "tags", "body", "storeTimestamp")
        writer = frame.writeStream.foreachBatch(self._note).trigger(availableNow=True)
        writer = writer.option("checkpointLocation", str(self._checkpoint))
        run_to_end(writer)

    def _note(self, frame: Any, batch: int) -> None:
        rows = sorted(tuple(row) for row in frame.collect())
        self.attempts[batch].append(hashlib.sha256(repr(rows).encode()).hexdigest())
        self.numbers[batch] = sorted(int(bytes(row[4])) for row in rows)

    def forget_commit(self) -> int:
        """Take the commit of the newest micro-batch away, and return which one that was."""
        commits = self._checkpoint / "commits"
        newest = max(int(file.name) for file in commits.glob("[0-9]*"))
        for name in (f"{newest}", f".{newest}.crc"):
            (commits / name).unlink()
        return newest

    def rewrite(self, change: Callable[[Any], Any]) -> None:
        """Change every offset in the checkpoint."""
        for file in (self._checkpoint / "offsets").glob("[0-9]*"):
            *head, offset = file.read_text().splitlines()
            file.write_text("\n".join((*head, json.dumps(change(json.loads(offset))))))
            (file.parent / f".{file.name}.crc").unlink(missing_ok=True)


@pytest.fixture
def replays(spark: Any, shared_cluster: EmbeddedCluster, tmp_path: Path) -> Replays:
    """Queries of one test: one checkpoint."""
    return Replays(spark, shared_cluster, tmp_path)


@pytest.fixture
def topic(shared_cluster: EmbeddedCluster, new_topic: NewTopic) -> str:
    """Two queues of 60 messages each."""
    name = new_topic(queues=2)
    for queue_id in range(2):
        send(shared_cluster, name, queue_id, numbered(queue_id * 60, 60, TAGS="A"))
    return name


def test_a_replayed_batch_has_the_same_rows_although_queues_and_options_changed(
    shared_cluster: EmbeddedCluster, replays: Replays, topic: str
) -> None:
    """Queues added, more rows in the old ones, other limits and partitions: that is for later."""
    replays.run(topic, maxOffsetsPerTrigger=50)
    newest = replays.forget_commit()
    assert newest == 2
    shared_cluster.create_topic(topic, queues=4)
    for queue_id in range(4):
        send(shared_cluster, topic, queue_id, numbered(1_000 + queue_id * 10, 10, TAGS="A"))
    replays.run(topic, maxOffsetsPerTrigger=30, minPartitions=3, startingOffsets="latest")

    first, again = replays.attempts[newest]
    assert first == again
    assert [len(replays.attempts[batch]) for batch in range(newest)] == [1, 1]
    rows = sorted(number for numbers in replays.numbers.values() for number in numbers)
    assert rows == [*range(120), *range(1_000, 1_040)]
    assert max(replays.numbers) > newest


def test_a_batch_is_replayed_from_a_checkpoint_of_an_earlier_version(
    shared_cluster: EmbeddedCluster, replays: Replays, topic: str
) -> None:
    """Format 1 knew no marks of the last rows, and no number of partitions; it is gone on from."""

    def as_format_1(offset: Any) -> Any:
        assert offset.pop("v") == 3
        assert offset.pop("at")
        assert offset.pop("parts")
        assert offset.pop("crc")
        return {"v": 1, **offset}

    replays.run(topic, maxOffsetsPerTrigger=50)
    replays.rewrite(as_format_1)
    newest = replays.forget_commit()
    send(shared_cluster, topic, 0, numbered(120, 10))
    replays.run(topic)
    first, again = replays.attempts[newest]
    assert first == again
    assert replays.numbers[newest + 1] == list(range(120, 130))


def test_a_checkpoint_of_a_later_version_is_refused_with_what_to_do(
    replays: Replays, topic: str
) -> None:
    """Before anything is read."""
    replays.run(topic)
    replays.rewrite(lambda offset: offset | {"v": 4})
    replays.forget_commit()
    with pytest.raises(Exception, match=r"written by a later rocketstream.*Upgrade rocketstream"):
        replays.run(topic)
    assert [len(attempts) for attempts in replays.attempts.values()] == [1]
