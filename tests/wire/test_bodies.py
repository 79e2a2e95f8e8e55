"""JSON bodies: exact text of fastjson, tolerant reading, compressed registration (W 3.2, 3.3)."""

from __future__ import annotations

import struct
import zlib
from contextlib import suppress
from typing import Any

import pytest

from rocketstream.errors import RemoteProtocolError
from rocketstream.protocol.bodies import (
    Body,
    BrokerData,
    ConsumerData,
    ConsumeStats,
    DataVersion,
    HeartbeatData,
    KVTable,
    LockBatchRequestBody,
    RegisterBrokerBody,
    ResetOffsetBody,
    TopicConfig,
    TopicConfigSerializeWrapper,
    TopicList,
    TopicRouteData,
    TopicStatsTable,
)
from rocketstream.protocol.bodies.base import INT
from rocketstream.protocol.record import body_crc
from tests.kits import vectors
from tests.kits.registrations import compressed
from tests.plugins.steps import drained
from tests.wire.samples import BODIES, MQ0, MQ0_TEXT, ROUTE, SAMPLES, TOPICS, VERSION


@pytest.mark.parametrize(("body", "text"), SAMPLES, ids=lambda one: type(one).__name__)
def test_body_is_fastjsons_text_and_reads_back(body: Body, text: str) -> None:
    assert body.encode().decode() == text
    assert type(body).decode(text) == body
    assert type(body).decode(body.encode(pretty=True)) == body
    assert type(body).from_json(body.to_json()) == body


@pytest.mark.parametrize(("body", "text"), SAMPLES, ids=lambda one: type(one).__name__)
def test_body_is_written_in_steps_as_at_once(body: Body, text: str) -> None:
    """What a broker with 10,000 topics answers leaves others their turn."""
    if type(body).encode is Body.encode:  # some have another form of their own
        again = type(body).decode(text)  # writing in steps empties its tables
        assert b"".join(drained(again.encoding())[0]).decode() == text


def test_tables_are_written_and_read_entry_by_entry() -> None:
    topics = {f"T{number}": TopicConfig(f"T{number}") for number in range(100)}
    wrapper = TopicConfigSerializeWrapper(topics, DataVersion(1, 2))
    registration = RegisterBrokerBody(
        TopicConfigSerializeWrapper(dict(topics), DataVersion(1, 2)), ["a:1"]
    )
    text = wrapper.encode()
    parts, steps = drained(wrapper.encoding())
    assert b"".join(parts) == text
    assert steps == 100
    assert not wrapper.topic_config_table, "freeing a great table at the end is a long step"
    read, steps = drained(RegisterBrokerBody.decoding(registration.encode()))
    assert read == registration
    assert steps == 100


@pytest.mark.parametrize(
    "junk",
    ["{}", '{"topicConfigSerializeWrapper":null}', '{"TopicConfig-serialize_wrapper":{}}'],
)
def test_registration_without_topics_is_read_too(junk: str) -> None:
    assert drained(RegisterBrokerBody.decoding(junk.encode()))[0] == RegisterBrokerBody()


@pytest.mark.parametrize(
    "junk", ["[]", "5", '{"topicConfigSerializeWrapper":{"topicConfigTable":{"a":5}}}']
)
def test_registration_of_another_kind_is_refused(junk: str) -> None:
    with pytest.raises(RemoteProtocolError):
        drained(RegisterBrokerBody.decoding(junk.encode()))


@pytest.mark.parametrize("cls", BODIES, ids=lambda cls: cls.__name__)
def test_defaults_round_trip_and_unknown_names_are_ignored(cls: type[Body]) -> None:
    body = cls()
    assert cls.decode(body.encode()) == body
    assert cls.decode(b'{"noSuchName":{"x":[1]},"someday":{}}') == body


@pytest.mark.parametrize("junk", [b"", b"[]", b"5", b"null", b'"x"', b"{", b"\xff"])
def test_body_that_is_no_object_is_refused(junk: bytes) -> None:
    for cls in BODIES:
        with pytest.raises(RemoteProtocolError):
            cls.decode(junk)


DEEP: Any = []
for _ in range(100):
    DEEP = [DEEP]


