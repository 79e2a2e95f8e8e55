"""The brokers as offset store: what is sent, in which order, and what is remembered."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from rocketstream.client.consumer.offsets import store as offset_store
from rocketstream.client.instance.routes import BrokerAddress
from rocketstream.errors import RequestTimeoutError, RouteNotFoundError, SystemBusyError
from rocketstream.limits import OFFSET_CHECK_INTERVAL_MS, OFFSET_CHECKS_MAX
from rocketstream.model import MessageQueue
from tests.offsets.offset_brokers import MASTER, SLAVE, made, mq, run, say, time_passes


def test_nothing_is_loaded_and_memory_begins_empty() -> None:
    """Covers C-302, C-313."""

    async def use() -> None:
        brokers, store = made()
        await store.load()
        assert store.read_memory(mq()) is None
        assert store.piggyback_offset(mq()) == 0
        assert not brokers.sent

    run(use())


def test_a_stored_offset_is_noted_but_undoes_nothing() -> None:
    """Covers C-314, C-315, C-571: Java's read would put memory back from 7 to 0."""

    async def use() -> None:
        brokers, store = made()
        brokers.stored[mq()] = 3
        assert await store.read_store(mq()) == 3
        assert store.read_memory(mq()) == 3
        store.update_offset(mq(), 7)
        brokers.stored[mq()] = 0
        assert await store.read_store(mq()) == 0
        assert store.read_memory(mq()) == 7
        brokers.stored[mq()] = 9  # told before a reset, say
        assert (await store.read_store(mq()), store.read_memory(mq())) == (9, 7)

    run(use())


@pytest.mark.parametrize("error", [RequestTimeoutError("late"), SystemBusyError(2, "busy")])
def test_what_could_not_be_read_is_an_error(error: Exception) -> None:
    """Covers C-314, C-316, C-561: neither -1 nor -2, so nobody can take it for an offset."""

    async def use() -> None:
        brokers, store = made()
        brokers.stored[mq()] = error
        with pytest.raises(type(error)):
            await store.read_store(mq())
        assert store.read_memory(mq()) is None

    run(use())


def test_an_unknown_broker_is_looked_up_once() -> None:
    """Covers C-314, C-319: one route update, then "The broker[X] not exist"."""

    async def use() -> None:
        brokers, store = made()
        with pytest.raises(RouteNotFoundError, match=r"The broker\[gone\] not exist"):
            await store.read_store(mq(broker="gone"))
        assert brokers.updates == ["T"]
        with pytest.raises(RouteNotFoundError):
            await store.update_consume_offset_to_broker(mq(broker="gone"), 1)

    run(use())


def test_only_what_changed_is_sent_and_nothing_is_forgotten() -> None:
    """Covers C-317, C-318, C-568, C-573: queues that are not named keep what is noted."""

    async def use() -> None:
        brokers, store = made()
        for number in (0, 1):
            store.update_offset(mq(number), 5)
        await store.persist([mq(0)])
        await store.persist([mq(0)])  # the first commit of a queue is said twice
        assert brokers.sent == [(MASTER, mq(0), 5)] * 2
        await store.persist([mq(0)])
        await store.persist([])
        assert len(brokers.sent) == 2
        assert store.read_memory(mq(1)) == 5
        store.remove_offset(mq(0))
        await store.persist([mq(0), mq(1)])
        assert brokers.sent[2:] == [(MASTER, mq(1), 5)]

    run(use())


def test_commits_of_one_broker_are_made_one_round_after_the_other() -> None:
    """Covers C-324, C-568: the one handled last stays, so no two of a queue are on their way."""

    async def use() -> None:
        brokers, store = made()
        store.update_offset(mq(), 1)
        rounds = [asyncio.ensure_future(store.persist([mq()])) for _ in range(4)]
        for offset in range(2, 10):
            await asyncio.sleep(0)
            store.update_offset(mq(), offset)
        await asyncio.gather(*rounds)
        await store.persist_for_good([mq()])
        assert brokers.offsets() == sorted(brokers.offsets())
        assert brokers.offsets()[-1] == 9
        assert brokers.most == 1

    run(use())


