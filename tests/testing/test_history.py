"""Every kind of anomaly planted in a clean history is found, and nothing in a clean one."""

from __future__ import annotations

import asyncio
import dataclasses
import random
from collections.abc import Callable
from typing import TypeVar

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from rocketstream.errors import SendOutcome
from rocketstream.model import MessageQueue
from rocketstream.testing import received_message
from rocketstream.testing.history import Anomaly, AnomalyKind, Recorder, Rules, check
from rocketstream.testing.history.events import (
    BrokerDied,
    BrokerPaused,
    CalmBegan,
    ClockJumped,
    CommitSeen,
    Content,
    Disturbed,
    Event,
    GroupDeclared,
    ListenerReturned,
    LogRead,
    MemberJoined,
    MemberLeft,
    MessageDelivered,
    MessageStored,
    OffsetReset,
    OwnersSeen,
    ProcessDied,
    RunEnded,
    SendAcknowledged,
    SendFailed,
    SendInvoked,
    TakenBack,
    TransactionDecided,
)
from tests.testing.clean_history import ATTEMPTS, DUE_MS, TOPIC, CleanHistory
from tests.testing.hand_made import GROUP, QUEUE, History, consumed, kinds, sent

E = TypeVar("E")
Plant = Callable[[History, random.Random], History]
SEEDS = st.integers(0, 1 << 32)


def of(kind: type[E], history: History) -> list[E]:
    return [event for event in history if isinstance(event, kind)]


@settings(max_examples=300, deadline=None, derandomize=True)
@given(SEEDS)
def test_a_clean_history_raises_nothing(seed: int) -> None:
    found = check(CleanHistory(seed).events)
    assert found == [], "\n".join(map(str, found))


# --- one anomaly of each kind, planted ------------------------------------------------------------


def pick(events: list[E], source: random.Random) -> E:
    assume(events)
    return source.choice(events)


def without(history: History, *gone: object) -> History:
    return [event for event in history if all(event is not other for other in gone)]


def lose_from_log(history: History, source: random.Random) -> History:
    ack = pick([a for a in of(SendAcknowledged, history) if a.queue], source)
    place = (ack.queue, ack.offset)
    return [
        e for e in history if not (isinstance(e, MessageStored) and (e.queue, e.offset) == place)
    ]


def lose_a_delayed_one(history: History, source: random.Random) -> History:
    sent = pick([i for i in of(SendInvoked, history) if i.due_ms], source)
    return [
        e
        for e in history
        if not (isinstance(e, MessageStored | MessageDelivered) and e.key == sent.key)
    ]


def never_consume(history: History, source: random.Random) -> History:
    """A group sees one message never: no delivery in any of its queues, no dead letter."""
    done = pick([e for e in of(MessageDelivered, history) if e.queue.topic == TOPIC], source)
    return [
        e
        for e in history
        if not (
            (isinstance(e, MessageDelivered) and (e.group, e.key) == (done.group, done.key))
            or (isinstance(e, MessageStored) and e.key == done.key and e.queue.topic[0] == "%")
        )
    ]


def invent(history: History, source: random.Random) -> History:
    stored = {event.key for event in of(MessageStored, history)}
    sent = pick([i for i in of(SendInvoked, history) if i.key in stored], source)
    return without(history, sent)


def store_what_was_refused(history: History, source: random.Random) -> History:
    failed = pick([f for f in of(SendFailed, history) if f.outcome is SendOutcome.UNKNOWN], source)
    assume(any(stored.key == failed.key for stored in of(MessageStored, history)))
    refused = dataclasses.replace(failed, outcome=SendOutcome.REJECTED)
    return [*without(history, failed), refused]


def put_another_in_its_place(history: History, source: random.Random) -> History:
    ack = pick([a for a in of(SendAcknowledged, history) if a.queue], source)
    for stored in of(MessageStored, history):
        if (stored.queue, stored.offset) == (ack.queue, ack.offset):
            other = SendInvoked(stored.at, "other", TOPIC)
            return [*without(history, stored), other, dataclasses.replace(stored, key="other")]
    raise AssertionError("a clean history holds what it acknowledged")


def copy_a_send(history: History, source: random.Random) -> History:
    """One copy more than tries; the delayed and the transactional without a crash close by."""
    stored = pick([s for s in of(MessageStored, history) if s.queue.topic == TOPIC], source)
    end = 1 + max(s.offset for s in of(MessageStored, history) if s.queue == stored.queue)
    copies = [
        MessageStored(stored.at, stored.key, stored.queue, end + n, stored.tags) for n in range(3)
    ]
    return [e for e in history if not isinstance(e, BrokerDied)] + copies


