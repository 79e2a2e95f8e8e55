"""Dead letters sent again: where to, as what, at what pace, and where the next run goes on."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest

from rocketstream import Message, Producer, SendStatus
from rocketstream._util.clock import SYSTEM_CLOCK
from rocketstream.admin import Admin, LetterFilter
from rocketstream.admin.letters import redrive
from rocketstream.admin.letters.causes import PROGRESS_GROUP, progress_group
from rocketstream.admin.letters.redrive import Pace
from rocketstream.admin.wire import questions
from rocketstream.client.admin.blocking import BlockingAdminClient
from rocketstream.errors import ClientStateError, ConfigurationError, RouteNotFoundError
from rocketstream.model import MessageQueue
from rocketstream.protocol.codes import RequestCode
from rocketstream.protocol.message_ext import MessageExt
from rocketstream.server.embedded import EmbeddedCluster
from rocketstream.testing.clock import ManualClock
from tests.kits.peer import Peer

GROUP = "billing"
DEAD = "%DLQ%billing"
QUEUE = MessageQueue(DEAD, "broker-a", 0)
LEFTOVERS: dict[str, Any] = {
    "DELAY": "0", "WAIT": "false", "REAL_TOPIC": "%RETRY%billing", "REAL_QID": "0",
    "RECONSUME_TIME": "3", "MAX_RECONSUME_TIMES": "3", "ORIGIN_MESSAGE_ID": "7F0000", "PGROUP": "p",
    "TRAN_MSG": "false", "DLQ_ORIGIN_MESSAGE_ID": "7F0000",
}  # fmt: skip


class Letters:
    """Puts letters into the dead-letter topic, and reads topics back."""

    def __init__(self, cluster: EmbeddedCluster, producer: Producer, admin: Admin) -> None:
        self._cluster = cluster
        self._producer = producer
        self._admin = admin

    def put(self, count: int = 1, origin: str | None = "orders", **properties: str) -> None:
        for _ in range(count):
            message = Message(DEAD, b"body", tags=properties.pop("tag", None), flag=7)
            message.properties |= properties
            if origin is not None:
                message.properties["RETRY_TOPIC"] = origin
            self._producer.send(message, message_queue=QUEUE)

    def of(self, topic: str) -> list[MessageExt]:
        found: list[MessageExt] = []
        for row in self._admin.topics.status(topic):
            queue = MessageQueue(topic, row.broker_name, row.queue_id)
            at = row.min_offset
            while at < row.max_offset:
                some, at = self._admin._wire.pull(self._cluster.broker_addr, "t", queue, at, 32)
                found += some
        return found


@pytest.fixture
def admin(rocketmq_cluster: EmbeddedCluster) -> Iterator[Admin]:
    with Admin(rocketmq_cluster.namesrv_addr) as admin:
        admin.topics.create(DEAD, 1)
        admin.topics.create("orders", 2)
        yield admin


@pytest.fixture
def letters(rocketmq_cluster: EmbeddedCluster, admin: Admin) -> Iterator[Letters]:
    with Producer("letters", namesrv_addr=rocketmq_cluster.namesrv_addr) as producer:
        yield Letters(rocketmq_cluster, producer, admin)


def test_a_plan_tells_what_would_be_sent_and_changes_nothing(
    admin: Admin, letters: Letters
) -> None:
    admin.topics.create("returns", 1)
    letters.put(12)
    letters.put(3, origin="returns")
    for _ in range(2):
        plan = admin.letters.redrive_plan(GROUP)
        assert plan.by_topic == {"orders": 12, "returns": 3}
        assert (plan.letters, plan.left_out, len(plan.shown)) == (15, 0, 10)
        assert (plan.problems, plan.earlier, plan.progress) == ((), (), PROGRESS_GROUP)
        assert plan.ranges == {QUEUE: (0, 15)}
    assert letters.of("orders") == []
    admin.letters.by_cause(GROUP)
    assert PROGRESS_GROUP not in known_groups(admin), "looking makes a broker know a group"


def known_groups(admin: Admin) -> set[str]:
    """Every group the brokers know, those of the system and of tools too."""
    known: set[str] = set()
    for address in admin._wire.masters().values():
        known |= set(admin._wire.ask(address, questions.GROUPS))
    return known


def test_a_redrive_is_no_group_that_anybody_looks_after(admin: Admin, letters: Letters) -> None:
    letters.put(3)
    admin.letters.redrive(GROUP)
    assert admin.letters.redrive_plan(GROUP).ranges == {QUEUE: (3, 3)}
    assert PROGRESS_GROUP not in admin.cluster.state().groups
    assert PROGRESS_GROUP not in {row.group for row in admin.groups.all()}


def test_a_letter_goes_back_as_it_was_sent_and_says_where_it_was(
    admin: Admin, letters: Letters
) -> None:
    letters.put(tag="eu", KEYS="a b", price="5", UNIQ_KEY="A1", **LEFTOVERS)
    result = admin.letters.redrive(GROUP)
    assert (result.sent, result.by_topic, result.is_complete) == (1, {"orders": 1}, True)
    (message,) = letters.of("orders")
    assert (bytes(message.body), message.flag, message.msg_id) == (b"body", 7, "A1")
    assert (message.tags, message.keys, message.reconsume_times) == ("eu", "a b", 0)
    kept = dict(message.properties)
    assert kept["price"] == "5"
    assert kept["REDRIVEN_FROM"] == "%DLQ%billing/broker-a/0/0"
    assert kept["REDRIVEN_TIMES"] == "1"
    assert kept.get("WAIT") in (None, "true")
    assert not (LEFTOVERS.keys() - {"WAIT"} | {"RETRY_TOPIC"}) & kept.keys()


def test_a_letter_that_says_nonsense_of_its_redrives_is_sent_again_as_any(
    admin: Admin, letters: Letters
) -> None:
    """Any sender can say it: a number of thousands of digits kept all letters from going back."""
    letters.put(REDRIVEN_TIMES="9" * 5_000)
    letters.put()
    assert admin.letters.redrive(GROUP).sent == 2
    first, _ = letters.of("orders")
    assert first.properties["REDRIVEN_TIMES"] == "1"


def test_a_letter_that_died_again_counts_how_often_it_was_sent(
    admin: Admin, letters: Letters
) -> None:
    letters.put(REDRIVEN_TIMES="2", REDRIVEN_FROM="old")
    admin.letters.redrive(GROUP)
    (message,) = letters.of("orders")
    assert message.properties["REDRIVEN_TIMES"] == "3"
    assert message.properties["REDRIVEN_FROM"] == "%DLQ%billing/broker-a/0/0"


def test_a_letter_of_a_topic_made_anew_is_not_the_one_that_was_sent_from_there(
    admin: Admin, letters: Letters, broker_peer: Peer
) -> None:
    """What was sent died again, and had the place it had before."""
    letters.put(UNIQ_KEY="A1")
    assert admin.letters.redrive(GROUP).sent == 1
    assert broker_peer.call(RequestCode.DELETE_TOPIC_IN_BROKER, ext={"topic": DEAD}).code == 0
    admin.topics.create(DEAD, 1)
    (message,) = letters.of("orders")
    assert message.properties["REDRIVEN_TIMES"] == "1"
    letters.put(UNIQ_KEY="A1", REDRIVEN_FROM=f"{DEAD}/broker-a/0/0", REDRIVEN_TIMES="1")
    assert admin.letters.redrive(GROUP).sent == 1
    assert {each.properties["REDRIVEN_TIMES"] for each in letters.of("orders")} == {"1", "2"}


def test_what_was_sent_is_not_sent_again(admin: Admin, letters: Letters) -> None:
    letters.put(40)
    assert admin.letters.redrive(GROUP).sent == 40
    assert admin.letters.redrive(GROUP).sent == 0
    letters.put(2)
    assert admin.letters.redrive_plan(GROUP).letters == 2
    assert admin.letters.redrive(GROUP).sent == 2
    assert len(letters.of("orders")) == 42


def test_an_interrupted_redrive_goes_on_behind_the_last_letter_sent(
    admin: Admin, letters: Letters
) -> None:
    letters.put(50)
    count = itertools.count(1)

    def interrupt(*_: Any) -> None:
        if next(count) == 37:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        admin.letters.redrive(GROUP, on_sent=interrupt)
    assert admin.letters.redrive(GROUP).sent == 13
    places = [message.properties["REDRIVEN_FROM"] for message in letters.of("orders")]
    assert len(set(places)) == len(places) == 50


def test_a_crash_sends_nothing_twice(
    admin: Admin, letters: Letters, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after SIGKILL: the place is behind what was sent, by up to 32 letters or all of them."""
    letters.put(60)
    kept = admin._client.update_consumer_offset
    with monkeypatch.context() as crash:
        crash.setattr(admin._client, "update_consumer_offset", lambda *_: None)
        assert admin.letters.redrive(GROUP, limit=7).sent == 7
    assert admin.letters.redrive_plan(GROUP).already_sent == 7
    with monkeypatch.context() as crash:
        crash.setattr(
            admin._client,
            "update_consumer_offset",
            lambda group, queue, offset: kept(group, queue, min(offset, 20)),
        )
        result = admin.letters.redrive(GROUP, limit=40)
        assert (result.sent, result.already_sent) == (40, 7)
    result = admin.letters.redrive(GROUP)
    assert (result.sent, result.already_sent, result.is_complete) == (13, 27, True)
    places = [message.properties["REDRIVEN_FROM"] for message in letters.of("orders")]
    assert len(set(places)) == len(places) == 60


