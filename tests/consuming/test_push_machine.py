"""The push consumer against a broker that does what the test says."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest

from rocketstream import (
    ClientConfig,
    ConsumeConcurrentlyContext,
    ConsumeConcurrentlyStatus,
    ConsumeFromWhere,
    Message,
    MessageExt,
    MessageModel,
    Producer,
    PushConsumer,
    aio,
)
from rocketstream.errors import ForkedClientError
from rocketstream.protocol.codes import PullSysFlag, RequestCode
from rocketstream.protocol.headers import (
    ConsumerSendMsgBackRequestHeader,
    SearchOffsetResponseHeader,
    SendMessageRequestHeader,
    UpdateConsumerOffsetRequestHeader,
)
from rocketstream.protocol.properties import decode_properties
from rocketstream.protocol.subscription import build_subscription
from tests.kits.client.fake_broker import (
    GROUP,
    TOPIC,
    WAIT_S,
    FakeBroker,
    answer,
    found,
    ok,
    pull_answer,
    pull_header,
    refusal,
    stored_as,
)
from tests.kits.listeners import LATER, SUCCESS, Gate, Seen
from tests.plugins.waiting import wait_until

PULL = RequestCode.PULL_MESSAGE
UPDATE = RequestCode.UPDATE_CONSUMER_OFFSET
BACK = RequestCode.CONSUMER_SEND_MSG_BACK
SEND = RequestCode.SEND_MESSAGE_V2
TAGGED = "TAGS\x01A\x02UNIQ_KEY\x01U"


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    with FakeBroker() as running:
        running.offsets[0] = 0
        yield running


def consumer(
    broker: FakeBroker, listener: Any, expression: str = "*", **settings: Any
) -> PushConsumer:
    """Return a consumer of T, quick to persist and to retry, started."""
    config = ClientConfig(
        namesrv_addr=broker.address,
        persist_consumer_offset_interval_ms=20,
        pull_time_delay_ms_when_exception=20,
    )
    settings.setdefault("local_retry_delay_ms", 20)
    made = PushConsumer(GROUP, config=config, listener=listener, **settings)
    made.subscribe(TOPIC, expression)
    made.start()
    return made


def commits(broker: FakeBroker) -> list[int]:
    headers = [UpdateConsumerOffsetRequestHeader.from_ext(a.ext) for a in broker.asked(UPDATE)]
    return [header.commit_offset for header in headers if header.topic == TOPIC]


def wait_commit(broker: FakeBroker, offset: int) -> None:
    wait_until(lambda: commits(broker)[-1:] == [offset], f"commit of {offset}")


# --- start and end ------------------------------------------------------------------------------


def test_the_heartbeat_says_everything_and_comes_before_the_first_pull(broker: FakeBroker) -> None:
    """Covers C-112, C-143 to C-145, C-183: the newest subVersion is known before it is used."""
    with consumer(broker, Seen()) as made:
        pull = pull_header(broker.wait_pull(0))
        beat = broker.heartbeats[-1]
        assert beat.client_id == made.client_id
        assert [data.group_name for data in beat.producer_data_set] == ["CLIENT_INNER_PRODUCER"]
        (data,) = beat.consumer_data_set
        assert (data.group_name, data.consume_type) == (GROUP, "CONSUME_PASSIVELY")
        assert (data.message_model, data.consume_from_where) == (
            "CLUSTERING",
            "CONSUME_FROM_LAST_OFFSET",
        )
        topics = {each.topic: each for each in data.subscription_data_set}
        assert set(topics) == {TOPIC, f"%RETRY%{GROUP}"}
        assert topics[TOPIC].sub_version == pull.sub_version
        assert (pull.suspend_timeout_millis, pull.max_msg_nums, pull.bname) == (
            15_000,
            32,
            "broker-a",
        )
        assert pull.sys_flag == PullSysFlag.SUSPEND


def test_shutdown_commits_before_it_says_goodbye(broker: FakeBroker) -> None:
    """Covers C-119, C-122: in that order, and nothing is pulled afterwards."""
    seen = Seen()
    with consumer(broker, seen) as made:
        broker.reply(broker.wait_pull(0), found(range(3)))
        seen.wait_consumed(3)
        held = broker.wait_pull(3)
        made.shutdown()
    assert commits(broker)[-1] == 3
    (goodbye,) = broker.asked(RequestCode.UNREGISTER_CLIENT)
    assert goodbye.ext["consumerGroup"] == GROUP
    order = [a.code for a in broker._asked]
    assert order.index(goodbye.code) > max(i for i, code in enumerate(order) if code == UPDATE)
    broker.reply(held, found([3]))
    assert len(seen.consumed) == 3


# --- offsets ------------------------------------------------------------------------------------


def test_a_failed_offset_query_is_no_offset(broker: FakeBroker) -> None:
    """Covers C-193, C-316, C-561: asked again, never taken for "none"; LAST does not jump."""
    broker.on[RequestCode.QUERY_CONSUMER_OFFSET] = refusal(1, "busy")
    with consumer(broker, Seen()):
        broker.wait_for(RequestCode.QUERY_CONSUMER_OFFSET, 2)
        assert not broker.asked(PULL)
        assert not broker.asked(RequestCode.GET_MAX_OFFSET)
        broker.offsets[0] = 5
        broker.on[RequestCode.QUERY_CONSUMER_OFFSET] = broker._query_offset
        broker.wait_pull(5)


@pytest.mark.parametrize(
    ("where", "start"),
    [(ConsumeFromWhere.LAST_OFFSET, 77), (ConsumeFromWhere.FIRST_OFFSET, 0)],
)
def test_where_a_queue_without_offset_begins(
    broker: FakeBroker, where: ConsumeFromWhere, start: int
) -> None:
    """Covers C-189; the start is stored at once, so a crash does not ask LAST again."""
    broker.offsets.clear()
    with consumer(broker, Seen(), consume_from_where=where):
        broker.wait_pull(start)
        wait_commit(broker, start)


def test_timestamp_asks_the_broker(broker: FakeBroker) -> None:
    """Covers C-24, C-189, C-192."""
    broker.offsets.clear()
    broker.on[RequestCode.SEARCH_OFFSET_BY_TIMESTAMP] = lambda _: answer(
        0, SearchOffsetResponseHeader(33)
    )
    with consumer(
        broker,
        Seen(),
        consume_from_where=ConsumeFromWhere.TIMESTAMP,
        consume_timestamp="20240102030405",
    ):
        broker.wait_pull(33)
    (asked,) = broker.asked(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP)
    assert int(asked.ext["timestamp"]) == int(datetime(2024, 1, 2, 3, 4, 5).timestamp() * 1000)


def test_an_offset_is_sent_again_until_the_broker_has_it(broker: FakeBroker) -> None:
    """Covers C-303, C-568: what was refused comes again, what was taken does not."""
    seen = Seen()
    broker.on[UPDATE] = refusal(1, "no")
    with consumer(broker, seen):
        broker.reply(broker.wait_pull(0), found(range(4)))
        seen.wait_consumed(4)
        wait_until(lambda: commits(broker).count(4) >= 2, "a second try")
        broker.on.pop(UPDATE)
        before = len(commits(broker))
        wait_until(lambda: len(commits(broker)) > before, "a try that works")
        broker.reply(broker.wait_pull(4), found([4]))
        wait_commit(broker, 5)
        assert commits(broker).count(4) <= before + 2


def test_the_first_commit_of_a_topic_goes_alone_and_all_go_twice() -> None:
    """Covers C-324: a 4.x broker may lose one of two first commits that come at once."""
    with FakeBroker(queues=3) as broker:
        broker.offsets.update({0: 0, 1: 0, 2: 0})
        broker.on[UPDATE] = lambda _: None
        with consumer(broker, Seen()):
            for queue in range(3):
                (pull,) = broker.wait_for(PULL, 1, lambda a, q=queue: a.ext["queueId"] == str(q))  # type: ignore[misc]
                broker.reply(pull, pull_answer(20, 7, 7))
            (alone,) = broker.wait_for(UPDATE)
            broker.reply(alone, ok())
            for asked in broker.wait_for(UPDATE, 3)[1:]:
                broker.reply(asked, ok())
            again = broker.wait_for(UPDATE, 6)
            assert sorted(a.ext["queueId"] for a in again[3:]) == ["0", "1", "2"]
            for asked_again in again[3:]:
                broker.reply(asked_again, ok())


def test_pulls_carry_the_commit_once_there_is_one(broker: FakeBroker) -> None:
    """Covers C-211, C-215: never an offset of 0."""
    seen = Seen()
    with consumer(broker, seen):
        first = broker.wait_pull(0)
        assert pull_header(first).sys_flag & PullSysFlag.COMMIT_OFFSET == 0
        broker.reply(first, found(range(2)))
        seen.wait_consumed(2)
        wait_commit(broker, 2)
        broker.reply(broker.wait_pull(2), pull_answer(19, 2, 2))
        again = pull_header(broker.wait_pull(2, count=2))
        assert again.sys_flag & PullSysFlag.COMMIT_OFFSET
        assert again.commit_offset == 2


def test_a_pull_carries_no_commit_that_a_later_one_may_overtake(broker: FakeBroker) -> None:
    """Covers C-211, C-324: a broker may handle the pull last and would move the group back."""
    gate = Gate(lambda message: message.body == b"1")
    with consumer(broker, gate):
        broker.reply(broker.wait_pull(0), found(range(2)))
        wait_commit(broker, 1)
        broker.reply(broker.wait_pull(2), pull_answer(19, 2, 2))
        held = pull_header(broker.wait_pull(2, count=2))
        assert held.sys_flag & PullSysFlag.COMMIT_OFFSET == 0
        gate.opened.set()
        wait_commit(broker, 2)


# --- pull replies -------------------------------------------------------------------------------


def test_a_queue_whose_beginning_was_deleted_continues_at_once(broker: FakeBroker) -> None:
    """Covers C-191, C-228, C-565: no ten seconds, no rebalance."""
    with consumer(broker, Seen()):
        broker.reply(broker.wait_pull(0), pull_answer(21, 40, 90))
        broker.wait_pull(40)
        wait_commit(broker, 40)


def test_messages_already_here_still_count_when_the_beginning_is_deleted(
    broker: FakeBroker,
) -> None:
    """Covers C-228: what is cached is finished, and with it what was deleted behind it."""
    gate = Gate(lambda message: True)
    with consumer(broker, gate, "A"):
        broker.reply(broker.wait_pull(0), found([0], properties=TAGGED))
        assert gate.entered.wait(WAIT_S)
        broker.reply(broker.wait_pull(1), pull_answer(21, 40, 90))
        broker.wait_pull(40)
        assert 40 not in commits(broker), "message 0 is not finished"
        gate.opened.set()
        wait_commit(broker, 40)
        broker.reply(broker.wait_pull(40), pull_answer(20, 41, 90))
        wait_commit(broker, 41)


def test_a_queue_that_is_shorter_than_thought_is_begun_anew(broker: FakeBroker) -> None:
    """Covers C-228, C-229: a listener still running cannot overwrite the repaired offset."""
    broker.offsets[0] = 100
    gate = Gate(lambda message: True)
    with consumer(broker, gate):
        broker.reply(broker.wait_pull(100), found([100]))
        assert gate.entered.wait(WAIT_S)
        broker.reply(broker.wait_pull(101), pull_answer(21, 40, 40))
        broker.wait_pull(40)
        wait_commit(broker, 40)
        gate.opened.set()
        gate.seen.wait_consumed(1)
        broker.reply(broker.wait_pull(40), found([40]))
        wait_commit(broker, 41)
        assert 101 not in commits(broker)


def test_what_came_since_a_broker_lost_messages_is_not_passed(broker: FakeBroker) -> None:
    """Covers C-564: it had put the group back to where the queue ended, and 20 came before us."""
    broker.offsets[0] = 100
    with consumer(broker, Seen()):
        broker.reply(broker.wait_pull(100), found([100]))
        pull = broker.wait_pull(101)
        wait_commit(broker, 101)
        broker.offsets[0] = 40
        broker.reply(pull, pull_answer(21, 60, 60))
        broker.reply(broker.wait_pull(40), found([40]))
        wait_commit(broker, 41)


def test_an_old_broker_cannot_cause_a_full_replay(broker: FakeBroker) -> None:
    """Covers C-564: it answers the beginning, the end is meant."""
    broker.offsets[0] = 100
    with consumer(broker, Seen()):
        broker.reply(broker.wait_pull(100), pull_answer(21, 0, 60))
        broker.wait_pull(60)


@pytest.mark.parametrize("code", [24, 25])
def test_a_broker_that_forgot_the_subscription_is_told_at_once(
    broker: FakeBroker, code: int
) -> None:
    """Covers C-358, C-580."""
    with consumer(broker, Seen()):
        pull = broker.wait_pull(0)
        before = len(broker.heartbeats)
        broker.reply(pull, pull_answer(code, 0))
        broker.wait_pull(0, count=2)
        wait_until(lambda: len(broker.heartbeats) > before, "a heartbeat")


@pytest.mark.parametrize("body", [b"junk", b"\x00" * 200])
def test_a_reply_that_cannot_be_read_is_pulled_again(broker: FakeBroker, body: bytes) -> None:
    """Covers C-202, C-231, C-581: the loop of the queue survives."""
    seen = Seen()
    with consumer(broker, seen):
        reply = found([0])
        reply.body = body
        broker.reply(broker.wait_pull(0), reply)
        broker.reply(broker.wait_pull(0, count=2), found([0]))
        seen.wait_consumed(1)


def test_a_lost_connection_is_made_again(broker: FakeBroker) -> None:
    """Covers C-230, C-581."""
    seen = Seen()
    with consumer(broker, seen):
        broker.wait_pull(0)
        broker.thread.run(_close_all(broker))
        broker.reply(broker.wait_pull(0, count=2), found([0]))
        seen.wait_consumed(1)


async def _close_all(broker: FakeBroker) -> None:
    for connection in list(broker.server.connections):
        connection.close("a test says so")


def test_revoked_queue_drops_late_pull_reply(broker: FakeBroker) -> None:
    """Covers C-175, C-549: the reply of an earlier assignment is discarded."""
    seen = Seen()
    with consumer(broker, seen) as made:
        late = broker.wait_pull(0)
        broker.members = ["0", made.client_id]  # the other sorts first and gets the only queue
        broker.notify_members_changed()
        wait_until(lambda: not made.assigned_queues(), "the queue given up")
        broker.reply(late, found([0]))
        broker.members = [made.client_id]
        broker.notify_members_changed()
        broker.reply(broker.wait_pull(0, count=2), found([0]))
        seen.wait_consumed(1)
        broker.wait_pull(1)
    assert len(seen.deliveries) == 1


def give_away(broker: FakeBroker, made: PushConsumer) -> Any:
    """Have another member join, which gets the only queue; return how that queue stands."""
    request = next(iter(made._machine.queues.table.values()))
    broker.members = ["0", made.client_id]
    broker.notify_members_changed()
    wait_until(lambda: request.process_queue.leaving, "a rebalance that gives the queue up")
    return request


def test_a_revoked_queue_waits_for_its_running_listener_and_commits(broker: FakeBroker) -> None:
    """Covers C-179, C-556: what runs counts, and nothing more is handed out."""
    gate = Gate(lambda message: message.body == b"1")
    with consumer(broker, gate, consume_thread_min=1, consume_thread_max=1) as made:
        broker.reply(broker.wait_pull(0), found(range(4)))
        assert gate.entered.wait(WAIT_S)
        request = give_away(broker, made)
        assert made.assigned_queues()
        gate.opened.set()
        wait_until(lambda: not made.assigned_queues(), "the queue given up")
        assert request.process_queue.dropped
        wait_commit(broker, 2)
    assert [message.body for message in gate.seen.deliveries] == [b"0", b"1"]


def test_a_revoked_queue_waits_for_what_is_being_sent_back(broker: FakeBroker) -> None:
    """Covers C-264, C-556: the next owner consumes the copy, not the message again."""
    broker.on[BACK] = lambda _: None
    with consumer(broker, Seen(lambda _: LATER)) as made:
        broker.reply(broker.wait_pull(0), found([0]))
        (asked,) = broker.wait_for(BACK)
        give_away(broker, made)
        broker.reply(asked, ok())
        wait_until(lambda: not made.assigned_queues(), "the queue given up")
        wait_commit(broker, 1)


def test_a_listener_that_hangs_does_not_keep_a_revoked_queue(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Covers C-549: after a bounded wait it leaves, and the late result counts for nothing."""
    gate = Gate(lambda message: message.body == b"1")
    with consumer(broker, gate, consume_thread_min=1, consume_thread_max=1) as made:
        queues = made._machine.queues
        monkeypatch.setattr(queues, "_settings", replace(queues._settings, release_wait_ms=1))
        broker.reply(broker.wait_pull(0), found(range(4)))
        assert gate.entered.wait(WAIT_S)
        request = give_away(broker, made)
        wait_until(lambda: not made.assigned_queues(), "the queue given up")
        wait_commit(broker, 1)
        gate.opened.set()
        gate.seen.wait_deliveries(2)
        assert request.process_queue.message_count == 3
    assert commits(broker)[-1] == 1


