"""What a member says to a broker when another one may have had its queues: it asks first."""

from __future__ import annotations

import pytest

from rocketstream.client.config import ClientConfig
from rocketstream.client.instance.routes import BrokerAddress
from rocketstream.errors import RequestTimeoutError
from rocketstream.limits import HAND_BACK_WAIT_MS
from tests.offsets.offset_brokers import MASTER, made, mq, run, say, time_passes


def test_offsets_at_other_brokers_are_asked_for_as_well_once_a_broker_is_lost() -> None:
    """The lost one names this member no more, and whoever asks it takes queues of all brokers."""

    async def use() -> None:
        brokers, store = made()
        other = mq(0, "broker-b")
        brokers.addresses["broker-b"] = BrokerAddress("10.0.0.2:10911", False)
        store.update_offset(other, 7)
        await say(store, other)
        brokers.sent.clear()
        store.connection_lost(MASTER)
        assert store.piggyback_offset(other) == 0, "a pull would say it too"
        await store.persist([other])
        assert not brokers.sent, "it is there already"
        brokers.stored[other] = 9
        store.update_offset(other, 8)
        await store.persist([other])
        assert not brokers.sent
        assert store.overtaken([other]) == {other: 9}

    run(use())


@pytest.mark.parametrize("how", ["by and by", "at once"])
@pytest.mark.parametrize("interval_ms", [1_000, 5_000, 60_000])
def test_who_stood_still_says_nothing_lower_than_what_somebody_else_did(
    interval_ms: int, how: str
) -> None:
    """Covers C-324: stopped for long enough, a member has lost its queues and does not know."""

    async def use() -> None:
        brokers, store = made(ClientConfig(persist_consumer_offset_interval_ms=interval_ms))
        store.update_offset(mq(), 2)
        await say(store, mq())
        brokers.clock.advance(max(10_000, 2 * interval_ms))
        store.update_offset(mq(), 3)
        assert store.piggyback_offset(mq()) == 3, "only late"
        await store.persist([mq()])
        assert not brokers.asked
        brokers.clock.advance(max(10_000, 2 * interval_ms) + 1)
        brokers.sent.clear()
        brokers.stored[mq()] = 6
        store.update_offset(mq(), 4)
        assert store.piggyback_offset(mq()) == 0, "a pull would say it too"
        await (store.persist([mq()]) if how == "by and by" else store.persist_now([mq()]))
        assert not brokers.sent
        assert store.overtaken([mq()]) == {mq(): 6}

    run(use())


def test_who_was_cut_off_says_nothing_lower_than_what_somebody_else_did() -> None:
    """Covers C-324, C-567: the broker would take it, and the next owner consume all of it again."""

    async def use() -> None:
        brokers, store = made()
        store.update_offset(mq(), 2)
        store.update_offset(mq(1), 2)
        await say(store, mq(), mq(1))
        brokers.sent.clear()
        store.connection_lost(MASTER)
        brokers.stored[mq()] = 67
        store.update_offset(mq(), 3)
        await say(store, mq(), mq(1))
        assert brokers.sent == [(MASTER, mq(1), 2)] * 2
        assert store.piggyback_offset(mq()) == 0, "a pull would say it too"
        assert store.overtaken([mq(), mq(1)]) == {mq(): 67}
        assert store.read_memory(mq()) == 3
        store.update_offset(mq(), 3, increase_only=False)
        assert store.overtaken([mq()]) == {mq(): 67}, "a seek to where it is puts nothing back"
        store.update_offset(mq(), 67)
        assert not store.overtaken([mq()]), "it is where the other one is"
        store.update_offset(mq(), 68)
        await store.persist([mq()])
        assert brokers.sent[2:] == [(MASTER, mq(), 68)]
        assert not store.overtaken([mq()])
        assert brokers.asked == [mq(), mq(1), mq(1), mq()]

    run(use())


