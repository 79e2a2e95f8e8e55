"""From what brokers told to the state of a group: what they did not tell stays unknown."""

from __future__ import annotations

import dataclasses
from typing import Any

from rocketstream.admin.core.filtering import Count
from rocketstream.admin.core.joining import (
    BrokerAnswers,
    Matching,
    about_ends,
    about_members,
    about_times,
    by_group,
    group_state,
    groups_of_offsets,
    kind_of,
    member_rows,
    offsets_of_group,
    times_of,
    topics_of,
)
from rocketstream.admin.state import GroupState, QueueKind, QueueState, TopicQueue, topic_kind
from rocketstream.model import MessageQueue
from rocketstream.protocol.bodies import (
    Connection,
    ConsumerConnection,
    QueueTimeSpan,
    SubscriptionData,
    TopicConfig,
)
from rocketstream.protocol.names import is_system_group

NOW = 1_700_000_600_000


def answers(
    committed: dict[str, dict[int, int]],
    name: str = "broker-a",
    ends: tuple[int, int] = (0, 100),
    topics: tuple[str, ...] = ("orders",),
    **more: Any,
) -> BrokerAnswers:
    """Return a broker that holds topics of one queue each, every one with the same ends."""
    return BrokerAnswers(
        "C",
        name,
        {0: "10.0.0.1:10911"},
        topics={topic: TopicConfig(topic, read_queue_nums=1) for topic in topics},
        offsets={"g": committed},
        groups={"g"},
        ends={topic: {0: TopicQueue(topic, name, 0, *ends, NOW - 1_000)} for topic in topics},
        delayed={},
        **more,
    )


def connection(
    *members: str, model: str = "CLUSTERING", topic: str = "orders"
) -> ConsumerConnection:
    return ConsumerConnection(
        connection_set=[Connection(client_id=member) for member in members],
        subscription_table={"orders": SubscriptionData(topic="orders")},
        message_model=model,
    )


def only_queue(*brokers: BrokerAnswers) -> QueueState:
    (queue,) = group_state("g", NOW, brokers).queues
    return queue


def test_lag_is_what_is_kept_and_not_consumed() -> None:
    """Covers C-528."""
    queue = only_queue(answers({"orders": {0: 90}}))
    assert (queue.max_offset, queue.committed_offset, queue.lag, queue.expired) == (100, 90, 10, 0)


def test_messages_lost_to_retention_are_no_lag_and_counted_apart() -> None:
    queue = only_queue(answers({"orders": {0: 5}}, ends=(40, 100)))
    assert (queue.lag, queue.expired) == (60, 35)


def test_no_committed_offset_is_unknown_and_not_zero() -> None:
    """Brokers send 0 for "nothing committed" (C-527); the stored offsets tell the difference."""
    queue = only_queue(answers({"orders": {}}))
    assert (queue.committed_offset, queue.lag, queue.time_lag_ms(NOW)) == (None, None, None)
    queue = only_queue(answers({"orders": {0: 0}}))
    assert (queue.committed_offset, queue.lag) == (0, 100)


def test_an_empty_queue_without_an_offset_has_no_lag() -> None:
    queue = only_queue(answers({"orders": {}}, ends=(0, 0)))
    assert (queue.committed_offset, queue.lag, queue.time_lag_ms(NOW)) == (None, 0, 0)


def test_a_retry_queue_without_an_offset_waits_as_a_whole() -> None:
    """Covers C-195: it is consumed from its beginning."""
    queue = only_queue(answers({}, ends=(10, 13), topics=("%RETRY%g",)))
    assert (queue.kind, queue.committed_offset, queue.lag) == (QueueKind.RETRY, None, 3)


def test_being_ahead_in_one_queue_makes_up_for_nothing_in_another() -> None:
    """A queue made anew has fewer messages than were consumed of the old one."""
    ahead = answers({"orders": {0: 160}}, name="broker-b")
    state = group_state("g", NOW, [answers({"orders": {0: 90}}), ahead])
    assert [queue.lag for queue in state.queues] == [10, -60]
    assert (state.lag, state.waiting) == (10, 10)


