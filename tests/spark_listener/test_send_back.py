"""Failed messages go back to a real broker, or the task fails."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from rocketstream.client.admin.blocking import BlockingAdminClient
from rocketstream.errors import MessageInvalidError, RouteNotFoundError, SendError
from rocketstream.model import MessageQueue
from rocketstream.protocol.codes import RequestCode
from rocketstream.protocol.command import RemotingCommand
from rocketstream.protocol.message_ext import MessageExt, assemble_message
from rocketstream.protocol.names import SCHEDULE_TOPIC
from rocketstream.server.embedded import EmbeddedCluster
from rocketstream.spark.listener.send_back import AT_ONCE, COPIES_MAX, SendBack
from rocketstream.spark.options import ConsumeOptions, consume_options
from rocketstream.spark.patience import Patience
from rocketstream.spark.worker import close_pools
from rocketstream.testing.clock import ManualClock
from rocketstream.transport.blocking_pool import BlockingPool
from tests.kits.spark.broker_contents import DLQ, dead_letters, pulled, waiting
from tests.kits.spark.support import Sent, numbered, send

GONE = 10**12
QUEUE = MessageQueue("T", "broker-a", 0)


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(delay_levels="1h 2h 3h 4h") as running:
        running.create_topic("T", queues=1)
        running.create_topic("%RETRY%g", queues=1)  # as the heartbeat of a claim makes it
        yield running


@pytest.fixture
def admin(cluster: EmbeddedCluster) -> Iterator[BlockingAdminClient]:
    with BlockingAdminClient(cluster.namesrv_addr) as client:
        yield client
    close_pools()


def options(name_server: str, **changes: str) -> ConsumeOptions:
    least = {"nameServer": name_server, "group": "g", "listener": "x", "retryTimeoutMs": "0"}
    return consume_options(least | changes)


@pytest.fixture
def back(cluster: EmbeddedCluster, admin: BlockingAdminClient) -> Iterator[SendBack]:
    made = SendBack(options(cluster.namesrv_addr))
    yield made
    made.close()


def stored(cluster: EmbeddedCluster, admin: BlockingAdminClient, count: int) -> list[MessageExt]:
    """Send messages and return them as they are stored."""
    first = admin.max_offset(QUEUE)
    send(cluster, "T", 0, numbered(first, count))
    return pulled(admin, QUEUE, first)


def of_nowhere(message: MessageExt) -> MessageExt:
    """The same message at a place in the log that holds none, as after it expired."""
    return assemble_message(
        message.message_queue, message.queue_offset, message.body, message.properties,
        commit_log_offset=GONE, reconsume_times=message.reconsume_times,
    )  # fmt: skip


def test_failed_messages_are_sent_back_with_the_delay_asked_for(
    cluster: EmbeddedCluster, admin: BlockingAdminClient, back: SendBack
) -> None:
    """Covers C-264: 0 lets the broker decide by the retries so far, which gives level 3."""
    before = waiting(admin, 1), waiting(admin, 3)
    first, second = stored(cluster, admin, 2)
    back.give_back([(first, 1), (second, 0)])
    assert (waiting(admin, 1), waiting(admin, 3)) == (before[0] + 1, before[1] + 1)


def test_more_than_fit_on_their_way_at_once_are_all_stored(
    cluster: EmbeddedCluster, admin: BlockingAdminClient, back: SendBack
) -> None:
    before = waiting(admin, 2)
    back.give_back([(message, 2) for message in stored(cluster, admin, 3 * AT_ONCE + 1)])
    assert waiting(admin, 2) == before + 3 * AT_ONCE + 1


def test_a_message_whose_place_is_gone_is_sent_anew(
    cluster: EmbeddedCluster, admin: BlockingAdminClient, back: SendBack
) -> None:
    """Covers C-271."""
    before = waiting(admin, 4)
    here, gone = stored(cluster, admin, 2)
    back.give_back([(here, 4), (of_nowhere(gone), 4)])
    queue = MessageQueue(SCHEDULE_TOPIC, "broker-a", 3)
    assert waiting(admin, 4) == before + 2
    sent_back, anew = pulled(admin, queue, before)
    assert [sent_back.body, anew.body] == [here.body, gone.body]
    for message in (sent_back, anew):
        assert message.reconsume_times == 1
        assert message.get_property("REAL_TOPIC") == "%RETRY%g"
        assert message.get_property("RETRY_TOPIC") == "T"


@pytest.mark.parametrize("place_is_gone", [False, True])
def test_level_minus_one_is_the_dead_letters_at_once(
    cluster: EmbeddedCluster, admin: BlockingAdminClient, back: SendBack, place_is_gone: bool
) -> None:
    before = dead_letters(admin)
    (message,) = stored(cluster, admin, 1)
    back.give_back([(of_nowhere(message) if place_is_gone else message, -1)])
    assert dead_letters(admin) == before + 1


def test_what_had_its_last_try_goes_to_the_dead_letters(
    cluster: EmbeddedCluster, admin: BlockingAdminClient, back: SendBack
) -> None:
    """Covers C-289."""
    before = dead_letters(admin)
    messages = stored(cluster, admin, 2)
    for message in messages:
        message._reconsume_times = 16
    back.give_up(messages)
    assert dead_letters(admin) == before + 2
    assert pulled(admin, DLQ, before)[0].get_property("ORIGIN_MESSAGE_ID") == messages[0].msg_id


def caused(message: MessageExt, **changes: int) -> MessageExt:
    """A message of which the task knows why it failed; ``changes`` say what else a row had."""
    place = {"queue_offset": message.queue_offset, "commit_log_offset": message.commit_log_offset}
    place |= changes
    return assemble_message(
        message.message_queue, place["queue_offset"], b"changed",
        message.properties
        | {"SEND_BACK_CAUSE": "ValueError: no", "SEND_BACK_TRY": "0", "mine": "changed"},
        commit_log_offset=place["commit_log_offset"], reconsume_times=0,
    )  # fmt: skip


def test_a_cause_goes_with_the_message_as_it_was_sent(
    cluster: EmbeddedCluster, admin: BlockingAdminClient
) -> None:
    """A transform may have changed the row; the message that comes again is the sender's."""
    back = SendBack(options(cluster.namesrv_addr, sendBackCause="true"))
    (message, other) = stored(cluster, admin, 2)
    before = waiting(admin, 4)
    back.give_back([(caused(message), 4), (other, 4)])
    back.close()
    copies = pulled(admin, MessageQueue(SCHEDULE_TOPIC, "broker-a", 3), before)
    by_body = {copy.body: copy for copy in copies}
    assert set(by_body) == {message.body, other.body}
    told = by_body[message.body]
    assert told.get_property("SEND_BACK_CAUSE") == "ValueError: no"
    assert told.get_property("mine") is None
    assert (told.get_property("RETRY_TOPIC"), told.reconsume_times) == ("T", 1)
    assert by_body[other.body].get_property("SEND_BACK_CAUSE") is None