@pytest.mark.parametrize(
    "junk", [[], {}, [[]], [None], [5], "x", 5, 1.5, 1e400, True, {"a": 1}, {"a": []}, 2**70, DEEP]
)
def test_field_of_another_kind_reads_or_is_refused(junk: Any) -> None:
    for cls in BODIES:
        for field in cls.body_fields:
            with suppress(RemoteProtocolError):
                cls.from_json({field.wire: junk})


# --- routes ------------------------------------------------------------------------------------

ROUTE_STANDARD = (
    '{"brokerDatas":[{"brokerAddrs":{"0":"10.0.0.1:10911","1":"10.0.0.2:10911"},'
    '"brokerName":"broker-a","cluster":"DefaultCluster"}],"filterServerTable":{},"queueDatas":'
    '[{"brokerName":"broker-a","perm":6,"readQueueNums":4,"topicSysFlag":0,"writeQueueNums":4}]}'
)


def test_route_in_standard_form() -> None:
    assert ROUTE.encode().decode() == ROUTE_STANDARD
    assert TopicRouteData.decode(ROUTE_STANDARD) == ROUTE


def test_route_in_fastjson_form_has_bare_keys() -> None:
    text = ROUTE_STANDARD.replace('"0":', "0:").replace('"1":', "1:")
    assert ROUTE.encode(standard=False).decode() == text
    assert TopicRouteData.decode(text) == ROUTE


def test_order_conf_stands_between_filter_servers_and_queues() -> None:
    route = TopicRouteData(order_topic_conf="broker-a:4;broker-b:4")
    assert route.encode().decode() == (
        '{"brokerDatas":[],"filterServerTable":{},"orderTopicConf":"broker-a:4;broker-b:4",'
        '"queueDatas":[]}'
    )


def test_route_of_a_5x_name_server_is_read() -> None:
    """covers W 7.2: zoneName, enableActingMaster, topicQueueMappingByBroker are ignored."""
    text = ROUTE_STANDARD.replace(
        '"cluster"', '"zoneName":"z","enableActingMaster":false,"cluster"'
    )
    text = text[:-1] + ',"topicQueueMappingByBroker":{}}'
    assert TopicRouteData.decode(text) == ROUTE


def test_only_id_zero_is_the_master() -> None:
    assert ROUTE.broker_datas[0].master_addr == "10.0.0.1:10911"
    assert BrokerData("c", "b", {2: "x:2", 1: "x:1"}).master_addr is None
    assert BrokerData("c", "b", {-1: "r", 1: "s"}).master_addr is None


# --- tolerance ---------------------------------------------------------------------------------


def test_names_are_compared_loosely() -> None:
    """covers W 3.1, reading: case and '_' '-' do not matter."""
    assert DataVersion.decode(b'{"Counter":7,"time_stamp":1700000000000}') == VERSION
    assert HeartbeatData.decode(b'{"clientId":"x"}').client_id == "x"


def test_numbers_and_texts_convert() -> None:
    assert DataVersion.decode(b'{"counter":"7","timestamp":1700000000000.0}') == VERSION
    config = TopicConfig.decode(b'{"topicName":5,"order":"true","perm":"4"}')
    assert (config.topic_name, config.order, config.perm) == ("5", True, 4)


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ('"CONSUME_POP"', "CONSUME_POP"),
        ('"consume_actively"', "CONSUME_ACTIVELY"),
        ("0", "CONSUME_ACTIVELY"),
        ('"SOMETHING"', "CONSUME_PASSIVELY"),
        ("99", "CONSUME_PASSIVELY"),
        ("null", "CONSUME_PASSIVELY"),
    ],
)
def test_enums_are_read_by_name_or_ordinal(value: str, kind: str) -> None:
    """covers W 3.1 and 2.9: CONSUME_POP of 5.x is accepted."""
    assert ConsumerData.decode(f'{{"consumeType":{value}}}').consume_type == kind


def test_heartbeat_of_a_5x_client_is_read() -> None:
    """covers W 2.9."""
    text = SAMPLES[1][1][:-1] + ',"heartbeatFingerprint":0,"withoutSub":false}'
    assert HeartbeatData.decode(text) == SAMPLES[1][0]


