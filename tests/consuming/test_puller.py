"""The loop of pulls, step by step: what follows an answer or a failure, and after which pause."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from rocketstream import MessageExt, MessageQueue
from rocketstream.client.consumer.pull_answer import STALLS_TOLD
from rocketstream.client.consumer.pull_requests import PullTerms
from rocketstream.client.consumer.puller import QUICK_ANSWER_MS, Puller
from rocketstream.client.instance.routes import BrokerAddress
from rocketstream.errors import BrokerError, RequestTimeoutError, RouteNotFoundError
from rocketstream.protocol.bodies import SubscriptionData
from rocketstream.protocol.codes import ResponseCode
from rocketstream.protocol.command import RemotingCommand
from rocketstream.protocol.headers import PullMessageRequestHeader, PullMessageResponseHeader
from rocketstream.protocol.subscription import build_subscription
from tests.kits.client.fake_broker import GROUP, TOPIC, found, pull_answer
from tests.kits.client.model_cluster import StillLoop

MASTER, SLAVE = "m:1", "s:1"
MQ = MessageQueue(TOPIC, "broker-a", 0)
RETRY_MS = 1_000
ILLEGAL, NOTHING, NO_MATCH = 21, 19, 20


def brought(offsets: list[int], next_offset: int | None = None) -> RemotingCommand:
    return found(offsets, properties="TAGS\x01A\x02UNIQ_KEY\x01U", next_offset=next_offset)


class Queue:
    """A queue that is pulled."""

    def __init__(self, mq: MessageQueue = MQ, offset: int = 5) -> None:
        self.message_queue = mq
        self.pull_offset = offset
        self.epoch = 0
        self.begun: list[float] = []

    def pull_begins(self, now_ms: float) -> None:
        self.begun.append(now_ms)


class World:
    """A puller, its consumer and its instance; pulls wait for the test's answers.

    Attributes:
        pulls: on their way: offset asked for, seconds on the loop's clock, and how to answer.
        held: whether the consumer wants no pull now.
        accepted: what it took: offsets, where to go on, bytes.
        moved: offsets it was told to start anew at.
        failed: what was said of outages, with what is expected of them.
    """

    def __init__(self) -> None:
        self.loop = StillLoop()
        self.pulls: list[tuple[int, float, Callable[..., None]]] = []
        self.held = False
        self.wanted: SubscriptionData | None = build_subscription(TOPIC, "A", 1)
        self.interval_ms = 0
        self.accepted: list[tuple[list[int], int, int]] = []
        self.took: int | None = None
        self.moved_to: list[int] = []
        self.outages: list[tuple[object, ...]] = []
        self.figures: list[tuple[object, ...]] = []
        self.beats = 0
        self.updates: list[str] = []
        self.compared: list[str] = []
        self.connections: list[str] = []
        self.brokers: dict[int, str] = {0: MASTER, 1: SLAVE}
        self.is_connected = True
        self.refusal: Exception | None = None
        self.bug: Exception | None = None
        self.to_slave: list[bool] = []
        self.routes_known = asyncio.Event()
        self.routes_known.set()
        instance = SimpleNamespace(
            config=SimpleNamespace(pull_time_delay_ms_when_exception=RETRY_MS),
            clock=SimpleNamespace(monotonic_ms=lambda: round(self.loop.now_s * 1000, 3)),
            routes=self, remoting=self, background=self, stats=self, route_updates=self,
            heartbeats=self, outages=self,
        )  # fmt: skip
        check = SimpleNamespace(compare_soon=lambda subscription, at: self.compared.append(at))

        async def make() -> Puller[Any]:
            return Puller(cast(Any, instance), GROUP, cast(Any, self), check=cast(Any, check))

        self.puller = self.run(make())

    # --- the instance -----------------------------------------------------------------------------

    @property
    def masters(self) -> dict[str, str]:
        return {MQ.broker_name: self.brokers[0]}

    def find_for_subscribe(self, broker_name: str, broker_id: int) -> BrokerAddress | None:
        address = self.brokers.get(broker_id)
        return None if address is None else BrokerAddress(address, is_slave=broker_id > 0)

    def connected(self, address: str) -> Any:
        return self if self.is_connected else None

    async def connection(self, address: str) -> None:
        self.connections.append(address)
        if self.refusal is not None:
            raise self.refusal
        self.is_connected = True

    def request_callback(
        self, command: RemotingCommand, timeout_ms: float, answered: Callable[..., None]
    ) -> None:
        if self.refusal is not None:
            raise self.refusal
        assert timeout_ms == 30_000
        offset = command.header(PullMessageRequestHeader).queue_offset
        self.pulls.append((offset, self.loop.now_s, answered))

    def run_soon(self, work: Coroutine[Any, Any, None]) -> None:
        self.loop.create_task(work)

    async def update(self, topic: str) -> bool:
        self.updates.append(topic)
        await self.routes_known.wait()
        return True

    def send_soon(self) -> None:
        self.beats += 1

    def broker_version(self, address: str) -> int:
        return 400

    def inc_pull_rt(self, group: str, topic: str, took_ms: float) -> None:
        self.figures.append(("rt", group, topic, round(took_ms)))

    def inc_pull_tps(self, *given: object) -> None:
        self.figures.append(("tps", *given))

    def report(self, subject: tuple[object, ...], line: str) -> None:
        self.outages.append(("told", *subject))

    def failed(self, subject: tuple[object, ...], error: Exception, *, expected: int) -> None:
        self.outages.append(("failed", *subject, expected))

    def worked(self, *subject: object) -> None:
        self.outages.append(("worked", *subject))

    def answered(self, address: str) -> None:
        self.outages.append(("answered", address))

    def forget(self, *subject: object) -> None:
        self.outages.append(("forgotten", *subject))

    # --- the consumer -----------------------------------------------------------------------------

    def subscription(self, topic: str) -> SubscriptionData | None:
        return self.wanted

    def may_pull(self, queue: Queue) -> bool:
        return not self.held

    def terms(self, queue: Queue, subscription: SubscriptionData, *, to_slave: bool) -> PullTerms:
        self.to_slave.append(to_slave)
        return PullTerms(32, 2, 1, 15_000, 30_000, True, 0, self.interval_ms)

    def accept(
        self, queue: Queue, messages: list[MessageExt], next_offset: int, body_bytes: int
    ) -> int:
        if self.bug is not None:
            raise self.bug
        queue.pull_offset = next_offset
        self.accepted.append(([each.queue_offset for each in messages], next_offset, body_bytes))
        return len(messages) if self.took is None else self.took

    def moved(self, queue: Queue, offset: int) -> None:
        self.moved_to.append(offset)

    def ends_before(self, queue: Queue, end: int) -> None:
        self.moved_to.append(end)

    # --- the test ---------------------------------------------------------------------------------

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.loop.run_until_complete(work)

    def turn(self, ms: float = 0) -> None:
        self.loop.now_s += ms / 1000
        for _ in range(5):
            self.run(asyncio.sleep(0))

    def begin(self, queue: Queue | None = None) -> Queue:
        queue = queue or Queue()
        self.puller.pull(queue)
        return queue

    def answer(self, answer: RemotingCommand | Exception, took_ms: float = 0) -> None:
        """Answer the oldest pull."""
        _, _, answered = self.pulls.pop(0)
        self.turn(took_ms)
        if isinstance(answer, Exception):
            answered(None, answer)
        else:
            answered(answer, None)
        self.turn()

    def pause_ms(self) -> float | None:
        """Return after which pause something is done next, and go there; None when nothing is."""
        pending = [each for each in self.puller._timers if not each.cancelled()]
        if not pending:
            return None
        (timer,) = pending
        pause_ms = (timer.when() - self.loop.now_s) * 1000
        self.turn(pause_ms + 0.001)
        assert timer not in self.puller._timers
        return float(round(pause_ms, 2))


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.puller.stop()
    made.routes_known.set()
    made.turn()
    made.loop.close()


# --- what is pulled, and when -------------------------------------------------------------------


def test_messages_are_taken_counted_and_pulled_on_from(world: World) -> None:
    """Covers C-203, C-220, C-259: at once, and the broker is known to answer."""
    queue = world.begin()
    assert queue.begun == [world.loop.now_s * 1000]
    answer = brought([5, 6])
    world.turn(30)
    world.pulls.pop(0)[2](answer, None)
    assert world.accepted == [([5, 6], 7, len(answer.body))]
    assert [offset for offset, *_ in world.pulls] == [7]
    assert world.figures == [("rt", GROUP, TOPIC, 30), ("tps", GROUP, TOPIC, 2)]
    assert world.outages == [("answered", MASTER), ("worked", "pull of", MQ)]
    assert world.to_slave == [False, False]


def test_what_nobody_wanted_is_not_counted(world: World) -> None:
    world.took = 0
    world.begin()
    world.answer(brought([5]))
    assert [name for name, *_ in world.figures] == ["rt"]


def test_an_answer_without_messages_has_no_time_of_its_own(world: World) -> None:
    world.begin()
    world.turn(200)
    world.pulls.pop(0)[2](pull_answer(NO_MATCH, 9, 20), None)
    assert world.figures == []
    assert [offset for offset, *_ in world.pulls] == [9]


def test_a_pause_between_pulls_is_for_those_that_bring_messages(world: World) -> None:
    """Covers C-35."""
    world.interval_ms = 250
    world.begin()
    world.answer(pull_answer(NO_MATCH, 6, 20))
    world.answer(brought([6]))
    assert world.pulls == []
    assert world.pause_ms() == 250
    assert [offset for offset, *_ in world.pulls] == [7]


def test_a_suggested_slave_is_pulled_as_one(world: World) -> None:
    """Covers C-214, C-215."""
    world.begin()
    world.answer(RemotingCommand.response(NO_MATCH, None, PullMessageResponseHeader(1, 6, 0, 9)))
    assert world.to_slave == [False, True]


def test_nothing_is_pulled_while_the_puller_is_paused(world: World) -> None:
    """Covers C-151, C-203: it looks again each second."""
    world.puller.paused = True
    queue = world.begin()
    assert (world.pulls, len(queue.begun)) == ([], 1)
    assert world.pause_ms() == 1_000
    world.puller.paused = False
    assert world.pause_ms() == 1_000
    assert len(world.pulls) == 1


def test_a_queue_its_consumer_holds_is_pulled_when_it_says_so(world: World) -> None:
    """Covers C-203 to C-206: also from another thread, or after the loop has ended."""
    world.held = True
    queue = world.begin()
    assert (world.pulls, world.pause_ms()) == ([], None)
    world.held = False
    world.puller.pull_soon(cast(Any, queue))
    assert world.pulls == []
    world.turn()
    assert len(world.pulls) == 1


def test_a_topic_that_is_not_wanted_is_looked_at_again(world: World) -> None:
    """Covers C-207: after the pause of an error."""
    wanted, world.wanted = world.wanted, None
    world.begin()
    assert world.pulls == []
    world.wanted = wanted
    assert world.pause_ms() == RETRY_MS
    assert len(world.pulls) == 1


def test_several_queues_are_pulled_one_after_the_other(world: World) -> None:
    world.puller.pull_all([cast(Any, Queue(offset=1)), cast(Any, Queue(offset=2))])
    assert [offset for offset, *_ in world.pulls] == [1, 2]


def test_a_pull_for_an_earlier_epoch_is_not_sent(world: World) -> None:
    """Covers C-199, C-549: nor does anybody say that it begins."""
    queue = Queue()
    queue.epoch = 1
    world.puller.pull(cast(Any, queue), 0)
    assert (world.pulls, queue.begun) == ([], [])
    world.puller.pull(cast(Any, queue), 1)
    assert len(world.pulls) == 1


# --- connections ----------------------------------------------------------------------------------


def test_a_broker_without_a_connection_is_connected_first(world: World) -> None:
    """Covers C-214."""
    world.is_connected = False
    world.begin()
    assert world.pulls == []
    world.turn()
    assert world.connections == [MASTER]
    assert len(world.pulls) == 1
    assert world.outages == []


def test_a_broker_that_is_not_known_is_looked_up_and_tried_again(world: World) -> None:
    """Covers C-214."""
    world.brokers = {}
    world.begin()
    world.turn()
    assert world.updates == [TOPIC, TOPIC], "once to find it, and once since it was not found"
    assert world.outages == [("failed", "pull of", MQ, 0)]
    world.brokers = {0: MASTER}
    assert world.pause_ms() == RETRY_MS
    assert len(world.pulls) == 1


def test_a_connection_that_cannot_be_made_is_tried_again(world: World) -> None:
    """Covers C-230: unless the queue has left meanwhile."""
    world.is_connected, world.refusal = False, RequestTimeoutError("no answer")
    queue = world.begin()
    world.turn()
    assert world.outages == [("failed", "pull of", MQ, 0)]
    world.refusal = None
    assert world.pause_ms() == RETRY_MS
    assert len(world.pulls) == 1
    world.is_connected, world.refusal = False, RequestTimeoutError("no answer")
    world.begin(queue)
    queue.epoch = 1
    world.turn()
    assert world.pause_ms() is None
    assert len(world.outages) == 1


def test_a_connection_made_after_the_queue_left_pulls_nothing(world: World) -> None:
    world.is_connected = False
    queue = world.begin()
    queue.epoch = 1
    world.turn()
    assert world.connections == [MASTER]
    assert world.pulls == []


def test_a_request_that_cannot_be_sent_is_tried_again(world: World) -> None:
    """Covers C-219, C-230."""
    world.refusal = RequestTimeoutError("closed")
    world.begin()
    assert world.outages == [("failed", "pull of", MQ, 0)]
    world.refusal = None
    assert world.pause_ms() == RETRY_MS
    assert len(world.pulls) == 1


def test_a_condition_a_broker_cannot_filter_by_is_not_asked_for(world: World) -> None:
    """Covers C-216: though there is a connection."""
    world.wanted = SubscriptionData(TOPIC, "a > 1", sub_version=7, expression_type="SQL92")
    world.broker_version = lambda address: 1  # type: ignore[method-assign]
    world.begin()
    world.turn()
    assert world.pulls == []
    assert world.outages == [("failed", "pull of", MQ, 0)]


# --- answers that come too late -------------------------------------------------------------------


@pytest.mark.parametrize("late", ["queue left", "stopped"])
@pytest.mark.parametrize("is_error", [False, True])
def test_an_answer_that_comes_too_late_is_discarded(
    world: World, late: str, is_error: bool
) -> None:
    """Covers C-201, C-549: and nothing is tried again."""
    queue = world.begin()
    if late == "stopped":
        world.puller.stop()
    else:
        queue.epoch = 1
    world.answer(RequestTimeoutError("no answer") if is_error else brought([5]))
    assert (world.accepted, world.outages, world.pulls) == ([], [], [])
    assert world.pause_ms() is None


def test_a_stopped_puller_pulls_nothing_by_its_timers(world: World) -> None:
    """Covers C-119."""
    world.puller.paused = True
    queue = world.begin()
    (timer,) = world.puller._timers
    world.puller.stop()
    assert timer.cancelled()
    world.puller.paused = False
    world.puller.pull(cast(Any, queue))
    assert world.pulls == []


@pytest.mark.parametrize("now", [None, ("B", "TAG"), ("A", "SQL92")])
def test_an_answer_to_another_subscription_is_asked_for_anew(
    world: World, now: tuple[str, str] | None
) -> None:
    """Covers C-103: one that is the same, though made anew, is taken."""
    world.wanted = SubscriptionData(TOPIC, "A", sub_version=1)
    world.begin()
    world.wanted = SubscriptionData(TOPIC, "A", sub_version=2)
    world.answer(pull_answer(NO_MATCH, 6, 20))
    assert len(world.accepted) == 1
    world.wanted = now and SubscriptionData(TOPIC, now[0], expression_type=now[1])
    world.answer(pull_answer(NO_MATCH, 7, 20))
    assert len(world.accepted) == 1
    assert [offset for offset, *_ in world.pulls] == ([] if now is None else [6])


# --- queues that get no further -------------------------------------------------------------------


def test_a_broker_that_holds_pulls_is_asked_again_at_once(world: World) -> None:
    """Covers C-210: held for 100 ms; one that answers sooner is asked less and less often."""
    world.begin()
    world.answer(pull_answer(NOTHING, 5, 5), took_ms=QUICK_ANSWER_MS - 1)
    assert world.pause_ms() == 20
    world.answer(pull_answer(NOTHING, 5, 5), took_ms=QUICK_ANSWER_MS - 1)
    assert world.pause_ms() == 40
    world.answer(pull_answer(NOTHING, 5, 5), took_ms=QUICK_ANSWER_MS)
    assert (world.pause_ms(), len(world.pulls)) == (None, 1)
    world.answer(pull_answer(NOTHING, 5, 5), took_ms=QUICK_ANSWER_MS - 1)
    assert world.pause_ms() == 20


def test_only_a_broker_that_has_nothing_new_can_hold_a_pull(world: World) -> None:
    world.begin()
    world.answer(pull_answer(NO_MATCH, 5, 9), took_ms=QUICK_ANSWER_MS * 5)
    assert world.pause_ms() == 20


def test_the_longer_of_two_pauses_counts(world: World) -> None:
    """Covers C-35."""
    world.interval_ms = 30
    world.begin()
    for pause_ms in (30, 40):
        world.answer(brought([3, 4], next_offset=5))
        assert world.pause_ms() == pause_ms


@pytest.mark.parametrize(("code", "is_told"), [(NOTHING, False), (NO_MATCH, True)])
def test_a_stall_is_told_once_and_ends_when_the_queue_goes_on(
    world: World, code: int, is_told: bool
) -> None:
    """Covers C-225, C-226: a broker that merely holds no pulls is no reason to tell anybody."""
    world.begin()
    for number in range(1, STALLS_TOLD + 3):
        world.answer(pull_answer(code, 5, 9))
        told = [each for each in world.outages if each[0] == "told"]
        assert told == [("told", "progress of", MQ)] * (is_told and number >= STALLS_TOLD)
        world.pause_ms()
    world.answer(pull_answer(NO_MATCH, 6, 9))
    assert world.outages[-1] == ("worked", "progress of", MQ)
    world.answer(pull_answer(NO_MATCH, 6, 9))
    assert world.pause_ms() == 20, "counted anew"


def test_a_stall_ends_past_the_furthest_offset_and_not_at_it(world: World) -> None:
    """Covers C-228: a broker that leads back and forth gets no further."""
    queue = world.begin()
    world.answer(pull_answer(NO_MATCH, 5, 9))
    world.pause_ms()
    queue.pull_offset = 3
    world.pulls.clear()
    world.puller.pull(cast(Any, queue))
    world.answer(pull_answer(NO_MATCH, 5, 9))
    assert ("worked", "progress of", MQ) not in world.outages
    world.answer(pull_answer(NO_MATCH, 5, 9))
    assert world.pause_ms() == 40


def test_a_queue_that_was_forgotten_begins_anew(world: World) -> None:
    """Covers C-181: what went wrong with it, and whom its last answer suggested."""
    world.begin()
    suggesting = PullMessageResponseHeader(1, 5, 0, 9)
    world.answer(RemotingCommand.response(NO_MATCH, None, suggesting))
    world.puller.forget(MQ)
    assert world.outages[-2:] == [("forgotten", "pull of", MQ), ("forgotten", "progress of", MQ)]
    world.pause_ms()
    assert world.to_slave == [False, False]
    world.answer(pull_answer(NO_MATCH, 5, 9))
    assert world.pause_ms() == 20


# --- offsets outside the queue --------------------------------------------------------------------


def test_a_beginning_that_was_deleted_is_passed_at_once_and_what_is_cached_stays(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """Covers C-228, C-565."""
    with caplog.at_level(logging.WARNING):
        world.begin()
        world.answer(pull_answer(ILLEGAL, 40, 90))
    assert world.accepted == [([], 40, 0)]
    assert world.moved_to == []
    assert [offset for offset, *_ in world.pulls] == [40]
    assert "offset 5 of" in caplog.text
    assert "(0 to 90); continuing at 40" in caplog.text


def test_a_move_to_the_same_offset_is_a_stall(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """Covers C-228: told once."""
    with caplog.at_level(logging.WARNING):
        world.begin()
        for pause_ms in (20, 40):
            world.answer(pull_answer(ILLEGAL, 5, 90))
            assert world.pause_ms() == pause_ms
    assert caplog.text.count("is not in the queue") == 1
    assert world.moved_to == []


def test_a_queue_that_is_shorter_starts_anew_at_once_and_the_next_time_after_a_pause(
    world: World,
) -> None:
    """Covers C-228, C-512: unless it has left meanwhile."""
    queue = world.begin()
    world.answer(pull_answer(ILLEGAL, 3, 3))
    assert world.moved_to == [3]
    assert (world.accepted, world.pulls) == ([], [])
    world.begin(queue)
    world.answer(pull_answer(ILLEGAL, 3, 3))
    assert world.moved_to == [3]
    assert world.pause_ms() == 40
    assert world.moved_to == [3, 3]
    world.begin(queue)
    world.answer(pull_answer(ILLEGAL, 3, 3))
    queue.epoch = 1
    assert world.pause_ms() == 80
    assert world.moved_to == [3, 3]


@pytest.mark.parametrize(
    ("end", "told", "goes_on"), [(4, 0, 4), (4, 4, 4), (5, 0, 0), (6, 0, 0), (4, 2, 4)]
)
def test_an_old_broker_does_not_have_everything_consumed_again(
    world: World, end: int, told: int, goes_on: int
) -> None:
    """Covers C-512, C-564: behind the end of the queue the end is where to go on."""
    world.begin()
    world.answer(pull_answer(ILLEGAL, told, end))
    assert world.moved_to == [goes_on]


GONE = ResponseCode.TOPIC_NOT_EXIST


def test_a_topic_that_was_gone_is_begun_with_its_first_message(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """Its offsets are given out anew: those of before would pass over messages of the new one."""
    queue = world.begin()
    world.answer(BrokerError(GONE, "no", address=MASTER))
    world.pause_ms()
    world.answer(BrokerError(GONE, "no", address=MASTER))
    assert world.moved_to == []
    assert world.puller.is_gone(queue.message_queue)
    world.pause_ms()
    with caplog.at_level(logging.WARNING):
        world.answer(pull_answer(NO_MATCH, 8, 90))
    assert (world.moved_to, world.accepted, world.pulls) == ([0], [], [])
    assert not world.puller.is_gone(queue.message_queue)
    assert f"topic {TOPIC} was gone, and is there again" in caplog.text
    world.begin(queue)
    world.answer(pull_answer(NO_MATCH, 8, 90))
    assert world.moved_to == [0]


def test_a_slave_that_does_not_know_a_topic_yet_says_nothing_of_it(world: World) -> None:
    world.begin()
    world.answer(BrokerError(GONE, "no", address=SLAVE))
    world.pause_ms()
    world.answer(pull_answer(NO_MATCH, 8, 90))
    assert world.moved_to == []


def test_a_queue_that_nothing_was_pulled_of_need_not_begin_anew(world: World) -> None:
    """As that of a retry topic, which is made when a message fails first."""
    world.begin(Queue(offset=0))
    world.answer(BrokerError(GONE, "no", address=MASTER))
    world.pause_ms()
    world.answer(pull_answer(NO_MATCH, 8, 90))
    assert world.moved_to == []


# --- failures -------------------------------------------------------------------------------------


def test_a_pull_without_an_answer_has_the_route_looked_up_once_for_its_topic(world: World) -> None:
    """Covers C-214, C-230: and the master asked, instead of a slave that may be gone."""
    world.routes_known.clear()
    world.begin()
    suggesting = PullMessageResponseHeader(1, 6, 0, 9)
    world.answer(RemotingCommand.response(NO_MATCH, None, suggesting))
    world.answer(RequestTimeoutError("no answer"))
    assert world.outages[-1] == ("failed", "pull of", MQ, 0)
    assert world.pause_ms() == RETRY_MS
    assert world.to_slave == [False, True, False]
    world.answer(RequestTimeoutError("no answer"))
    assert world.updates == [TOPIC]
    world.pause_ms()
    world.routes_known.set()
    world.turn()
    world.answer(RequestTimeoutError("no answer"))
    assert world.updates == [TOPIC, TOPIC]
    assert world.beats == 0


def test_a_broker_that_does_not_know_the_subscription_is_told_and_compared_with(
    world: World,
) -> None:
    """Covers C-230, C-340, C-580: the first such failure says nothing of an outage."""
    world.begin()
    world.answer(BrokerError(ResponseCode.SUBSCRIPTION_NOT_EXIST, "no", address=MASTER))
    assert (world.beats, world.compared) == (1, [MASTER])
    assert world.outages[-1] == ("failed", "pull of", MQ, 1)
    assert world.updates == []
    assert world.pause_ms() == RETRY_MS
    world.answer(BrokerError(ResponseCode.SUBSCRIPTION_NOT_EXIST, "no"))
    assert (world.beats, world.compared) == (2, [MASTER])
    world.pause_ms()
    world.puller._check = None
    world.answer(BrokerError(ResponseCode.SUBSCRIPTION_NOT_EXIST, "no", address=MASTER))
    assert (world.beats, world.compared) == (3, [MASTER])


def test_a_topic_unsubscribed_meanwhile_is_not_compared(world: World) -> None:
    world.begin()
    world.wanted = None
    world.pulls[0][2](None, BrokerError(ResponseCode.SUBSCRIPTION_NOT_EXIST, "no", address=MASTER))
    assert (world.beats, world.compared) == (1, [])


def test_other_refusals_are_only_tried_again(world: World) -> None:
    """Covers C-230: a broker that is busy after 20 ms."""
    world.begin()
    world.answer(BrokerError(ResponseCode.FLOW_CONTROL, "no", address=MASTER))
    assert world.pause_ms() == 20
    world.answer(BrokerError(ResponseCode.NO_PERMISSION, "no", address=MASTER))
    assert world.pause_ms() == RETRY_MS
    assert (world.beats, world.updates, world.compared) == (0, [], [])


@pytest.mark.parametrize(
    ("topic", "error", "is_told"),
    [
        (f"%RETRY%{GROUP}", BrokerError(17, "no", address=MASTER), False),
        (f"%RETRY%{GROUP}", RouteNotFoundError("nowhere"), True),
        (TOPIC, BrokerError(17, "no", address=MASTER), True),
    ],
)
def test_a_retry_topic_that_is_not_there_yet_is_no_outage(
    world: World, topic: str, error: Exception, is_told: bool
) -> None:
    """Covers C-230: its broker makes it with the first message."""
    mq = MQ._replace(topic=topic)
    world.begin(Queue(mq))
    world.answer(error)
    assert (("failed", "pull of", mq, 0) in world.outages) is is_told
    assert world.pause_ms() == RETRY_MS


def test_a_mistake_of_ours_is_logged_and_the_pull_tried_again(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """Covers C-230, C-581."""
    world.bug = ZeroDivisionError("oh")
    world.begin()
    with caplog.at_level(logging.ERROR):
        world.answer(brought([5]))
    assert "handling a pull reply failed" in caplog.text
    world.bug = None
    assert world.pause_ms() == RETRY_MS
    assert [offset for offset, *_ in world.pulls] == [5]


def test_what_is_said_of_losses_is_said_when_pulls_end(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped: list[int] = []
    monkeypatch.setattr(world.puller.requests, "stop", lambda: stopped.append(1))
    world.puller.stop()
    assert stopped == [1]