@pytest.mark.parametrize("changes", [{"queue_offset": 77_777}, {"commit_log_offset": GONE}])
def test_a_place_that_holds_another_message_or_none_costs_only_the_cause(
    cluster: EmbeddedCluster, admin: BlockingAdminClient, changes: dict[str, int]
) -> None:
    """As after a broker was set up anew."""
    back = SendBack(options(cluster.namesrv_addr, sendBackCause="true"))
    (message,) = stored(cluster, admin, 1)
    before = waiting(admin, 4)
    back.give_back([(caused(message, **changes), 4)])
    back.close()
    (copy,) = pulled(admin, MessageQueue(SCHEDULE_TOPIC, "broker-a", 3), before)
    assert copy.get_property("REAL_TOPIC") == "%RETRY%g"
    if "queue_offset" in changes:
        assert copy.get_property("SEND_BACK_CAUSE") is None


def test_a_listener_that_spoils_the_name_of_the_broker_costs_only_the_way_back(
    cluster: EmbeddedCluster, admin: BlockingAdminClient, back: SendBack
) -> None:
    cluster.create_topic("%RETRY%g", queues=1)
    before = waiting(admin, 1)
    (message,) = stored(cluster, admin, 1)
    message._broker_name = "nobody"
    back.give_back([(message, 1)])
    assert waiting(admin, 1) == before + 1


def test_nobody_to_send_to_fails_the_task_and_names_the_message() -> None:
    """Nothing may count as consumed whose copy is not stored."""
    with EmbeddedCluster() as gone:
        gone.create_topic("T", queues=1)
        with BlockingAdminClient(gone.namesrv_addr) as admin:
            (message,) = stored(gone, admin, 1)
        back = SendBack(options(gone.namesrv_addr, connectTimeoutMs="500"))
    said = rf"1 failed messages of group 'g'.*neither sent back nor.*first is {message.msg_id} of"
    with pytest.raises(SendError, match=said):
        back.give_back([(message, 0)])
    back.close()
    close_pools()