def copy_a_retry(history: History, source: random.Random) -> History:
    """A message that failed a few times comes back at many places."""
    again = pick([d for d in of(MessageDelivered, history) if d.reconsume_times], source)
    copies = [
        dataclasses.replace(again, at=again.at + n, offset=10_000 + n, call=90_000 + n)
        for n in range(1, 40)
    ]
    history = [e for e in history if not isinstance(e, BrokerDied | ProcessDied | OffsetReset)]
    return history + copies


def swap_in_the_log(history: History, source: random.Random) -> History:
    """What was sent later stands earlier."""
    acks = [a for a in of(SendAcknowledged, history) if a.queue and a.tries == 1]
    first = pick(acks, source)
    later = [a for a in acks if a.queue == first.queue and a.at > first.at]
    second = pick(later, source)
    exchanged = {
        id(first): dataclasses.replace(first, offset=second.offset),
        id(second): dataclasses.replace(second, offset=first.offset),
    }
    return [exchanged.get(id(event), event) for event in history]


def skip_in_order(history: History, source: random.Random) -> History:
    """The first delivery of a place in order comes only after its successor's."""
    seen: dict[tuple[MessageQueue, int], MessageDelivered] = {}
    for delivery in of(MessageDelivered, history):
        if delivery.group == "orderly":
            seen.setdefault((delivery.queue, delivery.offset), delivery)
    followed = [d for d in seen.values() if any(p == d.queue and o > d.offset for p, o in seen)]
    first = pick(followed, source)
    return [
        e
        for e in history
        if not (
            isinstance(e, MessageDelivered)
            and (e.group, e.queue, e.offset) == (first.group, first.queue, first.offset)
        )
        and not isinstance(e, OffsetReset)
    ]


def commit_ahead(history: History, source: random.Random) -> History:
    delivery = pick(of(MessageDelivered, history), source)
    commit = CommitSeen(delivery.at - 0.01, delivery.group, delivery.queue, delivery.offset + 1)
    gone = (delivery.group, delivery.queue, delivery.offset)
    before = [
        e
        for e in of(MessageDelivered, history)
        if e.at < delivery.at and (e.group, e.queue, e.offset) == gone
    ]
    assume(not before)
    resets = [r for r in of(OffsetReset, history) if r.queue == delivery.queue]
    return [*without(history, *resets), commit]


def fall_back(history: History, source: random.Random) -> History:
    commit = pick([c for c in of(CommitSeen, history) if c.offset > 0], source)
    back = dataclasses.replace(commit, at=commit.at + 0.01, offset=commit.offset - 1)
    causes = BrokerDied | OffsetReset | MemberJoined | MemberLeft | ProcessDied
    return [*[e for e in history if not isinstance(e, causes)], back]


def own_twice(history: History, source: random.Random) -> History:
    ended = pick(
        [r for r in of(ListenerReturned, history) if r.delivery.group == "orderly"], source
    )
    first = ended.delivery
    second = dataclasses.replace(
        first, at=(first.at + ended.at) / 2, member="another", call=first.call + 90_000
    )
    return [*history, second]


def leave_without_owner(history: History, source: random.Random) -> History:
    seen = pick(of(OwnersSeen, history), source)
    members = source.choice([(), (*seen.members, "another")])
    return [*without(history, seen), dataclasses.replace(seen, members=members)]


def deliver_early(history: History, source: random.Random) -> History:
    sent = pick([i for i in of(SendInvoked, history) if i.due_ms], source)
    queue = MessageQueue(TOPIC, "b", 0)
    return [
        *history,
        MessageDelivered(sent.at + DUE_MS / 2, sent.key, "plain", "m", queue, 10_000),
    ]


def commit_too_late(history: History, source: random.Random) -> History:
    """The local transaction commits after the message was seen."""
    decided = pick([d for d in of(TransactionDecided, history) if d.commit], source)
    assume(any(d.key == decided.key for d in of(MessageDelivered, history)))
    return [*without(history, decided), dataclasses.replace(decided, at=history[-1].at)]


def roll_back(history: History, source: random.Random) -> History:
    decided = pick([d for d in of(TransactionDecided, history) if d.commit], source)
    return [*without(history, decided), dataclasses.replace(decided, commit=False)]