def test_queue_keys_may_be_quoted_text() -> None:
    key = MQ0_TEXT.replace('"', '\\"')
    text = f'{{"offsetTable":{{"{key}":5}}}}'
    assert ResetOffsetBody.decode(text).offset_table == {MQ0: 5}


def test_reset_offset_body_for_c_is_read_and_written() -> None:
    """covers W 2.6: a client that is not Java may receive the list form."""
    text = '{"offsetTable":[{"brokerName":"broker-a","offset":5,"queueId":0,"topic":"T1"}]}'
    assert ResetOffsetBody.decode(text) == ResetOffsetBody({MQ0: 5})
    assert ResetOffsetBody({MQ0: 5}).encode_for_c().decode() == text
    unsaid = text.replace('"offset":5,', "")
    assert ResetOffsetBody.decode(unsaid) == ResetOffsetBody({MQ0: 0})
    with pytest.raises(RemoteProtocolError):
        ResetOffsetBody.decode('{"offsetTable":[5]}')


def test_reset_offset_body_for_c_may_name_its_queues_by_text() -> None:
    text = MQ0_TEXT.replace('"', '\\"')
    assert ResetOffsetBody.decode(f'{{"offsetTable":["{text}"]}}') == ResetOffsetBody({MQ0: 0})


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        ("true", True), ("false", False), ('"true"', True), ('"TRUE"', True), ('"1"', True),
        ('"y"', True), ('"T"', True), ('"0"', False), ('"yes"', False), ('""', False),
        ("1", True), ("0", False), ("2", False), ("-1", False),
    ],
)  # fmt: skip
def test_truth_values_are_read_as_fastjson_reads_them(value: str, wanted: bool) -> None:
    """Covers W 3.1, reading: as ``TypeUtils.castToBoolean`` does."""
    assert TopicConfig.decode(f'{{"order":{value}}}').order is wanted


@pytest.mark.parametrize("value", ["1.5", "[]", "{}"])
def test_what_is_no_truth_value_is_refused(value: str) -> None:
    with pytest.raises(RemoteProtocolError, match="field order: expected true or false"):
        TopicConfig.decode(f'{{"order":{value}}}')


@pytest.mark.parametrize(
    ("value", "wanted"), [("1", 1.0), ("2.5", 2.5), ('"2.5"', 2.5), ('"1E3"', 1000.0)]
)
def test_rates_are_read_from_numbers_and_texts(value: str, wanted: float) -> None:
    assert ConsumeStats.decode(f'{{"consumeTps":{value}}}').consume_tps == wanted
    for junk in ("true", "[]", '"x"'):
        with pytest.raises(RemoteProtocolError, match="field consumeTps"):
            ConsumeStats.decode(f'{{"consumeTps":{junk}}}')


@pytest.mark.parametrize(
    ("value", "wanted"),
    [("5", "5"), ("true", "true"), ("2.5", "2.5"), ('{"a":[1]}', '{"a":[1]}'), ("[1,2]", "[1,2]")],
)
def test_a_text_may_be_any_value(value: str, wanted: str) -> None:
    assert TopicConfig.decode(f'{{"topicName":{value}}}').topic_name == wanted


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ("0", "CONSUME_ACTIVELY"),
        ("2", "CONSUME_POP"),
        ("3", "CONSUME_PASSIVELY"),
        ("-1", "CONSUME_PASSIVELY"),
        ("true", "CONSUME_PASSIVELY"),
        ("[]", "CONSUME_PASSIVELY"),
    ],
)
def test_enums_have_as_many_ordinals_as_names(value: str, kind: str) -> None:
    assert ConsumerData.decode(f'{{"consumeType":{value}}}').consume_type == kind


def test_null_in_a_table_or_list_is_nothing() -> None:
    route = TopicRouteData.decode('{"queueDatas":[null,{"perm":6},null],"brokerDatas":null}')
    assert [each.perm for each in route.queue_datas] == [6]
    assert route.broker_datas == []
    assert TopicList.decode('{"topicList":["a",null]}').topic_list == {"a"}
    assert KVTable.decode('{"table":{"a":null,"b":"1"}}').table == {"b": "1"}
    assert ResetOffsetBody.decode('{"offsetTable":{' + MQ0_TEXT + ":null}}").offset_table == {}