def test_a_member_the_broker_forgot_tells_it_and_keeps_its_queues(broker: FakeBroker) -> None:
    """Covers C-159, C-160, C-165: after a broker's restart the others must not divide alone."""
    with consumer(broker, Seen()) as made:
        broker.wait_pull(0)
        broker.on[RequestCode.GET_CONSUMER_LIST_BY_GROUP] = refusal(1, "no consumer for this group")
        before = len(broker.heartbeats)
        broker.notify_members_changed()
        wait_until(lambda: len(broker.heartbeats) > before, "a heartbeat")
        assert [mq.topic for mq in made.assigned_queues()] == [TOPIC]


# --- flow control -------------------------------------------------------------------------------


def test_a_full_queue_is_pulled_once_more_exactly_when_there_is_room(broker: FakeBroker) -> None:
    """Covers C-203, C-206, C-577: one request in circulation however often it was held."""
    gate = Gate(lambda message: True)
    with consumer(
        broker, gate, pull_threshold_for_queue=2, consume_thread_min=1, consume_thread_max=1
    ):
        broker.reply(broker.wait_pull(0), found(range(2)))
        broker.reply(broker.wait_pull(2), found(range(2, 4)))  # exactly 2 do not stop a pull
        assert gate.entered.wait(WAIT_S)
        assert [int(a.ext["queueOffset"]) for a in broker.asked(PULL)] == [0, 2], "4 > 2: held"
        gate.opened.set()
        broker.wait_pull(4)
        gate.seen.wait_consumed(4)
        wait_commit(broker, 4)
        assert [int(a.ext["queueOffset"]) for a in broker.asked(PULL)] == [0, 2, 4]


