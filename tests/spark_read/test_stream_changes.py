"""Streams whose topics change under them: limits, deletions, topics made anew, rows that expire.

The cases of Spark's own suites for its Kafka source that need no Spark.
"""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from rocketstream import (
    LocalTransactionState,
    Message,
    MessageExt,
    TransactionListener,
    TransactionProducer,
)
from rocketstream.errors import DataLossError
from rocketstream.protocol.codes import RequestCode
from tests.kits.spark.micro_batches import Query, Topics, batch_rows
from tests.plugins.waiting import wait_until

StartQuery = Callable[..., Query]
COMMIT = LocalTransactionState.COMMIT_MESSAGE
ROLLBACK = LocalTransactionState.ROLLBACK_MESSAGE
LEFT_OPEN = LocalTransactionState.UNKNOW


def fill_unevenly(topics: Topics, topic: str) -> None:
    """101, 11 and 1 rows in three queues."""
    topics.cluster.create_topic(topic, queues=3)
    topics.put(topic, range(100, 201), queue=0)
    topics.put(topic, range(10, 21), queue=1)
    topics.put(topic, [1], queue=2)


def test_a_limit_is_shared_out_over_restarts(topics: Topics, topic: str, query: StartQuery) -> None:
    """In proportion, at least one of each queue that holds something."""
    fill_unevenly(topics, topic)
    running = query(topic=topic, startingOffsets="earliest", maxOffsetsPerTrigger=10)
    assert running.batch() == [1, 10, *range(100, 108)]
    assert running.batch() == [11, *range(108, 117)]
    running.restart()
    assert running.batch() == [12, *range(117, 126)]
    assert running.drain() == [1, *range(10, 21), *range(100, 201)]


def test_the_largest_limit_there_is_overflows_nothing(
    topics: Topics, topic: str, query: StartQuery
) -> None:
    """2^63-1 beside offsets above zero."""
    topics.made(topic, range(5))
    start = json.dumps({topic: {"broker-a": {"0": 5}}})
    running = query(topic=topic, startingOffsets=start, maxOffsetsPerTrigger=2**63 - 1)
    assert running.drain() == []
    topics.put(topic, range(30, 35), queue=0)
    assert running.drain() == list(range(30, 35))


def test_rows_sent_between_planning_and_reading_are_the_next_batchs(
    topics: Topics, topic: str, query: StartQuery
) -> None:
    """A task pulls ahead of its range; what it threw away must come again."""
    topics.made(topic, range(4))
    running = query(topic=topic, startingOffsets="earliest")
    assert running.plan()
    topics.put(topic, range(4, 8), queue=0)
    assert running.read() == [0, 1, 2, 3]
    assert running.batch() == [4, 5, 6, 7]


class Decided(TransactionListener):
    """Answers what the sender says."""

    def execute_local_transaction(
        self, message: Message, arg: LocalTransactionState
    ) -> LocalTransactionState:
        return arg

    def check_local_transaction(self, message: MessageExt) -> LocalTransactionState:
        return LEFT_OPEN


def test_rows_of_transactions_are_read_when_they_are_committed(
    topics: Topics, topic: str, query: StartQuery
) -> None:
    """A batch and a stream; what is open or rolled back is in no queue and leaves no gap."""
    topics.cluster.create_topic(topic, queues=1)
    running = query(topic=topic, startingOffsets="earliest", maxOffsetsPerTrigger=3)
    with TransactionProducer(
        "sales", namesrv_addr=topics.cluster.namesrv_addr, transaction_listener=Decided()
    ) as producer:
        for first, decision in ((0, COMMIT), (5, ROLLBACK), (10, LEFT_OPEN), (15, COMMIT)):
            for row in range(first, first + 5):
                producer.send_message_in_transaction(Message(topic, b"%d" % row), decision)
        seen = [*range(5), *range(15, 20)]
        wait_until(lambda: running.drain() == seen, "rows of committed transactions")
        assert batch_rows(topics.cluster, topic=topic) == seen
    assert json.loads(running.offset_log[-1])["q"] == {topic: {"broker-a": {"0": 10}}}


def test_a_micro_batch_has_as_many_partitions_as_asked_for(
    topics: Topics, topic: str, query: StartQuery
) -> None:
    """More than there are queues: the long ones are split."""
    topics.cluster.create_topic(topic, queues=3)
    topics.put(topic, range(10), queue=0)
    topics.put(topic, range(10, 20), queue=1)
    topics.put(topic, [20], queue=2)
    running = query(topic=topic, startingOffsets="earliest", minPartitions=6)
    assert running.drain() == list(range(21))
    assert running.planned[0] >= 6


def test_a_batch_that_is_read_again_on_other_cores_has_the_same_rows(
    topics: Topics, topic: str, query: StartQuery
) -> None:
    """The checkpoint says from where to where, whoever reads it and in how many pieces."""
    topics.made(topic, range(100), queues=3)
    running = query(topic=topic, startingOffsets="earliest", minPartitions=1)
    assert running.plan()
    topics.put(topic, range(100, 110), queues=3)
    running.restart(minPartitions=7, maxRecordsPerPartition=20)
    assert sorted(running.rows) == list(range(100))
    assert running.planned[-1] >= 7
    running.restart(minPartitions=2)
    assert running.drain() == list(range(110))


