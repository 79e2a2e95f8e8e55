"""Rows to messages, which columns they need and what a listener sees; and failed ones back."""

from __future__ import annotations

import datetime
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import Row

from rocketstream.columns.table import COLUMNS
from rocketstream.errors import ConfigurationError, LocalProtocolError
from rocketstream.model import MessageQueue
from rocketstream.protocol.codes import MessageSysFlag, RequestCode
from rocketstream.protocol.compression import decompress
from rocketstream.protocol.headers import (
    ConsumerSendMsgBackRequestHeader,
    SendMessageRequestHeader,
)
from rocketstream.protocol.message_ext import MessageExt, assemble_message
from rocketstream.protocol.properties import decode_properties
from rocketstream.spark.listener.messages import (
    Messages,
    anew,
    check_columns,
    dead,
    send_back_command,
)

A, B = MessageQueue("T", "broker-a", 0), MessageQueue("T", "broker-a", 1)
BORN = datetime.datetime(2024, 5, 6, 7, 8, 9, 123_000, tzinfo=datetime.UTC)
BORN_MS = 1_714_979_289_123
ALL = list(COLUMNS.items())


def row(**changes: Any) -> dict[str, Any]:
    return {
        "topic": "T", "brokerName": "b", "queueId": 1, "queueOffset": 5, "msgId": "U",
        "tags": "a", "keys": None, "body": b"hello", "properties": {"UNIQ_KEY": "U", "TAGS": "a"},
        "flag": 2, "bornTimestamp": BORN, "storeTimestamp": BORN, "bornHost": "10.0.0.9:77",
        "storeHost": "[::1]:78", "reconsumeTimes": 0, "sysFlag": 0, "commitLogOffset": 1000,
    } | changes  # fmt: skip


def batch(*rows: dict[str, Any]) -> pa.RecordBatch:
    types = {
        "string": pa.string(), "int": pa.int32(), "bigint": pa.int64(), "binary": pa.binary(),
        "map<string,string>": pa.map_(pa.string(), pa.string()),
        "timestamp": pa.timestamp("us", "UTC"),
    }  # fmt: skip
    schema = pa.schema([(name, types[kind]) for name, kind in ALL])
    listed = [
        each | {"properties": each["properties"] and list(each["properties"].items())}
        for each in rows
    ]
    return pa.RecordBatch.from_pylist(listed, schema)


def test_a_record_batch_becomes_the_messages_that_were_read() -> None:
    messages = Messages(check_columns(ALL), "g")
    ((queue, first), (_, second)) = messages.of(batch(row(), row(queueOffset=6, body=b"")))
    assert queue == MessageQueue("T", "b", 1)
    assert (first.body, first.tags, first.queue_offset, first.flag) == (b"hello", "a", 5, 2)
    assert (first.born_timestamp, first.born_host) == (BORN_MS, "10.0.0.9:77")
    assert (first.store_timestamp, first.store_host) == (BORN_MS, "::1:78")
    assert (second.body, second.queue_offset, second.commit_log_offset) == (b"", 6, 1000)


def test_rows_of_spark_40_are_consumed_alike() -> None:
    """Its stream writer hands over rows instead of record batches."""
    messages = Messages(check_columns(ALL), "g")
    ((queue, given),) = messages.of(Row(**row(body=bytearray(b"hello"))))
    assert queue == MessageQueue("T", "b", 1)
    assert (given.body, given.born_timestamp) == (b"hello", BORN_MS)


def test_times_without_a_zone_are_in_that_of_the_machine() -> None:
    """Unlike record batches, rows have such ones."""
    here = BORN.astimezone().replace(tzinfo=None)
    given = row(bornTimestamp=here, storeTimestamp=here)
    ((_, message),) = Messages(check_columns(ALL), "g").of(Row(**given))
    assert (message.born_timestamp, message.store_timestamp) == (BORN_MS, BORN_MS)