def test_a_commit_that_a_pull_may_overtake_is_said_twice() -> None:
    """Covers C-211, C-324: 4.x brokers note what came with a pull after they have answered it."""

    async def use() -> None:
        brokers, store = made()
        store.update_offset(mq(), 40)
        await store.persist_for_good([mq()])
        assert brokers.offsets() == [40, 40]
        assert store.piggyback_offset(mq()) == 40
        store.piggybacked(mq())
        await store.persist_for_good([mq()])
        assert brokers.offsets() == [40, 40], "what is there already is not repeated"
        store.update_offset(mq(), 41)
        await store.persist_for_good([mq()])
        assert brokers.offsets() == [40, 40, 41, 41]
        store.update_offset(mq(), 42)
        await store.persist_for_good([mq()])
        assert brokers.offsets()[4:] == [42]

    run(use())


def test_a_commit_without_answer_comes_again_and_the_next_is_said_twice() -> None:
    """Covers C-303, C-568: it may still arrive, after a later one even."""

    async def use() -> None:
        brokers, store = made()
        store.update_offset(mq(), 1)
        await store.persist_for_good([mq()])
        store.update_offset(mq(), 2)
        brokers.refuse.append(RequestTimeoutError("late"))
        await store.persist([mq()])
        store.update_offset(mq(), 3)
        await store.persist_for_good([mq()])
        assert brokers.offsets() == [1, 1, 3, 3]

    run(use())


def test_pulls_carry_nothing_before_the_broker_knows_the_topic() -> None:
    """Covers C-211: and 0 means nothing."""

    async def use() -> None:
        _, store = made()
        store.update_offset(mq(), 9)
        assert store.piggyback_offset(mq()) == 0
        await store.persist([mq()])
        assert store.piggyback_offset(mq()) == 9
        assert store.piggyback_offset(mq(1)) == 0

    run(use())


def test_an_offset_can_be_told_at_once_and_the_table_be_copied() -> None:
    """Covers C-300, C-319, C-320, C-321."""

    async def use() -> None:
        brokers, store = made()
        await store.update_consume_offset_to_broker(mq(), 6)
        assert brokers.sent == [(MASTER, mq(), 6)]
        brokers.refuse.append(SystemBusyError(2, "busy"))
        with pytest.raises(SystemBusyError):
            await store.update_consume_offset_to_broker(mq(), 7)
        store.update_offset(mq(), 6)
        store.update_offset(mq()._replace(topic="U"), 1)
        store.update_offset(mq(), 4)
        assert store.clone_offset_table("T") == {mq(): 6}
        store.update_offset(mq(), 4, increase_only=False)
        assert store.clone_offset_table() == {mq(): 4, mq()._replace(topic="U"): 1}

    run(use())


def test_a_slave_takes_offsets_when_the_master_left_the_route() -> None:
    """Covers C-319, C-570: as upstream; the address is whatever the route still has."""

    async def use() -> None:
        brokers, store = made()
        brokers.addresses["broker-a"] = BrokerAddress("10.0.0.2:10911", is_slave=True)
        store.update_offset(mq(), 1)
        await store.persist([mq()])
        assert brokers.sent[0][0] == "10.0.0.2:10911"

    run(use())


def test_going_back_to_what_the_broker_had_before_is_sent() -> None:
    """Covers C-316, C-532: the broker was told 5 once, which is remembered only when said twice."""

    async def use() -> None:
        brokers, store = made()
        brokers.stored[mq()] = 0
        assert await store.read_store(mq()) == 0
        store.update_offset(mq(), 5)
        await store.persist([mq()])
        store.update_offset(mq(), 0, increase_only=False)
        await store.persist_for_good([mq()])
        assert brokers.offsets()[-1] == 0

    run(use())


def test_going_back_behind_what_a_pull_took_along_is_sent() -> None:
    """Covers C-317, C-532: the broker may have noted 7 from the pull, though 5 was said last."""

    async def use() -> None:
        brokers, store = made()
        for offset in (5, 5):
            store.update_offset(mq(), offset)
            await store.persist_for_good([mq()])
        store.update_offset(mq(), 7)
        store.piggybacked(mq())
        store.update_offset(mq(), 5, increase_only=False)
        brokers.sent.clear()
        await store.persist_for_good([mq()])
        assert brokers.offsets() == [5, 5]

    run(use())


def test_an_answered_zero_is_committed_like_any_start() -> None:
    """Covers C-318: brokers say 0 of a queue nobody has committed to; tools see only what is."""

    async def use() -> None:
        brokers, store = made()
        brokers.stored[mq()] = 0
        assert await store.read_store(mq()) == 0
        await store.persist([mq()])
        assert brokers.offsets() == [0]

    run(use())