def test_caught_up_the_last_consumed_message_is_the_newest() -> None:
    queue = only_queue(answers({"orders": {0: 100}}))
    assert (queue.last_consumed_ms, queue.time_lag_ms(NOW)) == (NOW - 1_000, 0)
    queue = only_queue(answers({"orders": {0: 100}}, ends=(100, 100)))
    assert queue.last_consumed_ms is None


def span(delay: int, oldest: int, newest: int, consumed: int = 1) -> QueueTimeSpan:
    return QueueTimeSpan(
        message_queue=MessageQueue("orders", "broker-a", 0),
        min_time_stamp=oldest,
        max_time_stamp=newest,
        consume_time_stamp=consumed,
        delay_time=delay,
    )


def test_lag_in_time_is_the_age_of_the_next_message() -> None:
    """Covers C-538."""
    behind = only_queue(answers({"orders": {0: 90}}))
    assert times_of(behind, span(500, 1_000_000, 2_000_000, 7), NOW) == (NOW - 500, 7)
    assert times_of(behind, span(0, 1_000, 2_000, 7), NOW) == (NOW, 7)


def test_the_next_message_after_deleted_ones_is_the_oldest_kept() -> None:
    """A broker subtracts the store time -1 from its clock and answers decades."""
    lost = only_queue(answers({"orders": {0: 5}}, ends=(40, 100)))
    oldest = 1_700_000_000_000
    assert times_of(lost, span(NOW + 1, oldest, oldest + 500_000, oldest), NOW) == (oldest, None)
    assert times_of(lost, span(NOW + 1, -1, oldest), NOW) == (None, None)


def test_retries_without_an_offset_are_as_old_as_the_oldest_kept() -> None:
    """For no offset Apache answers decades, ours 0."""
    queue = only_queue(answers({}, topics=("%RETRY%g",)))
    assert times_of(queue, span(NOW + 1, 1_000, 2_000), NOW) == (1_000, None)
    assert times_of(queue, span(0, 1_000, 2_000), NOW) == (1_000, None)


def test_the_time_of_the_last_consumed_is_not_taken_from_one_that_was_not() -> None:
    """Where nothing was consumed a broker answers the time of its oldest message."""
    behind = only_queue(answers({"orders": {0: 0}}))
    assert times_of(behind, span(500, 1_000_000, 2_000_000, 1_000_000), NOW)[1] is None


def test_times_are_by_our_clock_where_the_broker_has_another() -> None:
    broker = answers({"orders": {0: 90}}, times={("g", "orders", 0): (NOW + 50_000, NOW + 40_000)})
    hour_ahead = dataclasses.replace(broker, ahead_ms=3_600_000)
    queue = only_queue(hour_ahead)
    assert queue.next_stored_ms == NOW + 50_000 - 3_600_000
    assert queue.last_consumed_ms == NOW + 40_000 - 3_600_000
    assert queue.last_stored_ms == NOW - 1_000 - 3_600_000
    almost = only_queue(dataclasses.replace(broker, ahead_ms=300))
    assert almost.next_stored_ms == NOW + 50_000


def test_what_a_filter_wants_is_what_waits() -> None:
    broker = answers({"orders": {0: 90}}, times={("g", "orders", 0): (NOW - 9_000, None)})
    broker.matching["g", "orders", 0] = Matching(Count.exactly(4), first=(93, NOW - 2_000))
    queue = only_queue(broker)
    assert (queue.lag, queue.matching, queue.waiting) == (10, 4, 4)
    assert queue.time_lag_ms(NOW) == 2_000
    broker.matching["g", "orders", 0] = Matching(Count.exactly(0))
    queue = only_queue(broker)
    assert (queue.lag, queue.waiting, queue.time_lag_ms(NOW)) == (10, 0, 0)
    broker.matching["g", "orders", 0] = Matching(Count(4, 2, 7))
    queue = only_queue(broker)
    assert (queue.matching_is_exact, queue.matching_range) == (False, (2, 7))
    assert queue.time_lag_ms(NOW) == 9_000
    broker.matching["g", "orders", 0] = Matching(error="no index")
    queue = only_queue(broker)
    assert (queue.matching, queue.waiting, queue.error) == (None, 10, "no index")