def test_a_gap_in_the_offsets_counts_for_the_span(broker: FakeBroker) -> None:
    """Covers C-209."""
    gate = Gate(lambda message: message.body == b"0")
    with consumer(broker, gate, "A", consume_concurrently_max_span=10):
        broker.reply(broker.wait_pull(0), found([0, 11], properties=TAGGED))
        # Message 11 is finished: the stuck one alone has span 0, so one batch more is pulled.
        broker.reply(broker.wait_pull(12), found([30], properties=TAGGED))
        broker.wait_pull(31)
        gate.opened.set()
        wait_commit(broker, 31)


# --- failures -----------------------------------------------------------------------------------


def back_headers(broker: FakeBroker, count: int) -> list[ConsumerSendMsgBackRequestHeader]:
    return [ConsumerSendMsgBackRequestHeader.from_ext(a.ext) for a in broker.wait_for(BACK, count)]


def test_a_failed_message_is_sent_back_before_it_counts(broker: FakeBroker) -> None:
    """Covers C-264, C-266, C-270."""
    broker.on[BACK] = lambda _: None
    with consumer(broker, Seen(lambda m: LATER if m.body == b"1" else SUCCESS)):
        broker.reply(broker.wait_pull(0), found(range(3)))
        (header,) = back_headers(broker, 1)
        assert (header.offset, header.group, header.delay_level) == (1000, GROUP, 0)
        assert (header.origin_msg_id, header.origin_topic) == ("U1", TOPIC)
        assert (header.max_reconsume_times, header.bname) == (16, "broker-a")
        wait_commit(broker, 1)
        (asked,) = broker.asked(BACK)
        broker.reply(asked, ok())
        wait_commit(broker, 3)