def test_what_a_broker_confirmed_is_said_again_after_its_connection_was_lost() -> None:
    """Covers C-317: it writes every few seconds only; the queues of other brokers are no matter."""

    async def use() -> None:
        brokers, store = made()
        other = mq(0, "broker-b")
        brokers.addresses["broker-b"] = BrokerAddress("10.0.0.2:10911", False)
        for each in (mq(), other):
            store.update_offset(each, 7)
        await store.persist_for_good([mq(), other])
        await store.persist([mq(), other])
        assert len(brokers.sent) == 4
        store.connection_lost(MASTER)
        await store.persist([mq(), other])
        assert brokers.sent[4:] == [(MASTER, mq(), 7)]

    run(use())


def test_an_answer_whose_connection_is_lost_already_confirms_nothing() -> None:
    """Covers C-317: the loss was told before whoever waited for the answer could go on."""

    async def use() -> None:
        brokers, store = made()
        store.update_offset(mq(), 7)
        await store.persist_for_good([mq()])
        store.update_offset(mq(), 8)
        saying = asyncio.ensure_future(store.persist([mq()]))
        await asyncio.sleep(0)
        brokers.lost += 1
        store.connection_lost(MASTER)
        await saying
        await store.persist([mq()])
        assert brokers.offsets() == [7, 7, 8, 8]

    run(use())


def test_what_a_former_owner_put_back_is_said_again() -> None:
    """Covers C-568: nothing new comes in the queue, so nothing else would put it right."""

    async def use() -> None:
        brokers, store = made()
        store.update_offset(mq(), 17)
        await say(store, mq())
        brokers.sent.clear()
        brokers.stored[mq()] = 5
        await store.check([mq()])
        assert not brokers.asked, "what was confirmed just now is not asked about"
        await time_passes(brokers, store, OFFSET_CHECK_INTERVAL_MS)
        await store.check([mq()])
        await store.persist([mq()])
        assert brokers.sent == [(MASTER, mq(), 17)]

    run(use())


@pytest.mark.parametrize("stored", [17, 20])
def test_what_a_broker_still_has_is_asked_about_now_and_then_and_left_alone(stored: int) -> None:
    """Covers C-568: Java says every offset again every 5 s, over one that is further too."""

    async def use() -> None:
        brokers, store = made()
        store.update_offset(mq(), 17)
        await say(store, mq())
        brokers.sent.clear()
        brokers.stored[mq()] = stored
        for _ in range(2):
            await time_passes(brokers, store, OFFSET_CHECK_INTERVAL_MS - 1)
            await store.check([mq()])
            await time_passes(brokers, store, 1)
            await store.check([mq()])
            await store.check([mq()])
            await store.persist([mq()])
        assert brokers.asked == [mq()] * 2
        assert not brokers.sent

    run(use())


def test_a_broker_that_does_not_answer_is_asked_again_and_told_nothing() -> None:
    async def use() -> None:
        brokers, store = made()
        assert await store.read_store(mq()) is None
        brokers.stored[mq()] = 17
        assert await store.read_store(mq()) == 17
        brokers.asked.clear()
        await time_passes(brokers, store, OFFSET_CHECK_INTERVAL_MS)
        brokers.stored[mq()] = RequestTimeoutError("late")
        await store.check([mq()])
        await store.persist([mq()])
        assert not brokers.sent
        brokers.stored[mq()], brokers.loses = 17, True  # an answer whose connection is lost
        await store.check([mq()])
        brokers.stored[mq()], brokers.loses = 16, False
        await store.check([mq()])
        await store.persist([mq()])
        assert brokers.sent == [(MASTER, mq(), 17)]
        assert brokers.asked == [mq()] * 3

    run(use())


def test_so_many_queues_are_asked_about_at_once_and_the_others_next_time() -> None:
    async def use() -> None:
        brokers, store = made()
        mqs = [mq(number) for number in range(OFFSET_CHECKS_MAX + 1)]
        for each in mqs:
            store.update_offset(each, 1)
            brokers.stored[each] = 1
        await say(store, *mqs)
        await time_passes(brokers, store, OFFSET_CHECK_INTERVAL_MS)
        await store.check(mqs)
        assert len(brokers.asked) == OFFSET_CHECKS_MAX
        await store.check(mqs)
        assert sorted(brokers.asked) == sorted(mqs)

    run(use())