class Doubtful(Producer):
    """Is answered with a status as if the broker had stored the fourth message only in part."""

    status = SendStatus.SEND_OK
    count = 0

    def send(self, *args: Any, **settings: Any) -> Any:
        stored = super().send(*args, **settings)
        self.count += 1
        return replace(stored, send_status=self.status) if self.count == 4 else stored


@pytest.mark.parametrize("status", list(SendStatus)[1:])
def test_the_place_stays_before_a_letter_that_is_stored_but_not_safe(
    rocketmq_cluster: EmbeddedCluster, admin: Admin, letters: Letters, status: SendStatus
) -> None:
    """Covers C-473: the next run looks, and sends only what a crash has taken."""
    letters.put(10)
    with Doubtful("redrive", namesrv_addr=rocketmq_cluster.namesrv_addr) as producer:
        producer.status = status
        result = admin.letters.redrive(GROUP, producer=producer)
    assert (result.sent, result.odd, result.is_complete) == (10, {status.value: 1}, False)
    result = admin.letters.redrive(GROUP)
    assert (result.sent, result.already_sent, result.is_complete) == (0, 7, True)
    assert admin.letters.redrive(GROUP).already_sent == 0
    assert len(letters.of("orders")) == 10


def test_one_question_is_enough_where_nothing_was_sent(
    admin: Admin, letters: Letters, monkeypatch: pytest.MonkeyPatch
) -> None:
    letters.put(40)
    asked: list[str] = []
    ask = admin._wire.messages_by_key

    def count(address: str, topic: str, key: str, *args: Any, **settings: Any) -> Any:
        asked.append(key)
        return ask(address, topic, key, *args, **settings)

    monkeypatch.setattr(admin._wire, "messages_by_key", count)
    assert admin.letters.redrive(GROUP).sent == 40
    assert len(asked) == 1


