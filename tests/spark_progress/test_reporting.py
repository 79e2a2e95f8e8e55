"""Offsets of a group that others consume with are not touched."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pytest

from rocketstream.errors import (
    BrokerError,
    ConfigurationError,
    ConnectError,
    RouteNotFoundError,
)
from rocketstream.model import MessageQueue
from rocketstream.protocol.codes import ResponseCode
from rocketstream.protocol.command import RemotingCommand
from rocketstream.protocol.headers import QueryConsumerOffsetResponseHeader
from rocketstream.server.embedded import EmbeddedCluster
from rocketstream.spark.driver.cluster import Cluster
from rocketstream.spark.driver.offsets import StreamOffset
from rocketstream.spark.driver.reporting import Reporter
from rocketstream.spark.options import read_options
from rocketstream.spark.patience import Patience
from tests.kits.spark.fake_cluster import A, B, FakeCluster, pause

MEMBER = {"10.0.0.7@31": "10.0.0.7:41000"}


@pytest.fixture(autouse=True)
def pauses_take_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waiting advances the clock of the test."""
    monkeypatch.setattr(Patience, "pause", pause)


def test_a_group_with_live_members_is_refused_by_name() -> None:
    """Its offsets are theirs; the way out is named."""
    cluster = FakeCluster(group="g")
    cluster.others = MEMBER
    with pytest.raises(ConfigurationError) as caught:
        cluster.start()
    text = str(caught.value)
    assert "group 'g' has live members: 10.0.0.7@31 (10.0.0.7:41000)" in text
    assert "commitOffsets=false" in text
    assert cluster.reports == []


CLAIM = {"10.0.0.7@31#spark": "10.0.0.7:41000"}


def test_a_stream_that_reads_the_retry_topic_feeds_the_listener_that_holds_the_group() -> None:
    """What a listener's claim is for; another stream of that group would overwrite its offsets."""
    cluster = FakeCluster(group="g", topic="T,%RETRY%g")
    cluster.table[MessageQueue("%RETRY%g", "b", 0)] = [0, 3]
    cluster.others = CLAIM
    cluster.source.commit(cluster.start())
    assert len(cluster.reports) == 1
    cluster = FakeCluster(group="g")
    cluster.others = CLAIM
    with pytest.raises(ConfigurationError, match=r"read '%RETRY%g' here too, .*groupMember=spark"):
        cluster.start()
    cluster = FakeCluster(group="g", groupMember="spark")
    cluster.others = CLAIM
    cluster.source.commit(cluster.start())
    assert len(cluster.reports) == 1


@pytest.mark.parametrize("options", [{"topic": "T,%RETRY%g"}, {"groupMember": "spark"}])
def test_a_member_that_is_no_claim_is_a_stranger_still(options: dict[str, str]) -> None:
    cluster = FakeCluster(group="g", **options)
    cluster.table[MessageQueue("%RETRY%g", "b", 0)] = [0, 3]
    cluster.others = MEMBER | CLAIM
    with pytest.raises(ConfigurationError, match=r"live members: 10\.0\.0\.7@31 \(") as caught:
        cluster.start()
    assert "#spark" not in str(caught.value)


def test_a_checkpoint_of_another_group_feeds_no_listener() -> None:
    """It would go on where that group is, and leave its failures to nobody."""
    cluster = FakeCluster(group="two", topic="T,%RETRY%two")
    start = StreamOffset({A: 30, MessageQueue("%RETRY%one", "b", 0): 2})
    with pytest.raises(ConfigurationError, match=r"checkpoint is of group 'one'.* of group 'two'"):
        cluster.source.latest(start, limited=False)
    with pytest.raises(ConfigurationError, match="checkpoint is of group 'one'"):
        cluster.source.ranges(start, start)


def test_who_reports_nothing_may_read_beside_members() -> None:
    """The group still says where to begin."""
    cluster = FakeCluster(group="g", commitOffsets="false", startingOffsets="group")
    cluster.others = MEMBER
    cluster.group = {A: 30}
    end = cluster.start()
    cluster.source.commit(end)
    assert (cluster.reports, cluster.asked_for_members) == ([], 0)


def test_a_topic_taken_out_of_the_options_has_its_group_offsets_left_alone() -> None:
    """Another query of the group, or a consumer, may have moved them since."""
    cluster = FakeCluster(group="g", queueRefreshMs="0")
    other = MessageQueue("U", "broker", 0)
    end = cluster.latest(StreamOffset({A: 30, B: 50, other: 40}))
    assert end.ends == {A: 100, B: 50, other: 40}
    cluster.source.commit(end)
    assert cluster.reports == [{A: 30, B: 50}, {A: 100}]