def repeat(history: History, source: random.Random) -> History:
    """Long after everything, a consumed message comes again."""
    ended = pick([r for r in of(ListenerReturned, history) if r.success], source)
    late = history[-1].at + 10 * Rules().rebalance_ms
    again = dataclasses.replace(ended.delivery, at=late, call=90_000)
    causes = MemberJoined | MemberLeft | ProcessDied | BrokerDied | OffsetReset
    # What is closest to a repetition is its first delivery: both must be far from any cause.
    first = dataclasses.replace(ended.delivery, at=late - 10, call=89_999)
    return [
        *[e for e in history if not isinstance(e, causes)],
        first,
        ListenerReturned(late - 5, first, True),
        again,
    ]


def miscount(history: History, source: random.Random) -> History:
    delivery = pick([d for d in of(MessageDelivered, history) if d.group == "plain"], source)
    others = [d for d in of(MessageDelivered, history) if d.key == delivery.key]
    wrong = dataclasses.replace(delivery, reconsume_times=len(others) + 1)
    return [*without(history, delivery), wrong]


def retry_too_often(history: History, source: random.Random) -> History:
    """A message that fails each time comes back after its last attempt too."""
    sent = pick([i for i in of(SendInvoked, history) if not i.transactional], source)
    retries = MessageQueue("%RETRY%plain", "b", 0)
    for times in range(ATTEMPTS + 1):
        at = history[-1].at + 1
        queue = retries if times else MessageQueue(TOPIC, "b", 0)
        again = MessageDelivered(at, sent.key, "plain", "m", queue, 10_000 + times, times, 90_000)
        history = [*history, again, ListenerReturned(at + 1, again, False)]
    return history


def deliver_late(history: History, source: random.Random) -> History:
    """All is calm, and a message waits for somebody's timer."""
    calm, late = history[-1].at + 1, Rules().prompt_ms + source.randrange(2, 1_000)
    queue = MessageQueue(TOPIC, "b", 0)
    return [
        *history,
        CalmBegan(calm),
        SendInvoked(calm, "late", TOPIC, tags="a"),
        SendAcknowledged(calm + 1, "late", queue, 10_000),
        MessageDelivered(calm + 1 + late, "late", "plain", "m", queue, 10_000),
    ]


def give_up_early(history: History, source: random.Random) -> History:
    ended = pick(
        [r for r in of(ListenerReturned, history) if r.delivery.group == "plain" and r.success],
        source,
    )
    key = ended.delivery.key
    delivered = [d for d in of(MessageDelivered, history) if (d.group, d.key) == ("plain", key)]
    succeeded = [r for r in of(ListenerReturned, history) if r.delivery in delivered and r.success]
    assume(len(delivered) - len(succeeded) < ATTEMPTS)
    dead = MessageQueue("%DLQ%plain", "b", 0)
    return [*history, MessageStored(ended.at, key, dead, 10_000)]


def alter(history: History, kind: type[MessageStored | MessageDelivered], n: int) -> History:
    """One message of ``kind`` has another body, tag or property than it was sent with."""
    source = random.Random(n)
    event = pick([e for e in of(kind, history) if e.content is not None], source)
    assert event.content is not None
    (size, crc), tags, properties = event.content
    other = source.choice(
        [
            Content((size, crc ^ 1), tags, properties),
            Content((size + 1, crc), tags, properties),
            Content((size, crc), tags + "x", properties),
            Content((size, crc), tags, ()),
            Content((size, crc), tags, tuple((name, "x") for name, _ in properties)),
        ]
    )
    return [*without(history, event), dataclasses.replace(event, content=other)]


def alter_in_the_log(history: History, source: random.Random) -> History:
    return alter(history, MessageStored, source.randrange(1 << 16))


def alter_on_the_way(history: History, source: random.Random) -> History:
    return alter(history, MessageDelivered, source.randrange(1 << 16))


def store_elsewhere(history: History, source: random.Random) -> History:
    stored = pick([s for s in of(MessageStored, history) if s.queue.topic == TOPIC], source)
    elsewhere = dataclasses.replace(stored, queue=stored.queue._replace(topic="U"))
    return [*without(history, stored), elsewhere]


def deliver_from_elsewhere(history: History, source: random.Random) -> History:
    delivery = pick(of(MessageDelivered, history), source)
    elsewhere = dataclasses.replace(delivery, queue=delivery.queue._replace(topic="U"))
    return [*without(history, delivery), elsewhere]