def test_delay_level_and_limit_reach_the_broker(broker: FakeBroker) -> None:
    """Covers C-264, C-270."""

    def listener(
        messages: list[MessageExt], context: ConsumeConcurrentlyContext
    ) -> ConsumeConcurrentlyStatus:
        context.delay_level_when_next_consume = 5
        return LATER

    with consumer(broker, listener, max_reconsume_times=3):
        broker.reply(broker.wait_pull(0), found([0]))
        (header,) = back_headers(broker, 1)
        assert (header.delay_level, header.max_reconsume_times) == (5, 3)


def test_a_refused_send_back_is_sent_anew(broker: FakeBroker) -> None:
    """Covers C-271, C-272, C-586."""
    broker.topics[f"%RETRY%{GROUP}"] = 1
    broker.on[BACK] = refusal(1, "look message by offset failed")
    with consumer(broker, Seen(lambda m: LATER)):
        broker.reply(broker.wait_pull(0), found([0], properties="TAGS\x01A\x02UNIQ_KEY\x01U"))
        (asked,) = broker.wait_for(SEND)
        header = SendMessageRequestHeader.from_ext_v2(asked.ext)
        assert (header.producer_group, header.topic) == ("CLIENT_INNER_PRODUCER", f"%RETRY%{GROUP}")
        assert (header.reconsume_times, header.max_reconsume_times) == (1, 17)
        assert bytes(asked.command.body) == b"0"
        properties = decode_properties(header.properties or "")
        assert (properties["TAGS"], properties["UNIQ_KEY"], properties["DELAY"]) == ("A", "U0", "3")
        assert properties["RETRY_TOPIC"] == TOPIC
        wait_commit(broker, 1)


