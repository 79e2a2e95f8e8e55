"""Pulling over a socket, from a broker that answers what a test wants."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from rocketstream._util.clock import SYSTEM_CLOCK, Clock
from rocketstream._util.loops import LoopThread
from rocketstream.client.admin.blocking import BlockingAdminClient
from rocketstream.columns.table import ALL_COLUMNS
from rocketstream.errors import (
    BrokerError,
    DataLossError,
    NoPermissionError,
    RemoteProtocolError,
    RequestTimeoutError,
    TransportError,
)
from rocketstream.model import MessageQueue
from rocketstream.protocol.codes import RequestCode, ResponseCode
from rocketstream.protocol.command import RemotingCommand
from rocketstream.protocol.headers import PullMessageRequestHeader, PullMessageResponseHeader
from rocketstream.protocol.record import RecordFields, encode_record
from rocketstream.spark import worker
from rocketstream.spark.executor.fetch import fetch, read_rows
from rocketstream.spark.losses import Losses
from rocketstream.spark.options import read_options
from rocketstream.spark.patience import Patience
from rocketstream.spark.scan import PartitionPlan, QueueRange, Scan, new_scan
from rocketstream.testing.clock import ManualClock
from rocketstream.testing.proxy import FaultProxy
from rocketstream.transport.connection import Connection
from rocketstream.transport.server import RemotingServer

QUEUES = [MessageQueue("T", "broker-a", queue_id) for queue_id in range(3)]
Answer = tuple[int, str, int, bytes]
"""Code, remark, next offset, body."""


def records(begin: int, end: int, queue_id: int = 0) -> bytes:
    """Messages of these offsets."""
    host = ("10.0.0.1", 1)
    return b"".join(
        encode_record(
            RecordFields("T", queue_id, 0, 0, 0, host, 0, host, 0, 0, b"b", "TAGS\x01a", offset)
        )
        for offset in range(begin, end)
    )


class FakeBroker:
    """Queues of 1,000 messages from ``low`` on; ``behave`` may answer a pull in its own way."""

    def __init__(self) -> None:
        self.low, self.high = 0, 1_000
        self.pulls: list[PullMessageRequestHeader] = []
        self.behave: Callable[[PullMessageRequestHeader], Answer | None] = lambda pull: None
        self.silent = False
        self.waits_for = 1
        self._held: list[tuple[Connection, RemotingCommand]] = []
        self.batch: Callable[[], int] = lambda: 32

    def handle(self, connection: Connection, request: RemotingCommand) -> None:
        pull = request.header(PullMessageRequestHeader)
        assert request.code == RequestCode.PULL_MESSAGE
        self.pulls.append(pull)
        if self.silent:
            return
        self._held.append((connection, request))
        if len(self.pulls) == 1 or len(self._held) >= self.waits_for:
            while self._held:
                self._answer(*self._held.pop())

    def _answer(self, connection: Connection, request: RemotingCommand) -> None:
        pull = request.header(PullMessageRequestHeader)
        code, remark, next_offset, body = self.behave(pull) or self.found(pull)
        header = PullMessageResponseHeader(0, next_offset, self.low, self.high)
        connection.reply(request, RemotingCommand.response(code, remark, header, body))

    def found(self, pull: PullMessageRequestHeader) -> Answer:
        begin = pull.queue_offset
        if begin < self.low:
            return ResponseCode.PULL_OFFSET_MOVED, "OFFSET_TOO_SMALL", self.low, b""
        if begin >= self.high:
            return ResponseCode.PULL_NOT_FOUND, "OFFSET_OVERFLOW_ONE", begin, b""
        end = min(self.high, begin + min(pull.max_msg_nums, self.batch()))
        return ResponseCode.SUCCESS, "FOUND", end, records(begin, end, pull.queue_id)


@pytest.fixture
def broker() -> FakeBroker:
    return FakeBroker()


@contextmanager
def serving(broker: FakeBroker) -> Iterator[str]:
    """A broker's address."""
    with LoopThread("fake-broker") as loop:
        server = RemotingServer(broker.handle)
        loop.run(server.start())
        yield server.address
        worker.close_pools()
        loop.run(server.close())


@pytest.fixture
def address(broker: FakeBroker) -> Iterator[str]:
    with serving(broker) as found:
        yield found


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> ManualClock:
    """The clock to read by: half a second passes with each wait."""
    clock = ManualClock()
    monkeypatch.setattr(Patience, "pause", lambda self: clock.advance(500))
    return clock