def deliver_what_is_excluded(history: History, source: random.Random) -> History:
    """A group that selects gets a message that another group wanted."""
    groups = [g for g in of(GroupDeclared, history) if not g.selects_all]
    declared = pick(groups, source)
    excluded = [
        s
        for s in of(MessageStored, history)
        if s.queue.topic == TOPIC and not declared.selects(s.tags, s.content)
    ]
    stored = pick(excluded, source)
    at = stored.at + 1
    wrong = MessageDelivered(at, stored.key, declared.group, "m", stored.queue, stored.offset)
    return [*history, wrong]


def forget_a_half(history: History, source: random.Random) -> History:
    decided = pick([d for d in of(TransactionDecided, history) if not d.commit], source)
    return without(history, decided)


def deliver_after_the_end(history: History, source: random.Random) -> History:
    """A member's listener is called once more, after it left or was killed."""
    ends = {e.member: e.at for e in of(MemberLeft, history)}
    ends |= {e.process: e.at for e in of(ProcessDied, history)}
    last = pick([d for d in of(MessageDelivered, history) if d.member in ends], source)
    return [*history, dataclasses.replace(last, at=ends[last.member] + 0.01)]


def repeat_what_failed(history: History, source: random.Random) -> History:
    """A message that was sent back is delivered from its old place again, while all is calm."""
    failed = [r.delivery for r in of(ListenerReturned, history) if not r.success]
    delivery = pick([d for d in failed if d.group == "plain"], source)
    at = history[-1].at + 1e9
    late = dataclasses.replace(delivery, at=at, call=1_000)
    again = dataclasses.replace(delivery, at=at + 2, call=1_001)
    return [*history, late, ListenerReturned(at + 1, late, False), again]


def write_twice_for_nothing(history: History, source: random.Random) -> History:
    """A send that was answered at once, and disturbed by nothing, has two copies."""
    history = [e for e in history if not isinstance(e, BrokerDied | ProcessDied)]
    ack = pick([a for a in of(SendAcknowledged, history) if a.queue and a.tries == 1], source)
    stored = next(
        s for s in of(MessageStored, history) if (s.key, s.offset) == (ack.key, ack.offset)
    )
    again = dataclasses.replace(stored, offset=1_000)
    patient = dataclasses.replace(ack, tries=3)
    return [*without(history, ack), patient, again]


PLANTS: list[tuple[AnomalyKind, Plant]] = [
    (AnomalyKind.ALTERED, alter_in_the_log),
    (AnomalyKind.ALTERED, alter_on_the_way),
    (AnomalyKind.MISPLACED, store_elsewhere),
    (AnomalyKind.MISPLACED, deliver_from_elsewhere),
    (AnomalyKind.UNWANTED, deliver_what_is_excluded),
    (AnomalyKind.LOST, forget_a_half),
    (AnomalyKind.LOST, lose_from_log),
    (AnomalyKind.LOST, lose_a_delayed_one),
    (AnomalyKind.LOST, never_consume),
    (AnomalyKind.PHANTOM, invent),
    (AnomalyKind.PHANTOM, store_what_was_refused),
    (AnomalyKind.MISPLACED, put_another_in_its_place),
    (AnomalyKind.STORED_TWICE, copy_a_send),
    (AnomalyKind.STORED_TWICE, copy_a_retry),
    (AnomalyKind.REORDERED, swap_in_the_log),
    (AnomalyKind.REORDERED, skip_in_order),
    (AnomalyKind.COMMITTED_AHEAD, commit_ahead),
    (AnomalyKind.OFFSET_BACKWARDS, fall_back),
    (AnomalyKind.OWNED_TWICE, own_twice),
    (AnomalyKind.NOT_OWNED, leave_without_owner),
    (AnomalyKind.DELAYED_EARLY, deliver_early),
    (AnomalyKind.TRANSACTION_EARLY, commit_too_late),
    (AnomalyKind.ROLLED_BACK_SEEN, roll_back),
    (AnomalyKind.AFTER_END, deliver_after_the_end),
    (AnomalyKind.STORED_TWICE, write_twice_for_nothing),
    (AnomalyKind.REPEATED, repeat),
    (AnomalyKind.REPEATED, repeat_what_failed),
    (AnomalyKind.MISCOUNTED, miscount),
    (AnomalyKind.MISCOUNTED, retry_too_often),
    (AnomalyKind.LATE, deliver_late),
    (AnomalyKind.GIVEN_UP_EARLY, give_up_early),
]