def test_a_batch_that_is_read_again_on_other_cores_has_the_same_tasks(
    topics: Topics, topic: str, query: StartQuery, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checkpoint says how many: rows that are sent on are known by partition and number."""

    def on_cores(cores: int) -> None:
        for module in ("reader", "driver.streaming"):
            monkeypatch.setattr(f"rocketstream.spark.{module}.CORES", cores)

    topics.made(topic, range(2_500), queues=5)
    on_cores(4)
    running = query(topic=topic, startingOffsets="earliest")
    assert running.plan()
    running.read()
    first = list(running.rows)
    on_cores(1)
    running.committed = 0
    running.restart()
    assert running.planned == [4, 4]
    assert running.rows == first * 2


@pytest.mark.parametrize(("queues", "rows"), [(3, 15), (5, 4)], ids=["fewer queues", "fewer rows"])
def test_available_now_fails_when_its_topic_is_made_anew_under_way(
    topics: Topics, topic: str, query: StartQuery, queues: int, rows: int
) -> None:
    """It must not succeed over an end that nobody can reach any more."""
    topics.cluster.create_topic(topic, queues=5)
    topics.put(topic, range(15), queue=0)
    options = {"topic": topic, "startingOffsets": "earliest", "maxOffsetsPerTrigger": 5}
    running = query(available_now=True, **options)
    assert running.batch() == [0, 1, 2, 3, 4]
    topics.delete(topic)
    topics.cluster.create_topic(topic, queues=queues)
    topics.put(topic, range(rows), queue=0)
    with pytest.raises(DataLossError, match="the topic was recreated, or the broker lost data"):
        running.drain()


def test_a_batch_that_failed_under_available_now_is_replayed_although_the_topic_grew(
    topics: Topics, topic: str, query: StartQuery
) -> None:
    """The new run's end knows queues that the planned batch does not."""
    topics.made(topic, range(1, 8))
    running = query(available_now=True, topic=topic, startingOffsets="earliest")
    assert running.plan()
    running.stop()
    topics.cluster.create_topic(topic, queues=3)
    topics.put(topic, [8, 9], queue=2)
    running.start(available_now=True)
    assert running.rows == list(range(1, 8))
    assert running.drain() == list(range(1, 10))


def test_a_topic_deleted_before_its_batch_is_read_is_left_out_where_losses_are_accepted(
    topics: Topics, topic: str, query: StartQuery
) -> None:
    """The query lives on, and reads the topic of the same name that comes after."""
    topics.made(topic, range(10))
    running = query(topic=topic, startingOffsets="earliest", failOnDataLoss=False)
    assert running.plan()
    topics.made_anew(topic)
    assert running.read() == []
    topics.put(topic, range(20, 23), queue=0)
    assert running.drain() == [20, 21, 22]


def test_a_topic_deleted_before_its_batch_is_read_is_a_loss(
    topics: Topics, topic: str, query: StartQuery
) -> None:
    """Unless the user accepts it."""
    topics.made(topic, range(10))
    running = query(topic=topic, startingOffsets="earliest")
    assert running.plan()
    topics.made_anew(topic)
    with pytest.raises(DataLossError, match="queue 0"):
        running.read()


@pytest.mark.parametrize("fail_on_data_loss", [True, False])
def test_a_planned_batch_is_read_from_a_broker_whose_topic_the_name_server_forgot(
    topics: Topics, topic: str, query: StartQuery, fail_on_data_loss: bool
) -> None:
    """Left out it would never be read: the broker registers the topic again."""
    topics.made(topic, range(10))
    running = query(topic=topic, startingOffsets="earliest", failOnDataLoss=fail_on_data_loss)
    running.drain()
    topics.put(topic, range(10, 30), queue=0)
    assert running.plan()
    running.stop()
    forget = RequestCode.DELETE_TOPIC_IN_NAMESRV
    topics.ask(topics.cluster.namesrv_addr, forget, topic=topic)
    running.start()
    assert running.rows == list(range(30))


def test_a_planned_batch_of_a_topic_its_broker_does_not_have_is_left_out_where_losses_are_accepted(
    topics: Topics, topic: str, query: StartQuery
) -> None:
    """The broker says so itself; a queue its topic has no more is as gone."""
    other = f"{topic}-other"
    topics.cluster.create_topic(topic, queues=2)
    topics.cluster.create_topic(other, queues=1)
    running = query(topic=f"{topic},{other}", startingOffsets="earliest", failOnDataLoss=False)
    running.plan()
    assert running.read() == []
    topics.put(topic, range(10), queues=2)
    topics.put(other, range(10, 13), queues=1)
    assert running.plan()
    running.stop()
    topics.delete(other)
    topics.cluster.create_topic(topic, queues=1)
    running.start()
    assert running.rows == list(range(0, 10, 2))


@pytest.mark.parametrize("rows", [30, 12, 4], ids=["longer", "shorter", "shorter than was read"])
def test_a_planned_batch_is_not_read_from_a_topic_made_anew_since(
    topics: Topics, topic: str, query: StartQuery, rows: int
) -> None:
    """The driver died inside a batch; the new topic's rows at its offsets were never planned."""
    topics.made(topic, range(10))
    running = query(topic=topic, startingOffsets="earliest")
    running.drain()
    topics.put(topic, range(10, 15), queue=0)
    assert running.plan()
    running.stop()
    topics.made_anew(topic, range(100, 100 + rows))
    with pytest.raises(DataLossError, match="offsets 10 to 14 of a micro-batch"):
        running.start()
    assert running.rows == list(range(10))
    running.restart(failOnDataLoss=False)
    assert running.drain() == [*range(10), *range(100, 100 + rows)]


def test_the_first_batch_is_not_read_from_a_topic_made_anew_since(
    topics: Topics, topic: str, query: StartQuery
) -> None:
    """There is no row read before it to know the topic by, and the new one is shorter."""
    topics.made(topic, range(10))
    running = query(topic=topic, startingOffsets="earliest", failOnDataLoss=False)
    assert running.plan()
    topics.made_anew(topic, range(100, 104))
    running.restart()
    assert running.rows == []
    assert running.drain() == [100, 101, 102, 103]


def test_topics_of_a_pattern_come_and_go_where_losses_are_accepted(
    topics: Topics, topic: str, query: StartQuery
) -> None:
    """A deleted topic leaves the checkpoint with the next batch, so that is never empty; made
    anew it is read from its first row.
    """
    old, new = f"{topic}-old", f"{topic}-new"
    topics.made(old, [-1], queues=5)
    running = query(topicPattern=f"{topic}-.*", startingOffsets="latest", failOnDataLoss=False)
    assert running.drain() == []
    topics.put(old, [1, 2, 3])
    assert running.drain() == [1, 2, 3]
    topics.delete(old)
    assert running.drain() == [1, 2, 3]
    assert json.loads(running.offset_log[-1])["q"].keys() == {old}
    topics.made(new, [4, 5, 6], queues=5)
    assert running.drain() == [1, 2, 3, 4, 5, 6]
    assert json.loads(running.offset_log[-1])["q"].keys() == {new}
    topics.made(old, [7, 8], queues=5)
    assert running.restart().drain() == [1, 2, 3, 4, 5, 6, 7, 8]
    assert json.loads(running.offset_log[-1])["q"].keys() == {old, new}


def test_a_topic_of_a_pattern_made_anew_while_the_query_was_stopped_is_a_loss(
    topics: Topics, topic: str, query: StartQuery
) -> None:
    """The text says from which offset to which the queue went back."""
    kept, anew = f"{topic}-kept", f"{topic}-anew"
    for each in (kept, anew):
        topics.made(each, [1, 2])
    running = query(topicPattern=f"{topic}-.*", startingOffsets="earliest")
    assert running.drain() == [1, 1, 2, 2]
    running.stop()
    topics.made_anew(anew, [6])
    running.start()
    with pytest.raises(DataLossError, match="read up to offset 2, but the queue now ends at 1"):
        running.drain()


def test_offsets_of_a_whole_topic_leave_others_that_match_later_alone(
    topics: Topics, topic: str, query: StartQuery
) -> None:
    """What begins to match under way is read from its first row."""
    first, later = f"{topic}-a", f"{topic}-b"
    topics.cluster.create_topic(first, queues=2)
    topics.put(first, [1], queue=0)
    start = json.dumps({first: -2})
    running = query(topicPattern=f"{topic}-.*", startingOffsets=start)
    assert running.drain() == [1]
    topics.made(later, [2])
    assert running.drain() == [1, 2]


def test_offsets_may_be_those_of_whole_topics(
    topics: Topics, topic: str, query: StartQuery
) -> None:
    """One topic from its beginning, the other from its end, no queue named."""
    whole, rest = f"{topic}-a", f"{topic}-b"
    topics.cluster.create_topic(whole, queues=3)
    topics.cluster.create_topic(rest, queues=2)
    topics.put(whole, [1, 2, 3], queue=0)
    topics.put(rest, [11], queue=0)
    start = json.dumps({whole: -2, rest: -1})
    running = query(topic=f"{whole},{rest}", startingOffsets=start)
    assert running.drain() == [1, 2, 3]
    topics.put(rest, [12], queue=0)
    topics.put(whole, [4], queue=1)
    assert running.drain() == [1, 2, 3, 4, 12]
    assert running.restart().drain() == [1, 2, 3, 4, 12]


def test_rows_that_expired_before_they_were_read_are_a_loss_or_left_out(
    topics: Topics, topic: str, query: StartQuery
) -> None:
    """What is left comes once each."""
    topics.made(topic, range(300))
    topics.expire(topic)
    start = json.dumps({topic: {"broker-a": {"0": 0}}})
    with pytest.raises(DataLossError, match="offsets 0 to "):
        query(topic=topic, startingOffsets=start).drain()
    rows = query(topic=topic, startingOffsets=start, failOnDataLoss=False).drain()
    assert 0 < len(rows) < 300
    assert rows == list(range(300 - len(rows), 300))