def registered(
    monkeypatch: pytest.MonkeyPatch, address: Callable[[], str], *, led: bool = True
) -> None:
    """Make the name server know the broker at this address, as its master or as a slave alone."""

    def table(client: BlockingAdminClient, broker_name: str, refresh: bool) -> dict[int, str]:
        return {0 if led else 1: address()}

    monkeypatch.setattr(BlockingAdminClient, "_table_of", table)


def scan(**options: str) -> Scan:
    given = {"nameServer": "127.0.0.1:1", "topic": "T", "connectTimeoutMs": "500"} | options
    return new_scan(read_options(given, "batch"), ALL_COLUMNS)


def plan(address: str, *spans: tuple[int, int]) -> PartitionPlan:
    """Ranges of the first queues."""
    ranges = tuple(QueueRange(q, b, e) for q, (b, e) in zip(QUEUES, spans, strict=False))
    return PartitionPlan(ranges, {"broker-a": address})


def offsets(
    scanned: Scan, planned: PartitionPlan, clock: Clock = SYSTEM_CLOCK
) -> dict[int, list[int]]:
    """Everything read, by the queue it came from."""
    found: dict[int, list[int]] = {}
    for batch in read_rows(scanned, planned, clock):
        for queue_id, offset in zip(
            batch["queueId"].to_pylist(), batch["queueOffset"].to_pylist(), strict=True
        ):
            found.setdefault(queue_id, []).append(offset)
    return found


def test_several_queues_come_whole_and_in_order(broker: FakeBroker, address: str) -> None:
    """Whatever sizes the broker answers with; never more asked than wanted."""
    dice = random.Random(3)
    broker.batch = lambda: dice.randint(1, 60)
    read = offsets(scan(), plan(address, (0, 1_000), (10, 500), (999, 1_000)))
    assert read == {0: list(range(1_000)), 1: list(range(10, 500)), 2: [999]}
    assert max(p.queue_offset + p.max_msg_nums for p in broker.pulls if p.queue_id == 1) <= 500


def test_rows_come_in_the_same_order_whatever_order_the_answers_have(
    broker: FakeBroker, address: str
) -> None:
    """A row's place in its task is part of its identity when a query sends it on."""
    broker.waits_for = 3  # and then it answers the last first
    planned = plan(address, (0, 40), (0, 32), (0, 32))
    rows = [
        (queue_id, offset)
        for batch in read_rows(scan(pullsInFlight="3"), planned)
        for queue_id, offset in zip(
            batch["queueId"].to_pylist(), batch["queueOffset"].to_pylist(), strict=True
        )
    ]
    assert [queue_id for queue_id, _ in rows] == [0] * 40 + [1] * 32 + [2] * 32
    assert [offset for _, offset in rows] == [*range(40), *range(32), *range(32)]