def test_a_refused_question_leaves_its_reason_where_something_is_missing() -> None:
    broker = answers({"orders": {0: 90}})
    del broker.ends["orders"]
    broker.refused[about_ends("orders")] = "queues are not known: busy"
    queue = only_queue(broker)
    assert (queue.committed_offset, queue.lag) == (90, None)
    assert queue.error == "queues are not known: busy"
    broker = answers({"orders": {0: 90}})
    broker.refused[about_times("g", "orders")] = "lag in time is not known: busy"
    queue = only_queue(broker)
    assert (queue.lag, queue.time_lag_ms(NOW)) == (10, None)
    assert queue.error == "lag in time is not known: busy"


def test_an_only_member_owns_the_queues_of_what_it_subscribes() -> None:
    broker = answers({"orders": {0: 90}, "%RETRY%g": {0: 1}}, topics=("orders", "%RETRY%g"))
    broker.connections["g"] = connection("m1")
    retry, orders = group_state("g", NOW, [broker]).queues
    assert (orders.client_id, retry.client_id) == ("m1", None)


def test_the_owner_is_not_guessed_among_several_or_in_broadcasting() -> None:
    for several in (connection("m1", "m2"), connection("m1", model="BROADCASTING")):
        broker = answers({"orders": {0: 90}}, connections={"g": several})
        assert only_queue(broker).client_id is None
    place = MessageQueue("orders", "broker-a", 0)
    told = answers(
        {"orders": {0: 90}},
        connections={"g": connection("m1", "m2")},
        owners={("g", place): "m2", ("h", place): "m3"},
    )
    assert only_queue(told).client_id == "m2"


def test_members_are_unknown_where_a_broker_was_silent_and_none_told() -> None:
    told = answers({}, connections={"g": connection("m1")})
    silent = answers({}, name="broker-b", error="broker-b does not answer")
    nobody = answers({})
    refused = answers({}, refused={about_members("g"): "members are not known: busy"})

    def members(*brokers: BrokerAnswers) -> tuple[Any, ...] | None:
        found = group_state("g", NOW, brokers).members
        return None if found is None else tuple(member.client_id for member in found)

    assert members(nobody) == ()
    assert members(told, silent) == ("m1",)
    assert members(nobody, silent) is None
    assert members(refused) is None
    assert group_state("g", NOW, [refused]).errors == ("members are not known: busy",)


def test_topics_the_members_left_are_no_part_of_the_group_but_its_retries_are() -> None:
    """Covers C-527."""
    topics = ("orders", "left", "%RETRY%g", "%DLQ%g")
    broker = answers({"orders": {0: 1}, "left": {0: 1}, "gone": {0: 1}}, topics=topics)
    assert topics_of("g", broker) == ["%DLQ%g", "%RETRY%g", "left", "orders"]
    broker.connections["g"] = connection("m1")
    assert topics_of("g", broker) == ["%DLQ%g", "%RETRY%g", "orders"]


def test_topics_consumed_by_popping_have_retry_topics_of_their_own() -> None:
    assert kind_of("g", "%RETRY%g") is QueueKind.RETRY
    assert kind_of("g", "%RETRY%g_orders") is QueueKind.RETRY
    assert kind_of("g", "%RETRY%g+orders") is QueueKind.RETRY
    assert kind_of("g", "%RETRY%gg") is QueueKind.TOPIC
    assert kind_of("g", "%DLQ%g") is QueueKind.DEAD_LETTER


def delayed(*brokers: BrokerAnswers) -> tuple[int | None, bool]:
    state = group_state("g", NOW, brokers)
    return state.delayed, state.delayed_is_exact


def test_messages_to_be_popped_again_count_as_retries_before_any_progress_in_them() -> None:
    """Both names of 5.x; only the newer one cannot be another group's retry topic."""
    for again in ("%RETRY%g_orders", "%RETRY%g+orders"):
        broker = answers({"orders": {0: 100}}, topics=("orders", again))
        state = group_state("g", NOW, [broker])
        assert (state.retrying, state.lag) == (100, 100), again
    others = answers({"orders": {0: 100}}, topics=("orders", "%RETRY%g_orders", "%RETRY%g+bills"))
    others.groups = {"g", "g_orders"}
    assert group_state("g", NOW, [others]).retrying == 0
    assert group_state("g_orders", NOW, [others]).retrying == 100