def test_a_retried_message_has_its_first_topic_back_but_its_queue_is_the_retry_topics() -> None:
    """Covers C-261."""
    retried = row(
        topic="%RETRY%g", reconsumeTimes=2, properties={"UNIQ_KEY": "U", "RETRY_TOPIC": "orders"}
    )
    ((queue, given),) = Messages(check_columns(ALL), "g").of(batch(retried))
    assert queue.topic == "%RETRY%g"
    assert (given.topic, given.reconsume_times) == ("orders", 2)


def test_the_retry_topic_of_another_group_is_a_topic_like_any_other() -> None:
    ((_, given),) = Messages(check_columns(ALL), "g").of(
        batch(row(topic="%RETRY%other", properties={"RETRY_TOPIC": "orders"}))
    )
    assert given.topic == "%RETRY%other"


def test_a_body_may_be_text_and_columns_that_are_not_needed_may_be_missing() -> None:
    columns = [
        (name, "string" if name == "body" else kind)
        for name, kind in ALL
        if name not in {"bornTimestamp", "storeTimestamp", "bornHost", "storeHost", "flag", "keys"}
    ]
    table = batch(row()).select([name for name, _ in columns])
    table = table.set_column(
        [name for name, _ in columns].index("body"), "body", pa.array(["grüße"], pa.string())
    )
    ((_, given),) = Messages(check_columns(columns), "g").of(table)
    assert given.body == "grüße".encode()
    assert (given.born_timestamp, given.flag, given.born_host) == (0, 0, "0.0.0.0:0")


def test_missing_and_retyped_columns_are_named_together() -> None:
    columns = [(n, "int" if n == "queueOffset" else k) for n, k in ALL if n != "commitLogOffset"]
    with pytest.raises(ConfigurationError) as caught:
        check_columns(columns)
    text = str(caught.value)
    assert "commitLogOffset (bigint) is missing" in text
    assert "queueOffset is int, not bigint" in text


def test_columns_match_in_any_case() -> None:
    assert check_columns([(n.upper(), k) for n, k in ALL])["queueId"] == "QUEUEID"


def test_a_null_is_named_with_the_place_of_its_row() -> None:
    with pytest.raises(LocalProtocolError, match=r"column body is null .* offset 5 of topic 'T'"):
        list(Messages(check_columns(ALL), "g").of(batch(row(body=None))))


@pytest.mark.parametrize("odd", ["", "a\x01b", "a\x02b"])
def test_properties_that_their_text_would_change_are_those_of_the_row(odd: str) -> None:
    given = row(properties={"mine": odd, odd: odd})
    ((_, plain), (_, other)) = Messages(check_columns(ALL), "g").of(batch(row(), given))
    assert plain.properties == {"UNIQ_KEY": "U", "TAGS": "a"}
    assert other.properties == {"mine": odd, odd: odd}


def test_properties_of_large_types_are_those_of_the_row() -> None:
    """Covers spark.sql.execution.arrow.useLargeVarTypes."""
    rows = batch(row(properties={"UNIQ_KEY": "U", "a": "b"}))
    large = pa.map_(pa.large_string(), pa.large_string())
    place = rows.schema.get_field_index("properties")
    rows = rows.set_column(place, "properties", rows.column(place).cast(large))
    ((_, message),) = Messages(check_columns(ALL), "g").of(rows)
    assert message.properties == {"UNIQ_KEY": "U", "a": "b"}


def test_rows_of_part_of_a_batch_have_their_own_properties() -> None:
    rows = batch(row(), row(properties={"mine": "x"}), row()).slice(1, 1)
    ((_, given),) = Messages(check_columns(ALL), "g").of(rows)
    assert given.properties == {"mine": "x"}


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


@pytest.mark.parametrize(("count", "is_compressed"), [(4_095, False), (4_096, True)])
def test_bodies_are_compressed_from_4_kib_on(count: int, is_compressed: bool) -> None:
    """As Java's inner producer does."""
    command = anew(message(b"x" * count), "g", 0, 16).command(B)
    header = SendMessageRequestHeader.from_ext_v2(command.ext_fields or {})
    assert bool(header.sys_flag & MessageSysFlag.COMPRESSED) is is_compressed
    assert (len(command.body) < count) is is_compressed
