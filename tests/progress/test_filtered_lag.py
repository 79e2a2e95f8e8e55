"""Lag under a filter is what a consumer with that filter would get."""

from __future__ import annotations

import bisect
import itertools
import random
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import pytest

from rocketstream import (
    ConsumeConcurrentlyStatus,
    Message,
    Producer,
    PullConsumer,
    PushConsumer,
    limits,
)
from rocketstream.admin import Admin
from rocketstream.admin.core.filtering import Count
from rocketstream.admin.core.joining import Matching
from rocketstream.admin.filtered import count_matching, has_filter
from rocketstream.admin.state import QueueState
from rocketstream.admin.wire.looking import Asking
from rocketstream.client.instance.questions import Question
from rocketstream.model import MessageQueue
from rocketstream.protocol.bodies import TopicConfig
from rocketstream.protocol.bodies.admin import QueueEntries
from rocketstream.protocol.headers import ViewMessageRequestHeader
from rocketstream.protocol.subscription import build_subscription
from rocketstream.protocol.tag_hash import tags_code
from rocketstream.server.broker.handlers import upkeep
from rocketstream.server.embedded import EmbeddedCluster

TOPIC = "orders"
QUEUE = MessageQueue(TOPIC, "broker-a", 0)


@pytest.fixture
def admin(rocketmq_cluster: EmbeddedCluster) -> Iterator[Admin]:
    with Admin(rocketmq_cluster.namesrv_addr) as admin:
        admin.topics.create(TOPIC, 1)
        yield admin


def send(cluster: EmbeddedCluster, tags: Sequence[str | None]) -> None:
    with Producer("filter-test", namesrv_addr=cluster.namesrv_addr) as producer:
        for number, tag in enumerate(tags):
            message = Message(TOPIC, b"x", tags=tag)
            message.properties["n"] = str(number)
            producer.send(message, message_queue=QUEUE)


def consumed(cluster: EmbeddedCluster, expression: str, start: int) -> int:
    """Return how many messages a consumer with a filter gets from an offset on."""
    with PullConsumer("brute-force", namesrv_addr=cluster.namesrv_addr) as consumer:
        got, offset = 0, start
        while offset < consumer.max_offset(QUEUE):
            result = consumer.pull(QUEUE, expression, offset, 32)
            got += len(result.msg_found_list)
            offset = result.next_begin_offset
        return got


def counted(
    admin: Admin, expression: str, kind: str = "TAG", start: int = 0, most: int = 400_000
) -> Matching:
    asking = Asking(admin._client, admin._client.master("broker-a"), 5_000)
    (held,) = admin.topics.status(TOPIC)
    queue = QueueState(
        TOPIC, "broker-a", 0, min_offset=0, max_offset=held.max_offset, committed_offset=start
    )
    wanted = build_subscription(TOPIC, expression, 0, kind)
    return count_matching(asking, queue, wanted, most, config=TopicConfig(TOPIC))


def test_the_count_is_what_a_consumer_gets(rocketmq_cluster: EmbeddedCluster, admin: Admin) -> None:
    send(rocketmq_cluster, [*itertools.islice(itertools.cycle("ABCA"), 150), None, None])
    for expression in ("A", "A || C", "B", "D"):
        for start in (0, 7, 149):
            found = counted(admin, expression, start=start)
            assert found.count is not None
            assert found.count.is_exact
            assert found.count.matching == consumed(rocketmq_cluster, expression, start)