def test_who_was_cut_off_asks_until_whoever_had_its_queue_must_have_given_it_back() -> None:
    """Covers C-324: that member says where it is last, after this one was back and had asked."""

    async def use() -> None:
        brokers, store = made()
        store.update_offset(mq(), 118)
        await say(store, mq())
        store.connection_lost(MASTER)
        brokers.stored[mq()] = 90
        await say(store, mq())
        brokers.sent.clear()
        brokers.stored[mq()] = 121
        assert store.piggyback_offset(mq()) == 0, "a pull would say it too"
        store.update_offset(mq(), 119)
        await say(store, mq())
        assert not brokers.sent
        assert store.overtaken([mq()]) == {mq(): 121}
        store.update_offset(mq(), 122)
        await time_passes(brokers, store, HAND_BACK_WAIT_MS)
        await say(store, mq())
        assert brokers.offsets() == [122]
        assert store.piggyback_offset(mq()) == 122
        brokers.asked.clear()
        store.update_offset(mq(), 123)
        await say(store, mq())
        assert not brokers.asked

    run(use())


def test_pulls_carry_nothing_of_a_queue_that_somebody_else_may_have_had() -> None:
    """Covers C-211: other queues of the topic may be known again before it is asked about."""

    async def use() -> None:
        brokers, store = made()
        store.update_offset(mq(), 2)
        store.update_offset(mq(1), 2)
        await say(store, mq(), mq(1))
        store.connection_lost(MASTER)
        await store.persist([mq(1)])
        await time_passes(brokers, store, HAND_BACK_WAIT_MS)
        store.update_offset(mq(1), 3)
        await store.persist([mq(1)])
        assert (store.piggyback_offset(mq()), store.piggyback_offset(mq(1))) == (0, 3)

    run(use())


def test_nothing_is_said_while_it_cannot_be_asked_whether_somebody_is_further() -> None:
    async def use() -> None:
        brokers, store = made()
        store.update_offset(mq(), 2)
        await say(store, mq())
        store.connection_lost(MASTER)
        brokers.sent.clear()
        brokers.stored[mq()] = RequestTimeoutError("late")
        await store.persist([mq()])
        assert not brokers.sent
        brokers.stored[mq()] = 0
        await store.persist([mq()])
        assert brokers.sent == [(MASTER, mq(), 2)]

    run(use())


def test_an_answer_whose_connection_is_lost_leaves_the_doubt() -> None:
    async def use() -> None:
        brokers, store = made()
        store.update_offset(mq(), 2)
        await say(store, mq())
        store.connection_lost(MASTER)
        brokers.sent.clear()
        brokers.loses = True
        await store.persist([mq()])
        assert not brokers.sent
        brokers.loses = False
        await store.persist([mq()])
        assert brokers.sent == [(MASTER, mq(), 2)]

    run(use())


def test_who_leaves_a_queue_says_nothing_lower_than_who_has_it_now() -> None:
    """Covers C-179, C-324: the next owner may have begun before this one noticed."""

    async def use() -> None:
        brokers, store = made()
        store.update_offset(mq(), 5)
        brokers.stored[mq()] = 17
        await store.persist_for_good([mq()])
        assert not brokers.sent
        store.remove_offset(mq())
        store.update_offset(mq(), 6)
        brokers.stored[mq()] = None
        await store.persist_for_good([mq()])
        assert brokers.offsets() == [6, 6]

    run(use())


def test_of_a_queue_that_comes_back_nothing_is_doubted_from_before() -> None:
    """Its new owner has just asked where it begins; to ask once more would hold the offset back."""

    async def use() -> None:
        brokers, store = made()
        store.update_offset(mq(), 5)
        await say(store, mq())
        store.connection_lost(MASTER)
        store.remove_offset(mq())
        brokers.stored[mq()] = 5
        await store.read_store(mq())
        store.update_offset(mq(), 6)
        brokers.asked.clear()
        await store.persist([mq()])
        assert (brokers.asked, brokers.offsets()[-1]) == ([], 6)

    run(use())