@pytest.mark.parametrize(("kind", "plant"), PLANTS, ids=[p.__name__ for _, p in PLANTS])
def test_a_planted_anomaly_is_found(kind: AnomalyKind, plant: Plant) -> None:
    @settings(max_examples=20, deadline=None, derandomize=True)
    @given(SEEDS)
    def found(seed: int) -> None:
        history = plant(CleanHistory(seed).events, random.Random(seed))
        assert kind in kinds(history)

    found()


def test_every_kind_is_planted() -> None:
    """But for those that depend on a rule or an event of their own: they have tests below."""
    others = {AnomalyKind.NOT_TAKEN_OVER, AnomalyKind.RESET_FORGOTTEN}
    assert {kind for kind, _ in PLANTS} == set(AnomalyKind) - others


@pytest.mark.parametrize("crashed", [False, True])
def test_a_message_has_one_dead_letter_for_each_last_attempt_that_failed(crashed: bool) -> None:
    dead = QUEUE._replace(topic="%DLQ%g")
    history: History = [
        dataclasses.replace(GROUP, attempts_max=1),
        *sent("k", 0.0, 0),
        *consumed("k", 10.0, 0, success=False),
        MessageStored(12.0, "k", dead, 0),
    ]
    assert kinds(history) == set()
    history += [MessageStored(13.0, "k", dead, 1)]
    if crashed:  # before its client was told
        history += [BrokerDied(12.5, "b")]
    assert kinds(history) == (set() if crashed else {AnomalyKind.STORED_TWICE})


def test_what_was_read_before_and_is_not_there_any_more_is_lost() -> None:
    history: History = [*sent("k", 0.0, 0), LogRead(9.0, QUEUE, 0, 1)]
    assert kinds(history) == set()
    assert kinds([*history, LogRead(19.0, QUEUE, 0, 0)]) == {AnomalyKind.LOST}


# --- what is forgiven, and what is not ------------------------------------------------------------


def test_a_clock_that_is_set_excuses_what_comes_early() -> None:
    queue = MessageQueue(TOPIC, "b", 0)
    history: History = [
        SendInvoked(0.0, "k", TOPIC, due_ms=1_000.0),
        MessageDelivered(500.0, "k", "g", "m", queue, 0),
    ]
    assert kinds(history) == {AnomalyKind.DELAYED_EARLY}
    assert kinds([*history, ClockJumped(100.0, "b", 600.0)]) == set()
    assert kinds([*history, ClockJumped(-100.0, "b", 600.0)]) == {AnomalyKind.DELAYED_EARLY}
    assert kinds([*history, ClockJumped(-100.0, "b", -600.0)]) == {AnomalyKind.DELAYED_EARLY}


@pytest.mark.parametrize(("member", "is_late"), [("m", False), ("other", True)])
def test_a_message_that_waits_for_a_busy_listener_is_not_late(member: str, is_late: bool) -> None:
    prompt = Rules().prompt_ms
    history: History = [GROUP, CalmBegan(5.0), *sent("first", 10.0, 0), *sent("k", 20.0, 1)]
    busy = MessageDelivered(30.0, "first", "g", member, QUEUE, 0, call=1)
    history += [busy, ListenerReturned(20.0 + prompt, busy, True)]
    history += consumed("k", 25.0 + prompt, 1)
    assert kinds(history) == ({AnomalyKind.LATE} if is_late else set())


@pytest.mark.parametrize(("crash_at", "falls"), [(1_500.0, False), (3_500.0, True)])
def test_a_crash_forgets_only_offsets_that_had_not_settled(crash_at: float, falls: bool) -> None:
    history: History = [
        GROUP,
        *sent("k", 10.0, 0),
        *consumed("k", 500.0, 0),
        CommitSeen(1_000.0, "g", QUEUE, 1),
        BrokerDied(crash_at, "b"),
        CommitSeen(4_000.0, "g", QUEUE, 0),
    ]
    expected = {AnomalyKind.OFFSET_BACKWARDS} if falls else set()
    assert kinds(history, Rules(settle_ms=1_000.0)) == expected


@pytest.mark.parametrize(("paused_until", "falls"), [(2_900.0, False), (1_100.0, True)])
def test_a_broker_that_stood_still_settled_nothing(paused_until: float, falls: bool) -> None:
    history: History = [
        GROUP,
        *sent("k", 10.0, 0),
        *consumed("k", 20.0, 0),
        CommitSeen(500.0, "g", QUEUE, 1),
        BrokerPaused(600.0, "b", paused_until),
        BrokerDied(3_000.0, "b"),
        CommitSeen(4_000.0, "g", QUEUE, 0),
    ]
    expected = {AnomalyKind.OFFSET_BACKWARDS} if falls else set()
    assert kinds(history, Rules(settle_ms=1_000.0)) == expected