def test_answers_that_end_early_are_gone_on_from(
    rocketmq_cluster: EmbeddedCluster, admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Apache's broker answers up to the end of a file of the index, ours a bounded number."""
    send(rocketmq_cluster, ["A", "B", "A"] * 20)
    monkeypatch.setattr(upkeep, "ENTRIES_MAX", 7)
    found = counted(admin, "A", start=1)
    assert found.count == Count.exactly(39)


def test_the_first_message_wanted_is_found_with_its_store_time(
    rocketmq_cluster: EmbeddedCluster, admin: Admin
) -> None:
    send(rocketmq_cluster, ["A", "A", "B", "A", "B"])
    found = counted(admin, "B")
    assert found.first is not None
    assert found.first[0] == 2
    assert counted(admin, "C").first is None


def test_tags_of_one_hash_are_told_apart_as_the_client_does(
    rocketmq_cluster: EmbeddedCluster, admin: Admin
) -> None:
    """``Aa`` and ``BB`` have one hash: the broker sends both, the client drops one (C-381)."""
    send(rocketmq_cluster, ["Aa", "BB", "BB", "C"] * 20)
    found = counted(admin, "Aa")
    assert found.count is not None
    assert (found.count.matching, found.count.is_exact) == (20, True)
    assert consumed(rocketmq_cluster, "Aa", 0) == 20


def test_too_many_of_one_hash_to_be_read_are_estimated_within_bounds(
    rocketmq_cluster: EmbeddedCluster, admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(rocketmq_cluster, ["Aa", "BB", "BB", "C"] * 40)
    monkeypatch.setattr(limits, "FILTER_MESSAGES_READ_MAX", 30)
    found = counted(admin, "Aa")
    assert found.count is not None
    assert not found.count.is_exact
    assert found.count.low <= 40 <= found.count.high < 120


def test_entries_beyond_the_bound_are_estimated(
    rocketmq_cluster: EmbeddedCluster, admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(rocketmq_cluster, ["A", "B"] * 100)
    monkeypatch.setattr(limits, "FILTER_ENTRIES_PER_REQUEST", 10)
    assert counted(admin, "A").count == counted(admin, "A", most=200).count
    found = counted(admin, "A", most=50)
    assert found.count is not None
    assert found.count.low <= 100 <= found.count.high


def test_a_condition_is_counted_where_few_messages_wait_and_estimated_where_many_do(
    rocketmq_cluster: EmbeddedCluster, admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(rocketmq_cluster, [None] * 120)
    found = counted(admin, "n < 30", "SQL92")
    assert found.count is not None
    assert (found.count.matching, found.count.is_exact) == (30, True)
    monkeypatch.setattr(limits, "FILTER_SAMPLE", 40)
    found = counted(admin, "n < 30", "SQL92")
    assert found.count is not None
    assert not found.count.is_exact
    assert found.count.low <= 30 <= found.count.high <= 60


def test_what_cannot_be_counted_says_why(admin: Admin) -> None:
    asking = Asking(admin._client, admin._client.master("broker-a"), 5_000)
    gone = QueueState(TOPIC, "broker-a", 7, min_offset=0, max_offset=9, committed_offset=0)
    found = count_matching(asking, gone, build_subscription(TOPIC, "A", 0), config=None)
    assert found.count is None
    assert "what the filter wants is not known" in str(found.error)
    gone = QueueState(TOPIC, "broker-a", 0, min_offset=0, max_offset=9, committed_offset=0)
    found = count_matching(asking, gone, build_subscription(TOPIC, "A", 0), config=None)
    assert found.count is None


def test_only_real_filters_are_counted() -> None:
    assert not has_filter(build_subscription(TOPIC, "*", 0))
    assert has_filter(build_subscription(TOPIC, "A", 0))
    assert has_filter(build_subscription(TOPIC, "n > 1", 0, "SQL92"))


def test_a_group_waits_for_what_its_filter_wants(
    rocketmq_cluster: EmbeddedCluster, admin: Admin
) -> None:
    send(rocketmq_cluster, ["A", "B", "B", "A", "A"])
    held, got = threading.Event(), threading.Event()

    def listener(_: object) -> ConsumeConcurrentlyStatus:
        got.set()
        held.wait(30)
        return ConsumeConcurrentlyStatus.CONSUME_SUCCESS

    with PushConsumer(
        "picky",
        namesrv_addr=rocketmq_cluster.namesrv_addr,
        subscription={TOPIC: "A"},
        listener=listener,
    ) as consumer:
        assert got.wait(20)
        admin._client.update_consumer_offset("picky", QUEUE, 0)
        state = admin.groups.state("picky", TOPIC)
        plain = admin.groups.state("picky", TOPIC, matching=False)
        held.set()
    (queue,) = state.queues
    assert (queue.lag, queue.matching, queue.waiting) == (5, 3, 3)
    assert queue.client_id == consumer.client_id
    assert plain.queues[0].waiting == 5


# --- batch queues of 5.x --------------------------------------------------------------------------


BATCHY = TopicConfig(TOPIC, attributes={"queue.type": "BatchCQ"})


@dataclass(frozen=True)
class Record:
    """What the broker reads of a stored message; or of a batch, of which it reads no more."""

    tags: str | None
    store_timestamp: int = 7

    @property
    def properties(self) -> dict[str, str]:
        return {} if self.tags is None else {"TAGS": self.tags}


class BatchQueue:
    """Answers as ``BatchConsumeQueue`` of 5.5.0 does: by entry, each with a base and a size."""

    address = "broker"

    def __init__(self, batches: Sequence[tuple[str | None, int]], entries_a_file: int) -> None:
        self.tags = [tag for tag, _ in batches]
        self.bases = list(itertools.accumulate((size for _, size in batches), initial=0))
        self.entries_a_file = entries_a_file
        self.offsets = [tag for tag, size in batches for _ in range(size)]

    def one(self, asked: Question[Any]) -> Any:
        return self.each([asked])[0]

    def each(self, asked: Sequence[Question[Any]]) -> list[Any]:
        return [self._answer(each.header) for each in asked]

    def _answer(self, header: Any) -> Any:
        if isinstance(header, ViewMessageRequestHeader):
            return Record(self.tags[header.offset])
        first = bisect.bisect_right(self.bases, header.index) - 1
        file_end = (first // self.entries_a_file + 1) * self.entries_a_file
        stop = bisect.bisect_left(self.bases, header.index + header.count)
        held = list(range(first, min(stop, file_end, len(self.tags))))
        codes = [tags_code(self.tags[i] or "") for i in held]
        return QueueEntries(held, [1] * len(held), codes)

    def count(
        self, expression: str, start: int, kind: str = "TAG", config: TopicConfig | None = BATCHY
    ) -> Matching:
        queue = QueueState(
            TOPIC, "broker", 0, min_offset=0, max_offset=self.bases[-1], committed_offset=start
        )
        subscription = build_subscription(TOPIC, expression, 0, kind)
        return count_matching(cast(Asking, self), queue, subscription, config=config)


def test_a_batch_queue_of_single_messages_is_counted() -> None:
    """Over files of its index too, where answers end."""
    single = BatchQueue([(tag, 1) for tag in "ABCAB" * 20], entries_a_file=7)
    assert single.count("A", 1).count == Count.exactly(39)
    assert single.count("TAGS = 'A'", 1, "SQL92").count == Count.exactly(39)


def test_a_batch_queue_of_batches_is_unknown_and_says_so() -> None:
    batches = BatchQueue([("A", 1), ("B", 3), ("A", 2)], entries_a_file=100)
    found = batches.count("A", 0)
    assert found.count is None
    for words in (
        "queue 0 of orders at broker holds batches",
        "queue.type=BatchCQ",
        "for how many",
    ):
        assert words in str(found.error)


def test_a_condition_over_batches_is_what_the_broker_makes_of_each() -> None:
    """It evaluates the properties of the batch, and gives all of it or nothing."""
    batches = BatchQueue([("A", 1), ("B", 3), ("A", 2)], entries_a_file=100)
    for start, wanted in ((0, 3), (2, 2), (5, 1)):
        assert batches.count("TAGS = 'A'", start, "SQL92").count == Count.exactly(wanted)


@pytest.mark.parametrize("told", [True, False], ids=["told", "not told"])
def test_batches_never_give_a_wrong_count(told: bool) -> None:
    """Whatever sizes they have, wherever files end and counting begins."""
    right = 0
    rng = random.Random(10)
    for _ in range(2_000):
        sizes = [rng.choice((1, 1, 1, 2, 3)) for _ in range(rng.randint(1, 9))]
        batches = BatchQueue([(rng.choice("AB"), size) for size in sizes], rng.randint(1, 9))
        start = rng.randrange(batches.bases[-1])
        found = batches.count("A", start, config=BATCHY if told else None)
        if found.count is not None:
            right += 1
            assert found.count == Count.exactly(batches.offsets[start:].count("A")), (sizes, start)
        else:
            assert max(sizes) > 1
    assert 200 < right < 1_800


def test_a_compacted_topic_is_unknown_and_says_so() -> None:
    compacted = TopicConfig(TOPIC, attributes={"cleanup.policy": "COMPACTION"})
    found = BatchQueue([("A", 1)], 9).count("A", 0, config=compacted)
    assert found.count is None
    assert "cleanup.policy=COMPACTION" in str(found.error)
