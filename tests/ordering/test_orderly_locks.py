"""Broker locks of an orderly consumer, against a broker that does what the test says."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from rocketstream import ConsumeOrderlyContext, ConsumeOrderlyStatus, MessageExt, MessageQueue
from rocketstream.client.consumer.consume.orderly import orderly_times
from rocketstream.client.consumer.consume.orderly_queue import OrderlyTimes
from rocketstream.client.consumer.consume.queue_locks import LockAnswers
from rocketstream.errors import ConfigurationError
from rocketstream.protocol.bodies import LockBatchRequestBody, UnlockBatchRequestBody
from rocketstream.protocol.codes import RequestCode
from rocketstream.protocol.headers import SendMessageRequestHeader, SendMessageResponseHeader
from rocketstream.protocol.properties import decode_properties
from tests.kits.client.fake_broker import GROUP, TOPIC, WAIT_S, answer, found, refusal
from tests.kits.client.locking_broker import LOCK, UNLOCK, LockingBroker, consumer, locked
from tests.kits.orderly import SUCCESS, SUSPEND, Ordered
from tests.plugins.waiting import wait_until

UPDATE, SEND = RequestCode.UPDATE_CONSUMER_OFFSET, RequestCode.SEND_MESSAGE_V2
QUEUE = MessageQueue(TOPIC, "broker-a", 0)


@pytest.fixture
def broker() -> Iterator[LockingBroker]:
    with LockingBroker() as running:
        running.offsets[0] = 0
        yield running


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Locks are renewed every 20 ms."""
    monkeypatch.setattr(
        "rocketstream.client.consumer.push.impl.orderly_times",
        lambda: OrderlyTimes(first_lock_ms=20, lock_interval_ms=20, release_wait_ms=50),
    )


def test_a_queue_is_locked_before_its_offset_is_asked_and_pulled(broker: LockingBroker) -> None:
    """Covers C-175, C-177, C-186, C-559: no pull waits for the lock timer."""
    with consumer(broker, Ordered()) as made:
        broker.wait_pull(0)
        (asked,) = [each for each in broker.asked(LOCK) if QUEUE in locked(each)]
        body = LockBatchRequestBody.decode(bytes(asked.command.body))
        assert (body.consumer_group, body.client_id) == (GROUP, made.client_id)
        order = [each.code for each in broker._asked]
        assert order.index(LOCK) < order.index(RequestCode.QUERY_CONSUMER_OFFSET)


def test_a_refused_queue_is_asked_for_again_soon_and_not_pulled(broker: LockingBroker) -> None:
    """Covers C-203, C-560: half a second later, not at the next timer."""
    broker.refuses = True
    with consumer(broker, Ordered()) as made:
        broker.wait_for(LOCK, 2)
        assert not broker.asked(RequestCode.PULL_MESSAGE)
        assert not made.assigned_queues()
        broker.refuses = False
        broker.wait_pull(0)


@pytest.mark.usefixtures("quick")
def test_locks_are_renewed_and_given_back_after_the_offsets(broker: LockingBroker) -> None:
    """Covers C-122, C-187, C-188, C-279, C-296: the unlock follows the last commit."""
    seen = Ordered()
    with consumer(broker, seen):
        broker.reply(broker.wait_pull(0), found(range(3)))
        seen.wait_consumed(3)
        broker.wait_for(LOCK, 4)
    (unlock,) = broker.asked(UNLOCK)
    body = UnlockBatchRequestBody.decode(bytes(unlock.command.body))
    assert body.mq_set == {QUEUE}
    codes = [each.code for each in broker._asked]
    last_commit = max(i for i, code in enumerate(codes) if code == UPDATE)
    assert last_commit < codes.index(UNLOCK) < codes.index(RequestCode.UNREGISTER_CLIENT)