def test_what_cannot_be_sent_back_is_consumed_again_here(broker: FakeBroker) -> None:
    """Covers C-264, C-265: the offset waits; the count goes up; then it succeeds."""
    broker.topics[f"%RETRY%{GROUP}"] = 1
    broker.on[BACK] = refusal(1, "no")
    broker.on[SEND] = refusal(13, "no")
    seen = Seen(lambda m: LATER if m.body == b"0" and m.reconsume_times < 2 else SUCCESS)
    with consumer(broker, seen):
        broker.reply(broker.wait_pull(0), found(range(2)))
        seen.wait_consumed(2)
        wait_commit(broker, 2)
    assert [m.body for m in seen.deliveries].count(b"0") == 3
    assert max(m.reconsume_times for m in seen.deliveries) == 2
    assert set(commits(broker)) <= {0, 2}


UNSAFE = pytest.mark.parametrize("status", [10, 11, 12])
"""FLUSH_DISK_TIMEOUT, SLAVE_NOT_AVAILABLE, FLUSH_SLAVE_TIMEOUT."""


@UNSAFE
def test_a_copy_that_is_not_safe_leaves_the_original_unfinished(
    broker: FakeBroker, status: int
) -> None:
    """Covers C-264, C-473: it is consumed again here, as if nothing had been stored."""
    broker.topics[f"%RETRY%{GROUP}"] = 1
    broker.on[BACK] = refusal(1, "no")
    broker.on[SEND] = stored_as(status)
    seen = Seen(lambda m: LATER if m.body == b"0" and m.reconsume_times < 2 else SUCCESS)
    with consumer(broker, seen):
        broker.reply(broker.wait_pull(0), found(range(2)))
        seen.wait_consumed(2)
        wait_commit(broker, 2)
    assert [m.body for m in seen.deliveries].count(b"0") == 3
    assert set(commits(broker)) <= {0, 2}