@pytest.mark.parametrize("junk", ["5", '"x"', "[]"])
def test_a_table_is_an_object(junk: str) -> None:
    for cls, name in ((KVTable, "table"), (TopicStatsTable, "offsetTable")):
        with pytest.raises(RemoteProtocolError, match=f"field {name}: expected an object"):
            cls.decode(f'{{"{name}":{junk}}}')
    if junk != "[]":
        with pytest.raises(RemoteProtocolError, match="field topicList: expected a list"):
            TopicList.decode(f'{{"topicList":{junk}}}')


def test_a_name_is_taken_as_it_is_before_it_is_compared_loosely() -> None:
    """A null of the right name says nothing, whatever another name says."""
    assert HeartbeatData.decode('{"client_id":"a","clientID":"b"}').client_id == "b"
    assert HeartbeatData.decode('{"client_id":"a","clientID":null}').client_id == ""
    assert HeartbeatData.decode('{"CLIENT-ID":"a"}').client_id == "a"
    assert HeartbeatData.decode('{"CLIENT-ID":null}').client_id == ""


def test_a_key_that_is_no_queue_is_left_out() -> None:
    for key in ("5", "{1:2}", '{"topic":"T1"}', '"x"', '{"a":[1]}'):
        text = '{"offsetTable":{' + key + ":5," + MQ0_TEXT + ":6}}"
        assert ResetOffsetBody.decode(text).offset_table == {MQ0: 6}