@pytest.mark.usefixtures("quick")
def test_a_queue_that_was_given_up_is_not_renewed(broker: LockingBroker) -> None:
    """Covers C-179, C-188, C-558: unlocked at once, although messages were waiting."""
    entered, opened = threading.Event(), threading.Event()

    def verdict(messages: list[MessageExt], context: ConsumeOrderlyContext) -> object:
        entered.set()
        opened.wait(WAIT_S)
        return SUCCESS

    with consumer(broker, Ordered(verdict)) as made:
        broker.reply(broker.wait_pull(0), found(range(5)))
        assert entered.wait(WAIT_S)
        broker.members = ["!first", made.client_id]
        broker.notify_members_changed()
        count = len(broker.locks_asked())
        broker.wait_for(LOCK, count + 3)  # renewed: its listener has not returned
        assert not broker.asked(UNLOCK)
        opened.set()
        broker.wait_for(UNLOCK)
        commit = broker.asked(UPDATE)[-1].ext
        assert commit["commitOffset"] == "1", "the batch in the listener counts"
        wait_until(lambda: not made.assigned_queues(), "no queue")
        count = len(broker.locks_asked())
    assert all(QUEUE not in mqs for mqs in broker.locks_asked()[count:])


@pytest.mark.usefixtures("quick")
def test_a_lock_that_somebody_else_got_makes_the_queue_be_taken_anew(
    broker: LockingBroker,
) -> None:
    """Covers C-187: what was cached may be done there; nothing of it counts, nor is it unlocked."""
    entered, opened = threading.Event(), threading.Event()

    def verdict(messages: list[MessageExt], context: ConsumeOrderlyContext) -> object:
        if messages[0].queue_offset == 1:
            entered.set()
            opened.wait(WAIT_S)
        return SUCCESS

    seen = Ordered(verdict)
    with consumer(broker, seen) as made:
        broker.reply(broker.wait_pull(0), found(range(5)))
        assert entered.wait(WAIT_S)
        queue = made._machine.queues.table[QUEUE].process_queue
        broker.refuses = True
        wait_until(lambda: queue.dropped, "the refusal")
        broker.offsets[0] = 4
        opened.set()
        broker.refuses = False
        broker.reply(broker.wait_pull(4), found([4]))
        seen.wait(lambda s: s.batches[-1] == [4])
    assert seen.batches == [[0], [1], [4]]


def test_a_lock_is_kept_while_the_start_of_its_queue_is_asked_for(broker: LockingBroker) -> None:
    """Covers C-175, C-187: a renewal in between neither gives it back nor loses it."""
    query = broker.on[RequestCode.QUERY_CONSUMER_OFFSET]
    broker.on[RequestCode.QUERY_CONSUMER_OFFSET] = lambda _: None
    with consumer(broker, Ordered()) as made:
        (asked,) = broker.wait_for(
            RequestCode.QUERY_CONSUMER_OFFSET, 1, lambda a: a.ext["topic"] == TOPIC
        )
        engine, impl = made._running()
        service: Any = impl.service
        engine.run(service.locker.renew())
        assert not broker.asked(UNLOCK)
        broker.on[RequestCode.QUERY_CONSUMER_OFFSET] = query
        response = query(asked.command)
        assert response is not None
        broker.reply(asked, response)
        broker.wait_pull(0)
        lease: Any = impl.queues.table[QUEUE].process_queue.lease  # type: ignore[attr-defined]
        assert lease.is_valid(impl.clock.monotonic_ms())


def test_a_lock_of_a_queue_that_is_not_taken_is_given_back(broker: LockingBroker) -> None:
    """Covers C-188, C-560: its start cannot be found out; somebody else may have more luck."""
    broker.on[RequestCode.QUERY_CONSUMER_OFFSET] = refusal(1, "busy")
    with consumer(broker, Ordered()) as made:
        broker.wait_for(RequestCode.QUERY_CONSUMER_OFFSET, 2)
        assert not made.assigned_queues()
    (unlock, *_) = broker.asked(UNLOCK)
    assert UnlockBatchRequestBody.decode(bytes(unlock.command.body)).mq_set == {QUEUE}