@UNSAFE
def test_a_cause_is_left_out_for_a_while_where_copies_are_not_safe(
    broker: FakeBroker, status: int
) -> None:
    """One of the two copies is the broker's own; without a pause each failure would leave two."""
    broker.topics[f"%RETRY%{GROUP}"] = 1
    broker.on[SEND] = stored_as(status)

    def listener(messages: list[MessageExt]) -> ConsumeConcurrentlyStatus:
        raise ValueError("never")

    with consumer(broker, listener, send_back_cause=True, consume_thread_max=1):
        broker.reply(broker.wait_pull(0), found([0]))
        wait_commit(broker, 1)
        broker.reply(broker.wait_pull(1), found([1]))
        wait_commit(broker, 2)
        assert (len(broker.asked(SEND)), len(broker.asked(BACK))) == (1, 2)


def test_an_expired_message_is_sent_back_once(broker: FakeBroker) -> None:
    """Covers C-42, C-248 to C-251: level 3; the late failure of its listener is not sent back."""
    gate = Gate(lambda message: message.body == b"0")
    gate.seen = Seen(lambda m: LATER)
    with consumer(broker, gate, consume_timeout_minutes=0.0005):
        broker.reply(broker.wait_pull(0), found([0]))
        (header,) = back_headers(broker, 1)
        assert header.delay_level == 3
        wait_commit(broker, 1)
        gate.opened.set()
        gate.seen.wait_deliveries(1)
        broker.reply(broker.wait_pull(1), found([1]))
        headers = back_headers(broker, 2)
        assert [h.offset for h in headers] == [0, 1000]


