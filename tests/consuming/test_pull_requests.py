"""The book a consumer keeps of its pulls: whom to ask next, what is in doubt, what is lost."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from rocketstream import MessageQueue
from rocketstream.client.consumer import pull_requests
from rocketstream.client.consumer.pull_answer import LOOKS, Missing
from rocketstream.client.consumer.pull_requests import (
    Losses,
    Pull,
    PullRequests,
    PullTerms,
    active_version,
    filtered,
)
from rocketstream.client.hooks import FilterHooks, FilterMessageContext
from rocketstream.client.instance.routes import BrokerAddress
from rocketstream.errors import NotSupportedError, RequestTimeoutError, RouteNotFoundError
from rocketstream.model import PullStatus
from rocketstream.protocol.bodies import SubscriptionData, TopicConfig
from rocketstream.protocol.codes import VERSION_SQL92, PullSysFlag
from rocketstream.protocol.command import RemotingCommand
from rocketstream.protocol.headers import PullMessageRequestHeader, PullMessageResponseHeader
from rocketstream.protocol.record import RecordFields, encode_batch, encode_record
from rocketstream.protocol.subscription import build_subscription
from tests.kits.client.fake_broker import GROUP, TOPIC, found, pull_answer
from tests.kits.client.model_cluster import StillLoop
from tests.kits.client.queued import queued

MQ = MessageQueue(TOPIC, "broker-a", 0)
MASTER, SLAVE = "m:1", "s:1"
ALL = build_subscription(TOPIC, None, 1)
SQL = SubscriptionData(TOPIC, "a > 1", sub_version=7, expression_type="SQL92")


class Instance:
    """As much of a client instance as pulls are asked with; the test says what it knows."""

    def __init__(self) -> None:
        self.routes = self.route_updates = self.heartbeats = self.background = self.api = self
        self.outages = self
        self.config = SimpleNamespace(api_timeout_ms=3_000)
        self.version = VERSION_SQL92
        self.asked_for: list[int] = []
        self.updated: list[str] = []
        self.beats = 0
        self.reports: list[str] = []
        self.work: list[Coroutine[Any, Any, None]] = []
        self.policy: RemotingCommand | None = None
        self.brokers: dict[int, str] = {0: MASTER, 1: SLAVE}

    def find_for_subscribe(self, broker_name: str, broker_id: int) -> BrokerAddress | None:
        self.asked_for.append(broker_id)
        address = self.brokers.get(broker_id)
        return None if address is None else BrokerAddress(address, is_slave=broker_id > 0)

    async def update(self, topic: str) -> bool:
        self.updated.append(topic)
        return True

    def broker_version(self, address: str) -> int:
        return self.version

    async def send(self) -> None:
        self.beats += 1

    def report(self, subject: tuple[object, ...], text: str) -> None:
        self.reports.append(text)

    def run_soon(self, work: Coroutine[Any, Any, None]) -> None:
        self.work.append(work)

    async def invoke(self, address: str, command: RemotingCommand, timeout_ms: float) -> Any:
        if self.policy is None:
            raise RequestTimeoutError("no answer")
        return self.policy


@pytest.fixture
def instance() -> Instance:
    return Instance()


@pytest.fixture
def requests(instance: Instance) -> PullRequests:
    return PullRequests(cast(Any, instance), GROUP)


@pytest.fixture
def loop() -> Iterator[StillLoop]:
    made = StillLoop()
    yield made
    made.close()


def pull(offset: int, address: str = MASTER, subscription: SubscriptionData = ALL) -> Pull:
    return Pull(MQ, subscription, offset, address, True)


def suggesting(broker_id: int) -> RemotingCommand:
    header = PullMessageResponseHeader(broker_id, 5, 0, 5)
    return RemotingCommand.response(19, None, header)


def gap(offset: int) -> RemotingCommand:
    """An answer to a pull at ``offset`` that begins one behind it."""
    return found([offset + 1])


# --- whom to ask --------------------------------------------------------------------------------


@pytest.mark.parametrize("forgetting", ["forget", "drop"])
def test_a_pull_goes_where_the_last_answer_said_until_that_is_forgotten(
    instance: Instance, requests: PullRequests, forgetting: str
) -> None:
    """Covers C-214: the master at first."""
    assert requests.broker(MQ) == BrokerAddress(MASTER, is_slave=False)
    requests.result(pull(5), suggesting(1))
    assert requests.broker(MQ) == BrokerAddress(SLAVE, is_slave=True)
    getattr(requests, forgetting)(MQ)
    assert requests.broker(MQ) == BrokerAddress(MASTER, is_slave=False)
    assert instance.asked_for == [0, 1, 0]


def test_a_broker_that_is_not_known_is_looked_up_once(
    instance: Instance, requests: PullRequests, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Covers C-214: and found there, or named."""
    assert asyncio.run(requests.known_broker(MQ, ALL)) == MASTER
    assert instance.updated == []
    instance.brokers = {}
    with pytest.raises(RouteNotFoundError, match="broker-a"):
        asyncio.run(requests.known_broker(MQ, ALL))
    assert instance.updated == [TOPIC]

    async def update(topic: str) -> bool:
        instance.brokers = {0: MASTER}
        return True

    monkeypatch.setattr(instance, "update", update)
    assert asyncio.run(requests.known_broker(MQ, ALL)) == MASTER


