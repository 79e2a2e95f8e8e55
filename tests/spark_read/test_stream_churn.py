"""Streams over topics that are made, grown, deleted and made anew at random; the seed decides."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from tests.kits.spark.micro_batches import Query, Topics

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]

StartQuery = Callable[..., Query]
STEPS = 60


class Churn:
    """What is done to topics of one prefix, and which rows were sent."""

    def __init__(self, topics: Topics, prefix: str, seed: int) -> None:
        self.chance = random.Random(seed)
        self._topics = topics
        self._prefix = prefix
        self._made = 0
        self.queues: dict[str, int] = {}
        self.deleted: list[str] = []
        self.sent: list[int] = []
        self.certain: list[int] = []

    def make(self) -> None:
        """A topic of a new name."""
        self._made += 1
        self._create(f"{self._prefix}-{self._made}")

    def make_anew(self) -> None:
        """A topic of a name that was deleted."""
        if self.deleted:
            self._create(self.deleted.pop(self.chance.randrange(len(self.deleted))))

    def grow(self) -> None:
        """More queues."""
        topic = self.chance.choice(list(self.queues))
        self._create(topic, self.queues[topic] + self.chance.randint(1, 3))

    def delete(self) -> None:
        """Any topic but the first, which is always there."""
        if len(self.queues) > 1:
            topic = self.chance.choice(list(self.queues)[1:])
            self._topics.delete(topic)
            del self.queues[topic]
            self.deleted.append(topic)

    def send(self) -> None:
        """A few rows to a topic; those to the first one cannot be lost."""
        topic = self.chance.choice(list(self.queues))
        rows = list(range(len(self.sent), len(self.sent) + self.chance.randint(1, 9)))
        self._topics.put(topic, rows, queues=self.queues[topic])
        self.sent += rows
        if topic == f"{self._prefix}-1":
            self.certain += rows

    def _create(self, topic: str, queues: int | None = None) -> None:
        self.queues[topic] = queues or self.chance.randint(1, 4)
        self._topics.cluster.create_topic(topic, queues=self.queues[topic])


@pytest.mark.parametrize("seed", range(4))
def test_every_row_comes_once_while_topics_come_grow_and_go(
    topics: Topics, topic: str, query: StartQuery, seed: int
) -> None:
    """A topic is deleted only when all of it was read, so nothing is lost."""
    churn = Churn(topics, topic, seed)
    churn.make()
    options = {"topicPattern": f"{topic}-.*", "startingOffsets": "earliest"}
    running = query(**options, failOnDataLoss=False)
    for _ in range(STEPS):
        steps: list[Callable[[], object]] = [churn.make, churn.grow, churn.delete, churn.send]
        step = churn.chance.choice([*steps, churn.send, running.restart])
        if step == churn.delete:
            assert running.drain() == churn.sent
        step()
    assert running.drain() == churn.sent


@pytest.mark.parametrize("seed", range(8))
def test_no_query_fails_and_no_row_comes_twice_while_topics_are_made_anew(
    topics: Topics, topic: str, query: StartQuery, seed: int
) -> None:
    """Losses are accepted: what a deleted topic still held may be missing, nothing else."""
    churn = Churn(topics, topic, seed)
    churn.make()
    options = {"topicPattern": f"{topic}-.*", "startingOffsets": "earliest"}
    running = query(**options, failOnDataLoss=False, maxOffsetsPerTrigger=20)
    steps: list[Callable[[], object]] = [churn.make, churn.delete, churn.make_anew, churn.send]

    def die_in_a_batch() -> None:
        running.plan()
        running.stop()
        for step in (churn.delete, churn.make_anew, churn.send, churn.send, churn.send):
            step()
        running.start()

    for _ in range(STEPS):
        churn.chance.choice([*steps, churn.send, running.batch, die_in_a_batch])()
    rows = running.drain()
    assert len(set(rows)) == len(rows)
    assert set(churn.certain) <= set(rows) <= set(churn.sent)