def test_a_queue_that_was_put_back_on_purpose_is_said_again_until_it_is_past() -> None:
    """Covers C-532: the broker may have died before it wrote the reset down."""

    async def use() -> None:
        brokers, store = made()
        store.update_offset(mq(), 20)
        await say(store, mq())
        store.update_offset(mq(), 4, increase_only=False)
        await store.persist_for_good([mq()])
        brokers.stored[mq()] = 20
        for offset in (4, 19):
            store.update_offset(mq(), offset)
            store.connection_lost(MASTER)
            brokers.sent.clear()
            await store.persist([mq()])
            assert brokers.offsets() == [offset]
        store.update_offset(mq(), 20)
        await say(store, mq())
        store.connection_lost(MASTER)
        brokers.stored[mq()] = 30
        brokers.sent.clear()
        await store.persist([mq()])
        assert not brokers.sent

    run(use())


def test_a_queue_that_comes_back_is_new_and_its_first_commit_said_twice() -> None:
    """Covers C-318: what was confirmed of it was another time's."""

    async def use() -> None:
        brokers, store = made()
        store.update_offset(mq(), 5)
        await say(store, mq())
        store.remove_offset(mq())
        brokers.sent.clear()
        store.update_offset(mq(), 6)
        for _ in range(3):
            await store.persist([mq()])
        assert brokers.offsets() == [6, 6]

    run(use())


def test_going_back_to_what_was_confirmed_before_a_lost_answer_is_sent() -> None:
    """The commit without an answer may have arrived: nobody knows what the broker has."""

    async def use() -> None:
        brokers, store = made()
        store.update_offset(mq(), 20)
        await say(store, mq())
        store.update_offset(mq(), 30)
        brokers.refuse = [RequestTimeoutError("late")]
        await store.persist([mq()])
        brokers.sent.clear()
        store.update_offset(mq(), 20, increase_only=False)
        await store.persist([mq()])
        assert brokers.offsets() == [20]

    run(use())


def test_a_lost_broker_knows_no_topic_until_it_took_a_commit_of_it() -> None:
    """Covers C-211: a queue that comes new meanwhile too."""

    async def use() -> None:
        _, store = made()
        store.update_offset(mq(), 2)
        await say(store, mq())
        store.connection_lost(MASTER)
        store.update_offset(mq(1), 5)
        assert store.piggyback_offset(mq(1)) == 0

    run(use())


def test_offsets_are_the_masters_also_after_the_route_was_asked_for() -> None:
    """Covers C-314: broker id 0."""

    async def use() -> None:
        brokers, store = made()
        ids: list[int] = []

        def found(broker_name: str, broker_id: int) -> BrokerAddress | None:
            ids.append(broker_id)
            return BrokerAddress(MASTER, False) if len(ids) == 2 else None

        brokers.find_for_subscribe = found  # type: ignore[method-assign]
        await store.update_consume_offset_to_broker(mq(), 1)
        assert ids == [0, 0]

    run(use())


def test_a_failing_commit_and_a_failing_question_are_told_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def use() -> None:
        brokers, store = made()
        store.update_offset(mq(), 2)
        await say(store, mq())
        store.update_offset(mq(), 3)
        busy = SystemBusyError(2, "busy")
        brokers.refuse = [busy, busy]
        await store.persist([mq()])
        await store.persist([mq()])
        assert [line for line in caplog.messages if "storing offsets of g" in line] == [
            f"storing offsets of g in {mq()} failed: {busy}; it is tried again (client me)"
        ]
        store.connection_lost(MASTER)
        brokers.stored[mq()] = busy
        await store.persist([mq()])
        await store.persist([mq()])
        assert sum("asking for offsets of g" in line for line in caplog.messages) == 1

    run(use())


def test_a_forgotten_queue_leaves_nothing_behind() -> None:
    """A member that lives for months is given thousands of queues in turn."""

    async def use() -> None:
        brokers, store = made()
        brokers.stored[mq()] = 3
        assert await store.read_store(mq()) == 3
        store.update_offset(mq(), 7)
        await store.persist([mq()])
        store.piggybacked(mq())
        assert brokers.offsets() == [7]
        store.remove_offset(mq())
        assert [name for name, held in vars(store).items() if holds(held, mq())] == []

    run(use())


def test_topics_whose_queues_are_all_forgotten_are_forgotten() -> None:
    """Their next commit goes alone again, as the first one of a topic does."""

    async def use() -> None:
        _, store = made()
        gone = MessageQueue("gone", "broker-a", 0)
        for each in (mq(), gone):
            store.update_offset(each, 1)
        await store.persist([mq(), gone])
        assert len(store._tables) == 2
        store.remove_offset(gone)
        await store.persist([mq()])
        assert len(store._tables) == 1
        assert store.piggyback_offset(mq()) == 1
        store.update_offset(gone, 1)
        assert store.piggyback_offset(gone) == 0

    run(use())