def test_what_popping_keeps_for_itself_is_internal() -> None:
    assert topic_kind("rmq_sys_REVIVE_LOG_DefaultCluster", set()) == "system"
    assert is_system_group("CID_RMQ_SYS_REVIVE_GROUP")
    assert topic_kind("%RETRY%g+orders", set()) == "retry"


def test_messages_waiting_for_their_delay_are_at_least_what_was_told() -> None:
    one = answers({})
    one.delayed = {"%RETRY%g": 3, "%RETRY%h": 5, "": 7}
    two = answers({}, name="broker-b")
    two.delayed = {"%RETRY%g": 1}
    assert delayed(one, two) == (4, True)
    two.delayed_is_exact = False
    assert delayed(one, two) == (4, False)
    two.delayed = None
    assert delayed(one, two) == (3, False)
    assert delayed(two) == (None, False)


def test_queues_of_a_silent_broker_are_unknown_where_they_are_remembered() -> None:
    silent = BrokerAnswers(
        "C", "broker-b", {0: "b"}, error="silent", remembered={"g": {("orders", 1), ("other", 0)}}
    )
    state = group_state("g", NOW, [answers({"orders": {0: 90}}), silent], {"orders"})
    known, lost = state.queues
    assert (lost.broker_name, lost.queue_id, lost.lag, lost.error) == (
        "broker-b",
        1,
        None,
        "silent",
    )
    assert (known.lag, state.lag, state.queues_unknown) == (10, None, 1)


def test_dead_letters_are_told_and_no_lag() -> None:
    state = group_state("g", NOW, [answers({"%DLQ%g": {0: 3}}, ends=(2, 9), topics=("%DLQ%g",))])
    assert (state.dead_letters, state.lag) == (7, None)
    assert GroupState("g", NOW).dead_letters == 0


def test_offsets_are_read_by_their_last_at_sign() -> None:
    """Keys are ``topic@group`` (wire-and-storage 3.4)."""
    table = {"orders@g": {0: 5}, "a@b@g": {0: 1}, "orders@h": {0: 9}, "broken": {0: 1}}
    table["orders@g@broadcast"] = {0: 7}  # a member's of a broadcasting group, from 5.x on
    assert by_group(table) == {"g": {"orders": {0: 5}, "a@b": {0: 1}}, "h": {"orders": {0: 9}}}


def test_the_kind_of_a_topic_is_in_its_name_or_told_by_the_name_server() -> None:
    assert topic_kind("%RETRY%g", ()) == "retry"
    assert topic_kind("%DLQ%g", ()) == "dead letter"
    assert topic_kind("DefaultCluster_REPLY_TOPIC", {"DefaultCluster"}) == "system"
    assert topic_kind("orders", {"DefaultCluster"}) == "normal"


def test_two_programs_with_one_id_are_one_member_from_two_places() -> None:
    """At one broker: to several brokers every member is connected."""

    def seen(*addresses: str) -> ConsumerConnection:
        found = [Connection(client_id="c1", client_addr=address) for address in addresses]
        return ConsumerConnection(connection_set=found, message_model="CLUSTERING")

    lone = [seen("10.0.0.7:41"), seen("10.0.0.7:42")]
    assert [row.twins for row in member_rows(lone)] == [()]
    twins = [seen("10.0.0.7:41"), seen("10.0.0.8:52", "10.0.0.7:42")]
    (row,) = member_rows(twins)
    assert (row.client_id, row.address, row.twins) == ("c1", "10.0.0.7:42", ("10.0.0.8:52",))


def test_offset_tables_are_read_by_their_last_at_sign() -> None:
    """Keys are ``topic@group`` (wire-and-storage 3.4)."""
    tables = {"broker-a": {"orders@g": {0: 5, 1: 6}, "%RETRY%g@g": {0: 1}, "orders@h": {0: 9}}}
    assert offsets_of_group(tables, "g") == {
        MessageQueue("orders", "broker-a", 0): 5,
        MessageQueue("orders", "broker-a", 1): 6,
        MessageQueue("%RETRY%g", "broker-a", 0): 1,
    }
    assert groups_of_offsets(tables) == {"g": {"orders", "%RETRY%g"}, "h": {"orders"}}