def test_a_broker_that_left_the_route_for_good_keeps_no_report_back() -> None:
    """Its queues keep their place in the checkpoint, and nobody can be asked about them."""
    cluster = FakeCluster(group="g", queueRefreshMs="0", failOnDataLoss="false")
    end = cluster.start()
    del cluster.table[B]
    asked: list[list[MessageQueue]] = []

    def members(group: str, queues: Iterable[MessageQueue]) -> dict[str, str]:
        asked.append(list(queues))
        if not set(queues) <= cluster.table.keys():
            raise RouteNotFoundError("no route leads to broker 'broker'")
        return {}

    cluster.members = members  # type: ignore[method-assign]
    end = cluster.latest(end)
    cluster.clock.advance(60_000)
    cluster.table[A][1] = 110
    end = cluster.latest(end)
    cluster.source.commit(end)
    assert end.ends == {A: 110, B: 50}
    assert (cluster.reports[-1], asked[-1]) == ({A: 110}, [A])


def test_a_stream_may_stand_for_a_member() -> None:
    """Which whoever keeps that member says; another one is a stranger still."""
    cluster = FakeCluster(group="g", groupMember="10.0.0.7@31")
    cluster.others = MEMBER
    cluster.source.commit(cluster.start())
    assert len(cluster.reports) == 1
    cluster = FakeCluster(group="g", groupMember="10.0.0.8@31")
    cluster.others = MEMBER
    with pytest.raises(ConfigurationError):
        cluster.start()


def test_members_that_come_later_have_their_offsets_left_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Looked at once a minute; the stream goes on, and reports again when they are gone."""
    cluster = FakeCluster(group="g")
    end = cluster.start()
    cluster.source.commit(end)
    cluster.others = MEMBER
    with caplog.at_level(logging.WARNING, "rocketstream.spark"):
        for end_of_a in (110, 120):
            cluster.clock.advance(60_000)
            cluster.table[A][1] = end_of_a
            end = cluster.latest(end)
            cluster.source.commit(end)
    assert len(cluster.reports) == 1
    assert caplog.text.count("has members now: 10.0.0.7@31") == 1
    cluster.others = {}
    cluster.clock.advance(60_000)
    cluster.source.commit(end)
    assert cluster.reports[1:] == [{A: 120, B: 50}]
    assert cluster.asked_for_members == 4


def test_a_stream_waits_for_a_broker_that_is_away_to_tell_the_members() -> None:
    cluster = FakeCluster(group="g")
    answers: list[Exception | None] = [ConnectError("away"), None]

    def members(group: str, queues: object) -> dict[str, str]:
        if (answer := answers.pop(0)) is not None:
            raise answer
        return MEMBER

    cluster.members = members  # type: ignore[method-assign]
    with pytest.raises(ConfigurationError, match="live members"):
        cluster.start()


def test_offsets_are_left_alone_while_a_broker_refuses_to_tell_the_members(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The stream reads, says so once, and reports when it is told that nobody consumes."""
    cluster = FakeCluster(group="g")
    tell = cluster.members

    def refuse(group: str, queues: object) -> dict[str, str]:
        raise BrokerError(16, "no permission")

    cluster.members = refuse  # type: ignore[method-assign]
    with caplog.at_level(logging.WARNING, "rocketstream.spark"):
        end = cluster.start()
        for end_of_a in (110, 120):
            cluster.clock.advance(1_000)
            cluster.table[A][1] = end_of_a
            end = cluster.latest(end)
            cluster.source.commit(end)
        refused = list(cluster.reports)
        cluster.members = tell  # type: ignore[method-assign]
        cluster.source.commit(end)
    assert (refused, cluster.reports) == ([], [{A: 120, B: 50}])
    assert caplog.text.count("cannot tell whether it has live members: CODE: 16") == 1


def test_members_of_a_group_that_nobody_could_tell_of_keep_their_offsets() -> None:
    cluster = FakeCluster(group="g")
    answers: list[BrokerError | None] = [BrokerError(16, "no permission"), None]

    def members(group: str, queues: object) -> dict[str, str]:
        if (answer := answers.pop(0)) is not None:
            raise answer
        return MEMBER

    cluster.members = members  # type: ignore[method-assign]
    end = cluster.start()
    cluster.clock.advance(1_000)
    cluster.source.commit(end)
    assert (cluster.reports, answers) == ([], [])


MOVED = "the offset of group g in "