def test_a_redrive_ends_between_two_letters_when_told_to(admin: Admin, letters: Letters) -> None:
    letters.put(5)
    told = iter([False, False, True])
    result = admin.letters.redrive(GROUP, should_stop=lambda: next(told))
    assert (result.sent, result.is_complete) == (2, False)
    assert admin.letters.redrive(GROUP).sent == 3


def test_a_second_redrive_of_a_group_is_refused_while_one_is_under_way(
    rocketmq_cluster: EmbeddedCluster, admin: Admin, letters: Letters
) -> None:
    """Whatever it selects and wherever it runs: nothing doubled, nothing left."""
    letters.put(40, tag="eu")
    with Admin(rocketmq_cluster.namesrv_addr) as other:

        def begin_another(letter: MessageExt, _: Any) -> None:
            if letter.queue_offset == 35:
                for wanted in (None, LetterFilter(tag="eu")):
                    with pytest.raises(ClientStateError, match="letters of billing is under way"):
                        other.letters.redrive(GROUP, wanted)
                assert other.letters.redrive_plan(GROUP, limit=1).letters == 1

        assert admin.letters.redrive(GROUP, on_sent=begin_another).sent == 40
        letters.put(2)
        assert other.letters.redrive(GROUP).sent == 2
    places = [message.properties["REDRIVEN_FROM"] for message in letters.of("orders")]
    assert len(set(places)) == len(places) == 42