@pytest.mark.parametrize(
    ("settled_at", "paused_at", "falls"),
    [(9_500.0, 20_000.0, False), (100.0, 20_000.0, True), (100.0, 200.0, False)],
)
def test_a_former_owner_commits_no_lower_than_what_was_long_settled(
    settled_at: float, paused_at: float, falls: bool
) -> None:
    """What a broker took before it stood still shows only when it goes on."""
    history: History = [
        GROUP,
        *sent("k", 10.0, 0),
        *consumed("k", 20.0, 0),
        CommitSeen(settled_at, "g", QUEUE, 1),
        BrokerPaused(paused_at, "b", paused_at + 9_500.0),
        MemberJoined(9_000.0, "g", "n"),
        CommitSeen(10_000.0, "g", QUEUE, 0),
    ]
    expected = {AnomalyKind.OFFSET_BACKWARDS} if falls else set()
    assert kinds(history, Rules(rebalance_ms=2_000.0)) == expected


@pytest.mark.parametrize(("copies", "twice"), [(3, False), (4, True)])
def test_a_producer_killed_in_a_send_may_have_used_all_its_tries(copies: int, twice: bool) -> None:
    history: History = [
        SendInvoked(0.0, "k", TOPIC, tries=3),
        *(MessageStored(10.0, "k", QUEUE, offset) for offset in range(copies)),
    ]
    assert kinds(history) == ({AnomalyKind.STORED_TWICE} if twice else set())


@pytest.mark.parametrize(
    ("tries", "crash_at", "twice"), [(1, 700.0, False), (1, 5_000.0, True), (3, 700.0, False)]
)
def test_a_crash_excuses_a_copy_only_at_once(tries: int, crash_at: float, twice: bool) -> None:
    """A broker that forgets its progress stores delayed messages anew after each crash."""
    history: History = [
        SendInvoked(0.0, "k", TOPIC, due_ms=500.0, tries=tries),
        SendAcknowledged(1.0, "k", tries=tries),
        MessageStored(600.0, "k", QUEUE, 0),
        BrokerDied(crash_at, "b"),
        MessageStored(9_000.0, "k", QUEUE, 1),
    ]
    expected = {AnomalyKind.STORED_TWICE} if twice else set()
    assert kinds(history, Rules(settle_ms=1_000.0)) == expected


@pytest.mark.parametrize(("power_lost", "twice"), [(True, False), (False, True)])
def test_only_a_loss_of_power_parts_a_transaction_from_its_end(
    power_lost: bool, twice: bool
) -> None:
    history: History = [
        SendInvoked(0.0, "k", TOPIC, transactional=True),
        TransactionDecided(0.5, "k", True),
        SendAcknowledged(1.0, "k"),
        MessageStored(600.0, "k", QUEUE, 0),
        BrokerDied(700.0, "b", power_lost),
        MessageStored(9_000.0, "k", QUEUE, 1),
    ]
    expected = {AnomalyKind.STORED_TWICE} if twice else set()
    assert kinds(history, Rules(settle_ms=1_000.0)) == expected


@pytest.mark.parametrize(
    "cause",
    [
        MemberJoined(5_000.0, "g", "n"),
        Disturbed(4_000.0, 6_000.0, "partition"),
        BrokerDied(5_000.0, "b"),
        OffsetReset(5_000.0, "g", QUEUE, 0),
    ],
)
def test_a_repetition_needs_a_cause(cause: Event) -> None:
    history: History = [GROUP, *sent("k", 0.0, 0), *consumed("k", 10.0, 0)]
    history += consumed("k", 8_000.0, 0)
    rules = Rules(rebalance_ms=1_000.0)
    assert kinds(history, rules) == {AnomalyKind.REPEATED}
    assert kinds([*history, cause], rules) == set()


@pytest.mark.parametrize("cause", [ProcessDied(5_000.0, "m"), MemberJoined(5_000.0, "g", "n")])
def test_a_call_that_never_comes_back_excuses_no_second_one(cause: Event) -> None:
    delivery = consumed("k", 10.0, 0)[0]
    history: History = [GROUP, *sent("k", 0.0, 0), delivery, *consumed("k", 8_000.0, 0)]
    rules = Rules(rebalance_ms=1_000.0)
    assert kinds(history, rules) == {AnomalyKind.REPEATED}
    assert AnomalyKind.REPEATED not in kinds([*history, cause], rules)


