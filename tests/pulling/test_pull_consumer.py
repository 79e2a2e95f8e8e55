"""The pull consumer: single pulls, the caller's own offsets, lookups, send-back, its schedule."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import Any

import pytest

from rocketstream import (
    ClientConfig,
    Message,
    MessageExt,
    MessageQueue,
    MessageSelector,
    PullResult,
    PullStatus,
)
from rocketstream.errors import (
    BrokerError,
    ClientStateError,
    ConfigurationError,
    RouteNotFoundError,
    SubscriptionError,
)
from tests.kits.cluster import Cluster
from tests.kits.faces import Producer, PullConsumer
from tests.kits.listeners import WAIT_S, fill, numbered, send_all
from tests.plugins.clusters import Names
from tests.plugins.waiting import wait_until

pytestmark = pytest.mark.usefixtures("face")

FOUND, NO_NEW, NO_MATCHED, ILLEGAL = (
    PullStatus.FOUND,
    PullStatus.NO_NEW_MSG,
    PullStatus.NO_MATCHED_MSG,
    PullStatus.OFFSET_ILLEGAL,
)


def puller(cluster: Cluster, names: Names, **settings: Any) -> PullConsumer:
    made = PullConsumer(names.group, namesrv_addr=cluster.namesrv_addr, **settings)
    made.start()
    return made


def bodies(messages: list[MessageExt]) -> list[str]:
    return [message.body.decode() for message in messages]


def test_every_message_is_found_queue_by_queue(cluster: Cluster, names: Names) -> None:
    """Covers C-490, C-491, C-496: the loop of the source article, with nextBeginOffset."""
    fill(cluster, names.topic, numbered(names.topic, range(100)), 4)
    seen: list[str] = []
    with puller(cluster, names) as consumer:
        queues = consumer.fetch_subscribe_message_queues(names.topic)
        assert [mq.queue_id for mq in queues] == [0, 1, 2, 3]
        assert {mq.topic for mq in queues} == {names.topic}
        for mq in queues:
            offset = 0
            while (result := consumer.pull(mq, None, offset, 32)).pull_status is FOUND:
                seen += bodies(result.msg_found_list)
                offset = result.next_begin_offset
            assert result.pull_status is NO_NEW
            assert result.next_begin_offset == offset == result.max_offset
    assert sorted(map(int, seen)) == list(range(100))


def test_an_unknown_topic_has_no_queues(cluster: Cluster, names: Names) -> None:
    """Covers C-490."""
    with (
        puller(cluster, names) as consumer,
        pytest.raises(RouteNotFoundError, match="Can not find Message Queue for this topic"),
    ):
        consumer.fetch_subscribe_message_queues("NoSuchTopic")


def test_all_four_statuses(cluster: Cluster, names: Names) -> None:
    """Covers C-218, C-496: each tells where to go on."""
    fill(cluster, names.topic, numbered(names.topic, range(5), tags="A"), 1)
    with puller(cluster, names) as consumer:
        (mq,) = consumer.fetch_subscribe_message_queues(names.topic)
        found = consumer.pull(mq, "A || B", 0, 3)
        assert (found.pull_status, len(found.msg_found_list)) == (FOUND, 3)
        assert (found.next_begin_offset, found.min_offset, found.max_offset) == (3, 0, 5)
        nothing = consumer.pull(mq, "*", 5, 32)
        assert (nothing.pull_status, nothing.next_begin_offset) == (NO_NEW, 5)
        other = consumer.pull(mq, "B", 0, 32)
        assert (other.pull_status, other.next_begin_offset) == (NO_MATCHED, 5)
        beyond = consumer.pull(mq, "*", 99, 32)
        assert (beyond.pull_status, beyond.msg_found_list) == (ILLEGAL, [])
        assert beyond.next_begin_offset == 5


def test_messages_carry_the_bounds_of_their_queue(cluster: Cluster, names: Names) -> None:
    """Covers C-220: MIN_OFFSET and MAX_OFFSET come with the answer."""
    fill(cluster, names.topic, numbered(names.topic, range(2)), 1)
    with puller(cluster, names) as consumer:
        (mq,) = consumer.fetch_subscribe_message_queues(names.topic)
        (first, _) = consumer.pull(mq, None, 0, 32).msg_found_list
        assert (first.get_property("MIN_OFFSET"), first.get_property("MAX_OFFSET")) == ("0", "2")


def test_a_blocking_pull_is_answered_by_the_next_message(cluster: Cluster, names: Names) -> None:
    """Covers C-491: the broker holds the request; a plain pull of the same offset is not held."""
    cluster.create_topic(names.topic, 1)
    with puller(cluster, names) as consumer:
        (mq,) = consumer.fetch_subscribe_message_queues(names.topic)
        assert consumer.pull(mq, None, 0, 32).pull_status is NO_NEW
        held = consumer.pull_block_if_not_found_async(mq, None, 0, 32)
        send_all(cluster.namesrv_addr, numbered(names.topic, [7]))
        result = held.result(WAIT_S)
        assert bodies(result.msg_found_list) == ["7"]
        assert consumer.pull_block_if_not_found(mq, "*", 0, 32).pull_status is FOUND


def test_futures_and_callbacks(cluster: Cluster, names: Names) -> None:
    """Covers C-491: plain functions get the future, callback objects the result or the error."""
    fill(cluster, names.topic, numbered(names.topic, range(3)), 1)
    done = threading.Barrier(2)
    seen: list[object] = []

    class Callback:
        def on_success(self, pull_result: PullResult) -> None:
            seen.append(pull_result.pull_status)
            done.wait(WAIT_S)

        def on_exception(self, error: BaseException) -> None:
            seen.append(type(error))
            done.wait(WAIT_S)

    def function(future: Future[PullResult]) -> None:
        seen.append(len(future.result().msg_found_list))
        done.wait(WAIT_S)

    with puller(cluster, names) as consumer:
        (mq,) = consumer.fetch_subscribe_message_queues(names.topic)
        assert consumer.pull_async(mq, None, 0, 32).result(WAIT_S).next_begin_offset == 3
        for callback, queue in ((Callback(), mq), (function, mq), (Callback(), _no_queue(mq))):
            consumer.pull_async(queue, None, 0, 32, callback)
            done.wait(WAIT_S)
    assert seen[:2] == [FOUND, 3]
    assert isinstance(seen[2], type)
    assert issubclass(seen[2], BrokerError)


def test_what_cannot_be_called_back_is_refused(cluster: Cluster, names: Names) -> None:
    """Covers C-492."""
    mq = MessageQueue(names.topic, "broker-a", 0)
    with puller(cluster, names) as consumer:
        for method in (consumer.pull_async, consumer.pull_block_if_not_found_async):
            with pytest.raises(ConfigurationError, match="callback must be a function"):
                method(mq, None, 0, 32, None)


def _no_queue(mq: MessageQueue) -> MessageQueue:
    return mq._replace(queue_id=99)


def test_wrong_arguments_are_named(cluster: Cluster, names: Names) -> None:
    """Covers C-492."""
    cluster.create_topic(names.topic, 1)
    mq = MessageQueue(names.topic, "broker-a", 0)
    with puller(cluster, names) as consumer:
        with pytest.raises(ConfigurationError, match="message_queue must be a rocketstream"):
            consumer.pull(None, None, 0, 32)  # type: ignore[arg-type]
        with pytest.raises(ConfigurationError, match="offset must be a whole number from 0 on"):
            consumer.pull(mq, None, -1, 32)
        with pytest.raises(ConfigurationError, match="max_nums must be a whole number from 1 on"):
            consumer.pull(mq, None, 0, 0)
        with pytest.raises(SubscriptionError, match=r"^subscription exception"):
            consumer.pull(mq, "||", 0, 32)
    with pytest.raises(ClientStateError, match=r"PullConsumer is not running \(SHUTDOWN"):
        consumer.pull(mq, None, 0, 32)


def test_the_expression_goes_along_with_the_pull(cluster: Cluster, names: Names) -> None:
    """Covers C-493, C-495: nothing is subscribed; each pull filters by its own expression."""
    fill(cluster, names.topic, [Message(names.topic, tag, tags=tag) for tag in "ABAB"], 1)
    with puller(cluster, names) as consumer:
        (mq,) = consumer.fetch_subscribe_message_queues(names.topic)
        for expression in ("A", MessageSelector.by_tag("A")):
            result = consumer.pull(mq, expression, 0, 32)
            assert bodies(result.msg_found_list) == ["A", "A"]
        assert bodies(consumer.pull(mq, "B", 0, 32).msg_found_list) == ["B", "B"]


# --- offsets ------------------------------------------------------------------------------------


def test_offsets_are_the_callers(cluster: Cluster, names: Names) -> None:
    """Covers C-497, C-571, C-573: noted, stored on demand, never forgotten with other queues."""
    fill(cluster, names.topic, numbered(names.topic, range(30)), 3)
    with puller(cluster, names) as consumer:
        queues = consumer.fetch_subscribe_message_queues(names.topic)
        first, second, third = queues
        consumer.update_consume_offset(first, 7)
        assert consumer.fetch_consume_offset(first) == 7
        # Nothing is stored yet: the broker says 0 for a queue still at its beginning (C-333).
        assert consumer.fetch_consume_offset(first, from_store=True) <= 0
        assert consumer.fetch_consume_offset(first) == 7
        consumer.update_consume_offset_to_broker(second, 4)
        assert consumer.fetch_consume_offset(second, True) == 4
        assert consumer.fetch_consume_offset(first) == 7
        consumer.update_consume_offset(third, 9)
        consumer.update_consume_offset(third, 3)
        consumer.persist_consumer_offset()
        assert [consumer.fetch_consume_offset(mq, True) for mq in queues] == [7, 4, 3]
    assert cluster.committed(names.group, names.topic, 3) == [7, 4, 3]


def test_what_was_noted_is_stored_at_shutdown(cluster: Cluster, names: Names) -> None:
    """Covers C-124, C-497, C-573: also of topics nobody registered."""
    fill(cluster, names.topic, numbered(names.topic, range(10)), 2)
    with puller(cluster, names) as consumer:
        for mq in consumer.fetch_subscribe_message_queues(names.topic):
            consumer.update_consume_offset(mq, 2 + mq.queue_id)
    assert cluster.committed(names.group, names.topic, 2) == [2, 3]


def test_the_timer_stores_what_was_noted(cluster: Cluster, names: Names) -> None:
    """Covers C-303, C-497: of every queue, in the process queue table or not."""
    fill(cluster, names.topic, numbered(names.topic, range(10)), 2)
    config = ClientConfig(namesrv_addr=cluster.namesrv_addr, persist_consumer_offset_interval_ms=50)
    with PullConsumer(names.group, config=config) as consumer:
        for mq in consumer.fetch_subscribe_message_queues(names.topic):
            consumer.update_consume_offset(mq, 1)
        wait_until(
            lambda: cluster.committed(names.group, names.topic, 2) == [1, 1], "stored offsets"
        )


# --- registered topics --------------------------------------------------------------------------


def test_registered_topics_are_divided_among_the_members(cluster: Cluster, names: Names) -> None:
    """Covers C-54, C-55, C-185, C-494: the listener hears of all queues and of this member's."""
    cluster.create_topic(names.topic, 4)
    heard: list[tuple[str, int, int]] = []
    changed = threading.Condition()

    def listener(topic: str, every: list[MessageQueue], mine: list[MessageQueue]) -> None:
        with changed:
            heard.append((topic, len(every), len(mine)))
            changed.notify_all()

    def wait_for(share: int) -> None:
        with changed:
            wanted = (names.topic, 4, share)
            assert changed.wait_for(lambda: wanted in heard, WAIT_S), heard

    with puller(
        cluster, names, register_topics={names.topic}, message_queue_listener=listener
    ) as one:
        assert one.register_topics == {names.topic}
        wait_for(4)
        assert len(one.fetch_message_queues_in_balance(names.topic)) == 4
        with puller(cluster, names, register_topics=[names.topic]) as two:
            wait_for(2)
            wait_until(
                lambda: len(two.fetch_message_queues_in_balance(names.topic)) == 2, "second half"
            )
            mine = set(one.fetch_message_queues_in_balance(names.topic))
            assert not mine & set(two.fetch_message_queues_in_balance(names.topic))