def test_two_streams_of_one_group_are_told_of_each_other_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The one that is behind sees an offset it has not reported; looked at once a minute."""
    cluster = FakeCluster(group="g")
    reporter = Reporter(cluster._options, cluster, cluster.clock)
    reporter.claim([A])
    with caplog.at_level(logging.WARNING, "rocketstream.spark"):
        reporter.report(StreamOffset({A: 10}), [A])
        cluster.group = {A: 90}
        reporter.report(StreamOffset({A: 11}), [A])
        assert not caplog.records
        for end_of_a in (12, 13):
            cluster.clock.advance(60_000)
            reporter.report(StreamOffset({A: end_of_a}), [A])
    (record,) = caplog.records
    assert record.getMessage().startswith(MOVED)
    assert (
        " is 90, ahead of this stream at 11: another query reports for it, it was reset"
        in record.getMessage()
    )
    assert cluster.reports == [{A: 10}, {A: 11}, {A: 12}, {A: 13}]


def test_a_stream_that_begins_behind_its_group_is_told_before_it_moves_it_back(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """As another stream of the group does whose checkpoint is its own."""
    cluster = FakeCluster(group="g")
    cluster.group = {A: 90}
    reporter = Reporter(cluster._options, cluster, cluster.clock)
    reporter.claim([A])
    with caplog.at_level(logging.WARNING, "rocketstream.spark"):
        reporter.report(StreamOffset({A: 10}), [A])
    assert " is 90, ahead of this stream at 10: " in caplog.text


def test_a_stream_alone_with_its_group_hears_of_nobody(caplog: pytest.LogCaptureFixture) -> None:
    """Neither of its own reports, nor of those a broker lost."""
    cluster = FakeCluster(group="g")
    reporter = Reporter(cluster._options, cluster, cluster.clock)
    reporter.claim([A])
    with caplog.at_level(logging.WARNING, "rocketstream.spark"):
        for number, kept in enumerate((0, 10, 10, 10)):
            cluster.group = {A: kept}
            reporter.report(StreamOffset({A: 10 + number, B: 5}), [A, B])
            cluster.clock.advance(60_000)
    assert not caplog.records


@pytest.fixture
def embedded() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster() as running:
        running.create_topic("T", queues=1)
        yield running


def test_a_real_broker_tells_the_members(embedded: EmbeddedCluster) -> None:
    """Request 203; nobody is no error."""
    from rocketstream import ConsumeConcurrentlyStatus, PushConsumer

    given = {"nameServer": embedded.namesrv_addr, "topic": "T", "group": "g"}
    cluster = Cluster(read_options(given, "stream"))
    queues = [MessageQueue("T", "broker-a", 0)]
    try:
        assert cluster.members("g", queues) == {}
        consumer = PushConsumer("g", namesrv_addr=embedded.namesrv_addr)
        consumer.subscribe("T", "*")
        consumer.register_message_listener(lambda _: ConsumeConcurrentlyStatus.CONSUME_SUCCESS)
        consumer.start()
        try:
            (address,) = cluster.members("g", queues).values()
        finally:
            consumer.shutdown()
        assert address.startswith("127.0.0.1:")
    finally:
        cluster.close()


def test_offsets_of_a_group_are_asked_for_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch that commits waits for them: one after another a thousand queues take their time."""
    cluster = Cluster(read_options({"nameServer": "h:1", "topic": "T"}, "stream"))
    queues = [MessageQueue("T", "broker", queue_id) for queue_id in range(3)]
    codes = [ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND, ResponseCode.SUCCESS]
    asked: list[int] = []

    def answer(_: str, commands: Sequence[RemotingCommand], read: Any) -> None:
        asked.append(len(commands))
        for place, (code, offset) in enumerate(zip(codes, (7, 0, -1), strict=True)):
            header = QueryConsumerOffsetResponseHeader(offset)
            read(place, RemotingCommand.response(code, "no such right", header))

    monkeypatch.setattr(cluster._client, "address", lambda *_, **__: "h:2")
    monkeypatch.setattr(cluster._client, "request_each", answer)
    assert cluster.committed("g", queues) == {queues[0]: 7}
    assert asked == [3]
    codes[1] = ResponseCode.NO_PERMISSION
    with pytest.raises(BrokerError, match="no such right"):
        cluster.committed("g", queues)