def test_queues_behind_one_that_stands_still_do_not_fill_the_memory(
    broker: FakeBroker, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their answers wait for their turn; only so many are asked for."""
    monkeypatch.setattr(Patience, "pause", lambda self: None)
    refusals = iter([True] * 1_000)

    def first_is_busy(pull: PullMessageRequestHeader) -> Answer | None:
        if pull.queue_id == 0 and next(refusals, False):
            return ResponseCode.SYSTEM_BUSY, "busy", 0, b""
        return None

    broker.behave = first_is_busy
    planned = plan(address, (0, 64), (0, 1_000), (0, 1_000))
    reading = fetch(scan(pullsInFlight="4"), planned, Losses(True))
    assert next(reading).queue.queue_id == 0
    early = [pull for pull in broker.pulls if pull.queue_id]
    reading.close()
    assert len(early) <= 3 * 4


def test_pulls_overlap_and_answers_may_come_in_any_order(broker: FakeBroker, address: str) -> None:
    """Covers S 5: one pull at a time would be bound by the round trip.

    After the first pull the broker answers only when four are waiting, the last one first.
    """
    broker.waits_for = 4
    assert offsets(scan(pullsInFlight="4"), plan(address, (0, 9 * 32))) == {0: list(range(288))}
    assert len(broker.pulls) == 9


def test_connections_are_kept_between_partitions(broker: FakeBroker, address: str) -> None:
    """Covers S 8.6: cached per process and address."""
    with FaultProxy(address) as proxy:
        for _ in range(3):
            offsets(scan(), plan(proxy.address, (0, 100)))
        assert proxy.connections_total == 1
        worker.close_pools()


def test_a_reader_that_stops_early_leaves_no_answers_for_the_next(
    broker: FakeBroker, address: str
) -> None:
    """limit(n) closes the generator with pulls under way."""
    reading = fetch(scan(), plan(address, (0, 1_000)), Losses(True))
    next(reading)
    reading.close()
    assert offsets(scan(), plan(address, (0, 50))) == {0: list(range(50))}


def test_a_lost_connection_is_made_anew_and_nothing_repeats(
    broker: FakeBroker, address: str
) -> None:
    """What was under way is asked again."""
    with FaultProxy(address) as proxy:
        proxy.cut_after(8_000)
        assert offsets(scan(), plan(proxy.address, (0, 1_000))) == {0: list(range(1_000))}
        assert proxy.connections_total == 2
        worker.close_pools()


def test_a_broker_that_moved_is_looked_up(
    broker: FakeBroker, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Executors find a new address by themselves."""
    monkeypatch.setattr(BlockingAdminClient, "address", lambda *_, **__: address)
    assert offsets(scan(), plan("127.0.0.1:1", (0, 50))) == {0: list(range(50))}


def test_failures_end_the_read_when_they_do_not_pass(broker: FakeBroker, address: str) -> None:
    """retryTimeoutMs bounds them all."""
    with pytest.raises(TransportError, match=r"127\.0\.0\.1:1"):
        offsets(scan(retryTimeoutMs="0"), plan("127.0.0.1:1", (0, 50)))
    broker.silent = True
    with pytest.raises(RequestTimeoutError):
        offsets(scan(retryTimeoutMs="0", requestTimeoutMs="50"), plan(address, (0, 50)))


def test_busy_is_waited_for_and_refusals_are_raised(broker: FakeBroker, address: str) -> None:
    """Covers W 2.3: code 2 passes, 16 does not, 1 might."""
    busy = [ResponseCode.SYSTEM_BUSY, ResponseCode.SYSTEM_ERROR]
    broker.behave = lambda pull: (busy.pop(), "busy", 0, b"") if busy else None
    assert offsets(scan(), plan(address, (0, 50))) == {0: list(range(50))}
    broker.behave = lambda pull: (ResponseCode.NO_PERMISSION, "no", 0, b"")
    with pytest.raises(NoPermissionError):
        offsets(scan(), plan(address, (0, 50)))
    broker.behave = lambda pull: (ResponseCode.SYSTEM_ERROR, "queueId[9] is illegal", 0, b"")
    with pytest.raises(BrokerError, match="queueId"):
        offsets(scan(retryTimeoutMs="0"), plan(address, (0, 50)))


def test_deleted_offsets_are_a_loss_naming_queue_and_offsets(
    broker: FakeBroker, address: str
) -> None:
    """Covers code 21 below the minimum (C-367), failOnDataLoss=true."""
    broker.low = 100
    with pytest.raises(
        DataLossError,
        match=r"topic 'T', broker 'broker-a', queue 0: offsets \d+ to \d+ are gone; "
        r"the queue now holds 100 to 999.*failOnDataLoss=false",
    ):
        offsets(scan(), plan(address, (0, 500)))


@pytest.mark.parametrize("low", [300, 1_000], ids=["a part", "all"])
def test_a_loss_names_all_offsets_that_one_answer_passes_over(
    broker: FakeBroker, address: str, caplog: pytest.LogCaptureFixture, low: int
) -> None:
    """The first pull, which is alone, asks for less than an answer may be about."""
    broker.low = low
    with caplog.at_level(logging.WARNING, "rocketstream.spark"):
        offsets(scan(failOnDataLoss="false"), plan(address, (0, 500)))
    (told,) = caplog.messages
    assert f"offsets 0 to {min(low, 500) - 1} are gone; the queue now holds {low} to" in told


def test_deleted_offsets_are_left_out_when_the_user_says_so(
    broker: FakeBroker, address: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Logged once per queue; the rest comes."""
    broker.low = 100
    with caplog.at_level(logging.WARNING, "rocketstream.spark"):
        read = offsets(scan(failOnDataLoss="false"), plan(address, (0, 500), (50, 200)))
    assert read == {0: list(range(100, 500)), 1: list(range(100, 200))}
    assert len([r for r in caplog.records if "Going on without" in r.message]) == 2


def test_a_queue_shorter_than_planned_is_waited_for_then_a_loss(
    broker: FakeBroker, address: str, monkeypatch: pytest.MonkeyPatch, waits: ManualClock
) -> None:
    """Covers retryTimeoutMs for a broker just coming back; then the master's end is the end."""
    registered(monkeypatch, lambda: address)
    broker.high = 40
    with pytest.raises(DataLossError, match="offsets 40 to 59 are gone; the queue now holds 0 to"):
        offsets(scan(pullsInFlight="1"), plan(address, (0, 60)), waits)
    assert waits.monotonic_ms() >= 30_000
    easy = scan(failOnDataLoss="false")
    assert offsets(easy, plan(address, (0, 60)), waits) == {0: list(range(40))}
    began = waits.monotonic_ms()

    def back(pull: PullMessageRequestHeader) -> None:
        if waits.monotonic_ms() - began > 25_000:
            broker.high = 1_000

    broker.behave = back
    assert offsets(easy, plan(address, (0, 60)), waits) == {0: list(range(60))}


def test_a_loss_of_many_stretches_is_waited_for_once(
    broker: FakeBroker, address: str, monkeypatch: pytest.MonkeyPatch, waits: ManualClock
) -> None:
    """Only an answer that has rows begins the patience anew, not the next stretch without any."""
    registered(monkeypatch, lambda: address)
    broker.high = 40
    scanned = scan(pullsInFlight="1", pullBatchSize="40", failOnDataLoss="false")
    assert offsets(scanned, plan(address, (0, 1_000)), waits) == {0: list(range(40))}
    assert 30_000 <= waits.monotonic_ms() < 45_000


@pytest.mark.parametrize("fail", ["true", "false"])
@pytest.mark.parametrize("known", ["a slave", "nothing", "a master that has them"])
def test_planned_rows_are_not_given_up_on_the_word_of_a_slave(
    broker: FakeBroker, address: str, monkeypatch: pytest.MonkeyPatch, waits: ManualClock,
    known: str, fail: str,
) -> None:  # fmt: skip
    """Its master may hold them; a master that has them gives them later."""
    if known != "nothing":
        registered(monkeypatch, lambda: address, led=known != "a slave")
    if known == "a master that has them":
        broker.behave = lambda pull: (
            (ResponseCode.PULL_RETRY_IMMEDIATELY, "MESSAGE_WAS_REMOVING", pull.queue_offset, b"")
            if pull.queue_offset >= 40
            else None
        )
    else:
        broker.high = 40
    broker.batch = lambda: 40
    scanned = scan(pullsInFlight="1", pullBatchSize="40", failOnDataLoss=fail)
    with pytest.raises(DataLossError, match="queue 0: offsets 40 to 59 were planned") as caught:
        offsets(scanned, plan(address, (8, 60)), waits)
    assert ("slave" in str(caught.value)) == (known != "a master that has them")
    assert waits.monotonic_ms() >= 30_000


def test_a_master_that_is_back_is_asked_instead_of_its_slave(
    broker: FakeBroker, address: str, monkeypatch: pytest.MonkeyPatch, waits: ManualClock
) -> None:
    """Inside the patience, and nothing comes twice."""
    slave = FakeBroker()
    slave.high = 40
    with serving(slave) as behind:
        registered(monkeypatch, lambda: address if waits.monotonic_ms() > 2_000 else behind)
        assert offsets(scan(), plan(behind, (0, 60), (0, 90)), waits) == {
            0: list(range(60)),
            1: list(range(90)),
        }
    assert {pull.queue_id for pull in broker.pulls} == {0, 1}


def test_filtered_offsets_are_no_loss(broker: FakeBroker, address: str) -> None:
    """Covers C-369: an answer without messages may be 800 offsets ahead."""

    def only_the_last_ten(pull: PullMessageRequestHeader) -> Answer | None:
        assert (pull.subscription, pull.sys_flag) == ("a || b", 4)
        if pull.queue_offset >= 990:
            return None
        end = min(990, pull.queue_offset + 800)
        return ResponseCode.PULL_RETRY_IMMEDIATELY, "NO_MATCHED_MESSAGE", end, b""

    broker.behave = only_the_last_ten
    assert offsets(scan(tags="a || b"), plan(address, (0, 1_000))) == {0: list(range(990, 1_000))}
    assert len(broker.pulls) < 15


def test_an_answer_that_does_not_advance_is_refused(broker: FakeBroker, address: str) -> None:
    """It would be asked for ever."""
    broker.behave = lambda pull: (0, "FOUND", pull.queue_offset, records(0, 1))
    with pytest.raises(RemoteProtocolError, match="with next offset 0"):
        offsets(scan(), plan(address, (0, 50)))


def test_an_answer_with_more_than_asked_gives_each_offset_once(
    broker: FakeBroker, address: str
) -> None:
    """Some brokers answer whole batches; what is beyond a pull's stretch is cut off."""

    def generous(pull: PullMessageRequestHeader) -> Answer:
        end = min(1_000, pull.queue_offset + pull.max_msg_nums + 9)
        return 0, "FOUND", end, records(pull.queue_offset, end)

    broker.behave = generous
    assert offsets(scan(), plan(address, (0, 700))) == {0: list(range(700))}


def test_nothing_to_read_asks_nothing(broker: FakeBroker, address: str) -> None:
    """The partition Spark insists on."""
    assert offsets(scan(), PartitionPlan((), {})) == {}
    assert broker.pulls == []


def without_64_to_200(pull: PullMessageRequestHeader) -> Answer | None:
    """As Apache answers where a log file vanished: it skips to the next file, and says FOUND."""
    begin, end = pull.queue_offset, min(1_000, pull.queue_offset + pull.max_msg_nums)
    if begin >= 200 or end <= 64:
        return None
    if begin >= 64:
        return 0, "FOUND", 232, records(200, 232)
    return 0, "FOUND", 216, records(begin, 64) + records(200, 216)


def test_rows_missing_in_an_answer_that_says_found_are_a_loss(
    broker: FakeBroker, address: str
) -> None:
    """A vanished log file: 136 of 1,000 rows, never silently."""
    broker.behave = without_64_to_200
    with pytest.raises(
        DataLossError,
        match=r"topic 'T', broker 'broker-a', queue 0: offsets 64 to \d+ are missing.*OnDataLoss",
    ):
        offsets(scan(), plan(address, (0, 1_000)))


def test_rows_missing_in_an_answer_are_left_out_when_the_user_says_so(
    broker: FakeBroker, address: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Everything that is there comes, and the log names the loss."""
    broker.behave = without_64_to_200
    with caplog.at_level(logging.WARNING, "rocketstream.spark"):
        read = offsets(scan(failOnDataLoss="false"), plan(address, (0, 1_000)))
    assert read == {0: [*range(64), *range(200, 1_000)]}
    assert "queue 0: offsets 64 to" in caplog.text


def test_found_without_messages_is_a_loss(broker: FakeBroker, address: str) -> None:
    """The extreme of a gap."""
    broker.behave = lambda pull: (0, "FOUND", 32, b"") if pull.queue_offset < 32 else None
    with pytest.raises(DataLossError, match="offsets 0 to 31 are missing"):
        offsets(scan(), plan(address, (0, 100)))


def test_a_second_short_pause_has_the_whole_patience_again(
    broker: FakeBroker, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Progress forgives: two pauses of 70 % of the patience each are no loss."""
    clock = ManualClock()
    monkeypatch.setattr(Patience, "pause", lambda self: clock.advance(3_000))
    pauses = {40: 8, 80: 8}
    broker.high = 40

    def slow_to_grow(pull: PullMessageRequestHeader) -> None:
        if pull.queue_offset >= broker.high and pauses.get(broker.high) is not None:
            pauses[broker.high] -= 1
            if not pauses[broker.high]:
                broker.high += 40

    broker.behave = slow_to_grow
    read = offsets(scan(pullsInFlight="1"), plan(address, (0, 120)), clock)
    assert read == {0: list(range(120))}


def test_the_patience_of_a_short_queue_is_its_own(
    broker: FakeBroker, address: str, monkeypatch: pytest.MonkeyPatch, waits: ManualClock
) -> None:
    """Another queue's progress does not extend it."""
    registered(monkeypatch, lambda: address)
    broker.batch = lambda: 1

    def first_is_short(pull: PullMessageRequestHeader) -> Answer | None:
        if pull.queue_id:
            return None
        return ResponseCode.PULL_NOT_FOUND, "OFFSET_OVERFLOW_ONE", pull.queue_offset, b""

    broker.behave = first_is_short
    with pytest.raises(DataLossError, match="queue 0: offsets 40 to 79 were planned"):
        offsets(scan(pullsInFlight="2"), plan(address, (40, 80), (0, 1_000)), waits)
    assert len([pull for pull in broker.pulls if pull.queue_id == 1]) < 200


def test_system_errors_between_good_answers_do_not_add_up(
    broker: FakeBroker, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Six in a task of thirty answers are no request that can never succeed."""
    monkeypatch.setattr(Patience, "pause", lambda self: None)
    turn = iter(range(1_000))

    def every_third(pull: PullMessageRequestHeader) -> Answer | None:
        return (ResponseCode.SYSTEM_ERROR, "?", 0, b"") if next(turn) % 3 == 0 else None

    broker.behave = every_third
    assert offsets(scan(pullsInFlight="1"), plan(address, (0, 1_000))) == {0: list(range(1_000))}