def test_patience_counts_from_the_last_message_that_was_stored(
    cluster: EmbeddedCluster, admin: BlockingAdminClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cluster that takes one after the other is waited for; one that takes none is not."""
    clock = ManualClock()
    monkeypatch.setattr(Patience, "pause", lambda patience: clock.advance(6_000))
    away = RouteNotFoundError("away")
    answers = [away, away, None, away, away, away]
    monkeypatch.setattr(SendBack, "_send", lambda back, message: answers.pop(0))
    back = SendBack(options(cluster.namesrv_addr, retryTimeoutMs="10000"), clock)
    first, second = stored(cluster, admin, 2)
    with pytest.raises(SendError, match=rf"1 failed messages .*first is {second.msg_id} .*away"):
        back.give_up([first, second])
    back.close()
    assert answers == []


@pytest.mark.parametrize("code", [10, 11, 12])
def test_a_dead_letter_that_is_not_safe_fails_the_task_after_a_few_copies(
    cluster: EmbeddedCluster,
    admin: BlockingAdminClient,
    code: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Covers C-473: its original would be committed, and the copy may go with the machine."""
    real = BlockingPool.request

    def unsafe(self: BlockingPool, address: str, command: RemotingCommand, ms: float) -> Any:
        answer = real(self, address, command, ms)
        if command.code == RequestCode.SEND_MESSAGE_V2:
            answer.code = code
        return answer

    monkeypatch.setattr(BlockingPool, "request", unsafe)
    monkeypatch.setattr(Patience, "pause", lambda patience: None)
    before = dead_letters(admin)
    (message,) = stored(cluster, admin, 1)
    back = SendBack(options(cluster.namesrv_addr, retryTimeoutMs="30000"))
    with pytest.raises(SendError, match=rf"CODE: {code} .*stored, but not as safely"):
        back.give_up([message])
    back.close()
    assert dead_letters(admin) == before + COPIES_MAX


@pytest.mark.parametrize("given_up", [False, True], ids=["another-try", "dead-letter"])
def test_properties_that_leave_no_room_for_a_retry_are_told_at_once_with_a_way_out(
    cluster: EmbeddedCluster, admin: BlockingAdminClient, given_up: bool
) -> None:
    """Covers C-271, C-430: waiting for the broker helps nothing; what fails with it is stored."""
    back = SendBack(options(cluster.namesrv_addr, retryTimeoutMs="3600000"))
    (fine,) = stored(cluster, admin, 1)
    fine._reconsume_times = 16
    first = admin.max_offset(QUEUE)
    send(cluster, "T", 0, [Sent(b"b", {"UNIQ_KEY": "FULL", "p": "x" * 32_700})])
    (full,) = pulled(admin, QUEUE, first)
    before = waiting(admin, 2), dead_letters(admin)
    with pytest.raises(MessageInvalidError) as caught:
        back.give_up([full, fine]) if given_up else back.give_back([(full, 2), (fine, 2)])
    back.close()
    text = str(caught.value)
    assert f"message FULL (topic 'T', broker 'broker-a', queue 0, offset {first})" in text
    assert "at most 32767 bytes of properties" in text
    assert "return success for it" in text
    assert waiting(admin, 2) + dead_letters(admin) == sum(before) + 1
    assert pulled(admin, QUEUE, first)[0].properties == full.properties


def test_a_broker_that_comes_back_in_time_is_waited_for(
    cluster: EmbeddedCluster, admin: BlockingAdminClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    back = SendBack(options(cluster.namesrv_addr, retryTimeoutMs="60000"))
    before = waiting(admin, 1)
    (message,) = stored(cluster, admin, 1)
    answers = iter([RouteNotFoundError("away"), RouteNotFoundError("away")])
    asked: list[str] = []
    master = BlockingAdminClient.master

    def away_at_first(self: BlockingAdminClient, name: str, **how: bool) -> str:
        asked.append(name)
        if (error := next(answers, None)) is not None:
            raise error
        return master(self, name, **how)

    monkeypatch.setattr(BlockingAdminClient, "master", away_at_first)
    back.give_back([(message, 1)])
    back.close()
    assert len(asked) >= 3
    monkeypatch.undo()
    assert waiting(admin, 1) == before + 1