def test_a_redrive_that_fails_gives_the_queues_back(admin: Admin, letters: Letters) -> None:
    letters.put(origin="gone")
    with pytest.raises(ConfigurationError, match="does not exist any more"):
        admin.letters.redrive(GROUP)
    assert admin.letters.redrive(GROUP, to="orders").sent == 1


Two = tuple[ManualClock, EmbeddedCluster, Admin, Admin, Letters]


@pytest.fixture
def two() -> Iterator[Two]:
    """Two that may redrive five letters, by a clock that is moved by hand."""
    clock = ManualClock(SYSTEM_CLOCK.now_ms())
    with (
        EmbeddedCluster(clock=clock) as cluster,
        Admin(cluster.namesrv_addr, clock=clock) as admin,
        Admin(cluster.namesrv_addr, clock=clock) as other,
        Producer("letters", namesrv_addr=cluster.namesrv_addr) as producer,
    ):
        admin.topics.create(DEAD, 1)
        admin.topics.create("orders", 2)
        letters = Letters(cluster, producer, admin)
        letters.put(5)
        yield clock, cluster, admin, other, letters


def test_a_redrive_that_stood_still_leaves_the_field_to_the_one_in_its_place(two: Two) -> None:
    """As after a crash: brokers let a next one in, and it keeps the place from then on."""
    clock, _, admin, other, letters = two

    def stand_still(*_: Any) -> None:
        clock.advance(61_000)
        # The first letter's message is there, though the place was not kept.
        assert other.letters.redrive(GROUP).sent == 4

    with pytest.raises(ClientStateError, match="stood still for 61 s"):
        admin.letters.redrive(GROUP, on_sent=stand_still)
    assert admin.letters.redrive(GROUP).sent == 0
    assert len(letters.of("orders")) == 5


@pytest.mark.parametrize(
    ("stopped", "method", "left"),
    [(Producer, "send", 4), (redrive.SentBefore, "has", 5)],
    ids=["in a send", "before a send"],
)
def test_a_redrive_that_stood_still_sends_nothing_more_and_leaves_the_place_of_the_next_one(
    two: Two, monkeypatch: pytest.MonkeyPatch, stopped: type, method: str, left: int
) -> None:
    """It would send a letter twice, and put the place back to behind it."""
    clock, cluster, admin, other, letters = two

    def stand_still() -> None:
        clock.advance(61_000)
        assert other.letters.redrive(GROUP).sent == left

    monkeypatch.setattr(stopped, method, stopping(getattr(stopped, method), stand_still))
    with pytest.raises(ClientStateError, match="stood still for 61 s"):
        admin.letters.redrive(GROUP)
    assert len(letters.of("orders")) == 5
    with BlockingAdminClient(cluster.namesrv_addr) as client:
        assert client.query_consumer_offset(PROGRESS_GROUP, QUEUE) == 5