def test_an_expired_message_that_cannot_be_sent_back_stays_with_its_listener(
    broker: FakeBroker,
) -> None:
    """Covers C-248: no second call beside one that hangs; the next scan tries again."""
    broker.topics[f"%RETRY%{GROUP}"] = 1
    broker.on[BACK] = refusal(1, "no")
    broker.on[SEND] = refusal(13, "no")
    gate = Gate(lambda message: message.body == b"0")
    with consumer(broker, gate, consume_timeout_minutes=0.0005, local_retry_delay_ms=1):
        broker.reply(broker.wait_pull(0), found([0]))
        broker.wait_for(SEND, 3)
        assert len(gate.arrived.deliveries) == 1
        gate.opened.set()
        wait_commit(broker, 1)
    assert len(gate.arrived.deliveries) == 1


def test_a_slow_listener_gets_all_its_threads(broker: FakeBroker) -> None:
    """Covers C-254: calls that wait run in parallel, up to the bound."""
    arrived = threading.Barrier(6)

    def listener(messages: list[MessageExt]) -> ConsumeConcurrentlyStatus:
        arrived.wait(WAIT_S)
        return SUCCESS

    with consumer(broker, listener, consume_thread_min=6, consume_thread_max=6):
        broker.reply(broker.wait_pull(0), found(range(12)))
        wait_commit(broker, 12)