def holds(held: object, queue: MessageQueue) -> bool:
    return isinstance(held, dict | set) and queue in held


@pytest.mark.parametrize("first", ["a commit", "a look-up of another queue"])
def test_what_a_slave_confirmed_is_said_to_the_master_that_is_back(first: str) -> None:
    """Covers C-568: by the next round, as Java's; no connection is lost, the address is another."""

    async def use() -> None:
        brokers, store = made()
        brokers.addresses["broker-a"] = BrokerAddress(SLAVE, True)
        for number in (0, 1):
            store.update_offset(mq(number), 40)
        await say(store, mq(0), mq(1))
        assert {address for address, _, _ in brokers.sent} == {SLAVE}
        brokers.sent.clear()
        brokers.addresses["broker-a"] = BrokerAddress(MASTER, False)
        brokers.stored = {mq(0): 7, mq(1): 55, mq(2): 3}
        if first == "a look-up of another queue":
            await store.read_store(mq(2))
        await store.persist([mq(0), mq(1)])
        assert brokers.sent == [(MASTER, mq(0), 40)]
        assert store.overtaken([mq(0), mq(1)]) == {mq(1): 55}, "somebody is further there"

    run(use())


def test_the_first_commits_of_many_queues_go_together_once_one_is_acknowledged() -> None:
    """Covers C-324: one alone makes the broker's table; 500 queues are not 500 round trips."""

    async def use() -> None:
        brokers, store = made()
        mqs = [mq(number) for number in range(50)]
        for each in mqs:
            store.update_offset(each, 5)
        brokers.refuse.append(SystemBusyError(2, "busy"))  # so the second goes alone too
        await store.persist(mqs)
        assert len(brokers.sent) == 49
        assert brokers.most == 48

    run(use())


def test_a_broker_that_does_not_answer_costs_a_round_one_timeout() -> None:
    async def use() -> None:
        brokers, store = made()
        mqs = [mq(number) for number in range(50)]
        for each in mqs:
            store.update_offset(each, 5)
        brokers.refuse = [RequestTimeoutError("late")] * 2
        await store.persist(mqs)
        assert len(brokers.refuse) == 1
        assert brokers.sent == []

    run(use())


def test_offsets_noted_while_a_loss_is_taken_in_do_no_harm() -> None:
    """Threads of the user's note them at any time, as between two queues looked at here."""

    async def use() -> None:
        _, store = made()
        others = itertools.count(200)

        class Name(str):
            __slots__ = ()

            def __hash__(self) -> int:
                store.update_offset(mq(next(others)), 1)
                return super().__hash__()

        for number in (100, 101):
            store.update_offset(MessageQueue("T", Name("broker-a"), number), 5)
        await store.read_store(mq())
        store.connection_lost(MASTER)
        assert store._queues[mq(100)].is_doubted

    run(use())


def test_offsets_of_very_many_queues_are_told_some_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What else the loop has to do, as pulls of other queues, gets its turn in between."""
    monkeypatch.setattr(offset_store, "QUEUES_AT_ONCE", 4)

    async def use() -> None:
        brokers, store = made()
        mqs = [mq(number) for number in range(30)]
        for each in mqs:
            store.update_offset(each, 5)
        await store.persist_for_good(mqs)
        assert len(brokers.sent) == 60
        assert len(brokers.asked) == 30
        assert brokers.most == 4

    run(use())


def test_offset_zero_is_stored_for_a_caller_who_waits() -> None:
    async def use() -> None:
        brokers, store = made()
        store.update_offset(mq(), 0)
        await store.persist_now([mq(), mq(1)])
        assert brokers.sent == [(MASTER, mq(), 0)]
        await store.persist_now([mq()])
        assert len(brokers.sent) == 1, "it was acknowledged"

    run(use())


def test_an_offset_whose_connection_broke_as_it_was_stored_is_stored_again() -> None:
    async def use() -> None:
        brokers, store = made()
        store.update_offset(mq(), 5)
        brokers.loses = True
        await store.persist_now([mq()])
        brokers.loses = False
        await store.persist_now([mq()])
        await store.persist_now([mq()])
        assert brokers.offsets() == [5, 5]

    run(use())


def test_an_offset_noted_while_another_was_stored_is_stored_by_the_next_call() -> None:
    async def use() -> None:
        brokers, store = made()
        store.update_offset(mq(), 5)
        storing = asyncio.ensure_future(store.persist_now([mq()]))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        store.update_offset(mq(), 6)
        await storing
        await store.persist_now([mq()])
        assert brokers.offsets() == [5, 6]

    run(use())