def test_a_topic_registered_later_has_its_own_listener(cluster: Cluster, names: Names) -> None:
    """Covers C-54, C-55, C-123, C-194: dividing queues neither reads nor moves offsets."""
    fill(cluster, names.topic, numbered(names.topic, range(10)), 2)
    told = threading.Event()
    with puller(cluster, names) as consumer:
        queues = consumer.fetch_subscribe_message_queues(names.topic)
        consumer.update_consume_offset(queues[0], 3)
        assert consumer.fetch_message_queues_in_balance(names.topic) == []
        consumer.register_message_queue_listener(names.topic, lambda *_: told.set())
        assert told.wait(WAIT_S)
        assert consumer.fetch_message_queues_in_balance(names.topic) == queues
        assert consumer.fetch_consume_offset(queues[0]) == 3
    assert cluster.committed(names.group, names.topic, 2)[0] == 3
    assert cluster.committed(names.group, names.topic, 2)[1] <= 0


# --- lookups and send-back ----------------------------------------------------------------------


def test_queues_and_messages_can_be_looked_up(cluster: Cluster, names: Names) -> None:
    """Covers C-499: ends, times, one message by either id, messages by key."""
    cluster.create_topic(names.topic, 1)
    with Producer("pg", namesrv_addr=cluster.namesrv_addr) as producer:
        sent = [producer.send(Message(names.topic, str(n), keys=f"key{n}")) for n in range(5)]
    wait_until(lambda: cluster.ends(names.topic, 1) == [5], "the last message")
    with puller(cluster, names) as consumer:
        (mq,) = consumer.fetch_subscribe_message_queues(names.topic)
        messages = consumer.pull(mq, None, 0, 32).msg_found_list
        assert (consumer.min_offset(mq), consumer.max_offset(mq)) == (0, 5)
        assert consumer.earliest_msg_store_time(mq) == messages[0].store_timestamp
        assert consumer.search_offset(mq, 0) == 0
        by_id = consumer.view_message(names.topic, sent[3].offset_msg_id)
        assert by_id.body == b"3"
        by_key = wait_until(lambda: _viewed(consumer, names.topic, sent[2].msg_id), "index entry")
        assert by_key.body == b"2"
        (found,) = consumer.query_message(names.topic, "key4", 10, 0, 2**62)
        assert found.body == b"4"
        with pytest.raises(BrokerError, match="no message"):
            consumer.view_message(names.topic, "0" * 32)