# --- fork ---------------------------------------------------------------------------------------


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_child_is_told_so(broker: FakeBroker) -> None:
    """The engine's thread stayed in the parent: using the client in the child is an error."""
    with Producer("pg", namesrv_addr=broker.address) as producer:
        producer.send(Message(TOPIC, b"x"))
        child = os.fork()
        if child == 0:
            status = 1
            try:
                producer.send(Message(TOPIC, b"x"))
            except ForkedClientError:
                status = 0
            finally:
                os._exit(status)
        assert os.waitpid(child, 0)[1] == 0
        producer.send(Message(TOPIC, b"x"))


# --- what is not done -----------------------------------------------------------------------------


def test_a_suspended_consumer_pulls_nothing_more(broker: FakeBroker) -> None:
    """Covers C-151: what is on its way is still consumed."""
    seen = Seen()
    with consumer(broker, seen) as made:
        held = broker.wait_pull(0)
        made.suspend()
        impl = made._machine
        wait_until(lambda: impl.pulls.paused, "the order on the consumer's own thread")
        broker.reply(held, found([0]))
        seen.wait_consumed(1)
        wait_commit(broker, 1)
    # The goodbye came over the connection a pull would have come over before it.
    assert broker.asked(RequestCode.UNREGISTER_CLIENT)
    offsets = [pull_header(a).queue_offset for a in broker.asked(PULL) if a.ext["topic"] == TOPIC]
    assert offsets == [0]


def test_what_fails_in_broadcasting_is_not_sent_back(
    broker: FakeBroker, tmp_path: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Covers C-263: it counts as done; there is no group to give it back to."""
    monkeypatch.setenv("ROCKETMQ_LOCAL_OFFSET_STORE_DIR", str(tmp_path))
    seen = Seen(lambda message: LATER)
    with consumer(
        broker, seen, message_model=MessageModel.BROADCASTING,
        consume_from_where=ConsumeFromWhere.FIRST_OFFSET,
    ):  # fmt: skip
        broker.reply(broker.wait_pull(0), found(range(2)))
        broker.wait_pull(2)
        wait_until(lambda: len(seen.deliveries) == 2, "both messages")
    assert len(seen.deliveries) == 2
    assert not broker.asked(BACK)
    assert not broker.asked(SEND)


def test_the_retry_queue_has_its_share_of_a_topic_s_bound(broker: FakeBroker) -> None:
    """Covers C-183: the bound is divided among all queues of the consumer."""
    broker.topics[f"%RETRY%{GROUP}"] = 1
    with consumer(broker, Seen(), pull_threshold_for_topic=10) as made:
        impl = made._machine
        wait_until(lambda: impl.thresholds.count == 5, "half of it for each of two queues")


@pytest.mark.parametrize("followed", [True, False], ids=["replaced", "unsubscribed"])
def test_a_subscription_that_fails_undoes_no_other(broker: FakeBroker, followed: bool) -> None:
    """Covers C-118: nor does one that is cancelled, when others came while brokers were asked."""

    async def listener(_: list[MessageExt]) -> ConsumeConcurrentlyStatus:
        return SUCCESS

    async def main() -> None:
        async with aio.PushConsumer(
            GROUP, namesrv_addr=broker.address, listener=listener, subscription={TOPIC: "A"}
        ) as made:
            machine = made._machine
            newer = build_subscription(TOPIC, "C", 3)

            async def learn(topics: list[str]) -> None:
                del machine.subscriptions[TOPIC]
                if followed:
                    machine.subscriptions[TOPIC] = newer
                raise asyncio.CancelledError

            machine._learn_routes = learn  # type: ignore[method-assign]
            with pytest.raises(asyncio.CancelledError):
                await made.subscribe(TOPIC, "B")
            assert machine.subscription(TOPIC) is (newer if followed else None)

    asyncio.run(main())