@pytest.mark.parametrize(
    ("outcome", "twice"),
    [(SendOutcome.REJECTED, True), (SendOutcome.NOT_SENT, True), (SendOutcome.UNKNOWN, False)],
)
def test_what_was_said_not_to_be_stored_excuses_no_copy_of_the_next_try(
    outcome: SendOutcome, twice: bool
) -> None:
    history: History = [
        SendInvoked(0.0, "k", TOPIC),
        SendFailed(10.0, "k", outcome),
        MessageStored(5.0, "k", QUEUE, 0),
        *sent("k", 5_000.0, 1),
    ]
    assert kinds(history) == ({AnomalyKind.STORED_TWICE} if twice else set())


@pytest.mark.parametrize(("calm_at", "lost"), [(0.0, True), (20.0, False)])
def test_a_group_that_begins_at_the_end_gets_what_is_sent_once_it_has_its_queues(
    calm_at: float, lost: bool
) -> None:
    group = dataclasses.replace(GROUP, from_first=False)
    history: History = [group, CalmBegan(calm_at), *sent("k", 10.0, 0), RunEnded(90_000.0)]
    assert kinds(history) == ({AnomalyKind.LOST} if lost else set())


def test_what_a_listener_took_back_must_come_again_before_it_is_passed() -> None:
    group = dataclasses.replace(GROUP, orderly=True)
    kept = [*consumed("k0", 10.0, 0), *consumed("k1", 20.0, 1)]
    back = [TakenBack(21.0, "g", "m", QUEUE, offset) for offset in (0, 1)]
    history: History = [group, *sent("k0", 0.0, 0), *sent("k1", 2.0, 1), *kept, *back]
    second = consumed("k1", 30.0, 1)
    commit = CommitSeen(40.0, "g", QUEUE, 2)
    assert kinds([*history, *second, commit]) == {
        AnomalyKind.COMMITTED_AHEAD,
        AnomalyKind.REORDERED,
    }
    assert kinds([*history, *consumed("k0", 25.0, 0), *second, commit]) == set()


def test_what_another_member_had_finished_may_be_passed_though_it_is_taken_back() -> None:
    """Two have the queue for a moment after a restart of a broker that forgets who holds what."""
    group = dataclasses.replace(GROUP, orderly=True)
    history: History = [group, *sent("k", 0.0, 0), *consumed("k", 10.0, 0, member="one")]
    history += [BrokerDied(15.0, QUEUE.broker_name), *consumed("k", 20.0, 0, member="two")]
    history += [TakenBack(21.0, "g", "two", QUEUE, 0)]
    assert kinds([*history, CommitSeen(40.0, "g", QUEUE, 1)]) == set()


def test_a_message_that_is_kept_here_after_a_failed_send_back_counts_its_tries_itself() -> None:
    """It is delivered more often than it may, but not as stored."""
    retries = MessageQueue("%RETRY%g", "b", 0)
    group = dataclasses.replace(GROUP, attempts_max=2)
    history: History = [group, *sent("k", 0.0, 0), *consumed("k", 10.0, 0, success=False)]
    for times in (1, 2):
        at = 10.0 + 10.0 * times
        again = MessageDelivered(at, "k", "g", "m", retries, 0, times, call=int(at))
        history += [again, ListenerReturned(at + 1, again, False)]
    assert kinds(history) == set()


def test_a_listener_that_outlives_its_lock_is_not_blamed() -> None:
    """A process paused in a listener cannot know that others took its queue."""
    group = dataclasses.replace(GROUP, orderly=True)
    first = MessageDelivered(10.0, "k", "g", "one", QUEUE, 0, call=1)
    history: History = [group, *sent("k", 0.0, 0), first, Disturbed(20.0, 60_000.0, "pause")]
    late = [*history, *consumed("k", 50_000.0, 0, member="two")]
    soon = [*history, *consumed("k", 20_000.0, 0, member="two")]
    assert kinds(late) == set()
    assert kinds(soon) == {AnomalyKind.OWNED_TWICE}