def _viewed(consumer: PullConsumer, topic: str, msg_id: str) -> MessageExt | None:
    try:
        return consumer.view_message(topic, msg_id)
    except BrokerError:
        return None


def test_a_message_sent_back_comes_to_the_retry_topic(cluster: Cluster, names: Names) -> None:
    """Covers C-498: consuming it there is the caller's business."""
    fill(cluster, names.topic, numbered(names.topic, [1]), 1)
    with puller(cluster, names) as consumer:
        (mq,) = consumer.fetch_subscribe_message_queues(names.topic)
        (message,) = consumer.pull(mq, None, 0, 32).msg_found_list
        consumer.send_message_back(message, 1)
        retry = wait_until(lambda: _queues(consumer, f"%RETRY%{names.group}"), "retry topic")[0]
        again = consumer.pull_block_if_not_found(retry, None, 0, 32)
        (returned,) = again.msg_found_list
        assert (returned.body, returned.reconsume_times) == (b"1", 1)
        assert returned.get_property("RETRY_TOPIC") == names.topic
        assert consumer.pull(mq, None, 1, 32).pull_status is NO_NEW


def _queues(consumer: PullConsumer, topic: str) -> list[MessageQueue]:
    try:
        return consumer.fetch_subscribe_message_queues(topic)
    except RouteNotFoundError:
        return []


def test_a_namespace_is_put_on_and_taken_off(cluster: Cluster, names: Names) -> None:
    """Covers C-148: of topics, groups, queues and messages."""
    fill(cluster, f"ns%{names.topic}", numbered(f"ns%{names.topic}", range(3)), 1)
    config = ClientConfig(namesrv_addr=cluster.namesrv_addr, namespace="ns")
    with PullConsumer(names.group, config=config) as consumer:
        (mq,) = consumer.fetch_subscribe_message_queues(names.topic)
        assert mq.topic == names.topic
        result = consumer.pull(mq, None, 0, 32)
        pulled = result.msg_found_list
        assert {message.topic for message in pulled} == {names.topic}
        looked_up = consumer.view_message(names.topic, pulled[0].offset_msg_id)
        assert (looked_up.topic, looked_up.body) == (names.topic, pulled[0].body)
        consumer.update_consume_offset(mq, 3)
    assert cluster.committed(f"ns%{names.group}", f"ns%{names.topic}", 1) == [3]