def test_topics_are_written_the_quick_way_and_without_a_version_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is the whole of topics.json, written whenever a topic is made."""
    unsaid = TopicConfigSerializeWrapper({"T1": TopicConfig("T1")}, None)  # type: ignore[arg-type]
    assert TopicConfigSerializeWrapper.decode(unsaid.encode(pretty=True)).topic_config_table == (
        unsaid.topic_config_table
    )
    usual = TOPICS.encode(pretty=True)
    assert usual == Body.encode(TOPICS, pretty=True)

    def general(*_: object, **__: object) -> bytes:
        raise AssertionError("written by the general rules")

    monkeypatch.setattr(Body, "encode", general)
    assert TOPICS.encode(pretty=True) == usual


def test_reference_as_a_key_does_not_break_the_rest() -> None:
    """covers W 3.1 rule 9."""
    text = '{"offsetTable":{' + MQ0_TEXT + ':5,{"$ref":"$.x"}:6}}'
    assert ResetOffsetBody.decode(text).offset_table == {MQ0: 5}


def test_a_queue_with_more_names_than_ours_is_a_key_too() -> None:
    """As fastjson reads it: what a later version adds is passed over."""
    key = MQ0_TEXT.replace("}", ',"later":1}')
    assert ResetOffsetBody.decode('{"offsetTable":{' + key + ":5}}").offset_table == {MQ0: 5}


def test_a_queue_may_be_given_as_text() -> None:
    """Covers W 3.1, reading: as fastjson takes an object within quotes for one."""
    text = MQ0_TEXT.replace('"', '\\"')
    assert LockBatchRequestBody.decode(f'{{"mqSet":["{text}",null]}}').mq_set == {MQ0}


@pytest.mark.parametrize(
    ("attributes", "batch", "compacted"),
    [
        (None, False, False),
        ({}, False, False),
        ({"queue.type": "BatchCQ"}, True, False),
        ({"queue.type": "SimpleCQ", "cleanup.policy": "COMPACTION"}, False, True),
        ({"cleanup.policy": "DELETE"}, False, False),
    ],
)
def test_attributes_of_5x_tell_how_a_topic_is_kept(
    attributes: dict[str, str] | None, batch: bool, compacted: bool
) -> None:
    topic = TopicConfig("T", attributes=attributes)
    assert (topic.has_batch_queues, topic.is_compacted) == (batch, compacted)


def test_broken_queue_is_refused() -> None:
    with pytest.raises(RemoteProtocolError):
        LockBatchRequestBody.decode('{"mqSet":["x"]}')


# --- compressed registration (W 3.3) -----------------------------------------------------------


def registration(*parts: bytes) -> bytes:
    """Return a compressed registration of raw parts."""
    return zlib.compress(b"".join(parts))


def part(data: bytes) -> bytes:
    """Return length-prefixed bytes."""
    return struct.pack(">i", len(data)) + data


def test_compressed_registration_is_byte_equal_to_java() -> None:
    body = RegisterBrokerBody(TOPICS)
    packed = compressed(body)
    assert packed == vectors.REGISTER_COMPRESSED
    assert body_crc(packed) == vectors.REGISTER_COMPRESSED_CRC
    assert RegisterBrokerBody.decode_compressed(vectors.REGISTER_COMPRESSED) == body


def test_plain_registration_has_javas_crc() -> None:
    assert body_crc(RegisterBrokerBody(TOPICS).encode()) == vectors.REGISTER_PLAIN_CRC


def test_sixth_part_of_5x_topic_lines_is_ignored() -> None:
    """covers W 2.9: accept five parts or more."""
    data = registration(
        part(VERSION.encode()),
        struct.pack(">i", 1),
        part(b'T1 8 8 6 SINGLE_TAG {"+a":"b c"}'),
        part(b"[]"),
    )
    assert RegisterBrokerBody.decode_compressed(data) == RegisterBrokerBody(TOPICS)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"junk",
        vectors.REGISTER_COMPRESSED[:-5],
        registration(),
        registration(b"\0\0\0\x05{}"),
        registration(struct.pack(">i", -1)),
        registration(part(b"[]")),
        registration(part(b"{}"), struct.pack(">i", 2**31 - 1)),
        registration(part(b"{}"), struct.pack(">i", 1), part(b"T1 8 8 6"), part(b"[]")),
        registration(part(b"{}"), struct.pack(">i", 1), part(b"T1 x 8 6 SINGLE_TAG"), part(b"[]")),
        registration(
            part(b"{}"), struct.pack(">i", 1), part(b"\xff 8 8 6 SINGLE_TAG"), part(b"[]")
        ),
        registration(part(b"{}"), struct.pack(">i", 0)),
        registration(part(b"{}"), struct.pack(">i", 0), part(b"5")),
    ],
)
def test_damaged_registration_is_refused(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        RegisterBrokerBody.decode_compressed(data)


@pytest.mark.parametrize("size", [-1, 3, 10])
def test_no_part_of_a_registration_ends_behind_it(size: int) -> None:
    length, empty = struct.pack(">i", size), struct.pack(">i", 0)
    for parts in (
        (length, b"{}"),
        (part(b"{}"), length + b"[]"[: size - 1]),
        (part(b"{}"), empty, length + b"[]"),
        (part(b"{}"), struct.pack(">i", 1), length + b"T1"),
    ):
        with pytest.raises(RemoteProtocolError, match=f"a length of {size} cannot be"):
            RegisterBrokerBody.decode_compressed(registration(*parts))
    with pytest.raises(RemoteProtocolError, match="not JSON"):
        RegisterBrokerBody.decode_compressed(registration(part(b"{}"), empty, part(b"")))
    for missing in range(1, 4):
        with pytest.raises(RemoteProtocolError, match="is cut short"):
            RegisterBrokerBody.decode_compressed(registration(part(b"{}"), empty[missing:]))


def test_registration_that_inflates_too_far_is_refused() -> None:
    bomb = zlib.compress(bytes(1_000_000))
    with pytest.raises(RemoteProtocolError, match="more than 1000 bytes"):
        RegisterBrokerBody.decode_compressed(bomb, bytes_max=1000)


@pytest.mark.parametrize("number", [-(2**63), -1, 0, 2**63 - 1])
def test_a_number_of_a_body_has_64_bits(number: int) -> None:
    """As Java's long: the first beyond is refused, whether a number or a text."""
    assert INT.read(number) == number
    assert INT.read(str(number)) == number
    for beyond in (-(2**63) - 1, 2**63):
        with pytest.raises(ValueError, match="64 bits"):
            INT.read(beyond)
        with pytest.raises(ValueError, match="64 bits"):
            INT.read(str(beyond))