def test_a_redrive_whose_queues_went_to_another_stops_at_once(
    rocketmq_cluster: EmbeddedCluster,
    admin: Admin,
    letters: Letters,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As after a restart of a broker of Apache's, which forgets who held what."""
    letters.put(3)
    monkeypatch.setattr(redrive, "new_uuid", lambda: "mine")
    wire, broker = admin._wire, rocketmq_cluster.broker_addr

    def rob(*_: Any) -> None:
        wire.ask(broker, questions.unlock_of(PROGRESS_GROUP, "mine", {QUEUE}))
        assert wire.ask(broker, questions.lock_of(PROGRESS_GROUP, "robber", {QUEUE}))

    monkeypatch.setattr(redrive, "RENEWED_AFTER_MS", 0)
    with pytest.raises(ClientStateError, match="another one may have gone on"):
        admin.letters.redrive(GROUP, on_sent=rob)
    assert len(letters.of("orders")) == 1
    with BlockingAdminClient(rocketmq_cluster.namesrv_addr) as client:
        assert not client.query_consumer_offset(PROGRESS_GROUP, QUEUE)


def stopping(method: Callable[..., Any], stand_still: Callable[[], None]) -> Callable[..., Any]:
    """Return a method after whose first call the process stands still."""
    stops = iter([stand_still])

    def call(*args: Any, **settings: Any) -> Any:
        found = method(*args, **settings)
        next(stops, lambda: None)()
        return found

    return call


def test_a_limit_takes_the_first_and_the_next_run_the_next(admin: Admin, letters: Letters) -> None:
    letters.put(5)
    assert admin.letters.redrive_plan(GROUP, limit=2).letters == 2
    first = admin.letters.redrive(GROUP, limit=2)
    assert (first.sent, first.is_complete) == (2, False)
    second = admin.letters.redrive(GROUP, limit=3)
    assert (second.sent, second.is_complete) == (3, True)


def test_a_redrive_as_shown_sends_the_letters_of_its_plan_and_no_later_ones(
    admin: Admin, letters: Letters
) -> None:
    letters.put(3, KEYS="k1")
    letters.put(1)
    wanted = LetterFilter(key="k1")
    plan = admin.letters.redrive_plan(GROUP, wanted)
    letters.put(2, KEYS="k1")
    assert admin.letters.redrive(GROUP, wanted, as_shown=plan).sent == plan.letters == 3
    assert admin.letters.redrive(GROUP, wanted, as_shown=plan).sent == 0, "they are sent once"
    assert admin.letters.redrive_plan(GROUP, wanted).letters == 2
    with pytest.raises(ConfigurationError, match="give the redrive the same"):
        admin.letters.redrive(GROUP, as_shown=plan)


def test_plan_that_another_redrive_overtook_leaves_the_place_where_that_one_ended(
    admin: Admin, letters: Letters
) -> None:
    letters.put(3)
    plan = admin.letters.redrive_plan(GROUP)
    letters.put(5)
    assert admin.letters.redrive(GROUP).sent == 8
    overtaken = admin.letters.redrive(GROUP, as_shown=plan)
    assert (overtaken.sent, overtaken.is_complete) == (0, True)
    assert admin._client.query_consumer_offset(PROGRESS_GROUP, QUEUE) == 8


def test_a_redrive_as_shown_fills_its_limit_with_no_other_letters(
    admin: Admin, letters: Letters
) -> None:
    """Although another redrive has sent some of them meanwhile."""
    letters.put(5)
    plan = admin.letters.redrive_plan(GROUP, limit=3)
    assert (plan.letters, plan.ranges) == (3, {QUEUE: (0, 3)})
    assert admin.letters.redrive(GROUP, limit=2).sent == 2
    result = admin.letters.redrive(GROUP, limit=3, as_shown=plan)
    assert (result.sent, result.is_complete) == (1, True)
    assert admin.letters.redrive(GROUP).sent == 2


def test_letters_that_were_shown_and_deleted_are_not_replaced_by_others(
    rocketmq_cluster: EmbeddedCluster, admin: Admin, letters: Letters
) -> None:
    letters.put(3)
    plan = admin.letters.redrive_plan(GROUP)
    admin.changes.apply(admin.changes.topic_delete_plan(DEAD))
    admin.topics.create(DEAD, 1)
    letters.put(1)
    with pytest.raises(ClientStateError, match="was deleted meanwhile"):
        admin.letters.redrive(GROUP, as_shown=plan)


def test_filters_choose_letters_and_keep_a_place_of_their_own(
    admin: Admin, letters: Letters
) -> None:
    """What a filter leaves out is there for the next redrive."""
    letters.put(2, KEYS="k1")
    letters.put(3, KEYS="k2 k3")
    wanted = LetterFilter(key="k3")
    plan = admin.letters.redrive_plan(GROUP, wanted)
    assert (plan.letters, plan.left_out) == (3, 2)
    assert plan.progress == progress_group(wanted, None) != PROGRESS_GROUP
    assert admin.letters.redrive(GROUP, wanted).sent == 3
    assert admin.letters.redrive(GROUP, wanted).sent == 0
    everything = admin.letters.redrive_plan(GROUP)
    assert (everything.letters, everything.already_sent) == (2, 3)
    assert everything.earlier == (plan.progress,)
    result = admin.letters.redrive(GROUP)
    assert (result.sent, result.already_sent, result.is_complete) == (2, 3, True)
    assert admin.letters.redrive(GROUP, progress="again").sent == 5


def test_letters_are_chosen_by_time_tag_and_origin(admin: Admin, letters: Letters) -> None:
    letters.put(1, tag="eu")
    letters.put(1, origin="returns")
    first, second = letters.of(DEAD)
    for wanted, chosen in [
        (LetterFilter(tag="eu"), [first]),
        (LetterFilter(origin="returns"), [second]),
        (LetterFilter(since_ms=first.store_timestamp), [first, second]),
        (LetterFilter(since_ms=second.store_timestamp + 1), []),
        (LetterFilter(until_ms=first.store_timestamp), []),
        (LetterFilter(until_ms=second.store_timestamp + 1), [first, second]),
        (LetterFilter(tag="eu", origin="returns"), []),
    ]:
        plan = admin.letters.redrive_plan(GROUP, wanted)
        assert [x.queue_offset for x in plan.shown] == [x.queue_offset for x in chosen], wanted


def test_letters_that_die_meanwhile_are_not_sent_in_a_circle(
    admin: Admin, letters: Letters
) -> None:
    letters.put(3)
    assert admin.letters.redrive(GROUP, on_sent=lambda *_: letters.put()).sent == 3
    assert admin.letters.redrive_plan(GROUP).letters == 3


def test_the_retry_topic_has_the_group_alone_consume_them_again(
    admin: Admin, letters: Letters
) -> None:
    """Its consumers are to be shown the origin, as of any retry."""
    admin.topics.create("%RETRY%billing", 1)
    letters.put(RETRY_TOPIC="orders", **LEFTOVERS)
    admin.letters.redrive(GROUP, to="%RETRY%billing")
    assert letters.of("orders") == []
    (message,) = letters.of("%RETRY%billing")
    assert message.properties["RETRY_TOPIC"] == "orders"
    assert message.properties["ORIGIN_MESSAGE_ID"] == "7F0000"
    assert message.reconsume_times == 0
    assert "DELAY" not in message.properties


def test_a_letter_without_origin_stops_the_redrive_until_a_topic_is_named(
    admin: Admin, letters: Letters
) -> None:
    letters.put(2)
    letters.put(origin=None)
    assert admin.letters.redrive_plan(GROUP).problems == (
        "letters that do not tell which topic they were consumed from: 1",
    )
    with pytest.raises(ConfigurationError, match="0/2 does not tell which topic"):
        admin.letters.redrive(GROUP)
    assert len(letters.of("orders")) == 2
    assert admin.letters.redrive(GROUP, to="orders").sent == 1
    assert len(letters.of("orders")) == 3


def test_an_origin_that_is_gone_is_refused_and_not_created(admin: Admin, letters: Letters) -> None:
    letters.put(origin="gone")
    assert admin.letters.redrive_plan(GROUP).problems == ("topic 'gone' does not exist any more",)
    with pytest.raises(ConfigurationError, match="'gone' does not exist any more; %DLQ%"):
        admin.letters.redrive(GROUP)
    with pytest.raises(RouteNotFoundError):
        admin.topics.route("gone")


def test_a_place_beyond_the_end_is_that_of_a_topic_deleted_since(
    admin: Admin, letters: Letters, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Apache's brokers keep the offsets of a topic they delete."""
    letters.put(2)
    monkeypatch.setattr(admin._client, "query_consumer_offset", lambda *_: 9)
    assert admin.letters.redrive(GROUP).sent == 2


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"rate": 0}, "rate is 0"),
        ({"limit": 0}, "limit is 0"),
        ({"to": DEAD}, "the topic the dead letters are in"),
        ({"progress": "bad name!"}, "illegal characters"),
    ],
)
def test_what_cannot_be_meant_is_refused(
    admin: Admin, settings: Mapping[str, Any], said: str
) -> None:
    with pytest.raises(ConfigurationError, match=said):
        admin.letters.redrive(GROUP, **settings)


def test_a_group_without_dead_letters_is_told(admin: Admin) -> None:
    with pytest.raises(RouteNotFoundError, match="'audit' has no dead letters"):
        admin.letters.redrive_plan("audit")


def test_a_pace_is_kept_and_idle_time_is_not_saved_up() -> None:
    clock = ManualClock()
    waits: list[float] = []

    def wait(seconds: float) -> None:
        waits.append(seconds)
        clock.advance(seconds * 1_000)

    pace = Pace(10, clock, wait)
    for _ in range(3):
        pace.next()
    assert waits == pytest.approx([0.1, 0.1])
    clock.advance(5_000)
    for _ in range(2):
        pace.next()
    assert waits == pytest.approx([0.1, 0.1, 0.1])
    hurry = Pace(None, clock, wait)
    for _ in range(3):
        hurry.next()
    assert len(waits) == 3
