"""What a task decides when it consumes: batches, turns in order, and what is sent for a failure."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from rocketstream.errors import LocalProtocolError
from rocketstream.model import MessageQueue
from rocketstream.protocol.codes import MessageSysFlag, RequestCode
from rocketstream.protocol.compression import decompress
from rocketstream.protocol.headers import (
    ConsumerSendMsgBackRequestHeader,
    SendMessageRequestHeader,
)
from rocketstream.protocol.message_ext import MessageExt, assemble_message
from rocketstream.protocol.properties import decode_properties
from rocketstream.spark.consumer.core.batches import batches_of
from rocketstream.spark.consumer.core.returns import anew, dead, send_back_command
from rocketstream.spark.consumer.core.turns import Turns

A, B = MessageQueue("T", "broker-a", 0), MessageQueue("T", "broker-a", 1)


@dataclass
class Tried:
    queue_offset: int
    _reconsume_times: int = 0

    @property
    def reconsume_times(self) -> int:
        """How often it was tried before."""
        return self._reconsume_times


def offsets(messages: object) -> list[int]:
    return [message.queue_offset for message in messages]  # type: ignore[attr-defined]


def test_a_batch_holds_one_queue_only_and_keeps_the_order_of_the_rows() -> None:
    """Covers C-260."""
    rows = [(A, 1), (B, 2), (A, 3), (B, 4), (A, 5)]
    assert list(batches_of(rows, 2)) == [(A, [1, 3]), (B, [2, 4]), (A, [5])]


def test_a_full_batch_is_given_out_before_the_next_row_is_read() -> None:
    rows = iter([(A, 1), (A, 2), (A, 3)])
    assert next(batches_of(rows, 2)) == (A, [1, 2])
    assert next(rows) == (A, 3)


def turns_of(*numbers: int, batch: int = 2, tries: int = 2) -> Turns[Tried]:
    turns: Turns[Tried] = Turns(batch, tries)
    turns.put(A, [Tried(number) for number in numbers])
    return turns


def test_a_queue_has_one_batch_out_at_a_time() -> None:
    turns = turns_of(1, 2, 3)
    first = turns.take(0)
    assert first is not None
    assert offsets(first.batch) == [1, 2]
    assert turns.take(0) is None
    turns.finished(first)
    second = turns.take(0)
    assert second is not None
    assert offsets(second.batch) == [3]
    assert not turns.done
    turns.finished(second)
    assert turns.done


def test_rows_that_were_shuffled_are_taken_by_offset() -> None:
    turn = turns_of(5, 3, 4, batch=3).take(0)
    assert turn is not None
    assert offsets(turn.batch) == [3, 4, 5]


def test_a_failed_batch_comes_again_after_its_pause_and_before_what_is_behind_it() -> None:
    """Covers C-285: a queue never overtakes itself."""
    turns = turns_of(1, 2, 3)
    turn = turns.take(0)
    assert turn is not None
    assert turns.failed(turn, 1_000, 0) == []
    assert turns.take(999) is None
    assert turns.wait_ms(400) == 600
    again = turns.take(1_000)
    assert again is not None
    assert offsets(again.batch) == [1, 2]
    assert [message.reconsume_times for message in again.batch] == [1, 1]


def test_a_pausing_queue_does_not_hold_up_others() -> None:
    turns = turns_of(1)
    turns.put(B, [Tried(7)])
    turn = turns.take(0)
    assert turn is not None
    turns.failed(turn, 1_000, 0)
    other = turns.take(1)
    assert other is not None
    assert other.queue == B
    turns.finished(other)
    assert turns.wait_ms(1) == 999


def test_a_message_is_given_up_after_its_last_try_and_only_the_others_come_again() -> None:
    """Covers C-287 and C-590."""
    turns: Turns[Tried] = Turns(2, 2)
    turns.put(A, [Tried(1, 2), Tried(2)])
    turn = turns.take(0)
    assert turn is not None
    assert offsets(turns.failed(turn, 50, 0)) == [1]
    again = turns.take(50)
    assert again is not None
    assert offsets(again.batch) == [2]


def test_a_queue_whose_batch_was_given_up_whole_goes_on_at_once() -> None:
    turns = turns_of(1, 2, batch=1, tries=0)
    turn = turns.take(0)
    assert turn is not None
    assert offsets(turns.failed(turn, 30_000, 0)) == [1]
    after = turns.take(0)
    assert after is not None
    assert offsets(after.batch) == [2]


def message(body: bytes = b"b", times: int = 0, **properties: str) -> MessageExt:
    return assemble_message(
        A, 7, body, {"UNIQ_KEY": "U", **properties}, commit_log_offset=99, reconsume_times=times,
        flag=3, sys_flag=MessageSysFlag.COMPRESSED, born_timestamp=5, store_timestamp=6,
        store_host=bytes([127, 0, 0, 1, 0, 0, 0x2A, 0x9F]),
    )  # fmt: skip


def test_an_assembled_message_reads_like_one_from_the_wire() -> None:
    given = message(TAGS="a", KEYS="k")
    assert (given.msg_id, given.tags, given.keys, given.body) == ("U", "a", "k", b"b")
    assert (given.topic, given.queue_id, given.queue_offset) == ("T", 0, 7)
    assert (given.commit_log_offset, given.flag, given.reconsume_times) == (99, 3, 0)
    assert (given.born_timestamp, given.store_timestamp) == (5, 6)
    assert given.store_host == "127.0.0.1:10911"
    assert given.offset_msg_id == "7F00000100002A9F0000000000000063"
    assert given.message_queue == A
    assert decode_properties(given.properties_bytes) == given.properties
    given.check_crc()


def test_the_body_of_an_assembled_message_is_plain_whatever_the_flags_said() -> None:
    given = message(b"plain")
    assert given.sys_flag & MessageSysFlag.COMPRESSED == 0
    assert given.stored_body == given.body == b"plain"


def test_properties_no_record_can_hold_are_refused() -> None:
    with pytest.raises(LocalProtocolError, match="holds 65535"):
        message(big="x" * 70_000)


def test_a_send_back_names_the_place_in_the_log_and_the_limit() -> None:
    """Covers C-270."""
    header = send_back_command(message(), "g", -1, 16).header(ConsumerSendMsgBackRequestHeader)
    assert (header.offset, header.group, header.delay_level) == (99, "g", -1)
    assert (header.origin_msg_id, header.origin_topic) == ("U", "T")
    assert (header.max_reconsume_times, header.bname) == (16, "broker-a")


def sent(replacement: object, queue: MessageQueue = B) -> SendMessageRequestHeader:
    command = replacement.command(queue)  # type: ignore[attr-defined]
    assert command.code == RequestCode.SEND_MESSAGE_V2
    return SendMessageRequestHeader.from_ext_v2(command.ext_fields)


def test_a_replacement_keeps_the_message_and_counts_the_try() -> None:
    """Covers C-271: delay level 3 and the number of retries, the first topic kept."""
    header = sent(anew(message(times=1), "g", 0, 16))
    assert (header.topic, header.queue_id, header.reconsume_times) == ("%RETRY%g", 1, 2)
    kept = decode_properties(header.properties or "")
    assert (kept["RETRY_TOPIC"], kept["DELAY"], kept["UNIQ_KEY"]) == ("T", "4", "U")
    assert (header.flag, header.born_timestamp) == (3, 5)


def test_the_last_replacement_has_no_delay_and_is_over_its_own_limit() -> None:
    """Covers C-401: the broker moves it to the dead letters at once."""
    header = sent(anew(message(times=16), "g", 0, 16))
    assert "DELAY" not in decode_properties(header.properties or "")
    assert header.reconsume_times is not None
    assert header.max_reconsume_times is not None
    assert header.reconsume_times > header.max_reconsume_times


def test_a_dead_letter_is_over_the_limit_of_every_broker() -> None:
    """Covers C-289 and C-592."""
    header = sent(dead(message(times=3), "g", 3))
    assert (header.topic, header.reconsume_times, header.max_reconsume_times) == ("%RETRY%g", 3, 2)
    assert decode_properties(header.properties or "")["ORIGIN_MESSAGE_ID"] == "U"


def test_a_large_body_is_compressed_again() -> None:
    """The row's body was inflated; ten times the size might be over the broker's limit."""
    body = b"x" * 10_000
    replacement = anew(message(body), "g", 0, 16)
    command = replacement.command(B)
    header = SendMessageRequestHeader.from_ext_v2(command.ext_fields or {})
    assert len(command.body) < 1_000
    assert decompress(bytes(command.body), header.sys_flag) == body