def test_a_call_that_is_cancelled_is_over_though_its_member_has_not_left() -> None:
    """The queue may be another's at once; the message is not finished."""
    group = dataclasses.replace(GROUP, orderly=True)
    now = 10.0
    recorder = Recorder(lambda: now)
    message = received_message(QUEUE.topic, b"", keys="k", broker_name=QUEUE.broker_name)

    async def main() -> None:
        nonlocal now

        async def listener() -> None:
            with recorder.listening("g", "one", [message]):
                await asyncio.get_running_loop().create_future()

        call = asyncio.ensure_future(listener())
        await asyncio.sleep(0)
        now = 20.0
        call.cancel()
        await asyncio.wait([call])

    asyncio.run(main())
    history: History = [group, *sent("k", 0.0, 0), *recorder.events]
    assert kinds([*history, *consumed("k", 20.0, 0, member="two")]) == set()
    assert kinds([*history, *consumed("k", 19.0, 0, member="two")]) == {AnomalyKind.OWNED_TWICE}
    ahead = CommitSeen(30.0, "g", QUEUE, 1)
    assert AnomalyKind.COMMITTED_AHEAD in kinds([*history, ahead])


def test_a_restarted_broker_that_forgets_locks_gives_a_queue_away_amid_a_call() -> None:
    """Apache's; a call that begins afterwards has to have asked for the lock anew."""
    group = dataclasses.replace(GROUP, orderly=True)
    first = MessageDelivered(10.0, "k", "g", "one", QUEUE, 0, call=1)
    second = consumed("k", 30.0, 0, member="two")
    forgetful = Rules(untold_ms=0.0)
    history: History = [group, *sent("k", 0.0, 0), first]
    amid = [*history, BrokerDied(20.0, QUEUE.broker_name), *second]
    before = [BrokerDied(5.0, QUEUE.broker_name), *history, *second]
    assert AnomalyKind.OWNED_TWICE in kinds(amid)
    assert AnomalyKind.OWNED_TWICE not in kinds(amid, forgetful)
    assert AnomalyKind.OWNED_TWICE in kinds(before, forgetful)
    assert AnomalyKind.OWNED_TWICE not in kinds(before, Rules(untold_ms=5.0))
    power = [BrokerDied(5.0, QUEUE.broker_name, power_lost=True), *history, *second]
    assert AnomalyKind.OWNED_TWICE not in kinds(power, forgetful)


@pytest.mark.parametrize(
    ("died_at", "untold_ms", "falls"),
    [(8_500.0, 0.0, False), (8_500.0, None, True), (6_900.0, 0.0, True)],
)
def test_whose_lock_a_broker_forgot_may_commit_after_the_next_owner_began(
    died_at: float, untold_ms: float | None, falls: bool
) -> None:
    history: History = [
        dataclasses.replace(GROUP, orderly=True),
        *sent("k", 10.0, 0),
        *consumed("k", 20.0, 0),
        BrokerDied(died_at, QUEUE.broker_name),
        CommitSeen(9_000.0, "g", QUEUE, 1),
        CommitSeen(10_000.0, "g", QUEUE, 0),
    ]
    rules = Rules(rebalance_ms=2_000.0, settle_ms=100.0, untold_ms=untold_ms)
    assert kinds(history, rules) == ({AnomalyKind.OFFSET_BACKWARDS} if falls else set())


def test_a_batch_is_one_call() -> None:
    """Messages of one batch begin together: that is neither two owners nor a skip."""
    group = dataclasses.replace(GROUP, orderly=True)
    both = [MessageDelivered(10.0, f"k{n}", "g", "m", QUEUE, n, call=1) for n in (0, 1)]
    history: History = [group, *sent("k0", 0.0, 0), *sent("k1", 2.0, 1), *both]
    history += [ListenerReturned(20.0, delivery, True) for delivery in both]
    assert kinds(history) == set()


def test_an_anomaly_names_its_events() -> None:
    """Whoever reads a failing seed sees what was sent, stored and delivered."""
    history: History = [GROUP, *sent("k", 0.0, 0), LogRead(9.0, QUEUE, 0, 1), RunEnded(9.0)]
    (anomaly,) = check(history)
    assert isinstance(anomaly, Anomaly)
    assert str(anomaly).startswith("lost: k was never consumed by group g\n    SendInvoked(")
    assert {type(event) for event in anomaly.events} == {
        SendInvoked,
        SendAcknowledged,
        MessageStored,
    }


def test_only_so_many_of_a_kind_are_reported() -> None:
    history: History = [MessageStored(1.0, f"k{n}", QUEUE, n) for n in range(100)]
    assert len(check(history, Rules(reports_max=3))) == 3