def test_members_are_looked_for_once_a_minute_and_no_sooner() -> None:
    cluster = FakeCluster(group="g")
    cluster.start()
    looks = []
    for number, pause_ms in enumerate((59_999, 1, 59_999, 1)):
        cluster.clock.advance(pause_ms)
        cluster.source.commit(StreamOffset({A: 100 + number}))
        looks.append(cluster.asked_for_members)
    assert looks == [1, 2, 2, 3]


def test_a_failed_report_is_tried_again_after_a_second_and_no_sooner() -> None:
    cluster = FakeCluster(group="g")
    reporter = Reporter(cluster._options, cluster, cluster.clock)
    reporter.claim([A])
    cluster.failures = [ConnectError("away")]
    reporter.report_if_due(StreamOffset({A: 1}), [A, B])
    cluster.clock.advance(999)
    reporter.report_if_due(StreamOffset({A: 1}), [A, B])
    assert cluster.reports == []
    cluster.clock.advance(1)
    reporter.report_if_due(StreamOffset({A: 1}), [A, B])
    assert cluster.reports == [{A: 1}]


def test_an_idle_stream_says_its_offsets_again_every_ten_seconds() -> None:
    """A broker that died lost what it had not written; no message may come for days."""
    cluster = FakeCluster(group="g")
    reporter = Reporter(cluster._options, cluster, cluster.clock)
    reporter.claim([A])
    reporter.report(StreamOffset({A: 1, B: 5}), [A, B])
    for _ in range(20):
        cluster.clock.advance(999)
        reporter.report_if_due(StreamOffset({A: 1, B: 5}), [A, B])
    assert cluster.reports == [{A: 1, B: 5}] * 2


def test_a_stream_whose_other_queues_move_says_the_idle_ones_again() -> None:
    cluster = FakeCluster(group="g")
    reporter = Reporter(cluster._options, cluster, cluster.clock)
    reporter.claim([A])
    for end_of_a in range(5):
        reporter.report(StreamOffset({A: end_of_a, B: 5}), [A, B])
        cluster.clock.advance(4_000)
    assert cluster.reports == [{A: 0, B: 5}, {A: 1}, {A: 2}, {A: 3, B: 5}, {A: 4}]


def test_one_outage_of_reports_is_one_line(caplog: pytest.LogCaptureFixture) -> None:
    """Another reason is another line, and so is the next outage."""
    cluster = FakeCluster(group="g")
    reporter = Reporter(cluster._options, cluster, cluster.clock)
    reporter.claim([A])
    no_group = BrokerError(26, "no such group")
    cluster.failures = [ConnectError("away"), ConnectError("away"), no_group]
    with caplog.at_level(logging.WARNING, "rocketstream.spark"):
        for number in range(5):
            if number == 4:
                cluster.failures = [ConnectError("away")]
            cluster.clock.advance(1_000)
            reporter.report_if_due(StreamOffset({A: number}), [A, B])
    said = [record.getMessage().removeprefix("progress of group=g ") for record in caplog.records]
    again = "is reported again"
    refused = "not reported: CODE: 26: no such group"
    assert said == ["not reported: away", refused, again, "not reported: away"]


def test_a_topic_whose_route_is_away_does_not_end_a_restarted_query() -> None:
    """The checkpoint knows the topic, so it is no wrong name; who consumes is asked again."""
    cluster = FakeCluster(group="g")
    answers: list[dict[str, str] | None] = [None, {}]

    def members(group: str, queues: object) -> dict[str, str]:
        if (answer := answers.pop(0)) is None:
            raise RouteNotFoundError("no route")
        return answer

    cluster.members = members  # type: ignore[method-assign]
    assert cluster.latest(StreamOffset({A: 30, B: 50})).ends == {A: 100, B: 50}
    assert answers == []


def test_who_has_a_claim_asks_for_members_no_more() -> None:
    cluster = FakeCluster(group="g")
    reporter = Reporter(cluster._options, cluster, cluster.clock)
    assert not reporter.has_claim
    reporter.claim([A])
    reporter.claim([A])
    assert (reporter.has_claim, cluster.asked_for_members) == (True, 1)
    silent = Reporter(FakeCluster()._options, cluster, cluster.clock)
    silent.claim([A])
    assert (silent.has_claim, cluster.asked_for_members) == (True, 1)


def test_who_reads_no_failed_messages_may_have_done_so_before() -> None:
    """The retry topic was taken out of the options: its offset stays, and is nobody's."""
    cluster = FakeCluster(group="g")
    gone = MessageQueue("%RETRY%one", "b", 0)
    end = cluster.latest(StreamOffset({A: 30, B: 50, gone: 2}))
    assert end.ends == {A: 100, B: 50, gone: 2}