def test_a_broker_that_does_not_answer_has_not_refused(
    broker: LockingBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Covers C-187, C-236, C-281, C-283: the lease ages out, then the lock is asked for again.

    Nothing is consumed meanwhile, and the queue stays ours.
    """
    monkeypatch.setattr(
        "rocketstream.client.consumer.push.impl.orderly_times",
        lambda: OrderlyTimes(first_lock_ms=60_000, lock_max_live_ms=200),
    )
    returned, late = threading.Event(), threading.Event()

    def verdict(messages: list[MessageExt], context: ConsumeOrderlyContext) -> object:
        if messages[0].queue_offset == 0:
            returned.wait(WAIT_S)
        else:
            late.set()
        return SUCCESS

    seen = Ordered(verdict)
    with consumer(broker, seen) as made:
        broker.reply(broker.wait_pull(0), found(range(3)))
        seen.wait_deliveries(1)
        lock = broker.on[LOCK]
        broker.on[LOCK] = refusal(1, "busy")
        impl = made._machine
        request = impl.queues.table[QUEUE]
        lease: Any = request.process_queue.lease  # type: ignore[attr-defined]
        wait_until(lambda: not lease.is_valid(impl.clock.monotonic_ms()), "the lease to age")
        count = len(broker.locks_asked())
        returned.set()
        broker.wait_for(LOCK, count + 1)
        assert not late.is_set()
        broker.on[LOCK] = lock
        seen.wait_consumed(3)
        assert impl.queues.table[QUEUE] is request
    assert seen.batches == [[0], [1], [2]]


def test_a_long_run_of_batches_is_interrupted_for_others(
    broker: LockingBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Covers C-282: after the limit the turn ends and goes on a moment later."""
    monkeypatch.setattr(
        "rocketstream.client.consumer.push.impl.orderly_times",
        lambda: OrderlyTimes(turn_max_ms=0),
    )
    seen = Ordered()
    with consumer(broker, seen):
        broker.reply(broker.wait_pull(0), found(range(5)))
        seen.wait_consumed(5)
    assert seen.batches == [[0], [1], [2], [3], [4]]


def test_queues_take_turns_when_there_are_too_few_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Covers C-282: a queue that always has messages does not keep the others waiting."""
    monkeypatch.setattr("rocketstream.client.consumer.consume.orderly_turn.TURN_SHARE_MS", 0.0)
    entered, opened = threading.Event(), threading.Event()
    of_the_second: list[bool] = []

    def listener(messages: list[MessageExt]) -> object:
        of_the_second.append(messages[0].queue_offset >= 10)
        entered.set()
        opened.wait(WAIT_S)
        return SUCCESS

    with LockingBroker(queues=2) as broker:
        broker.offsets = {0: 0, 1: 10}
        with consumer(broker, listener, consume_thread_min=1, consume_thread_max=1) as made:
            broker.reply(broker.wait_pull(0), found([0, 1, 2, 3]))
            assert entered.wait(WAIT_S)
            broker.reply(broker.wait_pull(10), found([10, 11, 12, 13], queue_id=1))
            service: Any = made._machine.service
            wait_until(lambda: len(service._ready) == 1, "the other queue to wait")
            opened.set()
            wait_until(lambda: len(of_the_second) == 8, "everything consumed")
    assert of_the_second[:2] == [False, True]


@pytest.mark.usefixtures("quick")
def test_a_queue_that_leaves_while_its_lock_is_asked_for_keeps_no_other_from_its_answer() -> None:
    """Covers C-187: the refused queue is dropped, though a doubted one left meanwhile."""
    with LockingBroker(queues=2) as broker:
        broker.offsets = {0: 0, 1: 0}
        with consumer(broker, Ordered()) as made:
            pulls = broker.wait_for(
                RequestCode.PULL_MESSAGE, 2, lambda asked: asked.ext["topic"] == TOPIC
            )
            assert len(pulls) == 2
            machine: Any = made._machine
            locker, first = machine.service.locker, QUEUE
            second = QUEUE._replace(queue_id=1)

            async def renew() -> bool:
                async def lock(_: Any) -> LockAnswers:
                    return LockAnswers(0, held={first}, refused={second})

                locker._lock = lock
                locker._stands = lambda *_: True
                locker._queues[first].process_queue.lease.doubt()
                asked = locker._is_ours_still

                async def leaves(queue: Any) -> Any:
                    locker._queues.pop(queue.message_queue, None)
                    return await asked(queue)

                locker._is_ours_still = leaves
                queue = locker._queues[second]
                await locker.ask([first, second])
                return bool(queue.dropped)

            assert made._started is not None
            assert made._started.engine.run(renew())


def test_a_dead_letter_that_breaks_brings_its_message_again(broker: LockingBroker) -> None:
    """Covers C-287: a mistake on the way leaves no queue behind that nobody goes on with."""
    tries: list[int] = []

    def verdict(messages: list[MessageExt], context: ConsumeOrderlyContext) -> object:
        tries.append(messages[0].queue_offset)
        return SUSPEND if len(tries) < 2 else SUCCESS

    async def broken(message: MessageExt, max_times: int) -> bool:
        raise LookupError("a mistake")

    seen = Ordered(verdict)
    with consumer(broker, seen, max_reconsume_times=0) as made:
        machine: Any = made._machine
        machine.send_back.give_up = broken
        broker.reply(broker.wait_pull(0), found([0]))
        seen.wait_consumed(1)
    assert tries == [0, 0]


def test_a_dead_letter_that_cannot_be_sent_is_consumed_again(broker: LockingBroker) -> None:
    """Covers C-287, C-289: counted on, and tried again with its next failure."""
    broker.topics[f"%RETRY%{GROUP}"] = 1
    send = broker.on[SEND]
    broker.on[SEND] = refusal(1, "busy")
    tries: list[int] = []

    def verdict(messages: list[MessageExt], context: ConsumeOrderlyContext) -> object:
        tries.append(messages[0].reconsume_times)
        if len(tries) == 3:
            broker.on[SEND] = send
        return SUSPEND if messages[0].queue_offset == 0 else SUCCESS

    seen = Ordered(verdict)
    with consumer(broker, seen, max_reconsume_times=1) as made:
        broker.reply(broker.wait_pull(0), found(range(2), properties="DELAY\x013\x02UNIQ_KEY\x01U"))
        seen.wait_consumed(1)
        assert made.assigned_queues()
    assert tries[:3] == [0, 1, 2]
    header = SendMessageRequestHeader.from_ext_v2(broker.asked(SEND)[-1].ext)
    assert (header.topic, header.reconsume_times) == (f"%RETRY%{GROUP}", len(tries) - 2)
    assert header.max_reconsume_times == len(tries) - 3, "over the limit of any broker"
    properties = decode_properties((header.properties or "").encode())
    assert properties["MAX_RECONSUME_TIMES"] == "1"
    assert properties["RETRY_TOPIC"] == TOPIC
    assert "DELAY" not in properties


@pytest.mark.parametrize("status", [10, 11, 12])
def test_a_dead_letter_that_is_not_safe_leaves_the_queue_at_its_message(
    broker: LockingBroker, status: int
) -> None:
    """Covers C-289, C-473: given up only once the dead letter is stored as wished."""
    broker.topics[f"%RETRY%{GROUP}"] = 1
    statuses = [status, 0]
    broker.on[SEND] = lambda _: answer(statuses.pop(0), SendMessageResponseHeader("ID", 0, 0))
    seen = Ordered(lambda messages, _: SUSPEND if messages[0].body == b"0" else SUCCESS)
    with consumer(broker, seen, max_reconsume_times=0):
        broker.reply(broker.wait_pull(0), found(range(2)))
        seen.wait_deliveries(3)
    assert seen.batches == [[0], [0], [1]]
    assert statuses == []


def test_by_default_a_failing_message_blocks_its_queue_for_ever(broker: LockingBroker) -> None:
    """Covers C-40, C-292: -1 means no limit; nothing goes to the dead-letter topic."""
    seen = Ordered(lambda messages, context: SUSPEND)
    with consumer(broker, seen):
        broker.reply(broker.wait_pull(0), found(range(3)))
        seen.wait_deliveries(20)
    assert {offset for batch in seen.batches for offset in batch} == {0}
    assert not broker.asked(SEND)


def test_queue_locks_may_be_tuned_by_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Covers C-236, C-282: what the original has system properties for."""
    assert orderly_times() == OrderlyTimes(30_000, 20_000, 1_000, 60_000)
    monkeypatch.setenv("ROCKETMQ_REBALANCE_LOCK_MAX_LIVE_MS", "5")
    monkeypatch.setenv("ROCKETMQ_REBALANCE_LOCK_INTERVAL_MS", " 6 ")
    turn_max = "ROCKETMQ_MAX_TIME_CONSUME_CONTINUOUSLY_MS"
    monkeypatch.setenv(turn_max, "7")
    times = orderly_times()
    assert (times.lock_max_live_ms, times.lock_interval_ms, times.turn_max_ms) == (5, 6, 7)
    for wrong in ("0", "-1", "soon", "1.5"):
        monkeypatch.setenv(turn_max, wrong)
        with pytest.raises(ConfigurationError, match=turn_max):
            orderly_times()


def test_the_status_names_are_upstreams() -> None:
    """Covers C-285."""
    assert [each.value for each in ConsumeOrderlyStatus] == [
        "SUCCESS",
        "SUSPEND_CURRENT_QUEUE_A_MOMENT",
        "COMMIT",
        "ROLLBACK",
    ]