def test_only_a_broker_that_has_not_told_its_version_is_asked_for_it(
    instance: Instance, requests: PullRequests
) -> None:
    """Covers C-216: 4.1 is new enough."""
    assert asyncio.run(requests.known_broker(MQ, SQL)) == MASTER
    assert instance.beats == 0
    for version in (1, VERSION_SQL92 - 1):
        instance.version = version
        with pytest.raises(NotSupportedError, match=f"version number {version}"):
            asyncio.run(requests.known_broker(MQ, SQL))
    assert instance.beats == 0
    instance.version = 0
    with pytest.raises(NotSupportedError):
        asyncio.run(requests.known_broker(MQ, SQL))
    assert instance.beats == 1


def test_a_broker_whose_version_the_heartbeat_brings_is_asked(
    instance: Instance, requests: PullRequests, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Covers C-216."""
    instance.version = 0

    async def send() -> None:
        instance.version = VERSION_SQL92

    monkeypatch.setattr(instance, "send", send)
    assert asyncio.run(requests.known_broker(MQ, SQL)) == MASTER


def test_pulls_by_tags_have_no_version_and_conditions_their_own() -> None:
    """Covers C-493."""
    assert (active_version(ALL), active_version(SQL)) == (0, 7)


@pytest.mark.parametrize(
    ("flags", "expression"),
    [(PullSysFlag.SUSPEND, None), (PullSysFlag.SUSPEND | PullSysFlag.SUBSCRIPTION, "a > 1")],
)
def test_a_pull_says_what_it_is_asked_for(
    requests: PullRequests, flags: int, expression: str | None
) -> None:
    """Covers C-212, C-213, C-217: the expression travels along only where the flags say so."""
    terms = PullTerms(7, flags, 9, 15_000, 30_000, True, 4)
    header = requests.command(MQ, SQL, 5, terms).header(PullMessageRequestHeader)
    assert (header.consumer_group, header.topic, header.queue_id) == (GROUP, TOPIC, 0)
    assert (header.queue_offset, header.max_msg_nums, header.commit_offset) == (5, 7, 4)
    assert (header.sys_flag, header.suspend_timeout_millis) == (flags, 15_000)
    assert (header.subscription, header.expression_type) == (expression, "SQL92")
    assert (header.sub_version, header.bname) == (9, "broker-a")


# --- what is in doubt ---------------------------------------------------------------------------


def test_an_answer_is_doubted_at_the_offset_it_left_out_and_nowhere_else(
    requests: PullRequests,
) -> None:
    assert not requests.is_doubtful(MQ, 5)
    result = requests.result(pull(5), gap(5))
    assert (result.next_begin_offset, result.msg_found_list) == (5, [])
    assert requests.is_doubtful(MQ, 5)
    assert not requests.is_doubtful(MQ, 6)
    assert not requests.is_doubtful(MQ, 0)
    requests.result(pull(5), found([5]))
    assert not requests.is_doubtful(MQ, 5)


def test_a_queue_that_was_dropped_is_doubted_no_more(requests: PullRequests) -> None:
    requests.result(pull(5), gap(5))
    requests.drop(MQ)
    assert not requests.is_doubtful(MQ, 5)


def test_answers_are_counted_for_each_offset_anew(
    instance: Instance, requests: PullRequests, loop: StillLoop
) -> None:
    """What was left out twice at one offset is no reason to pass another one sooner."""
    requests._compacted[TOPIC] = False

    async def ask() -> None:
        for _ in range(LOOKS - 1):
            assert requests.result(pull(5), gap(5)).next_begin_offset == 5
        for _ in range(LOOKS - 1):
            assert requests.result(pull(8), gap(8)).next_begin_offset == 8
        passed = requests.result(pull(8), gap(8))
        assert passed.next_begin_offset == 10
        assert [message.queue_offset for message in passed.msg_found_list] == [9]
        assert not requests.is_doubtful(MQ, 8)
        requests.stop()

    loop.run_until_complete(ask())


def test_a_gap_behind_a_message_is_counted_from_the_answer_that_showed_it(
    requests: PullRequests, loop: StillLoop
) -> None:
    requests._compacted[TOPIC] = False

    async def ask() -> None:
        assert requests.result(pull(4), found([4, 6])).next_begin_offset == 5
        for _ in range(LOOKS - 2):
            assert requests.result(pull(5), gap(5)).next_begin_offset == 5
        assert requests.result(pull(5), gap(5)).next_begin_offset == 7
        requests.stop()

    loop.run_until_complete(ask())


def test_who_counts_the_answers_himself_is_believed(requests: PullRequests) -> None:
    """Several pulls of one queue may be on their way: each has its own count."""
    requests._compacted[TOPIC] = None
    for _ in range(LOOKS + 1):
        assert requests.result(pull(5), gap(5), looks=0).next_begin_offset == 5


@pytest.mark.parametrize(
    ("address", "brokers", "asked_next"),
    [
        (SLAVE, {0: MASTER, 1: SLAVE}, 0),
        (MASTER, {0: MASTER, 1: SLAVE}, 1),
        (SLAVE, {1: SLAVE}, 1),
    ],
)
def test_what_a_slave_left_out_its_master_is_asked_for(
    instance: Instance,
    requests: PullRequests,
    address: str,
    brokers: dict[int, str],
    asked_next: int,
) -> None:
    """The answer suggests the slave; the master, where there is one, may have more."""
    instance.brokers = brokers
    answer = RemotingCommand.response(0, None, PullMessageResponseHeader(1, 7, 0, 9), gap(5).body)
    requests.result(pull(5, address), answer)
    requests.broker(MQ)
    assert instance.asked_for[-1] == asked_next


def test_a_record_that_was_not_asked_for_is_told(
    instance: Instance, requests: PullRequests
) -> None:
    requests.result(pull(5), gap(5))
    assert instance.reports == []
    requests.result(pull(5), found([5], queue_id=3))
    (text,) = instance.reports
    assert "was pulled from offset 5" in text
    assert "a record of topic T, queue 3, offset 5" in text


def test_where_a_broker_without_an_end_leads_is_followed(requests: PullRequests) -> None:
    """An end of 0 is none: it is before what was asked for, or where that begins."""
    tagged = build_subscription(TOPIC, "A", 1)
    result = requests.result(pull(0, subscription=tagged), pull_answer(20, 5, 0))
    assert result.next_begin_offset == 5


def test_records_stored_while_a_broker_answered_are_taken_to_the_last(
    requests: PullRequests,
) -> None:
    """Apache's broker looks for the end of the queue before it reads."""
    result = requests.result(pull(0), found([0, 1, 2], max_offset=2))
    assert [message.queue_offset for message in result.msg_found_list] == [0, 1, 2]
    assert result.next_begin_offset == 3


# --- static topics --------------------------------------------------------------------------------


def moved_by(delta: int, records: bytes | memoryview, next_offset: int) -> RemotingCommand:
    header = PullMessageResponseHeader(0, next_offset, 0, delta + 100, offset_delta=delta)
    return RemotingCommand.response(0, "FOUND", header, bytes(records))


def test_messages_of_a_static_topic_have_the_offsets_of_the_topic(requests: PullRequests) -> None:
    """5.x: records name the offset of where they lie; a gap is right there."""
    answer = moved_by(1_000, found([1, 3]).body, 1_005)
    result = requests.result(pull(1_001), answer)
    assert [message.queue_offset for message in result.msg_found_list] == [1_001, 1_003]
    assert result.next_begin_offset == 1_005
    assert not requests.is_doubtful(MQ, 1_002)


def test_a_record_of_a_static_topic_that_was_not_asked_for_is_left_out(
    requests: PullRequests,
) -> None:
    result = requests.result(pull(1_001), moved_by(1_000, found([7]).body, 1_003))
    assert (result.msg_found_list, result.next_begin_offset) == ([], 1_001)


def test_a_batch_of_a_static_topic_is_taken_from_the_offset_asked_for(
    requests: PullRequests,
) -> None:
    """5.x: messages of it that lie before were consumed."""
    batch = encode_batch([(0, b"%d" % n, b"UNIQ_KEY\x01U%d" % n) for n in range(3)])
    fields = RecordFields(
        topic=TOPIC, queue_id=0, flag=0, sys_flag=0x40 | 0x80, born_timestamp=1,
        born_host=("127.0.0.1", 1), store_timestamp=2, store_host=("127.0.0.1", 2),
        reconsume_times=0, prepared_transaction_offset=0, body=batch, properties="",
        queue_offset=4, physical_offset=0,
    )  # fmt: skip
    result = requests.result(pull(1_005), moved_by(1_000, bytes(encode_record(fields)), 1_007))
    assert [message.queue_offset for message in result.msg_found_list] == [1_005, 1_006]


# --- topics that keep the last message of a key --------------------------------------------------


def left_out_to_the_last(requests: PullRequests) -> int:
    """Return where to go on once answers agree on a gap."""
    for _ in range(LOOKS - 1):
        requests.result(pull(5), gap(5))
    result = requests.result(pull(5), gap(5))
    return result.next_begin_offset


@pytest.mark.parametrize(
    ("attributes", "loses"), [({"cleanup.policy": "COMPACTION"}, False), ({}, True), (None, True)]
)
def test_nothing_is_lost_before_it_is_known_whether_the_topic_is_compacted(
    instance: Instance,
    requests: PullRequests,
    loop: StillLoop,
    caplog: pytest.LogCaptureFixture,
    attributes: dict[str, str] | None,
    loses: bool,
) -> None:
    """Its broker is asked once; one that does not answer compacts nothing."""

    async def ask() -> None:
        assert left_out_to_the_last(requests) == 5
        assert requests.result(pull(5), gap(5)).next_begin_offset == 5
        (question,) = instance.work
        if attributes is not None:
            body = TopicConfig(TOPIC, attributes=attributes).encode()
            instance.policy = RemotingCommand.response(0, body=body)
        await question
        assert requests.result(pull(5), gap(5)).next_begin_offset == 7
        assert len(instance.work) == 1
        requests.stop()

    with caplog.at_level(logging.WARNING):
        loop.run_until_complete(ask())
    assert ("lost offsets 5 to 5" in caplog.text) is loses


def test_where_a_condition_selects_nobody_asks_for_a_policy(
    instance: Instance, requests: PullRequests, loop: StillLoop
) -> None:
    """A gap is right there; a foreign record in it that stays is passed, without a question."""

    async def ask() -> None:
        tagged = build_subscription(TOPIC, "A", 1)
        answer = found([5], queue_id=3, next_offset=6)
        seen = [requests.result(pull(5, subscription=tagged), answer) for _ in range(7)]
        assert [each.next_begin_offset for each in seen] == [5] * 6 + [6]
        requests.stop()

    loop.run_until_complete(ask())
    assert instance.work == []


# --- losses -------------------------------------------------------------------------------------


def test_further_losses_are_told_every_ten_seconds_as_long_as_there_are_any(
    loop: StillLoop, caplog: pytest.LogCaptureFixture
) -> None:
    losses = Losses(GROUP)

    async def told_at(now_s: float) -> int:
        loop.now_s = now_s
        for _ in range(3):
            await asyncio.sleep(0)
        return len(caplog.records)

    async def lose() -> None:
        first = loop.now_s
        losses.passed(MQ, Missing(3, 5, ""), "a:1")
        losses.passed(MQ, Missing(6, 7, ""), "a:1")
        assert await told_at(first + 9.995) == 1
        assert await told_at(second := first + 10.001) == 2
        losses.passed(MQ, Missing(7, 8, ""), "a:1")
        assert await told_at(second + 9.995) == 2
        assert await told_at(second + 10.001) == 3
        assert await told_at(second + 25) == 3
        losses.passed(MQ, Missing(8, 9, ""), "a:1")
        assert "lost offsets 8 to 8" in caplog.text
        losses.close()

    with caplog.at_level(logging.WARNING):
        loop.run_until_complete(lose())
    assert "(3 since the first)" in caplog.text
    assert "(4 since the first)" in caplog.text


def test_the_last_losses_are_told_at_the_end_and_once(
    loop: StillLoop, caplog: pytest.LogCaptureFixture
) -> None:
    """The end of a consumer's pulls; no timer is left."""

    async def lose() -> None:
        requests = PullRequests(cast(Any, Instance()), GROUP)
        losses = requests._losses
        losses.passed(MQ, Missing(3, 5, ""), "a:1")
        losses.passed(MQ, Missing(6, 7, ""), "a:1")
        requests.stop()
        assert "lost 1 more offsets" in caplog.text
        requests.stop()
        loop.now_s += pull_requests.LOSSES_TOLD_EVERY_MS
        for _ in range(3):
            await asyncio.sleep(0)

    with caplog.at_level(logging.WARNING):
        loop.run_until_complete(lose())
    assert len(caplog.records) == 2


# --- filter hooks -------------------------------------------------------------------------------


def test_hooks_that_filter_get_a_list_of_their_own() -> None:
    """Covers C-220: what they leave is returned, and what was pulled stays as it is."""
    seen: list[FilterMessageContext] = []

    class Hook:
        name = "hook"

        def filter_message(self, context: FilterMessageContext) -> None:
            seen.append(context)
            context.messages.pop()

    messages = [queued(1), queued(2)]
    hooks = FilterHooks()
    assert filtered(hooks, GROUP, MQ, messages, unit_mode=True) is messages
    hooks.register(Hook())
    left = filtered(hooks, GROUP, MQ, messages, unit_mode=True)
    assert left == messages[:1]
    assert len(messages) == 2
    assert (seen[0].consumer_group, seen[0].message_queue, seen[0].unit_mode) == (GROUP, MQ, True)


def test_an_offset_outside_the_queue_brings_no_messages(requests: PullRequests) -> None:
    """Covers C-228: nothing of such an answer is examined."""
    result = requests.result(pull(5), pull_answer(21, 40, 90))
    assert (result.pull_status, result.next_begin_offset) == (PullStatus.OFFSET_ILLEGAL, 40)
    assert not requests.is_doubtful(MQ, 5)
